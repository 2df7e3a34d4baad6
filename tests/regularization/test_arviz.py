"""Regularization of ArviZ data in both formats, and export with labels."""

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
    """Independent draws of eight schools: tau on a grid, then mu, then theta."""
    rng = np.random.default_rng(0)
    grid = np.linspace(0.01, 60.0, 6000)
    total = STANDARD_ERRORS**2 + grid[:, None] ** 2
    precision = 1 / 25 + (1 / total).sum(axis=1)
    mean = (EFFECTS / total).sum(axis=1) / precision
    evidence = log_normal(EFFECTS, mean[:, None], total).sum(axis=1)  # Bayes' rule for mu at its posterior mean
    score = evidence + log_normal(mean, 0.0, 25.0) - log_normal(mean, mean, 1 / precision) - np.log1p((grid / 5) ** 2)
    probability = np.exp(score - score.max())
    chosen = rng.choice(grid.size, size=GRID, p=probability / probability.sum())
    tau = grid[chosen]
    mu = rng.normal(mean[chosen], precision[chosen] ** -0.5)
    own = 1 / STANDARD_ERRORS**2 + 1 / tau[..., None] ** 2
    theta = rng.normal((EFFECTS / STANDARD_ERRORS**2 + (mu / tau**2)[..., None]) / own, own**-0.5)
    return {"mu": mu, "theta": theta, "tau": tau}


def eight_schools(form: str) -> Any:
    """Return the posterior, log-likelihood and data in ArviZ's format."""
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


def test_regularize_labeled_arviz_variables_meets_constraints(source: Any, result: RegularizedPosterior) -> None:
    posterior = as_dataset(source["posterior"])
    assert float(posterior["mu"].mean()) < 5.5
    assert float(posterior["theta"].sel(school="Choate").mean()) > 6.0
    assert result.status == "optimal"
    assert result.expectation("mu")[0] >= 5.5 - 1e-6
    assert result.expectation("theta[Choate]")[0] <= 6.0 + 1e-6
    assert result.expectation(lambda v: v.theta.std(axis=1))[0] <= 2.0 + 1e-6
    assert np.all(result.multipliers * [1, -1, -1] >= -1e-8)
    assert np.abs(result.multipliers).max() > 0.01


def test_to_arviz_preserves_type_shape_and_labels(source: Any, result: RegularizedPosterior) -> None:
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


def test_to_arviz_importance_weights_meet_constraints(source: Any, result: RegularizedPosterior) -> None:
    """Compute expectations with xarray alone from the original draws and the weights."""
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


def test_arviz_summary_of_resampled_draws_matches_expectations(result: RegularizedPosterior) -> None:
    back = result.to_arviz()
    native = isinstance(back, xarray.DataTree) != BEFORE_1  # ArviZ before 1 cannot read a DataTree whole
    summary = arviz.summary(back if native else as_dataset(back["posterior"]))
    names = ["mu", "tau", "theta[Choate]", "theta[Deerfield]"]
    weighted = [float(result.expectation(name)[0]) for name in names]
    means = np.array([float(summary.loc[name, "mean"]) for name in names])
    spreads = np.array([float(summary.loc[name, "sd"]) for name in names])
    # systematic resampling has a smaller error than independent draws, spread / sqrt(size)
    assert np.all(np.abs(means - weighted) < spreads / np.sqrt(result.effective_sample_size) + 0.01)


def test_to_arviz_source_indices_select_other_groups(source: Any, result: RegularizedPosterior) -> None:
    back = result.to_arviz(np.random.default_rng(0))
    stats = as_dataset(back["sample_stats"])
    likelihood = as_dataset(source["log_likelihood"])
    followed = likelihood.sel(chain=stats["source_chain"], draw=stats["source_draw"])
    theta = as_dataset(back["posterior"])["theta"].values
    expected = log_normal(EFFECTS, theta, STANDARD_ERRORS**2)
    np.testing.assert_allclose(followed["obs"].transpose("chain", "draw", "school"), expected, rtol=1e-12)


