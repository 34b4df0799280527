"""Tables and plots of experiments: RESULTS.md, or with --config the papers' tables.

The experiments may be of ESPnet's recipe or of ours. After ESPnet's recipe, the statistics of its
jobs are merged into a statistics.json next to each decoded text.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from espnet_medusa.data.command_line import SOME_FAILED, run_main, str2bool
from espnet_medusa.data.errors import InputError
from espnet_medusa.recipes.report.decodings import (
    DecodedSet,
    complete_statistics,
    find_baselines,
    read_experiments,
)
from espnet_medusa.recipes.report.incomplete import IncompleteSets
from espnet_medusa.recipes.report.page import write_pages
from espnet_medusa.recipes.report.paper_tables import write_papers
from espnet_medusa.recipes.report.published import PUBLISHED
from espnet_medusa.recipes.report.results import default_output, write_results


def get_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    experiment = "experiment, such as exp/asr_linear"
    add("exp_dirs", metavar="EXP", type=Path, nargs="+", help=experiment)
    baseline = "experiment and inference tag; the tag's suffix `_asr_model_...` is optional"
    add("--baseline", metavar="EXP/TAG", type=Path, help=baseline)
    output = (
        "Markdown file to write, with decoding.json next to it (default: RESULTS.md in the "
        "experiment, or in the common folder of several experiments)"
    )
    add("--output", type=Path, help=output)
    add("--image_dir", type=Path, help="folder for plots (default: images next to the output)")
    plan = (
        "write the papers' tables instead; a plan such as conf/report/NAME.yaml assigns "
        "experiments and test sets to rows; needs --output"
    )
    add("--config", metavar="PLAN", type=Path, help=plan)
    pages = "write SET/decoding.html of each set that was decoded with trace: true"
    add("--html", action="store_true", help=pages)
    embedded = "--html: include the audio in the pages"
    add("--embed_audio", type=str2bool, default=False, help=embedded)
    published = "for --config: file of the papers' figures (default: that of the package)"
    add("--published", type=Path, default=PUBLISHED, help=published)
    return parser


def known_baseline(
    wanted: Path | None, decodings: Sequence[DecodedSet], incomplete: IncompleteSets
) -> Path | None:
    """Return the baseline; None if its sets are incomplete. Raise ValueError if there is none."""
    try:
        find_baselines(decodings, wanted)
    except ValueError:
        if not any(wanted.parent == one.exp_dir for one in incomplete.found):
            raise
        return None
    return wanted


def work(args: argparse.Namespace) -> int:
    exp_dirs = list(dict.fromkeys(args.exp_dirs))
    for exp_dir in exp_dirs:
        if not exp_dir.is_dir():
            raise InputError(f"{exp_dir}: no such folder; give experiments that were trained")
    incomplete = IncompleteSets()
    written = [path for exp_dir in exp_dirs for path in complete_statistics(exp_dir, incomplete)]
    decodings = read_experiments(exp_dirs, incomplete)
    decoded = {one.exp_dir for one in [*decodings, *incomplete.found]}
    for exp_dir in exp_dirs if not args.config else ():
        with incomplete.noting(exp_dir, exp_dir):
            if exp_dir not in decoded:
                raise InputError(
                    f"no decoded set, such as {exp_dir}/TAG/SET/text; decode (stage 12), or give "
                    "the experiment's folder"
                )
    incomplete.check_rest(decodings)
    baseline = known_baseline(args.baseline, decodings, incomplete)
    if args.html:
        written += write_pages(decodings, baseline, args.embed_audio, incomplete)
    output = args.output or default_output(exp_dirs)
    image_dir = args.image_dir or output.parent / "images"
    if args.config:
        written += write_papers(
            args.config, args.published, decodings, output, image_dir, incomplete
        )
    else:
        written += write_results(exp_dirs, decodings, baseline, output, image_dir, incomplete)
    print("\n".join(map(str, written)))
    for one in incomplete.found:
        print(f"report: not complete: {one}", file=sys.stderr)
    return SOME_FAILED if incomplete.found else 0


def main(cmd: list[str] | None = None) -> None:
    parser = get_parser()
    args = parser.parse_args(cmd)
    if args.config and not args.output:
        parser.error("--config: requires --output")
    if args.config and args.baseline:
        parser.error("--baseline: not allowed with --config, whose plan has the baseline")
    run_main("report", lambda: work(args))


if __name__ == "__main__":
    main()
