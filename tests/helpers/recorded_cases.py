"""Today's answers of every estimator on small data, to compare a changed core with.

A case is an estimator, a change of its parameters and a small data set. `observe` runs it and returns arrays,
`recorded` reads those that were stored, and ``tests/test_recorded.py`` compares the two. After a change that is meant
to change answers, record the cases it touches again and say why in the commit message::

    python tests/helpers/recorded_cases.py --write CASE...     # these, "ilsvm/*" for all of a kind
    python tests/helpers/recorded_cases.py --write             # all
    python tests/helpers/recorded_cases.py --differences       # how far today's answers are from the stored ones

Names of cases stay when parameters are renamed. Every spelling of the public interface is in this file and nowhere
else: parameters in the tables, methods and fitted attributes in `_answers` and `_course`.
"""

from __future__ import annotations

import argparse
import functools
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from sklearn.exceptions import ConvergenceWarning
from sklearn.multiclass import OneVsRestClassifier
from sklearn.naive_bayes import GaussianNB

import regbayes

STORE = Path(__file__).parents[1] / "recorded" / "answers.npz"
TOLERANCE = 1e-8  # of every array, relative to its largest entry; other processors were within 2e-10
DESCENDED = 1e-4  # after a warm-up of several descents, whose steps make last bits grow
SINGLE = 1e-5  # where kernels work in single precision, as all of MedLDA's do; other processors were within 3e-6

Parts = dict[str, NDArray[Any]]


# Data. All are rounded, so that no processor sees other inputs than the rest.


@dataclass(frozen=True)
class Rows:
    """Rows to learn from and rows to answer."""

    X: Any
    y: Any
    new: Any
    task: Any = None
    new_task: Any = None

    @property
    def labels_of_fit(self) -> dict[str, Any]:
        """What `fit` is told beside X and y."""
        return {} if self.task is None else {"task": self.task}

    @property
    def labels_of_new(self) -> dict[str, Any]:
        """What prediction is told beside X."""
        return {} if self.new_task is None else {"task": self.new_task}


N_ROWS, N_NEW = 60, 12


def _planted(seed: int, n_rows: int, n_columns: int = 7, n_features: int = 4) -> tuple[Any, Any, np.random.Generator]:
    """Sums of planted on/off features plus noise, and the features."""
    rng = np.random.default_rng(seed)
    on = rng.random((n_rows, n_features)) < np.linspace(0.6, 0.3, n_features)
    loadings = 1.5 * rng.standard_normal((n_features, n_columns))
    X = on @ loadings + 0.5 * rng.standard_normal((n_rows, n_columns))
    return np.round(X, 3), on, rng


@functools.cache
def classes(n_classes: int = 3) -> Rows:
    """Classes that depend on planted features, with some noise."""
    X, on, rng = _planted(11, N_ROWS + N_NEW)
    scores = on @ rng.standard_normal((4, n_classes)) + 0.4 * rng.standard_normal((len(X), n_classes))
    y = np.argmax(scores - scores.mean(axis=0), axis=1)
    return Rows(X[:N_ROWS], y[:N_ROWS], X[N_ROWS:])


def two_classes() -> Rows:
    return classes(2)


def some_unlabelled() -> Rows:
    """Every third row without its class."""
    found = classes()
    return Rows(found.X, np.where(np.arange(N_ROWS) % 3 == 2, -1, found.y), found.new)


def _numbers(n_tasks: int = 3) -> tuple[Any, Any]:
    rng = np.random.default_rng(12)
    n, d = N_ROWS + N_NEW, 6
    X = rng.standard_normal((n, d)) @ (np.eye(d) + 0.3 * rng.standard_normal((d, d)))
    basis = rng.standard_normal((d, 2)) @ rng.standard_normal((2, n_tasks))
    Y = X @ (basis + 0.3 * rng.standard_normal((d, n_tasks))) + rng.standard_normal((n, n_tasks))
    X = np.round(2.0 + X * np.geomspace(0.5, 4.0, d), 3)
    return X, np.round(Y, 3)


