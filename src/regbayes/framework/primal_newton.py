"""Newton's method for large margins with smooth losses: the squared hinge and the squared tube.

Where every multiplier has a ridge the loss is piecewise quadratic in the weights, and a few Newton steps on the primal
(Mangasarian 2002; Keerthi and DeCoste, JMLR 2005) end where coordinate ascent would still be creeping: many rows, few
features, large C. The multipliers are the slopes of the losses, so the dual and its certificate come for free.

Written in the weights of the tasks, ``w_t = own_t + rho common``, the penalty of a group is
``1/2 sum_t |w_t|^2 - c/2 |sum_t w_t|^2`` with ``c = rho^2 / (1 + rho^2 tasks)``: the Newton system has one block per
task plus a term that only their sum sees.
"""

from __future__ import annotations

import numpy as np

from regbayes._types import Floats, Indices
from regbayes.kernels.box import BoxRows, box_scores, box_weights

MAX_HALVINGS = 30
SUFFICIENT = 1e-4  # Armijo's constant
BLOCK_ROWS = 2048  # rows that are copied at a time


class SmoothPrimal:
    """The primal objective of a box dual with ridges, as a function of the weights of each task.

    Parameters
    ----------
    rows : BoxRows
        Every ridge is positive.
    """

    def __init__(self, rows: BoxRows) -> None:
        self.rows = rows
        n_tasks = rows.group.size
        by_task = np.argsort(rows.task, kind="stable")
        ends = np.searchsorted(rows.task[by_task], np.arange(n_tasks + 1))
        self.of_task: list[Indices] = [by_task[ends[t] : ends[t + 1]] for t in range(n_tasks)]
        sizes = np.bincount(rows.group)
        self.coupling = rows.sharing / (1.0 + rows.sharing * sizes)  # (groups,): c

    def multipliers(self, scores: Floats) -> Floats:
        """Return minus the slopes of the losses at given scores: the multipliers that these scores ask for."""
        rows = self.rows
        pull = -(scores + rows.linear)
        soft = np.sign(pull) * np.maximum(np.abs(pull) - rows.absolute, 0.0)
        return np.clip(soft / rows.ridge, rows.lower, rows.upper)

    def loss(self, scores: Floats, u: Floats) -> float:
        """Return the summed loss, given the multipliers at these scores."""
        rows = self.rows
        return -float((scores + rows.linear) @ u + rows.absolute @ np.abs(u) + 0.5 * rows.ridge @ u**2)

    def precision(self, weights: Floats) -> Floats:
        """Return the gradient of the penalty: the prior precision of the weights, times the weights."""
        sums = np.zeros((self.coupling.size, weights.shape[1]))
        np.add.at(sums, self.rows.group, weights)
        return weights - (self.coupling[:, None] * sums)[self.rows.group]

    def curvature(self, members: Indices) -> Floats:
        """Return the identity plus ``sum_i x_i x_i' / ridge_i`` over some rows, summed block by block."""
        rows, total = self.rows, np.eye(self.rows.features.shape[1])
        for first in range(0, members.size, BLOCK_ROWS):
            block = members[first : first + BLOCK_ROWS]
            scaled = rows.features[rows.feature_row[block]] / np.sqrt(rows.ridge[block])[:, None]
            total += scaled.T @ scaled
        return total

    def direction(self, gradient: Floats, u: Floats) -> Floats:
        """Return the Newton direction from the gradient and the multipliers where it was taken."""
        rows, n_features = self.rows, gradient.shape[1]
        curved = (u > rows.lower) & (u < rows.upper) & ((rows.absolute == 0.0) | (u != 0.0))
        blocks = np.array([self.curvature(members[curved[members]]) for members in self.of_task])  # (tasks, d, d)
        step = -np.linalg.solve(blocks, gradient[:, :, None])[:, :, 0]
        if rows.sharing == 0.0:
            return np.asarray(step)
        inverses = np.linalg.inv(blocks)
        summed, sums = (
            np.zeros((self.coupling.size, n_features, n_features)),
            np.zeros((self.coupling.size, n_features)),
        )
        np.add.at(summed, rows.group, inverses)
        np.add.at(sums, rows.group, step)
        by_sum = np.eye(n_features) - self.coupling[:, None, None] * summed
        shared = self.coupling[:, None] * np.linalg.solve(by_sum, sums[:, :, None])[:, :, 0]
        return np.asarray(step + np.einsum("tij,tj->ti", inverses, shared[rows.group]))

    def descend(self, weights: Floats, scores: Floats) -> tuple[Floats, Floats, bool]:
        """Take one step; return the weights, their scores, and whether the objective fell."""
        u = self.multipliers(scores)
        pull = self.precision(weights)
        gradient = pull - box_weights(self.rows, u)
        step = self.direction(gradient, u)
        moved = box_scores(self.rows, step)
        slope = float(np.vdot(gradient, step))
        linear, quadratic = float(np.vdot(pull, step)), 0.5 * float(np.vdot(self.precision(step), step))
        before = self.loss(scores, u)
        length = 1.0
        for _ in range(MAX_HALVINGS):
            new_scores = scores + length * moved
            change = length * linear + length**2 * quadratic
            change += self.loss(new_scores, self.multipliers(new_scores)) - before
            if change <= SUFFICIENT * length * slope:
                return weights + length * step, new_scores, True
            length *= 0.5
        return weights, scores, False
