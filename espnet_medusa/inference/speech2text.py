"""ESPnet's Speech2Text with searches that take several tokens per decoder call."""

import inspect
import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from espnet2.bin.asr_inference import Speech2Text as ESPnetSpeech2Text

from espnet_medusa.convert.attach_heads import AUTO
from espnet_medusa.convert.experiment import CONFIG
from espnet_medusa.errors import InputError
from espnet_medusa.inference.audio_batch import AudioBatch, audio_limits, model_encoder
from espnet_medusa.inference.choose_search import choose_search
from espnet_medusa.inference.decode_options import DecodeOptions
from espnet_medusa.inference.decoding import Decoding, Result, TextWriter
from espnet_medusa.inference.draft_material import draft_inputs, draft_sources
from espnet_medusa.inference.draft_model import DraftModel
from espnet_medusa.inference.experiment import Unwritten, put_weights, read_weights, refusing
from espnet_medusa.inference.option_checks import (
    check_batch,
    check_encoder,
    check_espnets_own,
    check_precisions,
    check_scoring,
)
from espnet_medusa.inference.packed_model import fetch_packed_model, open_packed_model
from espnet_medusa.inference.pretrained import WhisperExperiment
from espnet_medusa.inference.timing_log import log_decoded
from espnet_medusa.inference.whisper_labels import whisper_labels
from espnet_medusa.inference.whisper_windows import WhisperWindows
from espnet_medusa.longform.chunk_driver import ChunkedLongForm
from espnet_medusa.longform.driver import LongForm
from espnet_medusa.longform.options import LongFormOptions
from espnet_medusa.longform.recording import LongFormStep, LongRecording, RunLongForm
from espnet_medusa.longform.segment import Segment
from espnet_medusa.model.espnet_transformer import searchable
from espnet_medusa.model.multi_token_decoder import MultiTokenDecoder
from espnet_medusa.options import build_options
from espnet_medusa.search.options import LengthLimits, check_options, with_draft_defaults
from espnet_medusa.search.statistics import DecodingStatistics
from espnet_medusa.whisper.pretrained import is_whisper
from espnet_medusa.whisper.prompts import WhisperPrompts
from espnet_medusa.whisper.tokens import hugging_face_tokenizer, read_whisper_tokens

logger = logging.getLogger(__name__)


