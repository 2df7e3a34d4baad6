"""The large-margin part: from expected hidden units to the classifier, its value, and the gradient it sends back."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from regbayes._types import Floats
from regbayes.framework.large_margin import MarginSolution, MultiClassDual, solve_simplex
from regbayes.framework.margin_accuracy import Accuracy
from regbayes.models.harmonium.state import Classifier, Data, Settings


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
    """The conjugate of the rows' losses."""
    make = MultiClassDual.squared_hinge if settings.squared else MultiClassDual.hinge
    return make(data.labels, data.cost, settings.C * data.weights)


def design(hidden: Floats, fit_intercept: bool) -> Floats:
    """What the classifier sees of rows: expected hidden units, and a constant if wanted."""
    return np.column_stack([hidden, np.ones(len(hidden))]) if fit_intercept else hidden


def solve_margins(
    hidden: Floats, dual: MultiClassDual, fit_intercept: bool, warm_start: Floats | None, accuracy: Accuracy
) -> Margins:
    """Fit the classifier to expected hidden units, from the multipliers of an earlier fit."""
    rows = design(hidden, fit_intercept)
    solution = solve_simplex(rows, dual, warm_start=warm_start, tol=accuracy.gap, max_epochs=accuracy.max_epochs)
    return Margins(solution, Classifier(solution.weights, fit_intercept))


def margin_gradient(data: Data, margins: Margins, n_components: int) -> Floats:
    """Gradient of the margin part with respect to the hidden units, by Danskin's theorem, eq. (91), shape (N, K)."""
    omega = margins.solution.dual
    own = omega.copy()
    own[np.arange(len(own)), data.labels] -= omega.sum(axis=1)
    return np.asarray(own @ margins.classifier.weights[:, :n_components])
