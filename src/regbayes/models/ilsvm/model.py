"""Model of iLSVM: binary features under an Indian buffet prior and a head.

Samples are ``x_n = b + W' z_n + noise`` with binary features z, Gaussian loadings W and an offset b. Features are
inferred by mean-field sweeps at a temperature T, docs/math.md eq. (31). Training and prediction use the same inference,
so margins act on the loadings through it, and the gradient is backpropagated through the sweeps, eq. (32)-(34). The
generative part of the objective is ``r F_T / T``, eq. (25), (29)-(30).

The module defines samples, parameters, statistics, the model (`BinaryFeatures`), its functions, and the classes of a
fit (`Settings`, `Data`, `ILSVMProblem`, `State`). All computations on samples are pure functions of a block whose sums
are additive. A sample of weight w counts w times in every sum.
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

UNLABELED = -1  # label of samples that inform the features but have no margin

DEVICE_BLOCK_ROWS = 1 << 20  # samples per block on a device, where few large operations are faster

MAX_TRIALS = 8
BLOCKS_EVERY = 10  # descent steps between updates of the sticks and variances
PATIENCE = 3  # consecutive small changes after which the fit has converged
SCHEDULE = ToleranceSchedule(
    first=Tolerance(gap=1e-3, max_epochs=10.0), gap_share=0.3, gap_range=(1e-6, 1e-3), epoch_range=(10.0, 10.0)
)
FINAL = Tolerance(gap=1e-4, max_epochs=300.0, smoothing=0.03)  # accuracy of the head at the final features
FIRST_MOVE = 0.1  # length of the first step, relative to the loadings
VARIANCE_FLOOR = 1e-8  # relative to the mean square of X; keeps exact fits proper


@dataclass(frozen=True, eq=False)
class Totals:
    """Weighted sums over centered samples, in host memory."""

    n_rows: float  # N, the sum of the sample weights
    rows: Floats  # (D,): sum of the samples, nonzero for a subset
    squares: Floats  # (D,): sum of the squares of each column
    mean_square: float  # mean squared norm of a sample


@dataclass(frozen=True)
class Rows:
    """Implicitly centered samples in host memory, in a file or on a device.

    Products use the uncentered inputs and are corrected by the mean. Sums over samples are returned in host memory in
    double precision; arrays with one entry per sample stay on the device of ``X``. Blocks of a mapped file keep its
    dtype.
    """

    X: Any  # (N, D), not centered
    mean: Floats  # (D,)
    weights: Floats | None = None  # (N,): how often each sample counts; None: once
    join = staticmethod(join)  # concatenates the results of blocks

    @classmethod
    def centre(cls, X: Any, weights: Floats | None = None) -> Rows:
        """Return samples centered on their own mean."""
        totals = cls(X, np.zeros(int(X.shape[1])), weights).totals
        return cls(X, totals.rows / totals.n_rows, weights)

    def __len__(self) -> int:
        return int(self.X.shape[0])

    @property
    def n_inputs(self) -> int:
        """Number of columns of the samples, D."""
        return int(self.X.shape[1])

    @property
    def is_host(self) -> bool:
        """Whether the samples are in host memory."""
        return isinstance(self.X, np.ndarray)

    @property
    def max_threads(self) -> int:
        """Maximum number of threads for the blocks: one on a device."""
        return sys.maxsize if self.is_host else 1

    @cached_property
    def totals(self) -> Totals:
        """Sums over the centered samples."""
        n_rows, found = float(len(self)) if self.weights is None else float(self.weights.sum()), []
        parts = row_blocks(len(self)) if self.is_host else pieces(len(self), max(1, ROOM // self.n_inputs))
        with np.errstate(over="ignore"):  # `centre_rows` rejects infinite squares
            for rows in parts:  # by parts to avoid a copy of all samples
                part = self.X[rows, :] - self.place(self.mean)
                counted = part if self.counts is None else part * self.counts[rows][:, None]
                total = sum_of(counted, axis=0)
                counted *= part
                found.append(gather(total, sum_of(counted, axis=0)))
        total, squares = np.add.reduce(found)
        return Totals(n_rows, total, squares, float(squares.sum()) / n_rows)

    @cached_property
    def counts(self) -> Any:
        """Weight of each sample, shape (N,), on the device of the samples; None: one."""
        return None if self.weights is None else self.place(self.weights)

    def place(self, values: Floats) -> Any:
        """Copy an array from host memory to the device of the samples."""
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
        """Return selected samples in host memory, centered on the same mean; None: all samples."""
        if self.is_host and rows is None:
            return self
        chosen: Any = rows if self.is_host else np.arange(len(self))[slice(None) if rows is None else rows]
        weights = None if self.weights is None else self.weights[chosen]
        if not self.is_host:
            return Rows(to_host(take_rows(self.X, chosen)).astype(np.float64), self.mean, weights)
        X = self.X[chosen] if isinstance(chosen, slice) else self.X[chosen].astype(np.float64, copy=False)
        return Rows(X, self.mean, weights)

    def scale(self, scales: Floats) -> Rows:
        """Return a copy of the samples in host memory, with the columns divided by ``scales``, shape (D,)."""
        return Rows(self.X / scales, self.mean / scales, self.weights)

    def array(self) -> Floats:
        """Return the centered samples as an array, shape (N, D)."""
        return np.asarray(self.X - self.mean)

    def project(self, directions: Floats, constant: Floats | None = None) -> Any:
        """Return the samples times directions (K, D), plus an optional constant (K,), shape (N, K)."""
        above = -directions @ self.mean if constant is None else constant - directions @ self.mean
        if self.is_host:
            products = self.X @ directions.T
            products += above
            return products
        products = self.place(directions) @ self.X.T  # feature-major in memory
        products += self.place(above)[:, None]
        return products.T

    def combine(self, coefficients: Any) -> Floats:
        """Return the unweighted sums of the samples with coefficients (N, K), shape (K, D)."""
        if self.is_host:
            sums = coefficients.T @ self.X
            sums -= coefficients.sum(axis=0)[:, None] * self.mean
            return np.asarray(sums)
        products, totals = gather(multiply_rows(self.X.T, coefficients.T).T, sum_of(coefficients, axis=0))
        return products - totals[:, None] * self.mean

    def moment(self, directions: Floats) -> Floats:
        """Return directions (m, D) times the weighted sum of ``x_n x_n'``, shape (m, D)."""
        return self.combine(self.weigh(self.project(directions)))

    def weigh(self, values: Any) -> Any:
        """Multiply values (N, K) by the sample weights."""
        return values if self.weights is None else values * self.counts[:, None]

    def couple(self, values: Any, matrix: Floats) -> Any:
        """Return values of the samples (N, K) times a host matrix (K, K)."""
        return values @ matrix if self.is_host else (self.place(matrix).T @ values.T).T

    def residuals(self, features: Any, params: Params) -> Any:
        """Return the residuals given features (N, K), shape (N, D), in units of the inputs' noise ratios."""
        left = self.X - reconstruct(features, params, self.mean)
        return left if params.noise_ratios is None else left / self.place(np.sqrt(params.noise_ratios))

    def score(self, state: State, features: Any) -> Any:
        """Return the scores of the samples given their features, shape (N, classes)."""
        head, scale = state.head, state.input_scale
        assert head is not None
        if not self.is_host:
            return head.scores(features, Inputs(self.X, self.mean, scale) if scale else None)
        found = np.empty((len(self), len(head.weights)))
        for rows in row_blocks(len(self)):  # by blocks to avoid a copy of a whole file
            found[rows] = head.scores(features[rows], Inputs(self.X[rows], self.mean, scale) if scale else None)
        return found

    def choose(self, state: State, features: Any) -> Integers:
        """Return the class with the highest score for each sample, in host memory, shape (N,)."""
        scores = self.score(state, features)
        return to_host(namespace_of(scores).argmax(scores, axis=1))


