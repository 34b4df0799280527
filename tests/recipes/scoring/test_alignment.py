"""Alignments against a recursive reference, and edit counts against jiwer."""

import random
from functools import cache

import jiwer
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from espnet_medusa.recipes.scoring import alignment
from espnet_medusa.recipes.scoring.alignment import align
from espnet_medusa.recipes.scoring.sclite import Counts

KINDS = ["deletions", "insertions", "substitutions"]
TOKENS = st.lists(st.sampled_from(["a", "b", "c", "@"]), max_size=12)


def reference_alignment(reference, hypothesis):
    """sclite's rules, one cell at a time: the diagonal wins ties, then the insertion."""

    def gap(token):
        return np.float32(0.001 if token == "@" else 3)

    def substitution(word, spoken):
        return np.float32(1 if word == spoken == "@" else 0 if word == spoken else 4)

    @cache
    def cell(i, j):
        if i == j == 0:
            return np.float32(0), None
        options = []
        if i and j:
            cost = cell(i - 1, j - 1)[0] + substitution(reference[i - 1], hypothesis[j - 1])
            options.append((cost, "diagonal"))
        if j:
            options.append((cell(i, j - 1)[0] + gap(hypothesis[j - 1]), "I"))
        if i:
            options.append((cell(i - 1, j)[0] + gap(reference[i - 1]), "D"))
        return min(options, key=lambda option: option[0])

    letters, i, j = [], len(reference), len(hypothesis)
    while i or j:
        step = cell(i, j)[1]
        i, j = i - (step != "I"), j - (step != "D")
        if step == "diagonal":
            letters.append("C" if reference[i] == hypothesis[j] else "S")
        elif (reference[i] if step == "D" else hypothesis[j]) != "@":
            letters.append(step)
    return "".join(reversed(letters))


@settings(max_examples=200, deadline=None)
@given(TOKENS, TOKENS, st.integers(1, 40))
def test_equal_to_the_recursive_reference(reference, hypothesis, cells):
    expected = reference_alignment(reference, hypothesis)
    assert align(reference, hypothesis) == expected
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(alignment, "BLOCK_CELLS", cells)
        assert align(reference, hypothesis) == expected


def counts_and_jiwer(reference, hypothesis):
    output = jiwer.process_words(" ".join(reference), " ".join(hypothesis))
    return Counts.of_operations(align(reference, hypothesis)), output


@pytest.mark.parametrize("kind", KINDS)
def test_counts_equal_jiwer_where_one_kind_of_error_explains_all(kind):
    rng = random.Random(kind)
    for _ in range(30):
        reference = [f"w{rng.randint(0, 30)}" for _ in range(rng.randint(1, 60))]
        if kind == "substitutions":
            # Words unknown to the reference: no match can be gained by shifting.
            hypothesis = [f"x{n}" if rng.random() < 0.3 else w for n, w in enumerate(reference)]
        else:
            hypothesis = [w for w in reference if rng.random() > 0.3]
        if kind == "insertions":
            reference, hypothesis = hypothesis, reference
        if not reference:
            continue
        counts, expected = counts_and_jiwer(reference, hypothesis)
        assert counts.words == len(reference)
        for operation in KINDS:
            assert getattr(counts, operation) == getattr(expected, operation)
        assert getattr(counts, kind) == counts.errors
        assert counts.error_percent == pytest.approx(100 * expected.wer)


def test_errors_are_never_fewer_than_the_edit_distance():
    rng = random.Random(11)
    more = 0
    for _ in range(200):
        reference, hypothesis = (
            [rng.choice("abcde") for _ in range(rng.randint(1, 25))] for _ in range(2)
        )
        counts, expected = counts_and_jiwer(reference, hypothesis)
        distance = expected.substitutions + expected.deletions + expected.insertions
        assert counts.errors >= distance
        assert counts.insertions - counts.deletions == len(hypothesis) - len(reference)
        more += counts.errors > distance
    assert more  # sclite's costs differ from jiwer's, so some counts differ
