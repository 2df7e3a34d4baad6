"""Real-valued features on arrays of other libraries match those in host memory."""

from __future__ import annotations

import numpy as np
import pytest

from array_namespaces import Place, list_places
from regbayes.kernels import slab
from regbayes.kernels.arrays import namespace_of, to_host
from regbayes.models.ilsvm.model import centre_rows
from regbayes.models.ilsvm.slab import SlabFeatures, SlabParams
from regbayes.models.indian_buffet import prior_sticks

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
PLACES = list_places()


@pytest.fixture(params=PLACES, ids=lambda place: place.name)
def place(request: pytest.FixtureRequest) -> Place:
    return request.param


@pytest.fixture(params=[place for place in PLACES if place.name != "numpy"], ids=lambda place: place.name)
def elsewhere(request: pytest.FixtureRequest) -> Place:
    return request.param


def assert_close(found, expected, tol: float) -> None:
    found, expected = np.asarray(to_host(found), dtype=np.float64), np.asarray(expected, dtype=np.float64)
    assert found.shape == expected.shape
    assert np.abs(found - expected).max(initial=0.0) <= tol * max(1.0, np.abs(expected).max(initial=0.0))


def make_sweeps(K: int, n: int = 57) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(K)
    coupling = rng.normal(size=(K, K))
    given = coupling @ coupling.T / K, rng.uniform(1.1, 6.0, K), rng.normal(-2.0, 1.5, K)
    return rng.normal(scale=4.0, size=(n, K)), *given


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("n_sweeps", [1, 2, 3])
@pytest.mark.parametrize("K", [1, 9, 23])
def test_sweeps_and_their_reverse_match_the_compiled_loops(
    elsewhere: Place, n_sweeps: int, K: int, signed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = elsewhere
    monkeypatch.setattr(slab, "MAX_HISTORY_NUMBERS", 2 * K * n_sweeps * 20)  # three pieces of rows
    projections, *given = make_sweeps(K)
    if place.tol > 1e-8:
        projections = projections.astype(np.float32).astype(np.float64)
    expected = slab.sweep_slab(projections, *given, n_sweeps, signed)
    found = slab.sweep_slab(place(projections.T).T, *given, n_sweeps, signed)
    for name in ("psi", "amounts", "squares"):
        assert_close(getattr(found, name), getattr(expected, name), 10 * place.tol)
    assert_close(found.divergence, expected.divergence, 10 * place.tol)

    grad = np.random.default_rng(1).normal(size=projections.shape)
    sums = slab.reverse_slab(grad, projections, *given, n_sweeps, signed)
    pulled = slab.reverse_slab(place(grad.T).T, place(projections.T).T, *given, n_sweeps, signed)
    assert_close(pulled.projections, sums.projections, 10 * place.tol)
    assert_close(pulled.coupling, sums.coupling, 10 * place.tol)
    assert_close(pulled.precision, sums.precision, 10 * place.tol)


def test_sweeps_at_extreme_drives_are_finite_and_in_range(place: Place) -> None:
    drives = np.array([[-1e6], [-1e3], [-40.0], [0.0], [40.0], [1e3], [1e6]])
    given = np.zeros((1, 1)), np.full(1, 2.0), np.zeros(1), 1
    found = slab.sweep_slab(place(drives), *given)
    psi, amounts, squares, divergence = (to_host(each) for each in found)
    assert all(np.isfinite(each).all() for each in (psi, amounts, squares, divergence))
    assert np.all((psi >= 0) & (psi <= 1) & (amounts >= 0) & (squares >= 0))
    assert_close(found.amounts[4:, :], drives[4:, :] / 2.0, 10 * place.tol)  # mean of values that are almost surely on
    assert np.isfinite(to_host(slab.reverse_slab(place(np.ones_like(drives)), place(drives), *given).projections)).all()


def test_scaled_erfc_polynomial_matches_the_library(place: Place) -> None:
    from scipy.special import erfcx

    x = np.concatenate([np.linspace(0.0, 8.0, 41), np.geomspace(8.0, 1e8, 20)])
    there = place.make(x)
    assert_close(slab.find_scaled_erfc(namespace_of(there))(there) / place.make(erfcx(x)), np.ones(61), 1e-14)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("n_sweeps", [1, 2])
def test_statistics_gradient_and_bound_match_numpy(elsewhere: Place, n_sweeps: int, weighted: bool) -> None:
    place, rng = elsewhere, np.random.default_rng(0)
    X = rng.normal(size=(80, 6)) + 2.0
    weights = rng.random(80) + 0.5 if weighted else None
    here, there = centre_rows(X, weights=weights), centre_rows(place(X), weights=weights)
    params = SlabParams(
        rng.normal(size=(5, 6)), 0.1 * rng.normal(size=6), np.full(5, 0.01), prior_sticks(2.0, 5), 1.0, 3.0, 1.3,
        n_sweeps, price=0.7,
    )  # fmt: skip
    model = SlabFeatures(2.0, 0.3)
    expected, found = model.infer(here, params), model.infer(there, params)
    assert type(found.stats) is type(expected.stats)
    tol = 10 * place.tol
    for name, value in vars(expected.stats).items():
        assert_close(getattr(found.stats, name), value, tol)
    assert_close(found.features, expected.features, tol)
    assert_close(params.infer(there), params.infer(here), tol)
    assert_close(params.infer_probabilities(there), params.infer_probabilities(here), tol)
    assert_close(params.bound(there), params.bound(here), tol)
    gradient = rng.normal(size=(80, 5))
    for given in (None, gradient):
        wanted = model.pull_back(here, params, expected, None if given is None else given.copy())
        pulled = model.pull_back(there, params, found, None if given is None else place(given.T).T)
        for name, value in vars(wanted).items():
            assert_close(getattr(pulled, name), value, 10 * tol)
