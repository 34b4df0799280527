"""Tiny models that another tiny model drafts for."""

import copy

import torch
from tiny import EOS, tiny_decoder

from espnet_medusa.draft.model import DraftModelProposer
from espnet_medusa.runtime.build import build_runtime

DRAFT_MODELS = ["near", "other", "for llama", "of llama"]


def drafted(seed: int, kind: str, **options):
    """A trained module and its ``TreeDecoder``, which a draft model of some kind drafts for.

    Args:
        seed: Of both.
        kind: "near": a Whisper decoder that differs little, so that drafts often stand; "other":
            any other; "for llama": Whisper for Speech-LLaMA; "of llama": the reverse.
        options: Of the module.
    """
    module = tiny_decoder(seed, "llama none" if kind == "for llama" else "none", **options)
    if kind == "near":
        draft = nearly(module, seed)
    else:
        draft = tiny_decoder(seed + 1000, "llama none" if kind == "of llama" else "none")
    return module, drafted_by(module, draft)


def nearly(module, seed: int, noise: float = 0.05):
    """The same module but for some noise."""
    generator = torch.Generator().manual_seed(seed)
    module = copy.deepcopy(module)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += noise * torch.randn(parameter.shape, generator=generator)
    return module


def drafted_by(module, draft):
    """The module's ``TreeDecoder``; its proposer is the draft module."""
    decoder, proposer = build_runtime(module), DraftModelProposer(build_runtime(draft), EOS)
    decoder.proposer = lambda vocabulary=None, precision=None: proposer
    return decoder
