"""Noise of each input's own: the model under it, how it is found, and rows that are sums of on/off features."""

from __future__ import annotations

import warnings
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import norm
from sklearn.decomposition import FactorAnalysis

from ilsvm_model_tools import EXACT, make_problem, make_settings, start_of
from regbayes import IBPFactorAnalysis, ILSVMClassifier
from regbayes.models.ilsvm import warmup
from regbayes.models.ilsvm.model import EXACT as ENUMERATED
from regbayes.models.ilsvm.model import (
    MOST_EXACT,
    BinaryFeatures,
    HostRows,
    ILSVMProblem,
    OnOff,
    centre_rows,
    expected_residual,
)
from regbayes.models.ilsvm.on_off import (
    LEAST_NOISE,
    MOST_ENUMERATED,
    NO_NOISE,
    analyse_noise,
    are_tangled,
    count_factors,
    find_on_off,
    score_factors,
    update_noise,
)
from regbayes.models.indian_buffet import stick_expectations
from simulated_features import loaded, matched, planted, with_rare_feature


def draw_ratios(D, seed=0):
    logs = np.random.default_rng(seed).uniform(-1.0, 1.0, D)
    return np.exp(logs - logs.mean())


def reading(K=60, **changes):
    return ILSVMClassifier(K, temperature=0.02, **changes)


# --- the model


@pytest.mark.parametrize("n_sweeps", [1, 3])
def test_noise_by_input_is_another_unit_for_each_input(n_sweeps):
    """J, its gradient, features, bounds and updates are those of rows over the noise: the ratios' product is one."""
    ratios, rng = draw_ratios(7), np.random.default_rng(1)
    weights = rng.uniform(0.5, 2.0, 60)
    problem = make_problem(1, {"n_sweeps": n_sweeps, "C": 0.3}, n_unlabeled=8, row_weights=weights)
    plain = replace(start_of(problem), offset=rng.standard_normal(7))
    scales, data = np.sqrt(ratios), problem.data
    rows = HostRows(data.X.X * scales, data.X.mean * scales, weights)
    own = replace(plain, loadings=plain.loadings * scales, offset=plain.offset * scales, noise_ratios=ratios)
    other = ILSVMProblem(replace(data, X=rows), problem.settings)
    expected, inferred = problem.joint.evaluate(plain, None, EXACT)
    found, same = other.joint.evaluate(own, None, EXACT)
    assert found.terms == pytest.approx(expected.terms, rel=1e-9)
    gradient = problem.joint.gradient(expected, inferred)
    assert other.joint.gradient(found, same) == pytest.approx(gradient, rel=1e-7, abs=1e-9 * np.abs(gradient).max())
    assert own.infer(rows) == pytest.approx(plain.infer(data.X), abs=1e-12)
    assert own.bound(rows) == pytest.approx(plain.bound(data.X), rel=1e-10)
    model = BinaryFeatures(2.0, 1.0, estimate_noise=True, estimate_prior=True)
    updated, wanted = model.update_blocks(own, found.stats), model.update_blocks(plain, expected.stats)
    assert updated.noise_variance == pytest.approx(wanted.noise_variance, rel=1e-10)
    assert updated.prior_variance == pytest.approx(wanted.prior_variance, rel=1e-10)
    assert model.position(own) == pytest.approx(model.position(plain), rel=1e-12)
    assert model.move(own, model.position(plain)).loadings == pytest.approx(own.loadings, rel=1e-12)


def test_gradient_under_noise_by_input_agrees_with_differences():
    problem = make_problem(1, {"n_sweeps": 2, "C": 0.3}, n_unlabeled=8)
    g = replace(start_of(problem), offset=np.random.default_rng(3).standard_normal(7), noise_ratios=draw_ratios(7))
    at, inferred = problem.joint.evaluate(g, None, EXACT)
    gradient, model = problem.joint.gradient(at, inferred), problem.joint.model
    direction = np.random.default_rng(2).standard_normal(gradient.shape)

    def value(step):
        moved = model.move(g, model.position(g) + step * direction)
        return problem.joint.evaluate(moved, at.warm_start, EXACT)[0].objective

    h = 1e-4
    assert (value(h) - value(-h)) / (2 * h) == pytest.approx(np.vdot(gradient, direction), rel=2e-4, abs=1e-4)


