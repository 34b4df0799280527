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


def interrupt_call(monkeypatch, owner: object, name: str, number: int) -> list[tuple]:
    """Let one call of ``owner.name`` raise KeyboardInterrupt; return the arguments of all calls."""
    calls = []

    def interrupted(*arguments, **_) -> None:
        calls.append(arguments)
        if len(calls) == number:
            raise KeyboardInterrupt

    record_calls(monkeypatch, owner, name, interrupted)
    return calls
