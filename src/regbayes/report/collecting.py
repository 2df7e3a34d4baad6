"""`collect`: compute the data of the report from a fitted estimator and samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from inspect import signature
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import is_classifier
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import _num_samples, check_is_fitted

from regbayes._types import Floats
from regbayes.estimators.stability import FeatureStability
from regbayes.report import _outcomes as errors
from regbayes.report._columns import Columns, Encoding, dense_rows, shorten_names
from regbayes.report._effects import effects_of
from regbayes.report._examples import ExamplePool, check_image_shape, describe, thumbnails
from regbayes.report._features import Outputs, Shown, collect_features, outputs_of
from regbayes.report._latent import LatentModel, find_latent, respond
from regbayes.report._outcomes import Outcomes, label_text, read_outcomes
from regbayes.report.data import (
    LIMITS,
    Comparison,
    Effects,
    Features,
    History,
    Kind,
    Level,
    Model,
    Reliability,
    ReportData,
    Sample,
)


def collect(  # noqa: PLR0913 - options of a public function, all by name
    estimator: Any,
    X: Any,
    y: ArrayLike | None = None,
    *,
    task: ArrayLike | None = None,
    feature_names: Sequence[str] | None = None,
    target_names: Sequence[str] | None = None,
    kind: Literal["auto", "table", "image", "text"] = "auto",
    image_shape: Sequence[int] | None = None,
    texts: Sequence[str] | None = None,
    row_names: Sequence[Any] | None = None,
    data_name: str = "rows",
    predictions: ArrayLike | None = None,
    prediction_scores: Any = None,
    prediction_note: str | None = None,
    scores: Mapping[str, float | tuple[float, float]] | None = None,
    fitted_to: bool | None = None,
    target_name: str | None = None,
    notices: Sequence[tuple[Level, str]] = (),
    comparison: Comparison | None = None,
    reliability: Reliability | None = None,
    stability: FeatureStability | None = None,
    title: str | None = None,
) -> ReportData:
    """Compute the data of the HTML report about a fitted model.

    Parameters
    ----------
    estimator : fitted estimator
        Estimator with latent features (``transform`` and ``components_``), such as iLSVM, MT-iLSVM or
        `IBPFactorAnalysis`. It may be inside a pipeline, a search or `MultiLabelThresholdCV`, and a linear model may
        follow it in the pipeline.
    X : data frame, array-like or sparse matrix of shape (n_samples, n_features)
        Samples for the report, preferably held out. For a pipeline that scales or encodes them, pass the original
        samples: effects and examples use their units and categories.
    y : array-like of shape (n_samples,) or (n_samples, n_tasks), default=None
        Targets as in ``fit``; values may be missing. Without targets the report has neither classes nor errors.
    task : array-like of shape (n_samples,), default=None
        Task of each sample, if the estimator was fitted with ``task``.
    feature_names : sequence of str, default=None
        Names of the input features; by default the column names of a data frame.
    target_names : sequence of str, default=None
        Names of the classes in the order of ``classes_``, or of the columns of a target matrix.
    kind : {"auto", "table", "image", "text"}, default="auto"
        How samples are shown. "auto" is "image" with ``image_shape``, "text" with ``texts``, else "table".
    image_shape : (height, width) or (height, width, 3), default=None
        Image shape of a sample.
    texts : sequence of str, default=None
        Document of each sample; the report shows its beginning.
    row_names : sequence, default=None
        Names of the samples; their numbers by default.
    data_name : str, default="rows"
        Description of the samples, for instance "training rows".
    predictions : array-like in the shape of y, default=None
        Predictions to evaluate instead of the estimator's own, such as out-of-fold predictions.
    prediction_scores : array-like or list of them, default=None
        Output of ``decision_function`` of the fits that made ``predictions``. Errors are sorted by it.
    prediction_note : str, default=None
        Sentence about the predictions.
    scores : mapping of str to float or to (float, float), default=None
        Additional scores, for instance from cross-validation, with their standard deviation over folds. They replace
        computed scores of the same name.
    fitted_to : bool, default=None
        Whether the model was fitted to these samples. If True, scores are labeled as training scores or, with
        ``predictions``, as cross-validation scores. None leaves them unlabeled.
    target_name : str, default=None
        Name of the target; by default the name of ``y``, if it has one.
    notices : sequence of (level, str), default=()
        Notices at the top of the report, each a "warning" or a "note". Interrupted fits are always reported.
    comparison : Comparison, default=None
        Scores of the model and its baselines.
    reliability : Reliability, default=None
        Reliability diagram of the probabilities.
    stability : FeatureStability, default=None
        Result of `regbayes.feature_stability` for this estimator.
    title : str, default=None
        Title of the report.

    Returns
    -------
    ReportData
        Data for `render`, with averages and a few examples but without ``X``.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from regbayes import ILSVMClassifier
    >>> from regbayes.report import collect
    >>> X, y = load_iris(return_X_y=True)
    >>> model = ILSVMClassifier(8, tol=1e-2, random_state=0).fit(X, y)
    >>> data = collect(model, X, y, target_names=["setosa", "versicolor", "virginica"], fitted_to=True)
    >>> data.model.sample, data.confusion.classes
    ('training', ('setosa', 'versicolor', 'virginica'))
    """
    check_is_fitted(estimator)
    latent = find_latent(estimator, X)
    for name, given in (("row_names", row_names), ("texts", texts)):
        if given is not None and len(given) != _num_samples(X):
            raise ValueError(
                f"{name} must have one entry per row: it has {len(given)}, and X has {_num_samples(X)} rows"
            )
    n_inputs = np.asarray(latent.model.components_).shape[1]
    chosen, shape = _choose_kind(kind, image_shape, texts, n_inputs)
    columns = Columns.read(X, feature_names, "x" if latent.steps else "input ")
    shown = Shown(latent.X, columns, _describe_inputs(latent, X, columns, feature_names, n_inputs), chosen, shape)
    outcomes = None
    own_predictions = predictions is None
    if y is not None:
        if own_predictions and hasattr(estimator, "predict"):
            predictions = respond(estimator, "predict", X, task)
        outcomes = read_outcomes(estimator, latent.model, X, y, task, predictions, target_names)
    called = target_name or label_text(getattr(y, "name", None) or "target")
    outputs = outputs_of(latent, outcomes, called)
    answer = "score" if is_classifier(estimator) else called
    effects = effects_of(estimator, latent, shown, outputs, task, answer)
    pool = ExamplePool()
    values = np.asarray(latent.model.transform(latent.X), dtype=np.float64)
    features = collect_features(latent, values, shown, outcomes, outputs, pool, stability)
    own_scores = prediction_scores is None
    if own_scores and outcomes is not None and hasattr(estimator, "decision_function"):
        prediction_scores = respond(estimator, "decision_function", X, task)
    judged = _judge(latent, values, outcomes, outputs, prediction_scores, own_predictions or not own_scores, pool)
    if latent.interruptions and not any("interrupted" in words for _, words in notices):
        said = " ".join(("This fit was ended before it was done.", *latent.interruptions))
        notices = [("warning", f"{said} Fit again for a model to rely on."), *notices]
    sample: Sample = "" if fitted_to is None else "new" if not fitted_to else "training"
    pictures = None
    if shape is not None:
        whole = columns is None or len(columns.names) != n_inputs
        rows = dense_rows(latent.X, pool.rows) if whole or columns is None else columns.take(pool.rows)
        pictures = thumbnails(np.asarray(rows, dtype=np.float64), shape)
    return ReportData(
        title=title or f"{type(estimator).__name__} on {_num_samples(X)} {data_name}",
        kind=chosen,
        model=Model(
            name=_name_model(estimator, latent.model),
            settings=tuple(_settings(latent.model)),
            facts=tuple(_facts(latent.model, features)),
            **_collect_scores(estimator, latent, values, outcomes, scores or {}),
            sample="cross-validated" if fitted_to and not own_predictions else sample,
            n_rows=len(values),
            n_inputs=n_inputs,
            data_name=data_name,
            target_name=called if outcomes is not None else "",
            notices=tuple(notices),
        ),
        history=_collect_history(latent.model),
        features=features,
        examples=describe(pool.rows, outcomes, row_names, texts, pictures, _main_inputs(shown, effects, pool)),
        prediction_note=prediction_note or "",
        effects=effects,
        comparison=comparison,
        reliability=reliability,
        image_shape=shape or (),
        **judged,
    )


def _choose_kind(
    kind: str, image_shape: Sequence[int] | None, texts: Sequence[str] | None, n_inputs: int
) -> tuple[Kind, tuple[int, ...] | None]:
    """Return the kind of samples and the shape of images."""
    if kind not in ("auto", "table", "image", "text"):
        raise ValueError(f'kind must be "auto", "table", "image" or "text", got {kind!r}')
    if kind == "image" and image_shape is None:
        raise ValueError('kind="image" needs image_shape, (height, width) of the image that a row is')
    shape = None if image_shape is None or kind in ("table", "text") else check_image_shape(image_shape, n_inputs)
    if kind != "auto":
        return kind, shape  # type: ignore[return-value] # checked above
    return "image" if shape is not None else "text" if texts is not None else "table", shape


def _describe_inputs(
    latent: LatentModel, X: Any, columns: Columns | None, given: Sequence[str] | None, n_inputs: int
) -> Encoding:
    """Return the names of the model's inputs and their source columns."""
    n_columns = 0 if columns is None else len(columns.names)
    if given is not None and len(given) not in (n_inputs, n_columns):
        raise ValueError(f"feature_names has {len(given)} names, but the model has {n_inputs} inputs")
    own = None if latent.steps else getattr(X, "columns", None)
    known = (given, latent.input_names, own, getattr(latent.model, "feature_names_in_", None))
    fitting = [names for names in known if names is not None and len(names) == n_inputs]
    names = shorten_names(fitting[0]) if fitting else [f"input {place}" for place in range(n_inputs)]
    if columns is not None and latent.steps:
        return Encoding.of(columns, latent.prepare, names)
    same = n_columns == n_inputs
    sources = np.arange(n_inputs) if same else np.full(n_inputs, -1)
    return Encoding(names, sources, np.full(n_inputs, 1.0 if same else np.nan))


