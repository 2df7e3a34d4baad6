"""NumPyro models with solutions by quadrature, for `bench_resample.py --fresh`.

These models were not used to set the limits of `TemperingPolicy`. Each function returns a model, its arguments, the
constraints, and atoms of the posterior. Atoms are named points with log-weights, on which the same constraints are
solved exactly. Latent variables that do not occur in a constraint are integrated out.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from numpyro import distributions as dist
from scipy.special import betaln, expit, logsumexp
from scipy.stats import norm, t

from regbayes import E

Built = tuple[Any, tuple[Any, ...], Any, tuple[dict[str, Any], Any]]  # atoms: name -> points, and log-weights


def mesh(**axes: Any) -> dict[str, Any]:
    """Return all combinations of points along named axes, flat."""
    return dict(zip(axes, (a.ravel() for a in np.meshgrid(*axes.values(), indexing="ij")), strict=True))


def soft_step(x: Any, at: float, width: float) -> Any:
    """Smooth approximation of the indicator of ``x > at``."""
    return 1 / (1 + jnp.exp(-(x - at) / width))


def student_location(prior: float = 1.0) -> Built:
    """Student's t with three degrees of freedom, whose location is constrained to exceed most of the data.

    Under a prior ten times as wide, nearly all mass of the tilted posterior is hundreds of units from the data, because
    the t-tails of the likelihood fall too slowly.
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


def autoregression() -> Built:
    """An AR(1) process of 60 steps, constrained to be nearly a random walk."""
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


def ordered_mixture(prior: Any = None) -> Built:
    """Two normal components with ordered means, constrained to be further apart than in the data.

    Under a lognormal prior of the distance the tilted posterior does not exist: one component can explain all data.
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


def poisson_effects(intercept: float | None = None) -> Built:
    """A Poisson regression with ten random effects, constrained to half its slope.

    An intercept far below that of the data requires large positive random effects, where chains mix slowly.
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


def horseshoe() -> Built:
    """Normal means under a horseshoe prior; the expectation of the largest is constrained to one."""
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


def gaussian_far() -> Built:
    """Twenty correlated normal variables, whose sum is constrained to six standard deviations."""
    rng = np.random.default_rng(6)
    root = rng.normal(size=(20, 20)) / 4 + np.eye(20)
    covariance = root @ root.T
    spread = np.sqrt(covariance.sum())

    def model(covariance: Any) -> None:
        numpyro.sample("x", dist.MultivariateNormal(jnp.zeros(20), covariance))

    points = np.linspace(-14, 14, 4001)
    atoms = {"x": np.outer(points * spread, np.eye(1, 20)[0])}  # the constraint depends only on the sum
    return model, (covariance,), E(lambda v: v.x.sum(axis=1), name="sum") == 6 * spread, (atoms, -0.5 * points**2)


def banana(centred: bool = False) -> Built:
    """A curved ridge with a constraint on its height; tilts exist for multipliers below one half.

    The centered parametrization has no coordinate that shows this limit, and chains follow the curve slowly.
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


def centred_banana() -> Built:
    """The same solution with slowly mixing chains, for which the status `unreliable` is acceptable."""
    return banana(centred=True)


def gaussian_process(linear: bool = False) -> Built:
    """A Gaussian process at twenty points with unknown length scale and amplitude, constrained in between.

    The constraint is on the smoothed probability that the level exceeds 0.8. No tilt by the level itself exists. Its
    variance is proportional to the squared amplitude, and under a lognormal amplitude E exp(phi level) is infinite for
    any phi. The likelihood falls only by a power of the amplitude.
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


def group_rates() -> Built:
    """Rates of fifteen groups, with constraints on one rate, the common mean and the probability of a low rate."""
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
    w = np.linspace(-5, 4, 181)  # logit of the first group's rate
    rate = 1 / (1 + np.exp(-w))
    inner = np.outer(a + y[0], np.log(rate)) + np.outer(b + n[0] - y[0], np.log1p(-rate)) - betaln(a, b)[:, None]
    points = {"mean": np.repeat(mean, len(w)), "rate": np.tile(rate, len(mean))[:, None]}
    asked = [
        E("rate[0]") == 0.6,
        E("mean") <= 0.3,
        E(lambda v: soft_step(v.rate[:, 0], 0.5, 0.05), name="P(rate above one half)") <= 0.75,
    ]
    return model, (n, y), asked, (points, (logs[:, None] + inner).ravel())


