"""Number and recovery of features: the normalized objective, starts, pruning, and noise."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from scipy.special import logsumexp
from sklearn.exceptions import ConvergenceWarning

from ilsvm_model_tools import EXACT, make_data, make_problem, make_settings, pad, start_of
from regbayes import IBPFactorAnalysis, ILSVMClassifier
from regbayes.joint import descent
from regbayes.margins.head import WarmStart
from regbayes.models.ilsvm import fit, starts
from regbayes.models.ilsvm.model import UNLABELED, BinaryFeatures, Data, centre_rows
from regbayes.models.indian_buffet import stick_expectations
from simulated_features import loaded, matched, planted

# --- the normalized objective


def test_tempered_prior_is_normalized_over_all_features():
    """Two rows and three features, with every Z enumerated."""
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
def test_features_without_loadings_cost_their_prior_only(C):
    problem = make_problem(2, {"C": C}, n_unlabeled=5)
    g = start_of(problem)
    larger = pad(g, 9, problem.settings.alpha)
    model = problem.joint.model
    at, there = (problem.joint.evaluate(params, None, EXACT)[0] for params in (g, larger))
    assert abs(there.objective - at.objective) > 1.0
    values = [model.normalise(one.objective, one.params, one.stats.n_rows) for one in (there, at)]
    assert values[0] == pytest.approx(values[1], abs=1e-6)


def test_features_of_a_fit_each_lower_the_objective():
    """Removing any feature, followed by the steps of the search, increases the objective."""
    data = make_data(4, n=150, D=12)
    settings = make_settings(data.X, n_components=10, max_iter=60)
    state = fit.fit(data, settings, starts.start(data, settings)).state
    problem = fit.ILSVMProblem(data, settings)
    params = state.params
    at, _ = problem.joint.evaluate(params, WarmStart(multipliers=state.multipliers), EXACT)
    model = problem.joint.model
    for k in range(len(params.loadings)):
        kept = np.delete(np.arange(len(params.loadings)), k)
        offset = params.offset + at.stats.counts[k] / at.stats.n_rows * params.loadings[k]
        fewer = replace(starts.take_features(params, kept), offset=offset)
        search = descent.start(problem.joint, fewer, None)
        for _ in range(8):
            search = descent.step(problem.joint, search).state
        without, whole = (model.normalise(one.objective, one.params, one.stats.n_rows) for one in (search.at, at))
        assert without > whole


def test_copied_feature_is_dropped():
    data = make_data(8, n=150, D=12)
    settings = make_settings(data.X, n_components=10, max_iter=60)
    start = starts.start(data, settings)
    doubled = starts.take_features(start, np.repeat(np.arange(len(start.loadings)), 2))
    found = [
        np.any(fit.fit(data, settings, begin).state.params.loadings != 0, axis=1).sum() for begin in (start, doubled)
    ]
    assert found[1] < len(doubled.loadings)
    assert abs(found[1] - found[0]) <= 1


# --- starts


CHANGES = (
    {"temperature": 0.3},
    {"slab": "half-normal"},
    {"slab": "normal"},
    {"per_input": True, "temperature": 1.0},
)


def start_of_rows(data, settings):
    return starts.start(data, starts.find_input_noise(data.X, settings) if settings.per_input else settings)


@pytest.mark.parametrize(
    "change", [{}, {"temperature": 0.3}, {"slab": "half-normal"}, {"per_input": True, "temperature": 1.0}]
)
def test_start_is_equivariant_to_permutations(change):
    data = make_data(5, n=200, D=9)
    rng = np.random.default_rng(0)
    rows, columns = rng.permutation(200), rng.permutation(9)
    settings = make_settings(data.X, n_components=6, **change)
    shuffled = replace(data.take(rows), X=centre_rows(data.X.X[rows][:, columns]))
    one, other = (start_of_rows(d, settings) for d in (data, shuffled))
    assert other.loadings == pytest.approx(one.loadings[:, columns], abs=1e-4 * np.abs(one.loadings).max())


@pytest.mark.parametrize(
    "change", [{"temperature": 0.3}, {"slab": "half-normal"}, {"per_input": True, "temperature": 1.0}]
)
def test_start_counts_weight_two_as_row_twice(change):
    times = np.random.default_rng(0).integers(1, 4, 60)
    heavy = make_data(6, row_weights=times.astype(float))
    repeated = heavy.take(np.repeat(np.arange(60), times))
    twice = replace(repeated, X=centre_rows(repeated.X.X))
    settings = make_settings(twice.X, **change)
    one, other = (start_of_rows(d, settings) for d in (heavy, twice))
    assert one.loadings == pytest.approx(other.loadings, abs=1e-5)


@pytest.mark.parametrize("n_inputs", [30, 600])
def test_leading_directions_match_svd(n_inputs):
    rng = np.random.default_rng(0)
    root = rng.standard_normal((40, n_inputs)) * np.linspace(1, 5, n_inputs)
    values, directions = starts.leading_directions(lambda V: (V @ root.T) @ root, n_inputs, 4)
    _, sizes, expected = np.linalg.svd(root, full_matrices=False)
    assert values == pytest.approx(sizes[:4] ** 2, rel=1e-3)
    assert np.abs(np.sum(directions * expected[:4], axis=1)) == pytest.approx(np.ones(4), abs=1e-3)


def test_target_directions_are_means_of_whitened_classes():
    data = make_data(9, n=300, D=6, n_classes=4)
    X = data.X.array()
    values, vectors = np.linalg.eigh(X.T @ X / 300)
    order = np.argsort(-values)
    found, has_opposites = starts.target_directions(data, data.X, values[order], vectors[:, order].T)
    white = X @ vectors / np.sqrt(values) @ vectors.T
    means = np.array([white[data.targets.labels == c].mean(axis=0) for c in range(4)])
    assert found == pytest.approx(means / np.linalg.norm(means, axis=1, keepdims=True), abs=1e-9)
    assert not has_opposites


def test_target_direction_in_noise_is_found():
    """No principal direction is above the noise, but two inputs determine the class."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((1000, 20))
    y = (X[:, 0] + X[:, 1] > 0) + 2 * (X[:, 2] - X[:, 3] > 0)
    assert ILSVMClassifier(20).fit(X[:500], y[:500]).score(X[500:], y[500:]) > 0.9


