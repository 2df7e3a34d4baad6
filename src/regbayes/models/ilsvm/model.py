"""iLSVM: binary features of rows under an Indian buffet prior, learned under a margin head.

Rows are ``x_n = b + W' z_n + noise`` with binary features z, Gaussian loadings W and an offset b. Features are inferred
by sweeps of mean field at a temperature T, docs/math.md eq. (31); the same inference serves training and new rows, so
margins act on the loadings through it, and the gradient goes back through the sweeps, eq. (32)-(34). The objective's
generative part is ``r F_T / T``, eq. (25), (29)-(30).

From top to bottom: rows, parameters and statistics, the model (`BinaryFeatures`), its functions, and what a fit is told
and works on (`Settings`, `Data`, `ILSVMProblem`, `State`). Everything that is done with rows is a pure function of a
block of them whose sums add up. A row of weight w counts w times in every sum.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, ClassVar, Protocol, Self

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.special import entr, expit

from regbayes._registry import persistable
from regbayes._types import Floats, Integers, Reals
from regbayes.engine import make_executor, row_blocks
from regbayes.engine.mapped import StandardRows
from regbayes.engine.source import Blocks
from regbayes.joint.descent import DescentOptions, ToleranceSchedule
from regbayes.joint.model import Inferred, JointModel, RowSums
from regbayes.joint.problem import JointProblem, hold_rows
from regbayes.kernels.arrays import is_mapped, to_host
from regbayes.kernels.sweeps import reverse_features, sweep_features, sweep_features_in_numpy
from regbayes.margins.head import LinearHead, MarginHead, Tolerance
from regbayes.margins.targets import Classes
from regbayes.models.indian_buffet import (
    StickExpectations,
    Sticks,
    cross_entropy_features,
    kl_sticks,
    stick_expectations,
    update_sticks,
)

UNLABELED = -1  # the label of rows that shape the features but have no margin

MAX_TRIALS = 8
BLOCKS_EVERY = 10  # steps between updates of the sticks and variances
PATIENCE = 3  # small changes in a row that count as settled
SCHEDULE = ToleranceSchedule(
    first=Tolerance(gap=1e-2, max_epochs=3.0), gap_share=0.3, gap_range=(1e-6, 1e-2), epoch_range=(3.0, 10.0)
)
FINAL = Tolerance(gap=1e-4, max_epochs=300.0, smoothing=0.03)  # of the head once the features stand
FIRST_MOVE = 0.1  # length of the first step, relative to the loadings
VARIANCE_FLOOR = 1e-8  # of the inputs' mean square: a model that explains the rows exactly stays proper


@dataclass(frozen=True, eq=False)
class Totals:
    """Sums over centred rows, each as often as it counts, on the host."""

    n_rows: float  # N, what the rows count together
    rows: Floats  # (D,): their sum, which is not zero for some of the rows
    squares: Floats  # (D,): sum of the squares of each input
    mean_square: float  # mean squared length of a row


class Rows(Protocol):
    """Centred rows: what the model calls x, wherever they lie. `HostRows` are NumPy's.

    The work on a block of rows belongs to the rows; of it the model sees sums on the host (`Stats`, `Pulled`), and
    arrays of the rows' size that only these rows look into.
    """

    @property
    def mean(self) -> Floats:
        """What was taken off, shape (D,)."""

    @property
    def weights(self) -> Floats | None:
        """How often each row counts, (N,), on the host; None: once."""

    def __len__(self) -> int: ...

    @property
    def n_inputs(self) -> int:
        """How many columns the rows have, D."""

    @property
    def totals(self) -> Totals:
        """Sums over the rows as they are."""

    @property
    def max_threads(self) -> int:
        """How many threads may take the blocks, at most."""

    def blocks(self) -> list[Self]:
        """Return the rows in blocks of fixed size."""

    def join(self, parts: list[Any]) -> Any:
        """Return what was found for each block as one array."""

    def take(self, rows: Integers | slice | None) -> HostRows:
        """Return some of the rows as NumPy's, less the same mean; None: all of them."""

    def project(self, directions: Floats, constant: Floats | None = None) -> Floats:
        """Return the products of the rows with directions (K, D), plus a constant for each (K,), shape (N, K)."""

    def combine(self, coefficients: Floats) -> Floats:
        """Return sums of the rows with coefficients (N, K), shape (K, D). Weights do not enter."""

    def weigh(self, values: Floats) -> Floats:
        """Return values of the rows (N, K), each as often as its row counts."""

    def infer_features(self, params: Params, few: bool = False) -> Floats:
        """Return the features of the rows, shape (N, K): what prediction needs.

        A few rows are inferred in plain NumPy, which takes less time than to load the compiled kernel.
        """

    def infer(self, params: Params) -> Inferred[Stats]:
        """Infer the features of the rows without their labels, and sum what the rest of the model needs."""

    def pull_back(self, params: Params, weight: float, inferred: Inferred[Stats], gradient: Floats | None) -> Pulled:
        """Differentiate through the sweeps; the gradient by psi of the generative part, of this weight, is added."""

    def bound(self, params: Params) -> Floats:
        """Return a lower bound on each row's log-density at fixed global parameters, shape (N,).

        The bound is the ordinary one, at temperature one, for the features that tempered inference found.
        """

    def build_head(self, data: Data, settings: Settings) -> MarginHead:
        """Return the head of the labelled rows: what they ask for, and what it sees of them."""

    def score(self, state: State, features: Floats) -> Floats:
        """Return the score of each class for the rows, whose features are given, shape (N, classes)."""

    def choose(self, state: State, features: Floats) -> Integers:
        """Return the class with the highest score for each of the rows, on the host, shape (N,)."""


