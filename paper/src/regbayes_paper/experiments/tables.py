"""From records to what is printed and saved: aligned text, and CSV."""

from __future__ import annotations

import csv
import io
import os
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from regbayes_paper.experiments.protocol import Block, Experiment, Line, Metric
from regbayes_paper.experiments.store import Cell, Record

WIDTH = 100
NOTHING = "–"


@dataclass(frozen=True)
class Summary:
    """What the records of one line come to."""

    mean: dict[str, float]
    std: dict[str, float]
    """Of the sample (divided by n - 1); absent where there is one seed."""
    n: int
    fit_seconds: float
    search_seconds: float
    memory_mb: float | None


def summarize(records: Sequence[Record]) -> Summary:
    """Average the records of a line over its seeds; of memory the median, as the first fit of a process loads code."""
    keys = [key for key in records[0].values if all(key in r.values for r in records)]
    columns = {key: np.array([r.values[key] for r in records]) for key in keys}
    memory = [r.memory_mb for r in records if r.memory_mb is not None]
    return Summary(
        {key: float(values.mean()) for key, values in columns.items()},
        {key: float(values.std(ddof=1)) for key, values in columns.items()} if len(records) > 1 else {},
        len(records),
        float(np.mean([r.fit_seconds for r in records])),
        float(np.mean([r.search_seconds for r in records])),
        float(np.median(memory)) if memory else None,
    )


def by_line(records: Sequence[Record]) -> dict[tuple[str, str, str], list[Record]]:
    """Group records by data set, row and setting, the seeds in order."""
    groups: dict[tuple[str, str, str], list[Record]] = {}
    for record in sorted(records, key=lambda r: r.cell):
        groups.setdefault((record.cell.dataset, record.cell.row, record.cell.setting), []).append(record)
    return groups


QUICK = "Quick form: small data, few settings and seeds. It shows that everything runs; its numbers mean little."
COSTS = (
    "Mean ± sample standard deviation over n seeds. fit s: seconds of the final fit; search s: of the cross-validation "
    "before it; MB: peak of the memory of both above what the process held before (median over seeds). One process, "
    "one BLAS thread."
)


def render_header(experiment: Experiment) -> str:
    """Return the title, the protocol and the definitions of the metrics."""
    parts = [experiment.title, "=" * len(experiment.title), ""]
    for paragraph in (*([QUICK] if experiment.quick else []), *experiment.protocol()):
        parts += [*_wrap(paragraph), ""]
    metrics = {m.key: m for block in experiment.blocks() for m in (block.metrics or experiment.metrics)}
    width = max(len(m.label) for m in metrics.values())
    for metric in metrics.values():
        percent = ", in percent" if metric.percent else ""
        first, *rest = textwrap.wrap(metric.definition + percent, WIDTH - width - 4)
        parts.append(f"  {metric.label:<{width}}  {first}")
        parts += [" " * (width + 4) + line for line in rest]
    return "\n".join([*parts, "", *_wrap(COSTS)])


def render_tables(
    experiment: Experiment, records: Sequence[Record], planned: Sequence[Cell], failed: Mapping[Cell, str]
) -> str:
    """Return all tables with what there is so far."""
    groups = by_line(records)
    wanted: dict[tuple[str, str, str], int] = {}
    for cell in planned:
        key = (cell.dataset, cell.row, cell.setting)
        wanted[key] = wanted.get(key, 0) + 1
    broken = {(c.dataset, c.row, c.setting): message for c, message in failed.items()}
    return "\n\n".join(_render_block(experiment, block, groups, wanted, broken) for block in experiment.blocks())


def _render_block(
    experiment: Experiment,
    block: Block,
    groups: Mapping[tuple[str, str, str], list[Record]],
    wanted: Mapping[tuple[str, str, str], int],
    broken: Mapping[tuple[str, str, str], str],
) -> str:
    metrics = block.metrics or experiment.metrics
    rows: list[Row] = [Row(["", *(m.label for m in metrics), "n", "fit s", "search s", "MB"])]
    group = ""
    for line in block.lines:
        key = (block.dataset, line.row, line.setting)
        label = f"{line.row}, {line.setting}" if line.setting else line.row
        found = groups.get(key)
        title = line.group if line.group != group else ""
        group = line.group
        if found:
            numbers = _numbers(metrics, summarize(found), wanted.get(key, len(found)))
            rows.append(Row([label, *numbers], broken.get(key, ""), title))
        else:
            rows.append(Row([label], line.missing or broken.get(key) or "not run yet", title))
        if line.paper:
            rows.append(Row(["  the paper", *(line.paper.get(m.key, "") for m in metrics)]))
    lines = _wrap(block.heading) + [wrapped for note in block.notes for wrapped in _wrap(note)]
    return "\n".join(lines + _align(rows))


