"""Token lists and their vocabularies."""

from espnet_medusa.vocabulary.tokenizers import open_vocabulary
from fuzz.reader import Reader, write_scratch


def read(data: bytes) -> None:
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


def seeds() -> list[bytes]:
    """Return lists of characters and of words."""
    return [
        b"<blank>\n<unk>\n<space>\na\nb\n<sos/eos>\n",
        "<unk>\nthe\nW\u00f6rter\n<noise>\n<sos/eos>".encode(),
    ]


WORDS = (
    b"<space>",
    b"<0x41>",
    b"<blank>",
    "\u2581".encode(),
    "\u0120".encode(),
    b"\xe2\x80\xa8",
    b"\r",
)
READER = Reader("token_list", read, seeds, WORDS, max_bytes=512)
