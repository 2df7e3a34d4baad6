"""Parts of the iLSVM model: gradients, updates, bounds and symmetries compared with independent oracles."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import cvxpy as cp
import numpy as np
import pytest
from scipy.special import expit, logsumexp
from scipy.stats import multivariate_normal
from sklearn.svm import LinearSVC

from ilsvm_model_tools import ESTIMATED, EXACT, labels_of, make_data, make_problem, make_settings, repeat_rows, start_of
from regbayes.joint import alternation
from regbayes.margins.targets import zero_one_cost
from regbayes.models.ilsvm import fit, starts
from regbayes.models.ilsvm.model import (
    UNLABELED,
    BinaryFeatures,
    Data,
    ILSVMProblem,
    Stats,
    build_head,
    centre_rows,
    expected_residual,
    update_loadings,
    update_offset,
    update_variances,
)
from regbayes.models.indian_buffet import stick_expectations

SOME = centre_rows(np.array([[1.0, 1.0], [-1.0, -1.0]]))  # placeholder inputs


def free_energy(g, psi, X, alpha=2.0):
    """Return ``F_T`` of any features and global parameters, directly from the rows."""
    model = BinaryFeatures(alpha, g.temperature)
    return sum(model.terms(g, model.summarize(X, psi).explain(g)).values())


def summarize(X, psi):
    return BinaryFeatures(2.0, 1.0).summarize(X, psi)


# --- consistent margins ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_sweeps", [1, 2, 4])
@pytest.mark.parametrize("squared", [False, True])
@pytest.mark.parametrize("fit_intercept", [False, True])
@pytest.mark.parametrize("one_vs_rest", [False, True])
def test_gradient_of_the_objective_agrees_with_differences(n_sweeps, squared, fit_intercept, one_vs_rest):
    changes = {"n_sweeps": n_sweeps, "squared": squared, "fit_intercept": fit_intercept, "input_scale": 0.2, "C": 0.3}
    changes["one_vs_rest"] = one_vs_rest
    problem = make_problem(1, changes, n_unlabeled=8)
    g = replace(start_of(problem), offset=np.random.default_rng(3).standard_normal(7))
    at, inferred = problem.joint.evaluate(g, None, EXACT)
    gradient = problem.joint.gradient(at, inferred)
    direction = np.random.default_rng(2).standard_normal(gradient.shape)

    def value(step):
        model = problem.joint.model
        moved = model.move(g, model.position(g) + step * direction)
        return problem.joint.evaluate(moved, at.warm_start, EXACT)[0].objective

    h = 1e-4
    assert (value(h) - value(-h)) / (2 * h) == pytest.approx(np.vdot(gradient, direction), rel=2e-4, abs=1e-4)


# --- the paper's alternation ------------------------------------------------------------------------------------------


def test_update_of_loadings_beats_perturbations():
    problem = make_problem(7)
    X, g = problem.data.X, replace(start_of(problem), offset=np.random.default_rng(3).standard_normal(7))
    psi = np.random.default_rng(1).uniform(0.05, 0.95, (len(X), 5))
    stats = summarize(X, psi)
    best = update_loadings(g, stats.rows, stats.cross)
    value = free_energy(best, psi, X)
    rng = np.random.default_rng(2)
    for size in (1e-3, 1e-1):
        for _ in range(20):
            loadings = best.loadings + size * rng.standard_normal(best.loadings.shape)
            assert free_energy(replace(best, loadings=loadings), psi, X) > value
            variances = best.variances * np.exp(size * rng.standard_normal(5))
            assert free_energy(replace(best, variances=variances), psi, X) > value


def test_update_of_offset_beats_perturbations():
    problem = make_problem(7)
    rng = np.random.default_rng(1)
    X, g = problem.data.X.take(slice(40)), start_of(problem)  # a subset, so that the sum of the rows is not zero
    psi = rng.uniform(0.05, 0.95, (len(X), 5))
    best = update_offset(g, summarize(X, psi).rows)
    for size in (1e-3, 1e-1):
        for _ in range(20):
            offset = best.offset + size * rng.standard_normal(7)
            assert free_energy(replace(best, offset=offset), psi, X) > free_energy(best, psi, X)


def test_update_of_variances_beats_perturbations():
    problem = make_problem(8)
    X, g = problem.data.X, start_of(problem)
    psi = np.random.default_rng(1).uniform(0.05, 0.95, (len(X), 5))
    best = update_variances(g, summarize(X, psi).explain(g), **ESTIMATED)
    value = free_energy(best, psi, X)
    for factor in (0.5, 0.9, 0.99, 1.01, 1.1, 2.0):
        assert free_energy(replace(best, noise_variance=factor * best.noise_variance), psi, X) > value
        assert free_energy(replace(best, prior_variance=factor * best.prior_variance), psi, X) > value


def test_update_of_a_feature_beats_perturbations():
    """At fixed multipliers a feature's update minimizes ``F_T / T`` minus the terms of the margins in its logits."""
    problem = make_problem(9)
    X, g = problem.data.X, start_of(problem)
    rng = np.random.default_rng(3)
    psi = rng.uniform(0.05, 0.95, (len(X), 5))
    added = rng.standard_normal(psi.shape)
    swept = BinaryFeatures(2.0, 0.3).update_features(X, g, psi, -0.3 * added)

    def value(psi):
        return free_energy(g, psi, X) / g.temperature - np.vdot(added, psi)

    best = value(swept)
    for size in (1e-3, 0.1, 1.0):
        for _ in range(10):
            moved = swept.copy()  # the last updated feature used the current values of all others
            logits = np.log(swept[:, -1] / (1 - swept[:, -1])) + size * rng.standard_normal(len(X))
            moved[:, -1] = expit(logits)
            assert value(moved) > best


