"""From a table to a model file: searches that agree with scikit-learn, are watched, and can be stopped."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import balanced_accuracy_score
from sklearn.model_selection import StratifiedKFold

from cli_tools import flowers
from regbayes import load
from regbayes.cli.errors import BadDataError, StoppedError, UserError
from regbayes.cli.journal import Journal, JournalScorer, score_of
from regbayes.cli.modelfile import ModelFile, load_model
from regbayes.cli.output import Output
from regbayes.cli.progress import shown_progress
from regbayes.cli.search import FitSettings, Problem, fit_model
from regbayes.cli.tables import Table, read_table
from regbayes.cli.training import Wishes, baseline_score, train
from regbayes.datasets import make_ibp_multitask

QUICK = {"n_components": (4,), "max_iter": 5, "folds": 2}


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
    return Problem(X, y, "classifier", None, FitSettings(C=(0.1, 1.0), **QUICK))


def quiet() -> Output:
    return Output(quiet=True)


def test_a_model_is_saved_with_all_that_predicting_needs(table, tmp_path):
    model = train(table, Wishes(targets=("kind",)), FitSettings(cross_validate=False, **QUICK), quiet())
    model.save(tmp_path / "m")
    again = load_model(str(tmp_path / "m"))
    assert isinstance(load(tmp_path / "m"), ModelFile)
    np.testing.assert_array_equal(again.predict(table, pytest.fail), model.predict(table, pytest.fail))
    assert again.schema == model.schema
    assert again.target == model.target
    assert again.report.title == "kind"
    assert model.facts["rows"] == 90
    assert np.mean(model.predict(table, pytest.fail) == table.column("kind")) > model.facts["baseline"]


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_search_is_that_of_the_estimator_and_its_predictions_are_of_unseen_rows(problem, capsys):
    fitted = fit_model(problem, quiet())
    from regbayes import ILSVMClassifierCV

    folds = StratifiedKFold(2, shuffle=True, random_state=0)
    reference = ILSVMClassifierCV(4, Cs=(0.1, 1.0), max_iter=5, cv=folds, random_state=0).fit(problem.X, problem.y)
    capsys.readouterr()
    assert fitted.search.chosen == {"C": reference.C_}
    for mine, theirs in ((fitted.search.mean, "mean_test_score"), (fitted.search.deviation, "std_test_score")):
        by_setting = dict(zip(reference.cv_results_["param_C"], reference.cv_results_[theirs], strict=True))
        np.testing.assert_allclose(mine, [by_setting[candidate["C"]] for candidate in fitted.search.candidates])
    np.testing.assert_array_equal(fitted.estimator.predict(problem.X), reference.predict(problem.X))
    best = reference.cv_results_["rank_test_score"].argmin()
    for i, (_, test) in enumerate(folds.split(problem.X, problem.y)):
        unseen = np.mean(fitted.predictions[test] == problem.y[test])
        assert unseen == pytest.approx(reference.cv_results_[f"split{i}_test_score"][best])


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_the_first_interrupt_ends_the_search_and_keeps_the_best_settings(problem, monkeypatch, capsys):
    scored = JournalScorer.__call__
    scores: list[tuple[float, float]] = []

    def scored_three_times(self, estimator, X, y):
        if len(scores) == 3:
            raise KeyboardInterrupt
        scores.append((estimator.C, scored(self, estimator, X, y)))
        return scores[-1][1]

    monkeypatch.setattr(JournalScorer, "__call__", scored_three_times)
    fitted = fit_model(problem, quiet())
    assert fitted.interrupted
    (first, _), (second, _), (third, _) = scores
    assert first == third != second
    assert fitted.search.chosen == {"C": first}  # the one that was tried on both folds
    assert fitted.search.n_folds == 2
    assert first == fitted.estimator.C
    assert fitted.estimator.predict(problem.X).shape == (60,)
    assert f"interrupted after 3 fits: fitting the best settings so far (C={first})" in capsys.readouterr().err


@pytest.mark.slow
def test_several_processes_find_the_same(problem):
    alone = fit_model(problem, quiet())
    shared = fit_model(replace(problem, settings=replace(problem.settings, jobs=2)), quiet())
    np.testing.assert_array_equal(alone.search.mean, shared.search.mean)
    np.testing.assert_array_equal(alone.predictions, shared.predictions)
    np.testing.assert_array_equal(alone.estimator.coef_, shared.estimator.coef_)


def test_an_interrupt_before_anything_is_known_keeps_nothing(problem, monkeypatch):
    monkeypatch.setattr(JournalScorer, "__call__", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(StoppedError, match="nothing was written"):
        fit_model(problem, quiet())


def test_tasks_and_holes(capsys):
    drawn = make_ibp_multitask(60, 6, 3, missing=0.2, classes=True, random_state=0)
    several = Problem(
        drawn.data,
        drawn.target,
        "multilabel",
        None,
        FitSettings(C=(0.01,), temperature=(0.1,), include_inputs=False, **QUICK),
    )
    fitted = fit_model(several, quiet())
    assert fitted.estimator.predict(drawn.data).shape == (60, 3)
    assert fitted.search.candidates == ({"C": 0.01},)
    task = np.array(["a", "b", "c"])[np.arange(60) % 3]
    numbers = Problem(drawn.data, drawn.data.sum(axis=1), "regressor", task, several.settings)
    fitted = fit_model(numbers, quiet())
    assert fitted.estimator.predict(drawn.data[:2], task=["a", "new"]).shape == (2,)
    assert fitted.predictions.shape == (60,)


def test_folds_follow_the_rarest_class(problem, capsys):
    y = np.array([0] * 57 + [1] * 3)
    rare = Problem(problem.X, y, "classifier", None, FitSettings(C=(1.0,), n_components=(3,), max_iter=3))
    assert rare.possible_folds() == 3
    alone = Problem(problem.X[:3], y[-4:-1], "classifier", None, FitSettings(n_components=(3,), max_iter=3))
    fitted = fit_model(alone, Output())
    assert fitted.search is None
    assert "too few rows of some class for cross-validation" in capsys.readouterr().err


def test_fewer_rows_than_folds_of_a_regressor(problem, capsys):
    settings = FitSettings(C=(0.01,), temperature=(0.1,), include_inputs=True, n_components=(2,), max_iter=2)
    fitted = fit_model(Problem(problem.X[:4], np.array([0.5, 1.0, 1.5, 2.0]), "regressor", None, settings), Output())
    assert fitted.search.n_folds == 4
    assert "4 folds instead of 5: there are 4 rows" in capsys.readouterr().err


def test_settings_that_make_no_sense(problem, table):
    with pytest.raises(UserError, match="temperature"):
        fit_model(Problem(problem.X, problem.y, "classifier", None, FitSettings(temperature=(-1.0,))), quiet())
    with pytest.raises(BadDataError, match=r"--ignore: .* has no column 'nothing'"):
        train(table, Wishes(targets=("kind",), ignore=("nothing",)), FitSettings(), quiet())
    with pytest.raises(UserError, match="has 64 pixels, but there are 6 inputs"):
        train(table, Wishes(targets=("kind",), image_shape=(8, 8)), FitSettings(), quiet())
    with pytest.raises(UserError, match="name the same column"):
        train(table, Wishes(targets=("kind",), task="kind"), FitSettings(), quiet())


def test_a_page_that_fails_does_not_cost_the_fit(table, monkeypatch, capsys):
    def broken(*_, **__):
        raise RuntimeError("no page today")

    monkeypatch.setattr("regbayes.report.collect", broken)
    settings = FitSettings(cross_validate=False, n_components=(3,), max_iter=3)
    model = train(table, Wishes(targets=("kind",)), settings, quiet())
    assert model.report is None
    assert "no page today" in capsys.readouterr().err


def test_rows_without_a_target_are_left_out(table, capsys):
    holes = table.column("kind").copy()
    holes[:10] = None
    columns = tuple(
        holes if name == "kind" else column for name, column in zip(table.names, table.columns, strict=True)
    )
    settings = FitSettings(cross_validate=False, n_components=(3,), max_iter=3)
    model = train(Table(table.names, columns, "holes"), Wishes(targets=("kind",)), settings, Output())
    assert model.facts["rows"] == 80
    assert "10 of 90 rows have no target and are left out" in capsys.readouterr().err


def test_rows_are_called_by_their_place_or_name(table):
    settings = FitSettings(cross_validate=False, n_components=(3,), max_iter=3)
    kind = table.column("kind").copy()
    kind[:40] = None
    names = np.array([f"flower {i}" for i in range(90)], dtype=object)
    named = Table(("size", "width", "id", "kind"), (*table.columns[:2], names, kind), "named")
    model = train(named, Wishes(targets=("kind",), names="id"), settings, quiet())
    assert model.schema.names == ["size", "width"]
    assert set(model.report.examples.names) <= set(names[40:])
    model = train(named, Wishes(targets=("kind",)), settings, quiet())
    assert set(model.report.examples.names) <= {f"row {i}" for i in range(41, 91)}
    with pytest.raises(BadDataError, match="--names: named has no column 'name'"):
        train(named, Wishes(targets=("kind",), names="name"), settings, quiet())


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
    y = (rng.random(300) < 0.08).astype(int)
    X = rng.standard_normal((300, 3)) + y[:, None]
    recalls = []
    for balanced in (False, True):
        settings = FitSettings(n_components=(4,), C=(1.0,), balanced=balanced, folds=2)
        fitted = fit_model(Problem(X, y, "classifier", None, settings), quiet())
        assert fitted.estimator.class_weight == ("balanced" if balanced else None)
        recalls.append(np.mean(fitted.predictions[y == 1]))
    assert recalls[1] > recalls[0]
    numbers = Table(("a", "b"), (X[:, 0], X[:, 1]), "numbers")
    with pytest.raises(UserError, match="--balanced is about classes"):
        train(numbers, Wishes(targets=("a",)), FitSettings(balanced=True), quiet())


def test_targets_of_different_units_count_alike():
    y = np.array([[0.0, 0], [1, 1000], [2, 2000], [3, np.nan]])
    predicted = np.column_stack([y[:, 0], [1000.0] * 4])
    assert score_of("regressor", y, predicted) == pytest.approx(0.5)


def test_progress_is_told_in_lines_where_there_is_no_terminal(monkeypatch, capsys):
    import time

    monkeypatch.setattr("regbayes.cli.progress.PLAIN_SECONDS", 0.01)
    counts = iter(range(1000))
    with shown_progress(lambda: next(counts), 20, Output()):
        time.sleep(0.2)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "0 of 20 fits"
    assert lines[1].startswith("1 of 20 fits, about ")
    with shown_progress(lambda: 0, 20, quiet()):
        time.sleep(0.05)
    assert not capsys.readouterr().err


def test_the_journal_counts_only_whole_records(tmp_path):
    journal = Journal(tmp_path)
    assert journal.count() == 0
    (tmp_path / ("f" * 32 + ".part.npz")).write_bytes(b"half of it")
    assert journal.count() == 0
    assert journal.scores() == {}
    assert journal.predictions({}, np.zeros((1, 1)), None) is None
