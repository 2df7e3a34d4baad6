"""Run the tests on all sources: NumPy arrays, a file, arrays of other libraries, and a Dask cluster."""

from __future__ import annotations

from typing import Any

import pytest

from array_namespaces import Place, list_places
from backend_tools import Backend, of_dask, of_files, of_place

PLACES = {place.name: place for place in list_places()}


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> Place:
    """Every array library, including NumPy, on every device."""
    return PLACES[request.param]


@pytest.fixture(params=["memmap", *(name for name in PLACES if name != "numpy"), "dask"])
def backend(request: pytest.FixtureRequest, tmp_path: Any) -> Backend:
    """Every source except NumPy arrays in memory, which are the reference."""
    if request.param == "memmap":
        return of_files(tmp_path)
    if request.param == "dask":
        request.getfixturevalue("client")
        return of_dask()
    request.getfixturevalue("dispatch")
    return of_place(PLACES[request.param])
