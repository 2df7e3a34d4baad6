"""Data and methods that bench_mt_quality.py compares: splits, MT-iLSVM and its decoupled twin, and the peers."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix, hstack
from sklearn.base import BaseEstimator, RegressorMixin, clone
from sklearn.decomposition import PCA
from sklearn.ensemble import ExtraTreesClassifier
from sklearn.kernel_approximation import Nystroem
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, LinearSVC
from sklearn.utils.metaestimators import available_if

Settings = dict[str, Any]
Path_ = Sequence[Settings]  # settings that are fitted one after the other, each from the last where a model can


# --- data


@dataclass(frozen=True)
class Split:
    """Training and test rows; ``task`` where there is one target per row."""

    X: np.ndarray
    y: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray
    task: np.ndarray | None = None
    task_test: np.ndarray | None = None

    def mapped(self, transform: Any) -> Split:
        """Return the split with other inputs, found on the training rows."""
        fitted = transform.fit(self.X)
        new, test = fitted.transform(self.X), fitted.transform(self.X_test)
        return Split(new, self.y, test, self.y_test, self.task, self.task_test)


def arrays(name: str) -> dict[str, np.ndarray] | None:
    """Return a data set of the folder REGBAYES_DATA, or None where it is not to be had."""
    folder = os.environ.get("REGBAYES_DATA")
    if not folder or not (Path(folder) / f"{name}.npz").exists():
        return None
    with np.load(Path(folder) / f"{name}.npz") as found:
        return {key: found[key] for key in found.files}


def drawn_labels(seed: int = 0) -> Split:
    """Six labels that depend on three directions of 20 inputs."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((400, 8)) @ rng.standard_normal((8, 20)) + rng.standard_normal((400, 20))
    scores = X @ rng.standard_normal((20, 3)) @ rng.standard_normal((3, 6)) + 4.0 * rng.standard_normal((400, 6))
    Y = (scores > np.quantile(scores, 0.75, axis=0)).astype(int)
    return Split(X[:200], Y[:200], X[200:], Y[200:]).mapped(StandardScaler())


def drawn_groups(seed: int = 0) -> dict[str, np.ndarray]:
    """Twenty groups with similar slopes."""
    rng = np.random.default_rng(seed)
    X, task = rng.standard_normal((800, 8)), np.arange(800) % 20
    slopes = rng.standard_normal(8) + 0.4 * rng.standard_normal((20, 8))
    y = np.einsum("nd,nd->n", X, slopes[task]) + 3.0 * rng.standard_normal(800)
    return {"X": X, "y": y, "task": task}


def published_split(data: dict[str, np.ndarray]) -> Split:
    """The split that comes with the data, inputs scaled on its training rows."""
    X, Y, train, test = data["X"].astype(float), data["Y"].astype(int), data["train_idx"], data["test_idx"]
    return Split(X[train], Y[train], X[test], Y[test]).mapped(StandardScaler())


def random_split(data: dict[str, np.ndarray], seed: int, share: float, strata: np.ndarray) -> Split:
    """Put a share of each stratum into the training part."""
    rng, train = np.random.default_rng(seed), np.zeros(len(strata), dtype=bool)
    for stratum in np.unique(strata):
        rows = rng.permutation(np.flatnonzero(strata == stratum))
        train[rows[: round(share * len(rows))]] = True
    X, y, task = data["X"].astype(float), data["y"], data["task"]
    return Split(X[train], y[train], X[~train], y[~train], task[train], task[~train]).mapped(StandardScaler())


# --- methods: a model, and paths of settings to choose from


