"""Time `regularize`, CVXPY and SciPy's L-BFGS-B on the same dual, to the same duality gap.

    python benchmarks/bench_regularize.py            # 100,000 draws, 50 constraints; CVXPY takes minutes
    python benchmarks/bench_regularize.py --smoke    # small, for continuous integration

Columns are the seconds of `regularize`, the ratios of the other solvers' seconds to these (above 1 if `regularize` is
faster), the dual values (nan if a solver failed), and the peak memory of `regularize` relative to the draws.
"""

from __future__ import annotations

import argparse
import time
import tracemalloc
import warnings
from collections.abc import Callable

import cvxpy as cp
import numpy as np
from scipy.optimize import minimize
from scipy.special import logsumexp

from regbayes import Samples, regularize
from regbayes.regularizers import KL, Affine, AtLeast, Ball, Equal, Hinge, Regularizer, Ridge

GAP = 1e-6


def make_draws(n: int, m: int, seed: int = 0) -> np.ndarray:
    """Draw m correlated quantities on different scales, a third of them skewed."""
    rng = np.random.default_rng(seed)
    mixing = np.eye(m) + 0.5 * rng.normal(size=(m, m)) / np.sqrt(m) + 0.5 * rng.normal(size=(m, 1)) / np.sqrt(m)
    draws = rng.normal(size=(n, m)) @ mixing
    draws[:, ::3] = np.exp(0.3 * draws[:, ::3])
    return np.ascontiguousarray(draws * np.exp(rng.normal(size=m)))


def conjugate_in_cvxpy(g: Regularizer, u: cp.Variable) -> tuple[cp.Expression, list[cp.Constraint]]:
    """Express ``g*(u)`` in CVXPY."""
    if isinstance(g, Ridge):
        return u @ g.target + g.scale * cp.sum_squares(u) / 2, []
    if isinstance(g, Equal):
        return u @ g.target, []
    if isinstance(g, AtLeast):
        return u @ g.bound, [u <= 0]
    if isinstance(g, Ball):
        return u @ g.target + g.radius * cp.norm(u, 2), []
    if isinstance(g, Affine):  # a reflected hinge
        return u @ g.offset, [u <= 0, u >= -g.regularizer.C]
    if isinstance(g, KL):
        return -g.target @ (1 + cp.log(-u)), []
    raise TypeError(type(g).__name__)


def solve_with_cvxpy(psi: np.ndarray, g: Regularizer) -> float:
    """Solve the dual with the default solver; return the dual value."""
    u = cp.Variable(psi.shape[1])
    conjugate, constraints = conjugate_in_cvxpy(g, u)
    problem = cp.Problem(cp.Minimize(cp.log_sum_exp(-psi @ u) - np.log(len(psi)) + conjugate), constraints)
    try:
        problem.solve()
    except cp.error.SolverError:  # possible at this size; the table shows the time until the failure
        return np.nan
    return -float(problem.value)


def solve_with_lbfgs(psi: np.ndarray, g: Regularizer) -> float:
    """Minimize the smooth dual with L-BFGS-B to the required duality gap; return the dual value."""
    log_n, last = np.log(len(psi)), {}

    def objective(u: np.ndarray) -> tuple[float, np.ndarray]:
        scores = -(psi @ u)
        partition = float(logsumexp(scores))
        expectation = np.exp(scores - partition) @ psi
        slope = g.target + (g.scale * u if isinstance(g, Ridge) else 0.0)
        value = partition - log_n + g.conjugate(u)
        last.update(value=value, gap=abs(_fenchel_young(g, u, expectation)))
        return value, slope - expectation

    def stop(_: np.ndarray) -> None:
        if last["gap"] <= GAP * (1 + abs(last["value"])):
            raise StopIteration

    options = {"ftol": 0.0, "gtol": 0.0, "maxiter": 2000, "maxfun": 4000}
    result = minimize(objective, np.zeros(psi.shape[1]), jac=True, method="L-BFGS-B", callback=stop, options=options)
    return -float(result.fun)


def _fenchel_young(g: Regularizer, u: np.ndarray, x: np.ndarray) -> float:
    near = x if isinstance(g, Ridge) else g.target
    return g.value(near) + g.conjugate(u) - float(u @ x)


def timed(solve: Callable[[], float]) -> tuple[float, float]:
    """Return seconds and the dual value."""
    start = time.perf_counter()
    value = solve()
    return time.perf_counter() - start, value


def cases(psi: np.ndarray) -> dict[str, Regularizer]:
    """Return regularizers whose targets are 0.1 to 0.2 standard deviations from the mean."""
    mean, spread = psi.mean(axis=0), psi.std(axis=0)
    return {
        "Ridge (smooth)": Ridge(mean + 0.2 * spread, 0.1 * float(np.mean(spread**2))),
        "Equal (smooth)": Equal(mean + 0.1 * spread),
        "AtLeast": AtLeast(mean + 0.1 * spread),
        "hinge, C = 0.1": Hinge(0.1 / float(np.mean(spread))).reflect(mean + 0.2 * spread),
        "Ball, 2-norm": Ball(mean + 0.1 * spread, 0.2 * float(np.linalg.norm(0.1 * spread))),
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="a small problem, seconds")
    parser.add_argument("--draws", type=int, default=100_000)
    parser.add_argument("--constraints", type=int, default=50)
    parser.add_argument("--repeat", type=int, default=3, help="runs of ours and of L-BFGS-B; the median is shown")
    arguments = parser.parse_args()
    n, m = (2_000, 5) if arguments.smoke else (arguments.draws, arguments.constraints)
    psi = make_draws(n, m)
    posterior = Samples(np.zeros(n))
    warnings.simplefilter("ignore")  # accuracy warnings of CVXPY and k-hat; the table has the dual values
    print(f"{n} draws, {m} constraints, relative duality gap {GAP:g}")
    print("seconds of ours; other solvers' seconds / ours; dual values; extra memory / feature matrix")
    print(f"{'':18} {'ours s':>8} {'L-BFGS-B':>9} {'CVXPY':>8}  {'ours':>12} {'L-BFGS-B':>12} {'CVXPY':>12}  memory")
    for name, g in cases(psi).items():
        ours = [timed(lambda g=g: regularize(posterior, psi, g, tol=GAP).dual) for _ in range(arguments.repeat)]
        seconds, value = float(np.median([s for s, _ in ours])), ours[0][1]
        row = f"{name:18} {seconds:8.3f}"
        if "smooth" in name:
            runs = [timed(lambda g=g: solve_with_lbfgs(psi, g)) for _ in range(arguments.repeat)]
            row += f" {np.median([s for s, _ in runs]) / seconds:8.1f}x"
            lbfgs_value = f"{runs[0][1]:12.7f}"
        else:
            row, lbfgs_value = row + f" {'':9}", " " * 12
        cvxpy_seconds, cvxpy_value = timed(lambda g=g: solve_with_cvxpy(psi, g))
        tracemalloc.start()
        regularize(posterior, psi, g, tol=GAP)
        peak = tracemalloc.get_traced_memory()[1] / psi.nbytes
        tracemalloc.stop()
        row += f" {cvxpy_seconds / seconds:7.0f}x  {value:12.7f} {lbfgs_value} {cvxpy_value:12.7f} +{peak:.2f}"
        print(row, flush=True)


if __name__ == "__main__":
    main()
