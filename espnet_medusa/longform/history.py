"""What stands before a window's transcript: text of the windows before, or of the user."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass
class History:
    """The tokens of one recording so far.

    Attributes:
        initial: Tokens of the user's prompt.
        most: Tokens that a prompt may hold.
        carries_initial: Whether the user's prompt stands before every window.
        tokens: The user's prompt, then all that was written.
        forgotten: So many of them are in no prompt any more.
    """

    initial: tuple[int, ...]
    most: int
    carries_initial: bool = False
    tokens: list[int] = field(init=False)
    forgotten: int = 0

    def __post_init__(self) -> None:
        self.tokens = [*self.initial]

    @property
    def written(self) -> list[int]:
        """Tokens of the recording."""
        return self.tokens[len(self.initial) :]

    def prompt(self) -> list[int]:
        """Tokens before the next window, the last ``most`` of them."""
        if not self.carries_initial:
            return _last(self.tokens[self.forgotten :], self.most)
        said = self.tokens[max(len(self.initial), self.forgotten) :]
        return _last([*self.initial, *_last(said, self.most - len(self.initial))], self.most)

    def add(self, tokens: Sequence[int], forget: bool) -> None:
        """A window more; ``forget``: nothing so far stands in a prompt again."""
        self.tokens += tokens
        if forget:
            self.forgotten = len(self.tokens)


def _last(tokens: list[int], count: int) -> list[int]:
    return tokens[max(len(tokens) - max(count, 0), 0) :]
