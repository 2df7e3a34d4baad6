"""Complete iLSVM fits: recovered features, invariants, and how fits end."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ilsvm_model_tools import ESTIMATED, EXACT, half_the_variance, make_data, make_problem, make_settings, start_of
from regbayes.datasets import make_ibp_classification
from regbayes.engine import Status
from regbayes.joint import descent
from regbayes.margins.head import WarmStart
from regbayes.margins.targets import zero_one_cost
from regbayes.models.ilsvm import fit, starts
from regbayes.models.ilsvm.model import PATIENCE, UNLABELED, BinaryFeatures, Data, Rows, build_head, centre_rows


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("squared", [False, True])
def test_objective_never_increases_and_last_state_is_best(seed, squared):
    problem = make_problem(seed, {"squared": squared, "max_iter": 40, "n_components": 8}, n_unlabeled=10)
    result = fit.fit(problem.data, problem.settings, start_of(problem, seed))
    assert result.n_iter > 0
    assert result.trace.rises.count == 0
    assert result.trace.objective[-1] < result.trace.objective[0]


def test_low_temperature_is_reached_from_a_soft_start():
    data = make_data(3, n=150, D=20)
    noise = 3.0 * np.random.default_rng(3).standard_normal(data.X.X.shape)
    data = replace(data, X=centre_rows(data.X.X + noise))  # noise makes the features uncertain
    cold = 0.05 * starts.soft_temperature(data.X, half_the_variance(data.X))
    settings = make_settings(data.X, temperature=cold, max_iter=15)
    start = starts.random_params(data.X, settings, np.random.default_rng(0))
    assert start.temperature > 15 * cold
    result = fit.fit(data, settings, start)
    soft = fit.fit(data, replace(settings, temperature=start.temperature), start)

    def mean_doubt(state):
        psi = state.embedding[:, np.any(state.params.loadings != 0.0, axis=1)]
        return np.mean(psi * (1 - psi))

    assert result.state.params.temperature == cold
    assert mean_doubt(result.state) < 0.5 * mean_doubt(soft.state)
    assert result.trace.rises.count == 0


@pytest.mark.parametrize("factor", [1.0, 1.0 - 1e-12, 1.0 + 1e-12])
def test_rounding_does_not_decide_whether_a_start_is_cooled(factor):
    data = make_data(3)
    settings = make_settings(data.X)
    settings = replace(settings, temperature=factor * settings.temperature)
    assert starts.random_params(data.X, settings, np.random.default_rng(0)).temperature == settings.temperature


def test_fit_without_margins_is_factor_analysis():
    problem = make_problem(5, {"C": 0.0, "generative_weight": 1.0, "max_iter": 12})
    start = start_of(problem)
    alone = fit.fit(problem.data, problem.settings, start)
    tiny = fit.fit(problem.data, replace(problem.settings, C=1e-10), start)
    assert alone.state.head is None
    assert tiny.state.params.loadings == pytest.approx(alone.state.params.loadings, rel=1e-4, abs=1e-6)
    for name in ("kl_sticks", "kl_features", "kl_loadings", "likelihood"):
        assert tiny.trace.terms[name][-1] == pytest.approx(alone.trace.terms[name][-1], rel=1e-6, abs=1e-6)


def test_removing_features_changes_only_their_columns():
    problem = make_problem(6, {"n_components": 25, "max_iter": 25}, n=120)
    state = fit.fit(problem.data, problem.settings, start_of(problem)).state
    assert 0 < len(state.params.loadings) < 25
    assert state.head.weights.shape[1] == len(state.params.loadings) + 1
    assert state.params.infer(problem.data.X) == pytest.approx(state.embedding, abs=1e-12)


def test_alternation_lowers_the_objective_and_reports_increases():
    problem = make_problem(10, {"max_iter": 30, **ESTIMATED, "temperature": 2.0}, n=150)
    result = fit.fit(problem.data, problem.settings, start_of(problem), margins="posterior")
    objective = result.trace.objective
    assert objective.min() < objective[0]
    assert result.kept_iteration == int(result.trace.iterations[np.flatnonzero(objective == objective.min())[-1]])
    assert result.trace.rises.total == pytest.approx(np.maximum(np.diff(objective), 0.0).sum())


@pytest.mark.parametrize("seed", [1, 2])
def test_simulated_features_are_recovered_exactly(seed):
    """On simulated data with four features and a truncation of eight, each feature is recovered by row."""
    rng = np.random.default_rng(seed)
    Z = (rng.random((400, 4)) < [0.6, 0.5, 0.4, 0.3]).astype(float)
    X = Z @ (2.0 * rng.standard_normal((4, 30))) + 0.3 * rng.standard_normal((400, 30))
    X = centre_rows(X, np.zeros(30))
    data = Data(X)
    settings = make_settings(
        X, n_components=8, C=0.0, generative_weight=1.0, temperature=1.0, **ESTIMATED, max_iter=100
    )
    begins = [starts.random_params(X, settings, np.random.default_rng(start)) for start in range(3)]
    best = min((fit.fit(data, settings, start) for start in begins), key=lambda result: result.trace.objective[-1])
    psi = best.state.embedding
    varying = psi[:, np.ptp(psi, axis=0) > 0.1]
    assert varying.shape[1] == 4
    agreement = np.array([[np.mean((found > 0.5) == planted) for found in varying.T] for planted in Z.T.astype(bool)])
    assert np.all(np.maximum(agreement, 1.0 - agreement).max(axis=1) > 0.99)  # up to exchanging on and off


def test_scaling_the_inputs_changes_nothing():
    data = make_data(15)
    found = []
    for scale in (1.0, 1024.0):
        scaled = replace(data, X=centre_rows(scale * data.X.X))
        settings = make_settings(scaled.X, max_iter=6)
        state = fit.fit(scaled, settings, starts.random_params(scaled.X, settings, np.random.default_rng(0))).state
        found.append((state.embedding, state.params.loadings / scale))
    assert found[1][0] == pytest.approx(found[0][0], abs=1e-5)
    assert found[1][1] == pytest.approx(found[0][1], abs=1e-5)


def test_fit_is_independent_of_the_number_of_threads():
    data = make_data(17, n=4500, D=6)
    states = []
    for n_threads in (1, 3):
        settings = make_settings(data.X, max_iter=3, n_threads=n_threads)
        start = starts.random_params(data.X, settings, np.random.default_rng(0))
        states.append(fit.fit(data, settings, start).state)
    assert np.array_equal(states[0].params.loadings, states[1].params.loadings)
    assert np.array_equal(states[0].embedding, states[1].embedding)
    assert np.array_equal(states[0].head.weights, states[1].head.weights)


def test_sample_rows_keep_labeled_rows():
    rng = np.random.default_rng(0)
    labels = np.where(rng.random(20_000) < 0.05, rng.integers(0, 3, 20_000), UNLABELED)
    data = Data.of_classes(centre_rows(np.zeros((20_000, 1)), np.zeros(1)), labels, np.ones(20_000), zero_one_cost(3))
    rows = starts.sample_rows(data, rng)
    assert len(rows) == starts.POLICY.sample_rows == len(np.unique(rows))
    assert np.all(np.isin(np.flatnonzero(labels != UNLABELED), rows))
    assert starts.sample_rows(data.take(np.arange(5000)), rng) is None


def test_unlabeled_rows_inform_features_but_have_no_margins():
    problem = make_problem(18, {"max_iter": 5}, n_unlabeled=20)
    data, start = problem.data, start_of(problem)
    state = fit.fit(data, problem.settings, start).state
    labeled = data.take(data.labeled)
    alone = fit.fit(labeled, problem.settings, start).state
    assert state.multipliers.shape == (40, 3)
    assert np.abs(state.params.loadings - alone.params.loadings).max() > 1e-3
    psi = state.params.infer(data.X)
    at, _ = problem.joint.evaluate(state.params, WarmStart(multipliers=state.multipliers), EXACT)
    refit = build_head(labeled, problem.settings).solve(psi[data.labeled], None, EXACT)
    assert at.head.head.weights == pytest.approx(refit.head.weights, abs=1e-5)


def test_transductive_margins_separate_the_guessed_labels():
    problem = make_problem(19, {"max_iter": 8}, n=120, n_unlabeled=90)
    data, start = problem.data, start_of(problem)
    state = fit.fit_transductive(data, problem.settings, start).state
    assert state.multipliers.shape == (120, 3)
    plain = fit.fit(data, problem.settings, start).state
    hidden = np.arange(90)

    def margins(state):
        scores = np.sort(data.X.take(hidden).score(state, state.embedding[hidden]), axis=1)
        return scores[:, -1] - scores[:, -2]

    assert np.mean(margins(state) >= 1.0) > np.mean(margins(plain) >= 1.0)


# --- fits that are cut short ----------------------------------------------------------------------------------------


class Interrupting:
    """Inference of a block of rows that raises KeyboardInterrupt at a given call."""

    def __init__(self, inference, at_call=None):
        self.at_call = at_call
        self.inference = inference
        self.n_calls = 0

    def __call__(self, *arguments, **named):
        self.n_calls += 1
        if self.n_calls == self.at_call:
            raise KeyboardInterrupt
        return self.inference(*arguments, **named)


@pytest.mark.parametrize("some_rows", [False, True])
@pytest.mark.parametrize("temperature", [0.3, 2.0], ids=["cooled", "warm"])
def test_interrupt_at_any_time_returns_the_current_fit(monkeypatch, some_rows, temperature):
    problem = make_problem(20, {"temperature": temperature, "n_components": 8, "max_iter": 12}, n=80)
    data, start = problem.data, start_of(problem)
    rows = np.arange(0, 80, 2) if some_rows else None
    infer = BinaryFeatures.infer

    def fit_with(inference):
        def infer_rows(model, rows, params):
            return inference(model, rows, params)

        monkeypatch.setattr(BinaryFeatures, "infer", infer_rows)
        return fit.fit(data, problem.settings, start, sample=rows)

    at_start = descent.start(problem.joint, replace(start, temperature=temperature), None).at.objective
    whole = Interrupting(infer)
    undisturbed = fit_with(whole)
    n_iters = []
    for call in np.unique(np.linspace(2, whole.n_calls, 9).astype(int)):
        result = fit_with(Interrupting(infer, call))
        assert result.status is Status.INTERRUPTED
        n_iters.append(result.n_iter)
        assert result.state.params.temperature == temperature
        assert result.state.params.infer(data.X) == pytest.approx(result.state.embedding, abs=1e-12)
        assert result.trace.iterations[-1] == result.n_iter
        assert call < 6 or result.trace.objective[-1] < at_start
    assert n_iters[0] == 0
    assert n_iters == sorted(n_iters)
    assert n_iters[-1] in (undisturbed.n_iter - 1, undisturbed.n_iter)
    with pytest.raises(KeyboardInterrupt):  # no model exists yet
        fit_with(Interrupting(infer, 1))


def test_interrupt_of_the_final_inference_keeps_the_fit(monkeypatch):
    problem = make_problem(21)
    start = start_of(problem)
    undisturbed = fit.fit(problem.data, problem.settings, start)
    # The final inference of the training rows calls join.
    monkeypatch.setattr(Rows, "join", Interrupting(Rows.join, 1))
    result = fit.fit(problem.data, problem.settings, start)
    assert result.status is Status.INTERRUPTED
    assert np.array_equal(result.state.params.loadings, undisturbed.state.params.loadings)
    scores = [problem.data.X.score(r.state, r.state.embedding) for r in (undisturbed, result)]
    assert np.mean(scores[0].argmax(axis=1) == scores[1].argmax(axis=1)) > 0.9


def stages_seen(stop_after=10**9):
    """Return a callback that stops after ``stop_after`` iterations, and the list of stages that it receives."""
    seen = []

    def callback(progress):
        seen.append(progress.stage)
        return len(seen) >= stop_after

    return callback, seen


def test_stop_in_the_warm_up_ends_the_fit():
    problem = make_problem(22)
    callback, seen = stages_seen(3)
    result = fit.fit(problem.data, problem.settings, start_of(problem), callbacks=[callback])
    assert seen == ["warm-up"] * 3
    assert (result.status, result.n_iter, len(result.trace)) == (Status.STOPPED, 0, 1)
    assert result.state.head.weights.any()


def test_callback_state_matches_a_fit_stopped_there():
    problem = make_problem(23, {"max_iter": 4, "temperature": 0.5})
    data, start = problem.data, start_of(problem)
    states = []
    fit.fit(data, problem.settings, start, callbacks=[lambda progress: states.append(progress.state)])
    for n in (2, 10, len(states)):
        callback, _ = stages_seen(n)
        ended = fit.fit(data, problem.settings, start, callbacks=[callback]).state
        assert states[n - 1].params.loadings == pytest.approx(ended.params.loadings, abs=1e-12)
        assert states[n - 1].embedding == pytest.approx(ended.embedding, abs=1e-12)
        assert states[n - 1].head.weights == pytest.approx(ended.head.weights, abs=0.05)


@pytest.mark.parametrize("margins", ["consistent", "posterior"])
def test_transductive_trace_joins_all_stages(margins):
    problem = make_problem(24, {"max_iter": 5}, n=90, n_unlabeled=60)
    data, start = problem.data, start_of(problem)
    callback, seen = stages_seen()
    result = fit.fit_transductive(data, problem.settings, start, margins=margins, callbacks=[callback])
    main = {"consistent": "descent", "posterior": "alternation"}[margins]
    stages = [main, *(f"guesses at weight {weight:g}" for weight in fit.TRANSDUCTIVE_WEIGHTS)]
    n_warm_up = seen.count("warm-up")
    assert seen == ["warm-up"] * n_warm_up + [stage for stage in stages for _ in range(seen.count(stage))]
    assert set(seen[n_warm_up:]) == set(stages)
    assert (n_warm_up > 0) == (margins == "consistent")
    assert result.n_iter == len(seen) - n_warm_up
    # Every stage warm-starts where the last one ended.
    ends = np.cumsum([seen.count(stage) for stage in stages[:-1]])
    assert result.trace.iterations.tolist() == sorted([*range(result.n_iter + 1), *ends])
    assert np.all(np.diff(result.trace.elapsed) >= 0)
    assert margins == "posterior" or result.trace.rises.count == 0

    in_second_round = n_warm_up + seen.count(main) + 2
    callback, cut = stages_seen(in_second_round)
    stopped = fit.fit_transductive(data, problem.settings, start, margins=margins, callbacks=[callback])
    assert cut == seen[:in_second_round]
    assert (stopped.status, stopped.n_iter) == (Status.STOPPED, in_second_round - n_warm_up)
    assert np.array_equal(stopped.trace.objective, result.trace.objective[: len(stopped.trace)])


# --- resumed fits ---------------------------------------------------------------------------------------------------


def test_resumed_fit_skips_the_warm_up():
    problem = make_problem(25, {"n_components": 20, "max_iter": 200, "tol": 1e-4}, n=120)
    first = fit.fit(problem.data, problem.settings, start_of(problem))
    assert first.status is Status.CONVERGED
    callback, seen = stages_seen()
    again = fit.fit(problem.data, problem.settings, first.state, callbacks=[callback])
    assert set(seen) == {"descent"}
    assert again.n_iter <= 2 * PATIENCE
    kept = [np.any(result.state.params.loadings != 0.0, axis=1) for result in (first, again)]
    assert 0 < kept[0].sum() < 20
    assert np.array_equal(*kept)
    slack = 1e-3 * problem.unit  # tolerance for the start and the few steps until convergence
    assert again.trace.objective[0] == pytest.approx(first.trace.objective[-1], abs=slack)
    assert first.trace.objective[-1] - again.trace.objective[-1] < slack
    assert again.state.embedding == pytest.approx(first.state.embedding, abs=0.1)


def test_resumed_fit_at_lower_temperature_keeps_its_features():
    problem = make_problem(26, {"n_components": 12}, n=120)
    first = fit.fit(problem.data, problem.settings, start_of(problem))
    colder = replace(problem.settings, temperature=0.2 * problem.settings.temperature)
    callback, seen = stages_seen()
    again = fit.fit(problem.data, colder, first.state, callbacks=[callback])
    n_coolings = int(np.ceil(np.log(0.2) / np.log(starts.POLICY.cooling)))  # number of cooling phases
    assert n_coolings <= seen.count("warm-up") <= starts.POLICY.short_steps * n_coolings
    assert again.state.params.temperature == colder.temperature
    kept = [np.any(result.state.params.loadings != 0.0, axis=1) for result in (first, again)]
    assert np.array_equal(*kept)


# --- variances ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("margins", ["consistent", "posterior"])
@pytest.mark.parametrize("estimated", [(), ("estimate_noise",), ("estimate_prior",), tuple(ESTIMATED)], ids=str)
def test_each_variance_is_estimated_or_fixed_separately(margins, estimated):
    problem = make_problem(27, {"max_iter": 30, "temperature": 1.0} | dict.fromkeys(estimated, True), n=120)
    settings = problem.settings
    result = fit.fit(problem.data, settings, start_of(problem), margins=margins)
    g = result.state.params
    assert (g.noise_variance != settings.noise_variance) == settings.estimate_noise
    assert (g.prior_variance != settings.prior_variance) == settings.estimate_prior
    again = fit.fit(problem.data, replace(settings, max_iter=0), result.state, margins=margins).state.params
    assert (again.noise_variance, again.prior_variance) == (g.noise_variance, g.prior_variance)


def test_more_rows_give_more_features_for_any_truncation():
    """On data from an Indian buffet process, rare features are found once there are enough rows."""
    drawn = make_ibp_classification(400, 40, n_components=60, alpha=4.0, noise=0.3, random_state=0)
    found = {}
    for n_rows in (50, 400):
        X = centre_rows(drawn.data[:n_rows])
        data = Data(X)
        for K in (40, 80):
            changes = {"n_components": K, "C": 0.0, "generative_weight": 1.0, "temperature": 1.0, "max_iter": 100}
            settings = make_settings(X, **changes, **ESTIMATED)
            state = fit.fit(data, settings, starts.random_params(X, settings, np.random.default_rng(0))).state
            found[n_rows, K] = int(np.sum(np.ptp(state.embedding, axis=0) > 0.1))
    often = int(np.sum(drawn.features.mean(axis=0) >= 0.02))
    for K in (40, 80):
        assert found[50, K] + 2 <= found[400, K]
        assert abs(found[400, K] - often) <= 4
    assert abs(found[400, 40] - found[400, 80]) <= 2
