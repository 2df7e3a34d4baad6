"""Cross-validation along paths, as functions: settings, warm-started fits, records, results.

A search has a `Plan` and `Samples`. `iter_records` fits the settings and yields a record of each fit. `summarize` turns
records into scikit-learn's table, and `refit` fits one setting on all samples. The functions keep no state.
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

Fold = tuple[Integers, Integers]  # training and test indices
Scorer = Callable[..., float] | None  # None is the estimator's own score
Grid = Mapping[str, Sequence[Any]]
Records = Mapping[tuple[str, int], FoldRecord]  # keyed by FoldRecord.key

NUMBER = Interval(Real, None, None, closed="neither")


class GridEdgeWarning(ConvergenceWarning):
    """The best value of a parameter is the first or last of its list."""


@dataclass(frozen=True)
class Samples:
    """Samples and the metadata of the estimator's methods."""

    X: Any
    y: Any
    fit: Mapping[str, Any] = field(default_factory=dict)  # further arguments of fit, by name
    predict: Mapping[str, Any] = field(default_factory=dict)  # further arguments of predict and decision_function
    score: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # further arguments of each scorer

    def take(self, rows: Integers) -> Samples:
        """Return a subset of the samples."""

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
    """Settings and folds of a search."""

    estimator: Any
    settings: Sequence[Setting]  # in the order of the results; the parameter of a path increases
    path_length: int  # number of consecutive settings in a path
    descending: bool  # whether paths are fitted from the last setting to the first
    warm_start: str | None  # name of the warm-start parameter; None: every path has length 1
    folds: Sequence[Fold]
    scorers: Mapping[str, Scorer]

    def path_to(self, index: int) -> list[Setting]:
        """Return the settings of a path up to one of them, in the order of the fits."""
        first = index - index % self.path_length
        if self.descending:
            return list(self.settings[index : first + self.path_length])[::-1]
        return list(self.settings[first : index + 1])

    def paths(self) -> list[list[Setting]]:
        """Return all paths, each in the order of its fits."""
        ends = range(0 if self.descending else self.path_length - 1, len(self.settings), self.path_length)
        return [self.path_to(end) for end in ends]


@dataclass(frozen=True)
class Job:
    """A path on a fold: the settings to fit in order, and which of them to score."""

    fold: int
    settings: Sequence[Setting]
    wanted: Sequence[bool]


# --- Settings


def list_settings(grid: Grid, along: str | None) -> list[Setting]:
    """Return all combinations of the values; the parameter of the paths changes fastest and increases."""
    ordered = {name: list(values) for name, values in grid.items() if name != along}
    if along is not None:
        ordered[along] = sorted(grid[along])
    return [dict(zip(ordered, values, strict=True)) for values in product(*ordered.values())]


def resolve_scorers(estimator: Any, scoring: Any) -> dict[str, Scorer]:
    """Return the scorers of ``scoring``: one called "score", or several under their own names."""
    if isinstance(scoring, list | tuple):
        scoring = {name: name for name in scoring}
    named = scoring if isinstance(scoring, Mapping) else {"score": scoring}
    found = {name: check_scoring(estimator, one) for name, one in named.items()}
    return {name: None if named[name] is None else scorer for name, scorer in found.items()}