def test_to_arviz_inactive_constraint_returns_original_draws(source: Any) -> None:
    result = regularize(Samples(source), E("mu") >= -100.0)
    assert result.multipliers == pytest.approx(0.0)
    after = as_dataset(result.to_arviz()["posterior"])
    for name, values in as_dataset(source["posterior"]).items():
        np.testing.assert_array_equal(after[name], values)


def test_log_weights_of_samples_compose_with_constraints(source: Any) -> None:
    """Regularizing in two steps equals regularizing once."""
    first = regularize(Samples(source), E("mu") == 5.0)
    second = regularize(Samples(source, log_weights=first.posterior.log_weights), E("mu") == 6.0)
    once = regularize(Samples(source), E("mu") == 6.0)
    np.testing.assert_allclose(first.multipliers + second.multipliers, once.multipliers, atol=1e-6)
    np.testing.assert_allclose(
        as_dataset(second.to_arviz()["importance_weights"])["log_weight"],
        as_dataset(once.to_arviz()["importance_weights"])["log_weight"],
        atol=1e-4,
    )


def test_to_arviz_after_save_and_load_is_identical(result: RegularizedPosterior, tmp_path: Path) -> None:
    result.save(tmp_path / "result")
    again = load(tmp_path / "result").to_arviz()
    expected = result.to_arviz()
    assert type(again) is type(expected)
    for group in ("posterior", "sample_stats", "importance_weights"):
        xarray.testing.assert_identical(as_dataset(again[group]), as_dataset(expected[group]))


def test_to_arviz_selected_variables_are_exported_alone() -> None:
    source = eight_schools("datatree")
    result = regularize(Samples(source, variables=["mu", "tau"]), E("tau") <= 3.0)
    assert list(as_dataset(result.to_arviz()["posterior"]).data_vars) == ["mu", "tau"]


def both_kinds(groups: dict[str, Any], form: str) -> Any:
    return xarray.DataTree.from_dict(groups) if form == "datatree" else arviz.InferenceData(**groups)


def test_regularize_accepts_arviz_objects(source: Any) -> None:
    direct = regularize(source, E("mu") >= 5.5)
    wrapped = regularize(Samples(source), E("mu") >= 5.5)
    np.testing.assert_array_equal(direct.multipliers, wrapped.multipliers)
    assert type(direct.to_arviz()) is type(source)
    dataset = as_dataset(source["posterior"])
    np.testing.assert_array_equal(regularize(dataset, E("mu") >= 5.5).multipliers, wrapped.multipliers)


def test_features_receive_labeled_xarray_objects(source: Any) -> None:
    samples, posterior = Samples(source), as_dataset(source["posterior"])
    chosen = posterior["theta"].sel(school="Choate").values.ravel()
    for feature in (
        lambda v: v.theta.sel(school="Choate"),
        lambda v: v["theta"].sel(school="Choate", drop=True),
        lambda theta: theta.isel(school=0),
        lambda v: v.theta[:, 0],
        lambda v: v.theta.values[:, 0],
    ):
        np.testing.assert_array_equal(samples.evaluate(feature).values[:, 0], chosen)
    evaluated = samples.evaluate(lambda v: v.theta - v.mu)  # xarray aligns by name
    np.testing.assert_allclose(evaluated.values, (posterior["theta"] - posterior["mu"]).values.reshape(-1, 8))
    assert evaluated.names[0] == "f(mu, theta)[Choate]"
    np.testing.assert_allclose(
        samples.evaluate(lambda v: v.theta.mean("school")).values[:, 0],
        posterior["theta"].mean("school").values.ravel(),
    )
    result = regularize(source, E(lambda v: v.theta.sel(school=["Choate", "Deerfield"])) <= 5.5)
    assert result.labels == ("E(f(theta)[Choate]) <= 5.5", "E(f(theta)[Deerfield]) <= 5.5")


