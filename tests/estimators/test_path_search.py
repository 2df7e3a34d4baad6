"""Test `PathSearchCV` against `GridSearchCV` and explicit loops."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import warnings
from collections import Counter
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import sklearn
from numpy.testing import assert_array_equal
from scipy.sparse import csr_array
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression, Ridge, SGDClassifier
from sklearn.model_selection import GridSearchCV, GroupKFold, KFold, RepeatedKFold, StratifiedKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import regbayes
from ilsvm_estimator_tools import digits, ilsvm, ilsvm_cv, overlapping
from medlda_tools import draw_documents
from multitask_tools import classifier_cv, groups, holes, numbers, regressor, regressor_cv
from regbayes import (
    GridEdgeWarning,
    ILSVMClassifierCV,
    MedLDAClassifierCV,
    MedLDARegressorCV,
    MultiTaskILSVMClassifierCV,
    PathSearchCV,
)
from regbayes.estimators._bases import InterruptedWarning
from regbayes.estimators._folds import multitask_folds
from regbayes.estimators._task_bases import read_targets
from regbayes.search import SearchInterrupted, best_so_far, read_records, write_records

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

X, y = overlapping(90)
GRID = {"C": [0.01, 0.1, 1.0], "fit_intercept": [True, False]}
FOLDS = StratifiedKFold(3, shuffle=True, random_state=0)


class Counting(ClassifierMixin, BaseEstimator):
    """Majority-class baseline that logs its fits and can raise KeyboardInterrupt."""

    made: list[tuple[float, float, int]] = []  # noqa: RUF012 - shared by all clones
    interrupt_at = 10**9

    def __init__(self, C=1.0, other=0.0, warm_start=False):
        self.C = C
        self.other = other
        self.warm_start = warm_start

    def fit(self, X, y):
        if len(self.made) >= self.interrupt_at:
            raise KeyboardInterrupt
        self.before_ = getattr(self, "path_", ()) if self.warm_start else ()
        self.path_ = (*self.before_, self.C)
        self.made.append((self.C, self.other, len(X)))
        self.classes_, counts = np.unique(y, return_counts=True)
        self.answer_ = self.classes_[np.argmax(counts)]
        return self

    def predict(self, X):
        return np.full(len(X), self.answer_)


@pytest.fixture
def counting(monkeypatch):
    monkeypatch.setattr(Counting, "made", [])
    monkeypatch.setattr(Counting, "interrupt_at", 10**9)
    return Counting()


def middle(model, X, y):
    """Return a score with its maximum at C = 1 and other = 0."""
    return -abs(np.log10(model.C)) - model.other


# --- agreement with GridSearchCV


@pytest.mark.parametrize("weights", [None, np.arange(90) % 3])
def test_cv_results_match_grid_search(weights):
    given = {} if weights is None else {"sample_weight": weights}
    model = LogisticRegression()
    with sklearn.config_context(enable_metadata_routing=True):
        model.set_fit_request(sample_weight=True).set_score_request(sample_weight=True)
        theirs = GridSearchCV(model, GRID, cv=FOLDS).fit(X, y, **given)
        routed = PathSearchCV(model, GRID, cv=FOLDS).fit(X, y, **given)
    ours = PathSearchCV(LogisticRegression(), GRID, cv=FOLDS).fit(X, y, **given)
    for found in (ours, routed):
        assert theirs.cv_results_.keys() <= found.cv_results_.keys()
        for name, values in theirs.cv_results_.items():
            if not name.endswith("_time"):
                assert_array_equal(found.cv_results_[name], values, strict=name.startswith(("rank", "mean", "split")))
        assert (found.best_params_, found.best_score_) == (theirs.best_params_, theirs.best_score_)
        assert (found.best_index_, found.n_splits_) == (theirs.best_index_, 3)
        assert_array_equal(found.best_estimator_.coef_, theirs.best_estimator_.coef_)
        assert found.refit_time_ > 0
    assert np.all(ours.cv_results_["mean_fit_time"] > 0)


def test_several_scores_match_grid_search():
    scoring = {"right": "accuracy", "loss": "neg_log_loss"}
    theirs = GridSearchCV(LogisticRegression(), GRID, cv=FOLDS, scoring=scoring, refit="loss").fit(X, y)
    ours = PathSearchCV(LogisticRegression(), GRID, cv=FOLDS, scoring=scoring, refit="loss").fit(X, y)
    for name in ("mean_test_right", "std_test_right", "rank_test_right", "split1_test_loss", "mean_test_loss"):
        np.testing.assert_allclose(ours.cv_results_[name], theirs.cv_results_[name], rtol=1e-12)
    assert ours.best_params_ == theirs.best_params_
    named = PathSearchCV(LogisticRegression(), GRID, cv=FOLDS, scoring=["accuracy", "f1_macro"], refit="accuracy")
    assert {"mean_test_accuracy", "mean_test_f1_macro"} <= named.fit(X, y).cv_results_.keys()
    with pytest.raises(ValueError, match=r"`refit` must name .* one of accuracy, f1_macro; got True"):
        named.set_params(refit=True).fit(X, y)
    with pytest.raises(ValueError, match="one of accuracy, f1_macro; got 'f2'"):
        named.set_params(refit="f2").fit(X, y)


def test_out_of_fold_predictions_match_cross_val_predict():
    ours = PathSearchCV(LogisticRegression(), {"C": [0.1]}, cv=FOLDS).fit(X, y)
    model = LogisticRegression(C=0.1)
    assert_array_equal(ours.out_of_fold_.rows, np.arange(90))
    assert_array_equal(ours.out_of_fold_.predictions, cross_val_predict(model, X, y, cv=FOLDS))
    scores = cross_val_predict(model, X, y, cv=FOLDS, method="decision_function")
    assert_array_equal(ours.out_of_fold_.decisions, scores)
    repeated = PathSearchCV(Ridge(), {"alpha": [1.0]}, cv=RepeatedKFold(n_splits=3, n_repeats=2)).fit(X, y)
    assert_array_equal(repeated.out_of_fold_.rows, np.repeat(np.arange(90), 2))
    assert repeated.out_of_fold_.decisions is None


def test_groups_are_passed_to_splitter():
    names = np.repeat(np.arange(9), 10)
    search = PathSearchCV(LogisticRegression(), {"C": [1.0]}, cv=GroupKFold(3)).fit(X, y, groups=names)
    for record in search.records_:
        assert not set(names[record.rows]) & set(np.delete(names, record.rows))
    with sklearn.config_context(enable_metadata_routing=True):
        routed = PathSearchCV(LogisticRegression(), {"C": [1.0]}, cv=GroupKFold(3)).fit(X, y, groups=names)
    assert_array_equal(routed.cv_results_["mean_test_score"], search.cv_results_["mean_test_score"])


def test_search_supports_frames_sparse_X_and_pipelines():
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    plain = PathSearchCV(LogisticRegression(), GRID, cv=FOLDS).fit(X, y)
    named = PathSearchCV(LogisticRegression(), GRID, cv=FOLDS).fit(frame, list(y))
    sparse = PathSearchCV(LogisticRegression(), GRID, cv=FOLDS).fit(csr_array(X), y)
    assert list(named.feature_names_in_) == ["a", "b", "c"]
    assert_array_equal(named.predict(frame), plain.predict(X))
    np.testing.assert_allclose(sparse.cv_results_["mean_test_score"], plain.cv_results_["mean_test_score"])
    steps = make_pipeline(StandardScaler(), ilsvm(4, max_iter=3))
    grid = {"ilsvmclassifier__C": [0.1, 1.0], "standardscaler__with_mean": [True, False]}
    search = PathSearchCV(steps, grid, along="ilsvmclassifier__C", descending=True, cv=2).fit(X, y)
    np.testing.assert_allclose(search.cv_results_["mean_n_features"] % 0.5, 0)
    assert search.predict(X).shape == (90,)
    assert not search.best_estimator_[-1].warm_start
    factors = PathSearchCV(PCA(), {"n_components": [1, 2]}, cv=2).fit(X)
    assert factors.transform(X).shape == (90, factors.n_components_)
    assert not hasattr(factors, "predict")
    assert factors.out_of_fold_.predictions is None


# --- paths


@pytest.mark.parametrize("descending", [False, True])
def test_path_warm_starts_each_fit_from_the_previous_one(descending):
    model = SGDClassifier(max_iter=2, tol=None, random_state=0)
    grid = {"alpha": [1e-2, 1e-4, 1e-3], "loss": ["hinge", "log_loss"]}
    search = PathSearchCV(model, grid, along="alpha", descending=descending, cv=FOLDS).fit(X, y)
    order = sorted(grid["alpha"], reverse=descending)

    def along(rows, loss):
        fits = clone(model).set_params(warm_start=True, loss=loss)
        return {alpha: clone_fitted(fits.set_params(alpha=alpha).fit(X[rows], y[rows])) for alpha in order}

    results = search.cv_results_
    assert results["param_alpha"].tolist() == sorted(grid["alpha"]) * 2
    for fold, (train, test) in enumerate(FOLDS.split(X, y)):
        by_hand = {loss: along(train, loss) for loss in grid["loss"]}
        expected = [by_hand[s["loss"]][s["alpha"]].score(X[test], y[test]) for s in results["params"]]
        assert_array_equal(results[f"split{fold}_test_score"], expected)
    best = search.best_params_
    assert_array_equal(search.best_estimator_.coef_, along(np.arange(90), best["loss"])[best["alpha"]].coef_)
    assert not search.best_estimator_.warm_start


def clone_fitted(model):
    return pickle.loads(pickle.dumps(model))


def test_search_does_not_depend_on_n_jobs():
    search = PathSearchCV(ilsvm(4, max_iter=3), {"C": [0.1, 1.0]}, along="C", descending=True, cv=2)
    heard = []
    one = clone(search).fit(X, y)
    two = clone(search).set_params(n_jobs=2).fit(X, y, on_result=heard.append)
    assert {record.key for record in heard} == {record.key for record in one.records_}
    assert_array_equal(one.cv_results_["mean_test_score"], two.cv_results_["mean_test_score"])
    assert_array_equal(one.components_, two.components_)
    assert two.best_estimator_.n_jobs is None


def test_random_state_is_set_on_every_pipeline_step():
    steps = make_pipeline(PCA(2), SGDClassifier())
    search = PathSearchCV(steps, {"sgdclassifier__alpha": [1e-3]}, cv=2, random_state=3).fit(X, y)
    seeds = {search.best_estimator_[0].random_state, search.best_estimator_[1].random_state}
    assert len(seeds) == 1
    assert seeds != {None}


# --- metadata


def test_task_is_passed_to_predictions_and_scores():
    rows, values, task = groups()
    targets = read_targets(values, task, rows, numeric=True)
    random = np.random.RandomState(0)
    seed = random.randint(np.iinfo(np.int32).max)
    folds = list(multitask_folds(2, len(rows), targets, targets.tasks, random))
    own, named = (regressor_cv(scoring=one, include_inputs=(False,)).fit(rows, values, task) for one in (None, "r2"))
    np.testing.assert_allclose(own.cv_results_["mean_test_score"], named.cv_results_["mean_test_score"])
    model = regressor(max_iter=8, random_state=seed)
    ours = PathSearchCV(model, {"C": (0.03, 0.3)}, along="C", cv=folds, scoring="r2")
    ours.fit(rows, values, task=task)
    assert_array_equal(ours.cv_results_["mean_test_score"], named.cv_results_["mean_test_score"])
    assert_array_equal(ours.out_of_fold_.predictions, named.out_of_fold_.predictions)
    assert_array_equal(ours.predict(rows, task=task), named.predict(rows, task))
    assert ours.score(rows, values, task=task) == named.score(rows, values, task)
    ranked = classifier_cv(scoring="roc_auc").fit(rows, (values > np.median(values)).astype(int), task=task)
    assert 0.5 < ranked.best_score_ <= 1.0
    with pytest.raises(ValueError, match="does not support missing targets"):
        regressor_cv(scoring="r2").fit(*(numbers()[0], holes(numbers()[1])))


def test_sample_weight_is_used_by_scorers_that_accept_it():
    weights = np.where(y == 0, 0.0, 1.0)
    weights[::7] = 2.0
    search = PathSearchCV(
        LogisticRegression(),
        {"C": [1.0]},
        cv=FOLDS,
        scoring={"own": None, "named": "accuracy", "plain": lambda model, X, y: model.score(X, y)},
        refit="own",
    ).fit(X, y, sample_weight=weights)
    for record in search.records_:
        right = record.predictions == y[record.rows]
        assert record.scores["own"] == pytest.approx(np.average(right, weights=weights[record.rows]))
        assert record.scores["named"] == record.scores["own"]
        assert record.scores["plain"] == np.mean(right) != record.scores["own"]


@pytest.mark.parametrize("margins", ["consistent", "decoupled"])
def test_multitask_sample_weight_is_used_in_fits_and_scores(margins):
    rows, values, task = groups()
    weights = (np.arange(len(rows)) % 4).astype(float)
    some = weights > 0
    model = regressor_cv(margins=margins, include_inputs=(False,), cv=KFold(2)).fit(rows, values, task, weights)
    assert not np.any(np.isin(model.out_of_fold_.rows, np.flatnonzero(~some)))
    without = regressor_cv(margins=margins, include_inputs=(False,), cv=KFold(2))
    without.fit(rows[some], values[some], task[some], weights[some])
    np.testing.assert_allclose(model.cv_results_["mean_test_score"], without.cv_results_["mean_test_score"])
    np.testing.assert_allclose(model.predict(rows, task), without.predict(rows, task))
    once = regressor_cv(margins=margins, include_inputs=(False,), cv=KFold(2)).fit(rows[some], values[some], task[some])
    assert np.all(once.cv_results_["mean_test_score"] != model.cv_results_["mean_test_score"])


def test_listed_folds_are_indices_into_X():
    folds = [(np.arange(0, 90, 2), np.arange(1, 90, 2)), (np.arange(1, 90, 2), np.arange(0, 90, 2))]
    some = np.where(np.arange(90) % 3, y, -1)
    search = ilsvm_cv(Cs=(1.0,), cv=folds, unlabeled=-1).fit(X, some)
    assert_array_equal(search.out_of_fold_.rows, np.flatnonzero(some >= 0))
    assert_array_equal(search.records_[0].rows, [row for row in range(1, 90, 2) if row % 3])
    rows, values, task = groups()
    missing = np.where(np.arange(120) % 3, values, np.nan)
    folds = [(np.arange(0, 120, 2), np.arange(1, 120, 2))]
    several = regressor_cv(Cs=(0.1,), include_inputs=(False,), cv=folds).fit(rows, missing, task=task)
    assert_array_equal(several.out_of_fold_.rows, [row for row in range(1, 120, 2) if row % 3])


def test_search_predicts_each_fold_once_for_all_scores():
    asked = Counter()

    class Asked(LogisticRegression):
        def decision_function(self, X):
            asked[len(X)] += 1
            return super().decision_function(X)

    scoring = {"own": None, "accuracy": "accuracy", "f1": "f1_macro", "mine": lambda model, X, y: model.score(X, y)}
    PathSearchCV(Asked(), {"C": [0.1, 1.0]}, cv=FOLDS, scoring=scoring, refit="own").fit(X, y)
    assert asked == {30: 6}


# --- records


def search_of(counting, **parameters):
    grid = {"other": [0.0, 0.5], "C": [10.0, 0.1, 1.0]}
    return PathSearchCV(counting, grid, **{"along": "C", "cv": 2, "scoring": middle} | parameters)


def test_on_result_is_called_after_each_fit(counting):
    heard = []
    search = search_of(counting).fit(X, y, on_result=lambda record: heard.append((record, len(Counting.made))))
    assert [n for _, n in heard] == list(range(1, 13))
    assert [record for record, _ in heard] == search.records_
    assert [record.fold for record, _ in heard] == [0, 0, 0, 1, 1, 1] * 2  # all folds of a path precede the next path
    assert [record.params["C"] for record, _ in heard[:3]] == [0.1, 1.0, 10.0]
    for record, _ in heard:
        assert record.score == record.scores["score"] == -abs(np.log10(record.params["C"])) - record.params["other"]
        assert record.fit_seconds > 0
        assert record.score_seconds > 0
        assert record.n_features is None
    assert np.all(np.isnan(search.cv_results_["mean_n_features"]))


def test_read_records_restores_written_records(tmp_path):
    rows, classes = digits()
    names = np.array(["zero", "one", "two", "three"])[classes]
    path = tmp_path / "records.jsonl"
    search = ilsvm_cv(include_inputs=(False, True)).fit(
        rows, names, on_result=lambda record: write_records([record], path, append=True)
    )
    found = read_records(path)
    assert len(found) == len(search.records_) == 8
    for old, new in zip(search.records_, found, strict=True):
        assert (old.params, old.fold, old.scores, old.n_features) == (new.params, new.fold, new.scores, new.n_features)
        assert (old.fit_seconds, old.score_seconds, old.key) == (new.fit_seconds, new.score_seconds, new.key)
        for name in ("rows", "predictions", "decisions"):
            assert_array_equal(getattr(old, name), getattr(new, name), strict=True)
    with path.open("a") as file:
        file.write(path.read_text().split("\n")[0][:-5])  # simulates a process that was killed while writing
    assert len(read_records(path)) == 8
    write_records(found[:3], path)
    assert len(read_records(path)) == 3
    mixed = np.array(["a", 1, None, True], dtype=object)
    odd = replace(found[0], rows=np.arange(4), predictions=mixed, decisions=None, params={"C": np.float64(3)})
    write_records([odd], path)
    (back,) = read_records(path)
    assert back.predictions.tolist() == mixed.tolist()
    assert back.params == {"C": 3.0}
    with pytest.raises(ValueError, match="JSON does not support a value of the setting"):
        write_records([replace(odd, params={"estimator": object()})], path)


@pytest.mark.parametrize(
    "change",
    [{"rows": [0, 1]}, {"predictions": ["a"]}, {"scores": {"score": "high"}}, {"fold": None}, {"a": 1}],
    ids=str,
)
def test_read_records_with_invalid_line_raises(change, tmp_path, counting):
    path = tmp_path / "records.jsonl"
    write_records(search_of(counting).fit(X, y).records_[:2], path)
    first, second = path.read_text().splitlines()
    path.write_text(f"{first}\n{json.dumps(json.loads(second) | change)}\n")
    with pytest.raises(ValueError, match="Line 2 of"):
        read_records(path)


def test_search_resumes_from_records(counting):
    whole = search_of(counting).fit(X, y)
    records = whole.records_

    def made_again(earlier):
        Counting.made.clear()
        heard = []
        again = search_of(counting).fit(X, y, records=earlier, on_result=heard.append)
        for name in ("mean_test_score", "rank_test_score", "split1_test_score"):
            assert_array_equal(again.cv_results_[name], whole.cv_results_[name])
        assert_array_equal(again.out_of_fold_.predictions, whole.out_of_fold_.predictions)
        assert len(again.records_) == 12
        return [C for C, _, n in Counting.made if n < 90], [record.params["C"] for record in heard]

    assert made_again(records) == ([], [])
    assert made_again(records[1:]) == ([0.1], [0.1])  # only the first setting of a path is missing
    assert made_again(records[:2] + records[3:]) == ([0.1, 1.0, 10.0], [10.0])  # the last setting needs the whole path
    assert made_again(records[:8]) == ([0.1, 1.0, 10.0] * 2, [10.0, 0.1, 1.0, 10.0])
    assert made_again([replace(one, params={"other": 7.0, "C": 0.1}) for one in records]) == (
        [0.1, 1.0, 10.0] * 4,
        [0.1, 1.0, 10.0] * 4,
    )
    Counting.made.clear()
    search_of(counting, along=None).fit(X, y, records=records[:2] + records[3:])
    assert [C for C, _, n in Counting.made if n < 90] == [10.0]  # without a path only this fit is missing


def test_records_of_another_search_raise(counting):
    records = search_of(counting).fit(X, y).records_
    with pytest.raises(ValueError, match="other folds: fold 0 held out other samples"):
        search_of(counting, cv=KFold(2, shuffle=True, random_state=1)).fit(X, y, records=records)
    with pytest.raises(ValueError, match=r"must have the score 'loss'; got \['score'\]"):
        search_of(counting, scoring={"loss": middle}, refit="loss").fit(X, y, records=records)


# --- Ctrl-C


def test_interrupt_keeps_best_setting_tried_on_all_folds(counting, monkeypatch):
    monkeypatch.setattr(Counting, "interrupt_at", 5)  # before the last fit of the first path
    heard = []

    def go_on(record):
        heard.append(record)
        if len(heard) == 5:
            monkeypatch.setattr(Counting, "interrupt_at", 10**9)
            raise KeyboardInterrupt

    with pytest.warns(InterruptedWarning, match="after 5 of 12 fits; the best of 2 settings that were tried"):
        search = search_of(counting).fit(X, y, on_result=go_on)
    assert search.best_params_ == {"other": 0.0, "C": 1.0}
    assert search.best_estimator_.path_ == (0.1, 1.0)
    assert search.predict(X).shape == (90,)
    results = search.cv_results_
    assert results["rank_test_score"].tolist() == [2, 1, 3, 3, 3, 3]
    assert np.isnan(results["split1_test_score"]).tolist() == [False, False, True, True, True, True]
    assert_array_equal(search.records_, heard)
    whole = search_of(counting).fit(X, y)
    Counting.made.clear()
    again = search_of(counting).fit(X, y, records=search.records_)
    assert_array_equal(again.cv_results_["mean_test_score"], whole.cv_results_["mean_test_score"])
    assert len([made for made in Counting.made if made[2] < 90]) == 3 + 6


def test_interrupt_in_first_fold_raises_with_records(counting, monkeypatch):
    monkeypatch.setattr(Counting, "interrupt_at", 2)
    search = search_of(counting)
    with pytest.raises(SearchInterrupted, match="interrupted after 2 fits") as stopped:
        search.fit(X, y)
    assert [record.params["C"] for record in stopped.value.records] == [0.1, 1.0]
    assert search.records_ == stopped.value.records
    assert best_so_far(stopped.value.records) == {"other": 0.0, "C": 1.0}
    with pytest.raises(sklearn.exceptions.NotFittedError):
        search.predict(X)
    with pytest.raises(ValueError, match="records is empty"):
        best_so_far([])


def test_best_so_far_prefers_settings_with_most_folds(counting):
    records = search_of(counting).fit(X, y).records_
    some = [r for r in records if r.params["C"] == 10.0] + [r for r in records if r.params["C"] == 1.0 and r.fold == 0]
    assert best_so_far(some) == {"other": 0.0, "C": 10.0}
    two = [replace(r, scores={"a": r.score, "b": -r.score}) for r in records]
    assert best_so_far(two) == {"other": 0.0, "C": 1.0}
    assert best_so_far(two, "b") in ({"other": 0.5, "C": 0.1}, {"other": 0.5, "C": 10.0})


SEARCH_FOR_EVER = """
import signal, time
import numpy as np
from regbayes import ILSVMClassifier, PathSearchCV
from regbayes.search import SearchInterrupted

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell in the background has it ignored
rng = np.random.default_rng(0)
X = rng.standard_normal((200, 10))
y = (X[:, 0] > 0).astype(int)
grid = {"C": np.geomspace(0.01, 1, 3), "alpha": np.linspace(1, 2, 4000)}
search = PathSearchCV(ILSVMClassifier(8, max_iter=30), grid, along="C", cv=2, n_jobs=2, random_state=0)
try:
    search.fit(X, y, on_result=lambda record: print("record", flush=True))
    print("fitted", len(search.records_), search.best_estimator_.n_components_)
