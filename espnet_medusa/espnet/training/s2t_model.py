"""ESPnet's speech-to-text model (OWSM) with a multi-head decoder loss."""

import torch
from espnet2.s2t.espnet_model import ESPnetS2TModel
from espnet2.torch_utils.device_funcs import force_gatherable

from espnet_medusa.data.errors import InputError
from espnet_medusa.espnet.training.multi_head_loss import MultiHeadLoss, Stats

NOT_IN_S2T = "mwer_weight", "ctc_units", "ctc_block"


class MedusaS2TModel(MultiHeadLoss, ESPnetS2TModel):
    """ESPnet's model whose decoder predicts several tokens ahead.

    ``model_conf`` is as in ``MultiHeadLoss``, without ``NOT_IN_S2T``.
    """

    def __init__(self, **model_conf):
        for name in NOT_IN_S2T:
            if name in model_conf:
                raise InputError(f"model_conf.{name}: not allowed in the s2t task; remove it")
        super().__init__(**model_conf)
        if self.options.freeze_whisper != "nothing" and self.ctc is not None:
            self.ctc.requires_grad_(False)
        self._head_stats: Stats = {}  # of the last batch

    def forward(self, **batch) -> tuple[torch.Tensor, Stats, torch.Tensor]:
        """Compute ESPnet's loss with that of the heads; stats have loss and accuracy per head."""
        loss, stats, weight = super().forward(**batch)
        head_stats, self._head_stats = self._head_stats, {}
        return loss, stats | force_gatherable(head_stats, loss.device), weight

    def _calc_att_loss(self, encoder_out, encoder_out_lens, text, text_lengths, prev, prev_lengths):
        inputs, labels = [], []
        for row, before in zip(text, prev, strict=True):
            row, before = row[row != self.ignore_id], before[before != self.ignore_id]
            prompt = text.new_tensor([self.sos])
            if self.na not in before:
                prompt = torch.cat([text.new_tensor([self.sop]), before, prompt])
            inputs.append(torch.cat([prompt, row]))
            ignored = torch.full_like(prompt[1:], self.ignore_id)
            labels.append(torch.cat([ignored, row, text.new_tensor([self.eos])]))
        pad = torch.nn.utils.rnn.pad_sequence
        tokens = pad(inputs, batch_first=True, padding_value=self.eos)
        labels = pad(labels, batch_first=True, padding_value=self.ignore_id)
        stats = self._head_stats = {}
        loss = self.decoder_loss(encoder_out, encoder_out_lens, tokens, labels, stats)
        return loss, float(stats["acc"]), None, None
