"""Blocks of PyTorch's arrays on the workers of a cluster: they stay where they lie, and the fit is that of one process.

The device is the processor: what is tested is that nothing but sums and samples is read to NumPy.
"""

from __future__ import annotations

from itertools import pairwise

import dask
import dask.array as da
import numpy as np
import pytest

from dask_tools import fit_here, quiet_marks
from regbayes.dask import IBPFactorAnalysis, ILSVMClassifier, MultiTaskILSVMRegressor
from regbayes.dask.rows import read_where_they_lie
from regbayes.models.ilsvm.device import DeviceRows

torch = pytest.importorskip("torch")
pytest.importorskip("array_api_compat")

SIZES = (700, 1, 0, 1300, 1000)
N, D = sum(SIZES), 12

pytestmark = quiet_marks()


def draw():
    rng = np.random.default_rng(0)
    X = (rng.random((N, 4)) < 0.4) @ (2.0 * rng.normal(size=(4, D))) + 0.5 * rng.normal(size=(N, D))
    return X, np.argmax(X[:, :3] + 0.5 * rng.normal(size=(N, 3)), axis=1)


def there(array, dtype=None):
    return torch.asarray(np.ascontiguousarray(array), dtype=dtype)


def cut_there(array, dtype=None):
    """The blocks of an array as tensors, which are made on the workers."""
    edges = np.cumsum([0, *SIZES])
    parts = [array[a:b] for a, b in pairwise(edges)]
    make = dask.delayed(there)
    return da.concatenate([da.from_delayed(make(part, dtype), part.shape, array.dtype) for part in parts])


def make(kind, **options):
    given = {"max_iter": 4, "tol": 1e-9, "random_state": 0} | options
    if kind == "features":
        return IBPFactorAnalysis(5, **given)
    return ILSVMClassifier(5, multi_class=kind, **given)


def state_of(model):
    names = ("components_", "coef_features_", "intercept_", "coef_inputs_", "offset_")
    return np.concatenate([np.ravel(getattr(model, name)) for name in names if hasattr(model, name)])


CASES = [("ovr", {}), ("ovr", {"include_inputs": True}), ("crammer_singer", {}), ("features", {})]


@pytest.mark.parametrize(("kind", "options"), CASES)
def test_a_fit_on_workers_is_that_of_one_process(client, monkeypatch, kind, options):
    X, y = draw()
    given = [cut_there(X)] if kind == "features" else [cut_there(X), cut_there(y)]
    found = make(kind, **options).fit(*given)
    looks, infer = [], DeviceRows.infer
    with monkeypatch.context() as patch:
        patch.setattr(DeviceRows, "infer", lambda rows, params: looks.append(rows.X) or infer(rows, params))
        alone = fit_here(monkeypatch, make(kind, **options), *given)
    assert looks
    assert all(map(torch.is_tensor, looks))
    scale = np.abs(state_of(alone)).max()
    np.testing.assert_allclose(state_of(found), state_of(alone), rtol=1e-10, atol=1e-10 * scale)
    on_host = [
        da.from_array(part, chunks=(SIZES, -1)[: part.ndim]) for part in ((X,) if kind == "features" else (X, y))
    ]
    expected = fit_here(monkeypatch, make(kind, **options), *on_host)
    np.testing.assert_allclose(state_of(found), state_of(expected), rtol=1e-5, atol=1e-5 * scale)
    assert found.n_components_ == expected.n_components_


def test_single_precision_and_rows_without_a_label(client):
    X, y = draw()
    y = np.where(np.arange(N) % 4 == 0, -1, y)
    y[:700] = -1  # a block without any
    weights = np.random.default_rng(1).integers(0, 3, size=N).astype(float)
    wide, narrow = (
        make("ovr", unlabeled=-1).fit(cut_there(X, dtype), cut_there(y), cut_there(weights))
        for dtype in (torch.float64, torch.float32)
    )
    np.testing.assert_allclose(state_of(narrow), state_of(wide), atol=2e-3 * np.abs(state_of(wide)).max())


def test_a_block_is_neither_copied_nor_read():
    X, y = draw()
    block = read_where_they_lie(there(X), there(y), None, None, 0, D)
    assert torch.is_tensor(block.X)
    assert block.X.data_ptr() == read_where_they_lie(block.X, block.y, None, None, 0, D).X.data_ptr()
    assert isinstance(block.y, np.ndarray)
    part = block.take(np.array([3, 1]))
    assert torch.is_tensor(part.X)
    np.testing.assert_array_equal(part.X, X[[3, 1]])


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (torch.full((5, D), torch.nan), "in block 2 .*NaN"),
        (torch.ones((5, D), dtype=torch.int64), "in block 2 .*float32 or float64"),
        (torch.ones((5, D, 1)), "in block 2 .*dimension"),
        (torch.ones((5, D + 1)), f"in block 2 .*{D + 1} columns, but {D}"),
    ],
)
def test_blocks_that_are_no_rows_are_refused(bad, message):
    with pytest.raises((TypeError, ValueError), match=message):
        read_where_they_lie(bad, np.zeros(5), None, None, 2, D)


def test_tasks_and_amounts_are_read_to_the_host(client):
    X, y = draw()
    ILSVMClassifier(3, slab="half-normal", max_iter=1, random_state=0).fit(cut_there(X), cut_there(y))
    MultiTaskILSVMRegressor(3, max_iter=1, random_state=0).fit(cut_there(X), cut_there(X[:, :2]))
