"""Small fits of every kind that a checkpoint can save; as a script, one of them."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import scipy.sparse

import regbayes
from regbayes import (
    IBPFactorAnalysis,
    ILSVMClassifier,
    ILSVMRegressor,
    MedLDAClassifier,
    MedLDARegressor,
    MultiTaskILSVMClassifier,
    MultiTaskILSVMRegressor,
)

GUESSES = {"transductive": True, "unlabeled": -1, "max_iter": 5}
MODELS = {
    "iLSVM": (ILSVMClassifier, {"slab": None}),
    "MT-iLSVM": (MultiTaskILSVMClassifier, {}),
    "MedLDA by Gibbs": (MedLDAClassifier, {"inference": "gibbs"}),
    "MedLDA by mean field": (MedLDAClassifier, {"inference": "variational"}),
    "iLSVM with slab": (ILSVMClassifier, {"slab": "half-normal"}),
    "iLSVM with hinge loss": (ILSVMClassifier, {"loss": "hinge"}),
    "iLSVM, alternation": (ILSVMClassifier, {"margins": "posterior"}),
    "iLSVM, transductive": (ILSVMClassifier, GUESSES),
    "iLSVM of numbers": (ILSVMRegressor, {}),
    "IBP": (IBPFactorAnalysis, {}),
    "MT-iLSVM, alternation": (MultiTaskILSVMRegressor, {"margins": "posterior"}),
    "MedLDA of numbers": (MedLDARegressor, {}),
}


def make(name: str) -> tuple[Any, Any, Any]:
    """Return a model, its samples and its targets."""
    rng = np.random.default_rng(0)
    y = np.arange(150) % 3
    X = rng.standard_normal((150, 8)) + np.eye(3)[y] @ rng.standard_normal((3, 8))
    cls, parameters = MODELS[name]
    model = cls(5, **{"random_state": 0, "max_iter": 10, "tol": 0.0} | parameters)
    if "MedLDA" in name:
        X = scipy.sparse.csr_array(rng.poisson(0.6, (150, 30)))
    if cls is MultiTaskILSVMClassifier:
        return model, X, X[:, :2] > 0
    if cls is MultiTaskILSVMRegressor:
        return model, X, X[:, :2]
    if cls is IBPFactorAnalysis:
        return model, X, None
    if "numbers" in name:
        y = rng.standard_normal(150)
    return model, X, np.where(np.arange(150) % 2, y, -1) if "transductive" in name else y


if __name__ == "__main__":
    model, X, y = make(sys.argv[1])
    model.set_callbacks(regbayes.Checkpoint(sys.argv[2], seconds=0))
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for _ in range(100):  # so that the process is killed during a fit
        model.fit(X, y)
