"""More models in NumPyro for `bench_resample.py --fresh`, one of each family that a user is likely to bring.

Each function returns a model,
its arguments, what is asked, and atoms of the posterior (named points with log-weights) on which the same is solved.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from numpyro import distributions as dist
from resample_models import Atoms, mesh
from scipy.special import expit, gammaln, logsumexp
from scipy.stats import norm

from regbayes import E

Built = tuple[Any, tuple[Any, ...], Any, Atoms]


def logistic_offsets() -> Built:
    """Admissions of eight wards with known offsets: the base rate and the spread between wards are asked for."""
    rng = np.random.default_rng(21)
    ward = np.repeat(np.arange(8), 12)
    offset = rng.normal(0, 0.7, 96)
    y = rng.random(96) < expit(offset - 1.0 + 0.6 * rng.normal(size=8)[ward])

    def model(offset: Any, y: Any) -> None:
        base = numpyro.sample("base", dist.Normal(0, 1.5))
        spread = numpyro.sample("spread", dist.HalfNormal(1.0))
        with numpyro.plate("wards", 8):
            z = numpyro.sample("z", dist.Normal(0, 1))
        numpyro.sample("y", dist.Bernoulli(logits=offset + base + spread * z[ward]), obs=y)

    at = mesh(base=np.linspace(-4.5, 2.5, 141), u=np.linspace(-6, 1.6, 96))
    spread = np.exp(at["u"])
    nodes, weights = np.polynomial.hermite_e.hermegauss(40)
    logs = norm.logpdf(at["base"], 0, 1.5) - 0.5 * spread**2 + at["u"]
    for g in range(8):
        inner = np.log(weights) + np.zeros((len(spread), 40))
        level = at["base"][:, None] + spread[:, None] * nodes
        for o, one in zip(offset[ward == g], y[ward == g], strict=True):
            inner = inner + np.where(one, level + o, 0.0) - np.logaddexp(0, level + o)
        logs = logs + logsumexp(inner, axis=1)
    asked = [E(lambda v: jax.nn.sigmoid(v.base), name="base rate") == 0.5, E("spread") <= 0.5]
    return model, (offset, y * 1.0), asked, ({"base": at["base"], "spread": spread}, logs)


def negative_binomial() -> Built:
    """Counts that vary more than Poisson ones: another slope, and less of that variation, at a price."""
    rng = np.random.default_rng(22)
    x = rng.normal(size=40)
    rate = np.exp(1.0 + 0.5 * x)
    y = rng.poisson(rng.gamma(2.0, rate / 2.0))

    def model(x: Any, y: Any) -> None:
        a = numpyro.sample("a", dist.Normal(0, 2))
        b = numpyro.sample("b", dist.Normal(0, 1))
        size = numpyro.sample("size", dist.LogNormal(0.5, 0.8))
        numpyro.sample("y", dist.NegativeBinomial2(jnp.exp(a + b * x), size), obs=y)

    at = mesh(a=np.linspace(-0.4, 2.6, 81), b=np.linspace(-1.0, 1.6, 79), u=np.linspace(-2.2, 4.2, 81))
    size = np.exp(at["u"])
    logs = norm.logpdf(at["a"], 0, 2) + norm.logpdf(at["b"]) + norm.logpdf(at["u"], 0.5, 0.8)
    for xi, yi in zip(x, y, strict=True):
        eta = at["a"] + at["b"] * xi
        total = np.logaddexp(at["u"], eta)
        logs = logs + gammaln(yi + size) - gammaln(size) + size * (at["u"] - total) + yi * (eta - total)
    asked = [E("b") == 0.0, (E(lambda v: jnp.log(v.size), name="log size") >= 1.6).soft(20.0, power=2)]
    return model, (x, y), asked, ({"b": at["b"], "size": size}, logs)


def changepoint() -> Built:
    """Counts whose rate fell at an unknown year, which is summed out: its mean, and the fall, are asked for."""
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
    """Lines of ten groups with correlated intercepts and slopes: the correlation and the mean slope are asked for.

    Under a prior of the scales that is twice as wide, a slope of 1.6 takes a tilt with a tenth of its mass in a second
    mode, where slopes differ so much that their mean is free: a grid that stops at a scale of 4 does not show it.
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


def bounded_parameters() -> Built:
    """A saturating curve with parameters between bounds: its height and its half-saturation point are asked for."""
    rng = np.random.default_rng(25)
    dose = np.array([0.1, 0.3, 0.6, 1.0, 1.5, 2.0, 3.0, 4.0])
    y = 2.0 * dose / (0.8 + dose) + 0.15 * rng.normal(size=8)

    def model(dose: Any, y: Any) -> None:
        top = numpyro.sample("top", dist.Uniform(0, 3))
        half = numpyro.sample("half", dist.TruncatedNormal(1.0, 1.0, low=0.05, high=4.0))
        noise = numpyro.sample("noise", dist.Uniform(0.05, 1.0))
        numpyro.sample("y", dist.Normal(top * dose / (half + dose), noise), obs=y)

    axes = (np.linspace(-6, 9, 151), np.linspace(-7, 7, 141), np.linspace(-7, 5, 97))
    at = mesh(a=axes[0], b=axes[1], c=axes[2])
    shares = {name: expit(values) for name, values in at.items()}
    top, half, noise = 3 * shares["a"], 0.05 + 3.95 * shares["b"], 0.05 + 0.95 * shares["c"]
    logs = sum(np.log(s) + np.log1p(-s) for s in shares.values()) - 0.5 * (half - 1) ** 2
    for d, one in zip(dose, y, strict=True):
        logs = logs - 0.5 * ((one - top * d / (half + d)) / noise) ** 2 - np.log(noise)
    return model, (dose, y), [E("top") >= 2.7, E("half") <= 1.0], ({"top": top, "half": half}, logs)


