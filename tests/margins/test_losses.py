"""Losses with a price for each row: their dual forms against their values, at random points."""

from __future__ import annotations

import numpy as np
import pytest

from large_margin_tools import box_form, hinge_loss, multi_class_form, tube_loss
from regbayes.margins.targets import Cells, Classes, Numbers, Observations, Signs, zero_one_cost
from regbayes.regularization.dual_forms import BoxDual, SimplexDual
from regbayes.regularizers import (
    Affine,
    EpsilonInsensitive,
    Hinge,
    MultiClassHinge,
    MultiClassSquaredHinge,
    Regularizer,
)

N_ROWS, N_CLASSES = 12, 4
STEP = 1e-6


def prices(rng, hard=False):
    """Positive ones, some zeros, and infinities where margins may be hard."""
    C = rng.uniform(0.1, 3.0, N_ROWS)
    C[:2] = 0.0
    if hard:
        C[2] = np.inf
    return C


def costs(rng):
    return rng.uniform(0.2, 2.0, (N_CLASSES, N_CLASSES)) * zero_one_cost(N_CLASSES)


def signs_of(rng):
    return rng.choice([-1.0, 1.0], N_ROWS)


def labels_of(rng):
    return rng.integers(N_CLASSES, size=N_ROWS)


SEPARABLE = {
    "hinge": lambda rng: Hinge(prices(rng)),
    "squared hinge": lambda rng: Hinge(prices(rng), 2.0),
    "shifted hinge": lambda rng: Hinge(prices(rng)).shift(rng.normal(size=N_ROWS)),
    "reflected squared hinge": lambda rng: Hinge(prices(rng), 2.0).reflect(rng.normal(size=N_ROWS)),
    "signed tube": lambda rng: Affine(EpsilonInsensitive(0.3, 0.2, prices(rng)), scale=signs_of(rng)),
    "margins": lambda rng: hinge_loss(signs_of(rng), prices(rng), False, 0.7),
    "squared margins": lambda rng: hinge_loss(signs_of(rng), prices(rng), True),
    "tube": lambda rng: tube_loss(rng.normal(size=N_ROWS), prices(rng), False, 0.3),
    "squared tube": lambda rng: tube_loss(rng.normal(size=N_ROWS), prices(rng), True, 0.3),
    "absolute value": lambda rng: tube_loss(rng.normal(size=N_ROWS), prices(rng), False),
    "square": lambda rng: tube_loss(rng.normal(size=N_ROWS), prices(rng), True),
}
HARD = {
    "hard hinge": lambda rng: Hinge(prices(rng, hard=True)),
    "hard squared hinge": lambda rng: Hinge(prices(rng, hard=True), 2.0),
    "hard tube": lambda rng: EpsilonInsensitive(rng.normal(size=N_ROWS), 0.3, prices(rng, hard=True)),
}
MULTI_CLASS = {
    "multi-class": lambda rng: MultiClassHinge(prices(rng), costs(rng), labels_of(rng)),
    "multi-class, squared": lambda rng: MultiClassSquaredHinge(prices(rng), costs(rng), labels_of(rng)),
    "multi-class, costs by row": lambda rng: MultiClassHinge(prices(rng), rng.uniform(size=(N_ROWS, N_CLASSES))),
    "multi-class, shifted": lambda rng: MultiClassSquaredHinge(prices(rng), costs(rng), labels_of(rng)).shift(
        rng.normal(size=N_ROWS * N_CLASSES)
    ),
}


def draw(make, seed, size):
    rng = np.random.default_rng(seed)
    return make(rng), rng.normal(scale=1.5, size=size), rng


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("name", SEPARABLE)
def test_a_box_has_the_values_and_slopes_of_its_loss(name, seed):
    loss, x, _ = draw(SEPARABLE[name], seed, N_ROWS)
    form = loss.dual_form(N_ROWS)
    assert isinstance(form, BoxDual)
    assert form.values(x).sum() == pytest.approx(loss.value(x), rel=1e-12, abs=1e-13)
    u = form.derivatives(x)
    np.testing.assert_allclose(u, differences(loss, x), atol=1e-6)
    assert u @ x == pytest.approx(loss.value(x) + loss.conjugate(u), rel=1e-10, abs=1e-12)  # Fenchel and Young


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("name", MULTI_CLASS)
def test_simplexes_have_the_values_and_slopes_of_their_loss(name, seed):
    loss, x, _ = draw(MULTI_CLASS[name], seed, N_ROWS * N_CLASSES)
    form, rows = loss.dual_form(x.size), x.reshape(N_ROWS, N_CLASSES)
    assert isinstance(form, SimplexDual)
    assert form.values(rows).sum() == pytest.approx(loss.value(x), rel=1e-12)
    u = form.derivatives(rows).ravel()
    np.testing.assert_allclose(u, differences(loss, x), atol=1e-6)
    assert u @ x == pytest.approx(loss.value(x) + loss.conjugate(u), rel=1e-10)