def test_alternation_without_labels_never_increases():
    problem = make_problem(11, {"C": 0.0, "generative_weight": 1.0, "temperature": 1.0, **ESTIMATED})
    state = alternation.start(problem.joint, replace(start_of(problem), temperature=1.0), None, EXACT)
    values = [state.at.objective]
    for _ in range(15):
        state = alternation.step(problem.joint, state, EXACT).state
        values.append(state.at.objective)
    assert np.all(np.diff(values) <= 1e-9 * np.abs(values[0]))


# --- known features, enumerated features ------------------------------------------------------------------------------


def known_features(seed):
    rng = np.random.default_rng(seed)
    Z = (rng.random((80, 6)) < 0.4).astype(float)
    labels = np.argmax(Z @ rng.standard_normal((6, 3)) + 0.5 * rng.standard_normal((80, 3)), axis=1)
    return Data.of_classes(centre_rows(np.zeros((80, 2))), labels, np.ones(80), zero_one_cost(3)), Z


@pytest.mark.parametrize("C", [0.05, 1.0])
def test_known_features_give_the_liblinear_classifier(C):
    data, Z = known_features(0)
    settings = make_settings(SOME, n_components=6, C=C, squared=False, fit_intercept=False)
    found = build_head(data, settings).solve(Z, None, EXACT)
    oracle = LinearSVC(
        C=C, loss="hinge", multi_class="crammer_singer", fit_intercept=False, tol=1e-10, max_iter=1_000_000
    ).fit(Z, data.targets.labels)
    assert found.head.weights == pytest.approx(oracle.coef_, abs=1e-5)


@pytest.mark.parametrize("loss", ["hinge", "squared_hinge"])
def test_known_features_one_vs_rest_match_liblinear(loss):
    data, Z = known_features(3)
    squared = loss == "squared_hinge"
    settings = make_settings(SOME, n_components=6, C=0.3, squared=squared, one_vs_rest=True, fit_intercept=False)
    found = build_head(data, settings).solve(Z, None, EXACT)
    oracle = LinearSVC(C=0.3, loss=loss, fit_intercept=False, tol=1e-10, max_iter=1_000_000).fit(Z, data.targets.labels)
    assert found.head.weights == pytest.approx(oracle.coef_, abs=1e-5)


