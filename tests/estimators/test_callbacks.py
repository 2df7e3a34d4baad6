"""Test callbacks, progress bars, warnings, interrupts, memory and warm starts."""

from __future__ import annotations

import re
import tracemalloc
import warnings
from functools import partial

import numpy as np
import pytest
from sklearn.callback import ScoringMonitor
from sklearn.exceptions import ConvergenceWarning

from ilsvm_estimator_tools import Watch, digits, ibp, ilsvm, ilsvm_cv
from multitask_tools import classifier, classifier_cv, labels, numbers, regressor
from regbayes import GridEdgeWarning, MultiLabelThresholdCV, TruncationWarning

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

X, y = digits()
ILSVM, IBP = (ilsvm, X, y), (ibp, X, y)
MODELS = {"iLSVM": ILSVM, "IBP": IBP, "tasks": (classifier, *labels()), "numbers": (regressor, *numbers())}
every_model = pytest.mark.parametrize(("make", "X", "y"), MODELS.values(), ids=MODELS)
both = pytest.mark.parametrize("make", [ilsvm, ibp])


def count_starting_tasks(make, X, y, **parameters):
    watch = Watch()
    make(**parameters).set_callbacks(watch).fit(X, y)
    return watch.parents.count("warm-up")


# --- callbacks, progress bars, warnings


@pytest.mark.parametrize(
    ("model", "parameters", "stages"),
    [
        (ILSVM, {}, ["warm-up", "descent"]),
        (IBP, {}, ["warm-up", "descent"]),
        (ILSVM, {"margins": "posterior"}, ["alternation"]),
        (MODELS["tasks"], {}, ["warm-up", "descent"]),
        (MODELS["tasks"], {"margins": "posterior"}, ["warm-up", "alternation"]),
    ],
    ids=["iLSVM", "IBP", "iLSVM posterior", "tasks", "tasks posterior"],
)
def test_callback_is_called_for_every_iteration_and_stage(model, parameters, stages):
    (make, X, y), watch = model, Watch()
    fitted = make(**parameters).set_callbacks(watch).fit(X, y)
    n_starting = watch.parents.count("warm-up")
    assert (n_starting > 3) == ("warm-up" in stages)
    expected = [["iteration"] * n for n in (n_starting, fitted.n_iter_)][-len(stages) :]
    expected = [task for tasks, stage in zip(expected, stages, strict=True) for task in (*tasks, stage)]
    assert watch.tasks == [*expected, "fit"]
    assert watch.parents[-2:] == ["fit", None]
    assert watch.scores[-1] == fitted.score(X, y)
    np.testing.assert_array_equal(fitted.components_, make(**parameters).fit(X, y).components_)


@every_model
@pytest.mark.parametrize("where", ["warm-up", "descent"])
def test_callback_can_stop_fit_in_every_stage(make, X, y, where):
    given = {"tol": 0.0, "max_iter": 15}
    n_tasks = 2 if where == "warm-up" else count_starting_tasks(make, X, y, **given) + 3  # stages count as tasks
    watch = Watch(stop_after=n_tasks)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a fit that a callback stops must not warn
        fitted = make(**given).set_callbacks(watch).fit(X, y)
    assert fitted.n_iter_ == (0 if where == "warm-up" else 2)
    if where == "warm-up":
        assert watch.tasks == ["iteration"] * 2 + ["warm-up", "fit"]
    assert len(fitted.trace_) == fitted.n_iter_ + 1
    assert watch.scores[-1] == fitted.score(X, y)


class CtrlC(Watch):
    """Callback that raises KeyboardInterrupt after `stop_after` tasks."""

    def on_fit_task_end(self, estimator, context, *, X=None, y=None, fitted_estimator=None):
        self.tasks.append(context.task_name)
        if len(self.tasks) == self.stop_after:
            raise KeyboardInterrupt


