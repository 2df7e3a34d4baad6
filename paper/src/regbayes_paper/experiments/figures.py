"""Drawing shared by the experiments: points with error bars by system, and lines over a setting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regbayes_paper.experiments.protocol import Block, Experiment, Metric
from regbayes_paper.experiments.store import Record
from regbayes_paper.experiments.tables import by_line, summarize

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

OURS, PEER, PRINTED = "#1f5fa8", "#8a8a8a", "#c44e1b"
COLORS = ("#1f5fa8", "#c44e1b", "#3a8a3a", "#7a4fa3", "#8a8a8a", "#b8860b")


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure that belongs to no window."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained", dpi=150)


def save(figure: Figure, path: Path) -> Path:
    """Write a figure as PNG."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    return path


def tidy(ax: Axes, *, grid: str = "y") -> None:
    """Take away what carries no information."""
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    ax.grid(axis=grid, color="#dddddd", linewidth=0.6)
    ax.set_axisbelow(True)


def draw_table(
    experiment: Experiment, records: Sequence[Record], metrics: Sequence[Metric], path: Path, peers: str
) -> list[Path]:
    """Draw a table: a panel for each data set and metric, a point for each system, a cross where the paper has it.

    On a data set that stands for one of the paper's there are no crosses.

    Parameters
    ----------
    experiment : Experiment
    records : sequence of Record
    metrics : sequence of Metric
        The metrics to draw.
    path : Path
        The file.
    peers : str
        The group that is drawn in grey.
    """
    groups = by_line(records)
    blocks = [b for b in experiment.blocks() if any((b.dataset, x.row, x.setting) in groups for x in b.lines)]
    height = 0.8 + sum(0.9 + 0.24 * len(block.lines) for block in blocks)
    figure = new_figure(2.4 * len(metrics) + 3.0, height)
    axes = figure.subplots(
        len(blocks), len(metrics), squeeze=False, height_ratios=[1.5 + 0.4 * len(block.lines) for block in blocks]
    )
    for row, block in zip(axes, blocks, strict=True):
        for ax, metric in zip(row, metrics, strict=True):
            _draw_panel(ax, block, metric, groups, peers)
        for ax in row[1:]:
            ax.tick_params(labelleft=False)
        row[0].set_title(block.dataset, loc="left", fontsize="medium", fontweight="bold")
    _explain(figure, any(line.paper for block in blocks if block.comparable for line in block.lines))
    return [save(figure, path)]


def _draw_panel(ax: Axes, block: Block, metric: Metric, groups: Any, peers: str) -> None:
    factor = 100.0 if metric.percent else 1.0
    names = [f"{line.row}, {line.setting}" if line.setting else line.row for line in block.lines]
    records = [groups.get((block.dataset, line.row, line.setting)) for line in block.lines]
    known = {i: summarize(found) for i, found in enumerate(records) if found and metric.key in found[0].values}
    crosses = {i: x for i, line in enumerate(block.lines) if (x := _number(line.paper.get(metric.key))) is not None}
    crosses = crosses if block.comparable else {}
    means = {i: factor * summary.mean[metric.key] for i, summary in known.items()}
    outlier = lowest_by_far(means, list(crosses.values()))
    for place, line in enumerate(block.lines):
        if place == outlier:
            text = f"◂ {means[place]:.{metric.digits}f}"
            ax.text(0.01, place, text, color=PEER, fontsize="small", va="center", transform=ax.get_yaxis_transform())
        elif place in known:
            spread = factor * known[place].std.get(metric.key, 0.0)
            color = PEER if line.group == peers else OURS
            ax.errorbar(means[place], place, xerr=spread or None, fmt="o", color=color, markersize=5)
        if place in crosses:
            ax.plot(crosses[place], place, "x", color=PRINTED, markersize=6)
    ax.set_yticks(range(len(names)), names, fontsize="small")
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.set_xlabel(metric.label + (" (%)" if metric.percent else ""))
    tidy(ax, grid="both")


def lowest_by_far(means: Mapping[int, float], printed: Sequence[float] = ()) -> int | None:
    """Return the place of a value so far below all others that they would lie on each other if it were drawn to scale.

    That is what always answering the most frequent class usually is. Numbers that are printed in the paper are among
    the others.
    """
    if len(means) < 3:
        return None
    lowest = min(means, key=means.__getitem__)
    others = [*(mean for place, mean in means.items() if place != lowest), *printed]
    return lowest if min(others) - means[lowest] > 2 * (max(others) - min(others)) else None


def _number(printed: str | None) -> float | None:
    """Read the number in front of a ± sign."""
    try:
        return float((printed or "").split("±")[0])
    except ValueError:
        return None


def _explain(figure: Figure, printed: bool) -> None:
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=OURS, marker="o", linestyle="", label="measured: systems of the paper"),
        Line2D([], [], color=PEER, marker="o", linestyle="", label="measured: peers"),
    ]
    if printed:
        handles.append(Line2D([], [], color=PRINTED, marker="x", linestyle="", label="printed in the paper"))
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize="small")
