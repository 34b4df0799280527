"""Tiny models with a tiny draft model."""

import copy

import torch
from tiny import EOS, tiny_decoder

from espnet_medusa.draft.model import DraftModelProposer
from espnet_medusa.runtime.build import build_runtime

DRAFT_MODELS = ["near", "other", "for llama", "of llama"]


def drafted(seed: int, kind: str, **options):
    """Return a trained module and its ``TreeDecoder`` with a draft model of this kind.

    "near": a slightly different Whisper decoder, whose drafts are often accepted; "other": another
    one; "for llama": a Whisper decoder for Speech-LLaMA; "of llama": Speech-LLaMA for a Whisper.
    """
    module = tiny_decoder(seed, "llama none" if kind == "for llama" else "none", **options)
    if kind == "near":
        draft = nearly(module, seed)
    else:
        draft = tiny_decoder(seed + 1000, "llama none" if kind == "of llama" else "none")
    return module, drafted_by(module, draft)


def nearly(module, seed: int, noise: float = 0.05):
    generator = torch.Generator().manual_seed(seed)
    module = copy.deepcopy(module)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += noise * torch.randn(parameter.shape, generator=generator)
    return module


def drafted_by(module, draft):
    decoder, proposer = build_runtime(module), DraftModelProposer(build_runtime(draft), EOS)
    decoder.proposer = lambda vocabulary=None, precision=None: proposer
    return decoder
