"""Array operations on rows match the NumPy code for every installed array library."""

from __future__ import annotations

import numpy as np
import pytest

from array_namespaces import Place, list_places
from regbayes.kernels import arrays, arrays_atoms, binary
from regbayes.kernels.arrays import to_host
from regbayes.regularization.log_partition import WeightedAtoms

PLACES = list_places()


@pytest.fixture(params=PLACES, ids=lambda place: place.name)
def place(request: pytest.FixtureRequest) -> Place:
    return request.param


def assert_close(found, expected, tol: float) -> None:
    found, expected = np.asarray(to_host(found), dtype=np.float64), np.asarray(expected, dtype=np.float64)
    assert found.shape == expected.shape
    assert np.abs(found - expected).max(initial=0.0) <= tol * max(1.0, np.abs(expected).max(initial=0.0))


# --- sweeps


@pytest.mark.parametrize(
    "elsewhere", [place for place in PLACES if place.name != "numpy"], ids=lambda place: place.name
)
@pytest.mark.parametrize("n_sweeps", [1, 3])
@pytest.mark.parametrize("K", [1, 9, 23])
def test_sweep_and_its_reverse_match_the_compiled_loops(elsewhere: Place, n_sweeps: int, K: int) -> None:
    rng = np.random.default_rng(K)
    theta, grad = rng.normal(size=(2, 57, K)) * 2
    coupling, start = rng.normal(size=(K, K)), rng.random((1, K))
    psi = binary.sweep_features(theta, coupling, start, n_sweeps)
    expected = binary.reverse_features(grad, psi, theta, coupling, start, n_sweeps)
    there, own = elsewhere(theta.T).T, elsewhere(grad.T).T
    found = binary.sweep_features(there, coupling, start, n_sweeps)
    assert_close(found, psi, elsewhere.tol)
    for sums, wanted in zip(
        binary.reverse_features(own, found, there, coupling, start, n_sweeps), expected, strict=True
    ):
        assert_close(sums, wanted, elsewhere.tol)


def test_sweeps_of_extreme_logits_are_zero_and_one(place: Place) -> None:
    logits, none = place(np.array([[-2000.0], [2000.0], [0.0]])), np.zeros((1, 1))
    psi = binary.sweep_features(logits, none, none, 1)
    assert_close(psi, [[0.0], [1.0], [0.5]], 1e-15)
    sums = binary.sum_features(psi, logits, None)
    assert sums.entropy == pytest.approx(np.log(2.0), rel=10 * place.tol)
    assert sums.by_theta == 2000.0


@pytest.mark.parametrize("weighted", [False, True])
def test_sums_of_features_match_numpy(place: Place, weighted: bool) -> None:
    rng = np.random.default_rng(1)
    psi, theta = rng.random((13, 40)), rng.normal(size=(13, 40))
    psi[0, :3] = 0.0, 1.0, 1e-300  # 0 log 0 = 0
    weights = rng.random(40) if weighted else np.ones(40)
    found = binary.sum_features(place(psi).T, place(theta).T, place(weights) if weighted else None)
    assert_close(found.counts, psi @ weights, place.tol)
    assert_close(found.gram, (psi * weights) @ psi.T, place.tol)
    assert found.by_theta == pytest.approx(float(np.sum(psi * theta * weights)), abs=100 * place.tol)
    inner = psi[(psi > 1e-200) & (psi < 1)]
    counts = np.broadcast_to(weights, psi.shape)[(psi > 1e-200) & (psi < 1)]
    entropy = -np.sum(counts * (inner * np.log(inner) + (1 - inner) * np.log(1 - inner)))
    assert found.entropy == pytest.approx(entropy, rel=10 * place.tol)


def test_single_precision_sums_are_taken_in_pieces() -> None:
    n = 3 * arrays.PIECE + 5
    left, right = np.ones((1, n), dtype=np.float32), np.full((1, n), 0.1, dtype=np.float32)
    found = arrays.multiply_rows(left, right)
    assert found.dtype == np.float64
    assert float(found[0, 0]) == pytest.approx(n * float(np.float32(0.1)), rel=1e-5)


@pytest.mark.parametrize("n", [3, 8, 16, 29])
@pytest.mark.parametrize("room", [1, 15, 1000])
def test_products_over_rows_are_sums_of_pieces(
    place: Place, n: int, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrays, "PIECE", 8)
    monkeypatch.setattr(arrays, "ROOM", room)
    rng = np.random.default_rng(n)
    left, rows = rng.normal(size=(3, n)), rng.normal(size=(n, 5))
    found = arrays.multiply_rows(place(left), place(rows).T)
    assert str(found.dtype).endswith("float64")
    assert_close(found, left @ rows, place.tol)


# --- atoms


def test_sums_of_atoms_give_the_log_partition(place: Place) -> None:
    rng = np.random.default_rng(6)
    features, phi = rng.normal(size=(200, 3)), rng.normal(size=3)
    log_weights = rng.normal(size=200)
    log_weights -= np.logaddexp.reduce(log_weights)
    host = WeightedAtoms(features, log_weights)
    logs = place.make(log_weights)
    sums = arrays_atoms.sum_atoms(place(features), logs, phi, host.mean, True)
    assert sums.top + np.log(sums.total) == pytest.approx(host.evaluate(phi)[0], rel=10 * place.tol)
    away = sums.first / sums.total
    assert_close(host.mean + away, host.evaluate(phi)[1], 10 * place.tol)
    assert_close(sums.second / sums.total - np.outer(away, away), host.covariance(phi), 10 * place.tol)
