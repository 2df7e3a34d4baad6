"""The course of a multi-task fit as its user sees it: stages, callbacks, bars, warnings, interrupts, warm starts."""

from __future__ import annotations

import re
import warnings

import numpy as np
import pytest
from sklearn.callback import ScoringMonitor
from sklearn.exceptions import ConvergenceWarning

from ilsvm_estimator_tools import Watch
from multitask_tools import classifier, classifier_cv, data_for, holes, labels, regressor
from reference_tools import fits_its_rows
from regbayes import MultiLabelThresholdCV, TruncationWarning

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


@pytest.mark.parametrize("make", [classifier, regressor])
def test_a_warm_start_goes_on(make):
    X, Y = data_for(make)
    model = make(max_iter=4, tol=0, warm_start=True).fit(X, Y)
    first = model.trace_.objective[-1]
    model.fit(X, Y)
    assert model.trace_.objective[0] == pytest.approx(first, rel=1e-3)
    assert model.trace_.objective[-1] < first
    model.set_params(n_components=5).fit(X, Y)
    assert model.components_.shape == (5, X.shape[1])


@pytest.mark.parametrize("sharing", [0.0, 1.0])
def test_the_objective_never_rises(sharing):
    X, Y = labels()
    trace = classifier(task_sharing=sharing, tol=0, max_iter=30).fit(X, holes(Y)).trace_
    assert len(trace.objective) > 3
    assert trace.rises.largest <= 1e-13 * abs(trace.objective[0])


def test_threads_do_not_change_the_result():
    X, Y = labels()
    one, two = classifier(n_jobs=1).fit(X, Y), classifier(n_jobs=2).fit(X, Y)
    np.testing.assert_array_equal(one.coef_features_, two.coef_features_)


def test_warnings_say_what_to_do():
    X, Y = labels()
    with pytest.warns(ConvergenceWarning, match="Raise max_iter"):
        classifier(max_iter=1, tol=0).fit(X, Y)
    with pytest.warns(TruncationWarning, match="Raise n_components"):
        classifier(2, temperature=0.0, max_iter=100, tol=1e-2).fit(X, Y)


def test_progress_is_shown(capsys):
    X, Y = labels()
    classifier(verbose=1).fit(X, Y)
    assert "MultiTaskILSVMClassifier" in capsys.readouterr().err
    classifier_cv(verbose=1).fit(X, Y)
    assert re.search("MultiTaskILSVMClassifierCV: 100%.* 8/8 ", capsys.readouterr().err)


def test_features_that_factor_analysis_switches_off_come_back_and_are_warned_of_where_they_cannot():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200, 10))
    # White: without the targets there is nothing to find, in whatever directions a factor analysis starts to look.
    X = np.sqrt(200) * np.linalg.qr(X - X.mean(axis=0))[0]
    Y = X[:, :2] + 0.5 * rng.standard_normal((200, 2))
    given = {"alpha": 0.01, "temperature": 0.01, "max_iter": 60}
    with pytest.warns(ConvergenceWarning, match="no feature is in use"):
        alone = regressor(margins="decoupled", **given).fit(X, Y)
    assert np.all(alone.components_ < 0.5)
    joint = regressor(**given).fit(X, Y)
    assert np.any(joint.components_ > 0.5)
    assert joint.score(X, Y) > alone.score(X, Y)


@pytest.mark.parametrize("make", [classifier, regressor])
def test_a_warm_start_of_a_converged_fit_changes_nearly_nothing(make):
    X, Y = data_for(make)
    model = make(max_iter=300, warm_start=True).fit(X, Y)
    assert model.n_iter_ < 300
    answer = model.predict if make is regressor else model.decision_function
    before, components = answer(X), model.components_
    watch = Watch()
    model.set_callbacks(watch).fit(X, Y)
    assert model.n_iter_ == 2  # two small changes are needed to tell
    assert watch.tasks == ["iteration", "iteration", "descent", "fit"]  # no second warm-up
    np.testing.assert_allclose(model.components_, components, atol=2e-2)
    np.testing.assert_allclose(answer(X), before, atol=2e-2 * np.abs(before).max())


# --- callbacks and interrupts


@pytest.mark.parametrize("margins", ["consistent", "posterior"])
def test_a_callback_sees_every_iteration_and_every_stage(margins):
    X, Y = labels()
    watch, monitor = Watch(), ScoringMonitor(scoring="accuracy")
    fitted = classifier(max_iter=5, tol=0, margins=margins).set_callbacks(watch, monitor).fit(X, Y)
    n_starting = watch.parents.count("warm-up")
    assert n_starting > 3
    stage = "descent" if margins == "consistent" else "alternation"
    assert watch.tasks == ["iteration"] * n_starting + ["warm-up"] + ["iteration"] * 5 + [stage, "fit"]
    assert fitted.n_iter_ == 5
    assert watch.scores[-1] == fitted.score(X, Y)
    assert monitor.get_logs() is not None
    plain = classifier(max_iter=5, tol=0, margins=margins).fit(X, Y)
    np.testing.assert_array_equal(fitted.components_, plain.components_)


@pytest.mark.parametrize("n_tasks", [2, 20])
def test_a_callback_can_stop_a_fit_in_every_stage(n_tasks):
    X, Y = labels()
    given = {"max_iter": 40, "tol": 0, "temperature": "auto"}
    reference = Watch()
    classifier(**given).set_callbacks(reference).fit(X, Y)
    n_starting = reference.parents.count("warm-up")
    in_descent = n_tasks > 2
    watch = Watch(stop_after=n_starting + 3 if in_descent else n_tasks)  # the end of the warm-up is a task too
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # whoever asked to stop knows
        fitted = classifier(**given).set_callbacks(watch).fit(X, Y)
    assert fitted.n_iter_ == (2 if in_descent else 0)
    assert len(fitted.trace_) == fitted.n_iter_ + 1
    assert fits_its_rows(fitted.predict(X), Y)  # it has weights


class CtrlC(Watch):
    """A user who interrupts after some tasks."""

    def on_fit_task_end(self, estimator, context, *, X=None, y=None, fitted_estimator=None):
        self.tasks.append(context.task_name)
        if len(self.tasks) == self.stop_after:
            raise KeyboardInterrupt


@pytest.mark.parametrize(("n_tasks", "when"), [(2, "during its warm-up"), (-1, "after 2 iterations")])
def test_an_interrupted_fit_keeps_what_it_has_and_says_so_once(n_tasks, when):
    X, Y = labels()
    if n_tasks < 0:
        reference = Watch()
        classifier().set_callbacks(reference).fit(X, Y)
        n_tasks = reference.parents.count("warm-up") + 3
    with pytest.warns(ConvergenceWarning, match=f"was interrupted {when}; the best state so far is kept") as warned:
        fitted = classifier().set_callbacks(CtrlC(n_tasks)).fit(X, Y)
    assert len(warned) == 1
    assert fitted.predict(X).shape == Y.shape


def test_an_interrupt_ends_a_search(monkeypatch):
    X, Y = labels()
    started = []

    def interrupted(*given, **named):
        started.append(1)
        raise KeyboardInterrupt

    monkeypatch.setattr("regbayes.models.mt_ilsvm.fit.descend", interrupted)
    for search in (classifier_cv(), MultiLabelThresholdCV(classifier())):
        started.clear()
        with pytest.raises(KeyboardInterrupt):
            search.fit(X, Y)
        assert len(started) == 1  # no other candidate, no other fold
