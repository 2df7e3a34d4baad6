"""Model selection by cross-validation, the fit to all rows, and the model file with its report.

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
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.pipeline import Pipeline

from regbayes.cli import interrupts
from regbayes.cli.comparison import compare
from regbayes.cli.context import FitContext
from regbayes.cli.errors import BadDataError, StoppedError, UserError, counted, plural
from regbayes.cli.modelfile import ModelFile, collect_page, reliability_of, score_for_page
from regbayes.cli.output import Output, replacing
from regbayes.cli.read import MAX_CELLS
from regbayes.cli.targets import baseline_score, score_fit, shown_label

if TYPE_CHECKING:
    import pandas as pd

    from regbayes import FeatureStability
    from regbayes.search import FoldRecord


@dataclass(frozen=True, eq=False)
class Fitted:
    """A fit to all rows and the search before it, which may have been interrupted."""

    estimator: Any
    settings: dict[str, Any]  # C and the settings chosen by the search
    seconds: float
    records: Sequence[FoldRecord] = ()  # records of all fits of the search
    chosen: Mapping[str, Any] | None = None  # chosen values of all searched parameters
    path: str | None = None  # file of the records
    kept: str | None = None  # message about the state kept after Ctrl-C

    @property
    def of_chosen(self) -> list[FoldRecord]:
        """The records of the chosen settings by fold."""
        return sorted((one for one in self.records if one.params == self.chosen), key=lambda one: one.fold)

    @cached_property
    def candidates(self) -> pd.DataFrame:
        """The mean and the deviation of the scores and the number of folds of each setting."""
        import pandas as pd

        rows = [{**{name: one.params[name] for name in self.settings}, "score": one.score} for one in self.records]
        scores = pd.DataFrame(rows).groupby(list(self.settings), dropna=False)["score"]
        return scores.agg(mean="mean", std=lambda found: found.std(ddof=0), folds="size").reset_index()

    @property
    def n_rivals(self) -> int:
        """Number of settings tried on as many folds as the chosen one, including it."""
        return int(np.sum(self.candidates["folds"] == len(self.of_chosen)))

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
        scores = [record.score for record in self.of_chosen]
        found = {"metric": metric, "mean": float(np.mean(scores)), "std": float(np.std(scores)), "folds": len(scores)}
        return {**found, "pooled": pooled, "candidates": self.candidates.to_dict("records")}


class SearchWatch:
    """Callback that stores the records of a search, in memory and in a file, and reports progress.

    The time left is estimated from the median fit, because the first one also compiles. An error such as a full disk
    does not end the search.
    """

    def __init__(self, total: int, jobs: int, output: Output, path: str | None = None) -> None:
        from joblib import effective_n_jobs

        self.total = total
        self.processes = effective_n_jobs(jobs)
        self.output = output
        self.path = path  # None without a file
        self.records: list[FoldRecord] = []

    def begin(self, *, resume: bool) -> None:
        """Read the records of the search to resume, or delete them."""
        from regbayes.search import read_records, write_records

        path = str(self.path)
        if not os.path.exists(path):
            if resume:
                self.output.warn("--resume: found no unfinished search of these data and settings; a new one begins")
        elif not resume:
            self.output.say(f"{path} has an unfinished search, which begins again; --resume would continue it")
            os.remove(path)
        else:
            try:
                self.records = list(read_records(path))
            except (ValueError, OSError, MemoryError) as error:
                raise UserError(f"--resume: {path} cannot be read ({error}); delete it to begin again") from None
            with replacing(path) as temporary:  # drops an incomplete last line
                write_records(self.records, temporary)
            self.output.say(f"{counted(len(self.records), 'fit')} of {path} need not be made again")

    def __call__(self, record: FoldRecord) -> None:
        """Store the record of a finished fit."""
        from regbayes.search import write_records

        self.records.append(record)
        try:
            if self.path is not None:
                write_records([record], self.path, append=True)
        except OSError as error:
            self.output.warn(f"{self.path} cannot be written ({error.strerror}); --resume will know the fits before")
            self.path = None
        interrupts.check()
        left = self.seconds_left()
        self.output.progress(f"{len(self.records)} of {self.total} fits, about {left:.0f} s left")

    def seconds_left(self) -> float:
        """Return the estimated time in seconds of the remaining fits, including the final one."""
        median = statistics.median(record.fit_seconds + record.score_seconds for record in self.records)
        return median * ((self.total - len(self.records)) / self.processes + 1)


def _record_path(context: FitContext, search: Any) -> str:
    """Return the file for records next to the model file; a hash tells apart searches of other data and settings."""
    from regbayes import __version__

    request, X = context.request, context.X
    digest = hashlib.sha256()
    inputs = (X.data, X.indices, X.indptr) if context.of_documents else (X,)
    settings = (__version__, search.estimator, len(search.cv), context.kind, request.balanced)
    for given in (settings, *inputs, context.y, context.task, context.weights):
        plain = isinstance(given, np.ndarray) and given.dtype.kind != "O"
        shown = (given.dtype.str, given.shape) if plain else getattr(given, "tolist", lambda: given)()  # noqa: B023
        digest.update(repr(shown).encode())
        digest.update(np.ascontiguousarray(given) if plain else b"")
    return f"{os.path.realpath(request.output)}.{digest.hexdigest()[:12]}.records"


# --- estimator and search


def make_estimator(context: FitContext) -> Any:
    """Return the estimator with the user's values and defaults.

    Documents use MedLDA. Tasks use MT-iLSVM, and so do problems that iLSVM does not support: multi-label targets that
    are balanced or not 0/1, and regression with ``include_inputs``.
    """
    import regbayes

    request, numbers, y = context.request, context.kind == "regressor", context.y
    wanted: dict[str, Any] = {
        "n_components": min(request.n_components, default=None),
        "C": min(request.C, default=None),
        "max_iter": request.max_iter,
        "class_weight": "balanced" if request.balanced else None,
        "include_inputs": request.include_inputs or None,  # False is the default
    }
    if context.of_documents:
        family = "MedLDA"
        wanted["n_components"] = wanted["n_components"] or _topics(context)[1]
        needs_mean_field = request.include_inputs or context.X.dtype.kind == "f"
        wanted["inference"] = request.inference or ("variational" if needs_mean_field else None)
    else:
        are_indicators = y.dtype.kind != "O" and np.isin(y[np.isfinite(y)], (0, 1)).all() if y.ndim == 2 else True
        needs_classes = context.kind == "multilabel" and (request.balanced or not are_indicators)
        by_task = context.task is not None or needs_classes or (numbers and request.include_inputs)
        family = "MultiTaskILSVM" if by_task else "ILSVM"
        slab = request.slab or (None if by_task else "half-normal")
        wanted["slab"] = None if slab == "none" else slab
        wanted["temperature"] = next(iter(request.temperature), None)
        wanted["unseen_tasks"] = None if context.task is None else "shared"
    model = getattr(regbayes, f"{family}{'Regressor' if numbers else 'Classifier'}")
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
        tries_both = context.X.dtype.kind != "f" and request.inference is None and not request.include_inputs
        grid["inference"] = ["variational", "gibbs"] if tries_both else [base.inference]
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
    if context.kind != "classifier" or context.task is not None or not request.cv:
        return min(request.folds, len(y)) if request.cv else 0
    classes, sizes = np.unique(y, return_counts=True)
    if len(classes) > len(y) / 2:
        output.warn(f"{len(classes)} classes in {counted(len(y), 'row')}: most have one or two rows")
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


def fit(context: FitContext) -> Fitted:
    """Choose settings by cross-validation and fit them to all rows.

    The first Ctrl-C ends the search and starts the fit of the best settings so far; the second one ends that fit.

    Raises
    ------
    UserError
        If the data or the request are invalid.
    StoppedError
        If Ctrl-C came before there was a result to keep.
    """
    from sklearn.utils._param_validation import InvalidParameterError

    folds = possible_folds(context)
    try:
        return _search_and_fit(context, folds) if folds >= 2 else _fit_once(context)
    except InvalidParameterError as error:
        raise UserError(str(error)) from None
    except ValueError as error:
        remedy = ". --no-cv fits without cross-validation" if folds >= 2 else ""
        raise BadDataError(f"the model cannot be fitted to these data: {str(error).rstrip('.')}{remedy}") from None


def _fit_once(context: FitContext) -> Fitted:
    """Fit one setting to all rows; Ctrl-C keeps the best state so far."""
    base, began = make_estimator(context), time.perf_counter()
    estimator, stopped = _fit(context, partial(_fit_alone, base, context))
    if estimator is None:
        raise StoppedError("interrupted before the fit had a state to keep; nothing was written")
    kept = "Interrupted: the fit was ended early, at its best state so far." if stopped else None
    return Fitted(estimator, {"C": estimator.C}, time.perf_counter() - began, kept=kept)


def _search_and_fit(context: FitContext, folds: int) -> Fitted:
    from regbayes.search import best_so_far

    base, output, began = make_estimator(context), context.output, time.perf_counter()
    search = make_search(context, base, folds)
    names = sorted(name for name, values in search.param_grid.items() if name == "C" or len(values) > 1)
    n_settings = int(np.prod([len(values) for values in search.param_grid.values()]))
    output.say(f"cross-validation: {counted(n_settings, 'setting')} on {folds} folds, then a fit to all rows")
    watch = SearchWatch(n_settings * folds, context.request.jobs, output, _record_path(context, search))
    watch.begin(resume=context.request.resume)
    stopped = _run(context, search, watch)
    if not watch.records:
        raise StoppedError("interrupted before the first fit was done; nothing was written")
    stopped = stopped or _extend(context, search, watch, names, folds)
    chosen = best_so_far(watch.records)
    settings = {name: chosen[name] for name in names}
    if stopped:
        shown = ", ".join(f"{name}={value}" for name, value in settings.items())
        output.warn(
            f"interrupted after {counted(len(watch.records), 'fit')}: fitting the best settings so far ({shown}) to "
            "all rows. Ctrl-C again ends that fit early"
        )
    own = clone(base).set_params(**chosen)
    work = partial(_fit_alone, own, context) if stopped else partial(_fit_along_path, context, search, watch, chosen)
    estimator, ended = _fit(context, work)
    if estimator is None:  # without a state to keep, run one iteration uninterrupted
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            shortest = clone(own).set_params(max_iter=1).fit(context.X, context.y, **context.metadata)
        estimator = shortest.set_params(max_iter=base.max_iter)
    found = Fitted(estimator, settings, time.perf_counter() - began, watch.records, chosen, watch.path)
    if not (stopped or ended):
        return found
    last = "was ended early, at its best state so far" if ended else "was finished"
    kept = (
        f"Interrupted after {len(watch.records)} of {watch.total} fits: the best of "
        f"{found.n_rivals} {plural(found.n_rivals, 'setting')} tried on {len(found.of_chosen)} of {folds} folds is "
        f"kept; the last fit, to all rows, {last}. --resume continues the search."
    )
    return replace(found, kept=kept)


def _run(context: FitContext, search: Any, watch: SearchWatch) -> bool:
    """Run the fits of a search that have no record yet; return whether a signal interrupted them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # only warnings of the final fit are shown
        _, stopped = interrupts.run_stoppable(
            lambda: search.fit(context.X, context.y, records=list(watch.records), on_result=watch, **context.metadata)
        )
    context.output.progress("")
    return stopped