@dataclass(frozen=True)
class HostRows:
    """Centred rows without a copy of the inputs, which are the largest array and the user's.

    Products are taken with the rows as they are and corrected by the mean. Rows of a mapped file have its type, and
    blocks of them become double precision when they are looked at.
    """

    X: Floats  # (N, D), as they came
    mean: Floats  # (D,)
    weights: Floats | None = None  # (N,): how often each row counts; None: once
    max_threads: ClassVar[int] = sys.maxsize
    join = staticmethod(np.concatenate)

    @classmethod
    def centre(cls, X: Floats, weights: Floats | None = None) -> HostRows:
        """Return rows less their own mean."""
        if weights is None:
            return cls(X, X.mean(axis=0, dtype=np.float64))
        blocks = [slice(None)] if X.dtype == np.float64 else row_blocks(len(X))  # a product would convert all rows
        return cls(X, np.add.reduce([weights[rows] @ X[rows] for rows in blocks]) / weights.sum(), weights)

    def __len__(self) -> int:
        return len(self.X)

    @property
    def n_inputs(self) -> int:
        """How many columns the rows have, D."""
        return int(self.X.shape[1])

    @cached_property
    def totals(self) -> Totals:
        """Sums over the rows as they are."""
        total, squares = np.zeros(self.n_inputs), np.zeros(self.n_inputs)
        for rows in row_blocks(len(self)):  # no copy of all rows
            part = self.X[rows] - self.mean
            counted = part if self.weights is None else part * self.weights[rows, None]
            total += counted.sum(axis=0)
            squares += np.einsum("nd,nd->d", counted, part)
        n_rows = float(len(self)) if self.weights is None else float(self.weights.sum())
        return Totals(n_rows, total, squares, float(squares.sum()) / n_rows)

    def blocks(self) -> list[HostRows]:
        """Return the rows in blocks of fixed size."""
        return list(map(self.take, row_blocks(len(self))))

    def take(self, rows: Integers | slice | None) -> HostRows:
        """Return some of the rows, less the same mean; None: all of them."""
        if rows is None:
            return self
        X = self.X[rows] if isinstance(rows, slice) else self.X[rows].astype(np.float64, copy=False)
        return HostRows(X, self.mean, None if self.weights is None else self.weights[rows])

    def scale(self, scales: Floats) -> HostRows:
        """Return the rows with each input in other units, (D,): a copy."""
        return HostRows(self.X / scales, self.mean / scales, self.weights)

    def array(self) -> Floats:
        """Return the centred rows themselves, shape (N, D)."""
        return self.X - self.mean

    def project(self, directions: Floats, constant: Floats | None = None) -> Floats:
        """Return the products of the rows with directions (K, D), plus a constant for each (K,), shape (N, K)."""
        products = self.X @ directions.T
        products -= directions @ self.mean
        if constant is not None:
            products += constant
        return products

    def combine(self, coefficients: Floats) -> Floats:
        """Return sums of the rows with coefficients (N, K), shape (K, D). Weights do not enter."""
        sums = coefficients.T @ self.X
        sums -= coefficients.sum(axis=0)[:, None] * self.mean
        return sums

    def moment(self, directions: Floats) -> Floats:
        """Return the sum of ``x_n x_n'``, each row as often as it counts, times directions (m, D), shape (m, D)."""
        return self.combine(self.weigh(self.project(directions)))

    def weigh(self, values: Floats) -> Floats:
        """Return values of the rows (N, K), each as often as its row counts."""
        return values if self.weights is None else values * self.weights[:, None]

    def infer_features(self, params: Params, few: bool = False) -> Floats:
        """Return the features of the rows, shape (N, K); of a few rows without the compiled kernel."""
        field = params.mean_field
        theta = self.project(field.directions, field.constant)
        sweep = sweep_features_in_numpy if few else sweep_features
        sweep(theta, field.coupling, field.start, params.n_sweeps, theta)
        return theta

    def infer(self, params: Params) -> Inferred[Stats]:
        """Infer the features of the rows without their labels, and sum what the rest of the model needs."""
        field = params.mean_field
        theta = self.project(field.directions, field.constant)
        psi = np.empty_like(theta)
        sweep_features(theta, field.coupling, field.start, params.n_sweeps, psi)
        weighed = self.weigh(psi)
        counts = weighed.sum(axis=0)
        # theta is c Phi x plus a constant for each feature, so the product with X need not be formed again.
        explained = (float(np.vdot(weighed, theta)) - float(counts @ field.constant)) / field.precision
        return Inferred(psi, self.summarize(psi, weighed, counts, explained, field.ratios))

    def summarize(
        self, psi: Floats, weighed: Floats, counts: Floats, explained: float, ratios: Floats | float
    ) -> Stats:
        """Sum what the rest of the model needs to know of rows with features psi, weighed and summed already."""
        rest, tiny = 1.0 - psi, np.finfo(np.float64).tiny  # 0 log 0 = 0
        on = np.vdot(weighed, np.log(np.maximum(psi, tiny)))
        entropy = -float(on + np.vdot(self.weigh(rest), np.log(np.maximum(rest, tiny))))
        second = weighed.T @ psi
        np.fill_diagonal(second, counts)  # z z = z
        totals = self.totals
        squared_norm = float(np.sum(totals.squares / ratios))
        return Stats(totals.n_rows, squared_norm, totals.rows, counts, counts, second, explained, entropy)

    def pull_back(self, params: Params, weight: float, inferred: Inferred[Stats], gradient: Floats | None) -> Pulled:
        """Differentiate through the sweeps; the generative part's own gradient by psi is added, eq. (32)."""
        psi, field = np.asarray(inferred.features, dtype=np.float64), params.mean_field
        gradient = np.zeros(psi.shape) if gradient is None else gradient
        theta, before = None, field.start
        if params.n_sweeps > 1:
            theta = self.project(field.directions, field.constant)
            before = np.empty_like(theta)
            sweep_features(theta, field.coupling, field.start, params.n_sweeps - 1, before)
        # logit(psi_k) has seen the features after k as they were one sweep earlier; that is all it differs by from
        # theta less the couplings, and it is zero once the sweeps have converged.
        gradient += weight * self.weigh((psi - before) @ np.tril(field.coupling, -1))
        sums = reverse_features(gradient, psi, theta, field.coupling, field.start, params.n_sweeps, gradient)
        gradient -= weight * self.weigh(psi)
        return Pulled(sums.coupling, sums.theta_sum, self.combine(gradient))

    def bound(self, params: Params) -> Floats:
        """Return a lower bound on each row's log-density at fixed global parameters, shape (N,)."""
        psi = self.infer_features(params)
        expected = params.mean_field.expected
        # E||x - b - W z||^2 is the squared distance from the expected row plus the variance around it, eq. (25).
        squares = np.diag(params.mean_field.coupling) / params.mean_field.precision
        spread = psi * (1.0 - psi) @ squares + self.n_inputs * (psi @ params.variances)
        residual = (np.square(self.array() - reconstruct(psi, params)) / params.mean_field.ratios).sum(axis=1) + spread
        log_prior = psi @ expected.log_use + (1.0 - psi) @ expected.log_rest
        entropies = entr(psi).sum(axis=1) + entr(1.0 - psi).sum(axis=1)
        normaliser = 0.5 * self.n_inputs * np.log(2.0 * np.pi * params.noise_variance)
        return entropies + log_prior - 0.5 * residual / params.noise_variance - normaliser

    def build_head(self, data: Data, settings: Settings) -> MarginHead:
        """Return the head of the labelled rows: what they ask for, and what it sees of them."""
        labeled = data.labeled
        places = None if len(labeled) == len(self) else labeled
        classes = Classes(data.labels[labeled], data.cost, settings.C * data.weights[labeled])
        return MarginHead(
            classes.one_vs_rest() if settings.one_vs_rest else classes,
            settings.squared,
            settings.fit_intercept,
            inputs=self.scale_inputs(settings.input_scale, places) if settings.input_scale else None,
            rows=places,
            row_weights=self.weights if self.weights is None or places is None else self.weights[places],
        )

    def scale_inputs(self, factor: float, places: Integers | None) -> Any:
        """Return centred rows times a factor, some of them or all: an array, or of a file what stands for it."""
        if is_mapped(self.X):
            return StandardRows(self.X, self.mean, np.full(self.n_inputs, 1.0 / factor), places)
        return factor * self.take(places).array()

    def score(self, state: State, features: Floats) -> Floats:
        """Return the score of each class for the rows, whose features are given, shape (N, classes)."""
        assert state.head is not None
        if not state.input_scale:
            return state.head.scores(features)
        found = np.empty((len(self), len(state.head.weights)))
        for rows in row_blocks(len(self)):  # no copy of all inputs
            found[rows] = state.head.scores(features[rows], state.input_scale * self.take(rows).array())
        return found

    def choose(self, state: State, features: Floats) -> Integers:
        """Return the class with the highest score for each of the rows, shape (N,)."""
        return np.argmax(self.score(state, features), axis=1)


