"""What greedy and beam searches are: walks begin, the loop runs, walks have found something."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch

from espnet_medusa.search.limits import AS_MANY_AS_FRAMES, LengthLimits, Limits, for_each
from espnet_medusa.search.loop import Drafter, run
from espnet_medusa.search.walk import Strategy, Walk, Watched
from espnet_medusa.tree.surrogate import DraftInput
from espnet_medusa.tree.tree_decoder import TreeDecoder


class Search(ABC):
    """Several tokens per decoder call, for several utterances, each at its own pace.

    Args:
        decoder: Evaluates nodes.
        drafter: Says which, and knows the strategy by which walks go on.
    """

    def __init__(self, decoder: TreeDecoder, drafter: Drafter):
        self.decoder, self.drafter = decoder, drafter

    @property
    def strategy(self) -> Strategy:
        """How walks go on."""
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
    ) -> list[Walk]:
        """Decode U utterances.

        Args:
            memory: (U, S, D) encoder output.
            memory_lengths: (U,) frames.
            prompt: U times (P,) tokens to start from; P may differ.
            limits: Of the lengths; of all utterances, or U.
            draft_inputs: U, what a draft model reads; None: the same.
            watched: U, filled in by the call of the prompt; None: nothing is.

        Returns:
            Walks, whose ``n_best`` lists are sorted, best first.
        """
        limits = for_each(limits, len(memory))
        walks = [
            self._begin(memory[row, :frames], prompt[row], limits[row])
            for row, frames in enumerate(memory_lengths.tolist())
        ]
        for walk, one in zip(walks, watched or [], strict=bool(watched)):
            walk.watched = one
        heard = [row[:frames] for row, frames in zip(memory, memory_lengths, strict=True)]
        if draft_inputs is not None:
            heard = [one.heard for one in draft_inputs]
        rows = self._undecided(walks, heard)
        if 0 < len(rows) < len(walks):
            memory, memory_lengths = memory[rows], memory_lengths[rows]
            prompt = [prompt[row] for row in rows]
            draft_inputs = draft_inputs and [draft_inputs[row] for row in rows]
        if rows:
            going = [walks[row] for row in rows]
            run(self.decoder, self.drafter, going, memory, memory_lengths, prompt, draft_inputs)
        for walk in walks:
            self._finish(walk)
        return walks

    @abstractmethod
    def _begin(self, memory: torch.Tensor, prompt: torch.Tensor, limits: LengthLimits) -> Walk:
        """An utterance at its root.

        Args:
            memory: (S, D).
            prompt: (P,).
            limits: Its own.
        """

    def _undecided(self, walks: Sequence[Walk], heard: Sequence[torch.Tensor]) -> list[int]:
        """The walks that need the decoder: rows of what ``__call__`` is given.

        Args:
            walks: U, at their roots.
            heard: U times (S, D), what may draft.
        """
        return [*range(len(walks))]

    @abstractmethod
    def _finish(self, walk: Walk) -> None:
        """Nothing is left to decide: sort and count what was found."""

    def _most_tokens(self, frames: int, num_prompt: int, limits: LengthLimits) -> int:
        """As the limits say, where the decoder has positions for them."""
        room = self.decoder.max_depth(frames) - num_prompt + 1
        return max(min(limits.most(frames), room), 1)
