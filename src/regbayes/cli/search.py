"""Model selection by cross-validation and the final fit to all rows.

The search reports a record of every finished fit. Records in memory let Ctrl-C fit the best settings so far; records
in a file let ``--resume`` continue after a crash.
"""

from __future__ import annotations

import hashlib
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone

from regbayes.cli import interrupts
from regbayes.cli.context import FitContext
from regbayes.cli.errors import StoppedError, UserError, counted, plural
from regbayes.cli.output import Output, replacing
from regbayes.cli.read import MAX_CELLS
from regbayes.cli.scores import score_fit
from regbayes.cli.targets import shown_label

if TYPE_CHECKING:
    from regbayes.search import FoldRecord

__all__ = ["Fitted", "RecordFile", "fit_once", "make_estimator", "make_search", "possible_folds", "search_and_fit"]

OPTIONS = {"C": "--C", "temperature": "--temperature", "n_components": "--n-components"}  # searched settings


@dataclass(frozen=True, eq=False)
class Fitted:
    """A fit to all rows and the search before it, which may have been interrupted."""

    estimator: Any
    settings: dict[str, Any]  # C and the settings chosen by the search
    seconds: float
    records: Sequence[FoldRecord] = ()  # records of all fits of the search
    chosen: Mapping[str, Any] | None = None  # chosen values of all searched parameters
    file: RecordFile | None = None  # file of the records
    kept: str | None = None  # message about the state kept after Ctrl-C

    @property
    def of_chosen(self) -> list[FoldRecord]:
        """The records of the chosen settings by fold."""
        return sorted((one for one in self.records if one.params == self.chosen), key=lambda one: one.fold)

    @property
    def by_setting(self) -> list[list[FoldRecord]]:
        """The records of each setting."""
        found: dict[str, list[FoldRecord]] = {}
        for record in self.records:
            found.setdefault(record.key[0], []).append(record)
        return list(found.values())

    @property
    def n_rivals(self) -> int:
        """Number of settings tried on as many folds as the chosen one, including it."""
        return sum(len(tried) == len(self.of_chosen) for tried in self.by_setting)

    @property
    def out_of_fold(self) -> NDArray[Any] | None:
        """Out-of-fold predictions of all rows, or None if some rows have none."""
        from regbayes.search import OutOfFold

        if not self.records:
            return None
        found = OutOfFold.collect(self.of_chosen)
        return found.predictions if np.array_equal(found.rows, np.arange(len(found.rows))) else None

    def cross_validation(self, metric: str, pooled: float) -> dict[str, Any]:
        """Return a summary of the search for the model file and JSON."""

        def judge(tried: Sequence[FoldRecord]) -> dict[str, float]:
            scores = [record.score for record in tried]
            return {"mean": float(np.mean(scores)), "std": float(np.std(scores))}

        candidates = [
            {name: tried[0].params[name] for name in self.settings} | judge(tried) for tried in self.by_setting
        ]
        # Numbers and texts such as "auto" cannot be compared, so texts come last.
        candidates.sort(key=lambda one: [(isinstance(one[name], str), one[name]) for name in self.settings])
        judged = judge(self.of_chosen) | {"folds": len(self.of_chosen)}
        return {"metric": metric, **judged, "pooled": pooled, "candidates": candidates}


