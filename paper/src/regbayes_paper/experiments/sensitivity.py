"""Sensitivity: alpha and C (Figure 8), variances, joint testing, and the start of psi (section 5.3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from regbayes.estimators._bases import one_blas_thread
from regbayes_paper.experiments import data, systems, tuning
from regbayes_paper.experiments.comparison import FEATURES
from regbayes_paper.experiments.data import Dataset, Sample
from regbayes_paper.experiments.figures import OURS, PEER, new_figure, save, tidy
from regbayes_paper.experiments.measure import measured
from regbayes_paper.experiments.protocol import Block, Experiment, Line, Measurement, Metric
from regbayes_paper.experiments.registry import Context, System, named, peers
from regbayes_paper.experiments.school import POOLED, REFERENCE, TRAIN_SIZE
from regbayes_paper.experiments.store import Cell, Record
from regbayes_paper.experiments.tables import by_line, summarize
from regbayes_paper.experiments.variants import (
    LABELS,
    MULTIWAY,
    RAGGED,
    Study,
    Variant,
    estimator,
    studies,
    training_rows,
)
from regbayes_paper.experiments.versions import model_code

ACCURACY = Metric(
    "accuracy", "accuracy", "share of all labels of all test rows, or of all test rows, that are predicted"
)
TASKS = {LABELS: tuning.LABELS, RAGGED: tuning.RAGGED, MULTIWAY: tuning.MULTIWAY}
METRICS = {LABELS: (ACCURACY, FEATURES), RAGGED: (POOLED, FEATURES), MULTIWAY: (ACCURACY, FEATURES)}
PEERS: dict[str, tuple[System, ...]] = {
    LABELS: peers(systems.MULTILABEL),
    RAGGED: peers(systems.RAGGED),
    MULTIWAY: peers(systems.MULTIWAY),
}
"""For scale: tuned as in the tables."""
DRAWN = {LABELS: "LinearSVC", RAGGED: REFERENCE}
"""The peer whose level a panel shows."""


class Sensitivity(Experiment):
    """Figure 8 of the paper, and the studies that it describes in words."""

    name = "sensitivity"
    title = "Sensitivity: alpha and C (Figure 8), variances, joint testing, the start of psi (section 5.3)"
    metrics = (ACCURACY, POOLED, FEATURES)

    def __init__(self, quick: bool = False) -> None:
        super().__init__(quick)
        self.studies = studies(quick)
        self.n_components = 10 if quick else 50
        self.n_folds = 2 if quick else 5

    def protocol(self) -> Sequence[str]:
        """What is done."""
        return (
            f"One thing is varied at a time; everything else is at the estimators' defaults, with truncation "
            f"{self.n_components}: nothing is tuned, so the levels may be below those of the tables. Splits are those "
            "of `table2` (the published one; a seed is a start), `school` (a seed is a split) and `table1` (digits, "
            f"halves). Peers, for scale, choose their settings by {self.n_folds}-fold cross-validation.",
            "A joint fit sees the inputs of the test rows, and not their targets; with guessed labels they get margins "
            "too, which count more and more. A decaying start has feature k on in the share (alpha / (1 + alpha))^k of "
            "the rows. C is in the unit of the package's losses, which is not that of the paper.",
        )

    def dataset(self, kind: str) -> Dataset:
        """The data of a kind of study."""
        if kind == RAGGED:
            found = data.ragged(self.quick)
            return data.smaller(found, 1500) if self.quick else found
        if kind == LABELS:
            found = data.multilabel(self.quick)[0]
            return data.smaller(found, 500) if self.quick else found
        return data.smaller(data.digits(), 700) if self.quick else data.digits()

    def parts(self, kind: str, seed: int) -> tuple[Sample, Sample]:
        """Training and test part."""
        dataset = self.dataset(kind)
        if kind == RAGGED:
            return data.split_within_tasks(dataset.sample, seed, TRAIN_SIZE)
        return dataset.split(seed, 0.5)

    def blocks(self) -> Sequence[Block]:
        """One table for each study, and the peers of each data set first."""
        found = []
        for kind, some in PEERS.items():
            dataset = self.dataset(kind)
            lines = tuple(Line(system.name, group=system.group) for system in some)
            found.append(Block(dataset.name, f"{dataset.description}; for scale", (), lines, METRICS[kind]))
            for study in self.studies:
                if study.kind == kind:
                    lines = tuple(Line(study.row, variant.setting) for variant in study.variants)
                    heading = f"{dataset.name}: {study.title}"
                    found.append(Block(dataset.name, heading, (study.says,), lines, METRICS[kind]))
        return found

    def cells(self, n_seeds: int) -> Sequence[Cell]:
        """All studies, seed by seed."""
        found = []
        for seed in range(n_seeds):
            for kind, some in PEERS.items():
                again = self.dataset(kind).train is None  # a split of its own for each seed
                wanted = [system for system in some if seed == 0 or system.random or again]
                found += [self._cell(kind, system.name, "", seed) for system in wanted]
            for study in self.studies:
                found += [self._cell(study.kind, study.row, variant.setting, seed) for variant in study.variants]
        return found

    def _cell(self, kind: str, row: str, setting: str, seed: int) -> Cell:
        return Cell(self.dataset(kind).name, row, setting, seed)

    def _find(self, cell: Cell) -> tuple[str, System | tuple[Study, Variant]]:
        """Return what a cell is about: its kind, and a peer or a variant of a study."""
        kind = next(kind for kind in PEERS if self.dataset(kind).name == cell.dataset)
        for study in self.studies:
            for variant in study.variants:
                if (study.kind, study.row, variant.setting) == (kind, cell.row, cell.setting):
                    return kind, (study, variant)
        return kind, named(PEERS[kind], cell.row)

    def facts(self, cell: Cell) -> Mapping[str, Any]:
        """The data and the estimator with its parameters."""
        kind, found = self._find(cell)
        facts: dict[str, Any] = {"data": self.dataset(kind).digest, "n_folds": self.n_folds}
        if isinstance(found, System):
            return facts | found.facts(self.quick, self.n_components)
        study, variant = found
        made = estimator(study, variant, self.n_components, 0)
        return facts | {"estimator": made.__repr__(N_CHAR_MAX=10**6), "joint": variant.joint, "code": model_code()}

    def evaluate(self, cell: Cell) -> Measurement:
        """Fit one variant, or tune and fit a peer."""
        kind, found = self._find(cell)
        train, test = self.parts(kind, cell.seed)
        if isinstance(found, System):
            context = Context(cell.seed, self.n_components, train.X.shape[1])
            return tuning.evaluate(found, train, test, context, TASKS[kind], quick=self.quick, n_folds=self.n_folds)
        study, variant = found
        model = estimator(study, variant, self.n_components, cell.seed)
        rows = training_rows(study, variant, train, test)
        with one_blas_thread(), measured(memory=True) as usage:
            tuning.fit(model, rows)
        values = TASKS[kind].report(test, TASKS[kind].outputs(model, test)) | tuning.features_in_use(model)
        return Measurement(values, usage.seconds, memory_mb=usage.memory_mb)

    def draw(self, records: Sequence[Record], folder: Path) -> list[Path]:
        """Draw the four panels of Figure 8, and below them the other studies as differences."""
        groups = by_line(records)
        figure = new_figure(10.0, 8.5)
        upper, lower = figure.subfigures(2, 1, squeeze=False, height_ratios=[1.5, 1.0])[:, 0]
        swept = [study for study in self.studies if study.variants[0].x is not None]
        for ax, study in zip(upper.subplots(2, 2, squeeze=False).flat, swept, strict=True):
            self._draw_sweep(ax, study, groups)
        others = {"variances": "fixed variances", "testing": "inductive testing", "start": "start at one half"}
        for ax, (key, first) in zip(lower.subplots(1, 3, squeeze=False).flat, others.items(), strict=True):
            self._draw_differences(ax, [study for study in self.studies if study.key == key], groups)
            ax.set_xlabel(f"points gained over\n{first}", fontsize="small")
        return [save(figure, folder / f"{self.stem}.png")]

    def _draw_sweep(self, ax: Any, study: Study, groups: Mapping[Any, list[Record]]) -> None:
        metric, dataset = METRICS[study.kind][0], self.dataset(study.kind).name
        factor = 100.0 if metric.percent else 1.0
        found = {v.x: groups.get((dataset, study.row, v.setting)) for v in study.variants}
        known = {x: summarize(records) for x, records in found.items() if records}
        means = [factor * s.mean[metric.key] for s in known.values()]
        spread = [factor * s.std.get(metric.key, 0.0) for s in known.values()]
        ax.errorbar(list(known), means, spread, color=OURS, marker="o", markersize=4, capsize=2, label=study.row)
        peer = groups.get((dataset, DRAWN[study.kind], ""))
        if peer:
            level = factor * summarize(peer).mean[metric.key]
            ax.axhline(level, color=PEER, linestyle="--", label=DRAWN[study.kind])
        ax.set(xscale="log", xlabel=study.key, ylabel=metric.label + (" (%)" if metric.percent else ""))
        ax.set_xticks(list(known), [f"{x:g}" for x in known])
        ax.set_xticks([], minor=True)
        ax.set_title(dataset, loc="left", fontsize="medium")
        ax.legend(frameon=False, fontsize="small")
        tidy(ax)

    def _draw_differences(self, ax: Any, some: Sequence[Study], groups: Mapping[Any, list[Record]]) -> None:
        """Draw what each variant gains over the first of its study, in points, paired by seed."""
        labels: list[str] = []
        for study in some:
            dataset, key = self.dataset(study.kind).name, METRICS[study.kind][0].key
            base = {r.cell.seed: r for r in groups.get((dataset, study.row, study.variants[0].setting), [])}
            for variant in study.variants[1:]:
                records = groups.get((dataset, study.row, variant.setting), [])
                gains = [100 * (r.values[key] - base[r.cell.seed].values[key]) for r in records if r.cell.seed in base]
                labels.append(f"{dataset}:\n{variant.setting}")
                if gains:
                    spread = np.std(gains, ddof=1) if len(gains) > 1 else None
                    ax.errorbar(np.mean(gains), len(labels) - 1, xerr=spread, fmt="o", color=OURS, markersize=5)
        ax.axvline(0.0, color="black", linewidth=0.8)
        ax.set_yticks(range(len(labels)), labels, fontsize="x-small")
        ax.set_ylim(len(labels) - 0.5, -0.5)
        tidy(ax, grid="x")
