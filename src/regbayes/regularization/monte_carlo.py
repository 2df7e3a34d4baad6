"""Monte Carlo errors of regularized draws, docs/math.md eq. (16)-(18).

Other draws of the same posterior would give other expectations, multipliers and solutions. To first order, the error of
each estimate is the mean of its *influence*, one number per draw. The standard error is that of this mean along the
chains.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from regbayes._types import Floats
from regbayes.regularization.composite import QuadraticModel, Stack
from regbayes.regularization.diagnostics import average_batches, monte_carlo_error
from regbayes.regularization.dual.conditioning import condition
from regbayes.regularization.log_partition import WeightedAtoms, find_scales
from regbayes.regularization.posteriors import Samples
from regbayes.regularization.regularizers import Regularizer


@dataclass(frozen=True)
class Influences:
    """Influence of each draw on the estimates, averaged in batches for long chains.

    ``values``, ``own``, ``response`` and ``phi`` refer to the features of the dual problem: the constrained features
    ``given``, or uncorrelated combinations of them.
    """

    samples: Samples  # the tilted draws
    base: Samples  # the original draws
    scale: Floats  # (m,): the units of ``given``
    given: Floats  # (n, m): the constrained features
    values: Floats  # (n, k)
    own: Floats  # (n_chains, n_batches, k): n q_i (psi_i - E_q[psi]), the influence on E_q[psi] at fixed multipliers
    response: Floats  # (k, k): K with d phi = -K d E[psi]
    phi: Floats  # (k,): finite multipliers, on the face if there is one
    back: Floats  # (m, k): from multipliers of ``values`` to those of ``given``

    @np.errstate(over="ignore", invalid="ignore")
    def of_multipliers(self) -> Floats:
        """Return the influence on the multipliers, shape (n_chains, n_batches, m)."""
        return self._of_own_multipliers() @ self.back.T / self.scale

    def _of_own_multipliers(self) -> Floats:
        return -self.own @ self.response.T

    @np.errstate(over="ignore", invalid="ignore")
    def of_expectations(self) -> Floats:
        """Return the influence on the constrained expectations, including multipliers."""
        return self.of_features(self.given) * self.scale

    @np.errstate(over="ignore", invalid="ignore")
    def of_features(self, values: Floats) -> Floats:
        """Return the influence on features (n, j), shape (n_chains, n_batches, j)."""
        weighted = self.samples.weights[:, None] * (values - self.samples.weights @ values)
        covariance = self.values.T @ weighted  # with the constrained features, (k, j); `weighted` has mean zero
        at_fixed = average_batches(self.samples.by_chain(self.samples.n_atoms * weighted))
        return at_fixed + self._of_own_multipliers() @ covariance

    @np.errstate(over="ignore", invalid="ignore")
    def of_kl(self) -> Floats:
        """Return the influence on ``KL(q || p)``, shape (n_chains, n_batches, 1)."""
        log_partition = self.samples.n_atoms * (self.samples.weights - self.base.weights)
        moved = self.of_features(self.values) @ self.phi - average_batches(self.samples.by_chain(log_partition))
        return moved[..., None]


def find_errors(influence: Floats) -> Floats:
    """Return the standard errors of means of influences, shape (k,)."""
    unit = np.max(np.abs(influence), axis=(0, 1))  # so that squares neither overflow nor underflow
    unit = np.where(np.isfinite(unit) & (unit > 0), unit, 1.0)
    return np.array([unit[j] * monte_carlo_error(influence[..., j] / unit[j]) for j in range(influence.shape[-1])])


def find_influences(
    samples: Samples, base: Samples, values: Floats, regularizer: Regularizer, stacked: Floats
) -> Influences:
    """Linearize the solution in the draws.

    Parameters
    ----------
    samples, base : Samples
        The tilted and the original draws.
    values : array of shape (n, m)
        The constrained features.
    regularizer : Regularizer
    stacked : array of shape (M,)
        The dual solution, one entry per coordinate of the elementary regularizers.
    """
    weights = samples.weights
    stack = Stack.of(regularizer, values.shape[1])
    found = find_scales(np.maximum(values.max(axis=0), -values.min(axis=0)), stack.blocks)
    scale = np.ones(values.shape[1]) if found is None else found
    if found is not None:
        values, stacked = values / scale, stacked * scale[stack.index]
        stack = stack.in_units(np.zeros(len(scale)), scale)
    given, back = values, np.eye(values.shape[1])
    if np.count_nonzero(np.isfinite(stack.targets)) > 1:
        partition = WeightedAtoms(values, base.log_weights)
        conditioned = condition(partition, stack)
        if conditioned is not None:
            stacked, stack, back = conditioned.from_given(stacked), conditioned.stack, conditioned.back
            assert isinstance(conditioned.partition, WeightedAtoms)
            values = np.zeros((len(given), stack.n_features))
            values[slice(None) if partition.support is None else partition.support] = conditioned.partition.features
    with np.errstate(over="ignore", invalid="ignore"):
        expectation = weights @ values
        own = samples.n_atoms * weights[:, None] * (values - expectation)
        covariance = (values - expectation).T @ own / samples.n_atoms
        response = _respond(stack, stacked, expectation, covariance)
    own = average_batches(samples.by_chain(own))
    return Influences(samples, base, scale, given, values, own, response, -stack.add_up(stacked), back)


def _respond(stack: Stack, u: Floats, expectation: Floats, covariance: Floats) -> Floats:
    """Return K with ``d phi = -K d``, the response of multipliers to expectations.

    docs/math.md eq. (17). The dual solution is a fixed point of the proximal gradient map, so that the map's
    generalized Jacobian determines the response: zero for an inactive constraint, the inverse covariance for an active
    one, less for a soft one.
    """
    model = QuadraticModel(covariance[np.ix_(stack.index, stack.index)], None, np.zeros(len(u)), stack.pieces)
    forward, identity = u / model.scale + model.scale * expectation[stack.index], np.eye(len(u))
    jacobian = model.multiply_jacobian(forward, 1.0, identity)
    assert model.hessian is not None
    system = identity - model.multiply_jacobian(forward, 1.0, identity - model.hessian)
    if not np.all(np.isfinite(system)):
        return np.full_like(covariance, np.nan)
    moved = model.scale[:, None] * (np.linalg.pinv(system, rcond=1e-10) @ jacobian) * model.scale
    response = np.zeros_like(covariance)
    np.add.at(response, np.ix_(stack.index, stack.index), moved)
    return response