class RecordFile:
    """File with the records of an unfinished search, next to the model file.

    Its name contains a hash of data and settings, so records of another search are never used.
    """

    def __init__(self, context: FitContext, search: Any) -> None:
        from regbayes import __version__

        request, X = context.request, context.X
        digest = hashlib.sha256()
        inputs = (X.data, X.indices, X.indptr) if hasattr(X, "indptr") else (X,)
        settings = (__version__, search.estimator, len(search.cv), context.kind, request.balanced)
        for given in (settings, *inputs, context.y, context.task, context.weights):
            plain = isinstance(given, np.ndarray) and given.dtype.kind != "O"
            shown = (given.dtype.str, given.shape) if plain else getattr(given, "tolist", lambda: given)()  # noqa: B023
            digest.update(repr(shown).encode())
            digest.update(np.ascontiguousarray(given) if plain else b"")
        self.path = f"{os.path.realpath(request.output)}.{digest.hexdigest()[:12]}.records"
        self.output = context.output
        self.is_open = True

    def begin(self, *, resume: bool) -> list[FoldRecord]:
        """Return the records of the search to resume, or delete them and return none."""
        from regbayes.search import read_records, write_records

        if not os.path.exists(self.path):
            if resume:
                self.output.warn("--resume: found no unfinished search of these data and settings; a new one begins")
            return []
        if not resume:
            self.output.say(f"{self.path} has an unfinished search, which begins again; --resume would continue it")
            self.remove()
            return []
        try:
            found = read_records(self.path)
        except (ValueError, OSError, MemoryError) as error:
            raise UserError(f"--resume: {self.path} cannot be read ({error}); delete it to begin again") from None
        with replacing(self.path) as temporary:  # drops an incomplete last line
            write_records(found, temporary)
        self.output.say(f"{counted(len(found), 'fit')} of {self.path} need not be made again")
        return found

    def append(self, record: FoldRecord) -> None:
        """Append the record of a fit; an error such as a full disk does not end the search."""
        from regbayes.search import write_records

        try:
            if self.is_open:
                write_records([record], self.path, append=True)
        except OSError as error:
            self.is_open = False
            self.output.warn(f"{self.path} cannot be written ({error.strerror}); --resume will know the fits before")

    def remove(self) -> None:
        """Delete the file."""
        if os.path.exists(self.path):
            os.remove(self.path)


class SearchWatch:
    """Callback that stores the records of a search and reports progress.

    The time left is estimated from the median fit, because the first one also compiles.
    """

    def __init__(self, total: int, jobs: int, output: Output, file: RecordFile | None = None) -> None:
        from joblib import effective_n_jobs

        self.total = total
        self.processes = effective_n_jobs(jobs)
        self.output = output
        self.file = file
        self.records: list[FoldRecord] = []

    def __call__(self, record: FoldRecord) -> None:
        """Store the record of a finished fit."""
        self.records.append(record)
        if self.file is not None:
            self.file.append(record)
        interrupts.check()
        left = self.seconds_left()
        self.output.progress(f"{len(self.records)} of {self.total} fits, about {left:.0f} s left")

    def seconds_left(self) -> float:
        """Return the estimated time in seconds of the remaining fits, including the final one."""
        median = statistics.median(record.fit_seconds + record.score_seconds for record in self.records)
        return median * ((self.total - len(self.records)) / self.processes + 1)


# --- estimator and search


def make_estimator(context: FitContext) -> Any:
    """Return the estimator with the user's values and defaults.

    Documents use MedLDA. Tasks use MT-iLSVM, and so do problems that iLSVM does not support: multi-label targets that
    are balanced or not 0/1, and regression with ``include_inputs``.
    """
    import regbayes

    request, numbers = context.request, context.kind == "regressor"
    y = context.y
    are_indicators = y.ndim == 2 and y.dtype.kind != "O" and np.isin(y[~np.isnan(y)], (0, 1)).all()
    wanted: dict[str, Any] = {
        "n_components": min(request.n_components, default=None),
        "C": min(request.C, default=None),
        "max_iter": request.max_iter,
        "class_weight": "balanced" if request.balanced else None,
    }
    model: Any
    if context.of_documents:
        model = regbayes.MedLDARegressor if numbers else regbayes.MedLDAClassifier
        wanted["n_components"] = wanted["n_components"] or _topics(context)[1]
        wanted["inference"] = request.inference or ("variational" if context.X.dtype.kind == "f" else None)
    else:
        model = regbayes.ILSVMRegressor if numbers else regbayes.ILSVMClassifier
        needs_classes = context.kind == "multilabel" and (request.balanced or not are_indicators)
        if context.task is not None or needs_classes or (numbers and request.include_inputs):
            model = regbayes.MultiTaskILSVMRegressor if numbers else regbayes.MultiTaskILSVMClassifier
        has_slab = "slab" in model._parameter_constraints
        if request.slab == "half-normal" or (request.slab is None and has_slab):
            wanted["slab"] = "half-normal"
        wanted["temperature"] = next(iter(request.temperature), None)
        wanted["include_inputs"] = request.include_inputs or None  # False is the default
        wanted["unseen_tasks"] = None if context.task is None else "shared"
    given = {name: value for name, value in wanted.items() if value is not None}
    for name in ("slab", "include_inputs"):
        if name in given and name not in model._parameter_constraints:
            raise UserError(f"--{name.replace('_', '-')}: {model.__name__} does not have it")
    most = max(request.n_components, default=1)
    if most * max(context.X.shape) > MAX_CELLS:
        raise UserError(f"--n-components {most} takes more memory than a model may have; give a smaller number")
    return model(random_state=request.seed, **given)


