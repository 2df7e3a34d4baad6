"""Fitting with cross-validation that can be watched and stopped.

The estimators of the package do the search. The scorer that they are given keeps a journal of every fit in a folder,
from whichever process it runs in: how many are done tells the time left, and after Ctrl-C the journal knows which
settings were best so far. Its predictions of rows that a fit has not seen make honest tables of errors.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
import threading
import time
import uuid
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regbayes.cli.errors import BadDataError
from regbayes.cli.modelfile import Search
from regbayes.cli.output import Output
from regbayes.cli.targets import Kind

__all__ = ["Fitted", "FitSettings", "fit_model", "score_of"]

Floats = NDArray[np.float64]

DEFAULT_C = {"classifier": (0.1, 0.3, 1.0, 3.0), "other": (0.003, 0.01, 0.03, 0.1)}
PLAIN_SECONDS = 15.0  # between lines about the progress where there is no terminal


@dataclass(frozen=True)
class FitSettings:
    """What the user may set; None leaves it to the estimator, or to cross-validation."""

    n_components: int | None = None
    C: tuple[float, ...] = ()
    temperature: tuple[float, ...] = ()
    include_inputs: bool | None = None
    max_iter: int | None = None
    folds: int = 5
    cross_validate: bool = True
    seed: int = 0
    jobs: int = 1


@dataclass(frozen=True)
class Fitted:
    """A fitted estimator and how it came about."""

    estimator: Any
    search: Search | None
    predictions: NDArray[Any] | None  # of training rows by fits that had not seen them
    interrupted: bool
    seconds: float


@dataclass(frozen=True)
class Problem:
    """What is fitted to what."""

    X: Floats
    y: NDArray[Any]
    kind: Kind
    task: NDArray[Any] | None
    settings: FitSettings

    @property
    def single(self) -> bool:
        """Whether it is one question of classes, which iLSVM answers; MT-iLSVM answers all others."""
        return self.kind == "classifier" and self.task is None

    @property
    def tasks(self) -> dict[str, Any]:
        """The tasks of rows, for the estimators' methods."""
        return {} if self.task is None else {"task": self.task}

    def estimator(self) -> Any:
        """Return the estimator for one setting."""
        from regbayes import ILSVMClassifier, MultiTaskILSVMClassifier, MultiTaskILSVMRegressor

        s = self.settings
        wanted = {
            "n_components": s.n_components,
            "max_iter": s.max_iter,
            "C": s.C[0] if s.C else None,
            "temperature": s.temperature[0] if s.temperature else None,
            "include_inputs": s.include_inputs,
            "unseen_tasks": "shared" if self.task is not None else None,
        }
        options: dict[str, Any] = {name: value for name, value in wanted.items() if value is not None}
        options["random_state"] = s.seed
        if self.single:
            return ILSVMClassifier(**options)
        return (MultiTaskILSVMRegressor if self.kind == "regressor" else MultiTaskILSVMClassifier)(**options)

    def grid(self) -> dict[str, tuple[Any, ...]]:
        """Return the settings to choose among."""
        s = self.settings
        found: dict[str, tuple[Any, ...]] = {"C": s.C or DEFAULT_C["classifier" if self.single else "other"]}
        if len(s.temperature) > 1:
            found["temperature"] = s.temperature
        if not self.single and s.include_inputs is None:
            found["include_inputs"] = (False, True)
        return found

    def search(self, folds: int, scorer: Any) -> Any:
        """Return the estimator that chooses among the settings."""
        from regbayes import ILSVMClassifierCV, MultiTaskILSVMClassifierCV, MultiTaskILSVMRegressorCV

        base = self.estimator()
        listed = {"C": "Cs", "temperature": "temperatures", "include_inputs": "include_inputs"}
        grid = {name: (getattr(base, name),) for name in listed} | self.grid()
        options = {listed[name]: values for name, values in grid.items()}
        options |= {"n_components": base.n_components, "max_iter": base.max_iter, "random_state": self.settings.seed}
        options |= {"scoring": scorer, "n_jobs": self.settings.jobs}
        if self.single:
            from sklearn.model_selection import StratifiedKFold

            options["cv"] = StratifiedKFold(folds, shuffle=True, random_state=self.settings.seed)
            return ILSVMClassifierCV(**options)
        options |= {"cv": folds, "unseen_tasks": base.unseen_tasks}
        return (MultiTaskILSVMRegressorCV if self.kind == "regressor" else MultiTaskILSVMClassifierCV)(**options)

    def possible_folds(self) -> int:
        """Return how many folds the rows allow: every part needs some of every class."""
        most = len(self.y)
        if self.single:
            most = int(np.unique(self.y, return_counts=True)[1].min())
        return min(self.settings.folds, most)


