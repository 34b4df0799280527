"""``.safetensors`` files."""

import json
import struct

import numpy as np
import torch
from safetensors.torch import save

from espnet_medusa.files.checkpoint import load_weights
from espnet_medusa.report.measures import count_parameters
from fuzz.reader import Reader, write_scratch

KINDS = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "I64": "<i8",
    "I32": "<i4",
    "U8": "u1",
    "I8": "i1",
}


def read(data: bytes) -> None:
    """Compare with a reader written independently."""
    path = write_scratch("model.safetensors", data)
    weights = load_weights(path)
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    header.pop("__metadata__", None)
    assert header.keys() == weights.keys()
    for name, said in header.items():
        assert list(weights[name].shape) == said["shape"]
        if said["dtype"] in KINDS:
            first, last = (8 + size + place for place in said["data_offsets"])
            expected = np.frombuffer(data[first:last], KINDS[said["dtype"]]).reshape(said["shape"])
            np.testing.assert_array_equal(weights[name].numpy(), expected)
    floats = [value.numel() for value in weights.values() if value.is_floating_point()]
    assert count_parameters(path).total == sum(floats)


def seeds() -> list[bytes]:
    """Return files of several types and shapes."""
    generator = torch.Generator().manual_seed(0)
    weights = {
        "decoder.a": torch.randn(2, 3, generator=generator),
        "decoder.heads.b": torch.randn(4, generator=generator).half(),
        "c": torch.arange(3),
        "d": torch.tensor(1.5, dtype=torch.bfloat16),
    }
    return [save({"a": torch.zeros(1)}), save(weights, {"format": "pt"})]


WORDS = (
    b'"dtype":"',
    b'"shape":[',
    b'"data_offsets":[',
    b"F8_E4M3",
    b"BOOL",
    b"F4",
    b"C64",
    b"BF16",
)
READER = Reader("safetensors_file", read, seeds, WORDS, max_bytes=1024)
