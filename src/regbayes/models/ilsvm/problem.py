"""What an iLSVM fit is told and works on: settings, data, and the descent problem that they make."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from regbayes._registry import persistable
from regbayes._types import Floats, Integers
from regbayes.engine.executor import Executor, Threads
from regbayes.joint.descent import DescentOptions, JointProblem
from regbayes.margins.head import LinearHead, MarginHead
from regbayes.margins.targets import Classes
from regbayes.margins.tolerance import Tolerance, ToleranceSchedule
from regbayes.models.ilsvm.model import BinaryFeatures, Params, Rows, Stats

UNLABELED = -1  # the label of rows that shape the features but have no margin

MAX_TRIALS = 8
BLOCKS_EVERY = 10  # steps between updates of the sticks and variances
PATIENCE = 3  # small changes in a row that count as settled
SCHEDULE = ToleranceSchedule(
    first=Tolerance(gap=1e-2, max_epochs=3.0), gap_share=0.3, gap_range=(1e-6, 1e-2), epoch_range=(3.0, 10.0)
)
FINAL = Tolerance(gap=1e-4, max_epochs=300.0)  # of the head once the features stand


@persistable(name="regbayes.ilsvm.Settings")
@dataclass(frozen=True)
class Settings:
    """How to fit. Everything is a number: rules that depend on the data are in `warmup`."""

    n_components: int  # K, the truncation
    alpha: float  # concentration of the Indian buffet process
    C: float  # of a margin violation; 0 leaves the unsupervised model
    squared: bool  # squared hinge, or hinge
    one_vs_rest: bool  # a margin for each class, or for the best wrong class of a row
    temperature: float  # T: what multiplies the features' entropy
    generative_weight: float  # r
    noise_variance: float  # sigma^2
    prior_variance: float  # sigma_0^2
    estimate_noise: bool  # whether sigma^2 is only where the estimate starts
    estimate_prior: bool  # the same for sigma_0^2
    fit_intercept: bool
    input_scale: float  # factor on the inputs beside the latent features; 0 leaves them out
    n_sweeps: int  # S, of label-free inference
    max_iter: int
    tol: float
    n_threads: int


@dataclass(frozen=True)
class Data:
    """Rows and what is known of them."""

    X: Rows  # (N, D), centred
    labels: Integers  # (N,): 0 .. classes - 1, or UNLABELED
    weights: Floats  # (N,): factor on C for each row, which is the row's own weight times what its class has
    cost: Floats  # (classes, classes): cost[true, predicted]

    @property
    def labeled(self) -> Integers:
        """Rows that have a label, shape (n_labeled,)."""
        return np.flatnonzero(self.labels != UNLABELED)

    @property
    def labeled_share(self) -> float:
        """Share of the rows that have a label, each as often as it counts."""
        if self.X.weights is None:
            return len(self.labeled) / len(self.X)
        return float(self.X.weights[self.labeled].sum()) / self.X.total_weight

    def take(self, rows: Integers) -> Data:
        """Return some of the rows."""
        return Data(self.X.take(rows), self.labels[rows], self.weights[rows], self.cost)


@dataclass(frozen=True)
class ILSVMProblem:
    """Data and settings, and the descent problem that they make."""

    data: Data
    settings: Settings
    head: MarginHead | None  # None for the unsupervised model

    @classmethod
    def of(cls, data: Data, settings: Settings) -> ILSVMProblem:
        """Put the problem together."""
        supervised = settings.C > 0 and len(data.labeled) > 0
        return cls(data, settings, build_head(data, settings) if supervised else None)

    def at_settings(self, settings: Settings) -> ILSVMProblem:
        """Return the problem with settings that leave the head as it is."""
        return replace(self, settings=settings)

    @property
    def unit(self) -> float:
        """What one unit of every labelled row's loss is worth in J, or one nat of every row if that is more."""
        settings, data = self.settings, self.data
        nat = settings.generative_weight / settings.temperature * data.X.total_weight
        return max(nat, settings.C * float(data.weights[data.labeled].sum()))

    @property
    def executor(self) -> Executor:
        """Who takes the blocks of rows."""
        return Threads(self.settings.n_threads)

    @cached_property
    def joint(self) -> JointProblem[Rows, Params, Stats]:
        """The descent problem."""
        settings = self.settings
        estimated = settings.estimate_noise or settings.estimate_prior
        options = DescentOptions(
            SCHEDULE,
            max_trials=MAX_TRIALS,
            blocks_every=BLOCKS_EVERY,
            # A fit whose variances are estimated is not over before they have been.
            blocks_below=settings.tol * self.unit if estimated else -np.inf,
        )
        model = BinaryFeatures(
            settings.alpha, settings.generative_weight, settings.estimate_noise, settings.estimate_prior
        )
        return JointProblem(model, self.data.X.blocks(), self.head, options, self.executor)


def build_head(data: Data, settings: Settings) -> MarginHead:
    """Return the head of the labelled rows: what they ask for, and what it sees of them."""
    labeled = data.labeled
    everything = len(labeled) == len(data.X)
    rows = data.X if everything else data.X.take(labeled)
    classes = Classes(data.labels[labeled], data.cost, settings.C * data.weights[labeled])
    return MarginHead(
        classes.one_vs_rest() if settings.one_vs_rest else classes,
        settings.squared,
        settings.fit_intercept,
        inputs=settings.input_scale * rows.array() if settings.input_scale else None,
        rows=None if everything else labeled,
        row_weights=rows.weights,
    )


@persistable(name="regbayes.ilsvm.State")
@dataclass(frozen=True)
class State:
    """A fitted model."""

    params: Params
    embedding: Floats  # (N, K): psi of the training rows
    head: LinearHead | None  # None for the unsupervised model
    multipliers: Floats | None  # (n_labeled, classes): phi
    input_scale: float  # of the inputs that the head sees beside the features; 0 where it does not

    def scores(self, rows: Rows, psi: Floats) -> Floats:
        """Return the score of each class for rows whose features are given, shape (n, classes)."""
        assert self.head is not None
        return self.head.scores(psi, self.input_scale * rows.array() if self.input_scale else None)
