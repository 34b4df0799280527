"""The token tree under every search: nodes, parents, who sees whom.

A node is a token with a parent; the path from the root is a hypothesis prefix; its depth is its
position. U utterances hold trees of one width N; a slot that nobody descends from is just dead.
"""

import math
from dataclasses import dataclass

import torch

ROOT = -1  # parent of a node that starts a path
DEAD = -1  # a slot that holds no node any more


@dataclass(frozen=True)
class TokenTree:
    """Trees of U utterances.

    Attributes:
        tokens: (U, N) token ids.
        visible: (U, N, N) bool; ``visible[u, i, j]``: node j is node i or an ancestor of it.
    """

    tokens: torch.Tensor
    visible: torch.Tensor

    @staticmethod
    def empty(num_utterances: int, device: torch.device | str = "cpu") -> "TokenTree":
        """Trees without nodes."""
        return TokenTree(
            torch.zeros(num_utterances, 0, dtype=torch.long, device=device),
            torch.zeros(num_utterances, 0, 0, dtype=torch.bool, device=device),
        )

    @property
    def num_nodes(self) -> int:
        """N, the same for every utterance."""
        return self.tokens.size(1)

    def depths(self) -> torch.Tensor:
        """(U, N) number of ancestors of each node."""
        return self.visible.sum(-1) - 1

    def add(self, tokens: torch.Tensor, parents: torch.Tensor) -> "TokenTree":
        """Put new nodes behind the ones there are.

        Args:
            tokens: (U, T) tokens of the new nodes.
            parents: (U, T) slot of each parent: below N an old node, N + t the t-th new node
                (t smaller than the child's own index), or ``ROOT``.

        Returns:
            Trees of N + T nodes.
        """
        new_rows = visible_rows(self.visible, parents)
        old_rows = torch.nn.functional.pad(self.visible, (0, tokens.size(1)))
        return TokenTree(
            torch.cat([self.tokens, tokens], dim=1), torch.cat([old_rows, new_rows], dim=1)
        )

    def keep(self, nodes: torch.Tensor) -> "TokenTree":
        """Keep these nodes, in this order, ancestors before descendants.

        Args:
            nodes: (U, M) slots; a row that keeps fewer is padded with ``DEAD``.
        """
        rows = torch.arange(nodes.size(0), device=nodes.device)[:, None]
        alive = nodes != DEAD
        nodes = nodes.clamp(min=0)
        visible = self.visible[rows[:, :, None], nodes[:, :, None], nodes[:, None, :]]
        return TokenTree(self.tokens[rows, nodes], visible & alive[:, :, None] & alive[:, None, :])

    def select(self, utterances: torch.Tensor) -> "TokenTree":
        """Keep these utterances (indices)."""
        return TokenTree(self.tokens[utterances], self.visible[utterances])

    def path(self, utterance: int, node: int) -> list[int]:
        """Slots from the root to ``node``."""
        return torch.nonzero(self.visible[utterance, node]).flatten().tolist()


def chain_parents(
    num_utterances: int, length: int, first_parent: torch.Tensor, first_slot: int
) -> torch.Tensor:
    """(U, length) parents of a chain: the first hangs on ``first_parent`` (U,), others in a row."""
    parents = torch.arange(first_slot - 1, first_slot - 1 + length, device=first_parent.device)
    parents = parents.expand(num_utterances, length).clone()
    parents[:, 0] = first_parent
    return parents


def visible_rows(visible: torch.Tensor, parents: torch.Tensor) -> torch.Tensor:
    """Rows of the visibility matrix for new nodes.

    Args:
        visible: (U, N, N) of the old nodes.
        parents: (U, T), as ``TokenTree.add`` takes them.

    Returns:
        (U, T, N + T) bool.
    """
    num_old, num_new = visible.size(1), parents.size(1)
    slots = torch.arange(num_new, device=parents.device)
    # Ancestors among the new nodes: the closure of "is my parent", by repeated squaring.
    among_new = (parents[:, :, None] == num_old + slots) | (slots[:, None] == slots)
    among_new = among_new.float()
    for _ in range(max(1, math.ceil(math.log2(max(num_new, 2))))):
        among_new = (among_new @ among_new).clamp_(max=1.0)
    if num_old == 0:
        return among_new.bool()
    has_old_parent = (parents >= 0) & (parents < num_old)
    rows = torch.arange(parents.size(0), device=parents.device)[:, None]
    of_parent = visible[rows, parents.clamp(0, num_old - 1)] & has_old_parent[:, :, None]
    among_old = among_new @ of_parent.float()
    return torch.cat([among_old > 0, among_new > 0], dim=2)
