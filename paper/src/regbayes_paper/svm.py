"""Support vector machines with dual variables, for multi-class and single-output problems.

The solvers minimize ``1/2 ||w||^2 + loss(X w)`` by coordinate ascent on the dual, one sample at a time. The
*multipliers* are the negative derivatives of the loss with respect to the scores; the weights are ``multipliers' X``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit

from regbayes_paper._types import Floats, Integers

TINY = 1e-12  # added to squared norms of samples, which can be zero


@dataclass(frozen=True)
class Machine:
    """Solution: weights and their multipliers."""

    weights: Floats  # (L, d)
    multipliers: Floats  # (N, L)
    loss: float  # total loss, including C

    @property
    def objective(self) -> float:
        """Primal objective."""
        return 0.5 * float(np.vdot(self.weights, self.weights)) + self.loss


def class_losses(scores: Floats, labels: Integers, C: Floats, squared: bool) -> Floats:
    """Return ``C_n max_y ([y != y_n] - score_{y_n} + score_y)`` of each sample, or C times the square, (N,)."""
    own = np.take_along_axis(scores, labels[:, None], axis=1)
    hinge = np.max(1.0 - np.eye(scores.shape[1])[labels] - own + scores, axis=1)
    return C * (hinge**2 if squared else hinge)


def solve_classes(
    X: Floats,
    labels: Integers,
    n_classes: int,
    C: Floats,
    *,
    squared: bool = False,
    start: Floats | None = None,
    tol: float = 1e-6,
    max_epochs: int = 1000,
) -> Machine:
    """Solve the multi-class machine of Crammer and Singer, with the hinge or its square.

    Labels (N,) are from 0 to L - 1, and C (N,) weighs the samples. ``start`` holds initial multipliers (N, L). The
    solver stops if the duality gap is at most ``tol`` times the objective.
    """
    alpha = np.zeros((len(X), n_classes)) if start is None else start.copy()
    X, W = np.ascontiguousarray(X), alpha.T @ X
    norms, rng = np.einsum("nd,nd->n", X, X) + TINY, np.random.default_rng(0)
    rows, asked = np.arange(len(X)), 1.0 - np.eye(n_classes)[labels]
    loss = 0.0
    for _ in range(max_epochs):
        loss = float(class_losses(X @ W.T, labels, C, squared).sum())
        mass = alpha[rows, labels]
        rewards = -float(np.vdot(alpha, asked))
        conjugate = 0.25 * float(np.sum(np.divide(mass**2, C, out=np.zeros_like(C), where=C > 0))) if squared else 0.0
        gap = float(np.vdot(W, W)) + loss - rewards + conjugate
        if gap <= tol * (0.5 * float(np.vdot(W, W)) + loss) + TINY:
            break
        _class_epoch(X, norms, labels, asked, C, squared, rng.permutation(len(X)), alpha, W)
    return Machine(W, alpha, loss)


@njit(cache=True)
def _class_epoch(X, norms, labels, asked, C, squared, order, alpha, W):  # noqa: PLR0913
    """Maximize the dual over each sample's multipliers in turn; update multipliers and weights in place.

    A sample's problem is ``min sum_k a_k alpha_k^2 / 2 + d_k alpha_k`` with upper bounds u_k and zero sum. Its solution
    is ``min(u_k, (beta - d_k) / a_k)``, where beta is the root of a concave function, found by Newton's method.
    """
    n_classes = W.shape[0]
    d, a, u = np.empty(n_classes), np.empty(n_classes), np.empty(n_classes)
    for i in order:
        if C[i] <= 0.0:
            continue
        for k in range(n_classes):
            d[k] = asked[i, k] + np.dot(W[k], X[i]) - norms[i] * alpha[i, k]
            a[k], u[k] = norms[i], 0.0
        if squared:
            a[labels[i]] += 0.5 / C[i]
        u[labels[i]] = np.inf if squared else C[i]
        beta = float(np.sum(d / a) / np.sum(1.0 / a))
        for _ in range(n_classes + 1):
            numerator, denominator = 0.0, 0.0
            for k in range(n_classes):
                if beta - d[k] < a[k] * u[k]:
                    numerator += d[k] / a[k]
                    denominator += 1.0 / a[k]
                else:
                    numerator -= u[k]
            if denominator == 0.0 or numerator <= beta * denominator:
                break
            beta = numerator / denominator
        for k in range(n_classes):
            new = min(u[k], (beta - d[k]) / a[k])
            change = new - alpha[i, k]
            if change != 0.0:
                alpha[i, k] = new
                W[k] += change * X[i]


@dataclass(frozen=True)
class Boxes:
    """Targets of a single output, and their losses.

    A sample's loss is ``C max(|target - score| - epsilon, 0)``. With ``one_sided``, scores beyond the target in its
    direction have zero loss, so targets -1 and 1 give the hinge loss.
    """

    targets: Floats  # (N,)
    C: Floats  # (N,)
    epsilon: float = 0.0
    one_sided: bool = False

    def losses(self, scores: Floats) -> Floats:
        """Return the loss of each sample."""
        short = self.targets - scores
        if self.one_sided:
            short = np.where(short * self.targets > 0, short, 0.0)
        return self.C * np.maximum(np.abs(short) - self.epsilon, 0.0)

    def bounds(self) -> tuple[Floats, Floats]:
        """Return the lower and upper bounds of the multipliers."""
        sides = (self.targets < 0, self.targets > 0) if self.one_sided else (True, True)
        return np.where(sides[0], -self.C, 0.0), np.where(sides[1], self.C, 0.0)


def solve_boxes(
    X: Floats, boxes: Boxes, *, start: Floats | None = None, tol: float = 1e-6, max_epochs: int = 1000
) -> Machine:
    """Solve a single-output SVM; parameters as in `solve_classes`, with ``start`` of shape (N,)."""
    beta = np.zeros(len(X)) if start is None else start.copy()
    X, w = np.ascontiguousarray(X), beta @ X
    norms, rng = np.einsum("nd,nd->n", X, X) + TINY, np.random.default_rng(0)
    low, high = boxes.bounds()
    loss = 0.0
    for _ in range(max_epochs):
        loss, square = float(boxes.losses(X @ w).sum()), float(w @ w)
        rewards = float(boxes.targets @ beta - boxes.epsilon * np.abs(beta).sum())
        gap = square + loss - rewards
        if gap <= tol * (0.5 * square + loss) + TINY:
            break
        _box_epoch(X, norms, boxes.targets, boxes.epsilon, low, high, rng.permutation(len(X)), beta, w)
    return Machine(w[None], beta[:, None], loss)


@njit(cache=True)
def _box_epoch(X, norms, targets, epsilon, low, high, order, beta, w):  # noqa: PLR0913
    """Maximize the dual over each sample's multiplier in turn; update multipliers and weights in place."""
    for i in order:
        short = targets[i] - np.dot(X[i], w) + norms[i] * beta[i]
        new = np.sign(short) * max(abs(short) - epsilon, 0.0) / norms[i]
        new = min(max(new, low[i]), high[i])
        change = new - beta[i]
        if change != 0.0:
            beta[i] = new
            w += change * X[i]
