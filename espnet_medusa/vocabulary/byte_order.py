"""Tokens of a vocabulary by how they begin."""

from bisect import bisect_left, bisect_right

from espnet_medusa.vocabulary.vocabulary import Vocabulary


class ByteOrder:
    """Tokens of a vocabulary by how they begin.

    Args:
        vocabulary: Any.
    """

    def __init__(self, vocabulary: Vocabulary):
        self.ids = vocabulary.ids
        self.texts = sorted(self.ids)
        self.longest = max(map(len, self.texts), default=0)

    def longer(self, ahead: bytes) -> list[int]:
        """Tokens that begin with these bytes, of which there is one, and have more."""
        first, last = self._longer(ahead)
        return [self.ids[text] for text in self.texts[first:last]]

    def goes_on(self, ahead: bytes) -> bool:
        """Whether there are any."""
        first, last = self._longer(ahead)
        return first < last

    def _longer(self, ahead: bytes) -> tuple[int, int]:
        first = bisect_right(self.texts, ahead)
        return first, bisect_left(self.texts, ahead + b"\xff" * (self.longest + 1))

    def agreeing(self, ahead: bytes) -> list[int]:
        """Those, and tokens that these bytes begin with."""
        beginnings = (ahead[:size] for size in range(1, len(ahead) + 1))
        return [self.ids[text] for text in beginnings if text in self.ids] + self.longer(ahead)