def survival() -> Built:
    """Censored Weibull times, with bounds on survival early and at twice the censoring time.

    A constraint on the log-median instead of the first would not work. With so few observations the lognormal prior
    falls more slowly than the tilt grows above a scale of e^5, where most mass of the tilted posterior is.
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


def changepoint() -> Built:
    """Counts whose rate fell in an unknown year, with constraints on the year and the fall; the year is summed out."""
    rng = np.random.default_rng(23)
    y = np.concatenate([rng.poisson(3.0, 25), rng.poisson(1.4, 35)])
    years = np.arange(1, 60)
    before = np.cumsum(y)[:-1]

    def terms(early: Any, late: Any, m: Any) -> Any:
        rest = (y.sum() - before) * m.log(late) - (60 - years) * late
        return before * m.log(early) - years * early + rest

    def model() -> None:
        rates = numpyro.sample("rates", dist.LogNormal(jnp.zeros(2), 1.0))
        logs = terms(rates[0], rates[1], jnp)
        numpyro.factor("y", jax.nn.logsumexp(logs))
        numpyro.deterministic("year", jax.nn.softmax(logs) @ years)

    at = mesh(u=np.linspace(-4.0, 3.5, 376), v=np.linspace(-4.5, 3.5, 401))
    rates = np.exp(np.column_stack([at["u"], at["v"]]))
    inner = terms(rates[:, :1], rates[:, 1:], np)
    logs = norm.logpdf(at["u"]) + norm.logpdf(at["v"]) + logsumexp(inner, axis=1)
    year = np.exp(inner - logsumexp(inner, axis=1, keepdims=True)) @ years
    asked = [E("year") == 30.0, E(lambda v: v.rates[:, 0] - v.rates[:, 1], name="fall") <= 1.0]
    return model, (), asked, ({"rates": rates, "year": year}, logs)


def random_slopes(width: float = 0.5, slope_at: float = 1.2) -> Built:
    """Regression lines of ten groups, with constraints on the correlation and the mean of the slopes.

    Under a prior of the scales that is twice as wide and a slope of 1.6, the tilted posterior has a tenth of its mass
    in a second mode. There the slopes differ so much that their mean is free. A grid that stops at a scale of 4 misses
    it.
    """
    rng = np.random.default_rng(24)
    n_groups, x = 10, np.linspace(-1, 1, 6)
    lines = np.array([0.5, 1.0]) + rng.normal(size=(n_groups, 2)) @ np.array([[0.8, 0.3], [0.0, 0.5]])
    X = np.column_stack([np.ones(6), x])
    y = lines @ X.T + 0.5 * rng.normal(size=(n_groups, 6))

    def model(y: Any) -> None:
        mean = numpyro.sample("mean", dist.Normal(0, 2).expand([2]).to_event(1))
        scale = numpyro.sample("scale", dist.HalfNormal(width).expand([2]).to_event(1))
        root = numpyro.sample("root", dist.LKJCholesky(2, concentration=2.0))
        z = numpyro.sample("z", dist.Normal(0, 1).expand([n_groups, 2]).to_event(2))
        own = mean + z @ (scale[:, None] * root).T
        numpyro.deterministic("correlation", root[1, 0])
        numpyro.sample("y", dist.Normal(own @ X.T, 0.5), obs=y)

    at = mesh(u=np.linspace(-2.2, 1.3, 29), v=np.linspace(-3.5, 2.6, 47), w=np.linspace(-2.6, 3.2, 41))
    nodes, weights = np.polynomial.hermite_e.hermegauss(24)
    logs, slopes, correlations = [], [], []
    for u, v, w in zip(at["u"], at["v"], at["w"], strict=True):
        r = np.tanh(w)
        s = np.exp([u, v])
        between = np.array([[s[0] ** 2, r * s[0] * s[1]], [r * s[0] * s[1], s[1] ** 2]])
        whole = X @ between @ X.T + 0.25 * np.eye(6)
        solved = np.linalg.solve(whole, np.column_stack([X, y.T]))
        precision = n_groups * X.T @ solved[:, :2] + np.eye(2) / 4
        pull = X.T @ solved[:, 2:].sum(axis=1)
        centre = np.linalg.solve(precision, pull)
        fit = -0.5 * np.sum(y.T * solved[:, 2:]) + 0.5 * pull @ centre
        fit -= 0.5 * n_groups * np.linalg.slogdet(whole)[1] + 0.5 * np.linalg.slogdet(precision)[1]
        # LKJ(2) of a 2 x 2 correlation is (1 - r²); the axes are log-scales and atanh r.
        prior = -0.5 * (s**2).sum() / width**2 + u + v + 2 * np.log1p(-(r**2))
        logs.append(fit + prior + np.log(weights))
        slopes.append(centre[1] + np.sqrt(np.linalg.inv(precision)[1, 1]) * nodes)
        correlations.append(np.full(24, r))
    slope = np.concatenate(slopes)
    points = {"mean": np.column_stack([np.zeros_like(slope), slope]), "correlation": np.concatenate(correlations)}
    return model, (y,), [E("correlation") == -0.3, E("mean[1]") >= slope_at], (points, np.concatenate(logs))


def shares_of_four() -> Built:
    """Four shares that sum to one, all constrained, so that one constraint is redundant."""
    counts = np.array([12, 9, 6, 3])

    def model(counts: Any) -> None:
        p = numpyro.sample("p", dist.Dirichlet(jnp.ones(4)))
        numpyro.sample("y", dist.Multinomial(30, p), obs=counts)

    at = mesh(a=np.linspace(-5, 4, 121), b=np.linspace(-5, 4, 121), c=np.linspace(-5, 5, 121))
    s = [expit(at[name]) for name in "abc"]
    rest = [np.ones_like(s[0]), 1 - s[0], (1 - s[0]) * (1 - s[1])]
    p = np.column_stack([s[0], rest[1] * s[1], rest[2] * s[2], rest[2] * (1 - s[2])])
    jacobian = sum(np.log(one) + np.log1p(-one) for one in s) + np.log1p(-s[0]) * 2 + np.log1p(-s[1])
    return model, (counts,), E("p") == [0.15, 0.2, 0.25, 0.4], ({"p": p}, np.log(p) @ counts + jacobian)


def ordered_levels() -> Built:
    """Three noisy ordered levels, with constraints on the two differences."""
    y, error = np.array([0.2, 0.9, 1.3]), 0.5

    def model(y: Any) -> None:
        prior = dist.TransformedDistribution(
            dist.Normal(jnp.array([0.0, -0.5, -0.5]), jnp.array([2.0, 1.0, 1.0])), dist.transforms.OrderedTransform()
        )
        levels = numpyro.sample("levels", prior)
        numpyro.sample("y", dist.Normal(levels, error), obs=y)

    at = mesh(low=np.linspace(-2.5, 2.5, 101), u=np.linspace(-5, 1.6, 111), v=np.linspace(-5, 1.6, 111))
    levels = np.column_stack([at["low"], at["low"] + np.exp(at["u"])])
    levels = np.column_stack([levels, levels[:, 1] + np.exp(at["v"])])
    logs = norm.logpdf(at["low"], 0, 2) + norm.logpdf(at["u"], -0.5, 1) + norm.logpdf(at["v"], -0.5, 1)
    logs = logs - 0.5 * (((levels - y) / error) ** 2).sum(axis=1)
    asked = [
        E(lambda v: v.levels[:, 2] - v.levels[:, 1], name="upper gap") >= 1.6,
        E(lambda v: v.levels[:, 1] - v.levels[:, 0], name="lower gap") <= 0.3,
    ]
    return model, (y,), asked, ({"levels": levels}, logs)


def cauchy_prior() -> Built:
    """A Cauchy prior with Gaussian data: any mean is attainable, and the scale is constrained by its logarithm."""
    y = np.array([1.2, 0.1, 0.7, 1.9, 0.4, 1.0])

    def model(y: Any) -> None:
        x = numpyro.sample("x", dist.Cauchy(0, 1))
        s = numpyro.sample("s", dist.HalfCauchy(1.0))
        numpyro.sample("y", dist.Normal(x, s + 0.5), obs=y)

    at = mesh(x=np.linspace(-40, 40, 4001), u=np.linspace(-7, 5, 121))
    s = np.exp(at["u"])
    logs = -np.log1p(at["x"] ** 2) - np.log1p(s**2) + at["u"]
    logs = logs - 6 * np.log(s + 0.5) - 0.5 * ((y - at["x"][:, None]) ** 2).sum(axis=1) / (s + 0.5) ** 2
    asked = [
        E(lambda v: jax.nn.sigmoid(4 * (v.x - 1.6)), name="P(x above 1.6)") == 0.6,
        E(lambda v: jnp.log(v.s + 0.5), name="log scale") <= 0.0,
    ]
    return model, (y,), asked, ({"x": at["x"], "s": s}, logs)


def horseshoe_regression() -> Built:
    """Six coefficients under a horseshoe prior, two of which have constrained expectations.

    The reference is a Gibbs sampler of the regularized posterior, since coefficients are Gaussian given the scales. It
    has 400 chains of 300 sweeps (100 discarded), at multipliers found by Newton's method on such runs.
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
        """Sample half-Cauchy scales as inverse-gamma mixtures: lambda² | nu, nu | lambda², tau² | xi, xi | tau²."""
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

    # Gibbs runs at intermediate multipliers are pooled into atoms of the posterior by multistate reweighting, a
    # fixed-point iteration for the self-consistent weights.
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


