"""Files of ``torch.save``; the first byte selects a whole file or only its pickle."""

import io
import zipfile

import torch

from espnet_medusa.files.checkpoint import MAX_REUSE, load_weights
from fuzz.reader import MEGABYTE, Reader, write_scratch

WHOLE, PICKLE = b"F", b"P"
RECORD = "archive/"
PICKLED = f"{RECORD}data.pkl"


def read(data: bytes) -> None:
    """Check that all tensors are readable and not much larger than the file."""
    stored = unpack(data)
    weights = load_weights(write_scratch("model.pth", stored))
    total = 0
    for name, value in weights.items():
        assert isinstance(name, str) and isinstance(value, torch.Tensor)
        total += value.nbytes
        assert value.detach().clone().shape == value.shape
    assert total <= MAX_REUSE * len(stored)


def unpack(data: bytes) -> bytes:
    """Return the file that an input encodes."""
    kind, content = data[:1], data[1:]
    return content if kind != PICKLE else with_pickle(content)


def with_pickle(content: bytes) -> bytes:
    """Return a file with this pickle and two storages of 64 bytes."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        records = {PICKLED: content, f"{RECORD}version": b"3\n", f"{RECORD}byteorder": b"little"}
        records |= {f"{RECORD}data/{number}": bytes(range(64)) for number in (0, 1)}
        for name, record in records.items():
            archive.writestr(name, record)
    return stream.getvalue()


def pickle_of(file: bytes) -> bytes:
    """Return the pickle of a file."""
    with zipfile.ZipFile(io.BytesIO(file)) as archive:
        name = next(name for name in archive.namelist() if name.endswith("data.pkl"))
        return archive.read(name)


def saved(content: object, **options) -> bytes:
    """Return the bytes that ``torch.save`` writes."""
    stream = io.BytesIO()
    torch.save(content, stream, **options)
    return stream.getvalue()


def seeds() -> list[bytes]:
    """Return a state dict in the zip and the legacy format, and two pickles."""
    state = {"a.weight": torch.arange(16.0).reshape(4, 4), "b.bias": torch.ones(32).half()}
    tied = {"model": state | {"c": state["a.weight"][1:]}, "epoch": 3}
    return [
        WHOLE + saved(state),
        WHOLE + saved(state, _use_new_zipfile_serialization=False),
        PICKLE + pickle_of(saved(state)),
        PICKLE + pickle_of(saved(tied)),
    ]


WORDS = (
    b"ctorch\nFloatStorage\n", b"ctorch._utils\n_rebuild_tensor_v2\n", b"ctorch\nTensor\n",
    b"ctorch\nUntypedStorage\n", b"cbuiltins\nbytearray\n", b"cposix\nsystem\n", b"R.", b"\x81",
    b"ctorch._utils\n_rebuild_meta_tensor_no_storage\n", b"ctorch._utils\n_rebuild_parameter\n",
    b"ctorch._utils\n_rebuild_sparse_tensor\n", b"ctorch\nSize\n", b"ccollections\nOrderedDict\n",
    b"\x8a\x08", b"J\xff\xff\xff\x7f", b"\x85", b"\x86", b"\x87", b"storage", b"PK\x05\x06",
)  # fmt: skip
READER = Reader("torch_checkpoint", read, seeds, WORDS, room_bytes=256 * MEGABYTE, max_bytes=3072)
