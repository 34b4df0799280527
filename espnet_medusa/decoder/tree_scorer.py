"""A tree decoder as ESPnet's scorer, so that stock BatchBeamSearch runs on cached nodes.

ESPnet's own Whisper decoder recomputes the whole prefix at every step; here a step evaluates one
new node per hypothesis.
"""

from dataclasses import dataclass

import torch

from espnet_medusa.compat import BatchScorerInterface
from espnet_medusa.decoder.tree_decoder import TreeState
from espnet_medusa.tree import ROOT, chain_parents


@dataclass
class SharedTree:
    """One utterance's tree, shared by all its hypotheses.

    Attributes:
        state: The decoder's.
        generation: Counts compactions; a hypothesis of an older generation is no longer cached.
    """

    state: TreeState
    generation: int = 0


@dataclass(frozen=True)
class NodeReference:
    """Scorer state of a hypothesis: the node of the last token that was evaluated."""

    shared: SharedTree
    node: int
    generation: int


class TreeScorer(BatchScorerInterface):
    """ESPnet's scorer interface over ``start``, ``extend`` and ``keep`` of a ``TreeDecoder``."""

    def init_state(self, x: torch.Tensor) -> NodeReference:
        """Begin an utterance.

        Args:
            x: (S, D) memory.
        """
        lengths = torch.tensor([x.size(0)], device=x.device)
        shared = SharedTree(self.start(x[None], lengths, with_heads=False))
        return NodeReference(shared, ROOT, 0)

    def batch_score(
        self, ys: torch.Tensor, states: list[NodeReference], xs: torch.Tensor
    ) -> tuple[torch.Tensor, list[NodeReference]]:
        """Score the token that follows each hypothesis.

        Args:
            ys: (hypotheses, L) prefixes, all of one utterance.
            states: Their scorer states.
            xs: Memory; the state holds it already.

        Returns:
            Log-probabilities (hypotheses, V) and new states.

        Raises:
            RuntimeError: A hypothesis is scored that was dropped earlier.
        """
        _check_cached(states)
        if states[0].node != ROOT:
            states = self._compact(states[0].shared, states)
        return self._score(ys, states)

    def score(
        self, y: torch.Tensor, state: NodeReference, x: torch.Tensor
    ) -> tuple[torch.Tensor, NodeReference]:
        """Score one hypothesis (L,) whose siblings live on: nothing is compacted."""
        _check_cached([state])
        scores, states = self._score(y[None], [state])
        return scores[0], states[0]

    def _score(
        self, ys: torch.Tensor, states: list[NodeReference]
    ) -> tuple[torch.Tensor, list[NodeReference]]:
        shared = states[0].shared
        parents = torch.tensor([[state.node for state in states]], device=ys.device)
        tokens = ys[:, -1][None]
        if states[0].node == ROOT:
            tokens = ys[:1]
            parents = chain_parents(1, ys.size(1), parents[:, 0], 0)
        outputs = self.extend(shared.state, tokens, parents)
        scores = torch.log_softmax(self.logits(outputs.hidden[0, -len(states) :]), dim=-1)
        first = shared.state.tree.num_nodes - len(states)
        return scores, [
            NodeReference(shared, first + row, shared.generation) for row in range(len(states))
        ]

    def _compact(self, shared: SharedTree, states: list[NodeReference]) -> list[NodeReference]:
        """Drop nodes of dead hypotheses once they outnumber the living."""
        tree = shared.state.tree
        alive = torch.nonzero(tree.visible[0, [state.node for state in states]].any(0)).flatten()
        if 2 * len(alive) > tree.num_nodes:
            return states
        self.keep(shared.state, alive[None])
        shared.generation += 1
        slots = {int(old): new for new, old in enumerate(alive)}
        return [NodeReference(shared, slots[s.node], shared.generation) for s in states]


def _check_cached(states: list[NodeReference]) -> None:
    if any(state.generation != state.shared.generation for state in states):
        raise RuntimeError("a hypothesis left the beam and came back: its nodes are gone")
