"""A tiny model of ESPnet's around tiny decoders, and a batch to train on."""

import torch
from espnet2.asr.ctc import CTC
from tiny import HIDDEN_SIZE, tiny_encoder

from espnet_medusa.training.asr_model import MedusaASRModel

TOKENS = ["<blank>", "<unk>", *"abcdefgh", "<sos/eos>"]


def model_of(decoder, tokens=TOKENS, **conf) -> MedusaASRModel:
    torch.manual_seed(0)
    return MedusaASRModel(
        vocab_size=len(tokens), token_list=tokens, frontend=None, specaug=None, normalize=None,
        preencoder=None, encoder=tiny_encoder(0), postencoder=None, decoder=decoder,
        ctc=CTC(len(tokens), HIDDEN_SIZE), joint_network=None,
        **{"report_cer": False, "report_wer": False} | conf,
    )  # fmt: skip


def batch():
    generator = torch.Generator().manual_seed(1)
    return {
        "speech": 0.1 * torch.randn(3, 16000, generator=generator),
        "speech_lengths": torch.tensor([16000, 12000, 8000]),
        "text": torch.tensor([[2, 3, 4, 5, 6, 7], [3, 3, 5, 9, -1, -1], [8, 2, -1, -1, -1, -1]]),
        "text_lengths": torch.tensor([6, 4, 2]),
    }
