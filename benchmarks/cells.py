"""Run independent measurements in single-threaded processes, with results in a JSON Lines file."""

from __future__ import annotations

import argparse
import json
import os
import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

Cell = tuple[Any, ...]


def parse(doc: str, splits: int, output: str, smoke_set: str) -> argparse.Namespace:
    """Parse the options that these scripts share; ``--smoke`` runs two splits of one set and keeps no file."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--splits", type=int, default=splits, help="splits or seeds of each set")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--output", type=Path, default=Path(output), help="JSON lines; cells in it are not run again")
    parser.add_argument("--sets", nargs="*", help="names of sets; default: all")
    parser.add_argument("--smoke", action="store_true", help="two splits of one small set")
    options = parser.parse_args()
    if options.smoke:
        options.splits, options.output, options.sets = 2, Path(os.devnull), [smoke_set]
    return options


def run_cells(measure: Callable[..., Any], cells: Iterable[Cell], options: argparse.Namespace) -> dict[Cell, Any]:
    """Return ``measure(*cell)`` of each cell, from the file or from a process."""
    cells, found = list(cells), {}
    if options.output.exists():
        for line in options.output.read_text(encoding="utf-8").splitlines():
            cell, values = json.loads(line)
            found[tuple(cell)] = values
    left = [cell for cell in cells if cell not in found]
    with options.output.open("a", encoding="utf-8") as file, ProcessPoolExecutor(options.jobs) as pool:
        waiting = {pool.submit(_measure, measure, cell): cell for cell in left}
        for done in as_completed(waiting):
            found[waiting[done]] = values = done.result()
            file.write(json.dumps([waiting[done], values], default=float) + "\n")
            file.flush()
    return {cell: found[cell] for cell in cells}


def _measure(measure: Callable[..., Any], cell: Cell) -> Any:
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return measure(*cell)


def mean_and_error(values: Iterable[float]) -> str:
    """Return a mean and its standard error."""
    array = np.asarray(list(values), dtype=float)
    error = array.std(ddof=1) / np.sqrt(len(array)) if len(array) > 1 else np.nan
    return f"{array.mean():+.3f} ± {error:.3f}"
