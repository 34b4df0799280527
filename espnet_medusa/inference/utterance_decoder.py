"""Decode the utterances of a job in this process; one that fails does not stop the others."""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from espnet_medusa.data.audio.reader import TooLongError
from espnet_medusa.data.errors import first_line, log_traceback, one_line
from espnet_medusa.decoding.search.scores import DECODER
from espnet_medusa.decoding.search.statistics import DecodingStatistics
from espnet_medusa.inference.batches import (
    Utterance,
    describe,
    join_batches,
    make_batches,
    read_pools,
)
from espnet_medusa.inference.decoding import Decoding
from espnet_medusa.inference.job import JobInput, log_times
from espnet_medusa.inference.journal import Decoded, Failed, NBestEntry, Outcome
from espnet_medusa.inference.longform.long_form_options import LongFormOptions
from espnet_medusa.inference.longform.recording import LongRecording, RunningRecording
from espnet_medusa.inference.longform.window import FRAMES_PER_S
from espnet_medusa.inference.reader import UtteranceReader
from espnet_medusa.inference.smaller_batches import run_batch
from espnet_medusa.inference.speech2text import Speech2Text
from espnet_medusa.inference.too_short import is_too_short
from espnet_medusa.inference.whisper_windows import check_long_form, why_not_long_form
from espnet_medusa.networks.espnet_compat import Hypothesis

