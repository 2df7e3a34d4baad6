"""Settings chosen by cross-validation, and the last fit, to all rows; Ctrl-C ends either and loses nothing.

The searches of the package do the work and report every fit as it is done. After Ctrl-C the fits so far decide which
settings are best, and these are fitted.
"""

from __future__ import annotations

import statistics
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone

from regbayes.cli import interrupts
from regbayes.cli.context import FitContext
from regbayes.cli.errors import StoppedError, UserError, counted, plural
from regbayes.cli.output import Output
from regbayes.cli.readers import MAX_CELLS
from regbayes.cli.scores import score_fit
from regbayes.cli.targets import shown_label

if TYPE_CHECKING:
    from regbayes.search import FoldRecord

__all__ = ["Fitted", "fit_once", "make_estimator", "possible_folds", "search_and_fit"]

FEWEST_TOPICS = 10
OPTIONS = {"C": "--C", "temperature": "--temperature", "n_components": "--n-components"}  # with values to try


@dataclass(frozen=True, eq=False)
class Fitted:
    """A fit to all rows, and the search before it, as far as Ctrl-C let them come."""

    estimator: Any
    settings: dict[str, Any]  # those that were chosen, or given
    seconds: float
    records: Sequence[FoldRecord] = ()  # of all fits of the search
    names: Sequence[str] = ()  # parameters of the search to report
    chosen: Mapping[str, Any] | None = None  # all parameters of the search; None without one
    kept: str | None = None  # what is kept after Ctrl-C

    @property
    def of_chosen(self) -> list[FoldRecord]:
        """The fits with the chosen settings, fold by fold."""
        return sorted((one for one in self.records if one.params == self.chosen), key=lambda one: one.fold)

    @property
    def n_rivals(self) -> int:
        """Settings that were tried on as many folds as the chosen one, itself among them."""
        return sum(len(tried) == len(self.of_chosen) for tried in by_setting(self.records))

    @property
    def out_of_fold(self) -> NDArray[Any] | None:
        """Predictions of all rows by fits that had not seen them; None where some rows have none."""
        from regbayes.search import OutOfFold

        if not self.records:
            return None
        found = OutOfFold.collect(self.of_chosen)
        return found.predictions if np.array_equal(found.rows, np.arange(len(found.rows))) else None

    def cross_validation(self, metric: str, pooled: float) -> dict[str, Any]:
        """Return what was tried, for the model's file and for JSON."""
        candidates = []
        for tried in by_setting(self.records):
            scores = [record.score for record in tried]
            params = {name: tried[0].params[name] for name in self.names}
            candidates.append({**params, "mean": float(np.mean(scores)), "std": float(np.std(scores))})
        candidates.sort(key=lambda one: [one[name] for name in self.names])
        scores = [record.score for record in self.of_chosen]
        judged = {"mean": float(np.mean(scores)), "std": float(np.std(scores)), "folds": len(scores)}
        return {"metric": metric, **judged, "pooled": pooled, "candidates": candidates}


def by_setting(records: Sequence[FoldRecord]) -> list[list[FoldRecord]]:
    """Return the records of each setting."""
    found: dict[str, list[FoldRecord]] = {}
    for record in records:
        found.setdefault(record.key[0], []).append(record)
    return list(found.values())


class SearchWatch:
    """Keeps the record of every fit of a search, and says how far it is.

    The time left is that of the median fit: the first one also compiles.
    """

    def __init__(self, total: int, jobs: int, output: Output) -> None:
        from joblib import effective_n_jobs

        self.total = total
        self.processes = effective_n_jobs(jobs)
        self.output = output
        self.records: list[FoldRecord] = []

    def __call__(self, record: FoldRecord) -> None:
        """Keep the record of a fit that is done."""
        self.records.append(record)
        interrupts.check()
        left = self.seconds_left()
        self.output.progress(f"{len(self.records)} of {self.total} fits, about {left:.0f} s left")

    def seconds_left(self) -> float:
        """Return how long the other fits will take, the one to all rows among them."""
        median = statistics.median(record.fit_seconds + record.score_seconds for record in self.records)
        return median * ((self.total - len(self.records)) / self.processes + 1)