@dataclass(frozen=True)
class Method:
    """What is compared."""

    name: str
    model: Any
    paths: Sequence[Path_]
    transform: Any = None  # of the inputs

    def inputs(self, X: np.ndarray, X_test: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return what the model sees; the transform is fitted to the rows that the model is fitted to.

        Rows that are left out must not be landmarks: new rows are none, and have smaller features.
        """
        if self.transform is None:
            return X, X_test
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # fewer rows than landmarks
            fitted = clone(self.transform).fit(X)
        return fitted.transform(X), fitted.transform(X_test)


def grid(**lists: Sequence[Any]) -> list[Settings]:
    """All combinations."""
    found: list[Settings] = [{}]
    for name, values in lists.items():
        found = [{**settings, name: value} for settings in found for value in values]
    return found


def joint(model: Any, K: int, inputs: Sequence[bool], Cs: Sequence[float], taus: Sequence[float]) -> Method:
    """MT-iLSVM, with the settings that its CV estimators try by default."""
    paths = [[{**fixed, "C": C} for C in Cs] for fixed in grid(include_inputs=inputs, temperature=taus)]
    return Method(f"MT-iLSVM, K = {K}", clone(model).set_params(n_components=K, warm_start=True), paths)


def decoupled(model: Any, K: int, inputs: Sequence[bool], Cs: Sequence[float], taus: Sequence[float]) -> Method:
    """MT-IBP+SVM: the same start, code and loss, but features that do not see the targets."""
    paths = [[{**fixed, "C": C} for C in Cs] for fixed in grid(include_inputs=inputs, temperature=taus)]
    model = clone(model).set_params(n_components=K, margins="decoupled", max_iter=50)
    return Method(f"MT-IBP+SVM, K = {K}", model, paths)


JOINT_CS, JOINT_TAUS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0), (0.01, 0.03, 0.1)
KERNEL_CS, KERNEL_TAUS = (0.01, 0.03, 0.1), (0.01, 0.03)  # with inputs; others were no better on left-out rows
DECOUPLED_CS, DECOUPLED_TAUS = (0.003, 0.03, 0.3), (0.0, 0.001, 0.003, 0.01, 0.03, 0.1)


def label_peers(which: str) -> list[Method]:
    """One model per label, one setting for all labels."""
    if which == "none":
        return []
    Cs = grid(estimator__C=[0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0])
    found = [
        Method("LinearSVC", OneVsRestClassifier(LinearSVC(max_iter=5000)), [Cs]),
        Method("logistic regression", OneVsRestClassifier(LogisticRegression(max_iter=2000)), [Cs]),
    ]
    if which == "all":
        trees = ExtraTreesClassifier(300, random_state=0, n_jobs=1)
        found += [
            Method(
                "PCA + LinearSVC", OneVsRestClassifier(make_pipeline(PCA(), LinearSVC(max_iter=5000))), [pca_grid()]
            ),
            Method(
                "ExtraTrees",
                Probabilities(trees),
                [grid(trees__min_samples_leaf=[1, 3], trees__max_features=[0.1, 0.3])],
            ),
        ]
    return found


KERNEL_WIDTHS = (1.0, 2.0)  # gamma = this / n_features, for the SVMs and in front of MT-iLSVM


def behind_kernels(method: Method, n_inputs: int) -> list[Method]:
    """The method behind a kernel map of each width.

    There is a landmark for every training row: 400 cost a linear SVM .6 points of F1-micro on left-out rows of Yeast.
    The map has a scale of its own, so its columns are not scaled again.
    """
    model = clone(method.model).set_params(scale_inputs=False)
    maps = [Nystroem(gamma=width / n_inputs, n_components=1500, random_state=0) for width in KERNEL_WIDTHS]
    return [Method(method.name, model, method.paths, transform) for transform in maps]


def kernel_peers(which: str, n_inputs: int) -> list[Method]:
    """A kernel machine per label, one setting for all labels."""
    if which == "none":
        return []
    gammas = [width / n_inputs for width in KERNEL_WIDTHS]
    svm = OneVsRestClassifier(SVC(cache_size=500))
    return [Method("RBF-SVM", svm, [grid(estimator__C=[1.0, 3.0, 10.0], estimator__gamma=gammas)])]


def pca_grid() -> list[Settings]:
    return grid(estimator__pca__n_components=[0.8, 0.9, 0.95], estimator__linearsvc__C=[0.001, 0.003, 0.01, 0.03, 0.1])


class Probabilities(BaseEstimator):
    """Log odds of a multi-label classifier that has probabilities only."""

    def __init__(self, trees: Any) -> None:
        self.trees = trees

    def fit(self, X: np.ndarray, Y: np.ndarray) -> Probabilities:
        self.trees_ = clone(self.trees).fit(X, Y)
        return self

    def decision_function(self, X: np.ndarray) -> np.ndarray:
        found = np.stack([p[:, 1] for p in self.trees_.predict_proba(X)], axis=1)
        return np.log((found + 1e-3) / (1.001 - found))


class Deviations(RegressorMixin, BaseEstimator):
    """Ridge with common weights, and with deviations of each task's slopes and intercept from them: mixed effects."""

    def __init__(self, alpha: float = 1.0, slopes: float = 0.3, intercepts: float = 1.0) -> None:
        self.alpha = alpha
        self.slopes = slopes
        self.intercepts = intercepts

    def design(self, X: np.ndarray, task: np.ndarray) -> Any:
        codes, (n, d) = np.searchsorted(self.tasks_, task), X.shape
        own = np.hstack([self.slopes * X, np.full((n, 1), self.intercepts)])
        places = codes[:, None] * (d + 1) + np.arange(d + 1)
        sparse = csr_matrix((own.ravel(), places.ravel(), np.arange(n + 1) * (d + 1)), (n, len(self.tasks_) * (d + 1)))
        return hstack([csr_matrix(X), sparse], format="csr")

    def fit(self, X: np.ndarray, y: np.ndarray, task: np.ndarray) -> Deviations:
        self.tasks_ = np.unique(task)
        self.ridge_ = Ridge(self.alpha, solver="sparse_cg", tol=1e-6).fit(self.design(X, task), y)
        return self

    def predict(self, X: np.ndarray, task: np.ndarray) -> np.ndarray:
        return self.ridge_.predict(self.design(X, task))


class PerTask(BaseEstimator):
    """A model for each task, or one for all."""

    def __init__(self, model: Any, separate: bool = True) -> None:
        self.model = model
        self.separate = separate

    def fit(self, X: np.ndarray, y: np.ndarray, task: np.ndarray) -> PerTask:
        task = task if self.separate else np.zeros_like(task)
        self.models_ = {t: clone(self.model).fit(X[task == t], y[task == t]) for t in np.unique(task)}
        return self

    def _answers(self, method: str, X: np.ndarray, task: np.ndarray) -> np.ndarray:
        found, task = np.empty(len(X)), task if self.separate else np.zeros_like(task)
        for t in np.unique(task):
            found[task == t] = getattr(self.models_[t], method)(X[task == t])
        return found

    def predict(self, X: np.ndarray, task: np.ndarray) -> np.ndarray:
        return self._answers("predict", X, task)

    @available_if(lambda self: hasattr(self.model, "decision_function"))
    def decision_function(self, X: np.ndarray, task: np.ndarray) -> np.ndarray:
        return self._answers("decision_function", X, task)


def fit(model: Any, X: np.ndarray, y: np.ndarray, task: np.ndarray | None) -> Any:
    """Fit a model to rows that have tasks, or labels for all."""
    return model.fit(X, y) if task is None else model.fit(X, y, task)


class TaskColumns(BaseEstimator):
    """A linear classifier that sees the inputs, and once more those of the row's task."""

    def __init__(self, C: float = 1.0, deviations: float = 0.3) -> None:
        self.C = C
        self.deviations = deviations

    def fit(self, X: np.ndarray, y: np.ndarray, task: np.ndarray) -> TaskColumns:
        self.columns_ = Deviations(slopes=self.deviations, intercepts=self.deviations)
        self.columns_.tasks_ = np.unique(task)
        self.model_ = LogisticRegression(C=self.C, max_iter=2000).fit(self.columns_.design(X, task), y)
        return self

    def decision_function(self, X: np.ndarray, task: np.ndarray) -> np.ndarray:
        return self.model_.decision_function(self.columns_.design(X, task))


def group_peers(which: str) -> list[Method]:
    """Linear models of one target per row, the strongest first."""
    if which == "none":
        return []
    alphas = grid(model__alpha=[1.0, 10.0, 100.0, 1000.0])
    mixed = grid(intercepts=[1.0, 3.0], slopes=[0.1, 0.2, 0.4], alpha=[10.0, 30.0, 100.0])
    return [
        Method("ridge with school deviations", Deviations(), [mixed]),
        Method("one ridge per school", PerTask(Ridge()), [alphas]),
        Method("one ridge for all", PerTask(Ridge(), separate=False), [alphas]),
    ]


def landmine_peers(which: str) -> list[Method]:
    """Linear classifiers of one label per row."""
    if which == "none":
        return []
    Cs = grid(model__C=[0.01, 0.1, 1.0, 10.0, 100.0])
    model = LogisticRegression(max_iter=2000)
    return [
        Method(
            "logistic with task deviations", TaskColumns(), [grid(deviations=[0.1, 0.3, 1.0], C=[0.01, 0.1, 1.0, 10.0])]
        ),
        Method("one logistic per task", PerTask(model), [Cs]),
        Method("one logistic for all", PerTask(model, separate=False), [Cs]),
    ]
