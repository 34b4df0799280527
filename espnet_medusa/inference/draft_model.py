"""Draft models: a second, smaller ESPnet experiment or Whisper."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from espnet_medusa.data.encoder_rows import row_counts
from espnet_medusa.data.errors import InputError
from espnet_medusa.data.vocabulary.translation import Translation
from espnet_medusa.data.vocabulary.vocabulary import Vocabulary
from espnet_medusa.decoding.draft.model import DraftModelProposer
from espnet_medusa.decoding.runtime.build import build_runtime
from espnet_medusa.decoding.tree.proposer import DraftInput
from espnet_medusa.inference.audio_batch import (
    AudioBatch,
    AudioLimits,
    SpeechEncoder,
    audio_limits,
    model_encoder,
)
from espnet_medusa.inference.convert.experiment import CONFIG
from espnet_medusa.inference.experiment import (
    TrainedModel,
    find_experiment,
    open_whisper_model,
    read_model,
)
from espnet_medusa.networks.espnet_transformer import SEARCHABLE, searchable, unknown_part
from espnet_medusa.networks.heads import NO_HEADS
from espnet_medusa.networks.multi_token_decoder import MultiTokenDecoder
from espnet_medusa.networks.whisper.text import tokenizer_of_type
from espnet_medusa.networks.whisper.tokens import (
    TRANSCRIBE,
    TRANSLATE,
    WhisperTokens,
    add_timestamps,
    read_whisper_tokens,
)

FALLBACK = "en"  # language of the draft model's prompt if it lacks the main model's language


@dataclass(frozen=True)
class DraftModel:
    name: str  # as the user specified it
    encoder: SpeechEncoder
    decoder: MultiTokenDecoder
    tokens: list[str]  # V token names, by id
    start: int  # id of the symbol before a text
    end: int  # id of the symbol after a text
    vocabulary: Callable[[], Vocabulary]  # returns the text of each token
    whisper: WhisperTokens | None  # None: it was trained without Whisper's prompts
    audio: AudioLimits  # the audio that it accepts

    def proposer(self, main: TrainedModel, precision: str | None) -> DraftModelProposer:
        """Build the proposer; if the vocabularies differ, with a translation between them.

        Raise InputError if the texts of the tokens are not known.
        """
        tokens, eos, translation = main.asr_model.token_list, main.asr_model.eos, None
        if self.tokens != [*tokens] or self.end != eos:
            translation = Translation.between(main.vocabulary(), self.vocabulary(), len(tokens))
        return DraftModelProposer(build_runtime(self.decoder, precision), eos, translation)

    def read(
        self, audio: AudioBatch, prompts: Sequence[Sequence[int]], whisper: WhisperTokens | None
    ) -> list[DraftInput]:
        """Encode U utterances and translate their prompts.

        ``prompts`` (U) and ``whisper``, Whisper's special tokens, are those of the main model.
        """
        encoder_out, frames = audio.encode(self.encoder)
        sizes, merged = row_counts(frames).tolist(), frames.dim() == 2
        return [
            DraftInput(
                encoder_out[row, :size],
                self._prompt(prompt, whisper),
                frames[row, :size] if merged else None,
            )
            for row, (size, prompt) in enumerate(zip(sizes, prompts, strict=True))
        ]

    def _prompt(self, prompt: Sequence[int], whisper: WhisperTokens | None) -> list[int]:
        """Return the draft prompt with the language and task of the main model's prompt."""
        if self.whisper is None:
            return [self.start]
        if self.whisper == whisper:
            return [*prompt]
        timestamps = whisper is not None and whisper.no_timestamps not in prompt
        if not self.whisper.languages:
            return self.whisper.prompt(None, timestamps=timestamps)
        language, task = FALLBACK, TRANSCRIBE
        if whisper is not None:
            names = {number: code for code, number in whisper.languages.items()}
            codes = [names[token] for token in prompt if token in names]
            language = next((code for code in codes if code in self.whisper.languages), language)
            task = TRANSLATE if whisper.translate in prompt else task
        return self.whisper.prompt(language, task, timestamps)

    def release(self) -> None:
        """Free the module's weights that proposer or encoder have copied."""
        self.decoder.release()
        self.encoder.release()


def open_draft_model(
    name: str,
    model_file: str | None,
    device: str,
    dtype: torch.dtype,
    encoder_precision: str | None = None,
    encoder_padding: str | None = None,
) -> DraftModel:
    """Open an experiment or a Whisper; arguments as the decode options of a draft model.

    Raise InputError if there is no such model, or its decoder is not supported.
    """
    files = find_experiment(name, model_file, "draft_model")
    if files is not None:
        trained = read_model(*files, device)
    else:
        try:
            trained = open_whisper_model(name, device, NO_HEADS)
        except InputError as error:
            allowed = f"an experiment of ESPnet is allowed, too: its folder or {CONFIG}"
            raise InputError(f"draft_model: {error}; {allowed}") from error
    model, args = trained.asr_model.to(dtype=dtype).eval(), trained.train_args
    decoder = searchable(getattr(model, "decoder", None))
    if decoder is None:
        raise InputError(
            f"draft_model: {name}: {unknown_part(getattr(model, 'decoder', None))}; allowed: "
            f"decoder: {SEARCHABLE}"
        )
    whisper = None
    if trained.whisper_labels is not None:
        tokenizer = trained.tokenizer or tokenizer_of_type(args.token_type, args.bpemodel)
        add_timestamps(tokenizer, len(model.token_list))
        whisper = replace(read_whisper_tokens(tokenizer), start=model.sos)
    return DraftModel(
        name, model_encoder(model, encoder_precision, encoder_padding), decoder,
        [*model.token_list], model.sos, model.eos, trained.vocabulary,
        whisper, audio_limits(model.encoder, args),
    )  # fmt: skip
