"""transformers' ``generate``, on memories and on speech."""

import time
from collections.abc import Sequence

import numpy as np
import torch
from transformers import (
    AutoTokenizer,
    WhisperFeatureExtractor,
    WhisperForCausalLM,
    WhisperForConditionalGeneration,
)
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils import logging

from contestants.base import (
    MemoryDecoder,
    Result,
    Setup,
    Timed,
    Transcriber,
    pad_memories,
    until_end,
)
from contestants.subjects import MemorySubject, SpeechSubject
from contestants.ways import Way

logging.set_verbosity_error()  # generate repeats its advice for every utterance
logging.disable_progress_bar()


class MemoryHuggingFace(MemoryDecoder):
    """Greedy and beam search; batches are padded without a mask, which ``generate`` lacks."""

    def __init__(self, subject: MemorySubject, weights: str, setup: Setup):
        super().__init__(subject, weights, setup)
        self.dtype = getattr(torch, weights)
        model = WhisperForConditionalGeneration.from_pretrained(
            subject.hugging_face, dtype=self.dtype
        )
        self.model = model.to(setup.device).eval()
        self.options: dict = {}

    @torch.no_grad()
    def decode(
        self, way: Way, names: Sequence[str], memories: Sequence[np.ndarray]
    ) -> list[Result]:
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
        return [Result(tokens=until_end(row, self.subject.eos)) for row in tokens.tolist()]


class Assisted(MemoryHuggingFace):
    """Assisted generation: a small decoder on the same memory drafts, as distil-whisper's.

    ``generate`` allows no batches with an assistant, and chooses the draft length itself.
    """

    def __init__(self, subject: MemorySubject, weights: str, setup: Setup):
        super().__init__(subject, weights, setup)
        # A decoder without encoder shares the encoder output with the model that it assists.
        assistant = WhisperForCausalLM.from_pretrained(subject.draft, dtype=self.dtype)
        self.options = {"assistant_model": assistant.to(setup.device).eval()}


class Compiled(MemoryHuggingFace):
    """Greedy search on CUDA with a static cache and a compiled forward."""

    def __init__(self, subject: MemorySubject, weights: str, setup: Setup):
        super().__init__(subject, weights, setup)
        self.model.forward = torch.compile(
            self.model.forward, mode="reduce-overhead", fullgraph=True
        )
        self.options = {"cache_implementation": "static"}


class HuggingFace(Transcriber):
    """Greedy and beam search from samples, not compiled."""

    def __init__(self, subject: SpeechSubject, weights: str, setup: Setup):
        super().__init__(subject, weights, setup)
        folder = subject.hugging_face
        self.extractor = WhisperFeatureExtractor.from_pretrained(folder)
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        model = WhisperForConditionalGeneration.from_pretrained(
            folder, dtype=getattr(torch, weights)
        )
        self.model = model.to(setup.device).eval()
        # English models have no language prompt.
        multilingual = getattr(model.generation_config, "is_multilingual", False)
        self.prompt = {"language": subject.language, "task": "transcribe"} if multilingual else {}

    def transcribe(self, way: Way, samples: np.ndarray) -> Timed:
        return self.transcribe_batch([samples], way.beam_size)

    @torch.no_grad()
    def transcribe_batch(self, speeches: Sequence[np.ndarray], beam_size: int) -> Timed:
        """Transcribe U utterances (samples,) together."""
        started = time.perf_counter()
        inputs = self.extractor(
            [*speeches], sampling_rate=self.extractor.sampling_rate, return_tensors="pt",
            device=self.setup.device,
        )  # fmt: skip
        features = inputs.input_features.to(self.setup.device, self.model.dtype)
        memory = self.model.get_encoder()(features).last_hidden_state
        if self.setup.device == "cuda":
            torch.cuda.synchronize()
        encoded = time.perf_counter()
        tokens = self.model.generate(
            encoder_outputs=BaseModelOutput(last_hidden_state=memory),
            num_beams=beam_size,
            **self.prompt,
        )
        texts = self.tokenizer.batch_decode(tokens, skip_special_tokens=True)
        return Timed([*map(Result, texts)], encoded - started, time.perf_counter() - encoded)
