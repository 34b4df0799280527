"""What the tuning found, as a decode config, as JSON and as text."""

import json
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import yaml

from espnet_medusa.tuning.cost import CallCost, LinearCost, PartCosts
from espnet_medusa.tuning.held_out import HeldOutBatch
from espnet_medusa.tuning.setting import NO_DRAFTS, DraftSetting
from espnet_medusa.tuning.stopwatch import Clock
from espnet_medusa.tuning.tuner import Tuning

FAR = 0.25  # between predicted and measured ratio
DRAFT_KEYS = ("draft_depth", "draft_width", "draft_budget")


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


def summary(tuning: Tuning, about: Circumstances) -> list[str]:
    """The result in a few lines."""
    lines = [
        f"{about.num_utterances} utterances ({about.audio_seconds:.0f} s), batch_size "
        f"{about.batch_size}, {about.machine}, threads: {about.threads}, torch {about.torch}"
    ]
    plain = tuning.trials[NO_DRAFTS]
    if tuning.check is None:
        return [*lines, "no drafts: this model has no heads that could draft"]
    drafted, check = tuning.drafted, tuning.check
    statistics = tuning.trials[drafted].statistics
    figures = statistics.summary()
    predicted = predicted_ratio(tuning, drafted)
    lines += [
        f"{drafted}: {plain.statistics.decoder_calls / statistics.decoder_calls:.2f} times fewer "
        f"decoder calls than without drafts, {figures['tokens_per_call']:.1f} tokens and "
        f"{figures['nodes_per_call']:.1f} nodes a call",
        f"search {check.plain_seconds / about.num_utterances:.4f} s an utterance without drafts, "
        f"{check.tuned_seconds / about.num_utterances:.4f} s with: {check.ratio:.2f} times as "
        f"fast (predicted {predicted:.2f}), "
        f"{whole_ratio(tuning, about):.2f} with the encoder",
    ]
    if abs(predicted / check.ratio - 1) > FAR:
        lines.append("prediction and check are far apart: tune again when the machine is less busy")
    if tuning.different[drafted]:
        lines.append(
            f"{len(tuning.different[drafted])} of {about.num_utterances} utterances differ from "
            "those without drafts"
        )
    if tuning.chosen == NO_DRAFTS:
        lines.append("drafts do not pay here: draft_depth: 0")
    return lines


def predicted_ratio(tuning: Tuning, setting: DraftSetting) -> float:
    """How many times faster than no drafts a setting's search should be."""
    return tuning.seconds[NO_DRAFTS] / tuning.seconds[setting]


def whole_ratio(tuning: Tuning, about: Circumstances) -> float:
    """How many times faster decoding was in the check, the encoder included."""
    check, encoder = tuning.check, about.encoder_seconds
    return (encoder + check.plain_seconds) / (encoder + check.tuned_seconds)


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
    config = {name: value for name, value in given.items() if name not in DRAFT_KEYS}
    config |= tuning.chosen.options()
    comment = [f"Tuned by: {about.command}", f"Model: {about.asr_model_file}"]
    comment += summary(tuning, about)
    text = "".join(f"# {' '.join(line.split())}\n" for line in comment)
    text += yaml.safe_dump(config, sort_keys=False, allow_unicode=True)
    path.write_text(text, encoding="utf-8")


def write_report(
    path: Path, given: Mapping[str, Any], tuning: Tuning, about: Circumstances
) -> None:
    """Write all figures as JSON."""
    check = None
    if tuning.check is not None:
        check = {
            **asdict(tuning.check),
            "measured_ratio": tuning.check.ratio,
            "predicted_ratio": predicted_ratio(tuning, tuning.drafted),
            "measured_ratio_with_encoder": whole_ratio(tuning, about),
        }
    report = {
        **asdict(about),
        "decode_config": dict(given),
        "chosen": tuning.chosen.options(),
        "best_drafts": None if tuning.drafted is None else tuning.drafted.options(),
        "check": check,
        "settings": [
            setting_figures(tuning, setting, about.num_utterances) for setting in tuning.ranking()
        ],
        "costs": {
            "with_drafts" if drafts else "without_drafts": _cost_figures(parts)
            for drafts, parts in tuning.cost.parts.items()
        },
    }
    path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def setting_figures(tuning: Tuning, setting: DraftSetting, num_utterances: int) -> dict[str, Any]:
    """Counts and times of one setting, times in seconds per utterance."""
    trial = tuning.trials[setting]
    counts, iterations = trial.statistics.summary(), trial.iterations
    draft_steps = sum(it.draft_steps for it in iterations)
    draft_rows = sum(it.draft_rows for it in iterations)
    plain = tuning.trials[NO_DRAFTS].statistics.decoder_calls
    parts = tuning.cost.predict(trial)
    return {
        **{"draft_depth": 0, "draft_width": None, "draft_budget": None, **setting.options()},
        "decoder_calls": trial.statistics.decoder_calls,
        "calls_saved": plain / trial.statistics.decoder_calls,
        "nodes_per_call": counts["nodes_per_call"],
        "tokens_per_call": counts["tokens_per_call"],
        "acceptance_per_step": counts["acceptance_per_head"],
        "batch_calls": len(iterations),
        "run_ahead_steps": draft_steps,
        "run_ahead_width": draft_rows / draft_steps if draft_steps else 0.0,
        "predicted_seconds": tuning.seconds[setting] / num_utterances,
        "predicted_parts": {name: value / num_utterances for name, value in parts.items()},
        "seconds_of_one_run": trial.seconds / num_utterances,
        "different_utterances": tuning.different[setting],
    }


def _cost_figures(parts: PartCosts) -> dict[str, Any]:
    return {
        "decoder_call": _call_figures(parts.call),
        "drafting": _linear_figures(parts.draft),
        "walking": _linear_figures(parts.walk),
        "other": _linear_figures(parts.other),
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
