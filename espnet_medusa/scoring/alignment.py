"""Word alignment with sclite's costs and tie-breaking.

Source of the rules: NIST SCTK 2.4.10 (word.c for the costs, net_dp.c for the order in which equal
costs are preferred), checked against the program's output.
"""

from collections.abc import Sequence

import numpy as np

# sclite reads a lone @ as "no word here": it costs next to nothing and is not scored.
NULL_WORD = "@"

SUBSTITUTION_COST = np.float32(4.0)
GAP_COST = np.float32(3.0)  # an insertion or a deletion
NULL_GAP_COST = np.float32(0.001)
NULL_SUBSTITUTION_COST = np.float32(1.0)

CORRECT, SUBSTITUTION, DELETION, INSERTION = "C", "S", "D", "I"

# Steps of the back trace, as stored per cell.
_DIAGONAL, _DELETE, _INSERT = 0, 1, 2

# Cells per batch; bounds memory (one byte each) and keeps the arrays in the processor's cache.
_BATCH_CELLS = 4_000_000


def align(reference: Sequence[str], hypothesis: Sequence[str]) -> str:
    """Align one pair; see `align_pairs`."""
    return align_pairs([(reference, hypothesis)])[0]


def align_pairs(pairs: Sequence[tuple[Sequence[str], Sequence[str]]]) -> list[str]:
    """Align token sequences as sclite does.

    Args:
        pairs: (reference tokens, hypothesis tokens), already in the form to compare.

    Returns:
        For each pair one letter per aligned position: C correct, S substitution, D deletion
        (reference token only), I insertion (hypothesis token only). Null words have no letter.
    """
    operations = [""] * len(pairs)
    order = sorted(range(len(pairs)), key=lambda k: (len(pairs[k][0]), len(pairs[k][1])))
    batch: list[int] = []
    longest_hypothesis = 0
    for index in order:
        n_reference, n_hypothesis = len(pairs[index][0]), len(pairs[index][1])
        longest = max(longest_hypothesis, n_hypothesis)
        if batch and (len(batch) + 1) * (n_reference + 1) * (longest + 1) > _BATCH_CELLS:
            _align_batch(pairs, batch, operations)
            batch, longest = [], n_hypothesis
        batch.append(index)
        longest_hypothesis = longest
    if batch:
        _align_batch(pairs, batch, operations)
    return operations


def _align_batch(pairs, batch: list[int], operations: list[str]) -> None:
    """Align the pairs that `batch` names and write their letters into `operations`."""
    codes: dict[str, int] = {NULL_WORD: 0}
    references = _encode([pairs[k][0] for k in batch], codes, padding=-1)
    hypotheses = _encode([pairs[k][1] for k in batch], codes, padding=-2)
    steps = _back_pointers(references, hypotheses)
    for column, k in enumerate(batch):
        operations[k] = _trace_back(steps, column, *pairs[k], len(hypotheses))


def _encode(sequences, codes: dict[str, int], padding: int) -> np.ndarray:
    """Number the tokens: (longest sequence, B) int32, short sequences padded at the end."""
    encoded = np.full((max(map(len, sequences)), len(sequences)), padding, dtype=np.int32)
    for column, sequence in enumerate(sequences):
        encoded[: len(sequence), column] = [codes.setdefault(t, len(codes)) for t in sequence]
    return encoded


def _back_pointers(references: np.ndarray, hypotheses: np.ndarray) -> list[np.ndarray]:
    """Fill the cost table one anti-diagonal at a time, all pairs at once.

    Costs are added in float32 and in sclite's order, since the null word's 0.001 makes sums
    whose rounding decides between otherwise equal paths. A pair shorter than the batch needs no
    mask: no cell depends on cells to its right or below.

    Args:
        references: (N, B) token numbers.
        hypotheses: (M, B) token numbers.

    Returns:
        For diagonal d = i + j the steps (uint8) of its cells with i from max(0, d - M):
        (cells, B).
    """
    n_reference, n_batch = references.shape
    n_hypothesis = len(hypotheses)
    reversed_hypotheses = np.ascontiguousarray(hypotheses[::-1])
    delete_cost = np.where(references == 0, NULL_GAP_COST, GAP_COST)
    insert_cost = np.where(reversed_hypotheses == 0, NULL_GAP_COST, GAP_COST)
    has_null = bool((references == 0).any() and (hypotheses == 0).any())
    before_last = np.zeros((n_reference + 1, n_batch), dtype=np.float32)
    last = np.zeros_like(before_last)
    steps = [np.zeros((1, n_batch), dtype=np.uint8)]
    for diagonal in range(1, n_reference + n_hypothesis + 1):
        start, stop = max(0, diagonal - n_hypothesis), min(n_reference, diagonal)
        cost = np.empty_like(last)
        step = np.empty((stop - start + 1, n_batch), dtype=np.uint8)
        # Inside the table: i in [low, high], j = diagonal - i in [1, M].
        low, high = max(1, start), min(stop, diagonal - 1)
        if low <= high:
            # Row of reversed_hypotheses that holds token j of cell i = low.
            offset = n_hypothesis - diagonal + low
            count = high - low + 1
            words, spoken = references[low - 1 : high], reversed_hypotheses[offset:][:count]
            equal = words == spoken
            substitute = np.where(equal, np.float32(0), SUBSTITUTION_COST)
            if has_null:
                substitute[equal & (words == 0)] = NULL_SUBSTITUTION_COST
            substitute += before_last[low - 1 : high]
            delete = last[low - 1 : high] + delete_cost[low - 1 : high]
            insert = last[low : high + 1] + insert_cost[offset:][:count]
            # Equal costs: the diagonal first, then the insertion.
            gap = np.minimum(delete, insert)
            choice = np.where(delete < insert, np.uint8(_DELETE), np.uint8(_INSERT))
            choice[substitute <= gap] = _DIAGONAL
            step[low - start : high - start + 1] = choice
            np.minimum(substitute, gap, out=cost[low : high + 1])
        if start == 0:
            cost[0] = last[0] + insert_cost[n_hypothesis - diagonal]
            step[0] = _INSERT
        if stop == diagonal:
            cost[stop] = last[stop - 1] + delete_cost[stop - 1]
            step[-1] = _DELETE
        before_last, last = last, cost
        steps.append(step)
    return steps


def _trace_back(
    steps: list[np.ndarray],
    column: int,
    reference: Sequence[str],
    hypothesis: Sequence[str],
    n_hypothesis: int,
) -> str:
    """Read one pair's letters from the stored steps, last position first.

    Args:
        steps: The batch's steps, by diagonal.
        column: The pair's place in the batch.
        reference: Its reference tokens.
        hypothesis: Its hypothesis tokens.
        n_hypothesis: Length of the batch's longest hypothesis (M).
    """
    letters = []
    i, j = len(reference), len(hypothesis)
    while i or j:
        step = steps[i + j][i - max(0, i + j - n_hypothesis), column]
        if step == _DIAGONAL:
            i, j = i - 1, j - 1
            letters.append(CORRECT if reference[i] == hypothesis[j] else SUBSTITUTION)
        elif step == _DELETE:
            i -= 1
            if reference[i] != NULL_WORD:
                letters.append(DELETION)
        else:
            j -= 1
            if hypothesis[j] != NULL_WORD:
                letters.append(INSERTION)
    return "".join(reversed(letters))
