"""Figures of decoding: accepted drafts, speedup, tokens per call."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib import pyplot

from espnet_medusa.report.figures.style import STYLE, legend_above, save
from espnet_medusa.report.measures.decoding_measures import common_utterances
from espnet_medusa.report.measures.decodings import Decoding, find_plains


def plot_decodings(
    decodings: Sequence[Decoding], plain: Path | None, image_dir: Path
) -> list[Path]:
    """Draw what decoding cost and gained, test set by test set.

    Args:
        decodings: Of all test sets.
        plain: `EXP_DIR/INFERENCE_TAG` that speedups are over; None: no speedups.
        image_dir: Where to write.

    Returns:
        The PNGs.

    Raises:
        ValueError: Plain decoding was asked for, and no test set has it.
    """
    images = []
    for test_set, its_plain in find_plains(decodings, plain).items():
        same = [item for item in decodings if item.test_set == test_set]
        name = f"{test_set.replace('/', '_')}.png"  # org/<set>
        images.append(plot_acceptance(same, image_dir / f"acceptance_{name}"))
        images.append(plot_tokens_per_call(same, image_dir / f"tokens_per_call_{name}"))
        if its_plain is not None:
            images.append(plot_speedup(same, its_plain, image_dir / f"speedup_{name}"))
    return [path for path in images if path]


def plot_acceptance(decodings: Sequence[Decoding], path: Path) -> Path | None:
    """Bars: share of each head's drafts that were written, by configuration.

    Returns:
        The PNG, or None when nothing drafted.
    """
    shares = {item.name: item.total.summary()["acceptance_per_head"] for item in decodings}
    shares = {name: values for name, values in shares.items() if values}
    if not shares:
        return None
    heads = max(map(len, shares.values()))
    width = 0.8 / len(shares)
    with pyplot.rc_context(STYLE):
        figure, axis = pyplot.subplots(
            figsize=(max(6.0, 0.9 * heads + 2), 3.8), layout="constrained"
        )
        for index, (name, values) in enumerate(shares.items()):
            offset = (index - (len(shares) - 1) / 2) * width
            places = np.arange(1, len(values) + 1) + offset
            axis.bar(places, 100 * np.array(values), width, label=name)
        axis.set_xticks(range(1, heads + 1))
        axis.set_ylim(0, 100)
        axis.set_xlabel("head")
        axis.set_ylabel("accepted drafts [%]")
        axis.grid(axis="x", visible=False)
        legend_above(figure, [axis], columns=3)
        return save(figure, path)


def running_median(
    x: np.ndarray, y: np.ndarray, most_points: int = 8
) -> tuple[np.ndarray, np.ndarray]:
    """Medians of y over groups of equal size along x.

    Args:
        x, y: Values of shape (n,), n >= 1.
        most_points: Most groups; each has 3 values or more, where there are as many.

    Returns:
        Median x and median y of each group.
    """
    order = np.argsort(x, kind="stable")
    groups = np.array_split(order, max(1, min(most_points, len(x) // 3)))
    return (
        np.array([np.median(x[group]) for group in groups]),
        np.array([np.median(y[group]) for group in groups]),
    )


def plot_speedup(decodings: Sequence[Decoding], plain: Decoding, path: Path) -> Path | None:
    """Speedup over plain decoding against output tokens, a point for each utterance.

    It is that of the decoder; that of encoder and search where plain decoding is ESPnet's own
    command, whose logs tell no more.

    Returns:
        The PNG, or None when there is nothing to compare.
    """
    others = [item for item in decodings if item is not plain and item.test_set == plain.test_set]
    searched = plain.total.decoder_seconds > 0
    name = "decoder_seconds" if searched else "total_seconds"
    with pyplot.rc_context(STYLE):
        figure, axis = pyplot.subplots(figsize=(7, 4.2), layout="constrained")
        drawn = 0
        for item in others:
            both = [key for key in common_utterances(item, plain) if item.utterances[key].tokens]
            here, there = (
                np.array([getattr(way.utterances[key], name) for key in both])
                for way in (item, plain)
            )
            known = (here > 0) & (there > 0)
            if not known.any():
                continue
            drawn += 1
            tokens = np.array([item.utterances[key].tokens for key in both])[known]
            speedup = there[known] / here[known]
            points = axis.scatter(tokens, speedup, s=9, alpha=0.35, linewidths=0)
            color = points.get_facecolor()[0][:3]
            axis.plot(*running_median(tokens, speedup), "-", color=color, lw=2, label=item.name)
        if not drawn:
            pyplot.close(figure)
            return None
        axis.axhline(1.0, color="black", lw=0.8, ls=":")
        axis.set_ylim(bottom=0)
        axis.set_xlabel("output tokens of the utterance")
        axis.set_ylabel(f"{'decoder ' if searched else ''}speedup over {plain.name}")
        legend_above(figure, [axis], columns=3)
        axis.set_title("points: utterances, lines: running medians", fontsize="small")
        return save(figure, path)


def plot_tokens_per_call(decodings: Sequence[Decoding], path: Path) -> Path | None:
    """Histogram over utterances of tokens per decoder call, by configuration that drafts.

    Returns:
        The PNG, or None when nothing drafted.
    """
    values = {
        item.name: [
            statistics.tokens / statistics.decoder_calls
            for statistics in item.utterances.values()
            if statistics.decoder_calls
        ]
        for item in decodings
        if item.total.drafted
    }
    values = {name: rates for name, rates in values.items() if rates}
    if not values:
        return None
    top = max(2.0, max(max(rates) for rates in values.values()))
    bins = np.linspace(0, top * 1.02, 31)
    with pyplot.rc_context(STYLE):
        figure, axis = pyplot.subplots(figsize=(7, 3.8), layout="constrained")
        for name, rates in values.items():
            mean = f"{name} (mean {np.mean(rates):.2f})"
            axis.hist(rates, bins, histtype="stepfilled", alpha=0.3, lw=0)
            color = axis.patches[-1].get_facecolor()[:3]
            axis.hist(rates, bins, histtype="step", lw=1.5, color=color, label=mean)
        axis.axvline(1.0, color="black", lw=0.8, ls=":", label="without drafts")
        axis.set_xlabel("tokens per decoder call")
        axis.set_ylabel("utterances")
        axis.yaxis.get_major_locator().set_params(integer=True)
        legend_above(figure, [axis], columns=3)
        return save(figure, path)
