"""Decoders and CTC branches whose output is given as a script."""

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from tiny import all_logits, bounds, next_logits, random_encoder_out, shared_decoder

from espnet_medusa.decoding.runtime.build import build_runtime
from espnet_medusa.decoding.search.acceptance import AcceptanceRule, exact
from espnet_medusa.decoding.search.constraints import Constraints
from espnet_medusa.decoding.search.greedy import greedy_search
from espnet_medusa.decoding.tree.prefix import Prefix
from espnet_medusa.decoding.tree.proposer import (
    DraftContext,
    DraftInput,
    HeadsProposer,
    Proposer,
    States,
)
from espnet_medusa.decoding.tree.tree_decoder import NodeOutputs, TreeDecoder

Path = tuple[int, ...]  # tokens, prompt included


class TokenTracker:
    """A ``TreeDecoder`` whose state also has ``tokens``: by utterance and slot; None: no node."""

    def __init__(self, decoder: TreeDecoder):
        self.decoder = decoder

    def __getattr__(self, name):
        return getattr(self.decoder, name)

    def start(self, encoder_out, encoder_out_lens, with_heads=True):
        state = self.decoder.start(encoder_out, encoder_out_lens, with_heads)
        state.tokens = [[] for _ in state.trees]
        return state

    def extend(self, state, tokens, parents):
        first = state.num_nodes
        outputs = self.decoder.extend(state, tokens, parents)
        for known, new in zip(state.tokens, tokens, strict=True):
            known += [*new, *[None] * (state.num_nodes - first - len(new))]
        return outputs

    def keep(self, state, slots):
        self.decoder.keep(state, slots)
        state.tokens = [
            [known[slot] for slot in kept] + [None] * (state.num_nodes - len(kept))
            for known, kept in zip(state.tokens, slots, strict=True)
        ]

    def select(self, state, utterances):
        self.decoder.select(state, utterances)
        state.tokens = [state.tokens[row] for row in utterances]


def path_of(state, row: int, slot: int) -> list[int]:
    """Return the tokens from the root to a node of a ``TokenTracker``."""
    return [state.tokens[row][node] for node in state.trees[row].path(slot)]


def new_places(tokens, first: int) -> list[tuple[int, int]]:
    """Return utterance and slot of the packed rows of new nodes, whose slots begin at ``first``."""
    return [(row, first + place) for row, new in enumerate(tokens) for place in range(len(new))]


class PathDecoder(TokenTracker):
    """A ``TreeDecoder`` whose ``head_input`` is the path itself: its tokens, then -1."""

    heads_trained = True

    def __init__(self, decoder: TreeDecoder, proposer: Proposer | None = None):
        super().__init__(decoder)
        self.paths = proposer

    def proposer(self, vocabulary=None, precision=None, verified=False):
        return self.paths

    def extend(self, state, tokens, parents):
        first = state.num_nodes
        hidden = super().extend(state, tokens, parents).hidden
        paths = [path_of(state, *place) for place in new_places(tokens, first)]
        padded = [path + [-1] * (self.decoder.max_depth(0) - len(path)) for path in paths]
        return NodeOutputs(hidden, torch.tensor(padded))


@dataclass(frozen=True)
class PathStates(States):
    paths: list[Path]


class PathProposer(HeadsProposer):
    """Drafts by a function from a path to logits (V',) of the next token."""

    max_steps = None

    def __init__(self, logits_after: Callable[[Path], torch.Tensor]):
        self.logits_after = logits_after

    def start_from(self, head_input):
        return PathStates([tuple(t for t in row if t >= 0) for row in head_input.tolist()])

    def advance(self, states, tokens):
        pairs = zip(states.paths, tokens.tolist(), strict=True)
        return PathStates([(*path, token) for path, token in pairs])

    def logits(self, states):
        return torch.stack([self.logits_after(path) for path in states.paths])


def foresight(
    decoder, encoder_out: torch.Tensor, texts: Iterable[Sequence[int]] = ()
) -> Callable[[Path], torch.Tensor]:
    """Return the trained module's own logits after each path, for one memory (1, S, D).

    One forward pass of each of ``texts``, prompts included, serves all prefixes of this text.
    """
    known = {}
    for text in texts:
        rows = enumerate(all_logits(decoder, encoder_out, text), start=1)
        known |= {(*text[:size],): logits for size, logits in rows}

    @cache
    def logits_after(path: Path) -> torch.Tensor:
        return known[path] if path in known else next_logits(decoder, encoder_out, path)

    return logits_after


