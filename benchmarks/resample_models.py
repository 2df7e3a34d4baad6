"""Models in NumPyro with answers by quadrature, for `bench_resample.py --fresh`.

No limit of `TemperingPolicy` was set on them. Each function returns a model, its arguments, what is asked,
and atoms of the posterior: named points with log-weights, on which the same constraints are solved exactly (latent
variables that no constraint sees are integrated out).
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
from numpyro import distributions as dist
from scipy.special import betaln, logsumexp
from scipy.stats import norm, t

from regbayes import E

Atoms = tuple[dict[str, Any], Any]  # name -> points, log-weights


def mesh(**axes: Any) -> dict[str, Any]:
    """Return all combinations of points along named axes, flat."""
    return dict(zip(axes, (a.ravel() for a in np.meshgrid(*axes.values(), indexing="ij")), strict=True))


def soft_step(x: Any, at: float, width: float) -> Any:
    """A smooth stand-in for the indicator of ``x > at``."""
    return 1 / (1 + jnp.exp(-(x - at) / width))


def student_location(prior: float = 1.0) -> tuple[Any, tuple[Any, ...], Any, Atoms]:
    """Location and scale of Student's t with three degrees of freedom, asked to lie above most of the data.

    Under a prior ten times as wide the tilt that reaches it has nearly all its mass hundreds away from the data: a sum
    of many t-tails falls too slowly.
    """
    y = t.rvs(3, size=30, random_state=1)

    def model(y: Any) -> None:
        mu = numpyro.sample("mu", dist.Normal(0, prior))
        scale = numpyro.sample("scale", dist.LogNormal(0, 1))
        numpyro.sample("y", dist.StudentT(3, mu, scale), obs=y)

    at = mesh(mu=np.linspace(-8, 20, 1401), u=np.linspace(-3, 5, 321))
    logs = norm.logpdf(at["mu"], 0, prior) + norm.logpdf(at["u"])
    scale = np.exp(at["u"])
    for one in y:
        logs = logs + t.logpdf((one - at["mu"]) / scale, 3) - at["u"]
    return model, (y,), E("mu") == 0.8, ({"mu": at["mu"], "scale": scale}, logs)


def autoregression() -> tuple[Any, tuple[Any, ...], Any, Atoms]:
    """An AR(1) of 60 steps that is asked to be nearly a random walk."""
    rng = np.random.default_rng(2)
    y = np.zeros(60)
    for i in range(1, 60):
        y[i] = 0.5 * y[i - 1] + rng.normal()

    def model(y: Any) -> None:
        rho = numpyro.sample("rho", dist.Uniform(-1, 1))
        scale = numpyro.sample("scale", dist.LogNormal(0, 1))
        numpyro.sample("y", dist.Normal(rho * y[:-1], scale), obs=y[1:])

    at = mesh(rho=np.tanh(np.linspace(-1, 6, 1401)), u=np.linspace(-1.5, 2, 201))
    rss = y[1:] @ y[1:] - 2 * at["rho"] * (y[1:] @ y[:-1]) + at["rho"] ** 2 * (y[:-1] @ y[:-1])
    logs = norm.logpdf(at["u"]) - 59 * at["u"] - 0.5 * rss * np.exp(-2 * at["u"]) + np.log1p(-(at["rho"] ** 2))
    return model, (y,), E("rho") == 0.95, ({"rho": at["rho"], "scale": np.exp(at["u"])}, logs)


def ordered_mixture(prior: Any = None) -> tuple[Any, tuple[Any, ...], Any, Atoms]:
    """Two normal components with ordered means, asked to be further apart than the data say.

    Under a lognormal prior of the distance the tilt does not exist: one component can explain all rows.
    """
    rng = np.random.default_rng(3)
    y = np.concatenate([rng.normal(-1, 1, 20), rng.normal(1.5, 1, 30)])

    def model(y: Any) -> None:
        low = numpyro.sample("low", dist.Normal(0, 3))
        gap = numpyro.sample("gap", prior or dist.HalfNormal(2))
        parts = jnp.logaddexp(jnp.log(0.4) - 0.5 * (y - low) ** 2, jnp.log(0.6) - 0.5 * (y - low - gap) ** 2)
        numpyro.factor("y", parts.sum())

    at = mesh(low=np.linspace(-6, 4, 501), u=np.linspace(-6, 3.2, 461))
    gap = np.exp(at["u"])
    logs = norm.logpdf(at["low"], 0, 3) + norm.logpdf(gap, 0, 2) + at["u"]
    for one in y:
        logs = logs + np.logaddexp(
            np.log(0.4) - 0.5 * (one - at["low"]) ** 2, np.log(0.6) - 0.5 * (one - at["low"] - gap) ** 2
        )
    return model, (y,), E("gap") == 3.5, ({"low": at["low"], "gap": gap}, logs)


def beta_binomial() -> tuple[Any, tuple[Any, ...], Any, Atoms]:
    """Rates of twelve groups around a common mean, which is asked to be one half."""
    rng = np.random.default_rng(4)
    n = rng.integers(10, 40, 12)
    y = rng.binomial(n, rng.beta(5, 15, 12))

    def model(n: Any, y: Any) -> None:
        mean = numpyro.sample("mean", dist.Uniform(0, 1))
        size = numpyro.sample("size", dist.LogNormal(3, 1))
        with numpyro.plate("group", 12):
            rate = numpyro.sample("rate", dist.Beta(mean * size, (1 - mean) * size))
            numpyro.sample("y", dist.Binomial(n, rate), obs=y)

    at = mesh(v=np.linspace(-3, 3, 501), u=np.linspace(-1.5, 8, 401))
    mean, size = 1 / (1 + np.exp(-at["v"])), np.exp(at["u"])
    logs = np.log(mean * (1 - mean)) + norm.logpdf(at["u"], 3, 1)
    for k, total in zip(y, n, strict=True):
        a, b = mean * size, (1 - mean) * size
        logs = logs + betaln(a + k, b + total - k) - betaln(a, b)
    return model, (n, y), E("mean") == 0.45, ({"mean": mean, "size": size}, logs)


def poisson_effects(intercept: float | None = None) -> tuple[Any, tuple[Any, ...], Any, Atoms]:
    """A Poisson regression with ten random effects that is asked for half its slope.

    An intercept far below the data's can only be had with random effects that are all large and positive: chains hardly
    move there.
    """
    rng = np.random.default_rng(5)
    group, x = np.repeat(np.arange(10), 5), rng.normal(size=50)
    y = rng.poisson(np.exp(0.5 + 0.4 * x + 0.6 * rng.normal(size=10)[group]))

    def model(x: Any, y: Any) -> None:
        a = numpyro.sample("a", dist.Normal(0, 2))
        b = numpyro.sample("b", dist.Normal(0, 1))
        s = numpyro.sample("s", dist.LogNormal(-1, 1))
        z = numpyro.sample("z", dist.Normal(0, 1).expand([10]))
        numpyro.sample("y", dist.Poisson(jnp.exp(a + b * x + s * z[group])), obs=y)

    at = mesh(a=np.linspace(-5, 2, 71), b=np.linspace(-0.5, 0.9, 57), u=np.linspace(-5, 2, 43))
    nodes, weights = np.polynomial.hermite_e.hermegauss(48)
    logs = norm.logpdf(at["a"], 0, 2) + norm.logpdf(at["b"]) + norm.logpdf(at["u"], -1, 1)
    for g in range(10):
        own, counts = x[group == g], y[group == g]
        exposure = np.exp(np.outer(at["b"], own)).sum(axis=1) * np.exp(at["a"])
        effect = np.exp(at["u"])[:, None] * nodes
        inner = counts.sum() * effect - exposure[:, None] * np.exp(effect) + np.log(weights)
        logs = logs + counts.sum() * at["a"] + (counts @ own) * at["b"] + logsumexp(inner, axis=1)
    asked = [E("b") == 0.2] + ([] if intercept is None else [E("a") <= intercept])
    return model, (x, y), asked, ({"a": at["a"], "b": at["b"]}, logs)


def horseshoe() -> tuple[Any, tuple[Any, ...], Any, Atoms]:
    """Normal means under a horseshoe prior: the largest is asked to be one on average."""
    y = np.array([4.0, 2.0, 0.3, -0.5, 0.8, -1.1, 0.1, 0.4])

    def model(y: Any) -> None:
        tau = numpyro.sample("tau", dist.HalfCauchy(0.5))
        scale = numpyro.sample("scale", dist.HalfCauchy(1.0).expand([8]))
        z = numpyro.sample("z", dist.Normal(0, 1).expand([8]))
        mean = numpyro.deterministic("mean", tau * scale * z)
        numpyro.sample("y", dist.Normal(mean, 1), obs=y)

    u, v = np.linspace(-9, 6, 151), np.linspace(-9, 9, 361)
    variance = np.exp(2 * (u[:, None] + v))
    half_cauchy = v - np.log1p(np.exp(2 * v))
    others = sum(
        logsumexp(half_cauchy - 0.5 * np.log1p(variance) - 0.5 * one**2 / (1 + variance), axis=1) for one in y[1:]
    )
    kept = variance / (1 + variance)
    logs = (u - np.log1p(np.exp(2 * u) / 0.25) + others)[:, None] + half_cauchy
    logs = logs - 0.5 * np.log1p(variance) - 0.5 * y[0] ** 2 / (1 + variance)
    nodes, weights = np.polynomial.hermite_e.hermegauss(32)
    mean = kept[..., None] * y[0] + np.sqrt(kept)[..., None] * nodes
    logs = logs[..., None] + np.log(weights)
    return model, (y,), E(lambda v: v.mean[:, 0], name="mean") == 1.0, ({"mean": mean.reshape(-1, 1)}, logs.ravel())


def gaussian_far() -> tuple[Any, tuple[Any, ...], Any, Atoms]:
    """Twenty correlated normal variables and a sum that is asked to be six standard deviations away."""
    rng = np.random.default_rng(6)
    root = rng.normal(size=(20, 20)) / 4 + np.eye(20)
    covariance = root @ root.T
    spread = np.sqrt(covariance.sum())

    def model(covariance: Any) -> None:
        numpyro.sample("x", dist.MultivariateNormal(jnp.zeros(20), covariance))

    points = np.linspace(-14, 14, 4001)
    atoms = {"x": np.outer(points * spread, np.eye(1, 20)[0])}  # the sum alone matters
    return model, (covariance,), E(lambda v: v.x.sum(axis=1), name="sum") == 6 * spread, (atoms, -0.5 * points**2)


def banana(centred: bool = False) -> tuple[Any, tuple[Any, ...], Any, Atoms]:
    """A curved ridge, asked to be higher along the curve: tilts exist below one half.

    Where the height itself is sampled no coordinate shows that, and chains follow the curve slowly.
    """

    def model() -> None:
        x = numpyro.sample("x", dist.Normal(0, 1))
        if centred:
            numpyro.sample("y", dist.Normal(x**2, 0.3))
        else:
            numpyro.deterministic("y", x**2 + numpyro.sample("off", dist.Normal(0, 0.3)))

    at = mesh(x=np.linspace(-25, 25, 2001), e=np.linspace(-2.5, 2.5, 101))
    logs = norm.logpdf(at["x"]) + norm.logpdf(at["e"], 0, 0.3)
    return model, (), E("y") == 4.0, ({"x": at["x"], "y": at["x"] ** 2 + at["e"]}, logs)


def centred_banana() -> tuple[Any, tuple[Any, ...], Any, Atoms]:
    """The same answer, by chains that move slowly: `unreliable` is no false word here, a wrong `optimal` would be."""
    return banana(centred=True)


def gaussian_process(linear: bool = False) -> tuple[Any, tuple[Any, ...], Any, Atoms]:
    """A smooth function seen at twenty points, with unknown length and height, asked to be high in between.

    Asked is the probability, smoothed, that the level is above .8. No tilt by the level itself exists: given length
    and height its variance is c height², a lognormal height makes E exp(phi level) infinite for any phi, and what is
    left of the evidence falls by a power of the height only.
    """
    rng = np.random.default_rng(7)
    at = np.sort(rng.uniform(0, 5, 20))
    y = np.sin(at) + 0.3 * rng.normal(size=20)
    near = np.append(at, 2.5)
    away = (near[:, None] - near) ** 2

    def model(y: Any) -> None:
        length = numpyro.sample("length", dist.LogNormal(0, 0.5))
        height = numpyro.sample("height", dist.LogNormal(0, 0.5))
        covariance = height**2 * jnp.exp(-0.5 * away / length**2) + 1e-3 * jnp.eye(21)
        f = jnp.linalg.cholesky(covariance) @ numpyro.sample("z", dist.Normal(0, 1).expand([21]))
        numpyro.deterministic("level", f[20])
        numpyro.sample("y", dist.Normal(f[:20], 0.3), obs=y)

    grid = mesh(u=np.linspace(-2.2, 2.0, 71), v=np.linspace(-1.7, 2.0, 60))
    nodes, weights = np.polynomial.hermite_e.hermegauss(64)
    logs, levels = [], []
    for u, v in zip(grid["u"], grid["v"], strict=True):
        whole = np.exp(2 * v) * np.exp(-0.5 * away / np.exp(2 * u)) + 1e-3 * np.eye(21)
        seen = whole[:20, :20] + 0.09 * np.eye(20)
        solved = np.linalg.solve(seen, np.column_stack([y, whole[:20, 20]]))
        mean, variance = whole[20, :20] @ solved[:, 0], whole[20, 20] - whole[20, :20] @ solved[:, 1]
        evidence = -0.5 * y @ solved[:, 0] - 0.5 * np.linalg.slogdet(seen)[1]
        logs.append(evidence + norm.logpdf(u, 0, 0.5) + norm.logpdf(v, 0, 0.5) + np.log(weights))
        levels.append(mean + np.sqrt(variance) * nodes)
    asked = E("level") == 1.1 if linear else E(lambda v: soft_step(v.level, 0.8, 0.15), name="P(high)") == 0.6
    return model, (y,), asked, ({"level": np.concatenate(levels)}, np.concatenate(logs))


def ordered_means() -> tuple[Any, tuple[Any, ...], Any, Atoms]:
    """Two components with ordered means and an unknown share, which is asked to be larger than the data say."""
    rng = np.random.default_rng(8)
    y = np.concatenate([rng.normal(-2, 1, 12), rng.normal(2, 1, 28)])

    def model(y: Any) -> None:
        share = numpyro.sample("share", dist.Beta(2, 2))
        means = numpyro.sample(
            "means",
            dist.TransformedDistribution(
                dist.Normal(jnp.array([0.0, 1.0]), jnp.array([3.0, 0.5])), dist.transforms.OrderedTransform()
            ),
        )
        parts = jnp.logaddexp(jnp.log(share) - 0.5 * (y - means[0]) ** 2, jnp.log1p(-share) - 0.5 * (y - means[1]) ** 2)
        numpyro.factor("y", parts.sum())

    at = mesh(v=np.linspace(-4, 5, 91), low=np.linspace(-6, 4, 81), u=np.linspace(-1.5, 3.5, 76))
    share, high = 1 / (1 + np.exp(-at["v"])), at["low"] + np.exp(at["u"])
    logs = 2 * np.log(share) + 2 * np.log1p(-share) + norm.logpdf(at["low"], 0, 3) + norm.logpdf(at["u"], 1, 0.5)
    for one in y:
        logs = logs + np.logaddexp(
            np.log(share) - 0.5 * (one - at["low"]) ** 2, np.log1p(-share) - 0.5 * (one - high) ** 2
        )
    return model, (y,), E("share") == 0.55, ({"share": share}, logs)


def zero_inflated() -> tuple[Any, tuple[Any, ...], Any, Atoms]:
    """Counts with too many zeros: asked for a rate and for a share of zeros at once."""
    rng = np.random.default_rng(9)
    y = np.where(rng.random(60) < 0.3, 0, rng.poisson(2.5, 60))

    def model(y: Any) -> None:
        rate = numpyro.sample("rate", dist.LogNormal(0.5, 1))
        none = numpyro.sample("none", dist.Beta(1, 1))
        numpyro.sample("y", dist.ZeroInflatedPoisson(none, rate), obs=y)

    at = mesh(u=np.linspace(-1, 2.5, 701), v=np.linspace(-8, 5, 651))
    rate, none = np.exp(at["u"]), 1 / (1 + np.exp(-at["v"]))
    zeros, counted = int((y == 0).sum()), y[y > 0]
    logs = zeros * np.log(none + (1 - none) * np.exp(-rate)) + len(counted) * (np.log1p(-none) - rate)
    logs = logs + counted.sum() * at["u"] + norm.logpdf(at["u"], 0.5, 1) + np.log(none) + np.log1p(-none)
    return model, (y,), [E("rate") >= 3.2, E("none") <= 0.2], ({"rate": rate, "none": none}, logs)


def horseshoe_regression() -> tuple[Any, tuple[Any, ...], Any, Atoms]:
    """Six coefficients under a horseshoe; two are asked for. The reference is a Gibbs sampler of the tilted posterior.

    Given the scales the coefficients are Gaussian, also under the tilt, so the sampler has no step size and no tuning:
    400 chains of 300 sweeps (the first 100 left out), at multipliers found by Newton's method on such runs.
    """
    rng = np.random.default_rng(10)
    X = rng.normal(size=(40, 6))
    y = X @ np.array([1.5, 0.0, 0.0, -0.8, 0.0, 0.0]) + rng.normal(size=40)

    def model(X: Any, y: Any) -> None:
        tau = numpyro.sample("tau", dist.HalfCauchy(0.3))
        scale = numpyro.sample("scale", dist.HalfCauchy(1.0).expand([6]))
        beta = numpyro.deterministic("beta", tau * scale * numpyro.sample("z", dist.Normal(0, 1).expand([6])))
        numpyro.sample("y", dist.Normal(X @ beta, 1), obs=y)

    def gibbs(phi: Any, seed: int, chains: int = 400, sweeps: int = 300) -> Any:
        """Inverse-gamma mixtures of half-Cauchy scales: lambda² | nu, nu | lambda², tau² | xi, xi | tau²."""
        own = np.random.default_rng(seed)

        def inverse_gamma(shape: float, rate: Any) -> Any:
            return rate / own.gamma(shape, size=np.shape(rate))

        local, nu, tau2, xi = np.ones((chains, 6)), np.ones((chains, 6)), np.ones(chains), np.ones(chains)
        gram, slope = X.T @ X, X.T @ y + phi
        kept = []
        for i in range(sweeps):
            precision = gram + np.eye(6) * (1 / (local * tau2[:, None]))[:, None, :]
            root = np.linalg.cholesky(np.linalg.inv(precision))
            mean = np.linalg.solve(precision, np.broadcast_to(slope, (chains, 6))[..., None])[..., 0]
            beta = mean + (root @ own.normal(size=(chains, 6, 1)))[..., 0]
            local = inverse_gamma(1.0, 1 / nu + beta**2 / (2 * tau2[:, None]))
            nu = inverse_gamma(1.0, 1 + 1 / local)
            tau2 = inverse_gamma(3.5, 1 / xi + (beta**2 / (2 * local)).sum(axis=1))
            xi = inverse_gamma(1.0, 1 / 0.09 + 1 / tau2)
            if i >= 100:
                kept.append(beta)
        return np.concatenate(kept)

    # Rungs of exact runs half a step apart, joined as atoms of the posterior by the same self-consistent weights as in
    # any multistate reweighting, written out here: a fixed-point iteration.
    targets, phi = np.array([0.6, 0.4]), np.zeros(2)
    pick = np.eye(6)[[0, 1]]
    runs, tilts = [], []
    for i in range(9):
        beta = gibbs(phi @ pick, i)
        runs.append(beta[::4])
        tilts.append(phi)
        covariance = np.cov((beta @ pick.T).T)
        move = np.linalg.solve(covariance, targets - (beta @ pick.T).mean(axis=0))
        far = np.sqrt(move @ covariance @ move)
        phi = phi + move * min(1.0, 1.2 / max(far, 1e-12))
    beta = np.concatenate(runs)
    scores = beta @ pick.T @ np.array(tilts).T
    free = np.zeros(len(tilts))
    for _ in range(400):
        mixture = logsumexp(scores - free, axis=1)
        free = logsumexp(scores - mixture[:, None], axis=0)
        free = free - free[0]
    logs = -logsumexp(scores - free, axis=1)
    asked = [E("beta[0]") == targets[0], E("beta[1]") == targets[1]]
    return model, (X, y), asked, ({"beta": beta}, logs)


def state_space() -> tuple[Any, tuple[Any, ...], Any, Atoms]:
    """A latent AR(1) of 30 steps seen with noise: asked for more persistence, and for a probable rise at the next step.

    Given rho and the innovations' scale all is Gaussian: a grid over both, and Gauss-Hermite nodes of the next state.
    """
    rng = np.random.default_rng(11)
    T, x = 30, np.zeros(30)
    for i in range(1, T):
        x[i] = 0.6 * x[i - 1] + 0.7 * rng.normal()
    y = x + 0.5 * rng.normal(size=T)
    lag = np.arange(T + 1)

    def model(y: Any) -> None:
        rho = numpyro.sample("rho", dist.Uniform(0, 0.99))
        scale = numpyro.sample("scale", dist.LogNormal(-0.5, 0.4))
        z = numpyro.sample("z", dist.Normal(0, 1).expand([T + 1]))
        state = [scale * z[0] / jnp.sqrt(1 - rho**2)]
        for i in range(1, T + 1):
            state.append(rho * state[-1] + scale * z[i])
        numpyro.deterministic("ahead", state[T])
        numpyro.sample("y", dist.Normal(jnp.stack(state[:T]), 0.5), obs=y)

    at = mesh(r=np.linspace(-6, 6, 121), u=np.linspace(-2.3, 1.5, 60))
    nodes, weights = np.polynomial.hermite_e.hermegauss(32)
    logs, rhos, ahead = [], [], []
    for r, u in zip(at["r"], at["u"], strict=True):
        rho = 0.99 / (1 + np.exp(-r))
        whole = np.exp(2 * u) / (1 - rho**2) * rho ** np.abs(lag[:, None] - lag)
        seen = whole[:T, :T] + 0.25 * np.eye(T)
        solved = np.linalg.solve(seen, np.column_stack([y, whole[:T, T]]))
        mean, variance = whole[T, :T] @ solved[:, 0], whole[T, T] - whole[T, :T] @ solved[:, 1]
        evidence = -0.5 * y @ solved[:, 0] - 0.5 * np.linalg.slogdet(seen)[1]
        jacobian = np.log(rho) + np.log(0.99 - rho)
        logs.append(evidence + norm.logpdf(u, -0.5, 0.4) + jacobian + np.log(weights))
        rhos.append(np.full(32, rho))
        ahead.append(mean + np.sqrt(variance) * nodes)
    asked = [E("rho") >= 0.85, E(lambda v: soft_step(v.ahead, 0.0, 0.3), name="P(rise)") == 0.8]
    points = {"rho": np.concatenate(rhos), "ahead": np.concatenate(ahead)}
    return model, (y,), asked, (points, np.concatenate(logs))


def group_rates() -> tuple[Any, tuple[Any, ...], Any, Atoms]:
    """Rates of fifteen groups; one group's rate, the common mean and the probability of a low rate are asked for."""
    rng = np.random.default_rng(12)
    n = rng.integers(8, 30, 15)
    y = rng.binomial(n, rng.beta(4, 8, 15))

    def model(n: Any, y: Any) -> None:
        mean = numpyro.sample("mean", dist.Beta(2, 2))
        size = numpyro.sample("size", dist.LogNormal(2.5, 0.7))
        with numpyro.plate("group", 15):
            rate = numpyro.sample("rate", dist.Beta(mean * size, (1 - mean) * size))
            numpyro.sample("y", dist.Binomial(n, rate), obs=y)

    at = mesh(v=np.linspace(-2.5, 2, 121), u=np.linspace(-0.5, 5.5, 81))
    mean, size = 1 / (1 + np.exp(-at["v"])), np.exp(at["u"])
    a, b = mean * size, (1 - mean) * size
    logs = 2 * np.log(mean * (1 - mean)) + norm.logpdf(at["u"], 2.5, 0.7)
    for k, total in zip(y[1:], n[1:], strict=True):
        logs = logs + betaln(a + k, b + total - k) - betaln(a, b)
    w = np.linspace(-5, 4, 181)  # the first group's rate, on the scale of logits
    rate = 1 / (1 + np.exp(-w))
    inner = np.outer(a + y[0], np.log(rate)) + np.outer(b + n[0] - y[0], np.log1p(-rate)) - betaln(a, b)[:, None]
    points = {"mean": np.repeat(mean, len(w)), "rate": np.tile(rate, len(mean))[:, None]}
    asked = [
        E("rate[0]") == 0.6,
        E("mean") <= 0.3,
        E(lambda v: soft_step(v.rate[:, 0], 0.5, 0.05), name="P(rate above one half)") <= 0.75,
    ]
    return model, (n, y), asked, (points, (logs[:, None] + inner).ravel())


