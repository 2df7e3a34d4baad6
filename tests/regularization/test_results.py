"""Results: expectations, draws, summary, diagnostics, saving and loading."""

from __future__ import annotations

import html
import re
import warnings

import numpy as np
import pytest

import regbayes
from regbayes import E, Finite, Gaussian, Samples, regularize
from regbayes._registry import class_named
from regbayes.engine import Status
from regbayes.persistence import save
from regbayes.regularizers import Equal
from regularizer_cases import COMBINED, ELEMENTARY, SUMS

RNG = np.random.default_rng(0)
MODELS = RNG.normal(size=(30, 2))
POSTERIOR = Finite(MODELS, probabilities=RNG.dirichlet(np.full(30, 3.0)))
RESULT = regularize(POSTERIOR, [E(lambda x: x[:, 0]) == 0.3, E(lambda x: x[:, 1], name="cost") <= 5.0])


def test_expectation_accepts_functions_and_arrays():
    q = RESULT.posterior.probabilities
    np.testing.assert_allclose(RESULT.expectation(lambda x: x**2), q @ MODELS**2, atol=1e-14)
    np.testing.assert_allclose(RESULT.expectation(E(np.sin)), q @ np.sin(MODELS), atol=1e-14)
    np.testing.assert_allclose(RESULT.expectation(MODELS[:, 0]), 0.3, atol=1e-8)
    gaussian = regularize(Gaussian([0.0, 1.0], [1.0, 2.0]), E(np.array([1.0, 1.0])) == 3.0)
    np.testing.assert_allclose(gaussian.expectation(np.eye(2)), gaussian.posterior.mean, atol=1e-14)


def test_sample_frequencies_match_probabilities():
    draws = RESULT.sample(np.random.default_rng(1), size=50_000)
    assert draws.shape == (50_000, 2)
    assert draws[:, 0].mean() == pytest.approx(0.3, abs=5 * draws[:, 0].std() / np.sqrt(50_000))
    counts = np.array([np.sum(draws[:, 0] == x) for x in MODELS[:, 0]])
    expected = 50_000 * RESULT.posterior.probabilities
    assert np.sum((counts - expected) ** 2 / expected) < 75  # chi-squared(29) exceeds 71 with probability 1e-5


def test_sample_is_reproducible_and_keeps_the_form_of_models():
    assert np.array_equal(RESULT.sample(3, size=5), RESULT.sample(np.random.default_rng(3), size=5))
    assert not np.array_equal(RESULT.sample(3, size=5), RESULT.sample(4, size=5))
    named = regularize(Samples({"mu": RNG.normal(size=400)}), E("mu") >= 0.1)
    assert set(named.sample(0, size=7)) == {"mu"}
    assert named.sample(0, size=7)["mu"].shape == (7,)
    flat = regularize(Finite(np.arange(6)), E(lambda x: x) == 3.0)
    assert flat.sample(0, size=4).shape == (4,)


def test_summary_has_one_row_per_constraint():
    head, columns, *rows = RESULT.summary().splitlines()
    assert str(RESULT) == RESULT.summary()
    assert head.startswith(f"solver optimal: KL {RESULT.kl:.4g} nats, gap ")
    assert columns.split() == ["before", "after", "multiplier", "slack"]
    assert [row.rsplit(maxsplit=4)[0].strip() for row in rows] == ["E(psi) == 0.3", "E(cost) <= 5"]
    before, after, multiplier, slack = map(float, rows[1].rsplit(maxsplit=4)[1:])
    assert before == pytest.approx(RESULT.before[1], rel=1e-4)
    assert after == pytest.approx(RESULT.after[1], rel=1e-4)
    assert multiplier == 0.0
    assert slack == pytest.approx(5.0 - RESULT.after[1], rel=1e-2)


def test_summary_of_draws_reports_reliability():
    result = regularize(Samples(np.random.default_rng(0).normal(size=1000)), E(lambda x: x) >= 0.2)
    assert (
        f"effective draws {result.effective_sample_size:.0f} of 1000, k-hat {result.pareto_k:.2f}" in result.summary()
    )
    kish = 1 / np.sum(result.posterior.weights**2)
    efficiency = result.posterior.relative_efficiency
    assert result.effective_sample_size <= result.posterior.effective_sample_size == pytest.approx(kish * efficiency)


def test_expectation_of_scalar_feature_converts_to_float():
    value = RESULT.expectation(E(lambda x: x[:, 0]))
    assert float(value) == value[0] == pytest.approx(0.3)
    assert f"{value:.2f}" == "0.30"
    assert float(POSTERIOR.expectation(lambda x: x[:, 0])) == pytest.approx(POSTERIOR.probabilities @ MODELS[:, 0])
    assert float(Gaussian([2.0], [1.0]).expectation([[1.0]])) == 2.0
    with pytest.raises(TypeError, match="these are 2 expectations; take one by its index"):
        float(RESULT.expectation(lambda x: x))


def test_expectations_are_saved_as_arrays(tmp_path):
    value = RESULT.expectation(lambda x: x)
    save({"means": value}, tmp_path / "file")
    found = regbayes.load(tmp_path / "file")["means"]
    assert type(found) is np.ndarray
    np.testing.assert_array_equal(found, value)


def test_html_representation_is_a_table():
    shown = RESULT._repr_html_()
    assert shown.count("<tr>") == 3
    assert "E(cost) &lt;= 5" in shown
    assert "±" not in shown


