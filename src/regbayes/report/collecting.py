"""`collect`: from a fitted estimator and rows to the numbers, names and pictures that a page about it shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import is_classifier
from sklearn.utils import get_tags
from sklearn.utils.validation import _num_samples, check_is_fitted

from regbayes._types import Floats, Integers
from regbayes.estimators.stability import FeatureStability
from regbayes.report import _answers as answers
from regbayes.report import _examples as shown
from regbayes.report import _features as latent_features
from regbayes.report._effects import effects_of
from regbayes.report._examples import ExamplePool
from regbayes.report._features import Outputs
from regbayes.report._inputs import Columns, Encoding, shorten_names
from regbayes.report._models import (
    LatentModel,
    contributions,
    find_latent,
    has_amounts,
    has_sticks,
    moves_answers,
    respond,
    shown_features,
    used,
)
from regbayes.report._summary import Told, collect_history, summary_of
from regbayes.report._targets import Outcomes, label_text, read_outcomes
from regbayes.report.data import (
    Cell,
    Comparison,
    Effects,
    Features,
    Kind,
    Level,
    Reliability,
    ReportData,
    Sample,
)

N_EXAMPLES = 10
N_EXAMPLE_INPUTS = 5
N_ROW_INPUTS = 12
MAX_FEATURES = 100


@dataclass(frozen=True)
class _Rows:
    """Rows, and how the user wants to see them."""

    seen: Any  # as the model sees them
    columns: Columns | None  # as the user gave them; None where they are no table
    encoding: Encoding  # how the one becomes the other
    kind: Kind
    image_shape: tuple[int, ...] | None

    @property
    def input_names(self) -> list[str]:
        """Names of the model's inputs."""
        return self.encoding.names

    def at(self, rows: Integers) -> NDArray[Any]:
        """Return some rows as pictures are made of them."""
        columns = self.columns
        if columns is None or len(columns.names) != len(self.input_names):
            return shown.dense_rows(self.seen, rows)
        return np.asarray(columns.take(rows), dtype=np.float64)


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
    """Gather what a page about a fitted model shows.

    Parameters
    ----------
    estimator : fitted estimator
        One with latent features (``transform`` and ``components_``): iLSVM, MT-iLSVM, `IBPFactorAnalysis` and their
        like, also at the end of a pipeline, inside a search or `MultiLabelThresholdCV`, or in front of a linear
        model in a pipeline.
    X : data frame, array-like or sparse matrix of shape (n_samples, n_features)
        Rows to show the model by; new ones say more about its errors than those it was fitted to. Of a pipeline that
        scales or encodes them, what goes in: effects and examples are in these units, with these categories.
    y : array-like of shape (n_samples,) or (n_samples, n_tasks), default=None
        Their targets, as to ``fit``, missing ones among them. Without targets there are no classes and no errors.
    task : array-like of shape (n_samples,), default=None
        The task of each row, if ``fit`` was told.
    feature_names : sequence of str, default=None
        Names of the inputs; by default those of the columns of a data frame.
    target_names : sequence of str, default=None
        Names of the classes, in the order of ``classes_``; for a matrix of targets names of its columns.
    kind : {"auto", "table", "image", "text"}, default="auto"
        How inputs and rows are shown. "auto" is "image" with ``image_shape``, "text" with ``texts``, else "table".
    image_shape : (height, width) or (height, width, 3), default=None
        Shape of the image that a row is.
    texts : sequence of str, default=None
        The document of each row, of which the beginning is shown.
    row_names : sequence, default=None
        What to call the rows; their numbers by default.
    data_name : str, default="rows"
        What the rows are, "training rows" for instance.
    predictions : array-like in the shape of y, default=None
        Predictions to judge instead of the estimator's own, such as those of cross-validation.
    prediction_scores : array-like or list of them, default=None
        What ``decision_function`` of the fits said that made these predictions; errors are sorted by it.
    prediction_note : str, default=None
        A sentence about the predictions.
    scores : mapping of str to float or to (float, float), default=None
        Further scores for the top of the page, from cross-validation for instance, with their deviation over folds. One
        by the name of a score that is there anyway stands in its place.
    fitted_to : bool, default=None
        Whether the model was fitted to these rows. Scores are then marked as those of training rows, or, with
        ``predictions``, of cross-validation. None: it is not said.
    target_name : str, default=None
        What is predicted; by default the name of y, where it has one.
    notices : sequence of (level, str), default=()
        What a reader must know first, each a "warning" or a "note". That a fit was interrupted is said anyway.
    comparison : Comparison, default=None
        The model beside plain ones.
    reliability : Reliability, default=None
        How far probabilities hold.
    stability : FeatureStability, default=None
        What `regbayes.feature_stability` found for this estimator: the page says of each feature how often it came back
        in other fits, and how alike.
    title : str, default=None
        Title of the page.

    Returns
    -------
    ReportData
        For `render`. It holds averages and a few examples, not X.
    """
    check_is_fitted(estimator)
    latent = find_latent(estimator, X)
    rows = _rows(latent, X, kind, image_shape, texts, feature_names)
    _check_lengths(_num_samples(X), row_names=row_names, texts=texts)
    outcomes = None
    own_predictions = predictions is None
    if y is not None:
        if own_predictions and hasattr(estimator, "predict"):
            predictions = respond(estimator, "predict", X, task)
        outcomes = read_outcomes(estimator, latent.model, X, y, task, predictions, target_names)
    called = target_name or label_text(getattr(y, "name", None) or "target")
    sample: Sample = "" if fitted_to is None else "new" if not fitted_to else "training"
    if fitted_to and not own_predictions:
        sample = "cross-validated"
    outputs = latent_features.outputs_of(latent, outcomes, called)
    effects = _effects(estimator, latent, rows, outputs, task, called)
    pool = ExamplePool()
    values = np.asarray(latent.model.transform(latent.X), dtype=np.float64)
    features = _features(latent, rows, values, outcomes, outputs, pool)
    if stability is not None:
        features = replace(features, **latent_features.returns_of(stability, features.number, values.shape[1]))
    if prediction_scores is None and outcomes is not None and hasattr(estimator, "decision_function"):
        prediction_scores = respond(estimator, "decision_function", X, task)
        sure = "own" if own_predictions else "other"
    else:
        sure = "own"
    judged = _judge(latent, values, outcomes, outputs, prediction_scores, sure, pool)
    pictures = None if rows.image_shape is None else shown.thumbnails(rows.at(pool.rows), rows.image_shape)
    told = Told(
        scores or {},
        data_name,
        sample,
        called if outcomes is not None else "",
        (*_interruption(latent, notices), *notices),
    )
    return ReportData(
        title=title or f"{type(estimator).__name__} on {_num_samples(X)} {data_name}",
        kind=rows.kind,
        model=summary_of(estimator, latent, values, outcomes, told),
        history=collect_history(latent.model),
        features=features,
        examples=replace(
            shown.describe(pool.rows, outcomes, row_names, texts, pictures), **_row_inputs(rows, effects, pool.rows)
        ),
        prediction_note=prediction_note or "",
        effects=effects,
        comparison=comparison,
        reliability=reliability,
        image_shape=rows.image_shape or (),
        **judged,
    )


