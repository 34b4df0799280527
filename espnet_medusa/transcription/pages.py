"""Pages of transcripts: the decoding, next to the same decoding without drafts."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from espnet_medusa.inference.decoding_model import DecodingModel
from espnet_medusa.page.content import Shown, show
from espnet_medusa.search.options import HEADS, MODEL
from espnet_medusa.transcription.formats import Transcript

HTML = "html"
BASELINE = "baseline"  # folder of the decodings without drafts
WITHOUT_DRAFTS: dict[str, Any] = {
    "draft_depth": 0, "drafter": None, "draft_model": None, "draft_model_file": None,
    "lookahead": "fixed", "medusa_choices": None,
}  # fmt: skip


def drafter_of(model: DecodingModel) -> str | None:
    """Return who drafts, as the decode option ``drafter``; None: the search has no drafts."""
    if model.search is None or model.search.planner.steps is None:
        return None
    return model.options.drafter or (MODEL if model.draft_model is not None else HEADS)


def write_pages(
    folder: Path,
    transcripts: Sequence[Transcript],
    baselines: Sequence[Transcript],
    drafter: str | None,
    options: Mapping[str, Any],
    embed_audio: bool,
) -> None:
    """Write ``NAME.html`` of each transcript; ``baselines`` have the same order or are empty."""
    for number, transcript in enumerate(transcripts):
        if transcript.error is not None:
            continue
        shown = _shown(transcript)
        if baselines and baselines[number].error is None:
            shown = replace(shown, baseline=_shown(baselines[number]))
        path = folder / f"{transcript.recording.name}.{HTML}"
        show(path, transcript.recording.path.name, [shown], drafter, options, embed_audio)


def _shown(transcript: Transcript) -> Shown:
    return Shown(
        transcript.recording.id,
        transcript.line,
        transcript.statistics,
        transcript.trace,
        segments=transcript.segments or (),
        entry=str(transcript.recording.path),
    )
