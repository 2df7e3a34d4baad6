"""`resample` with BlackJAX against the closed form of a Gaussian."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from regbayes import E, resample
from regbayes.ppl import BlackJAXModel

pytest.importorskip("blackjax", reason="needs BlackJAX: pip install '.[blackjax]'")
pytestmark = [pytest.mark.blackjax, pytest.mark.filterwarnings("ignore")]


def log_density(position: Any) -> Any:
    return -0.5 * (position["a"] ** 2 + (position["b"] - position["a"]) ** 2)


def test_gaussian_matches_closed_form():
    model = BlackJAXModel(log_density, {"a": 0.0, "b": 0.0})
    result = resample(model, E("b") == 6, n_draws=200)  # b ~ N(0, 2): multiplier 3, divergence 9 nats
    assert result.status == "optimal"
    assert abs(result.multipliers[0] - 3) < 5 * result.multipliers_mcse[0]
    assert abs(result.kl - 9) < 5 * result.kl_mcse
    at = {"a": 1.0, "b": 2.0}
    assert float(result.to_model()(at)) == pytest.approx(log_density(at) + 2 * result.multipliers[0], rel=1e-5)


def test_variables_may_be_functions_of_the_position():
    model = BlackJAXModel(lambda x: -0.5 * (x**2).sum(), np.zeros(2), variables=lambda x: {"first": x[0], "x": x})
    assert model.example()["x"].shape == (3, 2)  # the number of draws differs from that of entries
    result = resample(model, E("first") == 1, n_draws=100)
    assert abs(result.after[0] - 1) < 1e-4


def test_position_without_density_raises():
    with pytest.raises(ValueError, match="must be finite there"):
        BlackJAXModel(lambda x: x * np.nan, 0.0)


def test_log_density_returns_one_number():
    with pytest.raises(ValueError, match=r"one number, got shape \(2,\)"):
        BlackJAXModel(lambda x: -(x**2), np.zeros(2))
    with pytest.raises(TypeError, match="function of a position"):
        BlackJAXModel(3, np.zeros(2))
    with pytest.raises(TypeError, match="variables must return a dictionary"):
        BlackJAXModel(lambda x: -(x**2).sum(), np.zeros(2), variables=lambda x: x[0])