def _extend(context: FitContext, search: Any, watch: SearchWatch, names: Sequence[str], folds: int) -> bool:
    """Try one more value of parameters whose best value is at the edge of the grid; return whether a signal came."""
    from regbayes.estimators._search import find_edges

    options = [name for name in names if name in ("C", "temperature", "n_components")]
    for edge in find_edges(search.cv_results_, search.best_index_, "score", options):
        where = f"is the {edge.end} value tried"
        context.output.say(f"the best {edge.name}={edge.value} {where}: {edge.name}={edge.further} is next")
        watch.total += folds
        grid = {name: [value] for name, value in search.best_params_.items()}
        more = clone(search).set_params(param_grid=grid | {edge.name: sorted([edge.value, edge.further])})
        if _run(context, more, watch):
            return True
        if more.best_score_ > search.best_score_:
            option = f"--{edge.name.replace('_', '-')}"
            context.output.warn(f"the best {edge.name}={edge.further} {where}, even with one more: give {option}")
    return False


def _fit_along_path(context: FitContext, search: Any, watch: SearchWatch, chosen: Mapping[str, Any]) -> Any:
    """Fit the chosen settings to all rows along their warm-start path."""
    path = {name: [value] for name, value in chosen.items()}
    if (along := search.along) is not None:
        values = sorted({*search.param_grid[along], chosen[along]}, reverse=search.descending)
        path[along] = values[: values.index(chosen[along]) + 1]
    last = clone(search).set_params(param_grid=path, refit=True)
    return last.fit(context.X, context.y, records=watch.records, **context.metadata).best_estimator_