def _split(X: Any, Y: Any) -> Rows:
    return Rows(X[:N_ROWS], Y[:N_ROWS], X[N_ROWS:])


@functools.cache
def numbers() -> Rows:
    """A number of each of three tasks for every row."""
    X, Y = _numbers()
    return _split(X, Y)


def one_number() -> Rows:
    found = numbers()
    return Rows(found.X, found.y[:, 0], found.new)


def _with_holes(found: Rows, hole: Any) -> Rows:
    n, m = found.y.shape
    missing = np.arange(n)[:, None] % (3 + np.arange(m)) == 2  # of the first task most
    return Rows(found.X, np.where(missing, hole, found.y), found.new)


def numbers_with_holes() -> Rows:
    return _with_holes(numbers(), np.nan)


def _ragged(values: Callable[[Any], Any], new_name: str | None = None) -> Rows:
    """One question asked in four groups, large and small; rows to answer may have a group that was not there before."""
    X, Y = _numbers(4)
    code = np.array([0, 1, 0, 2, 0, 1, 3])[np.arange(len(Y)) % 7]
    names = np.array(["north", "south", "east", "west"])[code]
    y = values(np.round(0.7 * Y.mean(axis=1) + 0.5 * Y[np.arange(len(Y)), code], 3))
    new_task = names[N_ROWS:].copy()
    if new_name is not None:
        new_task[::3] = new_name
    return Rows(X[:N_ROWS], y[:N_ROWS], X[N_ROWS:], names[:N_ROWS], new_task)


def ragged_numbers() -> Rows:
    return _ragged(lambda y: y)


def ragged_numbers_new_task() -> Rows:
    return _ragged(lambda y: y, "moon")


def _rare(values: Any) -> Any:
    return (values > np.quantile(values[:N_ROWS], 0.65, axis=0)).astype(int)


def _thirds(values: Any) -> Any:
    return np.digitize(values, np.quantile(values[:N_ROWS], [0.3, 0.6]))


def ragged_labels() -> Rows:
    return _ragged(_rare)


def ragged_labels_new_task() -> Rows:
    return _ragged(_rare, "moon")


def ragged_classes() -> Rows:
    return _ragged(_thirds)


@functools.cache
def labels() -> Rows:
    """Three labels, yes or no, for every row."""
    X, Y = _numbers()
    return _split(X, _rare(Y))


def labels_with_holes() -> Rows:
    return _with_holes(labels(), np.nan)


def labels_marked_missing() -> Rows:
    return _with_holes(labels(), -1)


def one_label() -> Rows:
    found = labels()
    return Rows(found.X, found.y[:, 0], found.new)


def columns_of_classes() -> Rows:
    """Three tasks with the same three classes."""
    X, Y = _numbers()
    return _split(X, np.stack([_thirds(column) for column in Y.T], axis=1))


def different_classes() -> Rows:
    """Two tasks with two classes, and one with three others."""
    X, Y = _numbers()
    return _split(X, np.stack([_rare(Y[:, 0]), _rare(Y[:, 1]), 5 + _thirds(Y[:, 2])], axis=1))


@functools.cache
def _documents(n_documents: int = N_ROWS + N_NEW, n_words: int = 30, length: int = 25) -> tuple[Any, Any]:
    rng = np.random.default_rng(13)
    topics = rng.dirichlet(np.full(n_words, 0.2), 4)
    shares = rng.dirichlet(np.full(4, 0.4), n_documents)
    return np.array([rng.multinomial(length, row) for row in shares @ topics]), shares


def _corpus(responses: Callable[[Any], Any]) -> Rows:
    counts, shares = _documents()
    y = responses(shares)
    return Rows(csr_array(counts[:N_ROWS]), y[:N_ROWS], csr_array(counts[N_ROWS:]))


