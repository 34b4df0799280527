"""The tables of a tuning, as Markdown."""

from pathlib import Path

from espnet_medusa.files.atomic import write_atomically
from espnet_medusa.report.tables.markdown import markdown_table
from espnet_medusa.search.options import FIXED, LOOKAHEADS
from espnet_medusa.tuning.findings import Tuning
from espnet_medusa.tuning.report import Circumstances, headline, milliseconds
from espnet_medusa.tuning.setting import NO_DRAFTS, DraftSetting

FIRST_STEPS = 3  # whose acceptance is shown
COLUMNS = (
    "drafter", "setting", "calls", "tokens a call", "nodes a call",
    f"accepted, steps 1 .. {FIRST_STEPS}; all [%]", "ms a call", "drafting [ms]", "all [ms]",
    "speedup", "differ",
)  # fmt: skip
NOTES = (
    "Calls (of the decoder), drafting and all are of one utterance, ms a call are of a batch; "
    "drafting holds a draft model's encoder and CTC's projection, all holds the encoder.",
    "Accepted: of the steps that were drafted, those that needed no further call.",
    "All and speedup were measured in turns; the parts are shares that the trials had of it.",
    "Differ: utterances whose output is not that of no drafts.",
)
LOOKAHEAD_NOTE = (
    "Search without encoders, ms an utterance; in brackets over the best fixed depth's time, of "
    "the same drafter."
)


def write_tables(path: Path, tuning: Tuning, about: Circumstances) -> None:
    """Write the candidates and their lookaheads.

    Args:
        path: Markdown to write.
        tuning: What was found.
        about: Under which circumstances.
    """
    lines = ["# Which drafts pay", "", f"{about.asr_model_file}: {headline(about)}.", ""]
    lines += [f"Chosen: **{tuning.chosen}**.", ""]
    settings = [NO_DRAFTS, *map(tuning.best_checked, tuning.drafters)] if tuning.checked else []
    if settings:
        rows = [_row(tuning, setting) for setting in settings]
        lines += [markdown_table(COLUMNS, rows), *(f"- {note}" for note in NOTES)]
    if any(setting.lookahead != FIXED for setting in tuning.checked):
        rows = [_lookahead_row(tuning, drafter) for drafter in tuning.drafters]
        table = markdown_table(("drafter", *LOOKAHEADS), rows)
        lines += ["", "## Lookahead", "", table, LOOKAHEAD_NOTE]
    if tuning.left_out:
        lines += ["", "## Left out", "", *(f"- {line}" for line in tuning.left_out)]
    write_atomically(path, "\n".join(lines) + "\n")


def _row(tuning: Tuning, setting: DraftSetting) -> list[str]:
    trial, parts = tuning.trials[setting], tuning.parts(setting)
    statistics = trial.statistics
    counts = statistics.summary()
    drafting = parts["drafting"] + parts["draft model's encoder"]
    name = f"**{setting.drafter}**" if setting == tuning.chosen else setting.drafter
    return [
        name,
        setting.shape,
        f"{statistics.decoder_calls / tuning.num_utterances:.2f}",
        f"{counts['tokens_per_call']:.2f}",
        f"{counts['nodes_per_call']:.1f}",
        _acceptance(tuning, setting),
        f"{1000 * parts['decoder calls'] / len(trial.iterations):.2f}",
        "-" if setting.depth == 0 else f"{milliseconds(tuning, drafting):.2f}",
        f"{milliseconds(tuning, tuning.whole(setting)):.1f}",
        f"{tuning.speedup(setting):.2f}",
        "-" if setting.depth == 0 else f"{len(tuning.different[setting])}/{tuning.num_utterances}",
    ]


def _acceptance(tuning: Tuning, setting: DraftSetting) -> str:
    """Percent of each of the first steps, and of all."""
    statistics = tuning.trials[setting].statistics
    if not sum(statistics.drafted):
        return "-"
    first = statistics.summary()["acceptance_per_head"][:FIRST_STEPS]
    mean = sum(statistics.accepted) / sum(statistics.drafted)
    return f"{' '.join(f'{100 * share:.0f}' for share in first)}; {100 * mean:.0f}"


def _lookahead_row(tuning: Tuning, drafter: str) -> list[str]:
    cells, fixed = [drafter], None
    for name in LOOKAHEADS:
        found = [s for s in tuning.checked if s.drafter == drafter and s.lookahead == name]
        if not found:
            cells.append("-")
            continue
        [setting] = found
        seconds = tuning.checked[setting]
        fixed = fixed or seconds
        ratio = "" if name == FIXED else f" ({seconds / fixed:.2f})"
        cells.append(f"{setting.shape}: {milliseconds(tuning, seconds):.1f}{ratio}")
    return cells
