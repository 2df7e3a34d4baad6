"""Constraint expressions and errors for invalid ones."""

# ruff: noqa: SIM300, PLW0177 - comparisons with the number on the left and with NaN are tested

from __future__ import annotations

import re

import numpy as np
import pytest

from regbayes import Corr, E, Finite, Gaussian, InfeasibleError, Samples, Var, regularize
from regbayes.regularizers import KL, AtLeast, AtMost, Ball, Equal, Hinge, Ridge, Sum

RNG = np.random.default_rng(0)
MODELS = RNG.normal(size=(40, 2))
POSTERIOR = Finite(MODELS)
DRAWS = {"mu": RNG.normal(size=500), "theta": RNG.normal(size=(500, 3))}


EVENT = MODELS[:, 0] > 0


def both(x):
    return x


BOUND = np.array([-0.1, 0.05])
SAME = {
    "number on the right": (E(both) <= 0.05, AtMost(0.05)),
    "number on the left": (0.05 >= E(both), AtMost(0.05)),
    "NumPy number on the left": (np.float64(0.05) >= E(both), AtMost(0.05)),
    "array on the right": (E(both) <= BOUND, AtMost(BOUND)),
    "array on the left": (BOUND >= E(both), AtMost(BOUND)),
    "list on the left": ([-0.1, 0.05] >= E(both), AtMost(BOUND)),
    "at least, array on the left": (BOUND <= E(both), AtLeast(BOUND)),
    "at least, NumPy number on the left": (np.float64(-0.05) <= E(both), AtLeast(-0.05)),
    "at least": (E(both) >= BOUND, AtLeast(BOUND)),
    "equal": (E(both) == BOUND, Equal(BOUND)),
    "equal, array on the left": (BOUND == E(both), Equal(BOUND)),
    "equal, NumPy number on the left": (np.float64(0.05) == E(both), Equal(0.05)),
    "within": (E(both).within(0.05, of=BOUND), Ball(BOUND, 0.05)),
    "within, another norm": (E(both).within(0.05, of=BOUND, norm=1), Ball(BOUND, 0.05, norm=1)),
    "between": (E(both).between(BOUND, 0.1), Sum([AtLeast(BOUND), AtMost(0.1)])),
    "between, open below": (E(both).between(None, 0.05), AtMost(0.05)),
    "between, open above": (E(both).between(BOUND, None), AtLeast(BOUND)),
    "all columns": (E(both)[:] <= 0.05, AtMost(0.05)),
    "columns by number": (E(both)[[0, 1]] <= BOUND, AtMost(BOUND)),
    "columns counted from the end": (E(both)[[-2, -1]] <= BOUND, AtMost(BOUND)),
    "and": ((E(both)[0] <= BOUND[0]) & (E(both)[1] <= BOUND[1]), AtMost(BOUND)),
    "any": (E(both).regularized(Ridge(BOUND)), Ridge(BOUND)),
}


@pytest.mark.parametrize("name", SAME)
def test_constraint_expression_equals_explicit_regularizer(name):
    constraint, regularizer = SAME[name]
    spelled, written = regularize(POSTERIOR, constraint), regularize(POSTERIOR, both, regularizer)
    np.testing.assert_allclose(spelled.posterior.probabilities, written.posterior.probabilities, atol=1e-12)


@pytest.mark.parametrize(
    ("constraint", "x", "price"),
    [
        ((E(both) <= 1.0).soft(3.0), [2.0, 0.0], 3.0),
        ((E(both) <= 1.0).soft(3.0, power=2), [3.0, 0.0], 12.0),
        ((E(both) >= 1.0).soft(3.0), [2.0, 0.0], 3.0),
        ((E(both) >= 1.0).soft(3.0, power=1.5), [2.0, -3.0], 24.0),
        ((E(both) == 1.0).soft(3.0), [2.0, 0.0], 6.0),
        ((E(both) == 1.0).soft(3.0, power=2), [3.0, 0.0], 15.0),
        (E(both).within(1.0, of=0.0).soft(3.0), [3.0, 4.0], 12.0),
        (E(both).within(1.0, of=0.0, norm=np.inf).soft(3.0), [3.0, 4.0], 9.0),
        (E(both).between(0.0, 1.0).soft(3.0), [-2.0, 3.0], 12.0),
        (E(both).between(0.0, 1.0).soft(3.0, power=2), [-2.0, 3.0], 24.0),
    ],
)
def test_soft_penalty_equals_documented_value(constraint, x, price):
    assert constraint.regularizer.value(x) == pytest.approx(price, rel=1e-14)


