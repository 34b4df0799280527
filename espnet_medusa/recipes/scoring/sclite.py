"""Score trn files by sclite's rules: words, speakers, joining by id, counts.

sclite's rules for words: without case sensitivity, A-Z (no other letters) become a-z. A word ends
at its first `;`. Backslashes and one final `*` are dropped. `@` means no word. Source: NIST SCTK
2.4.10 (align.c, word.c), checked against the program's output.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from functools import cached_property
from operator import add
from pathlib import Path

from espnet_medusa.data.errors import list_some
from espnet_medusa.recipes.scoring.alignment import CORRECT, DELETION, INSERTION, NULL_WORD, align
from espnet_medusa.recipes.scoring.trn import TrnLine, read_trn

ID_TYPES = ("rm", "spu_id", "swb", "wsj", "sp")
CHARACTER_MODES = ("all", "noascii")
WORD_END = re.compile(r"(?<!\\);")  # a `;` without a backslash before it

_ASCII_LOWER = str.maketrans({chr(code): chr(code + 32) for code in range(ord("A"), ord("Z") + 1)})


def percent(part: float, whole: float) -> float:
    """Return 100 part / whole; 0 if the whole is empty, as sclite prints it."""
    return part / whole * 100.0 if whole else 0.0


@dataclass(frozen=True)
class Counts:
    """sclite's counts of an utterance, a speaker or a whole set; `+` adds them."""

    correct: int = 0  # words; so are the next three counts
    substitutions: int = 0
    deletions: int = 0
    insertions: int = 0
    sentences: int = 0  # utterances
    sentence_errors: int = 0  # utterances with at least one error

    @classmethod
    def of_operations(cls, operations: str) -> "Counts":
        """Count one utterance's alignment letters (see `alignment.align`)."""
        counts = map(operations.count, "CSDI")
        return cls(*counts, sentences=1, sentence_errors=int(operations.strip(CORRECT) != ""))

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(*map(add, astuple(self), astuple(other)))

    @property
    def words(self) -> int:
        """Number of words of the reference."""
        return self.correct + self.substitutions + self.deletions

    @property
    def errors(self) -> int:
        return self.substitutions + self.deletions + self.insertions

    @property
    def error_percent(self) -> float:
        """Word (character, token) error rate; 0 without reference words."""
        return percent(self.errors, self.words)

    @property
    def sentence_error_percent(self) -> float:
        return percent(self.sentence_errors, self.sentences)


@dataclass(frozen=True)
class ScoredUtterance:
    id: str  # in lower case unless scoring was case sensitive
    speaker: str
    reference: tuple[str, ...]  # words as compared, without null words
    hypothesis: tuple[str, ...]  # words as compared, without null words
    operations: str  # one letter per aligned position: C, S, D, I
    counts: Counts  # of the letters

    def pairs(self) -> Iterator[tuple[str, str | None, str | None]]:
        """Yield (letter, reference word, hypothesis word); None where there is no word."""
        reference, hypothesis = iter(self.reference), iter(self.hypothesis)
        for operation in self.operations:
            spoken = None if operation == INSERTION else next(reference)
            recognized = None if operation == DELETION else next(hypothesis)
            yield operation, spoken, recognized


@dataclass(frozen=True)
class Score:
    """The scored utterances of one hypothesis file."""

    title: str  # name in the reports (sclite's default: the hypothesis file)
    utterances: tuple[ScoredUtterance, ...]  # in the hypothesis file's order, then missing ones
    case_sensitive: bool = False  # whether case was compared
    characters: bool = False  # whether words were split into characters (`-c`)
    # Ids with a `{`, which NIST's program reads as the start of alternatives; here it is a letter.
    with_braces: tuple[str, ...] = ()

    @cached_property
    def speakers(self) -> dict[str, Counts]:
        """Speaker to counts, in order of appearance."""
        speakers: dict[str, Counts] = {}
        for utterance in self.utterances:
            before = speakers.get(utterance.speaker, Counts())
            speakers[utterance.speaker] = before + utterance.counts
        return speakers

    @cached_property
    def total(self) -> Counts:
        return sum(self.speakers.values(), Counts())


