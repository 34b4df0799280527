"""Decode configs."""

from dataclasses import asdict, fields

import yaml

from espnet_medusa.inference.decode_options import DecodeOptions
from espnet_medusa.options import build_options, read_config
from espnet_medusa.search.options import check_options
from fuzz.reader import Reader, write_scratch

NAMES = tuple(entry.name for entry in fields(DecodeOptions))
BEAM_SIZE = 5


def read(data: bytes) -> None:
    """Compare the options with the values that PyYAML reads."""
    config = read_config(write_scratch("decode.yaml", data), "mend it")
    options = build_options(DecodeOptions, config, "decode config")
    check_options(options, BEAM_SIZE)
    assert {*config} <= {*NAMES}
    expected = asdict(DecodeOptions()) | yaml.load(data.decode(), yaml.CSafeLoader)
    assert asdict(options) == expected


def seeds() -> list[bytes]:
    """Return configs of several strategies."""
    return [
        b"search: greedy\ndraft_depth: 5\ndraft_vocab_size: 2000\n",
        b"search: beam\ndrafter: ctc\nlookahead: acceptance\npatience: 1.5\nlength_penalty: 0.5\n",
        b"search: greedy\nacceptance: typical\nmedusa_choices: [1, 2]\nsuppress_tokens: [1]\n",
        b"{search: greedy, decoder_precision: int8, ctc_entropy_threshold: 0.1, task: null}\n",
    ]


MARKS = (
    b"&a ", b"*a", b"<<: ", b"!!int ", b"!!bool x", b"!!timestamp ", b"!!python/object:os.system ",
    b".inf", b"-.nan", b"0x", b"1:1:1", b"1e400", b"? ", b"- ", b"[", b"{", b"|\n", b"%YAML 1.1\n",
    b"---\n", b"!!binary ", b"!!set ", b"!!omap ", b"\xe2\x80\xa8",
)  # fmt: skip
READER = Reader(
    "decode_yaml", read, seeds, (*MARKS, *(f"{name}: ".encode() for name in NAMES)), max_bytes=512
)
