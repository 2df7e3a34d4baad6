"""Fitting with cross-validation that can be watched and stopped.

The estimators of the package do the search. The scorer that they are given keeps a journal of every fit: how many are
done tells the time left, and after Ctrl-C the journal knows which settings were best so far. Its predictions of rows
that a fit has not seen make honest tables of errors.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regbayes.cli.errors import BadDataError, StoppedError, UserError, counted
from regbayes.cli.journal import Journal, JournalScorer
from regbayes.cli.modelfile import Search
from regbayes.cli.output import Output
from regbayes.cli.progress import shown_progress
from regbayes.cli.targets import Kind

__all__ = ["FitSettings", "Fitted", "Problem", "fit_model"]


LISTS = {  # parameter of an estimator -> the list of its values in the one that searches
    "C": "Cs",
    "temperature": "temperatures",
    "generative_weight": "generative_weights",
    "alpha": "alphas",
    "task_sharing": "task_sharings",
    "include_inputs": "include_inputs",
}


@dataclass(frozen=True)
class FitSettings:
    """What the user may set; None leaves it to the estimator, or to cross-validation."""

    n_components: tuple[int, ...] = ()
    C: tuple[float, ...] = ()
    temperature: tuple[float, ...] = ()
    include_inputs: bool | None = None
    inference: str | None = None  # of topics
    max_iter: int | None = None
    folds: int = 5
    cross_validate: bool = True
    balanced: bool = False  # whether rare classes count as much as frequent ones
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

    X: Any  # (n, inputs), dense; counts of words are sparse
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
            "n_components": s.n_components[0] if s.n_components else None,
            "max_iter": s.max_iter,
            "C": s.C[0] if s.C else None,
            "temperature": s.temperature[0] if s.temperature else None,
            "include_inputs": s.include_inputs,
            "unseen_tasks": "shared" if self.task is not None else None,
            "class_weight": "balanced" if s.balanced else None,
        }
        options: dict[str, Any] = {name: value for name, value in wanted.items() if value is not None}
        options["random_state"] = s.seed
        if self.single:
            return ILSVMClassifier(**options)
        return (MultiTaskILSVMRegressor if self.kind == "regressor" else MultiTaskILSVMClassifier)(**options)

    def grid(self) -> dict[str, tuple[Any, ...]]:
        """Return the settings to choose among: the user's values, or else those that the searching estimator lists."""
        s = self.settings
        parameters = signature(self._searcher).parameters
        found = {name: tuple(parameters[listed].default) for name, listed in LISTS.items() if listed in parameters}
        if s.C:
            found["C"] = s.C
        if s.temperature:
            found["temperature"] = s.temperature
        if s.include_inputs is not None:
            found["include_inputs"] = (s.include_inputs,)
        return found

    def search(self, folds: int, scorer: Any) -> Any:
        """Return the estimator that chooses among the settings."""
        base = self.estimator()
        options: dict[str, Any] = {LISTS[name]: values for name, values in self.grid().items()}
        options |= {"n_components": base.n_components, "max_iter": base.max_iter, "random_state": self.settings.seed}
        options |= {"scoring": scorer, "n_jobs": self.settings.jobs}
        if self.settings.balanced:
            options["class_weight"] = "balanced"
        if self.single:
            from sklearn.model_selection import StratifiedKFold

            return self._searcher(cv=StratifiedKFold(folds, shuffle=True, random_state=self.settings.seed), **options)
        return self._searcher(cv=folds, unseen_tasks=base.unseen_tasks, **options)

    @property
    def _searcher(self) -> Any:
        from regbayes import ILSVMClassifierCV, MultiTaskILSVMClassifierCV, MultiTaskILSVMRegressorCV

        if self.single:
            return ILSVMClassifierCV
        return MultiTaskILSVMRegressorCV if self.kind == "regressor" else MultiTaskILSVMClassifierCV

    def possible_folds(self) -> int:
        """Return how many folds the rows allow: every part needs some of every class."""
        most = len(self.y)
        if self.single:
            most = int(np.unique(self.y, return_counts=True)[1].min())
        return min(self.settings.folds, most)


