"""How long threads of a product wait for each other awake.

OpenMP's spin for a millisecond and more. They meet a dozen times in a layer; where another program
takes a core, a thread that has spun has used up its turn there, and everybody waits until it gets
the next one. A thread that has slept gets its turn at once.
"""

import os
import sys

SPINS = 3000  # some microseconds, then sleep


def wait_briefly() -> None:
    """Say so to GNU's OpenMP, which torch brings; takes effect in processes that load it later.

    What the environment says already stays as it is.
    """
    if "torch" not in sys.modules and "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", str(SPINS))
