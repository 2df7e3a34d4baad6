"""How many features are in use, against the number of rows and the truncation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from regbayes import IBPFactorAnalysis, ILSVMClassifier
from regbayes.datasets import make_ibp_classification
from regbayes.estimators._bases import one_blas_thread
from regbayes_paper.experiments import data, tuning
from regbayes_paper.experiments.comparison import FEATURES
from regbayes_paper.experiments.data import Dataset, Sample
from regbayes_paper.experiments.figures import COLORS, new_figure, save, tidy
from regbayes_paper.experiments.measure import measured
from regbayes_paper.experiments.protocol import Block, Experiment, Line, Measurement, Metric
from regbayes_paper.experiments.store import Cell, Record
from regbayes_paper.experiments.tables import by_line, summarize
from regbayes_paper.experiments.versions import model_code

PLANTED = "planted"
DRAWN = {"n_features": 40, "n_components": 60, "alpha": 4.0, "noise": 0.3}
FOUND = {"temperature": 1 / DRAWN["n_features"], "noise_variance": "estimate"}  # untempered, as the rows were drawn
THERE = Metric(
    "there", "there", "features that 2 % of the rows or more have, which is known of rows that were drawn", 0
)
SHARES = (0.125, 0.25, 0.5, 1.0)


class FeatureCount(Experiment):
    """Features in use, of real rows with iLSVM, and of rows drawn from an Indian buffet process without labels."""

    name = "feature-count"
    title = "Features in use, against the number of rows and the truncation"
    metrics = (FEATURES, THERE)
    default_seeds = 3

    def protocol(self) -> Sequence[str]:
        """What is done."""
        share = ", ".join(f"{100 * s:g} %" for s in self._shares)
        return (
            f"The first {share} of the training halves of `table1`, in random order, with ILSVMClassifier at its "
            "defaults for each truncation K.",
            f"Planted: rows of {DRAWN['n_features']} inputs drawn from iLSVM's own model (alpha = {DRAWN['alpha']:g}, "
            f"noise {DRAWN['noise']:g}), with IBPFactorAnalysis, untempered, its noise estimated. A seed is a draw.",
        )

    @property
    def _shares(self) -> tuple[float, ...]:
        return (0.5, 1.0) if self.quick else SHARES

    def _sizes(self, name: str) -> tuple[int, ...]:
        if name == PLANTED:
            return (10, 20) if self.quick else (40, 80)
        return (10, 20) if self.quick else (10, 25, 50, 100, 200)

    def _counts(self, dataset: Dataset | None) -> tuple[int, ...]:
        """Numbers of rows."""
        if dataset is None:
            return (50, 100) if self.quick else (50, 100, 200, 400, 800, 1600)
        n = len(dataset.split(0, 0.5)[0])
        return tuple(max(int(share * n), 60) for share in self._shares)

    def _datasets(self) -> dict[str, Dataset | None]:
        """Real sets by name, and None for rows that are drawn."""
        found = data.multiway(self.quick)
        real = [data.smaller(dataset, 700) for dataset in found] if self.quick else found
        return {PLANTED: None, **{dataset.name: dataset for dataset in real}}

    def blocks(self) -> Sequence[Block]:
        """One table for each set."""
        found = []
        for name, dataset in self._datasets().items():
            heading = dataset.description if dataset is not None else "planted: rows drawn from the model"
            lines = tuple(Line(f"K = {K}", f"{n} rows") for n in self._counts(dataset) for K in self._sizes(name))
            metrics = (FEATURES,) if dataset is not None else self.metrics
            found.append(Block(name, heading, (), lines, metrics))
        return found

    def cells(self, n_seeds: int) -> Sequence[Cell]:
        """All of them, seed by seed."""
        lines = [(block.dataset, line.row, line.setting) for block in self.blocks() for line in block.lines]
        return [Cell(*line, seed) for seed in range(n_seeds) for line in lines]

    def facts(self, cell: Cell) -> Mapping[str, Any]:
        """The data and the code."""
        dataset = self._datasets()[cell.dataset]
        return {"data": [DRAWN, FOUND] if dataset is None else dataset.digest, "code": model_code()}

    def evaluate(self, cell: Cell) -> Measurement:
        """Fit, and count."""
        dataset = self._datasets()[cell.dataset]
        n, K = int(cell.setting.split()[0]), int(cell.row.split()[-1])
        values: dict[str, float] = {}
        model: Any
        if dataset is None:
            drawn = make_ibp_classification(max(self._counts(None)), **DRAWN, random_state=cell.seed)
            values["there"] = float(np.sum(drawn.features[:n].sum(axis=0) >= 0.02 * n))
            rows = Sample(drawn.data[:n], drawn.target[:n])
            model = IBPFactorAnalysis(K, slab=None, random_state=cell.seed, **FOUND)
        else:
            train, _ = dataset.split(cell.seed, 0.5)
            rows = train.rows(np.arange(min(n, len(train))))
            model = ILSVMClassifier(K, random_state=cell.seed)
        with one_blas_thread(), measured(memory=True) as usage:
            tuning.fit(model, rows)
        return Measurement(values | tuning.features_in_use(model), usage.seconds, memory_mb=usage.memory_mb)

    def draw(self, records: Sequence[Record], folder: Path) -> list[Path]:
        """Draw the number of features against that of the rows, a line for each truncation."""
        groups = by_line(records)
        names = [name for name in self._datasets() if any(key[0] == name for key in groups)]
        figure = new_figure(4.0 * max(len(names), 1) + 0.5, 3.6)
        for ax, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
            for color, K in zip(COLORS, self._sizes(name), strict=False):
                found = {int(key[2].split()[0]): some for key, some in groups.items() if key[:2] == (name, f"K = {K}")}
                counts = {n: summarize(some).mean["features"] for n, some in sorted(found.items())}
                ax.plot(list(counts), list(counts.values()), color=color, marker="o", markersize=4, label=f"K = {K}")
            ax.set(xlabel="rows", ylabel="features in use", xscale="log")
            ax.set_title(name, loc="left", fontsize="medium")
            ax.legend(frameon=False, fontsize="small")
            tidy(ax)
        return [save(figure, folder / f"{self.stem}.png")]