def score_of(kind: Kind, y: NDArray[Any], predicted: NDArray[Any]) -> float:
    """Return the accuracy over observed labels, or R² over observed numbers, the mean over targets if there are several.

    Targets of a regressor may be in different units, so that a sum over them means little.
    """
    from regbayes.metrics import explained_variance_pooled, task_accuracy

    if kind != "regressor":
        return task_accuracy(y, predicted)
    if y.ndim == 1:
        return explained_variance_pooled(y, predicted)
    seen = np.isfinite(y)
    columns = [j for j in range(y.shape[1]) if seen[:, j].any()]
    return float(np.mean([explained_variance_pooled(y[seen[:, j], j], predicted[seen[:, j], j]) for j in columns]))


@dataclass(frozen=True)
class JournalScorer:
    """Scores a fit and leaves a record of it in a folder."""

    folder: str
    kind: Kind
    names: tuple[str, ...]  # of the settings to record

    def __call__(self, estimator: Any, X: Floats, y: NDArray[Any]) -> float:
        """Return the score."""
        predicted = np.asarray(estimator.predict(X))
        score = score_of(self.kind, y, predicted)
        parameters = getattr(estimator, "estimator", estimator).get_params()  # inside, where tasks are known
        record = {"settings": {name: parameters[name] for name in self.names}, "score": score}
        if predicted.dtype == object:  # labels of several types: not kept, since nothing is pickled
            predicted = np.empty(0)
        place = Path(self.folder) / uuid.uuid4().hex
        rows = _row_marks(X, getattr(estimator, "task", None))
        np.savez(f"{place}.part", record=json.dumps(record), rows=rows, predicted=predicted)
        os.replace(f"{place}.part.npz", f"{place}.npz")
        return score


@dataclass(frozen=True)
class Journal:
    """The records of all fits so far."""

    folder: Path

    def count(self) -> int:
        """Return how many fits are done."""
        return len(list(self.folder.glob("????????????????????????????????.npz")))

    def scores(self) -> dict[str, list[float]]:
        """Return the scores of each setting, by the setting as JSON."""
        found: dict[str, list[float]] = {}
        for record, _, _ in self._records():
            found.setdefault(json.dumps(record["settings"], sort_keys=True), []).append(record["score"])
        return found

    def predictions(self, settings: dict[str, Any], problem: Problem) -> NDArray[Any] | None:
        """Return the predictions of each row by the fit with these settings that had not seen it; None if some lack."""
        by_mark: dict[int, Any] = {}
        for record, rows, predicted in self._records():
            if record["settings"] == settings and len(predicted) == len(rows):
                by_mark.update(zip(rows.tolist(), predicted, strict=True))
        marks = _row_marks(problem.X, problem.task).tolist()  # equal rows share their predictions
        if any(mark not in by_mark for mark in marks):
            return None
        return np.array([by_mark[mark] for mark in marks])

    def _records(self) -> Iterator[tuple[dict[str, Any], NDArray[Any], NDArray[Any]]]:
        for path in sorted(self.folder.glob("????????????????????????????????.npz")):
            with np.load(path, allow_pickle=False) as saved:
                yield json.loads(str(saved["record"])), saved["rows"], saved["predicted"]


def _row_marks(X: Floats, task: NDArray[Any] | None) -> NDArray[np.uint64]:
    """Return a number for each row that tells it from others."""
    tasks = [b""] * len(X) if task is None else [str(name).encode() for name in task]
    rows = zip(np.ascontiguousarray(X), tasks, strict=True)
    digests = (hashlib.blake2b(row.tobytes() + name, digest_size=8).digest() for row, name in rows)
    return np.array([int.from_bytes(digest, "little") for digest in digests], dtype=np.uint64)


def fit_model(problem: Problem, output: Output) -> Fitted:
    """Choose settings by cross-validation and fit them to all rows; or, on Ctrl-C, the best so far.

    The first Ctrl-C ends the search and fits the best settings so far; a second one ends that fit at its best state.
    """
    began = time.perf_counter()
    folds = problem.possible_folds() if problem.settings.cross_validate else 0
    if problem.settings.cross_validate and folds < 2:
        output.warn("too few rows of some class for cross-validation; the settings are the defaults")
    try:
        if folds < 2:
            return _fit_plainly(problem, problem.estimator(), None, None, output, began)
        if folds < problem.settings.folds:
            output.say(f"{folds} folds instead of {problem.settings.folds}: the rarest class has {folds} rows")
        return _fit_searching(problem, folds, output, began)
    except ValueError as error:
        raise BadDataError(f"the model cannot be fitted to these data: {error}") from None