@dataclass(frozen=True)
class Row:
    """A row of text: cells, and what to say behind them or above."""

    cells: list[str]
    note: str = ""
    title: str = ""


def _numbers(metrics: Sequence[Metric], summary: Summary, wanted: int) -> list[str]:
    cells = [show(metric, summary.mean.get(metric.key), summary.std.get(metric.key)) for metric in metrics]
    count = str(summary.n) if summary.n == wanted else f"{summary.n} of {wanted}"
    memory = f"{summary.memory_mb:.1f}" if summary.memory_mb is not None else NOTHING
    search = f"{summary.search_seconds:.1f}" if summary.search_seconds >= 0.05 else NOTHING
    return [*cells, count, f"{summary.fit_seconds:.2f}", search, memory]


def show(metric: Metric, mean: float | None, std: float | None = None) -> str:
    """Return a number as a table has it."""
    if mean is None:
        return NOTHING
    factor = 100.0 if metric.percent else 1.0
    text = f"{factor * mean:.{metric.digits}f}"
    return text if std is None else f"{text} ± {factor * std:.{metric.digits}f}"


def _align(rows: Sequence[Row]) -> list[str]:
    n = len(rows[0].cells)
    widths = [max(len(row.cells[i]) for row in rows if i < len(row.cells)) for i in range(n)]
    out = []
    for number, row in enumerate(rows):
        if row.title:
            out.append(f"[{row.title}]")
        padded = [
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row.cells, widths, strict=False))
        ]
        out.append("  ".join([*padded, row.note] if row.note else padded).rstrip())
        if number == 0:
            out.append("-" * (sum(widths) + 2 * (n - 1)))
    return out


def _wrap(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH) or [""]


CELL_COLUMNS = ("dataset", "row", "setting", "seed")
COST_COLUMNS = ("fit_seconds", "search_seconds", "memory_mb")


def write_cells(path: Path, records: Sequence[Record]) -> None:
    """Write one line of CSV for each cell, at full precision."""
    keys = sorted({key for record in records for key in record.values})
    rows = [[*CELL_COLUMNS, *keys, *COST_COLUMNS, "chosen", "fingerprint"]]
    for r in sorted(records, key=lambda r: r.cell):
        cell = [str(getattr(r.cell, column)) for column in CELL_COLUMNS]
        values = [repr(r.values[key]) if key in r.values else "" for key in keys]
        cost = ["" if getattr(r, column) is None else f"{getattr(r, column):.6g}" for column in COST_COLUMNS]
        chosen = "; ".join(f"{name}={value}" for name, value in r.chosen.items())
        rows.append([*cell, *values, *cost, chosen, r.fingerprint])
    _write(path, rows)


def write_summary(path: Path, experiment: Experiment, records: Sequence[Record]) -> None:
    """Write one line of CSV for each line of the tables and each metric, those that could not be run among them."""
    rows = [["dataset", "row", "setting", "metric", "paper", "mean", "std", "n", *COST_COLUMNS, "note"]]
    groups = by_line(records)
    for block in experiment.blocks():
        for line in block.lines:
            found = groups.get((block.dataset, line.row, line.setting))
            summary = summarize(found) if found else None
            rows += [_summary_row(block, line, metric, summary) for metric in block.metrics or experiment.metrics]
    _write(path, rows)


def _summary_row(block: Block, line: Line, metric: Metric, summary: Summary | None) -> list[str]:
    start = [block.dataset, line.row, line.setting, metric.key, line.paper.get(metric.key, "")]
    if summary is None:
        return [*start, *[""] * 6, line.missing or "not run yet"]
    mean, std = summary.mean.get(metric.key), summary.std.get(metric.key)
    numbers = ["" if value is None else repr(value) for value in (mean, std)]
    cost = [getattr(summary, column) for column in COST_COLUMNS]
    return [*start, *numbers, str(summary.n), *("" if c is None else f"{c:.6g}" for c in cost), ""]


def _write(path: Path, rows: Sequence[Sequence[str]]) -> None:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows(rows)
    write_text(path, buffer.getvalue())


def write_text(path: Path, text: str) -> None:
    """Replace a file only once the new one is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(text, encoding="utf-8")
    os.replace(draft, path)