def _main_inputs(shown: Shown, effects: Effects | None, pool: ExamplePool) -> tuple[Any, Any]:
    """Return names and values of the inputs with the largest effects."""
    columns = shown.columns
    if columns is None or shown.kind != "table":
        return (), ()
    place = {name: i for i, name in enumerate(columns.names)}
    order = [place[name] for name in (columns.names if effects is None else effects.names)][: LIMITS.row_inputs]
    return tuple(columns.names[i] for i in order), columns.cells(pool.rows, order)


def _judge(
    latent: LatentModel,
    values: Floats,
    outcomes: Outcomes | None,
    outputs: Outputs,
    scores: Any,
    own: bool,
    pool: ExamplePool,
) -> dict[str, Any]:
    """Return the parts of the report about prediction errors.

    ``scores`` is the output of `decision_function`; ``own`` is True if it is from the fits that predicted.
    """
    if outcomes is None:
        return dict.fromkeys(("confusion", "tasks", "regression", "worst"))
    task_scores = _scores_by_task(latent, outcomes, values @ outputs.weights.T) if len(outputs.weights) else None
    found = {"tasks": errors.tasks_of(outcomes, task_scores), "regression": errors.regression_of(outcomes)}
    if outcomes.kind == "numbers":
        return {**found, "confusion": None, "worst": errors.worst_numbers(outcomes, pool)}
    known = outcomes.predicted is not None and scores is not None
    margins = errors.class_margins(scores, outcomes) if known else None
    worst = errors.worst_labels(outcomes, margins, pool, own=own)
    return {**found, "confusion": errors.confusion_of(outcomes, pool, margins), "worst": worst}


