"""Simulation-based calibration of MedLDA's Gibbs sampler and of `resample` on a conjugate model.

    python benchmarks/bench_calibration.py                # 1,000 data sets for each sampler
    python benchmarks/bench_calibration.py --smoke

Parameters and data are simulated from the model, and the sampler draws parameters given the data. The ranks of the true
parameters among the draws are uniform if the sampler is correct (Talts et al. 2018). The table shows the p-value of a
chi-squared test of uniformity for each quantity.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "helpers"))

import calibration


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=1000, metavar="N", help="Number of data sets (default: 1000).")
    parser.add_argument("--smoke", action="store_true", help="Run ten data sets.")
    options = parser.parse_args()
    count = 10 if options.smoke else options.count
    print(f"{'sampler':28s}{'quantity':26s}{'p-value':>8s}{'seconds':>9s}")
    for name, sampler in calibration.SAMPLERS.items():
        started = time.perf_counter()
        for quantity, p_value in calibration.calibrate(sampler, range(count)).items():
            print(f"{name:28s}{quantity:26s}{p_value:8.3f}{time.perf_counter() - started:9.1f}")


if __name__ == "__main__":
    main()
