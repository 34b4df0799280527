"""Parameters of tests: a table of cases, and combinations of values."""

import inspect
import itertools
from collections.abc import Callable, Iterable, Sequence

import pytest


def cases(*rows: tuple, **options: object) -> Callable:
    """Parametrize a test; the values of a row are those of its first parameters."""

    def decorate(test: Callable) -> Callable:
        names = [*inspect.signature(test).parameters][: len(rows[0])]
        return pytest.mark.parametrize(names, rows, **options)(test)

    return decorate


def combinations(**values: Iterable) -> Callable:
    """Parametrize a test with every combination of the values of its parameters."""

    def decorate(test: Callable) -> Callable:
        for name, choices in reversed(values.items()):
            test = pytest.mark.parametrize(name, choices, ids=readable)(test)
        return test

    return decorate


def pairs(*, indirect: Sequence[str] = (), **values: Iterable) -> Callable:
    """Parametrize a test with few rows that have every pair of values of two parameters.

    Parameters named in ``indirect`` are fixtures.
    """
    choices = [[*some] for some in values.values()]
    rows = [*itertools.product(*(range(len(some)) for some in choices))]
    covered = {row: {*itertools.combinations(enumerate(row), 2)} for row in rows}
    missing, chosen = set().union(*covered.values()), []
    while missing:
        chosen.append(max(rows, key=lambda row: len(covered[row] & missing)))
        missing -= covered[chosen[-1]]
    rows = [[some[place] for some, place in zip(choices, row, strict=True)] for row in chosen]
    return pytest.mark.parametrize([*values], rows, ids=readable, indirect=indirect)


def readable(value: object) -> str | None:
    """Return the id of a dictionary; pytest knows that of other values."""
    return str(value) if isinstance(value, dict) else None