def _interruption(latent: LatentModel, notices: Sequence[tuple[Level, str]]) -> list[tuple[Level, str]]:
    """Say that a fit was interrupted, unless the caller has."""
    if not latent.interruptions or any("interrupted" in words for _, words in notices):
        return []
    said = " ".join(("This fit was ended before it was done.", *latent.interruptions))
    return [("warning", f"{said} Fit again for a model to rely on.")]


def _effects(
    estimator: Any,
    latent: LatentModel,
    rows: _Rows,
    outputs: Outputs,
    task: Any,
    called: str,
) -> Effects | None:
    answer = "score" if is_classifier(estimator) else called
    # Effects are what a step down and a step up make, and counts of words may not go below zero.
    is_counted = get_tags(latent.model).input_tags.positive_only
    columns = None if rows.kind == "text" or is_counted else rows.columns
    return effects_of(estimator, latent, columns, outputs, rows.input_names, task, rows.image_shape, answer)


def _row_inputs(rows: _Rows, effects: Effects | None, wanted: Integers) -> dict[str, Any]:
    """Return the inputs of rows that matter most: all of few, or those with the largest effects."""
    if rows.columns is None or rows.kind != "table":
        return {}
    names = rows.columns.names
    place = {name: i for i, name in enumerate(names)}
    order = [place[name] for name in (effects.names if effects is not None else names)][:N_ROW_INPUTS]
    return {"input_names": tuple(names[i] for i in order), "inputs": rows.columns.cells(wanted, order)}


