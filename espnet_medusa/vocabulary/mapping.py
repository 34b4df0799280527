"""Tokens of one vocabulary as tokens of another, and a running text of one as one of the other."""

import codecs
import re
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from espnet_medusa.vocabulary.vocabulary import Vocabulary, bare

# Where a text may be cut so that its parts are spelt as the whole: before a word.
BEFORE_WORD = re.compile(rb"(?<=\S)(?= )")


@dataclass(frozen=True)
class Coverage:
    """How much of a vocabulary another one holds.

    Attributes:
        exact: Ordinary tokens with a token of the same bytes.
        multi_token: Ordinary tokens with several.
        unmapped: Ordinary tokens with none.
        unused: Ids that are no token.
        special: Names of special tokens to their names there; None for those unmapped.
    """

    exact: int
    multi_token: int
    unmapped: int
    unused: int
    special: dict[str, str | None]


@dataclass(frozen=True)
class VocabularyMap:
    """From one vocabulary to another.

    Attributes:
        source, target: The two vocabularies.
        exact: (V,) the token of the same bytes or the same special name; -1 where there is none.
        pieces: Token to all tokens that together write its bytes, where there is no exact one.
        unmapped: Tokens with neither.
    """

    source: Vocabulary
    target: Vocabulary
    exact: Tensor = field(repr=False)
    pieces: dict[int, tuple[int, ...]] = field(repr=False)
    unmapped: tuple[int, ...] = field(repr=False)

    @cached_property
    def first(self) -> Tensor:
        """(V,) the first token of the other vocabulary; -1 where there is none."""
        found = self.exact.clone()
        for token, pieces in self.pieces.items():
            found[token] = pieces[0]
        return found

    @cached_property
    def beginnings(self) -> Tensor:
        """(V',) tokens of the other vocabulary that something here begins with, ascending."""
        return self.first[self.first >= 0].unique()

    def carry(self, logits: Tensor) -> Tensor:
        """Logits of the source as logits of ``beginnings``.

        Args:
            logits: (R, V) or more columns, which are left out.

        Returns:
            (R, V') where tokens that begin with the same one add up their probabilities.
        """
        if self._one_to_one is not None:
            return logits[:, self._one_to_one.to(logits.device)]
        known, columns = self._columns
        logits = logits[:, known.to(logits.device)]
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        # Of a row of -inf alone not nan.
        most = logits.amax(1, keepdim=True).clamp(min=torch.finfo(logits.dtype).min)
        added = logits.new_zeros(len(logits), len(self.beginnings))
        added.index_add_(1, columns.to(logits.device), (logits - most).exp())
        return added.log() + most

    @cached_property
    def _columns(self) -> tuple[Tensor, Tensor]:
        """Mapped tokens of the source, and the place of each among ``beginnings``."""
        known = (self.first >= 0).nonzero().squeeze(1)
        return known, torch.searchsorted(self.beginnings, self.first[known])

    @cached_property
    def _one_to_one(self) -> Tensor | None:
        """The source's token for each of ``beginnings``; None where several share one."""
        known, columns = self._columns
        return known[columns.argsort()] if len(known) == len(self.beginnings) else None

    @cached_property
    def same_text(self) -> bool:
        """Whether the ordinary tokens of both write the same: then texts go token by token."""
        return self.source.ids.keys() == self.target.ids.keys()

    def coverage(self) -> Coverage:
        """Count what is mapped how."""
        names = self.source.names
        found = dict(zip(names, self.exact.tolist(), strict=True))
        special = {
            name: self.target.names[found[name]] if found[name] >= 0 else None
            for name in names
            if name is not None
        }
        ordinary = [number for number, text in enumerate(self.source.contents) if text is not None]
        exact = int((self.exact[ordinary] >= 0).sum())
        return Coverage(
            exact=exact,
            multi_token=len(self.pieces),
            unmapped=len(ordinary) - exact - len(self.pieces),
            unused=len(names) - len(ordinary) - len(special),
            special=special,
        )

    def follow(self, skip: bytes | None = None) -> "Follower":
        """Follow a text of the source from here.

        Args:
            skip: None at the start of a text. Within one the bytes, often none, that the target's
                text is ahead: what comes is to begin with them and is followed from behind them.
        """
        return Follower(self, begun=skip is not None, skip=skip or b"")

    @cached_property
    def _exact_ids(self) -> list[int]:
        return self.exact.tolist()

    @cached_property
    def _spell(self):
        # Words come again, in other hypotheses and at every token that goes on with them.
        return lru_cache(maxsize=65536)(lambda text: tuple(self.target.encode(text)))


