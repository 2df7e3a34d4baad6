"""The linear multi-task baselines against independent oracles: scikit-learn, CVXPY, brute force."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
from sklearn.linear_model import Ridge
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC

from multitask_tools import groups, holes, labels, numbers
from regbayes_paper.baselines import (
    ASOClassifier,
    ASORegressor,
    MTRLClassifier,
    MTRLRegressor,
    SingleTaskClassifier,
    SingleTaskRegressor,
)
from regbayes_paper.models.linear_tasks.problem import ColumnPrior, MixedPrior

STRICT = {"tol": 1e-13, "max_iter": 5000}


# --- single-task learning


def test_a_single_task_is_ridge_regression_on_its_rows():
    X, y, task = groups()
    fitted = SingleTaskRegressor(alpha=3.0).fit(X, y, task=task)
    rows = StandardScaler().fit_transform(X)
    for name in fitted.tasks_:
        own = task == name
        expected = Ridge(3.0).fit(rows[own], y[own]).predict(rows[own])
        np.testing.assert_allclose(fitted.predict(X[own], task=task[own]), expected)


def test_a_single_task_is_a_linear_svm_on_its_labels():
    X, Y = labels()
    Y = holes(Y)
    fitted = SingleTaskClassifier(C=0.1).fit(X, Y)
    rows = StandardScaler().fit_transform(X)
    for t in range(3):
        seen = ~np.isnan(Y[:, t])
        machine = LinearSVC(C=0.1, tol=1e-10, max_iter=100_000, random_state=0).fit(rows[seen], Y[seen, t])
        np.testing.assert_allclose(fitted.decision_function(X)[:, t], machine.decision_function(rows), atol=1e-6)


# --- task relationship learning


@pytest.mark.parametrize("alpha", [0.0, 2.0])
def test_unrelated_tasks_are_ridge_regressions(alpha):
    X, Y = numbers()
    fitted = MTRLRegressor(alpha, 3.0, task_covariance=np.eye(3), intercept_scaling=2.0, **STRICT).fit(X, holes(Y))
    rows = np.column_stack([StandardScaler().fit_transform(X), np.full(len(X), 2.0)])
    for t in range(3):
        seen = ~np.isnan(holes(Y)[:, t])
        share = seen.sum() / np.mean(np.sum(~np.isnan(holes(Y)), axis=0))  # tasks count alike
        centred = Y[seen, t] - Y[seen, t].mean()
        expected = Ridge((alpha + 3.0) * share, fit_intercept=False).fit(rows[seen], centred).predict(rows)
        np.testing.assert_allclose(fitted.predict(X)[:, t], expected + Y[seen, t].mean(), rtol=1e-7)


def test_unrelated_labels_are_linear_support_vector_machines():
    X, Y = labels()
    fitted = MTRLClassifier(0.0, 5.0, task_covariance=np.eye(3), **STRICT).fit(X, Y)
    rows = StandardScaler().fit_transform(X)
    for t in range(3):
        machine = LinearSVC(C=0.1, tol=1e-10, max_iter=100_000, random_state=0).fit(rows, Y[:, t])
        np.testing.assert_allclose(fitted.decision_function(X)[:, t], machine.decision_function(rows), atol=1e-6)


def cvxpy_minimum(X, Y, alpha, beta, loss):
    """The convex problem with the covariance minimised out, in which it is a squared trace norm."""
    rows = np.column_stack([StandardScaler().fit_transform(X), np.ones(len(X))])
    W = cp.Variable((Y.shape[1], rows.shape[1]))
    scores = rows @ W.T
    targets = (Y - Y.mean(axis=0)) / Y.std(axis=0) if loss == "squared" else 2.0 * Y - 1.0
    rest = targets - scores if loss == "squared" else cp.pos(1.0 - cp.multiply(targets, scores))
    terms = 0.5 * cp.sum_squares(rest) + 0.5 * alpha * cp.sum_squares(W)
    problem = cp.Problem(cp.Minimize(terms + 0.5 * beta / Y.shape[1] * cp.square(cp.normNuc(W))))
    return problem.solve(solver=cp.SCS, eps=1e-7, max_iters=100_000), W.value


@pytest.mark.parametrize("alpha", [0.0, 1.0])
@pytest.mark.parametrize("make", [MTRLRegressor, MTRLClassifier])
def test_relations_solve_their_convex_problem(make, alpha):
    X, Y = numbers(n_rows=30, n_columns=4) if make is MTRLRegressor else labels(n_rows=30, n_columns=4)
    lowest, weights = cvxpy_minimum(X, Y, alpha, 4.0, make._loss)
    fitted = make(alpha, 4.0, **STRICT).fit(X, Y)
    assert fitted.trace_.objective[-1] == pytest.approx(lowest, rel=1e-5)
    found = np.column_stack([fitted.coef_, fitted.intercept_])
    np.testing.assert_allclose(found, weights, atol=2e-3 * np.abs(weights).max())
    assert np.trace(fitted.task_covariance_) == pytest.approx(3.0)
    assert np.all(fitted.trace_.diagnostics["gap"] <= 1e-15 * fitted.trace_.objective)  # of the weights


def test_relations_of_either_sign_are_found():
    rng = np.random.default_rng(0)
    X, directions = rng.standard_normal((200, 6)), np.linalg.qr(rng.standard_normal((6, 2)))[0].T
    loadings = np.array([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]])
    Y = X @ (loadings @ directions).T + 0.3 * rng.standard_normal((200, 4))
    for model, targets in ((MTRLRegressor(0.0, 50.0), Y), (MTRLClassifier(0.0, 50.0), (Y > 0).astype(int))):
        np.testing.assert_allclose(
            model.fit(X, targets).task_correlation_[:3, :3], np.outer([1, 1, -1], [1, 1, -1]), atol=0.2
        )
        np.testing.assert_allclose(model.task_correlation_[3, :3], 0.0, atol=0.2)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (np.eye(2), r"task_covariance must have shape \(3, 3\), a row per output; got \(2, 2\)"),
        (np.array([[1.0, 0.5, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]), "must be finite and symmetric"),
        (np.full((3, 3), np.nan), "must be finite and symmetric"),
        (np.ones((3, 3)), "must be positive definite; its lowest eigenvalue is"),
    ],
    ids=["shape", "symmetric", "finite", "definite"],
)
def test_covariances_that_make_no_sense_are_refused(given, message):
    X, Y = numbers()
    with pytest.raises(ValueError, match=message):
        MTRLRegressor(task_covariance=given).fit(X, Y)


# --- alternating structure optimisation


@pytest.mark.parametrize("make", [ASORegressor, ASOClassifier])
def test_structure_is_stationary(make):
    """At the end the weights solve their convex problem, by CVXPY, and no other subspace is nearer to them."""
    X, Y = numbers(n_rows=40) if make is ASORegressor else labels(n_rows=40)
    fitted = make(1, alpha=3.0, shared_alpha=1 / 6, **STRICT).fit(X, Y)
    rows = StandardScaler().fit_transform(X)
    W, b = cp.Variable((3, X.shape[1])), cp.Variable((1, 3))
    scores = rows @ W.T + b
    if make is ASORegressor:
        rest = (Y - Y.mean(axis=0)) / Y.std(axis=0) - scores
    else:
        rest = cp.pos(1.0 - cp.multiply(2.0 * Y - 1.0, scores))
    outside = np.eye(X.shape[1]) - fitted.components_.T @ fitted.components_
    penalty = 1.5 * cp.sum_squares(W @ outside) + 0.25 * cp.sum_squares(W @ fitted.components_.T)
    problem = cp.Problem(cp.Minimize(0.5 * cp.sum_squares(rest) + penalty))
    problem.solve(solver=cp.CLARABEL)
    assert fitted.trace_.objective[-1] == pytest.approx(problem.value, rel=1e-6)
    np.testing.assert_allclose(fitted.coef_, W.value, atol=1e-3 * np.abs(W.value).max())
    nearest = np.sum(np.linalg.svd(fitted.coef_, compute_uv=False)[1:] ** 2)
    assert np.sum((fitted.coef_ @ outside) ** 2) == pytest.approx(nearest)


def test_a_planted_subspace_is_recovered_and_worth_it():
    rng = np.random.default_rng(0)
    X, test, basis = rng.standard_normal((60, 30)), rng.standard_normal((500, 30)), rng.standard_normal((2, 30))
    weights = rng.standard_normal((20, 2)) @ basis
    Y = X @ weights.T + 2.0 * rng.standard_normal((60, 20))
    fitted = ASORegressor(2, alpha=300.0, shared_alpha=0.001).fit(X, Y)
    planted = np.linalg.qr((basis * fitted.scale_).T)[0]
    cosines = np.linalg.svd(fitted.components_ @ planted, compute_uv=False)
    assert cosines.min() > 0.9
    alone = max(SingleTaskRegressor(alpha).fit(X, Y).score(test, test @ weights.T) for alpha in (1.0, 10.0, 100.0))
    assert fitted.score(test, test @ weights.T) > alone + 0.02


def test_one_task_has_no_structure():
    X, Y = numbers()
    fitted = ASORegressor(5, alpha=2.0).fit(X, Y[:, 0])
    np.testing.assert_allclose(fitted.predict(X), SingleTaskRegressor(2.0).fit(X, Y[:, 0]).predict(X))
    assert fitted.components_.shape == (0, X.shape[1])


# --- the solver


def test_steps_of_systems_are_solutions_and_the_shortest_where_there_are_several():
    rng = np.random.default_rng(0)
    roots = rng.standard_normal((3, 6, 9))
    roots[1, :, :] = roots[1, :, :1] * roots[1, :1]  # rank one: columns that no target tells apart
    grams, sums = roots @ roots.transpose(0, 2, 1), (roots @ rng.standard_normal((3, 9, 1)))[:, :, 0]
    start = rng.standard_normal((3, 6))
    right = sums - (grams @ start[:, :, None])[:, :, 0]
    shortest = [np.linalg.pinv(g, hermitian=True) @ rest for g, rest in zip(grams, right, strict=True)]
    np.testing.assert_allclose(ColumnPrior(np.zeros(6)).solve(grams, right), shortest, rtol=1e-8, atol=1e-8)
    priced = ColumnPrior(np.full(6, 0.5)).solve(grams, sums)
    np.testing.assert_allclose(priced, np.linalg.solve(grams + 0.5 * np.eye(6), sums[:, :, None])[:, :, 0], rtol=1e-8)


def test_a_step_of_mixed_outputs_solves_their_system_as_closely_as_it_says():
    rng = np.random.default_rng(0)
    roots, mixing = rng.standard_normal((3, 4, 5)), rng.standard_normal((3, 3))
    grams, mixing, right = roots @ roots.transpose(0, 2, 1), mixing @ mixing.T, rng.standard_normal((3, 4))
    system = np.eye(12) + np.einsum("mk,kij,kn->minj", mixing, grams, mixing).reshape(12, 12)
    rest = system @ MixedPrior(mixing).solve(grams, right).ravel() - right.ravel()
    assert np.linalg.norm(rest) <= 1.01e-4 * np.linalg.norm(right)
