"""openai-whisper's timestamp rules over a small vocabulary, one position at a time."""

from types import SimpleNamespace

from tiny import EOS
from whisper.decoding import ApplyTimestampRules

from espnet_medusa.search.constraints import Constraints
from espnet_medusa.search.timestamps import build_timestamp_rules

FIRST_TIME, TIMED_VOCAB_SIZE = EOS + 3, EOS + 16  # two special tokens, 13 timestamps


def timed_constraints(latest_first: int | None) -> Constraints:
    rules = build_timestamp_rules(FIRST_TIME, TIMED_VOCAB_SIZE, latest_first)
    return Constraints(EOS, timestamps=rules, renormalize=True)


def openai_filter(logits, tokens, prompt_length: int, latest_first: int | None):
    """Set impossible tokens to -inf in logits (R, V) after prefixes (R, L), prompts included."""
    tokenizer = SimpleNamespace(timestamp_begin=FIRST_TIME, eot=EOS, no_timestamps=None)
    logits = logits.clone()
    ApplyTimestampRules(tokenizer, prompt_length, latest_first).apply(logits, tokens)
    return logits
