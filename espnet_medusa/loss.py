"""Losses of several heads: shifted cross-entropy, and divergence from the base or the original.

Head 0 is the base head. Head k, at the position that predicts label t, predicts label t + k.
"""

import torch

IGNORE = -1


def shifted(
    logits: torch.Tensor, labels: torch.Tensor, head: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Pair head ``head``'s logits with their labels.

    Args:
        logits: (B, L, V) or (B, L).
        labels: (B, L).

    Returns:
        The first L - head positions and the labels from position ``head`` on.
    """
    length = max(labels.size(1) - head, 0)
    return logits[:, :length], labels[:, labels.size(1) - length :]


def head_cross_entropy(
    logits: torch.Tensor, labels: torch.Tensor, head: int, per_token: bool = True
) -> torch.Tensor:
    """Cross-entropy of one head (aiola-lab/whisper-medusa's ``MedusaCrossEntropyLoss``).

    Args:
        logits: (B, L, V) of that head.
        labels: (B, L), ``IGNORE`` where padded.
        head: 0 for the base head.
        per_token: Mean over labels; otherwise sum over the batch size, as ESPnet without
            ``length_normalized_loss``.

    Returns:
        Scalar; zero where no label is left.
    """
    kept, targets = shifted(logits, labels, head)
    total = torch.nn.functional.cross_entropy(
        kept.flatten(0, 1), targets.flatten(), ignore_index=IGNORE, reduction="sum"
    )
    count = (targets != IGNORE).sum() if per_token else torch.tensor(labels.size(0))
    return total / count.clamp(min=1)


def head_divergence(
    logits: torch.Tensor, teacher_logits: torch.Tensor, labels: torch.Tensor, head: int
) -> torch.Tensor:
    """KL(teacher || head) per utterance (Whisper-Medusa, arXiv 2409.15869, eq. 3).

    Sum over positions and vocabulary, over the batch size, as aiola's code; padded positions do
    not count, which aiola's code overlooks.

    Args:
        logits: (B, L, V) of that head.
        teacher_logits: (B, L, V) of the base head or of the original model; no gradient flows.
        labels: (B, L), ``IGNORE`` where padded.
        head: 0 for the base head.

    Returns:
        Scalar.
    """
    kept, targets = shifted(logits, labels, head)
    teacher = teacher_logits.detach()[:, head:]
    divergence = torch.nn.functional.kl_div(
        torch.log_softmax(kept, dim=-1),
        torch.log_softmax(teacher, dim=-1),
        reduction="none",
        log_target=True,
    ).sum(dim=-1)
    return divergence.masked_fill(targets == IGNORE, 0.0).sum() / labels.size(0)


def head_accuracy(logits: torch.Tensor, labels: torch.Tensor, head: int) -> torch.Tensor:
    """Share of labels that are the head's best token; nan where no label is left."""
    kept, targets = shifted(logits, labels, head)
    counted = targets != IGNORE
    return (kept.argmax(dim=-1) == targets)[counted].float().mean()