def score_trn(
    reference: str | Path,
    hypothesis: str | Path,
    *,
    id_type: str = "rm",
    case_sensitive: bool = False,
    allow_missing: bool = False,
    characters: str | None = None,
    title: str | None = None,
) -> Score:
    """Align the utterances of a hypothesis file with those of a reference file.

    Raise ValueError if a line cannot be read, an id is repeated, missing or unknown to the
    reference, or the reference is empty.

    Args:
        id_type: Which part of an id is the speaker: rm, spu_id and swb: up to the first `-`, or
            else `_`; wsj: three bytes; sp: all.
        allow_missing: Count utterances without hypothesis as deletions instead of refusing them.
        characters: None: words; "all": characters; "noascii": runs of ASCII, others one by one.
        title: Name in the reports; by default the hypothesis file.
    """
    if characters is not None and characters not in CHARACTER_MODES:
        raise ValueError(f"characters: '{characters}' is not known; use one of {CHARACTER_MODES}")
    utterances, with_braces = [], []
    for sides in read_joined(reference, hypothesis, case_sensitive, allow_missing):
        name = (sides[1] or sides[0]).id
        name = name if case_sensitive else name.translate(_ASCII_LOWER)
        pair = [compared_words(side, case_sensitive, characters) if side else [] for side in sides]
        if any("{" in token for side in sides if side for token in side.tokens):
            with_braces.append(name)
        operations = align(*pair)
        spoken, recognized = (tuple(w for w in side if w != NULL_WORD) for side in pair)
        counts = Counts.of_operations(operations)
        speaker = speaker_of(name, id_type)
        utterances.append(ScoredUtterance(name, speaker, spoken, recognized, operations, counts))
    title = str(hypothesis) if title is None else title
    split, braces = characters is not None, tuple(with_braces)
    return Score(title, tuple(utterances), case_sensitive, split, braces)


def read_joined(
    reference: str | Path, hypothesis: str | Path, case_sensitive: bool, allow_missing: bool
) -> list[tuple[TrnLine, TrnLine | None]]:
    """Pair each reference with its hypothesis, None if missing, in the hypothesis file's order.

    Ids are compared without case, as in sclite, unless two ids differ by case only. Errors are
    those of `score_trn`.
    """
    references, hypotheses = read_trn(reference), read_trn(hypothesis)
    if not references:
        raise ValueError(f"{reference}: has no utterances to score")
    fold = not case_sensitive and _unique_folded(references) and _unique_folded(hypotheses)

    def key(line: TrnLine) -> str:
        return line.id.translate(_ASCII_LOWER) if fold else line.id

    by_key = {key(line): line for line in references}
    hypothesis_keys = {key(line) for line in hypotheses}
    unknown = [line.id for line in hypotheses if key(line) not in by_key]
    if unknown:
        raise ValueError(
            f"{hypothesis}: ids without a reference in {reference}: {list_some(unknown)}; "
            "add the references or remove these lines"
        )
    missing = [line for name, line in by_key.items() if name not in hypothesis_keys]
    if missing and not allow_missing:
        raise ValueError(
            f"{hypothesis}: no hypothesis for {list_some(line.id for line in missing)}; decode "
            f"these utterances again, or count them as deletions with --allow_missing true"
        )
    found = [(by_key[key(line)], line) for line in hypotheses]
    return found + [(line, None) for line in missing]


def _unique_folded(lines: Sequence[TrnLine]) -> bool:
    return len({line.id.translate(_ASCII_LOWER) for line in lines}) == len(lines)


def compared_words(line: TrnLine, case_sensitive: bool, characters: str | None) -> list[str]:
    """Return the words of a line as sclite compares them, except alternatives (`{`)."""
    words = []
    for token in line.tokens:
        word = WORD_END.split(token, maxsplit=1)[0].replace("\\", "")
        if len(word) > 1 and word.endswith("*"):
            word = word[:-1]
        word = word if case_sensitive else word.translate(_ASCII_LOWER)
        words += [word] if characters is None else _split_characters(word, characters)
    return words


def _split_characters(word: str, mode: str) -> list[str]:
    if mode == "all":
        return list(word) or [word]
    parts: list[str] = []
    for character in word:
        if parts and character.isascii() and parts[-1].isascii():
            parts[-1] += character
        else:
            parts.append(character)
    # sclite parses the parts as words again and drops a final * again.
    if len(parts) > 1:
        parts = [part[:-1] if len(part) > 1 and part.endswith("*") else part for part in parts]
    return parts or [word]


def speaker_of(utterance_id: str, id_type: str) -> str:
    """Return the speaker of an utterance id; raise ValueError for another type or form of ids."""
    if id_type == "sp":
        return f"({utterance_id})"
    if id_type == "wsj":
        # Three bytes in sclite; an incomplete character is dropped.
        return f"{utterance_id})".encode()[:3].decode("utf-8", errors="ignore")
    if id_type not in ID_TYPES:
        raise ValueError(f"id type '{id_type}' is not known; use one of {', '.join(ID_TYPES)}")
    for separator in "-_":
        if separator in utterance_id:
            return utterance_id.split(separator, 1)[0]
    raise ValueError(
        f"id '{utterance_id}' has no '-' or '_' after the speaker, as id type '{id_type}' needs; "
        f"write ids as speaker-utterance, or use -i sp"
    )