def _fit_searching(problem: Problem, folds: int, output: Output, began: float) -> Fitted:
    grid = problem.grid()
    n_candidates = int(np.prod([len(values) for values in grid.values()]))
    with tempfile.TemporaryDirectory(prefix="regbayes-") as folder:
        journal = Journal(Path(folder))
        search = problem.search(folds, JournalScorer(folder, problem.kind, tuple(grid)))
        output.say(f"cross-validation: {n_candidates} settings on {folds} folds, then a fit to all rows")
        try:
            with output.hearing_warnings() as heard, _shown_progress(journal, n_candidates * folds, output):
                search.fit(problem.X, problem.y, **problem.tasks)
        except KeyboardInterrupt:
            return _after_interrupt(problem, journal, folds, output, began)
        best = search.best_estimator_
        found = _as_search(journal, {name: getattr(search, f"{name}_") for name in grid}, folds)
        predictions = journal.predictions(found.chosen, problem)
        return Fitted(best, found, predictions, _was_interrupted(heard), time.perf_counter() - began)


def _after_interrupt(problem: Problem, journal: Journal, folds: int, output: Output, began: float) -> Fitted:
    """Fit the settings that were best so far, judged by those that were tried on most folds."""
    scores = journal.scores()
    if not scores:
        raise KeyboardInterrupt
    most = max(map(len, scores.values()))
    best = max((key for key in scores if len(scores[key]) == most), key=lambda key: float(np.mean(scores[key])))
    chosen = json.loads(best)
    output.warn(
        f"interrupted after {journal.count()} fits: fitting the best settings so far ({_shown(chosen)}) to all rows. "
        "Ctrl-C again keeps that fit as it is by then"
    )
    estimator = problem.estimator().set_params(**chosen)
    predictions = journal.predictions(chosen, problem)
    found = _as_search(journal, chosen, folds)
    fitted = _fit_plainly(problem, estimator, found, predictions, output, began)
    return Fitted(fitted.estimator, found, predictions, True, fitted.seconds)


def _fit_plainly(
    problem: Problem,
    estimator: Any,
    search: Search | None,
    predictions: NDArray[Any] | None,
    output: Output,
    began: float,
) -> Fitted:
    estimator.set_params(verbose=int(not output.quiet and sys.stderr.isatty()))
    with output.hearing_warnings() as heard:
        estimator.fit(problem.X, problem.y, **problem.tasks)
    estimator.set_params(verbose=0)
    return Fitted(estimator, search, predictions, _was_interrupted(heard), time.perf_counter() - began)


def _was_interrupted(heard: list[warnings.WarningMessage]) -> bool:
    return any("interrupted" in str(found.message) for found in heard)


def _as_search(journal: Journal, chosen: dict[str, Any], folds: int) -> Search:
    scores = journal.scores()
    keys = sorted(scores)
    return Search(
        candidates=tuple(json.loads(key) for key in keys),
        mean=np.array([float(np.mean(scores[key])) for key in keys]),
        deviation=np.array([float(np.std(scores[key])) for key in keys]),
        n_folds=folds,
        best=keys.index(json.dumps(chosen, sort_keys=True)),
    )


def _shown(settings: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in settings.items())


@contextmanager
def _shown_progress(journal: Journal, total: int, output: Output) -> Iterator[None]:
    """Show how many fits are done and the time left: a bar in a terminal, a line now and then elsewhere."""
    if output.quiet:
        yield
        return
    stop = threading.Event()
    watch = _watch_bar if sys.stderr.isatty() else _watch_lines
    watcher = threading.Thread(target=watch, args=(journal, total, stop, output), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        stop.set()
        watcher.join()


def _watch_lines(journal: Journal, total: int, stop: threading.Event, output: Output) -> None:
    began = time.perf_counter()
    while not stop.wait(PLAIN_SECONDS):
        done, spent = journal.count(), time.perf_counter() - began
        left = f", about {spent / done * (total + 1 - done):.0f} s left" if done else ""
        output.say(f"{done} of {total} fits{left}")


def _watch_bar(journal: Journal, total: int, stop: threading.Event, _: Output) -> None:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(file=sys.stderr), transient=True) as bar:
        task = bar.add_task("fits", total=total + 1)
        while not stop.wait(0.2):
            done = journal.count()
            bar.update(task, completed=done, description="fits" if done < total else "all rows")