def test_noise_level_recovers_the_simulated_noise():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((2000, 3)) @ (3.0 * rng.standard_normal((3, 40))) + 0.7 * rng.standard_normal((2000, 40))
    values = np.linalg.eigvalsh(np.cov(X.T))[::-1]
    level = starts.noise_level(values[:10], float(values.sum()), 40, (1.0 + np.sqrt(40 / 2000)) ** 2)
    assert level == pytest.approx(0.49, rel=0.02)


def test_varimax_recovers_simple_structure():
    rng = np.random.default_rng(1)
    simple = np.kron(np.eye(3), rng.uniform(1.0, 2.0, (1, 5)))
    turned = np.linalg.qr(rng.standard_normal((3, 3)))[0] @ simple
    found = starts.varimax(turned)
    assert np.sort(np.abs(found), axis=0) == pytest.approx(np.sort(simple, axis=0), abs=1e-2)
    assert found.T @ found == pytest.approx(simple.T @ simple, abs=1e-9)


def test_separate_recovers_independent_binary_scores():
    rng = np.random.default_rng(2)
    Z = (rng.random((4000, 3)) < [0.1, 0.21, 0.5]).astype(float)  # skewed, without excess kurtosis, without skewness
    X = centre_rows(Z @ rng.standard_normal((3, 8)))
    moments, directions = starts.leading_directions(lambda V: X.combine(X.project(V)), 8, 3)
    loadings = starts.separate(X, np.sqrt(moments[:, None] / 4000) * directions)
    scores = X.project(loadings @ np.linalg.pinv(loadings.T @ loadings))
    assert np.all(matched(scores, Z) > 0.99)


def test_binary_loadings_recover_loadings_and_frequency():
    rng = np.random.default_rng(3)
    z = (rng.random(20_000) < 0.2).astype(float)
    loading = np.array([[3.0, -1.0]])
    X = centre_rows(z[:, None] * -loading)
    found, share = starts.binary_loadings(X, 0.4 * loading)
    assert share == pytest.approx([0.2], abs=0.01)
    assert found == pytest.approx(-loading, rel=0.02)


