"""Draws a table's figure, of whatever kind."""

from collections.abc import Sequence
from pathlib import Path

from espnet_medusa.report.figures.calls_per_word import eta_bars, plot_calls_per_word
from espnet_medusa.report.figures.scatter import scatter_panels
from espnet_medusa.report.figures.scatter_plot import plot_scatter
from espnet_medusa.report.figures.speedup_by_length import plot_speedup_by_length, speedup_panels
from espnet_medusa.report.measures.decodings import Decoding
from espnet_medusa.report.measures.table_rows import Row
from espnet_medusa.report.plan.figure_plan import (
    CallsAgainstWer,
    CallsPerWord,
    SpeedupByLength,
    WerAgainstCalls,
    WerAgainstEta,
    WerAgainstLatency,
)
from espnet_medusa.report.plan.published import Corpora
from espnet_medusa.report.plan.report_plan import TablePlan

FILE_WORDS = {
    SpeedupByLength: "speedup",
    WerAgainstEta: "wer_against_eta",
    WerAgainstLatency: "wer_against_latency",
    WerAgainstCalls: "wer_against_calls",
    CallsAgainstWer: "calls_against_wer",
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
    if isinstance(plan, SpeedupByLength):
        return plot_speedup_by_length(speedup_panels(table, decodings, corpora), path)
    if isinstance(plan, CallsPerWord):
        return plot_calls_per_word(list(table.test_sets.values()), eta_bars(table, rows), path)
    return plot_scatter(plan, scatter_panels(table, rows), path)
