"""transformers' Whisper: the oracle of our networks and of greedy search."""

from pathlib import Path

import torch
from tiny_whisper import save_tiny_whisper
from transformers import WhisperFeatureExtractor, WhisperForConditionalGeneration


def tiny_whisper(folder: Path, *arguments: int, **sizes: int) -> WhisperForConditionalGeneration:
    save_tiny_whisper(folder, *arguments, **sizes)
    return WhisperForConditionalGeneration.from_pretrained(folder).eval()


def features_of(speech, num_mel_bins: int = 80) -> torch.Tensor:
    extractor = WhisperFeatureExtractor(feature_size=num_mel_bins)
    return extractor(speech, sampling_rate=16000, return_tensors="pt").input_features


@torch.no_grad()
def logits_of(whisper, features: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    return whisper(features, decoder_input_ids=tokens).logits


def generate(whisper, speech, prompt: list[int], rules, most: int = 12) -> list[int]:
    """Return transformers' greedy text; ``rules``: a vocabulary's special and suppressed tokens."""
    found = whisper.generate(
        features_of(speech), decoder_input_ids=torch.tensor([prompt]), max_new_tokens=most,
        do_sample=False, num_beams=1, suppress_tokens=rules.suppressed,
        begin_suppress_tokens=rules.begin_suppressed,
    )[0].tolist()  # fmt: skip
    found = found[len(prompt) :] if found[: len(prompt)] == prompt else found
    return [token for token in found if token != rules.end]