def _scores_by_task(latent: LatentModel, outcomes: Outcomes, scores: Floats) -> Floats | None:
    """Return the score columns of the observed tasks, or None if a task has several columns."""
    fitted = [label_text(name) for name in getattr(latent.model, "tasks_", ())]
    if scores.shape[1] != len(fitted):
        return None
    if outcomes.layout != "ragged":
        return scores
    return scores[:, [fitted.index(name) for name in outcomes.task_names if name in fitted]]


# --- Model summary


def _collect_scores(
    estimator: Any,
    latent: LatentModel,
    values: Floats,
    outcomes: Outcomes | None,
    given: Mapping[str, float | tuple[float, float]],
) -> dict[str, Any]:
    """Return scores with descriptions and their deviations over folds; given scores come first."""
    own = [] if outcomes is None else errors.scores_of(outcomes)
    meanings = {name: meaning for name, _, meaning in own}
    pairs = {str(name): value if isinstance(value, tuple) else (value, np.nan) for name, value in given.items()}
    if hasattr(estimator, "best_score_"):
        by_setting = getattr(estimator, "cv_results_", {}).get("std_test_score")
        deviation = np.nan if by_setting is None else float(by_setting[estimator.best_index_])
        pairs["cross-validation"] = (estimator.best_score_, deviation)
        meanings["cross-validation"] = "mean score over the folds of the search"
    found = [(name, float(mean), meanings.get(name, "")) for name, (mean, _) in pairs.items()]
    found += [score for score in own if score[0] not in pairs]
    if outcomes is None and hasattr(latent.model, "inverse_transform"):
        X = dense_rows(latent.X, np.arange(len(values))).astype(np.float64)
        left, total = np.sum((X - latent.model.inverse_transform(values)) ** 2), np.sum((X - X.mean(axis=0)) ** 2)
        share = 1.0 - float(left / total) if total > 0 else float("nan")
        found.append(("explained", share, "share of the inputs' variance that the features explain"))
    deviations = [float(deviation) for _, deviation in pairs.values()]
    return {"scores": tuple(found), "deviations": (*deviations, *[np.nan] * (len(found) - len(deviations)))}


