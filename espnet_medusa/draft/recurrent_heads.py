"""Recurrent heads as a surrogate: a state per drafted prefix, fed with its tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from espnet_medusa.draft.surrogate import Surrogate
from espnet_medusa.prefix import Prefix

if TYPE_CHECKING:
    from espnet_medusa.decoder.whisper import WhisperMedusaDecoder


class RecurrentHeadsSurrogate(Surrogate):
    """Recurrent heads in the decoder's place; a state is the cell's, (D,).

    Args:
        decoder: Its heads draft.
    """

    def __init__(self, decoder: WhisperMedusaDecoder):
        self.decoder = decoder

    @property
    def max_steps(self) -> None:
        return None

    def start(self, prefixes: Sequence[Prefix]) -> list[torch.Tensor]:
        return [prefix.head_input for prefix in prefixes]

    def advance(self, states: Sequence[torch.Tensor], tokens: Sequence[int]) -> list[torch.Tensor]:
        states = torch.stack([*states])
        embedded = self.decoder.embed_tokens(torch.tensor(tokens, device=states.device))
        return [*self.decoder.heads.advance(states, embedded)]

    def logits(self, states: Sequence[torch.Tensor]) -> torch.Tensor:
        return self.decoder.project(self.decoder.heads(torch.stack([*states])))
