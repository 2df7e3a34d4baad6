"""``python -m regbayes_paper WHAT``: rerun a table or figure of the paper."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from regbayes_paper.data import DataError, DataNotFoundError
from regbayes_paper.experiments import EXPERIMENTS, make
from regbayes_paper.experiments.runner import run_experiment

FAILED, NO_DATA, INTERRUPTED = 1, 5, 130  # exit codes; 0 is success, 2 is wrong usage

EPILOG = """\
examples:
  python -m regbayes_paper table1 --quick
  REGBAYES_DATA=my/data python -m regbayes_paper school --output results --jobs 2

Each cell (system, data set, setting and seed) is recorded as soon as it is measured, and not measured again: after
Ctrl-C the same command continues. Use --fresh after the code or the data have changed."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one experiment or all of them, and return the exit code."""
    options = _parse(arguments)
    say, failed = partial(print, file=sys.stderr, flush=True), False
    try:
        for name in EXPERIMENTS if options.what == "all" else (options.what,):
            outcome = run_experiment(
                make(name, quick=options.quick),
                options.output,
                n_seeds=options.seeds,
                jobs=options.jobs,
                fresh=options.fresh,
                say=say,
            )
            if outcome.interrupted:
                return INTERRUPTED
            failed |= bool(outcome.failed)
    except KeyboardInterrupt:  # before the first measurement
        return INTERRUPTED
    except (DataNotFoundError, DataError) as error:
        say(f"error: {error}")
        return NO_DATA
    return FAILED if failed else 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m regbayes_paper",
        description="Rerun one of the paper's tables or figures, with other methods on the same splits.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = ", ".join(EXPERIMENTS)
    parser.add_argument("what", metavar="WHAT", choices=[*EXPERIMENTS, "all"], help=f"One of {names}, or all.")
    parser.add_argument("--quick", action="store_true", help="Run the small form.")
    parser.add_argument(
        "-o", "--output", metavar="PATH", type=Path, default=Path("regbayes-results"), help="Folder for results."
    )
    parser.add_argument("--seeds", metavar="N", type=int, help="Number of seeds (default: the protocol's).")
    parser.add_argument("-j", "--jobs", metavar="N", type=int, default=1, help="Number of processes; -1: one per core.")
    parser.add_argument("--fresh", action="store_true", help="Discard earlier records.")
    options = parser.parse_args(arguments)
    if options.seeds is not None and options.seeds < 1:
        parser.error(f"--seeds must be at least 1; got {options.seeds}")
    if options.jobs == 0:
        parser.error("--jobs must not be 0")
    return options


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # batch systems send it: handled like Ctrl-C
    sys.exit(main())
