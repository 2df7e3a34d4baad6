"""Conditional expectations, variances and correlations as constraints."""

from __future__ import annotations

import numpy as np
import pytest

import regbayes
from regbayes import (
    Corr,
    E,
    Finite,
    Gaussian,
    InfeasibleError,
    NotConvergedWarning,
    Samples,
    Var,
    regularize,
    regularize_moments,
)

RNG = np.random.default_rng(0)
N = 4000
X = RNG.normal(size=N)
DRAWS = {"x": X, "y": np.exp(0.5 * RNG.normal(size=N)), "z": 0.5 * X + RNG.normal(size=N)}
POSTERIOR = Samples(DRAWS)


def positive(v):
    return v.x > 0


def conditional_mean(weights, values, event):
    return weights[event] @ values[event] / weights[event].sum()


@pytest.mark.parametrize("event", [positive, lambda v: v.x > 0, lambda x: x > 0, X > 0])
def test_conditional_expectations_meet_target(event):
    result = regularize(POSTERIOR, E("z").given(event) == 0.8)
    weights = result.posterior.weights
    assert conditional_mean(weights, DRAWS["z"], X > 0) == pytest.approx(0.8, abs=1e-8)
    assert float(result.expectation(E("z").given(event))) == pytest.approx(0.8, abs=1e-8)
    # outside the event the tilt is constant: only the event's probability changes
    assert np.ptp(result.posterior.log_weights[X <= 0]) < 1e-12


def test_conditional_bounds_and_vectors():
    result = regularize(POSTERIOR, E(["z", "y"]).given(positive, name="x > 0") <= [0.2, 5.0])
    assert result.labels == ("E((z - 0.2) 1[x > 0]) <= 0", "E((y - 5) 1[x > 0]) <= 0")
    found = result.expectation(E(["z", "y"]).given(positive))
    assert found[0] == pytest.approx(0.2, abs=1e-8)
    assert result.multipliers[1] == 0.0
    before = conditional_mean(POSTERIOR.weights, DRAWS["z"], X > 0)
    raised = regularize(POSTERIOR, [E("y") <= 9.0, E("z").given(positive).between(before + 0.1, before + 0.2)])
    assert float(raised.expectation(E("z").given(positive))) == pytest.approx(before + 0.1, abs=1e-8)
    assert repr(E("z").given(positive)) == "E(z | positive)"


def test_conditional_expectations_of_objects():
    words = ["a", "bb", "ccc", "dddd", "e"]
    result = regularize(Finite(words), E(len).given(lambda word: len(word) > 1) == 2.5)
    q = result.posterior.probabilities
    assert (2 * q[1] + 3 * q[2] + 4 * q[3]) / q[1:4].sum() == pytest.approx(2.5, abs=1e-8)


def test_conditional_expectation_has_mcse_and_requires_event():
    result = regularize(POSTERIOR, E("x") >= -10.0)
    half = DRAWS["z"][X > 0]
    assert result.mcse(E("z").given(positive))[0] == pytest.approx(half.std() / np.sqrt(half.size), rel=0.1)
    with pytest.raises(ValueError, match=r"E\(z \| event\) is not defined: the event has probability 0"):
        result.expectation(E("z").given(lambda v: v.x > 100))


@pytest.mark.filterwarnings("ignore::regbayes.UnreliableWeightsWarning")
@pytest.mark.parametrize("size", [1, 2, 7])
@pytest.mark.parametrize("kind", [Finite, Samples])
def test_unreachable_conditional_expectation_is_infeasible(kind, size):
    """A target outside the range of the event's draws would need probability zero."""
    values, event = np.array(DRAWS["z"][:40]), np.arange(40) < size
    low, high = values[:size].min(), values[:size].max()
    posterior = kind({"z": values})
    for beyond in (high + 1e-3, low - 1e-3):
        with pytest.raises(InfeasibleError, match="cannot be met unless the event never happens"):
            regularize(posterior, E("z").given(event) == beyond)
        assert regularize(posterior, E("z").given(event) == beyond, raise_infeasible=False).status == "infeasible"
    with pytest.raises(InfeasibleError, match="never happens"):
        regularize(posterior, [E("z") >= values.mean(), E("z").given(event) >= high + 1e-3])
    within = regularize(posterior, E("z").given(event) == 0.5 * (low + high))
    assert within.status == "optimal"
    for edge, result in ((high, regularize(posterior, E("z").given(event) >= high)), (0.5 * (low + high), within)):
        assert float(result.expectation(E("z").given(event))) == pytest.approx(edge, abs=1e-7)
        assert result.posterior.weights[event].sum() > 0


