"""Greedy search in one call of the decoder's chain loop, where nothing else is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from espnet_medusa.decoding.search.constraints import Constraints
from espnet_medusa.decoding.search.drafting.lookahead import ByAcceptance, DraftShape
from espnet_medusa.decoding.search.drafting.step_planner import StepPlanner
from espnet_medusa.decoding.search.state import SearchState
from espnet_medusa.decoding.tree.chains import Begin, ChainBatch, ChainLoop, ChainRow, ChainRules
from espnet_medusa.decoding.tree.depth_plan import DepthPlan
from espnet_medusa.decoding.tree.tree_decoder import TreeDecoder


@dataclass(frozen=True)
class ChainDecoding:
    """Greedy search by the decoder's chain loop."""

    decoder: TreeDecoder
    loop: ChainLoop
    rules: ChainRules
    plan: DepthPlan | None

    def __call__(
        self,
        begin: Begin,
        states: Sequence[SearchState],
        texts: Sequence[Sequence[int] | None],
        together: int,
    ) -> None:
        """Decode U initial states to their ends, as the general loop does.

        ``texts`` may draft; other arguments as in ``ChainBatch``.
        """
        rows = [_row_of(*one) for one in zip(states, texts, strict=True)]
        self.loop(ChainBatch(begin, self.rules, rows, self.plan, together))
        for state, row in zip(states, rows, strict=True):
            counts = state.statistics
            counts.decoder_calls, counts.nodes = row.calls, row.nodes
            counts.drafted, counts.accepted = row.drafted, row.accepted
            counts.decoder_seconds += row.seconds
            counts.draft_seconds += row.draft_seconds
            if state.probed is not None:
                probabilities = self.decoder.logits(row.hidden[None])[0].float().softmax(dim=-1)
                state.probed.probability = float(probabilities[state.probed.token])


def chain_decoding(
    decoder: TreeDecoder, planner: StepPlanner, states: Sequence[SearchState] = ()
) -> ChainDecoding | None:
    """Return how to decode with a chain loop.

    None: decoder, strategy, shape of drafts, rules or a state need the general loop.
    """
    if type(planner) is not StepPlanner or not planner.strategy.follows_best_tokens:
        return None
    rules = chain_rules(planner.strategy.scoring.constraints, planner.shape, planner.steps is None)
    if rules is None or any(state.trace is not None for state in states):
        return None
    limited = any(state.scorers.min_length for state in states)
    if limited and (rules.timestamps is not None or rules.renormalize):
        return None
    loop = decoder.chain_loop(None if planner.steps is None else planner.proposer)
    return None if loop is None else ChainDecoding(decoder, loop, rules, planner.plan)


def chain_rules(
    constraints: Constraints, shape: DraftShape, without_drafts: bool
) -> ChainRules | None:
    """Return the rules of a chain loop; None: it has none for these constraints and shapes."""
    times, others = constraints.timestamps, (constraints.forced_prefix, constraints.other_ends)
    if constraints.penalty is not None or any(others):
        return None
    if times is not None and (not constraints.renormalize or times.text_follows):
        return None
    is_chain = shape.width == 1 and shape.choices is None and shape.budget is None
    if not without_drafts and not (is_chain and not isinstance(shape.lookahead, ByAcceptance)):
        return None
    return ChainRules(
        eos=constraints.eos,
        blocked=constraints.blocked,
        timestamps=times,
        renormalize=constraints.renormalize and not constraints.is_empty,
        depth=0 if without_drafts else shape.depth,
        min_log_prob=shape.min_log_prob,
    )


def _row_of(state: SearchState, text: Sequence[int] | None) -> ChainRow:
    def write(tokens: Sequence[int], log_probs: Sequence[float]) -> bool:
        prefix = state.hypothesis.prefix
        for token in tokens:
            prefix = prefix.child(token)
        if tokens:
            state.write(prefix, *log_probs)
        return not state.done

    probed = None if state.probed is None else state.probed.index
    sizes = state.max_length, state.scorers.min_length
    asks = state.give_up is not None
    return ChainRow(state.placement.prompt, *sizes, write, asks, text, probed)
