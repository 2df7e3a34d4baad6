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
from typing import Any

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.special import expit

from regbayes._registry import persistable
from regbayes._types import Floats, Integers, Reals, check_arrays
from regbayes.engine import make_executor, row_blocks
from regbayes.engine.mapped import StandardRows
from regbayes.engine.source import Blocks
from regbayes.joint.descent import DescentOptions, ToleranceSchedule
from regbayes.joint.model import Inferred, JointModel, RowSums
from regbayes.joint.problem import JointProblem, SampledHead, hold_rows
from regbayes.kernels.arrays import (
    ROOM,
    find_entropy,
    gather,
    is_mapped,
    join,
    multiply_rows,
    namespace_of,
    pieces,
    sum_of,
    take_rows,
    to_device,
    to_host,
)
from regbayes.kernels.binary import MAX_SWEEPS, reverse_features, sum_features, sweep_features
from regbayes.margins.design import Inputs
from regbayes.margins.head import Head, LinearHead, Tolerance
from regbayes.margins.targets import Classes, Targets
from regbayes.models.indian_buffet import (
    StickExpectations,
    Sticks,
    cross_entropy_features,
    kl_sticks,
    stick_expectations,
    update_sticks,
)

UNLABELED = -1  # the label of rows that shape the features but have no margin

DEVICE_BLOCK_ROWS = 1 << 20  # operations on a device are launched one by one: few large blocks

