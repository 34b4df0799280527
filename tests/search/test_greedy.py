"""Greedy text with exact drafts equals plain greedy text, for every draft shape."""

import functools
import random

import pytest
import torch
from draft_models import DRAFT_MODELS, drafted
from grown_trees import states_behind
from scripted import PathDecoder, PathProposer
from searches import EXACT, PROMPT, assert_plain, decode, greedy_shape
from tiny import EOS, VOCAB_SIZE, plain_greedy, random_memory, tiny_decoder, utterances

from espnet_medusa.runtime.build import build_runtime
from espnet_medusa.search.acceptance import AcceptanceRule, build_rule
from espnet_medusa.search.ahead.lookahead import DraftShape
from espnet_medusa.search.constraints import build_constraints
from espnet_medusa.search.options import SearchOptions

HEADS = [
    "linear", "block", "recurrent", "attending", "latent",
    "llama projection", "llama latent", "llama block", "llama recurrent",
]  # fmt: skip


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("seed", range(12))
def test_exact_equals_plain_greedy(seed, heads):
    rng = random.Random(f"{seed} {heads}")
    num_heads = rng.choice([0, 1, 4, 10])
    # Only these have a residual layer for the base head.
    residual = heads in ("linear", "block")
    base_head = {"heads_conf": {"base_head": True}} if seed % 2 and residual else {}
    decoder = tiny_decoder(seed, heads, num_heads, **base_head)
    lengths = [rng.randint(1, 12) for _ in range(rng.randint(1, 6))]
    memory, lengths = random_memory(seed, lengths)
    max_lengths = [rng.choice([1, 2, 3, 7, 25, 60]) for _ in lengths]
    shape = greedy_shape(rng, num_heads)
    states = decode(decoder, memory, lengths, max_lengths, shape=shape)
    assert_plain(decoder, memory, lengths, states, max_lengths)


@pytest.mark.parametrize("kind", DRAFT_MODELS)
@pytest.mark.parametrize("seed", range(10))
def test_exact_equals_plain_greedy_with_a_draft_model(seed, kind):
    rng = random.Random(f"{seed} {kind}")
    decoder, runtime = drafted(seed, kind)
    memory, lengths = random_memory(seed, [rng.randint(1, 12) for _ in range(rng.randint(1, 6))])
    max_lengths = [rng.choice([1, 2, 3, 7, 25, 60]) for _ in lengths]
    states = decode(runtime, memory, lengths, max_lengths, shape=greedy_shape(rng, 8))
    assert_plain(decoder, memory, lengths, states, max_lengths)


@pytest.mark.parametrize("seed", range(4))
def test_minimum_length_inside_a_draft(seed):
    decoder = tiny_decoder(seed, "linear", 4)
    memory, lengths = random_memory(seed, [6, 3, 9])
    max_lengths, min_lengths = [20, 30, 12], [5, 11, 12]
    states = decode(decoder, memory, lengths, max_lengths, min_lengths=min_lengths)
    assert_plain(decoder, memory, lengths, states, max_lengths, min_lengths)
    assert all(len(states[row].tokens) >= least for row, least in enumerate(min_lengths))


def known_future(future: list[int]) -> PathProposer:
    """Drafts the given tokens."""
    return PathProposer(lambda path: 9.0 * torch.eye(VOCAB_SIZE)[future[len(path) - len(PROMPT)]])


@functools.cache
def ending_seed(max_length: int) -> int:
    """A seed whose greedy text ends before the maximum length."""
    for seed in range(200):
        decoder = tiny_decoder(seed, "none")
        memory, _ = random_memory(seed, [5])
        tokens, _, ended = plain_greedy(decoder, memory, PROMPT, max_length)
        if ended and 4 <= len(tokens) <= max_length - 3:
            return seed
    raise AssertionError("no such seed")


