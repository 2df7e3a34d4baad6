"""Base classes of experiments: systems, data sets and settings, measured cell by cell."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from regbayes_paper.experiments.samples import Dataset, Sample

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SCALING = 2 / 3  # exponent of fit time in problem size, to extrapolate from the small form
PAPER, PEERS = "systems of the paper", "other methods"


@dataclass(frozen=True)
class Metric:
    """A metric, one column of a table."""

    key: str
    label: str
    definition: str
    digits: int = 3
    percent: bool = False


@dataclass(frozen=True, order=True)
class Cell:
    """One system on one data set under one setting with one seed."""

    dataset: str
    row: str
    setting: str
    seed: int

    def __str__(self) -> str:
        parts = (self.dataset, self.row, self.setting, f"seed {self.seed}")
        return " · ".join(part for part in parts if part)


@dataclass(frozen=True)
class Record:
    """Measurements of a cell, sufficient for tables and figures."""

    cell: Cell
    values: dict[str, float]
    fit_seconds: float  # CPU seconds of one core
    search_seconds: float = 0.0
    chosen: dict[str, Any] = field(default_factory=dict)
    detail: dict[str, Any] = field(default_factory=dict)  # arrays for a figure, as lists
    heading: str = ""  # name and size of the data set
    stands_for: str = ""  # the paper's data set that this one replaces
    provenance: dict[str, str] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """Total seconds."""
        return self.fit_seconds + self.search_seconds


@dataclass(frozen=True)
class Line:
    """A line of a table."""

    row: str
    setting: str = ""
    paper: Mapping[str, str] = field(default_factory=dict)  # the paper's numbers by metric, as printed
    group: str = PAPER

    @property
    def label(self) -> str:
        """Name of the line."""
        return f"{self.row}, {self.setting}" if self.setting else self.row


@dataclass(frozen=True)
class Block:
    """The table of one data set."""

    dataset: str
    heading: str
    lines: tuple[Line, ...]
    metrics: tuple[Metric, ...]
    note: str = ""


@dataclass(frozen=True)
class Context:
    """Context in which a system makes its estimator."""

    seed: int
    n_components: int
    n_inputs: int


@dataclass(frozen=True)
class System:
    """A row of a table: a factory of estimators, and the settings for cross-validation."""

    name: str
    make: Callable[..., Any]  # make(context, **settings)
    grid: tuple[Mapping[str, Any], ...] = ({},)
    quick_grid: tuple[Mapping[str, Any], ...] = ({},)
    group: str = PAPER
    random: bool = True  # whether a fit to the same samples depends on the seed
    needs: str = ""  # name of an optional package

    @property
    def missing(self) -> str:
        """Reason why the system cannot be run, or an empty string."""
        return f"needs {self.needs}" if self.needs and importlib.util.find_spec(self.needs) is None else ""

    def settings(self, quick: bool) -> tuple[Mapping[str, Any], ...]:
        """Return the settings for cross-validation."""
        return self.quick_grid if quick else self.grid


def grid(**lists: Any) -> tuple[Mapping[str, Any], ...]:
    """Return all combinations of listed values."""
    return tuple(dict(zip(lists, values, strict=True)) for values in product(*lists.values()))


def named(systems: Sequence[System], *names: str) -> tuple[System, ...]:
    """Return systems by their names."""
    return tuple(next(system for system in systems if system.name == name) for name in names)


class Experiment:
    """A table or figure: systems on data sets, tuned on training data. Subclasses may vary a setting."""

    name: ClassVar[str]
    title: ClassVar[str]
    text: ClassVar[tuple[str, ...]]  # the protocol, in paragraphs, with fields for n_components and n_folds
    source: ClassVar[Any]  # a function of `quick` in `samples`, which returns the data sets
    most_datasets: ClassVar[int | None] = None
    metrics: ClassVar[tuple[Metric, ...]]
    drawn: ClassVar[tuple[str, ...]] = ()  # names of the metrics in the figure
    systems: ClassVar[tuple[System, ...]]
    kind: ClassVar[Any]  # kind of problem, a `tuning.Kind`
    paper: ClassVar[Mapping[str, Mapping[str, Mapping[str, str]]]] = {}  # numbers by data set, system and metric
    sizes: ClassVar[tuple[int, int]]  # truncation levels of the full and the small form
    folds: ClassVar[tuple[int, int]] = (5, 2)
    seeds: ClassVar[tuple[int, int]] = (5, 1)

    def __init__(self, quick: bool = False) -> None:
        self.quick = quick
        self.n_components, self.n_folds, self.n_seeds = (pair[quick] for pair in (self.sizes, self.folds, self.seeds))

    @property
    def stem(self) -> str:
        """Prefix of this experiment's file names."""
        return f"{self.name}-quick" if self.quick else self.name

    def protocol(self) -> Sequence[str]:
        """Return the protocol, in paragraphs."""
        return [part.format(n_components=self.n_components, n_folds=self.n_folds) for part in self.text]

    def datasets(self) -> Sequence[Dataset]:
        """Return the data sets."""
        found: Sequence[Dataset] = self.source(self.quick)
        return found[: self.most_datasets]

    def settings(self, system: System) -> Sequence[str]:
        """Return the varied settings of a system, or one empty setting."""
        return [""]

    def at(self, cell: Cell) -> tuple[System, int]:
        """Return the system and the truncation level of a cell."""
        return named(self.systems, cell.row)[0], self.n_components

    def training_rows(self, cell: Cell, train: Sample) -> Sample:
        """Return the training samples of a cell."""
        return train

    def dataset(self, name: str) -> Dataset:
        """Return a data set by its name."""
        return next(dataset for dataset in self.datasets() if dataset.name == name)

    def blocks(self, records: Sequence[Record]) -> Sequence[Block]:
        """Return one table for each data set that has records."""
        found = {record.cell.dataset: record for record in records}
        return [self._block(found[name]) for name in sorted(found)]

    def _block(self, record: Record) -> Block:
        printed = self.paper.get(record.stands_for or record.cell.dataset, {})
        lines = tuple(
            Line(one.name, setting, {} if setting else printed.get(one.name, {}), one.group)
            for one in self.systems
            for setting in self.settings(one)
        )
        away = record.stands_for and printed
        note = f"The paper's numbers are about {record.stands_for} and cannot be compared." if away else ""
        return Block(record.cell.dataset, record.heading, lines, self.metrics, note)

    def cells(self, n_seeds: int) -> Sequence[Cell]:
        """Return all cells, seed by seed, with one seed if neither split nor fit is random."""
        return [
            Cell(dataset.name, system.name, setting, seed)
            for seed in range(n_seeds)
            for dataset in self.datasets()
            for system in self.systems
            if not system.missing and (seed == 0 or system.random or len(dataset.splits) != 1)
            for setting in self.settings(system)
        ]

    def evaluate(self, cell: Cell) -> Record:
        """Choose settings on the training part, refit, and score the test part once."""
        from regbayes_paper.experiments.tuning import evaluate

        train, test = self.dataset(cell.dataset).split(cell.seed)
        system, size = self.at(cell)
        context = Context(cell.seed, size, train.X.shape[1])
        rows = self.training_rows(cell, train)
        return evaluate(cell, system, rows, test, context, self.kind, quick=self.quick, n_folds=self.n_folds)

    def rank(self, cell: Cell) -> int:
        """Return the priority of a cell: the paper's systems first, then stand-in data, then other methods."""
        if any(system.name == cell.row and system.group == PEERS for system in self.systems):
            return 2
        return int(bool(self.dataset(cell.dataset).stands_for))

    def work(self, cell: Cell) -> float:
        """Return the approximate cost of a cell, summed over its fits, in arbitrary units."""
        train, _ = self.dataset(cell.dataset).split(cell.seed)
        settings, size = self.at(cell)[0].settings(self.quick), self.training_rows(cell, train).X.size
        fits = self.n_folds if len(settings) > 1 else 1
        return fits * sum((size * one.get("n_components", 1)) ** SCALING for one in settings)

    def remarks(self, records: Sequence[Record]) -> Sequence[str]:
        """Return remarks to print below the tables."""
        return ()

    def drawings(self, records: Sequence[Record]) -> dict[str, Callable[[], Figure]]:
        """Return functions that draw the figures, by file name."""
        from regbayes_paper.experiments.figures import draw_table

        return {self.stem: lambda: draw_table(self, records)}


