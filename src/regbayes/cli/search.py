"""Fitting with cross-validation that can be watched and stopped.

The searches of the package do the work and tell of every fit as it is done: how many there are gives the time left,
and after Ctrl-C those so far say which settings were best. What they predicted for rows that they had not seen makes
honest tables of errors.
"""

from __future__ import annotations

import math
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from inspect import signature
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse

from regbayes.cli import Kind
from regbayes.cli.errors import BadDataError, StoppedError, UserError, counted
from regbayes.cli.options import FitRequest
from regbayes.cli.output import Output
from regbayes.cli.progress import SearchWatch, is_interrupt
from regbayes.cli.scores import score_fit

__all__ = ["fit_model", "make_estimator", "make_search", "possible_folds"]

FEWEST_TOPICS = 10
OPTIONS = {  # what the values of a parameter are called here
    "C": "the values of --C",
    "temperature": "the values of --temperature",
    "n_components": "the values of --n-components",
}

Tasks = dict[str, NDArray[Any]]  # "task" and the tasks of rows, or nothing


def make_estimator(request: FitRequest, kind: Kind, X: Any, y: NDArray[Any], tasks: Tasks) -> Any:
    """Return the estimator for one setting: what the user gives, and defaults.

    MedLDA has documents, whose counts are sparse; iLSVM one target of classes; MT-iLSVM everything else.
    """
    import regbayes

    wanted: dict[str, Any] = {
        "n_components": min(request.n_components, default=None),
        "C": min(request.C, default=None),
        "max_iter": request.max_iter,
        "class_weight": "balanced" if request.balanced else None,
    }
    model: Any
    if issparse(X):
        model = regbayes.MedLDARegressor if kind == "regressor" else regbayes.MedLDAClassifier
        wanted["n_components"] = wanted["n_components"] or _topics(kind, y)[1]
        wanted["inference"] = request.inference or ("variational" if X.dtype.kind == "f" else None)
    else:
        model = regbayes.MultiTaskILSVMRegressor if kind == "regressor" else regbayes.MultiTaskILSVMClassifier
        model = regbayes.ILSVMClassifier if kind == "classifier" and not tasks else model
        wanted["temperature"] = next(iter(request.temperature), None)
        wanted["include_inputs"] = request.include_inputs
        wanted["n_init"] = request.n_init
        wanted["unseen_tasks"] = "shared" if tasks else None
    return model(random_state=request.seed, **{name: value for name, value in wanted.items() if value is not None})


def make_search(request: FitRequest, kind: Kind, X: Any, y: NDArray[Any], tasks: Tasks, folds: int) -> Any:
    """Return the search among the user's values, or else those that do well: the searching estimators list them."""
    import regbayes

    base = make_estimator(request, kind, X, y, tasks)
    searching = getattr(regbayes, f"{type(base).__name__}CV")
    listed = signature(searching).parameters
    Cs = sorted(set(request.C)) or listed["Cs"].default
    common = {"scoring": partial(score_fit, kind=kind, balanced=request.balanced), "n_jobs": request.jobs or 1}
    if issparse(X):  # every fit from the user's seed, and as many topics as there are classes at least
        topics = sorted(set(request.n_components)) or _topics(kind, y)
        grid = {"C": Cs, "n_components": topics}
        return regbayes.PathSearchCV(base, grid, cv=_splitter(request, kind, folds), **common)
    if request.temperature:
        common["temperatures"] = request.temperature
    if request.include_inputs is not None:
        common["include_inputs"] = [request.include_inputs]
    for name in {"n_components", "n_init", "max_iter", "class_weight", "unseen_tasks"} & listed.keys():
        common[name] = getattr(base, name)
    cv = folds if kind != "classifier" or tasks else _splitter(request, kind, folds)
    return searching(Cs=Cs, cv=cv, random_state=request.seed, **common)


def _splitter(request: FitRequest, kind: Kind, folds: int) -> Any:
    from sklearn.model_selection import KFold, StratifiedKFold

    return (StratifiedKFold if kind == "classifier" else KFold)(folds, shuffle=True, random_state=request.seed)


def _topics(kind: Kind, y: NDArray[Any]) -> list[int]:
    """Return numbers of topics to try: not fewer than classes, because each has something of its own."""
    outputs = len(np.unique(y)) if kind == "classifier" else np.atleast_2d(y.T).shape[0]
    least = max(FEWEST_TOPICS, outputs)
    return [least, 2 * least, 4 * least]


def possible_folds(request: FitRequest, kind: Kind, X: Any, y: NDArray[Any], tasks: Tasks) -> int:
    """Return how many folds the rows allow: every part needs some of every class, of documents two classes at least."""
    if not request.cv:
        return 0
    if kind != "classifier" or tasks:
        return min(request.folds, len(y))
    sizes = np.sort(np.unique(y, return_counts=True)[1])
    if issparse(X):
        return min(request.folds, int(sizes[-1])) if sizes[-2] > 1 else 1
    return min(request.folds, int(sizes[0]))


