"""Draws a table's figure, of whatever kind."""

from collections.abc import Sequence
from pathlib import Path

from espnet_medusa.papers.calls_per_word import eta_bars, plot_calls_per_word
from espnet_medusa.papers.figure_plan import CallsPerWord, SpeedupByLength, WerAgainstEta
from espnet_medusa.papers.measured import Row
from espnet_medusa.papers.plan import TablePlan
from espnet_medusa.papers.published import Corpora
from espnet_medusa.papers.speedup_by_length import plot_speedup_by_length, speedup_panels
from espnet_medusa.papers.wer_against_eta import plot_wer_against_eta, wer_eta_panels
from espnet_medusa.scoring.comparison import Decoding

FILE_WORDS = {
    SpeedupByLength: "speedup",
    WerAgainstEta: "wer_against_eta",
    CallsPerWord: "calls_per_word",
}


def draw_figure(
    table: TablePlan,
    rows: Sequence[Row],
    decodings: Sequence[Decoding],
    corpora: Corpora,
    path: Path,
) -> Path | None:
    """Draw the figure of a table that has one.

    Args:
        table: The table's plan.
        rows: What was measured for it.
        decodings, corpora: What that was measured from.
        path: PNG to write.

    Returns:
        The PNG, None where there is nothing to draw.
    """
    plan = table.figure
    if isinstance(plan, WerAgainstEta):
        return plot_wer_against_eta(plan, wer_eta_panels(table, rows), path)
    if isinstance(plan, CallsPerWord):
        return plot_calls_per_word(list(table.test_sets.values()), eta_bars(table, rows), path)
    return plot_speedup_by_length(speedup_panels(table, decodings, corpora), path)
