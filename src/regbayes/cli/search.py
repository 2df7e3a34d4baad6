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
from contextlib import contextmanager, suppress
from functools import partial
from inspect import signature
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse

from regbayes._types import Floats
from regbayes.cli import Kind, interrupts
from regbayes.cli.comparison import Judged, Problem, compare
from regbayes.cli.errors import BadDataError, StoppedError, UserError, counted, plural
from regbayes.cli.interrupts import is_interrupt
from regbayes.cli.options import FitRequest
from regbayes.cli.output import Output
from regbayes.cli.probabilities import learn_certainty
from regbayes.cli.progress import Compiling, SearchWatch
from regbayes.cli.scores import metric_name, score_fit
from regbayes.cli.targets import shown_label

__all__ = ["fit_alone", "fit_model", "make_estimator", "make_search", "possible_folds"]

FEWEST_TOPICS = 10
ROWS_TO_COMPILE_WITH = 200
OPTIONS = {  # what the values of a parameter are called here
    "C": "the values of --C",
    "temperature": "the values of --temperature",
    "n_components": "the values of --n-components",
}

Metadata = dict[str, NDArray[Any]]  # what rows have beside inputs and targets: "task", "sample_weight"


def make_estimator(request: FitRequest, kind: Kind, X: Any, y: NDArray[Any], metadata: Metadata) -> Any:
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
        model = regbayes.ILSVMClassifier if kind == "classifier" and "task" not in metadata else model
        if request.slab and model is not regbayes.ILSVMClassifier:
            raise UserError(
                f"--slab is for a classifier of one target without --task, and this is a {model.__name__}; leave it out"
            )
        wanted["slab"] = request.slab
        wanted["temperature"] = next(iter(request.temperature), None)
        wanted["include_inputs"] = request.include_inputs
        wanted["n_init"] = request.n_init
        wanted["unseen_tasks"] = "shared" if "task" in metadata else None
    return model(random_state=request.seed, **{name: value for name, value in wanted.items() if value is not None})


def make_search(request: FitRequest, kind: Kind, X: Any, y: NDArray[Any], metadata: Metadata, folds: int) -> Any:
    """Return the search among the user's values, or else those that do well: the searching estimators list them."""
    import regbayes

    base = make_estimator(request, kind, X, y, metadata)
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
    for name in {"n_components", "n_init", "max_iter", "class_weight", "unseen_tasks", "slab"} & listed.keys():
        common[name] = getattr(base, name)
    cv = folds if kind != "classifier" or "task" in metadata else _splitter(request, kind, folds)
    return searching(Cs=Cs, cv=cv, random_state=request.seed, **common)


def _splitter(request: FitRequest, kind: Kind, folds: int) -> Any:
    from sklearn.model_selection import KFold, StratifiedKFold

    return (StratifiedKFold if kind == "classifier" else KFold)(folds, shuffle=True, random_state=request.seed)


def _topics(kind: Kind, y: NDArray[Any]) -> list[int]:
    """Return numbers of topics to try: not fewer than classes, because each has something of its own."""
    outputs = len(np.unique(y)) if kind == "classifier" else np.atleast_2d(y.T).shape[0]
    least = max(FEWEST_TOPICS, outputs)
    return [least, 2 * least, 4 * least]


def possible_folds(request: FitRequest, kind: Kind, X: Any, y: NDArray[Any], metadata: Metadata) -> int:
    """Return how many folds the rows allow: every part needs some of every class, of documents two classes at least."""
    if not request.cv:
        return 0
    if kind != "classifier" or "task" in metadata:
        return min(request.folds, len(y))
    sizes = np.sort(np.unique(y, return_counts=True)[1])
    if issparse(X):
        return min(request.folds, int(sizes[-1])) if sizes[-2] > 1 else 1
    return min(request.folds, int(sizes[0]))


def _tell_of_folds(
    request: FitRequest, kind: Kind, y: NDArray[Any], task: NDArray[Any] | None, folds: int, output: Output
) -> None:
    """Say where rows of classes are too few: for learning, for cross-validation, or for as many folds as asked for."""
    rarest = ""
    if kind == "classifier":
        classes, sizes = np.unique(y, return_counts=True)
        rarest = f" (the rarest, {shown_label(classes[sizes.argmin()])!r}, has {sizes.min()})"
        if len(classes) > len(y) / 2:
            numbers = y.dtype.kind in "iuf"
            remedy = ". If they are amounts: --kind regressor" if numbers else ": they may be names of rows"
            rows = counted(len(y), "row")
            output.warn(f"{len(classes)} classes in {rows}, so most have a row or two to learn from{remedy}")
    if request.cv and folds < 2:
        output.warn(f"too few rows of some class for cross-validation{rarest}; the settings are the defaults")
    elif request.cv and folds < request.folds:
        where = "the rarest class has" if kind == "classifier" and task is None else "there are"
        output.say(f"{folds} folds instead of {request.folds}: {where} {folds} rows")


