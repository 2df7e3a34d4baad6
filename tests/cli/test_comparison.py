"""Comparison with baselines: scores, differences and messages."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_array
from sklearn.dummy import DummyClassifier, DummyRegressor
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.feature_extraction.text import TfidfTransformer, TfidfVectorizer
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.metrics import accuracy_score, r2_score
from sklearn.model_selection import GridSearchCV, KFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.svm import LinearSVC

from cli_tools import run_here
from regbayes import load
from regbayes.cli import comparison
from regbayes.cli.comparison import compare
from regbayes.cli.context import FitContext
from regbayes.cli.inputs import TOKEN, TableInputs
from regbayes.cli.options import FitRequest
from regbayes.cli.output import Output
from regbayes.cli.read import Table, make_frame
from regbayes.cli.targets import TargetSpec

FOLDS = KFold(4, shuffle=True, random_state=0)


def context_of(X, y, kind, names=("y",), **more) -> FitContext:
    """Return the fit context of these rows."""
    spec = TargetSpec(tuple(names), kind, (False,) * len(names))
    table, request = Table(make_frame([]), ""), FitRequest(data="", output="")
    row_names = np.array([f"row {i + 1}" for i in range(len(y))])
    return FitContext(request, Output(quiet=True), table, spec, TableInputs(), X, y, row_names, **more)


def judge(context: FitContext, predicted, n_settings=4, seconds=60.0):
    """Compare a model with the given out-of-fold predictions with baselines."""
    rows = [test for _, test in FOLDS.split(context.y)]
    model = {"role": "model", "name": "a model", "size": 3, "size_unit": "features", "seconds": seconds, "note": ""}
    predictions = [np.asarray(predicted)[test] for test in rows]
    return compare(context, model, rows, predictions, estimator=None, n_settings=n_settings, with_baselines=True)


def score_of(found, role: str) -> float:
    return next(row["score"] for row in found["systems"] if row["role"] == role)


@pytest.fixture(scope="module")
def numbers() -> FitContext:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((80, 3))
    return context_of(X, X @ [1.0, -2.0, 0.0] + 0.3 * rng.standard_normal(80), "regressor")


@pytest.fixture(scope="module")
def classes(numbers) -> FitContext:
    return context_of(numbers.X, np.array(["low", "middle", "high"])[np.digitize(numbers.y, [-1.0, 1.0])], "classifier")


def test_baseline_scores_match_cross_val_predict(numbers, classes):
    found = judge(numbers, np.zeros(80))
    X, y = numbers.X, numbers.y
    wanted = {
        "baseline": DummyRegressor(),
        "linear": make_pipeline(StandardScaler(), RidgeCV(np.logspace(-2, 4, 7))),
        "boosting": HistGradientBoostingRegressor(random_state=0),
    }
    for role, model in wanted.items():
        assert score_of(found, role) == pytest.approx(r2_score(y, cross_val_predict(model, X, y, cv=FOLDS)))
    assert score_of(found, "baseline") < 0  # the means of training and test rows differ
    assert score_of(found, "model") == pytest.approx(r2_score(y, np.zeros(80)))
    found, y = judge(classes, np.full(80, "low")), classes.y
    wanted = {
        "baseline": DummyClassifier(strategy="most_frequent"),
        "linear": make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)),
        "boosting": HistGradientBoostingClassifier(random_state=0),
    }
    for role, model in wanted.items():
        assert score_of(found, role) == pytest.approx(accuracy_score(y, cross_val_predict(model, X, y, cv=FOLDS)))
    assert [row["size_unit"] for row in found["systems"]] == ["features", "class", "inputs", "trees"]


def test_integer_weights_match_repeated_rows(numbers):
    twice = np.repeat(np.arange(80), 2)
    found = judge(replace(numbers, weights=np.full(80, 2.0)), numbers.y)
    plain = judge(numbers, numbers.y)
    for role in ("baseline", "linear"):  # constant weights only change the relative ridge penalty, slightly
        assert score_of(found, role) == pytest.approx(score_of(plain, role), abs=0.02)
    heavy = np.where(np.arange(80) < 40, 2.0, 1.0)
    predicted = numbers.y + 0.1 * np.arange(80)
    weighed = replace(numbers, weights=heavy).score(predicted, np.arange(80))
    rows = np.concatenate([twice[:80], np.arange(40, 80)])
    assert weighed == pytest.approx(r2_score(numbers.y[rows], predicted[rows]))


def test_tasks_add_indicator_inputs_and_task_baseline(numbers):
    task = np.array(["a", "b"])[np.arange(80) % 2]
    y = numbers.y + 10 * (task == "b")
    found = judge(replace(numbers, y=y, task=task), np.zeros(80))
    assert [row["name"] for row in found["systems"][1:3]] == ["always the mean", "always the mean of its task"]
    X = np.column_stack([numbers.X, OneHotEncoder(sparse_output=False).fit_transform(task[:, None])])
    ridge = make_pipeline(StandardScaler(), RidgeCV(np.logspace(-2, 4, 7)))
    assert score_of(found, "linear") == pytest.approx(r2_score(y, cross_val_predict(ridge, X, y, cv=FOLDS)))
    by_task = np.empty(80)
    for train, test in FOLDS.split(X):
        for name in "ab":
            by_task[test[task[test] == name]] = y[train[task[train] == name]].mean()
    assert found["systems"][2]["score"] == pytest.approx(r2_score(y, by_task))


def test_several_targets_may_have_missing_values(numbers, classes):
    Y = np.column_stack([numbers.y, numbers.X[:, 0] + 0.1])
    Y[::7, 0] = np.nan
    found = judge(context_of(numbers.X, Y, "regressor", ("y", "z")), np.zeros((80, 2)))
    assert score_of(found, "linear") > 0.9 > score_of(found, "baseline")
    labels = np.column_stack([classes.y.astype(object), (numbers.X[:, 0] > 0).astype(float).astype(object)])
    labels[::7, 0] = None
    problem = context_of(classes.X, labels, "multilabel", ("level", "sign"))
    answers = np.column_stack([np.full(80, "low", dtype=object), np.ones(80, dtype=object)])
    found = judge(problem, answers)
    assert score_of(found, "linear") > 0.85 > score_of(found, "baseline")
    assert found["never_predicted"] == ["level=high", "level=middle", "sign=0"]
    assert found["no_better_than_baseline"]


def test_text_baseline_uses_tf_idf_of_words_and_pairs(classes):
    """The baseline uses the texts, not the vocabulary of the model."""
    rng = np.random.default_rng(0)
    words = {"low": ["not good", "not well"], "middle": ["good", "well"], "high": ["very good", "very well"]}
    texts = [" ".join(rng.choice([*words[label], "all", "the"], 6)) for label in classes.y]
    found = judge(replace(classes, X=csr_array((80, 1)), texts=np.array(texts)), classes.y)
    pipeline = make_pipeline(TfidfVectorizer(sublinear_tf=True, token_pattern=TOKEN), LinearSVC())
    model = GridSearchCV(pipeline, {"tfidfvectorizer__ngram_range": [(1, 1), (1, 2)]}, cv=3)
    wanted = accuracy_score(classes.y, cross_val_predict(model, np.array(texts, dtype=object), classes.y, cv=FOLDS))
    assert [row["role"] for row in found["systems"]] == ["model", "baseline", "linear"]
    assert score_of(found, "linear") == pytest.approx(wanted)
    assert found["systems"][2]["size_unit"] == "words"


def test_count_baseline_uses_tf_idf_of_counts(classes):
    rng = np.random.default_rng(0)
    mean = 0.5 + 2 * (np.unique(classes.y, return_inverse=True)[1][:, None] == np.arange(6) // 2)
    counts = csr_array(rng.poisson(mean))
    table = replace(classes.table, counts=counts)
    found = judge(replace(classes, X=counts, table=table, texts=np.full(80, "")), classes.y)
    model = make_pipeline(TfidfTransformer(sublinear_tf=True), LinearSVC())
    wanted = accuracy_score(classes.y, cross_val_predict(model, counts, classes.y, cv=FOLDS))
    assert score_of(found, "linear") == pytest.approx(wanted)


def test_difference_error_matches_paired_standard_error(classes):
    rng = np.random.default_rng(1)
    answers = np.where(rng.random(80) < 0.3, "low", classes.y)
    row = judge(classes, answers)["systems"][1]
    base = cross_val_predict(DummyClassifier(strategy="most_frequent"), classes.X, classes.y, cv=FOLDS)
    gains = (base == classes.y).astype(float) - (answers == classes.y)
    assert row["difference"] == pytest.approx(gains.mean())
    assert row["error"] == pytest.approx(gains.std() / np.sqrt(80), rel=0.35)  # a rough estimate from twenty groups


def test_messages_describe_the_comparison(numbers, classes):
    good = judge(numbers, numbers.y)
    assert not good["no_better_than_baseline"]
    assert good["outperformed_by"] == []
    assert good["messages"] == [
        "The model's score is the best of 4 settings on these folds, and so slightly optimistic."
    ]
    assert judge(numbers, numbers.y, n_settings=1)["messages"] == []
    poor = judge(classes, np.where(classes.y == "low", "low", "middle"))
    assert poor["outperformed_by"][0] == "logistic regression"
    assert any("ogistic regression predicts clearly better (0." in sentence for sentence in poor["messages"])
    assert poor["never_predicted"] == ["high"]
    assert any("Never predicted on held-out rows: 'high'" in said for said in poor["messages"])
    same = judge(context_of(np.zeros((80, 1)), np.array(["a"] * 70 + ["b"] * 10), "classifier"), np.full(80, "a"))
    assert same["systems"][1]["difference"] == same["systems"][1]["error"] == 0
    assert same["messages"][0].startswith("This model is no better than a baseline")
    wild = judge(numbers, 100 * numbers.y)
    assert wild["no_better_than_baseline"]
    assert wild["messages"][0].startswith("This model is no better than a baseline")


def test_clear_difference_needs_two_errors_and_one_point(classes):
    """A difference of less than one point is not clear, however small its error is."""
    problem = context_of(
        np.tile(classes.X, (20, 1)), np.tile(np.where(classes.X[:, 0] > 0, "a", "b"), 20), "classifier"
    )
    for n_wrong, clear in ((8, False), (80, True)):
        predicted = problem.y.copy()
        wrong = np.random.default_rng(0).permutation(1600)[:n_wrong]
        predicted[wrong] = np.where(predicted[wrong] == "a", "b", "a")
        found = judge(problem, predicted)
        row = next(one for one in found["systems"] if one["role"] == "boosting")
        assert row["difference"] > 2 * row["error"]
        assert ("histogram gradient boosting" in found["outperformed_by"]) == clear


def test_weak_baseline_is_not_recommended(classes):
    y = np.array(["often", "seldom"])[(np.arange(80) % 3 == 0).astype(int)]
    problem = replace(classes, X=np.zeros((80, 3)), y=y)
    found = judge(problem, np.full(80, "seldom"))
    assert score_of(found, "linear") == score_of(found, "baseline") > score_of(found, "model")
    assert found["outperformed_by"] == []
    assert not any("predicts clearly better" in said for said in found["messages"])


def test_failing_or_slow_baseline_is_left_out(numbers, monkeypatch):
    monkeypatch.setattr(comparison, "PATIENCE_SECONDS", 0.0)
    found = judge(numbers, numbers.y, seconds=0.0)
    assert [row["score"] is None for row in found["systems"]] == [False, True, True, True]
    assert "left out: it takes longer than" in found["systems"][3]["note"]
    assert not found["no_better_than_baseline"]
    monkeypatch.undo()

    def broken(*_, **__):
        raise ValueError("no trees today")

    monkeypatch.setattr(HistGradientBoostingRegressor, "fit", broken)
    found = judge(numbers, numbers.y)
    assert found["systems"][3]["note"] == "failed: no trees today"
    assert score_of(found, "linear") is not None


def test_ctrl_c_ends_comparison_and_keeps_model(numbers, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(HistGradientBoostingRegressor, "fit", interrupted)
    found = judge(numbers, numbers.y)
    assert found["interrupted"]
    assert [row["role"] for row in found["systems"]] == ["model", "baseline", "linear"]


# --- on the command line


QUICK = ("--n-components", 4, "--max-iter", 5, "--folds", 3, "--C", 1, "--temperature", 0.2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Folder with a table; two inputs determine `side` and `sum`, and `noise` is independent."""
    place = tmp_path_factory.mktemp("worth")
    rng = np.random.default_rng(0)
    X = rng.standard_normal((90, 4))
    frame = pd.DataFrame(X, columns=list("abcd"))
    frame["noise"] = np.array(list("uvwx"))[rng.integers(4, size=90)]
    frame["side"] = np.where(X[:, 0] + X[:, 1] > 0, "right", "left")
    frame["sum"] = (X[:, 0] + X[:, 1]).round(3)
    frame.to_csv(place / "t.csv", index=False)
    return place


