"""Another model, smaller, in the decoder's place: it writes ahead, with a token tree of its own."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from espnet_medusa.decoder.tree_decoder import TreeDecoder
from espnet_medusa.draft.draft_tree import DraftTree
from espnet_medusa.draft.surrogate import DraftCost, DraftInput, Surrogate
from espnet_medusa.prefix import Prefix


@dataclass(frozen=True)
class NodeStates:
    """Where R prefixes stand in the draft model's trees.

    Attributes:
        nodes: R of its nodes, evaluated when their logits are asked for.
    """

    nodes: list[Prefix]

    def select(self, rows: torch.Tensor) -> NodeStates:
        return NodeStates([self.nodes[row] for row in rows.tolist()])

    def join(self, others: NodeStates) -> NodeStates:
        return NodeStates(self.nodes + others.nodes)


class DraftModelSurrogate(Surrogate):
    """Any decoder of a model with the same vocabulary drafts.

    What was accepted since the last draft is evaluated together with the first token of the next
    one, so that D steps cost D calls of the draft model, for all utterances.

    Args:
        decoder: The draft model's.
        eos: End symbol; nothing is asked behind it.

    Attributes:
        tree: What the draft model has evaluated; None before ``begin``.
    """

    max_steps = None
    needs_head_input = False

    def __init__(self, decoder: TreeDecoder, eos: int):
        self.decoder, self.eos = decoder, eos
        self.tree: DraftTree | None = None
        self._nodes: dict[Prefix, Prefix] = {}

    def begin(
        self,
        roots: Sequence[Prefix],
        memory: torch.Tensor,
        memory_lengths: torch.Tensor,
        draft_inputs: Sequence[DraftInput] | None = None,
    ) -> DraftModelSurrogate:
        begun = copy.copy(self)
        begun.tree = DraftTree(self.decoder, draft_inputs)
        begun._nodes = dict(zip(roots, begun.tree.roots, strict=True))
        return begun

    def start(self, prefixes: Sequence[Prefix]) -> NodeStates:
        return NodeStates([self._node(prefix) for prefix in prefixes])

    def advance(self, states: NodeStates, tokens: torch.Tensor) -> NodeStates:
        pairs = zip(states.nodes, tokens.tolist(), strict=True)
        return NodeStates([self._follow(node, token) for node, token in pairs])

    def logits(self, states: NodeStates) -> torch.Tensor:
        # Nobody reads what would follow the end.
        return self.tree.logits(
            [node.parent if self._ended(node) else node for node in states.nodes]
        )

    def keep(self, running: Sequence[Prefix]) -> None:
        # Drafts start from running prefixes, their parents or what lies behind them.
        needed = dict.fromkeys(prefix for tip in running for prefix in (tip.parent, tip))
        nodes = {prefix: self._node(prefix) for prefix in needed if prefix is not None}
        self._nodes = {prefix.root: self._nodes[prefix.root] for prefix in running} | nodes
        self.tree.keep([nodes[tip] for tip in running])

    def cost(self, root: Prefix) -> DraftCost:
        return self.tree.cost(self._nodes[root])

    def _node(self, prefix: Prefix) -> Prefix:
        """The draft model's node of a prefix of the search's."""
        path = []
        while prefix not in self._nodes:
            path.append(prefix)
            prefix = prefix.parent
        node = self._nodes[prefix]
        for prefix in reversed(path):
            node = self._nodes[prefix] = self._follow(node, prefix.token)
        return node

    def _follow(self, node: Prefix, token: int) -> Prefix:
        """The node one token of the main model further.

        A draft model of another vocabulary maps the token here, and its logits in ``logits``.
        """
        if self._ended(node) or not self.tree.has_room(node):
            return node
        return node.child(token)

    def _ended(self, node: Prefix) -> bool:
        return node.token == self.eos and node.parent is not None
