"""Test that the API reference lists exactly the public names."""

from __future__ import annotations

import importlib
import re
import types
from pathlib import Path

import pytest

import regbayes

FOLDER = Path(__file__).parents[2] / "docs" / "reference"
MODULES = ["adapters", "dask", "datasets", "engine", "metrics", "persistence", "plots", "ppl", "regularizers", "report"]
MODULES += ["search", "testing"]


def listed() -> dict[str, set[str]]:
    """Return the names listed in the API reference, by module."""
    names: dict[str, set[str]] = {}
    for page in FOLDER.glob("*.rst"):
        module = ""
        for line in page.read_text(encoding="utf-8").splitlines():
            if match := re.fullmatch(r"\.\. currentmodule:: (\S+)", line):
                module = match[1]
            elif match := re.fullmatch(r" {3}([A-Za-z]\w*)", line):
                names.setdefault(module, set()).add(match[1])
    return names


def public_names(module: types.ModuleType) -> set[str]:
    """Return the classes and functions that a module exports."""
    return {name for name in module.__all__ if callable(getattr(module, name)) and not name.startswith("_")}


@pytest.mark.parametrize("name", MODULES)
def test_reference_lists_public_names_of_module(name):
    module = importlib.import_module(f"regbayes.{name}")
    at_top = public_names(regbayes) if name == "persistence" else set()
    assert listed()[module.__name__] == public_names(module) - at_top


def test_reference_lists_public_names_of_package():
    assert listed()["regbayes"] == public_names(regbayes)
