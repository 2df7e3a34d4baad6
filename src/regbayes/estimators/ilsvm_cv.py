"""`ILSVMClassifierCV`: iLSVM with its parameters chosen by cross-validation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import (
    BaseEstimator,
    ClassifierMixin,
    ClassNamePrefixFeaturesOutMixin,
    TransformerMixin,
    _fit_context,
)
from sklearn.metrics import check_scoring
from sklearn.model_selection import check_cv
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data

from regbayes._registry import Saveable, persistable
from regbayes._types import Floats
from regbayes.estimators._common import LATENT_CONSTRAINTS, POSITIVE, check_listed, labeled_rows, row_weights
from regbayes.estimators._search import Fold, Samples, candidate_paths, fitted_best, refit_best, score_paths
from regbayes.estimators.ilsvm import ILSVMClassifier

GRID = {  # parameter of ILSVMClassifier -> the list of its values; C goes down along a path
    "alpha": "alphas",
    "temperature": "temperatures",
    "generative_weight": "generative_weights",
    "include_inputs": "include_inputs",
    "C": "Cs",
}
FORWARDED = (
    "loss",
    "multi_class",
    "cost",
    "class_weight",
    "fit_intercept",
    "margins",
    "unlabeled",
    "transductive",
    "noise_variance",
    "prior_variance",
    "n_sweeps",
    "max_iter",
    "tol",
)


@persistable(skip=("cv", "scoring"))  # either may be an object of any class
class ILSVMClassifierCV(Saveable, ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClassifierMixin, BaseEstimator):
    """iLSVM whose parameters are chosen by cross-validation, with warm starts along the path of C.

    Every combination of the listed values is tried on every fold. For each combination of the others, C goes from its
    largest value down, each fit starting where the last one ended: a smaller C keeps fewer features, and those that a
    fit has left out do not return. The best combination is refitted on all rows along the same path.

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
        As in scikit-learn; accuracy by default, which is what `score` returns in any case. ``cv`` and ``scoring``
        may be objects of any class and are not saved.
    loss, multi_class, cost, class_weight, fit_intercept, margins, unlabeled, transductive
        As in `ILSVMClassifier`, and so are the next five.
    noise_variance, prior_variance, n_sweeps, max_iter, tol
    random_state : int, RandomState instance or None, default=None
        For the starts.
    n_jobs : int or None, default=None
        Processes over folds and paths.
    verbose : int, default=0
        Whether to show a progress bar with the time left.

    Attributes
    ----------
    best_estimator_ : ILSVMClassifier
        Fitted to all rows, along the path that was scored; its fitted attributes are here too.
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
        multi_class: Literal["auto", "crammer_singer", "ovr"] = "auto",
        cost: ArrayLike | None = None,
        class_weight: Any = None,
        fit_intercept: bool = True,
        margins: Literal["consistent", "posterior"] = "consistent",
        unlabeled: Any = None,
        transductive: bool = False,
        noise_variance: float | Literal["auto", "estimate"] = "auto",
        prior_variance: float | Literal["auto", "estimate"] = "auto",
        n_sweeps: int = 1,
        max_iter: int = 200,
        tol: float = 1e-3,
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
        self.multi_class = multi_class
        self.cost = cost
        self.class_weight = class_weight
        self.fit_intercept = fit_intercept
        self.margins = margins
        self.unlabeled = unlabeled
        self.transductive = transductive
        self.noise_variance = noise_variance
        self.prior_variance = prior_variance
        self.n_sweeps = n_sweeps
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.verbose = verbose

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Try every combination on every fold, and refit the best.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : array-like of shape (n_samples,)
        sample_weight : array-like of shape (n_samples,), default=None
            How often each row counts, in the fits and in their scores.

        Returns
        -------
        self
        """
        X, y = validate_data(self, X, y, dtype=np.float64, ensure_min_samples=2)
        check_classification_targets(y)
        for name, listed in GRID.items():
            # A path goes along numbers: "auto" is no step on it.
            constraints = [POSITIVE] if name == "C" else ILSVMClassifier._parameter_constraints[name]
            check_listed(self, listed, constraints)
        seed = check_random_state(self.random_state).randint(np.iinfo(np.int32).max)
        base = ILSVMClassifier(
            self.n_components, random_state=seed, **{name: getattr(self, name) for name in FORWARDED}
        )
        paths = candidate_paths({name: (listed, getattr(self, listed)) for name, listed in GRID.items()})
        weights = row_weights(sample_weight, X)
        samples = Samples(X, y, {} if weights is None else {"sample_weight": weights})
        folds = list(self._folds(X, y))
        scorer = check_scoring(base, self.scoring)
        scores = score_paths(self, base, samples, folds, paths, scorer, backwards=True)
        candidates = [candidate for path in paths for candidate in path]
        best_path, best_place = divmod(int(np.argmax(scores.mean(axis=0))), len(paths[0]))
        before = paths[best_path][:best_place:-1]  # the larger values of C
        refit_best(self, base, samples, candidates, scores, before)
        return self

    def _folds(self, X: Floats, y: NDArray[Any]) -> Iterator[Fold]:
        """Folds over the labelled rows; the others join every training part."""
        labeled = labeled_rows(y, self.unlabeled)
        rows, rest = np.flatnonzero(labeled), np.flatnonzero(~labeled)
        splitter = check_cv(self.cv, y[rows], classifier=True)
        for train, test in splitter.split(X[rows], y[rows]):
            yield np.sort(np.concatenate([rows[train], rest])), rows[test]

    def transform(self, X: ArrayLike) -> Floats:
        """Return the label-free posterior means of the features of rows, shape (n_samples, n_components)."""
        return fitted_best(self, X).transform(X)

    def decision_function(self, X: ArrayLike) -> Floats:
        """Return the score of each class, shape (n_samples, n_classes), or (n_samples,) for two classes."""
        return fitted_best(self, X).decision_function(X)

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Return the class of each row, shape (n_samples,)."""
        return fitted_best(self, X).predict(X)

    @property
    def _n_features_out(self) -> int:
        return len(self.best_estimator_.components_)
