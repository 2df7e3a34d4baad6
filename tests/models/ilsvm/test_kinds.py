"""`IBPFactorAnalysis(slab="auto")`: rows say whether their features are on or off, or on by an amount."""

from __future__ import annotations

import warnings
from itertools import product

import numpy as np
import pytest
from scipy.stats import skew

import regbayes
from regbayes import IBPFactorAnalysis
from regbayes.models.ilsvm.model import centre_rows
from regbayes.models.ilsvm.on_off import LEFT, SKEWED, decide_rows
from simulated_features import draw_scores, matched, with_rare_feature

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

DEGREES = ("amounts", "normal", "uniform", "exponential")


def quick(**parameters):
    return IBPFactorAnalysis(**{"n_components": 12, "max_iter": 4, "random_state": 0} | parameters)


# --- the question


def decided_share(levels):
    """Share of the variance of exactly independent scores that is left when each is decided for one of two values."""
    levels = np.asarray(levels, dtype=float) - np.mean(levels)
    skewness = np.mean(levels**3) / np.mean(levels**2) ** 1.5
    share = 0.5 * (1.0 - abs(skewness) / np.sqrt(skewness**2 + 4.0))
    on = np.sign(skewness) * levels / levels.std() > (0.5 - share) / np.sqrt(share * (1.0 - share))
    between = on.mean() * levels[on].mean() ** 2 + (1 - on.mean()) * levels[~on].mean() ** 2
    return 1.0 - between / np.mean(levels**2)


@pytest.mark.parametrize("levels", [(0, 1, 1), (0, 0, 0, 1), (0, 2, 5), (0, 0, 2, 4), (0, 0, 0, 9, 10)])
def test_what_is_left_of_independent_scores_without_noise_is_the_variance_within_two_values(levels):
    """Every combination of levels as often: scores are exactly independent, and all of them leave the same share.

    No level is half-way between the two values, where rounding would decide.
    """
    scores = np.array(list(product(levels, repeat=3)), dtype=float)
    rows = centre_rows(np.tile(scores, (4, 1)) @ np.random.default_rng(0).standard_normal((3, 12)))
    assert decide_rows(rows).share == pytest.approx(decided_share(levels), abs=4e-3)  # a trace of noise


@pytest.mark.parametrize("kind", DEGREES)
@pytest.mark.parametrize("noise", [0.2, 1.0])
def test_scores_that_vary_by_degrees_leave_much(kind, noise):
    assert decide_rows(centre_rows(draw_scores(kind, noise=noise)[0])).share > LEFT


@pytest.mark.parametrize(("K", "noise", "nonnegative"), [(3, 1.0, False), (8, 1.0, False), (20, 0.3, True)])
def test_on_off_scores_leave_little_also_where_mean_field_cannot_tell_them_apart(K, noise, nonnegative):
    X, _ = draw_scores("on/off", K, 100 * K, noise, nonnegative)
    units = np.exp(np.random.default_rng(1).uniform(-2.0, 2.0, X.shape[1]))
    for rest in (decide_rows(centre_rows(X * units)), decide_rows(centre_rows(X))):
        assert rest.share < LEFT
        assert rest.skewness < SKEWED


def test_a_weight_of_two_is_the_row_twice():
    X, _ = draw_scores("amounts", n=300)
    weights = np.repeat([1.0, 2.0], [200, 100])
    once, twice = decide_rows(centre_rows(X, weights=weights)), decide_rows(centre_rows(np.vstack([X, X[200:]])))
    assert (once.share, once.skewness) == pytest.approx((twice.share, twice.skewness), rel=1e-9)


def test_the_skewness_is_that_of_what_is_left_of_the_inputs():
    """On/off scores of little noise are decided as they were drawn: what is left is the noise, and it is skewed."""
    X, scores = draw_scores("on/off", K=3, noise=0.0, n=2000)
    noise = 0.1 * (np.random.default_rng(5).exponential(size=X.shape) - 1.0)
    left = noise - noise.mean(axis=0)
    left -= (basis := np.column_stack([scores, np.ones(len(X))])) @ np.linalg.lstsq(basis, left, rcond=None)[0]
    rest = decide_rows(centre_rows(X + noise))
    assert rest.skewness == pytest.approx(np.mean(np.abs(skew(left, axis=0))), rel=1e-6)
    assert rest.skewness > 1.5


