"""The command that recipes call: `python -m espnet_medusa.bin.stage NAME OPTIONS`."""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

from espnet_medusa.data.command_line import run_main, split_command

COMMANDS = {  # by module of ``recipes.stages``
    "data": (
        "combine_data", "csv_to_data_dir", "download", "filter_data", "format_data",
        "perturb_speed", "validate_data_dir",
    ),
    "tokens": ("aggregate_stats", "collect_shapes", "join_texts", "make_tokens", "whisper_tokens"),
    "caching": ("cache_memory", "cache_states"),
    "jobs": ("run_command", "run_jobs", "split_keys"),
    "training": ("check_start", "plot_training", "run_training", "systems"),
    "results": (
        "calculate_rtf", "check_scoring", "merge_outputs", "pack_heads", "pack_model",
        "results_to_csv", "score", "upload",
    ),
}  # fmt: skip
MODULES = {name: module for module, names in COMMANDS.items() for name in names}
# Commands whose options are followed by `--` and these words (``args.command``).
WRAPPED = dict.fromkeys(("cache_memory", "collect_shapes"), "OPTIONS")
WRAPPED |= dict.fromkeys(("run_command", "run_jobs", "run_training"), "COMMAND")


def main(cmd: Sequence[str] | None = None) -> None:
    """Run the command whose name is the first word; the other words are its options."""
    name, *words = (sys.argv[1:] if cmd is None else cmd) or ["--help"]
    if name not in MODULES:
        parser = argparse.ArgumentParser("python -m espnet_medusa.bin.stage")
        parser.add_argument("name", choices=sorted(MODULES), help="command; each has a --help")
        parser.parse_args([name])
    command = getattr(import_module(f"espnet_medusa.recipes.stages.{MODULES[name]}"), name)
    parser = argparse.ArgumentParser(
        f"python -m espnet_medusa.bin.stage {name}",
        description=command.__doc__.split("\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    steps = command(parser)
    next(steps)
    options, wrapped = split_command(words) if name in WRAPPED else (words, None)
    args = parser.parse_args(options)
    if name in WRAPPED:
        if not wrapped:
            parser.error(f"nothing to run: write `-- {WRAPPED[name]}` at the end")
        args.command = wrapped

    def work() -> int | None:
        try:
            steps.send(args)
        except StopIteration as end:
            return end.value

    run_main(name, work)


if __name__ == "__main__":
    main()
