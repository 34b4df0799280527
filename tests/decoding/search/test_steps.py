"""Device and host steps draft the same; draft vocabularies restrict drafts."""

import random
from dataclasses import replace

import pytest
import tiny
import torch
from beam_oracle import UncachedScorer, espnet_search, make_weights
from cases import combinations, pairs
from grown_trees import states_after
from searches import (
    PROMPT,
    assert_plain,
    assert_same_alone,
    compare,
    constraints_of,
    our_greedy,
    our_search,
)
from tiny import EOS, HEADS, VOCAB_SIZE, bounds, random_encoder_out, shared_decoder, tiny_decoder

from espnet_medusa.decoding.runtime.build import build_runtime
from espnet_medusa.decoding.search.acceptance import build_rule
from espnet_medusa.decoding.search.drafting.decoder_steps import DecoderSteps
from espnet_medusa.decoding.search.drafting.lookahead import DraftShape
from espnet_medusa.decoding.search.drafting.steps import ScorerSteps
from espnet_medusa.decoding.search.search_options import LengthLimits, SearchOptions

VOCABULARY = [7, 2, EOS, 5, 4]  # in no order: columns are not ranks of ids
PROMPTS = torch.tensor([PROMPT] * 3)
pytestmark = pytest.mark.usefixtures("no_gradients")


class ProbedToken:
    """Compares a search's drafts with those of ``ScorerSteps``, by "prefixes" or "scores".

    ``same``: whether both drafts of a run and state are equal. ``known``: whether the run started
    from an evaluated hypothesis. ``drafted``: prefixes of all runs, and whether their parents were
    evaluated.
    """

    def __init__(self, search, compared=("prefixes", "scores")):
        drafter, self.compared = search.planner, compared
        strategy, shape, proposer = drafter.strategy, drafter.shape, drafter.proposer
        scoring = strategy.scoring.for_drafts(proposer.vocabulary)
        self.host = ScorerSteps(strategy, scoring, proposer, shape)
        self.original, drafter.steps = drafter.steps, self
        self.same, self.known, self.drafted = [], [], []

    def run(self, states):
        for steps in (self.host, self.original):
            steps.proposer, steps.device = self.proposer, self.device  # begun
        begun = [state.draft for state in states]
        theirs = self.drafts(self.host, states, begun) if self.compared else []
        ours = self.drafts(self.original, states, begun)
        for mine, other in zip(ours, theirs, strict=bool(self.compared)):
            self.same.append(same_draft(mine, other, "scores" in self.compared))
        for mine, draft in zip(ours, begun, strict=True):
            self.known.append(any(hypothesis.prefix.evaluated for hypothesis in draft.beam))
            new = [prefix for prefix in [*mine.nodes, *mine.ends] if prefix not in draft.nodes]
            self.drafted += [(prefix, prefix.parent.evaluated) for prefix in new]

    @staticmethod
    def drafts(steps, states, begun):
        for state, draft in zip(states, begun, strict=True):
            state.draft = replace(draft, nodes=dict(draft.nodes), ends=dict(draft.ends))
        steps.run(states)
        return [state.draft for state in states]


def same_draft(ours, theirs, scores):
    """The same prefixes (two drafts of one tree share them) and steps, and the same scores."""
    if ours.depth != theirs.depth:
        return False
    return all(
        mine.keys() == other.keys()
        and not (scores and any(abs(mine[prefix] - other[prefix]) > 1e-3 for prefix in mine))
        for mine, other in ((ours.nodes, theirs.nodes), (ours.ends, theirs.ends))
    )


def assert_drafted_alike(probed):
    """Except rare near ties, which sums in float32 and float64 may decide differently."""
    same = [alike for watcher in probed for alike in watcher.same]
    assert len(same) > 30 and sum(same) >= 0.98 * len(same)


def vocabulary_of(rng, least):
    """All tokens (None), or ``least`` and more with the end symbol, in any order."""
    most = min(least + 4, VOCAB_SIZE)
    some = [*rng.sample(range(EOS), rng.randint(min(least, most), most) - 1), EOS]
    rng.shuffle(some)
    return rng.choice([None, torch.tensor(some)])


@pairs(heads=HEADS, width=[2, 3, 12], min_probability=[0, 0.01])
def test_device_and_host_draft_the_same_trees(heads, width, min_probability):
    every, rule = [], build_rule(SearchOptions(acceptance="top_m"))
    for seed in range(4):
        rng = random.Random(f"{seed} {heads} {width}")
        runtime = build_runtime(shared_decoder(seed, heads))
        proposer = runtime.proposer(vocabulary_of(rng, 2), "float32")
        shape = DraftShape(4, width, min_probability=min_probability)
        search = our_greedy(runtime, shape, rule, proposer=proposer)
        assert type(search.planner.steps) is DecoderSteps
        every.append(ProbedToken(search))
        search(*random_encoder_out(seed, [8, 3, 11]), PROMPTS, bounds([20, 12, 3]))
    assert_drafted_alike(every)
    assert not any(known for probed in every for known in probed.known)


