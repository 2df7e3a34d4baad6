"""The model in a few lines: its name, settings and scores, and the course of its fit."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import signature
from typing import Any

import numpy as np
from sklearn.pipeline import Pipeline

from regbayes._types import Floats
from regbayes.report._answers import scores_of
from regbayes.report._examples import dense_rows
from regbayes.report._models import LatentModel, used
from regbayes.report._targets import Outcomes
from regbayes.report.data import Course, Model

MAX_RECORDS = 300  # of the trace
MAX_VALUE_TEXT = 90


def summary_of(
    estimator: Any,
    latent: LatentModel,
    values: Floats,
    outcomes: Outcomes | None,
    scores: Mapping[str, float] | None,
    data_name: str,
) -> Model:
    """Say what was fitted, to what, and how well it does."""
    model = latent.model
    found = [(str(name), float(value), "") for name, value in (scores or {}).items()]
    if hasattr(estimator, "best_score_"):
        found.append(("cross-validation", float(estimator.best_score_), "mean score over the folds of the search"))
    if outcomes is not None:
        found += scores_of(outcomes)
    elif hasattr(model, "inverse_transform"):
        found.append(_reconstruction(latent, values))
    facts = [
        (
            "topics in use" if hasattr(model, "top_words") else "features in use",
            f"{int(used(latent, values).sum())} of {len(model.components_)}",
        )
    ]
    names = ("temperature_", "generative_weight_", "noise_variance_", "prior_variance_", "n_iter_")
    facts += [(name, f"{getattr(model, name):.4g}") for name in names if hasattr(model, name)]
    return Model(
        name=_model_name(estimator, model),
        settings=tuple(_settings(model)),
        facts=tuple(facts),
        scores=tuple(found),
        n_rows=len(values),
        n_inputs=np.asarray(model.components_).shape[1],
        data_name=data_name,
    )


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


def course_of(model: Any) -> Course | None:
    """Return the trace of a fit, thinned; None if there is none."""
    trace = getattr(model, "trace_", None)
    if trace is None or len(trace) == 0:
        return None
    kept = np.unique(np.linspace(0, len(trace) - 1, min(len(trace), MAX_RECORDS)).round().astype(int))
    names = tuple(trace.terms)
    return Course(
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
