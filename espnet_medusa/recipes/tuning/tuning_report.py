"""Write a tuning as a decode config (YAML), as figures (JSON), and as tables (Markdown)."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import yaml

from espnet_medusa.data.files.atomic import write_atomically
from espnet_medusa.data.processor_name import processor_name
from espnet_medusa.decoding.search.search_options import FIXED
from espnet_medusa.recipes.report.markdown import markdown_table
from espnet_medusa.recipes.tuning.available import NO_DRAFTS, DraftSetting
from espnet_medusa.recipes.tuning.candidates import LOOKAHEADS
from espnet_medusa.recipes.tuning.findings import Tuning
from espnet_medusa.recipes.tuning.stopwatch import CALLS, DRAFTING

SHAPE_KEYS = (  # decode options of ``DraftSetting.options``
    "ctc_draft_share", "lookahead", "draft_depth", "draft_width", "draft_budget",
    "draft_min_probability",
)  # fmt: skip
DRAFT_KEYS = (  # decode options that the tuning replaces
    "drafter", "draft_model", "draft_model_file", "draft_vocab_size", *SHAPE_KEYS,
)  # fmt: skip
FIRST_STEPS = 3  # draft steps with their acceptance in the table
NOTES = (
    "Calls (of the decoder), drafting and all: per utterance; ms per call: per batch. Drafting "
    "includes a draft model's encoder and CTC's projection; all includes the encoder.",
    "Accepted: percentage of the drafted steps.",
    "All and speedup: measured in the check, in which settings take turns. Ms per call and "
    "drafting: their shares of the time in the trials, times the time in the check.",
    "Differ: utterances whose output is not the baseline's.",
)
MODEL_OPTIONS = "model_tag", "asr_model_file", "s2t_model_file"
LOOKAHEAD_NOTE = (
    "Search without encoders, ms per utterance. In brackets: divided by the time of the drafter's "
    "best fixed depth."
)


def circumstances(
    options: Mapping[str, Any], command: str, wav_scp: Path, tuning: Tuning
) -> dict[str, Any]:
    """Return model, data and machine of a tuning; seconds are sums over the utterances."""
    clock = tuning.task.clock
    return {
        "command": command,
        "model": next(str(options[name]) for name in MODEL_OPTIONS if options.get(name)),
        "wav_scp": str(wav_scp),
        "num_utterances": tuning.num_utterances,
        "batch_size": options["batch_size"],
        "audio_seconds": sum(batch.audio_seconds for batch in tuning.task.batches),
        "encoder_seconds": tuning.encoder_seconds,
        "thread_time": clock.thread_time,
        "machine": processor_name(clock.device),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }


def headline(about: Mapping[str, Any]) -> str:
    """Return data and machine in one line."""
    return (
        "{num_utterances} utterances ({audio_seconds:.0f} s), batch_size {batch_size}, {machine}, "
        "threads: {threads}, torch {torch}"
    ).format_map(about)


def summary(tuning: Tuning, about: Mapping[str, Any]) -> list[str]:
    lines = [headline(about), *(f"left out: {line}" for line in tuning.left_out)]
    if not tuning.checked:
        return [*lines, "chosen: the baseline, because this model has no drafter"]
    settings = {*best_settings(tuning), tuning.chosen}
    for setting in sorted(settings, key=tuning.total_seconds):
        time_ms = milliseconds(tuning, tuning.total_seconds(setting))
        lines.append(
            f"{setting}: {time_ms:.1f} ms per utterance, speedup {tuning.speedup(setting):.2f}x "
            f"over the baseline; {tuning.calls(setting):.1f} decoder calls"
        )
        if tuning.different[setting]:
            count = len(tuning.different[setting])
            lines[-1] += f"; {count} of {tuning.num_utterances} utterances differ"
    if tuning.chosen != NO_DRAFTS:
        return [*lines, f"chosen: {tuning.chosen}"]
    if tuning.faster:
        return [
            *lines,
            "chosen: the baseline, because all faster settings change texts by rounding; "
            "--most_different N allows N changed texts",
        ]
    return [*lines, "chosen: the baseline (draft_depth: 0), because no setting is faster"]


def best_settings(tuning: Tuning) -> list[DraftSetting]:
    """Return the baseline, and each drafter's best setting in the check."""
    return [NO_DRAFTS, *(map(tuning.best_checked, tuning.task.drafters) if tuning.checked else ())]


def milliseconds(tuning: Tuning, seconds: float) -> float:
    """Convert seconds of all utterances to milliseconds per utterance."""
    return 1000 * seconds / tuning.num_utterances


def draft_config(tuning: Tuning, setting: DraftSetting) -> dict[str, Any]:
    """Return the draft options of a setting, for a decode config."""
    if setting == NO_DRAFTS:
        return setting.options()
    return tuning.task.drafters[setting.drafter].config(setting)


def write_config(
    path: Path, given: Mapping[str, Any], tuning: Tuning, about: Mapping[str, Any]
) -> None:
    """Write the decode config ``given`` with the chosen drafts, and the summary as a comment."""
    chosen = draft_config(tuning, tuning.chosen)
    config = {name: value for name, value in given.items() if name not in DRAFT_KEYS} | chosen
    comment = [f"Tuned by: {about['command']}", f"Model: {about['model']}"]
    comment += summary(tuning, about)
    text = "".join(f"# {' '.join(line.split())}\n" for line in comment)
    text += yaml.safe_dump(config, sort_keys=False, allow_unicode=True)
    write_atomically(path, text)


