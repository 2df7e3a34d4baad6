"""How many features there are, and which: the normalised objective, starts, pruning, births, and noise."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from scipy.special import logsumexp
from sklearn.datasets import load_wine
from sklearn.exceptions import ConvergenceWarning

from ilsvm_model_tools import EXACT, half_the_variance, make_data, make_problem, make_settings, start_of
from regbayes import IBPFactorAnalysis, ILSVMClassifier
from regbayes.joint import descent
from regbayes.margins.targets import zero_one_cost
from regbayes.models.ilsvm import fit, warmup
from regbayes.models.ilsvm.model import UNLABELED, BinaryFeatures, Data, HostRows, centre_rows
from regbayes.models.indian_buffet import stick_expectations
from simulated_features import loaded, matched, planted

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


# --- which rotation


@pytest.mark.parametrize(
    ("early", "late", "taken", "n_phases"),
    [
        ((0.0, -0.03), (), 1, 3),  # clearly ahead after a few steps: it alone goes on
        ((0.0, +0.03), (), 0, 3),
        ((0.0, -0.01), (1.0, 1.1), 0, 4),  # close: both go on, and the end counts
        ((0.0, -0.01), (1.0, 0.995), 0, 4),  # the first is preferred
        ((0.0, +0.01), (1.0, 0.9, 1.0, 0.9), 1, 6),  # lower where it has stopped, and after all steps
        ((0.0, +0.01), (1.0, 0.9, 0.9, 0.9), 0, 6),  # the first had only stopped too early
    ],
)
def test_a_close_race_of_rotations_goes_on_to_the_end(monkeypatch, early, late, taken, n_phases):
    """Values after a few steps are in units of the rows' loss, those at the end relative to the first."""
    problem = make_problem(30)
    runs = warmup.WarmUp.of(problem, None, True)
    starts = [start_of(problem, seed) for seed in range(2)]
    values = iter([*(10.0 + runs.problem.unit * np.array(early)), *(10.0 * np.array(late))])
    monkeypatch.setattr(warmup.WarmUp, "_judge", lambda self, at: next(values))
    phases, ended = [], []

    def run_race():
        race = runs._race(starts)
        phases.append(next(race))
        while True:
            begun = phases[-1].start
            ended.append(descent.start(problem.joint, begun) if isinstance(begun, warmup.Params) else replace(begun))
            phases.append(race.send(ended[-1]))

    with pytest.raises(StopIteration) as outcome:
        run_race()
    kind, search = outcome.value.value
    assert kind == taken
    assert search is ended[2 if n_phases == 3 else 2 + taken]
    assert len(phases) == n_phases
    # Cut short, a fit has the preferred rotation as far as it came, or the one that it has decided for.
    kept = [None, ended[0], None, ended[min(2, len(ended) - 1)], None, ended[min(4, len(ended) - 1)]]
    assert all(phase.keep is one for phase, one in zip(phases, kept, strict=False))
    assert runs.latest is ended[0]


def test_the_rotation_that_ends_lower_is_taken_where_a_few_steps_do_not_tell():
    """Two features of wine: after ten steps varimax is no worse, in the end it is 4 % higher."""
    X, y = load_wine(return_X_y=True)
    data = Data(centre_rows(X / X.std(axis=0)), y, np.ones(len(y)), zero_one_cost(3))
    settings = make_settings(data.X, n_components=50, generative_weight=0.03, max_iter=200, tol=1e-3)
    starts = warmup.initial_params(data.X, settings)
    assert len(starts) == 2
    both, *alone = (fit.fit(data, settings, start).objective for start in (starts, *starts))
    assert both <= 1.001 * min(alone)
    assert max(alone) > 1.01 * min(alone)


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


@pytest.mark.filterwarnings("ignore:ILSVMClassifier (does worse|never answers)")
@pytest.mark.parametrize("first", [0, 1])
def test_the_coding_of_a_category_is_no_finding(first):
    """Columns of one category vary together, whatever the labels: with the first left out, as is usual, or with all."""
    rng = np.random.default_rng(0)
    codes = np.eye(3)[rng.integers(0, 3, 300)][:, first:]
    X = np.column_stack([rng.standard_normal((300, 6)), (codes - codes.mean(axis=0)) / codes.std(axis=0)])
    with pytest.warns(ConvergenceWarning, match="nothing was found"):
        ILSVMClassifier(10, tol=1e-2).fit(X, rng.integers(0, 2, 300))
    ILSVMClassifier(10, tol=1e-2).fit(X, np.argmax(np.column_stack([codes, 0.5 * np.ones(300)]), axis=1) % 2)


def test_columns_of_a_category_are_decoded_and_others_left_as_they_are():
    rng = np.random.default_rng(1)
    codes, other = np.eye(3)[rng.integers(0, 3, 200)], rng.standard_normal((200, 2))
    columns = np.column_stack([codes[:, 0], other, codes[:, 1:]])
    columns = (columns - columns.mean(axis=0)) / columns.std(axis=0)
    decoded = fit.decode_categories(columns)
    assert decoded.shape == (200, 4)  # three columns that add up to a constant are two
    np.testing.assert_array_equal(decoded[:, :2], columns[:, 1:3])
    np.testing.assert_allclose(decoded[:, 2:].T @ decoded[:, 2:] / 200, np.eye(2), atol=1e-12)


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
    for seed in (1, 3, 4):  # a third of the rows would not tell
        hard = noisy[:, 0] + np.random.default_rng(seed).standard_normal(300) > 0
        assert not judge(noisy, hard.astype(np.int64))
    assert not judge(noisy + 2.0 * rng.standard_normal((300, 1)), rng.integers(0, 2, 300))
