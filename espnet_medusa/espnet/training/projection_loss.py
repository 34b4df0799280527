"""Losses of many heads through one vocabulary projection, with few logits in memory at a time.

The logits of K + 1 heads take K + 1 times the memory of one head's. So the forward pass projects a
chunk of labels at a time and computes losses and gradients before it frees the logits. The backward
pass only scales the gradients. This is the fused linear cross-entropy of Liger Kernel (Hsu et al.,
arXiv 2410.10989) with several heads and a divergence, in plain PyTorch.

The N labels of a batch are sorted by position. Head k predicts the last n_k labels, those after
the first k positions.
"""

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import NamedTuple

import torch
from torch.autograd.function import once_differentiable

IGNORE = -1  # label of padded positions
CHUNK_LOGITS = 2**22  # per chunk, 16 MiB in float32; peak memory is twice that


@dataclass(frozen=True)
class Objective:
    """Weights of one head's summed losses."""

    cross_entropy: float
    divergence: float = 0.0
    smoothing: float = 0.0  # label smoothing as in ESPnet's LabelSmoothingLoss

    @property
    def scale(self) -> float:
        """Upper bound of a logit's gradient; stored gradients of rows are divided by it."""
        return self.cross_entropy + self.divergence

    def losses(
        self, log_probs: torch.Tensor, targets: torch.Tensor, reference: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the sums of cross-entropy and divergence; arguments as in ``gradient``."""
        label_sum = log_probs.gather(1, targets[:, None]).sum()
        cross_entropy = -label_sum
        if self.smoothing > 0:
            others = log_probs.size(1) - 1
            peak, rest = self._smoothed(log_probs.size(1))
            entropy = -peak * math.log(peak) - others * rest * math.log(rest)
            smooth = (rest - peak) * label_sum - rest * log_probs.sum()
            cross_entropy = smooth - len(targets) * entropy
        if reference is None:
            return cross_entropy, torch.zeros_like(label_sum)
        divergence = reference - log_probs
        return cross_entropy, divergence.mul_(reference.exp()).sum()

    def gradient(
        self, log_probs: torch.Tensor, targets: torch.Tensor, reference: torch.Tensor | None
    ) -> torch.Tensor:
        """Return the logits' gradient divided by ``scale``, in place of ``log_probs`` (n, V).

        ``targets`` are (n,), ``reference`` (n, V) the teacher's log-probabilities.
        """
        labels = self.cross_entropy / self.scale
        peak, rest = self._smoothed(log_probs.size(1))
        gradient = log_probs.exp_()
        if reference is not None and self.divergence > 0:
            gradient.sub_(reference.exp(), alpha=self.divergence / self.scale)
        if rest > 0:
            gradient -= labels * rest
        rows = torch.arange(len(targets), device=targets.device)
        gradient[rows, targets] -= labels * (peak - rest)
        return gradient

    def _smoothed(self, vocab_size: int) -> tuple[float, float]:
        """Return the smoothed probability of the label and of every other token."""
        return 1.0 - self.smoothing, self.smoothing / (vocab_size - 1)


class HeadSums(NamedTuple):
    """Sums over each head's labels, without gradient: (K + 1,) each."""

    cross_entropy: torch.Tensor  # less the entropy of smoothed labels, as in ESPnet
    divergence: torch.Tensor  # KL(teacher || head); zero without a teacher
    correct: torch.Tensor  # number of labels that are the head's best token


def unpadded_labels(labels: torch.Tensor) -> torch.Tensor:
    """Return the labels (N,) of (B, L) without padding, sorted by position."""
    return labels.T[labels.T != IGNORE]


def labeled_rows(hidden: torch.Tensor, labels: torch.Tensor, head: int) -> torch.Tensor:
    """Return the rows (n, D) in which a head predicts the last n of ``unpadded_labels``.

    Args:
        hidden: (B, L - head or more, D).
        labels: (B, L), ``IGNORE`` where padded.
    """
    labeled = (labels[:, head:] != IGNORE).T
    return hidden.transpose(0, 1)[: len(labeled)][labeled]


def projected_loss(
    hidden: Sequence[torch.Tensor],
    targets: torch.Tensor,
    weights: Sequence[torch.Tensor],
    objectives: Sequence[Objective],
    teacher: torch.Tensor | None = None,
) -> tuple[torch.Tensor, HeadSums]:
    """Return the weighted sum of the heads' cross-entropies and divergences from a teacher.

    Args:
        hidden: (n_k, D) of each head, for the last n_k targets.
        targets: (N,) labels.
        weights: (V, D) vocabulary projection of each head; often one for all.
        teacher: (N, D) hidden states of the teacher, projected by each head's own projection,
            without gradient.

    Returns:
        Scalar loss with gradients for ``hidden`` and ``weights`` in a single backward pass, and the
        sums.
    """
    sharing: dict[int, list[int]] = {}
    for head, weight in enumerate(weights):
        sharing.setdefault(id(weight), []).append(head)
    losses, columns = [], {}
    for heads in sharing.values():
        shared = weights[heads[0]], teacher, targets, [objectives[head] for head in heads]
        of_heads = (hidden[head] for head in heads)
        loss, sums = _ProjectedLoss.apply(*shared, torch.is_grad_enabled(), *of_heads)
        losses.append(loss)
        columns |= dict(zip(heads, sums.unbind(1), strict=True))
    sums = torch.stack([columns[head] for head in range(len(weights))], dim=1)
    return reduce(operator.add, losses), HeadSums(*sums)


class _ProjectedLoss(torch.autograd.Function):
    """Loss and sums; the forward pass computes the gradients, the backward pass scales them."""

    @staticmethod
    def forward(ctx, weight, teacher, targets, objectives, grad_enabled, *hidden):
        needed = [ctx.needs_input_grad[0], *ctx.needs_input_grad[-len(hidden) :]]
        weight_gradient, *gradients = (
            torch.zeros_like(tensor) if need and grad_enabled else None
            for tensor, need in zip((weight, *hidden), needed, strict=True)
        )
        device = weight.device.type
        autocast = torch.is_autocast_enabled(device)
        dtype = torch.get_autocast_dtype(device) if autocast else weight.dtype
        exact = torch.promote_types(dtype, torch.float32)
        sums = torch.zeros(3, len(hidden), dtype=exact, device=weight.device)
        with torch.autocast(device, enabled=False):
            projection = _Projection(weight.to(dtype), weight_gradient, exact)
            columns = len(weight) * (1 if teacher is None else 2)  # the teacher's logits exist, too
            size = max(1, CHUNK_LOGITS // columns)  # labels per chunk
            for start in range(0, len(targets), size):
                stop, reference = min(start + size, len(targets)), None
                if teacher is not None:
                    reference = projection.logits(teacher[start:stop]).log_softmax(dim=-1)
                for head, objective in enumerate(objectives):
                    skipped = len(targets) - len(hidden[head])
                    first = max(start, skipped)
                    if first >= stop:
                        continue
                    rows = slice(first - skipped, stop - skipped)
                    gradient = None if gradients[head] is None else gradients[head][rows]
                    of_teacher = None if reference is None else reference[first - start :]
                    sums[:, head] += projection.score(
                        hidden[head][rows], targets[first:stop], of_teacher, objective, gradient
                    )
        ctx.gradients = weight_gradient, gradients, [objective.scale for objective in objectives]
        weights = [[objective.cross_entropy, objective.divergence] for objective in objectives]
        loss = (sums[:2] * sums.new_tensor(weights).T).sum()
        ctx.mark_non_differentiable(sums)
        return loss, sums

    @staticmethod
    @once_differentiable
    def backward(ctx, loss_gradient, _):
        if ctx.gradients is None:
            raise RuntimeError("backward was called twice on this loss; compute the loss again")
        weight_gradient, gradients, scales = ctx.gradients
        ctx.gradients = None
        if weight_gradient is not None:
            weight_gradient *= loss_gradient
        for gradient, scale in zip(gradients, scales, strict=True):
            if gradient is not None:
                gradient *= scale * loss_gradient
        return weight_gradient, None, None, None, None, *gradients


@dataclass(frozen=True)
class _Projection:
    weight: torch.Tensor  # (V, D) in the dtype of matrix products
    gradient: torch.Tensor | None  # (V, D), accumulated, or None
    exact: torch.dtype  # dtype of logits

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return logits (n, V) of (n, D)."""
        return torch.nn.functional.linear(hidden.to(self.weight.dtype), self.weight).to(self.exact)

    def score(
        self,
        hidden: torch.Tensor,
        targets: torch.Tensor,
        reference: torch.Tensor | None,
        objective: Objective,
        gradient: torch.Tensor | None,
    ) -> torch.Tensor:
        """Return the sums (3,) of cross-entropy, divergence and correct labels.

        Args:
            hidden: (n, D).
            targets: (n,).
            reference: (n, V) log-probabilities of the teacher.
            gradient: (n, D), gets the gradient of ``hidden`` divided by ``objective.scale``.
        """
        logits = self.logits(hidden)
        correct = (logits.argmax(dim=-1) == targets).sum()
        log_probs = logits.sub_(logits.logsumexp(dim=-1, keepdim=True))
        sums = [*objective.losses(log_probs, targets, reference), correct]
        learns = gradient is not None or self.gradient is not None
        if learns and objective.scale > 0:
            unit = objective.gradient(log_probs, targets, reference).to(self.weight.dtype)
            if gradient is not None:
                gradient.copy_(unit @ self.weight)
            if self.gradient is not None:
                hidden = hidden.to(unit.dtype)
                if self.gradient.dtype == unit.dtype:  # needs no temporary (V, D)
                    self.gradient.addmm_(unit.T, hidden, alpha=objective.scale)
                else:
                    self.gradient.add_(unit.T @ hidden, alpha=objective.scale)
        return torch.stack(sums)
