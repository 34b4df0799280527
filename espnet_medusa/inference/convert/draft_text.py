"""Counts of a text's tokens, for the draft vocabulary of heads."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import torch

from espnet_medusa.data.errors import InputError
from espnet_medusa.inference.convert.checkpoint import Checkpoint
from espnet_medusa.inference.convert.names import COUNTS
from espnet_medusa.networks.heads import NO_HEADS


def count_draft_text(checkpoint: Checkpoint, paths: Iterable[Path]) -> Checkpoint:
    """Add the tokens of text files to the counts of the heads' training tokens.

    ``draft_vocab_size`` chooses the most frequent tokens by these counts. All files together count
    at least as much as the training texts, so that a list of names is not lost among them. A line
    is tokenized as Whisper writes it, with a space before it. Raise InputError if the checkpoint
    has no heads or no tokenizer, or a file cannot be read or is empty.
    """
    if checkpoint.architecture.heads == NO_HEADS:
        raise InputError(f"--draft_vocab_text: {checkpoint.name} has no heads; see --heads")
    tokenizer, vocab_size = checkpoint.text.tokenizer, checkpoint.architecture.whisper.vocab_size
    if tokenizer is None:
        raise InputError(f"--draft_vocab_text: {checkpoint.name} has no tokenizer; see --tokenizer")
    trained = checkpoint.weights.get(COUNTS, torch.zeros(vocab_size, dtype=torch.long))
    counts = torch.zeros_like(trained)
    for path in paths:
        try:
            lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(
                f"--draft_vocab_text {path}: cannot be read as UTF-8: {error}"
            ) from error
        if not any(lines):
            raise InputError(f"--draft_vocab_text {path}: is empty; omit it")
        for line in filter(None, lines):
            tokens = tokenizer(f" {line}", add_special_tokens=False).input_ids
            counts += torch.bincount(torch.tensor(tokens).long(), minlength=vocab_size)
    weight = max(int(trained.sum()) // int(counts.sum()), 1)
    return replace(checkpoint, weights={**checkpoint.weights, COUNTS: trained + weight * counts})
