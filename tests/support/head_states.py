"""States of heads that draft, straight from hidden states: no search."""

from espnet_medusa.tree.prefix import Prefix


def states_behind(surrogate, head_input, memory, lengths, rows=None):
    """The surrogate of these utterances, and its states behind (R, D) hidden states.

    Args:
        surrogate: Of a runtime.
        head_input: (R, D).
        memory: (U, S, D).
        lengths: (U,).
        rows: R, whose they are; None: all the first's.
    """
    roots = [Prefix(0) for _ in memory]
    begun = surrogate.begin(roots, memory, lengths)
    prefixes = [roots[row].child(place) for place, row in enumerate(rows or [0] * len(head_input))]
    for place, prefix in enumerate(prefixes):
        prefix.head_input = head_input, place
    return begun, begun.start(prefixes)