def test_inputs_of_which_nothing_is_left_have_no_skewness():
    """What is left of them is rounding, whose skewness could be anything."""
    X, scores = draw_scores("on/off", K=3, noise=0.0)
    noisy = scores @ np.ones((3, 1)) + 0.3 * np.random.default_rng(1).standard_normal((len(X), 1))
    assert decide_rows(centre_rows(X)).skewness == 0.0
    assert decide_rows(centre_rows(np.hstack([X, noisy]))).skewness < 0.05


def test_a_table_of_categories_leaves_little():
    rng = np.random.default_rng(0)
    kinds = rng.integers(0, 4, (500, 3))
    kinds[:, 1] = np.where(rng.random(500) < 0.7, kinds[:, 0], kinds[:, 1])  # categories that go together
    columns = np.hstack([kinds[:, [j]] == np.arange(4) for j in range(3)])
    assert decide_rows(centre_rows(columns.astype(float))).share < LEFT


def planted_with_noise(seed):
    """Sums of five on/off features and noise of the same size, in units of each input."""
    rng = np.random.default_rng(seed)
    signal = (rng.random((500, 5)) < np.linspace(0.1, 0.5, 5)) @ rng.standard_normal((5, 20))
    return signal / signal.std(axis=0) + rng.standard_normal(signal.shape)


@pytest.mark.parametrize("seed", [2, 8])
def test_rows_that_seem_to_be_sums_of_on_off_features_vary_by_degrees_if_what_these_leave_is_no_noise(seed):
    X = planted_with_noise(seed)
    for rows, found in ((X, None), (np.exp(0.5 * X), "half-normal")):
        recognised = quick(slab=None, n_components=30, max_iter=0).fit(rows)
        assert np.ptp(recognised.noise_ratios_) > 0.0
        assert quick(n_components=30, max_iter=0).fit(rows).slab_ == found


@pytest.mark.parametrize("two_valued", [False, True])
def test_few_factors_that_leave_something_skewed_are_no_on_off_features_of_inputs_that_vary_by_degrees(two_valued):
    rng = np.random.default_rng(0)
    X = (rng.random((600, 2)) < 0.4) @ np.sign(rng.standard_normal((2, 8))) + rng.exponential(size=(600, 8))
    if two_valued:  # four of eight inputs are enough
        X[:, :4] = X[:, :4] > np.median(X[:, :4], axis=0)
    rest = decide_rows(centre_rows(X))
    assert rest.share < LEFT
    assert rest.skewness > SKEWED
    with_constants = np.hstack([X, np.ones((len(X), 8))])
    for rows in (X, with_constants):
        assert quick(max_iter=0).fit(rows).slab_ == (None if two_valued else "half-normal")


def test_a_rare_feature_that_does_not_stand_out_from_the_noise_is_no_amount():
    X, _ = with_rare_feature()
    rest = decide_rows(centre_rows(X))
    assert rest.share > 2 * LEFT
    assert rest.skewness < SKEWED / 2
    assert IBPFactorAnalysis(30).fit(X).slab_ is None


# --- the estimator


@pytest.mark.parametrize(("kind", "found"), [("amounts", "half-normal"), ("on/off", None)])
def test_the_fit_is_that_of_the_kind_that_rows_have(kind, found):
    X, _ = draw_scores(kind)
    asked, told = quick().fit(X), quick(slab=found).fit(X)
    assert asked.slab_ == told.slab_ == found
    assert hasattr(asked, "probabilities_") == (found is not None)
    for name in ("components_", "embedding_", "stick_weights_", "offset_"):
        np.testing.assert_array_equal(getattr(asked, name), getattr(told, name))
    assert asked.objective_ == told.objective_
    np.testing.assert_array_equal(asked.score_samples(X), told.score_samples(X))


