"""Plot: encoder and decoder stacked, a bar for each way, a panel for each search."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib import pyplot

from espnet_medusa.report.style import COLORS, STYLE, legend_above, save

PANEL_INCHES, BAR_INCHES, MARGIN_INCHES = 6.0, 0.3, 1.4


def plot_encoder_and_decoder(
    model: str,
    groups: Mapping[str, Sequence[dict]],
    figures: tuple[str, str],
    unit: str,
    path: Path,
) -> None:
    """Write the plot.

    Args:
        model: Its name, for titles.
        groups: Rows with ``label`` by search.
        figures: Names of the encoder's and of the decoder's in a row.
        unit: What they are counted in.
        path: To write.
    """
    most = max(map(len, groups.values()))
    size = PANEL_INCHES * len(groups), MARGIN_INCHES + BAR_INCHES * most
    with pyplot.rc_context(STYLE):
        figure, axes = pyplot.subplots(
            1, len(groups), figsize=size, squeeze=False, layout="constrained"
        )
        for axis, (search, rows) in zip(axes[0], groups.items(), strict=True):
            names = [row["label"] for row in rows]
            encoder, decoder = ([row[name] for row in rows] for name in figures)
            axis.barh(names, encoder, color=COLORS[7], label="encoder and features")
            axis.barh(names, decoder, left=encoder, color=COLORS[0], label="decoder")
            axis.invert_yaxis()
            axis.grid(axis="y", visible=False)
            axis.set_title(f"{model}, {search}", fontsize="medium")
            axis.set_xlabel(unit)
        legend_above(figure, axes.flat)
        save(figure, path)
