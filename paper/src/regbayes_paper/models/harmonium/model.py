"""The harmonium in mean field: weights between visible and hidden units, whose expectations are the features of rows.

Hidden units are Gaussian and see a row through its statistic t(x) alone, so their expectations ``W' t(x)`` are linear
in it. In mean field the normaliser has a closed form, docs/math.md eq. (84), and with it the likelihood is a
`JointModel`: features, terms and gradient are those of eq. (85) and (90)-(92), and where the mean field is unstable the
likelihood is infinite.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from regbayes._registry import persistable
from regbayes._types import Floats, Reals
from regbayes.engine import row_blocks
from regbayes.joint.model import Inferred, JointModel, RowSums
from regbayes.margins.head import LinearHead
from regbayes_paper.models.harmonium.units import Spectrum, Visible

SHORT = 0.1  # length of weights whose direction pays only through the margins


@persistable(name="regbayes.harmonium.Params")
@dataclass(frozen=True)
class Params:
    """What inference of a row's hidden units needs to know."""

    weights: Floats  # (D, K): W, in units of the statistics
    biases: Floats  # (D,): a; zero in mean field


@persistable(name="regbayes.harmonium.State")
@dataclass(frozen=True)
class State:
    """A fitted model."""

    visible: Visible
    params: Params
    embedding: Floats  # (N, K): expected hidden units of the training rows
    head: LinearHead | None  # None for the unsupervised model
    multipliers: Floats | None  # (N, classes): of the scores


@dataclass(frozen=True)
class Rows:
    """Rows as the hidden units see them."""

    statistics: Floats  # (n, D): t(x)
    base_costs: Floats  # (n,): minus the log-densities under the base, where there are no hidden units
    weights: Floats  # (n,): how often each row counts

    @classmethod
    def of(cls, X: Floats, visible: Visible, weights: Floats) -> Rows:
        """Return the statistics of rows (n, D)."""
        return cls(visible.statistic(X), -visible.log_base(X), weights)

    def __len__(self) -> int:
        return len(self.weights)

    def blocks(self) -> list[Rows]:
        """Return the rows in blocks of fixed size."""
        parts = row_blocks(len(self))
        return [Rows(self.statistics[part], self.base_costs[part], self.weights[part]) for part in parts]


@dataclass(frozen=True)
class Sums(RowSums):
    """What the likelihood needs to know of rows."""

    n_rows: float
    base_cost: float
    squares: float  # of the expected hidden units


@dataclass(frozen=True)
class Pulled(RowSums):
    """What the rows add to the gradient."""

    weights: Floats  # (D, K)


@dataclass(frozen=True)
class MeanField(JointModel[Rows, Params, Sums, Pulled]):
    """The likelihood in mean field. The position is that of the weights; there are no biases."""

    weight: float  # r, of the likelihood
    unit: float  # what one nat of every row is worth in J, or one unit of every row's loss: whichever is more

    def infer(self, rows: Rows, params: Params) -> Inferred[Sums]:
        """Return the expected hidden units, docs/math.md eq. (82)."""
        hidden = rows.statistics @ params.weights
        squares = float(np.vdot(hidden, rows.weights[:, None] * hidden))
        return Inferred(hidden, Sums(float(rows.weights.sum()), float(rows.weights @ rows.base_costs), squares))

    def pull_back(self, rows: Rows, params: Params, inferred: Inferred[Sums], gradient: Floats | None) -> Pulled:
        """Add the likelihood's own gradient by the hidden units, and take both to the weights, eq. (92)."""
        own = -self.weight * rows.weights[:, None] * inferred.features
        return Pulled(rows.statistics.T @ (own if gradient is None else own + gradient))

    def terms(self, params: Params, stats: Sums) -> dict[str, float]:
        """``r L``, eq. (85)."""
        normaliser = stats.n_rows * log_normaliser(params.weights)
        return {"likelihood": self.weight * (stats.base_cost - 0.5 * stats.squares + normaliser)}

    def gradient(self, params: Params, stats: Sums, pulled: Pulled) -> Floats:
        """Return the gradient of J with respect to the weights, eq. (92), shape (D, K)."""
        return pulled.weights + self.weight * stats.n_rows * normaliser_gradient(params.weights)

    def position(self, params: Params) -> Floats:
        """Return the weights."""
        return params.weights

    def move(self, params: Params, position: Reals) -> Params:
        """Return the parameters with other weights."""
        return replace(params, weights=position.astype(np.float64, copy=False))

    def precondition(self, params: Params, stats: Sums) -> Callable[[Reals], Reals]:
        """Take the curvature of ``n log Z`` around the weights, ``n (I - W'W)^-1``."""
        inverse = _precision(params.weights) / self.unit
        return lambda q: q @ inverse


