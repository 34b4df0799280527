"""ESPnet's Speech2Text with searches that decode several tokens per decoder call."""

import inspect
import time
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from espnet2.bin.asr_inference import Speech2Text as ESPnetSpeech2Text
from espnet2.text.hugging_face_token_id_converter import HuggingFaceTokenIDConverter as HFConverter

from espnet_medusa.data.errors import InputError
from espnet_medusa.data.files.mapped_weights import copy_mapped_weights
from espnet_medusa.data.options import build_options, check_positive
from espnet_medusa.data.threads import PerThread, lock_of
from espnet_medusa.decoding.runtime.precision import INT8, has_kernels
from espnet_medusa.decoding.runtime.process import trim_memory
from espnet_medusa.decoding.search.search_options import LengthLimits
from espnet_medusa.decoding.search.statistics import DecodingStatistics
from espnet_medusa.inference.audio_batch import audio_limits, model_encoder
from espnet_medusa.inference.choose_search import with_search
from espnet_medusa.inference.convert.attach_heads import AUTO
from espnet_medusa.inference.convert.experiment import CONFIG
from espnet_medusa.inference.decode_options import (
    DecodeOptions,
    check_espnet_decodes,
    check_precisions,
    check_scoring,
    split_options,
    with_model_defaults,
    with_suppressed_tokens,
)
from espnet_medusa.inference.decoding import (
    Decoding,
    Result,
    Speech,
    TextWriter,
    log_decoded,
    open_tokenizer,
    unpadded,
)
from espnet_medusa.inference.decoding_model import DecodingModel
from espnet_medusa.inference.espnet_options import check_no_prompts
from espnet_medusa.inference.experiment import (
    NoInitialization,
    TrainedModel,
    check_language_model,
    language_model_errors,
    open_whisper_model,
    patch_espnet_loading,
    read_model,
)
from espnet_medusa.inference.live.live_options import LiveOptions, check_live
from espnet_medusa.inference.live.live_transcriber import LiveTranscriber
from espnet_medusa.inference.longform.draft_text import DraftText
from espnet_medusa.inference.longform.driver import ChunkedLongForm, LongForm
from espnet_medusa.inference.longform.long_form_options import LongFormOptions
from espnet_medusa.inference.longform.recording import LongFormStep, LongRecording, RunLongForm
from espnet_medusa.inference.longform.segment import Segment
from espnet_medusa.inference.packed_model import fetch_packed_model, open_packed_model
from espnet_medusa.inference.smaller_batches import run_list
from espnet_medusa.inference.whisper_prompts import ENGLISH, find_prompts
from espnet_medusa.inference.whisper_windows import WhisperWindows, with_word_times
from espnet_medusa.networks.espnet_transformer import searchable
from espnet_medusa.networks.whisper.pretrained import is_whisper
from espnet_medusa.networks.whisper.tokens import DETECT

ESPNET_OPTIONS = inspect.signature(ESPnetSpeech2Text.__init__).parameters


