"""A draft model as a proposer, with a token tree of its own."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from espnet_medusa.data.vocabulary.translation import Translation
from espnet_medusa.decoding.draft.draft_tree import DraftTree
from espnet_medusa.decoding.draft.prefix_map import OneToOne, PrefixMap
from espnet_medusa.decoding.draft.retokenizer import Retokenizer
from espnet_medusa.decoding.tree.prefix import Prefix
from espnet_medusa.decoding.tree.proposer import DraftContext, DraftCost, Proposer, States
from espnet_medusa.decoding.tree.token_tree import upload
from espnet_medusa.decoding.tree.tree_decoder import TreeDecoder


@dataclass(frozen=True)
class DraftModelStates(States):
    """Draft prefixes of R prefixes of the main model."""

    # R draft prefixes, and whether their logits are needed: the main model has not evaluated
    # the prefix.
    draft_prefixes: list[tuple[Any, bool]]


class DraftModelProposer(Proposer):
    """A draft model with the same or another vocabulary.

    The first call of a draft also evaluates the tokens accepted since the last draft. So each step
    takes one call for all utterances. With another vocabulary, one more call detects the end of a
    word, and a main token of several draft tokens takes several calls.

    Args:
        eos: The main model's end token.
        translation: Maps between the two vocabularies; None: they are equal.
    """

    needs_head_input = False

    def __init__(self, decoder: TreeDecoder, eos: int, translation: Translation | None = None):
        self.decoder, self.eos, self.translation = decoder, eos, translation
        self.tree: DraftTree | None = None
        self._prefix_map: PrefixMap | None = None
        self._draft_prefixes: dict[Prefix, Any] = {}
        self._roots: dict[Prefix, Prefix] = {}

    def begin(self, context: DraftContext) -> Proposer:
        begun = copy.copy(self)
        begun.tree = DraftTree(self.decoder, context.draft_inputs)
        begun._prefix_map = begun._build_prefix_map()
        begun._roots = dict(zip(context.roots, begun.tree.roots, strict=True))
        begun._draft_prefixes = {
            root: begun._prefix_map.begin(node) for root, node in begun._roots.items()
        }
        return begun

    def _build_prefix_map(self) -> PrefixMap:
        tree, translation = self.tree, self.translation
        if translation is None:
            return OneToOne(tree, self.eos)
        if translation.to_draft.same_text:
            return OneToOne(tree, translation.feed[self.eos], translation.feed, translation.columns)
        return Retokenizer(tree, translation, self.eos)

    def start(self, prefixes: Sequence[Prefix]) -> DraftModelStates:
        return DraftModelStates(
            [(self._draft_prefix(prefix), not prefix.evaluated) for prefix in prefixes]
        )

    def advance(self, states: DraftModelStates, tokens: torch.Tensor) -> DraftModelStates:
        pairs = zip(states.draft_prefixes, tokens.tolist(), strict=True)
        return DraftModelStates(
            [
                (self._prefix_map.follow(draft_prefix, token), True)
                for (draft_prefix, _), token in pairs
            ]
        )

    def logits(self, states: DraftModelStates) -> torch.Tensor:
        draft_prefixes = [draft_prefix for draft_prefix, _ in states.draft_prefixes]
        rows = [row for row, (_, needed) in enumerate(states.draft_prefixes) if needed]
        if len(rows) in (0, len(draft_prefixes)):
            return self._prefix_map.logits(draft_prefixes)
        needed = self._prefix_map.logits([draft_prefixes[row] for row in rows])
        logits = needed.new_zeros(len(draft_prefixes), needed.size(1))
        logits[upload(rows, logits.device)] = needed
        return logits

    def keep(self, running: Sequence[Prefix]) -> None:
        # Drafts start from running prefixes, their parents or their descendants.
        needed = dict.fromkeys(prefix for tip in running for prefix in (tip.parent, tip))
        draft_prefixes = {
            prefix: self._draft_prefix(prefix) for prefix in needed if prefix is not None
        }
        self._draft_prefixes = {
            prefix.root: self._draft_prefixes[prefix.root] for prefix in running
        } | draft_prefixes
        self._prefix_map.keep([draft_prefixes[tip] for tip in running])

    def cost(self, root: Prefix) -> DraftCost:
        return self.tree.costs[self._roots[root]]

    def _draft_prefix(self, prefix: Prefix) -> Any:
        path = []
        while prefix not in self._draft_prefixes:
            path.append(prefix)
            prefix = prefix.parent
        draft_prefix = self._draft_prefixes[prefix]
        for prefix in reversed(path):
            draft_prefix = self._draft_prefixes[prefix] = self._prefix_map.follow(
                draft_prefix, prefix.token
            )
        return draft_prefix
