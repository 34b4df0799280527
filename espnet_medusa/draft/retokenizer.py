"""A draft model whose tokens cut texts elsewhere than the main model's do.

Both write bytes. The draft model reads the main text as its own tokenizer spells it: whole words
stay, the last one may go on, and then be spelt with other tokens. So the draft model writes from
before that word, of all its tokens those that agree with what the main model has of it: behind
" he" it may well write " hello". It writes until the main model's tokenizer knows the next token,
which is often known only when the word is over.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import torch

from espnet_medusa.draft.draft_tree import DraftTree
from espnet_medusa.draft.interpreter import UNSAID, Interpreter
from espnet_medusa.tree.prefix import Prefix
from espnet_medusa.vocabulary.mapping import Follower
from espnet_medusa.vocabulary.translation import Translation

# Tokenizers join what is near: a token stays with so many behind it, where none can come any more
# that holds all of them and goes on.
NEAR = 2
MOST_TOKENS = 16  # the draft model writes for one token of the main model
ALTERNATIVES = 16  # that it names for how a word goes on


@dataclass(frozen=True, eq=False)
class Place:
    """Where a text of the main model stands in the draft model's tree.

    Attributes:
        settled: Node of the words that stay.
        follower: The main text behind it.
        base: Node that the draft model writes from, at or behind ``settled``.
        ahead: Bytes of the main text behind ``base``.
        path: Nodes from ``base`` to the main text's end, as the draft's tokenizer spells it.
        ended: Nothing follows.
    """

    settled: Prefix
    follower: Follower
    base: Prefix
    ahead: bytes
    path: tuple[Prefix, ...]
    ended: bool = False


@dataclass(frozen=True)
class Prediction:
    """The draft model's next token after a node.

    Attributes:
        log_probs: (V',) over its tokens.
        best: By bytes that its text has to begin with: the best token that agrees, and its
            log-probability; None where no token does.
    """

    log_probs: torch.Tensor
    best: dict[bytes, tuple[int, float] | None]


class Continuation(NamedTuple):
    """How the draft model goes on behind a place.

    Attributes:
        node: Where it leaves the main text.
        ahead: Bytes of the main text behind that node.
        token: Which it writes there.
        log_prob: Of that token.
        follows: The main model's token; None where it is not known.
    """

    node: Prefix
    ahead: bytes
    token: int
    log_prob: float
    follows: int | None


class Retokenizer(Interpreter):
    """By bytes, for any two vocabularies.

    Args:
        tree: What the draft model evaluates.
        translation: Between the vocabularies.
        eos: The main model's end symbol.
    """

    def __init__(self, tree: DraftTree, translation: Translation, eos: int):
        super().__init__(tree)
        self.to_draft, self.to_main, self.eos = translation.to_draft, translation.to_main, eos
        self.vocab_size, self.order = translation.vocab_size, translation.draft_index
        self.main_index = translation.main_index
        self._predictions: dict[Prefix, Prediction] = {}
        self._agreeing, self._longer, self._spell = (
            lru_cache(maxsize=4096)(find)
            for find in (
                lambda ahead: self._ids(self.order.compatible(ahead)),
                lambda ahead: self._ids(self.order.extensions(ahead)),
                self.to_main.target.encode,
            )
        )

    def begin(self, root: Prefix) -> Place:
        return self._place(root, self.to_draft.follow())

    def follow(self, place: Place, token: int) -> Place:
        if place.ended or token == self.eos:
            return replace(place, ended=True)
        if token >= len(self.to_draft.source):
            return place
        follower = place.follower.push(token)
        settled = place.settled
        for found in follower.settled:
            settled = settled.child(found)
        return self._place(settled, replace(follower, settled=()))

    def _place(self, settled: Prefix, follower: Follower) -> Place:
        base, spelt, draft = settled, follower.tokens, self.to_draft.target
        # A beginning of a word may be nothing that the draft's tokens write, though the word is.
        ahead, stays, written = follower.word + follower.pending, 0, draft.write(spelt)
        while written == follower.word and stays < len(spelt) - NEAR and ahead:
            if self.order.has_extensions(ahead):
                break
            ahead = ahead[len(draft.contents[spelt[stays]]) :]
            stays += 1
        for token in spelt[:stays]:
            base = base.child(token)
        path = [base]
        for token in spelt[stays:]:
            path.append(path[-1].child(token))
        return Place(settled, follower, base, ahead, tuple(path))

    def keep(self, places: Sequence[Place]) -> None:
        self.tree.keep([place.base for place in places])
        for place in places:
            # The draft model does not continue from before the base any more.
            node = place.base.parent
            while node is not None and self._predictions.pop(node, None) is not None:
                node = node.parent
        forgotten = [node for node in self._predictions if not node.evaluated]
        for node in forgotten:
            del self._predictions[node]

    def logits(self, places: Sequence[Place]) -> torch.Tensor:
        different = {place: row for row, place in enumerate(dict.fromkeys(places))}
        logits = self._merge(self._continuations([*different]))
        if len(different) == len(places):
            return logits
        return logits[torch.tensor([different[place] for place in places], device=logits.device)]

    def _continuations(self, places: Sequence[Place]) -> list[Continuation | None]:
        """How the draft model goes on behind each, by as many calls as the longest takes."""
        found: list[Continuation | None] = [None] * len(places)
        writing = {row: self._write(place) for row, place in enumerate(places)}
        while writing:
            wanted: dict[Prefix, None] = {}
            for row, one in [*writing.items()]:
                try:
                    wanted |= dict.fromkeys(next(one))
                except StopIteration as end:
                    found[row] = end.value
                    del writing[row]
            if wanted:
                self._ask([node for node in wanted if node not in self._predictions])
        return found

    def _ask(self, nodes: Sequence[Prefix]) -> None:
        logits = self.tree.logits(nodes)[:, : len(self.to_main.source)]
        log_probs = logits.float().log_softmax(dim=-1)
        best = [column.tolist() for column in log_probs.max(dim=-1)]
        for node, row, value, token in zip(nodes, log_probs, *best, strict=True):
            self._predictions[node] = Prediction(row, {b"": (token, value)})

    def _write(self, place: Place) -> Generator[list[Prefix], None, Continuation | None]:
        """Yields nodes of which it has to know what follows."""
        if place.ended:
            return None
        found = yield from self._write_behind(place, place.base, place.ahead)
        if found is None:  # no token agrees: on from what it can read of the word
            found = yield from self._write_behind(place, place.path[-1], place.follower.pending)
        return found

    def _write_behind(
        self, place: Place, node: Prefix, ahead: bytes
    ) -> Generator[list[Prefix], None, Continuation | None]:
        begun = place.follower.begun or bool(ahead)
        run, leaves = self.to_main.follow(ahead if begun else None), None
        for _ in range(MOST_TOKENS):
            if not self._fits(node):
                break
            if node not in self._predictions:
                # One call evaluates the whole word as it is spelt.
                at = place.path.index(node) if node in place.path else len(place.path)
                yield [*filter(self._fits, place.path[at:] or (node,))]
            best = self._best(self._predictions[node], ahead)
            if best is None:
                break
            token, log_prob = best
            text = self.to_main.source.contents[token] or b""
            if leaves is None and (not ahead or len(text) > len(ahead)):
                leaves = Continuation(node, ahead, token, log_prob, None)
            node, ahead, run = node.child(token), ahead[len(text) :], run.push(token)
            if self._known(run) or token == self.to_main.source.end:
                break
        return leaves and leaves._replace(follows=next(iter(run.tokens), None))

    def _known(self, run: Follower) -> bool:
        """Whether the first token of what the draft model has written stays."""
        if run.settled:
            return True
        return len(run.tokens) > NEAR and not self.main_index.has_extensions(run.word + run.pending)

    def _fits(self, node: Prefix) -> bool:
        return node.parent is None or self.tree.has_room(node.parent)

    def _best(self, prediction: Prediction, ahead: bytes) -> tuple[int, float] | None:
        if ahead not in prediction.best:
            prediction.best[ahead] = None
            ids = self._agreeing(ahead)
            if len(ids):
                value, place = prediction.log_probs[ids].max(dim=0)
                prediction.best[ahead] = int(ids[place]), float(value)
        return prediction.best[ahead]

    def _ids(self, tokens: Sequence[int]) -> torch.Tensor:
        return torch.tensor(tokens, dtype=torch.long, device=self.tree.device)

    def _merge(self, continuations: Sequence[Continuation | None]) -> torch.Tensor:
        """(R, V): each token that the draft model may write counts for the one it begins with.

        The best one counts for the one that it has been found to belong to.
        """
        shape = len(continuations), self.vocab_size
        merged = torch.full(shape, UNSAID, device=self.tree.device)
        free = [row for row, one in enumerate(continuations) if one is not None and not one.ahead]
        if free:
            rows = torch.stack(
                [self._predictions[continuations[row].node].log_probs for row in free]
            )
            for row, number in zip(rows, free, strict=True):
                if continuations[number].follows is not None:
                    row[continuations[number].token] = -math.inf
            carried = self.to_main.map_logits(rows).clamp_(min=UNSAID)
            columns = self.to_main.first_tokens.to(merged.device)
            merged[torch.tensor(free, device=merged.device)[:, None], columns] = carried
        for row, one in enumerate(continuations):
            if one is None:
                continue
            if one.ahead:
                self._add_endings(merged[row], one)
            if one.follows is not None:
                _add(merged[row], one.follows, one.log_prob)
        return merged

    def _add_endings(self, row: torch.Tensor, one: Continuation) -> None:
        """Other ways to go on with what the main model has begun."""
        ids, log_probs = self._longer(one.ahead), self._predictions[one.node].log_probs
        values, places = log_probs[ids].topk(min(ALTERNATIVES, len(ids)))
        for token, value in zip(ids[places].tolist(), values.tolist(), strict=True):
            if token == one.token and one.follows is not None:
                continue
            # Within a word: what its first token is, is not known for certain.
            spelt = self._spell(self.to_main.source.contents[token][len(one.ahead) :])
            if spelt and spelt[0] is not None:
                _add(row, spelt[0], value)


def _add(row: torch.Tensor, column: int, log_prob: float) -> None:
    row[column] = torch.logaddexp(row[column], row.new_tensor(log_prob))
