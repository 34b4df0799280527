"""A draft model as a proposer, with a token tree of its own."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from espnet_medusa.data.vocabulary.translation import Translation
from espnet_medusa.decoding.draft.draft_tree import DraftTree
from espnet_medusa.decoding.draft.interpreter import Interpreter, OneToOne
from espnet_medusa.decoding.draft.retokenizer import Retokenizer
from espnet_medusa.decoding.tree.prefix import Prefix
from espnet_medusa.decoding.tree.proposer import DraftContext, DraftCost, Proposer, States
from espnet_medusa.decoding.tree.token_tree import upload
from espnet_medusa.decoding.tree.tree_decoder import TreeDecoder


@dataclass(frozen=True)
class PlaceStates(States):
    """Places of R prefixes in the draft model's trees."""

    # R places of the interpreter, and whether their logits are needed: the main model has not
    # evaluated the prefix.
    places: list[tuple[Any, bool]]


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
        self._interpreter: Interpreter | None = None
        self._places: dict[Prefix, Any] = {}
        self._roots: dict[Prefix, Prefix] = {}

    def begin(self, context: DraftContext) -> Proposer:
        begun = copy.copy(self)
        begun.tree = DraftTree(self.decoder, context.draft_inputs)
        begun._interpreter = begun._build_interpreter()
        begun._roots = dict(zip(context.roots, begun.tree.roots, strict=True))
        begun._places = {
            root: begun._interpreter.begin(node) for root, node in begun._roots.items()
        }
        return begun

    def _build_interpreter(self) -> Interpreter:
        tree, translation = self.tree, self.translation
        if translation is None:
            return OneToOne(tree, self.eos)
        if translation.to_draft.same_text:
            return OneToOne(tree, translation.feed[self.eos], translation.feed, translation.columns)
        return Retokenizer(tree, translation, self.eos)

    def start(self, prefixes: Sequence[Prefix]) -> PlaceStates:
        return PlaceStates([(self._place(prefix), not prefix.evaluated) for prefix in prefixes])

    def advance(self, states: PlaceStates, tokens: torch.Tensor) -> PlaceStates:
        pairs = zip(states.places, tokens.tolist(), strict=True)
        return PlaceStates(
            [(self._interpreter.follow(place, token), True) for (place, _), token in pairs]
        )

    def logits(self, states: PlaceStates) -> torch.Tensor:
        places = [place for place, _ in states.places]
        rows = [row for row, (_, needed) in enumerate(states.places) if needed]
        if len(rows) in (0, len(places)):
            return self._interpreter.logits(places)
        needed = self._interpreter.logits([places[row] for row in rows])
        logits = needed.new_zeros(len(places), needed.size(1))
        logits[upload(rows, logits.device)] = needed
        return logits

    def keep(self, running: Sequence[Prefix]) -> None:
        # Drafts start from running prefixes, their parents or their descendants.
        needed = dict.fromkeys(prefix for tip in running for prefix in (tip.parent, tip))
        places = {prefix: self._place(prefix) for prefix in needed if prefix is not None}
        self._places = {prefix.root: self._places[prefix.root] for prefix in running} | places
        self._interpreter.keep([places[tip] for tip in running])

    def cost(self, root: Prefix) -> DraftCost:
        return self.tree.costs[self._roots[root]]

    def _place(self, prefix: Prefix) -> Any:
        path = []
        while prefix not in self._places:
            path.append(prefix)
            prefix = prefix.parent
        place = self._places[prefix]
        for prefix in reversed(path):
            place = self._places[prefix] = self._interpreter.follow(place, prefix.token)
        return place
