"""Runs an experiment: measures the cells that are not in the store yet, and prints and saves what there is.

Ctrl-C ends it at any moment; what was measured is on disk, is printed, and is not measured again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import sklearn
from joblib import Parallel, delayed

import regbayes
from regbayes_paper.experiments import tables
from regbayes_paper.experiments.protocol import Experiment, Measurement
from regbayes_paper.experiments.store import Cell, Record, ResultStore, fingerprint
from regbayes_paper.experiments.versions import protocol_code

Say = Callable[[str], None]


@dataclass(frozen=True)
class Outcome:
    """What a run has to show."""

    records: tuple[Record, ...]
    failed: Mapping[Cell, str]
    """Messages of the cells that raised an error; they are tried again the next time."""
    interrupted: bool
    computed: int
    """Cells that were measured in this run; the others were there already."""
    files: tuple[Path, ...]
    text: str
    """The tables as printed."""


def run_experiment(
    experiment: Experiment,
    output: Path,
    *,
    n_seeds: int | None = None,
    jobs: int = 1,
    fresh: bool = False,
    say: Say = print,
    show: Say = print,
) -> Outcome:
    """Measure what is missing, print the tables, and save records, CSV and figures.

    Parameters
    ----------
    experiment : Experiment
    output : Path
        Folder for the results. Records that are there already, from the same protocol, data and versions, are used.
    n_seeds : int, default=None
        Number of seeds; that of the protocol by default.
    jobs : int, default=1
        Processes.
    fresh : bool, default=False
        Whether to forget earlier records first.
    say : callable
        Where progress goes.
    show : callable
        Where the protocol and the tables go.
    """
    store = ResultStore(output / f"{experiment.stem}.jsonl")
    if fresh:
        store.clear()
    header = tables.render_header(experiment)
    show(header + "\n")
    planned = list(experiment.cells(n_seeds or experiment.n_seeds))
    prints = {cell: _fingerprint(experiment, cell) for cell in planned}
    done = store.find(prints)
    n_before = len(done)
    say(_plan(n_before, len(planned) - n_before, store.path))
    failed: dict[Cell, str] = {}
    interrupted = False
    try:
        _measure_missing(experiment, prints, store, done, failed, jobs=jobs, say=say)
    except KeyboardInterrupt:
        interrupted = True
    records = tuple(done[cell] for cell in planned if cell in done)
    tables_shown = tables.render_tables(experiment, records, planned, failed)
    text = "\n\n".join([tables_shown, *(experiment.remarks(records) if records else ())])
    show("\n" + text + "\n")
    files = _save(experiment, output, records, f"{header}\n\n{text}\n")
    if interrupted:
        say(f"Interrupted: {len(records)} of {len(planned)} cells are there. The same command continues from here.")
    elif failed:
        say(f"{len(failed)} of {len(planned)} cells failed. The same command tries them again.")
    say("Written: " + ", ".join(map(str, [store.path, *files] if records else files)))
    return Outcome(records, failed, interrupted, len(records) - n_before, tuple(files), text)


def _measure_missing(
    experiment: Experiment,
    prints: Mapping[Cell, str],
    store: ResultStore,
    done: dict[Cell, Record],
    failed: dict[Cell, str],
    *,
    jobs: int,
    say: Say,
) -> None:
    """Measure the cells that are not in ``done``; store each as soon as it is known, and enter it or its error."""
    todo = [cell for cell in prints if cell not in done]
    started = time.perf_counter()
    for count, (cell, result) in enumerate(_measure_cells(experiment, todo, jobs), start=1):
        if isinstance(result, Measurement):
            record = Record(cell, prints[cell], **asdict(result))
            store.append(record)
            done[cell] = record
        else:
            failed[cell] = f"failed: {result}"
        left = (time.perf_counter() - started) / count * (len(todo) - count)
        say(f"[{count}/{len(todo)}] {cell}: {_shown(experiment, result)}{_time_left(left)}")


def _fingerprint(experiment: Experiment, cell: Cell) -> str:
    versions = {"regbayes": regbayes.__version__, "scikit-learn": sklearn.__version__, "numpy": np.__version__}
    versions["protocol"] = protocol_code()
    facts = {"experiment": experiment.name, "quick": experiment.quick, "cell": asdict(cell), "versions": versions}
    return fingerprint(facts | {"facts": dict(experiment.facts(cell))})


def _measure_cells(
    experiment: Experiment, cells: Sequence[Cell], jobs: int
) -> Iterator[tuple[Cell, Measurement | Exception]]:
    """Yield each cell with what was measured, or with the error, as soon as it is known."""
    if jobs == 1:
        for cell in cells:
            yield _one(experiment, cell)
        return
    workers = Parallel(n_jobs=jobs, return_as="generator_unordered", pre_dispatch="n_jobs")
    with closing(workers(delayed(_one)(experiment, cell) for cell in cells)) as results:
        yield from results


def _one(experiment: Experiment, cell: Cell) -> tuple[Cell, Measurement | Exception]:
    try:
        return cell, experiment.evaluate(cell)
    except Exception as error:  # one system that fails must not take the others' hours with it
        return cell, RuntimeError(f"{type(error).__name__}: {error}")


def _plan(n_done: int, n_todo: int, path: Path) -> str:
    if not n_done:
        return f"{n_todo} cells to measure."
    return f"{n_done} cells are in {path} already, {n_todo} to measure."


def _shown(experiment: Experiment, result: Measurement | Exception) -> str:
    if isinstance(result, Exception):
        return f"failed: {result}"
    metric = next((m for m in experiment.metrics if m.key in result.values), None)
    value = f"{metric.label} {tables.show(metric, result.values[metric.key])}, " if metric is not None else ""
    return f"{value}{result.fit_seconds + result.search_seconds:.1f} s"


def _time_left(seconds: float) -> str:
    if seconds < 1:
        return ""
    return f"; about {seconds:.0f} s left" if seconds < 100 else f"; about {seconds / 60:.0f} min left"


def _save(experiment: Experiment, output: Path, records: Sequence[Record], text: str) -> list[Path]:
    """Write text, CSV and figures, and return the files."""
    stem = output / experiment.stem
    files = [stem.with_name(f"{experiment.stem}{end}") for end in (".txt", ".csv", "-cells.csv")]
    tables.write_text(files[0], text)
    tables.write_summary(files[1], experiment, records)
    tables.write_cells(files[2], records)
    return files + experiment.draw(records, output) if records else files
