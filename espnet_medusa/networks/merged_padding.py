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
RECEPTIVE_FRAMES = 12  # more than the convolutions' receptive field with any ``subsampling``


def padded_frames(features: torch.Tensor) -> int:
    """Count the frames at the end of (B, T, bins) that equal the last one in every utterance."""
    differs = (features != features[:, -1:]).any(dim=2).any(dim=0)
    places = torch.arange(1, len(differs) + 1, device=features.device)
    return features.size(1) - int((differs * places).max())


def drop_equal_frames(
    features: torch.Tensor, frames: torch.Tensor, subsampling: int
) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Drop padded frames of (B, T, bins) for which Whisper's convolutions compute equal rows.

    Return the other frames, their number (B,), and the number of equal rows for ``window_rows``.
    """
    rows = 0
    if int(frames.min()) == features.size(1):
        rows = max(padded_frames(features) - RECEPTIVE_FRAMES, 0) // subsampling
    dropped = rows * subsampling
    return features[:, : features.size(1) - dropped], frames - dropped, rows


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


def merged_rows(kept: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Merge the rows that are False in ``kept`` (U, S).

    Return the places (U, S') of the remaining rows and the frames (U, S') that each represents,
    both 0 after an utterance's last row.
    """
    sizes = [*map(group_sizes, kept)]
    middles = [groups.cumsum(0) - groups + groups // 2 for groups in sizes]
    pad = torch.nn.utils.rnn.pad_sequence
    return pad(middles, batch_first=True), pad(sizes, batch_first=True)


def window_rows(
    hidden: torch.Tensor,
    lengths: torch.Tensor | None,
    copies: int,
    positions: torch.Tensor,
    kept: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Compute the rows of Whisper's window: the convolutions' output plus position embeddings.

    Args:
        hidden: (U, S - copies, D) output of the convolutions.
        lengths: (U,) its frames; None: all, without merged rows and copies.
        copies: Equal rows to insert (``drop_equal_frames``).
        positions: (S or more, D) position embeddings.
        kept: (U, S) bool, rows that are not merged; None: all.

    Returns:
        Rows (U, S', D) and their frames (U,), or the frames (U, S') of merged rows.
    """
    utterances, size, _ = hidden.shape
    merged = kept is not None and not kept.all()
    if not merged and not copies:
        return hidden + positions[:size], lengths
    if merged:
        places, lengths = merged_rows(kept)
    else:
        places = torch.arange(size + copies, device=hidden.device).expand(utterances, -1)
        lengths = lengths + copies
    # The last row depends on zeros after the window; the row before it only on padding.
    sources = torch.minimum(places, (places - copies).clamp(min=size - 2))
    sources = sources + size * torch.arange(utterances, device=hidden.device)[:, None]
    rows = hidden.flatten(0, 1).index_select(0, sources.flatten())
    return (rows + positions.index_select(0, places.flatten())).view(*places.shape, -1), lengths
