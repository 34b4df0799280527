"""CTC over a small set of units, on the output of a frozen encoder.

A CTC layer over Whisper's 51,865 tokens would be larger than a decoder layer of Whisper base, and
most tokens are rare. Whisper's encoder is not trained for CTC either. Therefore a small block
processes the encoder output first, and CTC predicts byte-pair units that tokens consist of.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from espnet2.asr.ctc import CTC
from torch.nn.utils.rnn import pad_sequence

from espnet_medusa.data.errors import InputError
from espnet_medusa.data.vocabulary.byte_pairs import BytePairUnits
from espnet_medusa.networks.masks import inside

SHORTEST = 16  # frames; ESPnet's subsampling layers reject fewer
PADDING = -1  # label of padding, ESPnet's ignore_id; label 0 is blank, label n + 1 is unit n


class UnitCTC(torch.nn.Module):
    """ESPnet's ``CTC`` over units of the decoder's tokens, after a small encoder block.

    ``block`` is the name of one of ESPnet's encoders, or None: no block. The linear layer of
    ``ctc`` is replaced. Raise InputError if the block or one of its options is unknown.
    """

    def __init__(
        self,
        ctc: CTC,
        units: BytePairUnits,
        encoder_size: int,
        block: str | None = None,
        block_conf: Mapping[str, Any] | None = None,
    ):
        super().__init__()
        self.units, self.block = units, None
        if block is not None:
            self.block = _build_block(block, encoder_size, dict(block_conf or {}))
            encoder_size = self.block.output_size()
        elif block_conf:
            raise InputError("model_conf.ctc_block_conf: allowed with ctc_block")
        ctc.ctc_lo = torch.nn.Linear(encoder_size, len(units) + 1)
        self.ctc = ctc

    def labels(
        self, text: torch.Tensor, text_lengths: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Convert tokens (B, L) of (B,) lengths to labels (B, L') of (B,) lengths."""
        rows = zip(text.tolist(), text_lengths.tolist(), strict=True)
        unit_labels = [torch.tensor(self.units.spell(row[:size])).long() + 1 for row, size in rows]
        lengths = torch.tensor([*map(len, unit_labels)], device=text.device)
        labels = pad_sequence(unit_labels, batch_first=True, padding_value=PADDING)
        return labels.to(text.device), lengths

    def forward(
        self,
        encoder_out: torch.Tensor,
        encoder_out_lens: torch.Tensor,
        labels: torch.Tensor,
        label_lengths: torch.Tensor,
    ) -> torch.Tensor:
        """Return the loss, normalized as in ESPnet's ``CTC``, of encoder output (B, S, D).

        Labels (B, L') are the result of ``labels``.
        """
        hidden, frames = self._run_block(encoder_out, encoder_out_lens)
        return self.ctc(hidden, frames, labels, label_lengths)

    def log_softmax(self, encoder_out: torch.Tensor) -> torch.Tensor:
        """Return log-probabilities (B, S', N + 1) for encoder output (B, S, D) without padding."""
        size = encoder_out.size(1)
        lengths = torch.full(encoder_out.shape[:1], size, device=encoder_out.device)
        log_probs = self.ctc.log_softmax(self._run_block(encoder_out, lengths)[0])
        if self.block is None or size >= SHORTEST:
            return log_probs
        without_padding = math.ceil(log_probs.size(1) * size / SHORTEST)
        return log_probs[:, :without_padding]

    def argmax(self, encoder_out: torch.Tensor) -> torch.Tensor:
        """Return the best labels (B, S') for encoder output (B, S, D) without padding."""
        return self.log_softmax(encoder_out).argmax(dim=-1)

    def _run_block(
        self, encoder_out: torch.Tensor, lengths: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if self.block is None:
            return encoder_out, lengths
        # Convolutions also read frames after an utterance's end.
        encoder_out = encoder_out.masked_fill(~inside(encoder_out, lengths)[..., None], 0.0)
        encoder_out = torch.nn.functional.pad(
            encoder_out, (0, 0, 0, max(0, SHORTEST - encoder_out.size(1)))
        )
        hidden, frames, _ = self.block(encoder_out, lengths.clamp(min=SHORTEST))
        return hidden, frames


def _build_block(name: str, encoder_size: int, conf: dict[str, Any]) -> torch.nn.Module:
    from espnet2.tasks.asr import encoder_choices  # Its import registers the plugin.

    try:
        block = encoder_choices.get_class(name)
    except ValueError as error:
        encoders = ", ".join(encoder_choices.classes)
        raise InputError(f"model_conf.ctc_block: {name!r}; allowed: {encoders}") from error
    try:
        return block(encoder_size, **conf)
    except (TypeError, ValueError, AssertionError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"model_conf.ctc_block_conf: {name}: {reason}") from error
