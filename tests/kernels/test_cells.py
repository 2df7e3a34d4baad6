"""Squared losses of cells: compiled loops against the reference, and this against the derivative of the loss."""

from __future__ import annotations

import numpy as np
import pytest

from reference.cells import (
    reference_add_curvature,
    reference_add_list_curvature,
    reference_evaluate,
    reference_evaluate_list,
)
from regbayes.kernels.cells import (
    PIECE_ROWS,
    Listed,
    add_curvature,
    add_list_curvature,
    evaluate,
    evaluate_list,
    find_multipliers,
    make_forms,
    pull_back_list,
)

N, K, M = 70, 5, 4


def make(kind, rng):
    """Losses of cells: signs with holes, numbers with holes and a tube, numbers everywhere, also of weighted rows."""
    if kind == "signs":
        side = rng.choice(np.array([-1, 0, 1], dtype=np.int8), size=(N, M))
        return make_forms(-side, np.array(0.0), rng.uniform(1.0, 2.0, size=(N, 1)), side, None)
    values = rng.normal(size=(N, M))
    if kind == "tube":
        return make_forms(values, np.array(0.3), rng.uniform(1.0, 2.0, size=(1, M)), None, rng.random((N, M)) < 0.7)
    if kind == "weighted":
        return make_forms(values, np.array(0.0), rng.uniform(1.0, 2.0, size=(N, 1)), None, None)
    return make_forms(
        values.astype(np.float32),
        np.zeros((N, 1)) if kind == "zero tubes" else np.array(0.0),
        np.array(1.5),
        None,
        None,
    )


def loss_of(features, weights, constant, forms):
    return reference_evaluate(features, weights, constant, forms, np.empty((N, M))).loss


@pytest.fixture(params=["signs", "tube", "zero tubes", "numbers", "weighted"])
def problem(request):
    rng = np.random.default_rng(0)
    features, weights, constant = rng.normal(size=(N, K)), rng.normal(size=(M, K)), rng.normal(size=M)
    return features, weights, constant, make(request.param, rng)


def test_a_look_is_that_of_the_reference(problem):
    here, reference, alone = (np.empty((N, M)) for _ in range(3))
    found, expected = evaluate(*problem, here), reference_evaluate(*problem, reference)
    find_multipliers(*problem, alone)
    for phi in (here, alone):
        np.testing.assert_allclose(phi, reference, atol=1e-12)
    assert found.loss == pytest.approx(expected.loss, rel=1e-12)
    np.testing.assert_allclose(found.pulled, expected.pulled, atol=1e-11)
    np.testing.assert_allclose(found.totals, expected.totals, atol=1e-11)


@pytest.mark.parametrize("kind", ["signs", "tube", "numbers", "weighted"])
def test_many_rows_are_looked_at_in_pieces(kind, monkeypatch):
    monkeypatch.setitem(globals(), "N", 2 * PIECE_ROWS + 100)
    rng = np.random.default_rng(3)
    at = rng.normal(size=(N, K)), rng.normal(size=(M, K)), rng.normal(size=M), make(kind, rng)
    here, reference, room = np.empty((N, M)), np.empty((N, M)), np.empty((PIECE_ROWS, M))
    expected = reference_evaluate(*at, reference)
    for phi in (here, room):
        found = evaluate(*at, phi)
        assert found.loss == pytest.approx(expected.loss, rel=1e-12)
        np.testing.assert_allclose(found.pulled, expected.pulled, atol=1e-9)
        np.testing.assert_allclose(found.totals, expected.totals, atol=1e-9)
    np.testing.assert_allclose(here, reference, atol=1e-11)
    features, weights, _, forms = at
    curvature, by_reference = np.zeros((M, K, K)), np.zeros((M, K, K))
    add_curvature(features, weights, forms, curvature)
    reference_add_curvature(features, weights, forms, by_reference)
    np.testing.assert_allclose(curvature, by_reference, rtol=1e-11, atol=1e-9)


def test_curvature_is_that_of_the_reference_and_is_added(problem):
    features, weights, _, forms = problem
    found, expected = np.ones((M, K, K)), np.ones((M, K, K))
    add_curvature(features, weights, forms, found)
    reference_add_curvature(features, weights, forms, expected)
    np.testing.assert_allclose(found, expected, atol=1e-11)


