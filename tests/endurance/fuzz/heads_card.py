"""Model cards of heads: ``README.md`` with YAML front matter."""

import yaml

from espnet_medusa.convert.heads_card import read_card
from espnet_medusa.model.heads import HEAD_TYPES
from fuzz.decode_yaml import MARKS
from fuzz.reader import Reader, write_scratch

CARD = {
    "base_model": "openai/whisper-tiny", "license": "mit", "training_data": {"a": "CC BY 4.0"},
    "commands": ["./run.sh"], "fingerprint": "0" * 64, "heads": "recurrent",
    "heads_conf": {"num_heads": 4, "num_layers": 1},
    "whisper": {"d_model": 8, "vocab_size": 60, "encoder_layers": 1, "decoder_layers": 2},
    "acceptance": {"data": "dev", "utterances": 2, "tokens_per_call": 2.5, "per_head": [0.7, 0.5]},
    "draft_conf": {"greedy": {"draft_depth": 2}},
}  # fmt: skip


def read(data: bytes) -> None:
    """Compare the fields with those that PyYAML reads."""
    card = read_card(write_scratch("README.md", data).parent)
    expected = yaml.load(data.decode().split("---\n", 2)[1], yaml.CSafeLoader)
    assert card.heads in HEAD_TYPES and card.head_options.num_heads >= 1
    for name in ("base_model", "fingerprint", "heads", "heads_conf", "whisper", "commands"):
        assert getattr(card, name) == expected[name]


def seeds() -> list[bytes]:
    """Return a card with all fields."""
    return [f"---\n{yaml.safe_dump(CARD)}---\n# Heads\n\nOf a Whisper.\n".encode()]


READER = Reader(
    "heads_card", read, seeds, (*MARKS, *(name.encode() for name in HEAD_TYPES)), max_bytes=1024
)
