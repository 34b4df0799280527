"""transformers' assisted generation: a small decoder on the same memory drafts (distil-whisper)."""

from transformers import WhisperForCausalLM

from peers.contestant import Setup
from peers.hugging_face import HuggingFace
from peers.subject import DRAFT, Subject


class AssistedHuggingFace(HuggingFace):
    """Greedy search; ``generate`` allows no batches with an assistant.

    transformers decides itself how far the assistant runs ahead (its default schedule).
    """

    def __init__(self, subject: Subject, weights: str, setup: Setup):
        super().__init__(subject, weights, setup)
        # A decoder without encoder shares the encoder's output with the model that it assists.
        assistant = WhisperForCausalLM.from_pretrained(subject.folder / DRAFT, dtype=self.dtype)
        self.options = {"assistant_model": assistant.to(setup.device).eval()}


build = AssistedHuggingFace
