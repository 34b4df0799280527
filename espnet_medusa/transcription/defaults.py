"""Defaults of ``espnet-medusa-transcribe``, chosen by measurement (``bench/conditions.py``)."""

from collections.abc import Mapping
from typing import Any

import torch

from espnet_medusa.longform.options import REPETITION
from espnet_medusa.runtime.native.library import kernels
from espnet_medusa.runtime.precision import INT8

BEAM_SIZE = 5
# Differences from openai-whisper's options.
FALLBACK = {"fallback_on": REPETITION, "best_of": 5, "skip_silence": True}


def with_defaults(options: Mapping[str, Any], device: str) -> dict[str, Any]:
    """Add the command's defaults: beam search, 8-bit integers if the kernels run, and fallback."""
    beam_size = options.get("beam_size", BEAM_SIZE)
    chosen = {
        "batch_size": 8,
        "search": "beam" if beam_size > 1 else "greedy",
        "beam_size": BEAM_SIZE,
        "ctc_weight": 0.0,
        **FALLBACK,
    }
    if device == "cpu" and kernels() is not None:
        chosen["decoder_precision"] = INT8
    return chosen | dict(options)


def describe(model: str, options: Mapping[str, Any]) -> str:
    """Return model, precision, search and device in one line."""
    greedy = options["search"] == "greedy" or options["beam_size"] == 1
    return ", ".join(
        [
            model,
            options["decoder_precision"] or "float32",
            "greedy" if greedy else f"beam {options['beam_size']}",
            "GPU" if options["ngpu"] else f"{torch.get_num_threads()} threads",
        ]
    )
