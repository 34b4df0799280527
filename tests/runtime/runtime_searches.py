"""Searches with a runtime alone: no CTC, no language model."""

import torch
from tiny import EOS, VOCAB_SIZE

from espnet_medusa.search.build import SearchModel, build_beam, build_greedy
from espnet_medusa.search.drafters import NO_SOURCES
from espnet_medusa.search.options import LengthLimits, SearchOptions


def build_search(runtime, options: SearchOptions, beam_size=3, sources=NO_SOURCES, device="cpu"):
    """Greedy or beam search, by ``options.search``."""
    model = SearchModel(runtime, VOCAB_SIZE, EOS, torch.device(device), sources=sources)
    if options.search == "greedy":
        return build_greedy(options, model)
    return build_beam(options, model, beam_size)


def run_search(search, memory, lengths, max_length):
    """Search states of the utterances, after a prompt of one token."""
    prompt = torch.full((len(lengths), 1), EOS, device=memory.device)
    return search(memory, lengths, prompt, LengthLimits(-max_length))
