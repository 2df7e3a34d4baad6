"""Cross-validation of iLSVM: what is tried, what is scored, and what is refitted."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import rankdata

from ilsvm_estimator_tools import digits, ilsvm, ilsvm_cv

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

X, y = digits()


def test_the_best_combination_is_refitted():
    search = ilsvm_cv(
        Cs=(1.0, 1e-4), temperatures=(0.05, 0.2), include_inputs=(False, True), generative_weights=("auto", 0.3)
    ).fit(X, y)
    results = search.cv_results_
    assert len(results["param_C"]) == 16
    best = int(np.argmax(results["mean_test_score"]))
    np.testing.assert_array_equal(results["rank_test_score"], rankdata(-results["mean_test_score"], method="min"))
    assert results["rank_test_score"][best] == 1
    assert search.best_score_ == results["mean_test_score"][best]
    chosen = {name: results[f"param_{name}"][best] for name in ("C", "alpha", "temperature", "include_inputs")}
    assert chosen == {name: getattr(search, f"{name}_") for name in chosen}
    assert chosen == {name: search.best_estimator_.get_params()[name] for name in chosen}
    np.testing.assert_array_equal(search.predict(X), search.best_estimator_.predict(X))
    np.testing.assert_allclose(
        results["mean_test_score"], np.mean([results["split0_test_score"], results["split1_test_score"]], axis=0)
    )


def test_every_parameter_of_the_model_can_be_searched_or_set():
    parameters = ilsvm().get_params().keys() - {"warm_start"}
    lists = {"alpha": "alphas", "C": "Cs", "temperature": "temperatures", "generative_weight": "generative_weights"}
    assert {lists.get(name, name) for name in parameters} <= ilsvm_cv().get_params().keys()
    search = ilsvm_cv(Cs=(1.0,), loss="hinge", noise_variance=9.0, prior_variance=4.0, n_sweeps=2).fit(X, y)
    set_by_hand = {"loss": "hinge", "noise_variance": 9.0, "prior_variance": 4.0, "n_sweeps": 2}
    assert set_by_hand.items() <= search.best_estimator_.get_params().items()


def test_a_fold_scores_what_a_fit_by_hand_scores():
    def scoring(model, X, y):
        return np.abs(model.decision_function(X)).sum()

    search = ilsvm_cv(Cs=(0.3,), cv=[(np.arange(0, 160, 2), np.arange(1, 160, 2))], scoring=scoring).fit(X, y)
    by_hand = search.best_estimator_.fit(X[::2], y[::2])
    assert search.best_score_ == scoring(by_hand, X[1::2], y[1::2])


def test_the_scorer_decides():
    worst = ilsvm_cv(Cs=(1e-5, 1.0), scoring=lambda model, X, y: -model.score(X, y)).fit(X, y)
    best = ilsvm_cv(Cs=(1e-5, 1.0)).fit(X, y)
    assert (worst.C_, best.C_) == (1e-5, 1.0)


def test_rows_without_a_label_are_never_scored():
    seen = []

    def scoring(model, X, y):
        seen.append((len(X), len(model.embedding_), set(y)))
        return model.score(X, y)

    labels = np.where(np.arange(160) % 2, y, -1)
    ilsvm_cv(Cs=(1.0,), unlabeled=-1, scoring=scoring).fit(X, labels)
    assert all(n_fitted == 160 - n for n, n_fitted, _ in seen)
    assert sum(n for n, _, _ in seen) == 80
    assert all(-1 not in classes for _, _, classes in seen)