def _fit(context: FitContext, work: Callable[[], Any]) -> tuple[Any, bool]:
    """Run a fit; return the estimator (None if interrupted without a state) and whether a signal came."""
    from regbayes import GridEdgeWarning, TruncationWarning
    from regbayes.estimators._bases import InterruptedWarning

    limited = (TruncationWarning,) if context.request.n_components else ()  # the user limited the number of features
    with context.output.catch_warnings(InterruptedWarning, GridEdgeWarning, *limited):
        return interrupts.run_stoppable(work)


def _fit_alone(estimator: Any, context: FitContext) -> Any:
    """Fit with ``--jobs`` threads and, in a terminal, a progress bar."""
    bar = int(sys.stderr.isatty() and not context.output.quiet)
    estimator.set_params(n_jobs=context.request.jobs or 1, verbose=bar)
    estimator.fit(context.X, context.y, **context.metadata)
    return estimator.set_params(n_jobs=None, verbose=0)


# --- the model file


def train(context: FitContext, fitted: Fitted) -> ModelFile:
    """Compare a fit with baselines and return its model file with the report."""
    from regbayes import ILSVMClassifier, ILSVMRegressor
    from regbayes.estimators._calibration import HeldOutScores

    request, output, estimator = context.request, context.output, fitted.estimator
    held_out = calibration = comparison = cross_validation = None
    if fitted.records:
        if context.kind != "regressor":
            held_out = HeldOutScores.collect(estimator, fitted.of_chosen, context.y)
            calibration = None if held_out is None else held_out.calibrate(context.weights)
        comparison = _compare(context, fitted)
        cross_validation = fitted.cross_validation(context.metric, comparison["systems"][0]["score"])
    stability = _find_stability(context, estimator) if request.stability else None
    baseline = baseline_score(context.y, context.kind, balanced=request.balanced, weights=context.weights)
    if comparison is not None and comparison["systems"][1:]:
        baseline = comparison["systems"][1]["score"]
    setting = None
    if isinstance(estimator, ILSVMClassifier | ILSVMRegressor):
        setting = "predictive" if estimator.slab is None else "interpretable"
    facts = {
        "estimator": type(estimator).__name__,
        "kind": context.kind,
        "targets": list(context.spec.names),
        "task": context.spec.task,
        "rows": context.X.shape[0],
        "inputs": context.X.shape[1],
        "weight": request.weight,
        "setting": setting,
        "settings": fitted.settings,
        "n_components": estimator.n_components,
        "n_components_in_use": len(estimator.components_),
        "seconds": fitted.seconds,
        "interrupted": fitted.kept is not None,
        "kept": fitted.kept,
        "baseline_score": baseline,
        "cross_validation": cross_validation,
        "comparison": comparison,
        "no_better_than_baseline": None if comparison is None else comparison["no_better_than_baseline"],
        "source": context.table.source,
        "metric": context.metric,
        "warnings": list(output.warnings),
    }
    if request.stability:
        facts["stability"] = None if stability is None else _describe(stability)
    pipeline = Pipeline([("inputs", context.inputs), ("model", estimator)])
    model = ModelFile(pipeline, context.spec, None, facts, calibration)

    reliability = None
    if held_out is not None and calibration is not None:
        note = "Of held-out rows; the curve that turns scores into probabilities was fitted to the same rows."
        counts = None if context.weights is None else context.weights[held_out.rows]
        reliability = reliability_of(calibration.by_output(held_out.scores), held_out.codes, counts, note)
    shown = {"stability": stability, "reliability": reliability, "predictions": fitted.out_of_fold}
    try:
        with output.catch_warnings():
            report, stopped = interrupts.run_stoppable(partial(_collect_page, model, context, shown))
        reason = "interrupted" if stopped else None
    except Exception as error:  # a failing report must not lose the fit
        report, reason = None, str(error)
    if reason is not None:
        output.warn(f"the report could not be prepared, and the model is saved without ({reason})")
    return replace(model, report=report)


