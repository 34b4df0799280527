"""Word alignment with sclite's costs and tie-breaking.

Source of the rules: NIST SCTK 2.4.10 (word.c for the costs, net_dp.c for the order in which equal
costs are preferred), checked against the program's output.
"""

from collections.abc import Sequence

import numpy as np
from numba import njit

NULL_WORD = "@"  # sclite's symbol for no word: it costs 0.001 and is not counted
NULL = 0  # its number

SUBSTITUTION_COST = np.float32(4.0)
GAP_COST = np.float32(3.0)  # an insertion or a deletion
NULL_GAP_COST = np.float32(0.001)
NULL_SUBSTITUTION_COST = np.float32(1.0)

CORRECT, SUBSTITUTION, DELETION, INSERTION = "C", "S", "D", "I"

# Steps of the backtrace, stored per cell.
_DIAGONAL, _DELETE, _INSERT = 0, 1, 2
BLOCK_CELLS = 1 << 26  # the most cells whose steps are stored at a time


def align(reference: Sequence[str], hypothesis: Sequence[str]) -> str:
    """Align token sequences, already in the form to compare, as sclite does.

    Return a letter per aligned position: C correct, S substitution, D deletion (reference token
    only), I insertion (hypothesis token only). Null words have no letter.
    """
    numbers = {NULL_WORD: NULL}
    reference_ids, hypothesis_ids = (
        np.array([numbers.setdefault(token, len(numbers)) for token in side], dtype=np.int32)
        for side in (reference, hypothesis)
    )
    rows = max(1, BLOCK_CELLS // (len(hypothesis_ids) + 1))
    blocks = [reference_ids[start : start + rows] for start in range(0, len(reference_ids), rows)]
    gaps = np.where(hypothesis_ids == NULL, NULL_GAP_COST, GAP_COST)
    costs = np.cumsum(np.concatenate([[0], gaps]), dtype=np.float32)  # of no reference token
    # Recordings of hours have billions of cells: their steps are computed again, block by block.
    costs_before = [costs]
    for block in blocks[:-1]:
        costs = costs.copy()
        _steps(block, hypothesis_ids, costs)
        costs_before.append(costs)
    letters: list[str] = []
    j = len(hypothesis_ids)
    for block in reversed(blocks):
        steps = _steps(block, hypothesis_ids, costs_before.pop())
        i = len(block)
        while i:
            step = steps[i - 1, j]
            if step == _DIAGONAL:
                i, j = i - 1, j - 1
                letters.append(CORRECT if block[i] == hypothesis_ids[j] else SUBSTITUTION)
            elif step == _DELETE:
                i -= 1
                letters += DELETION if block[i] != NULL else ""
            else:
                j -= 1
                letters += INSERTION if hypothesis_ids[j] != NULL else ""
    letters += INSERTION * int(np.count_nonzero(hypothesis_ids[:j] != NULL))
    return "".join(reversed(letters))


@njit(cache=True)
def _steps(reference_ids: np.ndarray, hypothesis_ids: np.ndarray, costs: np.ndarray) -> np.ndarray:
    """Return the last step (N, M + 1) of the cheapest path to each cell, for ids (N,), (M,).

    `costs` (M + 1,), of the tokens before, becomes that of these N tokens, too. Costs are added in
    float32 and in sclite's order: with the null word's cost of 0.001, rounding decides between
    otherwise equal paths.
    """
    steps = np.full((len(reference_ids), len(costs)), _INSERT, dtype=np.uint8)
    for i in range(len(reference_ids)):
        word, diagonal = reference_ids[i], costs[0]
        deletion = NULL_GAP_COST if word == NULL else GAP_COST
        costs[0] += deletion
        steps[i, 0] = _DELETE
        for j in range(1, len(costs)):
            substitute = SUBSTITUTION_COST
            if word == hypothesis_ids[j - 1]:
                substitute = NULL_SUBSTITUTION_COST if word == NULL else np.float32(0)
            substitute += diagonal
            delete = costs[j] + deletion
            insert = costs[j - 1] + (NULL_GAP_COST if hypothesis_ids[j - 1] == NULL else GAP_COST)
            diagonal = costs[j]
            # Equal costs: the diagonal first, then the insertion.
            costs[j] = min(substitute, delete, insert)
            if substitute <= min(delete, insert):
                steps[i, j] = _DIAGONAL
            elif delete < insert:
                steps[i, j] = _DELETE
    return steps
