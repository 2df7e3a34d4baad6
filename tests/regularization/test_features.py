"""Features as functions, arrays, names and lists of these."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from regbayes.regularization.draws import Draws, as_draws
from regbayes.regularization.features import evaluate_features

N = 40


def evaluated(draws: Draws, features: Any) -> tuple[np.ndarray, tuple[str, ...]]:
    result = evaluate_features(draws, features)
    return result.values, result.names


@pytest.fixture
def named() -> Draws:
    rng = np.random.default_rng(0)
    return as_draws({"mu": rng.normal(size=N), "theta": rng.normal(size=(N, 2, 3)), "n": rng.poisson(2.0, size=N)})


@pytest.fixture
def unnamed() -> Draws:
    return as_draws(np.random.default_rng(1).normal(size=(N, 3)))


def spread(v: Any) -> Any:
    return v.theta.max(axis=(1, 2)) - v.theta.min(axis=(1, 2))


def test_feature_functions_receive_all_draws_at_once(named: Draws, unnamed: Draws) -> None:
    values, names = evaluated(named, lambda v: v["mu"] * v.theta[:, 0, 1])
    np.testing.assert_array_equal(values[:, 0], named.variables["mu"] * named.variables["theta"][:, 0, 1])
    assert names == ("f(mu, theta)",)
    values, names = evaluated(unnamed, lambda x: x[:, :2] ** 2)
    np.testing.assert_array_equal(values, unnamed.view()[:, :2] ** 2)
    assert names == ("psi[0]", "psi[1]")
    values, names = evaluated(named, spread)
    assert names == ("spread",)
    assert values.shape == (N, 1)
    assert evaluate_features(unnamed, functools.partial(np.mean, axis=1)).names == ("psi",)


def test_boolean_features_are_event_probabilities(unnamed: Draws) -> None:
    values, _ = evaluated(unnamed, lambda x: x[:, 0] > 0)
    assert values.dtype == np.float64
    assert values.mean() == np.mean(unnamed.view()[:, 0] > 0)


def test_features_by_variable_and_scalar_name(named: Draws) -> None:
    values, names = evaluated(named, "theta")
    np.testing.assert_array_equal(values, named.variables["theta"].reshape(N, 6))
    assert names[:2] == ("theta[0, 0]", "theta[0, 1]")
    for column, name in enumerate(names):
        one = evaluate_features(named, name)
        np.testing.assert_array_equal(one.values[:, 0], values[:, column])
        assert one.names == (name,)
    assert evaluate_features(named, "n").values.dtype == np.float64


def test_feature_lists_are_concatenated(named: Draws) -> None:
    given = np.arange(2.0 * N).reshape(N, 2)
    values, names = evaluated(named, ["mu", spread, given, lambda v: v.n, "theta[1, 2]"])
    assert names == ("mu", "spread", "psi_2[0]", "psi_2[1]", "f(n)", "theta[1, 2]")
    assert values.flags.c_contiguous
    expected = [named.variables["mu"], spread(named.view()), given, named.variables["n"]]
    np.testing.assert_array_equal(values[:, :5], np.column_stack(expected))
    assert evaluate_features(named, ("mu",)).names == ("mu",)


def test_evaluated_features_are_not_copied(unnamed: Draws) -> None:
    given = np.random.default_rng(0).normal(size=(N, 4))
    assert np.shares_memory(evaluate_features(unnamed, given).values, given)
    column = given[:, 0].copy()
    assert np.shares_memory(evaluate_features(unnamed, column).values, column)
    for other in (np.asfortranarray(given), given.astype(np.float32), np.round(given).astype(int)):
        values = evaluate_features(unnamed, other).values
        assert values.dtype == np.float64
        assert values.flags.c_contiguous
        np.testing.assert_array_equal(values, other)


@pytest.mark.parametrize(
    ("features", "kind", "message"),
    [
        (
            lambda muu: muu,
            TypeError,
            r"several variables, by name;.* as in lambda muu: muu\.mu: no variable 'muu'; available: mu",
        ),
        (lambda v: v.mu.mean(), TypeError, r"what features returned is of type float64; .*called with all 40 draws"),
        (
            lambda v: v.mu[:10],
            ValueError,
            r"returned is an array of shape \(10,\); it may be an array of shape \(40,\)",
        ),
        (lambda v: v.theta, ValueError, r"shape \(40, 2, 3\).*mu: \(40,\), theta: \(40, 2, 3\)"),
        (lambda v: v.theta[:, 0, :0], ValueError, r"shape \(40, 0\)"),
        (lambda v: v.mu / np.where(v.n > 2, 0.0, np.nan), ValueError, "what features returned has .* NaN or infinite"),
        (lambda v: [str(x) for x in v.mu], TypeError, "array of dtype <U"),
        (np.ones(7), ValueError, r"features is an array of shape \(7,\); it may be an array of shape \(40,\) or"),
        (["mu", np.full(N, np.nan)], ValueError, r"features\[1\] has 40 NaN .* at 40 draws \(the first is draw 0\)"),
        ("tau", ValueError, "no variable 'tau'; available: mu, theta, n"),
        ("theta[5, 5]", ValueError, r"'theta\[5, 5\]', but the scalars in 'theta' are 'theta\[0, 0\]'"),
        (["mu", 3], TypeError, r"features\[1\] is of type int; it may be an array of shape"),
        ([], ValueError, "features is an empty list"),
        (None, TypeError, "features is of type NoneType"),
    ],
)
def test_invalid_features_raise(named: Draws, features: Any, kind: type[Exception], message: str) -> None:
    with np.errstate(divide="ignore", invalid="ignore"), pytest.raises(kind, match=message):
        evaluate_features(named, features)


def test_exception_in_feature_propagates_with_note(named: Draws) -> None:
    with pytest.raises(AttributeError, match="no variable 'tau'") as caught:
        evaluate_features(named, ["mu", lambda v: v.tau])
    assert "features[1]; it was called with all 40 draws at once (mu: (40,)" in caught.value.__notes__[0]


def test_empty_variable_raises_value_error(named: Draws) -> None:
    draws = as_draws({"empty": np.ones((3, 0))})
    with pytest.raises(ValueError, match="no scalars in it"):
        evaluate_features(draws, "empty")
