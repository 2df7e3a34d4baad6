"""Stress tests of `regularize` against independent reference solutions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest

from battery.pieces import View, pieces_of
from battery.problems import Problem, make_problem, named_problems, of_atoms
from battery.references import Atoms, Bounds, answer, solve_equalities, solve_with_cvxpy
from battery.verdicts import ALLOWED, Verdict, given_up, judge, judge_drawn, untruths
from regbayes import Finite, Gaussian, regularize
from regbayes.engine import Status
from regbayes.regularizers import AtLeast, Equal, Hinge

pytestmark = pytest.mark.skipif(
    np.finfo(np.longdouble).eps > 2e-19, reason="the references need extended precision, which this processor lacks"
)
SEED = 2026


def listed(verdicts: Iterable[Verdict]) -> str:
    """Return one verdict per line, each with the call that generates its problem."""
    return "\n".join(str(verdict) for verdict in verdicts)


def test_named_problems_have_no_errors_and_are_solved():
    verdicts = [judge(problem, f"named_problems()[{i}]") for i, problem in enumerate(named_problems())]
    assert not listed(v for v in verdicts if v.wrong)
    assert not listed(given_up(verdicts)[0])


def test_random_problems_have_no_errors_and_most_are_solved():
    verdicts = [judge_drawn(SEED, number) for number in range(300)]
    assert not listed(v for v in verdicts if v.wrong)
    left, solvable = given_up(verdicts)
    assert len(left) <= ALLOWED * solvable, listed(left)
    # The comparison is void if the references do not solve the problems.
    assert sum(v.reference in ("optimum", "boundary", "infeasible") for v in verdicts) >= 270


@pytest.mark.parametrize(
    ("seed", "number"),
    [
        (0, 78),  # rare events between bounds 1e-6 apart
        (4, 158),  # a Gaussian between bounds 1e-6 apart
        (5, 382),  # three such intervals in one dimension
        (6, 157),  # squared multi-class hinge at a vertex
        (6, 343),  # overflow
        (7, 99),  # a steep penalty on a 1-ball, with an optimum on its boundary
        (12, 289),  # a mean and its target within rounding of an edge, which made the weights NaN
        (2026, 162),  # intermediate NumPy warnings
        (2026, 267),
    ],
)
def test_formerly_unsolved_problems_are_solved_without_warnings(seed, number):
    verdict = judge_drawn(seed, number)
    assert not verdict.wrong
    assert verdict.status == "optimal"
    assert not verdict.noise


def test_large_constant_does_not_hide_other_infeasible_classes():
    """Two hard classes miss their bound by 1,300; one has the constant value 9e16."""
    verdict = judge_drawn(12, 345)
    assert (verdict.status, verdict.wrong) == ("infeasible", "")


# References


def pieces_of_problem(problem: Problem):
    base = problem.base
    return pieces_of(problem.regularizer, View(np.arange(len(base.centre)), base.centre, base.unit, np.longdouble(1)))


def test_bisection_agrees_with_cvxpy_in_one_dimension():
    compared = 0
    for number in range(150):
        problem = make_problem(SEED + 1, number)
        if not isinstance(problem.base, Atoms) or problem.features.shape[1] > 1:
            continue
        found = problem.answer()
        bounds = Bounds(problem.base, pieces_of_problem(problem))
        if found.word != "optimum" or not solve_with_cvxpy(problem.base, bounds.pieces, "CLARABEL", bounds):
            continue
        if bounds.meet:
            np.testing.assert_allclose([bounds.low, bounds.high], found.low, rtol=1e-6, atol=1e-6)
            compared += 1
    assert compared > 20


def test_extended_precision_equalities_agree_with_cvxpy():
    rng = np.random.default_rng(0)
    for m in (2, 3, 5):
        z = rng.normal(size=(40, m))
        problem = of_atoms("", z, Equal(z.T @ rng.dirichlet(np.ones(40))), rng.normal(size=40))
        pieces = pieces_of_problem(problem)
        ours, theirs = Bounds(problem.base, pieces), Bounds(problem.base, pieces)
        ours.try_multipliers([-solve_equalities(problem.base, pieces[0].low)])
        assert solve_with_cvxpy(problem.base, pieces, "CLARABEL", theirs)
        assert float(ours.high - ours.low) < 1e-15
        np.testing.assert_allclose(float(theirs.low), float(ours.low), rtol=1e-7)


def test_references_agree_with_closed_forms():
    """A Bernoulli divergence, a small penalty, and targets on and beyond the boundary."""
    p, q = 1 / (1 + np.exp(-3.0)), 0.3
    bernoulli = q * np.log(q / p) + (1 - q) * np.log((1 - q) / (1 - p))
    found = of_atoms("", [0, 1], Equal(q), [0.0, 3.0]).answer()
    np.testing.assert_allclose([found.low, found.high], bernoulli, rtol=1e-13)
    hinge = Hinge(1e-3).shift(0.1)
    assert answer(Atoms.of(np.array([[0.0], [1.0]]), np.zeros(2)), hinge).high < 0.4e-3
    assert of_atoms("", [0, 1], AtLeast(1.0)).answer().word == "boundary"
    assert of_atoms("", [0, 1], AtLeast(1 + 1e-6)).answer().word == "infeasible"


def test_reference_lower_bound_is_at_most_upper_bound():
    for number in range(40):
        found = make_problem(SEED + 2, number).answer()
        assert np.isnan(found.low) or found.low <= found.high + 1e-12 * (1 + abs(found.high))


# Wrong results are detected


@pytest.fixture
def honest():
    features = np.array([[0.0, 0.1], [0.3, 1.0], [1.0, 0.2], [0.7, 0.4]])
    problem = of_atoms("", features, Equal([0.6, 0.4]))
    result = regularize(problem.posterior, problem.features, problem.regularizer)
    assert untruths(problem, result, problem.answer()) == []
    return problem, result


@pytest.mark.parametrize(
    ("lie", "heard"),
    [
        ({"status": Status.INFEASIBLE}, "infeasible, but it can be met"),
        ({"status": Status.BOUNDARY}, "boundary, but a finite tilt reaches the optimum"),
        ({"primal": 0.0, "dual": 0.0}, "primal 0.0 below the optimum"),
        ({"primal": 9.0, "dual": 9.0}, "dual 9.0 above the optimum"),
        ({"primal": 9.0}, "optimal with a gap"),
        ({"primal": np.nan}, "primal nan below the optimum"),
        ({"posterior": Finite(np.arange(4.0))}, "optimal with a violation"),
        ({"kl": 9.0}, "kl 9.0 for"),
        ({"after": np.array([0.6, 0.5])}, "after that is off by"),
        ({"multipliers": np.array([1.0, 0.0])}, "multipliers whose tilt is off by"),
        ({"slack": np.array([0.0, 0.1])}, "slack that is off by"),
    ],
)
def test_untruths_detects_wrong_attribute(honest, lie, heard):
    problem, result = honest
    assert any(heard in what for what in untruths(problem, replace(result, **lie), problem.answer()))


def test_untruths_detects_solution_of_infeasible_problem(honest):
    problem, result = honest
    impossible = of_atoms("", problem.features, Equal([0.6, 1.1]))
    assert any("cannot be met" in what for what in untruths(impossible, result, impossible.answer()))


def test_make_problem_same_seed_and_number_is_deterministic():
    one, other = make_problem(SEED, 7), make_problem(SEED, 7)
    np.testing.assert_array_equal(one.features, other.features)
    assert repr(one.regularizer) == repr(other.regularizer)


def test_make_problem_generates_all_posterior_types():
    kinds = {type(make_problem(SEED, number).posterior).__name__ for number in range(40)}
    assert kinds == {"Finite", "Samples", Gaussian.__name__}
