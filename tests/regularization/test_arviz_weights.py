"""Systematic resampling and the groups exported to ArviZ."""

from __future__ import annotations

import sys
import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from regbayes.regularization.arviz import systematic_indices, to_arviz
from regbayes.regularization.draws import as_draws

xarray = pytest.importorskip("xarray")

with warnings.catch_warnings():
    warnings.simplefilter("ignore", FutureWarning)  # ArviZ before 1 announces ArviZ 1 when imported
    arviz = pytest.importorskip("arviz")

BEFORE_1 = int(arviz.__version__.split(".")[0]) < 1


@settings(deadline=None)
@given(
    hnp.arrays(np.float64, st.integers(1, 60), elements=st.floats(-20, 20) | st.just(-np.inf)).filter(
        lambda values: values.max() > -np.inf
    ),
    st.integers(1, 200),
    st.none() | st.integers(0, 1000),
)
def test_systematic_indices_counts_match_weights(log_weights: np.ndarray, size: int, seed: int | None) -> None:
    rng = None if seed is None else np.random.default_rng(seed)
    indices = systematic_indices(log_weights, size, rng)
    weights = np.exp(log_weights - log_weights.max())
    expected = size * weights / weights.sum()
    counts = np.bincount(indices, minlength=log_weights.size)
    assert counts.sum() == size
    assert np.all(np.abs(counts - expected) < 1.0 + 1e-9)
    assert np.all(counts[log_weights == -np.inf] == 0)
    assert np.all(np.diff(indices) >= 0)


def test_systematic_indices_are_unbiased_and_identity_if_equal() -> None:
    np.testing.assert_array_equal(systematic_indices(np.full(1001, -3.0), 1001), np.arange(1001))
    log_weights = np.log([0.5, 0.3, 0.2])
    rng = np.random.default_rng(0)
    counts = sum(np.bincount(systematic_indices(log_weights, 2, rng), minlength=3) for _ in range(4000))
    np.testing.assert_allclose(counts / 8000, [0.5, 0.3, 0.2], atol=0.01)


def posterior_dataset(n_chains: int = 4, n_draws: int = 500) -> Any:
    rng = np.random.default_rng(0)
    return xarray.Dataset(
        {
            "mu": (("chain", "draw"), rng.normal(size=(n_chains, n_draws))),
            "theta": (("chain", "draw", "school"), rng.normal(size=(n_chains, n_draws, 3)).astype(np.float32)),
            "k": (("chain", "draw"), rng.poisson(2.0, size=(n_chains, n_draws))),
        },
        coords={
            "chain": np.arange(n_chains) + 1,
            "draw": np.arange(n_draws) + 1000,
            "school": ["A", "B", "C"],
            "state": ("school", ["x", "y", "z"]),
        },
    )


def group(result: Any, name: str) -> Any:
    found = result[name]
    return found.to_dataset() if isinstance(found, xarray.DataTree) else found


def test_to_arviz_returns_type_of_source() -> None:
    original = posterior_dataset()
    sources: list[Any] = [original, np.zeros((30, 2)), {"a": np.zeros(30)}]
    if BEFORE_1:
        sources.append(arviz.InferenceData(posterior=original))
    native = arviz.InferenceData if BEFORE_1 else xarray.DataTree
    for source in sources:
        draws = as_draws(source)
        assert isinstance(to_arviz(draws, np.zeros(draws.size)), native)
    tree = as_draws(xarray.DataTree.from_dict({"posterior": original}))
    assert isinstance(to_arviz(tree, np.zeros(tree.size)), xarray.DataTree)


def test_to_arviz_of_arrays_uses_arviz_dimension_names() -> None:
    draws = as_draws(np.random.default_rng(0).normal(size=(30, 2)))
    posterior = group(to_arviz(draws, np.zeros(30)), "posterior")
    assert posterior["x"].dims == ("chain", "draw", "x_dim_0")
    assert posterior["x"].shape == (1, 30, 2)
    assert posterior["draw"].values.tolist() == list(range(30))


def test_to_arviz_invalid_calls_raise_informative_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    draws = as_draws(np.zeros(30))
    with pytest.raises(ValueError, match=r"log_weights has shape \(7,\); with 30 draws it may be \(30,\)"):
        to_arviz(draws, np.zeros(7))
    with pytest.raises(ValueError, match="a variable is named 'chain'"):
        to_arviz(as_draws({"chain": np.zeros(3)}), np.zeros(3))
    monkeypatch.setitem(sys.modules, "arviz", None)
    with pytest.raises(ImportError, match=r"to_arviz needs arviz: pip install arviz"):
        to_arviz(draws, np.zeros(30))
