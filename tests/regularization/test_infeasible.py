"""Infeasible constraints raise an error that names them and their violation."""

from __future__ import annotations

import re

import cvxpy as cp
import numpy as np
import pytest

from battery.problems import make_problem
from regbayes import E, Finite, Gaussian, InfeasibleError, Samples, regularize
from regbayes.regularization import regularize as regularize_module
from regbayes.regularization.dual import newton
from regbayes.regularizers import AtMost, Ball, EpsilonInsensitive, Equal, Hinge, MultiClassHinge, Ridge

RNG = np.random.default_rng(0)
MODELS = RNG.normal(size=(40, 3))
POSTERIOR = Finite(MODELS, probabilities=RNG.dirichlet(np.full(40, 5.0)))


def first(x):
    return x[:, 0]


def second(x):
    return x[:, 1]


def how_far_off(error: InfeasibleError) -> list[float]:
    return [float(number) for number in re.findall(r"off by ([-+.\de]+)", str(error))]


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_unreachable_target_is_reported_with_its_distance(scale):
    posterior = Finite(scale * MODELS)
    highest = scale * MODELS[:, 0].max()
    with pytest.raises(InfeasibleError, match=r"E\(first\) >= .* cannot be met") as caught:
        regularize(posterior, [E(second) <= 0.1 * scale, E(first) >= 3.0 * highest])
    assert how_far_off(caught.value) == pytest.approx([2 * highest], rel=1e-4)
    assert "E(second)" not in str(caught.value)
    assert "these draws" not in str(caught.value)  # enumerated models are exhaustive
    assert caught.value.result.status == "infeasible"


@pytest.mark.parametrize(
    "constraint",
    [
        E(first) == 5.0,
        E(first) <= -5.0,
        E(first).between(5.0, 6.0),
        E(first).within(0.1, of=5.0),
        E(first).regularized(Hinge(np.inf) + Hinge(np.inf).reflect(5.0)),
        E(first).regularized(EpsilonInsensitive(5.0, 0.3, np.inf)),
        E(lambda x: x).regularized(MultiClassHinge(np.inf, [5.0, 5.0, 5.0])),
        E(lambda x: x).within(0.5, of=[2.0, 2.0, 2.0], norm=1),
    ],
)
def test_every_hard_constraint_can_be_infeasible(constraint):
    with pytest.raises(InfeasibleError) as caught:
        regularize(POSTERIOR, constraint)
    assert how_far_off(caught.value)
    returned = regularize(POSTERIOR, constraint, raise_infeasible=False)
    assert returned.status == "infeasible"
    assert returned.violation > 1e-3


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_contradictory_pair_shares_the_violation(scale):
    constraints = [E(first) >= 0.5 * scale, E(second) == 0.0, E(first) <= 0.2 * scale]
    with pytest.raises(InfeasibleError, match="contradict") as caught:
        regularize(Finite(scale * MODELS), constraints)
    assert how_far_off(caught.value) == pytest.approx([0.15 * scale, 0.15 * scale], rel=1e-3)
    assert "E(first) >=" in str(caught.value)
    assert "E(first) <=" in str(caught.value)
    assert "E(second)" not in str(caught.value)


@pytest.mark.parametrize("kind", [Finite, Samples])
def test_contradiction_is_distinguished_from_unreachable(kind):
    with pytest.raises(InfeasibleError, match=r"is the same for all (models|draws)") as caught:
        regularize(kind(MODELS), [E(first) >= 0.5, E(lambda x: 2 * x[:, 0] + 3) <= 3.4])
    assert "Draw more" not in str(caught.value)  # other draws would not help
    corner = 0.8 * MODELS.max(axis=0)  # inside the range of each feature, outside the hull
    with pytest.raises(InfeasibleError, match="contradict each other or") as caught:
        regularize(kind(MODELS), E(lambda x: x) >= corner)
    assert ("Draw more" in str(caught.value)) == (kind is Samples)


def test_degenerate_gaussian_is_not_reported_as_contradiction():
    asked = [E([1, 0]) == 0.0, E([1, 1]) == 1.0]
    assert regularize(Gaussian(np.zeros(2), np.eye(2)), asked).status == "optimal"
    with pytest.raises(InfeasibleError, match="contradict each other or the posterior"):
        regularize(Gaussian(np.zeros(2), np.diag([1.0, 0.0])), asked)


def test_hard_margins_on_nonseparable_data_are_infeasible():
    rng = np.random.default_rng(1)
    rows, labels = rng.normal(size=(30, 2)), rng.choice([-1.0, 1.0], size=30)
    margins = labels[:, None] * rows
    with pytest.raises(InfeasibleError, match="contradict") as caught:
        regularize(Gaussian(np.zeros(2), np.ones(2)), margins, Hinge(np.inf).reflect(1.0))
    w, give = cp.Variable(2), cp.Variable(nonneg=True)
    unit = np.linalg.norm(margins, axis=1)
    problem = cp.Problem(cp.Minimize(give), [margins @ w >= 1 - give * unit])
    problem.solve(solver=cp.CLARABEL)
    assert give.value > 0  # no weights attain the margin
    assert len(how_far_off(caught.value)) > 1