def texts() -> Rows:
    """Documents of three classes."""
    return _corpus(lambda shares: np.argmax(shares[:, :3], axis=1))


def texts_two_classes() -> Rows:
    return _corpus(lambda shares: (shares[:, 0] + shares[:, 1] > 0.5).astype(int))


def texts_labels() -> Rows:
    """Documents with four labels each."""
    return _corpus(lambda shares: (shares > 0.25).astype(int))


def texts_many_labels() -> Rows:
    """So many labels that the sampler proposes topics instead of drawing them; few documents to answer."""
    found = _corpus(lambda shares: (shares[:, np.arange(40) % 4] > np.linspace(0.1, 0.4, 40)).astype(int))
    return Rows(found.X, found.y, found.new[:2])


def texts_numbers() -> Rows:
    return _corpus(lambda shares: np.round(5.0 * shares @ [1.0, -1.0, 0.5, 0.0] + 2.0, 2))


def texts_two_numbers() -> Rows:
    return _corpus(lambda shares: np.round(shares @ [[1.0, 2.0], [-1.0, 0.0], [0.5, -3.0], [0.0, 1.0]], 2))


def weighted_texts() -> Rows:
    """Counts that are not whole."""
    found = texts()
    return Rows(found.X * 0.75, found.y, found.new * 0.75)


def clusters(n_classes: int = 3) -> Rows:
    """Three clusters in the plane, each with a linear rule of its own."""
    rng = np.random.default_rng(14)
    n = N_ROWS + N_NEW
    cluster = np.arange(n) % 3
    offset = rng.standard_normal((n, 2))
    rules = rng.standard_normal((3, n_classes, 2))
    y = np.argmax(np.einsum("nd,nad->na", offset, rules[cluster]) + 0.3 * rng.standard_normal((n, n_classes)), axis=1)
    X = np.round(4.0 * np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])[cluster] + offset, 3)
    return Rows(X[:N_ROWS], y[:N_ROWS], X[N_ROWS:])


# Cases.


@dataclass(frozen=True)
class Case:
    """An estimator with its parameters, on some rows."""

    name: str
    make: Callable[..., Any]
    parameters: Mapping[str, Any]
    rows: Callable[[], Rows]
    then: tuple[Mapping[str, Any], ...] = ()  # parameters of further fits of the same estimator
    portions: int = 0  # learn from so many portions of the rows, one after another
    tolerance: float = TOLERANCE


@dataclass(frozen=True)
class Change:
    """What a case changes of the first of its table."""

    parameters: Mapping[str, Any] = field(default_factory=dict)
    rows: Callable[[], Rows] | None = None
    then: tuple[Mapping[str, Any], ...] = ()
    portions: int = 0


def change(rows: Callable[[], Rows] | None = None, /, **parameters: Any) -> Change:
    return Change(parameters, rows)


def again(*then: Mapping[str, Any], **parameters: Any) -> Change:
    """The estimator is fitted once more, with these parameters changed."""
    return Change(parameters, None, then or ({},))


def table(
    name: str,
    make: Callable[..., Any],
    rows: Callable[[], Rows],
    first: Mapping[str, Any],
    changes: Mapping[str, Change],
    tolerance: float = TOLERANCE,
) -> list[Case]:
    """A case for what is first, and one for each change of it."""
    every = {"default": Change(), **changes}
    return [
        Case(f"{name}/{label}", make, {**first, **c.parameters}, c.rows or rows, c.then, c.portions, tolerance)
        for label, c in every.items()
    ]


COST = ((0.0, 1.0, 2.0), (0.5, 0.0, 1.0), (1.0, 3.0, 0.0))
COST_OF_TWO = ((0.0, 2.0), (0.5, 0.0))
WEIGHTS = {0: 0.5, 2: 2.0}
WEIGHTS_OF_TWO = {0: 0.5, 1: 2.0}
NO_LABEL = {"unlabeled": -1}
VARIANCES = {
    "noise estimated": change(noise_variance="estimate"),
    "prior estimated": change(prior_variance="estimate"),
    "both estimated": change(noise_variance="estimate", prior_variance="estimate"),
    "both given": change(noise_variance=0.5, prior_variance=1.0),
}

