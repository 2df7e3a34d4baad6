"""Few on/off features by enumeration over rows of other array libraries: the same as over NumPy's, to rounding."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import sklearn

from array_namespaces import Place, list_places
from ilsvm_model_tools import make_problem, start_of
from regbayes import ILSVMClassifier
from regbayes.kernels.arrays import to_host
from regbayes.kernels.enumeration import enumerate_features, reverse_enumerated
from regbayes.margins import head as margins_head
from regbayes.models.ilsvm.model import EXACT, centre_rows

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

PLACES = [place for place in list_places() if place.name != "numpy"]


@pytest.fixture(params=PLACES, ids=lambda place: place.name)
def place(request: pytest.FixtureRequest) -> Place:
    return request.param


def assert_close(found, expected, tol: float) -> None:
    found, expected = np.asarray(to_host(found)), np.asarray(expected)
    assert np.abs(found - expected).max(initial=0.0) <= tol * max(1.0, np.abs(expected).max(initial=0.0))


@pytest.mark.parametrize("apart", [(), (1,), (0, 1, 2, 3)])
def test_posterior_and_reverse_are_those_of_numpy(place: Place, apart: tuple[int, ...]) -> None:
    rng, k = np.random.default_rng(0), 4
    root, alone = rng.normal(size=(k, k)), np.isin(np.arange(k), apart)
    coupling = np.where((alone[:, None] | alone) & ~np.eye(k, dtype=bool), 0.0, root @ root.T)
    theta, grad, weights = 3.0 * rng.normal(size=(9, k)), rng.normal(size=(9, k)), rng.uniform(0.5, 2.0, 9)
    here, there = enumerate_features(theta, coupling, weights), enumerate_features(place(theta), coupling, weights)
    for name in here._fields:
        assert_close(getattr(there, name), getattr(here, name), 10 * place.tol)
    here, there = reverse_enumerated(grad, theta, coupling), reverse_enumerated(place(grad), place(theta), coupling)
    for name in here._fields:
        assert_close(getattr(there, name), getattr(here, name), 10 * place.tol)


@pytest.mark.parametrize("n_sweeps", [2, EXACT])
def test_rows_with_noise_of_each_input_are_those_of_numpy(place: Place, n_sweeps: int) -> None:
    rng = np.random.default_rng(1)
    problem = make_problem(1, {"C": 0.3}, n_unlabeled=8, row_weights=rng.uniform(0.5, 2.0, 60))
    logs, start = rng.uniform(-1.0, 1.0, 7), start_of(problem)
    params = replace(start, loadings=2.0 * start.loadings, offset=rng.normal(size=7), n_sweeps=n_sweeps)
    params = replace(params, noise_ratios=np.exp(logs - logs.mean()))
    here, model, tol = problem.data.X, problem.joint.model, 100 * place.tol
    there = centre_rows(place(here.X), weights=here.weights)
    one, other = model.infer(here, params), model.infer(there, params)
    assert_close(other.features, one.features, tol)
    for name, value in vars(one.stats).items():
        assert_close(getattr(other.stats, name), value, tol)
    assert_close(params.bound(there), params.bound(here), tol)
    gradient = rng.normal(size=one.features.shape)
    for given, given_there in ((gradient, place(gradient.T).T), (None, None)):
        expected = model.pull_back(here, params, one, None if given is None else given.copy())
        found = model.pull_back(there, params, other, given_there)
        for name, value in vars(expected).items():
            assert_close(getattr(found, name), value, tol)


@pytest.mark.usefixtures("dispatch")
def test_fit_of_on_off_features_is_exact_and_never_rises(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(margins_head, "MIN_BLOCK_ROWS", 1)  # NumPy's rows have the solver that rows elsewhere have
    rng = np.random.default_rng(3)
    z = rng.random((600, 3)) < 0.4
    X = 2.0 * z @ rng.normal(size=(3, 16)) + rng.normal(size=(600, 16)) * np.linspace(0.7, 1.3, 16)
    y = z @ [1, 2, 4] % 3
    model = ILSVMClassifier(20, temperature=0.02, max_iter=8, random_state=0)
    here, there = sklearn.clone(model).fit(X, y), sklearn.clone(model).fit(place(X), place.make(y))
    assert here._state.params.n_sweeps == there._state.params.n_sweeps == EXACT
    assert np.all(np.diff(there.trace_.objective) <= 0)
    assert there.objective_ == pytest.approx(here.objective_, rel=5e-3 if place.tol < 1e-8 else 2e-2)
    assert isinstance(there.noise_ratios_, type(place(X)))
    assert np.mean(to_host(there.predict(place(X))) == here.predict(X)) > 0.98
