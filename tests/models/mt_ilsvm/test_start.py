"""Initialization, resuming, callbacks and interrupts of MT-iLSVM fits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mt_ilsvm_tools import cells_of, fit, noise_for, small_settings, toy, toy_latent
from regbayes.engine import Status
from regbayes.models.mt_ilsvm.fit import (
    TEMPERATURES,
    UNUSED_RANGE,
    factor_analysis,
    have_collapsed,
    prepare,
    reinitialize,
    stages_of,
)
from regbayes.models.mt_ilsvm.model import decision


def test_start_uses_the_highest_temperature_without_collapse():
    X, Y = toy(53, n_rows=200, n_columns=8)
    settings, noise = small_settings(temperature="auto", margins="decoupled", start_iter=50), noise_for(X)
    cells, outputs = cells_of(Y, settings.loss)
    start = fit(X, cells, outputs, settings, noise)
    tau = start.state.scales.tau
    position = TEMPERATURES.index(tau)
    assert 0 < position < len(TEMPERATURES) - 1
    for candidate in TEMPERATURES[: position + 1]:
        problem = prepare(X, cells, outputs, replace(settings, temperature=candidate))
        assert have_collapsed(factor_analysis(problem, noise).state.latent) == (candidate > tau)
    # The joint fit has a higher temperature, but keeps the variances of its start.
    joint = replace(settings, margins="consistent")
    automatic = fit(X, cells, outputs, joint, noise).state
    assert automatic.scales.tau == pytest.approx(max(3 * tau, 0.03))
    assert automatic.latent.noise_variance == start.state.latent.noise_variance
    # A requested temperature at which features collapse is still used, from the same start.
    hot = fit(X, cells, outputs, replace(joint, temperature=TEMPERATURES[0]), noise).state
    assert hot.scales.tau == TEMPERATURES[0]
    assert hot.latent.noise_variance == start.state.latent.noise_variance
    again = fit(X, cells, outputs, joint, automatic)
    assert again.state.scales == automatic.scales


def test_features_beyond_the_directions_start_from_noise():
    X, Y = toy(52)
    settings = small_settings(n_components=14, max_iter=5)
    result = fit(X, *cells_of(Y, settings.loss), settings, noise_for(X, 14))
    assert np.all(np.isfinite(result.state.latent.logits))
    assert np.isfinite(result.trace.objective[-1])


@pytest.mark.parametrize("kind", ["all zero", "constant column", "one column", "one row", "one distinct row"])
@pytest.mark.parametrize("margins", ["consistent", "posterior", "decoupled"])
def test_degenerate_inputs_give_finite_fits(kind, margins):
    X, Y = toy(54, loss="epsilon_insensitive")
    if kind == "one row":
        X, Y = X[:1], Y[:1]
    elif kind == "one column":
        X = X[:, :1]
    elif kind == "constant column":
        X[:, 2] = 0.0  # centred
    else:
        X[:] = 0.0 if kind == "all zero" else X[0]
    settings = small_settings("squared_epsilon_insensitive", margins=margins, temperature="auto", n_components=4)
    result = fit(X, *cells_of(Y, settings.loss), settings, noise_for(X, 4))
    assert np.all(np.isfinite(decision(X, result.state)))
    assert np.all(np.isfinite(result.trace.objective))


def test_fit_resumes_where_another_stopped():
    X, Y = toy(62)
    cells, outputs = cells_of(Y, "squared_hinge")
    first = fit(X, cells, outputs, small_settings(max_iter=4), noise_for(X))
    second = fit(X, cells, outputs, small_settings(max_iter=4), first.state)
    assert second.trace.objective[0] == pytest.approx(first.trace.objective[-1], rel=1e-9)
    assert second.trace.objective[-1] < first.trace.objective[-1]


def test_callbacks_receive_the_state_and_may_stop():
    X, Y = toy(63)
    seen = []

    def watch(progress):
        if progress.stage == "descent":
            seen.append(decision(X, progress.state))
        return len(seen) == 3

    result = fit(X, *cells_of(Y, "squared_hinge"), small_settings(), noise_for(X), callbacks=[watch])
    assert (len(seen), result.status) == (3, Status.STOPPED)
    assert np.array_equal(seen[-1], decision(X, result.state))


def one_direction(seed, n_rows=200):
    """Return eight correlated inputs, and two small uncorrelated inputs that determine the two targets.

    Without the targets, only one direction is found, with a feature for each sign. The small inputs are below the
    remaining noise, so they have no features of their own.
    """
    rng = np.random.default_rng(seed)
    signs = np.repeat([1.0, -1.0], 4)
    large = rng.standard_normal((n_rows, 1)) * signs + 0.3 * rng.standard_normal((n_rows, 8))
    large -= large.mean(axis=0)
    small = rng.standard_normal((n_rows, 2))
    small -= small.mean(axis=0)
    small -= large @ np.linalg.lstsq(large, small, rcond=None)[0]
    small /= small.std(axis=0)
    return np.hstack([large, 0.3 * small]), small + 0.5 * rng.standard_normal((n_rows, 2))


@pytest.mark.parametrize("temperature", [0.01, "auto"])
def test_features_removed_by_factor_analysis_are_restarted(temperature):
    X, Y = one_direction(66)
    loss = "squared_epsilon_insensitive"
    settings = small_settings(loss, alpha=0.01, temperature=temperature, n_components=6, generative_weight="auto")
    cells, outputs = cells_of(Y, loss)
    alone = fit(X, cells, outputs, replace(settings, margins="decoupled"), noise_for(X, 6)).state
    assert np.sum(alone.latent.psi.max(axis=0) > 0.5) == 2
    joint = fit(X, cells, outputs, replace(settings, max_iter=60), noise_for(X, 6)).state
    assert np.all(np.ptp(joint.latent.psi, axis=0) > UNUSED_RANGE)
    assert np.all(joint.latent.psi[8:].max(axis=1) > 0.5)
    assert np.mean((decision(X, joint) - Y) ** 2) < np.mean((decision(X, alone) - Y) ** 2)


def test_only_unused_features_are_restarted():
    latent, noise = toy_latent(67, n_columns=8, n_features=5, scale=4.0), noise_for(np.zeros((1, 8)), 5)
    logits = latent.logits.copy()
    logits[:, 1], logits[:, 3] = -9.0, 3.0  # off in all columns, and equally on in all columns
    dead = replace(latent, logits=logits)
    alive = reinitialize(dead, noise, 2.0, tempered=True)
    expected = np.where([False, True, False, True, False], noise, logits)
    assert sorted(map(tuple, alive.logits.T)) == sorted(map(tuple, expected.T))
    assert np.all(np.diff(alive.psi.sum(axis=0)) <= 0)  # in decreasing order of use, as the sticks expect
    assert reinitialize(dead, noise, 2.0, tempered=False) is dead
    assert reinitialize(latent, noise, 2.0, tempered=True) is latent
    nothing = replace(latent, logits=np.full_like(logits, -9.0))
    assert np.ptp(reinitialize(nothing, noise, 2.0, tempered=False).logits) > 1.0


def test_resumed_fit_skips_the_start_and_barely_changes():
    X, Y = toy(68)
    cells, outputs = cells_of(Y, "squared_hinge")
    settings = small_settings(max_iter=300, tol=1e-5)
    first = fit(X, cells, outputs, settings, noise_for(X))
    assert first.status is Status.CONVERGED
    stages = []
    again = fit(X, cells, outputs, settings, first.state, callbacks=[lambda at: stages.append(at.stage)])
    assert stages == ["descent"] * again.n_iter
    assert (again.status, again.n_iter) == (Status.CONVERGED, 2)
    assert np.allclose(decision(X, again.state), decision(X, first.state), atol=1e-2)


def test_callbacks_receive_the_start():
    X, Y = toy(69)
    cells, outputs = cells_of(Y, "squared_hinge")
    for margins, last in (("consistent", "descent"), ("posterior", "alternation"), ("decoupled", "warm-up")):
        seen = []
        settings = small_settings(margins=margins)
        fit(X, cells, outputs, settings, noise_for(X), callbacks=[lambda at, seen=seen: seen.append(at.stage)])
        assert list(dict.fromkeys(seen)) == list(stages_of(settings))
        assert seen[-1] == last
        assert seen.count("warm-up") >= settings.start_iter


def _raising(stage, error):
    def watch(progress):
        if progress.stage == stage and progress.iteration == 2:
            if error:
                raise KeyboardInterrupt
            return True
        return False

    return watch


@pytest.mark.parametrize("interrupted", [False, True])
@pytest.mark.parametrize("stage", ["warm-up", "descent"])
def test_stop_or_interrupt_returns_the_current_fit(stage, interrupted):
    X, Y = toy(70)
    settings = small_settings(temperature="auto")
    cells, outputs = cells_of(Y, settings.loss)
    stages = []
    watching = [lambda at: stages.append(at.stage), _raising(stage, interrupted)]
    result = fit(X, cells, outputs, settings, noise_for(X), callbacks=watching)
    assert result.status is (Status.INTERRUPTED if interrupted else Status.STOPPED)
    assert (stages[-1], stages.count(stage)) == (stage, 2)  # no lower temperature and no descent follows
    assert result.n_iter == (0 if stage == "warm-up" else 2)
    assert len(result.trace.objective) == result.n_iter + 1
    assert np.ptp(decision(X, result.state)) > 0  # the model has weights