def _precision(weights: Floats) -> Floats:
    """Precision of the hidden units in mean field, shape (K, K)."""
    return np.eye(weights.shape[1]) - weights.T @ weights


def log_normaliser(weights: Floats) -> float:
    """``log Z`` in mean field, eq. (84): exact for Gaussian units, and infinite where the mean field is unstable."""
    try:
        factor = np.linalg.cholesky(_precision(weights))
    except np.linalg.LinAlgError:
        return np.inf
    return float(-np.log(np.diag(factor)).sum())


def normaliser_gradient(weights: Floats) -> Floats:
    """Gradient of ``log Z``, shape (D, K)."""
    return np.linalg.solve(_precision(weights), weights.T).T.astype(np.float64, copy=False)


# --- The start


def update_weights(found: Spectrum, n_components: int) -> Floats:
    """Return the weights that minimise the mean-field negative log-likelihood, docs/math.md eq. (86), shape (D, K).

    Hidden units beyond the eigenvalues that exceed one have no weights.
    """
    weights = np.zeros((len(found.directions), n_components))
    k = min(n_components, len(found.values))
    lengths = np.sqrt(np.maximum(1.0 - 1.0 / found.values[:k], 0.0))
    weights[:, :k] = found.directions[:, :k] * lengths
    return weights


def start_params(found: Spectrum, n_components: int, has_margins: bool, rng: np.random.Generator) -> Params:
    """Return the weights that are best without labels.

    Hidden units that nothing is left for in the likelihood get short weights if margins may use them: along further
    directions of the spectrum, and along random ones, distributed as the rows are, where there are none.
    """
    weights = update_weights(found, n_components)
    weak = np.flatnonzero(~np.any(weights, axis=0))
    if has_margins and len(weak):
        rank = len(found.values)
        directions = found.directions[:, weak[weak < rank]]
        noise = rng.standard_normal((rank, len(weak) - directions.shape[1]))
        random = (found.directions * np.sqrt(found.values)) @ noise
        lengths = np.linalg.norm(random, axis=0)
        random = np.divide(random, lengths, out=np.zeros_like(random), where=lengths > 0)
        weights[:, weak] = SHORT * np.hstack([directions, random])
        weights = _make_room(weights, 1.0 - 1.0 / max(float(found.values[0]), 1.0) if rank else 0.0)
    return Params(weights, np.zeros(len(weights)))


def _make_room(weights: Floats, longest: float) -> Floats:
    """Shorten weights that are too long together: at most half of what the longest leaves to one is used up."""
    together = float(np.linalg.norm(weights, ord=2)) ** 2
    limit = 0.5 * (1.0 + longest)
    return weights if together <= limit else weights * np.sqrt(limit / together)


# --- What a fitted model says about rows


def infer_features(X: Floats, state: State) -> Floats:
    """Return the expected hidden units of rows, docs/math.md eq. (82), shape (n, K)."""
    return state.visible.statistic(X) @ state.params.weights


def reconstruct(hidden: Floats, state: State) -> Floats:
    """Return the expected rows given hidden units, shape (n, D)."""
    return state.visible.expect(state.params.biases + hidden @ state.params.weights.T)


def log_densities(X: Floats, params: Params, visible: Visible) -> Floats:
    """Return the log-density of rows in mean field, eq. (83), shape (n,)."""
    statistics = visible.statistic(X)
    tilt = statistics @ params.biases + 0.5 * np.square(statistics @ params.weights).sum(axis=1)
    return visible.log_base(X) + tilt - log_normaliser(params.weights)