UNUSED_TEXTS = (
    "draft texts are not used: in beam search they save decoder calls, but usually no time; use "
    "them in greedy search (espnet-medusa-transcribe: --beam_size 1), or set drafter: text"
)
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class UtteranceDecoder:
    """Decodes in batches; audio longer than the model's window comes last, window after window.

    Raises InputError for ``all_in_windows`` with a model or search that does not decode windows.
    """

    speech2text: Speech2Text  # model and search
    reader: UtteranceReader
    batch_size: int = 1  # maximum number of utterances or windows per batch
    # Maximum padded size of a batch: utterances times 10 ms frames of the longest; None: no limit.
    max_batch_frames: int | None = None
    # Options for audio longer than the window; None: such audio fails.
    long_form: LongFormOptions | None = None
    # Whether shorter audio is also decoded in windows: with fallback, but without an n-best list.
    all_in_windows: bool = False
    batches: int = 1  # per call of the model, see ``DecodingModel.batches_per_call``
    # Called with the seconds of audio that were decoded since the last call.
    on_decoded: Callable[[float], None] = lambda seconds: None

    def __post_init__(self) -> None:
        if self.all_in_windows:
            check_long_form(self.speech2text.model, self.long_form)

    @property
    def sample_rate_hz(self) -> int:
        return self.reader.limits.sample_rate_hz

    @property
    def windows_together(self) -> int:
        """Maximum windows per batch: one per long recording, or several with ``vad_filter``."""
        if self.max_batch_frames is None:
            return self.batch_size
        windows = self.max_batch_frames // round(self.reader.limits.window_s * FRAMES_PER_S)
        return max(min(self.batch_size, windows), 1)

    def decode(self, job: JobInput) -> Iterator[Outcome]:
        """Yield each utterance's result, or the reason why it has none."""
        if job.draft_texts and not self.speech2text.check_draft_texts():
            logger.warning(UNUSED_TEXTS)
        failed = [Failed(key, job.problems[key]) for key in job.keys if key in job.problems]
        keys = [key for key in job.keys if key not in job.problems]
        too_long: dict[str, TooLongError | None] = {}
        if self.all_in_windows:
            too_long, keys = dict.fromkeys(keys), []
        for pool in read_pools(self._read(job, keys, failed, too_long), self.batch_size):
            yield from _drain(failed)
            lengths = [utterance.frames for utterance in pool]
            batches = make_batches(lengths, self.batch_size, self.max_batch_frames)
            for batch, together in join_batches(batches, self.batches):
                utterances = [pool[index] for index in batch]
                began, decode = time.perf_counter(), self._decode_batch
                if self.batches > 1:
                    decode = partial(decode, together=together)
                for utterance, decoding in run_batch(decode, utterances, describe):
                    audio_s = len(utterance.speech) / self.sample_rate_hz
                    self.on_decoded(audio_s)
                    if is_too_short(decoding, audio_s):
                        seconds = time.perf_counter() - began
                        yield self._without_search(utterance.key, decoding, audio_s, seconds)
                    else:
                        yield self._outcome(job, utterance.key, decoding)
                    began = time.perf_counter()
        yield from _drain(failed)
        if too_long:
            yield from self._decode_long(job, too_long)

    def _decode_batch(
        self, utterances: Sequence[Utterance], together: int | None = None
    ) -> list[Decoding]:
        languages = [utterance.language for utterance in utterances]
        texts = [utterance.draft_text for utterance in utterances]
        given = {"draft_texts": texts if any(texts) else None, "together": together}
        given = {name: value for name, value in given.items() if value is not None}
        speeches = [utterance.speech for utterance in utterances]
        return self.speech2text.decode(speeches, languages, **given)  # translation: without them

    def _read(
        self,
        job: JobInput,
        keys: Iterable[str],
        failed: list[Failed],
        too_long: dict[str, TooLongError | None] | None = None,
    ) -> Iterator[Utterance]:
        """Read one utterance after the other; ``failed`` receives those that cannot be read.

        ``too_long`` receives those longer than the model's window; None: these are read, too.
        """
        max_duration_s = None if too_long is None else self.reader.limits.window_s
        for key in keys:
            try:
                utterance = self.reader.read(key, job.entries[key], max_duration_s)
            except TooLongError as error:
                too_long[key] = error.with_traceback(None)  # a traceback refers to the audio
            except Exception as error:  # any error: continue with the other utterances
                failed.append(self._outcome(job, key, error))
            else:
                yield replace(
                    utterance,
                    language=job.languages.get(key),
                    previous_text=job.previous_texts.get(key),
                    draft_text=job.draft_texts.get(key),
                )

    def _decode_long(
        self, job: JobInput, too_long: Mapping[str, TooLongError | None]
    ) -> Iterator[Outcome]:
        reason = why_not_long_form(self.speech2text.model)
        if self.long_form is None or reason is not None:
            if reason is None:
                more = ", or decode with longform: true"
            else:
                more = "" if self.long_form is None else f"; longform: {reason}"
            for key, error in too_long.items():
                yield self._outcome(job, key, TooLongError(error.message, error.remedy + more))
            return
        failed: list[Failed] = []
        done_s: dict[str, float] = {}
        recordings = (
            LongRecording(
                *(read.key, read.speech, read.language, job.entries[read.key], read.draft_text)
            )
            for read in self._read(job, too_long, failed)
        )
        run = self.speech2text.long_form(self.long_form, self.windows_together)
        for step in run(recordings):
            yield from _drain(failed)
            recording, key = step.recording, step.recording.key
            self.on_decoded(recording.done_s - done_s.get(key, 0.0))
            done_s[key] = recording.done_s
            if step.done:
                yield self._outcome(job, key, recording.error or self._join_windows(recording))
        yield from _drain(failed)

    def _join_windows(self, recording: RunningRecording) -> Decoding:
        """Make one hypothesis of a long recording; its tokens are without timestamps.

        Its score is the log-probability of all tokens, including timestamps and end symbols.
        """
        tokens, score = recording.text_tokens, torch.tensor(recording.score)
        hypothesis = Hypothesis(torch.tensor(tokens), score, {DECODER: score})
        pieces = self.speech2text.converter.ids2tokens(tokens)
        # With ``without_timestamps: none``, a recording without timestamps has no segments.
        timed = recording.timestamps or self.long_form.without_timestamps is not None
        return Decoding(
            [(recording.text, pieces, tokens, hypothesis)],
            recording.statistics,
            recording.language,
            tuple(recording.segments) if timed else None,
            trace=recording.trace,
        )

    def _outcome(self, job: JobInput, key: str, decoding: Decoding | Exception) -> Outcome:
        if isinstance(decoding, Exception):
            log_traceback(decoding)
            reason = one_line(decoding)
        elif not decoding.results:
            reason = "no hypothesis ended; allow shorter ones with a smaller minlenratio"
        else:
            return self._decoded(key, decoding)
        name = self.reader.describe(job.entries[key])
        return Failed(key, reason if name in reason else f"{name}: {reason}")

    def _without_search(
        self, key: str, error: Exception, audio_s: float, seconds: float
    ) -> Decoded:
        """Return an empty hypothesis, as ESPnet, for audio that is too short for the encoder."""
        statistics = DecodingStatistics(audio_seconds=audio_s, total_seconds=seconds)
        reason = f"{1000 * audio_s:.0f} ms are too short for the encoder ({first_line(error)})"
        warning = " ".join(f"{reason}; its hypothesis is empty".split())
        decoded = Decoded(key, [NBestEntry("", [], [], "0.0")], statistics, warning=warning)
        log_times(decoded, self.sample_rate_hz)
        return decoded

    def _decoded(self, key: str, decoding: Decoding) -> Decoded:
        nbest = []
        for text, token, token_int, *of_s2t, hypothesis in decoding.results:
            others = {"text_nospecial": of_s2t[0]} if of_s2t and of_s2t[0] is not None else {}
            nbest.append(NBestEntry(text, [*token], [*token_int], str(hypothesis.score), others))
        for layer, tokens in (decoding.intermediate or {}).items():
            nbest[0].others[f"encoder_interctc_layer{layer}.txt"] = " ".join(tokens)
        rest = decoding.language, decoding.segments, decoding.trace
        decoded = Decoded(key, nbest, decoding.statistics, *rest)
        if decoding.segments is not None:
            log_times(decoded, self.sample_rate_hz)
        return decoded


def _drain(failed: list[Failed]) -> Iterator[Failed]:
    while failed:
        yield failed.pop(0)