def test_row_bounds_under_noise_by_input_meet_the_enumerated_log_density_of_loadings_that_do_not_interact():
    """Every z enumerated, with the density of each input by itself; loadings that share no input are independent."""
    rng = np.random.default_rng(5)
    problem = make_problem(13, {"n_components": 2, "temperature": 1.0, "n_sweeps": 60}, n=30, D=4)
    X, ratios, variances = problem.data.X, draw_ratios(4), np.array([0.05, 0.2])
    apart = np.array([[2.0, -1.0, 0.0, 0.0], [0.0, 0.0, 1.5, 1.0]])
    for loadings, tight in ((apart, True), (2.0 * rng.standard_normal((2, 4)), False)):
        g = replace(
            start_of(problem), loadings=loadings, offset=rng.standard_normal(4), variances=variances, temperature=1.0,
            noise_ratios=ratios,
        )  # fmt: skip
        noise, expected, terms = g.noise_variance * ratios, stick_expectations(g.sticks), []
        for bits in product([0.0, 1.0], repeat=2):
            z = np.array(bits)
            density = norm.logpdf(X.array(), g.offset + z @ loadings, np.sqrt(noise)).sum(axis=1)
            # The variance of a loading is in units of its input's noise, as its prior is.
            spread = 0.5 * 4 * z @ variances / g.noise_variance
            terms.append(z @ expected.log_use + (1.0 - z) @ expected.log_rest + density - spread)
        exact, bounds = logsumexp(terms, axis=0), g.bound(X)
        assert np.all(bounds <= exact + 1e-10)
        assert not tight or bounds == pytest.approx(exact, abs=1e-8)


def test_expected_residual_under_noise_by_input_agrees_with_enumeration():
    rng = np.random.default_rng(4)
    problem = make_problem(12, {"n_components": 3}, n=4, D=3)
    X, ratios = problem.data.X, draw_ratios(3)
    g = replace(
        start_of(problem), variances=rng.uniform(0.1, 1.0, 3), offset=rng.standard_normal(3), noise_ratios=ratios
    )
    inferred = X.infer(g)
    psi, total = inferred.features, 0.0
    for bits in product([0.0, 1.0], repeat=3):
        z = np.array(bits)
        probability = np.prod(np.where(z == 1.0, psi, 1.0 - psi), axis=1)
        left = np.square(X.array() - g.offset - z @ g.loadings) / ratios
        total += probability @ (left.sum(axis=1) + 3 * z @ g.variances)
    assert expected_residual(inferred.stats, g) == pytest.approx(total, rel=1e-12)


# --- how noise is found


def test_noise_of_a_factor_analysis_is_that_of_rows_with_exactly_these_moments():
    rng = np.random.default_rng(0)
    noise, loadings = rng.uniform(0.5, 2.0, 12), 2.0 * rng.standard_normal((2, 12))
    factor = np.linalg.cholesky(loadings.T @ loadings + np.diag(noise))
    basis = np.linalg.qr(rng.standard_normal((4000, 12)))[0]
    rows = np.sqrt(4000) * basis @ factor.T
    found, n_factors = analyse_noise(HostRows(rows, np.zeros(12)), 50)
    assert n_factors == 2
    shares = noise / (noise + np.square(loadings).sum(axis=0))
    assert found / noise * shares == pytest.approx(shares, abs=0.02)  # it ends where shares hardly change
    units = np.exp(rng.uniform(-2.0, 2.0, 12))
    assert analyse_noise(HostRows(units * rows, np.zeros(12)), 50)[0] == pytest.approx(units**2 * found, rel=1e-8)


def test_inputs_that_determine_each_other_have_no_noise_and_constant_ones_do_not_matter():
    rng = np.random.default_rng(1)
    twice = np.repeat(rng.standard_normal((300, 4)), 2, axis=1)
    assert analyse_noise(centre_rows(twice), 50, NO_NOISE)[0] == pytest.approx(NO_NOISE * twice.var(axis=0), rel=1e-3)
    X = planted(5, 1)[0]
    wider = np.insert(X, [3, 7], 1.0, axis=1)
    (found, _), constant = analyse_noise(centre_rows(wider), 50), np.ptp(wider, axis=0) == 0
    assert found[~constant] == pytest.approx(analyse_noise(centre_rows(X), 50)[0], rel=1e-8)
    assert np.all(found > LEAST_NOISE * 0.1)


