"""Rows and frames of encoder output: in this room, because searches do not import networks.

The lengths of encoder output (U, S, D) are each utterance's number of rows (U,). With
``networks.merged_padding``, a row may represent several frames. The lengths are then each row's
number of frames (U, S), 0 after an utterance's last row.
"""

import torch


def row_counts(lengths: torch.Tensor) -> torch.Tensor:
    """Return the number of rows (U,) of utterances from lengths (U,) or (U, S)."""
    return lengths if lengths.dim() == 1 else (lengths > 0).sum(dim=1)


def repeat_rows(rows: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Repeat each row (S', ...) of an utterance once per frame: (S, ...).

    ``lengths`` is the number of rows, a scalar, or the number of frames of each row (S',).
    """
    return rows[:lengths] if lengths.dim() == 0 else rows.repeat_interleave(lengths, dim=0)


def frame_counts(lengths: torch.Tensor) -> torch.Tensor:
    """Return the number of frames (U,) of utterances from lengths (U,) or (U, S)."""
    return lengths if lengths.dim() == 1 else lengths.sum(dim=1)