class Speech2Text(ESPnetSpeech2Text):
    """Audio in, n-best list out; same calls and same return values as ESPnet's.

    Args:
        asr_train_config: The experiment's ``config.yaml``; None: the one next to the weights.
        asr_model_file: The weights; needed without ``trained``.
        trained: A model in memory, in place of these files.
        mapped: Whether to map the weights' file into memory, if our int8 kernels are used. The file
            must then not change before ``release_weights`` is called.
        options: ESPnet's other arguments and the fields of ``DecodeOptions``. ``batch_size`` is
            the number of utterances per call of ``decode``; ESPnet's own search allows only 1.

    Attributes:
        model: The ``DecodingModel`` with the search and the draft model.
        statistics: Of the thread's last call or ``transcribe``; ``decode`` returns them per
            utterance.

    Several threads can use one instance. ESPnet's own modules and its own search run in one thread
    at a time, because they store intermediate results in themselves.

    Raises:
        InputError: An option, the checkpoint or their combination is not usable.
    """

    def __init__(
        self,
        asr_train_config: Path | str | None = None,
        asr_model_file: Path | str | None = None,
        *,
        trained: TrainedModel | None = None,
        mapped: bool = False,
        **options: Any,
    ):
        decode_options, batch_size = split_options(options, ESPNET_OPTIONS, DecodeOptions)
        if trained is None:
            if asr_model_file is None:
                raise InputError("asr_model_file: missing; give the trained model")
            asr_train_config = asr_train_config or Path(asr_model_file).parent / CONFIG
            files = asr_train_config, asr_model_file, options.get("device", "cpu")
            precisions = {decode_options.encoding, decode_options.decoder_precision}
            mapped = mapped and precisions == {INT8} and has_kernels(torch.device(files[2]))
            trained = read_model(*files, mapped)
        with patch_espnet_loading(trained), NoInitialization(), language_model_errors(options):
            super().__init__(asr_train_config, **options)
        check_language_model(options, self.asr_model.token_list)
        if isinstance(self.converter, HFConverter) and self.tokenizer is not None:
            self.tokenizer.tokenizer = self.converter.tokenizer  # ESPnet would read it twice
        network = self.asr_model  # a copy if ESPnet quantized it
        trained = replace(trained, asr_model=network)
        prompts = find_prompts(decode_options, trained, self.converter)
        if prompts is not None:
            check_no_prompts(options)
        language = None if prompts is None or prompts.language == DETECT else prompts.language
        of_model = network.decoder, trained.train_args, options["beam_size"]
        given = decode_options
        decode_options = with_model_defaults(given, *of_model, language)
        default = ESPNET_OPTIONS["ctc_weight"].default
        check_scoring(network, decode_options, options.get("ctc_weight", default), default)
        tokens = prompts and prompts.tokens
        symbols = () if tokens is None else tokens.symbols
        decode_options = with_suppressed_tokens(decode_options, network, tokens)
        device = torch.device(self.device)
        check_precisions(decode_options, network, device)
        encoder = model_encoder(network, decode_options.encoding, decode_options.encoder_padding)
        # Whisper's vocabulary has no blank: its id 0 is an ordinary token.
        hidden = {network.blank_id} if network.token_list[network.blank_id] == "<blank>" else set()
        model = DecodingModel(
            trained,
            decode_options,
            encoder,
            audio_limits(network.encoder, self.asr_train_args),
            prompts,
            getattr(self.beam_search, "hyp_primer", None) or [network.sos],
            LengthLimits(self.maxlenratio, self.minlenratio, traced=decode_options.trace),
            TextWriter(self.converter, self.tokenizer, frozenset(hidden), self.nbest, symbols),
            device,
            getattr(torch, self.dtype),
        )
        self.model = with_search(model, options, self.beam_search)
        if self.model.search is None:
            check_espnet_decodes(given, batch_size, network.decoder)
        open_tokenizer(self.tokenizer)

    statistics = PerThread(lambda speech2text: DecodingStatistics())
    # Parts of ``model``.
    search = property(attrgetter("model.search"))
    encoder = property(attrgetter("model.encoder"))
    whisper = property(attrgetter("model.prompts"))
    sample_rate_hz = property(attrgetter("model.audio.sample_rate_hz"))
    window_s = property(attrgetter("model.audio.window_s"))

    @staticmethod
    def from_pretrained(
        model_tag: str | None = None, heads: str = AUTO, **options
    ) -> "Speech2Text":
        """Open a pretrained Whisper, or a packed model of ESPnet.

        Args:
            model_tag: A Whisper: hub name, folder or OpenAI ``.pt`` file. Or a packed model: an
                archive, or a tag of ESPnet's model zoo, which is downloaded. None: ``options``
                name an experiment.
            heads: For a Whisper: ``auto`` attaches heads of the package if they were trained on
                these weights; ``none``: no heads; or a folder of heads.

        Raises:
            InputError: There is no such model, or an option is not usable.
        """
        if model_tag is not None and is_whisper(model_tag):
            for name in ("streaming", "token_type", "bpemodel"):
                if options.get(name):
                    raise InputError(
                        f"{name}: {options[name]}; not allowed with a Whisper; leave it out"
                    )
            for name in ("asr_train_config", "asr_model_file"):
                options.pop(name, None)
            trained = open_whisper_model(model_tag, options.get("device", "cpu"), heads)
            return Speech2Text(trained=trained, **options)
        if heads != AUTO:
            raise InputError(f"heads: {heads}; allowed with a Whisper; {model_tag!r} is not one")
        if model_tag is not None:
            options |= open_packed_model(fetch_packed_model(model_tag))
        return Speech2Text(**options)

    def release_weights(self, long_form: LongFormOptions | None = None) -> None:
        """Free the weights of modules that the search or the encoder runtime has copied.

        For processes that only decode: these modules cannot be used afterwards. The decoder's
        module stays if ``long_form`` needs it; None: no long audio will be decoded.
        """
        model = self.model
        if long_form is not None:
            long_form = with_word_times(model, long_form)
        if model.search is not None:
            if long_form is None or not long_form.needs_decoder_module:
                searchable(self.asr_model.decoder).release()
            model.encoder.release()
        if model.draft_model is not None:
            model.draft_model.release()
        copy_mapped_weights(model.asr_model, model.dtype)
        trim_memory()

    def check_draft_texts(self) -> bool:
        """Return whether draft texts are used; raise InputError if they cannot be used."""
        return self.model.check_draft_texts()

    @torch.no_grad()
    def __call__(self, speech: Speech | Sequence[Speech]) -> list[Result] | list[list[Result]]:
        """Return an n-best list for (samples,) in [-1, 1], at the model's sample rate.

        Each entry has text, tokens, token ids and hypothesis. A list of utterances is decoded
        together, see ``batch_decode``.
        """
        if isinstance(speech, list | tuple):
            return self.batch_decode(speech)
        if self.search is not None:
            decoding = self.decode([speech])[0]
            self.statistics = decoding.statistics
            return decoding.results
        speech = self.model.audio.read(speech)
        with lock_of(self.asr_model):
            started = time.perf_counter()
            results = super().__call__(speech)
            seconds = time.perf_counter() - started
        self.statistics = DecodingStatistics(
            audio_seconds=len(speech) / self.sample_rate_hz, total_seconds=seconds
        )
        if results and isinstance(results, list) and results[0][0] is not None:
            self.statistics.words = len(results[0][0].split())
        return results

    def batch_decode(
        self,
        speech: torch.Tensor | np.ndarray | Sequence[Speech],
        speech_lengths: Sequence[int] | torch.Tensor | np.ndarray | None = None,
    ) -> list[list[Result]]:
        """Decode several utterances; arguments and return value as in ESPnet 202611.

        ``speech`` is a list of utterances, or padded samples (U, N) with ``speech_lengths`` (U,).
        ``statistics`` is the sum. Raise InputError with the place of an utterance that cannot be
        decoded.
        """
        decodings = run_list(self.decode, unpadded(speech, speech_lengths))
        self.statistics = sum((one.statistics for one in decodings), DecodingStatistics())
        return [decoding.results for decoding in decodings]

    @torch.no_grad()
    def decode(
        self,
        speeches: Sequence[Speech],
        languages: Sequence[str | None] | None = None,
        draft_texts: Sequence[DraftText | None] | None = None,
        together: int | None = None,
    ) -> list[Decoding]:
        """Decode several utterances; each accepts its own number of tokens per call.

        Args:
            speeches: U times (samples,) in [-1, 1], at the model's sample rate.
            languages: U language codes for Whisper's prompts; None: that of the options.
            draft_texts: U texts that may be right, such as earlier results; they save decoder
                calls and do not change the results of exact searches. None: no text.
            together: Most utterances in encoder and decoder at once; the others wait. None: all.

        Returns:
            U results, in order. Each has an equal share of the total seconds.

        Raises:
            InputError: An utterance cannot be decoded, or a language is unknown.
        """
        model = self.model
        given = {"languages": languages, "draft_texts": draft_texts}
        languages, draft_texts = (values or [None] * len(speeches) for values in given.values())
        for name, values in given.items():
            if values is not None and len(values) != len(speeches):
                raise InputError(f"{name}: {len(values)}; allowed: {len(speeches)}, one each")
        texts = model.encode_draft_texts(draft_texts)
        if not len(speeches):
            return []
        if model.search is None:
            return [*map(self._decode_in_espnet, speeches)]
        began, started = time.time(), time.perf_counter()
        audio = model.batch(speeches, together)
        encoder_out, frames = model.encode(audio)
        prompts = model.make_prompts(encoder_out, frames, languages, together)
        inputs = model.draft_inputs(audio, prompts.tolist())
        parts = prompts, model.limits, inputs
        others = {"draft_texts": texts, "together": together}
        states = model.search(encoder_out, frames, *parts, **others)
        scorers = model.search.strategy.scoring.names
        decodings = []
        for state, prompt in zip(states, prompts.tolist(), strict=True):
            decoding = model.writer.write(state, prompt, scorers)
            decodings.append(replace(decoding, language=self._language(prompt)))
        seconds = (time.perf_counter() - started) / len(speeches)
        lengths = audio.lengths.tolist()
        for row, (length, decoding) in enumerate(zip(lengths, decodings, strict=True)):
            decoding.statistics.audio_seconds = length / self.sample_rate_hz
            decoding.statistics.total_seconds = seconds
            if decoding.results:
                best = "".join(decoding.results[0][1])
                log_decoded(length, best, began + row * seconds, seconds)
        return decodings

    def _decode_in_espnet(self, speech: Speech) -> Decoding:
        nbest, layers = self(speech), None
        if isinstance(nbest, tuple):
            nbest, layers = nbest
        prompt = nbest[0][-1].yseq.tolist() if nbest else []
        return Decoding(nbest, self.statistics, self._language(prompt), intermediate=layers)

    def _language(self, prompt: Sequence[int]) -> str | None:
        """Return the language code of a Whisper prompt; None: the model has no languages."""
        if self.whisper is None:
            return None
        codes = self.whisper.tokens.languages
        default = None if codes else ENGLISH
        return next((code for code, token in codes.items() if token in prompt[:2]), default)

    def transcribe(
        self,
        samples: Speech,
        language: str | None = None,
        batch_size: int = 8,
        draft_text: DraftText | None = None,
        **options: Any,
    ) -> Iterator[Segment]:
        """Decode audio of any length, window after window, as openai-whisper's ``transcribe``.

        Args:
            samples: (samples,) in [-1, 1], at the model's sample rate.
            language: Code for Whisper's prompt; None: that of the options.
            batch_size: Maximum number of chunks of speech per batch, with ``vad_filter``.
            draft_text: A text of the recording that may be right: plain, or segments, each a
                ``Segment`` or a tuple of start, end (seconds) and text. None: no text.
            options: Fields of ``LongFormOptions``.

        Returns:
            Segments, as soon as each window is decoded; ``statistics`` counts all windows so far.

        Raises:
            InputError: An option is not usable, or model or search do not support long audio.
        """
        run = self.long_form(build_options(LongFormOptions, options, "transcribe"), batch_size)
        self.model.audio.read(samples)  # voice activity detection would raise obscure errors
        if draft_text is not None:
            self.model.check_draft_texts()
        recording = LongRecording(None, samples, language, draft_text=draft_text)
        return self._segments(run([recording]))

    def _segments(self, steps: Iterator[LongFormStep]) -> Iterator[Segment]:
        for step in steps:
            if step.recording.error is not None:
                raise step.recording.error
            self.statistics = step.recording.statistics
            yield from step.segments

    def long_form(self, options: LongFormOptions, batch_size: int = 1) -> RunLongForm:
        """Return the decoder of recordings of any length; arguments as for ``LongForm``."""
        check_positive(batch_size, "batch_size")
        options = with_word_times(self.model, options)
        run = ChunkedLongForm if options.vad_filter else LongForm
        windows = WhisperWindows(self.model, options, together=batch_size)
        return run(windows, options, batch_size, self.model.batches_per_call(batch_size))

    def live(self, language: str | None = None, **options: Any) -> LiveTranscriber:
        """Return the transcriber of a stream, to which pieces of audio are added.

        Args:
            language: Code for Whisper's prompt; None: that of the options.
            options: Fields of ``LiveOptions``, and of ``LongFormOptions`` as far as they apply.

        Raises:
            InputError: An option is not usable, or model or search do not support long audio.
        """
        names = {field.name for field in fields(LiveOptions)}
        of_live = {name: options.pop(name) for name in [*options] if name in names}
        long_form = build_options(LongFormOptions, {"skip_silence": True, **options}, "live")
        live = build_options(LiveOptions, of_live, "live")
        check_live(long_form)
        windows = WhisperWindows(self.model, replace(long_form, word_timestamps=True))
        transcriber = LiveTranscriber(windows, long_form, live, language)
        if transcriber.language is not None:  # raises for an unknown one, before there is audio
            self.whisper.tokens.prompt(transcriber.language, self.whisper.task)
        return transcriber
