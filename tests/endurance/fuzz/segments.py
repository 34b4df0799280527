"""``segments`` files of Kaldi."""

from decimal import Decimal
from functools import cache
from pathlib import Path

from espnet_medusa.kaldi.utterances import collect_utterances
from fuzz.reader import Reader, scratch_folder

RECORDINGS = ("rec1", "rec2")


def read(data: bytes) -> None:
    """Check that every id is an utterance or a problem, and that times equal those of the line."""
    (data_dir() / "segments").write_bytes(data)
    found = collect_utterances(data_dir(), require_text=False)
    said = {}
    for line in data.removeprefix(b"\xef\xbb\xbf").split(b"\n"):
        try:
            fields = line.decode().split()
        except UnicodeDecodeError:
            continue
        if fields:
            said.setdefault(fields[0], fields[1:])
    problems = {problem.id for problem in found.problems}
    good = {utterance.id: utterance for utterance in found.utterances}
    assert not problems & good.keys() and said.keys() <= problems | good.keys()
    for name, utterance in good.items():
        recording, start, end = said[name]
        assert recording in RECORDINGS and utterance.entry == f"{recording}.wav"
        assert (utterance.start_s, utterance.end_s) == (float(Decimal(start)), float(Decimal(end)))
        assert utterance.start_s >= 0 and (
            utterance.end_s == -1 or utterance.end_s > utterance.start_s
        )


@cache
def data_dir() -> Path:
    """Return a data directory with recordings only."""
    folder = scratch_folder() / "segmented"
    folder.mkdir()
    (folder / "wav.scp").write_text("".join(f"{name} {name}.wav\n" for name in RECORDINGS))
    return folder


def seeds() -> list[bytes]:
    """Return valid and invalid lines."""
    return [
        b"u1 rec1 0.0 1.5\nu2 rec2 1.25 -1\n",
        b"u1 rec1 0 1e3\nu2 rec3 0 1\nu3 rec1 2 1\nu4 rec2 nan 1\n",
    ]


READER = Reader(
    "segments", read, seeds, (b"nan", b"inf", b"-1", b"1e308", b"1_0", b"rec2"), max_bytes=512
)