def test_known_features_with_squared_hinge_agree_with_cvxpy():
    data, Z = known_features(1)
    settings = make_settings(SOME, n_components=6, C=0.7)
    found = build_head(data, settings).solve(Z, None, EXACT)
    centred = np.hstack([Z - Z.mean(axis=0), np.ones((80, 1))])
    W = cp.Variable((3, 7))
    scores = centred @ W.T
    own = cp.sum(cp.multiply(scores, np.eye(3)[data.targets.labels]), axis=1)
    slack = cp.max(scores + data.targets.cost[data.targets.labels], axis=1) - own
    problem = cp.Problem(cp.Minimize(0.5 * cp.sum_squares(W) + 0.7 * cp.sum_squares(cp.pos(slack))))
    problem.solve(solver=cp.CLARABEL)
    assert sum(found.terms.values()) == pytest.approx(problem.value, rel=1e-6)
    assert found.head.weights == pytest.approx(W.value, abs=1e-4)


@pytest.mark.parametrize("squared", [False, True])
@pytest.mark.parametrize("one_vs_rest", [False, True])
def test_alternation_counts_weight_two_as_two_rows(squared, one_vs_rest):
    data, Z = known_features(2)
    settings = make_settings(SOME, n_components=6, squared=squared, one_vs_rest=one_vs_rest, fit_intercept=False)
    heavy = replace(data, targets=replace(data.targets, C=np.where(np.arange(80) < 30, 2.0, 1.0)))
    rows = np.concatenate([np.arange(80), np.arange(30)])
    twice = data.take(rows)
    found = build_head(heavy, settings).solve(Z, None, EXACT)
    expected = build_head(twice, settings).solve(Z[rows], None, EXACT)
    assert found.head.weights == pytest.approx(expected.head.weights, abs=1e-4)


@pytest.mark.parametrize("squared", [False, True])
@pytest.mark.parametrize("one_vs_rest", [False, True])
def test_row_of_weight_zero_is_ignored(squared, one_vs_rest):
    data, Z = known_features(4)
    settings = make_settings(SOME, n_components=6, squared=squared, one_vs_rest=one_vs_rest, fit_intercept=False)
    light = replace(data, targets=replace(data.targets, C=np.where(np.arange(80) < 30, 0.0, 1.0)))
    rest = data.take(np.arange(30, 80))
    found = build_head(light, settings).solve(Z, None, EXACT)
    expected = build_head(rest, settings).solve(Z[30:], None, EXACT)
    assert found.head.weights == pytest.approx(expected.head.weights, abs=1e-4)


def test_expected_residual_agrees_with_enumeration():
    rng = np.random.default_rng(4)
    problem = make_problem(12, {"n_components": 3}, n=4, D=2)
    X, g = problem.data.X.take(slice(3)), replace(start_of(problem), variances=rng.uniform(0.1, 1.0, 3))
    g = replace(g, offset=rng.standard_normal(2))
    psi = rng.uniform(0.1, 0.9, (3, 3))
    total = 0.0
    for z in product([0.0, 1.0], repeat=3):
        z = np.array(z)
        probability = np.prod(np.where(z == 1.0, psi, 1.0 - psi), axis=1)
        total += probability @ (np.square(X.array() - g.offset - z @ g.loadings).sum(axis=1) + 2 * z @ g.variances)
    assert expected_residual(summarize(X, psi).explain(g), g) == pytest.approx(total, rel=1e-12)


def test_row_bounds_are_tight_for_orthogonal_loadings():
    rng = np.random.default_rng(5)
    problem = make_problem(13, {"n_components": 3, "temperature": 1.0, "n_sweeps": 60}, n=30, D=4)
    X, g = problem.data.X, start_of(problem)
    orthogonal = np.linalg.qr(rng.standard_normal((4, 3)))[0].T * [[1.0], [1.5], [2.0]]
    for loadings, tight in ((g.loadings, False), (2.0 * rng.standard_normal((3, 4)), False), (orthogonal, True)):
        g = replace(g, loadings=loadings, offset=rng.standard_normal(4), variances=np.full(3, 0.05), temperature=1.0)
        expected = stick_expectations(g.sticks)
        terms = []
        for z in product([0.0, 1.0], repeat=3):
            z = np.array(z)
            log_prior = z @ expected.log_use + (1.0 - z) @ expected.log_rest
            residual = np.square(X.array() - g.offset - z @ loadings).sum(axis=1) + 4 * z @ g.variances
            terms.append(log_prior - 0.5 * residual / g.noise_variance - 2.0 * np.log(2 * np.pi * g.noise_variance))
        exact = logsumexp(terms, axis=0)
        bounds = g.bound(X)
        assert np.all(bounds <= exact + 1e-10)
        assert not tight or bounds == pytest.approx(exact, abs=1e-8)


