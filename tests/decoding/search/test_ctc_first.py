"""CTC first: the accepted part of its hypothesis, and greedy search after it."""

import itertools
import math
import random
from unittest.mock import Mock

import pytest
import torch
from beam_oracle import make_scorers
from cases import combinations
from refusals import assert_refused
from scripted import ScriptedCTC, edited, foresight
from searches import CONSTRAINTS, PROMPT, build_search, greedy_texts
from tiny import EOS, VOCAB_SIZE, bounds, random_encoder_out, shared_decoder, utterances

from espnet_medusa.decoding.runtime.build import build_runtime
from espnet_medusa.decoding.search.drafters import DraftSources
from espnet_medusa.decoding.search.search_options import SearchOptions, check_options

BLANK = VOCAB_SIZE  # not a token of the decoder


def build(decoder, ctc, blank=BLANK, **options):
    options = SearchOptions(search="greedy", **options)
    check_options(options, 1)
    frequent = torch.tensor([1, 2, 3, 4, 5, EOS])
    sources = DraftSources(ctc, blank, frequent_tokens=lambda size, eos: frequent)
    return build_search(build_runtime(decoder), options, sources=sources)


def search(decoder, ctc, encoder_out, lengths, most, least=None, blank=BLANK, **options):
    greedy = build(decoder, ctc, blank, **options)
    return greedy(encoder_out, lengths, torch.tensor([PROMPT] * len(lengths)), bounds(most, least))


def is_sure(log_probs, threshold):
    frames = ([p for p in row if p > 0] for row in log_probs.exp().tolist())
    return all(-sum(p * math.log(p) for p in frame) < threshold for frame in frames)


def forbidden(token, place, least, options):
    forced = options.get("forced_prefix", [])
    if token in options.get("suppress_tokens", []) or (token == EOS and place < least):
        return True
    if place < len(forced):
        return token != forced[place]
    return place == len(forced) and token in options.get("begin_suppress_tokens", [])


def probabilities(logits_after, written, least=0, options=()):
    scores, place, options = logits_after((*PROMPT, *written)), len(written), dict(options)
    allowed = [t for t in range(VOCAB_SIZE) if not forbidden(t, place, least, options)]
    return dict(zip(allowed, scores[allowed].softmax(-1).tolist(), strict=True))


def expected(
    decoder, encoder_out, log_probs, most, least, guess, blank, entropy, likelihood, options
):
    """The oracle: tokens without the end symbol, and whether there is a decoder call.

    It goes frame by frame and token by token, with a forward pass of all written tokens. One pass
    serves all prefixes of the hypothesis, and one those of ``guess``.
    """
    best = [max(range(len(row)), key=row.__getitem__) for row in log_probs.tolist()]
    hypothesis = [label for label, _ in itertools.groupby(best) if label not in (blank, EOS)]
    ended = [*hypothesis, EOS][:most]
    possible = all(not forbidden(t, place, least, options) for place, t in enumerate(ended))
    if entropy is not None and possible and len(hypothesis) <= most and is_sure(log_probs, entropy):
        return hypothesis, False
    logits_after = foresight(decoder, encoder_out, ([*PROMPT, *ended[:-1]], [*PROMPT, *guess]))
    written = []
    for token in ended if likelihood is not None else []:
        if probabilities(logits_after, written, least, options).get(token, -1) < likelihood:
            break
        written.append(token)
    while len(written) < most and EOS not in written:
        probs = probabilities(logits_after, written, least, options)
        written.append(max(probs, key=probs.get))
    return [token for token in written if token != EOS], True


DRAFTS = [
    {"draft_depth": 0}, {"drafter": "ctc"},
    {"drafter": "ctc", "draft_depth": 2, "draft_width": 3, "draft_budget": 5},
    {"drafter": "ctc", "draft_vocab_size": 5}, {"drafter": "ctc", "lookahead": "auto"},
    {"drafter": "heads", "lookahead": "acceptance"}, {"drafter": "ctc+heads"},
    {"medusa_choices": [1, 2, 1]},
]  # fmt: skip


