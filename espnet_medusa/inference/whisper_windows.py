"""A model as long audio asks it: windows in, tokens with timestamps out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

from espnet_medusa.errors import InputError
from espnet_medusa.inference.draft_material import DraftedModel, draft_inputs
from espnet_medusa.inference.window_batch import RecordingFeatures, WindowBatch, recording_features
from espnet_medusa.inference.word_aligners import build_word_aligner, check_word_times
from espnet_medusa.longform.fallback import WindowDecoding
from espnet_medusa.longform.window import FRAMES_PER_S, Clock, Window
from espnet_medusa.longform.word_times import TimedWord
from espnet_medusa.search.beam import BeamSearch
from espnet_medusa.search.constraints import Constraints
from espnet_medusa.search.greedy import GreedySearch
from espnet_medusa.search.options import THRESHOLD, LengthLimits
from espnet_medusa.search.patient_beam import PatientBeamSearch
from espnet_medusa.search.sampling import SamplingSearch
from espnet_medusa.search.state import SearchState, Watched
from espnet_medusa.search.statistics import DecodingStatistics
from espnet_medusa.search.timestamps import build_timestamp_rules
from espnet_medusa.whisper.log_mel import HOP_SAMPLES
from espnet_medusa.whisper.tokens import DETECT, hugging_face_tokenizer
from espnet_medusa.whisper.transcript import TranscriptText, split_words

if TYPE_CHECKING:
    from espnet_medusa.longform.options import LongFormOptions
    from espnet_medusa.search.search import Search


class WindowModel(DraftedModel, Protocol):
    """What decodes: ``Speech2Text``."""

    converter: Any
    search: Search | None


class WhisperWindows:
    """What ``LongForm`` asks of a model, with the search, drafts and precision of a Speech2Text.

    Args:
        main: The Speech2Text.
        options: Of long audio.

    Raises:
        InputError: The model or its search is not for windows with timestamps.
    """

    def __init__(self, main: WindowModel, options: LongFormOptions):
        check_long_form(main, options)
        self.main, self.timestamps = main, not options.without_timestamps
        self.best_of = options.best_of
        whisper, decoder = main.encoder.whisper, main.search.decoder
        tokens = main.whisper.tokens
        self.window_frames = whisper.window_samples // HOP_SAMPLES
        self.clock = Clock(tokens.first_time, whisper.subsampling)
        self.text = TranscriptText(hugging_face_tokenizer(main.converter), tokens)
        context = decoder.max_depth(0)
        self.most_tokens, self.prompt_tokens = context // 2, context // 2 - 1
        self.constraints = self._constraints(options.max_initial_timestamp)
        frames_per_s = FRAMES_PER_S / self.clock.frames
        self.find_words = build_word_aligner(main, options.word_times, frames_per_s)
        self.encoders = [whisper]
        if main.draft_model is not None:
            self.encoders.append(main.draft_model.encoder.whisper)

    def _constraints(self, max_initial_timestamp: float | None) -> Constraints:
        """The search's own, probabilities as openai-whisper has them, and rules of timestamps."""
        own, tokens = self.main.search.strategy.scoring.constraints, self.main.whisper.tokens
        own = replace(own, renormalize=True)
        if not self.timestamps:
            return own
        latest = None
        # openai-whisper takes 0 for no limit.
        if max_initial_timestamp:
            latest = round(max_initial_timestamp / self.clock.step_s)
        vocab_size = len(self.main.asr_model.token_list)
        rules = build_timestamp_rules(tokens.first_time, tokens.end, vocab_size, latest)
        blocked = own.blocked
        if blocked is None:
            blocked = torch.zeros(2, vocab_size, dtype=torch.bool, device=self.main.device)
        blocked = blocked.clone()
        blocked[:, tokens.no_timestamps] = True
        return replace(own, blocked=blocked, timestamps=rules)

    def features(self, samples: np.ndarray) -> RecordingFeatures:
        """Of a recording (samples,)."""
        samples = torch.as_tensor(samples, device=self.main.device)
        return recording_features(samples, self.encoders)

    def encode(self, windows: Sequence[tuple[RecordingFeatures, Window]]) -> WindowBatch:
        """Of U windows, by the encoders of all that decodes or drafts."""
        batch = WindowBatch(windows, self.window_frames)
        batch.encode(self.main.encoder)
        if self.main.draft_model is not None:
            batch.encode(self.main.draft_model.encoder)
        return batch

    def choose_languages(
        self, windows: Sequence[tuple[RecordingFeatures, Window]], languages: Sequence[str | None]
    ) -> list[str | None]:
        """U codes, detected in windows where that is asked for."""
        own = self.main.whisper
        codes = [language or own.language for language in languages]
        rows = [row for row, code in enumerate(codes) if code == DETECT and own.tokens.languages]
        if rows:
            batch = WindowBatch([windows[row] for row in rows], self.window_frames)
            encoded = batch.encode(self.main.encoder)
            found = own.choose_languages(self.main.search.decoder, *encoded, [DETECT] * len(rows))
            for row, code in zip(rows, found, strict=True):
                codes[row] = code
        return [own.known(code) for code in codes]

    def decode(
        self,
        encoded: WindowBatch,
        rows: Sequence[int],
        prompts: Sequence[Sequence[int]],
        languages: Sequence[str | None],
        temperature: float,
    ) -> list[tuple[WindowDecoding, DecodingStatistics]]:
        """Some of the windows, each with the text before it and its language."""
        batch = encoded.select(rows) if len(rows) < len(encoded.lengths) else encoded
        starts = [
            self._prompt(before, code) for before, code in zip(prompts, languages, strict=True)
        ]
        tokens = self.main.whisper.tokens
        watched = [Watched(start.index(tokens.start), tokens.no_speech) for start in starts]
        memory, frames = batch.encode(self.main.encoder)
        draws = []
        for search in self._searches(temperature):
            drafted = search.drafter.proposer is not None
            states = search(
                memory,
                frames,
                [torch.tensor(start, device=memory.device) for start in starts],
                LengthLimits(-self.most_tokens),
                draft_inputs(self.main, batch, starts) if drafted else None,
                watched,
            )
            draws.append(states)
        return [self._likeliest(drawn, temperature) for drawn in zip(*draws, strict=True)]

    def align(
        self,
        encoded: WindowBatch,
        row: int,
        frames: int,
        language: str | None,
        tokens: Sequence[int],
    ) -> list[TimedWord]:
        """Words of a window's text tokens, which are said within so many frames of 10 ms."""
        end, frames = self.main.whisper.tokens.end, frames // self.clock.frames
        if not tokens or not frames:
            return []
        words = split_words([*tokens, end], self.text.decode, end, language)
        memory, sizes = encoded.encode(self.main.encoder)
        own = memory[row : row + 1, : int(sizes[row])]
        return self.find_words(own, frames, words, language)

    def _prompt(self, before: Sequence[int], language: str | None) -> list[int]:
        own = self.main.whisper
        start = own.tokens.prompt(language, own.task, self.timestamps)
        return [own.tokens.previous, *before, *start] if before else start

    def _searches(self, temperature: float) -> list[Search]:
        """The Speech2Text's, with timestamps; at a temperature some that draw, undrafted."""
        own = self.main.search
        if temperature > 0:
            return [
                SamplingSearch(own.decoder, self.constraints, temperature, seed)
                for seed in range(self.best_of)
            ]
        parts = self.constraints, own.drafter.proposer, own.drafter.shape
        if isinstance(own, BeamSearch):
            options = self.main.search_options
            return [PatientBeamSearch(own.decoder, own.strategy.beam_size, *parts, options)]
        return [GreedySearch(own.decoder, own.strategy.rule, *parts)]

    def _likeliest(
        self, drawn: Sequence[SearchState], temperature: float
    ) -> tuple[WindowDecoding, DecodingStatistics]:
        """Of the texts drawn for a window, by the mean over their tokens; what all of them cost."""
        state = max(drawn, key=lambda state: state.n_best[0].score / max(_written(state), 1))
        tokens = tuple(state.n_best[0].tokens[:-1])
        decoding = WindowDecoding(
            tokens,
            self.text.decode(tokens),
            temperature,
            state.n_best[0].score / (len(tokens) + 1),
            state.watched.probability,
        )
        return decoding, sum((one.statistics for one in drawn), DecodingStatistics())