def robust_regression() -> tuple[Any, tuple[Any, ...], Any, Atoms]:
    """A line with errors of Student's t(4): slope, spread of the slope, and a prediction are asked for at once."""
    rng = np.random.default_rng(13)
    x = rng.normal(size=25)
    y = 0.5 + 0.8 * x + 0.6 * t.rvs(4, size=25, random_state=13)

    def model(x: Any, y: Any) -> None:
        a = numpyro.sample("a", dist.Normal(0, 1))
        b = numpyro.sample("b", dist.Normal(0, 1))
        scale = numpyro.sample("scale", dist.HalfNormal(1))
        numpyro.sample("y", dist.StudentT(4, a + b * x, scale), obs=y)

    at = mesh(a=np.linspace(-1.0, 2.4, 103), b=np.linspace(-0.6, 2.0, 105), u=np.linspace(-2.2, 1.2, 69))
    scale = np.exp(at["u"])
    logs = norm.logpdf(at["a"]) + norm.logpdf(at["b"]) - 0.5 * scale**2 + at["u"]
    for xi, yi in zip(x, y, strict=True):
        logs = logs - 2.5 * np.log1p(((yi - at["a"] - at["b"] * xi) / scale) ** 2 / 4) - at["u"]
    asked = [
        E("b") == 0.3,
        E(lambda v: (v.b - 0.3) ** 2, name="spread of the slope") <= 0.01,
        E(lambda v: v.a + 2 * v.b, name="prediction at 2") >= 1.8,
    ]
    return model, (x, y), asked, ({"a": at["a"], "b": at["b"]}, logs)


