"""The large-margin part: from features of rows to the classifier, its value, and the gradient it sends back."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from regbayes.framework.large_margin import MarginSolution, MultiClassDual, solve_simplex
from regbayes.models.ilsvm.rows import Rows
from regbayes.models.ilsvm.state import Classifier, Data, Settings

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Accuracy:
    """When a large-margin step is good enough."""

    gap: float  # duality gap, relative to the value
    max_epochs: float  # passes over the rows


@dataclass(frozen=True)
class Margins:
    """The solved large-margin problem at given features."""

    solution: MarginSolution
    classifier: Classifier

    @property
    def terms(self) -> dict[str, float]:
        """``1/2 ||mu||^2`` and the loss."""
        squares = 0.5 * float(np.vdot(self.classifier.weights, self.classifier.weights))
        return {"kl_weights": squares, "margin": self.solution.primal - squares}


def build_dual(data: Data, settings: Settings) -> MultiClassDual:
    """The conjugate of the labelled rows' losses."""
    labeled = data.labeled
    make = MultiClassDual.squared_hinge if settings.squared else MultiClassDual.hinge
    return make(data.labels[labeled], data.cost, settings.C * data.weights[labeled])


def design(X: Rows, psi: Floats, centre: Floats, input_scale: float, fit_intercept: bool) -> Floats:
    """What the classifier sees of rows: centred features, inputs if wanted, a constant if wanted."""
    n, K = psi.shape
    n_inputs = X.n_inputs if input_scale else 0
    out = np.empty((n, K + n_inputs + int(fit_intercept)))
    np.subtract(psi, centre, out=out[:, :K])
    if input_scale:
        inputs = out[:, K : K + n_inputs]
        np.subtract(X.X, X.mean, out=inputs)
        inputs *= input_scale
    if fit_intercept:
        out[:, -1] = 1.0
    return out


def solve_margins(
    data: Data, psi: Floats, dual: MultiClassDual, settings: Settings, warm_start: Floats | None, accuracy: Accuracy
) -> Margins:
    """Fit the classifier to features, from the multipliers of an earlier fit.

    With an intercept the features are centred: the intercept is the weight of a constant, which is penalised, and
    should not have to make up for features that are far from zero.
    """
    labeled = data.labeled
    everything = len(labeled) == len(data.X)
    features = psi if everything else psi[labeled]
    centre = features.mean(axis=0) if settings.fit_intercept else np.zeros(psi.shape[1])
    rows = design(
        data.X if everything else data.X.take(labeled), features, centre, settings.input_scale, settings.fit_intercept
    )
    solution = solve_simplex(rows, dual, warm_start=warm_start, tol=accuracy.gap, max_epochs=accuracy.max_epochs)
    classifier = Classifier(solution.weights, centre, settings.input_scale, settings.fit_intercept)
    return Margins(solution, classifier)


@dataclass(frozen=True)
class MarginSlopes:
    """Gradient of the margin part with respect to psi, by Danskin's theorem, docs/math.md eq. (32), row by row.

    Features that are centred are so on their own mean: what a row gains all labelled rows share.
    """

    pull: Floats  # (N, answers): omega less its sum at the true answer; zero without a label
    weights: Floats  # (answers, K)
    share: Floats  # (K,): what a labelled row gives up
    is_labeled: Floats  # (N,): 1 or 0

    def __call__(self, rows: slice) -> Floats:
        """Return the gradient of some rows, shape (n, K)."""
        slopes = self.pull[rows] @ self.weights
        slopes -= self.is_labeled[rows, None] * self.share
        return np.asarray(slopes)


def margin_slopes(data: Data, margins: Margins) -> MarginSlopes:
    """Return the gradient that the margins send back to the features."""
    labeled, n_components = data.labeled, len(margins.classifier.centre)
    omega, weights = margins.solution.dual, margins.classifier.weights[:, :n_components]
    pull = np.zeros((len(data.X), omega.shape[1]))
    pull[labeled] = omega
    pull[labeled, data.labels[labeled]] -= omega.sum(axis=1)
    is_labeled = np.zeros(len(data.X))
    is_labeled[labeled] = 1.0
    share = pull.sum(axis=0) @ weights / max(len(labeled), 1)
    return MarginSlopes(pull, weights, share if margins.classifier.fit_intercept else np.zeros_like(share), is_labeled)
