"""Displays of a regularized posterior: densities, multipliers and drawings."""

from __future__ import annotations

import subprocess
import sys

import matplotlib as mpl
import numpy as np
import pytest

from regbayes import E, Finite, Gaussian, Samples, regularize
from regbayes.plots import DualMultipliersDisplay, PosteriorShiftDisplay

mpl.use("Agg")


@pytest.fixture(autouse=True)
def close_figures():
    import matplotlib.pyplot as plt

    yield
    plt.close("all")


@pytest.fixture(scope="module")
def draws():
    return np.random.default_rng(0).gamma(3.0, size=(5000, 2))


@pytest.fixture(scope="module")
def tilted_draws(draws):
    return regularize(Samples(draws), E(lambda x: x[:, 0]) >= 3.6)


def masses(display):
    return tuple(density @ np.diff(display.edges) for density in (display.before, display.after))


def test_import_of_displays_does_not_import_matplotlib():
    program = "import sys, regbayes.plots; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_densities_of_draws_keep_mass_and_mean(tilted_draws, draws):
    display = PosteriorShiftDisplay.from_result(tilted_draws, lambda x: x[:, 0])
    assert masses(display) == pytest.approx((1.0, 1.0), abs=3e-3)  # the tails extend beyond the bins
    assert display.mean_before == pytest.approx(draws[:, 0].mean())
    assert display.mean_after == pytest.approx(3.6)
    middles = 0.5 * (display.edges[1:] + display.edges[:-1])
    assert middles @ (display.after * np.diff(display.edges)) == pytest.approx(3.6, abs=0.05)


def test_density_of_draws_matches_counts(tilted_draws, draws):
    display = PosteriorShiftDisplay.from_result(tilted_draws, lambda x: x[:, 1])
    inside = (draws[:, 1] >= display.edges[3]) & (draws[:, 1] < display.edges[4])
    assert display.before[3] * (display.edges[4] - display.edges[3]) == pytest.approx(inside.mean())
    weights = tilted_draws.posterior.weights
    assert display.after[3] * (display.edges[4] - display.edges[3]) == pytest.approx(weights[inside].sum())


@pytest.mark.parametrize("scale", [1e-9, 0.03, 1.0, 7e6])
def test_zero_is_a_bin_edge(scale):
    values = scale * np.random.default_rng(1).normal(size=2000)
    result = regularize(Samples(values), E(lambda x: x) >= 0.2 * scale)
    display = PosteriorShiftDisplay.from_result(result, lambda x: x, bins=30)
    assert np.min(np.abs(display.edges)) == 0
    assert len(display.before) <= 32
    assert masses(display) == pytest.approx((1.0, 1.0), abs=3e-3)


def test_few_distinct_values_get_one_bar_each():
    die = Finite(np.arange(1, 7))
    loaded = regularize(die, E(lambda face: face) == 4.5)
    display = PosteriorShiftDisplay.from_result(loaded, lambda face: face)
    assert display.edges == pytest.approx(np.arange(0.5, 7.0))
    assert display.before == pytest.approx(np.full(6, 1 / 6))
    assert display.after == pytest.approx(loaded.posterior.probabilities)


def test_constant_function_is_one_bar(tilted_draws):
    display = PosteriorShiftDisplay.from_result(tilted_draws, np.full(5000, 2.0))
    assert display.edges == pytest.approx([1.5, 2.5])
    assert display.after == pytest.approx([1.0])


def test_gaussian_is_drawn_as_normal_density():
    posterior = Gaussian([1.0, -1.0], [[2.0, 0.5], [0.5, 1.0]])
    result = regularize(posterior, E([1.0, 1.0]) == 1.5)
    display = PosteriorShiftDisplay.from_result(result, [1.0, 0.0])
    assert masses(display) == pytest.approx((1.0, 1.0), abs=1e-4)
    # The mean shift is cov(x_0, sum) / var(sum) times the mean shift of the sum.
    assert display.mean_after == pytest.approx(1.0 + 1.5 * 2.5 / 4.0)
    peak = 0.5 * (display.edges[1:] + display.edges[:-1])[np.argmax(display.after)]
    assert peak == pytest.approx(display.mean_after, abs=0.02)
    assert display.after.max() == pytest.approx(1 / np.sqrt(2 * np.pi * 2.0), rel=1e-3)


def test_truncated_posterior_has_no_mass_outside_region():
    result = regularize(Samples(np.random.default_rng(2).normal(size=3000)), E(lambda x: x > 0) == 1)
    display = PosteriorShiftDisplay.from_result(result, lambda x: x)
    assert display.after[display.edges[1:] <= 0].max() == 0
    assert display.before[display.edges[1:] <= 0].max() > 0


def test_several_functions_raise(tilted_draws):
    with pytest.raises(ValueError, match="feature must be a single one, got 2"):
        PosteriorShiftDisplay.from_result(tilted_draws, lambda x: x)


def test_constant_function_of_gaussian_raises():
    result = regularize(Gaussian([0.0, 0.0], [1.0, 0.0]), E([1.0, 0.0]) == 1.0)
    with pytest.raises(ValueError, match="does not vary"):
        PosteriorShiftDisplay.from_result(result, [0.0, 1.0])


def test_plot_draws_on_given_axes(tilted_draws):
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2)
    display = PosteriorShiftDisplay.from_result(tilted_draws, lambda x: x[:, 0], name="first", ax=axes[0])
    assert display.ax_ is axes[0]
    assert display.figure_ is figure
    assert axes[0].get_xlabel() == "first"
    assert [text.get_text() for text in axes[0].get_legend().get_texts()] == ["before, mean 3.0", "after, mean 3.6"]
    assert display.plot(axes[1]).ax_ is axes[1]
    figure.canvas.draw()


def test_multipliers_are_drawn_in_order_with_labels(tilted_draws):
    display = DualMultipliersDisplay.from_result(tilted_draws)
    assert display.labels == tilted_draws.labels
    widths = [bar.get_width() for bar in display.ax_.patches]
    assert widths == pytest.approx(tilted_draws.multipliers)
    assert [text.get_text() for text in display.ax_.get_yticklabels()] == list(tilted_draws.labels)


def test_infinite_multipliers_exceed_finite_ones_and_are_marked():
    display = DualMultipliersDisplay(np.array([2.0, -np.inf, -0.0]), ["a", "b", "c"]).plot()
    widths = [bar.get_width() for bar in display.ax_.patches]
    assert widths[1] < -2.0
    assert np.all(np.isfinite(widths))
    assert [text.get_text() for text in display.ax_.texts] == ["2", "-∞", "0"]
    display.figure_.canvas.draw()
