"""Prefixes in a draft model's token tree for prefixes in another vocabulary.

The main text (the main model's prefix) is tokenized again with the draft model's tokenizer. The
tokens of complete words do not change. Those of the last word may change when it grows. So the
draft model predicts from the start of that word, among tokens that agree with the word's bytes:
after " he" it may predict " hello". It continues until the main model's next token is certain,
often at the end of the word.
"""

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import torch

from espnet_medusa.data.vocabulary.mapping import RetokenizedText
from espnet_medusa.data.vocabulary.translation import Translation
from espnet_medusa.decoding.draft.draft_tree import DraftTree
from espnet_medusa.decoding.draft.prefix_map import UNKNOWN, PrefixMap
from espnet_medusa.decoding.tree.prefix import Prefix

# When text is appended, a tokenizer may replace the last tokens by longer ones. A token is certain
# if NEAR or more tokens follow, and its bytes and all later ones do not begin a longer token.
NEAR = 2
MOST_TOKENS = 16  # maximum number of draft tokens per token of the main model
ALTERNATIVES = 16  # other continuations of a word


@dataclass(frozen=True, eq=False)
class DraftPrefix:
    """The main text in the draft model's tree."""

    settled: Prefix  # node of the last complete word
    text: RetokenizedText  # the main text after ``settled``
    base: Prefix  # node from which the draft model predicts: ``settled`` or a descendant
    ahead: bytes  # bytes of the main text after ``base``
    path: tuple[Prefix, ...]  # nodes from ``base`` to the end of the main text
    ended: bool = False  # whether the main text has its end token


@dataclass(frozen=True)
class Prediction:
    """The draft model's next token after a node."""

    log_probs: torch.Tensor  # (V',) over its tokens
    # By the bytes ahead: the best token that agrees with them and its log-probability, or None.
    best: dict[bytes, tuple[int, float] | None]


class Continuation(NamedTuple):
    node: Prefix  # last node within the main text
    ahead: bytes  # bytes of the main text after that node
    token: int  # draft token after that node: the first one that extends the main text
    log_prob: float  # of that token
    follows: int | None  # the main model's next token; None: not certain