@every_model
@pytest.mark.parametrize("when", ["during its warm-up", "after 2 iterations"])
def test_interrupted_fit_keeps_best_state_and_warns_once(make, X, y, when):
    given = {"tol": 0.0, "max_iter": 15}
    n_tasks = 2 if "warm-up" in when else count_starting_tasks(make, X, y, **given) + 3
    model = make(**given).set_callbacks(CtrlC(n_tasks))
    with pytest.warns(ConvergenceWarning, match=f"was interrupted {when}; the best state so far is kept") as warned:
        model.fit(X, y)
    assert len(warned) == 1
    assert np.isfinite(model.score(X, y))
    if hasattr(model, "embedding_"):
        np.testing.assert_allclose(model.transform(X), model.embedding_, rtol=1e-12)


@every_model
def test_verbose_shows_progress_bar_per_stage(make, X, y, capsys):
    fitted = make(verbose=1).fit(X, y)
    shown, name = capsys.readouterr().err, type(fitted).__name__
    assert re.search(rf"{name} warm-up: [^\n]*[1-9]", shown)
    assert re.search(rf"{name} descent: .* {fitted.n_iter_}/{fitted.max_iter} ", shown)
    make().fit(X, y)
    assert not capsys.readouterr().err


def test_interrupted_transductive_fit_stops():
    labels = np.where(np.arange(len(y)) % 3, y, -1)
    user = CtrlC(5)
    fitted = ilsvm(transductive=True, unlabeled=-1).set_callbacks(user).fit(X, labels)
    assert user.tasks == ["iteration"] * 5 + ["warm-up", "fit"]
    assert fitted.n_iter_ == 0


def test_scoring_monitor_logs_every_iteration():
    monitor = ScoringMonitor(scoring="accuracy")
    fitted = ilsvm().set_callbacks(monitor).fit(X, y)
    log = monitor.get_logs().data
    assert sum(entry["task_name"] == "iteration" and entry["task_id_path"][1] == 1 for entry in log) == fitted.n_iter_
    (whole,) = (entry for entry in log if entry["task_name"] == "fit")
    assert whole["accuracy"] == fitted.score(X, y)


def test_fit_warnings_name_a_remedy():
    X_tasks, Y = labels()
    with pytest.warns(ConvergenceWarning, match=r"max_iter=2 .* Raise max_iter, or tol"):
        ilsvm(max_iter=2).fit(X, y)
    with pytest.warns(ConvergenceWarning, match="Raise max_iter"):
        classifier(max_iter=1, tol=0).fit(X_tasks, Y)
    with pytest.warns(TruncationWarning, match="All 3 features .* Raise `n_components`"):
        ilsvm(3).fit(X, y)
    with pytest.warns(TruncationWarning, match="Raise `n_components`"):
        classifier(2, temperature=0.0, max_iter=100, tol=1e-2).fit(X_tasks, Y)
    with pytest.warns(ConvergenceWarning, match=r"No feature is in use.* Change `temperature`"):
        ibp(temperature=1e6).fit(X)


def test_white_data_needs_targets_to_keep_features():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200, 10))
    # Whitened data: factor analysis without targets finds no structure in any direction.
    X = np.sqrt(200) * np.linalg.qr(X - X.mean(axis=0))[0]
    Y = X[:, :2] + 0.5 * rng.standard_normal((200, 2))
    given = {"alpha": 0.01, "temperature": 0.01, "max_iter": 60}
    with pytest.warns(ConvergenceWarning, match="No feature is in use"):
        alone = regressor(margins="decoupled", **given).fit(X, Y)
    assert np.all(alone.components_ < 0.5)
    joint = regressor(**given).fit(X, Y)
    assert np.any(joint.components_ > 0.5)
    assert joint.score(X, Y) > alone.score(X, Y)


def test_search_folds_do_not_warn():
    with pytest.warns(ConvergenceWarning) as warned:
        ilsvm_cv(max_iter=1).fit(X, y)
    of_fits = [one for one in warned if not issubclass(one.category, GridEdgeWarning)]
    assert len(of_fits) <= 2  # only the refitted model may warn


