"""What a fit of MT-iLSVM is told (Settings), what it works on (State), and the scales both agree on (Scales)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.special import expit

from regbayes._registry import persistable
from regbayes._types import Floats, Integers
from regbayes.priors.indian_buffet import Sticks

Loss = Literal["hinge", "squared_hinge", "epsilon_insensitive", "squared_epsilon_insensitive"]
Margins = Literal["consistent", "posterior", "decoupled"]


@dataclass(frozen=True)
class Settings:
    """Everything that is chosen before a fit.

    Parameters
    ----------
    n_components : int
        K, the truncation of the Indian buffet process.
    alpha : float
        Its concentration.
    loss : {"hinge", "squared_hinge", "epsilon_insensitive", "squared_epsilon_insensitive"}
        What a target that is missed costs.
    C : float
        Price of one unit of loss.
    epsilon : float
        Half-width of the free tube of the two regression losses.
    task_sharing : float
        rho: the weights of a task are ``own + rho common``. 0 is the paper's model, in which tasks share Z alone.
    temperature : float or "auto"
        tau: the entropy of Z counts ``T = max(1, tau max(rows, targets))`` times. 0 is the untempered posterior.
        "auto" is three times the highest of a few at which factor analysis finds features, and at least 0.03. Hotter
        features are more graded and predict a little better; colder ones are nearly on or off and can be read.
    generative_weight : float or "auto"
        g, the weight of one row's share of the generative part against one target's loss; see `Scales`. "auto" is
        ``r = 150 K tau C^2 / (1 + C / 0.03)``.
    margins : {"consistent", "posterior", "decoupled"}
        Descent on the objective by natural gradients; the paper's alternation, corrected; or factor analysis
        followed by one large-margin step. All three start from a factor analysis at the given temperature, or at the
        highest below it at which features do not melt into 1/2.
    fit_intercept : bool
        Whether a task has an intercept, which is the weight of a constant feature 1.
    include_inputs : bool
        Whether tasks see the inputs beside the latent features.
    covariance : {"isotropic", "full"}
        Family of q(w): covariance ``s I`` as in the paper, or free, which is a tighter bound at the same cost.
    noise_variance, weight_variance : float or None
        lambda^2 and sigma0^2; None estimates them.
    variances : {"start", "always"}
        Until when variances that are not given are estimated: in the factor analysis that starts the fit, or to
        the end.
    start_iter : int
        Iterations of that factor analysis at most.
    max_iter : int
        Iterations of the joint fit at most.
    tol : float
        Change of the objective that ends either: per entry of Z in the factor analysis, where the objective is in
        nats; per target, in units of loss, in the joint fit.
    gap_tol : float
        Duality gap of the large-margin steps, relative to their value.
    n_threads : int
        Threads for sums over rows. The result does not depend on it.
    """

    n_components: int = 20
    alpha: float = 2.0
    loss: Loss = "squared_hinge"
    C: float = 0.01
    epsilon: float = 0.0
    task_sharing: float = 1.0
    temperature: float | Literal["auto"] = "auto"
    generative_weight: float | Literal["auto"] = "auto"
    margins: Margins = "consistent"
    fit_intercept: bool = True
    include_inputs: bool = False
    covariance: Literal["isotropic", "full"] = "isotropic"
    noise_variance: float | None = None
    weight_variance: float | None = None
    variances: Literal["start", "always"] = "start"
    start_iter: int = 50
    max_iter: int = 60
    tol: float = 1e-4
    gap_tol: float = 1e-3
    n_threads: int = 1


@persistable(name="regbayes.MultiTaskScales")
@dataclass(frozen=True)
class Scales:
    """How the parts of the objective are weighed against each other: docs/math.md eq. (45).

    With N rows and n targets the generative part counts every row ``s = max(N, n) / N`` times: once for every target
    it has, as the paper does, and at least once. ``T = max(1, tau s N)``, and the objective is
    ``J = r F_T / T + margin part`` with ``r = C g N / n`` for the generative weight g. Copying the rows, one copy for
    each of their M targets, multiplies N by M and leaves n as it is: the same J at generative weight g / M.
    """

    multiplicity: float  # s
    tau: float
    temperature: float  # T
    generative_weight: float  # g
    generative: float  # r


@persistable(name="regbayes.MultiTaskLatent")
@dataclass(frozen=True)
class Latent:
    """The generative part: q(Z), q(nu) and the variances. D input columns, K features."""

    logits: Floats  # (D, K): psi = sigmoid(logits) are the probabilities of Z
    sticks: Sticks
    noise_variance: float  # lambda^2
    weight_variance: float  # sigma0^2

    @property
    def psi(self) -> Floats:
        """Probabilities of the features, (D, K)."""
        return np.asarray(expit(self.logits))


@dataclass(frozen=True)
class Factors:
    """q(w): the posterior of the rows' weights, ``w_n ~ N(projection^T x_n, covariance)``, and its sums over rows."""

    projection: Floats  # (D, K)
    covariance: Floats  # (K, K), shared by all rows
    cross: Floats  # (D, K): sum_n x_n E[w_n]^T
    second_moment: Floats  # (K, K): sum_n E[w_n w_n^T]


@persistable(name="regbayes.MultiTaskWeights")
@dataclass(frozen=True)
class TaskWeights:
    """The large-margin part: q(eta) and the multipliers of the margins.

    M outputs (a task has one, or one per class) in G groups, which see P columns: the K latent features, then the D
    inputs if they are included, then the constant.
    """

    weights: Floats  # (M, P): E[eta], the mean weights of each output
    shared: Floats  # (G, P): the part of them that the outputs of a group have in common
    groups: Integers  # (M,): the group of each output
    duals: Floats  # (n_cells,): signed multipliers


@persistable(name="regbayes.MultiTaskILSVMState")
@dataclass(frozen=True)
class State:
    """A point of the fit, and all that prediction needs."""

    latent: Latent
    tasks: TaskWeights
    scales: Scales
    input_scale: float  # root mean square of the inputs; features are measured in it
    include_inputs: bool
    fit_intercept: bool
