"""CTranslate2, the engine that faster-whisper runs, on weights converted from ours.

faster-whisper's own ``generate_with_fallback`` calls ``Whisper.generate`` with the encoder's
output, as we do here; what it does around that call (features, timestamps, higher temperatures) is
left out.
"""

from collections.abc import Sequence
from pathlib import Path

import ctranslate2
import numpy as np

from peers.contestant import Contestant, Decoded, Setup
from peers.memories import pad_memories
from peers.subject import Subject
from peers.way import Way

END = "<|endoftext|>"


def convert(hugging_face: Path, eos: int, weights: str, folder: Path) -> None:
    """Convert a folder in Hugging Face format.

    The vocabulary names the end symbol and no other special one: CTranslate2 then takes it for the
    start symbol and for ``<|notimestamps|>``, too, which turns its rules for timestamps off.

    Args:
        hugging_face: Weights to convert.
        eos: Start and end symbol.
        weights: Type to convert to.
        folder: To write; its parent is there.
    """
    from ctranslate2.converters.transformers import WhisperLoader
    from transformers import WhisperForConditionalGeneration

    model = WhisperForConditionalGeneration.from_pretrained(hugging_face)
    spec = WhisperLoader().get_model_spec(model)
    names = [str(token) for token in range(model.config.vocab_size)]
    names[eos] = END
    spec.register_vocabulary(names)
    for name in ("suppress_ids", "suppress_ids_begin", "alignment_heads", "lang_ids"):
        setattr(spec.config, name, [])
    spec.validate()
    spec.optimize(quantization=None if weights == "float32" else weights)
    folder.mkdir()
    spec.save(str(folder))


class CTranslate2(Contestant):
    """Greedy and beam search; inputs of a batch are padded without a mask, it knows none."""

    def __init__(self, subject: Subject, weights: str, setup: Setup):
        super().__init__(subject, weights, setup)
        self.model = ctranslate2.models.Whisper(
            str(subject.ctranslate2(weights)),
            device=setup.device,
            compute_type=weights,
            intra_threads=setup.threads,
        )

    def decode(self, way: Way, names: Sequence[str], memories: Sequence[np.ndarray]) -> Decoded:
        results = self.model.generate(
            ctranslate2.StorageView.from_array(pad_memories(memories)),
            [[self.subject.eos]] * len(memories),
            beam_size=way.beam_size,
            max_length=2 * self.subject.max_tokens,  # it writes at most half of that
            length_penalty=0.0,  # rank by score alone, as all others here
            suppress_tokens=[],
            suppress_blank=False,
        )
        return Decoded([result.sequences_ids[0] for result in results])


build = CTranslate2
