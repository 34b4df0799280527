"""OpenAI's ``.pt`` files: a fuzzed pickle with storages of fixed values."""

import pickletools

import torch

from espnet_medusa.whisper.pretrained import DECODER, open_whisper
from espnet_medusa.whisper.sizes import MAX_LAYERS, MAX_SIZE, SIZES
from fuzz.reader import MEGABYTE, Reader, write_scratch
from fuzz.torch_checkpoint import WORDS, pickle_of, saved, with_pickle

DIMS = {
    "n_mels": 80, "n_audio_ctx": 10, "n_audio_state": 4, "n_audio_head": 2, "n_audio_layer": 1,
    "n_vocab": 16, "n_text_ctx": 8, "n_text_state": 4, "n_text_head": 2, "n_text_layer": 1,
}  # fmt: skip


def read(data: bytes) -> None:
    """Check that sizes are in bounds and weights have the names of transformers."""
    whisper = open_whisper(str(write_scratch("whisper.pt", with_pickle(data))))
    for name in SIZES:
        most = MAX_LAYERS if name.endswith("_layers") else MAX_SIZE
        assert 1 <= getattr(whisper.config, name) <= most
    assert whisper.config.d_model % whisper.config.decoder_attention_heads == 0
    for name, value in whisper.weights(DECODER).items():
        assert not name.startswith("decoder.") and value.dtype == torch.float32


def seeds() -> list[bytes]:
    """Return a file with few tensors."""
    names = ("decoder.token_embedding.weight", "encoder.ln_post.bias")
    state = {name: torch.zeros(16) for name in names}
    return [pickletools.optimize(pickle_of(saved({"dims": DIMS, "model_state_dict": state})))]


NAMES = tuple(name.encode() for name in DIMS)
READER = Reader(
    "openai_whisper_pt", read, seeds, (*WORDS, *NAMES), room_bytes=256 * MEGABYTE, max_bytes=1024
)