def fit_model(problem: Problem, output: Output) -> Fitted:
    """Choose settings by cross-validation and fit them to all rows; or, on Ctrl-C, the best so far.

    The first Ctrl-C ends the search and fits the best settings so far; a second one ends that fit at its best state.
    """
    from sklearn.utils._param_validation import InvalidParameterError

    began = time.perf_counter()
    folds = problem.possible_folds() if problem.settings.cross_validate else 0
    if problem.settings.cross_validate and folds < 2:
        output.warn("too few rows of some class for cross-validation; the settings are the defaults")
    try:
        if folds < 2:
            return _fit_plainly(problem, problem.estimator(), None, None, output, began)
        if folds < problem.settings.folds:
            where = "the rarest class has" if problem.single else "there are"
            output.say(f"{folds} folds instead of {problem.settings.folds}: {where} {folds} rows")
        return _fit_searching(problem, folds, output, began)
    except InvalidParameterError as error:
        raise UserError(str(error)) from None
    except ValueError as error:
        hint = "" if folds < 2 else ". --no-cv fits without cross-validation"
        raise BadDataError(f"the model cannot be fitted to these data: {str(error).rstrip('.')}{hint}") from None


def _fit_searching(problem: Problem, folds: int, output: Output, began: float) -> Fitted:
    grid = problem.grid()
    names = tuple(name for name, values in grid.items() if name == "C" or len(values) > 1)
    n_candidates = int(np.prod([len(values) for values in grid.values()]))
    with tempfile.TemporaryDirectory(prefix="regbayes-") as folder:
        journal = Journal(Path(folder))
        search = problem.search(folds, JournalScorer(folder, problem.kind, names, problem.settings.balanced))
        output.say(f"cross-validation: {counted(n_candidates, 'setting')} on {folds} folds, then a fit to all rows")
        try:
            with _hearing(problem, output) as heard, shown_progress(journal.count, n_candidates * folds, output):
                search.fit(problem.X, problem.y, **problem.tasks)
        except KeyboardInterrupt:
            return _after_interrupt(problem, journal, output, began)
        best = search.best_estimator_
        found = _as_search(journal, {name: getattr(best, name) for name in names})
        predictions = journal.predictions(found.chosen, problem.X, problem.task)
        return Fitted(best, found, predictions, _was_interrupted(heard), time.perf_counter() - began)


def _after_interrupt(problem: Problem, journal: Journal, output: Output, began: float) -> Fitted:
    """Fit the settings that were best so far, judged by those that were tried on most folds."""
    scores = journal.scores()
    if not scores:
        raise StoppedError("interrupted before the first fit was done; nothing was written")
    most = max(map(len, scores.values()))
    best = max((key for key in scores if len(scores[key]) == most), key=lambda key: float(np.mean(scores[key])))
    chosen = json.loads(best)
    output.warn(
        f"interrupted after {counted(journal.count(), 'fit')}: fitting the best settings so far ({_shown(chosen)}) to "
        "all rows. Ctrl-C again keeps that fit as it is by then"
    )
    estimator = problem.estimator().set_params(**chosen)
    predictions = journal.predictions(chosen, problem.X, problem.task)
    found = _as_search(journal, chosen)
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
    bar = int(not output.quiet and sys.stderr.isatty())
    estimator.set_params(verbose=bar, n_jobs=problem.settings.jobs)  # one fit at a time has all the cores
    with _hearing(problem, output) as heard:
        estimator.fit(problem.X, problem.y, **problem.tasks)
    estimator.set_params(verbose=0, n_jobs=None)
    return Fitted(estimator, search, predictions, _was_interrupted(heard), time.perf_counter() - began)


@contextmanager
def _hearing(problem: Problem, output: Output) -> Iterator[list[warnings.WarningMessage]]:
    """Hear warnings, except that all features are in use where the user said how many there may be."""
    from regbayes import TruncationWarning

    with output.hearing_warnings() as heard:
        if problem.settings.n_components:
            warnings.simplefilter("ignore", TruncationWarning)
        yield heard


def _was_interrupted(heard: list[warnings.WarningMessage]) -> bool:
    from regbayes.estimators._reporting import InterruptedWarning

    return any(issubclass(found.category, InterruptedWarning) for found in heard)


def _as_search(journal: Journal, chosen: dict[str, Any]) -> Search:
    scores = journal.scores()
    keys = sorted(scores)
    best = json.dumps(chosen, sort_keys=True)
    return Search(
        candidates=tuple(json.loads(key) for key in keys),
        mean=np.array([float(np.mean(scores[key])) for key in keys]),
        deviation=np.array([float(np.std(scores[key])) for key in keys]),
        n_folds=len(scores[best]),
        best=keys.index(best),
    )


def _shown(settings: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in settings.items())