# MT-iLSVM.

MULTITASK = {"n_components": 4, "C": 0.1, "max_iter": 6, "random_state": 0}
MULTITASK_CHANGES = {
    **VARIANCES,
    "posterior": change(margins="posterior"),
    "decoupled": change(margins="decoupled"),
    "no intercept": change(fit_intercept=False),
    "inputs": change(include_inputs=True),
    "inputs posterior": change(include_inputs=True, margins="posterior"),
    "inputs decoupled": change(include_inputs=True, margins="decoupled"),
    "inputs no intercept": change(include_inputs=True, fit_intercept=False),
    "sharing": change(task_sharing=1.0),
    "sharing served": change(task_sharing=1.0, unseen_tasks="shared"),
    "plain posterior": change(temperature=0.0),
    "plain posterior, posterior margins": change(temperature=0.0, margins="posterior"),
    "temperature": change(temperature=0.05),
    "generative weight": change(generative_weight=0.2),
    "alpha": change(alpha=3.0),
    "inputs as they are": change(scale_inputs=False),
    "both estimated posterior": change(noise_variance="estimate", prior_variance="estimate", margins="posterior"),
    "start only": change(max_iter=0),
    "two threads": change(n_jobs=2),
    "fitted twice": again(warm_start=True),
    "fitted twice other C": again({"C": 0.03}, warm_start=True),
    "fitted twice posterior": again(warm_start=True, margins="posterior"),
}
MULTITASK_CLASSIFIER_CHANGES = {
    **MULTITASK_CHANGES,
    "hinge": change(loss="hinge"),
    "hinge posterior": change(loss="hinge", margins="posterior"),
    "hinge decoupled": change(loss="hinge", margins="decoupled"),
    "holes": change(labels_with_holes),
    "holes hinge": change(labels_with_holes, loss="hinge"),
    "marked missing": change(labels_marked_missing, **NO_LABEL),
    "one label": change(one_label),
    "classes": change(columns_of_classes),
    "different classes": change(different_classes),
    "cost": change(columns_of_classes, cost=COST),
    "cost of two": change(cost=COST_OF_TWO),
    "weights balanced": change(class_weight="balanced"),
    "weights by class": change(class_weight=WEIGHTS_OF_TWO),
    "weights by task": change(class_weight=[WEIGHTS_OF_TWO, {}, {1: 3.0}]),
    "ragged": change(ragged_labels),
    "ragged posterior": change(ragged_labels, margins="posterior"),
    "ragged decoupled": change(ragged_labels, margins="decoupled"),
    "ragged hinge": change(ragged_labels, loss="hinge"),
    "ragged inputs": change(ragged_labels, include_inputs=True),
    "ragged not shared": change(ragged_labels, task_sharing=0.0),
    "ragged new task": change(ragged_labels_new_task, unseen_tasks="shared"),
    "ragged classes": change(ragged_classes),
}
MULTITASK_REGRESSOR_CHANGES = {
    **MULTITASK_CHANGES,
    "no intercept": change(numbers_with_holes, fit_intercept=False),
    "absolute": change(loss="epsilon_insensitive"),
    "absolute posterior": change(loss="epsilon_insensitive", margins="posterior"),
    "absolute decoupled": change(loss="epsilon_insensitive", margins="decoupled"),
    "tube": change(epsilon=0.2),
    "tube absolute": change(epsilon=0.2, loss="epsilon_insensitive"),
    "holes": change(numbers_with_holes),
    "holes absolute": change(numbers_with_holes, loss="epsilon_insensitive"),
    "one number": change(one_number),
    "targets scaled": change(scale_targets=True),
    "targets as they are": change(scale_targets=False),
    "targets pooled": change(scale_targets="pooled"),
    "targets by task": change(scale_targets="task"),
    "ragged": change(ragged_numbers),
    "ragged posterior": change(ragged_numbers, margins="posterior"),
    "ragged decoupled": change(ragged_numbers, margins="decoupled"),
    "ragged absolute": change(ragged_numbers, loss="epsilon_insensitive", epsilon=0.1),
    "ragged inputs": change(ragged_numbers, include_inputs=True),
    "ragged not shared": change(ragged_numbers, task_sharing=0.0),
    "ragged new task": change(ragged_numbers_new_task, unseen_tasks="shared"),
    "ragged targets by task": change(ragged_numbers, scale_targets="task"),
    "sharing served": change(task_sharing=1.0, unseen_tasks="shared", scale_targets="pooled"),
}
MULTITASK_CV = {
    "n_components": 3,
    "Cs": (0.03, 0.3),
    "temperatures": (0.05,),
    "cv": 2,
    "max_iter": 3,
    "random_state": 0,
}
MULTITASK_CV_CHANGES = {
    **VARIANCES,
    "no intercept": change(fit_intercept=False),
    "posterior": change(margins="posterior"),
    "decoupled": change(margins="decoupled"),
    "inputs as they are": change(scale_inputs=False),
    "grid": change(temperatures=(0.02, 0.1), task_sharings=("auto", 0.5)),
    "served": change(task_sharings=(0.5, 1.0), unseen_tasks="shared", include_inputs=(False,)),
}
MULTITASK_CLASSIFIER_CV_CHANGES = {
    **MULTITASK_CV_CHANGES,
    "hinge": change(loss="hinge"),
    "cost of two": change(cost=COST_OF_TWO),
    "weights balanced": change(class_weight="balanced"),
    "holes": change(labels_with_holes),
    "marked missing": change(labels_marked_missing, **NO_LABEL),
    "ragged": change(ragged_labels),
}
MULTITASK_REGRESSOR_CV_CHANGES = {
    **MULTITASK_CV_CHANGES,
    "no intercept": change(numbers_with_holes, fit_intercept=False),
    "absolute": change(loss="epsilon_insensitive"),
    "tube": change(epsilon=0.2),
    "targets scaled": change(scale_targets=True),
    "targets as they are": change(scale_targets=False),
    "targets pooled": change(scale_targets="pooled"),
    "targets by task": change(scale_targets="task"),
    "holes": change(numbers_with_holes),
    "ragged": change(ragged_numbers),
    "served": change(task_sharings=(0.5, 1.0), unseen_tasks="shared", include_inputs=(False,), scale_targets="pooled"),
}
THRESHOLDS = {"estimator": regbayes.MultiTaskILSVMClassifier(**MULTITASK), "cv": 2, "random_state": 0}
THRESHOLDS_CHANGES = {
    "shared": change(thresholds="shared"),
    "no resamples": change(n_resamples=0),
    "probabilities": change(estimator=OneVsRestClassifier(GaussianNB())),
    "holes": change(labels_with_holes),
    "one label": change(one_label),
}