def _collect_page(model: ModelFile, context: FitContext, shown: dict[str, Any]) -> Any:
    """Return the `ReportData` of a fit; `shown` has what is known of its held-out rows."""
    noun, compared = model.noun, model.facts["comparison"]
    note = f"Predictions are those of cross-validation: each {noun} was predicted by a fit that had not seen it."
    if shown["predictions"] is None:
        note = f"Predictions are of the {noun}s that the model was fitted to, which look better than those of new ones."
    shown |= {
        "row_names": context.row_names.tolist(),
        "data_name": f"training {noun}s",
        "prediction_note": note,
        "scores": score_for_page(model),
        "fitted_to": True,
        "texts": None if context.texts is None else context.texts.tolist(),
        "image_shape": context.request.image_shape,
    }
    if compared is not None:
        from regbayes.report.data import Comparison

        systems = [row for row in compared["systems"] if row["score"] is not None]
        columns = {name: np.array([row[name] for row in systems]) for name in ("score", "std", "size", "seconds")}
        shown["comparison"] = Comparison(
            metric=compared["metric"],
            names=tuple(row["name"] for row in systems),
            own=0,
            scores=columns["score"],
            deviations=columns["std"],
            n_things=columns["size"].astype(np.int64),
            seconds=columns["seconds"],
            verdict=" ".join(compared["messages"]),
        )
    return collect_page(model, context.table, context.X, context.y, shown)


