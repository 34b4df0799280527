"""Map the tokens of one vocabulary to another, and convert a growing text between them."""

import codecs
import re
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from espnet_medusa.data.vocabulary.vocabulary import Vocabulary, bare

# A text may be split before a word: the tokens of its parts are the tokens of the whole text.
BEFORE_WORD = re.compile(rb"(?<=\S)(?= )")


@dataclass(frozen=True)
class Coverage:
    """Counts of how the tokens of a vocabulary map to another."""

    exact: int  # ordinary tokens with a token of the same bytes
    multi_token: int  # ordinary tokens that map to several tokens
    unmapped: int  # ordinary tokens that map to no tokens
    unused: int  # ids without a token
    special: dict[str, str | None]  # names of special tokens to target names; None: unmapped


@dataclass(frozen=True)
class VocabularyMap:
    source: Vocabulary
    target: Vocabulary
    exact: Tensor = field(repr=False)  # (V,) target token of the same bytes or special name, or -1
    pieces: dict[int, tuple[int, ...]] = field(repr=False)  # tokens that map to several tokens
    unmapped: tuple[int, ...] = field(repr=False)  # all other tokens

    @cached_property
    def first(self) -> Tensor:
        """(V,) first target token of each source token, or -1."""
        first = self.exact.clone()
        if self.pieces:
            first[[*self.pieces]] = torch.tensor([pieces[0] for pieces in self.pieces.values()])
        return first

    @cached_property
    def first_tokens(self) -> Tensor:
        """(V',) target tokens that some source token begins with, ascending."""
        return self.first[self.first >= 0].unique()

    def map_logits(self, logits: Tensor) -> Tensor:
        """Convert logits (R, V) of the source to logits (R, V') of ``first_tokens``.

        The probabilities of source tokens with the same first token are added.
        """
        if self._one_to_one is not None:
            return logits[:, self._one_to_one.to(logits.device)]
        mapped, columns = self._columns
        logits = logits[:, mapped.to(logits.device)]
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        # Clamped: a row of -inf must not become nan.
        largest = logits.amax(1, keepdim=True).clamp(min=torch.finfo(logits.dtype).min)
        added = logits.new_zeros(len(logits), len(self.first_tokens))
        added.index_add_(1, columns.to(logits.device), (logits - largest).exp())
        return added.log() + largest

    @cached_property
    def _columns(self) -> tuple[Tensor, Tensor]:
        """Mapped tokens of the source, and the place of each in ``first_tokens``."""
        mapped = (self.first >= 0).nonzero().squeeze(1)
        return mapped, torch.searchsorted(self.first_tokens, self.first[mapped])

    @cached_property
    def _one_to_one(self) -> Tensor | None:
        """The source token of each of ``first_tokens``; None if several share one."""
        mapped, columns = self._columns
        return mapped[columns.argsort()] if len(mapped) == len(self.first_tokens) else None

    @cached_property
    def same_text(self) -> bool:
        """Whether both have the same ordinary tokens, so that texts convert token by token."""
        return self.source.ids.keys() == self.target.ids.keys()

    def coverage(self) -> Coverage:
        names = self.source.names
        special = {
            name: self.target.names[number] if number >= 0 else None
            for name, number in zip(names, self._exact_ids, strict=True)
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

    def follow(self, skip: bytes | None = None) -> "RetokenizedText":
        """Return an empty text, to convert tokens of the source one by one.

        Args:
            skip: None at the start of a text. Within a text, bytes (often none) that the source's
                next tokens begin with and that the target's text already contains.
        """
        return RetokenizedText(self, begun=skip is not None, skip=skip or b"")

    @cached_property
    def _exact_ids(self) -> list[int]:
        return self.exact.tolist()

    @cached_property
    def _spell(self):
        # Cached: words recur in other hypotheses, and at every token that extends them.
        return lru_cache(maxsize=65536)(lambda text: tuple(self.target.encode(text)))


def map_vocabularies(source: Vocabulary, target: Vocabulary) -> VocabularyMap:
    """Map each token to that of the same bytes or special name, or else tokenize its bytes.

    Start and end tokens map to each other under any name, such as `<|endoftext|>` to `<sos/eos>`.
    """
    exact, pieces, unmapped = [-1] * len(source), {}, []
    for token, text in enumerate(source.contents):
        name = source.names[token]
        equal = target.ids.get(text) if name is None else _map_special(source, target, token, name)
        if equal is not None:
            exact[token] = equal
            continue
        encoded = target.encode(text) if text else []
        # A tokenizer that normalizes may write other bytes.
        if encoded and None not in encoded and target.write(encoded) == text:
            pieces[token] = tuple(encoded)
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
class RetokenizedText:
    """A growing text, converted from tokens of the source to tokens of the target.

    If both vocabularies have the same ordinary tokens, they convert one to one. Otherwise the
    target's tokenizer encodes the text. The tokens of the last word may change when it grows.
    """

    map: VocabularyMap = field(repr=False)
    settled: tuple[int, ...] = ()  # target tokens that no longer change
    word: bytes = b""  # whole characters of the last word
    pending: bytes = b""  # bytes of an incomplete character
    begun: bool = False  # False: the next word is a text's first, see ``Vocabulary.leading_space``
    skip: bytes | None = b""  # bytes to drop first; None: other bytes came, so tokens are ignored

    @property
    def tokens(self) -> tuple[int, ...]:
        """The tokens of the text so far, without characters that no target token contains."""
        if not self.word:
            return self.settled
        return self.settled + tuple(t for t in self.map._spell(self.word) if t is not None)

    def push(self, token: int) -> "RetokenizedText":
        """Return the state after a source token; unmapped special tokens only settle the text."""
        source = self.map.source
        if source.names[token] is not None:
            ended, equal = self.end(), self.map._exact_ids[token]
            return replace(ended, settled=ended.settled + (equal,)) if equal >= 0 else ended
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

    def _push(self, text: bytes) -> "RetokenizedText":
        text = self.pending + text
        decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        decoder.decode(text)
        pending = decoder.getstate()[0]  # an incomplete character at the end
        text = text[: len(text) - len(pending)]
        if not text:
            return replace(self, pending=pending)
        if not self.begun:
            text = self._begin(text)
        *words, last = BEFORE_WORD.split(self.word + text)
        return replace(self, settled=self._settle(words), word=last, pending=pending, begun=True)

    def _begin(self, text: bytes) -> bytes:
        leading_space = self.map.target.leading_space
        if leading_space is None:
            return text
        return (b" " if leading_space else b"") + text.removeprefix(b" ")

    def _settle(self, words: list[bytes]) -> tuple[int, ...]:
        unknown = self.map.target.unknown
        tokens = [unknown if t is None else t for word in words for t in self.map._spell(word)]
        return self.settled + tuple(token for token in tokens if token is not None)

    def end(self) -> "RetokenizedText":
        """Return the state at the end of the text, with all its tokens settled."""
        rest = self.word + self.pending
        if not rest:
            return self
        settled = self._settle([rest if self.begun else self._begin(rest)])
        return replace(self, settled=settled, word=b"", pending=b"", begun=True)
