"""Test that doctests pass without warnings."""

from __future__ import annotations

import doctest
import importlib
import warnings
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"
MODULES = [
    ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
    for path in sorted(SOURCE.rglob("*.py"))
    if ">>> " in path.read_text(encoding="utf-8")
]
IN_JAX = ("regbayes.adapters.fit", "regbayes.adapters.jax", "regbayes.adapters.model", "regbayes.estimators.own_model")
SAMPLERS = {f"regbayes.ppl.{name}": name for name in ("numpyro", "pymc", "blackjax")}
NEEDS = {"regbayes.adapters.torch": "torch"} | dict.fromkeys(IN_JAX, "jax") | SAMPLERS


@pytest.mark.parametrize("name", MODULES)
def test_doctests_of_module_pass(name, tmp_path, monkeypatch):
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(name)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        results = doctest.testmod(module, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert results.attempted > 0
    assert not results.failed, "the report is in the captured output"
