"""``python -m regbayes_paper WHAT``: rerun a table or figure of the paper."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from regbayes_paper.experiments import EXPERIMENTS, run

FAILED, USAGE, NO_DATA, INTERRUPTED = 1, 2, 5, 130  # exit codes; 0 is success

EPILOG = """\
examples:
  python -m regbayes_paper table1 --quick
  REGBAYES_DATA=my/data python -m regbayes_paper school --output results --jobs 2

Results are kept in the output folder, one line per system, data set and seed, and are not measured again: after Ctrl-C
the same command continues where it stopped. Records of another protocol, other data or another version are not used.
Without REGBAYES_DATA, the folder of your data sets, the quick form uses data sets of scikit-learn."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one experiment or all of them, and return the exit code."""
    options = _parse(arguments)
    say = partial(print, file=sys.stderr, flush=True)
    try:
        options.output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        say(f"error: --output {options.output}: {error.strerror}")
        return USAGE
    failed = False
    try:
        from regbayes_paper.data import DataError, DataNotFoundError

        for name in EXPERIMENTS if options.what == "all" else (options.what,):
            outcome = run(
                name,
                quick=options.quick,
                output=options.output,
                seeds=options.seeds,
                jobs=options.jobs,
                fresh=options.fresh,
                say=say,
            )
            if outcome.interrupted:
                return INTERRUPTED
            failed |= bool(outcome.failed)
    except KeyboardInterrupt:  # before the first measurement, or while results are written
        say("error: interrupted")
        return INTERRUPTED
    except (DataNotFoundError, DataError) as error:
        say(f"error: {error}")
        return NO_DATA
    return FAILED if failed else 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m regbayes_paper",
        description="Rerun one of the paper's tables or figures: its systems, its numbers, and other methods on the "
        "same splits.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "what", metavar="WHAT", choices=[*EXPERIMENTS, "all"], help=f"One of {', '.join(EXPERIMENTS)}, or all."
    )
    parser.add_argument("--quick", action="store_true", help="Run the small form, which takes less than a minute.")
    parser.add_argument(
        "-o", "--output", metavar="PATH", type=Path, default=Path("regbayes-results"), help="Folder for results."
    )
    parser.add_argument("--seeds", metavar="N", type=int, help="Number of seeds (default: the protocol's).")
    parser.add_argument(
        "-j", "--jobs", metavar="N", type=int, default=1, help="Number of processes; -1 for one per core."
    )
    parser.add_argument("--fresh", action="store_true", help="Discard earlier measurements.")
    options = parser.parse_args(arguments)
    if options.seeds is not None and options.seeds < 1:
        parser.error(f"--seeds must be at least 1; got {options.seeds}")
    if options.jobs == 0 or options.jobs < -1:
        parser.error(f"--jobs must be a number of processes, or -1 for one per core; got {options.jobs}")
    return options


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # batch systems send it: handled like Ctrl-C
    sys.exit(main())