def test_features_for_plain_arrays_accept_labeled_draws(source: Any) -> None:
    samples = Samples(source)
    expected = samples.draws.variables["theta"] - samples.draws.variables["mu"][:, None]
    np.testing.assert_array_equal(samples.evaluate(lambda v: v.theta - v.mu[:, None]).values, expected)
    np.testing.assert_allclose(samples.evaluate(lambda v: v["theta"].mean(axis=1)).values[:, 0].mean(), 4.9, atol=1)


def test_exception_in_labeled_feature_propagates_with_note(source: Any) -> None:
    with pytest.raises(KeyError, match="school") as caught:
        regularize(source, E(lambda v: v.theta.sel(school="Exter")) <= 1)
    assert "called with all 2000 draws at once" in caught.value.__notes__[0]
    with pytest.raises(ValueError, match=r"has the dimensions \('school',\); chain and draw, or sample, must be among"):
        regularize(source, E(lambda v: v.theta.mean("sample")) <= 1)
    with pytest.raises(AttributeError, match=r"no variable 'sigma'; available: mu.*; other groups"):
        regularize(source, E(lambda v: v.sigma) <= 1)


def test_data_arrays_are_valid_features(source: Any) -> None:
    posterior = as_dataset(source["posterior"])
    result = regularize(source, E(posterior["theta"].mean("school"), name="mean effect") == 3.0)
    by_function = regularize(source, E(lambda v: v.theta.mean("school")) == 3.0)
    np.testing.assert_allclose(result.multipliers, by_function.multipliers, rtol=1e-9)
    assert result.labels == ("E(mean effect) == 3",)
    labels = regularize(source, E(posterior["theta"].transpose("school", "draw", "chain")) <= 100).labels
    assert labels[:2] == ("E(psi[Choate]) <= 100", "E(psi[Deerfield]) <= 100")  # the variable may be theta**2 here
    assert regularize(source, E("theta")[0] <= 100).labels == ("E(theta[Choate]) <= 100",)
    assert regularize(source, E("theta", name="effect")["Choate"] <= 100).labels == ("E(effect[Choate]) <= 100",)
    stacked = posterior["mu"].stack(sample=("chain", "draw"))
    np.testing.assert_array_equal(result.expectation(stacked), result.expectation("mu"))
    flat = Samples({"mu": posterior["mu"].values.ravel()})
    np.testing.assert_array_equal(flat.evaluate(posterior["mu"]).values, flat.evaluate("mu").values)


@pytest.mark.parametrize(
    ("spoiled", "message"),
    [
        (lambda mu: mu.isel(draw=slice(100)), r"has 4 chains of 100 draws, the posterior 4 of 500"),
        (lambda mu: mu.isel(draw=slice(None, None, -1)), "other labels of draw than the posterior"),
        (lambda mu: mu.mean("draw"), r"has the dimensions \('chain',\)"),
    ],
)
def test_data_arrays_of_other_draws_raise_value_error(spoiled: Any, message: str) -> None:
    source = eight_schools("datatree")
    with pytest.raises(ValueError, match=message):
        regularize(source, E(spoiled(source["posterior"]["mu"])) == 3.0)


def with_predictions(form: str) -> Any:
    source = eight_schools("datatree")
    posterior = source["posterior"].to_dataset()
    noise = np.random.default_rng(1).normal(size=posterior["theta"].shape)
    groups = {name: node.to_dataset() for name, node in source.children.items()}
    groups["posterior_predictive"] = (posterior[["theta"]] + noise * STANDARD_ERRORS).rename(theta="obs")
    groups["prior"] = posterior.isel(chain=[0]) * 0
    groups["sample_stats"] = xarray.Dataset({"lp": posterior["mu"] ** 2})
    if form == "inferencedata" and not BEFORE_1:
        pytest.skip("ArviZ 1 has no InferenceData")
    return both_kinds(groups, form)


