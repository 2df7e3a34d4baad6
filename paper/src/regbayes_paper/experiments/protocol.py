"""What an experiment is: a protocol, rows, cells, and how one cell is measured.

An experiment is made of cells, each one system on one data set with one seed, measured independently of all others. The
runner measures those that are not in the store yet, and the tables and the figure are functions of the records alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from regbayes_paper.experiments.store import Cell, Record


@dataclass(frozen=True)
class Metric:
    """A column of numbers."""

    key: str
    label: str
    definition: str
    digits: int = 3
    percent: bool = False
    """Whether it is a share that the paper prints in percent."""


@dataclass(frozen=True)
class Line:
    """A line of a table: a row of the paper or a peer, perhaps under a varied setting."""

    row: str
    setting: str = ""
    paper: Mapping[str, str] = field(default_factory=dict)
    """The paper's numbers by metric, as printed."""
    missing: str = ""
    """Why it cannot be run; empty if it can."""
    group: str = ""
    """Lines of one group stand together, under its name."""


@dataclass(frozen=True)
class Block:
    """One table: a data set and its lines."""

    dataset: str
    heading: str
    notes: tuple[str, ...]
    lines: tuple[Line, ...]
    metrics: tuple[Metric, ...] | None = None
    """None: those of the experiment."""
    comparable: bool = True
    """Whether the paper's numbers are about this data set, so that a figure may show them beside ours."""


@dataclass(frozen=True)
class Measurement:
    """What evaluating a cell gives; the runner adds cell and fingerprint."""

    values: dict[str, float]
    fit_seconds: float
    search_seconds: float = 0.0
    memory_mb: float | None = None
    chosen: dict[str, Any] = field(default_factory=dict)
    detail: dict[str, Any] = field(default_factory=dict)


class Experiment(ABC):
    """One of the paper's tables or figures.

    Parameters
    ----------
    quick : bool
        Whether to run the small form, which ends within a minute.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    metrics: ClassVar[tuple[Metric, ...]]
    default_seeds: ClassVar[int] = 5
    quick_seeds: ClassVar[int] = 2

    def __init__(self, quick: bool = False) -> None:
        self.quick = quick

    @property
    def n_seeds(self) -> int:
        """How many seeds there are unless the user says otherwise."""
        return self.quick_seeds if self.quick else self.default_seeds

    @abstractmethod
    def protocol(self) -> Sequence[str]:
        """What is done, in paragraphs to be printed."""

    @abstractmethod
    def blocks(self) -> Sequence[Block]:
        """The tables, lines that cannot be run among them."""

    @abstractmethod
    def cells(self, n_seeds: int) -> Sequence[Cell]:
        """Everything that is to be measured, in the order in which to do so."""

    @abstractmethod
    def facts(self, cell: Cell) -> Mapping[str, Any]:
        """All that determines the numbers of a cell beside the versions of the packages."""

    @abstractmethod
    def evaluate(self, cell: Cell) -> Measurement:
        """Measure one cell."""

    @abstractmethod
    def draw(self, records: Sequence[Record], folder: Path) -> list[Path]:
        """Draw the figures from what there is, and return the files."""

    def remarks(self, records: Sequence[Record]) -> Sequence[str]:
        """What to say below the tables."""
        return ()

    @property
    def stem(self) -> str:
        """How the files of this experiment begin."""
        return f"{self.name}-quick" if self.quick else self.name
