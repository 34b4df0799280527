"""The loss of several heads as its definition reads: all logits in memory, layers run twice."""

import torch

from espnet_medusa.compat import add_sos_eos
from espnet_medusa.loss import head_accuracy, head_cross_entropy, head_divergence
from espnet_medusa.model import MedusaASRModel


class WholeLogitsModel(MedusaASRModel):
    """What ``MedusaASRModel`` computes, without its savings."""

    def _decoder_loss(self, memory, memory_lengths, text, stats):
        decoder, options = self.decoder, self.options
        tokens, labels = add_sos_eos(text, self.sos, self.eos, self.ignore_id)
        if self.training and decoder.num_heads > 0:
            decoder.count_tokens(labels[labels != self.ignore_id])
        outputs = decoder.hidden_states(memory, memory_lengths, tokens)
        base = decoder.logits(outputs.hidden)
        logits = [base, *decoder.unroll_heads(outputs.head_input, labels.clamp(min=0))]
        losses = [self.criterion_att(base, labels)]
        losses += [
            head_cross_entropy(logits[head], labels, head, self.criterion_att.normalize_length)
            for head in range(1, len(logits))
        ]
        weights = [options.base_loss_weight] + [
            options.head_loss_weight * options.head_loss_decay**head
            for head in range(len(logits) - 1)
        ]
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
                teacher = self._original_logits(memory, memory_lengths, tokens)
            divergences = [
                head_divergence(values, teacher, labels, head) for head, values in enumerate(logits)
            ]
            divergence = torch.stack(divergences).mean()
            stats["loss_kl"] = divergence.detach()
            loss = loss + options.kl_weight * divergence
        return loss

    @torch.no_grad()
    def _original_logits(self, memory, memory_lengths, tokens):
        layers = self.decoder.layers
        trained = layers[-1]
        layers[-1] = self.decoder.original_last_layer
        try:
            hidden = self.decoder.hidden_states(memory, memory_lengths, tokens).hidden
        finally:
            layers[-1] = trained
        return self.decoder.project(hidden)
