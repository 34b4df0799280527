"""What the tuning found, as a decode config, as JSON and in a few lines."""

import json
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import yaml

from espnet_medusa.files.atomic import write_atomically
from espnet_medusa.tuning.cost import CallCost, LinearCost, PartCosts
from espnet_medusa.tuning.findings import Tuning
from espnet_medusa.tuning.held_out import HeldOutBatch
from espnet_medusa.tuning.setting import NO_DRAFTS, DraftSetting
from espnet_medusa.tuning.stopwatch import Clock

DRAFT_KEYS = (  # that the tuning decides
    "drafter", "draft_model", "draft_model_file", "draft_vocab_size", "ctc_draft_share",
    "lookahead", "draft_depth", "draft_width", "draft_budget",
)  # fmt: skip


@dataclass(frozen=True)
class Circumstances:
    """Under which the figures hold.

    Attributes:
        command: That was run.
        asr_train_config: Of the model.
        asr_model_file: Its weights.
        wav_scp: Held-out utterances.
        num_utterances: How many of them.
        batch_size: Utterances that are decoded together.
        audio_seconds: Length of the audio.
        encoder_seconds: Of encoding all of it.
        own_time: Whether seconds leave out those in which other processes had the processor.
        machine: Processor or GPU.
        threads: Of torch, on the processor.
        torch: Its version.
    """

    command: str
    asr_train_config: str
    asr_model_file: str
    wav_scp: str
    num_utterances: int
    batch_size: int
    audio_seconds: float
    encoder_seconds: float
    own_time: bool
    machine: str
    threads: int
    torch: str


def circumstances(
    options: Mapping[str, Any],
    command: str,
    wav_scp: Path,
    batches: list[HeldOutBatch],
    clock: Clock,
) -> Circumstances:
    """Of this run.

    Args:
        options: Of decoding.
        command: That was run.
        wav_scp: Where the utterances come from.
        batches: Those that were taken.
        clock: That told the time.
    """
    return Circumstances(
        command=command,
        asr_train_config=str(options["asr_train_config"]),
        asr_model_file=str(options["asr_model_file"]),
        wav_scp=str(wav_scp),
        num_utterances=sum(len(batch.keys) for batch in batches),
        batch_size=options["batch_size"],
        audio_seconds=sum(batch.audio_seconds for batch in batches),
        encoder_seconds=sum(batch.encoder_seconds for batch in batches),
        own_time=clock.own_time,
        machine=machine_name(clock.device),
        threads=torch.get_num_threads(),
        torch=torch.__version__,
    )