def shares_of_four() -> Built:
    """Shares that sum to one, all four asked for at once: one constraint too many, which agrees with the others."""
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
    """Three levels in order, seen with noise: the upper two are asked to be apart, the lower two together."""
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
    """A Cauchy prior whose tail the data cut off: any mean can be asked for. The scale's, only by its logarithm."""
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


def many_groups() -> Built:
    """One hundred and twenty groups with few rows: their mean, which is known well, is asked to be elsewhere."""
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
    """A regression with eight coefficients, and bounds on predictions for four customers, given by one function."""
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
    # Only the four predictions matter: a grid in four dimensions along the principal axes of their Gaussian.
    root = np.linalg.cholesky(customers @ covariance @ customers.T)
    axis = np.linspace(-8, 8, 41)
    at = np.column_stack(list(mesh(a=axis, b=axis, c=axis, d=axis).values()))
    at, logs = (at[keep := (at**2).sum(axis=1) < 64], -0.5 * (at[keep] ** 2).sum(axis=1))
    w = (customers @ mean + at @ root.T) @ np.linalg.pinv(customers).T
    return model, (X, y), E(lambda v: v.w @ customers.T, name="prediction") >= low, ({"w": w}, logs)


FAMILIES = (
    logistic_offsets,
    negative_binomial,
    changepoint,
    random_slopes,
    bounded_parameters,
    shares_of_four,
    ordered_levels,
    cauchy_prior,
    many_groups,
    predictions,
)


def family_pathologies() -> list[tuple[str, Any, tuple[Any, ...], Any]]:
    """Problems without an answer, or whose answer chains can hardly find: name, model, arguments, what is asked."""
    few = np.array([0.3, -0.8, 1.1, 0.4, -0.2, 0.9])

    def dose() -> None:
        a = numpyro.sample("a", dist.Normal(0, 1))
        b = numpyro.sample("b", dist.Normal(0.5, 1))
        numpyro.deterministic("half", -a / b)

    def variance(y: Any) -> None:
        v = numpyro.sample("v", dist.InverseGamma(3.0, 1.0))
        numpyro.sample("y", dist.Normal(0, jnp.sqrt(v)), obs=y)

    def three_modes() -> None:
        x = numpyro.sample("x", dist.ImproperUniform(dist.constraints.real_vector, (), (3,)))
        places = jnp.array([[0.0, 0.0, 0.0], [5.0, 5.0, 5.0], [5.0, -5.0, -5.0]])
        near = -0.5 * ((x - places) ** 2).sum(axis=1) + jnp.log(jnp.array([0.6, 0.3, 0.1]))
        numpyro.factor("f", jax.nn.logsumexp(near))

    def normal() -> None:
        numpyro.sample("x", dist.Normal(0, 1))

    def funnel() -> None:
        s = numpyro.sample("s", dist.Normal(0, 2))
        numpyro.sample("z", dist.Normal(0, jnp.exp(s / 2)).expand([6]))

    def pair(y: Any) -> None:
        mu = numpyro.sample("mu", dist.ImproperUniform(dist.constraints.real, (), ()))
        numpyro.sample("y", dist.StudentT(2.0, mu, 1.0), obs=y)

    def narrow() -> None:
        numpyro.sample("x", dist.TruncatedNormal(0, 1, low=-1, high=1))

    def both_ends(v: Any) -> Any:
        return jax.nn.sigmoid(6 * (v.x - 3)) + 1.05 * jax.nn.sigmoid(6 * (-v.x - 3))

    jensen = [E("x") >= 1.0, E(jnp.exp, name="exp") <= 1.5]
    return [
        ("ratio of normals", dose, (), E("half") == 3.0),
        ("variance with few rows, up", variance, (few,), E("v") >= 3.0),
        ("three modes off the axes", three_modes, (), E("x[0]") == 3.0),
        ("Jensen's inequality, broken", normal, (), jensen),
        ("Neal's funnel, centred", funnel, (), E("s") == -3.0),
        ("Neal's funnel, a leaf", funnel, (), E("z[0]") == 5.0),
        ("location of two rows of t(2)", pair, (np.array([-1.0, 1.0]),), E("mu") == 8.0),
        ("mean beyond a truncation", narrow, (), E("x") == 1.2),
        ("random slopes, wide prior", *random_slopes(1.0, 1.6)[:3]),
        ("both tails at once", normal, (), E(both_ends, name="tails") == 0.95),
    ]
