"""What the tables have in common: systems on data sets, each tuned inside the training part."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from regbayes_paper.experiments.data import Dataset, Sample
from regbayes_paper.experiments.figures import draw_table
from regbayes_paper.experiments.protocol import Block, Experiment, Line, Measurement, Metric
from regbayes_paper.experiments.registry import PEERS, Context, System, named
from regbayes_paper.experiments.store import Cell, Record
from regbayes_paper.experiments.tuning import Task, evaluate

FEATURES = Metric("features", "features", "latent features in use", digits=0)

Paper = Mapping[str, Mapping[str, Mapping[str, str]]]


class Comparison(Experiment):
    """A table of systems by data sets.

    A subclass says which systems and data, what kind of problem it is, and what the paper printed:
    ``paper[data set][system][metric]``.
    """

    systems: ClassVar[tuple[System, ...]]
    task: ClassVar[Task]
    paper: ClassVar[Paper]
    drawn: ClassVar[tuple[str, ...]]
    """Metrics in the figure."""

    @property
    @abstractmethod
    def n_components(self) -> int:
        """Truncation."""

    @property
    @abstractmethod
    def n_folds(self) -> int:
        """Folds of the cross-validation inside the training part."""

    @abstractmethod
    def datasets(self) -> Sequence[Dataset]:
        """The data sets, in order."""

    @abstractmethod
    def parts(self, dataset: Dataset, seed: int) -> tuple[Sample, Sample]:
        """Training and test part."""

    def split_is_fixed(self, dataset: Dataset) -> bool:
        """Whether every seed has the same split, so that a system without a random start need be run once only."""
        return dataset.train is not None

    def blocks(self) -> Sequence[Block]:
        """One table for each data set, with all systems."""
        return [
            Block(
                dataset.name,
                dataset.description,
                self._notes(dataset),
                tuple(self._lines(dataset)),
                comparable=not dataset.stands_for,
            )
            for dataset in self.datasets()
        ]

    def _notes(self, dataset: Dataset) -> tuple[str, ...]:
        if not dataset.stands_for:
            return ()
        return (f"The paper's numbers are about {dataset.stands_for}, and cannot be compared with the others.",)

    def _lines(self, dataset: Dataset) -> list[Line]:
        printed = self.paper.get(dataset.stands_for or dataset.name, {})
        return [
            Line(system.name, paper=printed.get(system.name, {}), missing=system.missing, group=system.group)
            for system in self.systems
        ]

    def cells(self, n_seeds: int) -> Sequence[Cell]:
        """All systems on all data sets, seed by seed, so that a table of few seeds is there early."""
        return [
            Cell(dataset.name, system.name, "", seed)
            for seed in range(n_seeds)
            for dataset in self.datasets()
            for system in self.systems
            if not system.missing and (seed == 0 or system.random or not self.split_is_fixed(dataset))
        ]

    def facts(self, cell: Cell) -> Mapping[str, Any]:
        """The data, the sizes, and the estimators with all their settings."""
        system = named(self.systems, cell.row)
        sizes = {"n_components": self.n_components, "n_folds": self.n_folds}
        return sizes | {"data": self._dataset(cell).digest} | system.facts(self.quick, self.n_components)

    def evaluate(self, cell: Cell) -> Measurement:
        """Choose settings in the training part, refit, score the test part once."""
        train, test = self.parts(self._dataset(cell), cell.seed)
        context = Context(cell.seed, self.n_components, train.X.shape[1])
        system = named(self.systems, cell.row)
        return evaluate(system, train, test, context, self.task, quick=self.quick, n_folds=self.n_folds)

    def draw(self, records: Sequence[Record], folder: Path) -> list[Path]:
        """Draw the table."""
        metrics = [metric for metric in self.metrics if metric.key in self.drawn]
        return draw_table(self, records, metrics, folder / f"{self.stem}.png", PEERS)

    def _dataset(self, cell: Cell) -> Dataset:
        return next(dataset for dataset in self.datasets() if dataset.name == cell.dataset)


def paired(
    records: Sequence[Record], one: str, other: str, metric: Metric, dataset: str, setting: str = ""
) -> list[str]:
    """Say by how much one system is ahead of another with the same seeds, with the standard error of the mean."""
    found: dict[str, dict[int, float]] = {one: {}, other: {}}
    for record in records:
        cell = record.cell
        if cell.row in found and (cell.dataset, cell.setting) == (dataset, setting) and metric.key in record.values:
            found[cell.row][cell.seed] = record.values[metric.key]
    common = sorted(set(found[one]) & set(found[other]))
    if len(common) < 2:
        return []
    ahead = 100 * np.array([found[one][seed] - found[other][seed] for seed in common])
    error = ahead.std(ddof=1) / np.sqrt(len(ahead))
    where = f"{dataset}, {setting}" if setting else dataset
    return [
        f"{where}: {one} less {other}, paired on {len(common)} seeds: {ahead.mean():+.2f} ± {error:.2f} points of "
        f"{metric.label} (mean ± standard error)."
    ]
