"""Heads on samples of every array library match those on NumPy arrays up to rounding."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from array_namespaces import Place
from head_tools import KINDS, N_OUTPUTS, K, make_head
from regbayes.kernels.arrays import to_host
from regbayes.margins import rows as margin_rows
from regbayes.margins.head import FeatureSums, Tolerance
from regbayes.margins.newton import SharedPrior

N, CUT = 90, 40
TASKS = ("cells", "list")


def assert_close(found, expected, tol: float) -> None:
    found, expected = np.asarray(to_host(found), dtype=np.float64), np.asarray(expected, dtype=np.float64)
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=0, atol=tol * max(1.0, np.abs(expected).max(initial=0.0)))


def both_heads(place: Place, kind: str, rng, **options):
    """Return the same head for NumPy and for another library, with blocks of features of both."""
    here, features = make_head(kind, True, rng, n=N, **options)
    inputs = None if here.inputs is None else replace(here.inputs, X=place(here.inputs.X))
    blocks = [features[:CUT], features[CUT:]]
    return here, replace(here, inputs=inputs), blocks, [place(block.T).T for block in blocks]


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_sums_curvature_and_gradient_match_numpy(place: Place, kind: str, full: bool, monkeypatch) -> None:
    """Includes scores in pieces, and classes with too many weights for a full curvature."""
    rng, tol = np.random.default_rng(0), 100 * place.tol
    here, there, blocks, elsewhere = both_heads(place, kind, rng, inputs=full, rows=full, weighted=full)
    lengths, weights = (CUT, N - CUT), rng.normal(size=(N_OUTPUTS, here.n_columns(K)))
    direction = rng.normal(size=weights.shape)
    view = here.view(FeatureSums(2.0, rng.normal(size=K)), 0.1)
    pairs = zip(here.blocks(lengths), blocks, there.blocks(lengths, elsewhere[0]), elsewhere, strict=True)
    for mine, features, theirs, distant in pairs:
        sums = mine.sum_features(features), theirs.sum_features(distant)
        assert sums[1].weight == pytest.approx(sums[0].weight, rel=tol)
        assert_close(sums[1].features, sums[0].features, tol)
        for most, dense in ((margin_rows.MAX_HELD, 1000), (7 * N_OUTPUTS, 5)):
            monkeypatch.setattr(margin_rows, "MAX_HELD", most)
            monkeypatch.setattr(margin_rows, "MAX_CACHED", most)
            monkeypatch.setattr(margin_rows, "MAX_DENSE", dense)
            expected, found = mine.see(features, view), theirs.see(distant, view)
            wanted, given = expected.sums(weights), found.sums(weights)
            for name in ("loss", "excess", "bias"):
                assert getattr(given, name) == pytest.approx(getattr(wanted, name), abs=tol * abs(wanted.loss))
            assert_close(given.pulled, wanted.pulled, tol)
            assert_close(found.curvature(weights), expected.curvature(weights), tol)
            if here.mixes:
                assert_close(found.product(weights, direction), expected.product(weights, direction), tol)
        slope = replace(here.minimize(blocks, None, Tolerance(1.0, 1.0)).slope, view=view)
        gradient = theirs.gradient(distant, slope)
        assert type(gradient) is type(distant)
        assert_close(gradient, mine.gradient(features, slope), tol)


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_solution_and_gradient_match_numpy(place: Place, kind: str, full: bool) -> None:
    rng, double = np.random.default_rng(1), place.tol < 1e-8
    here, there, blocks, elsewhere = both_heads(place, kind, rng, inputs=full, rows=full, weighted=full)
    tolerance = Tolerance(1e-13, 100.0) if double else Tolerance(1e-6, 50.0)
    expected, found = here.minimize(blocks, None, tolerance), there.minimize(elsewhere, None, tolerance)
    assert found.value == pytest.approx(expected.value, rel=1e-10 if double else 1e-4)
    assert_close(found.head.weights, expected.head.weights, 1e-6 if double else 1e-2)
    assert_close(found.shared, expected.shared, 1e-6 if double else 1e-2)
    for rows, features, distant in zip((slice(0, CUT), slice(CUT, N)), blocks, elsewhere, strict=True):
        gradient = found.gradient(rows, distant)
        assert_close(gradient, expected.gradient(rows, features), 1e-5 if double else 2e-2)
        inputs = (None, None) if here.inputs is None else (here.inputs[rows], there.inputs[rows])
        scores = expected.head.scores(features, inputs[0])
        assert_close(expected.head.scores(distant, inputs[1]), scores, 100 * place.tol)


@pytest.mark.parametrize("kind", KINDS)
def test_subsample_curvature_matches_numpy(place: Place, kind: str) -> None:
    rng = np.random.default_rng(2)
    here, features = make_head(kind, True, rng, n=4000)
    there, tolerance = replace(here), Tolerance(1e-3 if place.tol > 1e-8 else 1e-8, 30.0)
    assert 2 * here.n_sampled(0, K) <= 4000  # otherwise all samples would be used
    expected, found = here.minimize([features], None, tolerance), there.minimize([place(features)], None, tolerance)
    assert found.gap <= tolerance.gap * found.value
    assert found.value == pytest.approx(expected.value, rel=2 * tolerance.gap)


@pytest.mark.parametrize("sharing", [0.0, 0.7])
def test_systems_are_solved_on_the_device_of_the_curvature(place: Place, sharing: float) -> None:
    rng = np.random.default_rng(3)
    roots, right, group = rng.normal(size=(5, 4, 9)), rng.normal(size=(5, 4)), np.array([0, 1, 0, 1, 1])
    curvature, prior, tol = roots @ roots.transpose(0, 2, 1), SharedPrior(group, sharing), 100 * place.tol
    assert_close(prior.solve(place(curvature), right), prior.solve(curvature, right), tol)
    if not sharing:
        root = rng.normal(size=(20, 30))
        whole = (root @ root.T).reshape(5, 4, 5, 4)
        expected = np.linalg.solve(whole.reshape(20, 20) + np.eye(20), right.ravel())
        assert_close(prior.solve(place(whole), right), expected.reshape(5, 4), tol)
