"""What the tests of the infinite SVM share: planted clusters, settings, and an estimator that fits in milliseconds."""

from __future__ import annotations

from typing import Any

import numpy as np

from regbayes._types import Floats, Integers
from regbayes.margins.targets import Classes, zero_one_cost
from regbayes_paper.baselines import InfiniteSVMClassifier
from regbayes_paper.models.infinite_svm import Data, Settings
from regbayes_paper.priors.normal_gamma import NormalGammaPrior


def isvm(n_components: int = 4, **parameters: Any) -> InfiniteSVMClassifier:
    return InfiniteSVMClassifier(n_components, **{"max_iter": 20, "random_state": 0} | parameters)


def planted(n_rows: int, seed: int = 0, n_classes: int = 2, apart: float = 7.0) -> tuple[Floats, Integers, Integers]:
    """Four clusters in the plane, each with a linear rule of its own; rows, labels and clusters."""
    rules = np.random.default_rng(0).standard_normal((4, n_classes, 2))
    rng = np.random.default_rng(seed + 1)
    cluster = rng.choice(4, size=n_rows, p=[0.4, 0.3, 0.2, 0.1])
    offset = rng.standard_normal((n_rows, 2))
    corners = apart * np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    y = np.argmax(np.einsum("nd,nad->na", offset, rules[cluster]), axis=1)
    return corners[cluster] + offset, y.astype(np.int64), cluster


def settings(X: Floats, **changes: Any) -> Settings:
    values: dict[str, Any] = {
        "n_components": 3,
        "alpha": 0.7,
        "prior": NormalGammaPrior(X.mean(axis=0), 0.3, 1.5, 1.5 * X.var(axis=0)),
        "squared": True,
        "generative_weight": 0.8,
        "fit_intercept": True,
        "merge": True,
        "refit": True,
        "max_iter": 12,
        "tol": 1e-6,
    }
    return Settings(**values | changes)


def labelled(X: Floats, y: Integers, weights: Floats | None = None, C: float = 0.5) -> Data:
    weights = np.ones(len(X)) if weights is None else weights
    return Data(X, weights, Classes(y, zero_one_cost(int(y.max()) + 1), C * weights))


def some_responsibilities(n_rows: int, n_components: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).dirichlet(np.ones(n_components), size=n_rows)
