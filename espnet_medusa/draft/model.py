"""Another model, smaller, in the decoder's place: it writes ahead, with a token tree of its own."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from espnet_medusa.draft.draft_tree import DraftTree
from espnet_medusa.draft.interpreter import Interpreter, OneToOne
from espnet_medusa.draft.retokenizer import Retokenizer
from espnet_medusa.tree.prefix import Prefix
from espnet_medusa.tree.proposer import DraftContext, DraftCost, Proposer
from espnet_medusa.tree.token_tree import upload
from espnet_medusa.tree.tree_decoder import TreeDecoder
from espnet_medusa.vocabulary.translation import Translation


@dataclass(frozen=True)
class PlaceStates:
    """Where R prefixes stand in the draft model's trees.

    Attributes:
        places: R of the interpreter's, evaluated when their logits are asked for.
        asked: R, whether anybody asks: of a prefix that the main model has evaluated nobody does.
    """

    places: list[Any]
    asked: list[bool]

    def select(self, rows: torch.Tensor) -> PlaceStates:
        rows = rows.tolist()
        return PlaceStates([self.places[row] for row in rows], [self.asked[row] for row in rows])

    def join(self, others: PlaceStates) -> PlaceStates:
        return PlaceStates(self.places + others.places, self.asked + others.asked)


class DraftModelProposer(Proposer):
    """Any decoder drafts, of the same vocabulary or of another one.

    What was accepted since the last draft is evaluated together with the first token of the next
    one, so that D steps cost D calls of the draft model, for all utterances. Where its tokens cut
    texts elsewhere, it is one more to see that a word is over, and more for a token that takes
    several of its own.

    Args:
        decoder: The draft model's.
        eos: The main model's end symbol; nothing is asked behind it.
        translation: Between the main model's vocabulary and the draft model's; None: they are one.

    Attributes:
        tree: What the draft model has evaluated; None before ``begin``.
    """

    max_steps = None
    needs_head_input = False

    def __init__(self, decoder: TreeDecoder, eos: int, translation: Translation | None = None):
        self.decoder, self.eos, self.translation = decoder, eos, translation
        self.tree: DraftTree | None = None
        self._interpreter: Interpreter | None = None
        self._places: dict[Prefix, Any] = {}
        self._roots: dict[Prefix, Prefix] = {}

    def begin(self, context: DraftContext) -> DraftModelProposer:
        begun = copy.copy(self)
        begun.tree = DraftTree(self.decoder, context.draft_inputs)
        begun._interpreter = interpret(begun.tree, self.eos, self.translation)
        begun._roots = dict(zip(context.roots, begun.tree.roots, strict=True))
        begun._places = {
            root: begun._interpreter.begin(node) for root, node in begun._roots.items()
        }
        return begun

    def start(self, prefixes: Sequence[Prefix]) -> PlaceStates:
        places = [self._place(prefix) for prefix in prefixes]
        return PlaceStates(places, [not prefix.evaluated for prefix in prefixes])

    def advance(self, states: PlaceStates, tokens: torch.Tensor) -> PlaceStates:
        pairs = zip(states.places, tokens.tolist(), strict=True)
        places = [self._interpreter.follow(place, token) for place, token in pairs]
        return PlaceStates(places, [True] * len(places))

    def logits(self, states: PlaceStates) -> torch.Tensor:
        asked = [row for row, one in enumerate(states.asked) if one]
        if len(asked) in (0, len(states.places)):
            return self._interpreter.logits(states.places)
        said = self._interpreter.logits([states.places[row] for row in asked])
        logits = said.new_zeros(len(states.places), said.size(1))
        logits[upload(asked, logits.device)] = said
        return logits

    def keep(self, running: Sequence[Prefix]) -> None:
        # Drafts start from running prefixes, their parents or what lies behind them.
        needed = dict.fromkeys(prefix for tip in running for prefix in (tip.parent, tip))
        places = {prefix: self._place(prefix) for prefix in needed if prefix is not None}
        self._places = {prefix.root: self._places[prefix.root] for prefix in running} | places
        self._interpreter.keep([places[tip] for tip in running])

    def cost(self, root: Prefix) -> DraftCost:
        return self.tree.cost(self._roots[root])

    def _place(self, prefix: Prefix) -> Any:
        """Where a prefix of the search's stands."""
        path = []
        while prefix not in self._places:
            path.append(prefix)
            prefix = prefix.parent
        place = self._places[prefix]
        for prefix in reversed(path):
            place = self._places[prefix] = self._interpreter.follow(place, prefix.token)
        return place


def interpret(tree: DraftTree, eos: int, translation: Translation | None) -> Interpreter:
    """How one run of a search search_states the draft model's tree.

    Args:
        tree: The draft model's.
        eos: The main model's end symbol.
        translation: Between both vocabularies; None: they are one.
    """
    if translation is None:
        return OneToOne(tree, eos)
    if translation.to_draft.same_text:
        return OneToOne(tree, translation.feed[eos], translation.feed, translation.columns)
    return Retokenizer(tree, translation, eos)
