"""Subjects: one model in the format of each contestant, with the inputs that all of them decode."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from contestants.base import MEMORIES, RECORDINGS, SPEECH
from contestants.ways import CTC, CTC_HEADS, HEADS, MODEL

SUBJECT, INPUTS = "subject.json", "inputs"
OURS_FILE, DRAFT_FILE, CTC_FILE, ENCODER_FILE = (
    f"{part}.safetensors" for part in ("decoder", "draft", "ctc", "encoder")
)


@dataclass(frozen=True)
class Subject:
    """A folder with a model and inputs."""

    folder: Path  # ``inputs/<id>.npy`` has the inputs
    name: str  # for tables
    inputs: list[str]  # ids

    @property
    def hugging_face(self) -> Path:
        """The model in the format of transformers."""
        return self.folder / "hugging_face"

    def read_input(self, name: str) -> np.ndarray:
        """Return audio (samples,), 16 kHz, or a memory (S, D), float32."""
        return np.load(self.folder / INPUTS / f"{name}.npy")

    def save(self, inputs: Mapping[str, np.ndarray]) -> None:
        """Write ``subject.json`` and the inputs by id."""
        (self.folder / INPUTS).mkdir(parents=True, exist_ok=True)
        for name, values in inputs.items():
            np.save(self.folder / INPUTS / f"{name}.npy", values.astype(np.float32))
        fields = {name: value for name, value in asdict(self).items() if name != "folder"}
        text = json.dumps({"class": type(self).__name__, **fields}, indent=1)
        (self.folder / SUBJECT).write_text(text, encoding="utf-8")


@dataclass(frozen=True)
class Sizes:
    """Sizes of a decoder."""

    layers: int
    hidden_size: int
    attention_heads: int
    vocab_size: int
    max_positions: int


@dataclass(frozen=True)
class MemorySubject(Subject):
    """A decoder and the encoder outputs that it decodes.

    The folder has ``hugging_face`` and ``draft`` (decoders with an unused encoder layer),
    ``ctranslate2_<weights>``, ``decoder.safetensors`` (ours, with heads), ``draft.safetensors``
    (the decoder of our draft model), ``ctc.safetensors``, and ``encoder.safetensors`` where inputs
    are audio.
    """

    sizes: Sizes  # sizes of the decoder
    eos: int  # the symbol that starts and ends a hypothesis
    # Number of tokens that every contestant writes, as the end symbol cannot win; None: each stops
    # at the end symbol.
    fixed_tokens: int | None
    decoder_conf: dict  # options of ``WhisperMedusaDecoder``
    # Options of ``HFWhisperEncoder``; None: inputs are memories (S, D).
    encoder_conf: dict | None = None
    # Options of the draft model's decoder; None: there is no draft model.
    draft_conf: dict | None = None
    ctc_blank: int | None = None  # blank of the CTC branch; None: there is no CTC branch

    kind = MEMORIES

    @property
    def draft(self) -> Path:
        """The draft model in the format of transformers."""
        return self.folder / "draft"

    def ctranslate2(self, weights: str) -> Path:
        """The decoder in the format of CTranslate2."""
        return self.folder / f"ctranslate2_{weights}"

    @property
    def drafters(self) -> list[str]:
        """Drafters that the model has."""
        heads, ctc = "heads" in self.decoder_conf, self.ctc_blank is not None
        available = {HEADS: heads, CTC: ctc, CTC_HEADS: heads and ctc, MODEL: self.draft_conf}
        return [drafter for drafter, has in available.items() if has]

    @property
    def max_tokens(self) -> int:
        """Largest number of tokens after the start symbol."""
        return self.fixed_tokens or self.sizes.max_positions - 1


@dataclass(frozen=True)
class SpeechSubject(Subject):
    """A real Whisper and speech; ``hugging_face`` and ``ctranslate2`` (float32) have no heads."""

    config: str  # ``config.yaml`` of our experiment
    weights: str  # its weights
    language: str  # language of the prompt
    draft_model: str | None = None  # value of the decode option; None: there is no draft model
    drafters: list[str] = field(default_factory=list)  # drafters that the experiment has
    left_out: list[str] = field(default_factory=list)  # reasons why other drafters are missing
    long: bool = False  # whether the inputs are recordings of any length

    @property
    def kind(self) -> str:
        """``RECORDINGS`` or ``SPEECH``."""
        return RECORDINGS if self.long else SPEECH

    @property
    def draft(self) -> Path:
        """The assistant in the format of transformers."""
        return self.folder / "draft"

    @property
    def ctranslate2(self) -> Path:
        """The model for faster-whisper, which converts the weights when it loads them."""
        return self.folder / "ctranslate2"


def load_subject(folder: Path) -> MemorySubject | SpeechSubject:
    """Read what ``save`` wrote."""
    fields = json.loads((folder / SUBJECT).read_text(encoding="utf-8"))
    if fields.pop("class") == MemorySubject.__name__:
        return MemorySubject(folder, **fields | {"sizes": Sizes(**fields["sizes"])})
    return SpeechSubject(folder, **fields)
