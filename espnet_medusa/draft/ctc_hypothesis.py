"""What a CTC branch says of an utterance, in tokens of the decoder, and how sure it is."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import torch

from espnet_medusa.vocabulary.mapping import BEFORE_WORD
from espnet_medusa.vocabulary.vocabulary import Vocabulary

ALTERNATIVES = 3  # tokens that CTC names for one place
NONE = -1  # no token


class CTCHypothesis(NamedTuple):
    """What a CTC branch says, in L symbols: tokens of the decoder, or bytes.

    Attributes:
        symbols: (L,) ids of tokens, or bytes.
        tokens: (L + 1, K) ids that may follow at each place, the hypothesis's own first, ``NONE``
            where there are fewer; behind all symbols the end.
        probabilities: (L + 1, K) theirs.
        following: (L + 1,) the place behind the first of them.
    """

    symbols: torch.Tensor
    tokens: torch.Tensor
    probabilities: torch.Tensor
    following: torch.Tensor

    def path(self) -> list[tuple[int, float]]:
        """The hypothesis's own tokens and their log-probabilities, the end symbol last.

        Where a place cannot be written in tokens, these end before it.
        """
        best, log_probs = self.tokens[:, 0].tolist(), self.probabilities[:, 0].log().tolist()
        found, place, following = [], 0, self.following.tolist()
        while best[place] != NONE:
            found.append((best[place], log_probs[place]))
            if place == len(self.symbols):
                break
            place = following[place]
        return found


def frame_entropies(log_probs: torch.Tensor) -> torch.Tensor:
    """Entropy of the distribution of each frame, in nats.

    Args:
        log_probs: (S, V) of a CTC branch; -inf for what cannot be heard.

    Returns:
        (S,) between 0 and log V.
    """
    return torch.special.entr(log_probs.float().exp()).sum(dim=-1)


class Retokenization:
    """A CTC branch's units and the decoder's tokens, by the bytes that they write.

    Args:
        units: Per unit its bytes; the branch's label of unit n is n + 1, its blank 0.
        tokens: The decoder's.
    """

    def __init__(self, units: Sequence[bytes], tokens: Vocabulary):
        self.units, self.tokens = units, tokens
        # Words come again in other utterances.
        self.places = lru_cache(maxsize=16384)(self._places)

    def write(self, token: int) -> bytes:
        """What a token of the decoder writes; it may have more than its tokenizer knows."""
        contents = self.tokens.contents
        return (contents[token] or b"") if token < len(contents) else b""

    def _places(self, word: bytes) -> tuple[tuple[int, int], ...]:
        """Of each place in a word the token that it goes on with, and that token's size."""
        found: list[tuple[int, int] | None] = [None] * len(word)
        for start in range(len(word)):
            place = start
            for token in self.tokens.encode(word[start:]) if found[start] is None else ():
                size = 1 if token is None else len(self.write(token))
                if place + size > len(word) or found[place] is not None:
                    break
                found[place] = (NONE if token is None else token, size)
                place += size
        return tuple((NONE, 1) if one is None else one for one in found)


def greedy_hypothesis(log_probs: torch.Tensor, blank: int, eos: int) -> CTCHypothesis:
    """The best label of each frame, equal neighbours merged, blanks left out.

    Args:
        log_probs: (S, V) of a CTC branch over the decoder's tokens.
        blank: Its blank.
        eos: The decoder's end symbol.
    """
    tokens, probabilities, ended = _greedy_tokens(log_probs, [blank, eos])
    places = torch.arange(len(tokens) + 1, device=tokens.device)
    return CTCHypothesis(
        tokens[:, 0],
        _append(tokens, eos, NONE),
        _append(probabilities, ended, 0.0),
        (places + 1).clamp(max=len(tokens)),
    )


def retokenized_hypothesis(
    log_probs: torch.Tensor, eos: int, retokenization: Retokenization
) -> CTCHypothesis:
    """The same of a branch over other units, in bytes: tokens go on anywhere in a word.

    Args:
        log_probs: (S, N + 1) of the branch.
        eos: The decoder's end symbol.
        retokenization: What both write.
    """
    labels, probabilities, ended = _greedy_tokens(log_probs, [0])
    pieces = [retokenization.units[label - 1] for label in labels[:, 0].tolist()]
    text = b"".join(pieces)
    # A unit's probability is paid at its first byte.
    paid = torch.zeros(len(text) + 1, dtype=torch.double)
    starts = torch.tensor([0, *map(len, pieces)]).cumsum(0)[:-1]
    paid[starts + 1] = probabilities[:, 0].double().log().cpu()
    paid = paid.cumsum(0)
    steps = [step for word in BEFORE_WORD.split(text) for step in retokenization.places(word)]
    tokens, sizes = torch.tensor(steps).long().reshape(-1, 2).unbind(dim=1)
    following = torch.arange(len(text)) + sizes
    shares = (paid[following] - paid[:-1]).exp().float()
    device, end = log_probs.device, torch.tensor([len(text)])
    return CTCHypothesis(
        torch.tensor([*text], dtype=torch.long, device=device),
        _append(tokens[:, None].to(device), eos, NONE),
        _append(shares[:, None].to(device), ended, 0.0),
        torch.cat([following, end]).to(device),
    )


def _greedy_tokens(
    log_probs: torch.Tensor, silent: list[int]
) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Labels (n, K) of what was said, the best first, their probabilities; that of the end.

    Probabilities are means over the frames of a place.
    """
    labels, runs, sizes = log_probs.argmax(dim=-1).unique_consecutive(
        return_inverse=True, return_counts=True
    )
    means = log_probs.new_zeros(len(labels), log_probs.size(1), dtype=torch.float)
    means = means.index_add(0, runs, log_probs.float().exp()) / sizes[:, None]
    silence = torch.tensor(silent, device=means.device)
    most = min(ALTERNATIVES, means.size(1))
    probabilities, tokens = means.index_fill(1, silence, 0.0).topk(most)
    spoken = ~torch.isin(labels, silence)
    return tokens[spoken], probabilities[spoken], float(means[-1].max())


def _append(rows: torch.Tensor, first: float, others: float) -> torch.Tensor:
    """(L, K) with one row more."""
    last = rows.new_full((1, rows.size(1)), others)
    last[0, 0] = first
    return torch.cat([rows, last])
