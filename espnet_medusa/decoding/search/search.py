"""A search and its loop: draft, verify in one decoder call, advance, drop unused nodes.

Each utterance advances at its own pace and leaves the batch when it is done.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

import torch

from espnet_medusa.data.encoder_rows import frame_counts, row_counts
from espnet_medusa.decoding.search.chain_decoding import chain_decoding
from espnet_medusa.decoding.search.drafting.step_planner import StepPlanner
from espnet_medusa.decoding.search.scores import Request
from espnet_medusa.decoding.search.search_options import LengthLimits
from espnet_medusa.decoding.search.state import ProbedToken, SearchState, Strategy
from espnet_medusa.decoding.search.trace import Trace
from espnet_medusa.decoding.tree.placement import Placement, compact
from espnet_medusa.decoding.tree.proposer import DraftContext, DraftInput
from espnet_medusa.decoding.tree.token_tree import upload
from espnet_medusa.decoding.tree.tree_decoder import TreeDecoder, TreeState

AS_MANY_AS_FRAMES = LengthLimits()
SHORTER = 0.1  # ESPnet's decrement of minlenratio if no hypothesis was long enough


class Search:
    """Decoding of several tokens per decoder call, for a batch of utterances.

    The planner's strategy determines the search: greedy, beam, sampling, ...
    """

    def __init__(
        self, decoder: TreeDecoder, planner: StepPlanner, text_planner: StepPlanner | None = None
    ):
        self.decoder, self.planner = decoder, planner
        self.text_planner = text_planner  # if an utterance has a draft text; None: texts are unused

    @property
    def strategy(self) -> Strategy:
        return self.planner.strategy

    @property
    def queues(self) -> bool:
        """Whether waiting utterances take the places of those that have ended."""
        chains = chain_decoding(self.decoder, self.planner)
        return chains is not None and chains.loop.queues

    def with_text_planner(self, planner: StepPlanner | None) -> Search:
        """Return the search with the proposer and the shape of a planner for draft texts."""
        if planner is not None:
            planner = StepPlanner(self.strategy, planner.proposer, planner.shape)
        return Search(self.decoder, self.planner, planner)

    @torch.no_grad()
    def __call__(
        self,
        encoder_out: torch.Tensor,
        encoder_out_lens: torch.Tensor,
        prompt: Sequence[torch.Tensor] | torch.Tensor,
        limits: LengthLimits | Sequence[LengthLimits] = AS_MANY_AS_FRAMES,
        draft_inputs: Sequence[DraftInput] | None = None,
        probed: Sequence[ProbedToken] | None = None,
        draft_texts: Sequence[Sequence[int] | None] | None = None,
        together: int | None = None,
    ) -> list[SearchState]:
        """Decode U utterances; return states with sorted ``n_best`` lists, best first.

        Raise InputError if the scores of an utterance are NaN.

        Args:
            encoder_out: (U, S, D) encoder output.
            encoder_out_lens: (U,) or (U, S), as in ``data.encoder_rows``.
            prompt: U times (P,) prompt tokens; P may differ.
            limits: Of each utterance, or of all.
            draft_inputs: U, for a draft model or CTC; None: the encoder output and the prompts.
            probed: U tokens whose probabilities the search sets, or None.
            draft_texts: U lists of tokens that draft; None: no text.
            together: Most utterances in the decoder at once; None: all.
        """
        if isinstance(limits, LengthLimits):
            limits = [limits] * len(encoder_out)
        sizes, prompts = row_counts(encoder_out_lens).tolist(), [row.tolist() for row in prompt]
        if draft_inputs is None:
            parts = zip(encoder_out, sizes, prompts, strict=True)
            draft_inputs = [DraftInput(row[:size], tokens) for row, size, tokens in parts]
        if draft_texts is not None:
            texts = zip(draft_inputs, draft_texts, strict=True)
            draft_inputs = [replace(one, text=text) for one, text in texts]
        states = [
            self._begin(encoder_out[row, : sizes[row]], frames, prompt[row], limits[row])
            for row, frames in enumerate(frame_counts(encoder_out_lens).tolist())
        ]
        for state, tokens in zip(states, prompts, strict=True):
            state.placement = Placement(tokens)
        for state, token in zip(states, probed or [], strict=bool(probed)):
            state.probed = token
        draft_inputs = self.strategy.decide_early(states, draft_inputs)
        rows = [row for row, state in enumerate(states) if not state.done]
        if rows:
            batch = (encoder_out, encoder_out_lens)
            if len(rows) < len(states):
                batch = encoder_out[rows], encoder_out_lens[rows]
            going, inputs = _select(rows, states, draft_inputs)
            self._run(going, *batch, inputs, together or len(going))
        for state in states:
            self.strategy.finish(state)
            if state.trace is not None:
                state.trace.finish(state)
        batch = encoder_out, encoder_out_lens, prompt
        return self._search_again(states, batch, limits, draft_inputs, together)

    def _run(
        self,
        states: Sequence[SearchState],
        encoder_out: torch.Tensor,
        encoder_out_lens: torch.Tensor,
        draft_inputs: Sequence[DraftInput],
        together: int,
    ) -> None:
        """Decode U initial states to their ends, at most ``together`` at once."""
        planner = self.planner
        if self.text_planner and any(one.text is not None for one in draft_inputs):
            planner = self.text_planner
        chains = chain_decoding(self.decoder, planner, states)
        queues = chains is not None and chains.loop.queues and together > 1
        most = len(states) if queues else together
        for first in range(0, len(states), most):
            rows = slice(first, first + most)
            batch = encoder_out[rows], encoder_out_lens[rows], draft_inputs[rows]
            self._run_batch(planner, states[rows], *batch, together)

    def _run_batch(
        self,
        planner: StepPlanner,
        states: Sequence[SearchState],
        encoder_out: torch.Tensor,
        encoder_out_lens: torch.Tensor,
        draft_inputs: Sequence[DraftInput],
        together: int,
    ) -> None:
        """Run the search loop, or the decoder's, until all U utterances are done.

        Only the decoder's loop accepts more utterances than ``together``.
        """
        planner = planner.planned(min(len(states), together))

        def begin(rows: Sequence[int]) -> TreeState:
            started, batch = time.perf_counter(), (encoder_out, encoder_out_lens)
            if [*rows] != [*range(len(states))]:
                batch = [part[upload([*rows], part.device)] for part in batch]
            tree_state = self.decoder.start(*batch, with_heads=planner.needs_head_input)
            share_seconds([states[row] for row in rows], started)
            return tree_state

        chains = chain_decoding(self.decoder, planner, states)
        if chains is not None:
            chains(begin, states, [one.text for one in draft_inputs], together)
        else:
            tree_state, started = begin(range(len(states))), time.perf_counter()
            roots, cross = [state.root for state in states], tree_state.cross_keys_values
            context = DraftContext(roots, encoder_out.device, draft_inputs, cross)
            self._loop(planner.begin(context), tree_state, states, started)
        planner.learn(states)

    def _loop(
        self,
        planner: StepPlanner,
        tree_state: TreeState,
        states: Sequence[SearchState],
        started: float,
    ) -> None:
        """Run the search loop until all utterances are done; drafting began at ``started``."""
        decoder = self.decoder
        planner.draft_prompt(states)
        share_seconds(states, started, drafting=True)
        while states:
            started = time.perf_counter()
            _evaluate(decoder, tree_state, states, self.strategy)
            before = [state.steps for state in states]
            self.strategy.advance(states)
            for state, steps in zip(states, before, strict=True):
                depth, accepted = state.draft.depth, max(state.steps - steps - 1, 0)
                state.draft.accepted_steps = min(accepted, depth)
                state.statistics.count_drafts(depth, accepted)
                if state.trace is not None:
                    state.trace.end_call(state)
            decoded, states = states, _drop_finished(decoder, tree_state, states)
            if states:
                running = [[hypothesis.prefix for hypothesis in state.running] for state in states]
                compact(decoder, tree_state, [state.placement for state in states], running)
            share_seconds(decoded, started)
            if states:
                started = time.perf_counter()
                planner.draft(states)
                self.strategy.accept_unverified(states)
                decoded, states = states, _drop_finished(decoder, tree_state, states)
                share_seconds(decoded, started, drafting=True)

    def _search_again(self, states, batch, limits, draft_inputs, together) -> list[SearchState]:
        """Repeat searches that found no hypothesis, with a smaller minlenratio, as ESPnet does."""
        rows = [
            row
            for row, state in enumerate(states)
            if not state.n_best and limits[row].minlenratio >= SHORTER
        ]
        if rows:
            encoder_out, encoder_out_lens, prompt = batch
            limits, prompt, draft_inputs = _select(rows, limits, prompt, draft_inputs)
            limits = [replace(one, minlenratio=one.minlenratio - SHORTER) for one in limits]
            batch = encoder_out[rows], encoder_out_lens[rows], prompt
            again = self(*batch, limits, draft_inputs, together=together)
            for row, state in zip(rows, again, strict=True):
                state.statistics += states[row].statistics
                states[row] = state
        return states

    def _begin(
        self, encoder_out: torch.Tensor, frames: int, prompt: torch.Tensor, limits: LengthLimits
    ) -> SearchState:
        """Return the initial state for encoder output (S, D) and prompt (P,)."""
        positions = self.decoder.max_depth(len(encoder_out)) - len(prompt) + 1
        most = max(min(limits.most(frames), positions), 1)
        limits = replace(limits, minlenratio=-limits.least(frames))  # in tokens
        state = self.strategy.begin(encoder_out, prompt, most, limits)
        state.give_up = limits.give_up
        state.trace = Trace(self.planner.scores_drafts) if limits.traced else None
        return state


def _select(rows: Sequence[int], *parts: Sequence) -> list[list]:
    return [[part[row] for row in rows] for part in parts]


def share_seconds(states: Sequence[SearchState], started: float, drafting: bool = False) -> None:
    """Divide the seconds since ``started`` evenly among the states."""
    seconds = (time.perf_counter() - started) / len(states)
    for state in states:
        state.statistics.decoder_seconds += seconds
        if drafting:
            state.statistics.draft_seconds += seconds


def _evaluate(
    decoder: TreeDecoder, tree_state: TreeState, states: Sequence[SearchState], strategy: Strategy
) -> None:
    """Evaluate all drafts in one decoder call; the strategy stores the results."""
    first = tree_state.num_nodes
    new = [state.placement.place(state.draft.nodes) for state in states]
    tokens, parents = zip(*new, strict=True)
    outputs = decoder.extend(tree_state, tokens, parents)
    placed = [prefix for state in states for prefix in state.placement.slots[first:]]
    for state, row in zip(states, tokens, strict=True):
        state.statistics.decoder_calls += 1
        state.statistics.nodes += len(row)
        if state.trace is not None:
            state.trace.begin_call(state)
        state.placement.fill(tree_state.num_nodes)
    hidden = outputs.hidden
    if first == 0:
        _probe(decoder, states, [*map(len, tokens)], hidden)
    requests = [Request(state.scorers, state.draft.queried) for state in states]
    queried = {prefix for request in requests for prefix in request.prefixes}
    if len(queried) < len(placed):  # skips ``Draft.unqueried`` and inner prompt tokens
        places = [place for place, prefix in enumerate(placed) if prefix in queried]
        hidden = hidden[upload(places, hidden.device, torch.long)]
    for place, prefix in enumerate(placed):
        if prefix is not None:
            prefix.head_input = (outputs.head_input, place)
    strategy.store_results(states, requests, decoder.logits(hidden))


def _probe(
    decoder: TreeDecoder, states: Sequence[SearchState], sizes: Sequence[int], hidden: torch.Tensor
) -> None:
    """Set the probabilities of probed tokens; ``sizes``: number of new nodes of each state."""
    places = [
        (state.probed, before + state.probed.index)
        for state, before in zip(states, accumulate(sizes, initial=0), strict=False)
        if state.probed is not None
    ]
    if places:
        logits = decoder.logits(hidden[[place for _, place in places]]).float()
        for (probed, _), probabilities in zip(places, logits.softmax(dim=-1), strict=True):
            probed.probability = float(probabilities[probed.token])


def _drop_finished(
    decoder: TreeDecoder, tree_state: TreeState, states: Sequence[SearchState]
) -> list[SearchState]:
    """Return the unfinished states; free the prefixes and caches of the others."""
    unfinished = [row for row, state in enumerate(states) if not state.done]
    for state in states:
        if state.done:
            state.placement.clear()
    if 0 < len(unfinished) < len(states):
        decoder.select(tree_state, unfinished)
    return [states[row] for row in unfinished]