def drafting(decoder, encoder_out, seed):
    """Return the decoder with its heads, or with a proposer that is nearly always right."""
    runtime = build_runtime(decoder)
    if len(encoder_out) > 1 or seed % 2:
        return runtime
    logits_after, rng = foresight(decoder, encoder_out), random.Random(seed)
    nearly = PathProposer(lambda path: logits_after(path).roll(int(rng.random() < 0.1), dims=0))
    return PathDecoder(runtime, nearly)


def draft_inputs(encoder_out, lengths, prompt=()):
    return [
        DraftInput(row[:size], [*prompt]) for row, size in zip(encoder_out, lengths, strict=True)
    ]


def ctc_context(roots, encoder_out, lengths):
    return DraftContext(roots, encoder_out.device, draft_inputs(encoder_out, lengths))


def path_from(prefix: Prefix, tokens) -> Prefix:
    for token in tokens:
        prefix = prefix.child(token)
    return prefix


class ScriptedDecoder(PathDecoder):
    """Predicts ``texts[first token of the prompt]``, whatever the preceding tokens are."""

    def __init__(self, decoder, texts, prompt_length, vocab_size, eos):
        super().__init__(decoder)
        self.texts, self.prompt_length = texts, prompt_length
        self.vocab_size, self.eos, self.calls = vocab_size, eos, 0

    def extend(self, state, tokens, parents):
        self.calls += 1
        paths = super().extend(state, tokens, parents).head_input
        return NodeOutputs(paths, paths)

    def logits(self, hidden):
        # The other tokens of a large vocabulary have almost no probability in total.
        logits = torch.zeros(len(hidden), self.vocab_size)
        places = (hidden >= 0).sum(dim=1) - self.prompt_length
        for row, first, place in zip(logits, hidden[:, 0].tolist(), places.tolist(), strict=True):
            text = self.texts[first]
            row[text[place] if place < len(text) else self.eos] = 36.0
        return logits


def scripted_decoder(texts, vocab_size, eos):
    """Build a decoder that predicts ``texts[row]`` after the prompt ``[row, 1]``."""
    # Its hidden states are not used.
    sizes = {"vocab_size": vocab_size, "max_target_positions": 256, "num_blocks": 1}
    module = shared_decoder(0, "none", **sizes)
    return ScriptedDecoder(build_runtime(module), dict(enumerate(texts)), 2, vocab_size, eos)


def scripted_encoder_out(count):
    return random_encoder_out(0, [5] * count)


def scripted_search(texts, proposer, shape, vocab_size, eos):
    """Decode greedily with a scripted decoder; check the texts and return the search states."""
    decoder = scripted_decoder(texts, vocab_size, eos)
    rule = AcceptanceRule(exact, best_only=True)
    search = greedy_search(decoder, rule, Constraints(eos), proposer, shape)
    prompts = torch.tensor([[row, 1] for row in range(len(texts))])
    states = search(*scripted_encoder_out(len(texts)), prompts, bounds([200] * len(texts)))
    assert [state.tokens for state in states] == texts
    return states


def scripted_calls(*arguments):
    return [state.statistics.decoder_calls for state in scripted_search(*arguments)]


class ScriptedCTC:
    """Log-probabilities whose greedy hypothesis is a text: each token, then a blank.

    The first value of ``encoder_out`` identifies the utterance. ``sure`` is the probability of the
    best class of each frame, for all utterances or for each (U).
    """

    def __init__(self, texts, encoder_out, blank, sure=0.9):
        shares = [sure] * len(texts) if isinstance(sure, float) else sure
        rows = zip(encoder_out, texts, shares, strict=True)
        self.scripts = {float(row[0, 0]): (text, share) for row, text, share in rows}
        self.blank = blank

    def __call__(self, encoder_out):
        text, sure = self.scripts[float(encoder_out[0, 0, 0])]
        labels = [self.blank]
        for token in text:
            labels += [token, self.blank]
        probabilities = torch.full((1, len(labels), self.blank + 1), (1 - sure) / self.blank)
        probabilities[0, torch.arange(len(labels)), torch.tensor(labels)] = sure
        return probabilities.log()


def edited(text: list[int], num_edits: int, vocab_size: int, rng: random.Random) -> list[int]:
    text = [*text]
    for _ in range(num_edits):
        place, token = rng.randrange(len(text) or 1), rng.randrange(vocab_size)
        kind = rng.choice(["substitute", "insert", "delete"])
        text[place : place + (kind != "insert")] = [] if kind == "delete" else [token]
    return text
