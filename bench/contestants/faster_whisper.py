"""faster-whisper, and its engine CTranslate2, on converted weights."""

import time
from collections.abc import Sequence
from pathlib import Path

import ctranslate2
import numpy as np
from transformers import AutoTokenizer, WhisperFeatureExtractor, WhisperForConditionalGeneration

from contestants.base import (
    Memories,
    MemoryDecoder,
    Result,
    Segment,
    Stopwatch,
    Timed,
    Transcriber,
    pad_encoder_outs,
)
from contestants.hugging_face import log_mel
from contestants.ways import DEFAULTS_VAD, Way

END = "<|endoftext|>"


def convert(model: WhisperForConditionalGeneration, eos: int, weights: str, folder: Path) -> None:
    """Convert the decoder of a model to the new ``folder``.

    The vocabulary names no special symbol but the end symbol. CTranslate2 then uses it as start
    symbol and as ``<|notimestamps|>``, which turns its timestamp rules off.
    """
    from ctranslate2.converters.transformers import WhisperLoader

    spec = WhisperLoader().get_model_spec(model)
    names = [str(token) for token in range(model.config.vocab_size)]
    names[eos] = END
    spec.register_vocabulary(names)
    for name in ("suppress_ids", "suppress_ids_begin", "alignment_heads", "lang_ids"):
        setattr(spec.config, name, [])
    spec.validate()
    spec.optimize(quantization=None if weights == "float32" else weights)
    folder.mkdir()
    spec.save(str(folder))


class CTranslate2(MemoryDecoder):
    """``Whisper.generate``, which faster-whisper calls; batches are padded without a mask."""

    def load(self) -> None:
        self.model = ctranslate2.models.Whisper(
            str(self.subject.ctranslate2(self.weights)), device=self.setup.device,
            compute_type=self.weights, intra_threads=self.setup.threads,
        )  # fmt: skip

    def decode(self, way: Way, names: Sequence[str], encoder_outs: Memories) -> list[Result]:
        encoder_out = ctranslate2.StorageView.from_array(pad_encoder_outs(encoder_outs))
        results = self.model.generate(
            encoder_out, [[self.subject.eos]] * len(encoder_outs), beam_size=way.beam_size,
            max_length=2 * self.subject.max_tokens,  # it writes at most half of that
            length_penalty=0.0,  # rank by score alone, as all others here
            suppress_tokens=[], suppress_blank=False,
        )  # fmt: skip
        return [Result(tokens=result.sequences_ids[0]) for result in results]


class FasterWhisper(Transcriber):
    """``WhisperModel.transcribe``; utterances without timestamps, at temperature 0."""

    def load(self) -> None:
        from faster_whisper import WhisperModel
        from faster_whisper.feature_extractor import FeatureExtractor

        self.stopwatch = Stopwatch()
        # Patch the classes: this process has no other instances.
        FeatureExtractor.__call__ = self.stopwatch.timed(FeatureExtractor.__call__)
        WhisperModel.encode = self.stopwatch.timed(WhisperModel.encode)
        self.model = WhisperModel(
            str(self.subject.ctranslate2), self.setup.device, compute_type=self.weights,
            cpu_threads=self.setup.threads,
        )  # fmt: skip

    def transcribe(self, way: Way, samples: np.ndarray) -> Timed:
        options = {"without_timestamps": True, "condition_on_previous_text": False}
        segments, *seconds = self._run(self.model, way, samples, temperature=0.0, **options)
        return Timed([Result(" ".join(segment.text for segment in segments))], *seconds)

    def transcribe_long(self, way: Way, samples: np.ndarray) -> Timed:
        """Transcribe with the program's defaults; temperature 0 unless fallback or by_default."""
        from faster_whisper import BatchedInferencePipeline

        options = {"word_timestamps": self.setup.words, "vad_filter": way.search == DEFAULTS_VAD}
        program = self.model
        if not (self.setup.fallback or way.by_default):
            options["temperature"] = 0.0
        if way.batch_size > 1:
            program = BatchedInferencePipeline(self.model)
            options["batch_size"] = way.batch_size
        segments, *seconds = self._run(program, way, samples, **options)
        segments = [
            Segment(
                segment.start, segment.end, segment.text, segment.avg_logprob,
                [(word.word, word.start, word.end) for word in segment.words or ()],
                segment.temperature or 0.0,
            )
            for segment in segments
        ]  # fmt: skip
        return Timed([Result.of_segments(segments)], *seconds)

    def _run(self, program, way: Way, samples: np.ndarray, **options) -> tuple[list, float, float]:
        """Segments, and seconds of the encoder and of everything else."""
        self.stopwatch.seconds, started = 0.0, time.perf_counter()
        segments, _ = program.transcribe(
            samples, language=self.subject.language, beam_size=way.beam_size, **options
        )
        segments = [*segments]  # a generator: decoding happens here
        seconds, encoder = time.perf_counter() - started, self.stopwatch.seconds
        return segments, encoder, seconds - encoder


class CTranslate2Speech(Transcriber):
    """``Whisper.encode`` and ``generate`` on batches, with transformers' features."""

    def load(self) -> None:
        folder = self.subject.hugging_face
        self.extractor = WhisperFeatureExtractor.from_pretrained(folder)
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.model = ctranslate2.models.Whisper(
            str(self.subject.ctranslate2), device=self.setup.device, compute_type=self.weights,
            intra_threads=self.setup.threads,
        )  # fmt: skip
        language = [self.subject.language, "transcribe"] if self.model.is_multilingual else []
        names = [f"<|{name}|>" for name in ("startoftranscript", *language, "notimestamps")]
        self.prompt = self.tokenizer.convert_tokens_to_ids(names)

    def transcribe(self, way: Way, samples: np.ndarray) -> Timed:
        return self.transcribe_batch([samples], way.beam_size)

    def transcribe_batch(self, speeches: Sequence[np.ndarray], beam_size: int) -> Timed:
        """Transcribe U utterances (samples,) together; on a GPU, ``encode`` does not wait."""
        started = time.perf_counter()
        features = log_mel(self.extractor, speeches, self.setup.device).cpu().numpy()
        features = ctranslate2.StorageView.from_array(features)
        encoder_out = self.model.encode(features)
        encoded = time.perf_counter()
        outputs = self.model.generate(
            encoder_out, [self.prompt] * len(speeches), beam_size=beam_size
        )
        tokens = [output.sequences_ids[0] for output in outputs]
        texts = self.tokenizer.batch_decode(tokens, skip_special_tokens=True)
        results = [Result(text.strip()) for text in texts]
        return Timed(results, encoded - started, time.perf_counter() - encoded)
