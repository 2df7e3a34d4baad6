"""From a table to a model file: searches that agree with scikit-learn, are watched, and can be stopped."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import balanced_accuracy_score
from sklearn.model_selection import StratifiedKFold

from cli_tools import flowers
from regbayes import load
from regbayes.cli import Kind, scores
from regbayes.cli.errors import BadDataError, StoppedError, UserError
from regbayes.cli.modelfile import ModelFile, load_model
from regbayes.cli.options import FitRequest
from regbayes.cli.output import Output
from regbayes.cli.progress import SearchWatch
from regbayes.cli.scores import baseline_score, score_of
from regbayes.cli.search import fit_model, possible_folds
from regbayes.cli.tables import Table, make_frame, read_table
from regbayes.cli.training import train_table
from regbayes.datasets import make_ibp_multitask
from regbayes.search import FoldRecord

QUICK = {"n_components": [4], "max_iter": 5, "folds": 2}


def request(**options) -> FitRequest:
    return FitRequest(data="", output="", **options)


@dataclass(frozen=True)
class Problem:
    """What `fit_model` is given."""

    X: Any
    y: Any
    kind: Kind
    request: FitRequest
    task: Any = None

    def fit(self, output: Output | None = None):
        return fit_model(self.request, self.kind, self.X, self.y, self.task, output or quiet())


@pytest.fixture(scope="module")
def table(tmp_path_factory) -> Table:
    path = tmp_path_factory.mktemp("cli") / "flowers.csv"
    path.write_text(flowers())
    return read_table(str(path))


@pytest.fixture(scope="module")
def problem() -> Problem:
    rng = np.random.default_rng(0)
    y = np.arange(60) % 3
    X = rng.standard_normal((60, 3)) + y[:, None]
    return Problem(X, y, "classifier", request(C=[0.1, 1.0], **QUICK))


def quiet() -> Output:
    return Output(quiet=True)


def interrupt_after(n: int, monkeypatch) -> list[tuple[float, float]]:
    """Let the scoring of a search be interrupted after so many fits; return the list of C and score of each."""
    scored, done = scores.score_of, []

    def score(estimator, X, y, *, kind, balanced, sample_weight=None):
        if len(done) == n:
            raise KeyboardInterrupt
        done.append((estimator.C, scored(kind, y, estimator.predict(X), balanced=balanced)))
        return done[-1][1]

    monkeypatch.setattr("regbayes.cli.search.score_fit", score)
    return done


def test_a_model_is_saved_with_all_that_predicting_needs(table, tmp_path):
    model = train_table(request(target=["kind"], cv=False, **QUICK), table, quiet())
    model.save(tmp_path / "m")
    again = load_model(str(tmp_path / "m"))
    assert isinstance(load(tmp_path / "m"), ModelFile)
    np.testing.assert_array_equal(again.predict(table), model.predict(table))
    np.testing.assert_array_equal(again.encode(table), model.encode(table))
    assert again.target == model.target
    assert again.facts == model.facts
    assert again.report.title == "Predicting kind from flowers.csv"
    assert model.facts["rows"] == 90
    assert np.mean(model.predict(table) == table.column("kind")) > model.facts["baseline"]


def test_the_pipeline_takes_data_frames_in_python(table, tmp_path):
    train_table(request(target=["kind"], cv=False, **QUICK), table, quiet()).save(tmp_path / "m")
    model = load(tmp_path / "m")
    np.testing.assert_array_equal(model.pipeline.predict(table.frame), model.predict(table))
    assert model.pipeline[:-1].get_feature_names_out().tolist()[:2] == ["size", "width"]


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_search_is_that_of_the_estimator_and_its_predictions_are_of_unseen_rows(problem, capsys):
    from regbayes import ILSVMClassifierCV

    estimator, predictions, facts = problem.fit()
    folds = StratifiedKFold(2, shuffle=True, random_state=0)
    reference = ILSVMClassifierCV(4, Cs=(0.1, 1.0), max_iter=5, cv=folds, random_state=0).fit(problem.X, problem.y)
    capsys.readouterr()
    assert facts["settings"] == {"C": reference.C_}
    assert not facts["interrupted"]
    for mine, theirs in (("mean", "mean_test_score"), ("std", "std_test_score")):
        by_setting = dict(zip(reference.cv_results_["param_C"], reference.cv_results_[theirs], strict=True))
        tried = [one for one in facts["cross_validation"]["candidates"] if one["C"] in by_setting]  # and one beyond
        assert len(tried) == 2
        for candidate in tried:
            assert candidate[mine] == pytest.approx(by_setting[candidate["C"]])
    np.testing.assert_array_equal(estimator.predict(problem.X), reference.predict(problem.X))
    best = reference.cv_results_["rank_test_score"].argmin()
    for i, (_, test) in enumerate(folds.split(problem.X, problem.y)):
        unseen = np.mean(predictions[test] == problem.y[test])
        assert unseen == pytest.approx(reference.cv_results_[f"split{i}_test_score"][best])


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_the_first_interrupt_ends_the_search_and_keeps_the_best_settings(problem, monkeypatch, capsys):
    scores = interrupt_after(3, monkeypatch)
    estimator, predictions, facts = problem.fit()
    assert facts["interrupted"]
    (first, _), (second, _), (third, _) = scores
    assert first == third != second
    assert facts["settings"] == {"C": first}  # the one that was tried on both folds
    assert facts["cross_validation"]["folds"] == 2
    assert first == estimator.C
    assert predictions.shape == estimator.predict(problem.X).shape == (60,)
    assert f"interrupted after 3 fits: fitting the best settings so far (C={first})" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_settings_that_were_tried_on_some_folds_are_better_than_none(problem, monkeypatch, capsys):
    scores = interrupt_after(2, monkeypatch)
    estimator, predictions, facts = problem.fit()
    best = max(scores, key=lambda pair: pair[1])[0]
    assert facts["interrupted"]
    assert facts["settings"] == {"C": best} == {"C": estimator.C}
    assert facts["cross_validation"]["folds"] == 1
    assert predictions is None  # of half of the rows
    assert f"interrupted after 2 fits: fitting the best settings so far (C={best})" in capsys.readouterr().err


@pytest.mark.slow
def test_several_processes_find_the_same(problem):
    alone, unseen, facts = problem.fit()
    shared, also_unseen, found = replace(problem, request=replace(problem.request, jobs=2)).fit()
    assert facts["cross_validation"] == found["cross_validation"]
    np.testing.assert_array_equal(unseen, also_unseen)
    np.testing.assert_array_equal(alone.coef_features_, shared.coef_features_)


def test_an_interrupt_before_anything_is_known_keeps_nothing(problem, monkeypatch):
    interrupt_after(0, monkeypatch)
    with pytest.raises(StoppedError, match="nothing was written"):
        problem.fit()


def test_tasks_and_holes(capsys):
    drawn = make_ibp_multitask(60, 6, 3, missing=0.2, classes=True, random_state=0)
    asked = request(C=[0.01], temperature=[0.1], include_inputs=False, **QUICK)
    estimator, _, facts = Problem(drawn.data, drawn.target, "multilabel", asked).fit()
    assert estimator.predict(drawn.data).shape == (60, 3)
    assert [candidate["C"] for candidate in facts["cross_validation"]["candidates"]] == [0.01]
    task = np.array(["a", "b", "c"])[np.arange(60) % 3]
    estimator, predictions, _ = Problem(drawn.data, drawn.data.sum(axis=1), "regressor", asked, task).fit()
    assert estimator.predict(drawn.data[:2], task=["a", "new"]).shape == (2,)
    assert predictions.shape == (60,)


def test_folds_follow_the_rarest_class(problem, capsys):
    y = np.array([0] * 57 + [1] * 3)
    few = request(n_components=[3], max_iter=3)
    assert possible_folds(few, "classifier", problem.X, y, {}) == 3
    _, _, facts = Problem(problem.X[:3], y[-4:-1], "classifier", few).fit(Output())
    assert facts["cross_validation"] is None
    assert "too few rows of some class for cross-validation" in capsys.readouterr().err


def test_fewer_rows_than_folds_of_a_regressor(problem, capsys):
    asked = request(C=[0.01], temperature=[0.1], include_inputs=True, n_components=[2], max_iter=2)
    y = np.array([0.5, 1.0, 1.5, 2.0])
    _, _, facts = Problem(problem.X[:4], y, "regressor", asked).fit(Output())
    assert facts["cross_validation"]["folds"] == 4
    assert "4 folds instead of 5: there are 4 rows" in capsys.readouterr().err


@pytest.mark.parametrize(("best", "said"), [(99.0, "C=10.0 is the largest value that was tried, even"), (1.0, None)])
def test_a_list_that_ends_at_its_best_value_is_extended_once(problem, monkeypatch, capsys, best, said):
    monkeypatch.setattr("regbayes.cli.search.score_fit", lambda estimator, X, y, **_: -abs(estimator.C - best))
    estimator, predictions, facts = problem.fit(Output())
    assert facts["settings"] == {"C": 10.0 if said else 1.0} == {"C": estimator.C}
    assert [one["C"] for one in facts["cross_validation"]["candidates"]] == [0.1, 1.0, 10.0]
    assert facts["comparison"]["best_of"] == 3
    assert predictions.shape == (60,)
    told = capsys.readouterr().err
    assert "the best C=1.0 is the largest value that was tried: C=10.0 is tried too" in told
    assert "even with one more" not in told if said is None else said in told


def test_settings_that_make_no_sense(problem, table):
    with pytest.raises(UserError, match="temperature"):
        replace(problem, request=request(temperature=[-1.0], cv=False)).fit()
    with pytest.raises(BadDataError, match=r"--ignore: .* has no column 'nothing'"):
        train_table(request(target=["kind"], ignore=["nothing"]), table, quiet())
    with pytest.raises(UserError, match="has 64 pixels, but there are 6 inputs"):
        train_table(request(target=["kind"], image="8x8"), table, quiet())
    with pytest.raises(UserError, match="name the same column"):
        train_table(request(target=["kind"], task="kind"), table, quiet())


SMALL = {"cv": False, "n_components": [3], "max_iter": 3}


def test_a_page_that_fails_does_not_cost_the_fit(table, monkeypatch, capsys):
    def broken(*_, **__):
        raise RuntimeError("no page today")

    monkeypatch.setattr("regbayes.report.collect", broken)
    model = train_table(request(target=["kind"], **SMALL), table, quiet())
    assert model.report is None
    assert "no page today" in capsys.readouterr().err


def test_rows_without_a_target_are_left_out(table, capsys):
    holes = table.frame.copy()
    holes.loc[:9, "kind"] = None
    model = train_table(request(target=["kind"], **SMALL), Table(holes, "holes"), Output())
    assert model.facts["rows"] == 80
    assert "10 of 90 rows have no target and are left out" in capsys.readouterr().err


def test_rows_are_called_by_their_place_or_name(table):
    frame = table.frame[["size", "width", "kind"]].copy()
    frame.loc[:39, "kind"] = None
    names = [f"flower {i}" for i in range(90)]
    named = Table(make_frame([*frame.items(), ("id", names)]), "named")
    model = train_table(request(target=["kind"], names="id", **SMALL), named, quiet())
    assert model.inputs.get_feature_names_out().tolist() == ["size", "width"]
    assert set(model.report.examples.names) <= set(names[40:])
    model = train_table(request(target=["kind"], **SMALL), named, quiet())
    assert set(model.report.examples.names) <= {f"row {i}" for i in range(41, 91)}
    with pytest.raises(BadDataError, match="--names: named has no column 'name'"):
        train_table(request(target=["kind"], names="name", **SMALL), named, quiet())


def test_baselines():
    assert baseline_score(np.array(["a", "b", "a", "a"]), "classifier") == 0.75
    assert baseline_score(np.array([1.0, 2.0, 6.0]), "regressor") == 0
    assert baseline_score(np.array([[0, 1], [0, np.nan], [1, 1]]), "multilabel") == pytest.approx(4 / 5)


def test_balanced_scores_agree_with_scikit_learn():
    rng = np.random.default_rng(0)
    y, predicted = rng.integers(3, size=(2, 50))
    assert score_of("classifier", y, predicted, balanced=True) == pytest.approx(balanced_accuracy_score(y, predicted))
    both = np.column_stack([y, predicted % 2]).astype(float)
    holes = both.copy()
    holes[:5, 1] = np.nan
    answers = np.column_stack([predicted, np.ones(50)])
    wanted = (balanced_accuracy_score(y, predicted) + 0.5) / 2
    assert score_of("multilabel", holes, answers, balanced=True) == pytest.approx(wanted)
    assert baseline_score(y, "classifier", balanced=True) == pytest.approx(1 / 3)


def test_rare_classes_may_count_as_much(problem):
    rng = np.random.default_rng(0)
    y = (rng.random(800) < 0.08).astype(int)
    X = rng.standard_normal((800, 3)) + y[:, None]
    recalls = []
    for balanced in (False, True):
        asked = request(n_components=[4], C=[1.0], balanced=balanced, folds=2)
        estimator, predictions, _ = Problem(X, y, "classifier", asked).fit()
        assert estimator.class_weight == ("balanced" if balanced else None)
        recalls.append(np.mean(predictions[y == 1]))
    assert recalls[1] > recalls[0]
    numbers = Table(make_frame([("a", X[:, 0]), ("b", X[:, 1])]), "numbers")
    with pytest.raises(UserError, match="--balanced is about classes"):
        train_table(request(target=["a"], balanced=True), numbers, quiet())


def test_targets_of_different_units_count_alike():
    y = np.array([[0.0, 0], [1, 1000], [2, 2000], [3, np.nan]])
    predicted = np.column_stack([y[:, 0], [1000.0] * 4])
    assert score_of("regressor", y, predicted) == pytest.approx(0.5)


def record(C: float, fold: int, score: float, rows: list[int]) -> FoldRecord:
    predictions = np.array([f"{C}" for _ in rows])
    return FoldRecord({"C": C, "alpha": 2.0}, fold, {"score": score}, 0.1, 0.1, None, np.array(rows), predictions, None)


def test_progress_is_told_in_lines_where_there_is_no_terminal(monkeypatch, capsys):
    monkeypatch.setattr("regbayes.cli.progress.PLAIN_SECONDS", 0.0)
    for output in (Output(), quiet()):
        with SearchWatch(10, 2, ["C"], output) as watch:
            for fold in (0, 1):
                watch(record(1.0, fold, 0.5, [fold]))
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("1 of 20 fits, about ")
    assert second.startswith("2 of 20 fits, about ")


def test_the_best_so_far_is_among_those_that_were_tried_most():
    watch = SearchWatch(2, 3, ["C"], quiet())
    for one in (record(0.1, 0, 0.5, [0, 2]), record(1.0, 0, 0.9, [0, 2]), record(0.1, 1, 0.7, [3, 1])):
        watch(one)
    best = watch.best()
    assert best == {"C": 0.1, "alpha": 2.0}
    found = watch.results(best)
    assert found["settings"] == {"C": 0.1}
    assert found["cross_validation"]["mean"] == pytest.approx(0.6)
    assert found["cross_validation"]["folds"] == 2
    assert [candidate["C"] for candidate in found["cross_validation"]["candidates"]] == [0.1, 1.0]
    assert watch.unseen_predictions(best, 4).tolist() == ["0.1"] * 4
    assert watch.unseen_predictions({"C": 1.0, "alpha": 2.0}, 4) is None
