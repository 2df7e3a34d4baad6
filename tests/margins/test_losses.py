"""Dual forms of targets compared with explicit losses of samples."""

from __future__ import annotations

import numpy as np
import pytest

from regbayes.margins.targets import Cells, Classes, Numbers, Observations, Signs, zero_one_cost

N_ROWS, N_CLASSES = 12, 4


def costs(rng):
    return rng.uniform(0.2, 2.0, (N_CLASSES, N_CLASSES)) * zero_one_cost(N_CLASSES)


def labels_of(rng):
    return rng.integers(N_CLASSES, size=N_ROWS)


@pytest.mark.parametrize("squared", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_dual_forms_have_the_values_of_losses(squared, seed):
    rng = np.random.default_rng(seed)
    power, scores = 2 if squared else 1, rng.normal(size=(N_ROWS, N_CLASSES))
    C, labels = rng.uniform(size=(N_ROWS, N_CLASSES)), labels_of(rng)
    signs, values = rng.choice([-1.0, 1.0], scores.shape), rng.normal(size=scores.shape)
    missed = np.maximum(0.0, 0.7 - signs * scores) ** power
    by_cell = Signs(signs, C, 0.7).dual_form(squared).values(-scores.ravel())
    np.testing.assert_allclose(by_cell, (C * missed).ravel(), rtol=1e-12, atol=1e-15)
    outside = np.maximum(0.0, np.abs(scores - values) - 0.3) ** power
    by_cell = Numbers(values, C, 0.3).dual_form(squared).values(-scores.ravel())
    np.testing.assert_allclose(by_cell, (C * outside).ravel(), rtol=1e-12, atol=1e-15)
    targets = Classes(labels, costs(rng), C[:, 0])
    differences = scores - scores[np.arange(N_ROWS), labels][:, None]
    worst = np.max(targets.cost[labels] + differences, axis=1)
    assert worst.min() >= 0.0
    np.testing.assert_allclose(targets.dual_form(squared).values(differences), C[:, 0] * worst**power)
    one_vs_rest = targets.one_vs_rest()
    np.testing.assert_array_equal(one_vs_rest.signs > 0, np.eye(N_CLASSES, dtype=bool)[labels])
    np.testing.assert_array_equal(one_vs_rest.C, np.tile(C[:, :1], (1, N_CLASSES)))


@pytest.mark.parametrize("kind", ["classes", "signs", "numbers"])
def test_taken_targets_keep_their_losses(kind):
    rng = np.random.default_rng(0)
    C = rng.uniform(size=(N_ROWS, N_CLASSES))
    targets = {
        "classes": Classes(labels_of(rng), costs(rng), C[:, 0]),
        "signs": Signs(rng.choice([-1.0, 1.0], C.shape), C),
        "numbers": Numbers(rng.normal(size=C.shape), C, 0.1),
    }[kind]
    rows, x = np.array([7, 2, 9]), rng.normal(size=(N_ROWS, N_CLASSES))
    some, all_rows = targets.take(rows), targets.dual_form(True)
    assert (len(some), some.n_outputs) == (3, N_CLASSES)
    values = all_rows.values(x if kind == "classes" else x.ravel()).reshape(N_ROWS, -1)
    own = some.dual_form(True).values(x[rows] if kind == "classes" else x[rows].ravel())
    assert own.sum() == pytest.approx(values[rows].sum())


@pytest.mark.parametrize("squared", [False, True])
def test_cells_have_the_dual_form_of_a_matrix(squared):
    """Observations are ordered by output, but the entries of a matrix by row."""
    rng = np.random.default_rng(0)
    C, signs = rng.uniform(0.1, 3.0, (N_ROWS, 1)), rng.choice([-1.0, 1.0], (N_ROWS, 1))
    values, cells = rng.normal(size=(N_ROWS, 1)), (np.arange(N_ROWS), np.zeros(N_ROWS, dtype=int))
    for targets, observed, epsilon in ((Signs(signs, C), signs, None), (Numbers(values, C, 0.3), values, 0.3)):
        form = Cells(Observations(*cells, observed[:, 0], C[:, 0]), N_ROWS, 1, 1.0, epsilon).dual_form(squared)
        for name in ("linear", "absolute", "ridge", "lower", "upper"):
            np.testing.assert_array_equal(getattr(form, name), getattr(targets.dual_form(squared), name))
