"""What all contestants decode: one decoder's weights in everybody's form, and the same inputs."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from peers.way import CTC, CTC_HEADS, HEADS, MODEL

SUBJECT, HUGGING_FACE, DRAFT = "subject.json", "whisper", "draft"
OURS, OURS_DRAFT, OURS_CTC, ENCODER = (
    f"{part}.safetensors" for part in ("decoder", "draft", "ctc", "encoder")
)
INPUTS = "inputs"


@dataclass(frozen=True)
class Sizes:
    """Of the decoder.

    Attributes:
        layers: Decoder layers.
        hidden_size: D.
        attention_heads: Of each layer.
        vocab_size: V.
        max_positions: Of the decoder.
    """

    layers: int
    hidden_size: int
    attention_heads: int
    vocab_size: int
    max_positions: int


@dataclass(frozen=True)
class Subject:
    """A folder that ``make_subject.py`` wrote.

    Attributes:
        folder: ``whisper`` and ``draft`` in Hugging Face format (decoders; the encoder layer in
            them is never run), ``ctranslate2_<weights>``, ``decoder.safetensors`` (ours, heads
            included), ``draft.safetensors`` (the draft model's decoder, ours),
            ``ctc.safetensors``, ``encoder.safetensors`` where inputs are audio,
            ``inputs/<id>.npy``.
        name: For tables.
        sizes: Of the decoder.
        eos: The symbol that starts and ends a hypothesis.
        fixed_tokens: Tokens that every contestant writes (the end symbol cannot win), or None:
            each stops at the end symbol.
        decoder_conf: Options of ``WhisperMedusaDecoder``.
        encoder_conf: Options of ``HFWhisperEncoder``; None: inputs are memories (S, D).
        inputs: Ids of the inputs, longest first.
        draft_conf: Options of the draft model's ``WhisperMedusaDecoder``; None: there is none.
        ctc_blank: Blank of the CTC branch; None: there is none.
    """

    folder: Path
    name: str
    sizes: Sizes
    eos: int
    fixed_tokens: int | None
    decoder_conf: dict
    encoder_conf: dict | None
    inputs: list[str]
    draft_conf: dict | None = None
    ctc_blank: int | None = None

    @property
    def drafters(self) -> list[str]:
        """Who can draft for our decoder."""
        heads, ctc = "heads" in self.decoder_conf, self.ctc_blank is not None
        there = {HEADS: heads, CTC: ctc, CTC_HEADS: heads and ctc, MODEL: self.draft_conf}
        return [drafter for drafter, found in there.items() if found]

    @property
    def max_tokens(self) -> int:
        """Most tokens behind the start symbol."""
        return self.fixed_tokens or self.sizes.max_positions - 1

    def ctranslate2(self, weights: str) -> Path:
        """Folder of the weights that CTranslate2 reads."""
        return self.folder / f"ctranslate2_{weights}"

    def read_input(self, name: str) -> np.ndarray:
        """Audio (samples,) or memory (S, D), float32."""
        return np.load(self.folder / INPUTS / f"{name}.npy")

    def write_input(self, name: str, values: np.ndarray) -> None:
        """Keep an input for all contestants."""
        (self.folder / INPUTS).mkdir(parents=True, exist_ok=True)
        np.save(self.folder / INPUTS / f"{name}.npy", values)

    def save(self) -> None:
        """Write ``subject.json``."""
        fields = {name: value for name, value in asdict(self).items() if name != "folder"}
        (self.folder / SUBJECT).write_text(json.dumps(fields, indent=1), encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> "Subject":
        """Read what ``save`` wrote."""
        fields = json.loads((folder / SUBJECT).read_text(encoding="utf-8"))
        return cls(folder, **fields | {"sizes": Sizes(**fields["sizes"])})
