"""How experiments choose settings, and the peers that they make themselves."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.dummy import DummyClassifier
from sklearn.linear_model import Ridge
from sklearn.neighbors import KNeighborsClassifier
from sklearn.preprocessing import StandardScaler

from experiments_tools import ragged_sample
from regbayes.estimators._bases import InterruptedWarning
from regbayes_paper.baselines import MTRLRegressor
from regbayes_paper.experiments import systems, tuning
from regbayes_paper.experiments.data import Sample
from regbayes_paper.experiments.peers import RangeScaled, TaskAdapter, TaskDeviationRidge
from regbayes_paper.experiments.registry import Context, System, named

# Peers.


def test_ridge_with_deviations_solves_its_least_squares_problem():
    sample = ragged_sample()
    model = TaskDeviationRidge(alpha=2.0, slope_alpha=5.0, intercept_alpha=0.7)
    fitted = model.fit(sample.X, sample.y, sample.task)
    rows = np.hstack([np.ones((60, 1)), StandardScaler().fit_transform(sample.X)])
    design = np.hstack([rows, *(rows * (sample.task == t)[:, None] for t in (3, 5, 9))])
    prices = np.sqrt([0.0, *[2.0] * 3, *([0.7, *[5.0] * 3] * 3)])
    weights, *_ = np.linalg.lstsq(
        np.vstack([design, np.diag(prices)]), np.concatenate([sample.y, np.zeros(16)]), rcond=None
    )
    np.testing.assert_allclose(fitted.predict(sample.X, sample.task), design @ weights, rtol=1e-9)


def test_ridge_with_deviations_that_cost_everything_is_one_ridge():
    sample = ragged_sample()
    fitted = TaskDeviationRidge(3.0, 1e12, 1e12).fit(sample.X, sample.y, sample.task)
    one = TaskAdapter(Ridge(3.0), "ignore").fit(sample.X, sample.y, sample.task)
    np.testing.assert_allclose(
        fitted.predict(sample.X, sample.task), one.predict(sample.X, sample.task), rtol=1e-6, atol=1e-8
    )


def test_separate_regressors_do_not_see_other_tasks():
    sample = ragged_sample()
    fitted = TaskAdapter(Ridge(1.0), "separate").fit(sample.X, sample.y, sample.task)
    changed = sample.y.copy()
    changed[sample.task != 5] += 100.0
    other = TaskAdapter(Ridge(1.0), "separate").fit(sample.X, changed, sample.task)
    own = sample.task == 5
    np.testing.assert_allclose(
        fitted.predict(sample.X[own], sample.task[own]), other.predict(sample.X[own], sample.task[own])
    )


# Choosing.


def test_scaled_ranges_make_units_immaterial():
    sample = ragged_sample()
    model = RangeScaled(MTRLRegressor(relation_alpha=3.0, scale_inputs=False))
    plain = model.fit(sample.X, sample.y, sample.task).predict(sample.X, sample.task)
    moved = 7.0 * sample.X + 3.0
    np.testing.assert_allclose(model.fit(moved, sample.y, sample.task).predict(moved, sample.task), plain, rtol=1e-6)


def test_rows_are_predicted_by_models_that_have_not_seen_them():
    rng = np.random.default_rng(2)
    sample = Sample(rng.standard_normal((300, 2)), rng.integers(0, 2, 300))
    parts = tuning.folds(sample, 3, 0)
    found = tuning.out_of_fold(lambda: KNeighborsClassifier(1), sample, parts, tuning.MULTIWAY)
    assert 0.35 < np.mean(found == sample.y) < 0.65  # each row is its own nearest neighbour


def test_what_is_chosen_does_not_depend_on_the_test_part():
    rng = np.random.default_rng(3)
    X = rng.standard_normal((120, 5))
    Y = (X[:, :3] + 0.7 * rng.standard_normal((120, 3)) > 0.8).astype(int)
    train, test = Sample(X[:80], Y[:80]), Sample(X[80:], Y[80:])
    system = named(systems.MULTILABEL, "LinearSVC")
    options = {"quick": False, "n_folds": 3}
    found = tuning.evaluate(system, train, test, Context(0, 4, 5), tuning.LABELS, **options)
    flipped = Sample(test.X, 1 - test.y)
    other = tuning.evaluate(system, train, flipped, Context(0, 4, 5), tuning.LABELS, **options)
    assert found.chosen == other.chosen
    assert found.values["accuracy"] == pytest.approx(1 - other.values["accuracy"])
    assert set(found.values) == {"accuracy", "f1_micro", "f1_macro", "f1_micro_cut", "f1_macro_cut"}


def test_the_best_setting_is_chosen():
    sample = Sample(np.arange(40.0)[:, None] % 2, np.arange(40) % 2)

    def classifier(_: Context, good: bool) -> object:
        return KNeighborsClassifier(3) if good else DummyClassifier(strategy="most_frequent")

    system = System("toy", classifier, ({"good": False}, {"good": True}))
    found = tuning.evaluate(system, sample, sample, Context(0, 1, 1), tuning.MULTIWAY, quick=False, n_folds=2)
    assert found.chosen == {"good": True}
    assert found.values == {"accuracy": 1.0, "f1": 1.0}


class Interrupted(ClassifierMixin, BaseEstimator):
    """What our models do on Ctrl-C: end, and warn."""

    def fit(self, X, y):
        warnings.warn("interrupted", InterruptedWarning, stacklevel=2)
        return self


def test_a_fit_that_ctrl_c_ended_is_not_scored():
    with pytest.raises(KeyboardInterrupt):
        tuning.fit(Interrupted(), Sample(np.zeros((2, 1)), np.zeros(2)))
