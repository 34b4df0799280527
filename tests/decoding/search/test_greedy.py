"""Greedy text with exact drafts equals plain greedy text, for every draft shape."""

import math
import random

import searches
import torch
from cases import cases, combinations, pairs
from grown_trees import states_after
from scripted import PathDecoder, PathProposer
from searches import CONSTRAINTS, DRAFT_MODELS, HEADS, PROMPT, assert_plain, decode, drafted_by
from tiny import EOS, VOCAB_SIZE, plain_greedy, random_encoder_out, shared_decoder, utterances

from espnet_medusa.decoding.runtime.build import build_runtime
from espnet_medusa.decoding.search.acceptance import build_rule
from espnet_medusa.decoding.search.drafting.lookahead import DraftShape
from espnet_medusa.decoding.search.greedy import longest_accepted
from espnet_medusa.decoding.search.search_options import SearchOptions
from espnet_medusa.decoding.tree.prefix import Prefix


@combinations(drafter=[*HEADS, *DRAFT_MODELS], seed=range(6))
def test_exact_equals_plain_greedy(seed, drafter):
    rng = random.Random(f"{seed} {drafter}")
    num_heads = rng.choice([0, 1, 4, 10])
    # Only these have a residual layer for the base head.
    residual = drafter in ("linear", "block")
    base_head = {"heads_conf": {"base_head": True}} if seed % 2 and residual else {}
    decoder, runtime = drafted_by(seed, drafter, num_heads, **base_head)
    encoder_out, lengths = random_encoder_out(
        seed, [rng.randint(1, 12) for _ in range(rng.randint(1, 6))]
    )
    most = [rng.choice([1, 2, 3, 7, 25, 40]) for _ in lengths]
    least = [rng.randint(0, limit) if rng.random() < 0.3 else 0 for limit in most]
    shape = searches.greedy_shape(rng, 8 if drafter in DRAFT_MODELS else num_heads)
    searches.decode_exactly(decoder, encoder_out, lengths, most, least, runtime, shape=shape)


def decode_foreseen(shape, unsure=(), **options):
    """Decode with drafts of the very text; return it without the end symbol, and the state.

    All drafts at the places ``unsure`` have the same probability.
    """
    encoder_out, lengths = random_encoder_out(95, [5])
    decoder = shared_decoder(95, "none")
    tokens, _, ended = plain_greedy(decoder, encoder_out, PROMPT, 30)
    assert ended and 4 <= len(tokens) <= 27
    future = 9.0 * torch.eye(VOCAB_SIZE)[[*tokens, EOS, *([0] * 20)]]
    future[[*unsure]] = 0.0
    proposer = PathProposer(lambda path: future[len(path) - len(PROMPT)])
    decoder = PathDecoder(build_runtime(decoder), proposer)
    return tokens, decode(decoder, encoder_out, lengths, [30], shape=shape, **options)[0]


