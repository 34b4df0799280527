"""Utterances beyond the model's window: decoded as long audio, written down as the others are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from espnet_medusa.inference.batches import FRAMES_PER_S, Utterance
from espnet_medusa.inference.decoding import Decoding
from espnet_medusa.longform.options import LongFormOptions
from espnet_medusa.longform.recording import LongRecording, RunLongForm, RunningRecording
from espnet_medusa.search.scores import DECODER
from espnet_medusa.upstream.compat import Hypothesis


class LongFormModel(Protocol):
    """What decodes: ``Speech2Text``."""

    converter: Any
    window_s: float | None

    def long_form(self, options: LongFormOptions, batch_size: int = 1) -> RunLongForm: ...


@dataclass(frozen=True)
class LongUtterances:
    """How they are decoded.

    Attributes:
        model: By what.
        options: How windows follow each other.
        batch_size: Most utterances that run at once.
        max_batch_frames: Most frames of 10 ms of their windows together; None: no limit.
    """

    model: LongFormModel
    options: LongFormOptions
    batch_size: int = 1
    max_batch_frames: int | None = None

    @property
    def at_once(self) -> int:
        """Utterances that run at once: a window of each is decoded with those of the others."""
        if self.max_batch_frames is None:
            return self.batch_size
        windows = self.max_batch_frames // round(self.model.window_s * FRAMES_PER_S)
        return max(min(self.batch_size, windows), 1)

    def decode(self, utterances: Iterable[Utterance]) -> Iterator[tuple[str, Decoding | Exception]]:
        """Ids with a result, or with the reason why there is none.

        Args:
            utterances: Read one by one, when there is room for one.
        """
        run = self.model.long_form(self.options, self.at_once)
        recordings = (
            LongRecording(one.key, one.speech, one.language, one.key) for one in utterances
        )
        for step in run(recordings):
            found = step.recording
            if step.done:
                yield found.key, self._write(found) if found.error is None else found.error

    def _write(self, found: RunningRecording) -> Decoding:
        """One hypothesis: the text of all segments on a line, and its tokens, without timestamps.

        Its score is the log-probability of all that was written, timestamps and ends included.
        """
        tokens, score = found.text_tokens, torch.tensor(found.score)
        text = " ".join(found.text.split())
        hypothesis = Hypothesis(torch.tensor(tokens), score, {DECODER: score})
        result = text, self.model.converter.ids2tokens(tokens), tokens, hypothesis
        return Decoding([result], found.statistics, found.language, tuple(found.segments))
