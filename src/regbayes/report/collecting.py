"""`collect`: from a fitted estimator and rows to the numbers, names and pictures that a page about it shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import _num_samples, check_is_fitted

from regbayes._types import Floats, Integers
from regbayes.report import _answers as answers
from regbayes.report import _examples as shown
from regbayes.report import _features as latent_features
from regbayes.report._examples import ExamplePool
from regbayes.report._models import (
    LatentModel,
    contributions,
    find_latent,
    has_amounts,
    has_sticks,
    respond,
    shown_features,
    used,
)
from regbayes.report._summary import course_of, summary_of
from regbayes.report._targets import Outcomes, label_text, read_outcomes
from regbayes.report.data import Features, Kind, ReportData

N_EXAMPLES = 10
N_EXAMPLE_INPUTS = 5
MAX_FEATURES = 100


@dataclass(frozen=True)
class _Rows:
    """Rows, and how the user wants to see them."""

    given: Any  # as the user gave them
    kind: Kind
    input_names: list[str]
    image_shape: tuple[int, ...] | None

    def at(self, rows: Integers) -> NDArray[Any]:
        return shown.dense_rows(self.given, rows)


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
    prediction_note: str | None = None,
    scores: Mapping[str, float] | None = None,
    title: str | None = None,
) -> ReportData:
    """Gather what a page about a fitted model shows.

    Parameters
    ----------
    estimator : fitted estimator
        One with latent features (``transform`` and ``components_``): iLSVM, MT-iLSVM, `IBPFactorAnalysis` and their
        like, also at the end of a pipeline, inside a search or `MultiLabelThresholdCV`, or in front of a linear
        model in a pipeline.
    X : array-like or sparse matrix of shape (n_samples, n_features)
        Rows to show the model by; new ones say more about its errors than those it was fitted to.
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
    prediction_note : str, default=None
        A sentence about the predictions.
    scores : mapping of str to float, default=None
        Further scores for the top of the page, from cross-validation for instance.
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
    pool = ExamplePool()
    values = np.asarray(latent.model.transform(latent.X), dtype=np.float64)
    features = _features(latent, rows, values, outcomes, pool)
    asked = (X, task) if own_predictions else None
    judged = _judged(estimator, latent, values, outcomes, asked, pool)
    pictures = None if rows.image_shape is None else shown.thumbnails(rows.at(pool.rows), rows.image_shape)
    return ReportData(
        title=title or f"{type(estimator).__name__} on {_num_samples(X)} {data_name}",
        kind=rows.kind,
        model=summary_of(estimator, latent, values, outcomes, scores, data_name),
        course=course_of(latent.model),
        features=features,
        examples=shown.describe(pool.rows, outcomes, row_names, texts, pictures),
        prediction_note=prediction_note or "",
        **judged,
    )


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
    # Rows are shown as the user knows them, unless steps before the model made other columns of them.
    given = X if np.shape(X)[1:] == (n_inputs,) else latent.X
    shape = None if image_shape is None or kind in ("table", "text") else shown.check_image_shape(image_shape, n_inputs)
    auto: Kind = "image" if shape is not None else "text" if texts is not None else "table"
    chosen: Kind = auto if kind == "auto" else kind  # type: ignore[assignment] # checked above
    return _Rows(given, chosen, _input_names(latent, X, feature_names, n_inputs), shape)


def _input_names(latent: LatentModel, X: Any, given: Sequence[str] | None, n_inputs: int) -> list[str]:
    if given is not None:
        if len(given) != n_inputs:
            raise ValueError(f"feature_names has {len(given)} names, but the model has {n_inputs} inputs")
        return [str(name) for name in given]
    for names in (latent.input_names, getattr(X, "columns", None), getattr(latent.model, "feature_names_in_", None)):
        if names is not None and len(names) == n_inputs:
            return [str(name) for name in names]
    return [f"input {place}" for place in range(n_inputs)]


