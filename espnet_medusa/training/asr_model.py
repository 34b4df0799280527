"""ESPnet's hybrid CTC / attention model with a multi-head decoder loss."""

import inspect

import torch
from espnet2.asr.espnet_model import ESPnetASRModel
from espnet2.torch_utils.device_funcs import force_gatherable
from torch.nn.utils.rnn import pad_sequence

from espnet_medusa.errors import InputError
from espnet_medusa.model.multi_token_decoder import MultiTokenDecoder
from espnet_medusa.model.unit_ctc import UnitCTC
from espnet_medusa.model.whisper_encoder import HFWhisperEncoder
from espnet_medusa.options import build_options
from espnet_medusa.training.inputs import (
    check_cached_memory,
    check_cached_states,
    check_lengths,
    trains,
)
from espnet_medusa.training.mwer import MWERObjective, word_pieces
from espnet_medusa.training.options import TrainingOptions
from espnet_medusa.training.projection_loss import (
    HeadSums,
    Objective,
    labeled_rows,
    projected_loss,
    unpadded_labels,
)
from espnet_medusa.upstream.compat import add_sos_eos
from espnet_medusa.vocabulary.byte_pairs import BytePairUnits
from espnet_medusa.whisper.tokens import default_symbols

Stats = dict[str, torch.Tensor | None]
BLANK, SPACE = "<blank>", "Ġ"  # of CTC units, for error rates


