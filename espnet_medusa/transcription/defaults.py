"""The defaults of transcribing audio files.

``espnet-medusa-transcribe``, with and without ``--config``, and ``transcribe`` in Python have them.
Options that are not here have those of ``Speech2Text`` and ``LongFormOptions``.
"""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from espnet_medusa.data.files.checkpoint import load_weights
from espnet_medusa.decoding.runtime.precision import BFLOAT16, FLOAT16, FLOAT32, INT8, has_kernels
from espnet_medusa.inference.longform.long_form_options import REPETITION
from espnet_medusa.transcription.batch_size import ON_CPU

logger = logging.getLogger(__name__)

# Of ``LongFormOptions``. ``without_timestamps`` None: only files that fit in the model's window.
WINDOWS = {
    "fallback_on": REPETITION, "best_of": 5, "skip_silence": True, "without_timestamps": None,
}  # fmt: skip
# Beam 5 in int8 had a lower WER than greedy search in float32 on accented speech.
DEFAULTS = {"batch_size": ON_CPU, "beam_size": 5, "ctc_weight": 0.0, **WINDOWS}
# Arithmetic that replaces int8, if it is given.
OTHER_ARITHMETIC = {"dtype": "float32", "quantize_asr_model": False}


def with_defaults(
    options: Mapping[str, Any], device: str, model_file: Path | str | None = None
) -> dict[str, Any]:
    """Add the defaults to the given options; ``search`` is greedy if ``beam_size`` is 1 or None.

    ``decoder_precision`` is int8 if our CPU kernels run, and that of ``precision_on_gpu`` on a GPU,
    unless the model is to be computed in another ``dtype`` or quantized by ESPnet. ``batch_size``
    None: ``default_batch_size``, which needs the model. ``model_file``: weights, used on a GPU.
    """
    on_gpu = torch.device(device).type == "cuda"
    chosen = DEFAULTS | ({"batch_size": None} if on_gpu else {}) | dict(options)
    if chosen["beam_size"] is None:  # openai-whisper's greedy search
        chosen["beam_size"] = 1
    if "decoder_precision" not in chosen:
        plain = all(chosen.get(name, value) == value for name, value in OTHER_ARITHMETIC.items())
        chosen["decoder_precision"] = _default_precision(device, model_file) if plain else None
    search = "greedy" if chosen["beam_size"] == 1 else "beam"
    return {"search": search} | chosen


def _default_precision(device: str, model_file: Path | str | None) -> str | None:
    if torch.device(device).type == "cuda":
        weights = {} if model_file is None else load_weights(Path(model_file), mapped=True)
        return precision_on_gpu(weights)
    return INT8 if has_kernels(torch.device(device)) else None


def precision_on_gpu(weights: Mapping[str, torch.Tensor]) -> str:
    """Return float16; if a weight exceeds its range, bfloat16 or, with weights in 32 bits, float32.

    bfloat16 has the range of float32. It rounds weights in 32 bits more than float16 does.
    """
    # Conversion stores weights in float16 if it represents them exactly.
    floats = [weight for weight in weights.values() if weight.is_floating_point()]
    others = [weight for weight in floats if weight.dtype != torch.float16 and weight.numel()]
    largest = max((abs(float(end)) for weight in others for end in weight.aminmax()), default=0.0)
    if largest <= torch.finfo(torch.float16).max:
        return FLOAT16
    in_bfloat16 = all(weight.dtype == torch.bfloat16 for weight in others)
    chosen = BFLOAT16 if in_bfloat16 else FLOAT32
    logger.warning(
        f"decoder_precision: {chosen}: the largest weight is {largest:g}, which {FLOAT16} cannot "
        "represent"
    )
    return chosen


def describe(model: str, options: Mapping[str, Any]) -> str:
    """Return model, precision, search and device in one line."""
    greedy = options["search"] == "greedy" or options["beam_size"] == 1
    precision = options["decoder_precision"] or options["dtype"]
    search = "greedy" if greedy else f"beam {options['beam_size']}"
    device = f"{torch.get_num_threads()} threads"
    if options["ngpu"]:
        together = options["batch_size"]
        device = "GPU" if together is None else f"GPU, {together} together"
    return f"{model}, {precision}, {search}, {device}"
