"""Decodes windows of long audio with a Whisper: windows in, tokens with timestamps out."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from espnet_medusa.data.encoder_rows import row_counts
from espnet_medusa.data.errors import InputError
from espnet_medusa.decoding.search.beam import BeamStrategy
from espnet_medusa.decoding.search.constraints import Constraints
from espnet_medusa.decoding.search.greedy import greedy_search, sampling_search
from espnet_medusa.decoding.search.patient_beam import patient_beam_search
from espnet_medusa.decoding.search.search import Search
from espnet_medusa.decoding.search.search_options import THRESHOLD
from espnet_medusa.decoding.search.state import ProbedToken, SearchState
from espnet_medusa.decoding.search.statistics import DecodingStatistics
from espnet_medusa.decoding.search.timestamps import build_timestamp_rules
from espnet_medusa.inference.audio_batch import RecordingFeatures, WindowBatch, recording_features
from espnet_medusa.inference.decoding_model import DecodingModel
from espnet_medusa.inference.longform.long_form_options import LongFormOptions
from espnet_medusa.inference.longform.recording import Row
from espnet_medusa.inference.longform.repetition import ends_in_loop
from espnet_medusa.inference.longform.window import Clock, Window, WindowDecoding, compression_ratio
from espnet_medusa.inference.longform.window_steps import Attempt, WindowDecoder
from espnet_medusa.inference.longform.word_times import TimedWord
from espnet_medusa.inference.trace_text import TraceText
from espnet_medusa.inference.word_aligners import build_word_aligner, check_word_times
from espnet_medusa.networks.whisper.log_mel import HOP_SAMPLES
from espnet_medusa.networks.whisper.tokens import hugging_face_tokenizer
from espnet_medusa.networks.whisper.transcript import TranscriptText, split_words


class WhisperWindows(WindowDecoder):
    """The ``WindowDecoder`` of a Whisper, with the model's search, drafts and precision.

    ``together``: most windows in encoder and decoder at once; None: all. Raises InputError if the
    model or its search cannot decode windows with timestamps.
    """

    def __init__(self, model: DecodingModel, options: LongFormOptions, together: int | None = None):
        check_long_form(model, options)
        self.model, self.together = model, together
        self.best_of, self.most_compressed = options.best_of, options.compression_ratio_threshold
        encoder, tokens = model.encoder.whisper, model.prompts.tokens
        self.window_frames = encoder.window_samples // HOP_SAMPLES
        self.clock = Clock(tokens.first_time, encoder.subsampling, len(tokens.times))
        self.text = TranscriptText(hugging_face_tokenizer(model.writer.converter), tokens)
        self.trace_text = TraceText(model.writer.converter, model.writer.tokenizer)
        context = model.search.decoder.max_depth(0)
        self.most_tokens, self.prompt_tokens = context // 2, context // 2 - 1
        untimed = replace(model.search.strategy.scoring.constraints, renormalize=True)
        # Index 0: without timestamps; index 1: with timestamps.
        self.constraints = untimed, self._with_timestamps(untimed, options.max_initial_timestamp)
        self.after_prefix = untimed.later
        self.align_words = build_word_aligner(model, options.word_times, 1 / self.clock.step_s)
        self.encoders = [encoder]
        if model.draft_model is not None:
            self.encoders.append(model.draft_model.encoder.whisper)

    def _with_timestamps(self, constraints: Constraints, latest_s: float | None) -> Constraints:
        """Add the timestamp rules; ``latest_s`` limits the first timestamp."""
        model, tokens = self.model, self.model.prompts.tokens
        # 0 is no limit, as in openai-whisper.
        latest = round(latest_s / self.clock.step_s) if latest_s else None
        vocab_size = len(model.asr_model.token_list)
        rules = build_timestamp_rules(tokens.first_time, vocab_size, latest, tokens.times.stop)
        blocked = torch.zeros(2, vocab_size, dtype=torch.bool, device=model.device)
        if constraints.blocked is not None:
            blocked |= constraints.blocked
        blocked[:, tokens.no_timestamps] = True
        return replace(constraints, blocked=blocked, timestamps=rules)

    def features(self, samples: np.ndarray) -> RecordingFeatures:
        samples = self.model.audio.read(samples).to(self.model.device)
        return recording_features(samples, self.encoders)

    def encode(self, windows: Sequence[tuple[RecordingFeatures, Window]]) -> WindowBatch:
        batch = WindowBatch(windows, self.window_frames, self.together)
        batch.encode(self.model.encoder)
        if self.model.draft_model is not None:
            batch.encode(self.model.draft_model.encoder)
        return batch

    def detects(self, language: str | None) -> bool:
        return self.model.prompts.detects(language)

    def choose_languages(
        self,
        windows: Sequence[tuple[RecordingFeatures, Sequence[Window]]],
        languages: Sequence[str | None],
    ) -> list[str | None]:
        def detect(rows: list[int]) -> list[str]:
            chosen = [windows[row] for row in rows]
            pairs = [(features, window) for features, several in chosen for window in several]
            batch = WindowBatch(pairs, self.window_frames, self.together)
            found = self._language_probabilities(batch)
            sizes = [len(several) for _, several in chosen]
            means = torch.stack([part.mean(dim=0) for part in found.split(sizes)])
            return [code for code, _ in self.model.prompts.best_languages(means)]

        return self.model.prompts.choose_languages(languages, detect)

    def detect(self, encoded: WindowBatch) -> list[tuple[str, float]]:
        return self.model.prompts.best_languages(self._language_probabilities(encoded))

    def _language_probabilities(self, batch: WindowBatch) -> torch.Tensor:
        encoded, decoder = batch.encode(self.model.encoder), self.model.search.decoder
        return self.model.prompts.language_probabilities(decoder, *encoded, self.together)

    def decode(
        self, encoded: WindowBatch, rows: Sequence[Row], attempt: Attempt
    ) -> list[tuple[WindowDecoding, DecodingStatistics]]:
        give_up = self.repeats_itself if attempt.stop_repetitions else None
        most = self.model.limits.maxlenratio or -self.most_tokens
        limits = replace(self.model.limits, maxlenratio=most, give_up=give_up)
        batch, starts = self._select(encoded, rows, attempt.timestamps)
        tokens = self.model.prompts.tokens
        probed = [ProbedToken(start.index(tokens.start), tokens.no_speech) for start in starts]
        encoder_out, frames = batch.encode(self.model.encoder)
        starting = [torch.tensor(start, device=encoder_out.device) for start in starts]
        drafts, samples = [row.draft for row in rows], []
        for search in self._searches(attempt, any(row.prefix for row in rows)):
            drafted = search.planner.proposer is not None
            inputs = self.model.draft_inputs(batch, starts) if drafted else None
            parts = starting, limits, inputs, probed, drafts
            samples.append(search(encoder_out, frames, *parts, together=self.together))
        return [self._likeliest(one, attempt.temperature) for one in zip(*samples, strict=True)]

    def text_ends_s(
        self, encoded: WindowBatch, rows: Sequence[Row], texts: Sequence[Sequence[int]]
    ) -> list[float]:
        """Return the most probable timestamp after each text, if the text begins at 0 s."""
        batch, starts = self._select(encoded, rows, timestamps=True)
        decoder, first = self.model.search.decoder, self.clock.first
        tokens = [[*start, first, *text] for start, text in zip(starts, texts, strict=True)]
        # The longest prompt and the longest text together are longer than the context.
        tokens = [row[-decoder.max_depth(0) :] for row in tokens]
        encoded = batch.encode(self.model.encoder)
        logits = decoder.logits_after(*encoded, tokens, self.together)
        times = logits[:, first : self.clock.times.stop].argmax(dim=-1)
        return [self.clock.seconds(first + time) for time in times.tolist()]

    def repeats_itself(self, tokens: Sequence[int]) -> bool:
        """Return whether an unfinished text ends in a loop and is too repetitive already."""
        text, most = self.text.text_tokens(tokens), self.most_compressed
        if most is None or not ends_in_loop(text):
            return False
        return compression_ratio(self.text.decode(text)) > most

    def align(
        self,
        encoded: WindowBatch,
        row: int,
        frames: int,
        language: str | None,
        tokens: Sequence[int],
    ) -> list[TimedWord]:
        end, frames = self.model.prompts.tokens.end, frames // self.clock.frames
        if not tokens or not frames:
            return []
        words = split_words([*tokens, end], self.text.decode, end, language)
        encoder_out, sizes = encoded.encode(self.model.encoder)
        one, rows = slice(row, row + 1), int(row_counts(sizes)[row])
        sizes = sizes[one, :rows] if sizes.dim() == 2 else sizes[one]
        return self.align_words((encoder_out[one, :rows], sizes), frames, words, language)

    def _select(
        self, encoded: WindowBatch, rows: Sequence[Row], timestamps: bool
    ) -> tuple[WindowBatch, list[list[int]]]:
        """Return the batch of some rows, and their prompts with the text before and the prefix."""
        whole = len(rows) == len(encoded.lengths)
        batch = encoded if whole else encoded.select([row.index for row in rows])
        tokens, task = self.model.prompts.tokens, self.model.prompts.task
        return batch, [
            [
                *([tokens.previous, *row.prompt] if row.prompt else []),
                *tokens.prompt(row.language, task, timestamps),
                *row.prefix,
            ]
            for row in rows
        ]

    def _searches(self, attempt: Attempt, with_prefix: bool) -> list[Search]:
        """Return a greedy or patient beam search; above temperature 0: searches that sample.

        ``with_prefix``: texts begin with known tokens.
        """
        search, constraints = self.model.search, self.constraints[attempt.timestamps]
        constraints = self.after_prefix if with_prefix else constraints
        if attempt.temperature > 0:
            return [
                sampling_search(search.decoder, constraints, attempt.temperature, seed)
                for seed in range(self.best_of)
            ]
        parts = constraints, search.planner.proposer, search.planner.shape
        if isinstance(search.strategy, BeamStrategy):
            beam_size, options = search.strategy.beam_size, self.model.options
            of_windows = patient_beam_search(search.decoder, beam_size, *parts, options)
        else:
            of_windows = greedy_search(search.decoder, search.strategy.rule, *parts)
        return [of_windows.with_text_planner(search.text_planner)]

    def _likeliest(
        self, states: Sequence[SearchState], temperature: float
    ) -> tuple[WindowDecoding, DecodingStatistics]:
        """Return the text with the best score per token, and the statistics of all states."""
        state = max(
            states,
            key=lambda state: state.n_best[0].score / max(len(state.n_best[0].tokens) - 1, 1),
        )
        best = state.n_best[0]
        tokens = tuple(best.tokens[:-1])
        scores = best.score / len(best.tokens), state.probed.probability
        trace = state.trace and self.trace_text.describe(state.trace.result)
        decoding = WindowDecoding(tokens, self.text.decode(tokens), temperature, *scores, trace)
        return decoding, sum((state.statistics for state in states), DecodingStatistics())


def with_word_times(model: DecodingModel, options: LongFormOptions) -> LongFormOptions:
    """Add word times if the vocabulary has no timestamps: they give segments their times.

    They also place the windows of long audio, so that no word is cut.
    """
    without = model.prompts is None or options.without_timestamps or options.word_timestamps
    if without or model.prompts.tokens.times:
        return options
    return replace(options, word_timestamps=True)


def check_long_form(model: DecodingModel, options: LongFormOptions) -> None:
    """Refuse models and searches that do not support the options of long audio."""
    if (reason := why_not_long_form(model)) is not None:
        raise InputError(reason)
    check_word_times(model.asr_model, options)


def why_not_long_form(model: DecodingModel) -> str | None:
    """Return why a model or its search does not decode long audio; None: it does."""
    if model.search is None or model.prompts is None or model.encoder.whisper is None:
        return (
            "timestamps: allowed with a Whisper that uses Whisper's tokenizer and prompts, and no "
            "frontend, normalization, pre-encoder or post-encoder"
        )
    if not model.search.strategy.scoring.decoder_alone:
        others = ", ".join(model.search.strategy.scoring.names[1:])
        return f"{others}: long audio allows only weight 0, because only the decoder scores there"
    draft, options = model.draft_model, model.options
    if draft is not None and draft.encoder.whisper is None:
        return f"draft_model: {draft.name}; allowed with long audio: a Whisper"
    if options.acceptance == THRESHOLD:
        return f"acceptance: {THRESHOLD}; allowed with long audio: rules that verify drafts"
    for name, value in {"forced_prefix": options.forced_prefix, **options.ctc_thresholds}.items():
        if value not in ([], None):
            return f"{name}: {value}; allowed with long audio: none"
    return None