@pytest.mark.parametrize("D", [5, 6, 10, 15, 40])
def test_factors_that_can_be_told_leave_no_fewer_correlations_than_they_have_numbers(D):
    """Loadings, up to a rotation, and noise of each input, against variances and covariances."""

    def spare(K):
        return D * (D + 1) // 2 - (D * K - K * (K - 1) // 2 + D)

    K = count_factors(D)
    assert spare(K) >= 0
    assert spare(K + 1) < 0


def draw_sum(K, seed, noise, inputs=4, nonnegative=False, rows=100):
    """Rows and new rows, with the planted features of these; noise is a share of each input's signal."""
    rng = np.random.default_rng([seed, K])
    Z = (rng.random((rows * K + 500, K)) < np.linspace(0.15, 0.5, K)).astype(float)
    loadings = rng.standard_normal((K, inputs * K))
    signal = Z @ (np.abs(loadings) if nonnegative else loadings)
    X = signal + np.sqrt(noise) * signal.std(axis=0) * rng.standard_normal(signal.shape)
    return X[:-500], X[-500:], Z[-500:]


def test_a_start_of_exact_features_has_no_more_than_can_be_enumerated():
    """What rows are is asked of some of them; all of them may tell more directions from the noise."""
    X, _, _ = draw_sum(14, 1, noise=0.1)
    rows = centre_rows(X)
    settings = make_settings(rows, n_components=50, on_off=OnOff(1.0, 0.3, 2)).with_noise(0.1, np.ones(X.shape[1]))
    (start,) = warmup.initial_params(rows, settings)
    assert len(start.loadings) > MOST_EXACT
    (start,) = warmup.initial_params(rows, replace(settings, n_sweeps=ENUMERATED))
    assert len(start.loadings) == MOST_EXACT
    assert start.n_sweeps == ENUMERATED


def ask(X):
    rows = centre_rows(X)
    settings = make_settings(rows, n_components=50, on_off=OnOff(1.0, 0.3, 2))
    return settings, find_on_off(rows, settings)


@pytest.mark.parametrize("K", [5, 10])
@pytest.mark.parametrize("by_input", [False, True])
def test_rows_that_are_sums_of_on_off_features_are_told(K, by_input):
    settings, found = ask(planted(K, 3, by_input=by_input)[0])
    assert np.prod(found.noise_ratios) == pytest.approx(1.0)
    assert (found.temperature, found.generative_weight, found.n_sweeps) == (1.0, 0.3, 2)
    assert found.prior_variance / found.noise_variance == pytest.approx(
        settings.prior_variance / settings.noise_variance
    )


def test_rows_that_count_next_to_nothing_do_not_decide_what_rows_are():
    X, loadings = with_rare_feature()
    halves = np.vstack([np.eye(5)] * 300) / 2 @ loadings  # of each it is anyone's guess whether it has one feature
    weights = np.repeat([1.0, 1e-9], [len(X), len(halves)])
    settings, found = ask(X)
    assert found.noise_ratios is not None
    again = find_on_off(centre_rows(np.vstack([X, halves]), weights=weights), settings)
    assert again.noise_ratios == pytest.approx(found.noise_ratios, rel=1e-6)


def test_a_rare_feature_that_does_not_stand_out_from_the_noise_is_looked_for():
    X, _ = with_rare_feature()
    _, found = ask(X)
    assert found.noise_ratios is not None
    assert len(warmup.initial_params(centre_rows(X), found)[0].loadings) == 4
    assert loaded(IBPFactorAnalysis(30).fit(X)).sum() == 5


def test_the_density_of_factors_is_that_of_a_factor_analysis():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 3)) @ rng.standard_normal((3, 9)) + rng.uniform(0.5, 2.0, 9) * rng.standard_normal(
        (300, 9)
    )
    rows = centre_rows(X)
    expected = FactorAnalysis(3, tol=1e-8, max_iter=5000).fit(X).score(X)
    assert score_factors(rows, 0.5 * X.var(axis=0), 3) == pytest.approx(expected, abs=2e-3)


