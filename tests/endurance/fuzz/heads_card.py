"""Cards of heads: ``README.md`` as models on a hub have it."""

import yaml

from espnet_medusa.convert.heads_card import read_card
from espnet_medusa.model.heads import HEAD_TYPES
from fuzz.decode_yaml import MARKS
from fuzz.reader import Reader
from fuzz.scratch import write_scratch

SAID = {
    "base_model": "openai/whisper-tiny", "license": "mit", "training_data": {"a": "CC BY 4.0"},
    "commands": ["./run.sh"], "fingerprint": "0" * 64, "heads": "recurrent",
    "heads_conf": {"num_heads": 4, "num_layers": 1},
    "whisper": {"d_model": 8, "vocab_size": 60, "encoder_layers": 1, "decoder_layers": 2},
    "acceptance": {"data": "dev", "utterances": 2, "tokens_per_call": 2.5, "per_head": [0.7, 0.5]},
    "draft_conf": {"greedy": {"draft_depth": 2}},
}  # fmt: skip


def read(data: bytes) -> None:
    """Fields are those that PyYAML reads, of heads that there are."""
    card = read_card(write_scratch("README.md", data).parent)
    said = yaml.load(data.decode().split("---\n", 2)[1], yaml.CSafeLoader)
    assert card.heads in HEAD_TYPES and card.head_options.num_heads >= 1
    for name in ("base_model", "fingerprint", "heads", "heads_conf", "whisper", "commands"):
        assert getattr(card, name) == said[name]


def seeds() -> list[bytes]:
    """One with all fields."""
    return [f"---\n{yaml.safe_dump(SAID)}---\n# Heads\n\nOf a Whisper.\n".encode()]


READER = Reader(
    "heads_card", read, seeds, (*MARKS, *(name.encode() for name in HEAD_TYPES)), max_bytes=1024
)