@pairs(
    heads=HEADS, constraints=[{}, {"suppress_tokens": [0, 3], "forced_prefix": [4, 1]}],
    acceptance=["exact", "threshold"],
)  # fmt: skip
def test_device_and_host_draft_the_same_chains(heads, constraints, acceptance):
    # A verified chain has no scores; host steps constrain log-probabilities instead of logits.
    comparable = acceptance == "threshold" and not constraints
    least, every = [0, 0 if comparable else 4, 0], []
    options = build_rule(SearchOptions(acceptance=acceptance)), constraints_of(**constraints)
    for seed in range(4):
        shape = DraftShape(4, min_probability=0.0 if constraints else 0.01 * (seed % 2))
        search = our_greedy(shared_decoder(seed, heads), shape, *options)
        every.append(ProbedToken(search, ["prefixes", *(["scores"] if comparable else [])]))
        search(*random_encoder_out(seed, [8, 3, 11]), PROMPTS, bounds([30, 12, 5], least))
    assert_drafted_alike(every)


class StepByStep(DecoderSteps):
    def _chain(self, *_):
        return None


@pairs(least=[0.0, 0.01], heads=["linear", "block"], everywhere=[False, True])
def test_chains_of_drafts_that_change_the_text_obey_constraints(heads, least, everywhere):
    options = SearchOptions(acceptance="typical", typical_epsilon=0.05, typical_alpha=0.1)
    constraints = {"begin_suppress_tokens": [1, 3]}  # none after the first token
    if everywhere:
        constraints["suppress_tokens"] = [0, 2]
        constraints["exponential_decay_length_penalty"] = [3, 1.3]
    constraints = constraints_of(**constraints)
    every, accepted = [], 0
    for seed in range(10):
        decoder, shape = shared_decoder(seed, heads, 4), DraftShape(4, min_probability=least)
        search = our_greedy(decoder, shape, build_rule(options), constraints)
        every.append(ProbedToken(search, ["prefixes"]))
        steps = search.planner.steps.original
        every[-1].host = StepByStep(steps.strategy, steps.scoring, steps.proposer, shape)
        states = search(
            *random_encoder_out(seed, [8, 3, 11]), PROMPTS, bounds([30, 12, 5], [0, 4, 0])
        )
        accepted += sum(sum(state.statistics.accepted) for state in states)
    assert accepted > 20
    assert_drafted_alike(every)


class ShortChains(DecoderSteps):
    """Chains that differ from steps, and are used without constraints, as those of a kernel."""

    def _chain(self, *arguments):
        *_, limited = arguments
        return None if limited else super()._chain(*arguments)[:, :1]


@combinations(seed=range(8))
def test_the_kind_of_draft_does_not_depend_on_the_batch(seed):
    rule = build_rule(SearchOptions(acceptance="typical", typical_epsilon=0.05, typical_alpha=0.1))
    constraints = constraints_of(exponential_decay_length_penalty=[8, 1.3])
    most = [30, 12, 20]

    def search(rows, encoder_out, lengths):
        found = our_greedy(shared_decoder(seed, "linear"), DraftShape(4), rule, constraints)
        found.planner.steps.__class__ = ShortChains
        return found(
            encoder_out, lengths, PROMPTS[: len(rows)], bounds([most[row] for row in rows])
        )

    assert_same_alone(search, *random_encoder_out(seed, [8, 3, 11]))


BEAM_CONSTRAINTS = [
    {},
    {"suppress_tokens": [0, 2]},
    {"begin_suppress_tokens": [1, 3], "exponential_decay_length_penalty": [3, 1.2]},
]