def centre_rows(X: Any, mean: Any = None, weights: Floats | None = None) -> Rows:
    """Return rows less a mean: their own, unless it is given. Arrays of other libraries stay where they lie.

    Rows that are centred on their own mean are learned from: they are refused where their squares leave the
    floating-point numbers.
    """
    kind: type[HostRows | DeviceRows] = HostRows
    if not isinstance(X, np.ndarray):
        from regbayes.models.ilsvm.device import DeviceRows

        kind = DeviceRows
    if mean is not None:
        return kind(X, mean if isinstance(mean, np.ndarray) else to_host(mean).astype(np.float64), weights)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        rows = kind.centre(X, weights)
        mean_square = rows.totals.mean_square
    vanishes = mean_square < np.finfo(np.float64).tiny
    if not np.isfinite(mean_square) or (vanishes and np.any(rows.mean != to_host(X))):
        raise ValueError(f"X is too {'small' if mean_square < 1 else 'large'} to square it: give it in other units")
    return rows


@dataclass(frozen=True, eq=False)
class MeanField:
    """What sweeps over the features of a row need, docs/math.md eq. (31): theta is linear in the row."""

    directions: Floats  # (K, D): c Phi R^-1, R the ratios of the inputs' noise on a diagonal
    constant: Floats  # (K,): the part of theta that is the same for all rows
    coupling: Floats  # (K, K): A = c Phi R^-1 Phi'
    log_odds: Floats  # (K,): a, of the features a priori, at this temperature
    start: Floats  # (1, K): where the sweeps start
    precision: float  # c = 1 / (sigma^2 T)
    ratios: Floats | float  # (D,): rho, or one where all are: their roots are the units in which noise is the same
    expected: StickExpectations  # of the sticks, docs/math.md eq. (21)-(22)


