"""Visible units: what a view's columns are, and how they depend on hidden units.

Each kind of unit has a *base*, under which the units are independent of the hidden ones, and a *statistic* t(x) that
has mean zero and covariance one there. Hidden units act through the statistic alone, docs/math.md eq. (80)-(82), so the
rest of the model does not know which kinds of units there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
from scipy.linalg import eigh
from scipy.special import expit, gammaln, log_softmax, logit, logsumexp, softmax, xlogy

from regbayes._registry import persistable
from regbayes._types import Floats, Indices

NOISE_SHARE = 0.5  # of a view's variance that is put down to noise where half of it is
NOISE_FLOOR = 0.01  # of a view's variance that is put down to noise at least
PRIOR_COUNT = 1.0  # of a one and of a zero, before any were seen; and of every column of counts


class Units(Protocol):
    """Visible units of one kind. ``natural`` is what the hidden units send, shape (n, d), in units of the statistic."""

    mean: Floats
    scale: Floats
    is_bounded: ClassVar[bool]  # whether the statistic is, so that no weights are too large for it

    def statistic(self, x: Floats) -> Floats:
        """``t(x)``, shape (n, d)."""

    def log_base(self, x: Floats) -> Floats:
        """Log-density of rows under the base, shape (n,)."""

    def log_tilt(self, natural: Floats, x: Floats) -> Floats:
        """``log E_base exp(natural' t)`` for rows with the totals of these, shape (n,)."""

    def expect(self, natural: Floats, x: Floats | None = None) -> Floats:
        """Expected rows with the totals of these, or with the mean total, shape (n, d)."""

    def draw(self, natural: Floats, x: Floats, rng: np.random.Generator) -> Floats:
        """Draw rows with the totals of these, shape (n, d)."""


@persistable(name="regbayes.harmonium.GaussianUnits")
@dataclass(frozen=True)
class GaussianUnits:
    """Real values; given the hidden units, normal around a linear function of them."""

    mean: Floats  # (d,)
    scale: Floats  # (d,): standard deviation given the hidden units
    is_bounded: ClassVar[bool] = False

    def statistic(self, x: Floats) -> Floats:
        """``(x - mean) / scale``."""
        return (x - self.mean) / self.scale

    def log_base(self, x: Floats) -> Floats:
        """Independent normal values."""
        constant = np.log(self.scale).sum() + 0.5 * len(self.scale) * np.log(2.0 * np.pi)
        return -0.5 * np.square(self.statistic(x)).sum(axis=1) - constant

    def log_tilt(self, natural: Floats, x: Floats) -> Floats:
        """Half the squared length."""
        return 0.5 * np.square(natural).sum(axis=1)

    def expect(self, natural: Floats, x: Floats | None = None) -> Floats:
        """Expected rows."""
        return self.mean + self.scale * natural

    def draw(self, natural: Floats, x: Floats, rng: np.random.Generator) -> Floats:
        """Draw rows."""
        return self.expect(natural + rng.standard_normal(natural.shape))


@persistable(name="regbayes.harmonium.BernoulliUnits")
@dataclass(frozen=True)
class BernoulliUnits:
    """Zeros and ones; given the hidden units, a logistic function of them."""

    mean: Floats  # (d,), between 0 and 1
    is_bounded: ClassVar[bool] = True

    @property
    def scale(self) -> Floats:
        """Standard deviations under the base, shape (d,)."""
        return np.sqrt(self.mean * (1.0 - self.mean))

    def statistic(self, x: Floats) -> Floats:
        """``(x - mean) / scale``."""
        return (x - self.mean) / self.scale

    def log_base(self, x: Floats) -> Floats:
        """Independent coins."""
        return x @ np.log(self.mean) + (1.0 - x) @ np.log1p(-self.mean)

    def log_tilt(self, natural: Floats, x: Floats) -> Floats:
        """Sum over the units."""
        shift = natural / self.scale
        each = np.logaddexp(np.log1p(-self.mean), np.log(self.mean) + shift) - shift * self.mean
        return each.sum(axis=1)

    def expect(self, natural: Floats, x: Floats | None = None) -> Floats:
        """Probabilities of a one."""
        return expit(logit(self.mean) + natural / self.scale)

    def draw(self, natural: Floats, x: Floats, rng: np.random.Generator) -> Floats:
        """Draw rows."""
        return (rng.random(natural.shape) < self.expect(natural)).astype(np.float64)


@persistable(name="regbayes.harmonium.PoissonUnits")
@dataclass(frozen=True)
class PoissonUnits:
    """Counts; given the hidden units and the row's total, Poisson with log-linear rates.

    Poisson units with Gaussian hidden units have no normaliser: the hidden units' quadratic outgrows ``log x!``. Given
    the total they have one, and the counts are multinomial. The statistic is divided by the root of the total, so
    that it has the same covariance in long rows and short ones.
    """

    mean: Floats  # (d,): share of each column, positive, summing to one
    mean_total: float  # of the training rows
    is_bounded: ClassVar[bool] = True

    @property
    def scale(self) -> Floats:
        """Roots of the shares, shape (d,)."""
        return np.sqrt(self.mean)

    def statistic(self, x: Floats) -> Floats:
        """``(x - N mean) / sqrt(N mean)``; zero for an empty row."""
        roots = np.sqrt(_totals(x))
        counts = np.divide(x, roots, out=np.zeros_like(x), where=roots > 0)
        return (counts - roots * self.mean) / self.scale

    def log_base(self, x: Floats) -> Floats:
        """Multinomial counts given their total."""
        choices = gammaln(_totals(x)[:, 0] + 1.0) - gammaln(x + 1.0).sum(axis=1)
        return choices + xlogy(x, self.mean).sum(axis=1)

    def log_tilt(self, natural: Floats, x: Floats) -> Floats:
        """``N log sum_d mean_d exp(shift_d)`` less the shift of the mean."""
        totals = _totals(x)
        each = logsumexp(np.log(self.mean) + self._shift(natural, totals), axis=1)
        return totals[:, 0] * each - np.sqrt(totals[:, 0]) * (natural @ self.scale)

    def expect(self, natural: Floats, x: Floats | None = None) -> Floats:
        """Expected counts."""
        totals = np.full((len(natural), 1), self.mean_total) if x is None else _totals(x)
        return totals * softmax(np.log(self.mean) + self._shift(natural, totals), axis=1)

    def draw(self, natural: Floats, x: Floats, rng: np.random.Generator) -> Floats:
        """Draw rows."""
        totals = _totals(x)
        shares = np.exp(log_softmax(np.log(self.mean) + self._shift(natural, totals), axis=1))
        shares /= shares.sum(axis=1, keepdims=True)
        return rng.multinomial(totals[:, 0].astype(np.int64), shares).astype(np.float64)

    def _shift(self, natural: Floats, totals: Floats) -> Floats:
        """What the hidden units add to the log-rates."""
        roots = np.sqrt(totals)
        return np.divide(natural, roots, out=np.zeros_like(natural), where=roots > 0) / self.scale


def _totals(x: Floats) -> Floats:
    return x.sum(axis=1, keepdims=True)


@persistable(name="regbayes.harmonium.Visible")
@dataclass(frozen=True)
class Visible:
    """All visible units: views side by side, each with columns of its own."""

    columns: tuple[Indices, ...]  # of each view
    units: tuple[Units, ...]  # of each view

    @property
    def n_columns(self) -> int:
        """Columns of all views, D."""
        return sum(len(columns) for columns in self.columns)

    @property
    def unbounded(self) -> Indices:
        """Columns whose statistic has no bound."""
        found = [columns for columns, units in self._views() if not units.is_bounded]
        return np.concatenate([np.empty(0, dtype=np.int64), *found])

    def statistic(self, X: Floats) -> Floats:
        """``t(x)`` of all columns, shape (n, D)."""
        return self._gather([units.statistic(X[:, columns]) for columns, units in self._views()], len(X))

    def expect(self, natural: Floats, X: Floats | None = None) -> Floats:
        """Expected rows given what the hidden units send, shape (n, D)."""
        parts = [
            units.expect(natural[:, columns], None if X is None else X[:, columns]) for columns, units in self._views()
        ]
        return self._gather(parts, len(natural))

    def draw(self, natural: Floats, X: Floats, rng: np.random.Generator) -> Floats:
        """Draw rows given what the hidden units send, shape (n, D)."""
        parts = [units.draw(natural[:, columns], X[:, columns], rng) for columns, units in self._views()]
        return self._gather(parts, len(natural))

    def log_base(self, X: Floats) -> Floats:
        """Log-density of rows under the base, shape (n,)."""
        return np.sum([units.log_base(X[:, columns]) for columns, units in self._views()], axis=0)

    def log_tilt(self, natural: Floats, X: Floats) -> Floats:
        """``log E_base exp(natural' t)``, shape (n,)."""
        parts = [units.log_tilt(natural[:, columns], X[:, columns]) for columns, units in self._views()]
        return np.sum(parts, axis=0)

    def collect(self, name: str) -> Floats:
        """Return an attribute of the units by column, ``"mean"`` or ``"scale"``, shape (D,)."""
        out = np.empty(self.n_columns)
        for columns, units in self._views():
            out[columns] = getattr(units, name)
        return out

    def _views(self) -> Sequence[tuple[Indices, Units]]:
        return tuple(zip(self.columns, self.units, strict=True))

    def _gather(self, parts: Sequence[Floats], n_rows: int) -> Floats:
        out = np.empty((n_rows, self.n_columns))
        for columns, part in zip(self.columns, parts, strict=True):
            out[:, columns] = part
        return out


# --- Units from training rows, each of which counts as often as its weight says


def make_gaussian(x: Floats, weights: Floats, noise_variance: float) -> GaussianUnits:
    """Return units with the columns' means and a common variance: 1 where it is zero, for columns that do not vary."""
    scale = np.sqrt(noise_variance) if noise_variance > 0 else 1.0
    return GaussianUnits(weights @ x / weights.sum(), np.full(x.shape[1], scale))


def make_bernoulli(x: Floats, weights: Floats) -> BernoulliUnits:
    """Return units with the columns' shares of ones, kept off zero and one."""
    return BernoulliUnits((weights @ x + PRIOR_COUNT) / (weights.sum() + 2.0 * PRIOR_COUNT))


def make_poisson(x: Floats, weights: Floats) -> PoissonUnits:
    """Return units with the columns' shares of all counts, kept off zero."""
    counts = weights @ x + PRIOR_COUNT
    return PoissonUnits(counts / counts.sum(), float(weights @ x.sum(axis=1) / weights.sum()))


def half_variance(x: Floats, weights: Floats) -> float:
    """Return half of a view's variance."""
    return NOISE_SHARE * float(weights @ np.square(x - weights @ x / weights.sum()).mean(axis=1) / weights.sum())


def residual_variance(x: Floats, weights: Floats, n_components: int) -> float:
    """Return the variance per column that some principal components leave over: the likeliest noise of Gaussian units.

    At least a hundredth of the view's variance, so that something is left to noise with any number of components.
    """
    mean = 2.0 * half_variance(x, weights)
    rest = x.shape[1] - n_components
    if rest <= 0 or mean == 0:
        return NOISE_FLOOR * mean
    centred = x - weights @ x / weights.sum()
    explained = float(spectrum(centred, weights, n_components).values.sum())
    return float(max((mean * x.shape[1] - explained) / rest, NOISE_FLOOR * mean))


@dataclass(frozen=True)
class Spectrum:
    """The largest eigenvalues of the second moment of rows, descending, and their directions."""

    values: Floats  # (k,)
    directions: Floats  # (D, k), orthonormal


def spectrum(rows: Floats, weights: Floats, k: int) -> Spectrum:
    """Return the k largest eigenvalues of ``S = sum_n w_n t_n t_n' / sum_n w_n``, or as many as are not zero."""
    rows = rows * np.sqrt(weights / weights.sum())[:, None]
    wide = len(rows) < rows.shape[1]
    gram = rows @ rows.T if wide else rows.T @ rows
    size = len(gram)
    values, vectors = eigh(gram, subset_by_index=(max(size - k, 0), size - 1))
    values, vectors = values[::-1], vectors[:, ::-1]
    kept = values > 1e-12 * max(float(values[0]), np.finfo(np.float64).tiny)
    values, vectors = values[kept], vectors[:, kept]
    if wide:
        vectors = rows.T @ vectors / np.sqrt(values)
    largest = np.argmax(np.abs(vectors), axis=0)  # signs of eigenvectors are arbitrary: fix them
    return Spectrum(values, vectors * np.where(vectors[largest, np.arange(len(values))] < 0, -1.0, 1.0))
