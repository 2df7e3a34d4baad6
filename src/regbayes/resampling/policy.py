"""The decisions of tempering that change which result is returned, each with its source."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TemperingPolicy:
    """Lengths of runs, limits of diagnostics and when to stop.

    Sources: [1] Vehtari et al. (2024), Pareto smoothed importance sampling, JMLR 25(72); [2] Vehtari et al. (2021),
    Rank-normalization, folding, and localization, Bayesian Analysis 16(2); [3] Gelman and Rubin (1992), Statistical
    Science 7(4); [4] Betancourt (2016), arXiv:1604.00695, at the limit of RStan's ``check_energy``; [bench]
    ``python benchmarks/bench_resample.py --fresh``.
    """

    short_draws: int = 100  # of each chain of a run on the way [bench]
    max_k_hat: float = 0.5  # up to which weights have a variance [1]
    min_step_ess: float = 25.0  # effective draws that weights must leave for a step [bench]
    min_ess: float = 100.0  # effective draws behind a prediction of a final run, in it, and left by its reweighting [2]
    max_start_r_hat: float = 1.1  # of the posterior before any tilt [3]
    max_r_hat: float = 1.05  # of a final run [2]
    min_e_bfmi: float = 0.2  # [4]
    max_divergences: float = 0.002  # share of a final run's draws [bench]
    max_discrepancy: float = 4.0  # of a final run from its prediction: twice its 99.9% distance [bench]
    max_shift: float = 10.0  # standard deviations from its prediction at which a short run is discarded [bench]
    max_discarded: int = 3  # runs [bench]
    max_missed: float = 0.05  # share of earlier draws in a region that a final run missed [bench]
    max_stalled: int = 5  # runs without a new minimum of the remaining divergence [bench]
    max_final_runs: int = 2  # with objections [bench]
