"""The loss of a decoder with heads, for the models of ESPnet's tasks."""

import inspect

import torch
from torch.nn.functional import pad

from espnet_medusa.data.errors import InputError
from espnet_medusa.data.options import build_options
from espnet_medusa.espnet.training.inputs import trains
from espnet_medusa.espnet.training.projection_loss import (
    IGNORE,
    HeadSums,
    Objective,
    labeled_rows,
    projected_loss,
    unpadded_labels,
)
from espnet_medusa.espnet.training.training_options import TrainingOptions
from espnet_medusa.networks.multi_token_decoder import MultiTokenDecoder

Stats = dict[str, torch.Tensor | None]


class MultiHeadLoss:
    """A mixin for ESPnet's models whose decoder is a ``MultiTokenDecoder``.

    ``model_conf`` has ESPnet's keys and those of ``TrainingOptions``. Raise InputError if a key or
    value is not allowed, or the decoder is another one.

    Attributes:
        draft_tokens: (V',) tokens that heads may draft; None: all, or not known before the first
            batch.
    """

    draft_tokens: torch.Tensor | None = None

    def __init__(self, **model_conf):
        espnet_keys = inspect.signature(super().__init__).parameters
        values = {key: model_conf.pop(key) for key in [*model_conf] if key not in espnet_keys}
        options = build_options(TrainingOptions, values, "model_conf")
        super().__init__(**model_conf)
        if not isinstance(self.decoder, MultiTokenDecoder):
            raise InputError(
                f"decoder: {type(self.decoder).__name__}; model: medusa needs decoder: "
                "whisper_medusa, speech_llama or transformer_medusa, and model_conf.ctc_weight "
                "below 1"
            )
        self.options = options
        if options.kl_weight > 0 and any(
            projection is not self.decoder.projection for projection in self.decoder.projections
        ):
            raise InputError("model_conf.kl_weight: with heads: projection, only 0 is allowed")
        if options.freeze_whisper != "nothing":
            self.encoder.requires_grad_(False)
            self.decoder.get_submodule(self.decoder.network).requires_grad_(False)
        if options.freeze_whisper == "all_but_last_layer":
            self.decoder.layers[-1].requires_grad_(True)

    def train(self, mode: bool = True) -> "MultiHeadLoss":
        """Set the mode; frozen modules stay in evaluation mode, without dropout.

        Raise InputError if all parameters are frozen.
        """
        if mode and not trains(self):
            raise InputError(
                "all parameters are frozen; set decoder_conf.heads or model_conf.ctc_weight, or "
                "freeze fewer modules (model_conf.freeze_whisper, freeze_param)"
            )
        super().train(mode)
        for module in self.modules():
            if mode and [*module.parameters()] and not trains(module):
                module.eval()
        return self

    def decoder_loss(
        self,
        encoder_out: torch.Tensor | None,
        encoder_out_lens: torch.Tensor | None,
        tokens: torch.Tensor,
        labels: torch.Tensor,
        stats: Stats,
        states: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the loss of base head and heads; add losses and accuracies to ``stats``.

        Args:
            encoder_out: (B, S, D) encoder output; None: not needed with these states.
            encoder_out_lens: (B,), or (B, S) the frames of merged rows.
            tokens: (B, L) input of the decoder.
            labels: (B, L) tokens to predict, -1 where ignored.
            states: (B, L, D) cached last hidden states; None: to be computed.
        """
        if self.options.draft_vocab_size is not None and not self.decoder.token_counts.any():
            raise InputError(
                "model_conf.draft_vocab_size: the model has no token counts; load those of the "
                "training set: --init_param STATES/token_counts.pth"
            )
        if self.training and self.decoder.num_heads > 0 and self.options.draft_vocab_size is None:
            self.decoder.count_tokens(labels[labels != IGNORE])
        if states is None:
            outputs = self.decoder.hidden_states(encoder_out, encoder_out_lens, tokens)
        else:
            states = states.to(self.decoder.projection.dtype)
            outputs = self.decoder.from_states(states, encoder_out, encoder_out_lens)
        following = torch.where(labels == IGNORE, pad(tokens[:, 1:], (0, 1)), labels)
        unrolled = self.decoder.unroll_hidden(outputs, following)
        labels, projections = self._drafted(labels)
        hidden = [labeled_rows(states, labels, head) for head, states in enumerate(unrolled)]
        if self.training and self.decoder.num_heads > 0:
            self.decoder.heads.observe(hidden[1:])
        teacher = None
        if self.options.kl_weight > 0:
            teacher = unrolled[0].detach()
            if self.decoder.original_last_layer is not None:
                inputs = outputs.last_layer_input, encoder_out, encoder_out_lens
                teacher = self.decoder.original_hidden(*inputs)
            teacher = labeled_rows(teacher, labels, 0)
        if self.decoder.projection_bias is not None:
            hidden = [pad(rows, (0, 1), value=1.0) for rows in hidden]
            teacher = None if teacher is None else pad(teacher, (0, 1), value=1.0)
        per_token = self.criterion_att.normalize_length
        counts = [max(len(rows), 1) if per_token else labels.size(0) for rows in hidden]
        objectives, targets = self._objectives(counts, labels.size(0)), unpadded_labels(labels)
        loss, sums = projected_loss(hidden, targets, projections, objectives, teacher)
        if self.options.state_weight > 0 and len(unrolled) > 1:
            stats["loss_state"] = state_distance(unrolled[1:], outputs.hidden.detach(), labels)
            loss = loss + self.options.state_weight * stats["loss_state"]
            stats["loss_state"] = stats["loss_state"].detach()
        self._log_heads(sums, counts, [len(rows) for rows in hidden], labels.size(0), stats)
        return loss

    def _drafted(self, labels: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Return labels (B, L) and projections (V', D) for the tokens that heads may draft.

        A bias is an additional last column of the projections.
        """
        projections, bias = self.decoder.projections, self.decoder.projection_bias
        if bias is not None:  # with one projection for all heads
            projections = [torch.cat([projections[0], bias[:, None]], dim=1)] * len(projections)
        if self.options.draft_vocab_size is None:
            return labels, projections
        if self.draft_tokens is None:
            size = self.options.draft_vocab_size
            self.draft_tokens = self.decoder.draft_vocabulary(size, self.eos)
        places = torch.full_like(projections[0][:, 0], IGNORE, dtype=torch.long)
        places[self.draft_tokens] = torch.arange(len(self.draft_tokens), device=places.device)
        rows = {id(weight): weight[self.draft_tokens] for weight in projections}
        inside = torch.where(labels == IGNORE, labels, places[labels.clamp(min=0)])
        return inside, [rows[id(weight)] for weight in projections]

    def _objectives(self, counts: list[int], batch_size: int) -> list[Objective]:
        """Return the loss weights of each head, whose cross-entropies are divided by ``counts``."""
        options = self.options
        heads = range(len(counts) - 1)
        weights = [
            options.base_loss_weight,
            *(options.head_loss_weight * options.head_loss_decay**head for head in heads),
        ]
        total = sum(weights) or 1.0
        divergence = options.kl_weight / len(counts) / batch_size
        smoothing = [self.criterion_att.smoothing, *(0.0 for _ in heads)]
        return [
            Objective(weight / total / count, divergence, smooth)
            for weight, count, smooth in zip(weights, counts, smoothing, strict=True)
        ]

    def _log_heads(
        self, sums: HeadSums, counts: list[int], labels: list[int], batch_size: int, stats: Stats
    ) -> None:
        """Add mean losses and accuracies to ``stats``; an accuracy without labels is nan."""
        losses = sums.cross_entropy / sums.cross_entropy.new_tensor(counts)
        accuracies = sums.correct / sums.correct.new_tensor(labels)
        stats["loss_att"], stats["acc"] = losses[0], accuracies[0]
        for head in range(1, len(counts)):
            stats[f"loss_head{head}"] = losses[head]
            stats[f"acc_head{head}"] = accuracies[head]
        if self.decoder.num_heads > 0:
            stats["acc_heads"] = accuracies[1:].nanmean()
        if self.options.kl_weight > 0:
            stats["loss_kl"] = sums.divergence.mean() / batch_size


def state_distance(
    drafted: list[torch.Tensor], hidden: torch.Tensor, labels: torch.Tensor
) -> torch.Tensor:
    """Return the mean smooth L1 distance between heads' states and the decoder's.

    Args:
        drafted: States (B, L - k, D) of heads k = 1 to K, for positions k to L - 1.
        hidden: (B, L, D) of the decoder, without gradient.
        labels: (B, L), -1 where ignored.
    """
    states, targets = (
        torch.cat([labeled_rows(rows, labels, head) for head, rows in enumerate(part, 1)])
        for part in (drafted, [hidden[:, head:] for head in range(1, len(drafted) + 1)])
    )
    return torch.nn.functional.smooth_l1_loss(states, targets) if len(states) else states.sum()
