"""A search: a decoder, and a planner with its strategy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from espnet_medusa.search.loop import DraftPlanner, run
from espnet_medusa.search.options import LengthLimits
from espnet_medusa.search.state import SearchState, Strategy, Watched
from espnet_medusa.tree.proposer import DraftInput
from espnet_medusa.tree.tree_decoder import TreeDecoder

AS_MANY_AS_FRAMES = LengthLimits()
SHORTER = 0.1  # ESPnet's decrement of minlenratio if no hypothesis was long enough


class Search:
    """Decoding of several tokens per decoder call, for a batch of utterances.

    Args:
        decoder: Evaluates nodes.
        planner: Drafts. Its strategy determines the kind of search: greedy, beam, sampling, ...
    """

    def __init__(self, decoder: TreeDecoder, planner: DraftPlanner):
        self.decoder, self.planner = decoder, planner

    @property
    def strategy(self) -> Strategy:
        """How hypotheses are scored, continued, ended and ranked."""
        return self.planner.strategy

    @torch.no_grad()
    def __call__(
        self,
        memory: torch.Tensor,
        memory_lengths: torch.Tensor,
        prompt: Sequence[torch.Tensor] | torch.Tensor,
        limits: LengthLimits | Sequence[LengthLimits] = AS_MANY_AS_FRAMES,
        draft_inputs: Sequence[DraftInput] | None = None,
        watched: Sequence[Watched] | None = None,
    ) -> list[SearchState]:
        """Decode U utterances.

        Args:
            memory: (U, S, D) encoder output.
            memory_lengths: (U,) frames.
            prompt: U times (P,) prompt tokens; P may differ.
            limits: Length limits of all utterances, or U.
            draft_inputs: U, for a draft model or CTC; None: the encoder output and the prompts.
            watched: U prompt tokens whose probabilities are requested, or None.

        Returns:
            States with sorted ``n_best`` lists, best first.
        """
        if isinstance(limits, LengthLimits):
            limits = [limits] * len(memory)
        frames, prompts = memory_lengths.tolist(), [row.tolist() for row in prompt]
        if draft_inputs is None:
            parts = zip(memory, frames, prompts, strict=True)
            draft_inputs = [DraftInput(row[:size], tokens) for row, size, tokens in parts]
        states = [
            self._begin(memory[row, :size], prompt[row], limits[row])
            for row, size in enumerate(frames)
        ]
        for state, token in zip(states, watched or [], strict=bool(watched)):
            state.watched = token
        draft_inputs = self.strategy.decide_early(states, draft_inputs)
        rows = [row for row, state in enumerate(states) if not state.done]
        if rows:
            batch = (memory, memory_lengths)
            if len(rows) < len(states):
                batch = memory[rows], memory_lengths[rows]
            going, *inputs = _select(rows, states, prompts, draft_inputs)
            run(self.decoder, self.planner, going, *batch, *inputs)
        for state in states:
            self.strategy.finish(state)
        return self._search_shorter(states, memory, memory_lengths, prompt, limits, draft_inputs)

    def _search_shorter(
        self, states, memory, memory_lengths, prompt, limits, draft_inputs
    ) -> list[SearchState]:
        """Search again if no hypothesis was long enough, with a smaller minlenratio, as ESPnet."""
        rows = [
            row
            for row, state in enumerate(states)
            if not state.n_best and limits[row].minlenratio >= SHORTER
        ]
        if rows:
            limits, prompt, draft_inputs = _select(rows, limits, prompt, draft_inputs)
            limits = [replace(one, minlenratio=one.minlenratio - SHORTER) for one in limits]
            again = self(memory[rows], memory_lengths[rows], prompt, limits, draft_inputs)
            for row, state in zip(rows, again, strict=True):
                state.statistics += states[row].statistics
                states[row] = state
        return states

    def _begin(
        self, memory: torch.Tensor, prompt: torch.Tensor, limits: LengthLimits
    ) -> SearchState:
        """Return the state of one utterance, memory (S, D) and prompt (P,), at its root."""
        positions = self.decoder.max_depth(len(memory)) - len(prompt) + 1
        most = max(min(limits.most(len(memory)), positions), 1)
        return self.strategy.begin(memory, prompt, most, limits)


def _select(rows: Sequence[int], *parts: Sequence) -> list[list]:
    """Return these rows of each part."""
    return [[part[row] for row in rows] for part in parts]