def _topics(context: FitContext) -> list[int]:
    """Return the numbers of topics to try, at least the number of classes."""
    outputs = len(np.unique(context.y)) if context.kind == "classifier" else context.targets.shape[1]
    least = max(10, outputs)
    return [least, 2 * least, 4 * least]


def make_search(context: FitContext, base: Any, folds: int) -> Any:
    """Return the search over the user's values or the default grid of the model."""
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
    if request.include_inputs is not None and "include_inputs" in grid:
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
    """Return stratified folds; with tasks, every training set contains all tasks and their classes."""
    from sklearn.model_selection import KFold, StratifiedKFold

    from regbayes.estimators._folds import multitask_folds
    from regbayes.estimators._labels import read_labels
    from regbayes.estimators._task_bases import read_targets

    seed = context.request.seed
    if context.of_documents or (context.y.ndim == 1 and context.task is None):
        splitter = StratifiedKFold if context.kind == "classifier" else KFold
        return list(splitter(folds, shuffle=True, random_state=seed).split(context.targets, context.y))
    targets = read_targets(context.y, context.task, context.X, numeric=context.kind == "regressor")
    kinds = targets.tasks if context.kind == "regressor" else read_labels(targets).places(targets.tasks)
    return list(multitask_folds(folds, context.X.shape[0], targets, kinds, np.random.RandomState(seed)))


def possible_folds(context: FitContext) -> int:
    """Return the number of folds, below 2 without cross-validation; warn if reduced."""
    request, output, y = context.request, context.output, context.y
    if context.kind != "classifier":
        return min(request.folds, len(y)) if request.cv else 0
    classes, sizes = np.unique(y, return_counts=True)
    if len(classes) > len(y) / 2:
        remedy = ". If they are numbers to predict: --kind regressor" if y.dtype.kind in "iuf" else ""
        output.warn(f"{len(classes)} classes in {counted(len(y), 'row')}: most have one or two rows{remedy}")
    if not request.cv:
        return 0
    if context.task is not None:
        return min(request.folds, len(y))
    fewest = int(sizes.min())
    rarest = f"the rarest class, {shown_label(classes[sizes.argmin()])!r}, has {counted(fewest, 'row')}"
    if context.of_documents:  # training documents may lack a class if two classes remain
        fewest = int(sizes.max()) if np.sum(sizes > 1) > 1 else 1
    folds = min(request.folds, fewest)
    if folds < 2:
        output.warn(f"{rarest}, too few for cross-validation; the settings are the defaults")
    elif sizes.min() < request.folds:
        output.warn(f"{folds} folds: {rarest}")
    return folds


# --- the fits


def fit_once(context: FitContext) -> Fitted:
    """Fit one setting to all rows; Ctrl-C keeps the best state so far."""
    base, began = make_estimator(context), time.perf_counter()
    estimator, stopped = _fit(context, lambda: _fit_alone(base, context))
    if estimator is None:
        raise StoppedError("interrupted before the fit had a state to keep; nothing was written")
    kept = "Interrupted: the fit was ended early, at its best state so far." if stopped else None
    return Fitted(estimator, {"C": estimator.C}, time.perf_counter() - began, kept=kept)


