"""What greedy and beam searches are: states begin, the loop runs, states have found something."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch

from espnet_medusa.search.loop import Drafter, run
from espnet_medusa.search.options import LengthLimits
from espnet_medusa.search.state import SearchState, Strategy, Watched
from espnet_medusa.tree.proposer import DraftInput
from espnet_medusa.tree.tree_decoder import TreeDecoder

AS_MANY_AS_FRAMES = LengthLimits()
Limits = LengthLimits | Sequence[LengthLimits]


class Search(ABC):
    """Several tokens per decoder call, for several utterances, each at its own pace.

    Args:
        decoder: Evaluates nodes.
        drafter: Says which, and knows the strategy by which states go on.
    """

    def __init__(self, decoder: TreeDecoder, drafter: Drafter):
        self.decoder, self.drafter = decoder, drafter

    @property
    def strategy(self) -> Strategy:
        """How states go on."""
        return self.drafter.strategy

    @torch.no_grad()
    def __call__(
        self,
        memory: torch.Tensor,
        memory_lengths: torch.Tensor,
        prompt: Sequence[torch.Tensor] | torch.Tensor,
        limits: Limits = AS_MANY_AS_FRAMES,
        draft_inputs: Sequence[DraftInput] | None = None,
        watched: Sequence[Watched] | None = None,
    ) -> list[SearchState]:
        """Decode U utterances.

        Args:
            memory: (U, S, D) encoder output.
            memory_lengths: (U,) frames.
            prompt: U times (P,) tokens to start from; P may differ.
            limits: Of the lengths; of all utterances, or U.
            draft_inputs: U, what a draft model reads; None: the same.
            watched: U, filled in by the call of the prompt; None: nothing is.

        Returns:
            SearchStates, whose ``n_best`` lists are sorted, best first.
        """
        limits = [limits] * len(memory) if isinstance(limits, LengthLimits) else limits
        states = [
            self._begin(memory[row, :frames], prompt[row], limits[row])
            for row, frames in enumerate(memory_lengths.tolist())
        ]
        for state, one in zip(states, watched or [], strict=bool(watched)):
            state.watched = one
        ctc_inputs = [row[:frames] for row, frames in zip(memory, memory_lengths, strict=True)]
        if draft_inputs is not None:
            ctc_inputs = [one.ctc_input for one in draft_inputs]
        rows = self._undecided(states, ctc_inputs)
        if 0 < len(rows) < len(states):
            memory, memory_lengths = memory[rows], memory_lengths[rows]
            prompt = [prompt[row] for row in rows]
            draft_inputs = draft_inputs and [draft_inputs[row] for row in rows]
        if rows:
            going = [states[row] for row in rows]
            run(self.decoder, self.drafter, going, memory, memory_lengths, prompt, draft_inputs)
        for state in states:
            self._finish(state)
        return states

    @abstractmethod
    def _begin(
        self, memory: torch.Tensor, prompt: torch.Tensor, limits: LengthLimits
    ) -> SearchState:
        """An utterance at its root.

        Args:
            memory: (S, D).
            prompt: (P,).
            limits: Its own.
        """

    def _undecided(
        self, states: Sequence[SearchState], ctc_inputs: Sequence[torch.Tensor]
    ) -> list[int]:
        """The states that need the decoder: rows of what ``__call__`` is given.

        Args:
            states: U, at their roots.
            ctc_inputs: U times (S, D), what may draft.
        """
        return [*range(len(states))]

    @abstractmethod
    def _finish(self, state: SearchState) -> None:
        """Nothing is left to decide: sort and count what was found."""

    def _most_tokens(self, frames: int, num_prompt: int, limits: LengthLimits) -> int:
        """As the limits say, where the decoder has positions for them."""
        room = self.decoder.max_depth(frames) - num_prompt + 1
        return max(min(limits.most(frames), room), 1)