def fit(folder, target: str, *options):
    others = [option for name in ("noise", "side", "sum") if name != target for option in ("--ignore", name)]
    return run_here("fit", folder / "t.csv", "-t", target, *others, "-o", folder / "m", *QUICK, *options)


def test_poor_model_is_saved_with_banner_and_exit_code_0(folder):
    done = fit(folder, "noise", "--json")
    assert (done.code, done.json["no_better_than_baseline"]) == (0, True)
    assert any(warning.startswith("This model is no better than a baseline") for warning in done.json["warnings"])
    shown = fit(folder, "noise", "--quiet")
    assert "╭" in shown.err
    assert "This model is no better than a baseline" in shown.err
    assert "next" not in shown.out
    assert "no better than a baseline" in repr(load(folder / "m"))


def test_comparison_table_is_printed_and_saved(folder):
    shown = fit(folder, "side").out
    assert shown.count("±") == 6  # five systems and the score
    found = fit(folder, "side", "--json").json
    systems = {row["role"]: row for row in found["comparison"]["systems"]}
    assert list(systems) == ["model", "baseline", "linear", "boosting", "predictive"]
    assert systems["model"]["score"] == found["cross_validation"]["pooled"]
    assert systems["baseline"]["score"] == found["baseline_score"]
    assert systems["model"]["size"] == found["n_components_in_use"]
    saved = load(folder / "m").facts["comparison"]
    assert saved["messages"] == found["comparison"]["messages"]
    assert all(row["name"] in shown for row in saved["systems"])


def test_model_size_includes_inputs_used_for_prediction(folder):
    model = fit(folder, "side", "--include-inputs", "--json").json["comparison"]["systems"][0]
    assert model["size"] == load(folder / "m").estimator.n_components_ + 4
    assert model["size_unit"].endswith("and inputs")
    refused = fit(folder, "sum", "--include-inputs", "--slab", "half-normal")
    assert (refused.code, "--slab: MultiTaskILSVMRegressor does not have it" in refused.err) == (2, True)


def test_other_setting_is_fitted_to_all_targets_jointly(folder):
    """Targets share features, so separate fits would be other models."""
    options = ("--ignore", "noise", "-t", "sum", "-t", "a", "--ignore", "side", "-o", folder / "m", *QUICK, "--json")
    found = run_here("fit", folder / "t.csv", *options).json["comparison"]["systems"][-1]
    assert (found["role"], found["size_unit"]) == ("predictive", "features")
    assert found["size"] <= 4  # features of both targets