def test_soft_limits_are_hard_constraint_and_no_constraint():
    hard = regularize(POSTERIOR, E(both) == BOUND)
    dear = regularize(POSTERIOR, (E(both) == BOUND).soft(1e4))
    cheap = regularize(POSTERIOR, (E(both) == BOUND).soft(1e-9))
    np.testing.assert_allclose(dear.posterior.probabilities, hard.posterior.probabilities, atol=1e-8)
    np.testing.assert_allclose(cheap.posterior.probabilities, POSTERIOR.probabilities, atol=1e-8)


def test_features_in_all_forms_agree():
    posterior = Samples(DRAWS)
    by_name = regularize(posterior, E("mu") == 0.2)
    for features in (
        lambda v: v["mu"],
        lambda v: v.mu,
        DRAWS["mu"],
        DRAWS["mu"][:, None],
        ["mu"],
        [lambda v: v.mu],
    ):
        result = regularize(posterior, E(features) == 0.2)
        np.testing.assert_allclose(result.posterior.weights, by_name.posterior.weights, atol=1e-13)
    several = regularize(posterior, E(["mu", "theta", lambda v: v.mu**2]) <= [0.1, 0.2, 0.2, 0.2, 1.5])
    assert several.multipliers.shape == (5,)
    one_scalar = regularize(posterior, E("theta[1]") == 0.1)
    assert one_scalar.expectation("theta")[1] == pytest.approx(0.1, abs=1e-7)


def test_finite_of_arbitrary_objects():
    words = ["a", "bb", "ccc", "dddd"]
    result = regularize(Finite(words), E(len) == 3.0)
    assert result.expectation(len)[0] == pytest.approx(3.0, abs=1e-8)
    assert set(result.sample(0, size=20)) <= set(words)
    pairs = Finite([(0, 1), (2, 3), (4, 5)])
    assert regularize(pairs, E([lambda p: p[0], lambda p: p[1]]) == [1.0, 2.0]).status == "optimal"


def test_finite_of_mapping():
    posterior = Finite({"k": np.arange(4), "w": np.linspace(0, 1, 4)})
    result = regularize(posterior, [E(lambda v: v.k * v.w) <= 0.5, E("w") >= 0.2])
    assert result.status == "optimal"
    assert set(result.sample(0, size=3)) == {"k", "w"}


def test_labels_use_names_of_features():
    def waiting_time(x):
        return x[:, 0]

    result = regularize(POSTERIOR, [E(waiting_time) <= -0.2, E(lambda x: x[:, 1], name="cost") >= 0.1])
    assert result.labels == ("E(waiting_time) <= -0.2", "E(cost) >= 0.1")
    assert regularize(Samples(DRAWS), E("theta") <= 0.1).labels[2] == "E(theta[2]) <= 0.1"
    assert repr(E(waiting_time) <= 2) == "E(waiting_time) <= 2"
    between = E(both).between([-1.0, -0.5], [0.5, 1.0])
    assert repr(between) == "[-1.  -0.5] <= E(both) <= [0.5 1. ]"
    assert regularize(POSTERIOR, between).labels == ("-1 <= E(both[0]) <= 0.5", "-0.5 <= E(both[1]) <= 1")
    assert regularize(POSTERIOR, E(both).between(-1.0, [0.5, 1.0])).labels[1] == "-1 <= E(both[1]) <= 1"
    assert regularize(POSTERIOR, E(both, name="b").between(-2.0, 2.0)).labels[1] == "-2 <= E(b[1]) <= 2"
    assert regularize(POSTERIOR, E(both)[1] <= 5).labels == ("E(both[1]) <= 5",)
    assert regularize(Samples(DRAWS), E(["mu", "theta[1]"]) <= 5).labels == ("E(mu) <= 5", "E(theta[1]) <= 5")