def test_event_with_probability_zero_raises():
    with pytest.raises(ValueError, match="the event has probability 0"):
        regularize(POSTERIOR, E("z").given(lambda v: v.x > 100) == 1.0)
    logs = np.where(np.arange(6) < 2, -np.inf, 0.0)
    with pytest.raises(ValueError, match="the event has probability 0"):
        regularize(Finite(np.arange(6.0), log_weights=logs), E(lambda x: x).given(lambda x: x < 2) == 1.0)


@pytest.mark.parametrize(
    ("constraints", "statistic", "value"),
    [
        (Var("x") == 0.5, lambda c: c[0, 0], 0.5),
        ([Var("y") <= 0.1], lambda c: c[1, 1], 0.1),
        (Var("y") >= 0.5, lambda c: c[1, 1], 0.5),
        ([Corr("x", "z") == 0.0], lambda c: c[0, 2], 0.0),
        (Corr("x", "z") >= 0.8, lambda c: c[0, 2] / np.sqrt(c[0, 0] * c[2, 2]), 0.8),
        ([Corr("x", "y") == 0.4, E("y") == 1.2], lambda c: c[0, 1] / np.sqrt(c[0, 0] * c[1, 1]), 0.4),
    ],
)
@pytest.mark.filterwarnings("ignore::regbayes.UnreliableWeightsWarning")
def test_variances_and_correlations_meet_target(constraints, statistic, value):
    answer = regularize_moments(POSTERIOR, constraints)
    covariance = np.cov(np.stack(list(DRAWS.values())), aweights=answer.regularized.posterior.weights, ddof=0)
    assert statistic(covariance) == pytest.approx(value, abs=1e-6)
    assert answer.converged
    assert answer.regularized.status == "optimal"
    assert answer.after[0] == pytest.approx(value, abs=1e-6)
    assert str(answer).startswith(f"converged after {answer.n_rounds} iterations")


@pytest.mark.filterwarnings("ignore::regbayes.UnreliableWeightsWarning")
@pytest.mark.parametrize(
    ("make", "sign", "centres"),
    [
        (lambda: Var("y") <= 0.1, 1, np.linspace(0.9, 1.0, 41)),
        (lambda: Var("y") >= 0.5, -1, np.linspace(1.15, 1.25, 41)),
    ],
)
def test_variance_is_the_best_over_all_means(make, sign, centres):
    """Given the mean, a variance is a second moment: search over the means."""
    constraint = make()
    answer = regularize_moments(POSTERIOR, constraint)

    def with_mean(c):
        square = E(lambda v: sign * v.y**2) <= sign * (constraint.value + c**2)
        return regularize(POSTERIOR, [E("y") == c, square]).kl

    searched = min(with_mean(c) for c in centres)
    assert answer.regularized.kl <= searched + 1e-7
    assert answer.regularized.kl == pytest.approx(searched, rel=2e-3)


def test_satisfied_moments_have_zero_divergence():
    answer = regularize_moments(POSTERIOR, [Var("x") <= 5.0, Corr("x", "z") >= 0.0])
    assert answer.regularized.kl == 0.0
    assert answer.n_rounds == 1
    assert answer.violation.tolist() == [0.0, 0.0]
    assert answer.labels == ("Var(x) <= 5", "Corr(x, z) >= 0")


def test_moments_are_saved_and_loaded(tmp_path):
    answer = regularize_moments(POSTERIOR, Var("x") == 0.8)
    answer.save(tmp_path / "answer")
    assert str(regbayes.load(tmp_path / "answer")) == str(answer)


def test_regularize_moments_too_few_rounds_warns():
    with pytest.warns(
        NotConvergedWarning, match="stopped after 1 rounds with the statements met up to .* Raise max_rounds"
    ):
        answer = regularize_moments(POSTERIOR, Var("y") <= 0.15, max_rounds=1)
    assert not answer.converged
    assert "not converged after 1 iterations" in answer.summary()


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: regularize_moments(POSTERIOR, E("x") <= 1),
            ValueError,
            "neither a variance nor a correlation; call regularize",
        ),
        (lambda: regularize_moments(POSTERIOR, Var(["x", "y"]) <= 1), ValueError, "about one feature, got 2"),
        (lambda: regularize_moments(POSTERIOR, Var(np.ones(N)) <= 1), ValueError, "the feature does not vary"),
        (
            lambda: regularize_moments(POSTERIOR, Var("x") <= 1, max_rounds=0),
            ValueError,
            "max_rounds must be at least 1",
        ),
        (lambda: regularize_moments(Gaussian([0.0], [1.0]), Var([1.0]) <= 1), TypeError, "keeps its covariance"),
    ],
)
def test_regularize_moments_invalid_statements_raise(call, error, message):
    with pytest.raises(error, match=message):
        call()
