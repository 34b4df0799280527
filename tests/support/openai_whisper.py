"""Random Whispers of openai-whisper's own, as small as its long-form transcription allows."""

from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from whisper.model import ModelDimensions, Whisper

VOCAB_SIZE, END, FIRST_TIME = 51865, 50257, 50364


def openai_whisper(
    seed: int, end: float = 0.0, times: float = 0.0, layers: int = 2, text_context: int = 48
) -> Whisper:
    """A model that writes text, timestamps and ends.

    Args:
        end: How much is added to the end symbol's logits.
    """
    torch.manual_seed(seed)
    dims = ModelDimensions(
        n_mels=80, n_audio_ctx=1500, n_audio_state=32, n_audio_head=2, n_audio_layer=1,
        n_vocab=VOCAB_SIZE, n_text_ctx=text_context, n_text_state=32, n_text_head=2,
        n_text_layer=layers,
    )  # fmt: skip
    model = Whisper(dims)
    for name, parameter in model.named_parameters():
        if not name.endswith("ln.weight"):
            torch.nn.init.normal_(parameter, std=0.3)
    table, bias = model.decoder.token_embedding.weight.data, model.decoder.ln.bias.data
    bias /= bias.norm()  # what is added to an embedding along it is added to the logit
    table[END] += end * bias
    table[FIRST_TIME:] += times * bias
    return model.eval()


def save_openai_whisper(model: Whisper, path: Path) -> Path:
    """A ``.pt`` file as OpenAI's."""
    torch.save({"dims": asdict(model.dims), "model_state_dict": model.state_dict()}, path)
    return path


def noise_and_silence(seconds: float, seed: int) -> np.ndarray:
    """(samples,) at 16 kHz whose windows differ."""
    rng = np.random.default_rng(seed)
    samples = rng.standard_normal(int(16000 * seconds))
    loudness = np.repeat(rng.uniform(0, 0.3, int(seconds) + 1), 16000)[: len(samples)]
    return (samples * loudness).astype(np.float32)
