"""Averages, histograms, weights and loadings of the features that the page shows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regbayes._types import Floats, Integers
from regbayes.estimators.stability import FeatureStability
from regbayes.report._models import LatentModel, weights_of
from regbayes.report._targets import Outcomes, label_text

N_BINS = 24
N_LOADINGS = 15
N_DISTINCTIVE = 10
N_QUANTILES = 5
IDENTICAL = 0.01  # of its range, by which a feature may differ from another that counts as the same


@dataclass(frozen=True)
class Groups:
    """Rows by class, by label, or by the size of the target."""

    title: str
    names: list[str]
    members: list[Integers]  # rows of each group


@dataclass(frozen=True)
class Outputs:
    """What has weights for the features."""

    title: str
    names: list[str]
    weights: Floats  # (outputs, K)


def groups_of(outcomes: Outcomes | None) -> Groups:
    """Return the groups of rows whose averages are shown."""
    if outcomes is None:
        return Groups("", [], [])
    if outcomes.kind == "numbers":
        return _quantile_groups(outcomes)
    if outcomes.pooled_classes:
        names = outcomes.class_names[0]
        members = [outcomes.rows[outcomes.values == code] for code in range(len(names))]
        return Groups("class", names, members)
    groups: list[tuple[str, Integers]] = []
    for place, task in enumerate(outcomes.task_names):
        mine = outcomes.tasks == place
        labels = outcomes.class_names[place]
        if len(labels) <= 2:  # "is it a beach?": the rows that are
            groups.append((task, outcomes.rows[mine & (outcomes.values == len(labels) - 1)]))
        else:
            groups += [
                (f"{task}: {name}", outcomes.rows[mine & (outcomes.values == c)]) for c, name in enumerate(labels)
            ]
    return Groups("label", [name for name, _ in groups], [rows for _, rows in groups])


def _quantile_groups(outcomes: Outcomes) -> Groups:
    """Fifths of the rows by target; none where columns of a matrix have targets of their own."""
    if outcomes.layout == "matrix" and len(outcomes.task_names) > 1:
        return Groups("", [], [])
    order = np.argsort(outcomes.values, kind="stable")
    parts = [part for part in np.array_split(order, N_QUANTILES) if len(part)]
    names = [f"{outcomes.values[part[0]]:.3g} to {outcomes.values[part[-1]]:.3g}".replace("-", "−") for part in parts]
    return Groups("target", names, [outcomes.rows[part] for part in parts])


def group_statistics(values: Floats, groups: Groups) -> tuple[Integers, Floats, Floats]:
    """Return the number of rows of each group, and the features' means and deviations in it, (features, groups)."""
    shape = (values.shape[1], len(groups.names))
    means, deviations = np.full(shape, np.nan), np.full(shape, np.nan)
    for place, rows in enumerate(groups.members):
        if len(rows):
            means[:, place] = values[rows].mean(axis=0)
            deviations[:, place] = values[rows].std(axis=0)
    return np.array([len(rows) for rows in groups.members], dtype=np.int64), means, deviations


def separation(values: Floats, outcomes: Outcomes) -> tuple[Floats, list[str]]:
    """Return the share of each feature's variance that the targets explain, and the task for which it is largest.

    For labels it is the correlation ratio, for numbers the squared correlation. Ragged tasks ask one question and count
    as one task.
    """
    several = outcomes.layout == "matrix" and len(outcomes.task_names) > 1
    shares = []
    for place in range(len(outcomes.task_names) if several else 1):
        mine = outcomes.tasks == place if several else np.ones(len(outcomes.rows), dtype=bool)
        x, t = values[outcomes.rows[mine]], outcomes.values[mine]
        shares.append(_explain_share(x, t, outcomes.kind))
    table = np.array(shares).reshape(-1, values.shape[1])
    best = table.argmax(axis=0)
    names = [outcomes.task_names[place] if several else "" for place in best]
    return table.max(axis=0), names


def _explain_share(x: Floats, target: NDArray[Any], kind: str) -> Floats:
    total = np.sum((x - x.mean(axis=0)) ** 2, axis=0) if len(x) else np.zeros(x.shape[1])
    if len(x) < 2:
        return np.zeros(x.shape[1])
    if kind == "classes":
        means = [(np.sum(target == c), x[target == c].mean(axis=0)) for c in np.unique(target)]
        explained = np.sum([n * (mean - x.mean(axis=0)) ** 2 for n, mean in means], axis=0)
    else:
        centred = target - target.mean()
        spread = np.sum(centred**2)
        explained = (centred @ (x - x.mean(axis=0))) ** 2 / spread if spread > 0 else np.zeros(x.shape[1])
    return np.asarray(np.divide(explained, total, out=np.zeros_like(total), where=total > 0))


def histograms(values: Floats, *, unit: bool, shares: bool = False) -> tuple[Integers, Floats]:
    """Return counts of rows by value, (features, bins), and the ends, (features, 2); shares begin at 0."""
    counts, limits = [], []
    for column in values.T:
        low, high = (0.0, 1.0) if unit and not shares else (float(column.min()), float(column.max()))
        if shares:
            low = 0.0
        if low == high:
            low, high = low - 0.5, high + 0.5
        counts.append(np.histogram(column, bins=N_BINS, range=(low, high))[0])
        limits.append((low, high))
    return np.array(counts, dtype=np.int64).reshape(-1, N_BINS), np.array(limits).reshape(-1, 2)