def _check_lengths(n_rows: int, **named: Sequence[Any] | None) -> None:
    for name, values in named.items():
        if values is not None and len(values) != n_rows:
            raise ValueError(f"{name} must have one entry per row: it has {len(values)}, and X has {n_rows} rows")


def _rows(
    latent: LatentModel,
    X: Any,
    kind: str,
    image_shape: Sequence[int] | None,
    texts: Sequence[str] | None,
    feature_names: Sequence[str] | None,
) -> _Rows:
    if kind not in ("auto", "table", "image", "text"):
        raise ValueError(f'kind must be "auto", "table", "image" or "text", got {kind!r}')
    if kind == "image" and image_shape is None:
        raise ValueError('kind="image" needs image_shape, (height, width) of the image that a row is')
    n_inputs = np.asarray(latent.model.components_).shape[1]
    shape = None if image_shape is None or kind in ("table", "text") else shown.check_image_shape(image_shape, n_inputs)
    auto: Kind = "image" if shape is not None else "text" if texts is not None else "table"
    chosen: Kind = auto if kind == "auto" else kind  # type: ignore[assignment] # checked above
    columns = Columns.read(X, feature_names, "x" if latent.steps else "input ")
    if feature_names is not None and len(feature_names) not in (n_inputs, 0 if columns is None else len(columns.names)):
        raise ValueError(f"feature_names has {len(feature_names)} names, but the model has {n_inputs} inputs")
    return _Rows(latent.X, columns, _describe_encoding(latent, X, columns, feature_names, n_inputs), chosen, shape)


def _describe_encoding(
    latent: LatentModel, X: Any, columns: Columns | None, given: Sequence[str] | None, n_inputs: int
) -> Encoding:
    """Say where the model's inputs come from, and what they are called."""
    if columns is not None and latent.steps:
        found = Encoding.of(columns, latent.prepare, latent.input_names)
        own = given is not None and len(given) == n_inputs != len(columns.names)
        return replace(found, names=[str(name) for name in given]) if own and given is not None else found
    same = columns is not None and len(columns.names) == n_inputs
    sources = np.arange(n_inputs) if same else np.full(n_inputs, -1)
    units = np.full(n_inputs, 1.0 if same else np.nan)
    if columns is not None and same and (given is not None or hasattr(X, "columns")):
        return Encoding(columns.names, sources, units)
    for names in (given, latent.input_names, getattr(latent.model, "feature_names_in_", None)):
        if names is not None and len(names) == n_inputs:
            return Encoding(shorten_names([str(name) for name in names]), sources, units)
    return Encoding([f"input {place}" for place in range(n_inputs)], sources, units)


