"""Adapt the options of ESPnet's ASR task to Whisper's networks."""

import argparse
import logging

from espnet2.train.abs_espnet_model import AbsESPnetModel
from humanfriendly import parse_size

from espnet_medusa.data.errors import InputError
from espnet_medusa.networks.multi_token_decoder import MultiTokenDecoder
from espnet_medusa.networks.whisper.log_mel import SAMPLE_RATE_HZ
from espnet_medusa.networks.whisper_encoder import HFWhisperEncoder

logger = logging.getLogger(__name__)


def take_waveforms(args: argparse.Namespace) -> None:
    """Remove frontend and normalization, because ``encoder: hf_whisper`` reads the waveform.

    ``asr.sh`` always sets both. Raise InputError for features, ``specaug``, or another sample rate.
    """
    if getattr(args, "encoder", None) != "hf_whisper":
        return
    if args.input_size not in (None, 1):
        raise InputError(
            f"input_size: {args.input_size}; hf_whisper takes audio: give asr.sh --feats_type raw"
        )
    if args.input_size is None and args.frontend not in (None, "default"):
        raise InputError(
            f"frontend: {args.frontend}; hf_whisper computes its features itself: frontend: null"
        )
    rate = (getattr(args, "frontend_conf", None) or {}).get("fs", SAMPLE_RATE_HZ)
    if parse_size(str(rate)) != SAMPLE_RATE_HZ:  # parsed like ESPnet's frontend
        raise InputError(f"frontend_conf: fs={rate}; hf_whisper takes 16 kHz: give asr.sh --fs 16k")
    if getattr(args, "specaug", None) is not None:
        raise InputError(
            f"specaug: {args.specaug}; hf_whisper masks its own features: specaug: null, and "
            "encoder_conf: {use_specaug: true, specaug_conf: ...}"
        )
    ignored = [
        f"{name}: {getattr(args, name)}"
        for name in ("frontend", "normalize")
        if getattr(args, name, None) is not None and not (name == "frontend" and args.input_size)
    ]
    if ignored:
        logger.info(f"hf_whisper takes the waveform; ignored: {', '.join(ignored)}")
    args.input_size, args.frontend, args.normalize = 1, None, None
    args.frontend_conf, args.normalize_conf = {}, {}


def write_out_sizes(args: argparse.Namespace, model: AbsESPnetModel) -> None:
    """Replace a pretrained model's name by its sizes, so that decoding does not need its folder."""
    for part in ("encoder", "decoder"):
        conf, module = getattr(args, f"{part}_conf"), getattr(model, part, None)
        if isinstance(module, HFWhisperEncoder | MultiTokenDecoder):
            for name in ("whisper_model", "llama_model"):
                if conf.pop(name, None) is not None:
                    conf |= module.conf