def search_and_fit(context: FitContext, folds: int) -> Fitted:
    """Choose settings by cross-validation and fit them to all rows.

    The first Ctrl-C ends the search and starts the fit of the best settings so far; the second one ends that fit.

    Raises
    ------
    StoppedError
        If Ctrl-C came before the first fit of the search was done.
    """
    from regbayes.search import best_so_far

    base, output, began = make_estimator(context), context.output, time.perf_counter()
    search = make_search(context, base, folds)
    names = sorted(name for name, values in search.param_grid.items() if name == "C" or len(values) > 1)
    n_settings = int(np.prod([len(values) for values in search.param_grid.values()]))
    output.say(f"cross-validation: {counted(n_settings, 'setting')} on {folds} folds, then a fit to all rows")
    file = RecordFile(context, search)
    watch = SearchWatch(n_settings * folds, context.request.jobs, output, file)
    watch.records += file.begin(resume=context.request.resume)
    stopped = _try(context, search, watch)
    if not watch.records:
        raise StoppedError("interrupted before the first fit was done; nothing was written")
    if not stopped:
        chosen, stopped = _extend(context, search, watch, [name for name in names if name in OPTIONS], folds)
    if stopped:
        chosen = best_so_far(watch.records)
    settings = {name: chosen[name] for name in names}
    if stopped:
        shown = ", ".join(f"{name}={value}" for name, value in settings.items())
        output.warn(
            f"interrupted after {counted(len(watch.records), 'fit')}: fitting the best settings so far ({shown}) to "
            "all rows. Ctrl-C again ends that fit early"
        )
    estimator, ended = _fit_chosen(context, base, search, watch, chosen, stopped=stopped)
    found = Fitted(estimator, settings, time.perf_counter() - began, watch.records, chosen, file)
    if not (stopped or ended):
        return found
    last = "was ended early, at its best state so far" if ended else "was finished"
    kept = (
        f"Interrupted after {len(watch.records)} of {watch.total} fits: the best of "
        f"{found.n_rivals} {plural(found.n_rivals, 'setting')} tried on {len(found.of_chosen)} of {folds} folds is "
        f"kept; the last fit, to all rows, {last}. --resume continues the search."
    )
    return replace(found, kept=kept)


def _extend(
    context: FitContext, search: Any, watch: SearchWatch, names: Sequence[str], folds: int
) -> tuple[Mapping[str, Any], bool]:
    """Try one more value of parameters whose best value is at the edge of the grid.

    Return the best setting and whether a signal came. The caller chooses the setting of an interrupted search.
    """
    from regbayes.estimators._search import find_edges

    best, chosen = search.best_score_, search.best_params_
    edges = find_edges(search.cv_results_, search.best_index_, "score", names)
    for edge in edges:
        context.output.say(
            f"the best {edge.name}={edge.value} is the {edge.end} value tried: {edge.name}={edge.further} is next"
        )
        watch.total += folds
        values = {name: [value] for name, value in search.best_params_.items()}
        values[edge.name] = sorted([edge.value, edge.further])
        more = clone(search).set_params(param_grid=values)
        if _try(context, more, watch):
            return chosen, True
        if more.best_score_ > best:
            best, chosen = more.best_score_, more.best_params_
    for edge in edges:
        if chosen[edge.name] == edge.further:
            context.output.warn(
                f"the best {edge.name}={edge.further} is the {edge.end} value tried, even with one more: give others "
                f"with {OPTIONS[edge.name]}"
            )
    return chosen, False


def _try(context: FitContext, search: Any, watch: SearchWatch) -> bool:
    """Run the fits of a search without a record; return whether a signal interrupted them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # only warnings of the final fit are shown
        _, stopped = interrupts.run_stoppable(
            lambda: search.fit(context.X, context.y, records=list(watch.records), on_result=watch, **context.metadata)
        )
    context.output.end_progress()
    return stopped


def _fit_chosen(
    context: FitContext, base: Any, search: Any, watch: SearchWatch, chosen: Mapping[str, Any], *, stopped: bool
) -> tuple[Any, bool]:
    """Fit the chosen settings along their warm-start path; return whether a signal interrupted it."""

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
    if estimator is None:  # without a state to keep, run one iteration uninterrupted
        shortest = clone(base).set_params(**{**chosen, "max_iter": 1})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            estimator = shortest.fit(context.X, context.y, **context.metadata).set_params(max_iter=base.max_iter)
    return estimator, ended


def _fit(context: FitContext, work: Callable[[], Any]) -> tuple[Any, bool]:
    """Run a fit; return the estimator (None if interrupted without a state) and whether a signal came."""
    from regbayes import TruncationWarning
    from regbayes.estimators._bases import InterruptedWarning
    from regbayes.estimators._search import GridEdgeWarning

    ignored: list[Any] = [InterruptedWarning, GridEdgeWarning]
    if context.request.n_components:  # the user limited the number of features
        ignored.append(TruncationWarning)
    with context.output.catch_warnings(*ignored):
        return interrupts.run_stoppable(work)


def _fit_alone(estimator: Any, context: FitContext) -> Any:
    """Fit with ``--jobs`` threads and, in a terminal, a progress bar."""
    bar = int(sys.stderr.isatty() and not context.output.quiet)
    estimator.set_params(n_jobs=context.request.jobs or 1, verbose=bar)
    estimator.fit(context.X, context.y, **context.metadata)
    return estimator.set_params(n_jobs=None, verbose=0)
