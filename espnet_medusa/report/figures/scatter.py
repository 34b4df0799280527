"""What the figures of points show: one measure against another (Speech-LLaMA paper's Fig. 4)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from espnet_medusa.report.measures.table_rows import Row
from espnet_medusa.report.plan.figure_plan import (
    CallsAgainstWer,
    CallsAndWer,
    ScatterPlan,
    WerAgainstCalls,
    WerAgainstEta,
    WerAgainstLatency,
)
from espnet_medusa.report.plan.report_plan import TablePlan


@dataclass(frozen=True)
class Axis:
    """What a figure shows along one axis.

    Attributes:
        measure: Field of ``Row``.
        label: As shown; fields of the plan in braces.
        value: What of the measure.
        may_be_log: Whether it is logarithmic where values lie far apart.
    """

    measure: str
    label: str
    value: str = "value"
    may_be_log: bool = False

    def of(self, row: Row | None) -> float | None:
        """The row's value, None where there is none."""
        measured = None if row is None else getattr(row, self.measure)
        return measured and getattr(measured, self.value)


@dataclass(frozen=True)
class Layout:
    """What a kind of figure shows: its axes, and whether lines lead from point to point."""

    horizontal: Axis
    vertical: Axis
    lines: bool = True


WER = Axis("wer", "WER [%]")
ETA = Axis("eta", "decoder calls per word (eta)")
LATENCY = Axis("latency", "ms an utterance (median)", value="median", may_be_log=True)
DRAFT_WER = Axis("wer", "WER of {wer_of} [%]")
CALLS = Axis("calls_per_utterance", "decoder calls an utterance", may_be_log=True)
LAYOUTS: Mapping[type, Layout] = {
    WerAgainstEta: Layout(ETA, WER),
    WerAgainstLatency: Layout(LATENCY, WER, lines=False),
    WerAgainstCalls: Layout(CALLS, WER),
    CallsAgainstWer: Layout(DRAFT_WER, CALLS),
}


@dataclass(frozen=True)
class Point:
    """A system: its label and place; x is None where it belongs to no place along that axis."""

    label: str
    x: float | None
    y: float


@dataclass(frozen=True)
class Panel:
    """A test set.

    Attributes:
        series: Points by group and variant.
        plain: What they are compared with, None where it was not run or scored.
    """

    series: Mapping[tuple[str, str], Sequence[Point]]
    plain: Point | None


def scatter_panels(table: TablePlan, rows: Sequence[Row]) -> dict[str, Panel]:
    """Panels by label of the test set; what was not run or scored is left out."""
    panels = {}
    for test_set in table.test_sets.values():
        found = {row.system: row for row in rows if row.test_set == test_set}
        series = {
            (group, variant): _points(table.figure, systems, found)
            for group, variants in table.figure.groups.items()
            for variant, systems in variants.items()
        }
        series = {name: points for name, points in series.items() if points}
        if series:
            panels[test_set] = Panel(series, _plain(table, found))
    return panels


def _points(
    plan: ScatterPlan, systems: Mapping[str, str | CallsAndWer], rows: Mapping[str, Row]
) -> list[Point]:
    layout, points = LAYOUTS[type(plan)], []
    for label, system in systems.items():
        across, up = (system.wer, system.calls) if isinstance(system, CallsAndWer) else [system] * 2
        x, y = layout.horizontal.of(rows.get(across)), layout.vertical.of(rows.get(up))
        if x is not None and y is not None:
            points.append(Point(label, x, y))
    return points


def _plain(table: TablePlan, rows: Mapping[str, Row]) -> Point | None:
    layout, row = LAYOUTS[type(table.figure)], rows.get(table.plain)
    x, y = layout.horizontal.of(row), layout.vertical.of(row)
    # Plain decoding drafts nothing whose WER could be its place.
    has_place = not isinstance(table.figure, CallsAgainstWer)
    if y is None or (has_place and x is None):
        return None
    return Point(table.systems[table.plain].name, x if has_place else None, y)