def ordinal() -> tuple[Any, tuple[Any, ...], Any, Atoms]:
    """Four ordered classes in two groups: parity of the top class between them, and a share of the lowest."""
    rng = np.random.default_rng(14)
    group = (np.arange(60) < 25) * 1.0
    latent = 0.9 * group + rng.logistic(size=60)
    y = np.digitize(latent, [-1.0, 0.2, 1.5])

    def model(group: Any, y: Any) -> None:
        b = numpyro.sample("b", dist.Normal(0, 1))
        cuts = numpyro.sample(
            "cuts",
            dist.TransformedDistribution(
                dist.Normal(jnp.array([-1.0, 0.0, 0.0]), jnp.array([1.0, 0.5, 0.5])), dist.transforms.OrderedTransform()
            ),
        )
        numpyro.sample("y", dist.OrderedLogistic(b * group, cuts), obs=y)

    at = mesh(
        b=np.linspace(-1.4, 2.6, 41),
        c=np.linspace(-2.8, 0.8, 37),
        u=np.linspace(-1.6, 1.5, 32),
        w=np.linspace(-1.6, 1.5, 32),
    )
    cuts = [at["c"], at["c"] + np.exp(at["u"]), at["c"] + np.exp(at["u"]) + np.exp(at["w"])]
    logs = (
        norm.logpdf(at["b"]) + norm.logpdf(at["c"], -1, 1) + norm.logpdf(at["u"], 0, 0.5) + norm.logpdf(at["w"], 0, 0.5)
    )
    for g in (0.0, 1.0):
        below = [0.0, *(1 / (1 + np.exp(-(cut - g * at["b"]))) for cut in cuts), 1.0]
        for k in range(4):
            logs = logs + np.sum((group == g) & (y == k)) * np.log(below[k + 1] - below[k])

    def gap(v: Any) -> Any:
        return 1 / (1 + jnp.exp(v.cuts[:, 2] - v.b)) - 1 / (1 + jnp.exp(v.cuts[:, 2]))

    def lowest(v: Any) -> Any:
        return 1 / (1 + jnp.exp(-v.cuts[:, 0]))

    asked = [E(gap, name="gap of the top class") == 0.0, E(lowest, name="share of the lowest") <= 0.2]
    return model, (group, y), asked, ({"b": at["b"], "cuts": np.column_stack(cuts)}, logs)


