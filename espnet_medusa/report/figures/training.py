"""Figures of training: losses and accuracies over the epochs, of each head too."""

from collections.abc import Mapping
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib import pyplot

from espnet_medusa.recipe.train_log import EpochStats, read_epochs
from espnet_medusa.report.figures.style import STYLE, save

# Shades are drawn from the part of the map that stands out from white paper.
HEAD_COLORS = ("viridis", 0.0, 0.9)


def plot_experiment(exp_dir: Path, image_dir: Path | None = None) -> list[Path]:
    """Draw the training curves of an experiment, from its train.log.

    Args:
        exp_dir: Holds train.log.
        image_dir: Where to write; None: its images folder.

    Returns:
        The PNGs.

    Raises:
        ValueError: The log is missing or holds no finished epoch.
    """
    epochs, image_dir = read_epochs(exp_dir / "train.log"), image_dir or exp_dir / "images"
    images = [
        plot_training(epochs, exp_dir.name, image_dir / "training.png"),
        plot_heads(epochs, exp_dir.name, image_dir / "training_heads.png"),
    ]
    return [path for path in images if path]


def _series(epochs: Mapping[int, EpochStats], part: str, name: str) -> tuple[list, list]:
    """Epochs that report a value, and its values."""
    points = [(epoch, stats.get(part, {}).get(name)) for epoch, stats in epochs.items()]
    points = [(epoch, value) for epoch, value in points if value is not None]
    return [epoch for epoch, _ in points], [value for _, value in points]


def head_names(epochs: Mapping[int, EpochStats], prefix: str) -> list[str]:
    """Names such as loss_head1, loss_head2 among the validation values, in their order."""
    names = {name for stats in epochs.values() for name in stats.get("valid", {})}
    heads = [name for name in names if name.removeprefix(f"{prefix}_head").isdigit()]
    return sorted(heads, key=lambda name: int(name.removeprefix(f"{prefix}_head")))


def _epoch_axis(axis: "pyplot.Axes") -> None:
    axis.set_xlabel("epoch")
    axis.xaxis.get_major_locator().set_params(integer=True)


def plot_training(epochs: Mapping[int, EpochStats], title: str, path: Path) -> Path:
    """Loss and accuracy over the epochs, training and validation.

    Args:
        epochs: Statistics by epoch and section.
        title: Name of the experiment.
        path: PNG to write.
    """
    with pyplot.rc_context(STYLE):
        figure, axes = pyplot.subplots(1, 2, figsize=(9, 3.5), layout="constrained")
        for axis, name, label in zip(
            axes, ("loss", "acc"), ("loss", "token accuracy"), strict=True
        ):
            for part, line in (("train", "o-"), ("valid", "s--")):
                x, y = _series(epochs, part, name)
                axis.plot(x, y, line, markersize=3, label=part)
            axis.set_ylabel(label)
            _epoch_axis(axis)
            axis.legend()
        figure.suptitle(title)
        return save(figure, path)


def plot_heads(epochs: Mapping[int, EpochStats], title: str, path: Path) -> Path | None:
    """Validation loss and accuracy of each Medusa head over the epochs.

    Returns:
        The PNG, or None for a model without heads.
    """
    with pyplot.rc_context(STYLE):
        figure, axes = pyplot.subplots(1, 2, figsize=(9, 3.5), layout="constrained")
        drawn = 0
        for axis, prefix, label in zip(
            axes, ("loss", "acc"), ("validation loss", "validation accuracy"), strict=True
        ):
            names = head_names(epochs, prefix)
            colors = _shades(len(names))
            for name, color in zip(names, colors, strict=True):
                number = name.removeprefix(f"{prefix}_head")
                x, y = _series(epochs, "valid", name)
                axis.plot(x, y, "o-", color=color, markersize=3, label=number)
            axis.set_ylabel(label)
            _epoch_axis(axis)
            drawn += len(names)
        if not drawn:
            pyplot.close(figure)
            return None
        axes[1].legend(title="head", loc="center left", bbox_to_anchor=(1.0, 0.5))
        figure.suptitle(title)
        return save(figure, path)


def _shades(count: int) -> np.ndarray:
    name, low, high = HEAD_COLORS
    return matplotlib.colormaps[name](np.linspace(low, high, max(count, 1)))[:count]
