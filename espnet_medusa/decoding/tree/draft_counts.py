"""Counts of drafts by their steps."""


def count_draft(drafted: list[int], accepted: list[int], steps: int, taken: int) -> None:
    """Count a draft of so many steps, of which ``taken`` were accepted.

    The lists have the number of drafts with 1, 2, ... drafted and accepted steps; they grow.
    """
    for counts in (drafted, accepted):
        counts += [0] * (steps - len(counts))
    for step in range(steps):
        drafted[step] += 1
        accepted[step] += step < taken
