"""Fit a model file to a `FitContext`: search, comparison, stability and report."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.pipeline import Pipeline

from regbayes.cli import interrupts
from regbayes.cli.comparison import Judged, compare
from regbayes.cli.context import FitContext
from regbayes.cli.errors import BadDataError, UserError, counted, plural
from regbayes.cli.modelfile import ModelFile
from regbayes.cli.pages import collect_training_page, reliability_of
from regbayes.cli.scores import baseline_score
from regbayes.cli.search import Fitted, fit_once, possible_folds, search_and_fit

if TYPE_CHECKING:
    from regbayes import FeatureStability

__all__ = ["fit", "train"]


def fit(context: FitContext) -> Fitted:
    """Choose settings and fit the model; errors about the data become `UserError`.

    Raises
    ------
    UserError
        If the data or the request are invalid.
    StoppedError
        If Ctrl-C came before there was a result to save.
    """
    from sklearn.utils._param_validation import InvalidParameterError

    folds = possible_folds(context)
    try:
        return fit_once(context) if folds < 2 else search_and_fit(context, folds)
    except InvalidParameterError as error:
        raise UserError(str(error)) from None
    except ValueError as error:
        remedy = ". --no-cv fits without cross-validation" if folds >= 2 else ""
        raise BadDataError(f"the model cannot be fitted to these data: {str(error).rstrip('.')}{remedy}") from None


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
    baseline = None if comparison is None else comparison["systems"][1:2]
    of_training = baseline_score(context.y, context.kind, balanced=request.balanced, weights=context.weights)
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
        "baseline_score": baseline[0]["score"] if baseline else of_training,
        "cross_validation": cross_validation,
        "comparison": comparison,
        "no_better_than_baseline": None if comparison is None else comparison["no_better_than_baseline"],
        "source": context.table.source,
        "metric": context.metric,
        "warnings": list(output.warnings),
    }
    if request.stability:
        facts["stability"] = None if stability is None else _plain_stability(stability)
    model = ModelFile(
        Pipeline([("inputs", context.inputs), ("model", estimator)]), context.spec, None, facts, calibration
    )

    def collect_page() -> Any:
        try:
            note = "Of held-out rows; the curve that turns scores into probabilities was fitted to the same rows."
            shown: dict[str, Any] = {"stability": stability}
            if held_out is not None and calibration is not None:
                counts = None if context.weights is None else context.weights[held_out.rows]
                shares = calibration.by_output(held_out.scores)
                shown["reliability"] = reliability_of(shares, held_out.codes, counts, note)
            with output.catch_warnings():
                return collect_training_page(model, context, fitted.out_of_fold, shown)
        except Exception as error:  # a failing report must not lose the fit
            output.warn(f"the report could not be prepared, and the model is saved without ({error})")
            return None

    report, stopped = interrupts.run_stoppable(collect_page)
    if stopped:
        output.warn("interrupted while the report was prepared; the model is saved without")
    return replace(model, report=report)


def _compare(context: FitContext, fitted: Fitted) -> dict[str, Any]:
    """Compare the model with baselines on the folds of the search."""
    estimator, tried = fitted.estimator, fitted.of_chosen
    size = len(estimator.components_)
    unit = plural(size, "topic" if context.of_documents else "feature")
    if getattr(estimator, "include_inputs", False):
        n = context.X.shape[1]
        size, unit = size + n, f"{unit} and {plural(n, 'input')}"
    seconds = sum(record.fit_seconds for record in fitted.records)
    rows, predictions = [record.rows for record in tried], [np.asarray(record.predictions) for record in tried]
    return compare(
        context,
        Judged("model", type(estimator).__name__, rows, predictions, seconds, size, unit),
        estimator=estimator,
        n_settings=fitted.n_rivals,
        with_baselines=context.request.compare and fitted.kept is None,
        patience=seconds,
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
    if stopped or found is None:
        output.warn("interrupted before it was known which features recur; the report does not say")
        return None
    output.say(repr(found))
    return found


def _plain_stability(found: FeatureStability) -> dict[str, Any]:
    """Return the stability of the features as plain values for the model file and JSON."""
    columns = {name: values.tolist() for name, values in found.table().items()}
    return {
        "resamples": len(found.similarity),
        "threshold": found.threshold,
        "match": found.match,
        "features": [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)],
    }
