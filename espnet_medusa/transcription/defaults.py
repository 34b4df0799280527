"""Defaults of ``espnet-medusa-transcribe``, and of the search of ``transcribe`` in Python.

Beam 5 in int8 had a lower WER than greedy search in float32 on accented speech.
"""

from collections.abc import Mapping
from typing import Any

import torch

from espnet_medusa.decoding.runtime.precision import INT8, has_kernels
from espnet_medusa.inference.longform.long_form_options import REPETITION

BEAM_SIZE = 5
# Differences from the defaults of ``LongFormOptions``.
FALLBACK = {"fallback_on": REPETITION, "best_of": 5, "skip_silence": True}


def with_defaults(options: Mapping[str, Any], device: str) -> dict[str, Any]:
    """Add the command's defaults: beam search, int8 if the native CPU kernels run, fallback."""
    chosen = {"batch_size": 8, "beam_size": BEAM_SIZE, **FALLBACK}
    if has_kernels(torch.device(device)):
        chosen["decoder_precision"] = INT8
    return choose_search(chosen | dict(options))


def choose_search(options: Mapping[str, Any]) -> dict[str, Any]:
    """Add the defaults of ``search``, ``beam_size`` (5) and ``ctc_weight`` (0) to options.

    ``search`` is greedy if the options have no ``beam_size`` or 1, else beam.
    """
    by_size = "greedy" if options.get("beam_size", 1) == 1 else "beam"
    return {"search": by_size, "beam_size": BEAM_SIZE, "ctc_weight": 0.0} | dict(options)


def describe(model: str, options: Mapping[str, Any]) -> str:
    """Return model, precision, search and device in one line."""
    greedy = options["search"] == "greedy" or options["beam_size"] == 1
    precision = options["decoder_precision"] or options["dtype"]
    search = "greedy" if greedy else f"beam {options['beam_size']}"
    device = "GPU" if options["ngpu"] else f"{torch.get_num_threads()} threads"
    return f"{model}, {precision}, {search}, {device}"
