"""No wrong word: `regularize` on hard problems beside independent references, and the references beside each other."""

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
    """Verdicts one below the other, each with the call that makes its problem again."""
    return "\n".join(str(verdict) for verdict in verdicts)


def test_named_problems_get_no_wrong_word_and_are_all_solved():
    verdicts = [judge(problem, f"named_problems()[{i}]") for i, problem in enumerate(named_problems())]
    assert not listed(v for v in verdicts if v.wrong)
    assert not listed(given_up(verdicts)[0])


def test_drawn_problems_get_no_wrong_word_and_are_nearly_all_solved():
    verdicts = [judge_drawn(SEED, number) for number in range(300)]
    assert not listed(v for v in verdicts if v.wrong)
    left, solvable = given_up(verdicts)
    assert len(left) <= ALLOWED * solvable, listed(left)
    # A battery whose references know nothing would find nothing.
    assert sum(v.reference in ("optimum", "boundary", "infeasible") for v in verdicts) >= 270


@pytest.mark.parametrize(
    ("seed", "number"),
    [
        (0, 78),  # rare events between bounds a millionth apart
        (1, 414),  # the same with weights over nats
        (4, 158),  # a Gaussian between bounds a millionth apart
        (5, 382),  # three such intervals on one dimension
        (6, 157),  # squared classes at a vertex
        (6, 343),  # numbers out of range inside an interior point
        (7, 99),  # a steep 1-ball that is met at its edge
        (12, 289),  # a mean and its target within rounding of an edge: weights were nan
        (2026, 162),  # NumPy's warnings on the way
        (2026, 267),
    ],
)
def test_problems_that_were_once_given_up_are_solved_in_silence(seed, number):
    verdict = judge_drawn(seed, number)
    assert not verdict.wrong
    assert verdict.status == "optimal"
    assert not verdict.noise


def test_a_large_constant_does_not_hide_what_other_classes_miss():
    """Two hard classes miss their bound by 1,300; one of them has the constant value 9e16."""
    verdict = judge_drawn(12, 345)
    assert (verdict.status, verdict.wrong) == ("infeasible", "")


# The references


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


def test_equalities_in_extended_precision_agree_with_cvxpy():
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


def test_references_know_closed_forms():
    """Two models: a Bernoulli divergence. A Gaussian: half the squared distance. A price below the slope: no move."""
    p, q = 1 / (1 + np.exp(-3.0)), 0.3
    bernoulli = q * np.log(q / p) + (1 - q) * np.log((1 - q) / (1 - p))
    found = of_atoms("", [0, 1], Equal(q), [0.0, 3.0]).answer()
    np.testing.assert_allclose([found.low, found.high], bernoulli, rtol=1e-13)
    hinge = Hinge(1e-3).shift(0.1)
    assert answer(Atoms.of(np.array([[0.0], [1.0]]), np.zeros(2)), hinge).high < 0.4e-3
    assert of_atoms("", [0, 1], AtLeast(1.0)).answer().word == "boundary"
    assert of_atoms("", [0, 1], AtLeast(1 + 1e-6)).answer().word == "infeasible"


def test_bounds_of_references_enclose_in_the_right_order():
    for number in range(40):
        found = make_problem(SEED + 2, number).answer()
        assert np.isnan(found.low) or found.low <= found.high + 1e-12 * (1 + abs(found.high))


# Whoever lies is caught


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
def test_a_wrong_word_is_found(honest, lie, heard):
    problem, result = honest
    assert any(heard in what for what in untruths(problem, replace(result, **lie), problem.answer()))


def test_a_solution_of_what_cannot_be_met_is_found(honest):
    problem, result = honest
    impossible = of_atoms("", problem.features, Equal([0.6, 1.1]))
    assert any("cannot be met" in what for what in untruths(impossible, result, impossible.answer()))


def test_a_problem_is_the_same_for_the_same_numbers():
    one, other = make_problem(SEED, 7), make_problem(SEED, 7)
    np.testing.assert_array_equal(one.features, other.features)
    assert repr(one.regularizer) == repr(other.regularizer)


def test_all_posteriors_are_drawn():
    kinds = {type(make_problem(SEED, number).posterior).__name__ for number in range(40)}
    assert kinds == {"Finite", "Samples", Gaussian.__name__}