def many_groups() -> Built:
    """One hundred and twenty small groups, with a constraint on their precisely estimated mean."""
    rng = np.random.default_rng(26)
    n = 120
    y = 1.0 + 0.5 * rng.normal(size=n) + rng.normal(size=n)

    def model(y: Any) -> None:
        mean = numpyro.sample("mean", dist.Normal(0, 2))
        spread = numpyro.sample("spread", dist.HalfNormal(1.0))
        with numpyro.plate("groups", n):
            z = numpyro.sample("z", dist.Normal(0, 1))
            theta = numpyro.deterministic("theta", mean + spread * z)
            numpyro.sample("y", dist.Normal(theta, 1.0), obs=y)

    at = mesh(mean=np.linspace(-0.5, 2.5, 301), u=np.linspace(-5, 0.7, 115))
    spread = np.exp(at["u"])
    kept = spread**2 / (1 + spread**2)
    logs = norm.logpdf(at["mean"], 0, 2) - 0.5 * spread**2 + at["u"] - 0.5 * n * np.log1p(spread**2)
    squares = ((y - y.mean()) ** 2).sum() + n * (y.mean() - at["mean"]) ** 2
    logs = logs - 0.5 * squares / (1 + spread**2)
    nodes, weights = np.polynomial.hermite_e.hermegauss(32)
    level = (kept * y.mean() + (1 - kept) * at["mean"])[:, None] + np.sqrt(kept / n)[:, None] * nodes
    points = {"theta": level.reshape(-1, 1), "spread": np.repeat(spread, 32)}
    asked = [E(lambda v: v.theta.mean(axis=1), name="mean of all") == 0.6, E("spread") <= 0.4]
    return model, (y,), asked, (points, (logs[:, None] + np.log(weights)).ravel())