@pytest.mark.parametrize("kind", ["normal", "uniform", "exponential", "no factors", "few rows"])
def test_rows_that_vary_by_degrees_change_nothing(kind):
    rng, n, K = np.random.default_rng(2), 400, 6
    scores = {
        "normal": rng.standard_normal((n, K)),
        "uniform": rng.random((n, K)),
        "exponential": rng.exponential(size=(n, K)),
        "no factors": np.zeros((n, K)),
        "few rows": (rng.random((n, K)) < 0.3).astype(float),
    }[kind]
    signal = scores @ rng.standard_normal((K, 24))
    X = signal + max(float(signal.std()), 0.5) * rng.standard_normal(signal.shape)
    settings, found = ask(X[:100] if kind == "few rows" else X)
    assert found == replace(settings, by_degrees=kind != "few rows")


def test_no_other_noise_of_the_inputs_has_a_lower_objective_at_fixed_features():
    problem = make_problem(3, {"C": 0.0}, row_weights=np.random.default_rng(1).uniform(0.5, 2.0, 60))
    X, model = problem.data.X, problem.joint.model
    plain = replace(
        start_of(problem), offset=np.random.default_rng(2).standard_normal(7), noise_ratios=draw_ratios(7),
        n_sweeps=ENUMERATED,
    )  # fmt: skip
    inferred = model.infer(X, plain)
    cross = X.combine(X.weigh(inferred.features))

    def value(params):
        loadings = params.loadings / params.noise_ratios
        squares = float(np.sum(X.totals.squares / params.noise_ratios))
        stats = replace(inferred.stats, squared_norm=squares, explained=float(np.vdot(cross, loadings)))
        return sum(model.terms(params, stats).values())

    assert value(plain) == pytest.approx(sum(model.terms(plain, inferred.stats).values()), rel=1e-10)
    best = update_noise(plain, inferred.stats, cross, X.totals.squares)
    lowest, noise = value(best), best.noise_variance * best.noise_ratios
    assert lowest < value(plain)
    assert np.prod(best.noise_ratios) == pytest.approx(1.0)
    for d in range(7):
        for factor in (0.9, 1.1):
            other = noise.copy()
            other[d] *= factor
            variance = np.exp(np.mean(np.log(other)))
            by = variance / best.noise_variance  # variances of loadings, and their prior, stay relative to the noise
            changed = replace(
                best, noise_variance=variance, noise_ratios=other / variance, variances=by * best.variances,
                prior_variance=by * best.prior_variance,
            )  # fmt: skip
            assert value(changed) > lowest


# --- what is found


def test_few_features_are_the_exact_posterior_and_stay_so_where_a_fit_goes_on():
    X, y, new, _ = planted(4, 1, by_input=True)
    for model in (IBPFactorAnalysis(30, warm_start=True), reading(30, warm_start=True)):
        model.fit(X, y)
        used, expected = loaded(model), stick_expectations(model._state.params.sticks)
        assert used.sum() <= MOST_ENUMERATED
        noise = model.noise_variance_ * model.noise_ratios_
        states = np.array(list(product([0.0, 1.0], repeat=int(used.sum()))))
        spread = 0.5 * X.shape[1] * model._state.params.variances[used] / model.noise_variance_
        logs = [
            norm.logpdf(new, model.offset_ + z @ model.components_[used], np.sqrt(noise)).sum(axis=1)
            + z @ (expected.log_odds[used] - spread)
            for z in states
        ]
        posterior = np.exp(np.array(logs) - logsumexp(logs, axis=0))
        assert model.transform(new)[:, used] == pytest.approx(posterior.T @ states, abs=1e-9)
        before = model.objective_
        model.fit(X, y)
        assert model._state.params.n_sweeps == ENUMERATED
        assert model.objective_ <= before + 1e-6 * abs(before)
        model.partial_fit(X, y)
        assert model._state.params.n_sweeps == ENUMERATED


def test_a_fit_warmer_than_features_are_judged_at_says_its_own_objective():
    X, y, _, _ = planted(5, 1)
    model = ILSVMClassifier(20, temperature=0.15, max_iter=500, warm_start=True).fit(X, y)
    assert model._state.params.n_sweeps == ENUMERATED
    assert model._state.params.temperature > 1.0
    ended = model.trace_.objective[-1]
    assert model.fit(X, y).trace_.objective[0] == pytest.approx(ended, rel=1e-2)