def test_free_energy_bounds_the_exact_evidence():
    """Two features and three rows: enumerate Z, integrate W, use quadrature for the sticks, at the fitted offset."""
    rng = np.random.default_rng(6)
    rows = rng.standard_normal((3, 2)) + np.array([[1.5, 0.0], [1.5, 0.0], [0.0, 0.0]])
    alpha, noise, prior = 2.0, 0.4, 1.5
    nodes, weights = np.polynomial.legendre.leggauss(60)
    nu = (0.5 * (nodes + 1.0)) ** (1.0 / alpha)  # uniform quantiles of Beta(alpha, 1)
    pi = np.stack([np.broadcast_to(nu[:, None], (60, 60)), nu[:, None] * nu])
    mass = 0.25 * np.outer(weights, weights)

    def evidence(offset):
        terms = []
        for bits in product([0.0, 1.0], repeat=6):
            Z = np.array(bits).reshape(3, 2)
            count = Z.sum(axis=0)[:, None, None]
            log_prior = np.log(np.sum(mass * np.prod(pi**count * (1.0 - pi) ** (3 - count), axis=0)))
            normal = multivariate_normal(np.zeros(3), noise * np.eye(3) + prior * Z @ Z.T)
            terms.append(log_prior + sum(normal.logpdf(column) for column in (rows - offset).T))
        return logsumexp(terms)

    X = centre_rows(rows, np.zeros(2))
    data = Data(X)
    settings = make_settings(
        X, n_components=2, alpha=alpha, C=0.0, generative_weight=1.0, temperature=1.0, noise_variance=noise,
        prior_variance=prior, max_iter=200,
    )  # fmt: skip
    slack = []
    for seed in range(8):
        start = starts.random_params(X, settings, np.random.default_rng(seed))
        result = fit.fit(data, settings, start, margins="posterior")
        slack.append(evidence(result.state.params.offset) + result.trace.objective.min())
    assert min(slack) > -1e-9
    assert min(slack) < 3.0


# --- weights of rows --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_sweeps", [1, 3])
@pytest.mark.parametrize("one_vs_rest", [False, True])
@pytest.mark.parametrize("fit_intercept", [False, True])
def test_objective_and_gradient_count_weight_two_as_row_twice(n_sweeps, one_vs_rest, fit_intercept):
    """Generative terms and gradients agree to rounding, and the head to its duality gap."""
    changes = {"n_sweeps": n_sweeps, "one_vs_rest": one_vs_rest, "fit_intercept": fit_intercept, "input_scale": 0.2}
    times = np.random.default_rng(0).integers(1, 4, 60)
    heavy = make_data(30, n_unlabeled=8, row_weights=times.astype(float))
    repeated = repeat_rows(heavy, times)
    settings = make_settings(repeated.X, **changes)
    params = starts.random_params(repeated.X, settings, np.random.default_rng(1))
    assert starts.soft_temperature(heavy.X, 0.5) == pytest.approx(starts.soft_temperature(repeated.X, 0.5), rel=1e-12)
    for C, tol in ((0.0, 1e-12), (0.3, 1e-6)):
        found = []
        for data in (heavy, repeated):
            problem = ILSVMProblem(data, replace(settings, C=C))
            at, inferred = problem.joint.evaluate(params, None, EXACT)
            found.append((at, problem.joint.gradient(at, inferred), problem.unit))
        (at, gradient, unit), (there, expected, unit_there) = found
        assert unit == pytest.approx(unit_there, rel=1e-12)
        assert dict(at.terms) == pytest.approx(dict(there.terms), rel=tol)
        assert gradient == pytest.approx(expected, abs=100 * tol * np.abs(expected).max())


