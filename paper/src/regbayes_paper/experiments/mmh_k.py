"""Accuracy against the number of latent features of a finite model (Figure 3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from regbayes.estimators._bases import one_blas_thread
from regbayes_paper.experiments import systems, tuning
from regbayes_paper.experiments.data import Sample
from regbayes_paper.experiments.measure import measured
from regbayes_paper.experiments.protocol import Measurement
from regbayes_paper.experiments.registry import Context, System, grid, named, peers
from regbayes_paper.experiments.store import Cell
from regbayes_paper.experiments.sweep import SizeSweep
from regbayes_paper.experiments.table1 import Table1

SETTLED_AT = 20  # the number of features at which the settings of a system are chosen that keeps them for all


def _sized(name: str, **quick: Any) -> System:
    """Return a system of the table whose number of features is given, and whose other settings are chosen as there."""
    system = named(systems.MULTIWAY, name)
    others = [{key: value for key, value in s.items() if key != "n_components"} for s in system.grid]
    distinct = tuple(s for place, s in enumerate(others) if s not in others[:place])
    return replace(system, grid=distinct, quick_grid=grid(**quick))


MMH = named(systems.MULTIWAY, "MMH")
ORIGINAL = replace(
    MMH,
    grid=grid(C=(0.001, 0.003, 0.01, 0.03), **systems.MMH_ORIGINAL),
    quick_grid=grid(C=(0.01,), max_iter=(20,), **systems.MMH_ORIGINAL),
)
WEIGHTED = replace(
    MMH,
    name="MMH, weighted",
    grid=grid(C=(0.003, 0.01, 0.03), **systems.MMH_SHARES),
    quick_grid=grid(C=(0.01,), max_iter=(20,)),
)
SWEPT = (
    ORIGINAL,
    WEIGHTED,
    _sized("EFH+SVM", C=(0.1,)),
    _sized("IBP+SVM", C=(0.1,)),
    _sized("iLSVM", C=(1.0,)),
)
KEEPING = (ORIGINAL.name,)  # the settings for all numbers of features
HARMONIUMS = (ORIGINAL.name, WEIGHTED.name, "EFH+SVM")


def _of_size(system: System, size: int) -> System:
    """Return a system with so many features. Harmoniums take the number as a setting, others as their truncation."""
    if system.name not in HARMONIUMS:
        return system
    fixed = [tuple({**s, "n_components": size} for s in some) for some in (system.grid, system.quick_grid)]
    return replace(system, grid=fixed[0], quick_grid=fixed[1])


class HarmoniumSize(SizeSweep, Table1):
    """Figure 3 of the paper: MMH with different numbers of latent features; others with as many beside it."""

    name = "mmh-k"
    title = "Figure 3: accuracy against the number of latent features"
    default_seeds = 3
    sizes = (5, 10, 20, 40, 60, 80, 100)
    quick_sizes = (5, 20)
    swept = SWEPT
    systems = (*SWEPT, *peers(systems.MULTIWAY))
    joint_and_two_stage = ("iLSVM", "IBP+SVM")
    level = "LinearSVC"

    def protocol(self) -> Sequence[str]:
        """What is done, and what is missing."""
        text = [
            "Every system has K latent features at most; harmoniums have just K, for IBP+SVM and iLSVM K is only "
            f"the truncation. Other settings are chosen as in `table1`, by {self.n_folds}-fold cross-validation inside "
            "the training part, at each K; peers without features are for scale.",
            "MMH has the objective of Chen, Zhu and Xing (2010), the likelihood with weight 1 and the hinge, and one C "
            f"for all K, chosen at K = {SETTLED_AT}. MMH, weighted, has the squared hinge, and the weight of the "
            "likelihood and C are chosen at each K.",
            "The paper: on Flickr K = 40 is best for MMH, and more or fewer make it worse (a figure, no numbers).",
        ]
        lacking = [s for s in self.systems if s.missing]
        if lacking:
            names = ", ".join(sorted({s.needs for s in lacking}))
            text.append(f"{' and '.join(s.name for s in lacking)} cannot be run here: this experiment needs {names}.")
        return text

    def at(self, cell: Cell) -> tuple[System, int]:
        """Harmoniums take the number of features as a setting."""
        system, size = super().at(cell)
        return _of_size(system, size), size

    def facts(self, cell: Cell) -> Mapping[str, Any]:
        """As in any sweep, and where settings that are kept are chosen."""
        found = super().facts(cell)
        return {**found, "settled_at": SETTLED_AT} if cell.row in KEEPING else found

    def evaluate(self, cell: Cell) -> Measurement:
        """Choose the other settings in the training part, refit, score the test part once."""
        train, test = self.parts(self._dataset(cell), cell.seed)
        system, size = self.at(cell)
        context = Context(cell.seed, size, train.X.shape[1])
        seconds = 0.0
        if cell.row in KEEPING and len(system.settings(self.quick)) > 1:
            with one_blas_thread(), measured() as search:
                system = self._settled(cell, train)
            seconds = search.seconds
        found = tuning.evaluate(system, train, test, context, self.task, quick=self.quick, n_folds=self.n_folds)
        return replace(found, search_seconds=found.search_seconds + seconds)

    def _settled(self, cell: Cell, train: Sample) -> System:
        """Return the system of a cell with the one setting that is best at another number of features."""
        context = Context(cell.seed, SETTLED_AT, train.X.shape[1])
        system = _of_size(named(self.systems, cell.row), SETTLED_AT)
        parts = tuning.folds(train, self.n_folds, cell.seed)
        scores = []
        for settings in system.settings(self.quick):
            outputs = tuning.out_of_fold(partial(system.estimator, context, settings), train, parts, self.task)
            scores.append(self.task.choose_by(train, outputs))
        best = int(np.argmax(scores))
        kept, _ = self.at(cell)
        chosen = (kept.settings(self.quick)[best],)
        return replace(kept, grid=chosen, quick_grid=chosen)
