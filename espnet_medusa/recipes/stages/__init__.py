"""Commands of recipe stages, which ``bin.stage`` runs.

A command is a generator function of one of the modules here. It adds its options to a parser;
``args = yield`` receives their values, and then it does the work. It imports its own dependencies,
so that other commands start fast.
"""

import argparse
from collections.abc import Generator

Command = Generator[None, argparse.Namespace, int | None]  # returns the exit status; None: 0