def accepted(method: Any, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata that a method or a scorer accepts by name."""
    function = getattr(method, "_score_func", method)  # the metric of a scorer that scikit-learn made
    named = {name for name, one in signature(function).parameters.items() if one.kind is not Parameter.VAR_KEYWORD}
    return {name: value for name, value in metadata.items() if name in named}


def check_lists(estimator: Any, grid: Grid, lists: Mapping[str, str], along: str | None, *, caller: str) -> None:
    """Validate every value of every list before the first fit."""
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
    """Return the plan of all combinations of the values, as paths along one of the parameters."""
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
    """Return the earlier records whose settings and folds belong to this search, by key."""
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


# --- Fits


def iter_records(
    plan: Plan, samples: Samples, *, n_jobs: int | None = None, done: Records | None = None
) -> Generator[FoldRecord, None, None]:
    """Fit every setting on every fold and yield the record of each fit as it arrives.

    All folds of a path are fitted before the next path, so that an interrupted search has settings with scores on all
    folds. A single process yields after each fit. Several processes yield whenever one of them has finished a path, and
    on Ctrl-C.
    """
    jobs = list_jobs(plan, done or {})
    if effective_n_jobs(n_jobs) == 1:
        for job in jobs:
            yield from fit_path(plan, samples, job)
        return
    with tempfile.TemporaryDirectory(prefix="regbayes-") as folder:
        with _undisturbed():  # worker processes ignore Ctrl-C; the search handles it and ends them
            found = Parallel(n_jobs=n_jobs, return_as="generator_unordered")(
                delayed(_leave_records)(plan, samples, job, folder, os.getpid()) for job in jobs
            )
        try:
            for _ in found:
                yield from _collect_records(folder)
        except KeyboardInterrupt:
            yield from _collect_records(folder)  # records of unfinished paths
            raise
        finally:
            with _undisturbed():
                found.close()  # ends the worker processes


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Ignore Ctrl-C, which a terminal sends to all processes, while worker processes start or end.

    joblib ends them with another program, which a second Ctrl-C would interrupt.
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
    """Fit along a path in a worker process, and write each record to the search's folder."""
    if os.getpid() != owner:  # a worker of an earlier search may not ignore it yet
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    for i, record in enumerate(fit_path(plan, samples, job)):
        name = os.path.join(folder, f"{id(job)}-{os.getpid()}-{time.monotonic_ns()}-{i}")
        joblib.dump(record, f"{name}.part")
        os.rename(f"{name}.part", f"{name}.record")  # atomic: the search never reads a partial file


def _collect_records(folder: str) -> Iterator[FoldRecord]:
    """Yield the records in a folder in the order in which they were written, and remove them."""
    for path in sorted(glob.glob(os.path.join(folder, "*.record")), key=os.path.getmtime):
        record = joblib.load(path)
        os.remove(path)
        yield record


def list_jobs(plan: Plan, done: Records) -> list[Job]:
    """Return the paths to fit on each fold, each up to the last setting without a record."""
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
    """Fit along a path on one fold with warm starts, and score the settings without a record."""
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
    """Fit inside a search, without warnings (the final fit repeats them); Ctrl-C ends the search."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.simplefilter("error", InterruptedWarning)
        try:
            return estimator.fit(samples.X, samples.y, **samples.fit)
        except InterruptedWarning:
            raise KeyboardInterrupt from None


def _record(estimator: Any, setting: Setting, fold: int, plan: Plan, test: Samples, fit_seconds: float) -> FoldRecord:
    """Score a fitted estimator on held-out samples."""
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
    """Return a copy of a fitted estimator that caches its predictions for held-out samples.

    Several scorers need the same predictions. The copy passes metadata such as tasks, which scorers do not have.
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

    for name in ("decision_function", "predict_proba", "predict"):  # `predict` calls the first of them
        if hasattr(estimator, name):
            setattr(model, name, remember(getattr(model, name)))
    return model


def count_features(estimator: Any) -> int | None:
    """Return the number of latent features in use of a fitted estimator or pipeline; None if it has none."""
    model = getattr(estimator, "steps", [("", estimator)])[-1][1]
    if hasattr(model, "n_components_"):
        return int(model.n_components_)
    return len(model.components_) if hasattr(model, "components_") else None


def refit(plan: Plan, samples: Samples, path: Sequence[Setting], n_jobs: int | None = None) -> Any:
    """Fit the settings of a path on all samples in sequence, with warm starts and all jobs."""
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
    """Return an unfitted copy with another seed in every step of a pipeline."""
    fresh = clone(estimator)
    names = [name for name in fresh.get_params() if name.rpartition("__")[2] == "random_state"]
    return fresh.set_params(**dict.fromkeys(names, seed))


# --- Results


def summarize(plan: Plan, records: Records) -> dict[str, Any]:
    """Return scikit-learn's table of results, with NaN for missing folds.

    Settings with scores on every fold are ranked first.
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
        results[f"rank_test_{name}"] = np.searchsorted(np.sort(losses), losses).astype(np.int32) + 1  # ties share
    return results


def _column(values: list[Any]) -> NDArray[Any]:
    """Return the values of one parameter, as an array of numbers if possible."""
    if len({type(value) for value in values}) == 1 and isinstance(values[0], Real | np.bool_):
        return np.array(values)
    column = np.empty(len(values), dtype=object)
    column[:] = values
    return column


@dataclass(frozen=True)
class Edge:
    """A parameter whose best value is at the end of its list and better than the others."""

    name: str
    value: Any
    end: str  # "smallest" or "largest"
    further: Any  # the value to try next


def find_edges(results: Mapping[str, Any], best: int, score: str, names: Iterable[str]) -> list[Edge]:
    """Return the parameters whose best value is at the end of its list, with the value to try next."""
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
        if further != value and (further > 0 or numbers[0] < 0):  # most parameters must be positive
            found.append(Edge(name, value, end, further))
    return found


def describe_edges(results: Mapping[str, Any], best: int, score: str, lists: Mapping[str, str]) -> list[str]:
    """Return advice for every parameter whose best value is at the end of its list and better than the others."""
    return [
        f"{edge.name}={edge.value} is the {edge.end} value that was tried: add {edge.further} to {lists[edge.name]}"
        for edge in find_edges(results, best, score, lists)
    ]


def _next_value(end: float, neighbour: float) -> float:
    """Return the next value beyond the end of a list, by the last ratio if all are positive, or else difference."""
    step = end * end / neighbour if min(end, neighbour) > 0 else 2 * end - neighbour
    return float(f"{step:.2g}")