def by_line(records: Sequence[Record]) -> dict[tuple[str, str, str], list[Record]]:
    """Group records by data set, system and setting, sorted by seed."""
    groups: dict[tuple[str, str, str], list[Record]] = {}
    for record in sorted(records, key=lambda record: record.cell):
        groups.setdefault((record.cell.dataset, record.cell.row, record.cell.setting), []).append(record)
    return groups


def mean_and_std(records: Sequence[Record], key: str) -> tuple[float, float] | None:
    """Return mean and sample standard deviation of a metric over seeds (0 for one seed)."""
    values = [record.values[key] for record in records if key in record.values]
    if not values:
        return None
    return float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


def paired(records: Sequence[Record], one: str, other: str, metric: Metric) -> list[str]:
    """Describe the paired difference between two systems, with its standard error."""
    lines, groups = [], by_line(records)
    for (dataset, row, setting), found in groups.items():
        if row != one or (dataset, other, setting) not in groups:
            continue
        theirs = {record.cell.seed: record.values for record in groups[dataset, other, setting]}
        both = [(record.values, theirs[record.cell.seed]) for record in found if record.cell.seed in theirs]
        ahead = 100 * np.array([a[metric.key] - b[metric.key] for a, b in both])
        if len(ahead) > 1:
            error = ahead.std(ddof=1) / np.sqrt(len(ahead))
            where = ", ".join(part for part in (dataset, setting) if part)
            lines.append(
                f"{where}: {one} less {other}, paired on {len(ahead)} seeds: {ahead.mean():+.2f} ± {error:.2f} points "
                f"of {metric.label} (mean ± standard error)."
            )
    return lines
