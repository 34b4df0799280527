"""Parameters of tests: a table of cases, and combinations of values."""

import inspect
from collections.abc import Callable, Iterable

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
            ids = [str(value) if isinstance(value, dict) else None for value in choices]
            test = pytest.mark.parametrize(name, choices, ids=ids)(test)
        return test

    return decorate