def fit_model(
    request: FitRequest,
    kind: Kind,
    X: Any,
    y: NDArray[Any],
    task: NDArray[Any] | None,
    output: Output,
    *,
    weights: Floats | None = None,
    names: Sequence[str] = ("target",),
) -> tuple[Any, NDArray[Any] | None, dict[str, Any]]:
    """Choose settings by cross-validation and fit them to all rows; or, on Ctrl-C, the best so far.

    The first Ctrl-C ends the search and fits the best settings so far; a second one ends that fit at its best state.

    Parameters
    ----------
    weights : (n,), optional
        How often each row counts.
    names : sequence of str
        Of the targets.

    Returns
    -------
    estimator
    predictions : array or None
        Of rows by fits that had not seen them; None where some rows were in all fits.
    facts : dict
        ``seconds``, ``interrupted``, ``kept`` (what was, after Ctrl-C), ``settings``, what ``cross_validation`` found,
        the ``comparison`` with plain systems, ``certainty`` of classes and ``reliability`` of their probabilities; the
        last four are None without cross-validation.
    """
    from sklearn.utils._param_validation import InvalidParameterError

    metadata = {"task": task, "sample_weight": weights}
    metadata = {name: value for name, value in metadata.items() if value is not None}
    folds = possible_folds(request, kind, X, y, metadata)
    _tell_of_folds(request, kind, y, task, folds, output)
    began = time.perf_counter()
    problem = Problem(X, y, kind, names, task, weights, request.balanced, request.seed)
    try:
        with Compiling(output) as compiling:
            estimator, predictions = make_estimator(request, kind, X, y, metadata), None
            if folds < 2:
                estimator, facts = fit_alone(estimator, request, X, y, metadata, output)
                facts |= dict.fromkeys(("comparison", "certainty", "reliability"))
            else:
                search = make_search(request, kind, X, y, metadata, folds)
                estimator, watch, facts = _fit_searching(search, estimator, request, X, y, metadata, output)
                with interrupts.held():  # Ctrl-C that comes now must not cost the model
                    predictions = watch.unseen_predictions(watch.chosen, len(y))
                    facts["certainty"], facts["reliability"] = None, None
                    if kind != "regressor":
                        tried = watch.records_of(watch.chosen)
                        facts["certainty"], facts["reliability"] = learn_certainty(
                            estimator, tried, y, weights, request.seed
                        )
                    interrupts.forget()
            facts["seconds"] = time.perf_counter() - began - compiling.seconds
    except InvalidParameterError as error:
        raise UserError(str(error)) from None
    except ValueError as error:
        raise BadDataError(
            f"the model cannot be fitted to these data: {str(error).rstrip('.')}{_remedy(kind, y, folds)}"
        ) from None
    interrupts.forget()  # a second Ctrl-C that came when the last fit was done
    if folds >= 2:
        facts["comparison"] = _compare(problem, estimator, watch, request, facts, compiling.seconds, output)
        facts["cross_validation"]["pooled"] = facts["comparison"]["systems"][0]["score"]
    return estimator, predictions, facts


def _remedy(kind: Kind, y: NDArray[Any], folds: int) -> str:
    """Say what may help a fit that the data do not allow."""
    found = "" if folds < 2 else ". --no-cv fits without cross-validation"
    if kind == "multilabel" and y.dtype != object and len(np.unique(y[np.isfinite(y)])) > 2:
        found += ". If the targets are amounts: --kind regressor"
    return found


def _compare(
    problem: Problem,
    estimator: Any,
    watch: SearchWatch,
    request: FitRequest,
    facts: dict[str, Any],
    compiling: float,
    output: Output,
) -> dict[str, Any]:
    """Compare the model with plain systems on the folds that its settings were tried on."""
    tried = watch.records_of(watch.chosen)
    from regbayes.estimators._bases import features_in_use

    in_use = len(features_in_use(estimator))
    noun = "topic" if issparse(problem.X) else "feature"
    size, unit = in_use, plural(in_use, noun)
    if getattr(estimator, "include_inputs", False):
        n = problem.X.shape[1]
        size, unit = in_use + n, f"{plural(in_use, noun)} and {plural(n, 'input')}"
    seconds = sum(record.fit_seconds for record in watch.records) - (compiling if request.jobs == 1 else 0.0)
    model = Judged(
        "model",
        type(estimator).__name__,
        [record.rows for record in tried],
        [np.asarray(record.predictions) for record in tried],
        max(seconds, 0.0),
        size,
        unit,
    )
    found = compare(
        problem,
        model,
        n_settings=watch.n_rivals,
        with_peers=request.compare and not facts["interrupted"],
        patience=facts["seconds"],
        say=output.say,
    )
    return {"metric": metric_name(problem.kind, len(problem.names), balanced=problem.balanced), **found}


