"""For tests of experiments: a small one whose cells cost nothing and can be counted, and rows of tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from regbayes_paper.experiments.data import Sample
from regbayes_paper.experiments.protocol import Block, Experiment, Line, Measurement, Metric
from regbayes_paper.experiments.store import Cell, Record


class Toy(Experiment):
    """Two systems on one data set, and one that is not available; ``evaluate`` counts its calls."""

    name = "toy"
    title = "A toy table"
    metrics = (
        Metric("accuracy", "accuracy", "share of right answers"),
        Metric("explained", "explained", "explained variance", digits=1, percent=True),
    )
    default_seeds: ClassVar[int] = 3
    setting: ClassVar[Any] = 1

    def __init__(self, quick: bool = False) -> None:
        super().__init__(quick)
        self.evaluated: list[Cell] = []
        self.stop_at: Cell | None = None
        self.broken = ""

    def protocol(self) -> Sequence[str]:
        return ("Every cell is its seed.",)

    def blocks(self) -> Sequence[Block]:
        lines = (
            Line("one", paper={"accuracy": "0.900 ± 0.1", "explained": "31.7"}, group="paper"),
            Line("absent", paper={"accuracy": "0.123"}, missing="not available yet: needs regbayes.x.Y", group="paper"),
            Line("two", group="peers"),
        )
        return [Block("data", "data: 3 rows", ("A note.",), lines)]

    def cells(self, n_seeds: int) -> Sequence[Cell]:
        return [Cell("data", row, "", seed) for seed in range(n_seeds) for row in ("one", "two")]

    def facts(self, cell: Cell) -> Mapping[str, Any]:
        return {"setting": self.setting}

    def evaluate(self, cell: Cell) -> Measurement:
        if cell == self.stop_at:
            raise KeyboardInterrupt
        self.evaluated.append(cell)
        if cell.row == self.broken:
            raise ValueError("it is broken")
        return Measurement({"accuracy": 0.5 + 0.1 * cell.seed, "explained": 0.25}, 2.0, 10.0, 3.0, {"C": 1.0})

    def draw(self, records: Sequence[Record], folder: Path) -> list[Path]:
        path = folder / f"{self.stem}.png"
        path.write_bytes(b"drawn from %d records" % len(records))
        return [path]


def ragged_sample() -> Sample:
    """Three tasks of twenty rows each, whose targets differ by task."""
    rng = np.random.default_rng(1)
    X, task = rng.standard_normal((60, 3)), np.repeat([3, 5, 9], 20)
    return Sample(X, X @ [1.0, -1.0, 0.5] + 0.3 * task + rng.standard_normal(60), task)
