"""Sensitivity to alpha and C (Figure 8), to variances and to the test procedure (sections 4.2 and 5.3)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from threadpoolctl import threadpool_limits

from regbayes import ILSVMClassifier, MultiTaskILSVMClassifier, MultiTaskILSVMRegressor
from regbayes_paper.experiments import protocol, samples, tuning
from regbayes_paper.experiments.figures import OURS, new_figure, tidy, unit
from regbayes_paper.experiments.protocol import Block, Cell, Experiment, Line, Metric, Record, by_line, mean_and_std
from regbayes_paper.experiments.samples import Dataset, Sample
from regbayes_paper.experiments.school import WITHIN
from regbayes_paper.experiments.table1 import FEATURES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ACCURACY = Metric("accuracy", "accuracy", "share of all labels of all test samples, or of all test samples, predicted")
LABELS, RAGGED, MULTIWAY = "labels", "ragged", "multiway"
KINDS: dict[str, tuple[tuning.Kind, Callable[..., Any], Metric]] = {
    LABELS: (tuning.LABELS, MultiTaskILSVMClassifier, ACCURACY),
    RAGGED: (tuning.RAGGED, MultiTaskILSVMRegressor, WITHIN),
    MULTIWAY: (tuning.MULTIWAY, ILSVMClassifier, ACCURACY),
}
HIDDEN = -1  # value that hides a test label in a joint fit

INSENSITIVE = "The paper: insensitive (Figure 8, without numbers)."
VARIANCES = "The paper: estimating variances changes School by at most 0.3 points of explained variance (section 5.3)."
TESTING = (
    "The paper infers training and test samples together, with margins on the training samples only; it finds little "
    "difference from inductive testing (section 4.2)."
)


@dataclass(frozen=True)
class Variant:
    """One configuration of the model."""

    setting: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    joint: bool = False  # whether the fit includes the test samples without their targets (transductive)


@dataclass(frozen=True)
class Study:
    """Variants that are compared with each other."""

    title: str
    kind: str
    says: str
    variants: tuple[Variant, ...]
    varied: str = ""  # name of the varied parameter, the x-axis of the figure


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
    guessed = Variant("joint, guessed labels", {"transductive": True}, True)
    stable = "The paper: stable for C between 0.3 and 1, in its own unit (Figure 8, without numbers)."
    return (
        Study("alpha (Figure 8 a)", LABELS, INSENSITIVE, _sweep("alpha", alphas), "alpha"),
        Study("C (Figure 8 b)", LABELS, INSENSITIVE, _sweep("C", Cs), "C"),
        Study("alpha (Figure 8 c)", RAGGED, INSENSITIVE, _sweep("alpha", alphas), "alpha"),
        Study("C (Figure 8 d)", RAGGED, stable, _sweep("C", Cs), "C"),
        Study("variances, labels", LABELS, VARIANCES, (paper, fixed, always)),
        Study("variances, scores", RAGGED, VARIANCES, (paper, fixed, always)),
        Study("variances, classes", MULTIWAY, VARIANCES, (Variant("fixed, from the inputs"), always)),
        Study("testing, labels", LABELS, TESTING, testing),
        Study("testing, scores", RAGGED, TESTING, testing),
        Study("testing, classes", MULTIWAY, TESTING, (*testing, guessed)),
    )


class Sensitivity(Experiment):
    """Figure 8 of the paper, and the studies that its text describes."""

    name, title = "sensitivity", "Sensitivity: alpha and C (Figure 8), variances, joint testing"
    metrics = (ACCURACY, WITHIN, FEATURES)
    systems = ()
    sizes = (50, 10)
    text: ClassVar[tuple[str, ...]] = (
        "One thing is varied at a time; everything else is at the defaults of the estimators, with truncation "
        "{n_components}, so levels may be below those of the tables. Splits are those of `table2`, `school` and "
        "`table1`. C is in the unit of the package's losses, which is not that of the paper. A joint fit sees the "
        "inputs of the test samples without their targets; with guessed labels they have margins too.",
    )

    def __init__(self, quick: bool = False) -> None:
        super().__init__(quick)
        self.studies = {study.title: study for study in studies(quick)}

    def data(self, kind: str) -> Dataset:
        """Return the data set for a kind of study."""
        if kind == MULTIWAY:
            return samples.digits(self.quick)
        return (samples.multilabel if kind == LABELS else samples.ragged)(self.quick)[0]

    def datasets(self) -> Sequence[Dataset]:
        """Return a data set of each kind."""
        return [self.data(kind) for kind in KINDS]

    def blocks(self, records: Sequence[Record]) -> Sequence[Block]:
        """Return one table for each study."""
        found = {record.cell.row: record for record in records}
        return [
            Block(
                found[title].cell.dataset,
                f"{found[title].heading}: {title}",
                tuple(Line(title, variant.setting) for variant in study.variants),
                (KINDS[study.kind][2], FEATURES),
                study.says,
            )
            for title, study in self.studies.items()
            if title in found
        ]

    def cells(self, n_seeds: int) -> Sequence[Cell]:
        """Return all variants of all studies, seed by seed."""
        return [
            Cell(self.data(study.kind).name, title, variant.setting, seed)
            for seed in range(n_seeds)
            for title, study in self.studies.items()
            for variant in study.variants
        ]

    def work(self, cell: Cell) -> float:
        """Return the approximate cost of one fit."""
        return float(self.dataset(cell.dataset).sample.X.size) ** protocol.SCALING

    def evaluate(self, cell: Cell) -> Record:
        """Fit one variant."""
        study = self.studies[cell.row]
        variant = next(variant for variant in study.variants if variant.setting == cell.setting)
        train, test = self.data(study.kind).split(cell.seed)
        marked = {"unlabeled": HIDDEN} if variant.joint and study.kind == MULTIWAY else {}
        kind, cls, _ = KINDS[study.kind]
        model = cls(self.n_components, random_state=cell.seed, **variant.parameters, **marked)
        with threadpool_limits(1):
            started = time.process_time()
            tuning.fit(model, with_hidden(train, test, study.kind) if variant.joint else train)
            seconds = time.process_time() - started
            values = kind.report(test, kind.outputs(model, test)) | tuning.features_in_use(model)
        return Record(cell, values, seconds)

    def drawings(self, records: Sequence[Record]) -> dict[str, Callable[[], Figure]]:
        """Return the four panels of Figure 8."""
        return {self.stem: lambda: self._draw(records)}

    def _draw(self, records: Sequence[Record]) -> Figure:
        groups, figure = by_line(records), new_figure(9.0, 6.5)
        swept = [block for block in self.blocks(records) if self.studies[block.lines[0].row].varied]
        for ax, block in zip(figure.subplots(2, 2).flat, swept, strict=False):
            study, metric = self.studies[block.lines[0].row], block.metrics[0]
            factor, text = unit(metric)
            for variant in study.variants:
                found = mean_and_std(groups.get((block.dataset, study.title, variant.setting), []), metric.key)
                if found:
                    x = variant.parameters[study.varied]
                    ax.errorbar(x, factor * found[0], factor * found[1] or None, fmt="o", color=OURS)
            ax.set(xscale="log", xlabel=study.varied, ylabel=text)
            ax.set_title(f"{block.dataset}: {study.title}", loc="left", fontsize="medium")
            tidy(ax)
        return figure


def with_hidden(train: Sample, test: Sample, kind: str) -> Sample:
    """Return the training samples and the test samples without their targets."""
    hidden = np.full(test.y.shape, HIDDEN if kind == MULTIWAY else np.nan)
    targets = np.concatenate([train.y.astype(hidden.dtype), hidden])
    task = None if train.task is None else np.concatenate([train.task, test.task])
    if kind == MULTIWAY:
        targets = targets.astype(np.int64)
    return Sample(np.concatenate([train.X, test.X]), targets, task)