def fit_alone(
    estimator: Any,
    request: FitRequest,
    X: Any,
    y: NDArray[Any],
    metadata: Metadata,
    output: Output,
) -> tuple[Any, dict[str, Any]]:
    """Fit to all rows; Ctrl-C keeps the best state so far, once there is one."""
    bar = int(not output.quiet and sys.stderr.isatty())
    estimator.set_params(verbose=bar, n_jobs=request.jobs or 1)  # one fit at a time has all the cores
    with _catch_warnings(request, output) as heard:
        estimator.fit(X, y, **metadata)
    interrupted = any(map(is_interrupt, heard))
    estimator.set_params(verbose=0, n_jobs=None)
    return estimator, {
        "settings": {"C": _margin_penalty(estimator)},
        "cross_validation": None,
        "interrupted": interrupted,
        "kept": "Interrupted: the fit was ended early, at its best state so far." if interrupted else None,
    }


def _fit_shortly(
    estimator: Any, request: FitRequest, X: Any, y: NDArray[Any], metadata: Metadata, output: Output
) -> Any:
    """Make a fit as short as it can be, and let nothing interrupt it."""
    with interrupts.held(), _catch_warnings(request, output):
        estimator.set_params(verbose=0, n_jobs=None)
        return estimator.set_callbacks(StopAtOnce()).fit(X, y, **metadata).set_callbacks()


class StopAtOnce:
    """A callback, as scikit-learn knows them, that ends a fit after its first iteration."""

    def setup(self, estimator: Any, context: Any) -> None:
        """Nothing to prepare."""

    def teardown(self, estimator: Any, context: Any) -> None:
        """Nothing to put away."""

    def on_fit_task_begin(self, estimator: Any, context: Any, **_: Any) -> None:
        """Let it begin."""

    def on_fit_task_end(self, estimator: Any, context: Any, **_: Any) -> bool:
        """Ask the fit to stop."""
        return True


def _margin_penalty(estimator: Any) -> float:
    """Return C; where the estimator chose it, what it chose."""
    if estimator.C != "auto":
        return float(estimator.C)
    from regbayes.estimators.ilsvm import make_supervision

    return make_supervision(estimator.get_params(deep=False), len(estimator.classes_), 1.0).C


def _fit_searching(
    search: Any, base: Any, request: FitRequest, X: Any, y: NDArray[Any], metadata: Metadata, output: Output
) -> tuple[Any, SearchWatch, dict[str, Any]]:
    """Fit with a search; after Ctrl-C the search itself, or `base`, fits the best settings so far."""
    from regbayes.estimators._search import GridEdgeWarning

    lists = _values_to_try(search)
    n_settings, n_folds = math.prod(map(len, lists.values())), getattr(search.cv, "n_splits", search.cv)
    output.say(f"cross-validation: {counted(n_settings, 'setting')} on {n_folds} folds, then a fit to all rows")
    names = sorted(name for name, values in lists.items() if name == "C" or len(values) > 1)
    watch = SearchWatch(n_settings, n_folds, names, output)
    if request.jobs != 1:
        _compile_first(base, X, y, metadata)
    ended_early = False
    try:
        with watch, _catch_warnings(request, output, lambda found: watch.tell(found, search)) as heard:
            warnings.simplefilter("ignore", GridEdgeWarning)  # below, in the words of the command line
            warnings.filterwarnings("ignore", "The least populated class")  # said already
            search.fit(X, y, on_result=watch, **metadata)
        estimator, watch.chosen = search.best_estimator_, search.best_params_
        ended_early = sum(map(is_interrupt, heard)) > watch.told
        interrupted = watch.told or ended_early
    except KeyboardInterrupt:
        if not watch.records:
            raise StoppedError("interrupted before the first fit was done; nothing was written") from None
        if watch.told or len(watch.records) == watch.total:  # on the way to the last fit, where there is no state yet
            watch.chosen = search.best_params_ if "best_params_" in vars(search) else watch.best()
            estimator = _fit_shortly(base.set_params(**watch.chosen), request, X, y, metadata, output)
            ended_early = True
        else:  # before a setting was tried on every fold
            best = watch.best()
            try:
                watch.tell_interrupted(best)
                estimator, alone = fit_alone(base.set_params(**best), request, X, y, metadata, output)
                ended_early = alone["interrupted"]
            except KeyboardInterrupt:  # again, before there was a state to keep: so many settings were tried for it
                estimator = _fit_shortly(base.set_params(**best), request, X, y, metadata, output)
                ended_early = True
        interrupted = True
    if not interrupted:
        estimator, interrupted, ended_early = _extend(search, watch, request, X, y, metadata, output)
    facts = {**watch.results(watch.chosen), "interrupted": interrupted}
    return estimator, watch, {**facts, "kept": watch.kept(ended_early=ended_early) if interrupted else None}


