"""All fuzzed readers, by name."""

from fuzz import archives, audio, configs, tables, weights  # noqa: F401  each adds its readers
from fuzz.reader import READERS  # noqa: F401
