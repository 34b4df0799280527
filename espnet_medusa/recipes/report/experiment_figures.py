"""Draw an experiment: training curves, accepted drafts, speedup, tokens per decoder call."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib import pyplot

from espnet_medusa.recipes.report.decodings import DecodedSet, find_baselines
from espnet_medusa.recipes.report.measures import common_values
from espnet_medusa.recipes.report.style import add_legend, save
from espnet_medusa.recipes.train_log import EpochStats, read_epochs

SHADES = 0.0, 0.9  # the part of the color map with contrast to white


def plot_experiment(exp_dir: Path) -> list[Path]:
    """Draw the curves of train.log into ``images``; raise ValueError if it has no epochs."""
    epochs, image_dir = read_epochs(exp_dir / "train.log"), exp_dir / "images"
    training = plot_training(epochs, exp_dir.name, image_dir / "training.png")
    heads = plot_heads(epochs, exp_dir.name, image_dir / "training_heads.png")
    return [training, heads] if heads else [training]


def plot_training(epochs: Mapping[int, EpochStats], title: str, path: Path) -> Path:
    """Draw loss and accuracy over the epochs, training and validation."""
    figure, axes = _epoch_axes(title, ("loss", "token accuracy"))
    for axis, name in zip(axes, ("loss", "acc"), strict=True):
        for part, line in (("train", "o-"), ("valid", "s--")):
            axis.plot(*_series(epochs, part, name), line, markersize=3, label=part)
        axis.legend()
    return save(figure, path)


def plot_heads(epochs: Mapping[int, EpochStats], title: str, path: Path) -> Path | None:
    """Draw validation loss and accuracy of each head; None for a model without heads."""
    names = {
        name.partition("_head") for stats in epochs.values() for name in stats.get("valid", {})
    }
    numbers = {  # of loss_head1, loss_head2, ..., acc_head1, ...
        kind: sorted(int(end) for start, _, end in names if start == kind and end.isdigit())
        for kind in ("loss", "acc")
    }
    if not any(numbers.values()):
        return None
    figure, axes = _epoch_axes(title, ("validation loss", "validation accuracy"))
    for axis, (kind, heads) in zip(axes, numbers.items(), strict=True):
        for head, shade in zip(heads, np.linspace(*SHADES, len(heads)), strict=True):
            color = pyplot.get_cmap("viridis")(shade)
            points = _series(epochs, "valid", f"{kind}_head{head}")
            axis.plot(*points, "o-", color=color, markersize=3, label=head)
    axes[1].legend(title="head", loc="center left", bbox_to_anchor=(1.0, 0.5))
    return save(figure, path)


def _epoch_axes(title: str, labels: Sequence[str]) -> tuple["pyplot.Figure", np.ndarray]:
    figure, axes = pyplot.subplots(1, len(labels), figsize=(9, 3.5))
    figure.suptitle(title)
    for axis, label in zip(axes, labels, strict=True):
        axis.set(xlabel="epoch", ylabel=label)
        axis.xaxis.get_major_locator().set_params(integer=True)
    return figure, axes


def _series(epochs: Mapping[int, EpochStats], part: str, name: str) -> tuple[list, list]:
    """Return the epochs that report a value, and its values."""
    sections = {epoch: stats.get(part, {}) for epoch, stats in epochs.items()}
    values = {epoch: section[name] for epoch, section in sections.items() if name in section}
    return [*values], [*values.values()]


def plot_decodings(
    decodings: Sequence[DecodedSet], baseline_dir: Path | None, image_dir: Path
) -> list[Path]:
    """Draw each test set, with speedups over the baseline ``baseline_dir``, if it is given."""
    images = []
    for test_set, baseline in find_baselines(decodings, baseline_dir).items():
        same = [item for item in decodings if item.test_set == test_set]
        name = f"{test_set.replace('/', '_')}.png"  # org/<set>
        images.append(plot_acceptance(same, image_dir / f"acceptance_{name}"))
        images.append(plot_tokens_per_call(same, image_dir / f"tokens_per_call_{name}"))
        if baseline is not None:
            images.append(plot_speedup(same, baseline, image_dir / f"speedup_{name}"))
    return [path for path in images if path]


def plot_acceptance(decodings: Sequence[DecodedSet], path: Path) -> Path | None:
    """Draw the accepted share of each head's drafts; None without drafts."""
    shares = {item.name: item.total.summary()["acceptance_per_head"] for item in decodings}
    shares = {name: values for name, values in shares.items() if values}
    if not shares:
        return None
    heads = max(map(len, shares.values()))
    width = 0.8 / len(shares)
    figure, axis = pyplot.subplots(figsize=(max(6.0, 0.9 * heads + 2), 3.8))
    for index, (name, values) in enumerate(shares.items()):
        offset = (index - (len(shares) - 1) / 2) * width
        places = np.arange(1, len(values) + 1) + offset
        axis.bar(places, 100 * np.array(values), width, label=name)
    axis.set_xticks(range(1, heads + 1))
    axis.set(ylim=(0, 100), xlabel="head", ylabel="accepted drafts [%]")
    axis.grid(axis="x", visible=False)
    add_legend(figure, [axis], columns=3)
    return save(figure, path)


