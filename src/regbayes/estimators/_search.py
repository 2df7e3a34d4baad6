"""Cross-validation along paths: warm-started fits, their records, and the table of results."""

from __future__ import annotations

import copy
import functools
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
from pathlib import Path
from typing import Any

import joblib
import numpy as np
from joblib import Parallel, delayed, effective_n_jobs
from scipy.stats import rankdata
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import check_scoring
from sklearn.model_selection import ParameterGrid
from sklearn.utils import _safe_indexing
from sklearn.utils.validation import _check_method_params

from regbayes._types import Floats, Integers
from regbayes.estimators._bases import InterruptedWarning
from regbayes.estimators.search_records import FoldRecord, Setting, is_number, setting_key

Fold = tuple[Integers, Integers]  # training and test indices
Scorer = Callable[..., float] | None  # None is the estimator's own score
Grid = Mapping[str, Sequence[Any]]
Records = dict[tuple[str, int], FoldRecord]  # keyed by FoldRecord.key


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
    """Settings, folds and scorers of a search."""

    estimator: Any
    warm_start: str | None  # name of the warm-start parameter; None: every path has one setting
    paths: Sequence[Sequence[Setting]]  # in the order of the fits
    settings: Sequence[Setting]  # in the order of the results; the parameter of a path increases
    folds: Sequence[Fold]
    scorers: Mapping[str, Scorer]

    @classmethod
    def make(
        cls,
        estimator: Any,
        grid: Grid,
        folds: Iterable[Fold],
        scorers: Mapping[str, Scorer],
        *,
        along: str | None = None,
        descending: bool = False,
    ) -> Plan:
        """Return the plan of all combinations of the values, as paths along one of the parameters.

        Every setting is validated by the estimator's own constraints.
        """
        ParameterGrid(dict(grid))  # raises an error unless all values are lists with entries
        others, warm_start = [name for name in grid if name != along], None
        ends: list[Setting] = [{}]
        if along is not None:
            if along not in grid:
                raise ValueError(f"along={along!r} must be one of the searched parameters: {', '.join(grid)}.")
            try:
                ends = [{along: value} for value in sorted(grid[along])]
            except TypeError:
                raise ValueError(
                    f"The values of {along} must be numbers, which are searched in order; got {list(grid[along])}."
                ) from None
            step, dashes, _ = along.rpartition("__")  # a step of a pipeline has its own warm_start
            warm_start = f"{step}{dashes}warm_start"
            if warm_start not in estimator.get_params():
                raise ValueError(
                    f"along={along!r} needs warm starts, but {type(estimator).__name__} does not have the "
                    f"parameter {warm_start!r}. Use along=None."
                )
        combinations = product(*(grid[name] for name in others))
        paths = [[dict(zip(others, values, strict=True)) | end for end in ends] for values in combinations]
        settings = [setting for path in paths for setting in path]
        for setting in settings:
            changed = set_values(clone(estimator), setting)
            if hasattr(changed, "_parameter_constraints"):
                changed._validate_params()
        if descending:
            paths = [path[::-1] for path in paths]
        return cls(estimator, warm_start, paths, settings, list(folds), scorers)

    @property
    def n_fits(self) -> int:
        """Number of fits of the search."""
        return len(self.settings) * len(self.folds)

    def path_to(self, index: int) -> Sequence[Setting]:
        """Return the settings of a path up to one of the results, in the order of the fits."""
        path = self.paths[index // len(self.paths[0])]
        places = [setting is self.settings[index] for setting in path]  # their values may be arrays
        return path[: places.index(True) + 1]

    def unfitted(self) -> Any:
        """Return a clone of the estimator that is warm-started along paths."""
        estimator = clone(self.estimator)
        return estimator if self.warm_start is None else estimator.set_params(**{self.warm_start: True})


def resolve_scorers(estimator: Any, scoring: Any) -> dict[str, Scorer]:
    """Return the scorers of ``scoring``: one called "score", or several under their own names."""
    if isinstance(scoring, list | tuple):
        scoring = {name: name for name in scoring}
    named = scoring if isinstance(scoring, Mapping) else {"score": scoring}
    found = {name: check_scoring(estimator, one) for name, one in named.items()}
    return {name: None if named[name] is None else scorer for name, scorer in found.items()}


def share_metadata(
    X: Any, y: Any, estimator: Any, scorers: Mapping[str, Scorer], metadata: Mapping[str, Any]
) -> Samples:
    """Pass metadata to `fit`, and to predictions and scorers that accept it by name."""

    def accepted(method: Any) -> dict[str, Any]:
        function = getattr(method, "_score_func", method)  # the metric of a scorer that scikit-learn made
        named = {name for name, one in signature(function).parameters.items() if one.kind is not Parameter.VAR_KEYWORD}
        return {name: value for name, value in metadata.items() if name in named}

    of_predict = accepted(estimator.predict) if hasattr(estimator, "predict") else {}
    return Samples(
        X, y, metadata, of_predict, {name: accepted(one or estimator.score) for name, one in scorers.items()}
    )


def usable_records(plan: Plan, records: Iterable[FoldRecord]) -> Records:
    """Return the earlier records whose settings and folds belong to this search, by key."""
    wanted = {setting_key(setting) for setting in plan.settings}
    usable = {}
    for record in records:
        key, fold = record.key
        if key not in wanted or not 0 <= fold < len(plan.folds):
            continue
        if not np.array_equal(record.rows, plan.folds[fold][1]):
            raise ValueError(f"`records` are of other folds: fold {fold} held out other samples. Use the same `cv`.")
        missing = plan.scorers.keys() - record.scores.keys()
        if missing:
            raise ValueError(f"`records` must have the score {sorted(missing)[0]!r}; got {list(record.scores)}.")
        usable[key, fold] = record
    return usable


# --- Fits


def iter_records(plan: Plan, samples: Samples, n_jobs: int | None, done: Records) -> Generator[FoldRecord, None, None]:
    """Fit every setting on every fold and yield the record of each fit as it arrives.

    All folds of a path are fitted before the next path, so that an interrupted search has settings with scores on all
    folds. A single process yields after each fit. Several processes yield whenever one of them has finished a path, and
    on Ctrl-C.
    """
    jobs = list_jobs(plan, done)
    if effective_n_jobs(n_jobs) == 1:
        for job in jobs:
            yield from fit_path(plan, samples, *job)
        return
    with tempfile.TemporaryDirectory(prefix="regbayes-") as folder:
        with _ignoring_interrupts():  # worker processes ignore Ctrl-C; the search handles it and ends them
            found = Parallel(n_jobs=n_jobs, return_as="generator_unordered")(
                delayed(_store_records)(folder, os.getpid(), plan, samples, *job) for job in jobs
            )
        try:
            for _ in found:
                yield from _collect_records(folder)
        except KeyboardInterrupt:
            yield from _collect_records(folder)  # records of unfinished paths
            raise
        finally:
            with _ignoring_interrupts():
                found.close()  # ends the worker processes


@contextmanager
def _ignoring_interrupts() -> Iterator[None]:
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


def _store_records(folder: str, owner: int, *job: Any) -> None:
    """Fit along a path in a worker process, and write each record to the search's folder."""
    if os.getpid() != owner:  # a worker of an earlier search may not ignore it yet
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    for record in fit_path(*job):
        path = Path(folder, f"{time.monotonic_ns():020d}-{os.getpid()}")
        joblib.dump(record, path)
        path.rename(path.with_suffix(".record"))  # atomic: the search never reads a partial file


def _collect_records(folder: str) -> Iterator[FoldRecord]:
    """Yield the records in a folder in the order in which they were written, and remove them."""
    for path in sorted(Path(folder).glob("*.record")):
        record = joblib.load(path)
        path.unlink()
        yield record


def list_jobs(plan: Plan, done: Records) -> list[tuple[int, Sequence[Setting], list[bool]]]:
    """Return fold, settings, and whether to record them, for each path up to its last setting without a record."""
    jobs = []
    for path in plan.paths:
        keys = [setting_key(setting) for setting in path]
        for fold in range(len(plan.folds)):
            wanted = [(key, fold) not in done for key in keys]
            if any(wanted):
                n = len(wanted) - wanted[::-1].index(True)
                jobs.append((fold, path[:n], wanted[:n]))
    return jobs


def fit_path(
    plan: Plan, samples: Samples, fold: int, path: Sequence[Setting], wanted: Sequence[bool]
) -> Iterator[FoldRecord]:
    """Fit along a path on one fold with warm starts, and score the settings without a record."""
    train, test = (samples.take(rows) for rows in plan.folds[fold])
    estimator = plan.unfitted()
    for setting, is_wanted in zip(path, wanted, strict=True):
        began = time.perf_counter()
        fit_quietly(set_values(estimator, setting), train)
        seconds = time.perf_counter() - began
        if is_wanted:
            yield _score(estimator, setting, fold, plan, test, seconds)


def set_values(estimator: Any, setting: Setting) -> Any:
    """Set parameters to copies of some values."""
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


def _score(estimator: Any, setting: Setting, fold: int, plan: Plan, test: Samples, fit_seconds: float) -> FoldRecord:
    """Return the record of a fitted estimator, with its scores and predictions for held-out samples."""
    began = time.perf_counter()
    model = _with_cached_predictions(estimator, test)
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
    seconds, rows = time.perf_counter() - began, np.asarray(plan.folds[fold][1])
    n_features = count_features(estimator)
    return FoldRecord(dict(setting), fold, scores, fit_seconds, seconds, n_features, rows, predictions, decisions)


def _with_cached_predictions(estimator: Any, test: Samples) -> Any:
    """Return a copy of a fitted estimator that caches its predictions for held-out samples.

    Several scorers need the same predictions. The copy passes metadata such as tasks, which scorers do not have.
    """
    model = copy.copy(estimator)

    def cached(method: Callable[..., Any]) -> Callable[..., Any]:
        of_test = functools.cache(lambda: method(test.X, **test.predict))

        @functools.wraps(method)
        def predict(X: Any, *given: Any, **metadata: Any) -> Any:
            return method(X, *given, **metadata) if X is not test.X or given or metadata else of_test()

        return predict

    for name in ("decision_function", "predict_proba", "predict"):  # `predict` calls the first of them
        if hasattr(estimator, name):
            setattr(model, name, cached(getattr(model, name)))
    return model


def count_features(estimator: Any) -> int | None:
    """Return the number of latent features in use of a fitted estimator or pipeline; None if it has none."""
    model = getattr(estimator, "steps", [("", estimator)])[-1][1]
    if hasattr(model, "n_components_"):
        return int(model.n_components_)
    return len(model.components_) if hasattr(model, "components_") else None


def refit(plan: Plan, samples: Samples, path: Sequence[Setting], n_jobs: int | None = None) -> Any:
    """Fit the settings of a path on all samples in sequence, with warm starts and all jobs."""
    estimator = plan.unfitted()
    before = plan.estimator.get_params()
    changed = [name for name in (plan.warm_start,) if name is not None]
    if before.get("n_jobs", 1) is None:
        changed.append("n_jobs")
        estimator.set_params(n_jobs=n_jobs)
    for setting in path[:-1]:
        fit_quietly(set_values(estimator, setting), samples)
    set_values(estimator, path[-1]).fit(samples.X, samples.y, **samples.fit)
    return estimator.set_params(**{name: before[name] for name in changed})


def reseed(estimator: Any, seed: int) -> Any:
    """Return an unfitted copy with another seed in every step of a pipeline."""
    fresh = clone(estimator)
    names = [name for name in fresh.get_params() if name.rpartition("__")[2] == "random_state"]
    return fresh.set_params(**dict.fromkeys(names, seed))


# --- Results


def summarize(plan: Plan, records: Records) -> dict[str, Any]:
    """Return scikit-learn's table of results, with NaN for missing folds, which are ranked last."""
    folds = range(len(plan.folds))
    table = [[records.get((setting_key(setting), fold)) for fold in folds] for setting in plan.settings]

    def collect(value: Callable[[FoldRecord], float | None]) -> Floats:
        found = [[np.nan if record is None else value(record) for record in row] for row in table]
        return np.array(found, dtype=np.float64)

    results: dict[str, Any] = {}
    for name, times in (("fit", collect(lambda r: r.fit_seconds)), ("score", collect(lambda r: r.score_seconds))):
        results |= {f"mean_{name}_time": times.mean(axis=1), f"std_{name}_time": times.std(axis=1)}
    results["mean_n_features"] = collect(lambda record: record.n_features).mean(axis=1)
    for name in plan.settings[0]:
        values = [setting[name] for setting in plan.settings]
        are_numbers = all(isinstance(value, Real) for value in values)
        column = np.array(values) if are_numbers else np.empty(len(values), dtype=object)
        column[:] = values
        results[f"param_{name}"] = column
    results["params"] = [dict(setting) for setting in plan.settings]
    for name in plan.scorers:
        scores = collect(lambda record, name=name: record.scores[name])  # type: ignore[misc]
        mean = scores.mean(axis=1)
        results |= {f"split{fold}_test_{name}": scores[:, fold] for fold in folds}
        results |= {f"mean_test_{name}": mean, f"std_test_{name}": scores.std(axis=1)}
        losses = np.where(np.isnan(mean), np.inf, -mean)
        results[f"rank_test_{name}"] = rankdata(losses, method="min").astype(np.int32)
    return results


@dataclass(frozen=True)
class Edge:
    """A parameter whose best value is at the end of its list and better than the others."""

    name: str
    value: Any
    end: str  # "smallest" or "largest"
    further: Any  # the value to try next


def find_edges(results: Mapping[str, Any], best: int, score: str, names: Iterable[str]) -> list[Edge]:
    """Return the parameters whose best value is at the end of its list and better than the others."""
    mean = np.nan_to_num(results[f"mean_test_{score}"], nan=-np.inf)
    found = []
    for name in names:
        value, values = results["params"][best][name], [setting[name] for setting in results["params"]]
        numbers = sorted({float(other) for other in values if is_number(other)})
        if not is_number(value) or len(numbers) < 2 or float(value) not in (numbers[0], numbers[-1]):
            continue
        others = np.array([not is_number(other) or other != value for other in values])
        if mean[others].max() >= mean[best]:
            continue
        end, (last, before) = ("smallest", numbers[:2]) if value == numbers[0] else ("largest", numbers[:-3:-1])
        positive = min(last, before) > 0
        further = float(f"{last * last / before if positive else 2 * last - before:.2g}")
        if not isinstance(value, float):
            further = max(round(further), 1)
        if further != value and (further > 0 or numbers[0] < 0):  # most parameters must be positive
            found.append(Edge(name, value, end, further))
    return found