def _compare(context: FitContext, fitted: Fitted) -> dict[str, Any]:
    """Compare the model with baselines on the folds of the search."""
    estimator, tried = fitted.estimator, fitted.of_chosen
    size = len(estimator.components_)
    unit = plural(size, "topic" if context.of_documents else "feature")
    if getattr(estimator, "include_inputs", False):
        n = context.X.shape[1]
        size, unit = size + n, f"{unit} and {plural(n, 'input')}"
    seconds = sum(record.fit_seconds for record in fitted.records)
    name = type(estimator).__name__
    model = {"role": "model", "name": name, "size": size, "size_unit": unit, "seconds": seconds, "note": ""}
    return compare(
        context,
        model,
        [record.rows for record in tried],
        [np.asarray(record.predictions) for record in tried],
        estimator=estimator,
        n_settings=fitted.n_rivals,
        with_baselines=context.request.compare and fitted.kept is None,
    )


def _find_stability(context: FitContext, estimator: Any) -> FeatureStability | None:
    """Refit on subsamples to find stable features; Ctrl-C skips this step."""
    from regbayes import feature_stability

    request, output = context.request, context.output
    output.say(f"{counted(request.stability or 0, 'fit')} to parts of the rows, to see which features recur")
    options = {"n_resamples": request.stability, "random_state": request.seed, "n_jobs": request.jobs}
    with output.catch_warnings():
        found, stopped = interrupts.run_stoppable(
            lambda: feature_stability(estimator, context.X, context.y, **options, **context.metadata)
        )
    if stopped:
        output.warn("interrupted before it was known which features recur; the report does not say")
        return None
    output.say(repr(found))
    return found


def _describe(stability: FeatureStability) -> dict[str, Any]:
    """Return the stability of the features as plain values for the model file and JSON."""
    import pandas as pd

    rows = pd.DataFrame(stability.table()).to_dict("records")
    return {"resamples": len(stability.similarity), "threshold": stability.threshold, "match": stability.match} | {
        "features": rows
    }
