"""ESPnet's hybrid CTC / attention model with a multi-head decoder loss."""

import torch
from espnet2.asr.espnet_model import ESPnetASRModel
from espnet2.torch_utils.device_funcs import force_gatherable
from torch.nn.utils.rnn import pad_sequence

from espnet_medusa.data.errors import InputError
from espnet_medusa.data.vocabulary.byte_pairs import BytePairUnits
from espnet_medusa.espnet.training import inputs
from espnet_medusa.espnet.training.multi_head_loss import MultiHeadLoss, Stats
from espnet_medusa.espnet.training.mwer import MWERObjective, word_pieces
from espnet_medusa.networks.espnet_compat import add_sos_eos
from espnet_medusa.networks.unit_ctc import UnitCTC
from espnet_medusa.networks.whisper.tokens import default_symbols
from espnet_medusa.networks.whisper_encoder import HFWhisperEncoder

BLANK, SPACE = "<blank>", "Ġ"  # of CTC units, for error rates


class MedusaASRModel(MultiHeadLoss, ESPnetASRModel):
    """CTC / attention model whose decoder predicts several tokens ahead.

    By default there is no CTC, and start and end tokens are Whisper's if the token list has them.
    """

    def __init__(self, **model_conf):
        if model_conf.get("lang_token_id", -1) != -1:
            raise InputError(
                "model_conf.lang_token_id: not allowed with model: medusa; remove it (Whisper's "
                "language: preprocessor_conf.language)"
            )
        start, end = default_symbols(model_conf["token_list"])
        defaults = {"ctc_weight": 0.0, "sym_sos": start, "sym_eos": end}
        super().__init__(**defaults | model_conf)
        self._set_ctc_units()
        self.mwer = None
        if self.options.mwer_weight > 0:
            start, end = self.token_list[self.sos], self.token_list[self.eos]
            symbols = {model_conf.get("sym_blank", "<blank>"), start, end}
            pieces = word_pieces(self.token_list, symbols)
            search = self.options.mwer_beam, self.options.mwer_threshold
            self.mwer = MWERObjective(pieces, self.sos, self.eos, *search)

    def _set_ctc_units(self) -> None:
        options = self.options
        if options.ctc_units is None:
            return
        if self.ctc is None:
            raise InputError("model_conf.ctc_units: allowed with ctc_weight above 0, such as 0.99")
        try:
            units = BytePairUnits(self.token_list, options.ctc_units)
        except InputError as error:
            raise InputError(f"model_conf.ctc_units: {error}") from error
        size, block_conf = self.encoder.output_size(), options.ctc_block_conf
        self.ctc = UnitCTC(self.ctc, units, size, options.ctc_block, block_conf)
        if self.error_calculator is not None:
            names = [BLANK, *self.token_list[: len(units)]]
            old = self.error_calculator
            self.error_calculator = type(old)(names, SPACE, BLANK, old.report_cer, old.report_wer)

    def _calc_ctc_loss(self, memory, memory_lengths, text, text_lengths):
        if isinstance(self.ctc, UnitCTC):
            text, text_lengths = self.ctc.labels(text, text_lengths)
        return super()._calc_ctc_loss(memory, memory_lengths, text, text_lengths)

    def forward(
        self,
        speech: torch.Tensor | None = None,
        speech_lengths: torch.Tensor | None = None,
        text: torch.Tensor | None = None,
        text_lengths: torch.Tensor | None = None,
        memory: torch.Tensor | None = None,
        memory_lengths: torch.Tensor | None = None,
        memory_frames: torch.Tensor | None = None,
        **kwargs,
    ) -> tuple[torch.Tensor, Stats, torch.Tensor]:
        """Compute the loss of a batch.

        Raise InputError if a text is too long, or the batch lacks input that training requires.

        Args:
            speech: (B, samples), or (B, L + 1, D) cached last hidden states of the frozen decoder;
                None: only ``memory`` is cached.
            text: (B, L) tokens, -1 where padded.
            memory: (B, S, D) cached output of the frozen encoder; None: not needed, or audio given.
            memory_frames: (B, S) frames of each row of ``memory``, 0 where padded; None: 1.
            speech_lengths, text_lengths, memory_lengths: (B,).
            kwargs: ``utt_id``, for messages.

        Returns:
            Loss, stats to log (with loss and accuracy per head) and the batch size.
        """
        text = text[:, : text_lengths.max()]
        states = None
        if speech is not None and speech.dim() == 3:
            states = speech
            inputs.check_cached_states(states, text, self.encoder, self.decoder)
        else:
            if speech is None:
                inputs.check_cached_memory(memory, self.encoder)
            else:
                memory, memory_lengths = self.encode(speech, speech_lengths)
            inputs.check_lengths(self.decoder, memory_lengths, text_lengths, kwargs.get("utt_id"))
        stats, loss_ctc = {}, None
        if self.ctc is not None and (inputs.trains(self.ctc) or inputs.trains(self.encoder)):
            if memory is None:
                raise InputError("memory: missing; CTC training needs it: cache it with the states")
            if memory_frames is not None:
                raise InputError(
                    "memory_frames: merged padding; CTC trains on unpadded.scp as memory "
                    "(cache_states --unpadded true)"
                )
            ctc_input = memory, memory_lengths
            if speech is not None and states is None:
                ctc_input = self._unpadded(memory, memory_lengths, speech_lengths)
            loss_ctc, stats["cer_ctc"] = self._calc_ctc_loss(*ctc_input, text, text_lengths)
            stats["loss_ctc"] = loss_ctc.detach()
        loss = loss_ctc
        if loss_ctc is None or inputs.trains(self.decoder) or inputs.trains(self.encoder):
            tokens, labels = add_sos_eos(text, self.sos, self.eos, self.ignore_id)
            rows = memory_lengths if memory_frames is None else memory_frames
            loss = self.decoder_loss(memory, rows, tokens, labels, stats, states)
            if loss_ctc is not None:
                loss = self.ctc_weight * loss_ctc + (1 - self.ctc_weight) * loss
        if self.mwer is not None:
            if memory is None or memory_frames is not None:
                raise InputError(
                    "mwer_weight: needs the encoder output with all frames: cache the states with "
                    "--memory true --encoder_padding full, or train on audio"
                )
            references = [row[row != self.ignore_id].tolist() for row in text]
            mwer_loss, mwer_stats = self.mwer(self.decoder, memory, memory_lengths, references)
            loss = loss + self.options.mwer_weight * mwer_loss
            stats |= mwer_stats
        stats["loss"] = loss.detach().clone()  # ESPnet divides the loss by accum_grad in place
        return force_gatherable((loss, stats, text.size(0)), loss.device)

    def _unpadded(
        self, memory: torch.Tensor, memory_lengths: torch.Tensor, speech_lengths: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Remove padded frames, as decoding does, if CTC is only trained for drafts."""
        only_drafts = isinstance(self.ctc, UnitCTC) or not inputs.trains(self.encoder)
        if not only_drafts or not isinstance(self.encoder, HFWhisperEncoder):
            return memory, memory_lengths
        rows = self.encoder.unpadded(memory, memory_lengths, speech_lengths)
        return pad_sequence(rows, batch_first=True), memory_lengths.new_tensor([*map(len, rows)])
