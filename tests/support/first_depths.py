"""Drafts that keep their first depth, so that statistics do not depend on measured seconds."""

from collections.abc import Callable


def keep_first_depths(replace: Callable[[object, str, object], None] = setattr) -> None:
    """Exclude trials of other depths, and what earlier jobs measured."""
    from espnet_medusa.decoding.search.drafting import auto_depth

    replace(auto_depth, "TRIAL_CALLS", 0)
    for name in ("_read", "_write"):
        replace(auto_depth.AutoDepth, name, lambda self: None)