# MedLDA: a sampler, and mean field.

MEDLDA = {"n_components": 4, "max_iter": 4, "random_state": 0}
GIBBS_CHANGES = {
    "no refit": change(refit=False),
    "labels ignored": change(C=0.0),
    "labels ignored, no refit": change(C=0.0, refit=False),
    "strong": change(C=5.0),
    "C rises": change(C_warmup=2),
    "burn-in": change(burn_in=1),
    "priors": change(doc_topic_prior=0.5, topic_word_prior=0.05, weight_variance=2.0),
    "blocks": change(n_blocks=3),
    "blocks two threads": change(n_blocks=3, n_jobs=2),
    "fitted twice": again(warm_start=True),
    "portions": Change(portions=3),
    "portions no refit": Change({"refit": False}, portions=2),
}
MEAN_FIELD = {"n_components": 4, "inference": "variational", "max_iter": 4, "tol": 0.0, "random_state": 0}
MEAN_FIELD_CHANGES = {
    "labels ignored": change(C=0.0),
    "strong": change(C=5.0),
    "priors": change(doc_topic_prior=0.5, topic_word_prior=0.05, weight_variance=0.02),
    "words by maximum likelihood": change(topic_word_prior=0.0),
    "two sweeps": change(n_sweeps=2),
    "until it settles": change(tol=0.5, max_iter=None),
    "two threads": change(n_jobs=2),
    "fitted twice": again(warm_start=True),
}
CLASSES_OF_DOCUMENTS = {
    "two classes": change(texts_two_classes),
    "labels": change(texts_labels),
    "cost": change(cost=COST),
    "cost of two": change(texts_two_classes, cost=COST_OF_TWO),
    "weights balanced": change(class_weight="balanced"),
    "weights by class": change(class_weight=WEIGHTS),
    "margin": change(margin=2.0),
    "hinge": change(loss="hinge"),
}
MEDLDA_CLASSIFIER_CHANGES = {
    **GIBBS_CHANGES,
    **CLASSES_OF_DOCUMENTS,
    "labels no refit": change(texts_labels, refit=False),
    "proposals": change(texts_many_labels, n_components=101, max_iter=2),
}
MEAN_FIELD_CLASSIFIER_CHANGES = {
    **MEAN_FIELD_CHANGES,
    **CLASSES_OF_DOCUMENTS,
    "squared hinge": change(loss="squared_hinge"),
    "two classes hinge": change(texts_two_classes, loss="hinge"),
    "cost hinge": change(cost=COST, loss="hinge"),
    "weighted texts": change(weighted_texts),
}
MEDLDA_REGRESSOR_CHANGES = {
    **GIBBS_CHANGES,
    "two numbers": change(texts_two_numbers),
    "tube": change(epsilon=0.5),
    "no tube": change(epsilon=0.0),
    "absolute": change(loss="epsilon_insensitive"),
}
MEAN_FIELD_REGRESSOR_CHANGES = {
    **MEAN_FIELD_CHANGES,
    "two numbers": change(texts_two_numbers, max_iter=2),
    "tube": change(epsilon=0.5),
    "no tube": change(epsilon=0.0),
    "absolute": change(loss="epsilon_insensitive"),
    "squared": change(loss="squared_epsilon_insensitive"),
}
TOPIC_SEARCH = {"n_components": (2, 4), "cv": 2, "max_iter": 3, "random_state": 0}
TOPIC_SEARCH_CHANGES = {
    "mean field": change(inference="variational"),
    "until it settles": change(inference="variational", tol=0.5, max_iter=None, Cs=(0.0,)),
    "no refit": change(refit=False),
}
TOPIC_CLASSIFIER_SEARCH_CHANGES = {
    **TOPIC_SEARCH_CHANGES,
    "hinge": change(loss="hinge"),
    "squared hinge": change(inference="variational", loss="squared_hinge"),
    "weights balanced": change(class_weight="balanced"),
    "cost": change(cost=COST),
    "labels": change(texts_labels, inference="variational"),
}
TOPIC_REGRESSOR_SEARCH_CHANGES = {
    **TOPIC_SEARCH_CHANGES,
    "absolute": change(loss="epsilon_insensitive"),
    "mean field": change(inference="variational", Cs=(0.1,)),
    "squared": change(inference="variational", loss="squared_epsilon_insensitive", Cs=(0.1,)),
    "two numbers": change(texts_two_numbers),
}

