"""Markdown tables from records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from regbayes_paper.experiments.protocol import Block, Experiment, Metric, Record, by_line, mean_and_std

QUICK = "Small form: few samples, settings and seeds. It shows that everything runs; its numbers mean little."
COSTS = (
    "Numbers are means ± sample standard deviations over n seeds. *fit s*: seconds of the final fit on one core; "
    "*search s*: those of the cross-validation before it."
)


def render(experiment: Experiment, records: Sequence[Record], discussion: str = "", figures: str = ".") -> str:
    """Return the section of an experiment: protocol, tables with the paper's numbers, figures and remarks."""
    blocks, groups = experiment.blocks(records), by_line(records)
    parts = [f"## {experiment.title}", *([QUICK] if experiment.quick else []), *experiment.protocol()]
    metrics = {metric.key: metric for block in blocks for metric in block.metrics}.values()
    definitions = [f"- {m.label}: {m.definition}{', in percent' if m.percent else ''}." for m in metrics]
    parts += ["\n".join([*definitions, f"- {COSTS}"])] if blocks else ["No cell is recorded yet."]
    parts += [render_block(block, groups) for block in blocks]
    parts += [f"![{experiment.title}]({figures}/{name}.png)" for name in experiment.drawings(records) if blocks]
    parts += [*experiment.remarks(records), discussion.strip(), _sources(records)]
    return "\n\n".join(part for part in parts if part) + "\n"


def render_block(block: Block, groups: Mapping[tuple[str, str, str], list[Record]]) -> str:
    """Return one table, with the paper's numbers below ours."""
    rows = [["", *(metric.label for metric in block.metrics), "n", "fit s", "search s"]]
    blank, group = [""] * (len(rows[0]) - 1), ""
    for line in block.lines:
        if line.group != group:
            group = line.group
            rows.append([f"*{group}*", *blank])
        found = groups.get((block.dataset, line.row, line.setting))
        if found:
            costs = [np.mean([getattr(one, name) for one in found]) for name in ("fit_seconds", "search_seconds")]
            pairs = [(metric, mean_and_std(found, metric.key)) for metric in block.metrics]
            numbers = [
                show(metric, pair[0], pair[1] if len(found) > 1 else None) if pair else "" for metric, pair in pairs
            ]
            rows.append([line.label, *numbers, str(len(found)), *(f"{cost:.1f}" for cost in costs)])
        else:
            rows.append([line.label, "not run", *blank[1:]])
        if line.paper:
            rows.append(["— the paper", *(line.paper.get(metric.key, "") for metric in block.metrics), "", "", ""])
    rows.insert(1, ["---", *["---:"] * len(blank)])
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return "\n\n".join(part for part in (f"### {block.heading}", block.note, table) if part)


def _sources(records: Sequence[Record]) -> str:
    """Describe the commits and versions of the records."""
    names = ("commit", "python", "numpy", "scikit-learn", "date")
    found = sorted({", ".join(f"{name} {r.provenance.get(name, '?')}" for name in names) for r in records})
    return "Measured with " + "; ".join(found) + "." if found else ""


def show(metric: Metric, mean: float, std: float | None = None) -> str:
    """Format a number for a table."""
    factor = 100.0 if metric.percent else 1.0
    text = f"{factor * mean:.{metric.digits}f}"
    return text if std is None else f"{text} ± {factor * std:.{metric.digits}f}"
