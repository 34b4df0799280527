"""transformers' ``generate``, not compiled."""

import time

import numpy as np
import torch
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
        self.model = model.eval()
        # English models have no prompt to choose.
        multilingual = getattr(model.generation_config, "is_multilingual", False)
        self.prompt = {"language": subject.language, "task": "transcribe"} if multilingual else {}

    @torch.no_grad()
    def transcribe(self, way: Way, samples: np.ndarray) -> Transcribed:
        started = time.perf_counter()
        read = self.extractor(
            samples, sampling_rate=self.extractor.sampling_rate, return_tensors="pt"
        )
        features = read.input_features.to(self.model.dtype)
        memory = self.model.get_encoder()(features).last_hidden_state
        encoded = time.perf_counter()
        tokens = self.model.generate(
            encoder_outputs=BaseModelOutput(last_hidden_state=memory),
            num_beams=way.beam_size,
            **self.prompt,
        )
        text = self.tokenizer.decode(tokens[0], skip_special_tokens=True)
        return Transcribed(text, encoded - started, time.perf_counter() - encoded)


build = HuggingFace