def test_and_operator_returns_list():
    first, second, third = E(both) <= 1, E(both) >= -1, E(both) <= 2
    assert first & second & third == [first, second, third]
    assert first & [second, third] == [first, second, third]


def test_scalar_names_ignore_spaces():
    posterior = Samples({"L": np.random.default_rng(0).normal(size=(300, 2, 3))})
    with_space, without = (regularize(posterior, E(name) == 0.2) for name in ("L[0, 1]", "L[0,1]"))
    np.testing.assert_array_equal(with_space.multipliers, without.multipliers)
    one = regularize(posterior, E("L")["0, 1"] == 0.2)
    np.testing.assert_allclose(one.multipliers, with_space.multipliers)


def test_function_parameters_are_matched_to_variables():
    posterior = Samples(DRAWS)
    by_mapping = regularize(posterior, E(lambda v: v.mu * v.theta[:, 0]) == 0.2)
    for function in (lambda mu, theta: mu * theta[:, 0], lambda theta, mu, power=1: (mu * theta[:, 0]) ** power):
        np.testing.assert_array_equal(regularize(posterior, E(function) == 0.2).multipliers, by_mapping.multipliers)
    np.testing.assert_array_equal(
        regularize(posterior, E(lambda mu: mu) == 0.2).multipliers, regularize(posterior, E("mu") == 0.2).multipliers
    )
    np.testing.assert_array_equal(
        regularize(posterior, E(lambda mu: mu["theta"][:, 0]) == 0.2).multipliers,
        regularize(posterior, E("theta[0]") == 0.2).multipliers,
    )
    with pytest.raises(ValueError, match="arguments mu, tau: no variable 'tau'; available: mu, theta"):
        regularize(posterior, E(lambda mu, tau: mu / tau) == 0.2)