def test_sums_are_minus_the_derivative_of_the_loss_and_curvature_is_the_second(problem):
    features, weights, constant, forms = problem
    direction = np.random.default_rng(1).normal(size=weights.shape)
    step = 1e-6
    slope = (
        loss_of(features, weights + step * direction, constant, forms)
        - loss_of(features, weights - step * direction, constant, forms)
    ) / (2 * step)
    seen = evaluate(*problem, np.empty((N, M)))
    assert slope == pytest.approx(-np.vdot(seen.pulled, direction), rel=1e-6)
    ahead, behind = (
        evaluate(features, weights + sign * step * direction, np.zeros(M), forms, np.empty((N, M))).pulled
        for sign in (1.0, -1.0)
    )
    curvature = np.zeros((M, K, K))
    add_curvature(features, weights, forms, curvature)
    bent = np.einsum("mij,mj->mi", curvature, direction)
    np.testing.assert_allclose((behind - ahead) / (2 * step), bent, rtol=1e-5, atol=1e-5)


# --- a list of cells --------------------------------------------------------------------------------------------------


@pytest.fixture(params=["signs", "tube", "numbers", "weighted"])
def listed_problem(request):
    """Some cells of a matrix, of which the second output has none; and the matrix with holes elsewhere."""
    rng, kind = np.random.default_rng(2), request.param
    features, weights, constant = rng.normal(size=(N, K)), rng.normal(size=(M, K)), rng.normal(size=M)
    there = (rng.random((N, M)) < 0.3) & (np.arange(M) != 1)
    outputs, rows = np.nonzero(there.T)
    present, starts = np.unique(outputs, return_index=True)
    listed = Listed(rows.astype(np.int32), present, np.append(starts, len(rows)))
    values, stiffness, side = rng.normal(size=(N, M)), np.full((N, M), 1.5), None
    if kind == "weighted":
        stiffness = rng.uniform(1.0, 2.0, size=(N, M))
    if kind == "signs":
        side = rng.choice(np.array([-1, 1], dtype=np.int8), size=(N, M))
        values = -side.astype(np.float64)
    tube = np.array(0.3 if kind == "tube" else 0.0)
    few = stiffness[rows, outputs] if kind == "weighted" else np.array(1.5)
    forms = make_forms(values[rows, outputs], tube, few, None if side is None else side[rows, outputs], None)
    holes = None if side is None else np.where(there, side, 0).astype(np.int8)
    matrix = make_forms(values, tube, stiffness, holes, there if side is None else None)
    return (features, weights, constant), forms, listed, matrix, (rows, outputs)


def test_an_evaluation_of_a_list_is_that_of_the_reference_and_of_the_matrix_with_holes(listed_problem):
    at, forms, listed, matrix, places = listed_problem
    here, reference, alone = (np.empty((len(listed.rows), 1)) for _ in range(3))
    everywhere = np.empty((N, M))
    found = evaluate_list(*at, forms, listed, here)
    evaluate_list(*at, forms, listed, alone, sums=False)
    for expected in (
        reference_evaluate_list(*at, forms, listed, reference),
        reference_evaluate(*at, matrix, everywhere),
    ):
        assert found.loss == pytest.approx(expected.loss, rel=1e-12)
        np.testing.assert_allclose(found.pulled, expected.pulled, atol=1e-11)
        np.testing.assert_allclose(found.totals, expected.totals, atol=1e-11)
    for phi in (here, alone, reference):
        np.testing.assert_allclose(phi[:, 0], everywhere[places], atol=1e-12)
    pulled = np.ones((N, K))
    pull_back_list(here, at[1], listed, pulled)
    np.testing.assert_allclose(pulled, 1.0 + everywhere @ at[1], atol=1e-11)


def test_curvature_of_a_list_is_that_of_the_reference_and_of_the_matrix_with_holes(listed_problem):
    (features, weights, _), forms, listed, matrix, _ = listed_problem
    found, reference, everywhere = (np.ones((M, K, K)) for _ in range(3))
    add_list_curvature(features, weights, forms, listed, found)
    reference_add_list_curvature(features, weights, forms, listed, reference)
    reference_add_curvature(features, weights, matrix, everywhere)
    np.testing.assert_allclose(found, reference, atol=1e-11)
    np.testing.assert_allclose(found, everywhere, atol=1e-11)


def test_an_empty_list_adds_nothing():
    listed = Listed(np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.int64), np.zeros(1, dtype=np.int64))
    forms = make_forms(np.array(0.0), np.array(0.0), np.array(1.0), None, None)
    seen = evaluate_list(np.ones((3, 2)), np.ones((2, 2)), np.zeros(2), forms, listed, np.empty((0, 1)))
    found = np.zeros((2, 2, 2))
    add_list_curvature(np.ones((3, 2)), np.ones((2, 2)), forms, listed, found)
    assert seen.loss == 0.0
    assert not any(sums.any() for sums in (seen.pulled, seen.totals, found))
