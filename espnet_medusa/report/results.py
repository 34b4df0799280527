"""RESULTS.md, decoding.json and plots of experiments."""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from espnet_medusa.files.atomic import write_atomically
from espnet_medusa.recipe.train_log import has_epochs
from espnet_medusa.report.figures.decoding import plot_decodings
from espnet_medusa.report.figures.training import plot_experiment
from espnet_medusa.report.measures.decodings import Decoding
from espnet_medusa.report.tables.comparison import compare_all, comparison_markdown
from espnet_medusa.report.tables.error_rates import results_markdown


def default_output(exp_dirs: Sequence[Path]) -> Path:
    """RESULTS.md in the experiment; of several in the folder that they have in common."""
    if len(exp_dirs) == 1:
        return exp_dirs[0] / "RESULTS.md"
    common = Path(os.path.commonpath([os.path.abspath(path.parent) for path in exp_dirs]))
    if not any(path.is_absolute() for path in exp_dirs):
        common = Path(os.path.relpath(common))
    return common / "RESULTS.md"


def write_results(
    exp_dirs: Sequence[Path],
    decodings: Sequence[Decoding],
    plain: Path | None,
    output: Path,
    image_dir: Path,
) -> list[Path]:
    """Write the tables, for people and for programs, and draw the plots.

    Args:
        exp_dirs: Experiments.
        decodings: Theirs.
        plain: `EXP_DIR/INFERENCE_TAG` that the others are compared with; None: with none.
        output: RESULTS.md to write; decoding.json goes beside it.
        image_dir: Folder for plots of decoding; those of training go to the experiments' own.

    Returns:
        The files.

    Raises:
        ValueError: A report is malformed, or no test set was decoded as ``plain`` says.
    """
    rows = compare_all(decodings, plain)
    text = results_markdown(exp_dirs, [comparison_markdown(rows)])
    table = json.dumps([asdict(row) for row in rows], indent=1)
    write_atomically(output, text)
    rows_output = output.with_name("decoding.json")
    write_atomically(rows_output, table + "\n")
    images = plot_decodings(decodings, plain, image_dir)
    for exp_dir in exp_dirs:
        if has_epochs(exp_dir / "train.log"):
            images += plot_experiment(exp_dir)
    return [output, rows_output, *images]
