"""From a harmonium's parameters to views, settings and fitted attributes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np
from sklearn.utils._param_validation import Interval, StrOptions

from regbayes._types import Floats, Indices
from regbayes.estimators._bases import NOT_NEGATIVE, POSITIVE, binary_difference
from regbayes_paper.models.harmonium import units
from regbayes_paper.models.harmonium.learning import Settings
from regbayes_paper.models.harmonium.model import State
from regbayes_paper.models.harmonium.units import BernoulliUnits, GaussianUnits, PoissonUnits, Units, Visible

KINDS = ("gaussian", "bernoulli", "poisson")
MARGIN_SHARE = 0.01  # generative weight, in units of C, when nothing is said

HARMONIUM_CONSTRAINTS: dict[str, list[Any]] = {
    "n_components": [Interval(Integral, 1, None, closed="left")],
    "visible": [str, list, tuple],
    "noise_variance": [POSITIVE, StrOptions({"half", "residual"})],
    "learning": [StrOptions({"mean_field", "contrastive_divergence"})],
    "learning_rate": [POSITIVE],
    "batch_size": [Interval(Integral, 1, None, closed="left")],
    "n_gibbs": [Interval(Integral, 1, None, closed="left")],
    "max_iter": [Interval(Integral, 0, None, closed="left")],
    "tol": [NOT_NEGATIVE],
    "random_state": ["random_state"],
}


@dataclass(frozen=True)
class View:
    """Columns of one kind."""

    kind: str
    columns: Indices


def read_views(visible: Any, n_columns: int, names: Sequence[str] | None) -> list[View]:
    """Turn the parameter ``visible`` into views that have every column once."""
    if isinstance(visible, str):
        return [View(_check_kind(visible), np.arange(n_columns))]
    views = []
    for i, view in enumerate(visible):
        if isinstance(view, str) or not isinstance(view, Sequence) or len(view) != 2:
            raise ValueError(f"visible[{i}] must be a pair of a kind and its columns, got {view!r}")
        views.append(View(_check_kind(view[0]), _read_columns(view[1], i, n_columns, names)))
    uses = np.bincount(np.concatenate([np.empty(0, int), *(view.columns for view in views)]), minlength=n_columns)
    if np.any(uses != 1):
        wrong = int(np.flatnonzero(uses != 1)[0])
        raise ValueError(
            f"every column of X must be in one view of visible, but {_column_name(wrong, names)} is in {uses[wrong]}"
        )
    return views


def _check_kind(kind: Any) -> str:
    if kind not in KINDS:
        raise ValueError(f"the kinds of visible units are {', '.join(map(repr, KINDS))}; visible has {kind!r}")
    return str(kind)


def _read_columns(columns: Any, i: int, n_columns: int, names: Sequence[str] | None) -> Indices:
    """Return the indices that a slice, a mask, indices or names stand for."""
    if isinstance(columns, slice):
        return np.arange(n_columns)[columns]
    given = np.atleast_1d(np.asarray(columns))
    if given.ndim == 1 and given.size and given.dtype.kind in "UO":
        if names is None:
            raise ValueError(f"the columns of visible[{i}] are names, but X has none: give a data frame, or indices")
        places = {name: place for place, name in enumerate(names)}
        unknown = [name for name in given.tolist() if name not in places]
        if unknown:
            raise ValueError(f"visible[{i}] has {unknown[0]!r}, which is no column of X")
        return np.array([places[name] for name in given.tolist()], dtype=np.int64)
    if given.dtype.kind == "b" and given.shape == (n_columns,):
        return np.flatnonzero(given)
    if given.ndim != 1 or given.dtype.kind not in "iu" or given.size == 0:
        raise ValueError(
            f"the columns of visible[{i}] must be a slice, indices, names, or a mask of {n_columns} booleans; "
            f"got {columns!r}"
        )
    if given.min() < -n_columns or given.max() >= n_columns:
        raise ValueError(f"visible[{i}] has a column out of range: X has {n_columns} columns, got {columns!r}")
    return np.asarray(given % n_columns, dtype=np.int64)


def _column_name(column: int, names: Sequence[str] | None) -> str:
    return f"column {column}" if names is None else f"column {column} ({names[column]!r})"


def make_visible(
    views: Sequence[View], X: Floats, weights: Floats, noise_variance: float | str, n_components: int
) -> Visible:
    """Set up the units of each view from the training rows."""
    found: list[Units] = []
    for view in views:
        x = X[:, view.columns]
        if view.kind == "gaussian":
            _check_size(x)
            found.append(units.make_gaussian(x, weights, _noise(x, weights, noise_variance, n_components)))
        else:
            make = units.make_bernoulli if view.kind == "bernoulli" else units.make_poisson
            found.append(make(x, weights))
    return Visible(tuple(view.columns for view in views), tuple(found))


def _noise(x: Floats, weights: Floats, noise_variance: float | str, n_components: int) -> float:
    if noise_variance == "half":
        return units.half_variance(x, weights)
    if noise_variance == "residual":
        return units.residual_variance(x, weights, n_components)
    return float(noise_variance)


def _check_size(x: Floats) -> None:
    """Refuse values whose squares leave the floating-point numbers."""
    with np.errstate(over="ignore", under="ignore"):
        square = float(np.square(x - x.mean(axis=0)).mean()) if x.size else 0.0
    if not np.finfo(np.float64).tiny <= square < np.finfo(np.float64).max and np.ptp(x) != 0:
        raise ValueError(f"X is too {'large' if square > 1 else 'small'} to square it: give it in other units")


def check_values(views: Sequence[View], X: Floats, names: Sequence[str] | None) -> None:
    """Refuse values that units of a view cannot have, naming the first."""
    for view in views:
        x = X[:, view.columns]
        if view.kind == "bernoulli":
            bad, takes = (x != 0) & (x != 1), "zeros and ones"
        elif view.kind == "poisson":
            bad, takes = (x < 0) | (x != np.floor(x)), "counts, which are whole and not negative"
        else:
            continue
        if np.any(bad):
            row, place = (int(i) for i in np.argwhere(bad)[0])
            column = _column_name(int(view.columns[place]), names)
            raise ValueError(f"{view.kind} units take {takes}, but {column} of X is {x[row, place]} in row {row}")


def views_of(visible: Visible) -> list[View]:
    """The views that fitted units were made from."""
    kinds = {GaussianUnits: "gaussian", BernoulliUnits: "bernoulli", PoissonUnits: "poisson"}
    return [View(kinds[type(units)], columns) for columns, units in zip(visible.columns, visible.units, strict=True)]


def make_settings(parameters: Mapping[str, Any]) -> Settings:
    """Turn parameters, "auto" among them, into numbers; supervised ones are absent in the unsupervised model."""
    given = dict(parameters)
    C, weight = float(given.get("C", 0.0)), given.get("generative_weight", 1.0)
    if weight == "auto":
        weight = MARGIN_SHARE * C if C > 0 else 1.0  # without margins the weight of the likelihood does not matter
    return Settings(
        n_components=int(given["n_components"]),
        squared=given.get("loss", "squared_hinge") == "squared_hinge",
        generative_weight=float(weight),
        fit_intercept=bool(given.get("fit_intercept", False)),
        max_iter=int(given["max_iter"]),
        tol=float(given["tol"]),
        sampling=given["learning"] == "contrastive_divergence",
        learning_rate=float(given["learning_rate"]),
        batch_size=int(given["batch_size"]),
        n_gibbs=int(given["n_gibbs"]),
    )


def latent_attributes(state: State) -> dict[str, Any]:
    """Fitted attributes that describe the units."""
    return {
        "components_": state.params.weights.T,
        "embedding_": state.embedding,
        "mean_": state.visible.collect("mean"),
        "scale_": state.visible.collect("scale"),
        "_state": state,
    }


def classifier_attributes(state: State) -> dict[str, Any]:
    """Fitted attributes that describe the classifier; a binary one is the difference of its two classes."""
    head = state.head
    assert head is not None
    intercept = head.weights[:, -1] if head.fit_intercept else np.zeros(len(head.weights))
    return binary_difference({"coef_features_": head.feature_weights, "intercept_": intercept})