def test_alternation_fit_counts_weight_two_as_row_twice():
    """Uses one-vs-rest margins, since copies of a row may use different classes that tie in a multi-class margin."""
    times = np.random.default_rng(0).integers(1, 4, 60)
    heavy = make_data(31, row_weights=times.astype(float))
    repeated = repeat_rows(heavy, times)
    settings = make_settings(repeated.X, one_vs_rest=True, **ESTIMATED)
    params = starts.random_params(repeated.X, settings, np.random.default_rng(1))
    objectives = []
    for data in (heavy, repeated):
        joint = ILSVMProblem(data, settings).joint
        state = alternation.start(joint, params, None, EXACT)
        for _ in range(3):
            state = alternation.step(joint, state, EXACT).state
        objectives.append(state.at.objective)
    assert objectives[0] == pytest.approx(objectives[1], rel=1e-6)


# --- symmetries, sums, scales -----------------------------------------------------------------------------------------


def test_permuting_rows_columns_and_classes_permutes_the_result():
    problem = make_problem(14, n_unlabeled=6)
    data, g = problem.data, start_of(problem)
    rng = np.random.default_rng(7)
    rows, columns, classes = rng.permutation(60), rng.permutation(7), rng.permutation(3)
    renamed = np.append(np.argsort(classes), UNLABELED)[labels_of(data)]
    weights = np.append(np.zeros(6), data.targets.C)
    other = Data.of_classes(centre_rows(data.X.X[rows][:, columns]), renamed[rows], weights[rows], data.targets.cost)
    moved = ILSVMProblem(other, problem.settings).joint
    at, inferred = problem.joint.evaluate(g, None, EXACT)
    there, moved_inferred = moved.evaluate(replace(g, loadings=g.loadings[:, columns]), None, EXACT)
    (psi,), (moved_psi,) = problem.joint.features(inferred), moved.features(moved_inferred)
    assert there.objective == pytest.approx(at.objective, rel=1e-9)
    assert moved_psi == pytest.approx(psi[rows], abs=1e-12)
    assert there.head.head.weights == pytest.approx(at.head.head.weights[classes], abs=1e-5)
    gradients = problem.joint.gradient(at, inferred), moved.gradient(there, moved_inferred)
    assert gradients[1] == pytest.approx(gradients[0][:, columns], abs=1e-5 * np.abs(gradients[0]).max())


def test_statistics_of_rows_are_additive():
    problem = make_problem(16)
    X, g = problem.data.X, start_of(problem)
    whole, first, second = (
        BinaryFeatures(2.0, 1.0).infer(rows, g).stats for rows in (X, X.take(slice(25)), X.take(slice(25, None)))
    )
    for name in Stats.__dataclass_fields__:
        assert getattr(first + second, name) == pytest.approx(getattr(whole, name), rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_rows_are_centered_without_a_copy(offset):
    rng = np.random.default_rng(8)
    X = rng.standard_normal((5000, 6)) * [1.0, 2.0, 3.0, 4.0, 5.0, 6.0] + offset
    rows, exact = centre_rows(X), (X - X.mean(axis=0)).astype(np.longdouble)
    assert rows.X is X
    directions, weights = rng.standard_normal((3, 6)), rng.standard_normal((5000, 3))
    assert rows.project(directions) == pytest.approx((exact @ directions.T).astype(float), abs=1e-7)
    assert rows.combine(weights) == pytest.approx((weights.T @ exact).astype(float), abs=1e-5)
    norms = np.square(exact).sum(axis=1).astype(float)
    assert rows.totals.squares.sum() == pytest.approx(norms.sum(), rel=1e-8)
    some = rng.permutation(5000)[:20]
    assert [rows.take([row]).totals.squares.sum() for row in some] == pytest.approx(norms[some], rel=1e-8)
    assert rows.take(some).array() == pytest.approx(exact[some].astype(float), abs=1e-8)
