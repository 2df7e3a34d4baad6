"""
Resample a model under constraints
==================================

Constrain the mean effect of eight schools to 20, and impose parity in a logistic regression. Needs NumPyro::

    python examples/constraints/resample_model.py
"""

from __future__ import annotations

import importlib.util
import warnings

import numpy as np

from regbayes import E, InfeasibleError, Samples, regularize, resample

EFFECTS = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
ERRORS = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])


def eight_schools(effects, errors):
    import numpyro
    from numpyro import distributions as dist

    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
    with numpyro.plate("school", 8):
        standard = numpyro.sample("standard", dist.Normal(0.0, 1.0))
        theta = numpyro.deterministic("theta", mu + tau * standard)
        numpyro.sample("y", dist.Normal(theta, errors), obs=effects)


def logistic(rows, classes):
    import numpyro
    from numpyro import distributions as dist

    w = numpyro.sample("w", dist.Normal(0.0, 2.0).expand([rows.shape[1]]))
    numpyro.sample("class", dist.Bernoulli(logits=rows @ w), obs=classes)


def mean_effect(v):
    return v.theta.mean(axis=1)


def schools_at_twenty():
    from regbayes.ppl import NumPyroModel

    model = NumPyroModel(eight_schools, EFFECTS, ERRORS)
    result = resample(model, E(mean_effect) == 20)
    print(result)
    print(result.runs_table())
    first = Samples(result.runs[0].run.variables, chains=True)
    try:
        regularize(first, E(mean_effect) == 20)
    except InfeasibleError as error:
        print("reweighted:", error)


def parity():
    from jax import numpy as jnp

    from regbayes.ppl import NumPyroModel

    rng = np.random.default_rng(0)
    group = rng.random(200) < 0.4
    rows = np.column_stack([np.ones(200), rng.normal(size=(200, 3)), group])
    classes = rng.random(200) < 1 / (1 + np.exp(-rows @ [0.0, 1.0, -0.5, 0.3, 1.5]))

    def rates(w):
        return 1 / (1 + jnp.exp(-(w @ rows.T)))

    def gap(w):
        return rates(w)[:, group].mean(axis=1) - rates(w)[:, ~group].mean(axis=1)

    def rate(w):
        return rates(w).mean(axis=1)

    result = resample(NumPyroModel(logistic, rows, classes * 1.0), [E(gap) == 0, E(rate) == 0.5])
    print(result)


def main():
    if importlib.util.find_spec("numpyro") is None:
        print("this example needs NumPyro: pip install numpyro")
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        schools_at_twenty()
        parity()


if __name__ == "__main__":
    main()