def write_report(
    path: Path, given: Mapping[str, Any], tuning: Tuning, about: Mapping[str, Any]
) -> None:
    order = sorted(tuning.trials, key=tuning.total_seconds)
    report = {
        **about,
        "decode_config": dict(given),
        "left_out": tuning.left_out,
        "chosen": {"drafter": None, **draft_config(tuning, tuning.chosen)},
        "settings": [setting_figures(tuning, setting) for setting in order],
    }
    write_atomically(path, json.dumps(report, indent=1) + "\n")


def setting_figures(tuning: Tuning, setting: DraftSetting) -> dict[str, Any]:
    """Return counts of the utterances that a setting decoded, and seconds per utterance.

    For a dropped candidate (``checked: false``), seconds are estimates for all utterances.
    """
    trial, count = tuning.trials[setting], tuning.num_utterances
    counts = trial.statistics.summary()
    return {
        "name": setting.drafter,
        **dict.fromkeys(SHAPE_KEYS),
        **setting.options(),
        "checked": setting in tuning.checked,
        "utterances": len(trial.outputs),
        "decoder_calls": trial.statistics.decoder_calls,
        "calls_saved": tuning.calls(NO_DRAFTS) / tuning.calls(setting),
        "nodes_per_call": counts["nodes_per_call"],
        "tokens_per_call": counts["tokens_per_call"],
        "acceptance_per_step": counts["acceptance_per_head"],
        "draft_calls": trial.statistics.draft_calls,
        "batch_calls": trial.batch_calls,
        "search_seconds": tuning.seconds(setting) / count,
        "seconds_with_encoders": tuning.total_seconds(setting) / count,
        "parts": {name: value / count for name, value in tuning.parts(setting).items()},
        "speedup": tuning.speedup(setting),
        "different_utterances": tuning.different[setting],
    }


def write_tables(path: Path, tuning: Tuning, about: Mapping[str, Any]) -> None:
    """Write the tables of the best settings and of their lookaheads as Markdown."""
    lines = ["# Speed by drafter", "", f"{about['model']}: {headline(about)}.", ""]
    lines += [f"Chosen: **{tuning.chosen}**.", ""]
    if tuning.checked:
        rows = [_row(tuning, setting) for setting in best_settings(tuning)]
        table = markdown_table([*rows[0]], [[*row.values()] for row in rows])
        lines += [table, *(f"- {note}" for note in NOTES)]
    if any(setting.lookahead != FIXED for setting in tuning.checked):
        rows = [_lookahead_row(tuning, drafter) for drafter in tuning.task.drafters]
        table = markdown_table(("drafter", *LOOKAHEADS), rows)
        lines += ["", "## Lookahead", "", table, LOOKAHEAD_NOTE]
    if tuning.left_out:
        lines += ["", "## Left out", "", *(f"- {line}" for line in tuning.left_out)]
    write_atomically(path, "\n".join(lines) + "\n")


def _row(tuning: Tuning, setting: DraftSetting) -> dict[str, str]:
    """Return the cells of a setting by column."""
    trial, parts = tuning.trials[setting], tuning.parts(setting)
    counts, drafts = trial.statistics.summary(), setting.depth > 0
    drafting = milliseconds(tuning, parts[DRAFTING] + parts["draft model's encoder"])
    different = f"{len(tuning.different[setting])}/{tuning.num_utterances}"
    return {
        "drafter": f"**{setting.drafter}**" if setting == tuning.chosen else setting.drafter,
        "setting": setting.shape,
        "calls": f"{tuning.calls(setting):.2f}",
        "tokens per call": f"{counts['tokens_per_call']:.2f}",
        "nodes per call": f"{counts['nodes_per_call']:.1f}",
        f"accepted, steps 1 .. {FIRST_STEPS}; all [%]": _acceptance(tuning, setting),
        "ms per call": f"{1000 * parts[CALLS] / trial.batch_calls:.2f}",
        "drafting [ms]": f"{drafting:.2f}" if drafts else "-",
        "all [ms]": f"{milliseconds(tuning, tuning.total_seconds(setting)):.1f}",
        "speedup": f"{tuning.speedup(setting):.2f}",
        "differ": different if drafts else "-",
    }


def _acceptance(tuning: Tuning, setting: DraftSetting) -> str:
    """Return the percentage of accepted drafts for each of the first steps, and for all."""
    statistics = tuning.trials[setting].statistics
    if not sum(statistics.drafted):
        return "-"
    first = statistics.summary()["acceptance_per_head"][:FIRST_STEPS]
    mean = sum(statistics.accepted) / sum(statistics.drafted)
    return f"{' '.join(f'{100 * share:.0f}' for share in first)}; {100 * mean:.0f}"


def _lookahead_row(tuning: Tuning, drafter: str) -> list[str]:
    checked, cells = tuning.checked, [drafter]
    settings = {setting.lookahead: setting for setting in checked if setting.drafter == drafter}
    for name in LOOKAHEADS:
        seconds = checked[settings[name]]
        ratio = "" if name == FIXED else f" ({seconds / checked[settings[FIXED]]:.2f})"
        cells.append(f"{settings[name].shape}: {milliseconds(tuning, seconds):.1f}{ratio}")
    return cells
