"""CTranslate2's ``model.bin``."""

import struct
from functools import cache

import numpy as np
import torch
from ctranslate2_folder import pack, variables_of
from transformers import WhisperConfig, WhisperForConditionalGeneration

from espnet_medusa.whisper.ctranslate2_whisper import read_half
from espnet_medusa.whisper.pretrained import DECODER
from fuzz.reader import Reader, write_scratch

EMBEDDINGS = b"decoder/embeddings/weight\0"


def read(data: bytes) -> None:
    """Compare float embeddings with the bytes after their name in the file."""
    path = write_scratch("model.bin", data)
    weights = read_half(path, DECODER)
    embeddings = weights["embed_tokens.weight"]
    assert all(value.dtype == torch.float32 for value in weights.values())
    assert sum(value.nbytes for value in weights.values()) <= 16 * len(data)
    place = data.find(EMBEDDINGS) + len(EMBEDDINGS)
    rank, rows, columns, kind, size = struct.unpack_from("<BIIBI", data, place)
    if rank == 2 and kind == 0 and data.count(EMBEDDINGS) == 2:  # the other is the alias's
        values = np.frombuffer(data, "<f4", rows * columns, place + 14)
        assert size == values.nbytes
        np.testing.assert_array_equal(embeddings.numpy(), values.reshape(rows, columns))


@cache
def tiny() -> WhisperForConditionalGeneration:
    """Return a tiny Whisper."""
    torch.manual_seed(0)
    return WhisperForConditionalGeneration(
        WhisperConfig(
            vocab_size=6, d_model=4, num_mel_bins=2, encoder_layers=1, decoder_layers=1,
            encoder_attention_heads=1, decoder_attention_heads=1, encoder_ffn_dim=2,
            decoder_ffn_dim=2, max_source_positions=2, max_target_positions=2, pad_token_id=0,
            bos_token_id=0, eos_token_id=0, decoder_start_token_id=1,
        )
    )  # fmt: skip


def seeds() -> list[bytes]:
    """Return models of floats and of integers with scales."""
    return [pack(variables_of(tiny(), kind)) for kind in ("float32", "float16", "int8", "int16")]


WORDS = (b"WhisperSpec\0", b"_scale\0", b"encoder/num_heads\0", EMBEDDINGS, b"\0\0\xc0\x7f")
READER = Reader("ctranslate2_bin", read, seeds, WORDS, max_bytes=6144)
