"""Summaries of a fitted model as text and JSON."""

from __future__ import annotations

from typing import Any

import numpy as np

from regbayes.cli.errors import counted
from regbayes.cli.modelfile import ModelFile
from regbayes.cli.output import Output, called_as

__all__ = ["show_model", "summary", "topics_of"]

SETTINGS = {
    "interpretable": "interpretable (sparse nonnegative features); soft ones: --slab none",
    "predictive": "predictive (soft features); sparse ones, easier to interpret: --slab half-normal",
}


def summary(model: ModelFile) -> dict[str, Any]:
    """Return the summary of a fitted model for JSON."""
    found = {name: value for name, value in model.facts.items() if name not in ("source", "metric", "warnings")}
    return {**found, "topics": topics_of(model)} if model.of_documents else found


def topics_of(model: ModelFile) -> list[dict[str, Any]]:
    """Return the topics with their top words and weights, the most important first.

    Topics of a single regression target are sorted by weight, others by their influence on the scores.
    """
    if model.report is None:
        return []
    features = model.report.features
    weights = np.asarray(features.weights)
    order = np.argsort(-np.asarray(features.influence), kind="stable")
    if model.target.kind == "regressor" and weights.shape[1] == 1:
        order = np.argsort(-weights[:, 0], kind="stable")
    return [
        {
            "topic": int(features.number[place]),
            "share": float(features.mean[place]),
            "weights": dict(zip(features.output_names, weights[place].tolist(), strict=True)),
            "words": list(features.distinctive[place]),
        }
        for place in order.tolist()
    ]


def show_model(model: ModelFile, path: str, out: Output) -> None:
    """Print the summary of a model, the comparison and suggested next commands."""
    found = summary(model)
    settings = ", ".join(f"{name}={value}" for name, value in found["settings"].items())
    facts = {"model": f"{found['estimator']}, {settings}"}
    if found["setting"] is not None:
        facts["setting"] = SETTINGS[found["setting"]]
    nothing = "the mean" if model.target.kind == "regressor" else "the most frequent class"
    baseline = f"always {nothing}: {found['baseline_score']:.3f}"
    if (cv := found["cross_validation"]) is not None:
        score = f"{model.facts['metric']} {cv['pooled']:.3f} ± {cv['std']:.3f}"
        facts["score"] = f"{score} over {counted(cv['folds'], 'fold')} ({baseline})"
    else:
        facts["score"] = f"not cross-validated ({model.facts['metric']} of {baseline})"
    if model.of_documents:
        facts["topics"] = f"{found['n_components']}, of {counted(found['inputs'], 'word')}"
        _show_topics(model, out)
    else:
        facts["features"] = f"{found['n_components_in_use']} of {found['n_components']} in use"
    facts["time"] = f"{found['seconds']:.1f} s"
    if found["kept"] is not None:
        facts["stopped"] = found["kept"]
    facts["saved"] = path
    if not found["no_better_than_baseline"]:
        facts["next"] = f"{called_as()} report {path} --output report.html"
        facts[""] = f"{called_as()} predict {path} NEW_DATA"
    if found["comparison"] is not None:
        _show_comparison(found["comparison"], out)
    out.facts(facts)
    if found["no_better_than_baseline"]:
        _show_failure(model, found["comparison"], out)


def _show_comparison(comparison: dict[str, Any], out: Output) -> None:
    """Print the table of systems and the conclusions."""
    rows = [
        [
            row["name"],
            "–" if row["score"] is None else f"{row['score']:.3f}",
            "" if row["std"] is None else f"± {row['std']:.3f}",
            row["note"] or f"{row['size']} {row['size_unit']}",
            f"{row['seconds']:.1f}",
        ]
        for row in comparison["systems"]
    ]
    out.table(
        f"Comparison with baselines, on the held-out rows of {counted(comparison['folds'], 'fold')}",
        ["", comparison["metric"], "", "size", "seconds"],
        rows,
    )
    for sentence in comparison["messages"][int(comparison["no_better_than_baseline"]) :]:
        out.line(sentence)


def _show_failure(model: ModelFile, comparison: dict[str, Any], out: Output) -> None:
    """Print a banner with advice for a model that is no better than the baseline."""
    advice = "More rows, other inputs or another target may help."
    if model.target.kind == "classifier" and comparison["metric"] == "accuracy":
        advice += " Where one class is rare: --balanced."
    if model.facts["weight"]:
        advice += " Where rows are cells of a table of counts, folds leave out whole cells: --no-cv, or one row a case."
    out.banner(f"{comparison['messages'][0]} It is saved all the same. {advice}")


def _show_topics(model: ModelFile, out: Output, most: int = 12, n_words: int = 7) -> None:
    """Print the most important topics with their weights and words."""
    topics = topics_of(model)
    if not topics:
        return
    number = model.target.kind == "regressor" and len(model.target.names) == 1
    shown = topics[:most]
    if number and len(topics) > most:  # topics that increase the target and topics that decrease it
        shown = topics[: most // 2] + topics[-most // 2 :]
    classes = model.report.features.group_names
    rows = []
    for topic in shown:
        weights: dict[str, float] = topic["weights"]
        name, weight = max(weights.items(), key=lambda item: item[1])
        what = f"{weight:+.3g}" if number else name
        if len(weights) == 1 and not number:  # a binary target has one weight, that of the second class
            what = classes[int(weight > 0)]
        rows.append([what, ", ".join(topic["words"][:n_words])])
    some = "" if len(shown) == len(topics) else f" ({len(shown)} of {len(topics)}; the page has all)"
    heading = f"weight for {model.target.names[0]}" if number else "highest weight"
    out.table(f"topics{some}", [heading, "words that distinguish it"], rows, numbers=False)