def test_contradictory_equalities_on_gaussian():
    posterior = Gaussian(np.zeros(2), np.eye(2))
    with pytest.raises(InfeasibleError) as caught:
        regularize(posterior, [E(np.array([1.0, 1.0])) == 1.0, E(np.array([2.0, 2.0])) == 4.0])
    # Half the difference of the targets, in standard deviations of each: x = 1 and x = 2 for the same x.
    assert how_far_off(caught.value) == pytest.approx([1.0, 0.5], rel=1e-3)
    assert regularize(posterior, [E(np.array([1.0, 1.0])) == 1.0, E(np.array([2.0, 2.0])) == 2.0]).status == "optimal"


def test_constant_features_with_other_targets_are_infeasible():
    posterior = Gaussian(np.zeros(2), np.eye(2))
    with pytest.raises(InfeasibleError):
        regularize(posterior, lambda w: np.array([w[0], 3.0]), Equal([1.0, 2.0]))
    with pytest.raises(InfeasibleError, match="off by 1"):
        regularize(POSTERIOR, E(np.full(40, 3.0)) == 2.0)


def test_unreachable_target_of_draws_reports_their_maximum():
    draws = np.random.default_rng(0).normal(size=1000)
    with pytest.raises(InfeasibleError) as caught:
        regularize(Samples({"mu": draws}), E("mu") >= 6.0)
    assert "E(mu) >= 6" in str(caught.value)
    assert "these draws reach only" in str(caught.value)
    assert how_far_off(caught.value) == pytest.approx([6.0 - draws.max()], rel=1e-4)


def test_soft_constraints_are_never_infeasible():
    for constraint in (
        (E(first) >= 100.0).soft(2.0),
        (E(first) == 100.0).soft(2.0, power=2),
        E(lambda x: x).within(0.1, of=50.0).soft(1.0),
        E(first).regularized(Ridge(1e4, 1.0)),
    ):
        result = regularize(POSTERIOR, constraint)
        assert result.status == "optimal"


def test_soft_constraint_does_not_hide_contradiction():
    with pytest.raises(InfeasibleError, match="contradict"):
        regularize(POSTERIOR, [(E(second) >= 3.0).soft(5.0), E(first) >= 0.3, E(first) <= 0.1])


@pytest.mark.parametrize("room", [1e-1, 1e-3, 1e-5])
def test_narrow_feasible_sets_are_optimal(room):
    x = MODELS.T @ RNG.dirichlet(np.full(40, 5.0))
    for regularizer in (
        Ball(x, room),
        Ball(x, room, norm=1),
        AtMost(x + room) + AtMost(-x + room).reflect(),
    ):
        assert regularize(POSTERIOR, lambda models: models, regularizer).status == "optimal"


@pytest.mark.parametrize("part", [0.99, 0.9999, 0.999999])
def test_targets_near_the_hull_boundary_are_met(part):
    corner = MODELS[np.argmax(MODELS @ np.ones(3))]
    centre = MODELS.mean(axis=0)
    result = regularize(POSTERIOR, E(lambda x: x) == centre + part * (corner - centre))
    assert result.status == "optimal"
    np.testing.assert_allclose(result.after, centre + part * (corner - centre), atol=1e-7)


@pytest.mark.parametrize(("sigma", "share"), [(1.0, 0.5), (1.5, 0.35), (2.0, 0.25)])
def test_heavy_tail_needs_no_feasibility_check(sigma, share, monkeypatch):
    monkeypatch.setattr(regularize_module, "examine", lambda *_: pytest.fail("there is an optimum, and it is near"))
    features = np.exp(sigma * np.random.default_rng(0).normal(size=(20_000, 3)))
    result = regularize(Finite(features), E(features) == share * features.mean(axis=0))
    assert result.status == "optimal"
    assert np.ptp(features @ result.multipliers) > newton.DIVERGING_NATS
    np.testing.assert_allclose(result.expectation(features), share * features.mean(axis=0), rtol=1e-7)


def test_ball_just_outside_is_infeasible_in_few_steps(monkeypatch):
    # Diverging multipliers suggest a face, here one of two atoms, on which the solver would not converge.
    steps, take_step = [], newton._newton_step
    monkeypatch.setattr(newton, "_newton_step", lambda *arguments: steps.append(1) or take_step(*arguments))
    problem = make_problem(9102, 737)
    result = regularize(Finite(np.arange(2.0)), problem.features, problem.regularizer, raise_infeasible=False)
    assert result.status == "infeasible"
    assert len(steps) < 60


def test_probability_outside_unit_interval_is_infeasible():
    draws = Samples(np.random.default_rng(0).normal(size=500))
    positive = E(lambda x: x > 0, name="positive")
    for asked in (positive == 1.2, positive <= -0.1):
        with pytest.raises(InfeasibleError, match="lies between 0 and 1") as caught:
            regularize(draws, asked)
        assert "draw again" not in str(caught.value)
    with pytest.raises(InfeasibleError, match="other draws may reach further"):
        regularize(draws, E(lambda x: x > 10, name="large") == 0.5)
    along = [1.0, 0.0]  # a linear feature of a Gaussian, which is not a probability
    with pytest.raises(InfeasibleError) as caught:
        regularize(Gaussian(np.zeros(2), np.eye(2)), [E(along) == 2.0, E(along) == 3.0])
    assert "lies between 0 and 1" not in str(caught.value)