# --- what is fitted


def make_estimator(context: FitContext) -> Any:
    """Return the estimator for one setting: what the user gives, and defaults.

    MedLDA has documents, whose counts are sparse; iLSVM one target of classes; MT-iLSVM everything else.
    """
    import regbayes

    request, kind = context.request, context.kind
    wanted: dict[str, Any] = {
        "n_components": min(request.n_components, default=None),
        "C": min(request.C, default=None),
        "max_iter": request.max_iter,
        "class_weight": "balanced" if request.balanced else None,
    }
    model: Any
    if context.of_documents:
        model = regbayes.MedLDARegressor if kind == "regressor" else regbayes.MedLDAClassifier
        wanted["n_components"] = wanted["n_components"] or _topics(context)[1]
        wanted["inference"] = request.inference or ("variational" if context.X.dtype.kind == "f" else None)
    else:
        model = regbayes.MultiTaskILSVMRegressor if kind == "regressor" else regbayes.MultiTaskILSVMClassifier
        model = regbayes.ILSVMClassifier if kind == "classifier" and context.task is None else model
        if request.slab and model is not regbayes.ILSVMClassifier:
            raise UserError(f"--slab is for a classifier of one target without --task, not for {model.__name__}")
        wanted["slab"] = request.slab
        wanted["temperature"] = next(iter(request.temperature), None)
        wanted["include_inputs"] = request.include_inputs
        wanted["n_init"] = request.n_init
        wanted["unseen_tasks"] = None if context.task is None else "shared"
    given = {name: value for name, value in wanted.items() if value is not None}
    most = max(request.n_components, default=1)
    if most * max(context.X.shape) > MAX_CELLS:
        raise UserError(f"--n-components {most} takes more memory than a model may have; give a smaller number")
    return model(random_state=request.seed, **given)


def _topics(context: FitContext) -> list[int]:
    """Return numbers of topics to try, not fewer than classes."""
    outputs = len(np.unique(context.y)) if context.kind == "classifier" else context.targets.shape[1]
    least = max(FEWEST_TOPICS, outputs)
    return [least, 2 * least, 4 * least]


def make_search(context: FitContext, base: Any, folds: int) -> Any:
    """Return the search among the user's values, or else those of the model's own search."""
    import regbayes

    request = context.request
    own = getattr(regbayes, f"{type(base).__name__}CV")
    grid = {name: list(values) for name, (_, values) in own._values.items()}
    if context.of_documents:
        grid["n_components"] = sorted(set(request.n_components)) or _topics(context)
        whole = context.X.dtype.kind != "f"
        grid["inference"] = ["variational", "gibbs"] if whole and request.inference is None else [base.inference]
    grid["C"] = sorted(set(request.C)) or grid["C"]
    if request.temperature:
        grid["temperature"] = sorted(set(request.temperature))
    if request.include_inputs is not None:
        grid["include_inputs"] = [request.include_inputs]
    return regbayes.PathSearchCV(
        base,
        grid,
        along=own._along,
        descending=own._descending,
        cv=_split(context, folds),
        scoring=partial(score_fit, kind=context.kind, balanced=request.balanced),
        refit=False,
        n_jobs=request.jobs or 1,
    )


def _split(context: FitContext, folds: int) -> list[Any]:
    """Return folds: even over classes, and such that none leaves a task or a class of a label unseen."""
    from sklearn.model_selection import KFold, StratifiedKFold

    from regbayes.estimators._folds import multitask_folds
    from regbayes.estimators._labels import read_labels
    from regbayes.estimators._task_bases import read_targets

    seed = context.request.seed
    if context.of_documents or (context.kind == "classifier" and context.task is None):
        splitter = StratifiedKFold if context.kind == "classifier" else KFold
        return list(splitter(folds, shuffle=True, random_state=seed).split(context.targets, context.y))
    targets = read_targets(context.y, context.task, context.X, numeric=context.kind == "regressor")
    kinds = targets.tasks
    if context.kind != "regressor":
        labels = read_labels(targets)
        kinds = np.concatenate([[0], np.cumsum(labels.widths)])[targets.tasks] + labels.codes
    return list(multitask_folds(folds, context.X, targets, kinds, np.random.RandomState(seed)))


