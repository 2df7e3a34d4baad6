"""Tables as aligned text."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

import numpy as np

from regbayes_paper.experiments.protocol import Block, Cell, Experiment, Line, Metric, Record, by_line, mean_and_std

WIDTH = 100
QUICK = "Small form: few samples, settings and seeds. It shows that everything runs; its numbers mean little."
COSTS = (
    "Numbers are means ± sample standard deviations over n seeds. fit s: seconds of the final fit; search s: of the "
    "cross-validation before it, in one process with one BLAS thread."
)


def render_header(experiment: Experiment) -> str:
    """Return the title, the protocol and the definitions of the metrics."""
    paragraphs = [experiment.title, *([QUICK] if experiment.quick else []), *experiment.protocol()]
    metrics = {metric.key: metric for block in experiment.blocks() for metric in block.metrics}
    for metric in metrics.values():
        unit = ", in percent" if metric.percent else ""
        paragraphs.append(f"{metric.label}: {metric.definition}{unit}.")
    return "\n\n".join(textwrap.fill(paragraph, WIDTH) for paragraph in [*paragraphs, COSTS])


def render_tables(experiment: Experiment, records: Sequence[Record], failed: Mapping[Cell, str]) -> str:
    """Return all tables with what there is so far."""
    groups = by_line(records)
    broken = {(cell.dataset, cell.row, cell.setting): message for cell, message in failed.items()}
    return "\n\n".join(render_block(block, groups, broken) for block in experiment.blocks())


def render_block(
    block: Block,
    groups: Mapping[tuple[str, str, str], list[Record]],
    broken: Mapping[tuple[str, str, str], str],
) -> str:
    """Return one table. The paper's numbers stand below ours; a line without a record says why."""
    rows = [["", *(metric.label for metric in block.metrics), "n", "fit s", "search s"]]
    titles, group = {}, ""
    for line in block.lines:
        key = (block.dataset, line.row, line.setting)
        if line.group != group:
            titles[len(rows)] = group = line.group
        label, found = f"{line.row}, {line.setting}" if line.setting else line.row, groups.get(key)
        if found:
            costs = [np.mean([getattr(one, name) for one in found]) for name in ("fit_seconds", "search_seconds")]
            cost = [f"{value:.2f}" for value in costs]
            rows.append([label, *(_number(metric, found) for metric in block.metrics), str(len(found)), *cost])
        else:
            rows.append([label, broken.get(key) or line.missing or "not run yet"])
        if line.paper:
            rows.append(["  the paper", *(line.paper.get(metric.key, "") for metric in block.metrics)])
    lines = [textwrap.fill(text, WIDTH) for text in (block.heading, block.note) if text]
    widths = [max(len(row[i]) for row in rows if len(row) > max(i, 2)) for i in range(len(rows[0]))]
    for number, row in enumerate(rows):
        if number in titles:
            lines.append(f"[{titles[number]}]")
        cells = [row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=False))]
        lines.append("  ".join(cells).rstrip() if len(row) > 2 else "  ".join([cells[0], row[1]]))
    return "\n".join(lines)


def _number(metric: Metric, records: Sequence[Record]) -> str:
    found = mean_and_std(records, metric.key)
    if found is None:
        return "–"
    return show(metric, found[0], found[1] if len(records) > 1 else None)


def show(metric: Metric, mean: float, std: float | None = None) -> str:
    """Return a number as a table has it."""
    factor = 100.0 if metric.percent else 1.0
    text = f"{factor * mean:.{metric.digits}f}"
    return text if std is None else f"{text} ± {factor * std:.{metric.digits}f}"


def label(line: Line) -> str:
    """Return the name of a line."""
    return f"{line.row}, {line.setting}" if line.setting else line.row
