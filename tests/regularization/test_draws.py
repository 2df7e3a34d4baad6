"""`as_draws` converts supported formats to the same arrays and rejects others."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from regbayes.persistence import load, save
from regbayes.regularization.draws import Draws, as_draws

xarray = pytest.importorskip("xarray")

with warnings.catch_warnings():
    warnings.simplefilter("ignore", FutureWarning)  # ArviZ before 1 announces ArviZ 1 when imported
    arviz = pytest.importorskip("arviz")

BEFORE_1 = int(arviz.__version__.split(".")[0]) < 1
N_CHAINS, N_DRAWS = 3, 50
SCHOOLS = ["Choate", "Deerfield", "Andover", "Hotchkiss"]


def chain_arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "mu": rng.normal(size=(N_CHAINS, N_DRAWS)),
        "theta": rng.normal(size=(N_CHAINS, N_DRAWS, 4)).astype(np.float32),
        "L": rng.normal(size=(N_CHAINS, N_DRAWS, 2, 3)),
        "count": rng.poisson(3.0, size=(N_CHAINS, N_DRAWS)),
    }


def dataset() -> Any:
    dims = {"mu": (), "theta": ("school",), "L": ("row", "column"), "count": ()}
    return xarray.Dataset(
        {name: (("chain", "draw", *dims[name]), values) for name, values in chain_arrays().items()},
        coords={
            "chain": [0, 1, 2],
            "draw": np.arange(100, 100 + N_DRAWS),
            "school": SCHOOLS,
            "state": ("school", np.array(["CT", "MA", "MA", "CT"], dtype=object)),
            "row": [10, 20],
        },
    )


def inference_data() -> Any:
    if not BEFORE_1:
        pytest.skip("ArviZ 1 has no InferenceData")
    return arviz.InferenceData(posterior=dataset(), prior=dataset() * 0)


def datatree() -> Any:
    return xarray.DataTree.from_dict({"posterior": dataset(), "prior": dataset() * 0})


XARRAY_FORMS: dict[str, Callable[[], Any]] = {
    "inferencedata": inference_data,
    "datatree": datatree,
    "dataset": dataset,
}


def assert_same_values(draws: Draws) -> None:
    assert (draws.n_chains, draws.n_draws, draws.size) == (N_CHAINS, N_DRAWS, N_CHAINS * N_DRAWS)
    assert list(draws.variables) == ["mu", "theta", "L", "count"]
    for name, values in chain_arrays().items():
        flat = draws.variables[name]
        assert flat.dtype == values.dtype
        assert flat.shape == (N_CHAINS * N_DRAWS, *values.shape[2:])
        np.testing.assert_array_equal(flat[1 * N_DRAWS + 7], values[1, 7])
        np.testing.assert_array_equal(flat.reshape(values.shape), values)


@pytest.mark.parametrize("form", XARRAY_FORMS)
def test_as_draws_xarray_formats_agree(form: str) -> None:
    draws = as_draws(XARRAY_FORMS[form]())
    assert_same_values(draws)
    assert draws.kind == form
    assert draws.dims == {"mu": (), "theta": ("school",), "L": ("row", "column"), "count": ()}
    assert draws.coords["school"][1].tolist() == SCHOOLS
    assert draws.coords["state"][0] == ("school",)
    assert draws.coords["state"][1].dtype.kind == "U"  # not object: stored without pickle
    assert draws.coords["draw"][1][0] == 100
    assert draws.named


def test_as_draws_accepts_any_dimension_order() -> None:
    assert_same_values(as_draws(dataset().transpose("school", "row", "draw", "column", "chain")))


def test_as_draws_accepts_posterior_node_and_single_variable() -> None:
    assert_same_values(as_draws(datatree()["posterior"]))
    draws = as_draws(dataset()["theta"])
    assert list(draws.variables) == ["theta"]
    assert set(draws.coords) == {"chain", "draw", "school", "state"}


def test_as_draws_mapping_with_and_without_chain_axis() -> None:
    draws = as_draws(chain_arrays(), chains=True)
    assert_same_values(draws)
    assert draws.kind == "dict"
    assert draws.dims["L"] == ("L_dim_0", "L_dim_1")
    flat = as_draws(dict(draws.variables))
    assert (flat.n_chains, flat.n_draws) == (1, N_CHAINS * N_DRAWS)
    for name, values in draws.variables.items():
        np.testing.assert_array_equal(flat.variables[name], values)


def test_as_draws_chains_argument_decides_the_chain_axis() -> None:
    chains = {"a": np.ones((4, 1000)), "b": np.ones((4, 1000, 2))}
    assert as_draws(chains, chains=False).size == 4
    assert as_draws(chains, chains=True).size == 4000
    assert as_draws(np.ones((4, 1000)), chains=False).size == 4
    for draws in (
        np.ones((1000, 4)),
        {"a": np.ones((1000, 4))},
        {"a": np.ones((4, 2)), "b": np.ones(4)},
        np.ones((3, 5)),
    ):
        assert as_draws(draws).size == len(draws["a"] if isinstance(draws, dict) else draws)


def test_as_draws_arrays() -> None:
    matrix = np.random.default_rng(0).normal(size=(20, 3))
    draws = as_draws(matrix)
    assert not draws.named
    assert (draws.n_chains, draws.n_draws) == (1, 20)
    np.testing.assert_array_equal(draws.view(), matrix)
    assert as_draws([1.0, 2.0, 3.0]).view().shape == (3,)
    chains = as_draws(matrix.reshape(4, 5, 3), chains=True)
    assert (chains.n_chains, chains.n_draws) == (4, 5)
    np.testing.assert_array_equal(chains.view(), matrix)
    assert as_draws(draws) is draws


def test_draws_views_share_memory_and_are_read_only() -> None:
    matrix = np.zeros((1000, 3))
    seen = as_draws(matrix).view()
    assert np.shares_memory(seen, matrix)
    assert not seen.flags.writeable
    assert matrix.flags.writeable  # the caller's own array stays writeable
    posterior = dataset()
    draws = as_draws(posterior)
    assert all(np.shares_memory(draws.variables[name], posterior[name].values) for name in posterior.data_vars)


def test_as_draws_selected_variables_ignores_invalid_others() -> None:
    posterior = dataset()
    posterior["broken"] = posterior["mu"] * np.nan
    posterior["text"] = (("chain", "draw"), np.full((N_CHAINS, N_DRAWS), "a"))
    draws = as_draws(posterior, variables=["theta", "mu"])
    assert list(draws.variables) == ["theta", "mu"]
    assert list(as_draws(draws, variables=["mu"]).variables) == ["mu"]
    arrays: dict[str, Any] = chain_arrays() | {"broken": np.array(["x"])}
    assert list(as_draws(arrays, variables=["mu"], chains=True).variables) == ["mu"]


def test_column_names_use_coordinate_labels() -> None:
    draws = as_draws(dataset())
    assert draws.column_names("mu") == ["mu"]
    assert draws.column_names("theta") == [f"theta[{school}]" for school in SCHOOLS]
    assert draws.column_names("L")[:4] == ["L[10, 0]", "L[10, 1]", "L[10, 2]", "L[20, 0]"]
    assert as_draws(np.zeros((5, 2))).column_names("x") == ["x[0]", "x[1]"]


def test_view_access_by_item_and_attribute() -> None:
    view = as_draws(dataset()).view()
    assert view["theta"] is view.theta
    assert list(view) == ["mu", "theta", "L", "count"]
    assert len(view) == 4
    assert "mu: (150,)" in repr(view)
    with pytest.raises(AttributeError, match="no variable 'tau'; available: mu, theta"):
        _ = view.tau
    with pytest.raises(KeyError, match="no variable 'tau'"):
        view["tau"]
    for again in (copy.copy(view), pickle.loads(pickle.dumps(view))):
        np.testing.assert_array_equal(again.mu, view.mu)


@pytest.mark.parametrize("form", [*XARRAY_FORMS, "dict"])
def test_saved_draws_load_with_labels(form: str, tmp_path: Path) -> None:
    draws = as_draws(chain_arrays(), chains=True) if form == "dict" else as_draws(XARRAY_FORMS[form]())
    save(draws, tmp_path / "draws")
    again = load(tmp_path / "draws")
    assert_same_values(again)
    assert (again.kind, again.dims) == (draws.kind, draws.dims)
    assert list(again.coords) == list(draws.coords)
    for name, (dims, labels) in draws.coords.items():
        assert again.coords[name][0] == dims
        np.testing.assert_array_equal(again.coords[name][1], labels)


def test_as_draws_drops_non_plain_labels() -> None:
    stacked = dataset()[["L"]].stack(cell=("row", "column"))
    draws = as_draws(stacked)
    assert draws.variables["L"].shape == (150, 6)
    assert draws.column_names("L") == [f"L[{i}]" for i in range(6)]


def test_as_draws_arrays_do_not_import_arviz_or_xarray() -> None:
    code = (
        "import sys, numpy as np\n"
        "from regbayes.regularization.draws import as_draws\n"
        "from regbayes.regularization.features import evaluate_features\n"
        "import regbayes.regularization.arviz\n"
        "evaluate_features(as_draws({'a': np.ones(3)}), 'a'), as_draws(np.ones(3))\n"
        "assert not {'arviz', 'xarray'} & set(sys.modules), 'imported'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


NAN = np.array([1.0, np.nan, np.inf, 2.0])

BAD: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
    (np.empty((0, 3)), {}, ValueError, r"draws is empty: its shape is \(0, 3\)"),
    ({"a": np.empty(0)}, {}, ValueError, r"draws\['a'\] is empty"),
    ({}, {}, ValueError, "draws is an empty mapping; it may be"),
    (np.ones((2, 3, 4)), {}, ValueError, r"shape \(2, 3, 4\).*pass chains=True"),
    (np.ones((2, 3, 4, 5)), {"chains": True}, ValueError, r"may be \(chain, draw\) or \(chain, draw, d\)"),
    (np.ones(3), {"chains": True}, ValueError, r"shape \(3,\); with chains=True"),
    ({"a": np.ones(3)}, {"chains": True}, ValueError, r"draws\['a'\] has shape \(3,\); with chains=True"),
    (NAN, {}, ValueError, "draws has 2 NaN or infinite values among 4"),
    ({"b": np.ones(4), "a": NAN}, {}, ValueError, r"draws\['a'\] has 2 NaN .* among 4; .* variables=\[...\]"),
    ({"a": np.ones(4), "b": np.ones((5, 2))}, {}, ValueError, r"draws\['b'\] has shape \(5, 2\) and draws\['a'\]"),
    (np.array([1, None]), {}, TypeError, "draws is an array of dtype object; it may be an array of shape"),
    ({"a": np.array(["x", "y"])}, {}, TypeError, r"draws\['a'\] is an array of dtype <U1"),
    ([[1.0], [1.0, 2.0]], {}, ValueError, "draws cannot be read as an array"),
    (3.5, {}, TypeError, "draws is of type float; it may be an array of shape"),
    (object(), {}, TypeError, "draws is of type object; it may be"),
    ({1: np.ones(3)}, {}, TypeError, "draws has the key 1; the keys must be strings"),
    ({"a": 3.0}, {}, TypeError, r"draws\['a'\] is of type float"),
    (np.ones(3), {"variables": ["mu"]}, ValueError, r"variables=\['mu'\] selects named draws"),
    ({"a": np.ones(3)}, {"variables": ["mu"]}, ValueError, "variables names 'mu', but the draws have 'a'"),
    ({"a": np.ones(3)}, {"variables": "a"}, ValueError, "variables='a' may be None or a list"),
    ({"a": np.ones(3)}, {"variables": []}, ValueError, r"variables=\[\] may be None or a list"),
    (chain_arrays(), {}, ValueError, r"start with the sizes \(3, 50\): pass chains=True if these are 3 chains of 50"),
    ({"a": np.ones((4, 1000))}, {}, ValueError, "chains=False if they are 4 draws"),
    (np.ones((4, 1000)), {}, ValueError, r"shape \(4, 1000\): pass chains=True"),
]


@pytest.mark.parametrize(("draws", "options", "kind", "message"), BAD)
def test_as_draws_invalid_input_raises(
    draws: Any, options: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        as_draws(draws, **options)


def test_as_draws_invalid_xarray_raises_informative_error() -> None:
    posterior = dataset()
    with pytest.raises(ValueError, match=r"draws \(DataTree\) has no group named 'posterior'; its groups are 'prior'"):
        as_draws(xarray.DataTree.from_dict({"prior": posterior}))
    with pytest.raises(ValueError, match="its groups are none"):
        as_draws(xarray.DataTree())
    with pytest.raises(ValueError, match=r"\('draw',\); chain and draw must be among them"):
        as_draws(posterior[["mu"]].isel(chain=0))
    with pytest.raises(ValueError, match="no variables in its posterior"):
        as_draws(posterior[[]])
    with pytest.raises(ValueError, match=r"draws\['mu'\] has 150 NaN"):
        as_draws(posterior.assign(mu=posterior["mu"] * np.nan))
    if BEFORE_1:
        with pytest.raises(ValueError, match=r"draws \(InferenceData\) has no group named 'posterior'"):
            as_draws(arviz.InferenceData(prior=posterior))


def test_as_draws_accepts_large_finite_values() -> None:
    assert as_draws(np.full(10, 1e308)).size == 10
