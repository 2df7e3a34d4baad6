"""Runs an experiment: measures the cells that are not recorded yet, and prints and saves what there is.

Records are lines of JSON, written as soon as they are known, so an interrupted experiment continues with the next cell.
"""

from __future__ import annotations

import json
import platform
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import sklearn
from joblib import Parallel, delayed

import regbayes
from regbayes_paper.experiments import tables
from regbayes_paper.experiments.protocol import Cell, Experiment, Record

Say = Callable[[str], None]


@dataclass(frozen=True)
class Outcome:
    """What a run leaves."""

    records: tuple[Record, ...]
    failed: dict[Cell, str]  # messages; these cells are tried again the next time
    interrupted: bool
    text: str


def read_records(path: Path) -> dict[Cell, Record]:
    """Read the records of a file, the last of each cell; a line that was cut short is left out."""
    found = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            fields = json.loads(line)
            record = Record(**(fields | {"cell": Cell(**fields["cell"])}))
        except (ValueError, TypeError, KeyError):
            continue
        found[record.cell] = record
    return found


def append_record(path: Path, record: Record) -> None:
    """Add a record to the end of a file."""
    before = path.read_bytes()[-1:] if path.exists() else b"\n"
    with path.open("a", encoding="utf-8") as file:
        file.write(("" if before in (b"\n", b"") else "\n") + json.dumps(asdict(record), ensure_ascii=False) + "\n")


def provenance() -> dict[str, str]:
    """Return the commit, the versions and the date of a measurement."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    commit = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    versions = {"regbayes": regbayes.__version__, "scikit-learn": sklearn.__version__, "numpy": np.__version__}
    return {"commit": commit, "python": platform.python_version(), **versions, "date": time.strftime("%Y-%m-%d")}


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
    """Measure what is missing, print the tables, and save records, text and figures.

    Parameters
    ----------
    experiment : Experiment
    output : Path
        Folder for the results. Cells that are recorded there are not measured again.
    n_seeds : int, default=None
        Number of seeds; that of the protocol by default.
    jobs : int, default=1
        Processes.
    fresh : bool, default=False
        Whether to forget earlier records first.
    say, show : callable
        Where progress goes, and where the tables go.
    """
    output.mkdir(parents=True, exist_ok=True)
    path = output / f"{experiment.stem}.jsonl"
    if fresh:
        path.unlink(missing_ok=True)
    planned = list(experiment.cells(n_seeds or experiment.n_seeds))
    done, failed = read_records(path), {}
    todo = [cell for cell in planned if cell not in done]
    show(tables.render_header(experiment) + "\n")
    say(f"{len(planned) - len(todo)} of {len(planned)} cells are recorded in {path}.")
    source, started, interrupted = provenance(), time.perf_counter(), False
    try:
        for count, (cell, result) in enumerate(_measure(experiment, todo, jobs), start=1):
            if isinstance(result, Record):
                done[cell] = replace(result, provenance=source)
                append_record(path, done[cell])
            else:
                failed[cell] = result
            left = (time.perf_counter() - started) / count * (len(todo) - count)
            say(f"[{count}/{len(todo)}] {cell}: {_summary(experiment, result)}; about {left:.0f} s left")
    except KeyboardInterrupt:
        interrupted = True
    records = tuple(done[cell] for cell in planned if cell in done)
    text = "\n\n".join([tables.render_tables(experiment, records, failed), *experiment.remarks(records)])
    show("\n" + text + "\n")
    (output / f"{experiment.stem}.txt").write_text(f"{tables.render_header(experiment)}\n\n{text}\n", encoding="utf-8")
    if records:
        experiment.draw(records, output)
    say("Interrupted: the same command continues." if interrupted else f"Results are in {output}.")
    return Outcome(records, failed, interrupted, text)


def _measure(experiment: Experiment, cells: Sequence[Cell], jobs: int) -> Iterator[tuple[Cell, Record | str]]:
    if jobs == 1:
        yield from (_one(experiment, cell) for cell in cells)
        return
    workers = Parallel(n_jobs=jobs, return_as="generator_unordered", pre_dispatch="n_jobs")
    yield from workers(delayed(_one)(experiment, cell) for cell in cells)


def _one(experiment: Experiment, cell: Cell) -> tuple[Cell, Record | str]:
    try:
        return cell, experiment.evaluate(cell)
    except Exception as error:  # one system that fails must not stop the others
        return cell, f"failed: {type(error).__name__}: {error}"


def _summary(experiment: Experiment, result: Record | str) -> str:
    if isinstance(result, str):
        return result
    metric = next(metric for metric in experiment.metrics if metric.key in result.values)
    number = tables.show(metric, result.values[metric.key])
    return f"{metric.label} {number}, {result.fit_seconds + result.search_seconds:.1f} s"
