"""Names, averages, histograms, weights and loadings of latent features for the report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regbayes._types import Floats, Integers
from regbayes.estimators.stability import FeatureStability
from regbayes.report._columns import Columns, Encoding, dense_rows
from regbayes.report._examples import ExamplePool, loading_pictures
from regbayes.report._latent import LatentModel, weights_of
from regbayes.report._outcomes import Outcomes, label_text
from regbayes.report.data import LIMITS, Features, Kind


@dataclass(frozen=True)
class Groups:
    """Groups of samples by class, label or target quantile."""

    title: str
    names: list[str]
    members: list[Integers]  # sample indices of each group


@dataclass(frozen=True)
class Outputs:
    """Outputs of the model and their weights for the features."""

    title: str
    names: list[str]
    weights: Floats  # (outputs, K)
    largest: str  # most frequent class; empty without classes


@dataclass(frozen=True)
class Shown:
    """Samples and the options for showing them."""

    X: Any  # inputs of the latent-feature model
    columns: Columns | None  # the user's columns; None if the input is not a table
    encoding: Encoding  # mapping from columns to inputs
    kind: Kind
    image_shape: tuple[int, ...] | None


def groups_of(outcomes: Outcomes | None) -> Groups:
    """Return groups of samples for the averages."""
    if outcomes is None:
        return Groups("", [], [])
    if outcomes.kind == "numbers":  # quintiles, if all targets have the same units
        order = np.argsort(outcomes.values, kind="stable")
        parts = [] if outcomes.several else [part for part in np.array_split(order, LIMITS.target_groups) if len(part)]
        ends = [(outcomes.values[part[0]], outcomes.values[part[-1]]) for part in parts]
        names = [f"{low:.3g} to {high:.3g}".replace("-", "−") for low, high in ends]
        return Groups("target" if parts else "", names, [outcomes.rows[part] for part in parts])
    if outcomes.pooled_classes:
        names = outcomes.class_names[0]
        return Groups("class", names, [outcomes.rows[outcomes.values == code] for code in range(len(names))])
    groups = {
        name: outcomes.rows[(outcomes.tasks == task) & (outcomes.values == code)]
        for name, task, code in outcomes.labels()
    }
    return Groups("label", list(groups), list(groups.values()))


def outputs_of(latent: LatentModel, outcomes: Outcomes | None, target_name: str = "target") -> Outputs:
    """Return the weights of classes or tasks for the features and their names."""
    model, weights = latent.model, weights_of(latent)
    groups = groups_of(outcomes)
    sizes = [len(rows) for rows in groups.members]
    largest = groups.names[int(np.argmax(sizes))] if sizes and groups.title in ("class", "label") else ""
    if weights is None:
        return Outputs("", [], np.zeros((0, len(model.components_))), largest)
    tasks = [label_text(task) for task in getattr(model, "tasks_", ())]
    pooled = outcomes is not None and outcomes.pooled_classes
    if len(tasks) > 1:
        title, names = "task", _task_outputs(tasks, outcomes, len(weights))
    elif outcomes is not None and outcomes.layout == "matrix":
        names = outcomes.task_names if len(outcomes.task_names) > 1 else [target_name]
        title = "label" if outcomes.kind == "classes" else "target"
    elif pooled or (hasattr(model, "classes_") and not tasks):
        labels = outcomes.class_names[0] if outcomes is not None and pooled else []
        known = getattr(model, "classes_", labels)
        if len(known) != len(labels):  # includes samples with classes unseen in training
            labels = [label_text(label) for label in known]
        title, names = "class", labels[-1:] if len(weights) == 1 else labels
    else:
        title, names = "target", [target_name]
    if len(names) != len(weights):
        names = [str(place) for place in range(len(weights))]
    return Outputs(title, list(names), weights, largest)


def _task_outputs(tasks: list[str], outcomes: Outcomes | None, n_outputs: int) -> list[str]:
    """Return names for the rows of ``coef_features_``: tasks, or classes of multiclass tasks."""
    matrix = outcomes is not None and outcomes.layout == "matrix" and len(outcomes.task_names) == len(tasks)
    names = outcomes.task_names if outcomes is not None and matrix else tasks
    if outcomes is None or len(tasks) == n_outputs:
        return names
    if matrix:
        return [name for name, _, _ in outcomes.labels()]
    return [f"{name}: {label}" for name in names for label in outcomes.class_names[0]]


def collect_features(
    latent: LatentModel,
    values: Floats,
    shown: Shown,
    outcomes: Outcomes | None,
    outputs: Outputs,
    pool: ExamplePool,
    stability: FeatureStability | None,
) -> Features:
    """Describe the features in use by decreasing use; ``values`` has all features, (n, K)."""
    encoding = shown.encoding
    model, K = latent.model, values.shape[1]
    unit = bool(values.size and values.min() >= 0 and values.max() <= 1 and not latent.has_amounts)
    shares = K > 1 and values.min(initial=0.0) >= 0 and np.allclose(values.sum(axis=1), 1.0, atol=1e-3)
    topics, weighted = bool(shown.kind == "text" and shares), len(outputs.weights) > 0
    noun = "topic" if topics else "feature"
    influence = values.std(axis=0) * (np.sqrt(np.mean(outputs.weights**2, axis=0)) if weighted else 1.0)
    use = values.mean(axis=0) if unit else influence
    in_use = np.any(np.asarray(model.components_) != 0, axis=1)  # models of other packages may have all-zero components
    number = np.flatnonzero(in_use)[np.argsort(-use[in_use], kind="stable")][: LIMITS.features]
    n_components = getattr(model, "n_components", K) if latent.has_sticks else K
    chosen, components = values[:, number], np.asarray(model.components_, dtype=np.float64)[number]
    distinctive: tuple[tuple[str, ...], ...] = ()
    if topics:
        components = components / components.sum(axis=1, keepdims=True)
        distinctive = _name_inputs(find_distinctive_inputs(components), encoding)
    places = np.argsort(-np.abs(components), axis=1, kind="stable")[:, : LIMITS.loadings].astype(np.int64)
    loadings = np.take_along_axis(components, places, axis=1)
    has_units = not topics and not hasattr(model, "tasks_") and np.any(encoding.units[~np.isnan(encoding.units)] != 1)
    pictures = (None, 0.0) if shown.image_shape is None else loading_pictures(components, shown.image_shape)
    separation, separates = np.full(len(number), np.nan), [""] * len(number)
    if outcomes is not None and len(number):
        separation, separates = _separation(chosen, outcomes)
    groups = groups_of(outcomes)
    means, deviations = np.full((2, len(number), len(groups.names)), np.nan)
    for place, rows in enumerate(groups.members):
        if len(rows):
            means[:, place], deviations[:, place] = chosen[rows].mean(axis=0), chosen[rows].std(axis=0)
    histogram, limits = _histograms(chosen, unit=unit, shares=topics)
    top = np.argsort(-chosen, axis=0, kind="stable")[: LIMITS.examples].T
    example_names, example_inputs = _example_inputs(shown, top, places)
    middle = chosen.mean(axis=0)
    rounding = np.abs(middle) <= 1e-12 * np.abs(chosen).max(axis=0, initial=0.0)
    return Features(
        noun=noun,
        n_in_use=int(in_use.sum()),
        n_components=n_components,
        use_name=_use_name(topics, unit, weighted),
        count_note=_count_note(latent, int(in_use.sum()), n_components, noun),
        separation_name=_separation_name(outcomes),
        value_note=_value_note(latent, topics, bool(shares), unit),
        probabilities=unit,
        number=number,
        names=_name_features(places, loadings, distinctive, encoding, shown.image_shape is not None),
        use=use[number],
        influence=influence[number],
        separation=separation,
        separates=tuple(separates),
        mean=np.where(rounding, 0.0, middle),
        histogram=histogram,
        limits=limits,
        group_title=groups.title,
        group_names=tuple(groups.names),
        group_counts=np.array([len(rows) for rows in groups.members], dtype=np.int64),
        group_means=means,
        group_deviations=deviations,
        output_title=outputs.title,
        output_names=tuple(outputs.names),
        weights=outputs.weights[:, number].T,
        loading_title=_loading_title(model, topics, components),
        loading_names=_name_inputs(places, encoding),
        loading_values=loadings,
        loading_units=loadings * encoding.units[places] if has_units else None,
        distinctive=distinctive,
        pictures=pictures[0],
        picture_limit=pictures[1],
        examples=np.array([pool.places(mine) for mine in top], dtype=np.int64).reshape(top.shape),
        example_values=np.take_along_axis(chosen, top.T, axis=0).T,
        example_input_names=example_names,
        example_inputs=example_inputs,
        **({} if stability is None else _returns_of(stability, number, K)),
    )


def _name_inputs(places: Integers, encoding: Encoding) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(encoding.names[place] for place in mine) for mine in places)


def _name_features(
    places: Integers, loadings: Floats, distinctive: tuple[tuple[str, ...], ...], encoding: Encoding, pictured: bool
) -> tuple[str, ...]:
    """Name features by their two largest loadings with signs; features of images have no names."""
    if pictured:
        return ("",) * len(places)
    if distinctive:
        return tuple(", ".join(words[:2]) for words in distinctive)
    return tuple(
        ", ".join(("−" if loading < 0 else "") + encoding.names[j] for j, loading in zip(some, sizes, strict=True))
        for some, sizes in zip(places[:, :2], loadings[:, :2], strict=True)
    )


def find_distinctive_inputs(topics: Floats) -> Integers:
    """Return the most distinctive words of each topic, (topics, words).

    Words are ranked by the term score of Blei and Lafferty (2009). It is the probability of a word in the topic times
    the logarithm of its ratio to the geometric mean over topics.
    """
    logarithms = np.log(np.maximum(topics, np.finfo(np.float64).tiny))
    scores = topics * (logarithms - logarithms.mean(axis=0))
    return np.argsort(-scores, axis=1, kind="stable")[:, : LIMITS.distinctive_words].astype(np.int64)


def _separation(values: Floats, outcomes: Outcomes) -> tuple[Floats, list[str]]:
    """Return the fraction of each feature's variance explained by the targets, and the task with the largest one.

    It is the correlation ratio for labels and the squared correlation for numbers. Tasks given by ``task=`` are pooled.
    """
    shares = []
    for place in range(len(outcomes.task_names) if outcomes.several else 1):
        mine = outcomes.tasks == place if outcomes.several else np.ones(len(outcomes.rows), dtype=bool)
        shares.append(_explain_share(values[outcomes.rows[mine]], outcomes.values[mine], outcomes.kind))
    best = np.argmax(shares, axis=0)
    return np.max(shares, axis=0), [outcomes.task_names[place] if outcomes.several else "" for place in best]


def _explain_share(x: Floats, target: NDArray[Any], kind: str) -> Floats:
    if len(x) < 2:
        return np.zeros(x.shape[1])
    basis = target[:, None] == np.unique(target) if kind == "classes" else (target - target.mean())[:, None]
    centred, lengths = x - x.mean(axis=0), np.sum(basis.astype(float) ** 2, axis=0)
    total = np.sum(centred**2, axis=0)
    explained = np.sum((basis.T @ centred) ** 2 / np.where(lengths > 0, lengths, 1.0)[:, None], axis=0)
    return np.asarray(np.divide(explained, total, out=np.zeros_like(total), where=total > 0))


def _histograms(values: Floats, *, unit: bool, shares: bool) -> tuple[Integers, Floats]:
    """Return histogram counts (features, bins) and limits (features, 2)."""
    counts, limits = [], []
    for column in values.T:
        low, high = (0.0, 1.0) if unit and not shares else (0.0 if shares else float(column.min()), float(column.max()))
        found, edges = np.histogram(column, bins=LIMITS.bins, range=(low, high))
        counts.append(found)
        limits.append((edges[0], edges[-1]))
    return np.array(counts, dtype=np.int64).reshape(-1, LIMITS.bins), np.array(limits).reshape(-1, 2)


def _example_inputs(shown: Shown, top: Integers, places: Integers) -> tuple[Any, Any]:
    """Return the inputs with the largest loadings and their values for the top-ranked samples.

    Inputs that come from one column are shown as that column, others as inputs of the model.
    """
    columns, encoding = shown.columns, shown.encoding
    if shown.kind == "image":
        return ((),) * len(top), (((),) * top.shape[1],) * len(top)
    names, cells = [], []
    for mine, inputs in zip(top, places, strict=True):
        sources = [place for place in dict.fromkeys(encoding.sources[inputs].tolist()) if place >= 0]
        if columns is not None and sources:
            some = sources[: LIMITS.example_inputs]
            names.append(tuple(columns.names[place] for place in some))
            cells.append(columns.cells(mine, some))
        else:
            some = inputs[: LIMITS.example_inputs]
            names.append(tuple(encoding.names[place] for place in some))
            cells.append(tuple(map(tuple, dense_rows(shown.X, mine)[:, some].astype(np.float64).tolist())))
    return tuple(names), tuple(cells)


def _returns_of(stability: FeatureStability, numbers: Integers, n_features: int) -> dict[str, Any]:
    """Return the recurrence of the given features; NaN if unknown."""
    if len(stability.numbers) and stability.numbers.max() >= n_features:
        raise ValueError(
            f"stability is of another model: it has a feature {stability.numbers.max()}, and this one has {n_features}"
        )
    returned, similarity = np.full((2, n_features), np.nan)
    returned[stability.numbers], similarity[stability.numbers] = stability.returned, stability.median_similarity
    fits = f"{len(stability.similarity)} fits to other rows"
    note = f"of {fits} have it: a feature whose values correlate by {stability.threshold:g} or more"
    return {"returned": returned[numbers], "similarity": similarity[numbers], "returned_note": note}


# --- Descriptions of the numbers


def _use_name(topics: bool, unit: bool, weighted: bool) -> str:
    if unit:
        return "average over the documents" if topics else "average over the rows"
    return "spread of its values times the size of its weights" if weighted else "spread of its values"


def _count_note(latent: LatentModel, n_used: int, n_components: int, noun: str) -> str:
    if not latent.has_sticks:
        return f"The model has {n_components} {noun}s, a number that was fixed beforehand."
    if hasattr(latent.model, "tasks_"):
        return f"{n_used} of {n_components} features have weight in some task. Features are sums of inputs."
    if n_used == n_components > 1:
        return (
            f"All {n_used} features that the model may have are in use: the data may support more. Raise n_components "
            "to find out; ignore this if you want just so many."
        )
    return f"{n_used} of the {n_components} features that the model may have are in use: the truncation does not bind."


def _separation_name(outcomes: Outcomes | None) -> str:
    if outcomes is None:
        return ""
    what = "classes" if outcomes.pooled_classes else "labels" if outcomes.kind == "classes" else "targets"
    return f"share of its variance that the {what} explain"


def _value_note(latent: LatentModel, topics: bool, shares: bool, unit: bool) -> str:
    direct = hasattr(latent.model, "coef_inputs_")
    sums = "features and of the inputs themselves" if direct else "features"
    if latent.has_amounts:
        return f"A feature of a row is a nonnegative number, near 0 where the row lacks it. Scores are sums of {sums}."
    if topics:
        return "A document is a mixture of topics; its value of a topic is the share of its words that are about it."
    if shares:
        return "A feature of a row is the share of the row that it accounts for."
    if unit:
        note = "A feature of a row is a number between 0, the row does not have it, and 1, it does."
        return f"{note} Scores are weighted sums of {sums}." if direct else note
    return f"A feature of a row is a number, and predictions are weighted sums of {sums}."


def _loading_title(model: Any, topics: bool, components: Floats) -> str:
    if topics:
        return "share of the topic's words"
    if hasattr(model, "tasks_"):
        return "probability that the input belongs to the feature"
    return "what the feature adds to the inputs" if np.any(components < 0) else "weight of the input in the feature"