TABLES = [
    table("mt classifier", regbayes.MultiTaskILSVMClassifier, labels, MULTITASK, MULTITASK_CLASSIFIER_CHANGES),
    table("mt regressor", regbayes.MultiTaskILSVMRegressor, numbers, MULTITASK, MULTITASK_REGRESSOR_CHANGES),
    table(
        "mt classifier cv",
        regbayes.MultiTaskILSVMClassifierCV,
        labels,
        MULTITASK_CV,
        MULTITASK_CLASSIFIER_CV_CHANGES,
    ),
    table(
        "mt regressor cv",
        regbayes.MultiTaskILSVMRegressorCV,
        numbers,
        MULTITASK_CV,
        MULTITASK_REGRESSOR_CV_CHANGES,
    ),
    table("thresholds", regbayes.MultiLabelThresholdCV, labels, THRESHOLDS, THRESHOLDS_CHANGES),
    table("medlda sampler", regbayes.MedLDAClassifier, texts, MEDLDA, MEDLDA_CLASSIFIER_CHANGES, SINGLE),
    table("medlda", regbayes.MedLDAClassifier, texts, MEAN_FIELD, MEAN_FIELD_CLASSIFIER_CHANGES, SINGLE),
    table(
        "medlda sampler regressor", regbayes.MedLDARegressor, texts_numbers, MEDLDA, MEDLDA_REGRESSOR_CHANGES, SINGLE
    ),
    table(
        "medlda regressor", regbayes.MedLDARegressor, texts_numbers, MEAN_FIELD, MEAN_FIELD_REGRESSOR_CHANGES, SINGLE
    ),
    table("medlda cv", regbayes.MedLDAClassifierCV, texts, TOPIC_SEARCH, TOPIC_CLASSIFIER_SEARCH_CHANGES, SINGLE),
    table(
        "medlda regressor cv",
        regbayes.MedLDARegressorCV,
        texts_numbers,
        TOPIC_SEARCH,
        TOPIC_REGRESSOR_SEARCH_CHANGES,
        SINGLE,
    ),
]
CASES = {case.name: case for cases in TABLES for case in cases}


