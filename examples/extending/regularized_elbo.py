"""
Constraints in variational inference
====================================

Add the regularizer of an expectation to the loss of NumPyro's SVI::

    python examples/extending/regularized_elbo.py    # needs NumPyro

SVI minimizes minus the ELBO over the guides ``q``. ``RegularizedLoss`` adds ``g(E_q[psi])``, so SVI solves equation
(1) of :doc:`/math` with ``q`` restricted to the guide.

The task is a diagnosis learned from 60 biopsies, half of them malignant. Two constraints add
information: the share of malignant tumors among the other patients, and ten reference cases with a required margin.
"""

from __future__ import annotations

import importlib.util
import sys

import numpy as np
from scipy.special import expit
from sklearn.datasets import load_breast_cancer

if importlib.util.find_spec("numpyro") is None:
    print("this example needs NumPyro: pip install numpyro")
    sys.exit()

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from numpyro.infer import SVI, Predictive, Trace_ELBO
from numpyro.infer.autoguide import AutoMultivariateNormal

from regbayes.regularizers import KL, Hinge

STEP = 1e-6  # step of the Moreau envelope, which smooths a kink of g over STEP times its slope
N_STEPS = 1000  # number of Adam steps


def envelope(regularizer, x):
    """Return the Moreau envelope of g at x, with its gradient for JAX: (x - prox(x)) / STEP, docs/math.md eq. (6).

    Regularizers are NumPy code, so a callback computes value and gradient on the host. The envelope is below g by at
    most STEP / 2 times the squared slope of g.
    """

    def on_host(x):
        point = np.asarray(x, dtype=np.float64)
        nearest = regularizer.prox(point, STEP)
        slope = (point - nearest) / STEP
        value = regularizer.value(nearest) + 0.5 * STEP * slope @ slope
        return np.asarray(value, x.dtype), slope.astype(x.dtype)

    constant = jax.lax.stop_gradient(x)
    value, slope = jax.pure_callback(on_host, (jax.ShapeDtypeStruct((), x.dtype), constant), constant)
    return value + slope @ (x - constant)  # the product is zero and carries the gradient


class RegularizedLoss(Trace_ELBO):
    """Minus the ELBO plus regularizers of expectations under the guide.

    The regularizer is applied to the average over draws. On single draws, a hinge would penalize the spread of q.
    Each step uses the same random key, so the penalty is a fixed function of the guide's parameters.

    Parameters
    ----------
    constraints : list of pairs
        The first item is a function of one draw of the guide's sites and of the model's arguments. It is written with
        jax.numpy and returns an array of shape (m,). The second is a regularizer of the m expectations. A hard
        constraint becomes a penalty with curvature 1 / STEP, which Adam cannot minimize; use a soft one. If the
        regularizer is a sum over the b rows of a mini-batch of n, multiply it by n / b.
    n_draws : int, default=1000
        Number of draws that estimate an expectation.
    num_particles : int, default=10
        Number of draws that estimate the ELBO.
    """

    def __init__(self, constraints, n_draws=1000, num_particles=10):
        super().__init__(num_particles)
        self.constraints, self.n_draws = constraints, n_draws

    def loss_with_mutable_state(self, rng_key, param_map, model, guide, *args, **kwargs):
        result = super().loss_with_mutable_state(rng_key, param_map, model, guide, *args, **kwargs)
        sampler = Predictive(guide, params=param_map, num_samples=self.n_draws, parallel=True)
        draws = sampler(jax.random.key(0), *args, **kwargs)
        for function, regularizer in self.constraints:
            values = jax.vmap(lambda v, psi=function: psi(v, *args, **kwargs))(draws)
            result["loss"] += envelope(regularizer, values.mean(axis=0))
        return result


def model(X, malignant):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([X.shape[1]]).to_event(1))
    numpyro.sample("malignant", dist.Bernoulli(logits=X @ w), obs=malignant)


def margins(v, X, malignant):
    """Return the scores of ten reference cases, negative where they favor the wrong diagnosis."""
    return ((2 * malignant - 1) * (X @ v["w"]))[:10]


def main():
    X, y = load_breast_cancer(return_X_y=True)
    X = X[:, [1, 4, 8, 9]]  # mean texture, smoothness, symmetry and fractal dimension
    X = np.column_stack([np.ones(len(X)), (X - X.mean(axis=0)) / X.std(axis=0)])
    malignant, order = 1.0 - y, np.random.default_rng(0).permutation(len(X))
    train = np.column_stack([order[y[order] == label][:30] for label in (0, 1)]).ravel()  # alternate the two classes
    args, others = (X[train], malignant[train]), np.setdiff1d(order, train)

    def shares(v, *_):
        rate = jax.nn.sigmoid(X[others] @ v["w"]).mean()
        return jnp.stack([rate, 1 - rate])

    share = malignant[others].mean()
    constraints = [
        (shares, KL([share, 1 - share], weight=500.0)),
        (margins, Hinge(5.0).reflect(1.0)),  # penalty of 5 per unit of an expected margin below 1
    ]
    print(f"known share {share:.3f}     E[share]  shortfall of margins     ELBO")
    guide = AutoMultivariateNormal(model)
    adam = numpyro.optim.Adam(lambda step: 0.05 * (1 - step / N_STEPS))
    for name, chosen in {"no constraint": [], "both constraints": constraints}.items():
        svi = SVI(model, guide, adam, RegularizedLoss(chosen))
        params = svi.run(jax.random.key(0), N_STEPS, *args, progress_bar=False).params
        elbo = -Trace_ELBO(1000).loss(jax.random.key(1), params, model, guide, *args)
        w = np.asarray(guide.sample_posterior(jax.random.key(2), params, sample_shape=(1000,))["w"])
        rate = expit(X[others] @ w.T).mean()
        shortfall = np.maximum(1 - margins({"w": w.mean(axis=0)}, *args), 0).sum()
        print(f"{name:20}{rate:9.3f}{shortfall:22.2f}{elbo:9.1f}")


if __name__ == "__main__":
    main()