@combinations(seed=range(40))
def test_ragged_batches_are_the_oracle(seed):
    rng = random.Random(seed)
    decoder = shared_decoder(seed, rng.choice(["linear", "block", "recurrent", "llama latent"]))
    encoder_out, lengths = random_encoder_out(
        seed, [rng.randint(1, 14) for _ in range(rng.randint(1, 5))]
    )
    most = [rng.choice([1, 2, 5, 12, 30]) for _ in lengths]
    least = [rng.choice([0, 0, min(4, limit)]) for limit in most]
    alone = utterances(encoder_out, lengths)
    if rng.random() < 0.3:
        ctc, blank = make_scorers(seed)[1].log_softmax, 0
    else:
        texts = greedy_texts(decoder, encoder_out, lengths, most)
        ctc_texts = [edited(text, rng.randint(0, 4), EOS, rng) for text in texts]
        sure = [rng.choice([0.4, 0.9, 0.99, 1.0]) for _ in ctc_texts]
        ctc, blank = ScriptedCTC(ctc_texts, encoder_out, BLANK, sure), BLANK
    entropy = rng.choice([None, 0.0, 0.1, 0.6, 1.7, math.inf])
    likelihood = rng.choice([None, 0.0, 0.01, 0.1, 0.3, 0.6, 1.5])
    options = rng.choice([{}, {}, {}, *CONSTRAINTS[:4]])  # no penalty of length
    given = {"ctc_entropy_threshold": entropy, "ctc_likelihood_threshold": likelihood}
    given |= options | rng.choice(DRAFTS)
    states = search(decoder, ctc, encoder_out, lengths, most, least, blank, **given)
    with torch.no_grad():
        log_probs = [ctc(utterance)[0] for utterance in alone]
    rows = zip(alone, log_probs, most, least, strict=True)
    for row, (state, case) in enumerate(zip(states, rows, strict=True)):
        thresholds = blank, entropy, likelihood
        tokens, calls_decoder = expected(decoder, *case, state.tokens, *thresholds, options)
        assert state.tokens == tokens, row
        counts = state.statistics
        assert calls_decoder == (counts.decoder_calls > 0) == (counts.nodes > 0), row
        assert counts.tokens == len(tokens) + state.ended == len(state.hypothesis.prefix.tokens())
        assert math.isfinite(state.hypothesis.score)


def ctc_case(seed, num_edits=2, sure=0.9):
    """A model, three utterances, their greedy texts, and CTC with errors."""
    rng, decoder = random.Random(seed), shared_decoder(seed, "linear")
    encoder_out, lengths = random_encoder_out(seed, [9, 4, 12])
    texts = greedy_texts(decoder, encoder_out, lengths, [30] * 3)
    ctc_texts = [edited(text, num_edits, EOS, rng)[:30] for text in texts]
    return (
        decoder,
        ScriptedCTC(ctc_texts, encoder_out, BLANK, sure),
        encoder_out,
        lengths,
        texts,
        ctc_texts,
    )


@combinations(seed=range(4))
def test_any_entropy_is_below_infinity(seed):
    decoder, ctc, encoder_out, lengths, _, ctc_texts = ctc_case(seed, sure=0.2)
    states = search(decoder, ctc, encoder_out, lengths, [30] * 3, ctc_entropy_threshold=math.inf)
    assert [state.tokens for state in states] == ctc_texts
    for state, text in zip(states, ctc_texts, strict=True):
        counts = state.statistics
        assert (counts.decoder_calls, counts.nodes, counts.drafted) == (0, 0, [])
        assert counts.tokens == len(state.n_best[0].tokens) - (len(text) == 30)
        assert counts.decoder_seconds >= counts.draft_seconds > 0
        # Probability 0.2 for each token (one frame each) and for the end (the last frame).
        assert state.n_best[0].score == pytest.approx(counts.tokens * math.log(0.2))


@combinations(seed=range(4))
def test_any_likelihood_is_0_or_more(seed):
    decoder, ctc, encoder_out, lengths, _, ctc_texts = ctc_case(seed)
    options = {"draft_depth": 0, "ctc_likelihood_threshold": 0}
    states = search(decoder, ctc, encoder_out, lengths, [30] * 3, **options)
    assert [state.tokens for state in states] == ctc_texts
    for state, text in zip(states, ctc_texts, strict=True):
        counts, score = state.statistics, 0.0
        assert counts.decoder_calls == 1 and counts.nodes == len(PROMPT) + min(len(text), 29)
        assert sum(counts.drafted) == counts.tokens
        alone = utterances(encoder_out, lengths)[ctc_texts.index(text)]
        written = [*text, EOS][: counts.tokens]
        logits_after = foresight(decoder, alone, [[*PROMPT, *text]])
        for place, token in enumerate(written):
            score += math.log(probabilities(logits_after, written[:place])[token])
        assert state.hypothesis.score == pytest.approx(score, abs=1e-3)