def possible_folds(context: FitContext) -> int:
    """Return how many folds the rows allow, 0 or 1 where there is no cross-validation; say why there are fewer."""
    request, output, y = context.request, context.output, context.y
    if context.kind != "classifier":
        return min(request.folds, len(y)) if request.cv else 0
    classes, sizes = np.unique(y, return_counts=True)
    if len(classes) > len(y) / 2:
        amounts = ". If they are amounts: --kind regressor" if y.dtype.kind in "iuf" else ""
        output.warn(f"{len(classes)} classes in {counted(len(y), 'row')}: most have one or two rows{amounts}")
    if not request.cv:
        return 0
    rarest = f"the rarest class, {shown_label(classes[sizes.argmin()])!r}, has {counted(int(sizes.min()), 'row')}"
    if context.task is not None:
        return min(request.folds, len(y))
    fewest = int(sizes.min())
    if context.of_documents:  # a fold of the training documents may lack a class, if two are left
        fewest = int(sizes.max()) if np.sum(sizes > 1) > 1 else 1
    folds = min(request.folds, fewest)
    if folds < 2:
        output.warn(f"{rarest}, too few for cross-validation; the settings are the defaults")
    elif sizes.min() < request.folds:
        output.warn(f"{folds} folds: {rarest}")
    return folds


# --- the fits


def fit_once(context: FitContext) -> Fitted:
    """Fit one setting to all rows, the user's or the defaults; after Ctrl-C its best state so far."""
    base, began = make_estimator(context), time.perf_counter()
    estimator, stopped = _fit(context, lambda: _fit_alone(base, context))
    if estimator is None:
        raise StoppedError("interrupted before the fit had a state to keep; nothing was written")
    kept = "Interrupted: the fit was ended early, at its best state so far." if stopped else None
    return Fitted(estimator, {"C": _margin_penalty(estimator)}, time.perf_counter() - began, kept=kept)


def search_and_fit(context: FitContext, folds: int) -> Fitted:
    """Choose settings by cross-validation and fit them to all rows.

    The first Ctrl-C ends the search, and the best settings so far are fitted; one more ends that fit.

    Raises
    ------
    StoppedError
        If Ctrl-C came before the first fit of the search was done.
    """
    from regbayes.estimators._search import find_edges
    from regbayes.search import best_so_far

    base, output, began = make_estimator(context), context.output, time.perf_counter()
    search = make_search(context, base, folds)
    grid = search.param_grid
    names = sorted(name for name, values in grid.items() if name == "C" or len(values) > 1)
    n_settings = int(np.prod([len(values) for values in grid.values()]))
    watch = SearchWatch(n_settings * folds, context.request.jobs, output)
    output.say(f"cross-validation: {counted(n_settings, 'setting')} on {folds} folds, then a fit to all rows")
    stopped = _try(context, search, watch)
    if not watch.records:
        raise StoppedError("interrupted before the first fit was done; nothing was written")
    chosen = best_so_far(watch.records) if stopped else search.best_params_
    edges = []
    if not stopped:
        edges = find_edges(search.cv_results_, search.best_index_, "score", [name for name in names if name in OPTIONS])
    best = 0.0 if stopped else search.best_score_
    for edge in edges:
        output.say(
            f"the best {edge.name}={edge.value} is the {edge.end} value tried: {edge.name}={edge.further} is next"
        )
        watch.total += folds
        values = {name: [value] for name, value in search.best_params_.items()}
        values[edge.name] = sorted([edge.value, edge.further])
        more = clone(search).set_params(param_grid=values)
        stopped = _try(context, more, watch)
        if stopped:
            break
        if more.best_score_ > best:
            best, chosen = more.best_score_, more.best_params_
    for edge in edges:
        if chosen[edge.name] == edge.further:
            output.warn(
                f"the best {edge.name}={edge.further} is the {edge.end} value tried, even with one more: give others "
                f"with {OPTIONS[edge.name]}"
            )
    settings = {name: chosen[name] for name in names}
    if stopped:
        shown = ", ".join(f"{name}={value}" for name, value in settings.items())
        output.warn(
            f"interrupted after {counted(len(watch.records), 'fit')}: fitting the best settings so far ({shown}) to "
            "all rows. Ctrl-C again ends that fit early"
        )
    estimator, ended = _fit_chosen(context, base, search, watch, chosen, stopped=stopped)
    found = Fitted(estimator, settings, time.perf_counter() - began, watch.records, names, chosen)
    if not (stopped or ended):
        return found
    last = "was ended early, at its best state so far" if ended else "was finished"
    kept = (
        f"Interrupted after {len(watch.records)} of {watch.total} fits: the best of "
        f"{found.n_rivals} {plural(found.n_rivals, 'setting')} tried on {len(found.of_chosen)} of {folds} folds is "
        f"kept; the last fit, to all rows, {last}."
    )
    return Fitted(estimator, settings, found.seconds, watch.records, names, chosen, kept)


