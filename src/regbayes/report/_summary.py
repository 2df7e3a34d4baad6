"""The model in a few lines: its name, settings and scores, and the history of its fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from inspect import signature
from typing import Any

import numpy as np
from sklearn.pipeline import Pipeline

from regbayes._types import Floats
from regbayes.margins.head import MAX_CLASS_WEIGHTS
from regbayes.report._answers import scores_of
from regbayes.report._examples import dense_rows
from regbayes.report._models import LatentModel, used
from regbayes.report._targets import Outcomes
from regbayes.report.data import History, Level, Model, Sample

MAX_RECORDS = 300  # of the trace
MAX_VALUE_TEXT = 90


@dataclass(frozen=True)
class Told:
    """What the caller says of a fit."""

    scores: Mapping[str, float | tuple[float, float]]
    data_name: str
    sample: Sample
    target_name: str
    notices: tuple[tuple[Level, str], ...]


def summary_of(estimator: Any, latent: LatentModel, values: Floats, outcomes: Outcomes | None, told: Told) -> Model:
    """Say what was fitted, to what, and how well it does."""
    model = latent.model
    found: list[tuple[str, float, str]] = []
    deviations: list[float] = []
    own = [] if outcomes is None else scores_of(outcomes)
    meanings = {name: meaning for name, _, meaning in own}
    for name, value in told.scores.items():
        mean, deviation = value if isinstance(value, tuple) else (value, np.nan)
        found.append((str(name), float(mean), meanings.get(name, "")))
        deviations.append(float(deviation))
    if hasattr(estimator, "best_score_"):
        found.append(("cross-validation", float(estimator.best_score_), "mean score over the folds of the search"))
        deviations.append(_deviation_of_best(estimator))
    found += [score for score in own if score[0] not in told.scores]
    if outcomes is None and hasattr(model, "inverse_transform"):
        found.append(_reconstruction(latent, values))
    deviations += [np.nan] * (len(found) - len(deviations))
    facts = [
        (
            "topics in use" if hasattr(model, "top_words") else "features in use",
            f"{int(used(latent, values).sum())} of {len(model.components_)}",
        )
    ]
    names = ("temperature_", "generative_weight_", "noise_variance_", "prior_variance_", "n_iter_")
    facts += [(name, f"{getattr(model, name):.4g}") for name in names if hasattr(model, name)]
    facts += _margins_of_classes(model)
    return Model(
        name=_model_name(estimator, model),
        settings=tuple(_settings(model)),
        facts=tuple(facts),
        scores=tuple(found),
        n_rows=len(values),
        n_inputs=np.asarray(model.components_).shape[1],
        data_name=told.data_name,
        deviations=tuple(deviations),
        sample=told.sample,
        target_name=told.target_name,
        notices=told.notices,
    )


def _margins_of_classes(model: Any) -> list[tuple[str, str]]:
    """Say which margins were chosen where "auto" took each class against the rest, and why."""
    if getattr(model, "multi_class", None) != "auto" or getattr(model, "multi_class_", None) != "ovr":
        return []
    why = "inputs are included" if model.include_inputs else f"there are more than {MAX_CLASS_WEIGHTS:,} weights"
    return [("margins", f"each class against the rest, because {why}")]


def _deviation_of_best(search: Any) -> float:
    """Return the deviation of a search's best score over its folds; NaN where it is not told."""
    table = getattr(search, "cv_results_", {})
    found = table.get("std_test_score", table.get("std_score"))
    return float(found[search.best_index_]) if found is not None and hasattr(search, "best_index_") else np.nan


def _model_name(estimator: Any, model: Any) -> str:
    if isinstance(estimator, Pipeline):
        return " → ".join(type(step).__name__ for _, step in estimator.steps)
    own = type(model).__name__
    return own if estimator is model else f"{own} in {type(estimator).__name__}"


def _reconstruction(latent: LatentModel, values: Floats) -> tuple[str, float, str]:
    X = dense_rows(latent.X, np.arange(len(values))).astype(np.float64)
    left = np.sum((X - latent.model.inverse_transform(values)) ** 2)
    total = np.sum((X - X.mean(axis=0)) ** 2)
    share = 1.0 - float(left / total) if total > 0 else float("nan")
    return "explained", share, "share of the inputs' variance that the features explain"


def _settings(model: Any) -> list[tuple[str, str, bool]]:
    defaults = {name: parameter.default for name, parameter in signature(type(model)).parameters.items()}
    given = sorted(model.get_params(deep=False).items())
    return [(name, _short(value), _short(value) != _short(defaults.get(name))) for name, value in given]


def _short(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= MAX_VALUE_TEXT else text[:MAX_VALUE_TEXT] + "…"


def collect_history(model: Any) -> History | None:
    """Return the trace of a fit, thinned; None if there is none."""
    trace = getattr(model, "trace_", None)
    if trace is None or len(trace) == 0:
        return None
    kept = np.unique(np.linspace(0, len(trace) - 1, min(len(trace), MAX_RECORDS)).round().astype(int))
    names = tuple(trace.terms)
    return History(
        iterations=np.asarray(trace.iterations)[kept],
        objective=np.asarray(trace.objective)[kept],
        term_names=names,
        terms=np.array([trace.terms[name][kept] for name in names]).reshape(len(names), len(kept)),
        n_iter=int(trace.iterations[-1]),
        seconds=float(trace.elapsed[-1]),
        n_rises=trace.rises.count,
        largest_rise=trace.rises.largest,
        note="The fit draws samples, so the objective wanders once they have settled."
        if getattr(model, "inference", None) == "gibbs"
        else "",
    )