class MedusaASRModel(ESPnetASRModel):
    """CTC / attention model whose decoder predicts several tokens ahead.

    ``model_conf`` has ESPnet's keys and those of ``TrainingOptions``. By default there is no CTC,
    and start and end tokens are Whisper's if the token list has them. Raise InputError if a key or
    value is not allowed, or the decoder is no ``MultiTokenDecoder``.
    """

    def __init__(self, **model_conf):
        espnet_keys = inspect.signature(ESPnetASRModel.__init__).parameters
        values = {key: model_conf.pop(key) for key in [*model_conf] if key not in espnet_keys}
        options = build_options(TrainingOptions, values, "model_conf")
        start, end = default_symbols(model_conf["token_list"])
        defaults = {"ctc_weight": 0.0, "sym_sos": start, "sym_eos": end}
        super().__init__(**defaults | model_conf)
        if not isinstance(self.decoder, MultiTokenDecoder):
            raise InputError(
                f"decoder: {type(self.decoder).__name__}; model: medusa needs decoder: "
                "whisper_medusa or speech_llama, and model_conf.ctc_weight below 1"
            )
        self.options = options
        self.draft_tokens: torch.Tensor | None = None
        if options.kl_weight > 0 and any(
            projection is not self.decoder.projection for projection in self.decoder.projections
        ):
            raise InputError("model_conf.kl_weight: with heads: projection, only 0 is allowed")
        self._set_ctc_units()
        if options.freeze_whisper != "nothing":
            self.encoder.requires_grad_(False)
            self.decoder.get_submodule(self.decoder.network).requires_grad_(False)
        if options.freeze_whisper == "all_but_last_layer":
            self.decoder.layers[-1].requires_grad_(True)

        self.mwer = None
        if options.mwer_weight > 0:
            start, end = self.token_list[self.sos], self.token_list[self.eos]
            symbols = {model_conf.get("sym_blank", "<blank>"), start, end}
            pieces = word_pieces(self.token_list, symbols)
            search = options.mwer_beam, options.mwer_threshold
            self.mwer = MWERObjective(pieces, self.sos, self.eos, *search)

    def _set_ctc_units(self) -> None:
        options = self.options
        if options.ctc_units is None:
            return
        if self.ctc is None:
            raise InputError(
                "model_conf.ctc_units: allowed with a ctc_weight above 0, such as 0.99"
            )
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

    def train(self, mode: bool = True) -> "MedusaASRModel":
        """Set the mode; frozen modules stay in evaluation mode, without dropout."""
        super().train(mode)
        for module in self.modules():
            if [*module.parameters()] and not trains(module):
                module.eval()
        return self

    def forward(
        self,
        speech: torch.Tensor | None = None,
        speech_lengths: torch.Tensor | None = None,
        text: torch.Tensor | None = None,
        text_lengths: torch.Tensor | None = None,
        memory: torch.Tensor | None = None,
        memory_lengths: torch.Tensor | None = None,
        **kwargs,
    ) -> tuple[torch.Tensor, Stats, torch.Tensor]:
        """Compute the loss of a batch.

        Raise InputError if a text is too long, or the batch lacks input that training requires.

        Args:
            speech: (B, samples), or (B, L + 1, D) cached last hidden states of the frozen decoder;
                None: only ``memory`` is cached.
            text: (B, L) tokens, -1 where padded.
            memory: (B, S, D) cached output of the frozen encoder; None: not needed, or audio given.
            speech_lengths, text_lengths, memory_lengths: (B,).
            kwargs: ``utt_id``, for messages.

        Returns:
            Loss, stats to log (with loss and accuracy per head) and the batch size.
        """
        text = text[:, : text_lengths.max()]
        states = None
        if speech is not None and speech.dim() == 3:
            states = speech
            check_cached_states(states, text, self.encoder, self.decoder)
        else:
            if speech is None:
                check_cached_memory(memory, self.encoder)
            else:
                memory, memory_lengths = self.encode(speech, speech_lengths)
            check_lengths(self.decoder, memory_lengths, text_lengths, kwargs.get("utt_id"))
        stats, loss_ctc = {}, None
        if self.ctc is not None and (trains(self.ctc) or trains(self.encoder)):
            if memory is None:
                raise InputError("memory: missing; CTC training needs it: cache it with the states")
            ctc_input = memory, memory_lengths
            if speech is not None and states is None:
                ctc_input = self._unpadded(memory, memory_lengths, speech_lengths)
            loss_ctc, stats["cer_ctc"] = self._calc_ctc_loss(*ctc_input, text, text_lengths)
            stats["loss_ctc"] = loss_ctc.detach()
        loss = loss_ctc
        if loss_ctc is None or trains(self.decoder) or trains(self.encoder):
            loss = self._decoder_loss(memory, memory_lengths, text, stats, states)
            if loss_ctc is not None:
                loss = self.ctc_weight * loss_ctc + (1 - self.ctc_weight) * loss
        if self.mwer is not None:
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
        only_drafts = isinstance(self.ctc, UnitCTC) or not trains(self.encoder)
        if not only_drafts or not isinstance(self.encoder, HFWhisperEncoder):
            return memory, memory_lengths
        rows = self.encoder.unpadded(memory, memory_lengths, speech_lengths)
        lengths = memory_lengths.new_tensor([*map(len, rows)])
        return pad_sequence(rows, batch_first=True), lengths

    def _decoder_loss(
        self,
        memory: torch.Tensor | None,
        memory_lengths: torch.Tensor | None,
        text: torch.Tensor,
        stats: Stats,
        states: torch.Tensor | None,
    ) -> torch.Tensor:
        tokens, labels = add_sos_eos(text, self.sos, self.eos, self.ignore_id)
        if self.options.draft_vocab_size is not None and not self.decoder.token_counts.any():
            raise InputError(
                "model_conf.draft_vocab_size: the model has no token counts; load those of the "
                "training set: --init_param STATES/token_counts.pth"
            )
        if self.training and self.decoder.num_heads > 0:
            self.decoder.count_tokens(labels[labels != self.ignore_id])
        if states is None:
            outputs = self.decoder.hidden_states(memory, memory_lengths, tokens)
        else:
            states = states.to(self.decoder.projection.dtype)
            outputs = self.decoder.from_states(states, memory, memory_lengths)
        unrolled = self.decoder.unroll_hidden(outputs, labels.clamp(min=0))
        labels, projections = self._drafted(labels)
        hidden = [labeled_rows(states, labels, head) for head, states in enumerate(unrolled)]
        teacher = None
        if self.options.kl_weight > 0:
            teacher = unrolled[0].detach()
            if self.decoder.original_last_layer is not None:
                teacher = self.decoder.original_hidden(
                    outputs.last_layer_input, memory, memory_lengths
                )
            teacher = labeled_rows(teacher, labels, 0)
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
        """Return labels (B, L) and projections (V', D) for the tokens that heads may draft."""
        projections = self.decoder.projections
        if self.options.draft_vocab_size is None:
            return labels, projections
        if self.draft_tokens is None:  # once, because the counts keep growing
            size = self.options.draft_vocab_size
            self.draft_tokens = self.decoder.draft_vocabulary(size, self.eos)
        places = torch.full_like(projections[0][:, 0], self.ignore_id, dtype=torch.long)
        places[self.draft_tokens] = torch.arange(len(self.draft_tokens), device=places.device)
        rows = {id(weight): weight[self.draft_tokens] for weight in projections}
        inside = torch.where(labels == self.ignore_id, labels, places[labels.clamp(min=0)])
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
