"""A model with its search and text conversion, and the parts that can draft for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from espnet_medusa.data.errors import InputError
from espnet_medusa.data.threads import one_at_a_time
from espnet_medusa.decoding.draft.ctc_hypothesis import Retokenization
from espnet_medusa.decoding.search.drafters import DraftSources, hide_tokens
from espnet_medusa.decoding.search.search import Search
from espnet_medusa.decoding.search.search_options import (
    CTC_MODEL,
    WITH_TEXT,
    LengthLimits,
    SearchOptions,
)
from espnet_medusa.decoding.tree.proposer import DraftInput, Proposer
from espnet_medusa.inference.audio_batch import AudioBatch, AudioLimits, Encoded, SpeechEncoder
from espnet_medusa.inference.decode_options import DecodeOptions
from espnet_medusa.inference.decoding import Speech, TextWriter
from espnet_medusa.inference.draft_model import DraftModel, open_draft_model
from espnet_medusa.inference.experiment import TrainedModel
from espnet_medusa.inference.longform.draft_text import DraftText, plain_text
from espnet_medusa.inference.whisper_prompts import WhisperPrompts
from espnet_medusa.networks.espnet_transformer import searchable
from espnet_medusa.networks.unit_ctc import UnitCTC
from espnet_medusa.networks.whisper.tokens import hugging_face_tokenizer
from espnet_medusa.networks.whisper.transcript import encode_transcript

QUEUED_BATCHES = 4  # on a GPU: more batches save few further calls (bench/NOTES.md)


@dataclass(frozen=True)
class DecodingModel:
    """A model with its encoder, search, drafter and text conversion; ``Speech2Text.model``."""

    trained: TrainedModel  # ESPnet's module with its config
    options: DecodeOptions  # with defaults of the model
    encoder: SpeechEncoder  # audio to encoder output
    audio: AudioLimits  # the audio that model and draft model accept: sample rate and window
    prompts: WhisperPrompts | None  # Whisper's prompts; None: the model was trained without them
    start: list[int]  # token ids at the start of each hypothesis if ``prompts`` is None
    limits: LengthLimits  # minimum and maximum length of hypotheses
    writer: TextWriter  # token ids to text
    device: torch.device  # device of the model
    dtype: torch.dtype  # of its weights
    search: Search | None = None  # greedy or beam search; None: ESPnet's own search decodes
    draft_model: DraftModel | None = None  # None: the drafter uses no second model

    @property
    def asr_model(self) -> torch.nn.Module:
        """ESPnet's module: ``encoder``, ``decoder``, ``ctc``, ``token_list``."""
        return self.trained.asr_model

    def batches_per_call(self, batch_size: int) -> int:
        """Return how many batches the search decodes in one call, so that few rows are free."""
        queues = batch_size > 1 and self.search is not None and self.search.queues
        return QUEUED_BATCHES if queues else 1

    def batch(self, speeches: Sequence[Speech], together: int | None = None) -> AudioBatch:
        """Build a batch of U utterances, each as for ``AudioLimits.read``."""
        audio = [*map(self.audio.read, speeches)]
        return AudioBatch(audio, self.device, self.dtype, together)

    def encode(self, audio: AudioBatch) -> Encoded:
        """Return the encoder output of U utterances; shapes as in ``Encoded``."""
        return audio.encode(self.encoder)

    def make_prompts(
        self,
        encoder_out: torch.Tensor,
        frames: torch.Tensor,
        languages: Sequence[str | None],
        together: int | None = None,
    ) -> torch.Tensor:
        """Return the prompt (U, P) of each utterance; raise InputError for an unknown language.

        Args:
            encoder_out: (U, S, D) encoder output.
            frames: Lengths (U,) or frames per row (U, S), as returned by ``encode``.
            languages: U codes; None: that of the decode options.
            together: Most utterances in the decoder at once; None: all.
        """
        rows = [self.start] * len(languages)
        if self.prompts is not None:
            encoded = encoder_out, frames
            rows = self.prompts.make(self.search.decoder, *encoded, languages, together)
        return torch.tensor(rows, device=encoder_out.device)

    def draft_inputs(self, audio: AudioBatch, prompts: list[list[int]]) -> list[DraftInput] | None:
        """Return the drafter's inputs of U utterances; None: it uses encoder output and prompts.

        Cached features and encoder output of ``audio`` are reused.
        """
        draft = self.draft_model
        if draft is not None:
            inputs = draft.read(audio, prompts, self.prompts and self.prompts.tokens)
            if self.options.drafter != CTC_MODEL:
                return inputs
        elif self.encoder.whisper is None:
            return None
        # CTC predicts only blanks in the padding of Whisper's window.
        unpadded = self.encoder.unpadded(*self.encode(audio), audio.lengths)
        if draft is None:
            return [*map(DraftInput, unpadded, prompts)]
        rows = zip(inputs, unpadded, strict=True)
        return [replace(row, main_encoder_out=encoder_out) for row, encoder_out in rows]

    def encode_draft_texts(
        self, texts: Sequence[DraftText | None]
    ) -> list[list[int] | None] | None:
        """Return the tokens of draft texts; None: there are none, or they are not used.

        Raise InputError if there are any, and they cannot be used.
        """
        if all(text is None for text in texts) or not self.check_draft_texts():
            return None
        return [None if text is None else self.encode_text(plain_text(text)) for text in texts]

    def check_draft_texts(self) -> bool:
        """Return whether draft texts are used; raise InputError if they cannot be used."""
        return check_draft_texts(self.search, self.options, self.writer.tokenizer)

    def encode_text(self, text: str) -> list[int]:
        """Return the tokens of a text, as the decoder writes it."""
        tokenizer, converter = self.writer.tokenizer, self.writer.converter
        if self.prompts is None:
            return converter.tokens2ids(tokenizer.text2tokens(text))
        return encode_transcript(hugging_face_tokenizer(converter), text)

    def with_draft_model(self, draft_model: DraftModel | None) -> DecodingModel:
        """Add a draft model; audio must then fit in the windows of both models."""
        if draft_model is None:
            return self
        windows = [self.audio.window_s, draft_model.audio.window_s]
        window_s = min((window for window in windows if window is not None), default=None)
        audio = replace(self.audio, window_s=window_s)
        return replace(self, audio=audio, draft_model=draft_model)


