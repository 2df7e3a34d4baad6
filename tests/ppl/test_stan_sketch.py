"""The sketches for Stan in docs/resampling.md, run against stand-ins with the methods of CmdStanPy and BridgeStan."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from regbayes import E, resample

PAGE = Path(__file__).parents[2] / "docs" / "resampling.md"
SPREAD = 2.0  # of theta, a vector of two independent normal variables; the tilt of its mean moves both


def sketch(module: str) -> str:
    stan = PAGE.read_text(encoding="utf-8").split("## Stan")[1]
    (found,) = (
        code for code in re.findall(r"```python\n(.*?)```", stan, flags=re.DOTALL) if f"import {module}" in code
    )
    return found


class StanModel:
    """``log s ~ N(0, 1)``, ``theta ~ N(0, 2)`` in two coordinates; refuses points off any scale, as Stan does."""

    def __init__(self, model_lib: Any, data: Any = None, *, warn: bool = True) -> None:
        assert str(model_lib) == "program.so"
        self.phi = np.asarray(data["phi"], dtype=float)
        assert self.phi.shape == (1,)

    def param_unc_num(self) -> int:
        return 3

    def param_names(self, *, include_tp: bool = False, include_gq: bool = False) -> list[str]:
        return ["s", "theta.1", "theta.2"]

    def param_constrain(self, theta_unc: np.ndarray) -> np.ndarray:
        return np.array([np.exp(theta_unc[0]), *theta_unc[1:]])

    def log_density_gradient(self, theta_unc: np.ndarray, *, propto: bool = True, jacobian: bool = True) -> Any:
        if np.max(np.abs(theta_unc)) > 300:
            raise RuntimeError("log_density_gradient() failed")
        scaled = theta_unc / np.array([1.0, SPREAD, SPREAD]) ** 2
        pushed = 0.5 * self.phi[0] * np.array([0.0, 1.0, 1.0])
        return -0.5 * theta_unc @ scaled + pushed @ theta_unc, pushed - scaled


def test_bridgestan_gives_the_tilt_of_the_closed_form(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in: Any = types.ModuleType("bridgestan")
    stand_in.StanModel, stand_in.compile_model = StanModel, lambda stan_file: "program.so"
    monkeypatch.setitem(sys.modules, "bridgestan", stand_in)
    space: dict[str, Any] = {}
    exec(sketch("bridgestan"), space)
    asked = E(lambda theta: theta.mean(axis=1)) == 4.0
    result = resample(space["Stan"]("eight_schools.stan", {}, n_features=1), asked, n_draws=200)
    assert result.status == "optimal"
    assert abs(result.multipliers[0] - 4.0 / (SPREAD**2 / 2)) < 5 * result.multipliers_mcse[0]


class CmdStanModel:
    """The same model as CmdStanPy would draw it, exactly."""

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


def test_cmdstanpy_gives_it_by_a_function(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in: Any = types.ModuleType("cmdstanpy")
    stand_in.CmdStanModel = CmdStanModel
    monkeypatch.setitem(sys.modules, "cmdstanpy", stand_in)
    space: dict[str, Any] = {"data": {"J": 2}}
    exec(sketch("cmdstanpy"), space)
    result = space["result"]
    assert result.status == "optimal"
    assert abs(result.multipliers[0] - 20.0 / (SPREAD**2 / 2)) < 5 * result.multipliers_mcse[0]
