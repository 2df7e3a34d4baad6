"""Comparisons in which something is varied: a system has a line for each value."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from regbayes_paper.experiments.comparison import Comparison, paired
from regbayes_paper.experiments.data import Sample
from regbayes_paper.experiments.figures import COLORS, PEER, new_figure, save, tidy
from regbayes_paper.experiments.protocol import Block, Line, Measurement
from regbayes_paper.experiments.registry import Context, System, named
from regbayes_paper.experiments.store import Cell, Record
from regbayes_paper.experiments.tables import by_line, summarize
from regbayes_paper.experiments.tuning import evaluate


class Sweep(Comparison):
    """A table whose systems have several lines.

    A subclass says what is varied (`values`), and what it means: another system or number of features (`at`), or other
    training rows (`training_rows`).
    """

    x_label: ClassVar[str]
    x_scale: ClassVar[str] = "linear"
    level: ClassVar[str]
    """A peer whose level the figure shows."""

    @abstractmethod
    def values(self, system: System) -> Sequence[str]:
        """The settings of a system as they are printed; one that is empty where nothing is varied."""

    def at(self, cell: Cell) -> tuple[System, int]:
        """Return the system of a cell, and its number of features."""
        return named(self.systems, cell.row), self.n_components

    def training_rows(self, cell: Cell, train: Sample) -> Sample:
        """Return the part of the training rows that a cell uses."""
        return train

    def blocks(self) -> Sequence[Block]:
        """One table for each data set, all values of a system together."""
        found = []
        for dataset in self.datasets():
            lines = [
                Line(system.name, value, missing=system.missing, group=system.group)
                for system in self.systems
                for value in self.values(system)
            ]
            found.append(Block(dataset.name, dataset.description, (), tuple(lines)))
        return found

    def cells(self, n_seeds: int) -> Sequence[Cell]:
        """All values, seed by seed."""
        return [
            Cell(cell.dataset, cell.row, value, cell.seed)
            for cell in super().cells(n_seeds)
            for value in self.values(named(self.systems, cell.row))
        ]

    def facts(self, cell: Cell) -> Mapping[str, Any]:
        """The data and the estimators with all their settings; what is varied is in the cell."""
        system, size = self.at(cell)
        sizes = {"n_components": size, "n_folds": self.n_folds}
        return sizes | {"data": self._dataset(cell).digest} | system.facts(self.quick, size)

    def evaluate(self, cell: Cell) -> Measurement:
        """Choose the other settings in the training part, refit, score the test part once."""
        train, test = self.parts(self._dataset(cell), cell.seed)
        system, size = self.at(cell)
        context = Context(cell.seed, size, train.X.shape[1])
        rows = self.training_rows(cell, train)
        return evaluate(system, rows, test, context, self.task, quick=self.quick, n_folds=self.n_folds)

    def draw(self, records: Sequence[Record], folder: Path) -> list[Path]:
        """Draw the metrics against what is varied, a row of panels for each data set."""
        groups = by_line(records)
        datasets = [d for d in self.datasets() if any(key[0] == d.name for key in groups)]
        metrics = [metric for metric in self.metrics if metric.key in self.drawn]
        varied = [system for system in self.systems if len(self.values(system)) > 1]
        colors = dict(zip((s.name for s in varied), (c for c in COLORS if c != PEER), strict=False))
        figure = new_figure(max(6.0, 4.5 * len(metrics)), 1.0 + 3.0 * len(datasets))
        axes = figure.subplots(len(datasets), len(metrics), squeeze=False)
        for row, dataset in zip(axes, datasets, strict=True):
            for ax, metric in zip(row, metrics, strict=True):
                factor = 100.0 if metric.percent else 1.0
                for system in varied:
                    some = {_number(v): groups.get((dataset.name, system.name, v)) for v in self.values(system)}
                    known = {x: summarize(found) for x, found in some.items() if found}
                    means = [factor * s.mean[metric.key] for s in known.values()]
                    spread = [factor * s.std.get(metric.key, 0.0) for s in known.values()]
                    if known:
                        color = colors[system.name]
                        ax.errorbar(list(known), means, spread, color=color, marker="o", markersize=4, capsize=2)
                peer = groups.get((dataset.name, self.level, ""))
                if peer and metric.key in peer[0].values:
                    ax.axhline(factor * summarize(peer).mean[metric.key], color=PEER, linestyle="--")
                ax.set(xlabel=self.x_label, ylabel=metric.label + (" (%)" if metric.percent else ""))
                ax.set_xscale(self.x_scale)
                ax.set_title(dataset.name, loc="left", fontsize="medium")
                tidy(ax)
        _explain(figure, {name: color for name, color in colors.items() if any(key[1] == name for key in groups)}, self)
        return [save(figure, folder / f"{self.stem}.png")]


class SizeSweep(Sweep):
    """Systems with K latent features at most, for several K; the others, for scale, are as they are."""

    sizes: ClassVar[tuple[int, ...]]
    quick_sizes: ClassVar[tuple[int, ...]]
    swept: ClassVar[tuple[System, ...]]
    joint_and_two_stage: ClassVar[tuple[str, str]]
    """Systems whose paired difference is printed at each K."""
    x_label = "latent features K"

    def values(self, system: System) -> Sequence[str]:
        """The numbers of features."""
        return (
            [f"K = {size}" for size in (self.quick_sizes if self.quick else self.sizes)]
            if self._varies(system)
            else [""]
        )

    def at(self, cell: Cell) -> tuple[System, int]:
        """The number of features is that of the cell."""
        system = named(self.systems, cell.row)
        return system, int(_number(cell.setting)) if self._varies(system) else self.n_components

    def _varies(self, system: System) -> bool:
        return any(system is other for other in self.swept)

    def remarks(self, records: Sequence[Record]) -> Sequence[str]:
        """By how much joint learning is ahead with as many features."""
        metrics = [metric for metric in self.metrics if metric.key in self.drawn]
        return [
            line
            for dataset in self.datasets()
            for value in self.values(self.swept[0])
            for metric in metrics
            for line in paired(records, *self.joint_and_two_stage, metric, dataset.name, value)
        ]


def _number(setting: str) -> float:
    return float(setting.rpartition(" ")[2])


def _explain(figure: Any, colors: Mapping[str, str], experiment: Sweep) -> None:
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], color=color, marker="o", label=name) for name, color in colors.items()]
    handles.append(Line2D([], [], color=PEER, linestyle="--", label=experiment.level))
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize="small")
