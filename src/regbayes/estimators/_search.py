"""Cross-validation along paths: the part that every ``...CV`` estimator of the package shares."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np
from joblib import Parallel, delayed
from numpy.typing import ArrayLike, NDArray
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted, validate_data
from tqdm import tqdm

from regbayes._types import Floats
from regbayes.estimators._common import set_fitted
from regbayes.estimators._reporting import InterruptedWarning

Candidate = dict[str, Any]
Fold = tuple[NDArray[np.intp], NDArray[np.intp]]
Score = Callable[..., float]


@dataclass(frozen=True)
class Samples:
    """What ``fit`` and ``score`` are given, row by row."""

    X: Floats  # (n, d)
    y: NDArray[Any]  # (n,) or (n, tasks)
    metadata: Mapping[str, NDArray[Any]] = field(default_factory=dict)  # name -> (n,)

    def take(self, rows: NDArray[np.intp]) -> Samples:
        """Return some of the rows."""
        return Samples(self.X[rows], self.y[rows], {name: values[rows] for name, values in self.metadata.items()})


def candidate_paths(grid: Mapping[str, tuple[str, Sequence[Any]]]) -> list[list[Candidate]]:
    """Return all combinations of the listed values as paths: the last parameter goes up along each.

    Parameters
    ----------
    grid : mapping
        From the parameter of the model to the name and the content of the list of its values.
    """
    for listed, values in grid.values():
        if len(values) == 0:
            raise ValueError(f"{listed} is empty; it must list at least one value to try")
    names = list(grid)
    *others, along = (list(values) for _, values in grid.values())
    return [[dict(zip(names, (*fixed, value), strict=True)) for value in sorted(along)] for fixed in product(*others)]


def score_paths(
    owner: Any,
    base: Any,
    samples: Samples,
    folds: Sequence[Fold],
    paths: Sequence[Sequence[Candidate]],
    score: Score,
    backwards: bool = False,
) -> Floats:
    """Return the score of every candidate on every fold, (folds, candidates).

    With ``backwards`` the first fit of a path is that of its last candidate. Folds and paths are shared out to
    ``owner.n_jobs`` processes; ``owner.verbose`` shows a bar with the time left.
    """
    jobs = [(fold, path) for fold in folds for path in paths]
    found = Parallel(n_jobs=owner.n_jobs, return_as="generator")(
        delayed(score_path)(base, samples, fold, path, score, backwards) for fold, path in jobs
    )
    bar = tqdm(found, total=len(jobs), desc=type(owner).__name__, unit="path", disable=not owner.verbose)
    return np.array(list(bar)).reshape(len(folds), -1)


@contextmanager
def searching() -> Iterator[None]:
    """Around a fit inside a search: no warnings, and an interrupted fit ends the search instead of being scored."""
    with warnings.catch_warnings():  # one warning, of the refitted model, is enough
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.simplefilter("error", InterruptedWarning)
        try:
            yield
        except InterruptedWarning:
            raise KeyboardInterrupt from None


def score_path(
    base: Any, samples: Samples, fold: Fold, path: Sequence[Candidate], score: Score, backwards: bool = False
) -> list[float]:
    """Fit along a path on one fold, each fit from the last, and score each, in the order of the path."""
    train, test = samples.take(fold[0]), samples.take(fold[1])
    estimator = clone(base).set_params(warm_start=True)
    scores = []
    for candidate in reversed(path) if backwards else path:
        with searching():
            estimator.set_params(**candidate).fit(train.X, train.y, **train.metadata)
        scores.append(float(score(estimator, test.X, test.y, **test.metadata)))
    return scores[::-1] if backwards else scores


def refit_best(
    owner: Any,
    base: Any,
    samples: Samples,
    candidates: Sequence[Candidate],
    scores: Floats,
    before: Sequence[Candidate] = (),
) -> None:
    """Fit the best candidate to all rows, and give its owner the results and the fitted attributes.

    ``before`` are candidates to fit first, each from the last: those that came before the best one on its path.
    """
    mean = scores.mean(axis=0)
    best = candidates[int(np.argmax(mean))]
    owner.best_score_ = float(mean.max())
    owner.cv_results_ = {f"param_{name}": [candidate[name] for candidate in candidates] for name in best} | {
        **{f"split{i}_test_score": scores[i] for i in range(len(scores))},
        "mean_test_score": mean,
        "std_test_score": scores.std(axis=0),
        "rank_test_score": np.searchsorted(np.sort(-mean), -mean) + 1,  # equals share a rank
    }
    for candidate in before:
        with searching():
            base.set_params(**candidate, warm_start=True).fit(samples.X, samples.y, **samples.metadata)
    owner.best_estimator_ = base.set_params(**best).fit(samples.X, samples.y, **samples.metadata)
    if before:
        base.set_params(warm_start=False)
    fitted = vars(owner.best_estimator_).items()
    set_fitted(owner, {name: value for name, value in fitted if name.endswith("_") and not name.startswith("_")})
    if hasattr(owner, "feature_names_in_"):
        owner.best_estimator_.feature_names_in_ = owner.feature_names_in_
    for name, value in best.items():
        setattr(owner, f"{name}_", value)


def fitted_best(owner: Any, X: ArrayLike) -> Any:
    """Return the refitted estimator, after checking that it exists and that X fits it."""
    check_is_fitted(owner, "best_estimator_")
    validate_data(owner, X, dtype=np.float64, reset=False)
    return owner.best_estimator_
