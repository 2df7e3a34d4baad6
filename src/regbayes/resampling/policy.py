"""Settings of tempering that affect the result, each with its source."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TemperingPolicy:
    """Run lengths, limits of diagnostics and stopping rules.

    Sources: [1] Vehtari et al. (2024), Pareto smoothed importance sampling, JMLR 25(72); [2] Vehtari et al. (2021),
    Rank-normalization, folding, and localization, Bayesian Analysis 16(2); [3] Gelman and Rubin (1992), Statistical
    Science 7(4); [4] Betancourt (2016), arXiv:1604.00695, at the limit of RStan's ``check_energy``; [bench]
    ``python benchmarks/bench_resample.py --fresh``.
    """

    short_draws: int = 100  # draws per chain of an intermediate run [bench]
    max_k_hat: float = 0.5  # largest k-hat for which weights have finite variance [1]
    min_step_ess: float = 25.0  # minimum effective draws after reweighting for a step [bench]
    min_ess: float = 100.0  # minimum effective draws of a final run, its prediction and its reweighting [2]
    max_start_r_hat: float = 1.1  # R-hat limit of the first run, without a tilt [3]
    max_r_hat: float = 1.05  # R-hat limit of a final run [2]
    min_e_bfmi: float = 0.2  # E-BFMI limit [4]
    max_divergences: float = 0.002  # maximum share of divergent draws in a final run [bench]
    max_discrepancy: float = 4.0  # limit of a final run's squared prediction error [bench]
    max_shift: float = 10.0  # prediction error, in SDs, above which a short run is discarded [bench]
    max_missed: float = 0.05  # maximum share of earlier draws in a region missed by a final run [bench]
    max_stalled: int = 5  # discarded runs, or runs without progress in the remaining divergence, to stop at [bench]
    max_final_runs: int = 2  # final runs with failed diagnostics before stopping [bench]