def test_interrupt_ends_search(monkeypatch):
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
        assert len(started) == 1  # no further candidate or fold was fitted


# --- memory


@pytest.mark.parametrize("make", [partial(ilsvm, C=1e-3, temperature=0.01), ibp], ids=["iLSVM", "IBP"])
def test_fit_does_not_copy_X(make):
    rng = np.random.default_rng(0)
    there = rng.random((24_000, 30)) < 0.5
    rows = there @ rng.standard_normal((30, 50)) + rng.standard_normal((24_000, 50))
    labels = np.argmax(rows[:, :4], axis=1)
    model = make(30, max_iter=2, tol=0.0)
    model.fit(rows, labels)  # compile the Numba kernels before measuring
    tracemalloc.start()
    try:
        model.fit(rows, labels)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert model.embedding_.shape == (24_000, 30)
    assert np.all(np.any(model.components_ != 0.0, axis=1))  # all features are in use
    assert peak / model.embedding_.nbytes < 4.5  # a copy of X would add 1.7


# --- warm starts


@every_model
def test_warm_start_continues_descent(make, X, y):
    fitted = make(max_iter=4, tol=0.0, warm_start=True).fit(X, y)
    ends = [fitted.trace_.objective[-1]]
    for _ in range(3):
        fitted.fit(X, y)
        assert fitted.trace_.objective[0] <= ends[-1] + 1e-3 * abs(ends[-1])
        ends.append(fitted.trace_.objective[-1])
    assert ends == sorted(ends, reverse=True)
    cold = make(max_iter=4, tol=0.0).fit(X, y)
    assert ends[-1] < cold.fit(X, y).trace_.objective[-1] == ends[0]
    assert len(fitted.set_params(n_components=5).fit(X, y).components_) <= 5


def test_warm_start_uses_changed_settings():
    fitted = ilsvm(warm_start=True).fit(X, y)
    loadings, psi = fitted.components_, fitted.embedding_
    fitted.set_params(max_iter=0, temperature=0.02, noise_variance=3.0, prior_variance=5.0).fit(X, y)
    np.testing.assert_array_equal(fitted.components_, loadings)
    assert (fitted.noise_variance_, fitted.prior_variance_) == (3.0, 5.0)
    assert np.mean(fitted.embedding_ * (1 - fitted.embedding_)) < 0.5 * np.mean(psi * (1 - psi))


def test_warm_start_accepts_other_samples_classes_and_sizes():
    fitted = ilsvm(warm_start=True).fit(X, y)
    assert fitted.fit(X[:100], y[:100]).embedding_.shape == (100, fitted.n_components_)
    assert fitted.fit(X, y > 1).coef_features_.shape == (1, fitted.n_components_)
    assert fitted.set_params(n_components=4).fit(X, y).n_components_ <= 4
    shuffled = np.random.default_rng(0).permutation(y)
    fitted.fit(X, y).fit(X, shuffled)  # the old dual variables only initialize the new fit
    cold = ilsvm(4, warm_start=True, max_iter=0).fit(X, y)
    assert fitted.trace_.objective[-1] < cold.fit(X, shuffled).trace_.objective[0]


@pytest.mark.parametrize("make", [classifier, regressor])
def test_warm_start_of_converged_fit_changes_little(make):
    X, Y = numbers() if make is regressor else labels()
    model = make(max_iter=300, warm_start=True).fit(X, Y)
    assert model.n_iter_ < 300
    answer = model.predict if make is regressor else model.decision_function
    before, components = answer(X), model.components_
    watch = Watch()
    model.set_callbacks(watch).fit(X, Y)
    assert model.n_iter_ == 2  # the stopping rule needs two small changes
    assert watch.tasks == ["iteration", "iteration", "descent", "fit"]  # no second warm-up
    np.testing.assert_allclose(model.components_, components, atol=2e-2)
    np.testing.assert_allclose(answer(X), before, atol=2e-2 * np.abs(before).max())