def outputs_of(latent: LatentModel, outcomes: Outcomes | None, target_name: str = "target") -> Outputs:
    """Return the weights of classes or tasks for the features, and what they are called."""
    weights = weights_of(latent)
    if weights is None:
        return Outputs("", [], np.zeros((0, len(latent.model.components_))))
    tasks = [label_text(task) for task in getattr(latent.model, "tasks_", ())]
    if len(tasks) > 1:
        title, names = "task", _task_outputs(tasks, outcomes, len(weights))
    elif outcomes is not None and outcomes.pooled_classes:
        labels = outcomes.class_names[0]
        known = getattr(latent.model, "classes_", outcomes.classes[0])
        if len(known) < len(labels):  # rows have classes that were not there when the model was fitted
            labels = [label_text(label) for label in known]
        title, names = "class", labels[-1:] if len(weights) == 1 else labels
    elif outcomes is not None and outcomes.layout == "matrix":
        names = outcomes.task_names if len(outcomes.task_names) > 1 else [target_name]
        title = "label" if outcomes.kind == "classes" else "target"
    elif hasattr(latent.model, "classes_") and not tasks:
        labels = [label_text(label) for label in latent.model.classes_]
        title, names = "class", labels[-1:] if len(weights) == 1 else labels
    else:
        title, names = "target", [target_name]
    if len(names) != len(weights):
        names = [str(place) for place in range(len(weights))]
    return Outputs(title, names, weights)


def _task_outputs(tasks: list[str], outcomes: Outcomes | None, n_outputs: int) -> list[str]:
    """Name the rows of `coef_features_`: a task, or a class of a task with more than two."""
    matrix = outcomes is not None and outcomes.layout == "matrix" and len(outcomes.task_names) == len(tasks)
    if outcomes is None or len(tasks) == n_outputs:
        return outcomes.task_names if outcomes is not None and matrix else tasks
    names = outcomes.task_names if matrix else tasks
    classes = outcomes.class_names if matrix else [outcomes.class_names[0]] * len(tasks)
    return [
        name if len(labels) == 2 else f"{name}: {label}"
        for name, labels in zip(names, classes, strict=True)
        for label in (labels[-1:] if len(labels) == 2 else labels)
    ]


def twins(values: Floats, number: Integers) -> Integers:
    """Return for each feature the number of the first one before it that has the same values, or -1."""
    found = np.full(len(number), -1, dtype=np.int64)
    spread = np.ptp(values, axis=0) if len(values) else np.zeros(len(number))
    for i in range(len(number)):
        close = np.abs(values[:, :i] - values[:, [i]]).max(axis=0, initial=0.0) <= IDENTICAL * spread[i]
        if spread[i] > 0 and close.any():
            found[i] = number[np.flatnonzero(close)[0]]
    return found


def distributions(components: Floats) -> Floats:
    """Return topics as distributions over words."""
    return np.asarray(components / components.sum(axis=1, keepdims=True))


def find_distinctive_inputs(topics: Floats) -> Integers:
    """Return the words that tell each topic from the others, (topics, at most N_DISTINCTIVE).

    They are ranked by the term score of Blei and Lafferty (2009): a word's probability in the topic times the logarithm
    of its ratio to the geometric mean over all topics. Words that are frequent everywhere have none.
    """
    logarithms = np.log(np.maximum(topics, np.finfo(np.float64).tiny))
    scores = topics * (logarithms - logarithms.mean(axis=0))
    return np.argsort(-scores, axis=1, kind="stable")[:, : min(N_DISTINCTIVE, topics.shape[1])].astype(np.int64)


def top_loadings(components: Floats) -> tuple[Integers, Floats]:
    """Return the inputs with the largest loadings of each feature, and the loadings, (features, at most N_LOADINGS)."""
    n = min(N_LOADINGS, components.shape[1])
    places = np.argsort(-np.abs(components), axis=1, kind="stable")[:, :n]
    return places.astype(np.int64), np.take_along_axis(components, places, axis=1)


def returns_of(stability: FeatureStability, numbers: Integers, n_features: int) -> dict[str, Any]:
    """Return what the page says of how often features come back, for those with some numbers; NaN where unknown."""
    if len(stability.numbers) and stability.numbers.max() >= n_features:
        raise ValueError(
            f"stability is of another model: it has a feature {stability.numbers.max()}, and this one has {n_features}"
        )
    returned, likeness = np.full((2, n_features), np.nan)
    returned[stability.numbers], likeness[stability.numbers] = stability.returned, stability.median_likeness
    n_fits, n_resamples = len(stability.likeness), stability.n_resamples
    kinds = [name for name, n in (("to other rows", n_resamples), ("from other starts", n_fits - n_resamples)) if n]
    fits = f"{n_fits} fits {' or '.join(kinds)}"
    note = f"of {fits} have it: a feature whose values correlate by {stability.threshold:g} or more"
    return {"returned": returned[numbers], "likeness": likeness[numbers], "returned_note": note}
