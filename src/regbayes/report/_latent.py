"""Access to the latent-feature model inside searches, pipelines and meta-estimators."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.pipeline import Pipeline

from regbayes._types import Floats
from regbayes.estimators._arrays import at_home


@dataclass(frozen=True)
class LatentModel:
    """A fitted model with latent features and its inputs.

    `head` has the weights of the features. It is the model itself or the linear model that follows in a pipeline.
    """

    model: Any
    head: Any
    X: Any  # inputs of the model
    input_names: list[str] | None  # names from the preceding steps
    steps: tuple[Pipeline, ...]  # preceding steps
    answering: Any  # estimator that predicts from the model's inputs
    interruptions: tuple[str, ...]  # messages about searches or fits that Ctrl-C ended

    def prepare(self, X: Any) -> Any:
        """Transform samples to inputs of the model."""
        for step in self.steps:
            X = step.transform(X)
        return X

    @property
    def has_sticks(self) -> bool:
        """Whether the number of features is inferred, under an Indian buffet prior."""
        return hasattr(self.model, "stick_weights_")

    @property
    def has_amounts(self) -> bool:
        """Whether features are nonnegative values instead of probabilities."""
        return getattr(getattr(getattr(self.model, "_state", None), "params", None), "slab", None) is not None


def find_latent(estimator: Any, X: Any) -> LatentModel:
    """Find the model with latent features and transform the samples to its inputs."""
    names = head = None
    steps: list[Pipeline] = []
    node = answering = estimator
    interruptions = []
    while True:
        if said := vars(node).get("_interruption"):
            interruptions.append(said)
        if isinstance(node, Pipeline):
            last = len(node) - 1
            place = next((place for place in range(last, -1, -1) if _has_latent(node[place])), last)
            if place > 0:
                steps.append(node[:place])
                X = steps[-1].transform(X)
                try:
                    names = [str(name) for name in steps[-1].get_feature_names_out()]
                except (AttributeError, ValueError, TypeError):  # a step does not support output names
                    names = None
                answering = node[place] if place == last else node[place:]
            if place < last:
                head = node[-1] if place == last - 1 else False
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


def _has_latent(step: Any) -> bool:
    """Whether a step of a pipeline has latent features."""
    inner = getattr(step, "best_estimator_", getattr(step, "estimator_", step))
    return hasattr(inner, "components_") or isinstance(inner, Pipeline)


def respond(estimator: Any, method: str, X: Any, task: Any) -> Any:
    """Call a method of the estimator, with tasks if there are any."""
    if task is None:
        return getattr(estimator, method)(X)
    if isinstance(estimator, Pipeline):
        return respond(estimator[-1], method, estimator[:-1].transform(X) if len(estimator) > 1 else X, task)
    if hasattr(estimator, "best_estimator_"):
        return respond(estimator.best_estimator_, method, X, task)
    return getattr(estimator, method)(X, task=task)


def weights_of(latent: LatentModel) -> Floats | None:
    """Return the weights of the features, (outputs, features), or None."""
    coef = getattr(latent.head, "coef_features_" if latent.head is latent.model else "coef_", None)
    if coef is None:
        return None
    coef = np.atleast_2d(np.asarray(coef, dtype=np.float64))
    return coef if coef.shape[1] == len(latent.model.components_) else None
