"""Accuracy, cost and statuses of `resample` on problems with known solutions.

For problems with exact solutions (closed forms, sums, quadrature) the table has statuses over seeds, the error in nats
relative to `kl_mc_error`, multipliers within three standard errors, the number of runs compared with 3 + sqrt(2 KL),
and gradients relative to one run of the posterior (NUTS only). Problems without a solution follow.

    python benchmarks/bench_resample.py                  # samplers that draw exactly: no JAX
    python benchmarks/bench_resample.py --numpyro        # NUTS: eight schools, funnel, two modes, ...
    python benchmarks/bench_resample.py --fresh          # NUTS: models not used to set the limits of the policy
    python benchmarks/bench_resample.py --smoke
"""

from __future__ import annotations

import argparse
import collections
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import expit

from regbayes import E, Finite, Gaussian, InfeasibleError, SamplingError, regularize, resample

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "helpers"))
from exact_samplers import ExactGaussian, ExactGrid

GRID = np.linspace(-12, 12, 4801)
EFFECTS = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
ERRORS = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])


@dataclass
class Case:
    name: str
    sampler: Any
    asked: Any
    phi: Any = None  # the exact multipliers, where there is a solution
    kl: float = np.nan
    covariance: Any = None  # covariance of the constraint functions at the solution
    plain: float = np.nan  # gradient evaluations of an unconstrained run


def solve(sampler: Any, asked: Any, seed: int) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return resample(sampler, asked, seed=seed)
        except (InfeasibleError, SamplingError) as error:
            return error.result


def forget_compiled() -> None:
    """Clear compiled code, since twenty models exceed the memory mappings of a process."""
    if "jax" in sys.modules:
        sys.modules["jax"].clear_caches()


def report(case: Case, seeds: range) -> None:
    found = [solve(case.sampler, case.asked, seed) for seed in seeds]
    statuses = collections.Counter(str(getattr(r, "status", "error")) for r in found)
    line = f"{case.name:34} " + ", ".join(f"{status} {n}" for status, n in statuses.most_common())
    good = [r for r in found if str(getattr(r, "status", "")) == "optimal"]
    if case.phi is not None and good:
        away = [r.multipliers - case.phi for r in good]
        nats = np.array([0.5 * d @ case.covariance @ d for d in away])
        mc_errors = np.array([r.kl_mc_error for r in good])
        errors = [
            np.where(r.multipliers_mcse > 1e-12, np.abs(d) / r.multipliers_mcse, 0.0)
            for r, d in zip(good, away, strict=True)
        ]
        within = np.mean(np.concatenate(errors) <= 3)
        calls = [len(r.runs) for r in good]
        moved = np.array([(r.kl - case.kl) / r.kl_mcse for r in good])
        line += (
            f" | KL {case.kl:.2f} | error over kl_mc_error"
            f" median {np.median(nats / mc_errors):.2f} max {np.max(nats / mc_errors):.1f}"
            f" | phi within 3 se {within:.0%} | runs {min(calls)}-{max(calls)} of {3 + np.sqrt(2 * case.kl):.1f}"
            f" | KL error rms {np.sqrt(np.mean(moved**2)):.2f} se"
        )
        if np.isfinite(case.plain):
            line += f" | gradients {np.mean([r.n_gradients for r in good]) / case.plain:.2f}x"
    print(line, flush=True)
    forget_compiled()


def of_grid(name: str, log_density: Callable[..., Any], asked: Any, feasible: bool = True) -> Case:
    case = Case(name, ExactGrid(GRID, log_density), asked)
    if feasible:
        exact = regularize(Finite({"x": GRID}, log_weights=log_density(GRID)), asked)
        weights, values = exact.posterior.weights, exact.features.values
        centred = values - weights @ values
        case.phi, case.kl, case.covariance = exact.multipliers, exact.kl, centred.T @ (weights[:, None] * centred)
    return case


def exact_cases() -> tuple[list[Case], list[Case]]:
    rng = np.random.default_rng(3)
    good = []
    for d, m, far in ((5, 3, 5.0), (20, 2, 4.0), (3, 1, 9.0)):
        root, slopes, mean = rng.normal(size=(d, d)), rng.normal(size=(m, d)), rng.normal(size=d)
        covariance = root @ root.T + np.eye(d)
        spread, at = np.sqrt(np.diag(slopes @ covariance @ slopes.T)), slopes @ mean
        targets = at + far * spread / np.arange(1, m + 1)
        exact = regularize(Gaussian(mean, covariance), [E(s) == t for s, t in zip(slopes, targets, strict=True)])
        asked = [E(lambda v, s=s: v.x @ s) == t for s, t in zip(slopes, targets, strict=True)]
        hessian = slopes @ covariance @ slopes.T
        good.append(
            Case(
                f"Gaussian, d = {d}, m = {m}",
                ExactGaussian(mean, covariance),
                asked,
                exact.multipliers,
                exact.kl,
                hessian,
            )
        )

    def standard(x: Any) -> Any:
        return -0.5 * x**2

    def skewed(x: Any) -> Any:
        return np.where(x > 0, 2 * np.log(np.maximum(x, 1e-300)) - x, -np.inf)

    good += [
        of_grid("probability .99", standard, E(expit, name="p") == 0.99),
        of_grid("spread, larger", standard, E(lambda x: x**2) >= 4),
        of_grid("spread, smaller", standard, E(lambda x: x**2) <= 0.01),
        of_grid("two moments", standard, [E("x") == 4, E(lambda x: x**2) <= 16.2]),
        of_grid("skewed, up", skewed, E("x") >= 7),
        of_grid("soft", standard, (E("x") >= 5).soft(3.0, power=2)),
        of_grid("enumerated counts", lambda x: np.where(x == np.round(x), -0.5 * x**2, -np.inf), E("x") == 5),
    ]
    bad = [
        of_grid("contradiction", standard, [E("x") >= 1, E("x") <= 0], False),
        of_grid("out of range: probability 1.2", standard, E(expit, name="p") >= 1.2, False),
        of_grid("a limit: probability 1", standard, E(expit, name="p") == 1, False),
        of_grid("moments that do not exist", standard, [E("x") == 2, E(lambda x: x**2) == 3], False),
    ]
    return good, bad


