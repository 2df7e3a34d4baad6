"""Fixtures, markers and Hypothesis profiles shared by all tests."""

from __future__ import annotations

import importlib.util
import os
import shutil
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# No deadline: the first call of a Numba kernel includes its compilation. On a build server the examples are
# deterministic, so that a failure is due to the pushed change.
settings.register_profile("local", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="run the tests marked slow too")


def _why_skip(marker: str, config: pytest.Config) -> str | None:
    """Return why tests with this marker are skipped; None if they run."""
    if marker == "data" and _data_folder() is None:
        return "needs the real data sets: set REGBAYES_DATA to their folder"
    if marker == "slow" and not config.getoption("--slow"):
        return "slow: run with --slow"
    if marker == "numpyro" and importlib.util.find_spec("numpyro") is None:
        return "needs NumPyro: pip install '.[numpyro]'"
    for optional, name in (("pymc", "PyMC"), ("blackjax", "BlackJAX")):
        if marker == optional and importlib.util.find_spec(optional) is None:
            return f"needs {name}: pip install '.[{optional}]'"
    if marker == "browser" and importlib.util.find_spec("playwright") is None:
        return "needs Playwright: pip install '.[browser]'"
    if marker == "browser" and _chromium() is None:
        return "needs Chromium: apt-get install chromium"
    if marker == "gpu" and not _has_gpu():
        return "needs a CUDA device, and PyTorch or CuPy"
    return None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    markers = ("data", "slow", "numpyro", "pymc", "blackjax", "browser", "gpu")
    why_skip = cache(_why_skip)  # cached because the search for a GPU takes seconds
    for item in items:
        for marker in markers:
            if item.get_closest_marker(marker) is not None and (reason := why_skip(marker, config)) is not None:
                item.add_marker(pytest.mark.skip(reason=reason))


@cache
def _has_gpu() -> bool:
    if importlib.util.find_spec("torch") is not None:
        import torch

        if torch.cuda.is_available():
            return True
    if importlib.util.find_spec("cupy") is None:
        return False
    import cupy

    return bool(cupy.cuda.is_available())


def _data_folder() -> Path | None:
    named = os.environ.get("REGBAYES_DATA")
    return Path(named) if named else None


def _chromium() -> str | None:
    found = (shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome"))
    return next((path for path in found if path), None)


@pytest.fixture(scope="session")
def chromium_path() -> str:
    """Return the path of the browser; tests that use it are marked ``browser``."""
    found = _chromium()
    assert found is not None, "a test that needs a browser is not marked so"
    return found


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """Return the folder of the real data sets; tests that use it are marked ``data``."""
    folder = _data_folder()
    if folder is None:
        pytest.skip("needs the real data sets: set REGBAYES_DATA to their folder")
    if not folder.is_dir():
        pytest.fail(f"REGBAYES_DATA={folder} is not a folder")
    return folder


@pytest.fixture(scope="session")
def dask_cluster() -> Iterator[Any]:
    """Yield a cluster of two worker processes, which restart when killed."""
    distributed = pytest.importorskip("distributed")
    with (
        warnings.catch_warnings(),
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0") as cluster,
    ):
        yield cluster


@pytest.fixture
def client(dask_cluster: Any) -> Iterator[Any]:
    """Yield a client of the cluster once both workers run."""
    from distributed import Client

    with Client(dask_cluster) as client:
        client.wait_for_workers(2)
        yield client


@pytest.fixture
def dispatch(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Enable scikit-learn's array API dispatch."""
    import sklearn

    monkeypatch.setenv("SCIPY_ARRAY_API", "1")
    with sklearn.config_context(array_api_dispatch=True):
        yield
