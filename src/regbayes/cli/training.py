"""``regbayes fit`` without the command line: from a `FitContext` to a model file."""

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
from regbayes.cli.pages import collect_training_page
from regbayes.cli.probabilities import learn_certainty
from regbayes.cli.scores import baseline_score
from regbayes.cli.search import Fitted, fit_once, possible_folds, search_and_fit

if TYPE_CHECKING:
    from regbayes import FeatureStability

__all__ = ["train"]


def train(context: FitContext) -> ModelFile:
    """Fit a model, compare it with baselines, and gather what its page shows.

    Raises
    ------
    UserError
        If the data or the request make no sense; the message says which.
    StoppedError
        If Ctrl-C came before there was anything to keep.
    """
    request, output = context.request, context.output
    n_warnings = len(output.warnings)
    folds = possible_folds(context)
    with interrupts.protect():
        fitted = _fit(context, folds)
        certainty = reliability = comparison = cross_validation = None
        if fitted.records:
            if context.kind != "regressor":
                certainty, reliability = learn_certainty(
                    fitted.estimator, fitted.of_chosen, context.y, context.weights, request.seed
                )
            comparison = _compare(context, fitted)
            cross_validation = fitted.cross_validation(context.metric, comparison["systems"][0]["score"])
        stability = _find_stability(context, fitted.estimator) if request.stability else None
        facts = {
            "why": context.why,
            "source": context.table.source,
            "rows": context.X.shape[0],
            "inputs": context.X.shape[1],
            "weight": request.weight,
            "setting": _setting(fitted.estimator),
            "settings": fitted.settings,
            "seconds": fitted.seconds,
            "interrupted": fitted.kept is not None,
            "kept": fitted.kept,
            "metric": context.metric,
            "baseline": _baseline(context, comparison),
            "cross_validation": cross_validation,
            "comparison": comparison,
            "no_better_than_baseline": None if comparison is None else comparison["no_better_than_baseline"],
            "warnings": output.warnings[n_warnings:],
        }
        if request.stability:
            facts["stability"] = None if stability is None else _plain_stability(stability)
        pipeline = Pipeline([("inputs", context.inputs), ("model", fitted.estimator)])
        model = ModelFile(pipeline, context.spec, None, facts, certainty)
        report, stopped = interrupts.run_stoppable(
            lambda: _collect_page(context, model, fitted, reliability=reliability, stability=stability)
        )
        if stopped:
            output.warn("interrupted while the page was prepared; the model is saved without")
    return replace(model, report=report)


def _fit(context: FitContext, folds: int) -> Fitted:
    """Choose settings and fit them; data that a model cannot be fitted to are not a bug."""
    from sklearn.utils._param_validation import InvalidParameterError

    try:
        return fit_once(context) if folds < 2 else search_and_fit(context, folds)
    except InvalidParameterError as error:
        raise UserError(str(error)) from None
    except ValueError as error:
        remedy = ". --no-cv fits without cross-validation" if folds >= 2 else ""
        raise BadDataError(f"the model cannot be fitted to these data: {str(error).rstrip('.')}{remedy}") from None


def _baseline(context: FitContext, comparison: dict[str, Any] | None) -> float:
    """Return the score of the first baseline: of held-out rows, or of all where there are none."""
    judged = [] if comparison is None else [one["score"] for one in comparison["systems"] if one["role"] == "baseline"]
    if judged and judged[0] is not None:
        return float(judged[0])
    return baseline_score(context.y, context.kind, balanced=context.request.balanced, weights=context.weights)


def _setting(estimator: Any) -> str | None:
    """Return whether a classifier's features are to predict or to interpret; None for models without this choice."""
    from regbayes import ILSVMClassifier

    if not isinstance(estimator, ILSVMClassifier):
        return None
    return "predictive" if estimator.slab is None else "interpretable"


def _compare(context: FitContext, fitted: Fitted) -> dict[str, Any]:
    """Compare the model with baselines on the folds that its settings were tried on."""
    from regbayes.estimators._bases import features_in_use

    estimator, tried = fitted.estimator, fitted.of_chosen
    size = len(features_in_use(estimator))
    unit = plural(size, "topic" if context.of_documents else "feature")
    if getattr(estimator, "include_inputs", False):
        n = context.X.shape[1]
        size, unit = size + n, f"{unit} and {plural(n, 'input')}"
    seconds = sum(record.fit_seconds for record in fitted.records)
    model = Judged(
        "model",
        type(estimator).__name__,
        [record.rows for record in tried],
        [np.asarray(record.predictions) for record in tried],
        seconds,
        size,
        unit,
    )
    return compare(
        context,
        model,
        estimator=estimator,
        n_settings=fitted.n_rivals,
        with_baselines=context.request.compare and fitted.kept is None,
        patience=fitted.seconds,
    )


def _find_stability(context: FitContext, estimator: Any) -> FeatureStability | None:
    """Fit again to parts of the rows; Ctrl-C leaves the page without, and the model as it is."""
    from regbayes import feature_stability

    request, output = context.request, context.output
    output.say(f"{counted(request.stability or 0, 'fit')} to parts of the rows, to see which features recur")
    options = {"n_resamples": request.stability, "random_state": request.seed, "n_jobs": request.jobs}
    with output.catch_warnings():
        found, stopped = interrupts.run_stoppable(
            lambda: feature_stability(estimator, context.X, context.y, **options, **context.metadata)
        )
    if stopped or found is None:
        output.warn("interrupted before it was known which features recur; the page does not say")
        return None
    output.say(repr(found))
    return found


def _plain_stability(found: FeatureStability) -> dict[str, Any]:
    """Return which features recur, for the model's file and for JSON."""
    columns = {name: values.tolist() for name, values in found.table().items()}
    return {
        "resamples": len(found.similarity),
        "threshold": found.threshold,
        "match": found.match,
        "features": [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)],
    }


def _collect_page(context: FitContext, model: ModelFile, fitted: Fitted, **shown: Any) -> Any:
    """Gather what the page shows; a failure must not cost the user the fit."""
    try:
        with context.output.catch_warnings():
            return collect_training_page(model, context, fitted.out_of_fold, **shown)
    except Exception as error:
        context.output.warn(f"the page about the model could not be prepared, and the model is saved without ({error})")
        return None
