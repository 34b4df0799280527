"""Build a Whisper experiment's model without ESPnet's ASR task, whose import takes seconds."""

from argparse import Namespace

from espnet2.asr.ctc import CTC

from espnet_medusa.model.whisper_encoder import HFWhisperEncoder
from espnet_medusa.runtime.espnet_scorer import ScoringWhisperDecoder
from espnet_medusa.training.asr_arguments import take_waveforms, write_out_sizes
from espnet_medusa.training.asr_model import MedusaASRModel

PARTS = {  # of a config; parts that may be missing are None
    "encoder": "hf_whisper", "decoder": "whisper_medusa", "model": "medusa",
    "preencoder": None, "postencoder": None,
}  # fmt: skip
UNUSED = "frontend", "specaug", "normalize", "preencoder", "postencoder", "joint_network"


def is_plain_whisper(args: Namespace) -> bool:
    """Return whether ``build_whisper_model`` can build the model of a config."""
    return (
        all(getattr(args, part, None) == kind for part, kind in PARTS.items())
        and not (args.model_conf or {}).get("ctc_weight")
        and not getattr(args, "use_adapter", False)
        and isinstance(args.token_list, list)
    )


def build_whisper_model(args: Namespace) -> MedusaASRModel:
    """Build the model as the ASR task does; errors are the same."""
    take_waveforms(args)
    vocab_size = len(args.token_list)
    encoder = HFWhisperEncoder(args.input_size, **args.encoder_conf)
    decoder = ScoringWhisperDecoder(vocab_size, encoder.output_size(), **args.decoder_conf)
    model = MedusaASRModel(
        vocab_size=vocab_size,
        token_list=args.token_list,
        encoder=encoder,
        decoder=decoder,
        ctc=CTC(1, 1),  # required, and dropped because its weight is 0
        **dict.fromkeys(UNUSED),
        **args.model_conf or {},
    )
    write_out_sizes(args, model)
    return model