class Retokenizer(PrefixMap):
    """For any two vocabularies; ``eos`` is the main model's end token."""

    def __init__(self, tree: DraftTree, translation: Translation, eos: int):
        super().__init__(tree)
        self.to_draft, self.to_main, self.eos = translation.to_draft, translation.to_main, eos
        self.vocab_size, self.order = translation.vocab_size, translation.draft_index
        self.main_index = translation.main_index
        self._predictions: dict[Prefix, Prediction] = {}
        cached = lru_cache(maxsize=4096)
        self._agreeing = cached(lambda ahead: self._ids(self.order.compatible(ahead)))
        self._longer = cached(lambda ahead: self._ids(self.order.extensions(ahead)))
        self._spell = cached(self.to_main.target.encode)

    def begin(self, root: Prefix) -> DraftPrefix:
        return self._draft_prefix(root, self.to_draft.follow())

    def follow(self, draft_prefix: DraftPrefix, token: int) -> DraftPrefix:
        if draft_prefix.ended or token == self.eos:
            return replace(draft_prefix, ended=True)
        if token >= len(self.to_draft.source):
            return draft_prefix
        text = draft_prefix.text.push(token)
        settled = draft_prefix.settled
        for draft_token in text.settled:
            settled = settled.child(draft_token)
        return self._draft_prefix(settled, replace(text, settled=()))

    def _draft_prefix(self, settled: Prefix, text: RetokenizedText) -> DraftPrefix:
        base, tokens, draft = settled, text.tokens, self.to_draft.target
        # Without tokens for some of the word's bytes, no token is certain.
        ahead, certain, written = text.word + text.pending, 0, draft.write(tokens)
        while written == text.word and certain < len(tokens) - NEAR and ahead:
            if self.order.has_extensions(ahead):
                break
            ahead = ahead[len(draft.contents[tokens[certain]]) :]
            certain += 1
        for token in tokens[:certain]:
            base = base.child(token)
        path = [base]
        for token in tokens[certain:]:
            path.append(path[-1].child(token))
        return DraftPrefix(settled, text, base, ahead, tuple(path))

    def keep(self, draft_prefixes: Sequence[DraftPrefix]) -> None:
        self.tree.keep([draft_prefix.base for draft_prefix in draft_prefixes])
        for draft_prefix in draft_prefixes:
            # Later drafts start at the base or after it.
            node = draft_prefix.base.parent
            while node is not None and self._predictions.pop(node, None) is not None:
                node = node.parent
        predictions = self._predictions.items()
        self._predictions = {node: found for node, found in predictions if node.evaluated}

    def logits(self, draft_prefixes: Sequence[DraftPrefix]) -> torch.Tensor:
        different = {
            draft_prefix: row for row, draft_prefix in enumerate(dict.fromkeys(draft_prefixes))
        }
        logits = self._merge(self._continuations([*different]))
        if len(different) == len(draft_prefixes):
            return logits
        return logits[
            torch.tensor(
                [different[draft_prefix] for draft_prefix in draft_prefixes], device=logits.device
            )
        ]

    def _continuations(self, draft_prefixes: Sequence[DraftPrefix]) -> list[Continuation | None]:
        """Return the continuation of each draft prefix; all share the decoder calls."""
        continuations: list[Continuation | None] = [None] * len(draft_prefixes)
        writing = {
            row: self._write(draft_prefix) for row, draft_prefix in enumerate(draft_prefixes)
        }
        while writing:
            needed: dict[Prefix, None] = {}
            for row, writer in [*writing.items()]:
                try:
                    needed |= dict.fromkeys(next(writer))
                except StopIteration as end:
                    continuations[row] = end.value
                    del writing[row]
            if needed:
                nodes = [node for node in needed if node not in self._predictions]
                logits = self.tree.logits(nodes)[:, : len(self.to_main.source)]
                log_probs = logits.float().log_softmax(dim=-1)
                best = [column.tolist() for column in log_probs.max(dim=-1)]
                for node, row, value, token in zip(nodes, log_probs, *best, strict=True):
                    self._predictions[node] = Prediction(row, {b"": (token, value)})
        return continuations

    def _write(
        self, draft_prefix: DraftPrefix
    ) -> Generator[list[Prefix], None, Continuation | None]:
        """Yield nodes whose predictions are needed; return the continuation."""
        if draft_prefix.ended:
            return None
        continuation = yield from self._write_after(
            draft_prefix, draft_prefix.base, draft_prefix.ahead
        )
        if continuation is None:  # no token agrees: predict after the whole characters of the word
            continuation = yield from self._write_after(
                draft_prefix, draft_prefix.path[-1], draft_prefix.text.pending
            )
        return continuation

    def _write_after(
        self, draft_prefix: DraftPrefix, node: Prefix, ahead: bytes
    ) -> Generator[list[Prefix], None, Continuation | None]:
        begun = draft_prefix.text.begun or bool(ahead)
        written, continuation = self.to_main.follow(ahead if begun else None), None
        for _ in range(MOST_TOKENS):
            if not self._fits(node):
                break
            if node not in self._predictions:
                # One call evaluates the whole word.
                at = (
                    draft_prefix.path.index(node)
                    if node in draft_prefix.path
                    else len(draft_prefix.path)
                )
                yield [*filter(self._fits, draft_prefix.path[at:] or (node,))]
            best = self._best(self._predictions[node], ahead)
            if best is None:
                break
            token, log_prob = best
            text = self.to_main.source.contents[token] or b""
            if continuation is None and (not ahead or len(text) > len(ahead)):
                continuation = Continuation(node, ahead, token, log_prob, None)
            node, ahead, written = node.child(token), ahead[len(text) :], written.push(token)
            if self._is_certain(written) or token == self.to_main.source.end:
                break
        return continuation and continuation._replace(follows=next(iter(written.tokens), None))

    def _is_certain(self, written: RetokenizedText) -> bool:
        """Return whether the main model's first token of the written text is certain."""
        if written.settled:
            return True
        text = written.word + written.pending
        return len(written.tokens) > NEAR and not self.main_index.has_extensions(text)

    def _fits(self, node: Prefix) -> bool:
        return node.parent is None or self.tree.has_room(node.parent)

    def _best(self, prediction: Prediction, ahead: bytes) -> tuple[int, float] | None:
        if ahead not in prediction.best:
            prediction.best[ahead] = None
            ids = self._agreeing(ahead)
            if len(ids):
                value, column = prediction.log_probs[ids].max(dim=0)
                prediction.best[ahead] = int(ids[column]), float(value)
        return prediction.best[ahead]

    def _ids(self, tokens: Sequence[int]) -> torch.Tensor:
        return torch.tensor(tokens, dtype=torch.long, device=self.tree.device)

    def _merge(self, continuations: Sequence[Continuation | None]) -> torch.Tensor:
        """Convert the draft model's predictions to scores (R, V) of main tokens.

        The probability of a draft token goes to the first main token of its bytes. That of the
        continuation's token goes to ``Continuation.follows``, if this is known.
        """
        merged = torch.full((len(continuations), self.vocab_size), UNKNOWN, device=self.tree.device)
        free = [row for row, one in enumerate(continuations) if one is not None and not one.ahead]
        if free:
            chosen = [continuations[row] for row in free]
            rows = torch.stack([self._predictions[one.node].log_probs for one in chosen])
            for row, one in zip(rows, chosen, strict=True):
                if one.follows is not None:
                    row[one.token] = -math.inf
            carried = self.to_main.map_logits(rows).clamp_(min=UNKNOWN)
            columns = self.to_main.first_tokens.to(merged.device)
            merged[torch.tensor(free, device=merged.device)[:, None], columns] = carried
        for row, continuation in enumerate(continuations):
            if continuation is None:
                continue
            if continuation.ahead:
                self._add_endings(merged[row], continuation)
            if continuation.follows is not None:
                _add(merged[row], continuation.follows, continuation.log_prob)
        return merged

    def _add_endings(self, row: torch.Tensor, continuation: Continuation) -> None:
        """Add the log-probabilities of other continuations of an unfinished word."""
        ahead = continuation.ahead
        ids, log_probs = self._longer(ahead), self._predictions[continuation.node].log_probs
        values, columns = log_probs[ids].topk(min(ALTERNATIVES, len(ids)))
        for token, value in zip(ids[columns].tolist(), values.tolist(), strict=True):
            if token == continuation.token and continuation.follows is not None:
                continue
            # An approximation: if the word continues, its first main token may be another.
            tokens = self._spell(self.to_main.source.contents[token][len(ahead) :])
            if tokens and tokens[0] is not None:
                _add(row, tokens[0], value)


def _add(row: torch.Tensor, column: int, log_prob: float) -> None:
    row[column] = torch.logaddexp(row[column], row.new_tensor(log_prob))