# What is recorded.


def observe(case: Case, through: Callable[[Any], Any] = lambda fitted: fitted) -> Parts:
    """Run a case; return its answers to new rows, its objective and its counts.

    ``through`` gets the fitted estimator and returns the one that is asked.
    """
    rows = case.rows()
    with warnings.catch_warnings():
        # Fits this short do not converge, and features so few are all in use.
        warnings.simplefilter("ignore", ConvergenceWarning)
        fitted = through(_fit(case, rows))
        return _answers(fitted, rows) | _course(fitted)


def _fit(case: Case, rows: Rows) -> Any:
    estimator = case.make(**case.parameters)
    if case.portions:
        first: dict[str, Any] = {"classes": np.unique(rows.y)} if hasattr(estimator, "decision_function") else {}
        for i in range(case.portions):
            estimator.partial_fit(rows.X[i :: case.portions], rows.y[i :: case.portions], **first)
        return estimator
    estimator.fit(rows.X, rows.y, **rows.labels_of_fit)
    for changed in case.then:
        estimator.set_params(**changed).fit(rows.X, rows.y, **rows.labels_of_fit)
    return estimator


def _answers(fitted: Any, rows: Rows) -> Parts:
    """Scores, numbers, labels and features of new rows, as far as the estimator has them."""
    found: Parts = {}
    if hasattr(fitted, "decision_function"):
        scores = fitted.decision_function(rows.new, **rows.labels_of_new)
        found["scores"] = np.column_stack(scores) if isinstance(scores, list) else scores
    if hasattr(fitted, "predict"):
        found["predictions"] = fitted.predict(rows.new, **rows.labels_of_new)
    if hasattr(fitted, "transform"):
        found["features"] = fitted.transform(rows.new)
    if hasattr(fitted, "score_samples"):
        found["bounds"] = fitted.score_samples(rows.new)
    if hasattr(fitted, "inverse_transform"):
        found["reconstructions"] = fitted.inverse_transform(found["features"])
    if hasattr(fitted, "thresholds_"):
        found["thresholds"] = fitted.thresholds_
    if hasattr(fitted, "cv_results_"):
        found["fold scores"] = fitted.cv_results_["mean_test_score"]
    return found


