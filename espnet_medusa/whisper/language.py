"""Which language an utterance is in: one decoder call behind the start token."""

from collections.abc import Mapping

import torch

from espnet_medusa.tree.token_tree import ROOT
from espnet_medusa.tree.tree_decoder import TreeDecoder


def detect_languages(
    decoder: TreeDecoder,
    memory: torch.Tensor,
    memory_lengths: torch.Tensor,
    start: int,
    languages: Mapping[str, int],
) -> list[str]:
    """The most probable language token of each utterance (Radford et al., arXiv 2212.04356, 2.3).

    Args:
        decoder: Of a multilingual Whisper.
        memory: (U, S, D) encoder output.
        memory_lengths: (U,) frames.
        start: Start token.
        languages: Code to token.

    Returns:
        U codes.
    """
    num_utterances = len(memory)
    state = decoder.start(memory, memory_lengths, with_heads=False)
    outputs = decoder.extend(state, [[start]] * num_utterances, [[ROOT]] * num_utterances)
    codes = [*languages]
    scores = decoder.logits(outputs.hidden)[:, [languages[code] for code in codes]]
    return [codes[best] for best in scores.argmax(dim=-1).tolist()]
