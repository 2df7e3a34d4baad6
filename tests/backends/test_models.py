"""Models on samples of every array library match sums, J and gradients of NumPy up to rounding."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from array_namespaces import Place
from ilsvm_model_tools import make_problem
from regbayes.kernels.arrays import to_host
from regbayes.margins.head import Tolerance
from regbayes.margins.targets import observe_classes, observe_numbers
from regbayes.models.ilsvm.model import BinaryFeatures, ILSVMProblem, Params, centre_rows
from regbayes.models.ilsvm.slab import SlabFeatures, SlabParams
from regbayes.models.indian_buffet import prior_sticks
from regbayes.models.mt_ilsvm.fit import prepare, start_latent
from regbayes.models.mt_ilsvm.model import Settings as TaskSettings

N, D, K = 90, 7, 5


def assert_close(found, expected, tol: float) -> None:
    found, expected = np.asarray(to_host(found), dtype=np.float64), np.asarray(expected, dtype=np.float64)
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=0, atol=tol * max(1.0, np.abs(expected).max(initial=0.0)))


def assert_same_sums(found, expected, tol: float) -> None:
    for name, value in vars(expected).items():
        assert_close(getattr(found, name), value, tol)


def draw_model(n_sweeps: int, slab: bool = False):
    """Return a model with random parameters."""
    rng, logs = np.random.default_rng(1), np.linspace(-0.5, 0.5, D)
    given = rng.normal(size=(K, D)), 0.1 * rng.normal(size=D), np.full(K, 0.01), prior_sticks(2.0, K), 1.0, 3.0, 1.3
    if slab:
        return SlabFeatures(2.0, 0.3), SlabParams(*given, n_sweeps, price=0.7)
    return BinaryFeatures(2.0, 0.3), Params(*given, n_sweeps, np.exp(logs) if n_sweeps != 1 else None)


MODELS = {"one sweep": (1,), "three": (3,), "amounts": (1, True), "amounts, three": (3, True)}


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("case", MODELS)
def test_inference_and_its_reverse_match_numpy(place: Place, case: str, weighted: bool) -> None:
    """Blocks sum to all samples, whose features, sums, bounds and gradients match NumPy."""
    (model, params), rng = draw_model(*MODELS[case]), np.random.default_rng(2)
    X, weights, tol = rng.normal(size=(N, D)) + 2.0, rng.uniform(0.5, 2.0, N) if weighted else None, 30 * place.tol
    here = centre_rows(X, weights=weights)
    cut = [slice(0, 40), slice(40, N)]
    there = [centre_rows(place(X[rows]), here.mean, None if weights is None else weights[rows]) for rows in cut]
    expected, found = model.infer(here, params), [model.infer(rows, params) for rows in there]
    assert type(found[0].features) is type(place(X))
    assert_same_sums(found[0].stats + found[1].stats, expected.stats, tol)
    for rows, inferred, part in zip(cut, found, there, strict=True):
        assert_close(inferred.features, expected.features[rows], tol)
        assert_close(params.infer(part), expected.features[rows], tol)
        assert_close(params.infer_probabilities(part), params.infer_probabilities(here)[rows], tol)
        assert_close(params.bound(part), params.bound(here)[rows], tol)
    for gradient in (None, rng.normal(size=(N, K))):
        wanted = model.pull_back(here, params, expected, None if gradient is None else gradient.copy())
        pulled = [
            model.pull_back(part, params, inferred, None if gradient is None else place(gradient[rows].T).T)
            for rows, inferred, part in zip(cut, found, there, strict=True)
        ]
        assert_same_sums(pulled[0] + pulled[1], wanted, tol)


@pytest.mark.parametrize("weighted", [False, True])
def test_rows_on_a_device_match_numpy(place: Place, weighted: bool) -> None:
    rng = np.random.default_rng(3)
    X, weights = rng.normal(size=(N, D)) + 3.0, rng.random(N) if weighted else None
    here, there, tol = centre_rows(X, weights=weights), centre_rows(place(X), weights=weights), 10 * place.tol
    assert (len(there), there.n_inputs, there.totals.n_rows) == (N, D, here.totals.n_rows)
    assert_close(there.mean, np.average(X, axis=0, weights=weights), tol)
    assert_same_sums(there.totals, here.totals, 10 * tol)
    directions, constant, coefficients = rng.normal(size=(4, D)), rng.normal(size=4), rng.normal(size=(N, 4))
    counted = coefficients if weights is None else weights[:, None] * coefficients
    assert_close(there.project(directions, constant), (X - here.mean) @ directions.T + constant, tol)
    assert_close(there.combine(place(coefficients)), coefficients.T @ (X - here.mean), tol)
    assert_close(there.weigh(place(coefficients)), counted, tol)
    for rows in (rng.permutation(N)[:20], slice(3, 9), None):
        taken = there.take(rows)
        assert_close(taken.array(), (X - here.mean)[slice(None) if rows is None else rows], tol)
        assert (taken.weights is None) == (not weighted)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_too_long_step_gives_nan_without_error(place: Place) -> None:
    """The line search shortens such a step; an assertion on a device would end the process."""
    for case in ("one sweep", "amounts"):
        model, params = draw_model(*MODELS[case])
        rows, far = centre_rows(place(np.ones((4, D)) * np.arange(4.0)[:, None])), np.full((K, D), np.nan)
        far = replace(params, loadings=far)
        assert not np.isfinite(sum(model.terms(far, model.infer(rows, far).stats).values()))
        assert np.all(np.isnan(to_host(far.bound(rows))))


HEADS = {
    "one vs rest": {"one_vs_rest": True},
    "Crammer-Singer": {"one_vs_rest": False},
    "inputs": {"input_scale": 0.5, "one_vs_rest": True},
}


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("options", HEADS.values(), ids=HEADS)
def test_ilsvm_objective_and_gradient_match_numpy(place: Place, options, weighted: bool) -> None:
    weights = np.random.default_rng(4).uniform(0.5, 2.0, N) if weighted else None
    local = make_problem(1, options, n=N, n_unlabeled=9 * weighted, row_weights=weights)
    data = local.data
    there = replace(data, X=centre_rows(place(data.X.X), weights=weights))
    _, params = draw_model(1)
    double = place.tol < 1e-8
    tolerance = Tolerance(1e-13, 3000.0) if double else Tolerance(1e-6, 50.0)
    expected, inferred = local.joint.evaluate(params, None, tolerance)
    elsewhere = ILSVMProblem(there, local.settings).joint
    found, parts = elsewhere.evaluate(params, None, tolerance)
    # Newton's method smooths the Crammer-Singer loss.
    exact = 1e-10 if double and local.settings.one_vs_rest else 1e-4
    assert found.objective == pytest.approx(expected.objective, rel=exact)
    gradient = local.joint.gradient(expected, inferred)
    # The error of the gradient is of the order of the square root of the gap.
    assert_close(elsewhere.gradient(found, parts), gradient, 1e-5 if exact < 1e-8 else 2e-2)


@pytest.mark.parametrize("loss", ["squared_hinge", "squared_epsilon_insensitive"])
@pytest.mark.parametrize("missing", [False, True])
def test_mt_ilsvm_objective_and_gradient_match_numpy(place: Place, loss: str, missing: bool) -> None:
    rng = np.random.default_rng(5)
    X = rng.normal(size=(N, 3)) @ rng.normal(size=(3, D)) + 0.5 * rng.normal(size=(N, D))
    X -= X.mean(axis=0)
    Y = X @ rng.normal(size=(D, 3)) + 0.3 * rng.normal(size=(N, 3))
    seen = rng.random(Y.shape) > 0.3 if missing else np.ones(Y.shape, dtype=bool)
    seen[:9] = not missing  # some samples have no target at all
    rows, tasks = np.nonzero(seen)
    if loss == "squared_hinge":
        observed = observe_classes(rows, tasks, (Y[rows, tasks] > 0).astype(int), np.full(3, 2))
    else:
        observed = observe_numbers(rows, tasks, Y[rows, tasks], 3)
    settings = TaskSettings(
        n_components=4, temperature=0.1, loss=loss, C=0.1, epsilon=0.1, task_sharing=0.5, include_inputs=missing
    )
    weights = rng.random(N) + 0.5 if missing else None
    here, there = (prepare(x, *observed, settings, weights) for x in (X, place(X)))
    latent, double = start_latent(here.moments, settings, rng.normal(size=(D, 4))), place.tol < 1e-8
    tolerance = Tolerance(1e-13, 3000.0) if double else Tolerance(1e-6, 50.0)
    assert_close(there.moments.gram, here.moments.gram, 10 * place.tol)
    expected, found = (problem.evaluate(problem.model.at(latent), None, tolerance) for problem in (here, there))
    assert found[0].objective == pytest.approx(expected[0].objective, rel=1e-10 if double else 1e-4)
    wanted = here.pull_back(*expected).psi
    for _ in range(2):  # with the multipliers of the solver, then without them
        assert_close(there.pull_back(*found).psi, wanted, 1e-5 if double else 2e-2)