def survival() -> tuple[Any, tuple[Any, ...], Any, Atoms]:
    """Weibull times, some cut off: more survival at first, and at most so much at twice the cut-off.

    A logarithm of the median looks harmless in place of the first and is not: with so few rows the lognormal prior
    holds it by less than the tilt pulls, from a scale of e^5 on, and most of the tilt's mass is there.
    """
    rng = np.random.default_rng(15)
    times = 2 * rng.weibull(1.3, 40)
    seen = times < 2.5
    times = np.minimum(times, 2.5)

    def model(times: Any) -> None:
        shape = numpyro.sample("shape", dist.LogNormal(0, 0.5))
        scale = numpyro.sample("scale", dist.LogNormal(0, 1))
        numpyro.deterministic("early", jnp.exp(-((1.5 / scale) ** shape)))
        numpyro.deterministic("late", jnp.exp(-((5.0 / scale) ** shape)))
        hazard = jnp.log(shape) - shape * jnp.log(scale) + (shape - 1) * jnp.log(times)
        numpyro.factor("times", jnp.sum(jnp.where(seen, hazard, 0.0) - (times / scale) ** shape))

    at = mesh(u=np.linspace(-1.4, 1.6, 401), v=np.linspace(-0.8, 3.0, 501))
    shape, scale = np.exp(at["u"]), np.exp(at["v"])
    logs = norm.logpdf(at["u"], 0, 0.5) + norm.logpdf(at["v"])
    for one, known in zip(times, seen, strict=True):
        logs = logs - (one / scale) ** shape
        logs = logs + (at["u"] - shape * at["v"] + (shape - 1) * np.log(one) if known else 0.0)
    points = {"early": np.exp(-((1.5 / scale) ** shape)), "late": np.exp(-((5.0 / scale) ** shape))}
    asked = [E("early") >= 0.7, E("late") <= 0.03]
    return model, (times,), asked, (points, logs)