@combinations(constraints=BEAM_CONSTRAINTS, heads=HEADS)
def test_device_and_host_draft_the_same_beams(heads, constraints):
    """After evaluated prefixes both use the decoder's candidates and restart the proposer."""
    every = []
    for seed in range(8):
        rng = random.Random(f"{seed} {heads} {constraints}")
        beam_size = rng.randint(1, 6)
        runtime = build_runtime(shared_decoder(seed, heads))
        shape = DraftShape(4, rng.choice([1, beam_size, 2 * beam_size]))
        # A vocabulary smaller than the width would also limit candidates of known prefixes.
        small = not constraints and shape.width < VOCAB_SIZE
        tokens = vocabulary_of(rng, max(shape.width, 2)) if small else None
        drafts = shape, constraints_of(**constraints), runtime.proposer(tokens, "float32")
        search = our_search(runtime, 0, make_weights(), beam_size, *drafts)
        assert type(search.planner.steps) is DecoderSteps
        lone = beam_size == shape.width == 1
        every.append(ProbedToken(search, ["prefixes"] if lone else ["prefixes", "scores"]))
        search(*random_encoder_out(seed, [14, 9, 12]), torch.tensor([[EOS]] * 3), LengthLimits(-10))
    assert_drafted_alike(every)
    known = [known for probed in every for known in probed.known]
    assert 10 < sum(known) < len(known) - 10


def assert_drafted_from(vocabulary, probed):
    """Except children of evaluated prefixes, which the decoder drafts."""
    tokens = {prefix.token for prefix, known in probed.drafted if not known}
    assert tokens and tokens <= {*vocabulary}


@combinations(heads=HEADS)
def test_heads_over_a_draft_vocabulary_are_columns_of_the_whole(heads):
    runtime = build_runtime(tiny_decoder(0, heads))
    head_inputs = torch.randn(5, tiny.HIDDEN_SIZE), *random_encoder_out(0, [6, 3]), [1, 0, 0, 1, 1]
    pairs = (states_after(runtime, *head_inputs, some) for some in (torch.tensor(VOCABULARY), None))
    tokens = torch.tensor([1, 7, 0, 3, 3])
    found, expected = (begun.logits(begun.advance(states, tokens)) for begun, states in pairs)
    torch.testing.assert_close(found, expected[:, VOCABULARY], rtol=0.0, atol=1e-5)


@pairs(
    heads=HEADS, shape=[DraftShape(4), DraftShape(4, 3), DraftShape(3, choices=(2, 9, 1))],
    seed=range(3),
)  # fmt: skip
def test_greedy_text_is_exact_with_a_draft_vocabulary(heads, shape, seed):
    decoder = shared_decoder(seed, heads)
    audio, most, least = random_encoder_out(seed, [8, 3, 11]), [30] * 3, [0, 6, 0]
    proposer = build_runtime(decoder).proposer(torch.tensor(VOCABULARY))
    search = our_greedy(decoder, shape, proposer=proposer)
    probed = ProbedToken(search, [])
    assert_plain(decoder, *audio, search(*audio, PROMPTS, bounds(most, least)), most, least)
    assert_drafted_from(VOCABULARY, probed)


@pairs(
    heads=HEADS, seed=range(3),
    weights=[{}, {"ctc": 0.3}, {"lm": 0.4, "ngram": 0.2}, {"ctc": 0.3, "length_bonus": 0.2}],
)  # fmt: skip
def test_nbest_is_exact_with_a_draft_vocabulary(heads, seed, weights):
    decoder, weights = shared_decoder(seed, heads), make_weights(**weights)
    proposer = build_runtime(decoder).proposer(torch.tensor(VOCABULARY))
    search = our_search(decoder, seed, weights, 4, DraftShape(4, 2 + seed), proposer=proposer)
    probed = ProbedToken(search, [])
    oracle = espnet_search(UncachedScorer(decoder), seed, weights, 4)
    compare(search, *random_encoder_out(seed, [14, 9]), oracle, LengthLimits(-9))
    assert_drafted_from(VOCABULARY, probed)


@pairs(
    heads=HEADS, weights=[{}, {"ctc": 0.3}, {"lm": 0.4}, {"ctc": 0.3, "ngram": 0.3}],
    constraints=BEAM_CONSTRAINTS,
)  # fmt: skip
def test_a_draft_vocabulary_in_another_order_drafts_the_same(heads, weights, constraints):
    """Scorers and constraints use token ids, not columns."""
    runtime = build_runtime(shared_decoder(1, heads))
    order = torch.randperm(VOCAB_SIZE, generator=torch.Generator().manual_seed(3))
    constraints, drafted = constraints_of(**constraints), []
    for proposer in (runtime.proposer(vocabulary, "float32") for vocabulary in (None, order)):
        shape, weighted = DraftShape(4, 4), make_weights(**weights)
        search = our_search(runtime, 1, weighted, 4, shape, constraints, proposer)
        probed = ProbedToken(search, [])
        search(*random_encoder_out(1, [14, 9, 12]), torch.tensor([[EOS]] * 3), LengthLimits(-9))
        drafted.append([tuple(prefix.tokens()) for prefix, _ in probed.drafted])
    assert len(drafted[0]) > 20 and drafted[0] == drafted[1]
