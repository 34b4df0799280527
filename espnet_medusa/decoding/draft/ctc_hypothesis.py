"""Greedy CTC hypotheses in tokens of the decoder, with probabilities."""

from collections.abc import Sequence
from functools import lru_cache

import torch

from espnet_medusa.data.vocabulary.mapping import BEFORE_WORD
from espnet_medusa.data.vocabulary.vocabulary import Vocabulary
from espnet_medusa.decoding.draft.alignment import NONE, DraftHypothesis

ALTERNATIVES = 3  # tokens with a CTC probability per place


def frame_entropies(log_probs: torch.Tensor) -> torch.Tensor:
    """Return the entropies (S,) in nats of frames' log-probabilities (S, V)."""
    return torch.special.entr(log_probs.float().exp()).sum(dim=-1)


class Retokenization:
    """Conversion of a CTC branch's units to the decoder's tokens, by bytes.

    ``units`` are the bytes of each unit. Label n + 1 of the branch is unit n, and label 0 is blank.
    """

    def __init__(self, units: Sequence[bytes], tokens: Vocabulary):
        self.units, self.tokens = units, tokens
        # Cached, because words recur in other utterances.
        self.places = lru_cache(maxsize=16384)(self._places)

    def write(self, token: int) -> bytes:
        """Return the bytes of a decoder token; tokens unknown to the tokenizer have none."""
        contents = self.tokens.contents
        return (contents[token] or b"") if token < len(contents) else b""

    def _places(self, word: bytes) -> tuple[tuple[int, int], ...]:
        """Return the token that starts at each byte of a word, and the token's number of bytes."""
        places: list[tuple[int, int] | None] = [None] * len(word)
        for start in range(len(word)):
            place = start
            for token in self.tokens.encode(word[start:]) if places[start] is None else ():
                size = 1 if token is None else len(self.write(token))
                if place + size > len(word) or places[place] is not None:
                    break
                places[place] = (NONE if token is None else token, size)
                place += size
        return tuple(place or (NONE, 1) for place in places)


def greedy_hypothesis(log_probs: torch.Tensor, blank: int, eos: int) -> DraftHypothesis:
    """Return the greedy hypothesis of (S, V) over decoder tokens: repeats merged, no blanks."""
    tokens, probabilities, end_probability = _greedy_tokens(log_probs, [blank, eos])
    places = torch.arange(len(tokens) + 1, device=tokens.device)
    return DraftHypothesis(
        tokens[:, 0],
        _append(tokens, eos, NONE),
        _append(probabilities, end_probability, 0.0),
        (places + 1).clamp(max=len(tokens)),
    )


def retokenized_hypothesis(
    log_probs: torch.Tensor, eos: int, retokenization: Retokenization
) -> DraftHypothesis:
    """Return the greedy hypothesis of a branch (S, N + 1) over other units, as bytes.

    A draft can continue at any byte of a word.
    """
    labels, probabilities, end_probability = _greedy_tokens(log_probs, [0])
    pieces = [retokenization.units[label - 1] for label in labels[:, 0].tolist()]
    text = b"".join(pieces)
    # The first byte of a unit gets the unit's log-probability, its other bytes get 0.
    log_sums = torch.zeros(len(text) + 1, dtype=torch.double)
    starts = torch.tensor([0, *map(len, pieces)]).cumsum(0)[:-1]
    log_sums[starts + 1] = probabilities[:, 0].double().log().cpu()
    log_sums = log_sums.cumsum(0)
    steps = [step for word in BEFORE_WORD.split(text) for step in retokenization.places(word)]
    tokens, sizes = torch.tensor(steps).long().reshape(-1, 2).unbind(dim=1)
    following = torch.arange(len(text)) + sizes
    shares = (log_sums[following] - log_sums[:-1]).exp().float()
    device, end = log_probs.device, torch.tensor([len(text)])
    return DraftHypothesis(
        torch.tensor([*text], dtype=torch.long, device=device),
        _append(tokens[:, None].to(device), eos, NONE),
        _append(shares[:, None].to(device), end_probability, 0.0),
        torch.cat([following, end]).to(device),
    )


def _greedy_tokens(
    log_probs: torch.Tensor, removed: list[int]
) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Return the K best labels (n, K) of runs without ``removed`` labels, and mean probabilities.

    The third result is the best probability of the last run, even if its label is in ``removed``.
    """
    labels, runs, sizes = log_probs.argmax(dim=-1).unique_consecutive(
        return_inverse=True, return_counts=True
    )
    means = log_probs.new_zeros(len(labels), log_probs.size(1), dtype=torch.float)
    means = means.index_add(0, runs, log_probs.float().exp()) / sizes[:, None]
    removed = torch.tensor(removed, device=means.device)
    most = min(ALTERNATIVES, means.size(1))
    probabilities, tokens = means.index_fill(1, removed, 0.0).topk(most)
    kept = ~torch.isin(labels, removed)
    return tokens[kept], probabilities[kept], float(means[-1].max())


def _append(rows: torch.Tensor, first: float, others: float) -> torch.Tensor:
    """Append a row to (L, K): ``first`` in its first column, ``others`` elsewhere."""
    last = rows.new_full((1, rows.size(1)), others)
    last[0, 0] = first
    return torch.cat([rows, last])