def test_rounds_of_guessed_labels_keep_exact_features():
    X, y, _, _ = planted(4, 1)
    some = np.where(np.arange(len(y)) % 2, y, -1)
    for transductive in (False, True):
        model = reading(20, unlabeled=-1, transductive=transductive).fit(X, some)
        assert model._state.params.n_sweeps == ENUMERATED


def test_rows_that_a_known_model_does_not_fit_are_started_anew():
    X, y, _, _ = planted(4, 1)
    model = reading(40, warm_start=True).fit(X, y)
    assert model._state.params.n_sweeps == ENUMERATED
    rng = np.random.default_rng(5)
    other = (rng.random((len(X), 25)) < 0.3) @ (3.0 * rng.standard_normal((25, X.shape[1])))
    labels = np.where(rng.random(len(X)) < 0.6, 0, rng.integers(0, 4, len(X)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nothing of these labels can be learned
        other += 0.1 * rng.standard_normal(other.shape)
        model.fit(other, labels)
        alone = reading(40).fit(other, labels)
    assert alone.noise_variance_ > 10.0 * np.mean(np.var(X, axis=0))  # the noise of the first rows would be none here
    assert model.noise_variance_ == pytest.approx(alone.noise_variance_)
    assert model.transform(other) == pytest.approx(alone.transform(other))


@pytest.mark.parametrize("K", [5, 10, 20])
def test_planted_features_come_back_as_they_were(K):
    """Of the noise as large as the signal in every input."""
    X, y, new, Z = planted(K, 4, by_input=True)
    for model in (IBPFactorAnalysis(60), reading()):
        model.fit(X, y)
        assert loaded(model).sum() == K
        assert np.median(matched(model.transform(new)[:, loaded(model)], Z)) >= 0.95


@pytest.mark.parametrize("noise", [0.1, 0.01, 1e-3, 0.0])
@pytest.mark.parametrize("K", [3, 5, 10])
def test_planted_features_come_back_however_little_noise_there_is(K, noise):
    X, new, Z = draw_sum(K, 1, noise)
    model = IBPFactorAnalysis(30).fit(X)
    assert loaded(model).sum() == K
    assert np.min(matched(model.transform(new)[:, loaded(model)], Z)) >= 0.98
    if K <= MOST_ENUMERATED and noise >= 0.01:  # what exact features leave of the rows is little more than it is
        found = model.noise_variance_ * model.noise_ratios_ / np.var(X, axis=0)
        assert np.all(found < 3.0 * noise)


@pytest.mark.parametrize("K", [5, 9])
def test_features_that_explain_the_same_inputs_are_inferred_exactly_from_the_start_on(K):
    """Nonnegative loadings: sweeps of mean field leave a sixth of such rows and more."""
    X, new, Z = draw_sum(K, 1, 0.1, nonnegative=True, rows=40 if K > MOST_ENUMERATED else 100)
    _, found = ask(X)
    assert found.n_sweeps == ENUMERATED
    start = warmup.initial_params(centre_rows(X), replace(found, temperature=1.0))[0]
    assert are_tangled(centre_rows(X), replace(start, n_sweeps=2))
    model = IBPFactorAnalysis(30, max_iter=20).fit(X)
    assert loaded(model).sum() == K
    assert np.min(matched(model.transform(new)[:, loaded(model)], Z)) >= 0.98


def test_rows_that_vary_by_degrees_along_the_same_inputs_are_no_sums_of_on_off_features():
    """On/off features leave little of them, because they have one sum: densities tell."""
    rng = np.random.default_rng(3)
    for kind in ("uniform", "normal"):
        signal = getattr(rng, "random" if kind == "uniform" else "standard_normal")((400, 5)) @ np.abs(
            rng.standard_normal((5, 20))
        )
        settings, found = ask(signal + signal.std(axis=0) * rng.standard_normal(signal.shape))
        assert found == replace(settings, by_degrees=True)


def test_half_as_many_features_as_inputs_come_back():
    X, new, Z = draw_sum(5, 1, 0.1, inputs=2)
    model = IBPFactorAnalysis(30).fit(X)
    assert loaded(model).sum() == 5
    assert np.min(matched(model.transform(new)[:, loaded(model)], Z)) >= 0.98


def test_a_start_of_scores_without_noise_is_the_planted_model():
    """Every score is decided as it was drawn, and least squares give loadings and offset exactly."""
    rng = np.random.default_rng(2)
    # Exactly independent, on in a quarter, a half and a third of the rows.
    Z = np.array(list(product((1.0, 0.0, 0.0, 0.0), (0.0, 1.0), (1.0, 0.0, 0.0))) * 10)
    planted_loadings, offset = np.abs(rng.standard_normal((3, 9))), rng.standard_normal(9)
    rows = centre_rows(Z @ planted_loadings + offset)
    moments, directions = warmup.leading_directions(rows.moment, 9, 3)
    scores = warmup.separate(rows, np.sqrt(moments[:, None] / len(Z)) * directions)
    decided = warmup.decide(rows, scores)
    loadings, shares = decided.loadings, decided.shares
    assert np.sort(shares) == pytest.approx([0.25, 1 / 3, 0.5])
    order = np.argsort(shares)
    signs = np.sign(np.einsum("kd,kd->k", loadings[order], planted_loadings[[0, 2, 1]]))
    assert signs[:2] == pytest.approx(1.0)  # half of the rows: either side may be on
    assert loadings[order] == pytest.approx(signs[:, None] * planted_loadings[[0, 2, 1]], abs=1e-8)
    nothing_on = offset + (planted_loadings[1] if signs[2] < 0 else 0.0)
    assert decided.offset + rows.mean == pytest.approx(nothing_on, abs=1e-8)
    said = decided.features @ loadings + decided.offset
    np.testing.assert_allclose(said, rows.array(), atol=1e-8)


def test_units_of_the_inputs_do_not_matter_where_features_are_on_or_off():
    X, y, new, _ = planted(5, 2)
    units = np.exp(np.random.default_rng(0).uniform(-1.0, 1.0, X.shape[1]))
    for make in (reading, IBPFactorAnalysis):
        one, other = make().fit(X, y), make().fit(units * X, y)
        assert other.transform(units * new) == pytest.approx(one.transform(new), abs=1e-2)
        assert other.components_ == pytest.approx(units * one.components_, abs=0.05 * np.abs(one.components_).max())
        assert np.prod(other.noise_ratios_) == pytest.approx(1.0)


@pytest.mark.filterwarnings("ignore:all 10 features")
def test_who_says_something_of_noise_is_not_contradicted():
    X, y, _, _ = planted(5, 2, by_input=True)
    for model in (
        reading(noise_variance=1.0), reading(prior_variance=1.0), reading(margins="posterior", tol=1.0),
        ILSVMClassifier(), reading(10, slab="half-normal", tol=1.0),
    ):  # fmt: skip
        assert np.all(model.fit(X, y).noise_ratios_ == 1.0)


def test_a_fit_that_goes_on_keeps_the_noise_that_was_found():
    X, y, new, _ = planted(5, 2, by_input=True)
    model = reading(warm_start=True, tol=1e-4).fit(X, y)
    before, ratios, features = model.objective_, model.noise_ratios_, model.transform(new)
    model.fit(X, y)
    assert np.all(model.noise_ratios_ == ratios)
    assert model.objective_ <= before * (1.0 + 1e-6)
    assert model.transform(new) == pytest.approx(features, abs=0.1)
    assert np.all(model.set_params(temperature=0.2).fit(X, y).noise_ratios_ == 1.0)


def test_batches_go_on_with_the_noise_of_the_first():
    X, y, new, _ = planted(10, 2, by_input=True)
    for model in (reading(), IBPFactorAnalysis(60)):
        labels = {"classes": np.arange(3)} if isinstance(model, ILSVMClassifier) else {}
        model.partial_fit(X, y, **labels)
        ratios, features, used = model.noise_ratios_, model.transform(new), loaded(model)
        assert not np.all(ratios == 1.0)
        for part in np.array_split(np.arange(len(X)), 3):
            model.partial_fit(X[part], y[part])
        assert np.all(model.noise_ratios_ == ratios)
        assert np.median(matched(model.transform(new)[:, used], features[:, used])) > 0.95
