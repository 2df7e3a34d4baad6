"""Numerically hard problems: scales, offsets, ties and very unequal weights."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from scipy.optimize import linprog

from regbayes import E, Finite, Gaussian, InfeasibleError, NotConvergedWarning, regularize
from regbayes.regularization.composite import Stack
from regbayes.regularization.feasibility import examine
from regbayes.regularization.log_partition import GaussianAffine, WeightedAtoms
from regbayes.regularizers import KL, AtLeast, Ball, Equal, Hinge

RNG = np.random.default_rng(0)
Z, NOISE = RNG.normal(size=(2, 1500))
POSTERIOR = Finite(Z)


@pytest.mark.parametrize("m", [199, 201, 320])
def test_many_equalities_on_gaussian(m):
    d = 350
    A, b = RNG.normal(size=(m, d)), RNG.normal(size=m)
    result = regularize(Gaussian(np.zeros(d), np.ones(d)), E(A) == b)
    assert result.status == "optimal"
    np.testing.assert_allclose(result.posterior.mean, A.T @ np.linalg.solve(A @ A.T, b), atol=1e-8)


@pytest.mark.parametrize("price", [1e3, 1e6, 1e9, 1e12])
def test_large_penalties_equal_hard_constraints(price):
    hard = regularize(POSTERIOR, [E(Z) >= 0.5, E(NOISE) == 0.3])
    soft = regularize(POSTERIOR, [(E(Z) >= 0.5).soft(price), (E(NOISE) == 0.3).soft(price)])
    assert soft.status == "optimal"
    assert soft.gap <= 1e-9 * (1 + soft.dual) + 4 * price * np.finfo(float).eps  # the penalty of one rounding error
    np.testing.assert_allclose(soft.multipliers, hard.multipliers, rtol=1e-6)


def test_coarse_tolerance_still_meets_hard_constraints():
    result = regularize(POSTERIOR, [E(Z) == 0.4, E(NOISE) == -0.3], tol=1.0)
    assert result.status == "optimal"
    assert result.violation <= 1e-4


@pytest.mark.parametrize("limit", [0, 1])
def test_gap_is_positive_if_hard_constraint_is_violated(limit):
    for constraint in (
        [E(Z) == 0.9, E(NOISE) == -0.9],
        [E(Z).within(0.01, of=0.9), E(NOISE) >= 0.5],
        E(np.column_stack([Z, NOISE])).within(0.01, of=[0.9, 0.9]),
    ):
        with pytest.warns(NotConvergedWarning, match="gap .* and violation"):
            result = regularize(POSTERIOR, constraint, max_iter=limit)
        optimum = regularize(POSTERIOR, constraint)
        assert result.status == "iteration_limit"
        assert result.violation > 1e-4
        assert result.gap > 1e-6
        assert result.dual <= optimum.dual + 1e-9


def test_dual_is_lower_bound_at_any_iteration():
    for seed in range(10):
        rng = np.random.default_rng(seed)
        features = rng.normal(size=(30, 4))
        wanted = features.T @ rng.dirichlet(np.full(30, 0.5))
        optimum = regularize(Finite(features), E(lambda x: x) == wanted)
        for limit in range(5):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                early = regularize(Finite(features), E(lambda x: x) == wanted, max_iter=limit, raise_infeasible=False)
            assert early.dual <= optimum.primal + 1e-9


def hull_edge(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return points of the plane, the midpoint of a hull edge, and its outward normal."""
    points = np.random.default_rng(seed).normal(size=(80, 2))
    top = int(np.argmax(points[:, 0]))
    for other in range(80):
        side = points[other] - points[top]
        normal = np.array([side[1], -side[0]])
        if other != top and np.max((points - points[top]) @ normal) <= 1e-12:
            return points, (points[top] + points[other]) / 2, normal / np.linalg.norm(normal)
    raise AssertionError("no edge")


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("away", [1.0, 1e-3, 1e-6])
def test_outside_hull_is_infeasible_with_smallest_change(away, scale):
    points, edge, normal = hull_edge(1)
    wanted = scale * (edge + away * normal)
    with pytest.raises(InfeasibleError, match="off by"):
        regularize(Finite(points), E(scale * points) == wanted)
    partition = WeightedAtoms(scale * points, np.full(80, -np.log(80.0)))
    verdict = examine(partition, Stack.of(Equal(wanted), 2))
    assert verdict.kind == "infeasible"
    # Certificate: no atom attains the combination of the constraints.
    assert verdict.proof @ wanted > np.max(scale * points @ verdict.proof)
    # The change moves the target back to the supporting line of the edge.
    repaired = wanted - np.sign(normal) * verdict.repair
    assert (repaired - scale * edge) @ normal == pytest.approx(0.0, abs=1e-4 * scale * away)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_hull_edge_is_boundary_and_interior_is_optimal(scale):
    points, edge, normal = hull_edge(2)
    on_edge = regularize(Finite(points), E(scale * points) == scale * edge)
    assert on_edge.status == "boundary"
    assert np.count_nonzero(on_edge.posterior.probabilities) == 2
    inside = regularize(Finite(points), E(scale * points) == scale * (edge - 1e-6 * normal))
    assert inside.status == "optimal"
    assert inside.kl < on_edge.kl


