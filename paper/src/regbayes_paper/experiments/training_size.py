"""Explained variance and time against the size of the training part (Figure 9)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np

from regbayes_paper.experiments import systems
from regbayes_paper.experiments.data import Sample
from regbayes_paper.experiments.figures import COLORS, new_figure, save, tidy
from regbayes_paper.experiments.protocol import Metric
from regbayes_paper.experiments.registry import System, named, peers
from regbayes_paper.experiments.school import POOLED, REFERENCE, WITHIN, School
from regbayes_paper.experiments.store import Cell, Record
from regbayes_paper.experiments.sweep import Sweep
from regbayes_paper.experiments.tables import by_line, summarize

SHARES = (50, 60, 70, 80, 90, 100)
QUICK_SHARES = (50, 100)
ROWS = ("MT-iLSVM", "MT-iLSVM^f", "MT-IBP+SVM", "STL")
DRAWN = (*ROWS, "one ridge for all", REFERENCE)


class TrainingSize(Sweep, School):
    """Figure 9 of the paper: the first 50 to 100 % of each training part."""

    name = "training-size"
    title = "Figure 9: explained variance and time against the training size"
    metrics: ClassVar[tuple[Metric, ...]] = (POOLED, WITHIN)
    systems = (*(named(systems.RAGGED, row) for row in ROWS), *peers(systems.RAGGED))

    @property
    def shares(self) -> tuple[int, ...]:
        """Percentages of the training part."""
        return QUICK_SHARES if self.quick else SHARES

    def protocol(self) -> Sequence[str]:
        """What is done."""
        listed = ", ".join(map(str, self.shares))
        return (
            f"The splits of the experiment `school`; the first {listed} % of the training rows of each, which are in "
            "random order, and always the whole test part. Settings are chosen anew at each size, by "
            f"{self.n_folds}-fold cross-validation inside the rows that are used. Truncation {self.n_components}.",
            "The paper: performance and running time generally increase with the training size, and about 70 % of the "
            "training data are enough for the state of the art. It has a figure and no numbers.",
        )

    def values(self, system: System) -> Sequence[str]:
        """All systems at all sizes."""
        return [_setting(share) for share in self.shares]

    def training_rows(self, cell: Cell, train: Sample) -> Sample:
        """The first of them."""
        return first_share(train, _share(cell.setting))

    def draw(self, records: Sequence[Record], folder: Path) -> list[Path]:
        """Draw explained variance and time against the size."""
        groups = by_line(records)
        figure = new_figure(9.5, 3.8)
        left, right = figure.subplots(1, 2)
        for color, name in zip(COLORS, DRAWN, strict=True):
            found = {_share(key[2]): summarize(g) for key, g in sorted(groups.items()) if key[1] == name}
            sizes = sorted(found)
            means = [100 * found[size].mean["pooled"] for size in sizes]
            spread = [100 * found[size].std.get("pooled", 0.0) for size in sizes]
            left.errorbar(sizes, means, spread, color=color, marker="o", markersize=3, capsize=2, label=name)
            right.plot(sizes, [found[size].fit_seconds for size in sizes], color=color, marker="o", markersize=3)
        left.set(xlabel="share of the training part (%)", ylabel="explained variance, pooled (%)")
        right.set(xlabel="share of the training part (%)", ylabel="seconds of one fit", yscale="log")
        for ax in (left, right):
            tidy(ax)
        figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize="small")
        return [save(figure, folder / f"{self.stem}.png")]

    def remarks(self, records: Sequence[Record]) -> Sequence[str]:
        """Nothing beyond the table."""
        return ()


def first_share(train: Sample, percent: int) -> Sample:
    """Return the first rows, and beyond them the first of each task that would have none."""
    assert train.task is not None
    n = len(train) * percent // 100
    _, first = np.unique(train.task, return_index=True)
    return train.rows(np.union1d(np.arange(n), first))


def _setting(share: int) -> str:
    return f"{share} %"


def _share(setting: str) -> int:
    return int(setting.split()[0])
