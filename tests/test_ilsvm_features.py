"""How many features there are, and which: the normalised objective, starts, pruning, births, and noise."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment
from scipy.special import logsumexp
from sklearn.exceptions import ConvergenceWarning

from ilsvm_model_tools import EXACT, half_the_variance, make_data, make_problem, make_settings, start_of
from regbayes import IBPFactorAnalysis, ILSVMClassifier
from regbayes.joint import descent
from regbayes.models.ilsvm import fit, warmup
from regbayes.models.ilsvm.model import UNLABELED, BinaryFeatures, Data, HostRows, centre_rows
from regbayes.priors.indian_buffet import stick_expectations


def planted(K, seed, n_new=500, by_input=False):
    """Rows with signal to noise one, four inputs a feature, fifty rows a feature; and their features.

    The noise of inputs is as large in all of them or, ``by_input``, as the signal in each.
    """
    rng = np.random.default_rng(seed)
    n = 50 * K + n_new
    Z = (rng.random((n, K)) < rng.uniform(0.1, 0.5, K)).astype(float)
    signal = Z @ rng.standard_normal((K, 4 * K))
    variances = signal.var(axis=0)
    X = signal + np.sqrt(variances if by_input else variances.mean()) * rng.standard_normal(signal.shape)
    scores = (Z - Z.mean(axis=0)) @ rng.standard_normal((K, 3))
    return X[:-n_new], np.argmax(scores, axis=1)[:-n_new], X[-n_new:], Z[-n_new:]


def matched(A, B):
    """Absolute correlations of matched columns; a column without a partner has none."""
    corr = np.abs(np.corrcoef(A.T, B.T)[: A.shape[1], A.shape[1] :])
    found = np.zeros(max(corr.shape))
    rows, columns = linear_sum_assignment(-corr)
    found[: len(rows)] = corr[rows, columns]
    return found


def loaded(model):
    return np.any(model.components_ != 0.0, axis=1)


# --- the normalised objective


def test_the_tempered_prior_is_normalised_over_all_features_of_all_rows():
    """Two rows, three features: every Z enumerated."""
    problem = make_problem(1, {"n_components": 3}, n=2, D=4)
    g = replace(start_of(problem), variances=np.array([0.1, 0.5, 1.0]), temperature=1.7)
    expected = stick_expectations(g.sticks)
    terms = []
    for bits in product([0.0, 1.0], repeat=6):
        Z = np.array(bits).reshape(2, 3)
        log_prior = np.sum(Z * expected.log_use + (1.0 - Z) * expected.log_rest) / g.temperature
        terms.append(log_prior - 0.5 * g.mean_field.precision * 4 * np.sum(Z @ g.variances))
    assert BinaryFeatures(1.0, 1.0).normalise(0.0, g, 2) == pytest.approx(logsumexp(terms), rel=1e-12)


@pytest.mark.parametrize("C", [0.0, 0.3])
def test_features_without_loadings_cost_what_their_prior_does_and_no_more(C):
    problem = make_problem(2, {"C": C}, n_unlabeled=5)
    g = start_of(problem)
    larger = warmup.pad(g, 9, problem.settings.alpha)
    model = problem.joint.model
    at, there = (problem.joint.evaluate(params, None, EXACT)[0] for params in (g, larger))
    assert abs(there.objective - at.objective) > 1.0
    values = [model.normalise(one.objective, one.params, one.stats.n_rows) for one in (there, at)]
    assert values[0] == pytest.approx(values[1], abs=1e-6)


def test_no_feature_of_a_fit_is_one_to_take_out():
    data = make_data(4, n=150, D=12)
    settings = make_settings(data.X, n_components=10, max_iter=60)
    state = fit.fit(data, settings, warmup.initial_params(data.X, settings)).state
    problem = fit.ILSVMProblem(data, settings)
    params = warmup.drop_empty(state.params)
    at, _ = problem.joint.evaluate(params, state.multipliers, EXACT)
    model = problem.joint.model
    for k in range(len(params.loadings)):
        kept = np.delete(np.arange(len(params.loadings)), k)
        offset = params.offset + at.stats.counts[k] / at.stats.n_rows * params.loadings[k]
        fewer = replace(warmup.take_features(params, kept), offset=offset)
        search = descent.start(problem.joint, fewer, None)
        for _ in range(30):
            search = descent.step(problem.joint, search).state
        without, whole = (model.normalise(one.objective, one.params, one.stats.n_rows) for one in (search.at, at))
        assert without > whole


# --- starts


def test_the_start_is_the_same_for_any_order_of_rows_and_inputs():
    data = make_data(5, n=200, D=9)
    rng = np.random.default_rng(0)
    rows, columns = rng.permutation(200), rng.permutation(9)
    settings = make_settings(data.X, n_components=6, temperature=0.3)
    starts = warmup.initial_params(data.X, settings)
    again = warmup.initial_params(centre_rows(data.X.X[rows][:, columns]), settings)
    assert len(starts) == len(again) > 1
    for one, other in zip(starts, again, strict=True):
        assert other.loadings == pytest.approx(one.loadings[:, columns], abs=1e-4 * np.abs(one.loadings).max())


def test_a_start_takes_a_row_of_weight_two_as_the_row_twice():
    times = np.random.default_rng(0).integers(1, 4, 60)
    heavy = make_data(6, row_weights=times.astype(float)).X
    twice = centre_rows(heavy.X[np.repeat(np.arange(60), times)])
    settings = make_settings(twice, temperature=0.3)
    for one, other in zip(warmup.initial_params(heavy, settings), warmup.initial_params(twice, settings), strict=True):
        assert one.loadings == pytest.approx(other.loadings, abs=1e-6)


def test_leading_directions_of_many_inputs_are_those_of_the_whole_matrix(monkeypatch):
    rng = np.random.default_rng(0)
    root = rng.standard_normal((40, 30)) * np.linspace(1, 5, 30)
    dense = warmup.leading_directions(lambda V: (V @ root.T) @ root, 30, 4)
    monkeypatch.setattr(warmup, "FEW_INPUTS", 0)
    sparse = warmup.leading_directions(lambda V: (V @ root.T) @ root, 30, 4)
    assert sparse[0] == pytest.approx(dense[0], rel=1e-3)
    assert np.abs(np.sum(sparse[1] * dense[1], axis=1)) == pytest.approx(np.ones(4), abs=1e-3)


def test_varimax_finds_loadings_that_share_no_inputs():
    rng = np.random.default_rng(1)
    simple = np.kron(np.eye(3), rng.uniform(1.0, 2.0, (1, 5)))
    turned = np.linalg.qr(rng.standard_normal((3, 3)))[0] @ simple
    found = warmup.varimax(turned)
    assert np.sort(np.abs(found), axis=0) == pytest.approx(np.sort(simple, axis=0), abs=1e-2)
    assert found.T @ found == pytest.approx(simple.T @ simple, abs=1e-9)


def test_independent_scores_are_those_of_planted_features():
    rng = np.random.default_rng(2)
    Z = (rng.random((4000, 3)) < [0.1, 0.21, 0.5]).astype(float)  # skewed; without kurtosis; without skewness
    X = centre_rows(Z @ rng.standard_normal((3, 8)))
    moments, directions = warmup.leading_directions(lambda V: X.combine(X.project(V)), 8, 3)
    loadings = warmup.separate(X, np.sqrt(moments[:, None] / 4000) * directions)
    scores = X.project(loadings @ np.linalg.pinv(loadings.T @ loadings))
    assert np.all(matched(scores, Z) > 0.99)


def test_an_on_off_feature_has_its_loadings_and_its_share():
    rng = np.random.default_rng(3)
    z = (rng.random(20_000) < 0.2).astype(float)
    loading = np.array([[3.0, -1.0]])
    X = centre_rows(z[:, None] * -loading)
    found, share = warmup.on_off(X, 0.4 * loading)
    assert share == pytest.approx([0.2], abs=0.01)
    assert found == pytest.approx(-loading, rel=0.02)


# --- judging features


def test_noise_is_what_no_other_input_predicts():
    """One input has four times the noise, another as large a variance by what it shares with the others."""
    rng = np.random.default_rng(4)
    own, shared = np.ones(22), np.ones(22)
    own[20], shared[21] = 4.0, 2.0
    noises = rng.standard_normal((20_000, 22))
    X = centre_rows(shared * rng.standard_normal((20_000, 1)) + np.sqrt(own) * noises)
    left = 4.0 + 1.0 / (1.0 + 20.0 + 4.0)  # its variance given the others
    share = 5.0 / (50.0 / 22.0)  # its variance, relative to the mean
    for noise_variance, expected in ((1.0, share), (2.5, left / 2.5)):
        ratios = warmup.noise_ratios(X, noise_variance)
        assert ratios[20] == pytest.approx(expected, rel=0.05)
        assert np.all(np.delete(ratios, 20) == 1.0)
    few = centre_rows(np.sqrt(own) * noises[:40])
    assert np.all(warmup.noise_ratios(few, 1e-3) == 1.0)


def test_what_is_left_of_an_input_is_that_of_all_features_enumerated():
    problem = make_problem(3, {"n_components": 3}, n=4, D=5, row_weights=np.array([1.0, 2.0, 1.0, 3.0]))
    params = replace(start_of(problem), offset=np.linspace(-1.0, 1.0, 5), variances=np.array([0.1, 0.5, 1.0]))
    at = problem.joint.evaluate(params, None, EXACT)[0]
    X, columns = problem.data.X, np.array([1, 3, 4])
    psi = params.infer(X)
    inputs = HostRows(X.X[:, columns], X.mean[columns], X.weights)
    found = warmup.NoisyInputs(inputs, columns, np.ones(3)).expected_residuals(psi, at)
    expected = np.zeros(3)
    for bits in product([0.0, 1.0], repeat=3):
        z = np.array(bits)
        probability = np.prod(np.where(z > 0, psi, 1.0 - psi), axis=1) * X.weights
        left = X.array() - params.offset - z @ params.loadings
        expected += (probability @ (left**2 + z @ params.variances))[columns]
    assert found == pytest.approx(expected, rel=1e-10)


def test_features_are_judged_no_warmer_than_wanted_and_cold_ones_at_one():
    data = make_data(7, n=100, D=40)
    soft = warmup.soft_temperature(data.X, half_the_variance(data.X))
    assert soft == pytest.approx(8.0)

    def judged(temperature):
        settings = make_settings(data.X, temperature=temperature)
        return warmup.judging_temperature(data.X, replace(settings, noise_variance=half_the_variance(data.X)))

    wanted = np.geomspace(0.1, 20.0, 200)
    found = np.array([judged(temperature) for temperature in wanted])
    assert np.all(found <= wanted)
    assert np.all(np.diff(found) >= 0)
    outside = (wanted <= 1.0) | (wanted >= soft)
    assert np.all(found[outside] == wanted[outside])
    assert judged(0.1 * soft) == 0.1 * soft
    assert judged(0.2 * soft) == 1.0


# --- what is found


@pytest.mark.parametrize("n_components", [16, 60])
def test_planted_features_come_back_whatever_the_truncation(n_components):
    X, _, new, Z = planted(10, 0)
    fitted = IBPFactorAnalysis(n_components, random_state=0).fit(X)
    assert loaded(fitted).sum() == 10
    assert np.median(matched(fitted.transform(new)[:, loaded(fitted)], Z)) > 0.9


@pytest.mark.parametrize("seed", range(2))
def test_noise_of_single_inputs_is_no_feature(seed):
    X, y, _, _ = planted(10, seed, by_input=True)
    for model in (IBPFactorAnalysis(20), ILSVMClassifier(20, temperature=0.02)):
        assert abs(int(loaded(model.fit(X, y)).sum()) - 10) <= 1


def test_warm_features_are_as_many_as_planted():
    """A temperature of 2.4 in all: judged there, two or three of them would be missing."""
    X, y, _, _ = planted(30, 0)
    fitted = ILSVMClassifier(45, temperature=0.02, tol=1e-2).fit(X, y)
    assert fitted.n_components_ == loaded(fitted).sum() == 30


def test_features_come_back_from_most_of_the_rows_in_another_order():
    X, y, new, _ = planted(5, 1)
    rng = np.random.default_rng(0)
    rows, columns = rng.permutation(len(X))[: int(0.9 * len(X))], rng.permutation(X.shape[1])
    first = ILSVMClassifier(temperature=0.02).fit(X, y)
    other = ILSVMClassifier(temperature=0.02).fit(X[rows][:, columns], y[rows])
    features = first.transform(new)[:, loaded(first)], other.transform(new[:, columns])[:, loaded(other)]
    assert np.median(matched(*features)) > 0.8


# --- noise


@pytest.mark.filterwarnings("ignore:ILSVMClassifier (does worse|never answers)")  # nothing to learn
@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_found_in_noise(seed):
    rng = np.random.default_rng(seed)
    X, y = rng.standard_normal((200, 12)) * np.linspace(1, 5, 12), rng.integers(0, 3, 200)
    for model in (ILSVMClassifier(10, tol=1e-2), IBPFactorAnalysis(10, tol=1e-2)):
        with pytest.warns(ConvergenceWarning, match="nothing was found"):
            model.fit(X, y)


def test_what_inputs_or_labels_show_is_no_noise():
    rng = np.random.default_rng(0)
    noisy = rng.standard_normal((300, 8))
    settings = make_settings(centre_rows(noisy), n_components=4, max_iter=20, generative_weight=0.03)

    def judge(X, labels):
        data = Data(centre_rows(X), labels, np.ones(300), 1.0 - np.eye(2))
        return fit.is_noise(data, settings, np.random.default_rng(0))

    told = (noisy[:, 0] + noisy[:, 1] > 0).astype(np.int64)
    assert judge(noisy, rng.integers(0, 2, 300))
    assert judge(noisy, np.full(300, UNLABELED))
    assert not judge(noisy, told)
    assert not judge(noisy + 2.0 * rng.standard_normal((300, 1)), rng.integers(0, 2, 300))
