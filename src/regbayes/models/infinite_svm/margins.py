"""The large-margin part: from responsibilities to the classifiers, and what a row's margins say about its component.

Both halves of the problem are solved exactly. At given responsibilities the classifiers are one multi-class support
vector machine on rows repeated once per component, docs/math.md eq. (101). At given classifiers the responsibilities
of a row and its multipliers solve a small convex problem of their own, eq. (102)-(103).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from regbayes._types import Floats, Integers
from regbayes.framework.large_margin import MultiClassDual, solve_simplex
from regbayes.framework.margin_accuracy import Accuracy
from regbayes.kernels.assignments import solve_assignments
from regbayes.models.infinite_svm.state import Classifier, Data, Settings, inputs

CHUNK_CELLS = 4_000_000  # rows times components times answers that are looked at together
NEGLIGIBLE = 1e-12  # largest responsibility of a component that gets no weights
ROW_GAP = 1e-7  # duality gap of a row's problem, in units of its price times one plus its loss
ROW_STEPS = 100  # pairs of answers at most, for a row


@dataclass(frozen=True)
class Margins:
    """Classifiers at given responsibilities, and what they cost."""

    classifier: Classifier
    multipliers: Floats  # (N, answers): omega
    loss: float  # C times the losses of all rows
    gap: float  # at most so much dearer than the best classifiers

    @property
    def terms(self) -> dict[str, float]:
        """``1/2 ||mu||^2`` and the loss."""
        return {"kl_weights": half_squares(self.classifier), "margin": self.loss}

    @property
    def value(self) -> float:
        """Their sum."""
        return sum(self.terms.values())


def half_squares(classifier: Classifier) -> float:
    """``KL(q(eta) || p(eta))`` but for a constant: covariances stay those of the prior."""
    return 0.5 * float(np.vdot(classifier.weights, classifier.weights))


def build_dual(data: Data, settings: Settings) -> MultiClassDual:
    """The conjugate of the rows' losses."""
    make = MultiClassDual.squared_hinge if settings.squared else MultiClassDual.hinge
    return make(data.labels, data.cost, settings.C * data.weights)


def no_weights(data: Data, settings: Settings) -> Classifier:
    """Classifiers that say nothing."""
    D = data.X.shape[1]
    centre = data.X.mean(axis=0) if settings.fit_intercept else np.zeros(D)
    weights = np.zeros((settings.n_components, len(data.cost), D + int(settings.fit_intercept)))
    return Classifier(weights, centre, settings.fit_intercept)


def solve_margins(
    data: Data,
    responsibilities: Floats,
    dual: MultiClassDual,
    settings: Settings,
    warm_start: Floats | None,
    accuracy: Accuracy,
) -> Margins:
    """Fit all classifiers at once, from the multipliers of an earlier fit, eq. (101)."""
    blank = no_weights(data, settings)
    rows = inputs(data.X, blank.centre, settings.fit_intercept)
    used = np.flatnonzero(responsibilities.max(axis=0) > NEGLIGIBLE)
    features = (responsibilities[:, used, None] * rows[:, None, :]).reshape(len(rows), -1)
    found = solve_simplex(features, dual, warm_start=warm_start, tol=accuracy.gap, max_epochs=accuracy.max_epochs)
    weights = np.zeros_like(blank.weights)
    weights[used] = found.weights.reshape(len(data.cost), len(used), -1).transpose(1, 0, 2)
    classifier = replace(blank, weights=weights)
    return Margins(classifier, found.dual, found.primal - half_squares(classifier), found.gap)


def keep_better(found: Margins, classifier: Classifier, data: Data, q: Floats, settings: Settings) -> Margins:
    """Keep earlier classifiers where those found, which are good to a gap only, are dearer."""
    loss = total_loss(data, q, classifier, settings)
    saved = found.value - (half_squares(classifier) + loss)
    return found if saved <= 0 else replace(found, classifier=classifier, loss=loss, gap=max(found.gap - saved, 0.0))


def total_loss(data: Data, q: Floats, classifier: Classifier, settings: Settings) -> float:
    """``C`` times the losses of all rows at given responsibilities."""
    hinge = np.empty(len(q))
    for rows in chunks(len(q), classifier):
        scores = average_scores(data.X[rows], q[rows], classifier)
        own = np.take_along_axis(scores, data.labels[rows, None], axis=1)
        hinge[rows] = (data.cost[data.labels[rows]] - own + scores).max(axis=1)
    losses = np.square(hinge) if settings.squared else hinge
    return settings.C * float(data.weights @ losses)


def chunks(n_rows: int, classifier: Classifier) -> list[slice]:
    """Rows whose scores by every component are looked at together."""
    size = max(CHUNK_CELLS // classifier.weights[:, :, 0].size, 1)
    return [slice(first, min(first + size, n_rows)) for first in range(0, n_rows, size)]


def average_scores(X: Floats, q: Floats, classifier: Classifier) -> Floats:
    """Score of every answer, components weighed by responsibility, shape (n, answers)."""
    return np.asarray(np.einsum("nk,nka->na", q, component_scores(X, classifier)))


def component_scores(X: Floats, classifier: Classifier) -> Floats:
    """Score of every answer by every component's classifier, shape (n, T, answers)."""
    T, answers, d = classifier.weights.shape
    scores = classifier.inputs(X) @ classifier.weights.reshape(T * answers, d).T
    return np.asarray(scores.reshape(len(X), T, answers))


@dataclass(frozen=True)
class RowProblems:
    """The problems of some rows over their responsibilities and multipliers, everything in units of r.

    ``min_q KL(q || softmax(logits)) + price * loss(q)``, with the loss ``max_y (cost_y - sum_k q_k gain_ky)`` or its
    square. The true answer has no cost and no gain.
    """

    logits: Floats  # (n, T)
    gains: Floats  # (n, T, answers)
    cost: Floats  # (n, answers)
    labels: Integers  # (n,)
    price: Floats  # (n,)
    squared: bool

    def excess(self, q: Floats) -> Floats:
        """``cost_y - sum_k q_k gain_ky``, shape (n, answers); its largest entry is the hinge."""
        return np.asarray(self.cost - np.einsum("nka,nk->na", self.gains, q))

    def value(self, q: Floats) -> Floats:
        """What is minimised, shape (n,), up to the normaliser of the logits."""
        entropy = np.where(q > 0, q * np.log(np.where(q > 0, q, 1.0)), 0.0).sum(axis=1)
        return np.asarray(entropy - np.sum(q * self.logits, axis=1) + self.price * self.loss(self.excess(q)))

    def loss(self, excess: Floats) -> Floats:
        """Hinge or its square, shape (n,)."""
        hinge = excess.max(axis=1)
        return np.asarray(np.square(hinge) if self.squared else hinge)


def solve_rows(problems: RowProblems, omega: Floats) -> tuple[Floats, Floats]:
    """Return responsibilities (n, T) and multipliers (n, answers), from multipliers that are feasible.

    Rows without a price are left with what their logits say.
    """
    omega, q = np.ascontiguousarray(omega).copy(), np.empty_like(problems.logits)
    solve_assignments(
        np.ascontiguousarray(problems.logits),
        np.ascontiguousarray(problems.gains),
        np.ascontiguousarray(problems.cost),
        problems.labels,
        problems.price,
        problems.squared,
        ROW_GAP,
        ROW_STEPS,
        omega,
        q,
    )
    return q, omega
