"""transformers' ``generate`` with a static cache and a compiled forward."""

import torch

from peers.contestant import Setup
from peers.hugging_face import HuggingFace
from peers.subject import Subject


class CompiledHuggingFace(HuggingFace):
    """Greedy search on CUDA; the first calls compile."""

    def __init__(self, subject: Subject, weights: str, setup: Setup):
        super().__init__(subject, weights, setup)
        self.model.forward = torch.compile(
            self.model.forward, mode="reduce-overhead", fullgraph=True
        )
        self.options = {"cache_implementation": "static"}


build = CompiledHuggingFace
