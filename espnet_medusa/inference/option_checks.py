"""What keeps a model or its options from our searches, and what ESPnet's own do not do."""

import logging
from typing import Any

import torch

from espnet_medusa.errors import InputError
from espnet_medusa.inference.audio_batch import SpeechEncoder
from espnet_medusa.inference.decode_options import DecodeOptions
from espnet_medusa.model.unit_ctc import UnitCTC
from espnet_medusa.options import check_at_least
from espnet_medusa.runtime.precision import check_precision
from espnet_medusa.search.options import EXACT, FIXED, GREEDY
from espnet_medusa.upstream.compat import BatchBeamSearch

logger = logging.getLogger(__name__)


def check_batch(batch_size: int, options: dict[str, Any]) -> None:
    """Refuse batches where ESPnet decodes sample by sample."""
    check_at_least(batch_size, 1, "batch_size")
    for name in ("streaming", "time_sync", "partial_ar", "multi_asr", "enh_s2t_task"):
        if batch_size > 1 and options.get(name, False):
            raise InputError(f"batch_size: {batch_size}; allowed with {name}: true: 1")


def check_espnets_own(
    options: DecodeOptions, batch_size: int, decoder: torch.nn.Module | None
) -> None:
    """Refuse what only our searches do."""
    given = {
        "acceptance": (options.acceptance, EXACT),
        "drafter": (options.drafter, None),
        "draft_model": (options.draft_model, None),
        "lookahead": (options.lookahead, FIXED),
        "batch_size": (batch_size, 1),
        "encoder_precision": (options.encoder_precision, None),
    }
    for name, (value, allowed) in given.items():
        if value != allowed:
            raise InputError(
                f"{name}: {value}; allowed where ESPnet's own search decodes "
                f"({type(decoder).__name__}): {'none' if allowed is None else allowed}"
            )


def check_scoring(model: torch.nn.Module, options: DecodeOptions, ctc_weight: float) -> None:
    """Refuse CTC in the score of tokens that it does not know."""
    units = isinstance(getattr(model, "ctc", None), UnitCTC)
    if units and options.search != GREEDY and ctc_weight != 0:
        raise InputError(
            f"ctc_weight: {ctc_weight}; allowed with model_conf.ctc_units: 0.0, as CTC over other "
            "units than the decoder's tokens can draft (drafter: ctc), not score"
        )


def why_not_beam(espnet: torch.nn.Module | None) -> str | None:
    """What of ESPnet's search with these options ours does not do."""
    if type(espnet) is not BatchBeamSearch:
        return "no beam search" if espnet is None else type(espnet).__name__
    if "decoder" not in espnet.full_scorers:
        return "ctc_weight: 1"
    others = espnet.part_scorers.keys() - {"ctc"}
    return f"partial scorers: {', '.join(sorted(others))}" if others else None


def check_greedy(reason: str | None, options: dict[str, Any]) -> None:
    """Refuse what greedy search cannot do, say what it does not look at."""
    if reason is not None:
        raise InputError(
            "search: greedy needs decoder: whisper_medusa, speech_llama or ESPnet's transformer; "
            f"this model has {reason}; allowed here: beam"
        )
    for name in ("lm_train_config", "ngram_file"):
        if options.get(name) is not None:
            logger.warning(f"{name} is not used: search: greedy asks the decoder alone")
    if options.get("nbest", 1) != 1:
        raise InputError(f"nbest: {options['nbest']}; allowed with search: greedy: 1")


def check_precisions(options: DecodeOptions, device: str) -> None:
    """Refuse what the device does not compute with.

    Raises:
        InputError: Names the option.
    """
    for name in ("decoder_precision", "encoder_precision", "draft_precision"):
        value = getattr(options, name)
        if value is not None:
            check_precision(value, torch.device(device), name)


def check_encoder(options: DecodeOptions, encoder: SpeechEncoder) -> None:
    """Refuse a precision for an encoder that has none to choose."""
    if options.encoder_precision is not None and encoder.whisper is None:
        raise InputError(
            f"encoder_precision: {options.encoder_precision}; allowed with encoder: hf_whisper and "
            "nothing before or behind it: leave it out"
        )