def centre_rows(X: Any, mean: Any = None, weights: Floats | None = None) -> Rows:
    """Center samples on a given mean or on their own; arrays stay on their device.

    Samples centered on their own mean are training data and raise an error if their squares overflow.
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
    """Coefficients of the mean-field sweeps, docs/math.md eq. (31)."""

    directions: Floats  # (K, D): c Phi R^-1, R the ratios of the inputs' noise on a diagonal
    constant: Floats  # (K,): the part of theta that is the same for all samples
    coupling: Floats  # (K, K): A = c Phi R^-1 Phi'
    log_odds: Floats  # (K,): a, prior log-odds of the features at this temperature
    start: Floats  # (1, K): initial value of the sweeps
    precision: float  # c = 1 / (sigma^2 T)
    ratios: Floats | float  # (D,): noise variances over sigma^2, or 1 if all are equal
    expected: StickExpectations  # expectations of the sticks, docs/math.md eq. (21)-(22)


@persistable(name="regbayes.ilsvm.Params")
@dataclass(frozen=True)
class Params:
    """Parameters for inferring the features of a sample."""

    loadings: Floats  # (K, D): Phi, the means of W
    offset: Floats  # (D,): b, the intercept of the decoder, minus the mean of the samples
    variances: Floats  # (K,): s, the variance of each entry of a row of W
    sticks: Sticks
    noise_variance: float  # sigma^2
    prior_variance: float  # sigma_0^2
    temperature: float  # T
    n_sweeps: int  # S
    noise_ratios: Floats | None = None  # (D,): noise variances over sigma^2, product 1; None: ones

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
        """Coefficients of the mean-field sweeps, eq. (31)."""
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
        """Return the features psi of samples, as prediction uses them, shape (n, K)."""
        field = self.mean_field
        theta = rows.project(field.directions, field.constant)
        if rows.is_host:
            return sweep_features(theta, field.coupling, field.start, self.n_sweeps, theta)
        return sweep_features(theta, field.coupling, field.start, self.n_sweeps)

    def infer_probabilities(self, rows: Rows) -> Floats:
        """Return the probabilities that the features of samples are on, shape (n, K)."""
        return self.infer(rows)

    @property
    def slab(self) -> str | None:
        """Prior of the values of active features: None for binary features."""
        return None

    @property
    def log_normalizer(self) -> float:
        """Half the log-determinant of the covariance of a row given its features, times 2 pi."""
        return 0.5 * self.loadings.shape[1] * float(np.log(2.0 * np.pi * self.noise_variance))

    def bound(self, rows: Rows) -> Floats:
        """Return a lower bound on the log-density of each sample at temperature one, shape (n,)."""
        psi, place = self.infer(rows), rows.place
        xp, field = namespace_of(psi), self.mean_field
        rest, residuals = 1.0 - psi, rows.residuals(psi, self)
        # E||x - b - W z||^2 is the squared residual of the expected sample plus its variance, eq. (25).
        squares = np.diag(field.coupling) / field.precision
        residual = xp.sum(residuals * residuals, axis=1) + (psi * rest) @ place(squares)
        residual += rows.n_inputs * (psi @ place(self.variances))
        prior = psi @ place(field.expected.log_use) + rest @ place(field.expected.log_rest)
        entropy = xp.sum(find_entropy(xp)(psi), axis=1)
        return entropy + prior - (0.5 / self.noise_variance) * residual - self.log_normalizer


@persistable(name="regbayes.ilsvm.Stats")
@dataclass(frozen=True)
class Stats(RowSums):
    """Sufficient statistics for the objective and the closed-form updates."""

    n_rows: float
    squared_norm: float  # sum of ||x_n||^2, in units of the inputs' noise ratios
    total: Floats  # (D,): sum of x_n
    counts: Floats  # (K,): sum of psi_n, the probabilities that features are on
    first_moment: Floats  # (K,): sum of E[z_n], or of E[z_n o v_n] for real-valued features
    second_moment: Floats  # (K, K): sum of E[z_n z_n'], or of E[(z_n o v_n)(z_n o v_n)']
    explained: float  # sum of E[z_n]' Phi x_n at the current loadings, in the same units
    entropy: float  # sum of H(q(z_n)), minus the KL divergence of feature values from their prior


@dataclass(frozen=True)
class PosteriorStats(RowSums):
    """Statistics of samples with given features, for the alternation."""

    rows: Stats  # with explained = 0, since that depends on the loadings
    cross: Floats  # (K, D): sum of psi_n x_n'

    def explain(self, params: Params) -> Stats:
        """Return the statistics with the explained part at given loadings."""
        return replace(self.rows, explained=float(np.vdot(self.cross, params.loadings / params.mean_field.ratios)))


@dataclass(frozen=True)
class Pulled(RowSums):
    """Sums over samples for the gradient of the loadings, docs/math.md eq. (33)-(34)."""

    coupling: Floats  # (K, K)
    theta: Floats  # (K,): summed gradient of theta
    cross: Floats  # (K, D): sum of (gradient of theta_n - r psi_n) x_n'


@dataclass(frozen=True)
class BinaryFeatures(JointModel[Rows, Params, Stats, Pulled]):
    """Binary-feature model with the quantities that are constant during a descent.

    The position consists of the loadings and, last, the offset, both in units of the inputs' noise if noise ratios are
    given.
    """

    alpha: float  # concentration of the Indian buffet process
    weight: float  # r, of the generative part
    estimate_noise: bool = False  # whether sigma^2 is estimated
    estimate_prior: bool = False  # whether sigma_0^2 is estimated

    def infer(self, rows: Rows, params: Params) -> Inferred[Stats]:
        """Infer the features of samples without their labels, and compute the sufficient statistics."""
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
        """Differentiate through the sweeps and add the gradient of the generative part by psi, eq. (32)-(33)."""
        psi: Any = inferred.features
        psi = np.asarray(psi, dtype=np.float64) if rows.is_host else psi
        field, r = params.mean_field, self.weight
        theta, before = None, rows.place(field.start)
        if params.n_sweeps > 1:
            theta = rows.project(field.directions, field.constant)
            before = sweep_features(theta, field.coupling, field.start, params.n_sweeps - 1)
        # logit(psi_k) used the values of later features from the previous sweep. This is its only difference from
        # theta minus the couplings, and it is zero at convergence.
        own: Any = rows.couple(rows.weigh(psi - before), r * np.tril(field.coupling, -1))
        own = own if gradient is None else own + gradient
        found = reverse_features(own, psi, theta, field.coupling, field.start, params.n_sweeps, own)
        cross = rows.combine(found.theta - r * rows.weigh(psi))
        return Pulled(found.coupling, found.theta_sum, cross)

    def terms(self, params: Params, stats: Stats) -> dict[str, float]:
        """Return the terms of ``r F_T / T`` by name."""
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
        """Return the objective with the tempered prior normalized, docs/math.md eq. (35).

        Unlike J, it can be compared between models with different numbers of features. The penalty for the variance of
        an active feature's loadings counts as part of its prior.
        """
        odds = (
            params.mean_field.log_odds - 0.5 * params.mean_field.precision * params.loadings.shape[1] * params.variances
        )
        empty = params.mean_field.expected.log_rest / params.temperature + np.logaddexp(0.0, odds)
        return objective + self.weight * n_rows * float(empty.sum())

    def gradient(self, params: Params, stats: Stats, pulled: Pulled) -> Floats:
        """Gradient of J with respect to loadings and offset, docs/math.md eq. (34), shape (K + 1, D)."""
        r, loadings, offset, field = self.weight, params.loadings, params.offset, params.mean_field
        couplings = pulled.coupling + pulled.coupling.T + r * stats.second_moment
        acting = pulled.theta - r * stats.first_moment  # multiplies the residuals of the samples without the offset
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
        """Return a solver for ``E[z z']`` plus a ridge, the curvature of the generative part at fixed features."""
        first = stats.first_moment
        moment = np.block([[stats.second_moment, first[:, None]], [first, stats.n_rows]])
        factor = cho_factor(moment / stats.n_rows + np.eye(len(moment)))
        return partial(cho_solve, factor)

    def first_length(self, params: Params) -> float:
        """Return the first step length, a fraction of the norm of the loadings."""
        return FIRST_MOVE * float(np.linalg.norm(params.loadings / np.sqrt(params.mean_field.ratios)))

    def update_blocks(self, params: Params, stats: Stats) -> Params:
        """Update sticks and variances in closed form at the current features."""
        params = update_prior_blocks(params, stats, self.alpha)
        return update_variances(params, stats, self.estimate_noise, self.estimate_prior)

    # Block updates of the paper's alternation (`regbayes.joint.alternation`).

    def update_features(self, rows: Rows, params: Params, psi: Floats, gradient: Floats | None) -> Floats:
        """Sweep once over the features of samples from their current values, docs/math.md eq. (27).

        The gradient of the head's value with respect to the features, divided by -r, is added to their logits.
        """
        field = params.mean_field
        logits = rows.project(field.directions, field.constant)
        if gradient is not None:
            gradient = gradient if rows.weights is None else gradient / rows.weights[:, None]
            logits += gradient / -self.weight
        return np.asarray(sweep_features(logits, field.coupling, psi, 1))

    def summarize(self, rows: Rows, psi: Floats) -> PosteriorStats:
        """Compute the statistics of samples with given features for the other block updates."""
        totals, sums = rows.totals, sum_features(psi, psi, rows.counts)
        second = sums.gram
        np.fill_diagonal(second, sums.counts)
        squared_norm = float(totals.squares.sum())
        stats = Stats(totals.n_rows, squared_norm, totals.rows, sums.counts, sums.counts, second, 0.0, sums.entropy)
        return PosteriorStats(stats, rows.combine(rows.weigh(psi)))

    def update_params(self, params: Params, stats: PosteriorStats) -> tuple[Params, Stats]:
        """Update loadings, sticks and variances in closed form at given features."""
        params = update_offset(update_loadings(params, stats.rows, stats.cross), stats.rows)
        params = update_prior_blocks(params, stats.rows, self.alpha)
        explained = stats.explain(params)
        return update_variances(params, explained, self.estimate_noise, self.estimate_prior), explained


def expected_residual(stats: Stats, params: Params) -> float:
    """``sum_n E||x_n - b - W z_n||^2``, docs/math.md eq. (25), in units of the inputs' noise ratios."""
    products = float(np.vdot(stats.second_moment, params.mean_field.coupling)) / params.mean_field.precision
    spread = float(params.loadings.shape[1] * (np.diag(stats.second_moment) @ params.variances))
    left = stats.total - stats.first_moment @ params.loadings  # sum of the residuals without the offset
    offset = float(params.offset / params.mean_field.ratios @ (stats.n_rows * params.offset - 2.0 * left))
    return stats.squared_norm - 2.0 * stats.explained + products + spread + offset


def update_prior_blocks(params: Params, stats: Stats, alpha: float) -> Params:
    """Update sticks (one majorize-minimize step) and loading variances, docs/math.md eq. (23) and (28)."""
    sticks = update_sticks(params.sticks, stats.counts, stats.n_rows, alpha)
    return replace(params, sticks=sticks, variances=loading_variances(params, stats))


def loading_variances(params: Params, stats: Stats) -> Floats:
    """Return the loading variances ``s_k``, docs/math.md eq. (28)."""
    return 1.0 / (1.0 / params.prior_variance + np.diag(stats.second_moment) / params.noise_variance)


def update_loadings(params: Params, stats: Stats, cross: Floats) -> Params:
    """Solve for means and variances of the loadings at fixed features, docs/math.md eq. (28).

    ``cross`` is the sum of ``psi_n x_n'``, shape (K, D).
    """
    system = stats.second_moment / params.noise_variance  # a new array
    system[np.diag_indices_from(system)] += 1.0 / params.prior_variance
    above = cross - np.outer(stats.first_moment, params.offset)
    loadings = cho_solve(cho_factor(system), above / params.noise_variance)
    return replace(params, loadings=loadings, variances=loading_variances(params, stats))


def update_offset(params: Params, stats: Stats) -> Params:
    """Set the offset to the mean residual at fixed features, docs/math.md eq. (28)."""
    return replace(params, offset=(stats.total - stats.first_moment @ params.loadings) / stats.n_rows)


def update_variances(params: Params, stats: Stats, estimate_noise: bool, estimate_prior: bool) -> Params:
    """Estimate noise and prior variance by empirical Bayes as requested, with a floor."""
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
    """Return the expected samples given their features, plus a mean, shape (n, D), on the features' device."""
    return features @ to_device(params.loadings, features) + to_device(params.offset + mean, features)


@persistable(name="regbayes.ilsvm.Settings")
@dataclass(frozen=True)
class Settings:
    """Settings of a fit, with data-dependent defaults already resolved."""

    n_components: int  # K, the truncation
    alpha: float  # concentration of the Indian buffet process
    C: float  # penalty on a margin violation; 0 for the unsupervised model
    squared: bool  # whether the hinge loss is squared
    one_vs_rest: bool  # whether margins are one-vs-rest instead of Crammer-Singer
    temperature: float  # T, multiplies the entropy of the features
    generative_weight: float  # r, weight of the generative part
    noise_variance: float  # sigma^2
    prior_variance: float  # sigma_0^2
    estimate_noise: bool  # whether sigma^2 is estimated, starting from noise_variance
    estimate_prior: bool  # whether sigma_0^2 is estimated, starting from prior_variance
    fit_intercept: bool
    input_scale: float  # factor on the inputs in the head, in addition to features; 0 excludes them
    n_sweeps: int  # S, number of sweeps of label-free inference
    max_iter: int
    tol: float
    n_threads: int
    slab: str | None = None  # prior of the values of active features: None, "half-normal" or "normal"
    price: float = 0.0  # kappa, penalty on an active real-valued feature
    per_input: bool = False  # whether the noise variance of each input is estimated
    noise_ratios: Floats | None = None  # (D,): noise ratios rho, once estimated

    def with_noise(self, noise_variance: float, noise: Floats) -> Settings:
        """Return the settings for the noise variances of the columns, (D,), and their geometric mean."""
        return replace(
            self,
            noise_variance=noise_variance,
            prior_variance=self.prior_variance / self.noise_variance * noise_variance,
            noise_ratios=noise / noise_variance,
        )

    def follow(self, params: Params) -> Settings:
        """Return the settings with the noise variances of an earlier fit, if they differ by column."""
        if params.noise_ratios is None or not (self.per_input or self.noise_ratios is not None):
            return self
        return self.with_noise(params.noise_variance, params.noise_variance * params.noise_ratios)


@dataclass(frozen=True)
class Population:
    """Samples that are not in local memory."""

    blocks: Blocks  # of `RowBlock`
    head: SampledHead | None  # None for the unsupervised model
    n_rows: float  # sum of the sample weights
    label_weight: float  # sum of the factors on C


@dataclass(frozen=True)
class Data:
    """Samples and their targets, which are classes, signs or numbers."""

    X: Rows  # (N, D), centered
    targets: Targets | None = None  # of the labeled samples; their C values are factors on ``Settings.C``
    rows: Integers | None = None  # ascending indices of the samples with targets; None: all
    population: Population | None = None  # the remote samples from which these were drawn

    @classmethod
    def of_classes(cls, X: Rows, labels: Integers, weights: Floats, cost: Floats) -> Data:
        """Return samples with class codes or UNLABELED (N,), factors on C (N,) and ``cost[true, predicted]``."""
        labeled = np.flatnonzero(labels != UNLABELED)
        targets = Classes(labels[labeled], cost, weights[labeled])
        return cls(X, targets, None if len(labeled) == len(labels) else labeled)

    @property
    def labeled(self) -> Integers:
        """Indices of the samples with a target, shape (n_labeled,)."""
        if self.targets is None:
            return np.zeros(0, dtype=np.int64)
        return np.arange(len(self.X)) if self.rows is None else self.rows

    @property
    def target_weight(self) -> float:
        """Sum of the factors on C, averaged over the outputs of a sample."""
        if self.targets is None:
            return 0.0
        prices = self.targets.C
        return float(prices.sum()) / (1.0 if prices.ndim == 1 else max(prices.shape[1], 1))

    def take(self, rows: Integers | None) -> Data:
        """Return selected samples in ascending order, or all, in host memory."""
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
    """Return the head of the labeled samples on their features, and on their inputs if included."""
    X, targets = data.X, data.targets
    assert targets is not None
    targets = replace(targets, C=settings.C * targets.C)
    inputs = Inputs(X.X, X.mean, settings.input_scale)
    if is_mapped(X.X):  # mapped inputs are read on use
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
    """Descent problem for given data and settings.

    ``like`` is a problem with the same data and margins, whose model, blocks and head are reused.
    """

    features: type[BinaryFeatures]
    head: Any  # None for the unsupervised model
    n_rows: float  # sum of the sample weights
    unit: float  # scale of J: a loss of one for all labeled samples, or a nat for all samples if larger
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
            # A fit that estimates variances must not stop before updating them.
            blocks_below=settings.tol * self.unit if estimated else -np.inf,
        )
        model = features(settings.alpha, settings.generative_weight, settings.estimate_noise, settings.estimate_prior)
        self.joint = JointProblem(model, blocks, head, options)


@persistable(name="regbayes.ilsvm.State")
@dataclass(frozen=True)
class State:
    """A fitted model."""

    params: Params
    embedding: Floats  # (N, K): features of the training samples: psi, or expected feature values
    head: LinearHead | None  # None for the unsupervised model
    multipliers: Floats | None  # (n_labeled, classes): phi
    input_scale: float  # factor on the inputs in the head, in addition to features; 0 excludes them
    probabilities: Floats | None = None  # (N, K): psi, if the features are real-valued

    def _check_loaded(self) -> None:
        n_features = len(self.params.loadings)
        fits = self.embedding.ndim == 2 and self.embedding.shape[1] == n_features
        if not fits or (self.head is not None and self.head.centre.shape != (n_features,)):
            raise ValueError("the embedding and the classifier must have the features of the loadings")
