"""ESPnet's hybrid CTC / attention model with a multi-head decoder loss."""

import inspect
from dataclasses import dataclass

import torch
from espnet2.asr.espnet_model import ESPnetASRModel
from espnet2.torch_utils.device_funcs import force_gatherable

from espnet_medusa.compat import add_sos_eos
from espnet_medusa.decoder.whisper import WhisperMedusaDecoder
from espnet_medusa.errors import InputError
from espnet_medusa.loss import head_accuracy, head_cross_entropy, head_divergence
from espnet_medusa.options import build_options, check_at_least

Stats = dict[str, torch.Tensor | None]


@dataclass(frozen=True)
class LossOptions:
    """``model_conf`` of ``model: medusa``, beside ESPnet's own keys.

    The decoder's loss is the weighted mean of the heads' cross-entropies plus
    ``kl_weight`` times the mean of their divergences.
    """

    base_loss_weight: float = 1.0  # 0 where the base is frozen
    head_loss_weight: float = 1.0  # of the first head
    head_loss_decay: float = 1.0  # head k weighs head_loss_weight * decay^(k - 1)
    kl_weight: float = 0.0  # Whisper-Medusa: 0.01


class MedusaASRModel(ESPnetASRModel):
    """CTC / attention model whose decoder predicts several tokens ahead.

    Args:
        model_conf: ESPnet's keys and those of ``LossOptions``.

    Raises:
        InputError: A key is not known, or the decoder is not ``whisper_medusa``.
    """

    def __init__(self, **model_conf):
        own = {name: model_conf.pop(name) for name in [*model_conf] if name in _own_keys()}
        allowed = inspect.signature(ESPnetASRModel.__init__).parameters
        unknown = {name: value for name, value in model_conf.items() if name not in allowed}
        loss_options = build_options(LossOptions, {**own, **unknown}, "model_conf")
        super().__init__(**model_conf)
        if not isinstance(self.decoder, WhisperMedusaDecoder):
            raise InputError(
                f"decoder: {type(self.decoder).__name__}; model: medusa needs "
                "decoder: whisper_medusa and model_conf.ctc_weight below 1"
            )
        for name in _own_keys():
            check_at_least(getattr(loss_options, name), 0.0, f"model_conf.{name}")
        self.loss_options = loss_options

    def train(self, mode: bool = True) -> "MedusaASRModel":
        """As in torch, but frozen modules stay in evaluation mode: no dropout in a frozen base."""
        super().train(mode)
        for module in self.modules():
            parameters = list(module.parameters())
            if parameters and not any(parameter.requires_grad for parameter in parameters):
                module.eval()
        return self

    def forward(
        self,
        speech: torch.Tensor,
        speech_lengths: torch.Tensor,
        text: torch.Tensor,
        text_lengths: torch.Tensor,
        **kwargs,
    ) -> tuple[torch.Tensor, Stats, torch.Tensor]:
        """Loss of a batch.

        Args:
            speech: (B, samples).
            speech_lengths: (B,).
            text: (B, L) tokens, -1 where padded.
            text_lengths: (B,).
            kwargs: ``utt_id``; not used.

        Returns:
            Loss, stats to log (loss and accuracy per head among them) and the batch size.
        """
        text = text[:, : text_lengths.max()]
        memory, memory_lengths = self.encode(speech, speech_lengths)
        stats: Stats = {}
        loss_ctc = None
        if self.ctc is not None and (_trains(self.ctc) or _trains(self.encoder)):
            loss_ctc, stats["cer_ctc"] = self._calc_ctc_loss(
                memory, memory_lengths, text, text_lengths
            )
            stats["loss_ctc"] = loss_ctc.detach()
        loss = self._decoder_loss(memory, memory_lengths, text, stats)
        if loss_ctc is not None:
            loss = self.ctc_weight * loss_ctc + (1 - self.ctc_weight) * loss
        stats["loss"] = loss.detach()
        loss, stats, weight = force_gatherable((loss, stats, speech.size(0)), loss.device)
        return loss, stats, weight

    def _decoder_loss(
        self,
        memory: torch.Tensor,
        memory_lengths: torch.Tensor,
        text: torch.Tensor,
        stats: Stats,
    ) -> torch.Tensor:
        tokens, labels = add_sos_eos(text, self.sos, self.eos, self.ignore_id)
        if self.training and self.decoder.num_heads > 0:
            self.decoder.count_tokens(labels[labels != self.ignore_id])
        outputs = self.decoder.hidden_states(memory, memory_lengths, tokens)
        base_logits = self.decoder.logits(outputs.hidden)
        loss_base = self.criterion_att(base_logits, labels)
        stats["loss_att"] = loss_base.detach()
        stats["acc"] = head_accuracy(base_logits, labels, 0)
        options = self.loss_options
        weighted, weights = options.base_loss_weight * loss_base, options.base_loss_weight
        teacher, divergences = base_logits, []
        if options.kl_weight > 0 and self.decoder.original_last_layer is not None:
            teacher = self.decoder.original_logits(memory, memory_lengths, tokens)
        if options.kl_weight > 0:
            divergences.append(head_divergence(base_logits, teacher, labels, 0))
        unrolled = self.decoder.unroll_heads(outputs.head_input, labels.clamp(min=0))
        for head, logits in enumerate(unrolled, start=1):
            loss_head = head_cross_entropy(
                logits, labels, head, per_token=self.criterion_att.normalize_length
            )
            weight = options.head_loss_weight * options.head_loss_decay ** (head - 1)
            weighted, weights = weighted + weight * loss_head, weights + weight
            stats[f"loss_head{head}"] = loss_head.detach()
            stats[f"acc_head{head}"] = head_accuracy(logits, labels, head)
            if options.kl_weight > 0:
                divergences.append(head_divergence(logits, teacher, labels, head))
        loss = weighted / weights if weights > 0 else weighted
        if self.decoder.num_heads > 0:
            accuracies = [stats[f"acc_head{k}"] for k in range(1, self.decoder.num_heads + 1)]
            stats["acc_heads"] = torch.stack(accuracies).nanmean()
        if divergences:
            stats["loss_kl"] = torch.stack(divergences).mean()
            loss = loss + options.kl_weight * stats["loss_kl"]
            stats["loss_kl"] = stats["loss_kl"].detach()
        return loss


def _own_keys() -> list[str]:
    return list(LossOptions.__dataclass_fields__)


def _trains(module: torch.nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in module.parameters())