def _name_model(estimator: Any, model: Any) -> str:
    if isinstance(estimator, Pipeline):
        return " → ".join(type(step).__name__ for _, step in estimator.steps)
    own = type(model).__name__
    return own if estimator is model else f"{own} in {type(estimator).__name__}"


def _facts(model: Any, features: Features) -> list[tuple[str, str]]:
    """Return names and values of facts about the fit."""
    facts = [(f"{features.noun}s in use", f"{features.n_in_use} of {features.n_components}")]
    if hasattr(model, "slab"):
        kinds = {None: "probabilities", "half-normal": "sparse nonnegative values", "normal": "sparse values"}
        facts.append(("features", kinds[model.slab]))
    names = ("temperature_", "generative_weight_", "noise_variance_", "prior_variance_", "n_iter_")
    facts += [(name, f"{getattr(model, name):.4g}") for name in names if hasattr(model, name)]
    if getattr(model, "multi_class_", None) == "ovr":
        facts.append(("margins", "each class against the rest"))
    return facts


def _settings(model: Any) -> list[tuple[str, str, bool]]:
    defaults = {name: parameter.default for name, parameter in signature(type(model)).parameters.items()}
    given = sorted(model.get_params(deep=False).items())
    return [(name, _short(value), _short(value) != _short(defaults.get(name))) for name, value in given]


def _short(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= LIMITS.setting_characters else text[: LIMITS.setting_characters] + "…"


def _collect_history(model: Any) -> History | None:
    """Return the thinned trace of a fit, or None without a trace."""
    trace = getattr(model, "trace_", None)
    if trace is None or len(trace) == 0:
        return None
    kept = np.unique(np.linspace(0, len(trace) - 1, min(len(trace), LIMITS.iterations)).round().astype(int))
    names = tuple(trace.terms)
    sampled = getattr(model, "inference", None) == "gibbs"
    return History(
        iterations=np.asarray(trace.iterations)[kept],
        objective=np.asarray(trace.objective)[kept],
        term_names=names,
        terms=np.array([trace.terms[name][kept] for name in names]).reshape(len(names), len(kept)),
        n_iter=int(trace.iterations[-1]),
        seconds=float(trace.elapsed[-1]),
        n_rises=trace.rises.count,
        largest_rise=trace.rises.largest,
        note="The fit draws samples, so its objective varies after convergence." if sampled else "",
    )
