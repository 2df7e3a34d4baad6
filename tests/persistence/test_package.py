"""Test that results of the package can be saved and loaded."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import regbayes
from persistence_tools import assert_same
from regbayes import E, regularizers
from regbayes.persistence import PersistenceError, save

DRAWS = np.random.default_rng(0).normal(size=(400, 2))

POSTERIORS = {
    "Finite": lambda: regbayes.Finite(DRAWS[:5], probabilities=[0.1, 0.2, 0.3, 0.2, 0.2]),
    "Finite of objects": lambda: regbayes.Finite([("a", 1), ("b", 2), ("c", 3)]),
    "Samples": lambda: regbayes.Samples(DRAWS),
    "named Samples": lambda: regbayes.Samples({"mu": DRAWS[:, 0], "tau": DRAWS}, log_weights=DRAWS[:, 1]),
    "Gaussian": lambda: regbayes.Gaussian([0.5, -0.5], [[1.0, 0.3], [0.3, 2.0]]),
    "diagonal Gaussian": lambda: regbayes.Gaussian([0.5, -0.5], [1.0, 2.0]),
}


@pytest.fixture(params=["Finite", "Samples", "Gaussian"])
def result(request):
    posterior = POSTERIORS[request.param]()
    features = np.eye(2) if request.param == "Gaussian" else (lambda x: x)
    sizes = regularizers.Ridge(2.0) + regularizers.AtMost(np.array([0.2, 0.3]))
    return regbayes.regularize(posterior, features, sizes)


def test_result_round_trips_with_certificate(result, tmp_path):
    result.save(tmp_path / "file")
    found = regbayes.load(tmp_path / "file")
    assert_same(found, result)
    features = np.eye(2) if isinstance(result.base, regbayes.Gaussian) else (lambda x: x**2)
    assert_same(found.expectation(features), result.expectation(features))
    assert_same(found.sample(np.random.default_rng(3)), result.sample(np.random.default_rng(3)))


def test_constraint_cannot_be_saved_but_its_result_can(tmp_path):
    constraint = E(lambda x: x[:, 0]) <= -0.1
    with pytest.raises(PersistenceError, match="cannot be saved"):
        save(constraint, tmp_path / "file")
    result = regbayes.regularize(regbayes.Samples(DRAWS), constraint)
    result.save(tmp_path / "file")
    assert_same(regbayes.load(tmp_path / "file"), result)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning", "ignore::regbayes.TruncationWarning")
def test_cached_properties_are_not_saved(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((30, 4))
    fitted = regbayes.IBPFactorAnalysis(n_components=3, max_iter=2, random_state=0).fit(X)
    fitted.transform(X)
    params = fitted._state.params
    fields = {field.name for field in dataclasses.fields(params)}
    assert "mean_field" in vars(params)
    fitted.save(tmp_path / "file")
    found = regbayes.load(tmp_path / "file")
    assert vars(found._state.params).keys() == fields
    assert b"mean_field" not in (tmp_path / "file").read_bytes()
    assert_same(found.transform(X), fitted.transform(X))