@persistable(name="regbayes.ilsvm.Params")
@dataclass(frozen=True)
class Params:
    """What inference of a row's features needs to know."""

    loadings: Floats  # (K, D): Phi, the means of W
    offset: Floats  # (D,): b, what a row has without any feature, less the mean of the rows
    variances: Floats  # (K,): s, the variance of each entry of a row of W
    sticks: Sticks
    noise_variance: float  # sigma^2
    prior_variance: float  # sigma_0^2
    temperature: float  # T
    n_sweeps: int  # S
    noise_ratios: Floats | None = None  # (D,): rho, of each input's noise to sigma^2, their product 1; None: all are 1
    has_amounts: ClassVar[bool] = False  # whether features that are on are so by an amount

    @cached_property
    def mean_field(self) -> MeanField:
        """What the sweeps over a row's features need, eq. (31)."""
        precision = 1.0 / (self.noise_variance * self.temperature)
        ratios = 1.0 if self.noise_ratios is None else self.noise_ratios
        directions = precision * (self.loadings / ratios)
        coupling = directions @ self.loadings.T
        spread = 0.5 * (np.diag(coupling) + precision * self.loadings.shape[1] * self.variances)
        expected = stick_expectations(self.sticks)
        log_odds = expected.log_odds / self.temperature
        constant = log_odds - spread - directions @ self.offset
        start = expit(log_odds)[None, :]
        return MeanField(directions, constant, coupling, log_odds, start, precision, ratios, expected)

    def infer(self, rows: Rows, few: bool = False) -> Floats:
        """Return the features of rows, shape (n, K): psi, what prediction needs."""
        return rows.infer_features(self, few)

    def infer_probabilities(self, rows: Rows) -> Floats:
        """Return the probabilities that the features of rows are on, shape (n, K)."""
        return self.infer(rows)

    def bound(self, rows: Rows) -> Floats:
        """Return a lower bound on each row's log-density at fixed global parameters, shape (n,)."""
        return rows.bound(self)


