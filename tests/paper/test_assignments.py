"""Problems of single rows: the compiled solver against the NumPy reference, and the reference against CVXPY."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest

from reference.assignments import reference_solve_assignments
from regbayes_paper.models.assignments import solve_assignments

N, T, A = 30, 4, 5
BOTH = (reference_solve_assignments, solve_assignments)
both_losses = pytest.mark.parametrize("squared", [False, True], ids=["hinge", "squared"])


def problem(squared, C, seed=0):
    """Random rows, and multipliers to start from: spread over all classes for half of them, on one for the others."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(A, size=N)
    gains, cost = 2.0 * rng.standard_normal((N, T, A)), rng.uniform(0.5, 2.0, size=(N, A))
    gains[np.arange(N), :, labels] = cost[np.arange(N), labels] = 0.0
    costs = np.full(N, C)
    costs[::7] = 0.0
    omega = rng.dirichlet(np.ones(A), size=N)
    omega[1::2] = np.eye(A)[labels[1::2]]
    omega *= costs[:, None]
    if squared:
        omega[np.arange(N), labels] = 0.0
    return (3.0 * rng.standard_normal((N, T)), gains, cost, labels, costs, squared), omega


def solved(solve, given, omega, tol, max_steps):
    omega, q = omega.copy(), np.empty((N, T))
    gap = solve(*given, tol, max_steps, omega, q)
    return omega, q, gap


# At large C and after many steps distributions are nearly all on one component. Newton's system is then nearly
# singular and its solution a matter of rounding: there it is the end that has to be the same.


@both_losses
@pytest.mark.parametrize("C", [0.05, 1.0])
@pytest.mark.parametrize("max_steps", [0, 1])
def test_compiled_steps_match_the_reference(squared, C, max_steps):
    given, start = problem(squared, C)
    expected, actual = (solved(solve, given, start, 1e-8, max_steps) for solve in BOTH)
    for one, other in zip(expected, actual, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-6, atol=1e-7 * max(C, 1.0))


@both_losses
@pytest.mark.parametrize("C", [0.05, 1.0, 30.0])
def test_both_end_at_the_same_distributions(squared, C):
    given, start = problem(squared, C, seed=1)
    (_, expected, reference_gap), (_, actual, gap) = (solved(solve, given, start, 1e-9, 200) for solve in BOTH)
    assert max(reference_gap, gap) <= 1e-9
    # The problem is strongly convex in q, in the 1-norm: a gap bounds the squared distance from the solution.
    loss = (given[2] - np.einsum("nka,nk->na", given[1], expected)).max(axis=1)
    loss = np.square(loss) if squared else loss
    bound = 2.0 * np.sqrt(2.0 * 1e-9 * C * (1.0 + loss))
    assert np.all(np.abs(actual - expected).sum(axis=1) <= bound + 1e-12)


@both_losses
def test_reference_finds_the_distributions_of_cvxpy(squared):
    given, start = problem(squared, 2.0, seed=2)
    logits, gains, cost, _, _, _ = given
    omega, q, _ = solved(reference_solve_assignments, given, start, 1e-9, 200)
    np.testing.assert_allclose(q.sum(axis=1), 1.0)
    assert np.all(omega >= 0)
    for n in (1, 2, 3):
        z = cp.Variable(T, nonneg=True)
        hinge = cp.max(cost[n] - gains[n].T @ z)
        loss = cp.square(cp.pos(hinge)) if squared else hinge
        value = cp.sum(cp.kl_div(z, np.exp(logits[n]))) + 2.0 * loss
        cp.Problem(cp.Minimize(value), [cp.sum(z) == 1]).solve(solver=cp.CLARABEL)
        np.testing.assert_allclose(q[n], z.value, atol=1e-4)


@pytest.mark.parametrize("solve", BOTH)
@both_losses
def test_rows_without_a_C_follow_their_logits(solve, squared):
    given, start = problem(squared, 1.0)
    omega, q, _ = solved(solve, given, start, 1e-6, 50)
    free = np.exp(given[0][::7])
    np.testing.assert_allclose(q[::7], free / free.sum(axis=1, keepdims=True), rtol=1e-12)
    assert not np.any(omega[::7])
