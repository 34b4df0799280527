"""A real Whisper in everybody's form, and speech: what transcribers get."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

SUBJECT, INPUTS = "whisper_subject.json", "inputs"


@dataclass(frozen=True)
class WhisperSubject:
    """A folder that ``make_whisper_subject.py`` wrote.

    Attributes:
        folder: ``hugging_face`` and ``ctranslate2`` (float32) with the same weights, heads left
            out; ``inputs/<id>.npy``.
        name: For tables.
        config: ``config.yaml`` of our experiment.
        weights: Its weights.
        language: Of the prompt.
        draft_model: The decode option; None: there is none.
        drafters: Who can draft for ours.
        inputs: Ids of the utterances.
        left_out: Why other drafters are not among them.
    """

    folder: Path
    name: str
    config: str
    weights: str
    language: str
    draft_model: str | None
    drafters: list[str]
    inputs: list[str]
    left_out: list[str] = field(default_factory=list)

    @property
    def hugging_face(self) -> Path:
        """What transformers reads, and openai-whisper's weights are made from."""
        return self.folder / "hugging_face"

    @property
    def ctranslate2(self) -> Path:
        """What faster-whisper reads; it converts to other types when it loads."""
        return self.folder / "ctranslate2"

    def read_input(self, name: str) -> np.ndarray:
        """Audio (samples,), float32, 16 kHz."""
        return np.load(self.folder / INPUTS / f"{name}.npy")

    def save(self, speeches: dict[str, np.ndarray]) -> None:
        """Write ``whisper_subject.json`` and the audio by id."""
        (self.folder / INPUTS).mkdir(parents=True, exist_ok=True)
        for name, speech in speeches.items():
            np.save(self.folder / INPUTS / f"{name}.npy", speech.astype(np.float32))
        fields = {name: value for name, value in asdict(self).items() if name != "folder"}
        (self.folder / SUBJECT).write_text(json.dumps(fields, indent=1), encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> "WhisperSubject":
        """Read what ``save`` wrote."""
        return cls(folder, **json.loads((folder / SUBJECT).read_text(encoding="utf-8")))