@persistable(name="regbayes.ilsvm.Stats")
@dataclass(frozen=True)
class Stats(RowSums):
    """What the objective and the updates in closed form need to know of rows."""

    n_rows: float
    squared_norm: float  # sum of ||x_n||^2, in units of the inputs' noise ratios
    total: Floats  # (D,): sum of x_n
    counts: Floats  # (K,): sum of psi_n, the probabilities that features are on
    first_moment: Floats  # (K,): sum of E[z_n], which are the same; of features with amounts v, of E[z_n o v_n]
    second_moment: Floats  # (K, K): sum of E[z_n z_n'], or of E[(z_n o v_n)(z_n o v_n)']
    explained: float  # sum of E[z_n]' Phi x_n, at the loadings in force; the same units
    entropy: float  # sum of H(q(z_n)), less the divergence of the amounts from their prior


@dataclass(frozen=True)
class PosteriorStats(RowSums):
    """What a round of alternation needs to know of rows whose features are given."""

    rows: Stats  # with nothing explained: that depends on the loadings
    cross: Floats  # (K, D): sum of psi_n x_n'

    def explain(self, params: Params) -> Stats:
        """Return the statistics with what the loadings explain."""
        return replace(self.rows, explained=float(np.vdot(self.cross, params.loadings / params.mean_field.ratios)))


@dataclass(frozen=True)
class Pulled(RowSums):
    """What the gradient of the loadings needs to know of rows, docs/math.md eq. (33)-(34)."""

    coupling: Floats  # (K, K)
    theta: Floats  # (K,): summed gradient of theta
    cross: Floats  # (K, D): sum of (gradient of theta_n - r psi_n) x_n'


