"""Rows and frames of encoder output.

Encoder output (U, S, D) comes with its lengths (U,). If rows stand for several frames
(``model.merged_padding``), it comes with the frames of each row (U, S) instead, 0 after an
utterance's last row.
"""

import torch


def row_counts(lengths: torch.Tensor) -> torch.Tensor:
    """Return the rows (U,) of utterances from their lengths (U,) or the frames of rows (U, S)."""
    return lengths if lengths.dim() == 1 else (lengths > 0).sum(dim=1)


def frame_counts(lengths: torch.Tensor) -> torch.Tensor:
    """Return the frames (U,) that the rows of utterances stand for."""
    return lengths if lengths.dim() == 1 else lengths.sum(dim=1)
