"""Accuracy against how soft the features are: the temperature as a dial."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np

from regbayes.estimators._bases import one_blas_thread
from regbayes_paper.experiments import systems, tuning
from regbayes_paper.experiments.comparison import FEATURES
from regbayes_paper.experiments.measure import measured
from regbayes_paper.experiments.protocol import Measurement, Metric
from regbayes_paper.experiments.registry import Context, System, named, peers
from regbayes_paper.experiments.store import Cell
from regbayes_paper.experiments.sweep import Sweep
from regbayes_paper.experiments.table1 import ACCURACY, Table1

TEMPERATURES = (0.2, 0.1, 0.05, 0.02, 0.01, 0.005)
QUICK_TEMPERATURES = (0.2, 0.02)
SOFTNESS = Metric(
    "softness",
    "psi(1 - psi)",
    "mean over test rows and features: 0 where all are on or off, 0.25 where all are undecided",
)
JOINT = named(systems.MULTIWAY, "iLSVM")
TWO_STAGE = named(systems.MULTIWAY, "IBP+SVM")


class Temperature(Sweep, Table1):
    """iLSVM and its two-stage twin at fixed temperatures, everything else at its default."""

    name = "temperature"
    title = "The temperature: accuracy against how soft the features are"
    metrics: ClassVar[tuple[Metric, ...]] = (ACCURACY, SOFTNESS, FEATURES)
    drawn = ("accuracy", "softness")
    systems = (JOINT, TWO_STAGE, *peers(systems.MULTIWAY))
    x_label = "temperature"
    x_scale = "log"
    level = "LinearSVC"

    @property
    def n_components(self) -> int:
        """Few enough that all are needed."""
        return 10 if self.quick else 20

    def protocol(self) -> Sequence[str]:
        """What is done."""
        return (
            f"The splits of `table1`; {self.n_components} features. iLSVM has its defaults but for the temperature; "
            "IBP+SVM has C = 1 and infers rows as cold as it learned. Peers, for scale, are tuned as in `table1`.",
        )

    def values(self, system: System) -> Sequence[str]:
        """Temperatures, of systems that have one."""
        if system not in (JOINT, TWO_STAGE):
            return [""]
        return [f"T = {value}" for value in (QUICK_TEMPERATURES if self.quick else TEMPERATURES)]

    def at(self, cell: Cell) -> tuple[System, int]:
        """The one setting of a cell."""
        system = named(self.systems, cell.row)
        if cell.setting:
            settings = {"temperature": float(cell.setting.split()[-1])} | ({"C": 1.0} if system is TWO_STAGE else {})
            system = replace(system, grid=(settings,), quick_grid=(settings,))
        return system, self.n_components

    def evaluate(self, cell: Cell) -> Measurement:
        """Fit, score, and look at the features of the test rows."""
        if not cell.setting:
            return super().evaluate(cell)
        train, test = self.parts(self._dataset(cell), cell.seed)
        system, size = self.at(cell)
        model = system.estimator(Context(cell.seed, size, train.X.shape[1]), system.grid[0])
        with one_blas_thread(), measured(memory=True) as usage:
            tuning.fit(model, train)
        psi = np.asarray((model[0] if hasattr(model, "steps") else model).transform(test.X))
        values = self.task.report(test, self.task.outputs(model, test)) | tuning.features_in_use(model)
        return Measurement(
            values | {"softness": float(np.mean(psi * (1 - psi)))}, usage.seconds, memory_mb=usage.memory_mb
        )