def test_what_is_planted_comes_back_whatever_its_kind():
    for kind in ("on/off", "amounts"):
        X, scores = draw_scores(kind, K=4, noise=0.3)
        model = IBPFactorAnalysis(20, random_state=0).fit(X)
        assert model.n_components_ == 4
        found = model.transform(X)
        assert np.median(matched(scores, found[:, np.ptp(found, axis=0) > 1e-3])) > 0.95


@pytest.mark.parametrize("kind", ["amounts", "on/off"])
def test_truncation_order_and_units_do_not_change_the_kind(kind):
    X, _ = draw_scores(kind)
    rng = np.random.default_rng(3)
    shuffled = X[rng.permutation(len(X))][:, rng.permutation(X.shape[1])]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", regbayes.TruncationWarning)  # two features are too few on purpose
        kinds = {quick(max_iter=0, **change).fit(rows).slab_ for rows, change in (
            (X, {}), (X, {"n_components": 2}), (X, {"n_components": 100}), (shuffled, {}), (1e3 * X + 7.0, {}),
            (X, {"noise_variance": 0.3}), (X, {"temperature": 0.03}),
        )}  # fmt: skip
    assert kinds == {"half-normal" if kind == "amounts" else None}


def test_rows_that_cannot_tell_have_on_off_features():
    X, _ = draw_scores("amounts")
    for rows in (X[:, :3], X[:100], np.tile(X, 21)[:, :501]):
        assert quick(max_iter=0).fit(rows).slab_ is None


def test_a_fit_that_goes_on_keeps_the_kind_of_features_that_it_has():
    amounts, on_off = draw_scores("amounts")[0], draw_scores("on/off")[0]
    for first, second, found in ((amounts, on_off, "half-normal"), (on_off, amounts, None)):
        model = quick(warm_start=True).fit(first)
        assert model.fit(second).slab_ == found
        assert model.set_params(warm_start=False).fit(second).slab_ != found
        batches = quick().partial_fit(first)
        before = batches.components_.copy()
        assert batches.partial_fit(second).slab_ == found
        assert np.any(batches.components_ != before)


@pytest.mark.parametrize(
    ("kind", "found", "other"), [("amounts", "half-normal", None), ("on/off", None, "half-normal")]
)
def test_batches_after_a_fit_keep_its_kind_of_features_whatever_is_asked_for_now(kind, found, other):
    X, _ = draw_scores(kind)
    expected, model = quick(slab=found).fit(X), quick().fit(X).set_params(slab=other)
    for batch in (X[:300], X[300:]):
        expected.partial_fit(batch)
        assert model.partial_fit(batch).slab_ == found
    assert hasattr(model, "probabilities_") == (found is not None)
    np.testing.assert_array_equal(model.components_, expected.components_)
    np.testing.assert_array_equal(model.transform(X), expected.transform(X))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_of_a_file_say_what_they_say_in_memory(tmp_path, dtype):
    X = draw_scores("amounts", n=2500)[0].astype(dtype)
    np.save(tmp_path / "rows.npy", X)
    mapped = quick().fit(np.load(tmp_path / "rows.npy", mmap_mode="r"))
    assert mapped.slab_ == "half-normal"
    np.testing.assert_allclose(mapped.components_, quick().fit(X.astype(float)).components_, rtol=1e-6, atol=1e-8)


def test_a_model_that_was_saved_knows_its_kind(tmp_path):
    X, _ = draw_scores("amounts")
    model = quick().fit(X)
    model.save(tmp_path / "model")
    again = regbayes.load(tmp_path / "model")
    assert (again.slab, again.slab_) == ("auto", "half-normal")
    np.testing.assert_array_equal(again.transform(X), model.transform(X))


def test_other_words_are_refused():
    with pytest.raises(ValueError, match="slab"):
        quick(slab="normal").fit(draw_scores("on/off")[0])
