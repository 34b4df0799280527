"""Build a Whisper experiment's model without ESPnet's ASR task, whose import takes seconds."""

from argparse import Namespace

from espnet2.asr.ctc import CTC
from espnet2.asr.espnet_model import ESPnetASRModel

from espnet_medusa.decoding.runtime.espnet_scorer import ScoringWhisperDecoder
from espnet_medusa.networks.asr_arguments import take_waveforms, write_out_sizes
from espnet_medusa.networks.whisper.tokens import default_symbols
from espnet_medusa.networks.whisper_encoder import HFWhisperEncoder

PARTS = {"encoder": "hf_whisper", "decoder": "whisper_medusa", "model": "medusa"}  # of a config
UNUSED = "frontend", "specaug", "normalize", "preencoder", "postencoder", "joint_network"
SYMBOLS = "sym_sos", "sym_eos", "sym_blank"  # keys of ``model_conf`` that decoding uses


def can_build_without_task(args: Namespace) -> bool:
    """Return whether ``build_whisper_model`` can build the model of a config."""
    others = [getattr(args, name, None) for name in ("preencoder", "postencoder", "use_adapter")]
    others.append((args.model_conf or {}).get("ctc_weight"))
    parts = all(getattr(args, part, None) == kind for part, kind in PARTS.items())
    return parts and not any(others) and isinstance(args.token_list, list)


def build_whisper_model(args: Namespace) -> ESPnetASRModel:
    """Build encoder and decoder as the ASR task does, in a model without losses."""
    take_waveforms(args)
    tokens, conf = args.token_list, args.model_conf or {}
    encoder = HFWhisperEncoder(args.input_size, **args.encoder_conf)
    decoder = ScoringWhisperDecoder(len(tokens), encoder.output_size(), **args.decoder_conf)
    symbols = dict(zip(("sym_sos", "sym_eos"), default_symbols(tokens), strict=True))
    model = ESPnetASRModel(
        vocab_size=len(tokens),
        token_list=tokens,
        encoder=encoder,
        decoder=decoder,
        ctc=CTC(1, 1),  # required, and dropped because its weight is 0
        ctc_weight=0.0,
        **dict.fromkeys(UNUSED),
        **symbols | {name: conf[name] for name in SYMBOLS if name in conf},
    )
    write_out_sizes(args, model)
    return model