@pytest.mark.parametrize(
    ("size", "target", "reliability", "reason"),
    [
        (4000, 0.5, "reliable", None),
        (4000, 1.6, "doubtful", "Standard errors may be too small"),
        (1000, 1.4, "doubtful", "only .* effective draws of 1000 are left"),
        (500, 2.4, "unreliable", "Expectations may be far off"),
    ],
)
def test_summary_starts_with_reliability(size, target, reliability, reason):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = regularize(Samples(np.random.default_rng(0).normal(size=size)), E(lambda x: x) == target)
    head, *messages = result.summary().splitlines()[:-2]
    assert head.startswith(f"draws {reliability}, solver optimal: KL ")
    assert head in result._repr_html_()
    assert "±" in result._repr_html_()
    assert (result.reliability, result.status, tuple(messages)) == (reliability, "optimal", result.diagnostics)
    assert [str(warning.message) for warning in caught] == messages
    if reason is not None:
        assert re.match(f"The draws are {reliability}: .*{reason}.* Draw more, or ", messages[0])
        assert messages[0] in html.unescape(result._repr_html_())


@pytest.mark.parametrize("size", [20, 92, 300])
def test_boundary_with_few_draws_has_no_k_hat(size):
    event = np.random.default_rng(1).permutation(4000) < size
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", regbayes.UnreliableWeightsWarning)
        result = regularize(Samples(np.zeros(4000)), E(event) == 1)
    assert (result.status, result.pareto_k) == ("boundary", -np.inf)
    assert "no tail of large weights" in str(result)
    assert result.reliability == ("reliable" if size >= 100 else "doubtful")


def test_slack_is_the_distance_to_each_constraint():
    result = regularize(
        POSTERIOR, [E(lambda x: x[:, 0]) >= -1.0, E(lambda x: x[:, 1]) <= 0.0, E(lambda x: x).within(2.0, of=0.0)]
    )
    np.testing.assert_allclose(result.slack[0], result.after[0] + 1.0, atol=1e-14)
    np.testing.assert_allclose(result.slack[1], -result.after[1], atol=1e-14)
    np.testing.assert_allclose(result.slack[2:], 2.0 - np.linalg.norm(result.after[2:]), atol=1e-14)
    # Complementary slackness: an inactive constraint has multiplier zero.
    assert np.all((np.abs(result.multipliers) < 1e-9) | (result.slack < 1e-7))


def test_diagnostics_require_draws():
    for name in ("effective_sample_size", "pareto_k"):
        with pytest.raises(AttributeError, match=f"{name} is for posteriors given as Samples"):
            getattr(RESULT, name)
    with pytest.raises(AttributeError, match="to_arviz is for posteriors given as Samples"):
        RESULT.to_arviz()


def test_tilted_posterior_has_no_evidence():
    joint = Finite(MODELS, log_weights=RNG.normal(size=30))
    assert joint.log_evidence is not None
    assert regularize(joint, E(lambda x: x[:, 0]) == 0.1).posterior.log_evidence is None
    gaussian = Gaussian([0.0], [1.0], log_evidence=-3.0)
    assert regularize(gaussian, E(np.array([1.0])) == 1.0).posterior.log_evidence is None


@pytest.mark.parametrize("name", [*ELEMENTARY, *COMBINED, *SUMS])
def test_every_regularizer_is_saved_and_loaded(name, tmp_path):
    regularizer, size = (ELEMENTARY | COMBINED | SUMS)[name]
    save(regularizer, tmp_path / "regularizer")
    found = regbayes.load(tmp_path / "regularizer")
    assert type(found) is type(regularizer)
    x = np.random.default_rng(0).normal(size=size)
    for point in (x, np.asarray(regularizer.prox(x))):
        assert found.value(point) == regularizer.value(point)
        assert np.array_equal(found.prox(point, 0.3), regularizer.prox(point, 0.3))


def test_infinite_multipliers_are_saved_and_loaded(tmp_path):
    result = regularize(Finite(np.array([0.0, 1.0, 2.0])), lambda x: x, Equal(0.0))
    result.save(tmp_path / "result")
    found = regbayes.load(tmp_path / "result")
    assert found.status == "boundary"
    assert found.multipliers.tolist() == [-np.inf]
    assert found.posterior.probabilities.tolist() == [1.0, 0.0, 0.0]


def test_status_is_status_enum():
    assert RESULT.status is Status.OPTIMAL
    assert RESULT.status == "optimal"
    assert f"{RESULT.status}" == "optimal"


def test_statuses_of_older_files_are_converted():
    found = class_named("regbayes.Status")
    assert found is not None
    assert found.cls is Status
    assert {"OPTIMAL", "BOUNDARY", "INFEASIBLE", "ITERATION_LIMIT"} <= set(Status.__members__)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("n", [100, 400])
def test_rarely_large_probability_has_a_mean(seed, n):
    a = np.random.default_rng(seed).normal(size=n)
    rare = 1 / (1 + np.exp(10 - 5 * a))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", regbayes.UnreliableWeightsWarning)  # few effective draws
        found = regularize(Samples({"a": a}), E(rare) == 1.1 * rare.mean())
    assert not any("no mean" in doubt for doubt in found.diagnostics)


@pytest.mark.parametrize("seed", range(5))
def test_feature_without_mean_is_reported_with_equal_weights(seed):
    a, b = np.random.default_rng(seed).normal(size=(2, 4, 1000))
    draws = regbayes.Samples({"a": a, "b": b}, chains=True)
    with pytest.warns(regbayes.UnreliableWeightsWarning, match=r"feature in E\(ratio\) == 3 may have no mean"):
        regularize(draws, E(lambda v: v.a / v.b, name="ratio") == 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        regularize(draws, E(lambda v: np.arctan(v.a / v.b), name="angle") == 0.1)
        regularize(draws, E(lambda v: v.a / (5 + v.b), name="far from its pole") == 0.01)
        regularize(draws, E(lambda v: np.exp(1.5 * v.a)) <= 1)  # the tilt removes the tail
