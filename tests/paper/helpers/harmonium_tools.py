"""What the tests of harmoniums share: small models that can be enumerated, and estimators that fit in milliseconds."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from regbayes._types import Floats
from regbayes.joint.problem import Evaluation, JointProblem
from regbayes.margins.head import Tolerance
from regbayes.margins.targets import Classes, zero_one_cost
from regbayes_paper.baselines import ExponentialFamilyHarmonium, MaxMarginHarmoniumClassifier
from regbayes_paper.models.harmonium.learning import Data, Settings, pose_problem
from regbayes_paper.models.harmonium.model import Params, Rows, Sums
from regbayes_paper.models.harmonium.units import (
    BernoulliUnits,
    PoissonUnits,
    Spectrum,
    Visible,
    half_variance,
    make_gaussian,
    spectrum,
)

TIGHT = Tolerance(gap=1e-10, max_epochs=20_000.0)


def efh(n_components: int = 4, **parameters: Any) -> ExponentialFamilyHarmonium:
    return ExponentialFamilyHarmonium(n_components, **{"max_iter": 20, "random_state": 0} | parameters)


def mmh(n_components: int = 4, **parameters: Any) -> MaxMarginHarmoniumClassifier:
    return MaxMarginHarmoniumClassifier(n_components, **{"C": 0.1, "max_iter": 20, "random_state": 0} | parameters)


def bernoulli_view(d: int = 5) -> Visible:
    return Visible((np.arange(d),), (BernoulliUnits(np.linspace(0.2, 0.7, d)),))


def poisson_view(d: int = 4) -> Visible:
    shares = np.linspace(1.0, 2.0, d)
    return Visible((np.arange(d),), (PoissonUnits(shares / shares.sum(), 6.0),))


def every_binary_row(d: int) -> Floats:
    return np.array(list(product([0.0, 1.0], repeat=d)))


def every_count_row(d: int, total: int) -> Floats:
    return np.array([row for row in product(range(total + 1), repeat=d) if sum(row) == total], dtype=float)


def enumerated_log_normaliser(rows: Floats, g: Params, visible: Visible) -> float:
    """``log sum_x base(x) exp(a't + |W't|^2 / 2)``: hidden units integrated out, all rows summed."""
    t = visible.statistic(rows)
    return float(logsumexp(visible.log_base(rows) + t @ g.biases + 0.5 * np.square(t @ g.weights).sum(axis=1)))


def some_weights(visible: Visible, rows: Floats, n_components: int, length: float, seed: int = 0) -> Floats:
    """Weights with equal singular values, in the span of the statistics of rows."""
    rng = np.random.default_rng(seed)
    combined = visible.statistic(rows).T @ rng.standard_normal((len(rows), n_components))
    return np.asarray(length * np.linalg.qr(combined)[0])


def settings(**changes: Any) -> Settings:
    values: dict[str, Any] = {
        "n_components": 3,
        "squared": True,
        "generative_weight": 0.05,
        "fit_intercept": True,
        "max_iter": 100,
        "tol": 1e-6,
        "sampling": False,
        "learning_rate": 0.1,
        "batch_size": 20,
        "n_gibbs": 1,
    }
    return Settings(**values | changes)


def correlated(n_rows: int = 80, d: int = 6, n_classes: int = 3, seed: int = 0) -> tuple[Floats, NDArray[np.int64]]:
    """Rows with strong and weak directions, and overlapping classes, mostly along weak ones."""
    rng = np.random.default_rng(seed)
    y = np.arange(n_rows) % n_classes
    mixing = np.linalg.qr(rng.standard_normal((d, d)))[0]
    latent = rng.standard_normal((n_rows, d)) * np.linspace(3.0, 0.5, d)
    centres = np.zeros((n_classes, d))
    centres[:, [0, 4, 5]] = rng.standard_normal((n_classes, 3)) * [1.5, 1.0, 1.0]
    latent += centres[y]
    return latent @ mixing.T + 2.0, y


@dataclass(frozen=True)
class GaussianProblem:
    """The problem of a Gaussian view in mean field."""

    data: Data
    settings: Settings
    visible: Visible
    rows: Rows
    joint: JointProblem[Rows, Params, Sums]

    def evaluate(self, weights: Floats, warm_start: Floats | None = None) -> Evaluation[Params, Sums]:
        """J at given weights, the head solved to a tiny gap."""
        return self.joint.evaluate(Params(weights, np.zeros(len(weights))), warm_start, TIGHT)[0]

    def gradient(self, weights: Floats, warm_start: Floats | None = None) -> Floats:
        """The gradient of J there."""
        found = self.joint.evaluate(Params(weights, np.zeros(len(weights))), warm_start, TIGHT)
        return np.asarray(self.joint.gradient(*found))

    def spectrum(self, k: int) -> Spectrum:
        """The spectrum of the statistics."""
        return spectrum(self.rows.statistics, self.data.weights, k)


def gaussian_problem(
    X: Floats, y: NDArray[np.int64], C: float = 0.5, weights: Floats | None = None, **changes: Any
) -> GaussianProblem:
    """The problem of a Gaussian view; ``C=0`` for that without labels."""
    chosen = settings(**changes)
    weights = np.ones(len(X)) if weights is None else weights
    visible = Visible((np.arange(X.shape[1]),), (make_gaussian(X, weights, half_variance(X, weights)),))
    data = Data(X, weights, Classes(y.astype(np.int64), zero_one_cost(int(y.max()) + 1), C * weights))
    rows = Rows.of(X, visible, weights)
    largest = float(spectrum(rows.statistics, weights, 1).values[0])
    return GaussianProblem(data, chosen, visible, rows, pose_problem(data, chosen, rows, largest))
