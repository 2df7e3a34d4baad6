"""A posterior that came from ArviZ goes back to ArviZ regularized: in both of ArviZ's forms, and with its labels."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from regbayes import E, RegularizedPosterior, Samples, load, regularize

xarray = pytest.importorskip("xarray")

with warnings.catch_warnings():
    warnings.simplefilter("ignore", FutureWarning)  # ArviZ before 1 announces ArviZ 1 when imported
    arviz = pytest.importorskip("arviz")

BEFORE_1 = int(arviz.__version__.split(".")[0]) < 1


SCHOOLS = ["Choate", "Deerfield", "Andover", "Exeter", "Hotchkiss", "Lawrenceville", "St. Paul's", "Mt. Hermon"]
EFFECTS = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
STANDARD_ERRORS = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])
GRID = (4, 500)  # chains, draws


def log_normal(x: Any, mean: Any, variance: Any) -> Any:
    return -0.5 * (x - mean) ** 2 / variance - 0.5 * np.log(2 * np.pi * variance)


def exact_draws() -> dict[str, np.ndarray]:
    """Independent draws of eight schools: tau on a grid from its marginal posterior, then mu, then theta."""
    rng = np.random.default_rng(0)
    grid = np.linspace(0.01, 60.0, 6000)
    total = STANDARD_ERRORS**2 + grid[:, None] ** 2
    precision = 1 / 25 + (1 / total).sum(axis=1)
    mean = (EFFECTS / total).sum(axis=1) / precision
    evidence = log_normal(EFFECTS, mean[:, None], total).sum(axis=1)  # Bayes' rule for mu, read at its posterior mean
    score = evidence + log_normal(mean, 0.0, 25.0) - log_normal(mean, mean, 1 / precision) - np.log1p((grid / 5) ** 2)
    probability = np.exp(score - score.max())
    chosen = rng.choice(grid.size, size=GRID, p=probability / probability.sum())
    tau = grid[chosen]
    mu = rng.normal(mean[chosen], precision[chosen] ** -0.5)
    own = 1 / STANDARD_ERRORS**2 + 1 / tau[..., None] ** 2
    theta = rng.normal((EFFECTS / STANDARD_ERRORS**2 + (mu / tau**2)[..., None]) / own, own**-0.5)
    return {"mu": mu, "theta": theta, "tau": tau}


def eight_schools(form: str) -> Any:
    """The posterior, the log-likelihood and the data as ArviZ would have them."""
    draws = exact_draws()
    dims = {"mu": (), "theta": ("school",), "tau": ()}
    coords = {"chain": np.arange(GRID[0]), "draw": np.arange(GRID[1]), "school": SCHOOLS}
    likelihood = log_normal(EFFECTS, draws["theta"], STANDARD_ERRORS**2)
    groups = {
        "posterior": xarray.Dataset({k: (("chain", "draw", *dims[k]), v) for k, v in draws.items()}, coords),
        "log_likelihood": xarray.Dataset({"obs": (("chain", "draw", "school"), likelihood)}, coords),
        "observed_data": xarray.Dataset({"obs": ("school", EFFECTS)}, {"school": SCHOOLS}),
    }
    if form == "datatree":
        return xarray.DataTree.from_dict(groups)
    if not BEFORE_1:
        pytest.skip("ArviZ 1 has no InferenceData")
    return arviz.InferenceData(**groups)


def as_dataset(group: Any) -> Any:
    return group.to_dataset() if isinstance(group, xarray.DataTree) else group


@pytest.fixture(params=["inferencedata", "datatree"])
def source(request: pytest.FixtureRequest) -> Any:
    return eight_schools(request.param)


@pytest.fixture
def result(source: Any) -> RegularizedPosterior:
    constraints = [
        E("mu") >= 5.5,
        E("theta[Choate]") <= 6.0,
        E(lambda v: v.theta.std(axis=1), name="spread of theta") <= 2.0,
    ]
    return regularize(Samples(source), constraints)


def test_named_variables_and_labels_can_be_constrained(source: Any, result: RegularizedPosterior) -> None:
    posterior = as_dataset(source["posterior"])
    assert float(posterior["mu"].mean()) < 5.5
    assert float(posterior["theta"].sel(school="Choate").mean()) > 6.0
    assert result.status == "optimal"
    assert result.expectation("mu")[0] >= 5.5 - 1e-6
    assert result.expectation("theta[Choate]")[0] <= 6.0 + 1e-6
    assert result.expectation(lambda v: v.theta.std(axis=1))[0] <= 2.0 + 1e-6
    assert np.all(result.multipliers * [1, -1, -1] >= -1e-8)
    assert np.abs(result.multipliers).max() > 0.01


def test_what_comes_back_has_the_same_kind_shape_and_labels(source: Any, result: RegularizedPosterior) -> None:
    back = result.to_arviz()
    assert type(back) is type(source)
    before, after = as_dataset(source["posterior"]), as_dataset(back["posterior"])
    assert dict(after.sizes) == dict(before.sizes)
    assert list(after.data_vars) == list(before.data_vars)
    for name in before.data_vars:
        assert after[name].dims == before[name].dims
        assert after[name].dtype == before[name].dtype
    for name in before.coords:
        np.testing.assert_array_equal(after[name], before[name])


def test_the_weights_that_come_back_meet_the_constraints_on_the_original_draws(
    source: Any, result: RegularizedPosterior
) -> None:
    """Arithmetic with xarray alone, on the user's own object: nothing of ours but the weights."""
    before = as_dataset(source["posterior"])
    weight = np.exp(as_dataset(result.to_arviz()["importance_weights"])["log_weight"])
    assert float(weight.sum()) == pytest.approx(1.0)
    means = (weight * before).sum(("chain", "draw"))
    np.testing.assert_allclose(float(means["mu"]), result.expectation("mu")[0], rtol=1e-9)
    np.testing.assert_allclose(means["theta"], result.expectation("theta"), rtol=1e-9)
    # q is proportional to p exp<phi, psi>: the log weights are affine in the features, with the multipliers as slopes
    psi = np.stack(
        [before["mu"], before["theta"].sel(school="Choate"), before["theta"].std("school")], axis=-1
    ).reshape(-1, 3)
    score = np.log(weight.values).ravel() - psi @ result.multipliers
    np.testing.assert_allclose(score, score[0], atol=1e-7)


