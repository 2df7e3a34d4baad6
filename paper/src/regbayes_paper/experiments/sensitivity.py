"""Sensitivity: alpha and C (Figure 8), and variances and testing (sections 4.2 and 5.3)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from regbayes import ILSVMClassifier, MultiTaskILSVMClassifier, MultiTaskILSVMRegressor
from regbayes_paper.experiments import samples, tuning
from regbayes_paper.experiments.figures import OURS, new_figure, save, tidy, unit
from regbayes_paper.experiments.protocol import Block, Cell, Experiment, Line, Metric, Record, by_line, mean_and_std
from regbayes_paper.experiments.samples import Dataset, Sample
from regbayes_paper.experiments.school import WITHIN
from regbayes_paper.experiments.table1 import FEATURES

ACCURACY = Metric("accuracy", "accuracy", "share of all labels of all test samples, or of all test samples, predicted")
LABELS, RAGGED, MULTIWAY = "labels", "ragged", "multiway"
KINDS = {LABELS: tuning.LABELS, RAGGED: tuning.RAGGED, MULTIWAY: tuning.MULTIWAY}
MODELS: dict[str, Callable[..., Any]] = {
    LABELS: MultiTaskILSVMClassifier,
    RAGGED: MultiTaskILSVMRegressor,
    MULTIWAY: ILSVMClassifier,
}
METRICS = {LABELS: (ACCURACY, FEATURES), RAGGED: (WITHIN, FEATURES), MULTIWAY: (ACCURACY, FEATURES)}
HIDDEN = -1  # marks a test label in a joint fit

INSENSITIVE = "The paper: insensitive (Figure 8, without numbers)."
VARIANCES = "The paper: estimating variances changes School by at most 0.3 points of explained variance (section 5.3)."
TESTING = (
    "The paper infers training and test samples together, with margins on the training samples only; it finds little "
    "difference from inductive testing (section 4.2)."
)


@dataclass(frozen=True)
class Variant:
    """One way to fit the model."""

    setting: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    joint: bool = False  # whether the test samples take part in the fit, without their targets


@dataclass(frozen=True)
class Study:
    """Variants that are compared with each other."""

    title: str
    kind: str
    says: str
    variants: tuple[Variant, ...]
    varied: str = ""  # a parameter, drawn on an axis


def _sweep(name: str, values: Sequence[float]) -> tuple[Variant, ...]:
    return tuple(Variant(f"{name} = {value:g}", {name: value}) for value in values)


def studies(quick: bool) -> tuple[Study, ...]:
    """Return all studies."""
    alphas = (1.0, 5.0) if quick else (0.5, 1.0, 2.0, 5.0, 10.0, 20.0)
    Cs = (0.01, 0.1) if quick else (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
    fixed = Variant("both fixed at 1", {"noise_variance": 1.0, "prior_variance": 1.0})
    paper = Variant("prior variance 1, noise from the data", {"prior_variance": 1.0})
    always = Variant("estimated throughout", {"noise_variance": "estimate", "prior_variance": "estimate"})
    testing = (Variant("inductive"), Variant("joint", joint=True))
    stable = "The paper: stable for C between 0.3 and 1, in its own unit (Figure 8, without numbers)."
    return (
        Study("alpha (Figure 8 a)", LABELS, INSENSITIVE, _sweep("alpha", alphas), "alpha"),
        Study("C (Figure 8 b)", LABELS, INSENSITIVE, _sweep("C", Cs), "C"),
        Study("alpha (Figure 8 c)", RAGGED, INSENSITIVE, _sweep("alpha", alphas), "alpha"),
        Study("C (Figure 8 d)", RAGGED, stable, _sweep("C", Cs), "C"),
        Study("variances", LABELS, VARIANCES, (paper, fixed, always)),
        Study("variances", RAGGED, VARIANCES, (paper, fixed, always)),
        Study("variances", MULTIWAY, VARIANCES, (Variant("fixed, from the inputs"), always)),
        Study("testing", LABELS, TESTING, testing),
        Study("testing", RAGGED, TESTING, testing),
        Study("testing", MULTIWAY, TESTING, (*testing, Variant("joint, guessed labels", {"transductive": True}, True))),
    )


class Sensitivity(Experiment):
    """Figure 8 of the paper, and the studies that it describes in words."""

    name, title = "sensitivity", "Sensitivity: alpha and C (Figure 8), variances, joint testing"
    metrics = (ACCURACY, WITHIN, FEATURES)
    systems = ()
    sizes = (50, 10)

    def __init__(self, quick: bool = False) -> None:
        super().__init__(quick)
        self.studies = studies(quick)
        digits = next(one for one in samples.multiway(quick) if one.image_shape is not None)
        found = (samples.multilabel(quick)[0], samples.ragged(quick)[0], digits)
        self._data = dict(zip((LABELS, RAGGED, MULTIWAY), found, strict=True))

    def protocol(self) -> Sequence[str]:
        """Return what is done."""
        return (
            "One thing is varied at a time; everything else is at the defaults of the estimators, with truncation "
            f"{self.n_components}, so levels may be below those of the tables. Splits are those of `table2`, `school` "
            "and `table1`. C is in the unit of the package's losses, which is not that of the paper. A joint fit sees "
            "the inputs of the test samples without their targets; with guessed labels they have margins too.",
        )

    def datasets(self) -> Sequence[Dataset]:
        """Return a data set of each kind."""
        return list(self._data.values())

    def blocks(self) -> Sequence[Block]:
        """Return one table for each study."""
        return [
            Block(
                self._data[study.kind].name,
                f"{self._data[study.kind].heading}: {study.title}",
                tuple(Line(study.title, variant.setting) for variant in study.variants),
                METRICS[study.kind],
                study.says,
            )
            for study in self.studies
        ]

    def cells(self, n_seeds: int) -> Sequence[Cell]:
        """Return all variants of all studies, seed by seed."""
        return [
            Cell(self._data[study.kind].name, study.title, variant.setting, seed)
            for seed in range(n_seeds)
            for study in self.studies
            for variant in study.variants
        ]

    def evaluate(self, cell: Cell) -> Record:
        """Fit one variant."""
        study, variant = next(
            (study, variant)
            for study in self.studies
            for variant in study.variants
            if (self._data[study.kind].name, study.title, variant.setting) == (cell.dataset, cell.row, cell.setting)
        )
        train, test = self._data[study.kind].split(cell.seed)
        marked = {"unlabeled": HIDDEN} if variant.joint and study.kind == MULTIWAY else {}
        model = MODELS[study.kind](self.n_components, random_state=cell.seed, **variant.parameters, **marked)
        started = time.perf_counter()
        with threadpool_limits(1):
            tuning.fit(model, with_hidden(train, test, study.kind) if variant.joint else train)
            seconds = time.perf_counter() - started
            kind = KINDS[study.kind]
            values = kind.report(test, kind.outputs(model, test)) | tuning.features_in_use(model)
        return Record(cell, values, seconds)

    def draw(self, records: Sequence[Record], folder: Path) -> list[Path]:
        """Draw the four panels of Figure 8."""
        groups, figure = by_line(records), new_figure(9.0, 6.5)
        swept = [study for study in self.studies if study.varied]
        for ax, study in zip(figure.subplots(2, 2).flat, swept, strict=True):
            metric, name = METRICS[study.kind][0], self._data[study.kind].name
            factor, text = unit(metric)
            for variant in study.variants:
                found = mean_and_std(groups.get((name, study.title, variant.setting), []), metric.key)
                if found:
                    x = variant.parameters[study.varied]
                    ax.errorbar(x, factor * found[0], factor * found[1] or None, fmt="o", color=OURS)
            ax.set(xscale="log", xlabel=study.varied, ylabel=text)
            ax.set_title(f"{name}: {study.title}", loc="left", fontsize="medium")
            tidy(ax)
        return [save(figure, folder / f"{self.stem}.png")]


def with_hidden(train: Sample, test: Sample, kind: str) -> Sample:
    """Return the training samples and the test samples without their targets."""
    hidden = np.full(test.y.shape, HIDDEN if kind == MULTIWAY else np.nan)
    targets = np.concatenate([train.y.astype(hidden.dtype), hidden])
    task = None if train.task is None else np.concatenate([train.task, test.task])
    if kind == MULTIWAY:
        targets = targets.astype(np.int64)
    return Sample(np.concatenate([train.X, test.X]), targets, task)