def machine_name(device: torch.device) -> str:
    """GPU or processor, as they call themselves."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    table = Path("/proc/cpuinfo")
    lines = table.read_text(encoding="utf-8").splitlines() if table.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def headline(about: Circumstances) -> str:
    """Where and with what."""
    return (
        f"{about.num_utterances} utterances ({about.audio_seconds:.0f} s), batch_size "
        f"{about.batch_size}, {about.machine}, threads: {about.threads}, torch {about.torch}"
    )


def summary(tuning: Tuning, about: Circumstances) -> list[str]:
    """The result in a few lines."""
    lines = [headline(about), *(f"left out: {line}" for line in tuning.left_out)]
    if not tuning.checked:
        return [*lines, "no drafts: this model has nothing that could draft"]
    settings = [NO_DRAFTS, *map(tuning.best_checked, tuning.drafters)]
    if tuning.chosen not in settings:  # of settings alike
        settings.append(tuning.chosen)
    for setting in sorted(settings, key=tuning.whole):
        statistics = tuning.trials[setting].statistics
        lines.append(
            f"{setting}: {milliseconds(tuning, tuning.whole(setting)):.1f} ms an utterance, "
            f"{tuning.speedup(setting):.2f} times as fast as no drafts; "
            f"{statistics.decoder_calls / tuning.num_utterances:.1f} decoder calls"
        )
        if tuning.different[setting]:
            count = len(tuning.different[setting])
            lines[-1] += f"; {count} of {tuning.num_utterances} utterances differ"
    if tuning.chosen == NO_DRAFTS and tuning.paying:
        return [
            *lines,
            "chosen: no drafts, as with all that are faster rounding changes texts; "
            "--most_different N allows N of them",
        ]
    if tuning.chosen == NO_DRAFTS:
        return [*lines, "drafts do not pay here: draft_depth: 0"]
    return [*lines, f"chosen: {tuning.chosen}"]


def milliseconds(tuning: Tuning, seconds: float) -> float:
    """Seconds of all utterances to milliseconds of one."""
    return 1000 * seconds / tuning.num_utterances


def draft_config(tuning: Tuning, setting: DraftSetting) -> dict[str, Any]:
    """Keys of a decode config that drafts like this."""
    if setting == NO_DRAFTS:
        return setting.options()
    return tuning.task.drafters[setting.drafter].config(setting)


def write_config(
    path: Path, given: Mapping[str, Any], tuning: Tuning, about: Circumstances
) -> None:
    """Write the decode config.

    Args:
        path: YAML to write.
        given: The decode config that was tuned; its own draft keys are replaced.
        tuning: What was found.
        about: Goes into the comment.
    """
    chosen = draft_config(tuning, tuning.chosen)
    config = {name: value for name, value in given.items() if name not in DRAFT_KEYS} | chosen
    comment = [f"Tuned by: {about.command}", f"Model: {about.asr_model_file}"]
    comment += summary(tuning, about)
    text = "".join(f"# {' '.join(line.split())}\n" for line in comment)
    text += yaml.safe_dump(config, sort_keys=False, allow_unicode=True)
    write_atomically(path, text)


def write_report(
    path: Path, given: Mapping[str, Any], tuning: Tuning, about: Circumstances
) -> None:
    """Write all figures as JSON."""
    order = sorted(tuning.trials, key=tuning.whole)
    report = {
        **asdict(about),
        "decode_config": dict(given),
        "left_out": tuning.left_out,
        "chosen": {"drafter": None, **draft_config(tuning, tuning.chosen)},
        "check": [check_figures(tuning, setting) for setting in order if setting in tuning.checked],
        "settings": [setting_figures(tuning, setting) for setting in order],
        "costs": {drafter: _cost_figures(parts) for drafter, parts in tuning.cost.parts.items()},
    }
    write_atomically(path, json.dumps(report, indent=1) + "\n")


def check_figures(tuning: Tuning, setting: DraftSetting) -> dict[str, Any]:
    """What the check said of a setting, times in seconds per utterance."""
    count = tuning.num_utterances
    return {
        "name": setting.drafter,
        **_options(setting),
        "search_seconds": tuning.checked[setting] / count,
        "predicted_search_seconds": tuning.seconds[setting] / count,
        "seconds_with_encoders": tuning.whole(setting) / count,
        "parts": {name: value / count for name, value in tuning.parts(setting).items()},
        "speedup": tuning.speedup(setting),
        "different_utterances": tuning.different[setting],
    }


def setting_figures(tuning: Tuning, setting: DraftSetting) -> dict[str, Any]:
    """Counts and times of one setting, times in seconds per utterance."""
    trial, count = tuning.trials[setting], tuning.num_utterances
    counts, iterations = trial.statistics.summary(), trial.iterations
    draft_steps = sum(it.draft_steps for it in iterations)
    draft_rows = sum(it.draft_rows for it in iterations)
    plain = tuning.trials[NO_DRAFTS].statistics.decoder_calls
    parts = tuning.cost.predict(trial)
    return {
        "name": setting.drafter,
        **_options(setting),
        "decoder_calls": trial.statistics.decoder_calls,
        "calls_saved": plain / trial.statistics.decoder_calls,
        "nodes_per_call": counts["nodes_per_call"],
        "tokens_per_call": counts["tokens_per_call"],
        "acceptance_per_step": counts["acceptance_per_head"],
        "draft_calls": trial.statistics.draft_calls,
        "batch_calls": len(iterations),
        "run_ahead_steps": draft_steps,
        "run_ahead_width": draft_rows / draft_steps if draft_steps else 0.0,
        "predicted_seconds": tuning.seconds[setting] / count,
        "predicted_parts": {name: value / count for name, value in parts.items()},
        "draft_encoder_seconds": tuning.draft_encoder_seconds(setting.drafter) / count,
        "seconds_of_one_run": trial.seconds / count,
        "different_utterances": tuning.different[setting],
    }


def _options(setting: DraftSetting) -> dict[str, Any]:
    none = dict.fromkeys(("ctc_draft_share", "lookahead", "draft_width", "draft_budget"))
    return none | setting.options()


def _cost_figures(parts: PartCosts) -> dict[str, Any]:
    return {
        "decoder_call": _call_figures(parts.call),
        "drafting": _linear_figures(parts.draft),
        "walking": _linear_figures(parts.state),
        "other": _linear_figures(parts.other),
        "setup_seconds_of_all_batches": parts.setup_seconds,
        "begin_seconds_of_all_batches": parts.begin_seconds,
    }


def _call_figures(cost: CallCost) -> dict[str, Any]:
    """By most rows of a batch."""
    return {
        f"up to {rows} rows": [
            {"nodes_per_row": nodes, "seconds": seconds, "samples": samples}
            for nodes, seconds, samples in knots
        ]
        for rows, knots in cost.knots.items()
    }


def _linear_figures(cost: LinearCost) -> dict[str, float]:
    return {
        f"seconds_per_{name}": value for name, value in zip(cost.names, cost.seconds, strict=True)
    }
