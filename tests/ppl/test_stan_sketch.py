"""The Stan sketch in docs/resampling.md, run with a stand-in for CmdStanPy."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

PAGE = Path(__file__).parents[2] / "docs" / "resampling.md"
SPREAD = 2.0  # standard deviation of theta, a vector of two independent normal variables


def sketch() -> str:
    stan = PAGE.read_text(encoding="utf-8").split("## Stan")[1]
    (found,) = re.findall(r"```python\n(.*?)```", stan, flags=re.DOTALL)
    return found


class CmdStanModel:
    """``theta ~ N(0, 2)`` in two coordinates, drawn exactly."""

    def __init__(self, *, stan_file: str) -> None:
        pass

    def sample(
        self,
        data: Any,
        chains: int,
        *,
        seed: int,
        inits: Any,
        iter_warmup: int,
        iter_sampling: int,
        show_progress: bool,
    ) -> Any:
        assert chains == 1
        assert inits is None or inits["theta"].shape == (2,)
        rng = np.random.default_rng(seed)
        mean = 0.5 * np.asarray(data["phi"])[0] * SPREAD**2
        theta = mean + SPREAD * rng.normal(size=(iter_sampling, 2))
        return types.SimpleNamespace(stan_variables=lambda: {"theta": theta})


def test_cmdstanpy_sketch_matches_closed_form(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in: Any = types.ModuleType("cmdstanpy")
    stand_in.CmdStanModel = CmdStanModel
    monkeypatch.setitem(sys.modules, "cmdstanpy", stand_in)
    space: dict[str, Any] = {"data": {"J": 2}}
    exec(sketch(), space)
    result = space["result"]
    assert result.status == "optimal"
    assert abs(result.multipliers[0] - 20.0 / (SPREAD**2 / 2)) < 5 * result.multipliers_mcse[0]
