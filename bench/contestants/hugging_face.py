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
    Memories,
    MemoryDecoder,
    Result,
    Timed,
    Transcriber,
    pad_encoder_outs,
    until_end,
)
from contestants.ways import Way

logging.set_verbosity_error()  # generate repeats its advice for every utterance
logging.disable_progress_bar()


class MemoryHuggingFace(MemoryDecoder):
    """Greedy and beam search; batches are padded without a mask, which ``generate`` lacks."""

    def load(self) -> None:
        self.dtype = getattr(torch, self.weights)
        model = WhisperForConditionalGeneration.from_pretrained(
            self.subject.hugging_face, dtype=self.dtype
        )
        self.model = model.to(self.setup.device).eval()
        self.options: dict = {}

    @torch.no_grad()
    def decode(self, way: Way, names: Sequence[str], encoder_outs: Memories) -> list[Result]:
        encoder_out = torch.from_numpy(pad_encoder_outs(encoder_outs)).to(
            self.setup.device, self.dtype
        )
        # Rank beams by score alone, as all others here.
        search = {"length_penalty": 0.0} if way.beam_size > 1 else {}
        tokens = self.model.generate(
            encoder_outputs=BaseModelOutput(last_hidden_state=encoder_out), num_beams=way.beam_size,
            max_new_tokens=self.subject.max_tokens, **search, **self.options,
        )  # fmt: skip
        return [Result(tokens=until_end(row, self.subject.eos)) for row in tokens.tolist()]


class Assisted(MemoryHuggingFace):
    """Assisted generation: a small decoder drafts from the same memory, as distil-whisper's does.

    ``generate`` allows no batches with an assistant, and chooses the draft length itself.
    """

    def load(self) -> None:
        super().load()
        # A decoder without encoder shares the encoder output with the model that it assists.
        assistant = WhisperForCausalLM.from_pretrained(self.subject.draft, dtype=self.dtype)
        self.options = {"assistant_model": assistant.to(self.setup.device).eval()}


def log_mel(
    extractor: WhisperFeatureExtractor, speeches: Sequence[np.ndarray], device: str
) -> torch.Tensor:
    """Return features (U, bins, frames) of U utterances (samples,), computed on the device."""
    inputs = extractor(
        [*speeches], sampling_rate=extractor.sampling_rate, return_tensors="pt", device=device
    )
    return inputs.input_features


class HuggingFace(Transcriber):
    """Greedy and beam search from samples, not compiled."""

    def load(self) -> None:
        folder = self.subject.hugging_face
        self.extractor = WhisperFeatureExtractor.from_pretrained(folder)
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        dtype = getattr(torch, self.weights)
        model = WhisperForConditionalGeneration.from_pretrained(folder, dtype=dtype)
        self.model = model.to(self.setup.device).eval()
        # English models have no language prompt.
        multilingual = getattr(model.generation_config, "is_multilingual", False)
        prompt = {"language": self.subject.language, "task": "transcribe"}
        self.options = prompt if multilingual else {}

    def transcribe(self, way: Way, samples: np.ndarray) -> Timed:
        return self.transcribe_batch([samples], way.beam_size)

    @torch.no_grad()
    def transcribe_batch(self, speeches: Sequence[np.ndarray], beam_size: int) -> Timed:
        """Transcribe U utterances (samples,) together."""
        started = time.perf_counter()
        features = log_mel(self.extractor, speeches, self.setup.device)
        features = features.to(self.setup.device, self.model.dtype)
        encoder_out = self.model.get_encoder()(features).last_hidden_state
        if self.setup.device == "cuda":
            torch.cuda.synchronize()
        encoded = time.perf_counter()
        tokens = self.model.generate(
            features,  # for an assistant's encoder
            encoder_outputs=BaseModelOutput(last_hidden_state=encoder_out),
            num_beams=beam_size,
            **self.options,
        )
        texts = self.tokenizer.batch_decode(tokens, skip_special_tokens=True)
        results = [Result(text.strip()) for text in texts]
        return Timed(results, encoded - started, time.perf_counter() - encoded)


class Compiled(HuggingFace):
    """``generate`` with a static cache, for which it compiles decoder steps on a GPU."""

    def load(self) -> None:
        super().load()
        self.options["cache_implementation"] = "static"


class SpeechAssisted(HuggingFace):
    """Assisted generation: another Whisper drafts, with an encoder of its own; no batches."""

    def load(self) -> None:
        super().load()
        assistant = WhisperForConditionalGeneration.from_pretrained(
            self.subject.draft, dtype=self.model.dtype
        )
        self.options["assistant_model"] = assistant.to(self.setup.device).eval()