WELL_POSED = (
    student_location,
    autoregression,
    ordered_mixture,
    beta_binomial,
    poisson_effects,
    horseshoe,
    gaussian_far,
    banana,
    centred_banana,
    gaussian_process,
    ordered_means,
    zero_inflated,
    horseshoe_regression,
    state_space,
    group_rates,
    robust_regression,
    ordinal,
    survival,
)


def pathologies() -> list[tuple[str, Any, tuple[Any, ...], Any]]:
    """Problems without an answer, or with one that chains do not find: name, model, arguments, what is asked."""

    def far_modes(weight: float, place: Any) -> Any:
        def model() -> None:
            x = numpyro.sample("x", dist.ImproperUniform(dist.constraints.real_vector, (), (2,)))
            near = jnp.log(1 - weight) - 0.5 * (x**2).sum()
            numpyro.factor("f", jnp.logaddexp(near, jnp.log(weight) - 0.5 * ((x - jnp.asarray(place)) ** 2).sum()))

        return model

    def cauchy() -> None:
        numpyro.sample("x", dist.Cauchy(0, 1))

    def lognormal() -> None:
        numpyro.sample("x", dist.LogNormal(0, 1))

    def inverse_gamma() -> None:
        numpyro.sample("x", dist.InverseGamma(1.5, 1.0))

    def laplace() -> None:
        numpyro.sample("x", dist.Laplace(0, 1))

    def normal() -> None:
        numpyro.sample("x", dist.Normal(0, 1))

    def simplex() -> None:
        numpyro.sample("x", dist.Dirichlet(jnp.ones(3)))

    def slow() -> None:
        s = numpyro.sample("s", dist.HalfCauchy(1.0))
        numpyro.sample("z", dist.Normal(0, s).expand([20]))

    return [
        *later_pathologies(),
        ("Student's t, wide prior", *student_location(10.0)[:3]),
        ("Poisson effects, low intercept", *poisson_effects(-0.5)[:3]),
        ("ordered mixture, lognormal", *ordered_mixture(dist.LogNormal(0, 1))[:3]),
        ("a rare mode, diagonal", far_modes(0.05, (7.0, 7.0)), (), E("x[0]") == 5.0),
        ("a rare mode, along an axis", far_modes(0.05, (8.0, 0.0)), (), E("x[0]") == 5.0),
        ("two modes, diagonal", far_modes(0.5, (7.0, -7.0)), (), E("x[0]") == 5.0),
        ("Cauchy, mean", cauchy, (), E("x") == 1.0),
        ("Cauchy, absolute value", cauchy, (), E(jnp.abs, name="abs") >= 5.0),
        ("lognormal, up", lognormal, (), E("x") >= 10.0),
        ("inverse gamma, up", inverse_gamma, (), E("x") >= 10.0),
        ("Laplace, squares up", laplace, (), E(lambda x: x**2) >= 20.0),
        ("moments that no variable has", normal, (), [E("x") == 2.0, E(lambda x: x**2) == 3.0]),
        ("shares that sum to more than one", simplex, (), [E("x[0]") >= 0.6, E("x[1]") >= 0.6]),
        ("twice and once", normal, (), [E("x") >= 1.0, E(lambda x: 2 * x) <= 1.0]),
        ("centred scale", slow, (), E("s") >= 4.0),
    ]