@dataclass(frozen=True)
class BinaryFeatures(JointModel[Rows, Params, Stats, Pulled]):
    """The model, with what stays the same through a descent.

    The position is the loadings and, last, the offset, both in units of the inputs' noise where that has ratios.
    """

    alpha: float  # concentration of the Indian buffet process
    weight: float  # r, of the generative part
    estimate_noise: bool = False  # whether sigma^2 is estimated
    estimate_prior: bool = False  # the same for sigma_0^2

    def infer(self, rows: Rows, params: Params) -> Inferred[Stats]:
        """Infer the features of rows without their labels, and sum what the rest of the model needs."""
        return rows.infer(params)

    def pull_back(self, rows: Rows, params: Params, inferred: Inferred[Stats], gradient: Floats | None) -> Pulled:
        """Differentiate through the sweeps, docs/math.md eq. (32)-(33)."""
        return rows.pull_back(params, self.weight, inferred, gradient)

    def terms(self, params: Params, stats: Stats) -> dict[str, float]:
        """``r F_T / T`` term by term."""
        T, D = params.temperature, params.loadings.shape[1]
        log_normaliser = 0.5 * stats.n_rows * D * np.log(2.0 * np.pi * params.noise_variance)
        likelihood = 0.5 * expected_residual(stats, params) / params.noise_variance + log_normaliser
        features = cross_entropy_features(params.mean_field.expected, stats.counts, stats.n_rows)
        ratio, prior = params.variances / params.prior_variance, params.mean_field.precision * params.prior_variance
        loadings = 0.5 * (D * (ratio - 1.0 - np.log(ratio)) + np.diag(params.mean_field.coupling) / prior)
        return {
            "likelihood": self.weight * float(likelihood) / T,
            "kl_features": self.weight * (features / T - stats.entropy),
            "kl_loadings": self.weight * float(loadings.sum()) / T,
            "kl_sticks": self.weight * kl_sticks(params.sticks, self.alpha) / T,
        }

    def normalise(self, objective: float, params: Params, n_rows: float) -> float:
        """Return the objective with the tempered prior normalised, docs/math.md eq. (35).

        It can be compared between models with different numbers of features; J itself cannot. What the variance of a
        feature's loadings costs where it is on counts as part of its prior.
        """
        odds = (
            params.mean_field.log_odds - 0.5 * params.mean_field.precision * params.loadings.shape[1] * params.variances
        )
        empty = params.mean_field.expected.log_rest / params.temperature + np.logaddexp(0.0, odds)
        return objective + self.weight * n_rows * float(empty.sum())

    def gradient(self, params: Params, stats: Stats, pulled: Pulled) -> Floats:
        """Gradient of J by the position: loadings and offset, docs/math.md eq. (34), shape (K + 1, D)."""
        r, loadings, offset, field = self.weight, params.loadings, params.offset, params.mean_field
        couplings = pulled.coupling + pulled.coupling.T + r * stats.second_moment
        acting = pulled.theta - r * stats.first_moment  # on what is left of the rows, which the offset is taken off
        through = pulled.cross - np.outer(acting, offset) - pulled.theta[:, None] * loadings + couplings @ loadings
        by_loadings = (
            params.mean_field.precision * through + (r / (params.temperature * params.prior_variance)) * loadings
        )
        by_offset = field.precision * (r * (stats.n_rows * offset - stats.total) - acting @ loadings)
        return np.vstack([by_loadings, by_offset]) / np.sqrt(field.ratios)

    def position(self, params: Params) -> Floats:
        """Return the loadings and, last, the offset, shape (K + 1, D)."""
        return np.vstack([params.loadings, params.offset]) / np.sqrt(params.mean_field.ratios)

    def move(self, params: Params, position: Reals) -> Params:
        """Return the parameters with other loadings and another offset."""
        moved = position.astype(np.float64, copy=False) * np.sqrt(params.mean_field.ratios)
        return replace(params, loadings=moved[:-1], offset=moved[-1])

    def precondition(self, params: Params, stats: Stats) -> Callable[[Reals], Reals]:
        """Take ``E[z z']`` plus a ridge: the curvature of the generative part at fixed features. The offset is on."""
        first = stats.first_moment
        moment = np.block([[stats.second_moment, first[:, None]], [first, stats.n_rows]])
        factor = cho_factor(moment / stats.n_rows + np.eye(len(moment)))
        return partial(cho_solve, factor)

    def first_length(self, params: Params) -> float:
        """Move the loadings by a share of their length."""
        return FIRST_MOVE * float(np.linalg.norm(params.loadings / np.sqrt(params.mean_field.ratios)))

    def update_blocks(self, params: Params, stats: Stats) -> Params:
        """Sticks and variances in closed form at the current features."""
        params = update_prior_blocks(params, stats, self.alpha)
        return update_variances(params, stats, self.estimate_noise, self.estimate_prior)

    # The paper's alternation (`regbayes.joint.alternation`) has these blocks.

    def update_features(self, rows: Rows, params: Params, psi: Floats, gradient: Floats | None) -> Floats:
        """One sweep over the features of rows from where they are, docs/math.md eq. (27).

        ``gradient`` is that of the head's value by the features; over minus r it adds to their logits.
        """
        field = params.mean_field
        logits = rows.project(field.directions, field.constant)
        if gradient is not None:
            gradient = gradient if rows.weights is None else gradient / rows.weights[:, None]
            logits += gradient / -self.weight
        swept = np.empty_like(psi)
        sweep_features(logits, field.coupling, psi, 1, swept)
        return swept

    def summarize(self, rows: Rows, psi: Floats) -> PosteriorStats:
        """Sum what the other blocks need to know of rows whose features are given."""
        assert isinstance(rows, HostRows)
        weighed = rows.weigh(psi)
        return PosteriorStats(rows.summarize(psi, weighed, weighed.sum(axis=0), 0.0, 1.0), rows.combine(weighed))

    def update_params(self, params: Params, stats: PosteriorStats) -> tuple[Params, Stats]:
        """Loadings, sticks and variances, each in closed form at given features."""
        params = update_offset(update_loadings(params, stats.rows, stats.cross), stats.rows)
        params = update_prior_blocks(params, stats.rows, self.alpha)
        explained = stats.explain(params)
        return update_variances(params, explained, self.estimate_noise, self.estimate_prior), explained


