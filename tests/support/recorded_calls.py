"""Calls of functions and methods, recorded."""

from collections.abc import Callable
from typing import Any


def record_calls(monkeypatch, owner: object, name: str, describe: Callable[..., Any]) -> list:
    """Return a list to which each call of ``owner.name`` adds what ``describe`` returns for it."""
    seen, function = [], getattr(owner, name)

    def recorded(*arguments, **options):
        seen.append(describe(*arguments, **options))
        return function(*arguments, **options)

    monkeypatch.setattr(owner, name, recorded)
    return seen