def _features(
    latent: LatentModel, rows: _Rows, values: Floats, outcomes: Outcomes | None, pool: ExamplePool
) -> Features:
    outputs = latent_features.outputs_of(latent, outcomes)
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
    telling: tuple[tuple[str, ...], ...] = ()
    if topics and len(kept):
        components = latent_features.distributions(components)
        words = latent_features.telling_inputs(components)
        telling = tuple(tuple(rows.input_names[place] for place in mine) for mine in words)
    places, loadings = latent_features.top_loadings(components)
    pictures, limit = (None, 0.0) if rows.image_shape is None else shown.loading_pictures(components, rows.image_shape)
    separation, separates = np.full(len(kept), np.nan), [""] * len(kept)
    if outcomes is not None and len(kept):
        separation, separates = latent_features.separation(chosen, outcomes)
    top = np.argsort(-chosen, axis=0, kind="stable")[:N_EXAMPLES].T
    return Features(
        all_use=use,
        all_in_use=in_use,
        use_name="average over the documents" if topics else _use_name(unit, bool(len(outputs.weights))),
        count_note=_count_note(latent.model, int(in_use.sum()), len(in_use), "topic" if topics else "feature"),
        separation_name="" if outcomes is None else _separation_name(outcomes),
        value_note=_value_note(values, unit, topics, amounts),
        probabilities=unit,
        number=kept,
        use=use[kept],
        separation=separation,
        separates=tuple(separates),
        mean=chosen.mean(axis=0),
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
        example_inputs=_example_inputs(rows, top, places[:, :N_EXAMPLE_INPUTS]),
        noun="topic" if topics else "feature",
        telling=telling,
    )


def _example_inputs(rows: _Rows, top: Integers, places: Integers) -> Floats:
    """Values of the inputs with the largest loadings, for the top-ranked rows: (features, examples, inputs)."""
    if rows.kind == "image":
        return np.zeros((len(top), top.shape[1], 0))
    found = [rows.at(mine).astype(np.float64)[:, inputs] for mine, inputs in zip(top, places, strict=True)]
    return np.array(found, dtype=np.float64).reshape(len(top), top.shape[1], places.shape[1])


def _are_shares(values: Floats) -> bool:
    return bool(
        values.shape[1] > 1 and values.min(initial=0.0) >= 0 and np.allclose(values.sum(axis=1), 1.0, atol=1e-3)
    )


def _value_note(values: Floats, unit: bool, topics: bool, amounts: bool) -> str:
    if amounts:
        return "A row has a feature by an amount: near 0, it does not have it; answers are weighted sums of amounts."
    if topics:
        return "A document is a mixture of topics; its value of a topic is the share of its words that are about it."
    if unit and _are_shares(values):
        return "A feature of a row is the share of the row that it accounts for."
    if unit:
        return "A feature of a row is a number between 0, the row does not have it, and 1, it does."
    return "A feature of a row is a number, and answers are weighted sums of features."


def _use_name(unit: bool, weighted: bool) -> str:
    if unit:
        return "average over the rows"
    return "spread of its values times the size of its weights" if weighted else "spread of its values"


def _count_note(model: Any, n_used: int, n_components: int, noun: str) -> str:
    if not has_sticks(model):
        return f"The model has {n_components} {noun}s, a number that was fixed beforehand."
    if hasattr(model, "tasks_") and getattr(model, "temperature_", 0.0) > 0:
        return (
            f"{n_used} of {n_components} features are on for some input and off for another. At a temperature above 0 "
            "features are graded and all of them are used, so n_components is a budget; at temperature=0 their number "
            "follows the data."
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


def _judged(
    estimator: Any,
    latent: LatentModel,
    values: Floats,
    outcomes: Outcomes | None,
    asked: tuple[Any, Any] | None,
    pool: ExamplePool,
) -> dict[str, Any]:
    """Return the parts of the page that say how right the model is.

    `asked` are the rows and tasks to score; None where predictions are not the estimator's own, so that its scores say
    nothing about them.
    """
    if outcomes is None:
        return dict.fromkeys(("confusion", "tasks", "regression", "worst"))
    weights = latent_features.outputs_of(latent, outcomes).weights
    task_scores = values @ weights.T if len(weights) else None
    tasks = answers.tasks_of(outcomes, _scores_by_task(latent, outcomes, task_scores))
    if outcomes.kind == "numbers":
        worst, confusion = answers.worst_numbers(outcomes, pool), None
    else:
        margins = None
        if asked is not None and outcomes.predicted is not None and hasattr(estimator, "decision_function"):
            margins = answers.class_margins(respond(estimator, "decision_function", *asked), outcomes)
        confusion = answers.confusion_of(outcomes, pool)
        worst = answers.worst_labels(outcomes, margins, pool)
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