def predictions() -> Built:
    """A regression with eight coefficients, and bounds on four predictions by one function."""
    rng = np.random.default_rng(27)
    X, customers = rng.normal(size=(30, 8)), rng.normal(size=(4, 8))
    y = X @ rng.normal(size=8) + rng.normal(size=30)

    def model(X: Any, y: Any) -> None:
        w = numpyro.sample("w", dist.Normal(0, 1).expand([8]))
        numpyro.sample("y", dist.Normal(X @ w, 1.0), obs=y)

    covariance = np.linalg.inv(X.T @ X + np.eye(8))
    mean = covariance @ (X.T @ y)
    spread = np.sqrt(np.diag(customers @ covariance @ customers.T))
    low = customers @ mean + spread * np.array([3.0, -5.0, 1.5, 2.5])
    # Only the four predictions matter, so use a grid along the principal axes of their Gaussian.
    root = np.linalg.cholesky(customers @ covariance @ customers.T)
    axis = np.linspace(-8, 8, 41)
    at = np.column_stack(list(mesh(a=axis, b=axis, c=axis, d=axis).values()))
    at, logs = (at[keep := (at**2).sum(axis=1) < 64], -0.5 * (at[keep] ** 2).sum(axis=1))
    w = (customers @ mean + at @ root.T) @ np.linalg.pinv(customers).T
    return model, (X, y), E(lambda v: v.w @ customers.T, name="prediction") >= low, ({"w": w}, logs)