def expected_residual(stats: Stats, params: Params) -> float:
    """``sum_n E||x_n - b - W z_n||^2``, docs/math.md eq. (25), in units of the inputs' noise ratios."""
    products = float(np.vdot(stats.second_moment, params.mean_field.coupling)) / params.mean_field.precision
    spread = float(params.loadings.shape[1] * (np.diag(stats.second_moment) @ params.variances))
    left = stats.total - stats.first_moment @ params.loadings  # sum of what the features leave of the rows
    offset = float(params.offset / params.mean_field.ratios @ (stats.n_rows * params.offset - 2.0 * left))
    return stats.squared_norm - 2.0 * stats.explained + products + spread + offset


def update_prior_blocks(params: Params, stats: Stats, alpha: float) -> Params:
    """Sticks (one majorise-minimise step) and loading variances, docs/math.md eq. (23) and (28)."""
    sticks = update_sticks(params.sticks, stats.counts, stats.n_rows, alpha)
    return replace(params, sticks=sticks, variances=loading_variances(params, stats))


def loading_variances(params: Params, stats: Stats) -> Floats:
    """``s_k``, docs/math.md eq. (28)."""
    return 1.0 / (1.0 / params.prior_variance + np.diag(stats.second_moment) / params.noise_variance)


def update_loadings(params: Params, stats: Stats, cross: Floats) -> Params:
    """Means and variances of the loadings at fixed features: one linear system, docs/math.md eq. (28).

    ``cross`` is the sum of ``psi_n x_n'``, shape (K, D).
    """
    system = stats.second_moment / params.noise_variance  # a new array
    system[np.diag_indices_from(system)] += 1.0 / params.prior_variance
    above = cross - np.outer(stats.first_moment, params.offset)
    loadings = cho_solve(cho_factor(system), above / params.noise_variance)
    return replace(params, loadings=loadings, variances=loading_variances(params, stats))


def update_offset(params: Params, stats: Stats) -> Params:
    """Offset at fixed features: the mean of what they leave of the rows, docs/math.md eq. (28)."""
    return replace(params, offset=(stats.total - stats.first_moment @ params.loadings) / stats.n_rows)


def update_variances(params: Params, stats: Stats, estimate_noise: bool, estimate_prior: bool) -> Params:
    """Noise and prior variance by empirical Bayes, those of them that are to be estimated, with a floor."""
    K, D = params.loadings.shape
    floor = VARIANCE_FLOOR * stats.squared_norm / (stats.n_rows * D)
    noise, prior = params.noise_variance, params.prior_variance
    if estimate_noise:
        noise = max(expected_residual(stats, params) / (stats.n_rows * D), floor)
    if estimate_prior:
        lengths = float(np.trace(params.mean_field.coupling)) / params.mean_field.precision
        squares = lengths + D * float(np.sum(params.variances))
        prior = max(squares / (K * D), floor)
    return replace(params, noise_variance=noise, prior_variance=prior)