except SearchInterrupted as stopped:
    print("stopped", len(stopped.records))
"""


@pytest.mark.slow
@pytest.mark.parametrize("send", [os.kill, os.killpg], ids=["this process", "all processes, as a terminal does"])
def test_sigint_ends_worker_processes(send):
    command = [sys.executable, "-W", "ignore", "-c", SEARCH_FOR_EVER]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        for _ in range(12):
            assert process.stdout.readline().strip() == "record"
        send(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=120)
    finally:
        process.kill()
    assert "fitted" in out, err
    assert process.returncode == 0, err
    # An idle joblib worker may print a traceback of its own; the search must not.
    assert "Traceback" not in err or "LokyProcess" in err


# --- warnings and errors


@pytest.mark.parametrize(
    ("best", "expected"),
    [
        ({"C": 10.0}, ["C=10.0 is the largest value that was tried: add 100.0 to param_grid['C']"]),
        ({"C": 0.1}, ["C=0.1 is the smallest value that was tried: add 0.01 to param_grid['C']"]),
        ({"C": 1.0, "other": 0.5}, ["other=0.5 is the largest value that was tried: add 1.0 to param_grid['other']"]),
        ({"C": 1.0, "other": 0.0}, []),  # zero is the lower bound, so nothing smaller can be tried
        ({"C": 1.0}, []),
    ],
    ids=str,
)
def test_best_value_at_edge_of_grid_warns(best, expected, counting):
    def scoring(model, X, y):
        return -sum(abs(getattr(model, name) - value) for name, value in best.items())

    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always", GridEdgeWarning)
        search_of(counting, scoring=scoring).fit(X, y)
    assert [str(one.message) for one in heard] == [f"PathSearchCV: the best {text}." for text in expected]


def test_grid_edge_warning_names_list_of_two_or_more_values():
    score = {"scoring": lambda model, X, y: model.C}
    with pytest.warns(GridEdgeWarning, match="ILSVMClassifierCV: the best C=1.0 .* add 10.0 to Cs"):
        ilsvm_cv(**score).fit(X, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error", GridEdgeWarning)
        ilsvm_cv(Cs=(1.0,), **score).fit(X, y)
        ilsvm_cv(scoring=lambda model, X, y: 0.0).fit(X, y)  # a value inside the grid has the same score
        ilsvm_cv(Cs=(1.0,), include_inputs=(False, True), scoring=lambda model, X, y: model.include_inputs).fit(X, y)


@pytest.mark.parametrize(
    ("parameters", "error", "message"),
    [
        ({"along": "alpha"}, ValueError, "along='alpha' must be one of the searched parameters: C, fit_intercept"),
        ({"estimator": Ridge(), "param_grid": {"alpha": [1]}, "along": "alpha"}, ValueError, "parameter 'warm_start'"),
        ({"param_grid": {"C": []}}, ValueError, "Parameter grid for parameter 'C' need to be a non-empty sequence"),
        ({"param_grid": {"C": 1.0}}, TypeError, "Parameter grid for parameter 'C' needs to be a list"),
        ({"param_grid": {"c": [1.0]}}, ValueError, "Invalid parameter 'c' for estimator LogisticRegression"),
        ({"param_grid": {"C": [1.0, -1.0]}}, ValueError, "The 'C' parameter of LogisticRegression"),
        ({"scoring": "nope"}, ValueError, "'scoring' parameter .* Got 'nope'"),
        ({"scoring": lambda model, X, y: np.nan}, ValueError, "all settings have a score of NaN"),
        ({"cv": 1}, ValueError, "'cv' parameter"),
    ],
)  # fmt: skip
def test_search_with_invalid_parameters_raises(parameters, error, message):
    search = PathSearchCV(LogisticRegression(), GRID).set_params(**parameters)
    with pytest.raises(error, match=message):
        search.fit(X, y)


def test_refit_false_gives_results_without_best_estimator():
    search = PathSearchCV(LogisticRegression(), GRID, refit=False, cv=FOLDS).fit(X, y)
    assert search.best_params_ == PathSearchCV(LogisticRegression(), GRID, cv=FOLDS).fit(X, y).best_params_
    assert search.best_params_["C"] == search.C_
    assert not hasattr(search, "predict")
    assert not hasattr(search, "best_estimator_")
    assert search.out_of_fold_.predictions.shape == (90,)


def test_setting_with_nan_score_is_never_chosen(counting):
    search = search_of(counting, scoring=lambda model, X, y: np.nan if model.C == 1.0 else model.C).fit(X, y)
    assert search.best_params_["C"] == 10.0
    assert search.cv_results_["rank_test_score"].tolist() == [3, 5, 1, 3, 5, 1]


# --- persistence


def test_search_can_be_saved_pickled_and_cloned(tmp_path):
    search = PathSearchCV(ilsvm(4, max_iter=3), {"C": [0.1, 1.0], "temperature": ["auto", 0.1]}, cv=2).fit(X, y)
    search.save(tmp_path / "search.rb")
    for found in (regbayes.load(tmp_path / "search.rb"), pickle.loads(pickle.dumps(search))):
        assert_array_equal(found.predict(X), search.predict(X))
        assert_array_equal(found.out_of_fold_.predictions, search.out_of_fold_.predictions)
        assert found.best_params_ == search.best_params_
        assert found.cv_results_["params"] == search.cv_results_["params"]
        assert_array_equal(found.cv_results_["param_temperature"], search.cv_results_["param_temperature"])
        assert_array_equal(found.components_, search.components_)
    assert not hasattr(clone(search), "components_")


# --- the searches of the models


@pytest.mark.parametrize(
    "search", [ILSVMClassifierCV, MedLDAClassifierCV, MedLDARegressorCV, MultiTaskILSVMClassifierCV]
)
def test_search_has_every_parameter_of_its_model(search):
    parameters, own = search._model().get_params(), search().get_params()
    alone = {"warm_start", "deterministic"}  # paths are always warm-started, and searches run on the CPU
    assert {search._lists.get(name, name) for name in parameters.keys() - alone} <= own.keys()
    for name in parameters.keys() & own.keys() - search._lists.keys():
        assert own[name] == parameters[name] or name == "verbose"
    assert len(own["Cs"]) > 2  # otherwise the best C is always at the end of its list


@pytest.mark.parametrize("make", [MedLDAClassifierCV, MedLDARegressorCV])
@pytest.mark.parametrize("inference", ["gibbs", "variational"])
def test_topic_search_matches_separate_fits(make, inference):
    documents, shares, _ = draw_documents(60)
    targets = shares[:, 0] > 0.3 if make is MedLDAClassifierCV else shares[:, 0]
    weights = 1.0 + np.arange(60) % 2
    search = make((2, 3), Cs=(0.3, 1.0), inference=inference, max_iter=4, cv=2, random_state=0)
    search.fit(documents, targets, weights)
    results = search.cv_results_
    assert [(one["n_components"], one["C"]) for one in results["params"]] == [(2, 0.3), (2, 1.0), (3, 0.3), (3, 1.0)]
    model = clone(search.best_estimator_)
    for record in search.records_:
        train = np.setdiff1d(np.arange(60), record.rows)
        fitted = clone(model).set_params(**record.params).fit(documents[train], targets[train], weights[train])
        score = fitted.score(documents[record.rows], targets[record.rows], weights[record.rows])
        assert record.score == pytest.approx(score, rel=1e-12)
        assert record.n_features == record.params["n_components"]
    assert_array_equal(search.transform(documents), model.fit(documents, targets, weights).transform(documents))
    assert search.transform(documents).shape == (60, search.n_components_)
    assert search.components_.shape[0] == search.n_components_


def test_unlabeled_samples_are_in_every_training_part():
    X, y = digits()
    seen = []

    def scoring(model, X, y):
        seen.append((len(X), len(model.embedding_)))
        return model.score(X, y)

    ilsvm_cv(Cs=(1.0,), unlabeled=-1, scoring=scoring).fit(X, np.where(np.arange(160) % 2, y, -1))
    assert all(n_fitted == 160 - n_scored for n_scored, n_fitted in seen)
    assert sum(n_scored for n_scored, _ in seen) == 80


def test_multitask_folds_stratify_by_task():
    rng = np.random.default_rng(0)
    task = np.concatenate([np.repeat(np.arange(5), 20), [7]])  # one task has a single sample
    y = rng.standard_normal(len(task))
    y[:4] = np.nan
    X = rng.standard_normal((len(task), 2))
    targets = read_targets(y, task, X, numeric=True)
    folds = list(multitask_folds(4, len(X), targets, targets.tasks, np.random.RandomState(0)))
    assert len(folds) == 4
    for train, test in folds:
        assert not set(train) & set(test)
        assert set(train) | set(test) == set(range(len(task)))
        assert set(range(4)) <= set(train)  # samples without a target
        assert len(task) - 1 in train  # the only sample of its task
        assert np.ptp(np.bincount(task[test], minlength=5)) <= 1
    tested = np.concatenate([test for _, test in folds])
    assert sorted(tested) == list(range(4, len(task) - 1))
    for fold in multitask_folds(KFold(3), len(X), targets, targets.tasks, np.random.RandomState(0)):
        assert len(task) - 1 in fold[0]