class Speech2Text(ESPnetSpeech2Text):
    """Audio in, n-best list out; same call and same return value as ESPnet's.

    Args:
        asr_train_config: The experiment's ``config.yaml``.
        asr_model_file: Its weights.
        options: ESPnet's other arguments and the fields of ``DecodeOptions``. ``batch_size`` is
            how many utterances ``decode`` will be given; the search itself takes any number.

    Raises:
        InputError: An option, the checkpoint or their combination is not usable.

    After each call ``statistics`` holds what the utterance cost.
    """

    def __init__(
        self,
        asr_train_config: Path | str | None = None,
        asr_model_file: Path | str | None = None,
        **options,
    ):
        options |= {"asr_train_config": asr_train_config, "asr_model_file": asr_model_file}
        espnet_keys = inspect.signature(ESPnetSpeech2Text.__init__).parameters
        own = {name: options.pop(name) for name in [*options] if name not in espnet_keys}
        self.search_options = build_options(DecodeOptions, own, "decode config")
        batch_size = options.pop("batch_size", 1)
        check_batch(batch_size, options)
        check_options(self.search_options, options.get("beam_size", 20))
        weights = read_weights(asr_model_file, options.get("lm_file"))
        if not options.get("quantize_asr_model", False):
            # Not twice: ESPnet would read them again, into a model of random ones.
            options |= {"asr_model_file": None}
            if asr_train_config is None:
                options |= {"asr_train_config": Path(asr_model_file).parent / CONFIG}
        with refusing(asr_train_config, asr_model_file), Unwritten():
            super().__init__(**options)
        if options["asr_model_file"] is None:
            put_weights(weights, self.asr_model, asr_model_file)
        del weights
        model, train_args = self.asr_model, self.asr_train_args
        self.search_options = self._with_draft_defaults(options.get("beam_size", 20))
        check_scoring(
            model, self.search_options, options.get("ctc_weight", espnet_keys["ctc_weight"].default)
        )
        self.whisper = self._whisper_prompts()
        check_precisions(self.search_options, self.device)
        self.encoder = model_encoder(model, self.search_options.encoding)
        check_encoder(self.search_options, self.encoder)
        self.sample_rate_hz, self.window_s = audio_limits(model.encoder, train_args)
        self.draft_model: DraftModel | None = None
        self.search = choose_search(
            self.search_options,
            options,
            model,
            self.beam_search,
            self.nbest,
            draft_sources(self),
            torch.device(self.device),
        )
        if self.search is None:
            check_espnets_own(self.search_options, batch_size, model.decoder)
        # Whisper's vocabulary has no blank: there id 0 is a token like any other.
        blank = model.blank_id
        hidden = {blank} if model.token_list[blank] == "<blank>" else set()
        self.writer = TextWriter(self.converter, self.tokenizer, frozenset(hidden), self.nbest)
        self.statistics = DecodingStatistics()

    def _with_draft_defaults(self, beam_size: int) -> DecodeOptions:
        """The options as given, and what the model's heads bring where they say nothing."""
        decoder = self.asr_model.decoder
        if not isinstance(decoder, MultiTokenDecoder) or not decoder.num_heads:
            return self.search_options
        conf = self.asr_train_args.decoder_conf.get("draft_conf")
        options = with_draft_defaults(self.search_options, conf)
        check_options(options, beam_size)
        return options

    def _whisper_prompts(self) -> WhisperPrompts | None:
        """Prompts of a model that was trained on Whisper's labels; sets what it suppresses."""
        labels = whisper_labels(self.asr_train_args)
        if labels is None or not isinstance(self.asr_model.decoder, MultiTokenDecoder):
            return None
        options = self.search_options
        tokens = read_whisper_tokens(hugging_face_tokenizer(self.converter))
        suppressed = {
            "suppress_tokens": tokens.suppressed,
            "begin_suppress_tokens": tokens.begin_suppressed,
        }
        own = {name: ids for name, ids in suppressed.items() if getattr(options, name) is None}
        self.search_options = replace(options, **own)
        return WhisperPrompts(
            tokens, options.language or labels.language, options.task or labels.task
        )

    def release_weights(self, long_form: LongFormOptions | None = None) -> None:
        """Give back the memory of weights that the search and the encoder have laid out anew.

        For processes that decode and do nothing else: the modules themselves are of no use then.

        Args:
            long_form: How audio of any length will be decoded, which may ask the decoder's module;
                None: it will not be.
        """
        if self.search is not None:
            if long_form is None or not long_form.needs_decoder_module:
                searchable(self.asr_model.decoder).release()
            self.encoder.release()
        if self.draft_model is not None:
            self.draft_model.release()

    @staticmethod
    def from_pretrained(
        model_tag: str | None = None, heads: str = AUTO, **options
    ) -> "Speech2Text":
        """Build from a Whisper, or from a packed model, which a tag of ESPnet's zoo may name.

        Args:
            model_tag: A Whisper as ``whisper_model``: hub name, folder, OpenAI ``.pt`` file; or an
                archive of ESPnet's, or a tag, which is downloaded; None: ``options`` name an
                experiment.
            heads: Of a Whisper: ``auto`` attaches those of the package where they were trained on
                these weights, ``none`` leaves them out, a folder is of other heads.
            options: As the class takes them.

        Raises:
            InputError: There is no such model, or an option is not usable.
        """
        if model_tag is not None and is_whisper(model_tag):
            experiment = WhisperExperiment(model_tag, heads)
            files = {"asr_train_config": experiment.config, "asr_model_file": experiment.model}
            speech2text = Speech2Text(**options | files)
            experiment.forget_weights()
            speech2text.experiment = experiment  # its tokenizer is read later on
            return speech2text
        if heads != AUTO:
            raise InputError(f"heads: {heads}; allowed with a Whisper; {model_tag!r} is none")
        if model_tag is not None:
            options |= open_packed_model(fetch_packed_model(model_tag))
        return Speech2Text(**options)

    @torch.no_grad()
    def __call__(self, speech) -> list[Result]:
        """Decode one utterance.

        Args:
            speech: (samples,) in [-1, 1], at the model's sample rate.

        Returns:
            N-best list of text, tokens, token ids and hypothesis.
        """
        if self.search is None:
            return self._decode_as_espnet(speech)
        decoding = self.decode([speech])[0]
        self.statistics = decoding.statistics
        return decoding.results

    def _decode_as_espnet(self, speech) -> list[Result]:
        started = time.perf_counter()
        results = super().__call__(speech)
        self.statistics = DecodingStatistics(
            audio_seconds=len(speech) / self.sample_rate_hz,
            total_seconds=time.perf_counter() - started,
        )
        if results and isinstance(results, list) and results[0][0] is not None:
            self.statistics.words = len(results[0][0].split())
        return results

    @torch.no_grad()
    def decode(
        self,
        speeches: Sequence[np.ndarray | torch.Tensor],
        languages: Sequence[str | None] | None = None,
    ) -> list[Decoding]:
        """Decode several utterances together; each takes its own number of tokens per call.

        Args:
            speeches: U times (samples,) in [-1, 1], at the model's sample rate.
            languages: U codes for Whisper's prompts, None where it is the search's own.

        Returns:
            U results, in order. Seconds of what was done together are shared out evenly.
        """
        if self.search is None:
            # In a tuple ESPnet adds what intermediate CTC wrote.
            found = ((self(speech), self.statistics) for speech in speeches)
            return [
                Decoding(results[0] if isinstance(results, tuple) else results, statistics)
                for results, statistics in found
            ]
        began, started = time.time(), time.perf_counter()
        audio = self.batch(speeches)
        memory, frames = self.encode(audio)
        prompt = self.prompts(memory, frames, languages or [None] * len(speeches))
        inputs = draft_inputs(self, audio, prompt.tolist())
        limits = LengthLimits(self.maxlenratio, self.minlenratio)
        states = self.search(memory, frames, prompt, limits, inputs)
        scorers = self.search.strategy.scoring.names
        decodings = [
            self.writer.write(state, tokens, scorers)
            for state, tokens in zip(states, prompt.tolist(), strict=True)
        ]
        self._log(speeches, decodings, began, time.perf_counter() - started)
        return decodings

    def transcribe(
        self,
        samples: np.ndarray | torch.Tensor,
        language: str | None = None,
        batch_size: int = 8,
        **options,
    ) -> Iterator[Segment]:
        """Decode audio of any length, window after window, as openai-whisper's ``transcribe``.

        Args:
            samples: (samples,) in [-1, 1], at the model's sample rate.
            language: Code for Whisper's prompt; None: the search's own.
            batch_size: Most chunks of speech that are decoded together, with ``vad_filter``.
            options: Fields of ``LongFormOptions``.

        Returns:
            Segments as they are found; afterwards ``statistics`` holds what they cost.

        Raises:
            InputError: An option, or the model or its search is not for long audio.
        """
        run = self.long_form(build_options(LongFormOptions, options, "transcribe"), batch_size)
        return self._segments(run([LongRecording(None, samples, language)]))

    def _segments(self, steps: Iterator[LongFormStep]) -> Iterator[Segment]:
        for step in steps:
            if step.recording.error is not None:
                raise step.recording.error
            self.statistics = step.recording.statistics
            yield from step.segments

    def long_form(self, options: LongFormOptions, batch_size: int = 1) -> RunLongForm:
        """What decodes recordings of any length; arguments as ``LongForm``'s."""
        run = ChunkedLongForm if options.vad_filter else LongForm
        return run(WhisperWindows(self, options), options, batch_size)

    def batch(self, speeches: Sequence[np.ndarray | torch.Tensor]) -> AudioBatch:
        """U times (samples,), for ``encode`` and ``draft_inputs``."""
        speeches = [torch.as_tensor(speech) for speech in speeches]
        return AudioBatch(speeches, self.device, getattr(torch, self.dtype))

    def encode(self, audio: AudioBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """Encoder output (U, S, D) of U utterances, and its lengths (U,)."""
        return audio.encode(self.encoder)

    def prompts(
        self, memory: torch.Tensor, frames: torch.Tensor, languages: Sequence[str | None]
    ) -> torch.Tensor:
        """Tokens (U, P) that the hypotheses of each utterance start from.

        Args:
            memory: (U, S, D) encoder output.
            frames: (U,) lengths of it.
            languages: U codes; None: the search's own.

        Raises:
            InputError: A language that the model does not have.
        """
        if self.whisper is not None:
            rows = self.whisper.make(self.search.decoder, memory, frames, languages)
        else:
            rows = [self.beam_search.hyp_primer or [self.asr_model.sos]] * len(languages)
        return torch.tensor(rows, device=memory.device)

    def _log(
        self, speeches: Sequence, decodings: Sequence[Decoding], began: float, seconds: float
    ) -> None:
        """Who took how long, in statistics and in lines that ESPnet's calculate_rtf reads."""
        seconds /= len(speeches)
        for row, (speech, decoding) in enumerate(zip(speeches, decodings, strict=True)):
            decoding.statistics.audio_seconds = len(speech) / self.sample_rate_hz
            decoding.statistics.total_seconds = seconds
            if decoding.results:
                best = "".join(decoding.results[0][1])
                log_decoded(logger, len(speech), best, began + row * seconds, seconds)