def _written(state: SearchState) -> int:
    """Tokens of the best hypothesis without its end."""
    return len(state.n_best[0].tokens) - 1


def check_long_form(main: WindowModel, options: LongFormOptions) -> None:
    """Refuse models and searches that do not decode windows as they are asked to.

    Raises:
        InputError: Says what is allowed.
    """
    reason = why_not_long_form(main)
    if reason is not None:
        raise InputError(reason)
    check_word_times(main.asr_model, options)


def why_not_long_form(main: WindowModel) -> str | None:
    """Why a model or its search does not decode windows with timestamps; None: it does."""
    if main.search is None or main.whisper is None or main.encoder.whisper is None:
        return (
            "timestamps: allowed with a Whisper in Whisper's tokens and prompts, nothing before or "
            "behind its encoder"
        )
    if not main.search.strategy.scoring.decoder_alone:
        others = ", ".join(main.search.strategy.scoring.names[1:])
        return f"{others}: allowed with long audio: weight 0, the decoder scores alone"
    draft, options = main.draft_model, main.search_options
    if draft is not None and draft.encoder.whisper is None:
        return f"draft_model: {draft.name}; allowed with long audio: a Whisper"
    if options.acceptance == THRESHOLD:
        return f"acceptance: {THRESHOLD}; allowed with long audio: rules that verify"
    for name, value in {"forced_prefix": options.forced_prefix, **options.ctc_thresholds}.items():
        if value not in ([], None):
            return f"{name}: {value}; allowed with long audio: none"
    return None
