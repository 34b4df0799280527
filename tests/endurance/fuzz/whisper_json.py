"""Whisper's ``config.json`` or the index of its weights, selected by the first byte."""

import json

import torch
from safetensors.torch import save_file

from espnet_medusa.whisper.pretrained import open_whisper
from espnet_medusa.whisper.sizes import MAX_LAYERS, MAX_SIZE, SIZES
from fuzz.reader import Reader, scratch_folder

CONFIG, INDEX = b"C", b"I"
FIELDS = {
    "model_type": "whisper", "vocab_size": 16, "d_model": 4, "num_mel_bins": 80,
    "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 8,
    "decoder_layers": 1, "decoder_attention_heads": 2, "decoder_ffn_dim": 8,
    "max_source_positions": 10, "max_target_positions": 8, "torch_dtype": "float16",
    "id2label": {"0": "a"}, "forced_decoder_ids": [[1, 2]],
}  # fmt: skip
SHARD = "model-00001-of-00001.safetensors"


def read(data: bytes) -> None:
    """Check that sizes are in bounds and files are in the folder."""
    folder = scratch_folder() / "whisper"
    if not folder.is_dir():
        folder.mkdir()
        save_file({"a": torch.zeros(1)}, folder / SHARD)
    kind, content = data[:1], data[1:]
    texts = {"config.json": json.dumps(FIELDS).encode(), "model.safetensors.index.json": b""}
    texts["config.json" if kind == CONFIG else "model.safetensors.index.json"] = content
    if kind == CONFIG:
        texts["model.safetensors.index.json"] = index()
    for name, text in texts.items():
        (folder / name).write_bytes(text)
    whisper = open_whisper(str(folder))
    for name in SIZES:
        most = MAX_LAYERS if name.endswith("_layers") else MAX_SIZE
        assert 1 <= getattr(whisper.config, name) <= most
    assert all(file.resolve().parent == folder.resolve() for file in whisper.files)


def index() -> bytes:
    """Return a valid index."""
    return json.dumps({"metadata": {"total_size": 4}, "weight_map": {"a": SHARD}}).encode()


def seeds() -> list[bytes]:
    """Return one file of each kind."""
    return [CONFIG + json.dumps(FIELDS).encode(), INDEX + index()]


WORDS = (
    b'"../',
    b'"/etc/passwd"',
    b"null",
    b"true",
    b"1e999",
    b"[[",
    b"{}",
    b'"quantization_config":',
)
READER = Reader(
    "whisper_json",
    read,
    seeds,
    (*WORDS, *(f'"{name}": '.encode() for name in FIELDS)),
    max_bytes=1024,
)
