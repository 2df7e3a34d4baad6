"""From whatever a user fitted (a search, a pipeline, thresholds) to the model inside that has the latent features."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.pipeline import Pipeline

from regbayes._types import Flags, Floats, Integers
from regbayes.estimators._arrays import at_home
from regbayes.estimators._bases import in_use

NEGLIGIBLE = 0.01  # of the largest weight, or contribution to the scores


@dataclass(frozen=True)
class LatentModel:
    """A fitted model with features, and what it was given.

    `head` has weights for the features: the model itself, or the linear model that follows it in a pipeline.
    """

    model: Any
    head: Any
    X: Any  # rows as the model sees them
    input_names: list[str] | None  # where the steps before it name them
    steps: tuple[Pipeline, ...]  # what comes before it
    answering: Any  # what answers for rows as the model sees them
    interruptions: tuple[str, ...]  # what was kept, of a search or a fit that Ctrl-C ended

    def prepare(self, X: Any) -> Any:
        """Return rows as the model sees them."""
        for step in self.steps:
            X = step.transform(X)
        return X


def find_latent(estimator: Any, X: Any) -> LatentModel:
    """Walk down to the model with latent features, transforming the rows on the way."""
    names = None
    head = None
    steps: list[Pipeline] = []
    node = answering = estimator
    interruptions = []
    while True:
        if said := vars(node).get("_interruption"):
            interruptions.append(said)
        if isinstance(node, Pipeline):
            place = _latent_step(node)
            if place > 0:
                steps.append(node[:place])
                X = steps[-1].transform(X)
                names = _names_after(steps[-1])
                answering = node[place] if place == len(node) - 1 else node[place:]
            if place < len(node) - 1:
                head = node[-1] if place == len(node) - 2 else False
            node = node[place]
        elif hasattr(node, "best_estimator_"):
            node = node.best_estimator_
        elif hasattr(node, "thresholds_") and hasattr(node, "estimator_"):
            node = node.estimator_
        else:
            break
    if not (hasattr(node, "components_") and hasattr(node, "transform")):
        raise TypeError(
            f"estimator must be a fitted model with latent features (components_ and transform), alone or inside a "
            f"pipeline, a search or MultiLabelThresholdCV; got {type(node).__name__} without them"
        )
    node = at_home(node)
    return LatentModel(node, node if head is None else head, X, names, tuple(steps), answering, tuple(interruptions))


def _latent_step(pipeline: Pipeline) -> int:
    """Return the place of the last step with features, or the last of all, which the caller then complains about."""
    last = len(pipeline) - 1
    for place in range(last, -1, -1):
        step = pipeline[place]
        inner = getattr(step, "best_estimator_", getattr(step, "estimator_", step))
        if hasattr(inner, "components_") or isinstance(inner, Pipeline):
            return place
    return last


def _names_after(steps: Pipeline) -> list[str] | None:
    try:
        return [str(name) for name in steps.get_feature_names_out()]
    except (AttributeError, ValueError, TypeError):  # a step that cannot name its columns
        return None


def respond(estimator: Any, method: str, X: Any, task: Any) -> Any:
    """Call a method of the estimator that answers for the rows, with their tasks where there are any."""
    if task is None:
        return getattr(estimator, method)(X)
    if isinstance(estimator, Pipeline):
        return respond(estimator[-1], method, estimator[:-1].transform(X) if len(estimator) > 1 else X, task)
    if hasattr(estimator, "best_estimator_"):
        return respond(estimator.best_estimator_, method, X, task)
    return getattr(estimator, method)(X, task=task)


def used(latent: LatentModel, values: Floats) -> Flags:
    """Which features are in use, by the rule that the model's `n_components_` counts with.

    Models without an Indian buffet prior use all features that they have, unless one is the same for all rows.
    """
    if not has_sticks(latent.model):
        return np.asarray(np.ptp(values, axis=0) > 0)
    if hasattr(latent.model, "tasks_"):
        return in_use(np.asarray(latent.model.components_).T)  # a feature is a set of inputs
    if not hasattr(latent.model, "embedding_"):  # training rows were too many to keep theirs
        return in_use(values)
    return in_use(latent.model.probabilities_ if has_amounts(latent.model) else latent.model.embedding_)


def has_sticks(model: Any) -> bool:
    """Whether the number of features is the data's choice, under an Indian buffet prior."""
    return hasattr(model, "stick_weights_")


def has_amounts(model: Any) -> bool:
    """Whether features are off or on by an amount, which need not be below one."""
    return getattr(getattr(getattr(model, "_state", None), "params", None), "has_amounts", False)


def weights_of(latent: LatentModel) -> Floats | None:
    """Return the weights of the features, (outputs, features), or None."""
    coef = getattr(latent.head, "coef_features_" if latent.head is latent.model else "coef_", None)
    if coef is None:
        return None
    coef = np.atleast_2d(np.asarray(coef, dtype=np.float64))
    return coef if coef.shape[1] == len(latent.model.components_) else None


def contributions(values: Floats, weights: Floats | None) -> Floats:
    """How much each feature moves the scores: the spread of its values times the size of its weights, (K,)."""
    spread = values.std(axis=0)
    return spread if weights is None else spread * np.sqrt(np.mean(weights**2, axis=0))


def moves_answers(contribution: Floats) -> Flags:
    """Which features move the answers by more than a trifle."""
    return np.asarray(contribution > NEGLIGIBLE * contribution.max(initial=0.0))


def shown_features(in_use: Flags, use: Floats, contribution: Floats, limit: int) -> Integers:
    """Return the features to show, the most used first.

    They are those in use, and others that move the scores all the same: soft features of several tasks do, although
    none of them prefers some inputs to others.
    """
    worthwhile = in_use | moves_answers(contribution)
    order = np.argsort(-use, kind="stable")
    return order[worthwhile[order]][:limit]