def test_arviz_summary_of_what_comes_back_agrees(result: RegularizedPosterior) -> None:
    back = result.to_arviz()
    native = isinstance(back, xarray.DataTree) != BEFORE_1  # ArviZ before 1 cannot read a DataTree whole
    summary = arviz.summary(back if native else as_dataset(back["posterior"]))
    names = ["mu", "tau", "theta[Choate]", "theta[Deerfield]"]
    weighted = [float(result.expectation(name)[0]) for name in names]
    means = np.array([float(summary.loc[name, "mean"]) for name in names])
    spreads = np.array([float(summary.loc[name, "sd"]) for name in names])
    # systematic resampling: much closer than independent draws would be, whose error is the spread / sqrt(size)
    assert np.all(np.abs(means - weighted) < spreads / np.sqrt(result.effective_sample_size) + 0.01)


def test_other_groups_can_follow_the_resampled_draws(source: Any, result: RegularizedPosterior) -> None:
    back = result.to_arviz(np.random.default_rng(0))
    stats = as_dataset(back["sample_stats"])
    likelihood = as_dataset(source["log_likelihood"])
    followed = likelihood.sel(chain=stats["source_chain"], draw=stats["source_draw"])
    theta = as_dataset(back["posterior"])["theta"].values
    expected = log_normal(EFFECTS, theta, STANDARD_ERRORS**2)
    np.testing.assert_allclose(followed["obs"].transpose("chain", "draw", "school"), expected, rtol=1e-12)


def test_a_constraint_that_holds_already_returns_the_draws_as_they_were(source: Any) -> None:
    result = regularize(Samples(source), E("mu") >= -100.0)
    assert result.multipliers == pytest.approx(0.0)
    after = as_dataset(result.to_arviz()["posterior"])
    for name, values in as_dataset(source["posterior"]).items():
        np.testing.assert_array_equal(after[name], values)


def test_importance_weights_count_before_and_after(source: Any) -> None:
    """Draws that come with weights: regularizing in two steps is regularizing once."""
    first = regularize(Samples(source), E("mu") == 5.0)
    second = regularize(Samples(source, log_weights=first.posterior.log_weights), E("mu") == 6.0)
    once = regularize(Samples(source), E("mu") == 6.0)
    np.testing.assert_allclose(first.multipliers + second.multipliers, once.multipliers, atol=1e-6)
    np.testing.assert_allclose(
        as_dataset(second.to_arviz()["importance_weights"])["log_weight"],
        as_dataset(once.to_arviz()["importance_weights"])["log_weight"],
        atol=1e-4,
    )


def test_a_result_saved_and_loaded_goes_to_arviz_as_before(result: RegularizedPosterior, tmp_path: Path) -> None:
    result.save(tmp_path / "result")
    again = load(tmp_path / "result").to_arviz()
    expected = result.to_arviz()
    assert type(again) is type(expected)
    for group in ("posterior", "sample_stats", "importance_weights"):
        xarray.testing.assert_identical(as_dataset(again[group]), as_dataset(expected[group]))


def test_selected_variables_alone_come_back() -> None:
    source = eight_schools("datatree")
    result = regularize(Samples(source, variables=["mu", "tau"]), E("tau") <= 3.0)
    assert list(as_dataset(result.to_arviz()["posterior"]).data_vars) == ["mu", "tau"]
