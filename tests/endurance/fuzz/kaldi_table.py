"""Kaldi tables: ``wav.scp``, ``text``, ``utt2spk`` and others."""

import re

from espnet_medusa.kaldi.table import read_table
from fuzz.reader import Reader, write_scratch

LINE = re.compile(r"\s*(\S+)(?:\s+(.*?))?\s*", re.DOTALL)


def read(data: bytes) -> None:
    """Compare with a regular expression."""
    table = read_table(write_scratch("table", data), require_value=False)
    lines = data.removeprefix(b"\xef\xbb\xbf").decode().split("\n")
    matches = [LINE.fullmatch(line) for line in lines if line.strip()]
    assert [*table.items()] == [(match[1], match[2] or "") for match in matches]


def seeds() -> list[bytes]:
    """Return tables of one line and of several."""
    return [
        b"a a.wav\n",
        b"rec1 /data/rec 1.flac\nrec2 sox x.wav -t wav - |\n",
        "\ufeffu1 gr\u00fc\u00dfe\r\nu2 \u3000 x\n\nu3\n".encode(),
    ]


READER = Reader(
    "kaldi_table",
    read,
    seeds,
    (b"\xef\xbb\xbf", b"\r\n", b"\xe2\x80\xa8", b"\xc2\x85"),
    max_bytes=512,
)