def _compile_first(base: Any, X: Any, y: NDArray[Any], metadata: Metadata) -> None:
    """Make a small fit here, so that what must be compiled is, once, before several processes need it."""
    from sklearn.base import clone

    rows = np.unique(np.linspace(0, len(y) - 1, ROWS_TO_COMPILE_WITH).astype(np.int64))
    some = {name: values[rows] for name, values in metadata.items()}
    with warnings.catch_warnings(), suppress(ValueError):  # of a class or task that some rows lack
        warnings.simplefilter("ignore")
        clone(base).set_params(max_iter=1).fit(X[rows], y[rows], **some)


def _extend(
    search: Any, watch: SearchWatch, request: FitRequest, X: Any, y: NDArray[Any], metadata: Metadata, output: Output
) -> tuple[Any, bool, bool]:
    """Try one value more where the best is at the end of a list; return the fit, and whether Ctrl-C ended what."""
    from sklearn.base import clone

    from regbayes import PathSearchCV
    from regbayes.estimators._search import find_edges

    estimator, best = search.best_estimator_, dict(search.best_params_)
    names = [name for name in watch.names if name in OPTIONS]
    edges = find_edges(search.cv_results_, search.best_index_, "score", names)
    along = getattr(search, "_along", None)
    folds = [(np.setdiff1d(np.arange(len(y)), one.rows), one.rows) for one in watch.records_of(best)]
    score, interrupted = search.best_score_, False
    for edge in edges:
        output.say(
            f"the best {edge.name}={edge.value} is the {edge.end} value that was tried: {edge.name}={edge.further} is "
            "tried too"
        )
        grid = {**{name: [value] for name, value in best.items()}, edge.name: sorted([best[edge.name], edge.further])}
        more = PathSearchCV(
            clone(estimator),
            grid,
            along=along if edge.name == along else None,
            descending=getattr(search, "_descending", False),
            cv=folds,
            scoring=search.scoring,
            refit=False,
            n_jobs=search.n_jobs,
        )
        watch.add_setting()
        try:
            with _catch_warnings(request, output, lambda _: True) as heard:
                more.fit(X, y, records=watch.records, on_result=watch, **metadata)
        except KeyboardInterrupt:
            interrupted = True
            break
        if any(map(is_interrupt, heard)):
            interrupted = True
            break
        if more.best_score_ > score:
            score, watch.chosen = more.best_score_, more.best_params_
    if watch.chosen == best:
        if interrupted:
            watch.tell_interrupted(best, again=False)
        return estimator, interrupted, False
    estimator = clone(estimator).set_params(**watch.chosen)
    try:
        estimator, alone = fit_alone(estimator, request, X, y, metadata, output)
        ended_early = alone["interrupted"]
    except KeyboardInterrupt:  # before there was a state to keep
        estimator, ended_early = _fit_shortly(estimator, request, X, y, metadata, output), True
    for edge in edges:
        if watch.chosen[edge.name] == edge.further:
            output.warn(
                f"the best {edge.name}={edge.further} is the {edge.end} value that was tried, even with one more: try "
                f"others with {OPTIONS[edge.name].removeprefix('the values of ')}"
            )
    return estimator, interrupted or ended_early, ended_early


def _values_to_try(search: Any) -> dict[str, Sequence[Any]]:
    if hasattr(search, "param_grid"):
        return search.param_grid
    return {name: getattr(search, listed) for name, listed in search._lists.items()}


@contextmanager
def _catch_warnings(request: FitRequest, output: Output, tell: Any = None) -> Iterator[list[warnings.WarningMessage]]:
    """Hear warnings, except that all features are in use where the user said how many there may be."""
    from regbayes import TruncationWarning

    with output.catch_warnings(tell) as heard:
        if request.n_components:
            warnings.simplefilter("ignore", TruncationWarning)
        yield heard
