"""The harmonium against oracles: enumeration, exact Gaussians, principal components, liblinear."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import multivariate_normal
from sklearn.decomposition import PCA
from sklearn.svm import LinearSVC

from harmonium_tools import (
    bernoulli_view,
    correlated,
    efh,
    enumerated_log_normaliser,
    every_binary_row,
    every_count_row,
    gaussian_problem,
    mmh,
    poisson_view,
    settings,
    some_weights,
)
from regbayes.engine import Status
from regbayes_paper.models.harmonium import model
from regbayes_paper.models.harmonium.learning import LONGEST, clip_weights, contrast, fit, reconstruction_costs
from regbayes_paper.models.harmonium.model import (
    Params,
    Rows,
    log_densities,
    log_normaliser,
    normaliser_gradient,
    start_params,
    update_weights,
)
from regbayes_paper.models.harmonium.units import GaussianUnits, Visible, spectrum

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

ENUMERABLE = {
    "bernoulli": (bernoulli_view(), every_binary_row(5)),
    "poisson": (poisson_view(), every_count_row(4, 6)),
}
enumerable = pytest.mark.parametrize(("visible", "rows"), ENUMERABLE.values(), ids=ENUMERABLE)


# --- units


@enumerable
def test_the_base_is_a_distribution_and_the_statistic_is_standardised_under_it(visible, rows):
    base, t = np.exp(visible.log_base(rows)), visible.statistic(rows)
    assert base.sum() == pytest.approx(1.0)
    np.testing.assert_allclose(base @ t, 0.0, atol=1e-12)
    covariance = (t.T * base) @ t
    span = np.linalg.svd(t, full_matrices=False)[2][: np.linalg.matrix_rank(t)]  # totals are given: one is lost there
    np.testing.assert_allclose(covariance, span.T @ span, atol=1e-12)


@enumerable
def test_rows_given_hidden_units_are_the_tilted_base(visible, rows):
    natural = 0.5 * np.random.default_rng(0).standard_normal((1, rows.shape[1]))
    tilted = np.exp(visible.log_base(rows) + visible.statistic(rows) @ natural[0])
    assert visible.log_tilt(natural, rows[:1])[0] == pytest.approx(np.log(tilted.sum()))
    expected = tilted @ rows / tilted.sum()
    np.testing.assert_allclose(visible.expect(natural, rows[:1])[0], expected, rtol=1e-12)
    draws = visible.draw(
        np.repeat(natural, 20_000, axis=0), np.repeat(rows[:1], 20_000, axis=0), np.random.default_rng(1)
    )
    error = np.sqrt(tilted @ np.square(rows - expected) / tilted.sum() / 20_000)
    assert np.all(np.abs(draws.mean(axis=0) - expected) < 5 * error)
    assert {tuple(row) for row in draws} <= {tuple(row) for row in rows}


def test_hidden_units_given_a_row_and_rows_themselves_are_those_of_the_joint_gaussian():
    """The joint precision of (t, h) is [[I, -W], [-W', I]]; conditioning and marginalising it is linear algebra."""
    rng = np.random.default_rng(0)
    D, K = 5, 2
    W = 0.8 * np.linalg.qr(rng.standard_normal((D, K)))[0] @ np.diag([1.0, 0.6])
    visible = Visible((np.arange(D),), (GaussianUnits(rng.standard_normal(D), np.full(D, 1.7)),))
    joint = np.linalg.inv(np.block([[np.eye(D), -W], [-W.T, np.eye(K)]]))
    X = rng.standard_normal((7, D))
    t = visible.statistic(X)
    regression = joint[D:, :D] @ np.linalg.inv(joint[:D, :D])
    np.testing.assert_allclose(t @ W, t @ regression.T, rtol=1e-10)
    np.testing.assert_allclose(joint[D:, D:] - regression @ joint[:D, D:], np.eye(K), atol=1e-12)
    marginal = multivariate_normal(visible.units[0].mean, 1.7**2 * joint[:D, :D])
    g = Params(W, np.zeros(D))
    np.testing.assert_allclose(log_densities(X, g, visible), marginal.logpdf(X), rtol=1e-10)
    given = [
        multivariate_normal(visible.units[0].mean + 1.7 * W @ h, 1.7**2).logpdf(x)
        for x, h in zip(X, t @ W, strict=True)
    ]
    np.testing.assert_allclose(
        reconstruction_costs(X, Rows.of(X, visible, np.ones(7)), g, visible), -np.array(given), rtol=1e-10
    )


def test_columns_of_a_view_may_lie_anywhere():
    rng = np.random.default_rng(0)
    coins, counts = bernoulli_view(3).units[0], poisson_view(4).units[0]
    both = Visible((np.array([5, 0, 2]), np.array([1, 3, 4, 6])), (coins, counts))
    X = np.empty((6, 7))
    X[:, both.columns[0]], X[:, both.columns[1]] = rng.integers(0, 2, (6, 3)), rng.poisson(2.0, (6, 4))
    np.testing.assert_array_equal(both.statistic(X)[:, both.columns[0]], coins.statistic(X[:, both.columns[0]]))
    np.testing.assert_array_equal(both.statistic(X)[:, both.columns[1]], counts.statistic(X[:, both.columns[1]]))
    natural = rng.standard_normal((6, 7))
    parts = [u.log_tilt(natural[:, c], X[:, c]) for c, u in zip(both.columns, both.units, strict=True)]
    np.testing.assert_allclose(both.log_tilt(natural, X), sum(parts))
    redrawn = both.draw(natural, X, rng)
    np.testing.assert_array_equal(redrawn[:, both.columns[1]].sum(axis=1), X[:, both.columns[1]].sum(axis=1))
    assert both.unbounded.size == 0


def test_an_empty_row_of_counts_says_nothing():
    units = poisson_view(4).units[0]
    empty, natural = np.zeros((1, 4)), np.ones((1, 4))
    np.testing.assert_array_equal(units.statistic(empty), 0.0)
    np.testing.assert_array_equal(units.draw(natural, empty, np.random.default_rng(0)), 0.0)
    assert units.log_base(empty)[0] == units.log_tilt(natural, empty)[0] == 0.0


# --- mean field


@enumerable
def test_the_mean_field_normaliser_is_right_to_fourth_order_in_the_weights(visible, rows):
    errors = []
    for length in (0.1, 0.05):
        g = Params(some_weights(visible, rows, 2, length), np.zeros(rows.shape[1]))
        errors.append(enumerated_log_normaliser(rows, g, visible) - log_normaliser(g.weights))
    assert errors[0] / errors[1] == pytest.approx(16.0, rel=0.05)


def test_the_likelihoods_gradient_is_that_of_the_exact_gaussian():
    """Finite differences of scipy's normal log-density, whose covariance is (I - WW')^-1 in units of the noise."""
    X, y = correlated(30)
    problem = gaussian_problem(X, y, C=0.0, generative_weight=1.0)
    W = some_weights(problem.visible, X, 3, 0.7)
    units = problem.visible.units[0]

    def exact(weights):
        covariance = units.scale[0] ** 2 * np.linalg.inv(np.eye(6) - weights @ weights.T)
        return -multivariate_normal(units.mean, covariance).logpdf(X).sum()

    assert problem.evaluate(W).objective == pytest.approx(exact(W), rel=1e-12)
    slope = problem.gradient(W)
    for direction in np.random.default_rng(1).standard_normal((3, *W.shape)):
        numeric = (exact(W + 1e-5 * direction) - exact(W - 1e-5 * direction)) / 2e-5
        assert np.vdot(slope, direction) == pytest.approx(numeric, rel=1e-6)


def test_an_unstable_mean_field_is_worth_infinity():
    W = some_weights(bernoulli_view(), every_binary_row(5), 2, 1.01)
    assert log_normaliser(W) == np.inf
    problem = gaussian_problem(*correlated(), C=0.0)
    assert problem.evaluate(np.eye(6)[:, :3] * 1.2).objective == np.inf


def test_gaussian_units_in_mean_field_are_probabilistic_principal_components():
    """Noise variance and density are those of scikit-learn's PCA."""
    X, _ = correlated(100)
    pca = PCA(2).fit(X)
    pca.explained_variance_ *= 99 / 100  # maximum likelihood divides by n
    pca.noise_variance_ *= 99 / 100
    fitted = efh(2).fit(X)
    np.testing.assert_allclose(fitted.scale_, np.sqrt(pca.noise_variance_), rtol=1e-9)
    np.testing.assert_allclose(fitted.score_samples(X), pca.score_samples(X), rtol=1e-9)
    assert fitted.n_iter_ == 1


def test_no_other_noise_variance_explains_gaussian_rows_better():
    X, _ = correlated(100)
    best = efh(2).fit(X)
    assert all(
        efh(2, noise_variance=factor * best.scale_[0] ** 2).fit(X).score(X) < best.score(X) for factor in (0.9, 1.1)
    )
    assert np.square(efh(6).fit(X).scale_[0]) == pytest.approx(0.01 * X.var(axis=0).mean())
    assert np.square(mmh(max_iter=0).fit(X, np.arange(100) % 2).scale_[0]) == pytest.approx(0.5 * X.var(axis=0).mean())


@pytest.mark.parametrize("n_components", [1, 3, 6, 9])
def test_no_change_of_the_weights_beats_their_update(n_components):
    X, y = correlated()
    problem = gaussian_problem(X, y, C=0.0, n_components=n_components)
    best = update_weights(problem.spectrum(n_components), n_components)

    def value(weights):
        return problem.evaluate(weights).objective

    rng = np.random.default_rng(0)
    lowest = value(best)
    assert np.isfinite(lowest)
    for size in (1e-3, 1e-2, 1e-1):
        assert all(value(best + size * rng.standard_normal(best.shape)) > lowest for _ in range(20))


def test_wide_and_tall_rows_have_the_same_spectrum():
    t = np.random.default_rng(0).standard_normal((6, 9))
    wide = spectrum(t, np.ones(6), 20)
    values, vectors = np.linalg.eigh(t.T @ t / 6)
    np.testing.assert_allclose(wide.values, values[::-1][:6])
    np.testing.assert_allclose(np.abs(wide.directions.T @ vectors[:, ::-1][:, :6]), np.eye(6), atol=1e-8)
    tall = spectrum(np.vstack([t, t]), np.ones(12), 4)
    np.testing.assert_allclose(tall.values, wide.values[:4])
    np.testing.assert_allclose(tall.directions, wide.directions[:, :4], atol=1e-8)


# --- contrastive divergence


@enumerable
def test_many_gibbs_steps_give_the_exact_gradient(visible, rows):
    """The estimate from draws, against finite differences of the enumerated log-likelihood."""
    rng = np.random.default_rng(0)
    d = rows.shape[1]
    g = Params(some_weights(visible, rows, 2, 0.6), 0.1 * rng.standard_normal(d))
    X = rows[rng.choice(len(rows), 500)]
    t = visible.statistic(X)

    def cost(at):
        tilt = t @ at.biases + 0.5 * np.square(t @ at.weights).sum(axis=1)
        return enumerated_log_normaliser(rows, at, visible) - tilt.mean()

    share = np.full(500, 1 / 500)
    estimates = [contrast(X, t, share, g, visible, 15, np.random.default_rng(seed)) for seed in range(60)]
    for name in ("weights", "biases"):
        draws = np.array([getattr(estimate, name) for estimate in estimates])
        direction = getattr(contrast(X, t, share, g, visible, 15, np.random.default_rng(99)), name)  # there is a slope
        ahead, behind = (replace(g, **{name: getattr(g, name) + step * direction}) for step in (1e-5, -1e-5))
        numeric = (cost(ahead) - cost(behind)) / 2e-5
        along = np.tensordot(draws, direction, axes=direction.ndim)
        assert abs(along.mean() - numeric) < 5 * along.std(ddof=1) / np.sqrt(len(along))
        assert abs(numeric) > 10 * along.std(ddof=1) / np.sqrt(len(along))  # there is something to be wrong about


def test_one_gibbs_step_of_gaussian_units_rests_at_maximum_likelihood():
    """For Gaussian units contrastive divergence has the right fixed point, and pushes towards it from both sides."""
    X, y = correlated(400)
    problem = gaussian_problem(X, y, C=0.0)
    best, t, share = update_weights(problem.spectrum(2), 2), problem.rows.statistics, np.full(400, 1 / 400)

    def push(factor):
        g = Params(factor * best, np.zeros(6))
        draws = [
            np.vdot(contrast(X, t, share, g, problem.visible, 1, np.random.default_rng(s)).weights, best)
            for s in range(60)
        ]
        return np.mean(draws), np.std(draws) / np.sqrt(60)

    mean, error = push(1.0)
    assert abs(mean) < 4 * error
    mean, error = push(0.95)
    assert mean < -10 * error
    mean, error = push(1.0 / np.linalg.norm(best, 2))
    assert mean > 10 * error


def test_contrastive_divergence_finds_the_exact_gaussian():
    X, _ = correlated(200)
    exact = efh(2).fit(X)
    sampled = efh(2, learning="contrastive_divergence", max_iter=200).fit(X)
    covariances = [np.linalg.inv(np.eye(6) - fitted.components_.T @ fitted.components_) for fitted in (exact, sampled)]
    assert np.linalg.norm(covariances[1] - covariances[0]) < 0.15 * np.linalg.norm(covariances[0])
    start = efh(2, learning="contrastive_divergence", max_iter=0).fit(X)
    np.testing.assert_array_equal(start.components_, exact.components_)


def test_weights_of_unbounded_units_stay_where_there_is_a_normaliser():
    g = Params(np.vstack([2.0 * np.eye(3), np.ones((2, 3))]), np.zeros(5))
    clipped = clip_weights(g, np.arange(3))
    np.testing.assert_allclose(clipped.weights[:3], np.sqrt(LONGEST) * np.eye(3), atol=1e-12)
    np.testing.assert_array_equal(clipped.weights[3:], 1.0)
    assert clip_weights(g, np.empty(0, dtype=np.int64)) is g
    assert clip_weights(clipped, np.arange(3)).weights == pytest.approx(clipped.weights, abs=1e-12)


# --- margins


@pytest.mark.parametrize(("squared", "fit_intercept"), [(True, True), (False, False)])
def test_the_gradient_with_margins_is_that_of_finite_differences(squared, fit_intercept):
    X, y = correlated()
    problem = gaussian_problem(X, y, squared=squared, fit_intercept=fit_intercept)
    W = some_weights(problem.visible, X, 3, 0.7)
    slope, plain = problem.gradient(W), replace(problem, joint=replace(problem.joint, head=None)).gradient(W)
    assert np.linalg.norm(slope - plain) > 0.1 * np.linalg.norm(plain)
    for direction in np.random.default_rng(1).standard_normal((2, *W.shape)):
        ahead, behind = (problem.evaluate(W + step * direction).objective for step in (1e-4, -1e-4))
        assert np.vdot(slope, direction) == pytest.approx((ahead - behind) / 2e-4, rel=1e-4, abs=1e-4)


def test_descent_never_rises_and_ends_where_no_small_change_helps():
    X, y = correlated()
    problem = gaussian_problem(X, y)
    result = fit(problem.data, settings(tol=0.0), problem.visible, np.random.default_rng(0))
    assert result.trace.rises.count == 0
    assert result.trace.objective[-1] < result.trace.objective[0] - 0.5

    def value(weights):
        return problem.evaluate(weights, result.state.multipliers).objective

    W = result.state.params.weights
    lowest = value(W)
    rng = np.random.default_rng(0)
    changes = [value(W + size * rng.standard_normal(W.shape)) - lowest for size in (1e-3, 1e-2) for _ in range(10)]
    assert min(changes) > -1e-5 * abs(lowest)
    steep = problem.gradient(start_params(problem.spectrum(3), 3, True, rng).weights)
    assert np.linalg.norm(problem.gradient(W, result.state.multipliers)) < 1e-2 * np.linalg.norm(steep)


@pytest.mark.parametrize("learning", ["mean_field", "contrastive_divergence"])
def test_without_a_price_on_margins_it_is_the_harmonium_without_labels(learning):
    X, y = correlated()
    with_labels, without = mmh(C=0.0, learning=learning).fit(X, y), efh(noise_variance="half", learning=learning).fit(X)
    np.testing.assert_array_equal(with_labels.components_, without.components_)
    assert not np.any(with_labels.coef_features_)
    assert set(with_labels.predict(X)) == {0}


def test_a_small_price_on_margins_is_nearly_none():
    X, y = correlated()
    without = efh(3, noise_variance="half").fit(X)
    near, far = (mmh(3, C=C, generative_weight=1.0, tol=1e-9, max_iter=100).fit(X, y) for C in (1e-4, 10.0))
    assert np.abs(near.components_ - without.components_).max() < 1e-3
    assert np.abs(far.components_ - without.components_).max() > 1e-2


@pytest.mark.parametrize("C", [0.05, 1.0])
@pytest.mark.parametrize("max_iter", [0, 20])
def test_the_classifier_on_its_features_is_liblinears(C, max_iter):
    X, y = correlated()
    fitted = mmh(C=C, loss="hinge", max_iter=max_iter).fit(X, y)
    rows = fitted.transform(X)
    oracle = LinearSVC(multi_class="crammer_singer", C=C, tol=1e-9, max_iter=1_000_000).fit(rows, y)

    def value(coef, intercept):
        scores = rows @ coef.T + intercept
        worst = np.max(scores + 1.0 - np.eye(3)[y], axis=1)
        penalty = np.sum(coef**2) + np.sum(intercept**2)
        return 0.5 * penalty + C * np.sum(worst - scores[np.arange(len(y)), y])

    found, best = value(fitted.coef_features_, fitted.intercept_), value(oracle.coef_, oracle.intercept_)
    assert found == pytest.approx(best, rel=1e-6)
    assert np.abs(fitted.coef_features_ - oracle.coef_).max() < 1e-2 * np.abs(oracle.coef_).max()


def test_units_that_the_likelihood_has_no_use_for_are_there_for_the_margins():
    """Four directions stand out of the noise; with margins a unit more than these does not start from nothing."""
    X, y = correlated()
    found = gaussian_problem(X, y).spectrum(6)
    n_strong = int(np.sum(found.values > 1))
    assert 1 <= n_strong < 6
    assert np.sum(np.any(efh(9, noise_variance="half").fit(X).components_, axis=1)) == n_strong
    start = mmh(9, max_iter=0).fit(X, y)
    assert np.all(np.any(start.components_, axis=1))
    assert log_normaliser(start.components_.T) < np.inf


# --- what must not matter


def relabelled(y):
    return np.array([2, 0, 1])[y]


def test_the_order_of_rows_columns_and_classes_does_not_matter():
    X, y = correlated()
    rng = np.random.default_rng(0)
    rows, columns = rng.permutation(len(X)), rng.permutation(X.shape[1])
    options = {"tol": 1e-7, "max_iter": 200}
    scores = mmh(3, **options).fit(X, y).decision_function(X)
    limit = 5e-3 * np.abs(scores).max()
    other = mmh(3, **options).fit(X[rows], y[rows])
    assert np.abs(other.decision_function(X) - scores).max() < limit
    other = mmh(3, **options).fit(X[:, columns], y)
    assert np.abs(other.decision_function(X[:, columns]) - scores).max() < limit
    other = mmh(3, **options).fit(X, relabelled(y))
    assert np.abs(other.decision_function(X)[:, relabelled(np.arange(3))] - scores).max() < limit


def test_views_of_one_kind_are_one_view():
    X, y = correlated()
    whole = mmh(noise_variance=2.0).fit(X, y)
    halves = mmh(noise_variance=2.0, visible=[("gaussian", [5, 0, 2]), ("gaussian", [1, 3, 4])]).fit(X, y)
    np.testing.assert_allclose(halves.components_, whole.components_, rtol=1e-9, atol=1e-12)


def test_views_are_joined_by_the_hidden_units_alone():
    """A hidden cause of coins, counts and real values is found from any two of them, and better from all."""
    rng = np.random.default_rng(0)
    cause = rng.standard_normal(600)
    coins = rng.random((600, 8)) < 1.0 / (1.0 + np.exp(-1.5 * cause[:, None]))
    counts = rng.poisson(np.exp(1.0 + 0.4 * np.outer(cause, np.repeat([1.0, -1.0], 4))))
    real = cause[:, None] + rng.standard_normal((600, 4))
    X = np.hstack([coins, counts, real])
    kinds = [("bernoulli", slice(0, 8)), ("poisson", slice(8, 16)), ("gaussian", slice(16, 20))]

    def correlation(learning, views):
        columns = np.concatenate([np.arange(20)[columns] for _, columns in views])
        places = {int(column): place for place, column in enumerate(columns)}
        moved = [(kind, [places[int(c)] for c in np.arange(20)[of]]) for kind, of in views]
        found = efh(1, visible=moved, learning=learning).fit_transform(X[:, columns])[:, 0]
        return abs(np.corrcoef(found, cause)[0, 1])

    for learning in ("mean_field", "contrastive_divergence"):
        everything = correlation(learning, kinds)
        assert everything > 0.9
        assert all(everything > correlation(learning, [kind]) for kind in kinds)


def test_expected_rows_of_the_expected_hidden_units_are_near_the_rows():
    X, _ = correlated()
    fitted = efh(6, noise_variance=1e-4).fit(X)
    np.testing.assert_allclose(fitted.inverse_transform(fitted.transform(X)), X, atol=1e-2)
    assert model.reconstruct(np.zeros((1, 6)), fitted._state)[0] == pytest.approx(X.mean(axis=0))


def test_a_fit_that_starts_at_the_best_weights_converges_at_once():
    problem = gaussian_problem(*correlated(), C=0.0)
    result = fit(problem.data, problem.settings, problem.visible, np.random.default_rng(0))
    assert result.status is Status.CONVERGED
    assert result.n_iter == 1
    residual = (
        normaliser_gradient(result.state.params.weights) - problem.rows.statistics.T @ result.state.embedding / 80
    )
    assert np.abs(residual).max() < 1e-10


# --- rows that count more than once


def some_counts(n):
    return np.random.default_rng(5).integers(1, 4, n)


@pytest.mark.parametrize("squared", [False, True])
def test_a_row_of_weight_two_is_the_row_twice(squared):
    """J, its terms and its gradient at the same parameters, and all that the start is made of."""
    X, y = correlated()
    counts = some_counts(len(X))
    weighted = gaussian_problem(X, y, weights=counts.astype(float), squared=squared)
    repeated = gaussian_problem(X.repeat(counts, axis=0), y.repeat(counts), squared=squared)
    for name in ("mean", "scale"):
        np.testing.assert_allclose(weighted.visible.collect(name), repeated.visible.collect(name), rtol=1e-12)
    np.testing.assert_allclose(weighted.spectrum(6).values, repeated.spectrum(6).values, rtol=1e-12)
    starts = [start_params(p.spectrum(9), 9, True, np.random.default_rng(0)).weights for p in (weighted, repeated)]
    np.testing.assert_allclose(*starts, atol=1e-9)
    W = some_weights(weighted.visible, X, 3, 0.7)
    without = [replace(p, joint=replace(p.joint, head=None)) for p in (weighted, repeated)]
    assert without[0].evaluate(W).objective == pytest.approx(without[1].evaluate(W).objective, rel=1e-12)
    np.testing.assert_allclose(without[0].gradient(W), without[1].gradient(W), rtol=1e-12, atol=1e-9)
    for name, value in weighted.evaluate(W).terms.items():
        assert value == pytest.approx(repeated.evaluate(W).terms[name], rel=1e-4 if name != "likelihood" else 1e-12)
    assert weighted.evaluate(W).objective == pytest.approx(repeated.evaluate(W).objective, rel=1e-9)
    fixed = weighted.evaluate(W).head
    losses = [p.joint.head.losses(p.rows.statistics @ W @ fixed.head.feature_weights.T) for p in (weighted, repeated)]
    assert losses[0].sum() == pytest.approx(losses[1].sum(), rel=1e-12)


@pytest.mark.parametrize("learning", ["mean_field", "contrastive_divergence"])
@pytest.mark.parametrize("visible", ["gaussian", "bernoulli", "poisson"])
def test_units_of_every_kind_count_rows(visible, learning):
    X, y = correlated()
    X = {"gaussian": X, "bernoulli": (X > 2.0).astype(float), "poisson": np.floor(np.abs(X))}[visible]
    counts = some_counts(len(X))
    counts[::7] = 0
    options = {"visible": visible, "max_iter": 0, "C": 0.0, "learning": learning}
    weighted = mmh(**options).fit(X, y, sample_weight=counts)
    repeated = mmh(**options).fit(X.repeat(counts, axis=0), y.repeat(counts))
    for name in ("mean_", "scale_", "components_"):
        np.testing.assert_allclose(getattr(weighted, name), getattr(repeated, name), rtol=1e-9, atol=1e-12)
    assert weighted.trace_.objective[0] == pytest.approx(repeated.trace_.objective[0], rel=1e-12)
    assert weighted.embedding_.shape == (np.sum(counts > 0), 4)


def test_weights_of_a_fit_with_margins_are_repeated_rows():
    X, y = correlated()
    counts = some_counts(len(X))
    counts[y == 2] = 0  # a class of which nothing is left
    options = {"tol": 1e-9, "max_iter": 300, "class_weight": "balanced"}
    weighted = mmh(3, **options).fit(X, y, sample_weight=counts)
    repeated = mmh(3, **options).fit(X.repeat(counts, axis=0), y.repeat(counts))
    np.testing.assert_array_equal(weighted.classes_, [0, 1])
    assert weighted.trace_.objective[-1] == pytest.approx(repeated.trace_.objective[-1], rel=1e-6)
    scores = repeated.decision_function(X)
    assert np.abs(weighted.decision_function(X) - scores).max() < 5e-3 * np.abs(scores).max()


def test_a_batch_of_weighted_rows_estimates_the_gradient_of_repeated_ones():
    """Over draws and batches the mean direction is that of all rows, each as often as it counts."""
    X, y = correlated(60)
    counts = some_counts(60)
    problem = gaussian_problem(X, y, C=0.0, weights=counts.astype(float))
    g = Params(some_weights(problem.visible, X, 2, 0.6), np.zeros(6))
    t, rng = problem.rows.statistics, np.random.default_rng(0)
    found = []
    for _ in range(300):
        batch = rng.permutation(60)[:15]
        share = counts[batch] / (15 * counts.mean())
        found.append(contrast(X[batch], t[batch], share, g, problem.visible, 1, rng).weights)
    many, each = t.repeat(counts, axis=0), np.full(counts.sum(), 1 / counts.sum())
    rows = X.repeat(counts, axis=0)
    whole = np.mean([contrast(rows, many, each, g, problem.visible, 1, rng).weights for _ in range(300)], axis=0)
    error = np.std(found, axis=0) / np.sqrt(300)
    assert np.all(np.abs(np.mean(found, axis=0) - whole) < 5 * error)
    assert np.any(np.abs(whole) > 10 * error)