@pytest.mark.parametrize("depth", [1, 4, 10])
def test_end_symbol_inside_a_draft(depth):
    seed = ending_seed(30)
    memory, lengths = random_memory(seed, [5])
    decoder = tiny_decoder(seed, "none")
    tokens, _, ended = plain_greedy(decoder, memory, PROMPT, 30)
    decoder = PathDecoder(build_runtime(decoder), known_future([*tokens, EOS, *([0] * 20)]))
    state = decode(decoder, memory, lengths, [30], shape=DraftShape(depth))[0]
    assert ended and state.ended and state.tokens == tokens
    # The first call has no drafts; each later call writes its drafts and one more token.
    assert state.statistics.decoder_calls == 1 + -(-len(tokens) // (depth + 1))
    # Drafts after the end symbol are not accepted.
    counts = state.statistics
    assert sum(counts.accepted) == counts.tokens - counts.decoder_calls


@pytest.mark.parametrize("max_length", [1, 2, 5, 9])
def test_maximum_length_inside_a_draft(max_length):
    decoder = tiny_decoder(2, "block", 10)
    memory, lengths = random_memory(2, [7])
    everything = AcceptanceRule(lambda logits, tokens: tokens >= 0)
    states = decode(decoder, memory, lengths, [max_length], rule=everything)
    # All drafts are accepted: only the length limit or an end symbol can stop.
    assert len(states[0].tokens) == max_length or states[0].ended
    assert len(states[0].tokens) <= max_length


ROOM = 16 - len(PROMPT) + 1  # tokens with 16 positions
REJECT_ALL = AcceptanceRule(lambda logits, tokens: tokens < 0)


@pytest.mark.parametrize(
    ("decoder", "frames", "most", "expected", "rule"),
    [
        ((5, "linear", 10, {"max_target_positions": 16}), [6, 6], 100, ROOM, EXACT),
        ((7, "block", 4, {}), [1], 20, 20, EXACT),
        ((3, "linear", 4, {}), [6, 4], 30, 30, REJECT_ALL),
    ],
    ids=["fewer positions than the maximum length", "one frame", "all drafts rejected"],
)
def test_edge_cases_equal_plain_greedy(decoder, frames, most, expected, rule):
    *arguments, options = decoder
    decoder, count = tiny_decoder(*arguments, **options), len(frames)
    memory, lengths = random_memory(arguments[0], frames)
    states = decode(decoder, memory, lengths, [most] * count, rule=rule)
    assert_plain(decoder, memory, lengths, states, [expected] * count)


def test_batch_equals_singles():
    decoder = tiny_decoder(11, "block", 4)
    memory, lengths = random_memory(11, [9, 2, 5, 7])
    max_lengths = [40, 10, 25, 3]
    batch = decode(decoder, memory, lengths, max_lengths)
    for row, (together, single) in enumerate(zip(batch, utterances(memory, lengths), strict=True)):
        [alone] = decode(decoder, single, lengths[[row]], [max_lengths[row]])
        assert alone.tokens == together.tokens
        assert alone.hypothesis.score == pytest.approx(together.hypothesis.score, abs=1e-4)
        assert alone.statistics.decoder_calls == together.statistics.decoder_calls
        assert alone.statistics.accepted == together.statistics.accepted


def one_token_at_a_time(decoder, memory, max_length, num_heads, rule, constraints=None):
    """Oracle of the rules: each draft is judged by a forward pass of all tokens before it."""
    written, lengths, drafts = [], torch.tensor([memory.size(1)]), []
    runtime = build_runtime(decoder)
    with torch.no_grad():
        while len(written) < max_length:
            outputs = decoder.hidden_states(memory, lengths, torch.tensor([[*PROMPT, *written]]))
            logits = decoder.logits(outputs.hidden[0, -1:])
            if constraints is not None:
                logits = constraints.apply(logits, torch.tensor([len(written)]))
            if drafts and rule.allowed(logits, torch.tensor(drafts[:1])):
                token, drafts = drafts[0], drafts[1:]
            else:
                token = int(logits.argmax())
                # The base head writes the last token: a draft there would not save a call.
                left = max(max_length - len(written) - 2, 0)
                drafted_from = outputs.head_input[0, -1:], memory, lengths
                count = min(num_heads, left)
                drafts = draft_chain(runtime, drafted_from, token, count, len(written), constraints)
            if token == EOS:
                return written
            written.append(token)
    return written


def draft_chain(runtime, drafted_from, token, count, length, constraints):
    """The heads' best tokens after ``token``, up to the end symbol."""
    proposer, states = states_behind(runtime, *drafted_from)
    drafts = []
    while len(drafts) < count and token != EOS:
        states = proposer.advance(states, torch.tensor([token]))
        logits = proposer.logits(states)
        if constraints is not None:
            logits = constraints.apply(logits, torch.tensor([length + 1 + len(drafts)]))
        token = int(logits.argmax())
        drafts.append(token)
    return drafts


RULES = [
    SearchOptions(acceptance="exact"),
    SearchOptions(acceptance="typical", typical_epsilon=0.2, typical_alpha=0.6),
    SearchOptions(acceptance="typical", typical_epsilon=0.05, typical_alpha=0.1),
    SearchOptions(acceptance="top_m", top_m=2),
    SearchOptions(acceptance="top_m", top_m=5),
]


@pytest.mark.parametrize("options", RULES, ids=str)
@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("seed", range(3))
def test_rules_equal_one_token_at_a_time(seed, heads, options):
    decoder = tiny_decoder(seed, heads, 4)
    memory, lengths = random_memory(seed, [6])
    rule = build_rule(options)
    state = decode(decoder, memory, lengths, [40], rule=rule)[0]
    assert state.tokens == one_token_at_a_time(decoder, memory, 40, 4, rule)


CONSTRAINTS = [
    {"suppress_tokens": [0, 2, 7]},
    {"begin_suppress_tokens": [1, 3, 4, 5]},
    {"forced_prefix": [4, 4, 0, 9, 2, 1, 3]},
    {"exponential_decay_length_penalty": [3, 1.5]},
    {"exponential_decay_length_penalty": [0, 1.01], "suppress_tokens": [5]},
    {"forced_prefix": [8], "begin_suppress_tokens": [2, 6], "suppress_tokens": [0]},
]


@pytest.mark.parametrize("options", CONSTRAINTS, ids=str)
@pytest.mark.parametrize("acceptance", ["exact", "typical"])
@pytest.mark.parametrize("seed", range(4))
def test_constraints_equal_one_token_at_a_time(seed, acceptance, options):
    decoder = tiny_decoder(seed, HEADS[seed % 3], 4)
    memory, lengths = random_memory(seed, [6, 3])
    rule = build_rule(SearchOptions(acceptance=acceptance, typical_epsilon=0.2, typical_alpha=0.6))
    constraints = build_constraints(SearchOptions(**options), VOCAB_SIZE, EOS)
    states = decode(decoder, memory, lengths, [30, 5], rule=rule, **options)
    for row, most in enumerate([30, 5]):
        alone = utterances(memory, lengths)[row]
        expected = one_token_at_a_time(decoder, alone, most, 4, rule, constraints)
        if acceptance == "exact":
            assert states[row].tokens == expected
        else:
            # The first call evaluates a forced prefix: drafts start after other tokens.
            begin = options.get("forced_prefix", [])[:most]
            assert states[row].tokens[: len(begin)] == begin
            assert begin or states[row].tokens == expected


def test_threshold_writes_confident_drafts_unverified():
    decoder = tiny_decoder(0, "recurrent", 4)
    memory, lengths = random_memory(0, [6])
    bold = build_rule(SearchOptions(acceptance="threshold", threshold=1e-9))
    state = decode(decoder, memory, lengths, [31], rule=bold)[0]
    # Every call writes the base token and all drafts.
    expected, counts, runtime = [], state.statistics, build_runtime(decoder)
    with torch.no_grad():
        while len(expected) < 31 and EOS not in expected:
            prefix = torch.tensor([[*PROMPT, *expected]])
            outputs = decoder.hidden_states(memory, lengths, prefix)
            token = int(decoder.logits(outputs.hidden[0, -1]).argmax())
            left = max(31 - len(expected) - 2, 0)
            drafted_from = outputs.head_input[0, -1:], memory, lengths
            expected += [token, *draft_chain(runtime, drafted_from, token, min(4, left), 0, None)]
    expected = expected[: expected.index(EOS)] if EOS in expected else expected
    assert state.tokens == expected
    assert counts.tokens == counts.decoder_calls + sum(counts.accepted)
    timid = build_rule(SearchOptions(acceptance="threshold", threshold=1.0))
    plain = decode(decoder, memory, lengths, [31], rule=timid)
    assert_plain(decoder, memory, lengths, plain, [31])


def test_statistics():
    decoder = tiny_decoder(0, "linear", 4)
    memory, lengths = random_memory(0, [6])
    state = decode(decoder, memory, lengths, [30])[0]
    counts = state.statistics
    assert counts.tokens == len(state.tokens) + state.ended
    assert counts.tokens == counts.decoder_calls + sum(counts.accepted)
    plain = decode(decoder, memory, lengths, [30], shape=DraftShape(0))[0].statistics
    assert plain.decoder_calls == plain.tokens
    assert plain.nodes == plain.tokens + len(PROMPT) - 1
    assert plain.drafted == []


def test_a_node_budget_keeps_the_best_drafts():
    decoder = tiny_decoder(1, "block", 4)
    memory, lengths = random_memory(1, [9])
    counts = {}
    for budget in (2, 5, None):
        shape = DraftShape(4, width=4, budget=budget)
        statistics = decode(decoder, memory, lengths, [50], shape=shape)[0].statistics
        counts[budget] = statistics
        if budget is not None:
            assert statistics.nodes <= len(PROMPT) + budget * (statistics.decoder_calls - 1)
    assert counts[None].decoder_calls <= counts[5].decoder_calls <= counts[2].decoder_calls
    assert counts[None].decoder_calls < counts[2].decoder_calls