def test_decided_scores_give_least_squares_loadings():
    rng = np.random.default_rng(4)
    Z = (rng.random((3000, 2)) < [0.2, 0.4]).astype(float)
    W = np.array([[3.0, 0.0, 1.0], [0.0, -2.0, 1.0]])
    X = centre_rows(Z @ W)
    loadings, shares, offset = starts.decide_scores(X, np.sqrt([[0.16], [0.24]]) * W)
    # The second feature is on in less than half of the samples, so its sign does not change.
    assert loadings == pytest.approx(W, abs=1e-9)
    assert shares == pytest.approx(Z.mean(axis=0), abs=1e-9)
    assert offset == pytest.approx(-Z.mean(axis=0) @ W, abs=1e-9)


def test_analyze_noise_recovers_variances_of_a_factor_model():
    rng = np.random.default_rng(5)
    noise = np.linspace(0.5, 3.0, 12)
    X = rng.standard_normal((20_000, 2)) @ rng.standard_normal((2, 12))
    rows = centre_rows(X + np.sqrt(noise) * rng.standard_normal((20_000, 12)))
    assert starts.analyze_noise(rows, 5) == pytest.approx(noise, rel=0.1)


# --- what is found


@pytest.mark.parametrize("n_components", [16, 60])
def test_simulated_features_are_recovered_with_noise_per_input(n_components):
    X, _, new, Z = planted(10, 0, by_input=True)
    fitted = IBPFactorAnalysis(n_components, noise_variance="per_input", temperature=1, random_state=0).fit(X)
    assert loaded(fitted).sum() == 10
    assert np.median(matched(fitted.transform(new)[:, loaded(fitted)], Z)) > 0.9


def test_features_recur_on_most_rows_in_another_order():
    X, y, new, _ = planted(5, 1)
    rng = np.random.default_rng(0)
    rows, columns = rng.permutation(len(X))[: int(0.9 * len(X))], rng.permutation(X.shape[1])
    first = ILSVMClassifier(temperature=0.02).fit(X, y)
    other = ILSVMClassifier(temperature=0.02).fit(X[rows][:, columns], y[rows])
    features = first.transform(new)[:, loaded(first)], other.transform(new[:, columns])[:, loaded(other)]
    assert np.median(matched(*features)) > 0.8


@pytest.mark.parametrize("change", [{"slab": "half-normal"}, {"margins": "posterior"}])
def test_noise_per_input_with_invalid_options_raises(change):
    X, y, _, _ = planted(5, 1)
    with pytest.raises(ValueError, match="per_input"):
        ILSVMClassifier(noise_variance="per_input", **change).fit(X, y)


# --- noise


@pytest.mark.filterwarnings("ignore:ILSVMClassifier (does worse|never answers)")  # the labels are noise
@pytest.mark.parametrize("seed", range(3))
def test_noise_without_structure_warns(seed):
    rng = np.random.default_rng(seed)
    X, y = rng.standard_normal((200, 12)) * np.linspace(1, 5, 12), rng.integers(0, 3, 200)
    for model in (ILSVMClassifier(10, tol=1e-2), IBPFactorAnalysis(10, tol=1e-2)):
        with pytest.warns(ConvergenceWarning, match="No structure found"):
            model.fit(X, y)


def test_correlated_inputs_or_class_means_are_structure():
    rng = np.random.default_rng(0)
    noisy = rng.standard_normal((300, 8))

    def judge(X, labels):
        return starts.has_structure(Data.of_classes(centre_rows(X), labels, np.ones(300), 1.0 - np.eye(2)))

    told = (noisy[:, 0] + noisy[:, 1] > 0).astype(np.int64)
    assert not judge(noisy, rng.integers(0, 2, 300))
    assert not judge(noisy, np.full(300, UNLABELED))
    assert judge(noisy, told)
    assert judge(noisy + 2.0 * rng.standard_normal((300, 1)), rng.integers(0, 2, 300))
