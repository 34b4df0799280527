"""Decoding in ESPnet3: a model for ``model._target_`` and a runner with texts and statistics."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from espnet3.systems.base.inference_runner import InferenceRunner
from espnet3.systems.esp2_asr.inference import ASRInferenceRunner

from espnet_medusa.data.options import build_options
from espnet_medusa.inference.decoding import Decoding, Speech
from espnet_medusa.inference.longform.long_form_options import LongFormOptions
from espnet_medusa.inference.longform.segment import Segment
from espnet_medusa.inference.smaller_batches import run_list
from espnet_medusa.inference.speech2text import Speech2Text

SEGMENTS = "segments"


class Decoder:
    """A model with its search: utterances in, ``Decoding`` out.

    Args:
        model_tag: A Whisper (hub name, folder, ``.pt`` file) or a packed model; None: ``options``
            name an experiment.
        long_form: Fields of ``LongFormOptions``, for audio longer than the model's window; None:
            such audio is an error.
        options: Arguments of ``Speech2Text``.
    """

    def __init__(
        self,
        model_tag: str | None = None,
        long_form: Mapping[str, Any] | None = None,
        **options: Any,
    ):
        self.speech2text = Speech2Text.from_pretrained(model_tag, **options)
        self.long_form = None if long_form is None else dict(long_form)
        build_options(LongFormOptions, self.long_form or {}, "long_form")  # errors before decoding

    def __call__(self, speech: Speech | Sequence[Speech]) -> Decoding | list[Decoding]:
        """Decode (samples,), or a list as one batch; raise InputError for one that fails."""
        if not isinstance(speech, list | tuple):
            return self([speech])[0]
        read = run_list(lambda rows: [*map(self.speech2text.model.audio.read, rows)], speech)
        window_s = self.speech2text.window_s
        limit = torch.inf if window_s is None else window_s * self.speech2text.sample_rate_hz
        long = [self.long_form is not None and len(samples) > limit for samples in read]
        short = run_list(
            self.speech2text.decode,
            [samples for samples, is_long in zip(read, long, strict=True) if not is_long],
        )
        return [
            self._decode_long(samples) if is_long else short.pop(0)
            for samples, is_long in zip(read, long, strict=True)
        ]

    def _decode_long(self, samples: torch.Tensor) -> Decoding:
        segments = tuple(self.speech2text.transcribe(samples, **self.long_form))
        text = "".join(segment.text for segment in segments).strip()
        statistics = replace(self.speech2text.statistics)
        return Decoding([(text, [], [], None)], statistics, segments=segments)


class MedusaRunner(ASRInferenceRunner):
    """Writes of each utterance its text, and its segments, counts and seconds.

    The contract's ``outputs`` select the fields; numbers are those of ``DecodingStatistics``.
    """

    @staticmethod
    def format_output(result: Any, *, batched: bool) -> Any:
        """Return the fields of a ``Decoding``, or of each in a list."""
        return [*map(fields_of, result)] if batched else fields_of(result)

    @staticmethod
    def write_record(writers: dict, result: Any, state: dict, **env: Any) -> None:
        """Write as ESPnet3 does; segments become a JSON file, which needs a dictionary."""
        results = result if isinstance(result, list) else [result]
        results = [
            {**one, SEGMENTS: {SEGMENTS: one[SEGMENTS]}} if SEGMENTS in one else one
            for one in results
        ]
        InferenceRunner.write_record(writers, results, state, **env)


def fields_of(decoding: Decoding) -> dict[str, Any]:
    """Return the text, segments and statistics of an utterance by name."""
    text = (decoding.results[0][0] if decoding.results else None) or ""
    statistics, segments = decoding.statistics, decoding.segments
    if segments is None:
        whole = {"text": text, "start": 0.0, "end": statistics.audio_seconds}
        parts = [whole] if text else []
    else:
        parts = [_as_dict(segment) for segment in segments]
    return {
        "text": text,
        SEGMENTS: parts,
        "decoder_calls": statistics.decoder_calls,
        "tokens": statistics.tokens,
        "seconds": statistics.total_seconds,
        "audio_seconds": statistics.audio_seconds,
    }


def _as_dict(segment: Segment) -> dict[str, Any]:
    return {"text": segment.text.strip(), "start": segment.start_s, "end": segment.end_s}
