"""Compare the statuses of `regularize` on hard problems with independent references.

    python benchmarks/bench_certificates.py                        # 2,000 problems, minutes
    python benchmarks/bench_certificates.py --seeds 1 2 --check    # other problems; exit status 1 if the bar is missed
    python benchmarks/bench_certificates.py --smoke                # a few problems, for continuous integration

Problems, references and rules are those of tests/regularization/battery. The table has a row for each status of
`regularize` and a column for each status of the references. Errors are listed with the call that generates the problem.
The bar: no wrong status, and at most 1% of the problems with a known optimum remain unsolved.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "regularization"))

from battery.verdicts import ALLOWED, Verdict, given_up, judge_drawn, judge_named

SMOKE = 60


def collect(seeds: Sequence[int], count: int, workers: int) -> list[Verdict]:
    """Judge ``count`` problems of each seed, and the named problems."""
    verdicts = judge_named()
    with ProcessPoolExecutor(workers) as pool:
        for seed in seeds:
            verdicts += pool.map(partial(judge_drawn, seed), range(count), chunksize=10)
    return verdicts


def print_table(verdicts: Sequence[Verdict]) -> None:
    counts = Counter((v.status, v.reference) for v in verdicts)
    columns = sorted({reference for _, reference in counts})
    width = max(len(c) for c in columns) + 2
    print(f"{'regularize | reference':24}" + "".join(f"{c:>{width}}" for c in columns))
    for row in sorted({status for status, _ in counts}):
        print(f"{row:24}" + "".join(f"{counts[row, c] or '':>{width}}" for c in columns))


def print_seconds(verdicts: Sequence[Verdict]) -> None:
    print(f"\n{'seconds of regularize':24}{'count':>8}{'median':>10}{'largest':>10}")
    for word in ("optimum", "boundary", "infeasible"):
        if seconds := [v.seconds for v in verdicts if v.answer.word == word]:
            print(f"{word:24}{len(seconds):8}{np.median(seconds):10.4f}{max(seconds):10.3f}")


def main() -> int:
    """Print the table, times and errors; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help=f"{SMOKE} problems, seconds")
    parser.add_argument("--problems", type=int, default=2000, help="how many of each seed")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--workers", type=int, default=1, help="processes")
    parser.add_argument("--check", action="store_true", help="exit with status 1 where the bar is missed")
    arguments = parser.parse_args()
    count = SMOKE if arguments.smoke else arguments.problems
    verdicts = collect(arguments.seeds, count, arguments.workers)
    print_table(verdicts)
    print_seconds(verdicts)
    wrong = [v for v in verdicts if v.wrong]
    left, solvable = given_up(verdicts)
    print(f"\n{len(wrong)} wrong words in {len(verdicts)} problems")
    print(f"given up: {len(left)} of {solvable} with an optimum, {len(left) / solvable:.2%} (at most {ALLOWED:.0%})")
    noisy = [v for v in verdicts if v.noise]
    print(f"NumPy's warnings that got out: {len(noisy)}", *(f"{v.label}: {v.noise}" for v in noisy[:3]), sep="\n    ")
    for title, chosen in (("wrong", wrong), ("given up", left)):
        print(f"\n{title}:" if chosen else "")
        for verdict in chosen:
            print(verdict)
    return int(arguments.check and (bool(wrong) or len(left) > ALLOWED * solvable))


if __name__ == "__main__":
    sys.exit(main())
