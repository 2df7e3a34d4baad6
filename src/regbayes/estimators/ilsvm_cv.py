"""`ILSVMClassifierCV`: iLSVM with its parameters chosen by cross-validation."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any, ClassVar, Literal, Self

import numpy as np
from joblib import Parallel, delayed
from numpy.typing import ArrayLike, NDArray
from sklearn.base import (
    BaseEstimator,
    ClassifierMixin,
    ClassNamePrefixFeaturesOutMixin,
    TransformerMixin,
    _fit_context,
)
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import check_scoring
from sklearn.model_selection import check_cv
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from tqdm import tqdm

from regbayes._registry import Saveable, persistable
from regbayes.estimators._common import LATENT_CONSTRAINTS
from regbayes.estimators.ilsvm import ILSVMClassifier

Floats = NDArray[np.float64]
Candidate = dict[str, Any]

GRID = ("alphas", "temperatures", "generative_weights", "include_inputs", "Cs")
PARAMETERS = ("alpha", "temperature", "generative_weight", "include_inputs", "C")  # of ILSVMClassifier, in that order
FORWARDED = ("loss", "cost", "class_weight", "fit_intercept", "margins", "unlabeled", "max_iter", "tol")


@persistable(skip=("scoring",))
class ILSVMClassifierCV(Saveable, ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClassifierMixin, BaseEstimator):
    """iLSVM whose parameters are chosen by cross-validation, with warm starts along the path of C.

    Every combination of the listed values is tried on every fold. For each combination of the others, C goes from its
    smallest value up, each fit starting where the last one ended. The best combination is refitted on all rows.

    Parameters
    ----------
    n_components : int, default=50
        Truncation: the most features there can be.
    Cs : sequence of float, default=(0.1, 0.3, 1.0, 3.0)
        Values of C.
    alphas : sequence of float, default=(2.0,)
        Values of alpha.
    temperatures : sequence of float or "auto", default=("auto",)
        Values of temperature.
    generative_weights : sequence of float or "auto", default=("auto",)
        Values of generative_weight.
    include_inputs : sequence of bool, default=(False,)
        ``(False, True)`` lets cross-validation decide whether the classifier sees the inputs.
    cv : int, splitter or iterable, default=None
        As in scikit-learn; 5 stratified folds by default. Rows without a label are in every training part.
    scoring : str, callable or None, default=None
        As in scikit-learn; accuracy by default.
    loss, cost, class_weight, fit_intercept, margins, unlabeled, max_iter, tol
        As in `ILSVMClassifier`.
    random_state : int, RandomState instance or None, default=None
        For the starts.
    n_jobs : int or None, default=None
        Processes over folds and paths.
    verbose : int, default=0
        Whether to show a progress bar with the time left.

    Attributes
    ----------
    best_estimator_ : ILSVMClassifier
        Fitted to all rows; its fitted attributes are here too.
    C_, alpha_, temperature_, generative_weight_, include_inputs_
        The values chosen.
    best_score_ : float
        Mean score of the best combination over the folds.
    cv_results_ : dict of arrays
        One entry per combination: the parameters, ``split0_test_score`` ..., ``mean_test_score``,
        ``std_test_score``, ``rank_test_score``.

    See Also
    --------
    ILSVMClassifier : One setting.
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "n_components": LATENT_CONSTRAINTS["n_components"],
        "Cs": ["array-like"],
        "alphas": ["array-like"],
        "temperatures": ["array-like"],
        "generative_weights": ["array-like"],
        "include_inputs": ["array-like"],
        "cv": ["cv_object"],
        **{name: ILSVMClassifier._parameter_constraints[name] for name in FORWARDED},
        "random_state": ["random_state"],
        "n_jobs": LATENT_CONSTRAINTS["n_jobs"],
        "verbose": ["verbose"],
    }

    def __init__(
        self,
        n_components: int = 50,
        *,
        Cs: Sequence[float] = (0.1, 0.3, 1.0, 3.0),
        alphas: Sequence[float] = (2.0,),
        temperatures: Sequence[Any] = ("auto",),
        generative_weights: Sequence[Any] = ("auto",),
        include_inputs: Sequence[bool] = (False,),
        cv: Any = None,
        scoring: Any = None,
        loss: Literal["squared_hinge", "hinge"] = "squared_hinge",
        cost: ArrayLike | None = None,
        class_weight: Any = None,
        fit_intercept: bool = True,
        margins: Literal["consistent", "posterior"] = "consistent",
        unlabeled: Any = None,
        max_iter: int = 200,
        tol: float = 1e-4,
        random_state: Any = None,
        n_jobs: int | None = None,
        verbose: int = 0,
    ) -> None:
        self.n_components = n_components
        self.Cs = Cs
        self.alphas = alphas
        self.temperatures = temperatures
        self.generative_weights = generative_weights
        self.include_inputs = include_inputs
        self.cv = cv
        self.scoring = scoring
        self.loss = loss
        self.cost = cost
        self.class_weight = class_weight
        self.fit_intercept = fit_intercept
        self.margins = margins
        self.unlabeled = unlabeled
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.verbose = verbose

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Try every combination on every fold, and refit the best.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : array-like of shape (n_samples,)

        Returns
        -------
        self
        """
        X, y = validate_data(self, X, y, dtype=np.float64, ensure_min_samples=2)
        check_classification_targets(y)
        seed = check_random_state(self.random_state).randint(np.iinfo(np.int32).max)
        base = ILSVMClassifier(
            self.n_components, random_state=seed, **{name: getattr(self, name) for name in FORWARDED}
        )
        paths = [list(path) for path in self._paths()]
        folds = list(self._folds(X, y))
        scoring = check_scoring(base, self.scoring)
        tasks = [(fold, path) for fold in range(len(folds)) for path in range(len(paths))]
        found = Parallel(n_jobs=self.n_jobs, return_as="generator")(
            delayed(_score_path)(base, X, y, folds[fold], paths[path], scoring) for fold, path in tasks
        )
        bar = tqdm(found, total=len(tasks), desc=type(self).__name__, unit="path", disable=not self.verbose)
        scores = np.array(list(bar)).reshape(len(folds), -1)
        candidates = [candidate for path in paths for candidate in path]
        self._remember(candidates, scores)
        best = candidates[int(np.argmax(scores.mean(axis=0)))]
        self.best_estimator_ = base.set_params(**best).fit(X, y)
        for name, value in best.items():
            setattr(self, f"{name}_", value)
        for name, value in vars(self.best_estimator_).items():
            if name.endswith("_") and not name.startswith("_"):
                setattr(self, name, value)
        return self

    def _paths(self) -> Iterator[list[Candidate]]:
        """Combinations of everything but C; each is one path over C, from its smallest value up."""
        lists = {name: list(getattr(self, name)) for name in GRID}
        for name, values in lists.items():
            if not values:
                raise ValueError(f"{name} is empty; it must list at least one value to try")
        for others in product(*(lists[name] for name in GRID[:-1])):
            yield [dict(zip(PARAMETERS, (*others, C), strict=True)) for C in sorted(lists["Cs"])]

    def _folds(self, X: Floats, y: NDArray[Any]) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp]]]:
        """Folds over the labelled rows; the others join every training part."""
        labeled = np.ones(len(y), dtype=bool) if self.unlabeled is None else y != self.unlabeled
        rows, rest = np.flatnonzero(labeled), np.flatnonzero(~labeled)
        splitter = check_cv(self.cv, y[rows], classifier=True)
        for train, test in splitter.split(X[rows], y[rows]):
            yield np.sort(np.concatenate([rows[train], rest])), rows[test]

    def _remember(self, candidates: list[Candidate], scores: Floats) -> None:
        mean = scores.mean(axis=0)
        rank = np.argsort(np.argsort(-mean, kind="stable"), kind="stable") + 1
        self.best_score_ = float(mean.max())
        self.cv_results_ = {f"param_{name}": [c[name] for c in candidates] for name in PARAMETERS} | {
            **{f"split{i}_test_score": scores[i] for i in range(len(scores))},
            "mean_test_score": mean,
            "std_test_score": scores.std(axis=0),
            "rank_test_score": rank,
        }

    def transform(self, X: ArrayLike) -> Floats:
        """Return the label-free posterior means of the features of rows, shape (n_samples, n_components)."""
        return self._best(X).transform(X)

    def decision_function(self, X: ArrayLike) -> Floats:
        """Return the score of each class, shape (n_samples, n_classes), or (n_samples,) for two classes."""
        return self._best(X).decision_function(X)

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Return the class of each row, shape (n_samples,)."""
        return self._best(X).predict(X)

    def _best(self, X: ArrayLike) -> ILSVMClassifier:
        check_is_fitted(self)
        validate_data(self, X, dtype=np.float64, reset=False)
        if hasattr(self, "feature_names_in_"):
            self.best_estimator_.feature_names_in_ = self.feature_names_in_
        return self.best_estimator_

    @property
    def _n_features_out(self) -> int:
        return len(self.best_estimator_.components_)


def _score_path(
    base: ILSVMClassifier,
    X: Floats,
    y: NDArray[Any],
    fold: tuple[NDArray[np.intp], NDArray[np.intp]],
    path: list[Candidate],
    scoring: Any,
) -> list[float]:
    """Fit along a path of C on one fold, each fit from the last, and score each."""
    train, test = fold
    estimator = ILSVMClassifier(**base.get_params()).set_params(warm_start=True)
    scores = []
    for candidate in path:
        with warnings.catch_warnings():  # one warning, of the refitted model, is enough
            warnings.simplefilter("ignore", ConvergenceWarning)
            estimator.set_params(**candidate).fit(X[train], y[train])
        scores.append(float(scoring(estimator, X[test], y[test])))
    return scores