def check_draft_texts(search: Search | None, options: SearchOptions, tokenizer: Any) -> bool:
    """Return whether draft texts are used; raise InputError if they cannot be used."""
    reason = None
    if search is None:
        reason = "not used by ESPnet's own search, which decodes this model; leave them out"
    elif tokenizer is None:
        reason = "this model has no tokenizer; leave them out"
    elif options.drafter not in (None, *WITH_TEXT):
        reason = f"not used by drafter: {options.drafter}; allowed: {', '.join(WITH_TEXT)}, or none"
    elif search.text_planner is None and options.drafts_text:
        reason = "not used with acceptance: threshold or medusa_choices; leave either out"
    if reason is not None:
        raise InputError(f"draft_texts: {reason}")
    return search.text_planner is not None


class DraftModelOnDemand:
    """Opens the draft model of the decode options when a search needs its proposer."""

    def __init__(self, model: DecodingModel):
        self.model = model
        self.opened: DraftModel | None = None  # None before the first call

    def __call__(self) -> Proposer:
        """Return the proposer; raise InputError if the model is missing or its rate differs."""
        main, options = self.model, self.model.options
        draft = open_draft_model(
            *(str(options.draft_model), options.draft_model_file),
            *(main.device, main.dtype, options.draft_encoding, options.encoder_padding),
        )
        if draft.audio.sample_rate_hz != main.audio.sample_rate_hz:
            raise InputError(
                f"draft_model: {draft.name} expects {draft.audio.sample_rate_hz} Hz; allowed: the "
                f"main model's {main.audio.sample_rate_hz} Hz"
            )
        precision = options.draft_precision or options.decoder_precision
        proposer = draft.proposer(main.trained, precision)
        if main.encoder.is_like(draft.encoder):
            draft = replace(draft, encoder=main.encoder)
        self.opened = draft
        return proposer


def draft_sources(
    model: DecodingModel, open_draft_model: Callable[[], Proposer] | None = None
) -> DraftSources:
    """Return the parts of a model that can draft, in addition to its heads."""
    network, ctc, retokenization = model.asr_model, None, None
    if getattr(network, "ctc", None) is not None:
        ctc = one_at_a_time(network, network.ctc.log_softmax)
        if isinstance(network.ctc, UnitCTC):

            def retokenization() -> Retokenization:
                return Retokenization(network.ctc.units.contents, model.trained.vocabulary())

        elif model.prompts is not None:  # CTC was trained on labels with the prompt
            ctc = hide_tokens(ctc, model.prompts.tokens.prompts, network.blank_id)
    decoder = searchable(network.decoder)
    frequent = None if decoder is None else decoder.draft_vocabulary
    return DraftSources(ctc, network.blank_id, open_draft_model, frequent, retokenization)
