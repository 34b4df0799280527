"""Identify Whisper weights independently of file format and precision."""

import hashlib
from collections.abc import Mapping

import numpy as np
import torch

PREFIXES = ("encoder.whisper.", "decoder.whisper.")
# Sinusoids, equal in every Whisper: a converter may have recomputed them.
NOT_LEARNED = "encoder.whisper.embed_positions.weight"


def digests(weights: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """Return SHA-256 of each learned tensor of encoder and decoder: shape and values in float16.

    Whisper was published in float16. Files in float32 with the same values have the same digests;
    fine-tuned or dequantized weights have others. Other tensors, such as heads, are ignored.
    """
    return {
        name: _digest(weights[name])
        for name in sorted(weights)
        if name.startswith(PREFIXES) and name != NOT_LEARNED
    }


def fingerprint(weights: Mapping[str, torch.Tensor]) -> str:
    """Return SHA-256 of all ``digests`` with their names, in hexadecimal."""
    lines = (f"{name} {digest}\n" for name, digest in digests(weights).items())
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _digest(tensor: torch.Tensor) -> str:
    values = tensor.detach().to("cpu", torch.float16) + 0.0  # -0.0 becomes 0.0
    stored = np.ascontiguousarray(values.numpy().astype("<f2", copy=False))
    digest = hashlib.sha256(str(tuple(values.shape)).encode())
    digest.update(stored)
    return digest.hexdigest()