def _features(
    latent: LatentModel,
    rows: _Rows,
    values: Floats,
    outcomes: Outcomes | None,
    outputs: Outputs,
    pool: ExamplePool,
) -> Features:
    contribution = contributions(values, outputs.weights if len(outputs.weights) else None)
    amounts = has_amounts(latent.model)
    unit = bool(values.size and values.min() >= 0 and values.max() <= 1 and not amounts)
    topics = rows.kind == "text" and _are_shares(values)
    use = values.mean(axis=0) if unit else contribution
    in_use = used(latent, values)
    kept = shown_features(in_use, use, contribution, MAX_FEATURES)
    chosen = values[:, kept]
    components = np.asarray(latent.model.components_, dtype=np.float64)[kept]
    groups = latent_features.groups_of(outcomes)
    counts, means, deviations = latent_features.group_statistics(chosen, groups)
    histogram, limits = latent_features.histograms(chosen, unit=unit, shares=topics)
    distinctive: tuple[tuple[str, ...], ...] = ()
    if topics and len(kept):
        components = latent_features.distributions(components)
        words = latent_features.find_distinctive_inputs(components)
        distinctive = tuple(tuple(rows.input_names[place] for place in mine) for mine in words)
    places, loadings = latent_features.top_loadings(components)
    pictures, limit = (None, 0.0) if rows.image_shape is None else shown.loading_pictures(components, rows.image_shape)
    separation, separates = np.full(len(kept), np.nan), [""] * len(kept)
    if outcomes is not None and len(kept):
        separation, separates = latent_features.separation(chosen, outcomes)
    top = np.argsort(-chosen, axis=0, kind="stable")[:N_EXAMPLES].T
    additive = not topics and not hasattr(latent.model, "tasks_")
    example_names, example_inputs = _example_inputs(rows, top, places)
    return Features(
        all_use=use,
        all_in_use=in_use,
        use_name="average over the documents" if topics else _use_name(unit, bool(len(outputs.weights))),
        count_note=_count_note(latent.model, int(in_use.sum()), len(in_use), "topic" if topics else "feature"),
        separation_name="" if outcomes is None else _separation_name(outcomes),
        value_note=_value_note(values, unit, topics, amounts, hasattr(latent.model, "coef_inputs_")),
        probabilities=unit,
        number=kept,
        use=use[kept],
        separation=separation,
        separates=tuple(separates),
        mean=_without_dust(chosen.mean(axis=0), chosen),
        deviation=chosen.std(axis=0),
        histogram=histogram,
        limits=limits,
        group_title=groups.title,
        group_names=tuple(groups.names),
        group_counts=counts,
        group_means=means,
        group_deviations=deviations,
        output_title=outputs.title,
        output_names=tuple(outputs.names),
        weights=outputs.weights[:, kept].T,
        loading_title="share of the topic's words" if topics else _loading_title(latent.model, components),
        loading_names=tuple(tuple(rows.input_names[place] for place in mine) for mine in places),
        loading_values=loadings,
        pictures=pictures,
        picture_limit=limit,
        examples=np.array([pool.places(mine) for mine in top], dtype=np.int64).reshape(len(kept), -1),
        example_values=np.take_along_axis(chosen, top.T, axis=0).T,
        example_inputs=example_inputs,
        noun="topic" if topics else "feature",
        distinctive=distinctive,
        example_input_names=example_names,
        loading_units=_loading_units(rows, places, loadings) if additive else None,
        influence=contribution[kept],
        idle=~moves_answers(contribution)[kept] if len(outputs.weights) else np.zeros(len(kept), dtype=bool),
        twins=latent_features.twins(chosen, kept),
    )


def _without_dust(means: Floats, values: Floats) -> Floats:
    """Return means in which what is left of a sum that should be zero is zero."""
    return np.where(np.abs(means) > 1e-12 * np.abs(values).max(axis=0, initial=0.0), means, 0.0)


def _loading_units(rows: _Rows, places: Integers, loadings: Floats) -> Floats | None:
    """Return loadings in the units of the columns that the inputs come from; None where they are the same."""
    units = rows.encoding.units
    if np.all(np.isnan(units) | (units == 1.0)):
        return None
    return np.asarray(loadings * units[places])


def _example_inputs(
    rows: _Rows, top: Integers, places: Integers
) -> tuple[tuple[tuple[str, ...], ...], tuple[tuple[tuple[Cell, ...], ...], ...]]:
    """Values of the inputs with the largest loadings, for the top-ranked rows: names, and (features, examples, inputs).

    They are those of the columns that the inputs come from; where columns were mixed, of the model's inputs.
    """
    if rows.kind == "image":
        return ((),) * len(top), (((),) * top.shape[1],) * len(top)
    names, cells = [], []
    for mine, inputs in zip(top, places, strict=True):
        sources = list(dict.fromkeys(place for place in rows.encoding.sources[inputs].tolist() if place >= 0))
        if rows.columns is not None and sources:
            some = sources[:N_EXAMPLE_INPUTS]
            names.append(tuple(rows.columns.names[place] for place in some))
            cells.append(rows.columns.cells(mine, some))
        else:
            seen = shown.dense_rows(rows.seen, mine)[:, inputs[:N_EXAMPLE_INPUTS]]
            names.append(tuple(rows.input_names[place] for place in inputs[:N_EXAMPLE_INPUTS]))
            cells.append(tuple(tuple(float(value) for value in row) for row in seen))
    return tuple(names), tuple(cells)