@combinations(depth=[1, 4, 10])
def test_end_symbol_inside_a_draft(depth):
    tokens, state = decode_foreseen(DraftShape(depth))
    assert state.ended and state.tokens == tokens
    # The first call has no drafts; each later call writes its drafts and one more token.
    assert state.statistics.decoder_calls == 1 + -(-len(tokens) // (depth + 1))
    # Drafts after the end symbol are not accepted.
    counts = state.statistics
    assert sum(counts.accepted) == counts.tokens - counts.decoder_calls


@combinations(width=[1, 3])
def test_steps_below_the_minimum_probability_are_not_drafted(width):
    shape = DraftShape(6, width, min_probability=0.5)
    tokens, state = decode_foreseen(shape, unsure=range(0, 31, 4))
    assert len(tokens) % 4 == 0, "the end symbol is unsure, too"
    counts = state.statistics
    assert counts.drafted == counts.accepted and len(counts.drafted) == 3
    assert counts.nodes == len(PROMPT) + counts.decoder_calls - 1 + sum(counts.drafted)


@combinations(drafter=[*HEADS, *DRAFT_MODELS])
def test_drafts_without_a_probable_token_have_no_step(drafter):
    _, runtime = drafted_by(3, drafter)
    shape = DraftShape(4, min_probability=0.9999)
    [state] = decode(runtime, *random_encoder_out(3, [9]), [12], shape=shape)
    counts = state.statistics
    assert counts.drafted == counts.accepted == []
    assert counts.nodes == len(PROMPT) + counts.decoder_calls - 1


@combinations(budget=[1, 2, 4, 10])
def test_a_node_budget_of_unverified_drafts(budget):
    rule = build_rule(SearchOptions(acceptance="threshold"))
    tokens, state = decode_foreseen(DraftShape(10, budget=budget), rule=rule)
    assert state.ended and state.tokens == tokens
    counts = state.statistics
    assert counts.tokens == len(tokens) + 1
    assert counts.decoder_calls == -(-len(tokens) // budget)
    assert counts.nodes == len(PROMPT) + budget * (counts.decoder_calls - 1)


def test_fewer_positions_than_the_maximum_length():
    decoder = shared_decoder(5, "linear", 10, max_target_positions=16)
    encoder_out, lengths = random_encoder_out(5, [6, 6])
    states = decode(decoder, encoder_out, lengths, [100] * 2)
    assert_plain(decoder, encoder_out, lengths, states, [16 - len(PROMPT) + 1] * 2)


@cases(("block", 11, 4), ("near", 11, 4), ("near", 4, 3))
def test_batch_equals_singles(drafter, seed, depth):
    (_, decoder), audio = drafted_by(seed, drafter), random_encoder_out(seed, [9, 2, 5, 7])
    searches.assert_decoded_alike_alone(decoder, [40, 10, 25, 3], *audio, shape=DraftShape(depth))


def one_token_at_a_time(decoder, encoder_out, max_length, num_heads, rule, text, constraints=None):
    """Oracle of the rules: each draft is judged by a forward pass of all tokens before it.

    One forward pass of ``text``, the tokens to be compared, serves all its prefixes. The result
    ends at the first token that differs from ``text``.
    """
    written, lengths, drafts = [], torch.tensor([encoder_out.size(1)]), []
    tokens = torch.tensor([[*PROMPT, *text][: len(PROMPT) + max_length - 1]])
    with torch.no_grad():
        outputs = decoder.hidden_states(encoder_out, lengths, tokens)
        all_logits = decoder.logits(outputs.hidden[0])
        drafted_from = outputs.head_input[0], encoder_out, lengths
        proposer, states = states_after(build_runtime(decoder), *drafted_from)
        while len(written) < max_length and written == text[: len(written)]:
            place = torch.tensor([len(PROMPT) + len(written) - 1])
            logits = all_logits[place]
            if constraints is not None:
                logits = constraints.apply(logits, torch.tensor([len(written)]))
            if drafts and rule.allowed(logits, torch.tensor(drafts[:1])):
                token, drafts = drafts[0], drafts[1:]
            else:
                token = int(logits.argmax())
                # The base head writes the last token: a draft there would not save a call.
                left = max(max_length - len(written) - 2, 0)
                drafted = states.select(place), token, min(num_heads, left)
                drafts = draft_chain(proposer, *drafted, len(written), constraints)
            if token == EOS:
                return written
            written.append(token)
    return written


def test_the_longest_path_of_a_draft_of_any_length():
    root = Prefix(0)
    for branch, length in ((1, 2000), (2, 5000), (3, 5000)):
        prefix = root
        for _ in range(length):
            prefix = prefix.child(branch)
            prefix.accepted_log_prob = -0.1 * branch
    path = longest_accepted(root)
    assert [prefix.token for prefix in path] == [2] * 5000 and path[-1].length == 5000
    assert longest_accepted(path[-1]) == []


def draft_chain(proposer, states, token, count, length, constraints):
    """The heads' best tokens after ``token``, up to the end symbol."""
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
    {"acceptance": "exact"},
    {"acceptance": "typical", "typical_epsilon": 0.2, "typical_alpha": 0.6},
    {"acceptance": "typical", "typical_epsilon": 0.05, "typical_alpha": 0.1},
    {"acceptance": "top_m", "top_m": 2},
    {"acceptance": "top_m", "top_m": 5},
]


@pairs(heads=HEADS, options=RULES, seed=range(3))
def test_rules_equal_one_token_at_a_time(heads, options, seed):
    decoder = shared_decoder(seed, heads, 4)
    encoder_out, lengths = random_encoder_out(seed, [6])
    rule = build_rule(SearchOptions(**options))
    text = decode(decoder, encoder_out, lengths, [40], rule=rule)[0].tokens
    assert text == one_token_at_a_time(decoder, encoder_out, 40, 4, rule, text)


@pairs(options=CONSTRAINTS, acceptance=["exact", "typical"], seed=range(4))
def test_constraints_equal_one_token_at_a_time(options, acceptance, seed):
    decoder = shared_decoder(seed, HEADS[seed % 3], 4)
    encoder_out, lengths = random_encoder_out(seed, [6, 3])
    rule = build_rule(SearchOptions(acceptance=acceptance, typical_epsilon=0.2, typical_alpha=0.6))
    constraints = searches.constraints_of(**options)
    states = decode(decoder, encoder_out, lengths, [30, 5], rule=rule, **options)
    for row, most in enumerate([30, 5]):
        alone, text = utterances(encoder_out, lengths)[row], states[row].tokens
        expected = one_token_at_a_time(decoder, alone, most, 4, rule, text, constraints)
        # The first call evaluates a forced prefix: drafts start after other tokens.
        begin = options.get("forced_prefix", [])[:most]
        assert text[: len(begin)] == begin
        assert text == expected or (begin and acceptance != "exact")


def test_statistics_without_drafts():
    decoder, shape = shared_decoder(0, "linear", 4), DraftShape(0)
    counts = decode(decoder, *random_encoder_out(0, [6]), [30], shape=shape)[0].statistics
    assert (counts.decoder_calls, counts.drafted) == (counts.tokens, [])
    assert counts.nodes == counts.tokens + len(PROMPT) - 1


def test_a_node_budget_keeps_the_best_drafts():
    decoder = shared_decoder(1, "block", 4)
    counts = {}
    for budget in (2, 5, None):
        shape = DraftShape(4, width=4, budget=budget)
        [state] = decode(decoder, *random_encoder_out(1, [9]), [50], shape=shape)
        counts[budget] = found = state.statistics
        assert found.nodes <= len(PROMPT) + (budget or math.inf) * (found.decoder_calls - 1)
    assert counts[None].decoder_calls <= counts[5].decoder_calls <= counts[2].decoder_calls
    assert counts[None].decoder_calls < counts[2].decoder_calls
