"""A fitted model in a few lines, for people and for programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from regbayes.cli.errors import counted
from regbayes.cli.modelfile import ModelFile
from regbayes.cli.output import Output, called_as

__all__ = ["show_model", "summary", "topics_of"]

SHOWN_TOPICS = 12
SHOWN_WORDS = 7


def summary(model: ModelFile) -> dict[str, Any]:
    """Return what a fitted model is, for JSON."""
    estimator, facts = model.estimator, model.facts
    found = {
        "estimator": type(estimator).__name__,
        "kind": model.target.kind,
        "targets": list(model.target.names),
        "task": model.target.task,
        "rows": facts["rows"],
        "inputs": facts["inputs"],
        "settings": facts["settings"],
        "n_components": estimator.n_components,
        "n_components_in_use": len(model.in_use),
        "seconds": facts["seconds"],
        "interrupted": facts["interrupted"],
        "baseline_score": facts["baseline"],
        "cross_validation": facts["cross_validation"],
        "kept": facts.get("kept"),
        "weight": facts.get("weight"),
        "no_better_than_baseline": facts.get("no_better_than_baseline"),
        "comparison": facts.get("comparison"),
    }
    if "sample_rows" in facts:  # of a file that was too large to search settings on all rows
        found["sample_rows"] = facts["sample_rows"]
    if "stability" in facts:  # was asked for
        found["stability"] = facts["stability"]
    return {**found, "topics": topics_of(model)} if model.of_documents else found


def topics_of(model: ModelFile) -> list[dict[str, Any]]:
    """Return the topics with their top words and what they speak for, those that matter most first.

    Topics of one number go from the highest weight to the lowest; others by how much they move the scores.
    """
    if model.report is None:
        return []
    features = model.report.features
    weights = np.asarray(features.weights)
    influence = np.asarray(features.deviation) * np.sqrt(np.mean(weights**2, axis=1))
    order = np.argsort(-influence, kind="stable")
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
    """Print what was found, the comparison with baselines, and what can be done next."""
    found = summary(model)
    settings = ", ".join(f"{name}={value}" for name, value in found["settings"].items())
    facts = {"model": f"{found['estimator']}, {settings}"}
    nothing = "the mean" if model.target.kind == "regressor" else "the most frequent class"
    baseline = "" if found["baseline_score"] is None else f"always {nothing}: {found['baseline_score']:.3f}"
    if (cv := found["cross_validation"]) is not None:
        score = f"{model.facts['metric']} {cv['pooled']:.3f} ± {cv['std']:.3f}"
        sampled = f" of a sample of {found['sample_rows']} rows" if "sample_rows" in found else ""
        score += f" over {counted(cv['folds'], 'fold')}{sampled}"
        facts["score"] = score + (f" ({baseline})" if baseline else "")
    else:
        facts["score"] = f"not cross-validated ({model.facts['metric']} of {baseline})"
    if model.of_documents:
        facts["topics"] = f"{found['n_components']}, of {counted(found['inputs'], 'word')}"
        _show_topics(model, out)
    else:
        in_use = found["n_components_in_use"]
        nobody = "" if in_use else ": predictions rest on the inputs alone, or are all alike"
        facts["features"] = f"{in_use} of {found['n_components']} in use{nobody}"
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
    """Print the systems side by side, and what follows."""
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
    """Print the banner, and what may help."""
    advice = "More rows, other inputs or another target may help; so may a look at how the file was read, above."
    if model.target.kind == "classifier" and comparison["metric"] == "accuracy":
        advice += " Where one class is rare: --balanced."
    if model.facts.get("weight"):
        advice += " Where rows are cells of a table of counts, folds leave out whole cells: --no-cv, or one row a case."
    out.banner(f"{comparison['messages'][0]} It is saved all the same. {advice}")


def _show_topics(model: ModelFile, out: Output) -> None:
    """Print the topics that matter most: their words, and what they speak for."""
    topics = topics_of(model)
    if not topics:
        return
    number = model.target.kind == "regressor" and len(model.target.names) == 1
    shown = topics[:SHOWN_TOPICS]
    if number and len(topics) > SHOWN_TOPICS:  # both ends: what raises the number, and what lowers it
        shown = topics[: SHOWN_TOPICS // 2] + topics[-SHOWN_TOPICS // 2 :]
    largest = max(abs(weight) for topic in shown for weight in topic["weights"].values())
    digits = min(5, max(0, 2 - int(np.floor(np.log10(largest))))) if largest > 0 else 2  # three of the largest
    classes = model.report.features.group_names
    rows = [
        [_weight(topic["weights"], digits) if number else _speaks_for(topic["weights"], classes), _words(topic)]
        for topic in shown
    ]
    what = f"weight for {model.target.names[0]}" if number else "speaks for"
    some = "" if len(shown) == len(topics) else f" ({len(shown)} of {len(topics)}; the page has all)"
    out.table(f"topics{some}", [what, "words that tell it from the others"], rows, numbers=False)


def _words(topic: dict[str, Any]) -> str:
    return ", ".join(topic["words"][:SHOWN_WORDS])


def _weight(weights: dict[str, float], digits: int) -> str:
    return f"{next(iter(weights.values())):+.{digits}f}"


def _speaks_for(weights: dict[str, float], classes: Sequence[str]) -> str:
    if len(weights) == 1:  # two classes: the weight is that of the second
        return classes[int(next(iter(weights.values())) > 0)]
    best = max(weights, key=lambda name: weights[name])
    return best if weights[best] > 0 else "–"
