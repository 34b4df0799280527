"""What is fuzzed: a reader, as a function of a file's bytes."""

from collections.abc import Callable
from dataclasses import dataclass

MEGABYTE = 1 << 20


@dataclass(frozen=True)
class Reader:
    """A reader.

    Attributes:
        name: Of the format, in reports and options.
        read: Reads a file of these bytes. Raises InputError where it refuses them, AssertionError
            where what it read is not what they say.
        seeds: Makes small files that are read, one of each kind.
        words: What means something in the format.
        max_bytes: Of a file.
        room_bytes: Memory that it may take beside what the file's size justifies.
    """

    name: str
    read: Callable[[bytes], None]
    seeds: Callable[[], list[bytes]]
    words: tuple[bytes, ...] = ()
    max_bytes: int = 1024
    room_bytes: int = 64 * MEGABYTE