def map_vocabularies(source: Vocabulary, target: Vocabulary) -> VocabularyMap:
    """Map by bytes and by special names; what remains by spelling it in the target's tokens.

    A special token goes to the one of the same name, or else the end of a text to the end and the
    start to the start (Whisper's `<|endoftext|>` and ESPnet's `<sos/eos>`).
    """
    exact, pieces, unmapped = [-1] * len(source), {}, []
    for token, text in enumerate(source.contents):
        name = source.names[token]
        if name is not None:
            found = _map_special(source, target, token, name)
        else:
            found = target.ids.get(text)
        if found is not None:
            exact[token] = found
            continue
        spelt = target.encode(text) if text else []
        # A tokenizer that normalizes may write something else.
        if spelt and None not in spelt and target.write(spelt) == text:
            pieces[token] = tuple(spelt)
        else:
            unmapped.append(token)
    return VocabularyMap(source, target, torch.tensor(exact), pieces, tuple(unmapped))


def _map_special(source: Vocabulary, target: Vocabulary, token: int, name: str) -> int | None:
    same = target.special.get(bare(name))
    if same is not None:
        return same
    if token == source.end:
        return target.end
    return target.start if token == source.start else None


@dataclass(frozen=True)
class Follower:
    """A running text of the source, in tokens of the target; `push` gives the next state.

    Where both vocabularies write the same, tokens go one to one. Otherwise the text is spelt as
    the target's tokenizer would, and the last word only for now: when it goes on, its tokens may
    become others. So of two states that follow each other, the tokens share a prefix, no more.

    Attributes:
        map: From source to target.
        settled: Target tokens that stay.
        word: Bytes behind them, of whole characters: a word that may go on.
        pending: Bytes of an unfinished character.
        begun: Whether the text has begun: the first word may gain or lose its space.
        skip: Bytes to leave out of what comes; None: what came contradicts them, nothing follows.
    """

    map: VocabularyMap = field(repr=False)
    settled: tuple[int, ...] = ()
    word: bytes = b""
    pending: bytes = b""
    begun: bool = False
    skip: bytes | None = b""

    @property
    def tokens(self) -> tuple[int, ...]:
        """The text so far; of the last word only what tokens of the target write."""
        if not self.word:
            return self.settled
        return self.settled + tuple(t for t in self.map._spell(self.word) if t is not None)

    def push(self, token: int) -> "Follower":
        """Go on by a token of the source; special ones without counterpart leave no trace."""
        source = self.map.source
        if source.names[token] is not None:
            ended, found = self.end(), self.map._exact_ids[token]
            return replace(ended, settled=ended.settled + (found,)) if found >= 0 else ended
        text = source.contents[token]
        if not text or self.skip is None:
            return self
        if self.map.same_text and not (self.skip or self.word or self.pending):
            return replace(self, settled=self.settled + (self.map._exact_ids[token],), begun=True)
        if self.skip:
            if not (text.startswith(self.skip) or self.skip.startswith(text)):
                return replace(self, skip=None)
            return replace(self, skip=self.skip[len(text) :])._push(text[len(self.skip) :])
        return self._push(text)

    def _push(self, text: bytes) -> "Follower":
        text, pending = _whole_characters(self.pending + text)
        if not text:
            return replace(self, pending=pending)
        if not self.begun:
            text = self._begin(text)
        *words, last = BEFORE_WORD.split(self.word + text)
        return replace(self, settled=self._settle(words), word=last, pending=pending, begun=True)

    def _begin(self, text: bytes) -> bytes:
        wanted = self.map.target.leading_space
        if wanted is None:
            return text
        return (b" " if wanted else b"") + text.removeprefix(b" ")

    def _settle(self, words: list[bytes]) -> tuple[int, ...]:
        unknown = self.map.target.unknown
        found = [unknown if t is None else t for word in words for t in self.map._spell(word)]
        return self.settled + tuple(token for token in found if token is not None)

    def end(self) -> "Follower":
        """The text ends here: its last word, and an unfinished character, go no further."""
        rest = self.word + self.pending
        if not rest:
            return self
        settled = self._settle([rest if self.begun else self._begin(rest)])
        return replace(self, settled=settled, word=b"", pending=b"", begun=True)


def _whole_characters(data: bytes) -> tuple[bytes, bytes]:
    """Split off the beginning of a UTF-8 character that may still become whole."""
    decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
    decoder.decode(data)
    rest = decoder.getstate()[0]
    return data[: len(data) - len(rest)], rest