@combinations(least=[0.3, 1.5])
def test_a_correct_ctc_text_takes_one_call_at_any_threshold(least):
    """A rejected token may still be the decoder's best token: then the search continues with it."""
    decoder, ctc, encoder_out, lengths, texts, _ = ctc_case(3, num_edits=0)
    options = {"draft_depth": 0, "ctc_likelihood_threshold": least}
    states = search(decoder, ctc, encoder_out, lengths, [30] * 3, **options)
    assert [state.tokens for state in states] == texts
    assert [state.statistics.decoder_calls for state in states] == [1] * 3


def test_a_rejected_token_also_rejects_the_tokens_after_it():
    """The rejected token is the decoder's best, and the next one is likely but not the best."""
    decoder, (encoder_out, lengths), least = shared_decoder(100), random_encoder_out(100, [9]), 0.14
    [text] = greedy_texts(decoder, encoder_out, lengths, [15])
    hypothesis = [*text[:10], 3]
    logits_after = foresight(decoder, encoder_out)
    likely = [probabilities(logits_after, hypothesis[:place]) for place in (9, 10)]
    rejected, after = (each[token] for each, token in zip(likely, hypothesis[9:], strict=True))
    assert rejected < least < after and text[10] != 3
    ctc = ScriptedCTC([hypothesis], encoder_out, BLANK)
    [state] = search(decoder, ctc, encoder_out, lengths, [15], ctc_likelihood_threshold=least)
    assert state.tokens == text


def test_texts_longer_than_any_draft_take_one_call():
    decoder = shared_decoder(0, "none", max_target_positions=200)
    encoder_out, lengths = random_encoder_out(0, [150])
    ctc_texts = [random.Random(0).choices(range(EOS), k=120)]
    ctc = ScriptedCTC(ctc_texts, encoder_out, BLANK)
    options = {"drafter": "ctc", "draft_depth": 3, "ctc_likelihood_threshold": 0}
    [state] = search(decoder, ctc, encoder_out, lengths, [150], **options)
    assert state.tokens == ctc_texts[0] and state.statistics.decoder_calls == 1


def test_an_empty_ctc_text_is_accepted():
    decoder, _, encoder_out, lengths, _, _ = ctc_case(0)
    ctc = ScriptedCTC([[], [1], []], encoder_out, BLANK)
    states = search(decoder, ctc, encoder_out, lengths, [30] * 3, ctc_entropy_threshold=math.inf)
    texts = [([], True), ([1], True), ([], True)]
    assert [(state.tokens, state.ended) for state in states] == texts


@combinations(drafter=["ctc", "ctc+heads"], options=[{"ctc_entropy_threshold": 0.6}, {}])
def test_ctc_runs_once_per_utterance(drafter, options):
    decoder, ctc, encoder_out, lengths, _, _ = ctc_case(1, sure=[0.99, 0.5, 0.99])
    counted = Mock(wraps=ctc)
    states = search(decoder, counted, encoder_out, lengths, [30] * 3, drafter=drafter, **options)
    assert counted.call_count == 3
    without_decoder = [state.statistics.decoder_calls == 0 for state in states]
    assert without_decoder == ([True, False, True] if options else [False] * 3)


def test_a_search_can_be_used_again():
    decoder, ctc, encoder_out, lengths, _, ctc_texts = ctc_case(2)
    greedy = build(decoder, ctc, drafter="ctc", ctc_likelihood_threshold=0)
    prompt = torch.tensor([PROMPT] * 3)
    first = greedy(encoder_out, lengths, prompt, bounds([30] * 3))
    back = [2, 0, 1]
    second = greedy(encoder_out[back], lengths[back], prompt, bounds([30] * 3))
    assert [state.tokens for state in first] == ctc_texts
    assert [state.tokens for state in second] == [ctc_texts[row] for row in back]


@combinations(name=["ctc_entropy_threshold", "ctc_likelihood_threshold"])
def test_a_model_without_ctc_is_refused(name):
    message = f"{name}: 0.5; this model has no CTC branch"
    assert_refused(message, build, shared_decoder(0), None, **{name: 0.5})
