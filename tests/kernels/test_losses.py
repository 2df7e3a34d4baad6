"""Squared losses match their definitions for every array library."""

from __future__ import annotations

import numpy as np
import pytest

from array_namespaces import Place, list_places
from regbayes.kernels.arrays import to_host
from regbayes.kernels.losses import ClassLosses, HingeLosses, TubeLosses, weigh_grams

L, N = 4, 60


@pytest.fixture(params=list_places(), ids=lambda place: place.name)
def place(request: pytest.FixtureRequest) -> Place:
    return request.param


def as_numpy(values):
    return np.asarray(to_host(values), dtype=np.float64)


def solve_by_sorting(wanted, smoothing):
    """``omega = max(0, wanted - (1 - d) total) / d`` with ``total = sum(omega)``: the largest few are positive."""
    descending = -np.sort(-wanted, axis=0)
    count = np.arange(1, len(wanted) + 1)[:, None]
    totals = np.cumsum(descending, axis=0) / (smoothing + (1.0 - smoothing) * count)
    n_active = np.sum(descending > (1.0 - smoothing) * np.maximum(totals, 0.0), axis=0)
    total = np.where(n_active > 0, np.take_along_axis(totals, np.maximum(n_active - 1, 0)[None], 0)[0], 0.0)
    return np.maximum(0.0, wanted - (1.0 - smoothing) * total) / smoothing


@pytest.mark.parametrize("smoothing", [1.0, 0.1, 0.001])
@pytest.mark.parametrize("with_costs", [False, True])
def test_class_multipliers_match_the_sorting_solution(place: Place, smoothing: float, with_costs: bool) -> None:
    rng, tol = np.random.default_rng(0), 10 * place.tol / min(smoothing, 0.1)
    labels, C, scores = rng.integers(L, size=N), rng.random(N) * (rng.random(N) < 0.9), rng.normal(size=(L, N))
    cost = (1.0 - np.eye(L)) * (rng.random((L, L)) + 0.5 if with_costs else 1.0)
    table = np.ascontiguousarray(cost.T) if with_costs else np.ones((1, 1))
    found = ClassLosses(C, labels, table, smoothing).place(place(scores)).evaluate(place(scores))
    truth = np.eye(L, dtype=bool)[:, labels]
    missed = np.where(truth, 0.0, cost[labels].T + scores - scores[labels, np.arange(N)])
    omega = solve_by_sorting(np.where(truth | (C == 0), -np.inf, missed * (2.0 * C)), smoothing)
    expected = np.where(truth, omega.sum(axis=0), -omega)
    np.testing.assert_allclose(as_numpy(found.multipliers), expected, rtol=0, atol=tol * np.abs(expected).max())
    exact = np.sum(C * np.maximum(0.0, missed.max(axis=0)) ** 2)
    assert float(to_host(found.loss)) - float(to_host(found.excess)) == pytest.approx(exact, rel=10 * place.tol)


@pytest.mark.parametrize("shape", [(1, 1), (1, N), (N,), (L, N)])
def test_hinges_and_tubes_match_their_definitions(place: Place, shape: tuple[int, ...]) -> None:
    rng, tol = np.random.default_rng(1), 10 * place.tol
    signs, C = rng.integers(-1, 2, size=(L, N)).astype(np.int8), rng.random(shape) + 0.5
    values, scores = rng.normal(size=(2, L, N))
    missed = np.maximum(0.0, 1.0 - signs * scores) * np.abs(signs)
    away = values - scores
    away -= np.clip(away, -0.3, 0.3)
    cases = (HingeLosses(C, signs), missed, signs * missed), (TubeLosses(C, values, 0.3), away, away)
    for losses, distance, direction in cases:
        there = losses.place(place(scores))
        found = there.evaluate(place(scores.copy()))  # scores may be overwritten
        assert float(to_host(found.loss)) == pytest.approx(np.sum(C * distance**2), rel=tol)
        np.testing.assert_allclose(as_numpy(found.multipliers), 2.0 * C * direction, rtol=0, atol=10 * tol)
        bent = np.broadcast_to(2.0 * C, (L, N)) * (distance != 0.0)
        np.testing.assert_allclose(as_numpy(there.bend(found.multipliers)), bent, rtol=tol)
        rows = np.array([7, 2, 9])
        some = there.take(rows).evaluate(place(scores[:, rows].copy()))
        np.testing.assert_allclose(as_numpy(some.multipliers), as_numpy(found.multipliers)[:, rows], rtol=tol)


def test_losses_at_nan_scores_are_nan(place: Place) -> None:
    scores = np.array([[0.0, np.nan], [1.0, 2.0], [0.5, 0.1]])
    signs, labels = np.ones((3, 2), dtype=np.int8), np.array([1, 1])
    for losses in (HingeLosses(np.ones(2), signs), ClassLosses(np.ones(2), labels, np.ones((1, 1)), 0.1)):
        assert np.isnan(float(to_host(losses.place(place(scores)).evaluate(place(scores)).loss)))


def test_weighted_grams_are_independent_of_the_pieces(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(2)
    columns, weights = rng.normal(size=(5, N)), rng.random((L, N))
    expected = np.einsum("dn,on,en->ode", columns, weights, columns)
    for room in (1 << 20, 600):  # 600 processes one output at a time
        monkeypatch.setattr("regbayes.kernels.losses.ROOM", room)
        found = as_numpy(weigh_grams(place(columns), place(weights)))
        np.testing.assert_allclose(found, expected, rtol=0, atol=100 * place.tol)