def later_pathologies() -> list[tuple[str, Any, tuple[Any, ...], Any]]:
    """More of them, written after the density was climbed for what rays do not see."""

    def lognormal_scale() -> None:
        s = numpyro.sample("s", dist.LogNormal(0, 0.5))
        z = numpyro.sample("z", dist.Normal(0, 1).expand([3]))
        numpyro.deterministic("x", s * z)

    def neck(y: Any) -> None:
        s = numpyro.sample("s", dist.Normal(0, 2))
        x = numpyro.sample("x", dist.Normal(0, jnp.exp(s)).expand([6]))
        numpyro.sample("y", dist.Normal(x, 3), obs=y)

    def swapped(y: Any) -> None:
        means = numpyro.sample("means", dist.Normal(0, 5).expand([2]))
        parts = jnp.logaddexp(-0.5 * (y - means[0]) ** 2, -0.5 * (y - means[1]) ** 2)
        numpyro.factor("y", parts.sum())

    def wells() -> None:
        x = numpyro.sample("x", dist.ImproperUniform(dist.constraints.real, (), ()))
        numpyro.factor("f", -((x**2 - 9) ** 2) / 2)

    def gaussian() -> None:
        numpyro.sample("x", dist.Normal(0, 1).expand([3]))

    def noisy_scale() -> None:
        v = numpyro.sample("v", dist.InverseGamma(2.0, 2.0))
        numpyro.sample("x", dist.Normal(0, jnp.sqrt(v)))

    def rate() -> None:
        numpyro.sample("p", dist.Beta(2, 5))

    pair = np.array([-4.0, -3.5, -4.2, -3.8, 4.1, 3.7, 4.4, 3.9])
    return [
        ("Gaussian process, its level", *gaussian_process(linear=True)[:3]),
        ("lognormal scale, mean", lognormal_scale, (), E("x[0]") == 4.0),
        ("neck of a funnel", neck, (np.array([1.0, -2.0, 0.5, 3.0, -1.0, 0.0]),), E("s") == -3.0),
        ("swapped labels", swapped, (pair,), E("means[0]") == 2.0),
        ("double well", wells, (), E("x") == 1.0),
        ("inverse-gamma variance, mean", noisy_scale, (), E("x") == 3.0),
        (
            "three that contradict",
            gaussian,
            (),
            [E("x[0]") >= 1.0, E("x[1]") >= 1.0, E(lambda v: v.x[:, :2].sum(axis=1), name="sum") <= 1.0],
        ),
        ("a rate beyond one", rate, (), E("p") == 1.05),
        ("a variance below zero", gaussian, (), E(lambda v: v.x[:, 0] ** 2) <= -0.1),
    ]
