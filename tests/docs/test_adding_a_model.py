"""Test the example of docs/adding_a_model.md."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from scipy.stats import multivariate_normal
from sklearn.decomposition import PCA
from sklearn.svm import LinearSVC
from sklearn.utils.estimator_checks import parametrize_with_checks

import regbayes
from array_namespaces import list_places
from new_model import Params, PredictivePCA, PredictivePCAClassifier, class_head, fit
from regbayes.engine import Status
from regbayes.engine.source import ArraySource, Samples
from regbayes.joint import descent
from regbayes.joint.descent import DescentOptions
from regbayes.joint.problem import JointProblem, hold_rows
from regbayes.margins.head import Head, Tolerance
from regbayes.margins.targets import Classes, zero_one_cost

TIGHT = Tolerance(gap=1e-11, max_epochs=100_000.0)
OPTIONS = {"weight": 0.5, "max_iter": 500, "tol": 1e-9}


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    y = np.arange(90) % 3
    rows = rng.standard_normal((90, 5)) * [3.0, 2.0, 1.0, 1.0, 1.0] + 1.2 * np.eye(5)[y + 2]
    return rows - rows.mean(axis=0), y


def targets(y, C=0.5):
    return Classes(y, zero_one_cost(3), np.full(len(y), C))


def some_params(n_components=2, seed=1):
    return Params(np.random.default_rng(seed).standard_normal((5, n_components)), 0.7)


def pose(X, y, n_blocks=1):
    blocks = np.array_split(X, n_blocks)
    return JointProblem(PredictivePCA(0.5), hold_rows(blocks), Head(targets(y), squared=True), DescentOptions())


def test_likelihood_and_features_match_joint_gaussian(data):
    X, _ = data
    params = some_params()
    W, covariance = params.loadings, params.loadings @ params.loadings.T + 0.7 * np.eye(5)
    found = PredictivePCA(0.5).infer(X, params)
    expected = -multivariate_normal(np.zeros(5), covariance).logpdf(X).sum()
    assert PredictivePCA(0.5).terms(params, found.stats)["likelihood"] == pytest.approx(0.5 * expected, rel=1e-12)
    np.testing.assert_allclose(found.features, X @ np.linalg.solve(covariance, W), rtol=1e-10)


@pytest.mark.parametrize("with_head", [False, True])
def test_gradient_matches_finite_differences(data, with_head):
    problem = pose(*data) if with_head else replace(pose(*data), head=None)
    params, rng = some_params(), np.random.default_rng(2)

    def evaluate(position):
        return problem.evaluate(replace(params, loadings=position), None, TIGHT)

    gradient = problem.gradient(*evaluate(params.loadings))
    for direction in rng.standard_normal((3, 5, 2)):
        ahead, behind = (evaluate(params.loadings + step * direction)[0].objective for step in (1e-5, -1e-5))
        assert np.vdot(gradient, direction) == pytest.approx((ahead - behind) / 2e-5, rel=1e-5)


def test_objective_does_not_depend_on_blocks(data):
    one, three = (descent.start(pose(*data, n_blocks), some_params()) for n_blocks in (1, 3))
    assert one.at.objective == pytest.approx(three.at.objective, rel=1e-12)
    np.testing.assert_allclose(one.gradient, three.gradient, rtol=1e-9)


def test_fit_without_margins_matches_probabilistic_pca(data):
    """The noise variance is fixed at its maximum-likelihood estimate."""
    X, y = data
    pca = PCA(2).fit(X)
    pca.explained_variance_ *= 89 / 90  # maximum likelihood divides by n
    pca.noise_variance_ *= 89 / 90
    start = replace(some_params(), noise_variance=float(pca.noise_variance_))
    lowest = -0.5 * pca.score_samples(X).sum()
    alone = fit(ArraySource(Samples(X, y)), None, start, **OPTIONS)
    assert alone.status is Status.CONVERGED
    assert alone.trace.objective[-1] == pytest.approx(lowest, rel=1e-8)
    cheap = fit(ArraySource(Samples(X, y)), partial(class_head, n_classes=3, C=1e-7), start, **OPTIONS)
    W, expected = cheap.state.params.loadings, pca.get_covariance()
    np.testing.assert_allclose(W @ W.T + pca.noise_variance_ * np.eye(5), expected, atol=1e-3)


def test_descent_never_rises_and_ends_at_local_minimum(data):
    X, y = data
    result = fit(ArraySource(Samples(X, y)), partial(class_head, n_classes=3, C=0.5), some_params(), **OPTIONS)
    assert result.trace.rises.count == 0
    assert result.trace.objective[-1] < result.trace.objective[0] - 10.0
    problem, params, rng = pose(X, y), result.state.params, np.random.default_rng(3)

    def value(loadings):
        return problem.evaluate(replace(params, loadings=loadings), None, TIGHT)[0].objective

    lowest = value(params.loadings)
    changes = [value(params.loadings + size * rng.standard_normal((5, 2))) for size in (1e-3, 1e-2) for _ in range(10)]
    assert min(changes) > lowest - 1e-5 * abs(lowest)  # tolerance of the head's solver


@pytest.fixture
def stack():
    """Yield an ExitStack that is closed after the test."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture(params=["file", *(place.name for place in list_places()), "dask"])
