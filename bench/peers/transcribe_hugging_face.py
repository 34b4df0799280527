"""transformers' ``generate``, not compiled."""

import time
from collections.abc import Sequence

import numpy as np
import torch
from machine import wait_for
from transformers import AutoTokenizer, WhisperFeatureExtractor, WhisperForConditionalGeneration
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils import logging

from peers.contestant import Setup
from peers.transcriber import Transcribed, Transcriber
from peers.way import Way
from peers.whisper_subject import WhisperSubject

logging.set_verbosity_error()  # generate repeats its advice for every utterance
logging.disable_progress_bar()


class HuggingFace(Transcriber):
    """Greedy and beam search."""

    def __init__(self, subject: WhisperSubject, weights: str, setup: Setup):
        super().__init__(subject, weights, setup)
        folder = subject.hugging_face
        self.extractor = WhisperFeatureExtractor.from_pretrained(folder)
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        model = WhisperForConditionalGeneration.from_pretrained(
            folder, dtype=getattr(torch, weights)
        )
        self.model = model.to(setup.device).eval()
        # English models have no prompt to choose.
        multilingual = getattr(model.generation_config, "is_multilingual", False)
        self.prompt = {"language": subject.language, "task": "transcribe"} if multilingual else {}

    def transcribe(self, way: Way, samples: np.ndarray) -> Transcribed:
        started = time.perf_counter()
        memory = self.encode([samples])
        wait_for(self.setup.device)
        encoded = time.perf_counter()
        (text,) = self.write(memory, way.beam_size)
        return Transcribed(text, encoded - started, time.perf_counter() - encoded)

    @torch.no_grad()
    def encode(self, speeches: Sequence[np.ndarray]) -> torch.Tensor:
        """Memory (U, S, D) of U utterances (samples,)."""
        read = self.extractor(
            [*speeches], sampling_rate=self.extractor.sampling_rate, return_tensors="pt",
            device=self.setup.device,
        )  # fmt: skip
        features = read.input_features.to(self.setup.device, self.model.dtype)
        return self.model.get_encoder()(features).last_hidden_state

    @torch.no_grad()
    def write(self, memory: torch.Tensor, beam_size: int) -> list[str]:
        """Texts of memory (U, S, D)."""
        tokens = self.model.generate(
            encoder_outputs=BaseModelOutput(last_hidden_state=memory),
            num_beams=beam_size,
            **self.prompt,
        )
        return self.tokenizer.batch_decode(tokens, skip_special_tokens=True)


build = HuggingFace