def reconstruct(psi: Floats, params: Params) -> Floats:
    """Return the expected rows given their features, less their mean, shape (n, D)."""
    return psi @ params.loadings + params.offset


@persistable(name="regbayes.ilsvm.Settings")
@dataclass(frozen=True)
class Settings:
    """How to fit. Everything is a number: rules that depend on the data are the estimators'."""

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
    slab: bool = False  # features with amounts, or binary ones
    price: float = 0.0  # kappa, of a feature with an amount that is on
    per_input: bool = False  # whether each input has a noise variance of its own
    noise_ratios: Floats | None = None  # (D,): rho, once they are known

    def with_noise(self, noise_variance: float, noise: Floats) -> Settings:
        """Return the settings with the noise variance of each input, (D,), and its geometric mean."""
        return replace(
            self,
            noise_variance=noise_variance,
            prior_variance=self.prior_variance / self.noise_variance * noise_variance,
            noise_ratios=noise / noise_variance,
        )

    def follow(self, params: Params) -> Settings:
        """Return the settings with the noise of an earlier fit, where each input has its own."""
        if not self.per_input or params.noise_ratios is None:
            return self
        return self.with_noise(params.noise_variance, params.noise_variance * params.noise_ratios)


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

    def take(self, rows: Integers | None) -> Data:
        """Return some of the rows, or all, with NumPy's inputs."""
        X = self.X.take(rows)
        if rows is None:
            return self if X is self.X else replace(self, X=X)
        return Data(X, self.labels[rows], self.weights[rows], self.cost)


class ILSVMProblem:
    """Data and settings, and the descent problem that they make.

    Parameters
    ----------
    data : Data
    settings : Settings
    features : type, default=BinaryFeatures
        The model.
    like : ILSVMProblem, default=None
        Another one of the same data with the same margins: its model, its blocks of rows and its head are taken.
    """

    features: type[BinaryFeatures]
    head: MarginHead | None  # None for the unsupervised model
    unit: float  # what one unit of every labelled row's loss is worth in J, or one nat of every row if that is more
    joint: JointProblem[Rows, Params, Stats]

    def __init__(
        self,
        data: Data,
        settings: Settings,
        features: type[BinaryFeatures] = BinaryFeatures,
        like: ILSVMProblem | None = None,
    ) -> None:
        X, labeled = data.X, data.labeled
        if like is None:
            head = X.build_head(data, settings) if settings.C > 0 and len(labeled) > 0 else None
            blocks: Blocks = hold_rows(X.blocks(), make_executor(min(settings.n_threads, X.max_threads)))
        else:
            head, features, blocks = like.head, like.features, like.joint.blocks
        self.data, self.settings, self.features, self.head = data, settings, features, head
        nat = settings.generative_weight / settings.temperature * X.totals.n_rows
        self.unit = max(nat, settings.C * float(data.weights[labeled].sum()))
        estimated = settings.estimate_noise or settings.estimate_prior
        options = DescentOptions(
            SCHEDULE,
            max_trials=MAX_TRIALS,
            blocks_every=BLOCKS_EVERY,
            # A fit whose variances are estimated is not over before they have been.
            blocks_below=settings.tol * self.unit if estimated else -np.inf,
        )
        model = features(settings.alpha, settings.generative_weight, settings.estimate_noise, settings.estimate_prior)
        self.joint = JointProblem(model, blocks, head, options)


@persistable(name="regbayes.ilsvm.State")
@dataclass(frozen=True)
class State:
    """A fitted model."""

    params: Params
    embedding: Floats  # (N, K): features of the training rows, psi or amounts
    head: LinearHead | None  # None for the unsupervised model
    multipliers: Floats | None  # (n_labeled, classes): phi
    input_scale: float  # of the inputs that the head sees beside the features; 0 where it does not
    probabilities: Floats | None = None  # (N, K): psi, where the embedding has amounts
