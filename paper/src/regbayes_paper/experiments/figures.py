"""Figures: points with error bars for each system, and lines over a setting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any

from regbayes_paper.experiments.protocol import PEERS, Experiment, Metric, Record, by_line, mean_and_std

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OURS, PEER, PRINTED = "#1f5fa8", "#8a8a8a", "#c44e1b"
COLORS = ("#1f5fa8", "#c44e1b", "#3a8a3a", "#7a4fa3", "#b8860b", "#4b4b4b")


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure without a window."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained", dpi=150)


def tidy(ax: Any) -> None:
    """Remove decoration from axes."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(color="#dddddd", linewidth=0.6)
    ax.set_axisbelow(True)


def unit(metric: Metric) -> tuple[float, str]:
    """Return the display factor and the label of a metric."""
    return (100.0, f"{metric.label} (%)") if metric.percent else (1.0, metric.label)


def draw_table(experiment: Experiment, records: Sequence[Record]) -> Figure:
    """Draw a panel for each data set and metric, with points for our results and crosses for the paper's."""
    groups = by_line(records)
    metrics = [metric for metric in experiment.metrics if metric.key in experiment.drawn]
    blocks = experiment.blocks(records)
    heights = [1.2 + 0.24 * len(block.lines) for block in blocks]
    figure = new_figure(2.4 * len(metrics) + 3.0, sum(heights) + 0.5)
    axes = figure.subplots(len(blocks), len(metrics), squeeze=False, height_ratios=heights, sharey="row")
    for row, block in zip(axes, blocks, strict=True):
        for ax, metric in zip(row, metrics, strict=True):
            factor, text = unit(metric)
            for place, line in enumerate(block.lines):
                found = mean_and_std(groups.get((block.dataset, line.row, line.setting), []), metric.key)
                if found:
                    color = PEER if line.group == PEERS else OURS
                    ax.errorbar(factor * found[0], place, xerr=factor * found[1] or None, fmt="o", color=color)
                printed = line.paper.get(metric.key, "").split("±")[0].strip()
                if printed.replace(".", "").isdigit() and not block.note:  # the paper has no numbers for stand-ins
                    ax.plot(float(printed), place, "x", color=PRINTED)
            ax.set(xlabel=text)
            tidy(ax)
        row[0].set_yticks(range(len(block.lines)), [line.label for line in block.lines], fontsize="small")
        row[0].set_ylim(len(block.lines) - 0.5, -0.5)
        row[0].set_title(block.dataset, loc="left", fontsize="medium", fontweight="bold")
    figure.supxlabel("blue: systems of the paper, gray: other methods, cross: printed in the paper", fontsize="small")
    return figure


def draw_lines(experiment: Experiment, records: Sequence[Record], x: Callable[[str], float], x_label: str) -> Figure:
    """Draw metrics against a varied setting, with horizontal lines for systems that do not vary it."""
    groups = by_line(records)
    metrics = [metric for metric in experiment.metrics if metric.key in experiment.drawn]
    names = [block.dataset for block in experiment.blocks(records)]
    figure = new_figure(max(6.0, 4.5 * len(metrics)), 0.8 + 3.0 * len(names))
    for row, name in zip(figure.subplots(len(names), len(metrics), squeeze=False), names, strict=True):
        for ax, metric in zip(row, metrics, strict=True):
            factor, text = unit(metric)
            for system, color in zip(experiment.systems, cycle(COLORS), strict=False):
                settings = experiment.settings(system)
                found = {s: mean_and_std(groups.get((name, system.name, s), []), metric.key) for s in settings}
                known = {s: pair for s, pair in found.items() if pair}
                if known and len(settings) > 1:
                    means, spread = ([factor * pair[i] for pair in known.values()] for i in (0, 1))
                    places = [x(setting) for setting in known]
                    ax.errorbar(places, means, spread, color=color, marker="o", markersize=3, label=system.name)
                elif known:
                    ax.axhline(factor * next(iter(known.values()))[0], color=PEER, linewidth=0.7)
                    ax.annotate(system.name, (1, factor * next(iter(known.values()))[0]), (2, 0), fontsize="x-small",
                                xycoords=("axes fraction", "data"), textcoords="offset points")  # fmt: skip
            ax.set(xlabel=x_label, ylabel=text)
            ax.set_title(name, loc="left", fontsize="medium")
            tidy(ax)
        row[0].legend(frameon=False, fontsize="x-small")
    return figure