WELL_POSED = (
    student_location,
    autoregression,
    ordered_mixture,
    poisson_effects,
    horseshoe,
    gaussian_far,
    banana,
    centred_banana,
    gaussian_process,
    group_rates,
    survival,
    changepoint,
    random_slopes,
    shares_of_four,
    ordered_levels,
    cauchy_prior,
    horseshoe_regression,
    many_groups,
    predictions,
)


def variable(distribution: Any, name: str = "x") -> Any:
    """Return a model of one variable."""

    def model() -> None:
        numpyro.sample(name, distribution)

    return model


def modes(places: Any, weights: Any) -> Any:
    """Return a model of a mixture of standard normal distributions."""
    places, logs = jnp.asarray(places), jnp.log(jnp.asarray(weights))

    def model() -> None:
        x = numpyro.sample("x", dist.ImproperUniform(dist.constraints.real_vector, (), (places.shape[1],)))
        numpyro.factor("f", jax.nn.logsumexp(logs - 0.5 * ((x - places) ** 2).sum(axis=1)))

    return model


def lognormal_scale() -> None:
    s = numpyro.sample("s", dist.LogNormal(0, 0.5))
    numpyro.deterministic("x", s * numpyro.sample("z", dist.Normal(0, 1).expand([3])))


def inverse_gamma_variance() -> None:
    numpyro.sample("x", dist.Normal(0, jnp.sqrt(numpyro.sample("v", dist.InverseGamma(2.0, 2.0)))))


def centred_scale() -> None:
    numpyro.sample("z", dist.Normal(0, numpyro.sample("s", dist.HalfCauchy(1.0))).expand([20]))


def funnel() -> None:
    numpyro.sample("z", dist.Normal(0, jnp.exp(numpyro.sample("s", dist.Normal(0, 2)) / 2)).expand([6]))


def neck_of_funnel() -> None:
    s = numpyro.sample("s", dist.Normal(0, 2))
    x = numpyro.sample("x", dist.Normal(0, jnp.exp(s)).expand([6]))
    numpyro.sample("y", dist.Normal(x, 3), obs=np.array([1.0, -2.0, 0.5, 3.0, -1.0, 0.0]))


def swapped_labels() -> None:
    y = np.array([-4.0, -3.5, -4.2, -3.8, 4.1, 3.7, 4.4, 3.9])
    means = numpyro.sample("means", dist.Normal(0, 5).expand([2]))
    numpyro.factor("y", jnp.logaddexp(-0.5 * (y - means[0]) ** 2, -0.5 * (y - means[1]) ** 2).sum())


def ratio() -> None:
    a, b = numpyro.sample("a", dist.Normal(0, 1)), numpyro.sample("b", dist.Normal(0.5, 1))
    numpyro.deterministic("half", -a / b)


def two_rows() -> None:
    mu = numpyro.sample("mu", dist.ImproperUniform(dist.constraints.real, (), ()))
    numpyro.sample("y", dist.StudentT(2.0, mu, 1.0), obs=np.array([-1.0, 1.0]))


