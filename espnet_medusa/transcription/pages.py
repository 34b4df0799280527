"""Pages of transcripts: the decoding, next to the same decoding without drafts."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from espnet_medusa.data.audio.reading import AudioReading
from espnet_medusa.inference.longform.long_form_options import LongFormOptions
from espnet_medusa.inference.longform.recording import LongRecording
from espnet_medusa.inference.speech2text import Speech2Text
from espnet_medusa.inference.whisper_windows import why_not_long_form
from espnet_medusa.transcription.formats import Transcript
from espnet_medusa.transcription.page.content import Shown, show

HTML = "html"
WARM_UP_S = 2.0
BASELINE = "baseline"  # folder of the decodings without drafts


def warm_up(speech2text: Speech2Text, long_form: LongFormOptions) -> None:
    """Decode noise: the first calls of a process are slower, and a page shows milliseconds."""
    count = round(WARM_UP_S * speech2text.sample_rate_hz)
    noise = 0.01 * np.random.default_rng(0).standard_normal(count).astype(np.float32)
    changes = {"skip_silence": False, "no_speech_threshold": None, "vad_filter": False}
    spoken = replace(long_form, **changes, temperature_increment_on_fallback=None)
    for options in (long_form, spoken, spoken):  # ``long_form`` may skip the noise
        if why_not_long_form(speech2text.model) is None:
            for _ in speech2text.long_form(options)([LongRecording(None, noise)]):
                pass
        else:
            speech2text.decode([noise])


def write_pages(
    folder: Path,
    transcripts: Sequence[Transcript],
    baselines: Sequence[Transcript],
    options: Mapping[str, Any],
    embed_audio: bool,
    reading: AudioReading,
) -> list[Transcript]:
    """Write ``NAME.html`` of each transcript; return all, failed ones without a page.

    ``baselines`` have the same order or are empty; ``reading`` is that of the decoding.
    """
    written = [*transcripts]
    for number, transcript in enumerate(transcripts):
        if transcript.error is not None:
            continue
        shown = _shown(transcript)
        if baselines and baselines[number].error is None:
            shown = replace(shown, baseline=_shown(baselines[number]))
        path = folder / f"{transcript.recording.name}.{HTML}"
        title = transcript.recording.path.name
        page = partial(_show_quietly, path, title, [shown], options, embed_audio, reading)
        written[number] = transcript.written(page)
    return written


def _show_quietly(*page: Any) -> None:
    """Write a page; decoding has already warned about the audio."""
    reader = logging.getLogger("espnet_medusa.data.audio")
    level = reader.level
    reader.setLevel(logging.ERROR)
    try:
        show(*page)
    finally:
        reader.setLevel(level)


def _shown(transcript: Transcript) -> Shown:
    return Shown(
        transcript.recording.id,
        transcript.line,
        transcript.statistics,
        transcript.trace,
        segments=transcript.segments or (),
        entry=transcript.recording.path,
    )