def fit_model(
    request: FitRequest, kind: Kind, X: Any, y: NDArray[Any], task: NDArray[Any] | None, output: Output
) -> tuple[Any, NDArray[Any] | None, dict[str, Any]]:
    """Choose settings by cross-validation and fit them to all rows; or, on Ctrl-C, the best so far.

    The first Ctrl-C ends the search and fits the best settings so far; a second one ends that fit at its best state.

    Returns
    -------
    estimator
    predictions : array or None
        Of rows by fits that had not seen them; None where some rows were in all fits.
    facts : dict
        ``seconds``, ``interrupted``, ``settings`` and what ``cross_validation`` found, None without one.
    """
    from sklearn.utils._param_validation import InvalidParameterError

    tasks = {} if task is None else {"task": task}
    folds = possible_folds(request, kind, X, y, tasks)
    if request.cv and folds < 2:
        output.warn("too few rows of some class for cross-validation; the settings are the defaults")
    elif request.cv and folds < request.folds:
        where = "the rarest class has" if kind == "classifier" and not tasks else "there are"
        output.say(f"{folds} folds instead of {request.folds}: {where} {folds} rows")
    began = time.perf_counter()
    try:
        estimator, predictions = make_estimator(request, kind, X, y, tasks), None
        if folds < 2:
            estimator, facts = _fit_alone(estimator, request, X, y, tasks, output)
        else:
            search = make_search(request, kind, X, y, tasks, folds)
            estimator, predictions, facts = _fit_searching(search, estimator, request, X, y, tasks, output)
    except InvalidParameterError as error:
        raise UserError(str(error)) from None
    except ValueError as error:
        hint = "" if folds < 2 else ". --no-cv fits without cross-validation"
        raise BadDataError(f"the model cannot be fitted to these data: {str(error).rstrip('.')}{hint}") from None
    return estimator, predictions, {**facts, "seconds": time.perf_counter() - began}


def _fit_alone(
    estimator: Any, request: FitRequest, X: Any, y: NDArray[Any], tasks: Tasks, output: Output
) -> tuple[Any, dict[str, Any]]:
    """Fit to all rows; Ctrl-C keeps the best state so far."""
    bar = int(not output.quiet and sys.stderr.isatty())
    estimator.set_params(verbose=bar, n_jobs=request.jobs or 1)  # one fit at a time has all the cores
    with _hearing(request, output) as heard:
        estimator.fit(X, y, **tasks)
    estimator.set_params(verbose=0, n_jobs=None)
    settings = {"C": _margin_penalty(estimator)}
    return estimator, {
        "settings": settings,
        "cross_validation": None,
        "interrupted": any(map(is_interrupt, heard)),
    }


def _margin_penalty(estimator: Any) -> float:
    """Return C; where the estimator chose it, what it chose."""
    if estimator.C != "auto":
        return float(estimator.C)
    from regbayes.estimators._latent import make_supervision

    return make_supervision(estimator.get_params(deep=False), len(estimator.classes_), 1.0).C


def _fit_searching(
    search: Any, base: Any, request: FitRequest, X: Any, y: NDArray[Any], tasks: Tasks, output: Output
) -> tuple[Any, NDArray[Any] | None, dict[str, Any]]:
    """Fit with a search; after Ctrl-C the search itself, or `base`, fits the best settings so far."""
    from regbayes.estimators._search import GridEdgeWarning, describe_edges

    lists = _values_to_try(search)
    n_settings, n_folds = math.prod(map(len, lists.values())), getattr(search.cv, "n_splits", search.cv)
    output.say(f"cross-validation: {counted(n_settings, 'setting')} on {n_folds} folds, then a fit to all rows")
    names = sorted(name for name, values in lists.items() if name == "C" or len(values) > 1)
    watch = SearchWatch(n_settings * n_folds, names, output)
    try:
        with watch, _hearing(request, output, watch.tell) as heard:
            warnings.simplefilter("ignore", GridEdgeWarning)  # below, in the words of the command line
            warnings.filterwarnings("ignore", "The least populated class")  # said already
            search.fit(X, y, on_result=watch, **tasks)
        estimator, best, interrupted = search.best_estimator_, search.best_params_, any(map(is_interrupt, heard))
    except KeyboardInterrupt:  # before a setting was tried on every fold, or on the way to the last fit
        if not watch.records:
            raise StoppedError("interrupted before the first fit was done; nothing was written") from None
        watch.tell_interrupted()
        best, interrupted = watch.best(), True
        estimator, _ = _fit_alone(base.set_params(**best), request, X, y, tasks, output)
    if not interrupted:
        called = {name: OPTIONS[name] for name in names if name in OPTIONS}
        for edge in describe_edges(search.cv_results_, search.best_index_, "score", called):
            output.warn(f"the best {edge}")
    facts = {**watch.results(best), "interrupted": interrupted}
    return estimator, watch.unseen_predictions(best, len(y)), facts


def _values_to_try(search: Any) -> dict[str, Sequence[Any]]:
    if hasattr(search, "param_grid"):
        return search.param_grid
    return {name: getattr(search, listed) for name, listed in search._lists.items()}


@contextmanager
def _hearing(request: FitRequest, output: Output, tell: Any = None) -> Iterator[list[warnings.WarningMessage]]:
    """Hear warnings, except that all features are in use where the user said how many there may be."""
    from regbayes import TruncationWarning

    with output.hearing_warnings(tell) as heard:
        if request.n_components:
            warnings.simplefilter("ignore", TruncationWarning)
        yield heard
