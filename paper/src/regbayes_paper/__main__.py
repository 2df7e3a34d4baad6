"""Command line ``python -m regbayes_paper WHAT``: rerun tables and figures of the paper."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from regbayes_paper.data import DataError, DataNotFoundError
from regbayes_paper.experiments import EXPERIMENTS, make
from regbayes_paper.experiments.runner import draw, run, section

FAILED, NO_DATA, INTERRUPTED = 1, 5, 130  # exit codes; 0 is success, 2 is wrong usage
FOLDER = Path(__file__).resolve().parents[2]  # folder of the package in a checkout
PAGE, FIGURES = "results.md", "figures"

EPILOG = """\
examples:
  python -m regbayes_paper table1 --quick
  REGBAYES_DATA=my/data python -m regbayes_paper table2 school --jobs 16 --minutes 9
  python -m regbayes_paper all --render

Each cell (system, data set, setting and seed) is recorded as soon as it is measured, and not measured again: after
Ctrl-C the same command continues. Use --fresh after the code or the data have changed. The full form runs the small
one first and prints an estimate of its time."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run experiments, print their tables, and return the exit code."""
    options = _parse(arguments)
    names = list(EXPERIMENTS) if "all" in options.what else list(dict.fromkeys(options.what))
    if options.render:
        publish(options.output)
        return 0
    say = partial(print, file=sys.stderr, flush=True)
    experiments = [make(name, quick=options.quick) for name in names]
    deadline = time.time() + 60.0 * options.minutes
    work = partial(run, jobs=options.jobs, deadline=deadline, fresh=options.fresh, say=say)
    try:
        if not options.quick:
            small = work([make(name, quick=True) for name in names], options.output)
            if small.interrupted:
                return INTERRUPTED
        outcome = work(experiments, options.output, n_seeds=options.seeds)
    except KeyboardInterrupt:  # before the first measurement
        return INTERRUPTED
    except (DataNotFoundError, DataError) as error:
        say(f"error: {error}")
        return NO_DATA
    for experiment in experiments:
        print(section(experiment, options.output))
        draw(experiment, options.output, options.output)
    if outcome.interrupted:
        return INTERRUPTED
    return FAILED if outcome.failed else 0


def page(records: Path) -> str:
    """Return the Markdown page of all results, from the records in a folder."""
    sections = [section(make(name), records, FIGURES) for name in EXPERIMENTS]
    made = "This page is made by `python -m regbayes_paper all --render` from the records in `paper/results`."
    return "\n".join(["# Results\n", f"{made}\n", *sections])


def publish(records: Path, folder: Path = FOLDER / "docs") -> None:
    """Write the page of all results and its figures."""
    (folder / PAGE).write_text(page(records), encoding="utf-8")
    for name in EXPERIMENTS:
        draw(make(name), records, folder / FIGURES)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m regbayes_paper",
        description="Rerun the paper's tables and figures, with other methods on the same splits.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    help_of_what = f"One or more of {', '.join(EXPERIMENTS)}; or all."
    parser.add_argument("what", metavar="WHAT", nargs="+", choices=[*EXPERIMENTS, "all"], help=help_of_what)
    parser.add_argument("--quick", action="store_true", help="Run the small form.")
    parser.add_argument(
        "-o", "--output", metavar="PATH", type=Path, default=FOLDER / "results", help="Folder of the records."
    )
    parser.add_argument("--seeds", metavar="N", type=int, help="Number of seeds (default: the protocol's).")
    parser.add_argument("-j", "--jobs", metavar="N", type=int, default=1, help="Number of processes.")
    parser.add_argument("--minutes", metavar="M", type=float, default=np.inf, help="Begin no cell that ends later.")
    parser.add_argument("--fresh", action="store_true", help="Discard earlier records.")
    parser.add_argument("--render", action="store_true", help="Only write the page of results from the records.")
    options = parser.parse_args(arguments)
    if options.seeds is not None and options.seeds < 1:
        parser.error(f"--seeds must be at least 1; got {options.seeds}")
    if options.jobs < 1:
        parser.error(f"--jobs must be at least 1; got {options.jobs}")
    return options


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # batch systems send SIGTERM; handle it like Ctrl-C
    sys.exit(main())