@pytest.mark.parametrize("away", [0.5, 1e-2, 1e-5])
def test_ball_outside_hull_is_infeasible(away):
    points, edge, normal = hull_edge(3)
    for norm in (2, np.inf, 1):
        radius = 0.1 / float(np.linalg.norm(normal, {2: 2, np.inf: 1, 1: np.inf}[norm]))
        touching = edge + 0.1 * normal
        with pytest.raises(InfeasibleError, match="off by"):
            regularize(Finite(points), E(points).within(radius, of=touching + away * normal, norm=norm))
        assert regularize(Finite(points), E(points).within(radius, of=touching - away * normal, norm=norm)).status == (
            "optimal"
        )


@pytest.mark.parametrize("seed", range(12))
def test_feasibility_agrees_with_linear_program(seed):
    rng = np.random.default_rng(seed)
    n, m = int(rng.integers(2, 40)), int(rng.integers(1, 9))
    features = rng.normal(size=(n, m)) * 10.0 ** rng.integers(-3, 4, size=m)
    bound = features.mean(axis=0) + rng.normal(size=m) * features.std(axis=0)
    kind = rng.integers(0, 3, size=m)
    constraints = [
        [E(features[:, j]) == bound[j], E(features[:, j]) <= bound[j], E(features[:, j]) >= bound[j]][kind[j]]
        for j in range(m)
    ]
    unit = features.std(axis=0)
    rows, asked = (features / unit).T, bound / unit
    upper = np.vstack([rows[kind == 1], -rows[kind == 2]])
    limits = np.concatenate([asked[kind == 1], -asked[kind == 2]])
    exact, targets = np.vstack([rows[kind == 0], np.ones(n)]), np.append(asked[kind == 0], 1.0)
    feasible = linprog(
        np.zeros(n), upper if len(upper) else None, limits if len(limits) else None, exact, targets
    ).status
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = regularize(Finite(features), constraints, raise_infeasible=False)
    assert result.status == ("optimal" if feasible == 0 else "infeasible")


def test_infeasible_gaussian_has_certificate():
    rows = np.array([[1.0, 1.0], [2.0, 2.0], [1.0, 0.0]])
    verdict = examine(GaussianAffine(np.zeros(3), rows, np.zeros(3)), Stack.of(Equal([1.0, 4.0, 0.0]), 3))
    assert verdict.kind == "infeasible"
    np.testing.assert_allclose(verdict.proof @ rows, 0.0, atol=1e-9)
    assert verdict.proof @ [1.0, 4.0, 0.0] > 1e-3


