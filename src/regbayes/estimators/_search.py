"""Cross-validation along paths, as functions: settings, warm-started fits, records, results.

A search is a `Plan` and `Samples`. `iter_records` makes the fits and yields a record of each, `summarize` turns records
into scikit-learn's table, `refit` fits one setting to all rows. None of them keeps anything; `regbayes.PathSearchCV`
and the other searches do.
"""

from __future__ import annotations

import copy
import functools
import glob
import os
import signal
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from inspect import Parameter, signature
from itertools import product
from numbers import Real
from typing import Any

import joblib
import numpy as np
from joblib import Parallel, delayed, effective_n_jobs
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import check_scoring
from sklearn.utils import _safe_indexing
from sklearn.utils._param_validation import Interval, validate_parameter_constraints
from sklearn.utils.validation import _check_method_params

from regbayes._types import Floats, Integers
from regbayes.estimators._bases import InterruptedWarning
from regbayes.estimators.search_records import FoldRecord, Setting, is_number, setting_key

Fold = tuple[Integers, Integers]  # rows to fit, rows to score
Scorer = Callable[..., float] | None  # None is the estimator's own score
Grid = Mapping[str, Sequence[Any]]
Records = Mapping[tuple[str, int], FoldRecord]  # by FoldRecord.key

NUMBER = Interval(Real, None, None, closed="neither")


class GridEdgeWarning(ConvergenceWarning):
    """The best value of a parameter is at the end of the list of values that were tried."""


@dataclass(frozen=True)
class Samples:
    """What the estimator's methods are given, row by row."""

    X: Any
    y: Any
    fit: Mapping[str, Any] = field(default_factory=dict)  # further arguments of fit, by name
    predict: Mapping[str, Any] = field(default_factory=dict)  # likewise predict and decision_function
    score: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # likewise each scorer

    def take(self, rows: Integers) -> Samples:
        """Return some of the rows."""

        def some(metadata: Mapping[str, Any]) -> dict[str, Any]:
            return _check_method_params(self.X, metadata, rows)

        return Samples(
            _safe_indexing(self.X, rows),
            None if self.y is None else _safe_indexing(self.y, rows),
            some(self.fit),
            some(self.predict),
            {name: some(metadata) for name, metadata in self.score.items()},
        )


@dataclass(frozen=True)
class Plan:
    """What is tried on what."""

    estimator: Any
    settings: Sequence[Setting]  # in the order of the results; along a path the parameter goes up
    path_length: int  # so many settings after one another are a path
    descending: bool  # whether the first fit of a path is that of its last setting
    warm_start: str | None  # the parameter that warm-starts a fit; None: every path has length 1
    folds: Sequence[Fold]
    scorers: Mapping[str, Scorer]

    def path_to(self, index: int) -> list[Setting]:
        """Return the settings up to one, in the order in which they are fitted."""
        first = index - index % self.path_length
        if self.descending:
            return list(self.settings[index : first + self.path_length])[::-1]
        return list(self.settings[first : index + 1])

    def paths(self) -> list[list[Setting]]:
        """Return all paths, each in the order in which it is fitted."""
        ends = range(0 if self.descending else self.path_length - 1, len(self.settings), self.path_length)
        return [self.path_to(end) for end in ends]


@dataclass(frozen=True)
class Job:
    """A path on a fold: settings to fit one after another, and which of them to score."""

    fold: int
    settings: Sequence[Setting]
    wanted: Sequence[bool]


# --- what is tried


def list_settings(grid: Grid, along: str | None) -> list[Setting]:
    """Return all combinations of the values; the parameter that paths go along changes fastest, and goes up."""
    ordered = {name: list(values) for name, values in grid.items() if name != along}
    if along is not None:
        ordered[along] = sorted(grid[along])
    return [dict(zip(ordered, values, strict=True)) for values in product(*ordered.values())]


def resolve_scorers(estimator: Any, scoring: Any) -> dict[str, Scorer]:
    """Return the scorers that ``scoring`` names: one called "score", or several under their own names."""
    if isinstance(scoring, list | tuple):
        scoring = {name: name for name in scoring}
    named = scoring if isinstance(scoring, Mapping) else {"score": scoring}
    found = {name: check_scoring(estimator, one) for name, one in named.items()}
    return {name: None if named[name] is None else scorer for name, scorer in found.items()}


