"""Transcripts in sclite's trn format."""

import re

from espnet_medusa.scoring.trn import read_trn
from fuzz.reader import Reader, write_scratch

SPACE = " \t\n\v\f\r"
LINE = re.compile(rf"(.*)\(([^({SPACE}]+)\)[{SPACE}]*", re.DOTALL)


def read(data: bytes) -> None:
    """Compare with a regular expression."""
    found = read_trn(write_scratch("ref.trn", data))
    lines = [
        (number, line)
        for number, line in enumerate(data.decode().split("\n"), 1)
        if line.strip(SPACE) and not line.startswith((";;", "**"))
    ]
    assert len(lines) == len(found) == len({line.id for line in found})
    for (number, line), read_line in zip(lines, found, strict=True):
        match = LINE.fullmatch(line)
        tokens = [token for token in re.split(f"[{SPACE}]", match[1]) if token]
        assert (read_line.line_number, read_line.id) == (number, match[2])
        assert [*read_line.tokens] == tokens


def seeds() -> list[bytes]:
    """Return files with comments, punctuation and several scripts."""
    return [
        b"THE CAT SAT\t(spk1-utt1)\n(spk1-utt2)\n",
        ";; comment\n** more\ngr\u00fc\u00dfe (a) b (x_1)\r\n\n\u4f60 \u597d (y-2)\n".encode(),
    ]


READER = Reader(
    "trn", read, seeds, (b"(", b")", b";;", b"**", b"\xe3\x80\x80", b"\0"), max_bytes=512
)
