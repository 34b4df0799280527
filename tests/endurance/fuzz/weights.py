"""Files of weights: safetensors, ``torch.save``, OpenAI's Whisper, CTranslate2, transformers."""

import io
import json
import pickletools
import struct

import numpy as np
import torch
from ctranslate2_folder import pack, variables_of
from safetensors.torch import save, save_file
from tiny_whisper import tiny_config
from transformers import WhisperConfig, WhisperForConditionalGeneration

from espnet_medusa.data.files.checkpoint import MAX_REUSE, load_weights
from espnet_medusa.networks.whisper.ctranslate2_whisper import read_half
from espnet_medusa.networks.whisper.pretrained import DECODER, open_whisper
from espnet_medusa.networks.whisper.sizes import MAX_LAYERS, MAX_SIZE, SIZES
from espnet_medusa.recipes.report.measures import count_parameters
from fuzz.reader import MEGABYTE, fuzzed, scratch_folder, unzipped, write_scratch, zipped

NUMPY_TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "U8": "u1",
               "I8": "i1"}  # fmt: skip
WHOLE, PICKLE = b"F", b"P"
OPCODES = (
    b"ctorch\nFloatStorage\n", b"ctorch._utils\n_rebuild_tensor_v2\n", b"ctorch\nTensor\n",
    b"ctorch\nUntypedStorage\n", b"cbuiltins\nbytearray\n", b"cposix\nsystem\n", b"R.", b"\x81",
    b"ctorch._utils\n_rebuild_meta_tensor_no_storage\n", b"ctorch._utils\n_rebuild_parameter\n",
    b"ctorch._utils\n_rebuild_sparse_tensor\n", b"ctorch\nSize\n", b"ccollections\nOrderedDict\n",
    b"\x8a\x08", b"J\xff\xff\xff\x7f", b"\x85", b"\x86", b"\x87", b"storage", b"PK\x05\x06",
)  # fmt: skip
DIMS = {
    "n_mels": 80, "n_audio_ctx": 10, "n_audio_state": 4, "n_audio_head": 2, "n_audio_layer": 1,
    "n_vocab": 16, "n_text_ctx": 8, "n_text_state": 4, "n_text_head": 2, "n_text_layer": 1,
}  # fmt: skip
EMBEDDINGS = b"decoder/embeddings/weight\0"
CONFIG, INDEX = b"C", b"I"
FIELDS = {
    "model_type": "whisper", "vocab_size": 16, "d_model": 4, "num_mel_bins": 80,
    "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 8,
    "decoder_layers": 1, "decoder_attention_heads": 2, "decoder_ffn_dim": 8,
    "max_source_positions": 10, "max_target_positions": 8, "torch_dtype": "float16",
    "id2label": {"0": "a"}, "forced_decoder_ids": [[1, 2]],
}  # fmt: skip
SHARD = "model-00001-of-00001.safetensors"
VALID_CONFIG = json.dumps(FIELDS).encode()
VALID_INDEX = json.dumps({"metadata": {"total_size": 4}, "weight_map": {"a": SHARD}}).encode()


def safetensors() -> list[bytes]:
    generator = torch.Generator().manual_seed(0)
    weights = {
        "decoder.a": torch.randn(2, 3, generator=generator),
        "decoder.heads.b": torch.randn(4, generator=generator).half(),
        "c": torch.arange(3),
        "d": torch.tensor(1.5, dtype=torch.bfloat16),
    }
    return [save({"a": torch.zeros(1)}), save(weights, {"format": "pt"})]


@fuzzed(
    seeds=safetensors,
    words=b'"dtype":" "shape":[ "data_offsets":[ F8_E4M3 BOOL F4 C64 BF16'.split(),
)
def safetensors_file(data: bytes) -> None:
    """Compare ``.safetensors`` files with a reader written independently."""
    path = write_scratch("model.safetensors", data)
    weights = load_weights(path)
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    header.pop("__metadata__", None)
    assert header.keys() == weights.keys()
    for name, entry in header.items():
        shape, kind = entry["shape"], NUMPY_TYPES.get(entry["dtype"])
        assert list(weights[name].shape) == shape
        if kind:
            first, last = (8 + size + place for place in entry["data_offsets"])
            expected = np.frombuffer(data[first:last], kind).reshape(shape)
            np.testing.assert_array_equal(weights[name].numpy(), expected)
    floats = [value.numel() for value in weights.values() if value.is_floating_point()]
    assert count_parameters(path).total == sum(floats)


def with_pickle(content: bytes) -> bytes:
    """Return a file of ``torch.save`` with this pickle and two storages of 64 bytes."""
    storages = {f"archive/data/{number}": bytes(range(64)) for number in (0, 1)}
    headers = {"archive/version": b"3\n", "archive/byteorder": b"little"}
    return zipped({"archive/data.pkl": content, **headers, **storages})


def pickle_of(file: bytes) -> bytes:
    (pickle,) = (c for name, c in unzipped(io.BytesIO(file)).items() if name.endswith("data.pkl"))
    return pickle


def saved(content: object, **options) -> bytes:
    stream = io.BytesIO()
    torch.save(content, stream, **options)
    return stream.getvalue()