def running_median(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return medians of x and y, (n,) each, over at most 8 groups of neighbors along x.

    A group has at least 3 points, unless there are fewer.
    """
    order = np.argsort(x, kind="stable")
    groups = np.array_split(order, max(1, min(8, len(x) // 3)))
    return tuple(np.array([np.median(axis[group]) for group in groups]) for axis in (x, y))


def plot_speedup(decodings: Sequence[DecodedSet], baseline: DecodedSet, path: Path) -> Path | None:
    """Draw speedup against output tokens, a point per utterance; None without common utterances.

    The speedup is that of the search. It includes the encoder if ESPnet's command decoded the
    baseline, because its logs do not have the search's seconds.
    """
    searched = baseline.total.decoder_seconds > 0
    name = "decoder_seconds" if searched else "total_seconds"
    figure, axis = pyplot.subplots(figsize=(7, 4.2))
    for item in decodings:
        if item is baseline or item.test_set != baseline.test_set:
            continue
        tokens, _ = common_values(item, baseline, "tokens")
        seconds, expected = common_values(item, baseline, name)
        known = (tokens > 0) & (seconds > 0) & (expected > 0)
        if not known.any():
            continue
        tokens, speedup = tokens[known], expected[known] / seconds[known]
        color = axis.scatter(tokens, speedup, s=9, alpha=0.35, linewidths=0).get_facecolor()[0][:3]
        axis.plot(*running_median(tokens, speedup), "-", color=color, lw=2, label=item.name)
    if not axis.lines:
        pyplot.close(figure)
        return None
    axis.axhline(1.0, color="black", lw=0.8, ls=":")
    axis.set(ylim=(0, None), xlabel="output tokens of the utterance")
    axis.set_ylabel(f"{'decoder ' if searched else ''}speedup over {baseline.name}")
    add_legend(figure, [axis], columns=3)
    axis.set_title("points: utterances, lines: running medians", fontsize="small")
    return save(figure, path)


def plot_tokens_per_call(decodings: Sequence[DecodedSet], path: Path) -> Path | None:
    """Draw a histogram over utterances of tokens per decoder call; None without drafts."""
    values = {
        item.name: [s.tokens / s.decoder_calls for s in item.utterances.values() if s.decoder_calls]
        for item in decodings
        if item.total.drafted
    }
    values = {name: rates for name, rates in values.items() if rates}
    if not values:
        return None
    top = max(2.0, max(max(rates) for rates in values.values()))
    bins = np.linspace(0, top * 1.02, 31)
    figure, axis = pyplot.subplots(figsize=(7, 3.8))
    for name, rates in values.items():
        mean = f"{name} (mean {np.mean(rates):.2f})"
        axis.hist(rates, bins, histtype="stepfilled", alpha=0.3, lw=0)
        color = axis.patches[-1].get_facecolor()[:3]
        axis.hist(rates, bins, histtype="step", lw=1.5, color=color, label=mean)
    axis.axvline(1.0, color="black", lw=0.8, ls=":", label="without drafts")
    axis.set(xlabel="tokens per decoder call", ylabel="utterances")
    axis.yaxis.get_major_locator().set_params(integer=True)
    add_legend(figure, [axis], columns=3)
    return save(figure, path)