def count_plain(model: Any, *args: Any) -> float:
    """Count the gradients of NumPyro's NUTS for 4 x (500 + 1000) draws of the posterior."""
    import jax
    from numpyro.infer import MCMC, NUTS

    sampler = MCMC(
        NUTS(model), num_warmup=500, num_samples=1000, num_chains=4, chain_method="vectorized", progress_bar=False
    )
    sampler.warmup(jax.random.PRNGKey(0), *args, extra_fields=("num_steps",), collect_warmup=True)
    total = int(sampler.get_extra_fields()["num_steps"].sum())
    sampler.run(jax.random.PRNGKey(1), *args, extra_fields=("num_steps",))
    return total + int(sampler.get_extra_fields()["num_steps"].sum())


def numpyro_cases() -> tuple[list[Case], list[Case]]:
    import jax
    import numpyro
    from jax import numpy as jnp
    from numpyro import distributions as dist

    from eight_schools import exact_answer, exact_log_partition, mean_effect, schools
    from regbayes.ppl import NumPyroModel

    phi, kl = exact_answer()
    step = 1e-3
    variance = (exact_log_partition(phi + step)[1] - exact_log_partition(phi - step)[1]) / (2 * step)
    good = [
        Case(
            "eight schools at 20", NumPyroModel(schools, EFFECTS, ERRORS), E(mean_effect) == 20, np.array([phi]), kl,
            np.array([[variance]]), count_plain(schools, EFFECTS, ERRORS),
        )
    ]  # fmt: skip

    def funnel() -> None:
        s = numpyro.sample("s", dist.Normal(0, 3))
        numpyro.sample("z", dist.Normal(0, jnp.exp(s / 2)).expand([9]))

    def modes() -> None:
        x = numpyro.sample("x", dist.ImproperUniform(dist.constraints.real, (), ()))
        numpyro.factor("f", jnp.logaddexp(-0.5 * (x - 6) ** 2, -0.5 * (x + 6) ** 2))

    def heavy() -> None:
        numpyro.sample("x", dist.StudentT(3, 0, 1))

    def cauchy() -> None:
        numpyro.sample("tau", dist.HalfCauchy(1.0))

    def normal() -> None:
        numpyro.sample("x", dist.Normal(0, 1))

    bad = [
        Case("funnel", NumPyroModel(funnel), E("s") == 2),
        Case("two modes", NumPyroModel(modes), E("x") == 3),
        Case("heavy tails", NumPyroModel(heavy), E("x") == 2),
        Case("half-Cauchy, up", NumPyroModel(cauchy), E("tau") >= 10),
        Case("indicator", NumPyroModel(normal), E(lambda x: x > 3) == 0.5),
        Case("contradiction", NumPyroModel(normal), [E("x") >= 1, E("x") <= 0]),
        Case("out of range", NumPyroModel(normal), E(jax.nn.sigmoid, name="p") >= 1.2),
    ]
    return good, bad


def fresh_cases(only: str) -> tuple[list[Case], list[Case]]:
    from resample_models import WELL_POSED, pathologies

    from regbayes.ppl import NumPyroModel

    good = []
    for build in WELL_POSED:
        name = build.__name__.replace("_", " ")
        if only not in name:  # references and unconstrained runs take minutes
            continue
        model, args, asked, (points, logs) = build()
        kept = logs > logs.max() - 200  # points that can have weight at any of these multipliers
        exact = regularize(Finite({n: x[kept] for n, x in points.items()}, log_weights=logs[kept]), asked)
        weights, values = exact.posterior.weights, exact.features.values
        centred = values - weights @ values
        covariance = centred.T @ (weights[:, None] * centred)
        plain = count_plain(model, *args)
        forget_compiled()
        good.append(Case(name, NumPyroModel(model, *args), asked, exact.multipliers, exact.kl, covariance, plain))
    chosen = [case for case in pathologies() if only in case[0]]
    return good, [Case(name, NumPyroModel(model, *args), asked) for name, model, args, asked in chosen]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="two seeds, exact samplers only")
    parser.add_argument("--numpyro", action="store_true", help="NUTS in place of exact samplers")
    parser.add_argument("--fresh", action="store_true", help="NUTS on models on which no limit was set")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--only", default="", help="cases with this in their name")
    options = parser.parse_args()
    seeds = range(2 if options.smoke else options.seeds)
    good, bad = fresh_cases(options.only) if options.fresh else numpyro_cases() if options.numpyro else exact_cases()
    good, bad = ([case for case in cases if options.only in case.name] for cases in (good, bad))
    print("well-posed: optimal is right")
    for case in good:
        report(case, seeds)
    print("no solution, or none that chains find reliably: optimal is wrong")
    for case in bad:
        report(case, seeds)


if __name__ == "__main__":
    main()
