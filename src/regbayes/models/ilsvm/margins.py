"""The large-margin part: from features of rows to the classifier, its value, and the gradient it sends back."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from regbayes._types import Floats, Integers
from regbayes.framework.dual_forms import BoxDual
from regbayes.framework.large_margin import MarginSolution, MultiClassDual, TaskLayout, solve_box, solve_simplex
from regbayes.framework.margin_accuracy import Accuracy
from regbayes.models.ilsvm.rows import Rows
from regbayes.models.ilsvm.state import Classifier, Data, Settings


@dataclass(frozen=True)
class OneVsRestDual:
    """The conjugate of binary losses, one for every row and answer, which is the row's label or not."""

    form: BoxDual  # n rows times answers, row by row
    layout: TaskLayout  # an answer is a task

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and answers."""
        n_answers = len(self.layout.group)
        return self.form.linear.size // n_answers, n_answers


Dual = MultiClassDual | OneVsRestDual


@dataclass(frozen=True)
class Margins:
    """The solved large-margin problem at given features."""

    solution: MarginSolution  # its multipliers: (n_labeled, answers)
    classifier: Classifier

    @property
    def terms(self) -> dict[str, float]:
        """``1/2 ||mu||^2`` and the loss."""
        squares = 0.5 * float(np.vdot(self.classifier.weights, self.classifier.weights))
        return {"kl_weights": squares, "margin": self.solution.primal - squares}


def build_dual(data: Data, settings: Settings) -> Dual:
    """The conjugate of the labelled rows' losses."""
    labeled = data.labeled
    if settings.one_vs_rest:
        return _one_vs_rest(data.labels[labeled], len(data.cost), settings.C * data.weights[labeled], settings.squared)
    make = MultiClassDual.squared_hinge if settings.squared else MultiClassDual.hinge
    return make(data.labels[labeled], data.cost, settings.C * data.weights[labeled])


def _one_vs_rest(labels: Integers, n_answers: int, C: Floats, squared: bool) -> OneVsRestDual:
    """Return the dual of ``sum_n C_n sum_y loss(s_ny <w_y, x_n>)``, with s = 1 at the label and -1 elsewhere."""
    n = len(labels)
    signs = np.full((n, n_answers), -1.0)
    signs[np.arange(n), labels] = 1.0
    sign, price = signs.ravel(), np.repeat(C, n_answers)
    # A row without weight has no multipliers.
    ridge = np.divide(0.5, price, out=np.zeros_like(price), where=price > 0) if squared else np.zeros_like(price)
    top = np.where(price > 0, np.inf, 0.0) if squared else price
    form = BoxDual(
        linear=-sign,
        absolute=np.zeros_like(price),
        ridge=ridge,
        lower=np.where(sign > 0, 0.0, -top),
        upper=np.where(sign > 0, top, 0.0),
    )
    rows, answers = np.repeat(np.arange(n), n_answers), np.tile(np.arange(n_answers), n)
    return OneVsRestDual(form, TaskLayout(rows, answers, np.zeros(n_answers, dtype=np.int64)))


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
    data: Data, psi: Floats, dual: Dual, settings: Settings, warm_start: Floats | None, accuracy: Accuracy
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
    solution = _solve(rows, dual, warm_start, accuracy)
    classifier = Classifier(solution.weights, centre, settings.input_scale, settings.fit_intercept)
    return Margins(solution, classifier)


def _solve(rows: Floats, dual: Dual, warm_start: Floats | None, accuracy: Accuracy) -> MarginSolution:
    if isinstance(dual, MultiClassDual):
        return solve_simplex(rows, dual, warm_start=warm_start, tol=accuracy.gap, max_epochs=accuracy.max_epochs)
    start = None if warm_start is None else warm_start.ravel()
    found = solve_box(rows, dual.form, dual.layout, warm_start=start, tol=accuracy.gap, max_epochs=accuracy.max_epochs)
    return replace(found, dual=found.dual.reshape(dual.shape))


@dataclass(frozen=True)
class MarginSlopes:
    """Gradient of the margin part with respect to psi, by Danskin's theorem, docs/math.md eq. (32), row by row.

    Features that are centred are so on their own mean: what a row gains all labelled rows share.
    """

    pull: Floats  # (N, answers): what the loss gains per unit of each answer's score; zero without a label
    weights: Floats  # (answers, K)
    share: Floats  # (K,): what a labelled row gives up
    is_labeled: Floats  # (N,): 1 or 0

    def __call__(self, rows: slice) -> Floats:
        """Return the gradient of some rows, shape (n, K)."""
        slopes = self.pull[rows] @ self.weights
        slopes -= self.is_labeled[rows, None] * self.share
        return np.asarray(slopes)


def margin_slopes(data: Data, margins: Margins, one_vs_rest: bool) -> MarginSlopes:
    """Return the gradient that the margins send back to the features.

    Multi-class multipliers pull the label's score up by their sum and the other answers' down; those of one-vs-rest
    margins have the sign of what they pull.
    """
    labeled, n_components = data.labeled, len(margins.classifier.centre)
    omega, weights = margins.solution.dual, margins.classifier.weights[:, :n_components]
    pull = np.zeros((len(data.X), omega.shape[1]))
    pull[labeled] = -omega if one_vs_rest else omega
    if not one_vs_rest:
        pull[labeled, data.labels[labeled]] -= omega.sum(axis=1)
    is_labeled = np.zeros(len(data.X))
    is_labeled[labeled] = 1.0
    share = pull.sum(axis=0) @ weights / max(len(labeled), 1)
    return MarginSlopes(pull, weights, share if margins.classifier.fit_intercept else np.zeros_like(share), is_labeled)