def _try(context: FitContext, search: Any, watch: SearchWatch) -> bool:
    """Make the fits of a search that are not recorded yet; return whether a signal ended them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings about the last fit are enough
        _, stopped = interrupts.run_stoppable(
            lambda: search.fit(context.X, context.y, records=list(watch.records), on_result=watch, **context.metadata)
        )
    context.output.end_progress()
    return stopped


def _fit_chosen(
    context: FitContext, base: Any, search: Any, watch: SearchWatch, chosen: Mapping[str, Any], *, stopped: bool
) -> tuple[Any, bool]:
    """Fit the chosen settings to all rows, along their path as in the search; return whether a signal ended that."""

    def fit_along_path() -> Any:
        along = search.along
        path = {name: [value] for name, value in chosen.items()}
        if along is not None:
            values = sorted({*search.param_grid[along], chosen[along]})
            place = values.index(chosen[along])
            path[along] = values[place:] if search.descending else values[: place + 1]
        last = clone(search).set_params(param_grid=path, refit=True)
        return last.fit(context.X, context.y, records=watch.records, **context.metadata).best_estimator_

    def fit_alone() -> Any:
        return _fit_alone(clone(base).set_params(**chosen), context)

    estimator, ended = _fit(context, fit_alone if stopped else fit_along_path)
    if estimator is None:  # before there was a state to keep: the shortest fit there is, which nothing interrupts
        shortest = clone(base).set_params(**{**chosen, "max_iter": 1})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            estimator = shortest.fit(context.X, context.y, **context.metadata).set_params(max_iter=base.max_iter)
    return estimator, ended


def _fit(context: FitContext, work: Callable[[], Any]) -> tuple[Any, bool]:
    """Fit to all rows; return None where a signal came before there was a state, and whether one came."""
    from regbayes import TruncationWarning
    from regbayes.estimators._bases import InterruptedWarning
    from regbayes.estimators._search import GridEdgeWarning

    ignored: list[Any] = [InterruptedWarning, GridEdgeWarning]
    if context.request.n_components:  # the user said how many features there may be
        ignored.append(TruncationWarning)
    with context.output.catch_warnings(*ignored):
        return interrupts.run_stoppable(work)


def _fit_alone(estimator: Any, context: FitContext) -> Any:
    """Fit with all the cores, and with a bar in a terminal."""
    bar = int(sys.stderr.isatty() and not context.output.quiet)
    estimator.set_params(n_jobs=context.request.jobs or 1, verbose=bar)
    estimator.fit(context.X, context.y, **context.metadata)
    return estimator.set_params(n_jobs=None, verbose=0)


def _margin_penalty(estimator: Any) -> float:
    """Return C; where the estimator chose it, its choice."""
    if estimator.C != "auto":
        return float(estimator.C)
    from regbayes.estimators.ilsvm import make_supervision

    return make_supervision(estimator.get_params(deep=False), len(estimator.classes_), 1.0).C
