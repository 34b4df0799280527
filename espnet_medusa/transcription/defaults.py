"""The defaults of transcribing audio files.

``espnet-medusa-transcribe``, with and without ``--config``, and ``transcribe`` in Python have them.
Options that are not here have those of ``Speech2Text`` and ``LongFormOptions``.
"""

from collections.abc import Mapping
from typing import Any

import torch

from espnet_medusa.decoding.runtime.precision import INT8, has_kernels
from espnet_medusa.inference.longform.long_form_options import REPETITION

BATCH_SIZE = 8
# Of ``LongFormOptions``. ``without_timestamps`` None: only files that fit in the model's window.
WINDOWS = {
    "fallback_on": REPETITION, "best_of": 5, "skip_silence": True, "without_timestamps": None,
}  # fmt: skip
# Beam 5 in int8 had a lower WER than greedy search in float32 on accented speech.
DEFAULTS = {"batch_size": BATCH_SIZE, "beam_size": 5, "ctc_weight": 0.0, **WINDOWS}
# Arithmetic that replaces int8, if it is given.
OTHER_ARITHMETIC = {"dtype": "float32", "quantize_asr_model": False}


def with_defaults(options: Mapping[str, Any], device: str) -> dict[str, Any]:
    """Add the defaults to the given options; ``search`` is greedy if ``beam_size`` is 1 or None.

    ``decoder_precision`` is int8 if our CPU kernels run, and the model is not to be computed in
    another ``dtype`` or quantized by ESPnet.
    """
    chosen = DEFAULTS | dict(options)
    if chosen["beam_size"] is None:  # openai-whisper's greedy search
        chosen["beam_size"] = 1
    plain = all(options.get(name, value) == value for name, value in OTHER_ARITHMETIC.items())
    precision = INT8 if plain and has_kernels(torch.device(device)) else None
    search = "greedy" if chosen["beam_size"] == 1 else "beam"
    return {"search": search, "decoder_precision": precision} | chosen


def describe(model: str, options: Mapping[str, Any]) -> str:
    """Return model, precision, search and device in one line."""
    greedy = options["search"] == "greedy" or options["beam_size"] == 1
    precision = options["decoder_precision"] or options["dtype"]
    search = "greedy" if greedy else f"beam {options['beam_size']}"
    device = "GPU" if options["ngpu"] else f"{torch.get_num_threads()} threads"
    return f"{model}, {precision}, {search}, {device}"
