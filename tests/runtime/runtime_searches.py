"""Searches with a runtime alone: no CTC, no language model."""

import torch
from tiny import EOS, VOCAB_SIZE

from espnet_medusa.search.build import build_beam, build_greedy
from espnet_medusa.search.drafters import NO_SOURCES
from espnet_medusa.search.options import LengthLimits, SearchOptions


def build_search(runtime, options: SearchOptions, beam_size=3, sources=NO_SOURCES, device="cpu"):
    """Greedy or beam search, by ``options.search``."""
    device = torch.device(device)
    if options.search == "greedy":
        return build_greedy(options, runtime, VOCAB_SIZE, EOS, device, sources)
    weights, sizes = {"decoder": 1.0}, (VOCAB_SIZE, EOS)
    return build_beam(
        options, runtime, {}, None, weights, beam_size, *sizes, False, device, sources
    )


def run_search(search, memory, lengths, max_length):
    """Search states of the utterances, after a prompt of one token."""
    prompt = torch.full((len(lengths), 1), EOS, device=memory.device)
    return search(memory, lengths, prompt, LengthLimits(-max_length))
