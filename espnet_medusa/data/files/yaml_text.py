"""Read untrusted YAML: with PyYAML's C parser, without code, and in limited size."""

import pickle
from typing import Any

import yaml
from yaml.constructor import ConstructorError

MAX_DEPTH = 100  # of nested values
MAX_DEPTH_IN_C = 2000  # PyYAML's C code is recursive: a deeper document overflows its stack
MAX_NUMBER = 100  # characters; Python takes quadratic time, and prints at most 4,300 digits
MAX_MERGED = 10_000  # keys that `<<` merges into all mappings together
MAX_REUSE = 10  # limit of the size with aliases expanded, as a multiple of the text's length
ANY_EXTENT = 100_000  # the same limit for short texts
MERGE, INT, FLOAT, STR = (f"tag:yaml.org,2002:{name}" for name in ("merge", "int", "float", "str"))
# Pure Python takes seconds to read or write Whisper's token list.
_Fastest = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


class _Loader(_Fastest):
    """Build plain values only."""

    merged = 0  # keys that ``<<`` has merged so far

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Count the keys that ``<<`` merges before PyYAML copies them."""
        merged = 0
        for key, value in node.value:
            if key.tag == MERGE:
                for part in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                    if isinstance(part, yaml.MappingNode):
                        self.flatten_mapping(part)
                        merged += len(part.value)
        self.merged += merged
        if self.merged > MAX_MERGED:
            message = f"<<: {self.merged} keys; allowed: at most {MAX_MERGED}"
            raise ConstructorError(None, None, message, node.start_mark)
        super().flatten_mapping(node)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Refuse long numbers; return strings faster than PyYAML: token lists contain many."""
        if isinstance(node, yaml.ScalarNode):
            if node.tag == STR:
                return node.value
            if node.tag in (INT, FLOAT) and len(node.value) > MAX_NUMBER:
                message = f"number of {len(node.value)} characters; allowed: at most {MAX_NUMBER}"
                raise ConstructorError(None, None, message, node.start_mark)
        return super().construct_object(node, deep)


def load_yaml(text: str) -> Any:
    """Return the plain values of a YAML document, or raise yaml.YAMLError.

    They are nested at most ``MAX_DEPTH`` deep. With aliases expanded, their size is limited by the
    length of the text.
    """
    try:
        # An upper bound of the depth, from brackets and the longest line.
        longest = max(map(len, text.splitlines()), default=0)
        if text.count("[") + text.count("{") + 2 * longest > MAX_DEPTH_IN_C:
            _check_depth(text)
        content = yaml.load(text, Loader=_Loader)
        extent = _extent(content, 0, {})
    except yaml.YAMLError as error:
        if "nesting depth" in str(error):  # libyaml's own limit, since PyYAML 6.0.4
            raise _too_deep() from error
        raise
    except Exception as error:  # from constructors, such as KeyError of `!!bool x`
        raise yaml.YAMLError(f"{type(error).__name__}: {error}") from error
    if extent > max(MAX_REUSE * len(text), ANY_EXTENT):
        raise yaml.YAMLError(f"aliases make {extent} values and characters out of {len(text)}")
    # A copy takes half the memory: the original strings are scattered among freed nodes.
    return pickle.loads(pickle.dumps(content))


def _check_depth(text: str) -> None:
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise _too_deep()


def _extent(value: Any, depth: int, counts: dict[int, int]) -> int:
    """Count values and characters, with aliases expanded, at a ``depth`` of nesting.

    ``counts`` caches the results of lists and mappings by identity.
    """
    if isinstance(value, str | bytes):
        return 1 + len(value)
    if not isinstance(value, dict | list | tuple | set):
        return 1
    if depth == MAX_DEPTH:
        raise _too_deep()
    if id(value) not in counts:
        parts = [*value, *value.values()] if isinstance(value, dict) else value
        counts[id(value)] = 1 + sum(_extent(part, depth + 1, counts) for part in parts)
    return counts[id(value)]


def _too_deep() -> yaml.YAMLError:
    return yaml.YAMLError(f"nested values; allowed: at most {MAX_DEPTH} deep")
