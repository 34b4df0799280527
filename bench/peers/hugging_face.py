"""transformers' ``generate`` on the encoder's output."""

from collections.abc import Sequence

import numpy as np
import torch
from transformers import WhisperForConditionalGeneration
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils import logging

from peers.contestant import Contestant, Decoded, Setup
from peers.memories import pad_memories, until_end
from peers.subject import HUGGING_FACE, Subject
from peers.way import Way

logging.set_verbosity_error()  # generate repeats its advice for every utterance
logging.disable_progress_bar()


class HuggingFace(Contestant):
    """Greedy and beam search.

    Inputs of a batch are padded without a mask: Whisper's generate has none.
    """

    def __init__(self, subject: Subject, weights: str, setup: Setup):
        super().__init__(subject, weights, setup)
        folder = subject.folder / HUGGING_FACE
        self.dtype = getattr(torch, weights)
        model = WhisperForConditionalGeneration.from_pretrained(folder, dtype=self.dtype)
        self.model = model.to(setup.device).eval()
        self.options: dict = {}

    @torch.no_grad()
    def decode(self, way: Way, names: Sequence[str], memories: Sequence[np.ndarray]) -> Decoded:
        memory = torch.from_numpy(pad_memories(memories)).to(self.setup.device, self.dtype)
        search = {"num_beams": way.beam_size}
        if way.beam_size > 1:
            search["length_penalty"] = 0.0  # rank by score alone, as all others here
        tokens = self.model.generate(
            encoder_outputs=BaseModelOutput(last_hidden_state=memory),
            max_new_tokens=self.subject.max_tokens,
            **search,
            **self.options,
        )
        return Decoded([until_end(row, self.subject.eos) for row in tokens.tolist()])


build = HuggingFace
