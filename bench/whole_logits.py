"""Losses of several heads by definition: whole logits, and all layers again for the teacher.

Head 0 is the base head. Head k, at the position that predicts label t, predicts label t + k.
"""

import torch

from espnet_medusa.espnet.training.asr_model import MedusaASRModel
from espnet_medusa.espnet.training.projection_loss import IGNORE


class WholeLogitsModel(MedusaASRModel):
    """Computes the losses of ``MedusaASRModel`` without its memory savings."""

    def decoder_loss(self, encoder_out, encoder_out_lens, tokens, labels, stats, states=None):
        assert states is None
        decoder, options = self.decoder, self.options
        if self.training and decoder.num_heads > 0:
            decoder.count_tokens(labels[labels != self.ignore_id])
        outputs = decoder.hidden_states(encoder_out, encoder_out_lens, tokens)
        base = decoder.logits(outputs.hidden)
        logits = [base, *decoder.unroll_heads(outputs, labels.clamp(min=0))]
        per_token, losses = self.criterion_att.normalize_length, [self.criterion_att(base, labels)]
        for head in range(1, len(logits)):
            losses.append(head_cross_entropy(logits[head], labels, head, per_token))
        powers = range(len(logits) - 1)
        weights = [options.head_loss_weight * options.head_loss_decay**power for power in powers]
        weights.insert(0, options.base_loss_weight)
        loss = sum(weight * value for weight, value in zip(weights, losses, strict=True))
        loss = loss / (sum(weights) or 1.0)
        accuracies = [head_accuracy(values, labels, head) for head, values in enumerate(logits)]
        stats["loss_att"], stats["acc"] = losses[0].detach(), accuracies[0]
        for head in range(1, len(logits)):
            stats[f"loss_head{head}"] = losses[head].detach()
            stats[f"acc_head{head}"] = accuracies[head]
        if len(logits) > 1:
            stats["acc_heads"] = torch.stack(accuracies[1:]).nanmean()
        if options.kl_weight > 0:
            teacher = base
            if decoder.original_last_layer is not None:
                teacher = self._original_logits(encoder_out, encoder_out_lens, tokens)
            heads = enumerate(logits)
            divergences = [head_divergence(one, teacher, labels, head) for head, one in heads]
            divergence = torch.stack(divergences).mean()
            stats["loss_kl"] = divergence.detach()
            loss = loss + options.kl_weight * divergence
        return loss

    @torch.no_grad()
    def _original_logits(self, encoder_out, encoder_out_lens, tokens):
        layers = self.decoder.layers
        trained = layers[-1]
        layers[-1] = self.decoder.original_last_layer
        try:
            hidden = self.decoder.hidden_states(encoder_out, encoder_out_lens, tokens).hidden
        finally:
            layers[-1] = trained
        return self.decoder.project(hidden)


def shifted(
    logits: torch.Tensor, labels: torch.Tensor, head: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the first L - head positions of logits (B, L, ...), and labels from ``head`` on."""
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
        per_token: Mean over labels; otherwise sum divided by the batch size, as in ESPnet without
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

    Summed over positions and vocabulary, divided by the batch size, as in aiola's code. Padded
    positions do not count; in aiola's code they do. ``teacher_logits`` (B, L, V) are those of the
    base head or of the original model, without gradients; the rest as in ``head_cross_entropy``.
    """
    kept, targets = shifted(logits, labels, head)
    teacher = teacher_logits.detach()[:, head:]
    scores = torch.log_softmax(kept, dim=-1), torch.log_softmax(teacher, dim=-1)
    divergence = torch.nn.functional.kl_div(*scores, reduction="none", log_target=True).sum(dim=-1)
    return divergence.masked_fill(targets == IGNORE, 0.0).sum() / labels.size(0)


def head_accuracy(logits: torch.Tensor, labels: torch.Tensor, head: int) -> torch.Tensor:
    """Share of labels that are the head's best token; nan where no label is left."""
    kept, targets = shifted(logits, labels, head)
    counted = targets != IGNORE
    return (kept.argmax(dim=-1) == targets)[counted].float().mean()
