"""Merged padding: one row of Whisper's encoder represents several frames without speech.

Whisper pads audio to 30 s. Rows of the padding differ by their position embeddings alone, so one
row can replace its neighbors, if attention adds the log of their number to its logit
(proportional attention: Bolya et al., Token Merging, arXiv 2210.09461). Softmax then counts it
that many times. The middle row, not the mean, replaces a group: a mean of position embeddings can
make the decoder end its text early. Long pauses are merged in the same way.
"""

from itertools import groupby

import torch

FULL, MERGED = PADDINGS = "full", "merged"  # values of ``encoder_padding``
# Frames of a merged row, and frames at the window's end that are not merged (bench/NOTES.md).
GROUP, LAST = 8, 16


def kept_rows(speech: torch.Tensor, rows: int) -> torch.Tensor:
    """Return bool (U, S), True for unmerged rows: the first ``speech`` (U,), the last ``LAST``."""
    places = torch.arange(rows, device=speech.device)
    return (places < speech[:, None]) | (places >= rows - LAST)


def group_sizes(kept: torch.Tensor) -> torch.Tensor:
    """Return the number of frames of each row after merging, from ``kept`` (S,)."""
    sizes = []
    for keep, run in groupby(kept.tolist()):
        groups, rest = divmod(len([*run]), 1 if keep else GROUP)
        sizes += [1 if keep else GROUP] * groups + [rest] * (rest > 0)
    return torch.tensor(sizes, device=kept.device)


def merge_rows(
    hidden: torch.Tensor, kept: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Merge the rows of (U, S, D) that are not in ``kept`` (U, S).

    Return rows (U, S', D) and the frames that each represents (U, S'); None if all rows are kept.
    """
    if kept.all():
        return None
    sizes = [*map(group_sizes, kept)]
    middles = [groups.cumsum(0) - groups + groups // 2 for groups in sizes]
    rows = [row[middle] for row, middle in zip(hidden, middles, strict=True)]
    pad = torch.nn.utils.rnn.pad_sequence
    return pad(rows, batch_first=True), pad(sizes, batch_first=True)