@pytest.mark.parametrize(
    "chained",
    [
        lambda: 0 <= E(both) <= 1,
        lambda: E(both) >= 0 and E(both) <= 1,
        lambda: bool(E(both) <= 1),
        lambda: not (E(both) <= 1),
        lambda: np.zeros(2) <= E(both) <= np.ones(2),
    ],
)
def test_chained_comparison_raises_with_alternative(chained):
    advice = "write E(psi).between(a, b), or the list [E(psi) >= a, E(psi) <= b]"
    with pytest.raises(TypeError, match=re.escape(advice)):
        chained()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: E(both) < 1.0, "strict inequality"),
        (lambda: E(both) > 1.0, "strict inequality"),
        (lambda: 1.0 > E(both), "strict inequality"),
        (lambda: np.ones(2) < E(both), "strict inequality"),
        (lambda: E(both) != 1.0, "not convex"),
        (lambda: bool(E(both)), "no truth value; compare it"),
        (lambda: E(E(both)), "write E"),
        (lambda: E(both) == (E(both) <= 1), "with numbers or with another"),
        (lambda: E("mu", "tau"), r"write E\(\['mu', 'tau'\]\) for several features, and E\('mu', name=...\)"),
        (lambda: E(both, lambda x: x), r"write E\(\[both, f\]\)"),
        (lambda: E(both) ** 2, r"not linear in the posterior: write E\(lambda v: f\(v\)\*\*2\)"),
        (lambda: abs(E(both)), "between"),
        (lambda: 1 / E(both), "not linear"),
        (lambda: list(E(both)), "not a sequence"),
        (lambda: (E(both) <= 1) | (E(both) >= 2), "either-or of constraints is not convex"),
        (lambda: (E(both) <= 1) & 3, "unsupported operand"),
        (lambda: E(both).regularized(3), r"one of regbayes.regularizers, got 3; write E\(both\) == 3"),
        (lambda: E(both).regularized(Ridge), "one of regbayes.regularizers"),
        (lambda: E(both).given(both) < 1, "strict inequality"),
        (lambda: E(both).given(both) > 1, "strict inequality"),
        (lambda: bool(E(both).given(both)), "no truth value; compare it"),
        (lambda: 0 <= E(both).given(both) <= 1, "no truth value"),
        (lambda: E(E(both).given(both)), "write E"),
        (lambda: E(both).given(both) == E(both), "a conditional one with numbers"),
        (lambda: E(both) * E(both), "product of expectations is not linear"),
        (lambda: 0 * E(both), "other than zero"),
        (lambda: E(both) + np.ones(2), "or a finite number"),
        (lambda: E(both) - E(both).given(both), "compared with a number"),
        (lambda: Var(both) < 1, "strict inequality"),
        (lambda: Var(both) > 1, "strict inequality"),
        (lambda: {Var(both)}, "unhashable"),
        (lambda: 1 <= Var(both) <= 2, r"write the list \[Var\(psi\) >= a, Var\(psi\) <= b\]"),
        (lambda: regularize(POSTERIOR, Var(both) <= 1), "call regularize_moments"),
        (lambda: regularize(POSTERIOR, [E(both) <= 1, Var(both) <= 1]), "call regularize_moments"),
        (lambda: {E(both)}, "unhashable"),
    ],
)
def test_invalid_constraint_raises_type_error(make, message):
    with pytest.raises(TypeError, match=message):
        make()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: E(both).within(-0.1, of=0.0), "eps must be a non-negative"),
        (lambda: E(both).within(np.nan, of=0.0), "eps must be"),
        (lambda: E(both).within(0.1, of=0.0, norm=3), "norm must be 1, 2 or inf"),
        (lambda: E(both).between(1.0, 0.0), "low must not exceed high"),
        (lambda: E(both).between([0.0, 2.0], [1.0, 1.0]), "low must not exceed high"),
        (lambda: E(both).between(None, None), "needs a number on at least one side"),
        (lambda: E(both).given(both) == np.nan, "compared with finite numbers"),
        (lambda: Var(both) <= 0.0, r"Var\(both\) is compared with one number between 0 and inf, got 0.0"),
        (lambda: Var(both) == [1.0, 2.0], "compared with one number"),
        (lambda: Corr(both, both) == 1.5, r"Corr\(both, both\) is compared with one number between -1 and 1"),
        (lambda: E(both) <= float("nan"), "bound must be finite"),
        (lambda: E(both) <= np.inf, "bound must be finite"),
        (lambda: E(both) == [], "target must be"),
        (lambda: E(both) == [[1.0, 2.0]], "target must be"),
        (lambda: (E(both) <= 1.0).soft(0.0), "penalty must be"),
        (lambda: (E(both) <= 1.0).soft(-2.0), "penalty must be"),
        (lambda: (E(both) == 1.0).soft(-2.0, power=2), "penalty must be"),
        (lambda: (E(both) <= 1.0).soft(1.0, power=0.5), "power must be"),
        (lambda: (E(both) == 1.0).soft(1.0, power=3), "power must be"),
        (lambda: E(both).within(0.1, of=0.0).soft(1.0, power=2), "power must be"),
        (lambda: (E(both) <= 1.0).soft(1.0).soft(1.0), "hard constraints"),
        (lambda: E(both).regularized(Ridge(0.0)).soft(1.0), "hard constraints"),
    ],
)
def test_invalid_constraint_values_raise(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: regularize(POSTERIOR, both), TypeError, "give constraints such as"),
        (lambda: regularize(POSTERIOR, E(both)), TypeError, "give constraints such as"),
        (lambda: regularize(POSTERIOR, []), ValueError, "empty"),
        (lambda: regularize(POSTERIOR, [E(both) <= 1, True]), TypeError, "must be one, such as"),
        (lambda: regularize(POSTERIOR, E(both) <= 1, Hinge()), TypeError, "regularizer already"),
        (lambda: regularize(POSTERIOR, [E(both) <= 1], Hinge()), TypeError, "regularizer already"),
        (lambda: regularize(POSTERIOR, both, 3.0), TypeError, "regularizer must be one of"),
        (lambda: regularize(POSTERIOR, both, Hinge), TypeError, "regularizer must be one of"),
        (lambda: regularize(MODELS, E(both) <= 1), TypeError, r"posterior must be a Finite.* write Samples\(draws\)"),
        (lambda: regularize(object(), E(both) <= 1), TypeError, "a dict of arrays, NumPyro's MCMC"),
        (lambda: regularize(POSTERIOR, E(both)[2] <= 1), IndexError, r"E\(f\)\[2\] is out of range: there are 2"),
        (lambda: regularize(POSTERIOR, E(both)[2:] <= 1), IndexError, "picks none of the 2 features"),
        (lambda: regularize(POSTERIOR, E(both)[0.5] <= 1), TypeError, "an integer, a slice, a list of integers or"),
        (
            lambda: regularize(POSTERIOR, E(both)["a"] <= 1),
            ValueError,
            r"picks none or several of the features 'both\[0",
        ),
        (lambda: regularize(POSTERIOR, E(both).given(both) <= 1), ValueError, "one true or false for each draw"),
        (lambda: regularize(POSTERIOR, E(both).given(EVENT) <= [1, 2, 3]), ValueError, "compared with 3 numbers"),
        (lambda: regularize(Gaussian([0.0], [1.0]), E([1.0]).given([1.0]) == 1), TypeError, "not affine; draw from"),
        (lambda: regularize(POSTERIOR, E(both) <= [1, 2, 3]), ValueError, "the constraint functions have 2"),
        (lambda: regularize(POSTERIOR, both, KL([0.2, 0.3, 0.5])), ValueError, "takes 3 expectations"),
        (lambda: regularize(POSTERIOR, E(np.ones(39)) <= 1), ValueError, r"shape \(39,\)"),
        (lambda: regularize(POSTERIOR, E(np.ones((40, 2, 2))) <= 1), ValueError, r"shape \(40, 2, 2\)"),
        (lambda: regularize(POSTERIOR, E(lambda x: 1.0) <= 1), TypeError, "40"),
        (lambda: regularize(POSTERIOR, E(lambda x: x[:3]) <= 1), ValueError, r"shape \(3, 2\)"),
        (lambda: regularize(POSTERIOR, E(lambda x: np.log(x - 100)) <= 1), ValueError, "NaN or infinite"),
        (lambda: regularize(POSTERIOR, E(np.full(40, np.inf)) <= 1), ValueError, "NaN or infinite"),
        (lambda: regularize(Samples(DRAWS), E("nu") <= 1), ValueError, "no variable 'nu'; available: mu, theta"),
        (lambda: regularize(Samples(DRAWS), E("theta[7]") <= 1), ValueError, r"'theta\[0\]'"),
        (lambda: regularize(Gaussian([0.0], [1.0]), E("w") <= 1), TypeError, "coefficients or affine functions"),
        (lambda: Samples(np.empty(0)), ValueError, "empty"),
        (lambda: Samples(np.array([0.0, np.nan])), ValueError, "NaN or infinite"),
        (lambda: Samples({"a": np.ones(3), "b": np.ones(4)}), ValueError, "same for all variables"),
        (lambda: Samples(np.ones(3), log_weights=np.ones(4)), ValueError, "log_weights must have one entry for each"),
        (lambda: Samples(np.ones(2), log_weights=[0.0, np.nan]), ValueError, "NaN or"),
        (lambda: Samples(np.ones(2), log_weights=[-np.inf, -np.inf]), ValueError, "no draw or model any weight"),
        (lambda: Samples(np.ones(3), log_weights=[0.2, 0.5, 0.3]), ValueError, r"sum to one.* pass np.log\(weights\)"),
        (lambda: Finite(np.ones(3), log_weights=[0.2, 0.5, 0.3]), ValueError, "log_weights are non-negative and sum"),
        (lambda: Finite(np.ones(2), probabilities=[0.5, 0.6]), ValueError, "probabilities must sum to one, got 1.1"),
        (lambda: Finite(np.empty((0, 2))), ValueError, "empty"),
        (lambda: Finite([]), ValueError, "empty"),
        (lambda: Finite(np.ones(3), probabilities=[0.5, 0.6]), ValueError, "probabilities must have one entry"),
        (lambda: Finite(np.ones(2), probabilities=[0.5, -0.1]), ValueError, "finite and non-negative"),
        (lambda: Finite(np.ones(2), probabilities=[0.0, 0.0]), ValueError, "no draw or model any weight"),
        (lambda: Finite(np.ones(1), probabilities=[1.0], log_weights=[0.0]), ValueError, "not both"),
    ],
)
@pytest.mark.filterwarnings("ignore:invalid value encountered in log")
def test_invalid_input_raises_informative_error(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize(
    "compare", [lambda e: e <= "3", lambda e: e >= "3", lambda e: e == "3"], ids=["<=", ">=", "=="]
)
def test_string_bound_raises_type_error(compare):
    with pytest.raises(TypeError, match="with numbers, not with the text '3'"):
        compare(E("mu"))


def test_expectations_combine_linearly():
    """E(a) - 2 E(b) + 1 equals E(a - 2 b + 1) for draws, models and a Gaussian."""
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 500))
    draws = Samples({"a": a, "b": b})
    together = regularize(draws, E(a - 2 * b + 1) == 1.3)
    for made in (
        E("a") - 2 * E("b") + 1 == 1.3,
        E("a") == 2 * E("b") + 0.3,
        -E("a") / 2 + E("b") == -0.15,
        1 + E("a") - E(lambda v: 2 * v.b) == 1.3,
        E("a") - E("b") - E("b") == 0.3,
    ):
        result = regularize(draws, made)
        np.testing.assert_allclose(result.posterior.weights, together.posterior.weights, rtol=1e-6)
    assert regularize(draws, 2 * E("a") + E("b") <= -1).labels == ("E(2 * a + b) <= -1",)
    assert regularize(draws, E("a", name="risk") >= E("b")).labels == ("E(risk - b) >= 0",)
    vector = regularize(draws, E(["a", "b"]) - E("a") <= 0.1, raise_infeasible=False)
    assert vector.labels == ("E(a - a) <= 0.1", "E(b - a) <= 0.1")
    with pytest.raises(ValueError, match="different numbers of features"):
        regularize(draws, E(["a", "b"]) == E(["a", "b", "a"]))
    moved = regularize(Gaussian([0.0, 0.0], [1.0, 4.0]), 2 * E([1.0, 0.0]) == E([0.0, 1.0]) + 1)
    np.testing.assert_allclose(moved.posterior.mean @ [2, -1], 1)
    faces = regularize(Finite([1, 2, 3, 4]), E(lambda face: face) - 3 == E(lambda face: face == 4))
    np.testing.assert_allclose(faces.expectation(lambda face: face - 3 - (face == 4)), 0, atol=1e-9)


def test_sampler_output_is_accepted_without_conversion():
    """A dict of arrays, and an object with ``get_samples`` that keeps its chains."""
    drawn = {"mu": np.random.default_rng(0).normal(size=(4, 500))}

    class MCMC:
        def get_samples(self, group_by_chain: bool = False):
            return drawn if group_by_chain else {"mu": drawn["mu"].ravel()}

    expected = regularize(Samples(drawn, chains=True), E("mu") >= 0.3)
    for given in (MCMC(), {"mu": drawn["mu"].ravel()}):
        result = regularize(given, E("mu") >= 0.3)
        np.testing.assert_allclose(result.multipliers, expected.multipliers)
    assert Samples(MCMC()).draws.n_chains == 4


def test_crossing_bounds_of_one_feature_are_both_reported():
    """No draws can meet both bounds, so that they contradict each other."""
    draws = Samples({"mu": np.random.default_rng(0).normal(size=500)})
    with pytest.raises(InfeasibleError, match=r"E\(mu\) >= 6 and E\(mu\) <= 5 contradict each other$"):
        regularize(draws, [E("mu") >= 6, E("mu") <= 5])