def source(request, data, tmp_path, stack):
    """Return the samples in a file, array library or Dask cluster, and a tolerance."""
    X, y = data
    if request.param == "file":
        np.save(tmp_path / "X.npy", X)
        return ArraySource(Samples(np.load(tmp_path / "X.npy", mmap_mode="r"), y)), 1e-12
    if request.param != "dask":
        place = next(place for place in list_places() if place.name == request.param)
        return ArraySource(Samples(place(X), y)), place.tol
    distributed, da = pytest.importorskip("distributed"), pytest.importorskip("dask.array")
    from regbayes.dask.source import DaskSource, Reader

    quiet = {"processes": False, "dashboard_address": ":0"}  # worker threads can import this module, processes cannot
    cluster = stack.enter_context(distributed.LocalCluster(n_workers=2, threads_per_worker=1, **quiet))
    client = stack.enter_context(distributed.Client(cluster))
    chunks = (40, 0, 50)
    X, y = da.from_array(X, chunks=(chunks, -1)), da.from_array(y, chunks=chunks)
    return DaskSource(client, X, Reader(5), y), 1e-12


def test_fit_does_not_depend_on_backend(data, source):
    there, tol = source
    options = {"weight": 0.5, "max_iter": 5, "tol": 0.0}
    here = fit(ArraySource(Samples(*data)), partial(class_head, n_classes=3, C=0.5), some_params(), **options)
    found = fit(there, partial(class_head, n_classes=3, C=0.5), some_params(), **options)
    assert found.trace.rises.count == 0
    np.testing.assert_allclose(found.trace.objective, here.trace.objective, rtol=max(1e-8, 100 * tol))
    np.testing.assert_allclose(found.state.params.loadings, here.state.params.loadings, atol=max(1e-6, 1000 * tol))
    scores = (
        state.head.scores(PredictivePCA(0.5).infer(data[0], state.params).features)
        for state in (here.state, found.state)
    )
    np.testing.assert_allclose(*scores, atol=max(1e-3, 1000 * tol))


def test_classifier_on_features_matches_liblinear(data):
    """The loss of two classes is the squared hinge of the score difference."""
    X, y = data
    model = PredictivePCAClassifier(2, C=0.5, random_state=0).fit(X, y > 0)
    rows = model.transform(X)
    seen = np.column_stack([rows - rows.mean(axis=0), np.ones(len(rows))])
    # With w_1 = -w_0 = v / 2 the penalty (|w_0|² + |w_1|²) / 2 is |v|² / 4, which doubles C for v.
    svm = LinearSVC(C=1.0, fit_intercept=False, tol=1e-12, max_iter=10**6).fit(seen, y > 0)
    np.testing.assert_allclose(model.decision_function(X), svm.decision_function(seen), atol=1e-3)


@parametrize_with_checks([PredictivePCAClassifier()])
def test_check_estimator_passes(estimator, check):
    check(estimator)


def test_saved_model_predicts_as_before(data, tmp_path):
    X, y = data
    model = PredictivePCAClassifier(2, random_state=0).fit(X, y)
    model.save(tmp_path / "model")
    np.testing.assert_array_equal(regbayes.load(tmp_path / "model").decision_function(X), model.decision_function(X))
