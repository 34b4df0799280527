"""Text files of a data directory: Kaldi tables, segments, transcripts, CSV files, token lists."""

import csv
import io
import re
from decimal import Decimal
from functools import cache
from pathlib import Path

from espnet_medusa.data.kaldi.table import read_table
from espnet_medusa.data.kaldi.utterances import collect_utterances
from espnet_medusa.networks.tokenizers import open_vocabulary
from espnet_medusa.recipes.kaldi.csv_import import read_csv
from espnet_medusa.recipes.scoring.trn import read_trn
from fuzz.reader import fuzzed, scratch_folder, write_scratch

BYTE_ORDER_MARK, LINE_SEPARATOR = b"\xef\xbb\xbf", b"\xe2\x80\xa8"
TABLE_LINE = re.compile(r"\s*(\S+)(?:\s+(.*?))?\s*", re.DOTALL)
RECORDINGS = ("rec1", "rec2")
SPACE = " \t\n\v\f\r"
TRN_LINE = re.compile(rf"(.*)\(([^({SPACE}]+)\)[{SPACE}]*", re.DOTALL)


@fuzzed(
    seeds=lambda: [
        b"a a.wav\n",
        b"rec1 /data/rec 1.flac\nrec2 sox x.wav -t wav - |\n",
        "\ufeffu1 gr\u00fc\u00dfe\r\nu2 \u3000 x\n\nu3\n".encode(),
    ],
    words=(BYTE_ORDER_MARK, b"\r\n", LINE_SEPARATOR, b"\xc2\x85"),
    max_bytes=512,
)
def kaldi_table(data: bytes) -> None:
    """Compare ``wav.scp``, ``text``, ``utt2spk`` and others with a regular expression."""
    table = read_table(write_scratch("table", data), require_value=False)
    lines = data.removeprefix(BYTE_ORDER_MARK).decode().split("\n")
    matches = [TABLE_LINE.fullmatch(line) for line in lines if line.strip()]
    assert [*table.items()] == [(match[1], match[2] or "") for match in matches]


@cache
def data_dir() -> Path:
    folder = scratch_folder() / "segmented"
    folder.mkdir()
    (folder / "wav.scp").write_text("".join(f"{name} {name}.wav\n" for name in RECORDINGS))
    return folder


@fuzzed(
    seeds=lambda: [
        b"u1 rec1 0.0 1.5\nu2 rec2 1.25 -1\n",
        b"u1 rec1 0 1e3\nu2 rec3 0 1\nu3 rec1 2 1\nu4 rec2 nan 1\n",
    ],
    words=(b"nan", b"inf", b"-1", b"1e308", b"1_0", b"rec2"),
    max_bytes=512,
)
def segments(data: bytes) -> None:
    """Check that every id is an utterance or a problem, and that times equal those of the line."""
    (data_dir() / "segments").write_bytes(data)
    collected = collect_utterances(data_dir(), require_text=False)
    lines = {}
    for line in data.removeprefix(BYTE_ORDER_MARK).split(b"\n"):
        try:
            fields = line.decode().split()
        except UnicodeDecodeError:
            continue
        if fields:
            lines.setdefault(fields[0], fields[1:])
    problems = {problem.id for problem in collected.problems}
    good = {utterance.id: utterance for utterance in collected.utterances}
    assert not problems & good.keys() and lines.keys() <= problems | good.keys()
    for name, utterance in good.items():
        recording, *times = lines[name]
        assert recording in RECORDINGS and utterance.entry == f"{recording}.wav"
        start_s, end_s = (float(Decimal(time)) for time in times)
        assert (utterance.start_s, utterance.end_s) == (start_s, end_s)
        assert start_s >= 0 and (end_s == -1 or end_s > start_s)


@fuzzed(
    seeds=lambda: [
        b"THE CAT SAT\t(spk1-utt1)\n(spk1-utt2)\n",
        ";; comment\n** more\ngr\u00fc\u00dfe (a) b (x_1)\r\n\n\u4f60 \u597d (y-2)\n".encode(),
    ],
    words=(b"(", b")", b";;", b"**", b"\xe3\x80\x80", b"\0"),
    max_bytes=512,
)
def trn(data: bytes) -> None:
    """Compare transcripts in sclite's format with a regular expression."""
    expected = []
    lines = read_trn(write_scratch("ref.trn", data))
    for number, line in enumerate(data.decode().split("\n"), 1):
        if line.strip(SPACE) and not line.startswith((";;", "**")):
            match = TRN_LINE.fullmatch(line)
            tokens = [token for token in re.split(f"[{SPACE}]", match[1]) if token]
            expected.append((number, match[2], tokens))
    assert [(line.line_number, line.id, [*line.tokens]) for line in lines] == expected
    assert len(lines) == len({line.id for line in lines})


@fuzzed(
    seeds=lambda: [
        b"audio,sentence\na.wav,the cat\n",
        "\ufeffaudio, sentence,language,regulation-start,regulation-factor\r\n"
        'b c.flac,"said ""no"", then\nleft",en,3,1.5\r\nx,too,many,values,here,now\r\n'.encode(),
    ],
    words=(b'"', b'""', b"\r", b"\0", b"audio,sentence\n", BYTE_ORDER_MARK),
    max_bytes=512,
)
def csv_table(data: bytes) -> None:
    """Check that no row is lost and that valid rows survive writing and reading."""
    columns, rows = read_csv(write_scratch("table.csv", data))
    assert {"audio", "sentence"} <= {*columns}
    assert len({row.id for row in rows}) == len(rows)
    good = [row.fields for row in rows if row.problem is None]
    assert all([*fields] == [*columns] for fields in good)
    stream = io.StringIO(newline="")
    csv.writer(stream).writerows([columns, *(fields.values() for fields in good)])
    # A column's name may itself begin with a byte order mark, which is not the file's.
    _, again = read_csv(write_scratch("again.csv", stream.getvalue().encode("utf-8-sig")))
    assert [row.fields for row in again if row.problem is None] == good
    assert len(again) == len(good)


@fuzzed(
    seeds=lambda: [
        b"<blank>\n<unk>\n<space>\na\nb\n<sos/eos>\n",
        "<unk>\nthe\nW\u00f6rter\n<noise>\n<sos/eos>".encode(),
    ],
    words=(*"<space> <0x41> <blank> \u2581 \u0120".encode().split(), LINE_SEPARATOR, b"\r"),
    max_bytes=512,
)
def token_list(data: bytes) -> None:
    """Check that each line is a token and that its text is tokenized to it."""
    vocabulary = open_vocabulary(write_scratch("tokens.txt", data))
    text = data.decode().replace("\r\n", "\n").replace("\r", "\n")
    lines = text.removesuffix("\n").split("\n") if text else []
    assert len(vocabulary.contents) == len(vocabulary.names) == len(lines)
    for number, (line, content) in enumerate(zip(lines, vocabulary.contents, strict=True)):
        name = vocabulary.names[number]
        assert (name is None) != (content is None) and name in (None, line)
        if content is not None and line not in ("", "<space>") and lines.count(line) == 1:
            assert content.decode().strip(" ") == line.strip(" ")
            if " " not in line and not line.startswith("<"):
                assert vocabulary.spell(content.decode()) == [number]