def differences(loss: Regularizer, x):
    """Return the derivative of the loss by finite differences; a random point is on no kink."""
    moves = STEP * np.eye(x.size)
    return np.array([(loss.value(x + move) - loss.value(x - move)) / (2 * STEP) for move in moves])


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("name", HARD)
def test_hard_margins_cost_nothing_or_everything(name, seed):
    loss, x, _ = draw(HARD[name], seed, N_ROWS)
    form = loss.dual_form(N_ROWS)
    values = form.values(x)
    assert values.sum() == loss.value(x) if np.isinf(loss.value(x)) else values.sum() == pytest.approx(loss.value(x))
    assert values[2] in (0.0, np.inf)
    for inside in (x - 10.0, np.asarray(getattr(loss, "target", -1.0)) * np.ones(N_ROWS)):
        np.testing.assert_allclose(form.values(inside).sum(), loss.value(inside))


@pytest.mark.parametrize("kind", [MultiClassHinge, MultiClassSquaredHinge])
def test_hard_margins_of_classes_cost_nothing_or_everything(kind):
    rng = np.random.default_rng(0)
    C, labels = prices(rng, hard=True), labels_of(rng)
    loss, x = kind(C, costs(rng), labels), rng.normal(size=(N_ROWS, N_CLASSES))
    met = x.copy()
    met[2] = -3.0  # no cost is so high
    met[2, labels[2]] = 0.0
    for rows, hard in ((x, np.inf), (met, 0.0)):
        values = loss.dual_form(x.size).values(rows)
        assert values[2] == hard
        assert values.sum() == pytest.approx(loss.value(rows.ravel()))


@pytest.mark.parametrize("name", SEPARABLE)
def test_reflecting_a_loss_reflects_its_box(name):
    loss, x, _ = draw(SEPARABLE[name], 0, N_ROWS)
    form, mirrored = loss.dual_form(N_ROWS), loss.reflect().dual_form(N_ROWS)
    np.testing.assert_allclose(mirrored.values(x), form.values(-x), atol=1e-14)
    np.testing.assert_allclose(mirrored.derivatives(x), -form.derivatives(-x), atol=1e-14)


@pytest.mark.parametrize("name", [*SEPARABLE, *MULTI_CLASS])
def test_some_rows_have_the_values_they_have_among_all(name):
    make = (SEPARABLE | MULTI_CLASS)[name]
    size = N_ROWS * (N_CLASSES if name in MULTI_CLASS else 1)
    loss, x, rng = draw(make, 0, size)
    form, rows = loss.dual_form(size), rng.choice(N_ROWS, 5, replace=False)
    by_row = x.reshape(N_ROWS, -1) if name in MULTI_CLASS else x
    assert len(form.take(rows)) == 5
    np.testing.assert_array_equal(form.take(rows).values(by_row[rows]), form.values(by_row)[rows])


@pytest.mark.parametrize("squared", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_targets_ask_for_what_they_say(squared, seed):
    """The losses, written out row by row."""
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
def test_targets_of_some_rows_are_their_losses(kind):
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
def test_what_targets_show_a_solver_is_the_form_of_a_regularizer(squared):
    """That of minus the scores, built of other parts: the numbers are the same ones."""
    rng = np.random.default_rng(0)
    C, signs, values = prices(rng), signs_of(rng), rng.normal(size=N_ROWS)
    rows, outputs = np.arange(N_ROWS), np.zeros(N_ROWS, dtype=int)
    margins, tubes = (
        box_form(hinge_loss(signs, C, squared), N_ROWS),
        box_form(tube_loss(values, C, squared, 0.3), N_ROWS),
    )
    for form, expected in (
        (Signs(signs[:, None], C[:, None]).dual_form(squared), margins),
        (Cells(Observations(rows, outputs, signs, C), N_ROWS, 1, 1.0, None).dual_form(squared), margins),
        (Numbers(values[:, None], C[:, None], 0.3).dual_form(squared), tubes),
        (Cells(Observations(rows, outputs, values, C), N_ROWS, 1, 1.0, 0.3).dual_form(squared), tubes),
    ):
        for name in ("linear", "absolute", "ridge", "lower", "upper"):
            np.testing.assert_array_equal(getattr(form, name), getattr(expected, name))
    labels, cost = labels_of(rng), costs(rng)
    form = Classes(labels, cost, C).dual_form(squared)
    expected = multi_class_form(labels, cost, C, squared=squared)
    for name in ("linear", "row", "total", "ridge"):
        np.testing.assert_array_equal(getattr(form, name), getattr(expected, name))