def test_violation_of_ball_with_mixed_units():
    features = np.column_stack([Z, 1e-6 * NOISE])
    with pytest.warns(NotConvergedWarning):
        result = regularize(POSTERIOR, E(features).within(0.1, of=[0.9, 0.0]), max_iter=0)
    # The shortest way to the ball is nearly along the first feature, whose unit is one.
    outside = 0.9 - Z.mean() - 0.1
    assert result.violation == pytest.approx(outside / Z.std(), rel=1e-2)


@pytest.mark.parametrize("start", [[np.nan], [np.inf]])
def test_non_finite_warm_start_raises_value_error(start):
    with pytest.raises(ValueError, match="warm_start must be finite"):
        regularize(POSTERIOR, E(Z) >= 0.5, warm_start=start)


def test_many_soft_bounds():
    features = np.random.default_rng(0).normal(size=(300, 80))
    result = regularize(Finite(features), [(E(features[:, i]) >= 0.1).soft(0.5) for i in range(80)])
    assert result.status == "optimal"
    x, phi = result.after, result.multipliers
    # Complementarity: the multiplier is the full penalty at violated bounds and zero at inactive ones.
    np.testing.assert_allclose(phi[x < 0.1 - 1e-7], 0.5, atol=1e-9)
    np.testing.assert_allclose(phi[x > 0.1 + 1e-7], 0.0, atol=1e-12)


def test_examine_reports_inside_and_infeasible():
    assert (
        examine(WeightedAtoms(Z[:, None], np.full(len(Z), -np.log(len(Z)))), Stack.of(Hinge(3.0), 1)).kind == "inside"
    )
    assert examine(WeightedAtoms(Z[:, None], np.full(len(Z), -np.log(len(Z)))), Stack.of(AtLeast(0.5), 1)).kind == (
        "inside"
    )
    assert examine(WeightedAtoms(Z[:, None], np.full(len(Z), -np.log(len(Z)))), Stack.of(Ball(9.0, 1.0), 1)).kind == (
        "infeasible"
    )


@pytest.mark.parametrize("weight", [1e-4, 0.03, 1.0, 30.0])
@pytest.mark.parametrize("seed", range(8))
def test_kl_penalty_multiplier_is_gradient(seed, weight):
    """The multiplier is minus the gradient of ``weight target log(target / x)``."""
    rng = np.random.default_rng(seed)
    n, m = int(rng.choice([20, 100])), 3
    features = np.exp(rng.normal(size=(n, m)) - 1) * (rng.random((n, m)) < 0.7)
    target = rng.dirichlet(np.ones(m))
    result = regularize(Finite(np.arange(float(n))), E(features).regularized(KL(target, weight)))
    assert result.status == "optimal"
    ratio = result.multipliers * result.after / (weight * target)
    gap = weight * float(target @ (ratio - 1 - np.log(ratio)))  # Fenchel-Young gap: zero if the ratio is one
    assert gap <= 1e-9 * (1 + abs(result.dual)) + 1e-15
    tilted = np.exp(features @ result.multipliers)
    np.testing.assert_allclose(result.posterior.weights, tilted / tilted.sum(), rtol=1e-9)


def test_many_infeasible_equalities_have_certificate():
    features = np.random.default_rng(0).normal(size=(4000, 60))
    wanted = features.mean(axis=0) + 0.6
    partition = WeightedAtoms(features, np.full(4000, -np.log(4000.0)))
    verdict = examine(partition, Stack.of(Equal(wanted), 60))
    assert verdict.kind == "infeasible"
    assert verdict.proof @ wanted > np.max(features @ verdict.proof)
    assert regularize(Finite(features), E(features) == wanted, raise_infeasible=False).status == "infeasible"
    assert regularize(Finite(features), E(features) == features.mean(axis=0) + 0.1).status == "optimal"