def _course(fitted: Any) -> Parts:
    """The objective at the end, the sum of its terms all the way, iterations and features in use."""
    fitted = getattr(fitted, "best_estimator_", getattr(fitted, "estimator_", fitted))
    found: Parts = {}
    if hasattr(fitted, "trace_"):
        trace = fitted.trace_
        found["objective"] = trace.objective[-1:]
        found["sums of terms"] = np.sum(list(trace.terms.values()), axis=0)
        found["iterations"] = np.array([fitted.n_iter_])
    if hasattr(fitted, "n_components_"):
        found["features in use"] = np.array([fitted.n_components_])
    return found


# The store: all arrays end to end in one, with their names and shapes, which compresses better than a file of each.


def write(answers: Mapping[str, Parts]) -> None:
    """Store the answers of cases."""
    entries = [
        (case, part, np.asarray(array, dtype=np.float64)) for case in answers for part, array in answers[case].items()
    ]
    np.savez_compressed(
        STORE,
        allow_pickle=False,
        names=np.array([f"{case}|{part}|{'x'.join(map(str, array.shape))}" for case, part, array in entries]),
        values=np.concatenate([array.ravel() for _, _, array in entries]),
    )


@functools.cache
def recorded() -> dict[str, Parts]:
    """Read the stored answers of all cases."""
    with np.load(STORE, allow_pickle=False) as store:
        names, values = store["names"].tolist(), store["values"]
    answers: dict[str, Parts] = {}
    for name in names:
        case, part, shape = name.split("|")
        sizes = tuple(int(size) for size in shape.split("x") if size)
        array, values = np.split(values, [int(np.prod(sizes))])
        answers.setdefault(case, {})[part] = array.reshape(sizes)
    return answers


def difference(old: Any, new: Any) -> float:
    """The largest difference of two arrays, relative to the largest entry; infinite where shapes differ."""
    old, new = np.asarray(old, dtype=np.float64), np.asarray(new, dtype=np.float64)
    if old.shape != new.shape or np.any(np.isfinite(old) != np.isfinite(new)):
        return np.inf
    old, new = old[np.isfinite(old)], new[np.isfinite(new)]
    largest = np.max(np.abs(old), initial=0.0)
    return float(np.max(np.abs(new - old), initial=0.0) / (largest if largest > 0 else 1.0))


def differences(old: Parts, new: Parts) -> dict[str, float]:
    """Compare two answers, part by part; a part that only one of them has differs infinitely."""
    return {part: difference(old.get(part, []), new.get(part, [])) for part in {**old, **new}}


def _chosen(patterns: Iterable[str]) -> list[Case]:
    patterns = list(patterns) or ["*"]
    unknown = [pattern for pattern in patterns if not any(fnmatch(name, pattern) for name in CASES)]
    if unknown:
        sys.exit(f"there is no case {unknown[0]!r}")
    return [case for case in CASES.values() if any(fnmatch(case.name, pattern) for pattern in patterns)]


def main() -> None:
    """Record cases again, or say how far today's answers are from the stored ones."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("cases", nargs="*", metavar="CASE", help="names, also with * in them; all by default")
    does = parser.add_mutually_exclusive_group(required=True)
    does.add_argument("--write", action="store_true", help="store today's answers")
    does.add_argument("--differences", action="store_true", help="compare them with the stored ones")
    arguments = parser.parse_args()
    stored = recorded() if STORE.exists() else {}
    for case in _chosen(arguments.cases):
        found = observe(case)
        apart = differences(stored[case.name], found) if case.name in stored else {"new": np.inf}
        worst = max(apart, key=lambda part: apart[part])
        print(f"{apart[worst]:8.1e}  {case.name} ({worst})")  # noqa: T201
        stored = stored | {case.name: found}
    if arguments.write:
        write({name: stored[name] for name in CASES if name in stored})


if __name__ == "__main__":
    main()
