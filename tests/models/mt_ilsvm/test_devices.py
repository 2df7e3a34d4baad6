"""MT-iLSVM over rows of other array libraries: the same as over NumPy's."""

from __future__ import annotations

import numpy as np
import pytest
import sklearn

from array_namespaces import Place, list_places
from regbayes import MultiTaskILSVMClassifier, MultiTaskILSVMRegressor
from regbayes.kernels.arrays import to_host
from regbayes.margins.head import Tolerance
from regbayes.margins.targets import observe_classes, observe_numbers
from regbayes.models.mt_ilsvm import device
from regbayes.models.mt_ilsvm.fit import prepare, start_latent
from regbayes.models.mt_ilsvm.model import Settings

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
ELSEWHERE = [place for place in list_places() if place.name != "numpy"]


@pytest.fixture(params=ELSEWHERE, ids=lambda place: place.name)
def place(request: pytest.FixtureRequest) -> Place:
    return request.param


def make_data(n: int = 200, M: int = 3) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 2)) @ rng.normal(size=(2, 8)) + 0.5 * rng.normal(size=(n, 8))
    return X, X @ rng.normal(size=(8, M)) + 0.3 * rng.normal(size=(n, M))


@pytest.mark.parametrize("loss", ["squared_hinge", "squared_epsilon_insensitive"])
@pytest.mark.parametrize("missing", [False, True])
def test_objective_and_gradient_are_those_of_numpy(
    place: Place, loss: str, missing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "BLOCK_ROWS", 64)
    X, Y = make_data()
    X = X - X.mean(axis=0)
    seen = np.random.default_rng(1).random(Y.shape) > 0.3 if missing else np.ones(Y.shape, dtype=bool)
    seen[:9] = ~np.broadcast_to(missing, (9, 3))  # some rows have no target at all
    rows, tasks = np.nonzero(seen)
    if loss == "squared_hinge":
        observed = observe_classes(rows, tasks, (Y[rows, tasks] > 0).astype(int), np.full(3, 2))
    else:
        observed = observe_numbers(rows, tasks, Y[rows, tasks], 3)
    options = {"loss": loss, "C": 0.1, "epsilon": 0.1, "task_sharing": 0.5, "include_inputs": missing}
    settings = Settings(n_components=4, temperature=0.1, **options)
    weights = np.random.default_rng(2).random(len(X)) + 0.5 if missing else None
    here, there = (prepare(x, *observed, settings, weights) for x in (X, place(X)))
    latent = start_latent(here.moments, settings, np.random.default_rng(3).normal(size=(8, 4)))
    single = place.tol > 1e-8
    tolerance = Tolerance(1e-6, 50.0) if single else Tolerance(1e-12, 200.0)
    expected, found = (problem.evaluate(problem.model.at(latent), None, tolerance) for problem in (here, there))
    assert len(there.blocks.blocks) == 3 + (not missing)
    tol = 1e-4 if single else 1e-9
    assert found[0].objective == pytest.approx(expected[0].objective, rel=tol)
    np.testing.assert_allclose(there.moments.gram, here.moments.gram, rtol=10 * place.tol, atol=100 * place.tol)
    wanted = here.pull_back(*expected).psi
    for _ in range(2):  # from multipliers that the solver left, and then without them
        np.testing.assert_allclose(there.pull_back(*found).psi, wanted, atol=100 * tol * np.abs(wanted).max())


@pytest.mark.usefixtures("dispatch")
def test_classifier_is_that_of_numpy(place: Place) -> None:
    X, Y = make_data()
    labels = (Y > 0).astype(float)
    labels[::7, 1] = np.nan
    model = MultiTaskILSVMClassifier(n_components=4, C=0.1, max_iter=8, random_state=0)
    here = sklearn.clone(model).fit(X, labels)
    there = sklearn.clone(model).fit(place(X), place.make(labels))
    assert there.objective_ == pytest.approx(here.objective_, rel=1e-3 if place.tol < 1e-8 else 1e-2)
    assert np.all(np.diff(there.trace_.objective) <= 0)
    answers, scores, features = there.predict(place(X)), there.decision_function(place(X)), there.transform(place(X))
    kind = type(place(X))
    assert all(isinstance(found, kind) for found in (answers, scores, features, there.components_, there.mean_))
    assert np.mean(to_host(answers) == here.predict(X)) > 0.98
    if place.tol < 1e-8:
        np.testing.assert_allclose(to_host(scores), here.decision_function(X), atol=0.1)
        np.testing.assert_allclose(to_host(features), here.transform(X), atol=0.05)


@pytest.mark.usefixtures("dispatch")
def test_regressor_with_tasks_of_rows_is_that_of_numpy(place: Place) -> None:
    X, Y = make_data()
    task = np.arange(len(X)) % 3
    y, weights = Y[np.arange(len(X)), task], np.arange(len(X)) % 4 + 0.0
    model = MultiTaskILSVMRegressor(n_components=4, C=0.1, max_iter=8, unseen_tasks="shared", random_state=0)
    here = sklearn.clone(model).fit(X, y, task=task, sample_weight=weights)
    there = sklearn.clone(model).fit(place(X), place(y), task=place.make(task), sample_weight=place(weights))
    assert there.objective_ == pytest.approx(here.objective_, rel=1e-3 if place.tol < 1e-8 else 1e-2)
    asked = np.where(task == 2, 9, task)  # a task that was not seen
    found = there.predict(place(X), task=place.make(asked))
    assert isinstance(found, type(place(X)))
    np.testing.assert_allclose(to_host(found), here.predict(X, task=asked), atol=0.05 if place.tol < 1e-8 else 0.2)


@pytest.mark.usefixtures("dispatch")
def test_what_needs_the_host_is_refused(place: Place) -> None:
    X, Y = make_data()
    with pytest.raises(ValueError, match="loss='epsilon_insensitive' needs rows on the host"):
        MultiTaskILSVMRegressor(loss="epsilon_insensitive").fit(place(X), place(Y))
    with pytest.raises(TypeError, match="y is a numpy array"):
        MultiTaskILSVMRegressor().fit(place(X), Y)