def accepted(method: Any, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata that a method, or a scorer, names among its parameters."""
    function = getattr(method, "_score_func", method)  # of a scorer that scikit-learn made of a metric
    named = {name for name, one in signature(function).parameters.items() if one.kind is not Parameter.VAR_KEYWORD}
    return {name: value for name, value in metadata.items() if name in named}


def check_lists(estimator: Any, grid: Grid, lists: Mapping[str, str], along: str | None, *, caller: str) -> None:
    """Check every value of every list, before hours are spent on the others."""
    constraints = getattr(estimator, "_parameter_constraints", {})
    for name, values in grid.items():
        if len(values) == 0:
            raise ValueError(f"{lists[name]} is empty; it must list at least one value to try")
        checks = [constraints.get(name, "no_validation")] + [[NUMBER]] * (name == along)
        for i, value in enumerate(values):
            label = f"{lists[name]}[{i}]"
            for check in checks:
                validate_parameter_constraints({label: check}, {label: value}, caller_name=caller)


def make_plan(
    estimator: Any,
    grid: Grid,
    folds: Iterable[Fold],
    scorers: Mapping[str, Scorer],
    *,
    along: str | None = None,
    descending: bool = False,
) -> Plan:
    """Return what is tried: all combinations of the values, as paths along one of the parameters."""
    if along is None:
        return Plan(estimator, list_settings(grid, None), 1, False, None, list(folds), scorers)
    step, dashes, _ = along.rpartition("__")  # a step of a pipeline has its own warm_start
    warm_start = f"{step}{dashes}warm_start"
    if warm_start not in estimator.get_params():
        raise ValueError(
            f"along={along!r} needs warm starts, but {type(estimator).__name__} has no "
            f"parameter {warm_start!r}; use along=None"
        )
    return Plan(estimator, list_settings(grid, along), len(grid[along]), descending, warm_start, list(folds), scorers)


def usable_records(plan: Plan, records: Iterable[FoldRecord]) -> dict[tuple[str, int], FoldRecord]:
    """Return earlier records that are of settings and folds of this search, by their keys."""
    wanted = {setting_key(setting) for setting in plan.settings}
    usable = {}
    for record in records:
        key, fold = record.key
        if key not in wanted or not 0 <= fold < len(plan.folds):
            continue
        if not np.array_equal(record.rows, plan.folds[fold][1]):
            raise ValueError(f"records are of other folds: those of fold {fold} left other rows out. Use the same cv")
        missing = plan.scorers.keys() - record.scores.keys()
        if missing:
            raise ValueError(f"records have no score {sorted(missing)[0]!r}, only {list(record.scores)}")
        usable[key, fold] = record
    return usable


# --- the fits


def iter_records(
    plan: Plan, samples: Samples, *, n_jobs: int | None = None, done: Records | None = None
) -> Generator[FoldRecord, None, None]:
    """Fit every setting on every fold and yield a record of each as it arrives.

    All folds of a path come before the next path, so that whatever ends the search early leaves settings that were
    tried on every fold. A single process yields after each fit; several yield what is done whenever one of them has
    finished a path, and on Ctrl-C.
    """
    jobs = list_jobs(plan, done or {})
    if effective_n_jobs(n_jobs) == 1:
        for job in jobs:
            yield from fit_path(plan, samples, job)
        return
    with tempfile.TemporaryDirectory(prefix="regbayes-") as folder:
        with _undisturbed():  # processes that begin here ignore Ctrl-C: the search hears it, and ends them
            found = Parallel(n_jobs=n_jobs, return_as="generator_unordered")(
                delayed(_leave_records)(plan, samples, job, folder, os.getpid()) for job in jobs
            )
        try:
            for _ in found:
                yield from _collect_records(folder)
        except KeyboardInterrupt:
            yield from _collect_records(folder)  # fits of paths that were not at their end
            raise
        finally:
            with _undisturbed():
                found.close()  # ends the processes that are still fitting


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Ignore Ctrl-C, which a terminal sends to all processes, while others are begun and ended.

    joblib calls a program to end them, which a second Ctrl-C would end first.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _leave_records(plan: Plan, samples: Samples, job: Job, folder: str, owner: int) -> None:
    """Fit along a path in a process of its own, and leave each record where the search finds it."""
    if os.getpid() != owner:  # a process of an earlier search may not ignore it yet
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    for i, record in enumerate(fit_path(plan, samples, job)):
        name = os.path.join(folder, f"{id(job)}-{os.getpid()}-{time.monotonic_ns()}-{i}")
        joblib.dump(record, f"{name}.part")
        os.rename(f"{name}.part", f"{name}.record")  # whole, or not there


def _collect_records(folder: str) -> Iterator[FoldRecord]:
    """Yield the records that are there, in the order in which they were left, and take them away."""
    for path in sorted(glob.glob(os.path.join(folder, "*.record")), key=os.path.getmtime):
        record = joblib.load(path)
        os.remove(path)
        yield record


def list_jobs(plan: Plan, done: Records) -> list[Job]:
    """Return the paths to fit on each fold, as far as the last setting that is not done."""
    jobs = []
    for path in plan.paths():
        keys = [setting_key(setting) for setting in path]
        for fold in range(len(plan.folds)):
            wanted = [(key, fold) not in done for key in keys]
            if any(wanted):
                n = len(wanted) - wanted[::-1].index(True)
                jobs.append(Job(fold, path[:n], wanted[:n]))
    return jobs


def fit_path(plan: Plan, samples: Samples, job: Job) -> Iterator[FoldRecord]:
    """Fit along a path on one fold, each fit from the last, and score those that are wanted."""
    rows, left_out = plan.folds[job.fold]
    train, test = samples.take(rows), samples.take(left_out)
    estimator = _at_start(plan)
    for setting, wanted in zip(job.settings, job.wanted, strict=True):
        began = time.perf_counter()
        fit_quietly(_set(estimator, setting), train)
        seconds = time.perf_counter() - began
        if wanted:
            yield _record(estimator, setting, job.fold, plan, test, seconds)


def _at_start(plan: Plan) -> Any:
    estimator = clone(plan.estimator)
    return estimator if plan.warm_start is None else estimator.set_params(**{plan.warm_start: True})


def _set(estimator: Any, setting: Setting) -> Any:
    return estimator.set_params(**{name: clone(value, safe=False) for name, value in setting.items()})


def fit_quietly(estimator: Any, samples: Samples) -> Any:
    """Fit inside a search: no warnings, since the refitted model's are enough, and Ctrl-C ends more than this fit."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.simplefilter("error", InterruptedWarning)
        try:
            return estimator.fit(samples.X, samples.y, **samples.fit)
        except InterruptedWarning:
            raise KeyboardInterrupt from None


def _record(estimator: Any, setting: Setting, fold: int, plan: Plan, test: Samples, fit_seconds: float) -> FoldRecord:
    """Score a fitted estimator on the samples that were left out."""
    began = time.perf_counter()
    model = _answer_once(estimator, test)
    predictions = np.asarray(model.predict(test.X)) if hasattr(model, "predict") else None
    decisions = None
    for name in ("decision_function", "predict_proba"):
        if hasattr(model, name):
            found = getattr(model, name)(test.X)
            decisions = np.column_stack(found) if isinstance(found, list) else np.asarray(found)
            break
    scores = {}
    for name, scorer in plan.scorers.items():
        score = model.score if scorer is None else functools.partial(scorer, model)
        scores[name] = float(score(test.X, test.y, **test.score.get(name, {})))
    return FoldRecord(
        dict(setting),
        fold,
        scores,
        fit_seconds,
        time.perf_counter() - began,
        count_features(estimator),
        np.asarray(plan.folds[fold][1]),
        predictions,
        decisions,
    )


def _answer_once(estimator: Any, test: Samples) -> Any:
    """Return a copy of a fitted estimator that predicts held-out samples once, with their metadata.

    Several scorers ask for the same predictions, and none of them knows the tasks of samples.
    """
    model = copy.copy(estimator)

    def remember(method: Callable[..., Any]) -> Callable[..., Any]:
        found: list[Any] = []

        @functools.wraps(method)
        def ask(X: Any, *given: Any, **metadata: Any) -> Any:
            if X is not test.X or given or metadata:
                return method(X, *given, **metadata)
            if not found:
                found.append(method(X, **test.predict))
            return found[0]

        return ask

    for name in ("decision_function", "predict_proba", "predict"):  # `predict` asks the first of them
        if hasattr(estimator, name):
            setattr(model, name, remember(getattr(model, name)))
    return model


def count_features(estimator: Any) -> int | None:
    """Return how many latent features a fitted estimator, or the last step of a pipeline, uses; None if none."""
    model = getattr(estimator, "steps", [("", estimator)])[-1][1]
    if hasattr(model, "n_components_"):
        return int(model.n_components_)
    return len(model.components_) if hasattr(model, "components_") else None


def refit(plan: Plan, samples: Samples, path: Sequence[Setting], n_jobs: int | None = None) -> Any:
    """Fit the settings of a path to all samples, each from the one before it; one fit at a time has all the jobs."""
    estimator = _at_start(plan)
    before = estimator.get_params()
    threads = {"n_jobs": n_jobs} if "n_jobs" in before and before["n_jobs"] is None else {}
    estimator.set_params(**threads)
    for setting in path[:-1]:
        fit_quietly(_set(estimator, setting), samples)
    _set(estimator, path[-1]).fit(samples.X, samples.y, **samples.fit)
    if plan.warm_start is not None:
        estimator.set_params(**{plan.warm_start: plan.estimator.get_params()[plan.warm_start]})
    return estimator.set_params(**dict.fromkeys(threads))


def reseed(estimator: Any, seed: int) -> Any:
    """Return an unfitted copy with another seed, in every step of a pipeline."""
    fresh = clone(estimator)
    names = [name for name in fresh.get_params() if name.rpartition("__")[2] == "random_state"]
    return fresh.set_params(**dict.fromkeys(names, seed))


# --- the results


def summarize(plan: Plan, records: Records) -> dict[str, Any]:
    """Return the results of all settings as scikit-learn does; NaN where a fold was not tried.

    Ranks are of settings that were tried on every fold; the others come last.
    """
    shape = (len(plan.settings), len(plan.folds))
    keys = [setting_key(setting) for setting in plan.settings]
    table = [[records.get((key, fold)) for fold in range(shape[1])] for key in keys]

    def collect(value: Callable[[FoldRecord], float | None]) -> Floats:
        found = [[np.nan if record is None else value(record) for record in row] for row in table]
        return np.array(found, dtype=np.float64).reshape(shape)

    results: dict[str, Any] = {}
    for name, times in (("fit", collect(lambda r: r.fit_seconds)), ("score", collect(lambda r: r.score_seconds))):
        results |= {f"mean_{name}_time": times.mean(axis=1), f"std_{name}_time": times.std(axis=1)}
    results["mean_n_features"] = collect(lambda record: record.n_features).mean(axis=1)
    for name in plan.settings[0]:
        results[f"param_{name}"] = _column([setting[name] for setting in plan.settings])
    results["params"] = [dict(setting) for setting in plan.settings]
    for name in plan.scorers:
        scores = collect(lambda record, name=name: record.scores[name])  # type: ignore[misc]
        mean = scores.mean(axis=1)
        results |= {f"split{i}_test_{name}": scores[:, i] for i in range(shape[1])}
        results |= {f"mean_test_{name}": mean, f"std_test_{name}": scores.std(axis=1)}
        losses = np.where(np.isnan(mean), np.inf, -mean)
        results[f"rank_test_{name}"] = np.searchsorted(np.sort(losses), losses).astype(np.int32) + 1  # equals share
    return results


def _column(values: list[Any]) -> NDArray[Any]:
    """Return the values of one parameter: numbers as numbers, and anything else as it is."""
    if len({type(value) for value in values}) == 1 and isinstance(values[0], Real | np.bool_):
        return np.array(values)
    column = np.empty(len(values), dtype=object)
    column[:] = values
    return column


@dataclass(frozen=True)
class Edge:
    """A parameter whose best value is at the end of its list and beats the others."""

    name: str
    value: Any
    end: str  # "smallest" or "largest"
    further: Any  # the value to try next


def find_edges(results: Mapping[str, Any], best: int, score: str, names: Iterable[str]) -> list[Edge]:
    """Return the parameters, among some, whose best value is at the end of its list, with the value to try next."""
    mean = np.nan_to_num(results[f"mean_test_{score}"], nan=-np.inf)
    found = []
    for name in names:
        value, values = results["params"][best][name], [setting[name] for setting in results["params"]]
        if not is_number(value):
            continue
        others = np.array([not is_number(other) or other != value for other in values])
        numbers = sorted({float(other) for other in values if is_number(other)})
        if len(numbers) < 2 or float(value) not in (numbers[0], numbers[-1]) or mean[others].max() >= mean[best]:
            continue
        end, more = ("smallest", numbers[:2]) if value == numbers[0] else ("largest", numbers[:-3:-1])
        further = _next_value(*more) if isinstance(value, float) else max(round(_next_value(*more)), 1)
        if further != value and (further > 0 or numbers[0] < 0):  # most parameters have nothing below zero
            found.append(Edge(name, value, end, further))
    return found


def describe_edges(results: Mapping[str, Any], best: int, score: str, lists: Mapping[str, str]) -> list[str]:
    """Return what to try next, for every parameter whose best value is at the end of its list and beats the others."""
    return [
        f"{edge.name}={edge.value} is the {edge.end} value that was tried: add {edge.further} to {lists[edge.name]}"
        for edge in find_edges(results, best, score, lists)
    ]


def _next_value(end: float, neighbour: float) -> float:
    """Return the next value of a list beyond its end: as far as the last step, by factor if all are positive."""
    step = end * end / neighbour if min(end, neighbour) > 0 else 2 * end - neighbour
    return float(f"{step:.2g}")