def both_ends(v: Any) -> Any:
    return jax.nn.sigmoid(6 * (v.x - 3)) + 1.05 * jax.nn.sigmoid(6 * (-v.x - 3))


def pathologies() -> list[tuple[str, Any, tuple[Any, ...], Any]]:
    """Return problems without a solution that chains can find: name, model, arguments, constraints."""
    normal, normals = variable(dist.Normal(0, 1)), variable(dist.Normal(0, 1).expand([3]))
    sum_of_two = E(lambda v: v.x[:, :2].sum(axis=1), name="sum")
    return [
        ("Student's t, wide prior", *student_location(10.0)[:3]),
        ("Poisson effects, low intercept", *poisson_effects(-0.5)[:3]),
        ("ordered mixture, lognormal", *ordered_mixture(dist.LogNormal(0, 1))[:3]),
        ("Gaussian process, its level", *gaussian_process(linear=True)[:3]),
        ("random slopes, wide prior", *random_slopes(1.0, 1.6)[:3]),
        ("a rare mode, diagonal", modes([[0.0, 0.0], [7.0, 7.0]], [0.95, 0.05]), (), E("x[0]") == 5.0),
        ("a rare mode, along an axis", modes([[0.0, 0.0], [8.0, 0.0]], [0.95, 0.05]), (), E("x[0]") == 5.0),
        ("two modes, diagonal", modes([[0.0, 0.0], [7.0, -7.0]], [0.5, 0.5]), (), E("x[0]") == 5.0),
        ("three modes", modes([[0.0] * 3, [5.0] * 3, [5.0, -5.0, -5.0]], [0.6, 0.3, 0.1]), (), E("x[0]") == 3.0),
        ("Cauchy, mean", variable(dist.Cauchy(0, 1)), (), E("x") == 1.0),
        ("Cauchy, absolute value", variable(dist.Cauchy(0, 1)), (), E(jnp.abs, name="abs") >= 5.0),
        ("lognormal, up", variable(dist.LogNormal(0, 1)), (), E("x") >= 10.0),
        ("inverse gamma, up", variable(dist.InverseGamma(1.5, 1.0)), (), E("x") >= 10.0),
        ("Laplace, squares up", variable(dist.Laplace(0, 1)), (), E(lambda x: x**2) >= 20.0),
        ("lognormal scale, mean", lognormal_scale, (), E("x[0]") == 4.0),
        ("inverse-gamma variance, mean", inverse_gamma_variance, (), E("x") == 3.0),
        ("location of two rows of t(2)", two_rows, (), E("mu") == 8.0),
        ("ratio of normals", ratio, (), E("half") == 3.0),
        ("moments that no variable has", normal, (), [E("x") == 2.0, E(lambda x: x**2) == 3.0]),
        ("Jensen's inequality, broken", normal, (), [E("x") >= 1.0, E(jnp.exp, name="exp") <= 1.5]),
        ("a variance below zero", normals, (), E(lambda v: v.x[:, 0] ** 2) <= -0.1),
        ("a rate beyond one", variable(dist.Beta(2, 5)), (), E("x") == 1.05),
        ("mean beyond a truncation", variable(dist.TruncatedNormal(0, 1, low=-1, high=1)), (), E("x") == 1.2),
        ("shares that sum to more than one", variable(dist.Dirichlet(jnp.ones(3))), (), E("x") >= [0.6, 0.6, 0.0]),
        ("twice and once", normal, (), [E("x") >= 1.0, E(lambda x: 2 * x) <= 1.0]),
        ("three that contradict", normals, (), [E("x[0]") >= 1.0, E("x[1]") >= 1.0, sum_of_two <= 1.0]),
        ("both tails at once", normal, (), E(both_ends, name="tails") == 0.95),
        ("centred scale", centred_scale, (), E("s") >= 4.0),
        ("neck of a funnel", neck_of_funnel, (), E("s") == -3.0),
        ("Neal's funnel, centred", funnel, (), E("s") == -3.0),
        ("Neal's funnel, a leaf", funnel, (), E("z[0]") == 5.0),
        ("swapped labels", swapped_labels, (), E("means[0]") == 2.0),
    ]
