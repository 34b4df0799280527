"""Merged padding: one row of Whisper's encoder stands for several frames of the padding.

Whisper pads audio to 30 s. Rows of the padding differ by their position embeddings alone, so one
row can replace its neighbors, if attention adds the log of their number to its logit
(proportional attention: Bolya et al., Token Merging, arXiv 2210.09461). Softmax then counts it
that many times. The row of the middle is better than the mean: the mean of position embeddings is
no position, and the decoder may then end its text early.
"""

import torch

FULL, MERGED = PADDINGS = "full", "merged"  # rows for the padding
# Frames of a merged row, and frames at the window's end that are not merged (bench/NOTES.md).
GROUP, LAST = 8, 16


def group_sizes(frames: int, group: int = GROUP, last: int = LAST) -> list[int]:
    """Return the number of frames that each row of ``frames`` of padding stands for."""
    last = min(last, frames)
    rows, rest = divmod(frames - last, group)
    return [group] * rows + [rest] * (rest > 0) + [1] * last


def merge_padding(
    hidden: torch.Tensor, speech: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Merge the rows after the first ``speech`` (U,) rows of (U, S, D).

    Returns:
        Rows (U, S', D) and the frames that each stands for (U, S'); None if all rows are kept.
    """
    frames = hidden.size(1)
    kept = speech.clamp(max=frames).tolist()
    if min(kept) == frames:
        return None
    rows, sizes = [], []
    for row, count in zip(hidden, kept, strict=True):
        groups = torch.tensor([1] * count + group_sizes(frames - count), device=hidden.device)
        middles = groups.cumsum(0) - groups + groups // 2
        rows.append(row[middles])
        sizes.append(groups)
    pad = torch.nn.utils.rnn.pad_sequence
    return pad(rows, batch_first=True), pad(sizes, batch_first=True)