MAX_TRIALS = 8
BLOCKS_EVERY = 10  # steps between updates of the sticks and variances
PATIENCE = 3  # small changes in a row that count as settled
SCHEDULE = ToleranceSchedule(
    first=Tolerance(gap=1e-3, max_epochs=10.0), gap_share=0.3, gap_range=(1e-6, 1e-3), epoch_range=(10.0, 10.0)
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


@dataclass(frozen=True)
class Rows:
    """Centered samples in host memory, in a file or on a device, without a copy of the inputs.

    Products are taken with the inputs as they are and corrected by the mean. Sums over samples come to host memory as
    double precision; arrays as long as the samples stay where these are. Blocks of a mapped file keep its type.
    """

    X: Any  # (N, D), as they came
    mean: Floats  # (D,)
    weights: Floats | None = None  # (N,): how often each sample counts; None: once
    join = staticmethod(join)  # what was found for each block, as one array

    @classmethod
    def centre(cls, X: Any, weights: Floats | None = None) -> Rows:
        """Return samples less their own mean."""
        totals = cls(X, np.zeros(int(X.shape[1])), weights).totals
        return cls(X, totals.rows / totals.n_rows, weights)

    def __len__(self) -> int:
        return int(self.X.shape[0])

    @property
    def n_inputs(self) -> int:
        """How many columns the samples have, D."""
        return int(self.X.shape[1])

    @property
    def is_host(self) -> bool:
        """Whether NumPy reads the samples where they are."""
        return isinstance(self.X, np.ndarray)

    @property
    def max_threads(self) -> int:
        """How many threads may take the blocks: one keeps a device busy."""
        return sys.maxsize if self.is_host else 1

    @cached_property
    def totals(self) -> Totals:
        """Sums over the samples as they are."""
        n_rows, found = float(len(self)) if self.weights is None else float(self.weights.sum()), []
        parts = row_blocks(len(self)) if self.is_host else pieces(len(self), max(1, ROOM // self.n_inputs))
        with np.errstate(over="ignore"):  # infinite squares are refused later
            for rows in parts:  # no copy of all samples
                part = self.X[rows, :] - self.place(self.mean)
                counted = part if self.counts is None else part * self.counts[rows][:, None]
                total = sum_of(counted, axis=0)
                counted *= part
                found.append(gather(total, sum_of(counted, axis=0)))
        total, squares = np.add.reduce(found)
        return Totals(n_rows, total, squares, float(squares.sum()) / n_rows)

    @cached_property
    def counts(self) -> Any:
        """How often each sample counts, (N,), where the samples are; None: once."""
        return None if self.weights is None else self.place(self.weights)

    def place(self, values: Floats) -> Any:
        """Return an array of host memory where the samples are."""
        return values if self.is_host else to_device(values, self.X)

    @cached_property
    def blocks(self) -> list[Rows]:
        """The samples in blocks of fixed size."""
        parts = row_blocks(len(self)) if self.is_host else pieces(len(self), DEVICE_BLOCK_ROWS)
        if len(parts) == 1:
            return [self]
        weights = [None if self.weights is None else self.weights[part] for part in parts]
        return [Rows(self.X[part, :], self.mean, own) for part, own in zip(parts, weights, strict=True)]

    def take(self, rows: Integers | slice | None) -> Rows:
        """Return some of the samples in host memory, less the same mean; None: all of them."""
        if self.is_host and rows is None:
            return self
        chosen: Any = rows if self.is_host else np.arange(len(self))[slice(None) if rows is None else rows]
        weights = None if self.weights is None else self.weights[chosen]
        if not self.is_host:
            return Rows(to_host(take_rows(self.X, chosen)).astype(np.float64), self.mean, weights)
        X = self.X[chosen] if isinstance(chosen, slice) else self.X[chosen].astype(np.float64, copy=False)
        return Rows(X, self.mean, weights)

    def scale(self, scales: Floats) -> Rows:
        """Return samples in host memory with each input in other units, (D,): a copy."""
        return Rows(self.X / scales, self.mean / scales, self.weights)

    def array(self) -> Floats:
        """Return the centered samples of host memory themselves, shape (N, D)."""
        return np.asarray(self.X - self.mean)

    def project(self, directions: Floats, constant: Floats | None = None) -> Any:
        """Return the products of the samples with directions (K, D), plus a constant for each (K,), shape (N, K)."""
        above = -directions @ self.mean if constant is None else constant - directions @ self.mean
        if self.is_host:
            products = self.X @ directions.T
            products += above
            return products
        products = self.place(directions) @ self.X.T  # feature-major in memory
        products += self.place(above)[:, None]
        return products.T

    def combine(self, coefficients: Any) -> Floats:
        """Return sums of the samples with coefficients (N, K), shape (K, D). Weights do not enter."""
        if self.is_host:
            sums = coefficients.T @ self.X
            sums -= coefficients.sum(axis=0)[:, None] * self.mean
            return np.asarray(sums)
        products, totals = gather(multiply_rows(self.X.T, coefficients.T).T, sum_of(coefficients, axis=0))
        return products - totals[:, None] * self.mean

    def moment(self, directions: Floats) -> Floats:
        """Return the sum of ``x_n x_n'``, each sample as often as it counts, times directions (m, D), shape (m, D)."""
        return self.combine(self.weigh(self.project(directions)))

    def weigh(self, values: Any) -> Any:
        """Return values of the samples (N, K), each as often as its sample counts."""
        return values if self.weights is None else values * self.counts[:, None]

    def couple(self, values: Any, matrix: Floats) -> Any:
        """Return values of the samples (N, K) times a matrix (K, K) of host memory."""
        return values @ matrix if self.is_host else (self.place(matrix).T @ values.T).T

    def residuals(self, features: Any, params: Params) -> Any:
        """Return what features (N, K) leave of the samples, shape (N, D), in units of the inputs' noise ratios."""
        left = self.X - reconstruct(features, params, self.mean)
        return left if params.noise_ratios is None else left / self.place(np.sqrt(params.noise_ratios))

    def score(self, state: State, features: Any) -> Any:
        """Return the score of each class for the samples, whose features are given, shape (N, classes)."""
        head, scale = state.head, state.input_scale
        assert head is not None
        if not self.is_host:
            return head.scores(features, Inputs(self.X, self.mean, scale) if scale else None)
        found = np.empty((len(self), len(head.weights)))
        for rows in row_blocks(len(self)):  # no copy of all inputs of a file
            found[rows] = head.scores(features[rows], Inputs(self.X[rows], self.mean, scale) if scale else None)
        return found

    def choose(self, state: State, features: Any) -> Integers:
        """Return the class with the highest score for each of the samples, in host memory, shape (N,)."""
        scores = self.score(state, features)
        return to_host(namespace_of(scores).argmax(scores, axis=1))


def centre_rows(X: Any, mean: Any = None, weights: Floats | None = None) -> Rows:
    """Return rows less a mean: their own, unless it is given. Arrays of other libraries stay where they lie.

    Rows that are centred on their own mean are learned from: they are refused where their squares leave the
    floating-point numbers.
    """
    if mean is not None:
        return Rows(X, mean if isinstance(mean, np.ndarray) else to_host(mean).astype(np.float64), weights)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        rows = Rows.centre(X, weights)
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

    def _check_loaded(self) -> None:
        sizes = check_arrays(self, loadings="KD", offset="D", variances="K")
        if self.noise_ratios is not None and check_arrays(self, noise_ratios="D")["D"] != sizes["D"]:
            raise ValueError("noise_ratios do not fit the loadings")
        if self.sticks.first.shape != (sizes["K"],):
            raise ValueError("sticks do not fit the loadings")
        if not 1 <= self.n_sweeps <= MAX_SWEEPS or not min(self.noise_variance, self.temperature) > 0:
            raise ValueError("n_sweeps, noise_variance and temperature must be positive, and sweeps not too many")

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

    def infer(self, rows: Rows) -> Floats:
        """Return the features of rows, shape (n, K): psi, what prediction needs."""
        field = self.mean_field
        theta = rows.project(field.directions, field.constant)
        if rows.is_host:
            return sweep_features(theta, field.coupling, field.start, self.n_sweeps, theta)
        return sweep_features(theta, field.coupling, field.start, self.n_sweeps)

    def infer_probabilities(self, rows: Rows) -> Floats:
        """Return the probabilities that the features of rows are on, shape (n, K)."""
        return self.infer(rows)

    @property
    def slab(self) -> str | None:
        """Prior of the values of features that are on: None for binary features."""
        return None

    @property
    def log_normalizer(self) -> float:
        """Half the log-determinant of the covariance of a row given its features, times 2 pi."""
        return 0.5 * self.loadings.shape[1] * float(np.log(2.0 * np.pi * self.noise_variance))

    def bound(self, rows: Rows) -> Floats:
        """Return a lower bound on each row's log-density, at temperature one, for the inferred features, shape (n,)."""
        psi, place = self.infer(rows), rows.place
        xp, field = namespace_of(psi), self.mean_field
        rest, residuals = 1.0 - psi, rows.residuals(psi, self)
        # E||x - b - W z||^2 is the squared distance from the expected row plus the variance around it, eq. (25).
        squares = np.diag(field.coupling) / field.precision
        residual = xp.sum(residuals * residuals, axis=1) + (psi * rest) @ place(squares)
        residual += rows.n_inputs * (psi @ place(self.variances))
        prior = psi @ place(field.expected.log_use) + rest @ place(field.expected.log_rest)
        entropy = xp.sum(find_entropy(xp)(psi), axis=1)
        return entropy + prior - (0.5 / self.noise_variance) * residual - self.log_normalizer


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
        field, totals = params.mean_field, rows.totals
        theta = rows.project(field.directions, field.constant)
        psi = sweep_features(theta, field.coupling, field.start, params.n_sweeps)
        sums = sum_features(psi, theta, rows.counts)
        # theta is c Phi x plus a constant for each feature, so the product with X need not be formed again.
        explained = (sums.by_theta - float(sums.counts @ field.constant)) / field.precision
        squared_norm = float(np.sum(totals.squares / field.ratios))
        second = sums.gram
        np.fill_diagonal(second, sums.counts)  # z z = z
        stats = Stats(
            totals.n_rows, squared_norm, totals.rows, sums.counts, sums.counts, second, explained, sums.entropy
        )
        return Inferred(psi, stats)

    def pull_back(self, rows: Rows, params: Params, inferred: Inferred[Stats], gradient: Floats | None) -> Pulled:
        """Differentiate through the sweeps; the generative part's own gradient by psi is added, eq. (32)-(33)."""
        psi: Any = inferred.features
        psi = np.asarray(psi, dtype=np.float64) if rows.is_host else psi
        field, r = params.mean_field, self.weight
        theta, before = None, rows.place(field.start)
        if params.n_sweeps > 1:
            theta = rows.project(field.directions, field.constant)
            before = sweep_features(theta, field.coupling, field.start, params.n_sweeps - 1)
        # logit(psi_k) has seen the features after k as they were one sweep earlier; that is all it differs by from
        # theta less the couplings, and it is zero once the sweeps have converged.
        own: Any = rows.couple(rows.weigh(psi - before), r * np.tril(field.coupling, -1))
        own = own if gradient is None else own + gradient
        found = reverse_features(own, psi, theta, field.coupling, field.start, params.n_sweeps, own)
        cross = rows.combine(found.theta - r * rows.weigh(psi))
        return Pulled(found.coupling, found.theta_sum, cross)

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
        return np.asarray(sweep_features(logits, field.coupling, psi, 1))

    def summarize(self, rows: Rows, psi: Floats) -> PosteriorStats:
        """Sum what the other blocks need to know of rows whose features are given."""
        totals, sums = rows.totals, sum_features(psi, psi, rows.counts)
        second = sums.gram
        np.fill_diagonal(second, sums.counts)
        squared_norm = float(totals.squares.sum())
        stats = Stats(totals.n_rows, squared_norm, totals.rows, sums.counts, sums.counts, second, 0.0, sums.entropy)
        return PosteriorStats(stats, rows.combine(rows.weigh(psi)))

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


def reconstruct(features: Any, params: Params, mean: Floats | float = 0.0) -> Any:
    """Return the expected rows given their features, wherever these are, plus a mean, shape (n, D)."""
    return features @ to_device(params.loadings, features) + to_device(params.offset + mean, features)


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
    slab: str | None = None  # prior of the values of features that are on: None, "half-normal" or "normal"
    price: float = 0.0  # kappa, of a feature with an amount that is on
    per_input: bool = False  # whether the noise variance of each input is estimated
    noise_ratios: Floats | None = None  # (D,): rho, once they are known; those of the inputs' variances standardize

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
        if params.noise_ratios is None or not (self.per_input or self.noise_ratios is not None):
            return self
        return self.with_noise(params.noise_variance, params.noise_variance * params.noise_ratios)


@dataclass(frozen=True)
class Population:
    """Samples that are not in local memory."""

    blocks: Blocks  # of `RowBlock`
    head: SampledHead | None  # None for the unsupervised model
    n_rows: float  # what the samples count together
    label_weight: float  # the sum of the factors on C


@dataclass(frozen=True)
class Data:
    """Samples and their targets: classes, signs or numbers."""

    X: Rows  # (N, D), centered
    targets: Targets | None = None  # of the samples that have any; their prices are factors on C
    rows: Integers | None = None  # which samples have targets, ascending; None: all
    population: Population | None = None  # the samples elsewhere of which these are a sample

    @classmethod
    def of_classes(cls, X: Rows, labels: Integers, weights: Floats, cost: Floats) -> Data:
        """Return samples with class codes or UNLABELED (N,), factors on C (N,) and ``cost[true, predicted]``."""
        labeled = np.flatnonzero(labels != UNLABELED)
        targets = Classes(labels[labeled], cost, weights[labeled])
        return cls(X, targets, None if len(labeled) == len(labels) else labeled)

    @property
    def labeled(self) -> Integers:
        """Samples that have a target, shape (n_labeled,)."""
        if self.targets is None:
            return np.zeros(0, dtype=np.int64)
        return np.arange(len(self.X)) if self.rows is None else self.rows

    @property
    def target_weight(self) -> float:
        """Sum of the factors on C, on average over the outputs of a sample."""
        if self.targets is None:
            return 0.0
        prices = self.targets.C
        return float(prices.sum()) / (1.0 if prices.ndim == 1 else max(prices.shape[1], 1))

    def take(self, rows: Integers | None) -> Data:
        """Return some of the samples in ascending order, or all, with NumPy's inputs."""
        X = self.X.take(rows)
        if rows is None:
            return self if X is self.X and self.population is None else replace(self, X=X, population=None)
        if self.targets is None:
            return Data(X)
        if self.rows is None:
            return Data(X, self.targets.take(rows))
        place = np.full(len(self.X), -1)
        place[self.rows] = np.arange(len(self.rows))
        own = place[rows]
        return Data(X, self.targets.take(own[own >= 0]), np.flatnonzero(own >= 0))


def build_head(data: Data, settings: Settings) -> Head:
    """Return the head of the labeled samples, which sees their features, and their inputs if they are included."""
    X, targets = data.X, data.targets
    assert targets is not None
    targets = replace(targets, C=settings.C * targets.C)
    inputs = Inputs(X.X, X.mean, settings.input_scale)
    if is_mapped(X.X):  # read when they are used
        inputs = Inputs(StandardRows(X.X, X.mean, np.ones(X.n_inputs)), None, settings.input_scale)
    return Head(
        targets.one_vs_rest() if settings.one_vs_rest and isinstance(targets, Classes) else targets,
        settings.squared,
        fit_intercept=settings.fit_intercept,
        inputs=inputs if settings.input_scale else None,
        rows=data.rows,
        row_weights=X.weights if X.weights is None or data.rows is None else X.weights[data.rows],
    )


class ILSVMProblem:
    """Data and settings, and the descent problem that they make.

    The model, blocks and head of another problem of the same data with the same margins are taken from ``like``.
    """

    features: type[BinaryFeatures]
    head: Any  # None for the unsupervised model
    n_rows: float  # what the samples count together
    unit: float  # what one unit of every labelled row's loss is worth in J, or one nat of every row if that is more
    joint: JointProblem[Rows, Params, Stats]

    def __init__(
        self,
        data: Data,
        settings: Settings,
        features: type[BinaryFeatures] = BinaryFeatures,
        like: ILSVMProblem | None = None,
    ) -> None:
        X, known = data.X, data.population
        n_rows, label_weight = X.totals.n_rows, data.target_weight
        blocks: Blocks
        head: Any
        if known is not None:
            n_rows, label_weight = known.n_rows, known.label_weight
        if like is not None:
            head, features, blocks = like.head, like.features, like.joint.blocks
        elif known is not None:
            head, blocks = known.head, known.blocks
        else:
            head = build_head(data, settings) if settings.C > 0 and len(data.labeled) > 0 else None
            blocks = hold_rows(X.blocks, make_executor(min(settings.n_threads, X.max_threads)))
        self.data, self.settings, self.features, self.head, self.n_rows = data, settings, features, head, n_rows
        nat = settings.generative_weight / settings.temperature * n_rows
        self.unit = max(nat, settings.C * label_weight)
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

    def _check_loaded(self) -> None:
        n_features = len(self.params.loadings)
        fits = self.embedding.ndim == 2 and self.embedding.shape[1] == n_features
        if not fits or (self.head is not None and self.head.centre.shape != (n_features,)):
            raise ValueError("the embedding and the classifier must have the features of the loadings")
