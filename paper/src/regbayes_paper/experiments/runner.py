"""Run missing cells in parallel processes, and make tables and figures from the records.

Each result is appended to a JSON Lines file immediately, so an interrupted run continues with the next cell.
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from pathlib import Path

import numba
import numpy as np
import scipy
import sklearn

import regbayes
from regbayes_paper.experiments import tables
from regbayes_paper.experiments.protocol import Cell, Experiment, Record

Say = Callable[[str], None]
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


@dataclass(frozen=True)
class Task:
    """A cell to measure."""

    experiment: Experiment
    cell: Cell
    seconds: float = 0.0  # estimated time
    deadline: float = np.inf  # time by which the cell must have ended

    def __str__(self) -> str:
        return f"{self.experiment.stem}: {self.cell}"


@dataclass(frozen=True)
class Outcome:
    """Cells that a run did not complete."""

    failed: dict[str, str]  # error messages by cell; the next run tries these cells again
    skipped: int  # number of cells that would not have ended before the deadline
    interrupted: bool


def records_path(experiment: Experiment, folder: Path) -> Path:
    """Return the path of an experiment's records."""
    return folder / f"{experiment.stem}.jsonl"


def read_records(path: Path) -> dict[Cell, Record]:
    """Read the last record of each cell from a file, ignoring incomplete lines."""
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
    """Append a record to a file."""
    before = path.read_bytes()[-1:] if path.exists() else b"\n"
    with path.open("a", encoding="utf-8") as file:
        file.write(("" if before in (b"\n", b"") else "\n") + json.dumps(asdict(record), ensure_ascii=False) + "\n")


def provenance() -> dict[str, str]:
    """Return the commit (from git or REGBAYES_COMMIT), versions and date."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    commit = os.environ.get("REGBAYES_COMMIT", "")
    if not commit:
        commit = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    packages = {"regbayes": regbayes, "scikit-learn": sklearn, "numpy": np, "scipy": scipy, "numba": numba}
    versions = {name: package.__version__ for name, package in packages.items()}
    return {"commit": commit, "python": platform.python_version(), **versions, "date": time.strftime("%Y-%m-%d")}


def run(
    experiments: Sequence[Experiment],
    output: Path,
    *,
    n_seeds: int | None = None,
    jobs: int = 1,
    deadline: float = np.inf,
    fresh: bool = False,
    say: Say = print,
) -> Outcome:
    """Measure the cells without a record in the folder, and record them.

    ``n_seeds=None`` is the number of the protocol. Each of the processes has one thread. Cells that are estimated to
    end after the deadline (as from `time.time`) are skipped. ``fresh`` discards earlier records. Progress messages are
    passed to ``say``.
    """
    output.mkdir(parents=True, exist_ok=True)
    source = provenance()
    if fresh:
        for experiment in experiments:
            records_path(experiment, output).unlink(missing_ok=True)
    tasks, failed, skipped = [], {}, 0
    for experiment in experiments:
        found = plan(experiment, output, n_seeds)
        hours = sum(task.seconds for task in found) / 3600.0
        guess = "" if experiment.quick or not found else f", about {hours:.2f} hours of one core"
        say(f"{experiment.stem}: {len(found)} cells to measure{guess}.")
        tasks += [replace(task, deadline=deadline) for task in found]
    # Long cells first within a rank, which balances the processes.
    tasks.sort(key=lambda task: (task.experiment.rank(task.cell), -task.seconds))
    try:
        for count, (task, result) in enumerate(_measure(tasks, jobs), start=1):
            if isinstance(result, Record):
                append_record(records_path(task.experiment, output), replace(result, provenance=source))
                metric = next(metric for metric in task.experiment.metrics if metric.key in result.values)
                value = f"{metric.label} {tables.show(metric, result.values[metric.key])}"
                say(f"[{count}/{len(tasks)}] {task}; {value}, {result.seconds:.1f} s")
            elif result is None:
                skipped += 1
            else:
                failed[str(task)] = result
                say(f"[{count}/{len(tasks)}] {task}; {result}")
    except KeyboardInterrupt:
        say("Interrupted: the same command continues.")
        return Outcome(failed, skipped, True)
    if skipped:
        say(f"{skipped} cells were not begun: the same command continues.")
    return Outcome(failed, skipped, False)


def plan(experiment: Experiment, output: Path, n_seeds: int | None = None) -> list[Task]:
    """Return the missing cells with estimates of their times.

    The estimate is the time with another seed, or the time of the system in the small form, scaled by the work.
    """
    done = read_records(records_path(experiment, output))
    known = {(one.cell.dataset, one.cell.row, one.cell.setting): one.seconds for one in done.values()}
    small = type(experiment)(quick=True)
    seconds: dict[str, float] = defaultdict(float)
    work: dict[str, float] = defaultdict(float)
    for cell, record in read_records(records_path(small, output)).items():
        seconds[cell.row] += record.seconds
        work[cell.row] += small.work(cell)
    found = []
    for cell in experiment.cells(n_seeds or experiment.n_seeds):
        if cell not in done:
            line = (cell.dataset, cell.row, cell.setting)
            rate = seconds[cell.row] / max(work[cell.row], 1.0)
            found.append(Task(experiment, cell, known[line] if line in known else rate * experiment.work(cell)))
    return found


def _measure(tasks: Sequence[Task], jobs: int) -> Iterator[tuple[Task, Record | str | None]]:
    """Measure tasks in spawned processes with one thread each, which end when the loop is left."""
    if jobs == 1:
        yield from map(_one, tasks)
        return
    os.environ.update(dict.fromkeys(THREADS, "1"))  # inherited by the spawned processes
    with get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap_unordered(_one, tasks)


def _one(task: Task) -> tuple[Task, Record | str | None]:
    """Measure one task; return a record, an error message, or None if the deadline is too close."""
    if time.time() + task.seconds > task.deadline:
        return task, None
    try:
        record, dataset = task.experiment.evaluate(task.cell), task.experiment.dataset(task.cell.dataset)
        return task, replace(record, heading=dataset.heading, stands_for=dataset.stands_for)
    except Exception as error:  # a failure of one system must not stop the others
        return task, f"failed: {type(error).__name__}: {error}"


def section(experiment: Experiment, output: Path, figures: str = ".") -> str:
    """Return the tables of an experiment, with the optional discussion in NAME.md next to its records."""
    records = sorted(read_records(records_path(experiment, output)).values(), key=lambda record: record.cell)
    words = output / f"{experiment.stem}.md"
    return tables.render(experiment, records, words.read_text(encoding="utf-8") if words.exists() else "", figures)


def draw(experiment: Experiment, output: Path, folder: Path) -> list[Path]:
    """Draw the figures of an experiment if it has records and matplotlib is installed."""
    records = list(read_records(records_path(experiment, output)).values())
    if not records or importlib.util.find_spec("matplotlib") is None:
        return []
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, drawn in experiment.drawings(records).items():
        paths.append(folder / f"{name}.png")
        drawn().savefig(paths[-1])
    return paths
