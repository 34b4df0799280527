"""Random sentences from templates with slots: predictable, but too many to memorize.

A language file (``languages/<language>.yaml``) lists templates, and for each slot the phrases
that may fill it. A phrase may hold slots itself: ``{city}``, ``{tens} {unit}``.
"""

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import yaml

LANGUAGES_DIR = Path(__file__).resolve().parent / "languages"
_SLOT = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True)
class Language:
    """The templates, slots and voices of a language."""

    templates: tuple[str, ...]  # sentences with ``{slots}``
    slots: dict[str, tuple[str, ...]]  # phrases for each slot
    seen_voices: tuple[str, ...]  # voices of all sets
    unseen_voices: tuple[str, ...]  # voices of the test set only

    @cached_property
    def n_sentences(self) -> int:
        """Return the number of ways to fill the templates; two may give the same words."""
        ways: dict[str, int] = {}

        def count(phrase: str) -> int:
            product = 1
            for slot in _SLOT.findall(phrase):
                if slot not in ways:
                    ways[slot] = sum(map(count, self.slots[slot]))
                product *= ways[slot]
            return product

        return sum(map(count, self.templates))

    @cached_property
    def vocabulary(self) -> frozenset[str]:
        """Return the words of templates and slots, without words composed of slots."""
        phrases = [*self.templates, *(p for filling in self.slots.values() for p in filling)]
        return frozenset(word for p in phrases for word in p.split() if not _SLOT.search(word))

    def fill(self, phrase: str, generator: random.Random) -> str:
        """Fill all slots of a phrase at random."""
        return _SLOT.sub(
            lambda match: self.fill(generator.choice(self.slots[match[1]]), generator), phrase
        )

    def sentences(self, generator: random.Random) -> Iterator[str]:
        """Yield random, different sentences; all templates are equally frequent.

        Raises:
            ValueError: after about as many sentences as there are.
        """
        seen: set[str] = set()
        n_tries = 0
        while True:
            sentence = self.fill(generator.choice(self.templates), generator)
            n_tries += 1
            if sentence not in seen:
                seen.add(sentence)
                n_tries = 0
                yield sentence
            elif n_tries > 1000:
                raise ValueError(
                    f"the templates make {self.n_sentences} sentences and {len(seen)} are used: "
                    "ask for a smaller corpus, or add templates to the language file"
                )


def load_language(name: str) -> Language:
    """Read and check ``languages/<name>.yaml``.

    Raises:
        ValueError: no such language, or the file has something wrong; the message names it.
    """
    path = LANGUAGES_DIR / f"{name}.yaml"
    if not path.is_file():
        known = " ".join(sorted(p.stem for p in LANGUAGES_DIR.glob("*.yaml")))
        raise ValueError(f"language {name!r}: no file {path}; allowed: {known}")
    return parse_language(yaml.safe_load(path.read_text(encoding="utf-8")), str(path))


def parse_language(content: dict, source: str) -> Language:
    """Build a :class:`Language` from a language file's content.

    Args:
        content: keys ``templates`` (list), ``slots`` (lists by name), ``seen_voices`` and
            ``unseen_voices`` (lists).
        source: the file's name for error messages.

    Raises:
        ValueError: a key or slot is missing, a slot contains itself, a phrase is not lower-case
            words, a voice is in both lists.
    """
    keys = {"templates", "slots", "seen_voices", "unseen_voices"}
    if set(content) != keys:
        raise ValueError(f"{source}: has keys {sorted(content)}, must have {sorted(keys)}")
    language = Language(
        templates=tuple(content["templates"]),
        slots={slot: tuple(phrases) for slot, phrases in content["slots"].items()},
        seen_voices=tuple(content["seen_voices"]),
        unseen_voices=tuple(content["unseen_voices"]),
    )
    both = set(language.seen_voices) & set(language.unseen_voices)
    if both:
        raise ValueError(f"{source}: voices both seen and unseen: {sorted(both)}")
    for template in language.templates:
        _check_phrase(template, language.slots, (), source)
    return language


def _check_phrase(
    phrase: str, slots: dict[str, tuple[str, ...]], outer: tuple[str, ...], source: str
) -> None:
    letters = _SLOT.sub("", str(phrase)).replace(" ", "").replace("'", "")
    if not isinstance(phrase, str) or (letters and not (letters.isalpha() and letters.islower())):
        raise ValueError(
            f"{source}: phrase {phrase!r}: must be lower-case words, numbers spelled out "
            "(YAML does not read null, yes, no, on, off as text: quote them)"
        )
    for slot in _SLOT.findall(phrase):
        if slot in outer:
            raise ValueError(f"{source}: phrase {phrase!r}: slot {slot!r} contains itself")
        if not slots.get(slot):
            raise ValueError(
                f"{source}: phrase {phrase!r}: slot {slot!r} has no phrases; "
                f"slots: {' '.join(sorted(slots))}"
            )
        for inner in slots[slot]:
            _check_phrase(inner, slots, (*outer, slot), source)
