"""The oracle of threshold beam search: its definition, over lists of tokens."""

import math
from dataclasses import dataclass
from functools import cache

import pytest
import torch
from searches import PROMPT, constraints_of, runtime_of
from tiny import EOS

from espnet_medusa.decoding.search.search import Search
from espnet_medusa.decoding.search.search_options import LengthLimits
from espnet_medusa.decoding.search.threshold_beam import threshold_beam_search


@dataclass(frozen=True)
class Setting:
    beam_size: int = 3
    threshold: float = 0.3
    depth: int = 4
    limits: LengthLimits = LengthLimits(-9)
    constraints: object = constraints_of()
    normalize_length: bool = False
    nbest: int | None = None
    vocabulary: torch.Tensor | None = None  # of the heads' drafts; None: all

    def search(self, decoder) -> Search:
        decoder = runtime_of(decoder)
        return threshold_beam_search(
            decoder, self.constraints, decoder.proposer(self.vocabulary), self.threshold,
            self.beam_size, self.depth, self.normalize_length, self.nbest,
        )  # fmt: skip


def find(decoder, encoder_out, lengths, setting):
    """Return n-best lists of (tokens, heads, score), and the search states."""
    prompts = torch.tensor([PROMPT] * len(lengths))
    states = setting.search(decoder)(encoder_out, lengths, prompts, setting.limits)
    return [[(tuple(e.tokens), e.heads, e.score) for e in state.ended] for state in states], states


class Forward:
    """Log-probabilities of one utterance by the teacher-forced forward, without cache."""

    def __init__(self, decoder, encoder_out, setting, min_length=0):
        self.decoder, self.encoder_out, self.setting = decoder, encoder_out, setting
        self.min_length = min_length  # of drafts; the base head's earlier ends are dropped later
        self._run = cache(self._run)

    def base(self, tokens) -> torch.Tensor:
        """Return (V,) for the token after ``tokens``."""
        return self._constrained(self.decoder.logits(self._run(tokens).hidden[0, -1]), len(tokens))

    def head(self, tokens, drafted) -> torch.Tensor:
        """Return (V,) of head k, whose input is ``tokens`` and the k tokens after them."""
        sequence, head = (*tokens, *drafted), len(drafted)
        outputs = self._run(sequence)
        labels = torch.tensor([[*PROMPT[1:], *sequence, 0]])
        logits = [*self.decoder.unroll_heads(outputs, labels)][head - 1][0, -1]
        if self.setting.vocabulary is not None:
            outside = torch.ones(len(logits), dtype=torch.bool)
            outside[self.setting.vocabulary] = False
            logits = logits.masked_fill(outside, -math.inf)
        return self._constrained(logits, len(sequence), torch.tensor([self.min_length]))

    def _run(self, tokens):
        lengths, sequence = (
            torch.tensor([self.encoder_out.size(1)]),
            torch.tensor([[*PROMPT, *tokens]]),
        )
        return self.decoder.hidden_states(self.encoder_out, lengths, sequence)

    def _constrained(self, logits, length, min_lengths=None):
        scores = logits.log_softmax(-1)[None]
        return self.setting.constraints.apply(scores, torch.tensor([length]), min_lengths)[0]


@torch.no_grad()
def by_definition(decoder, encoder_out, setting, max_length, min_length=0):
    """Return the n-best list of (tokens, heads, score), and the number of iterations."""
    forward = Forward(decoder, encoder_out, setting, min_length)
    width = setting.beam_size
    may_rise = setting.constraints.penalty is not None
    places = min(setting.nbest or width, width)
    known = len(setting.constraints.forced_prefix[: max_length - 1])

    def rank(score, tokens):
        return score / (len(tokens) + len(PROMPT) - 1) if setting.normalize_length else score

    running, ended, expanded, calls = {(): ((), 0.0)}, {}, set(), 0
    while running:
        calls += not 0 < min(map(len, running)) <= known  # one call has prompt and forced prefix
        grown = []
        for tokens, (heads, score) in running.items():
            assert tokens not in expanded, "expanded twice"
            expanded.add(tokens)
            for token, gain in enumerate(forward.base(tokens).tolist()):
                if gain > -math.inf:
                    grown.append((score + gain, (*tokens, token), (*heads, 0)))
        grown.sort(reverse=True)
        running = {}
        for score, tokens, heads in grown[:width]:
            if len(tokens) > known:
                tokens, heads, score = prolonged(forward, setting, max_length, tokens, heads, score)
            last = len(tokens) == max_length
            ends = tokens[-1] == EOS or last
            if ends and len(tokens) <= min_length:
                continue
            tokens += (EOS,) * last
            group = ended if ends else running
            if tokens not in group or score > group[tokens][1]:
                group[tokens] = heads, score
        ranks = sorted((rank(score, tokens) for tokens, (_, score) in ended.items()), reverse=True)
        best = max((score for _, score in running.values()), default=-math.inf)
        longest = range(max_length + 1)
        if not may_rise and len(ranks) >= places and rank(best, longest) <= ranks[places - 1]:
            break
    lists = [(tokens, heads, score) for tokens, (heads, score) in ended.items()]
    return sorted(lists, key=lambda row: rank(row[2], row[0]), reverse=True)[:places], calls


def prolonged(forward, setting, max_length, tokens, heads, score):
    """Append the best tokens of the heads after ``tokens[:-1]`` while they reach the threshold."""
    origin, drafted = tokens[:-1], tokens[-1:]
    most = min(setting.depth, max_length - 2 - len(origin))
    while len(drafted) <= most and drafted[-1] != EOS:
        log_prob, token = forward.head(origin, drafted).max(-1)
        if log_prob.exp() < setting.threshold:
            break
        drafted, score = (*drafted, int(token)), score + float(log_prob)
    return origin + drafted, heads + tuple(range(1, len(drafted))), score


def assert_same(found, expected):
    assert [row[:2] for row in found] == [row[:2] for row in expected]
    for (_, _, ours), (_, _, theirs) in zip(found, expected, strict=True):
        assert ours == pytest.approx(theirs, abs=1e-4)
