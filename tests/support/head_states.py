"""States of heads that draft, straight from hidden states: no search."""

from espnet_medusa.tree.prefix import Prefix
from espnet_medusa.tree.proposer import DraftContext


def states_behind(runtime, head_input, memory, lengths, rows=None, vocabulary=None):
    """The proposer of these utterances, and its states behind (R, D) hidden states.

    It computes as the decoder does, in numbers that can be compared.

    Args:
        head_input: (R, D).
        memory: (U, S, D).
        lengths: (U,).
        rows: R, whose they are; None: all the first's.
        vocabulary: (V',) tokens that may be drafted; None: all.
    """
    roots = [Prefix(0) for _ in memory]
    cross = runtime.start(memory, lengths).cross_keys_values
    own = str(runtime.dtype).removeprefix("torch.")
    begun = runtime.proposer(vocabulary, own).begin(
        DraftContext(roots, memory.device, cross_keys_values=cross)
    )
    prefixes = [roots[row].child(place) for place, row in enumerate(rows or [0] * len(head_input))]
    for place, prefix in enumerate(prefixes):
        prefix.head_input = head_input, place
    return begun, begun.start(prefixes)