@pytest.fixture(params=["inferencedata", "datatree"])
def predicted(request: pytest.FixtureRequest) -> Any:
    return with_predictions(request.param)


def test_variables_of_other_groups_are_valid_features(predicted: Any) -> None:
    draws = as_dataset(predicted["posterior_predictive"])["obs"]
    expected = draws.values.reshape(-1, 8)
    samples = Samples(predicted)
    for feature in (
        "posterior_predictive/obs",
        lambda v: v.posterior_predictive.obs,
        lambda v: v.posterior_predictive["obs"].values,
        draws,
    ):
        np.testing.assert_array_equal(samples.evaluate(feature).values, expected)
    one = samples.evaluate("posterior_predictive/obs[Choate]")
    np.testing.assert_array_equal(one.values[:, 0], expected[:, 0])
    assert one.names == ("posterior_predictive/obs[Choate]",)
    result = regularize(predicted, E(lambda v: v.posterior_predictive.obs.sel(school="Choate") > 20) <= 0.1)
    assert result.status == "optimal"
    likelihood = samples.evaluate(lambda v: v.log_likelihood.obs.sum("school")).values
    assert likelihood.shape == (2000, 1)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("predictions/obs", "no group 'predictions'; they came with 'log_likelihood', 'observed_data'"),
        ("posterior_predictive.obs", "write 'posterior_predictive/obs' for a variable of another group"),
        ("posterior_predictive/y", "variables names 'y', but the draws have 'obs'"),
        ("prior/mu", "the group 'prior' has 1 chains of 500 draws, the posterior 4 of 500"),
    ],
)
def test_unknown_group_or_variable_raises_value_error(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        regularize(with_predictions("datatree"), E(name) == 0.0)
    with pytest.raises(ValueError, match="no group 'prior'; they came without other groups, or from a file"):
        regularize(Samples({"mu": np.arange(30.0)}), E("prior/mu") == 0.0)


def test_to_arviz_resamples_other_groups_with_the_posterior(predicted: Any) -> None:
    result = regularize(predicted, E("mu") >= 6.0)
    back = result.to_arviz(3)
    before, after = (
        set(tree.children if isinstance(tree, xarray.DataTree) else tree.groups()) for tree in (predicted, back)
    )
    assert before | {"importance_weights"} == after
    stats = as_dataset(back["sample_stats"])
    posterior = as_dataset(back["posterior"])
    np.testing.assert_allclose(stats["lp"], posterior["mu"] ** 2)  # the sampler's own statistics are resampled too
    followed = as_dataset(predicted["posterior_predictive"])["obs"].sel(
        chain=stats["source_chain"], draw=stats["source_draw"]
    )
    np.testing.assert_array_equal(
        as_dataset(back["posterior_predictive"])["obs"].transpose("chain", "draw", "school"),
        followed.transpose("chain", "draw", "school"),
    )
    np.testing.assert_allclose(
        as_dataset(back["log_likelihood"])["obs"],
        log_normal(EFFECTS, posterior["theta"].values, STANDARD_ERRORS**2),
        rtol=1e-12,
    )
    for name in ("observed_data", "prior"):
        xarray.testing.assert_identical(as_dataset(back[name]), as_dataset(predicted[name]))


def test_to_arviz_integer_seed_equals_generator(source: Any) -> None:
    result = regularize(source, E("mu") >= 6.0)
    for one, other in (
        (result.to_arviz(3), result.to_arviz(np.random.default_rng(3))),
        (result.to_arviz(), result.to_arviz(None)),
    ):
        xarray.testing.assert_identical(as_dataset(one["posterior"]), as_dataset(other["posterior"]))
    for bad in ("3", 2.5, True):
        with pytest.raises(TypeError, match=r"rng must be a numpy.random.Generator, an integer seed or None"):
            result.to_arviz(bad)