def checkpoints() -> list[bytes]:
    """Return a state dict in the zip and the legacy format, and two pickles."""
    state = {"a.weight": torch.arange(16.0).reshape(4, 4), "b.bias": torch.ones(32).half()}
    tied = {"model": state | {"c": state["a.weight"][1:]}, "epoch": 3}
    legacy = saved(state, _use_new_zipfile_serialization=False)
    pickles = [PICKLE + pickle_of(saved(content)) for content in (state, tied)]
    return [WHOLE + saved(state), WHOLE + legacy, *pickles]


@fuzzed(seeds=checkpoints, words=OPCODES, max_bytes=3072, room_bytes=256 * MEGABYTE)
def torch_checkpoint(data: bytes) -> None:
    """Check that all tensors are readable and not much larger than the file.

    The first byte of an input selects a whole file of ``torch.save`` or only its pickle.
    """
    file = with_pickle(data[1:]) if data[:1] == PICKLE else data[1:]
    weights = load_weights(write_scratch("model.pth", file))
    for name, value in weights.items():
        assert isinstance(name, str) and isinstance(value, torch.Tensor)
        assert value.detach().clone().shape == value.shape
    assert sum(value.nbytes for value in weights.values()) <= MAX_REUSE * len(file)


def check_sizes(config: WhisperConfig) -> None:
    for name in SIZES:
        assert 1 <= getattr(config, name) <= (MAX_LAYERS if name.endswith("_layers") else MAX_SIZE)


def openai_pickle() -> bytes:
    names = ("decoder.token_embedding.weight", "encoder.ln_post.bias")
    state = {name: torch.zeros(16) for name in names}
    return pickletools.optimize(pickle_of(saved({"dims": DIMS, "model_state_dict": state})))


@fuzzed(
    seeds=lambda: [openai_pickle()],
    words=(*OPCODES, *(name.encode() for name in DIMS)),
    room_bytes=256 * MEGABYTE,
)
def openai_whisper_pt(data: bytes) -> None:
    """Check sizes and weights of OpenAI's ``.pt`` files; inputs are their pickles."""
    whisper = open_whisper(str(write_scratch("whisper.pt", with_pickle(data))))
    check_sizes(whisper.config)
    assert whisper.config.d_model % whisper.config.decoder_attention_heads == 0
    for name, value in whisper.weights(DECODER).items():
        assert not name.startswith("decoder.") and value.dtype == torch.float32


def ctranslate2_models() -> list[bytes]:
    torch.manual_seed(0)
    sizes = {"num_mel_bins": 2, "max_source_positions": 2, "max_target_positions": 2}
    config = tiny_config(6, hidden_size=4, widening=1, decoder_layers=1, **sizes)
    whisper = WhisperForConditionalGeneration(config)
    return [pack(variables_of(whisper, kind)) for kind in ("float32", "float16", "int8", "int16")]


@fuzzed(
    seeds=ctranslate2_models,
    words=(b"WhisperSpec\0", b"_scale\0", b"encoder/num_heads\0", EMBEDDINGS, b"\0\0\xc0\x7f"),
    max_bytes=6144,
)
def ctranslate2_bin(data: bytes) -> None:
    """Compare float embeddings of ``model.bin`` with the bytes after their name in the file."""
    weights = read_half(write_scratch("model.bin", data), DECODER)
    assert all(value.dtype == torch.float32 for value in weights.values())
    assert sum(value.nbytes for value in weights.values()) <= 16 * len(data)
    place = data.find(EMBEDDINGS) + len(EMBEDDINGS)
    rank, rows, columns, kind, size = struct.unpack_from("<BIIBI", data, place)
    if rank == 2 and kind == 0 and data.count(EMBEDDINGS) == 2:  # the other is the alias's
        values = np.frombuffer(data, "<f4", rows * columns, place + 14)
        assert size == values.nbytes
        embeddings = weights["embed_tokens.weight"].numpy()
        np.testing.assert_array_equal(embeddings, values.reshape(rows, columns))


@fuzzed(
    seeds=lambda: [CONFIG + VALID_CONFIG, INDEX + VALID_INDEX],
    words=(
        *b'"../ "/etc/passwd" null true 1e999 [[ {} "quantization_config":'.split(),
        *(f'"{name}": '.encode() for name in FIELDS),
    ),
)
def whisper_json(data: bytes) -> None:
    """Check that sizes are in bounds and files are in the folder.

    The first byte of an input selects ``config.json`` or the index of the weights.
    """
    folder = scratch_folder() / "whisper"
    if not folder.is_dir():
        folder.mkdir()
        save_file({"a": torch.zeros(1)}, folder / SHARD)
    kind, content = data[:1], data[1:]
    config, index = (content, VALID_INDEX) if kind == CONFIG else (VALID_CONFIG, content)
    (folder / "config.json").write_bytes(config)
    (folder / "model.safetensors.index.json").write_bytes(index)
    whisper = open_whisper(str(folder))
    check_sizes(whisper.config)
    assert all(file.resolve().parent == folder.resolve() for file in whisper.files)