def _are_shares(values: Floats) -> bool:
    return bool(
        values.shape[1] > 1 and values.min(initial=0.0) >= 0 and np.allclose(values.sum(axis=1), 1.0, atol=1e-3)
    )


def _value_note(values: Floats, unit: bool, topics: bool, amounts: bool, direct: bool) -> str:
    beside = " and of the inputs themselves" if direct else ""
    if amounts:
        return (
            "A row has a feature by an amount: near 0, it does not have it; answers are weighted sums of amounts"
            f"{beside}."
        )
    if topics:
        return "A document is a mixture of topics; its value of a topic is the share of its words that are about it."
    if unit and _are_shares(values):
        return "A feature of a row is the share of the row that it accounts for."
    if unit:
        note = "A feature of a row is a number between 0, the row does not have it, and 1, it does."
        return f"{note} Answers are weighted sums of features{beside}." if direct else note
    return f"A feature of a row is a number, and answers are weighted sums of features{beside}."


def _use_name(unit: bool, weighted: bool) -> str:
    if unit:
        return "average over the rows"
    return "spread of its values times the size of its weights" if weighted else "spread of its values"


def _count_note(model: Any, n_used: int, n_components: int, noun: str) -> str:
    if not has_sticks(model):
        return f"The model has {n_components} {noun}s, a number that was fixed beforehand."
    if hasattr(model, "tasks_") and getattr(model, "temperature_", 0.0) > 0:
        return (
            f"{n_used} of {n_components} features take some inputs more than others. At a temperature above 0 features "
            "are soft and all of them are used, so n_components is a budget; at temperature=0 their number follows the "
            "data."
        )
    if n_used == n_components > 1:
        return (
            f"All {n_used} features that the model may have are in use: the data may ask for more. Raise n_components "
            "to let them decide; ignore this if you want just so many."
        )
    return f"{n_used} of the {n_components} features that the model may have are in use: the truncation does not bind."


def _separation_name(outcomes: Outcomes) -> str:
    what = "classes" if outcomes.pooled_classes else "labels" if outcomes.kind == "classes" else "targets"
    return f"share of its variance that the {what} explain"


def _loading_title(model: Any, components: Floats) -> str:
    if hasattr(model, "tasks_"):
        return "probability that the input belongs to the feature"
    if np.any(components < 0):
        return "what the feature adds to the inputs"
    return "weight of the input in the feature"


def _judge(
    latent: LatentModel,
    values: Floats,
    outcomes: Outcomes | None,
    outputs: Outputs,
    scores: Any,
    sure: str,
    pool: ExamplePool,
) -> dict[str, Any]:
    """Return the parts of the page that say how right the model is.

    `scores` are what `decision_function` said of the rows; `sure` whether that of the fits that predicted ("own").
    """
    if outcomes is None:
        return dict.fromkeys(("confusion", "tasks", "regression", "worst"))
    task_scores = values @ outputs.weights.T if len(outputs.weights) else None
    tasks = answers.tasks_of(outcomes, _scores_by_task(latent, outcomes, task_scores))
    if outcomes.kind == "numbers":
        worst, confusion = answers.worst_numbers(outcomes, pool), None
    else:
        margins = None
        if outcomes.predicted is not None and scores is not None:
            margins = answers.class_margins(scores, outcomes)
        worst = answers.worst_labels(outcomes, margins, pool, own=sure == "own")
        confusion = answers.confusion_of(outcomes, pool, margins)
    return {
        "confusion": confusion,
        "tasks": tasks,
        "regression": answers.regression_of(outcomes),
        "worst": worst,
    }


def _scores_by_task(latent: LatentModel, outcomes: Outcomes, scores: Floats | None) -> Floats | None:
    """Return the columns of scores that belong to the tasks of the outcomes; None where a task has several."""
    fitted = getattr(latent.model, "tasks_", None)
    if scores is None or fitted is None or scores.shape[1] != len(fitted):
        return None
    if outcomes.layout != "ragged":
        return scores if len(fitted) == len(outcomes.task_names) else None
    place = {label_text(name): i for i, name in enumerate(fitted)}
    if not all(name in place for name in outcomes.task_names):
        return None
    return scores[:, [place[name] for name in outcomes.task_names]]
