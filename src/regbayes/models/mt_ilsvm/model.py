"""Settings, parameters, objective and gradient of MT-iLSVM.

A sample is ``x ~ Z w`` with a binary matrix Z over the *input columns*, shared by all tasks. A task has a max-margin
classifier on ``E[Z]^T x``. Features and the optimal q(w) are linear in the sample, so the generative part depends on
the samples through ``X^T X`` and N only, which are computed once. Only the head makes passes over the samples.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.special import expit

from regbayes._registry import persistable
from regbayes._types import Floats, Integers, Reals, check_arrays
from regbayes.engine import Executor, Serial
from regbayes.engine.mapped import as_array
from regbayes.engine.source import cut_rows
from regbayes.joint.model import Inferred, JointModel, RowSums
from regbayes.kernels import arrays
from regbayes.kernels.arrays import namespace_of, to_device, to_host
from regbayes.margins.design import Design, Inputs
from regbayes.models import indian_buffet
from regbayes.models.indian_buffet import Sticks, cross_entropy_features, kl_sticks, stick_expectations

Loss = Literal["hinge", "squared_hinge", "epsilon_insensitive", "squared_epsilon_insensitive"]
Margins = Literal["consistent", "posterior", "decoupled"]

# Factor on the inputs in the head, relative to 1 / (scale sqrt(D)). A latent feature sums many columns, and a C that
# suits it would remove single columns.
INPUT_GAIN = 3.0
VARIANCE_FLOOR = 1e-8  # minimum variance relative to the mean square of the inputs; keeps exact fits proper
# The default of the generative weight is r = AUTO_GENERATIVE tau K C^2 / (1 + C / LARGE_C), since r / tau multiplies
# the likelihood. At small C the margins add C^2 / r to the logits; at large C, where weights no longer grow, C / r.
AUTO_GENERATIVE, LARGE_C = 150.0, 0.03  # docs/decisions.md


@dataclass(frozen=True)
class Settings:
    """Settings of a fit."""

    n_components: int = 20  # K, the truncation of the Indian buffet process
    alpha: float = 2.0  # its concentration
    loss: Loss = "squared_hinge"
    C: float = 0.01  # penalty on one unit of loss
    epsilon: float = 0.0  # half-width of the free tube of the two regression losses
    task_sharing: float = 1.0  # rho: weights of a task are own + rho common; 0 is the paper's model
    temperature: float | Literal["auto"] = "auto"  # tau of `Scales`; 0 is the untempered posterior
    generative_weight: float | Literal["auto"] = "auto"  # g of `Scales`
    margins: Margins = "consistent"  # descent on J, the paper's alternation, or factor analysis, then an SVM
    fit_intercept: bool = True
    include_inputs: bool = False  # whether tasks see the inputs in addition to the features
    noise_variance: float | None = None  # lambda^2; None: estimated
    weight_variance: float | None = None  # sigma0^2; None: estimated
    variances: Literal["start", "always"] = "start"  # whether only the factor analysis estimates variances
    start_iter: int = 50  # maximum iterations of the initial factor analysis
    max_iter: int = 60  # maximum iterations of the joint fit
    tol: float = 1e-4  # change of the objective at convergence, per entry of Z (start) or per target and C (fit)


@persistable(name="regbayes.MultiTaskScales")
@dataclass(frozen=True)
class Scales:
    """Relative weights of the parts of the objective, docs/math.md eq. (45).

    With N samples and n targets, the generative part counts every sample ``s = max(N, n) / N`` times: once for each of
    its targets, as in the paper, and at least once. ``T = max(1, tau s N)``, and the objective is
    ``J = r F_T / T + margin part`` with ``r = C g N / n`` for the generative weight g. One copy of each sample for each
    of its M targets multiplies N by M and keeps n, which gives the same J at generative weight g / M.
    """

    multiplicity: float  # s
    tau: float
    temperature: float  # T
    generative_weight: float  # g
    generative: float  # r


def resolve_scales(settings: Settings, tau: float, n_rows: float, n_targets: float) -> Scales:
    """Compute the scales of the objective from temperature and generative weight."""
    counted = max(n_rows, n_targets)
    temperature = max(1.0, tau * counted)
    per_row = n_targets / n_rows
    if settings.generative_weight == "auto":
        C = settings.C / (1.0 + settings.C / LARGE_C)
        weight = AUTO_GENERATIVE * settings.n_components * C * temperature / counted * per_row
    else:
        weight = settings.generative_weight
    generative = settings.C * weight / per_row if n_targets > 0 else 1.0
    return Scales(counted / n_rows, tau, temperature, weight, generative)


@dataclass(frozen=True)
class Moments:
    """Moments of the samples for the generative part."""

    gram: Floats  # (D, D): X^T X
    n_rows: float  # N, or the sum of the samples' weights
    there: Any = None  # the Gram matrix on the device of the samples

    def __add__(self, other: Moments) -> Moments:
        return Moments(self.gram + other.gram, self.n_rows + other.n_rows)

    def count(self, times: float) -> Moments:
        """Multiply the sample weights by a factor."""
        there = None if self.there is None else times * self.there
        return Moments(times * self.gram, times * self.n_rows, there)

    def multiply(self, columns: Floats) -> Floats:
        """Return ``X^T X`` times columns (D, K), the most expensive product of an iteration outside the head."""
        if self.there is None:
            return self.gram @ columns
        return arrays.gather(self.there @ to_device(columns, self.there))[0]

    @property
    def squared_norm(self) -> float:
        """Sum of squares of all entries of X."""
        return float(np.trace(self.gram))

    @property
    def mean_square(self) -> float:
        """Mean square of the entries of X, the unit of variances; 1 if all entries are zero."""
        return self.squared_norm / (self.n_rows * len(self.gram)) or 1.0


@persistable(name="regbayes.MultiTaskLatent")
@dataclass(frozen=True)
class Latent:
    """q(Z), q(nu) and the variances for D input columns and K features."""

    logits: Floats  # (D, K): psi = sigmoid(logits) are the probabilities of Z
    sticks: Sticks
    noise_variance: float  # lambda^2
    weight_variance: float  # sigma0^2

    def _check_loaded(self) -> None:
        sizes = check_arrays(self, logits="DK")
        if self.sticks.first.shape != (sizes["K"],) or self.sticks.second.shape != (sizes["K"],):
            raise ValueError(f"sticks must be of {sizes['K']} features")
        if not (0 < self.noise_variance < np.inf and 0 < self.weight_variance < np.inf):
            raise ValueError("variances must be positive and finite")

    @cached_property
    def psi(self) -> Floats:
        """Probabilities of the features, (D, K), read-only."""
        return expit(self.logits)

    @cached_property
    def products(self) -> Floats:
        """``U = E[Z^T Z]``, (K, K), docs/math.md eq. (40), read-only."""
        return feature_products(self.psi)

    @cached_property
    def entropy(self) -> float:
        """Entropy of q(Z)."""
        return feature_entropy(self.logits)


@persistable(name="regbayes.mt_ilsvm.Factors")
@dataclass(frozen=True)
class Factors:
    """q(w): the posterior ``w_n ~ N(projection^T x_n, covariance)``, and its sums."""

    projection: Floats  # (D, K)
    covariance: Floats  # (K, K), shared by all samples
    cross: Floats  # (D, K): sum_n x_n E[w_n]^T
    second_moment: Floats  # (K, K): sum_n E[w_n w_n^T]


@persistable(name="regbayes.mt_ilsvm.Posterior")
@dataclass(frozen=True)
class Posterior:
    """Generative part of a fit: q(Z), q(nu) and the variances, with the optimal q(w)."""

    latent: Latent
    factors: Factors


@persistable(name="regbayes.MultiTaskWeights")
@dataclass(frozen=True)
class TaskWeights:
    """Weights of M outputs in G groups on P columns (features, inputs, intercept)."""

    weights: Floats  # (M, P): the mean weights of each output
    shared: Floats  # (G, P): common part of the weights of each group
    groups: Integers  # (M,): the group of each output
    multipliers: Floats  # multipliers of the observations if solved by coordinate ascent, otherwise empty


@persistable(name="regbayes.MultiTaskILSVMState")
@dataclass(frozen=True)
class State:
    """State of a fit, including all that prediction needs."""

    latent: Latent
    tasks: TaskWeights
    scales: Scales
    input_scale: float  # root mean square of the inputs, the unit of features
    include_inputs: bool
    fit_intercept: bool

    def _check_loaded(self) -> None:
        n_inputs, n_features = self.latent.logits.shape
        n_columns = n_features + self.include_inputs * n_inputs + self.fit_intercept
        if self.tasks.weights.shape[1] != n_columns or self.tasks.shared.shape[1] != n_columns:
            raise ValueError(f"each output must have {n_columns} weights")
        if not 0 < self.input_scale < np.inf:
            raise ValueError(f"input_scale must be positive and finite; got {self.input_scale!r}")


# The generative part as a sum of named terms including constants, and the updates of its blocks. The terms accept any
# q(Z), q(w) and sticks, so that tests can perturb the optimum of an update.


def feature_products(psi: Floats) -> Floats:
    """Return ``U = E[Z^T Z]``, (K, K), docs/math.md eq. (40)."""
    products = psi.T @ psi
    np.fill_diagonal(products, psi.sum(axis=0))
    return products


def feature_entropy(logits: Floats) -> float:
    """Return the entropy of q(Z), from logits so that it is exact if psi rounds to 0 or 1."""
    magnitude = np.abs(logits)
    odds = np.exp(-magnitude)  # odds of the less likely value
    return float(np.sum(magnitude * odds / (1.0 + odds) + np.log1p(odds)))


def expected_residual(latent: Latent, factors: Factors, moments: Moments) -> float:
    """Return ``sum_n E||x_n - Z w_n||^2``, docs/math.md eq. (40)."""
    fitted = float(np.sum(latent.psi * factors.cross))
    return moments.squared_norm - 2.0 * fitted + float(np.sum(latent.products * factors.second_moment))


def generative_terms(
    latent: Latent, factors: Factors, moments: Moments, alpha: float, temperature: float
) -> dict[str, float]:
    """Return the named terms of ``F_T``, the free energy with the entropy of Z multiplied by ``temperature``."""
    psi, noise_variance, weight_variance = latent.psi, latent.noise_variance, latent.weight_variance
    n, (n_columns, n_features) = moments.n_rows, psi.shape
    log_determinant = float(np.linalg.slogdet(factors.covariance)[1])
    kl_factors = 0.5 * float(np.trace(factors.second_moment)) / weight_variance
    kl_factors += 0.5 * n * (n_features * (float(np.log(weight_variance)) - 1.0) - log_determinant)
    likelihood = 0.5 * n * n_columns * float(np.log(2.0 * np.pi * noise_variance))
    likelihood += 0.5 * expected_residual(latent, factors, moments) / noise_variance
    prior = cross_entropy_features(stick_expectations(latent.sticks), psi.sum(axis=0), float(n_columns))
    return {
        "kl_sticks": kl_sticks(latent.sticks, alpha),
        "kl_features": prior - temperature * latent.entropy,
        "kl_factors": kl_factors,
        "likelihood": likelihood,
    }


def update_factors(latent: Latent, moments: Moments) -> Factors:
    """Return the optimal q(w) for q(Z), docs/math.md eq. (41), from one K x K system for all samples."""
    psi, n_features = latent.psi, latent.psi.shape[1]
    precision = latent.products / latent.noise_variance
    precision[np.diag_indices(n_features)] += 1.0 / latent.weight_variance
    projection = psi @ cho_solve(cho_factor(precision), np.eye(n_features))
    projection /= latent.noise_variance
    covariance = np.eye(n_features) * (n_features / np.trace(precision))
    cross = moments.multiply(projection)
    return Factors(projection, covariance, cross, projection.T @ cross + moments.n_rows * covariance)


def feature_logits(latent: Latent, factors: Factors, temperature: float) -> Floats:
    """Return theta of docs/math.md eq. (46), (D, K): the optimal logits of Z for the generative part alone.

    The gradient of ``F_T`` with respect to the logits is ``T psi (1 - psi) (logits - feature_logits)``.
    """
    psi = latent.psi
    M = factors.second_moment / latent.noise_variance
    own = np.diag(M)
    others = psi @ M
    others -= psi * own
    found = factors.cross / latent.noise_variance  # updated in place below, since allocation costs more than the sums
    found += stick_expectations(latent.sticks).log_odds - 0.5 * own
    found -= others
    found /= temperature
    return found


def update_features(latent: Latent, factors: Factors, temperature: float, margins: Floats | None = None) -> Latent:
    """Update q(Z) exactly, feature by feature, at fixed q(w) and multipliers.

    ``margins`` (D, K) is added to the logits.
    """
    psi = latent.psi.copy()
    M = factors.second_moment / latent.noise_variance
    prior = stick_expectations(latent.sticks).log_odds
    logits = np.empty_like(psi)
    for k in range(psi.shape[1]):
        others = psi @ M[:, k] - psi[:, k] * M[k, k]
        generative = prior[k] - 0.5 * M[k, k] + factors.cross[:, k] / latent.noise_variance - others
        logits[:, k] = generative / temperature
        if margins is not None:
            logits[:, k] += margins[:, k]
        psi[:, k] = expit(logits[:, k])
    return replace(latent, logits=logits)


def update_sticks(latent: Latent, alpha: float) -> Latent:
    """Take one majorize-minimize step of q(nu), kept only if J decreases."""
    counts, n_columns = latent.psi.sum(axis=0), float(len(latent.logits))
    new = indian_buffet.update_sticks(latent.sticks, counts, n_columns, alpha)

    def cost(sticks: Sticks) -> float:
        return kl_sticks(sticks, alpha) + cross_entropy_features(stick_expectations(sticks), counts, n_columns)

    return replace(latent, sticks=new) if cost(new) <= cost(latent.sticks) else latent


def update_noise_variance(latent: Latent, factors: Factors, moments: Moments) -> Latent:
    """Set lambda^2 to its optimum for q(Z) and q(w), docs/math.md eq. (42)."""
    size = moments.n_rows * len(latent.logits)
    residual = expected_residual(latent, factors, moments) / size
    return replace(latent, noise_variance=max(residual, VARIANCE_FLOOR * moments.mean_square))


def update_weight_variance(latent: Latent, factors: Factors, moments: Moments) -> Latent:
    """Set sigma0^2 to its optimum for q(w), docs/math.md eq. (42)."""
    size = moments.n_rows * latent.logits.shape[1]
    return replace(latent, weight_variance=float(np.trace(factors.second_moment)) / size)


NO_MOMENTS = Moments(np.zeros((0, 0)), 0.0)  # placeholder in the model of sample blocks
NO_FACTORS = Factors(*(np.zeros((0, 0)) for _ in range(4)))


# The model with a head


@persistable(name="regbayes.mt_ilsvm.NoSums")
@dataclass(frozen=True)
class NoSums(RowSums):
    """Statistics of the samples for the generative part, which needs none."""


@persistable(name="regbayes.mt_ilsvm.ByFeatures")
@dataclass(frozen=True)
class ByFeatures(RowSums):
    """Derivatives with respect to the probabilities, summed over samples."""

    psi: Floats  # (D, K): the derivative of the head's value


@dataclass(frozen=True)
class MultiTaskModel(JointModel[Any, Posterior, NoSums, ByFeatures]):
    """``r F_T / T`` as a function of the logits of Z, with the optimal q(w)."""

    moments: Moments  # moments of all samples, each counted ``scales.multiplicity`` times
    scales: Scales
    input_scale: float
    alpha: float
    estimate_noise: bool  # whether the variances are estimated
    estimate_weights: bool

    def at(self, latent: Latent) -> Posterior:
        """Return the parameters with the optimal q(w)."""
        return Posterior(latent, update_factors(latent, self.moments))

    def for_blocks(self, params: Posterior) -> tuple[MultiTaskModel, Posterior]:
        """Return a small model and parameters for blocks, which need only the feature probabilities."""
        return replace(self, moments=NO_MOMENTS), Posterior(replace(params.latent), NO_FACTORS)

    def infer(self, rows: Any, params: Posterior) -> Inferred[NoSums]:
        """Return the features of samples."""
        return Inferred(latent_features(as_array(rows), params.latent.psi, self.input_scale), NoSums())

    def pull_back(self, rows: Any, params: Posterior, inferred: Inferred[NoSums], gradient: Any) -> ByFeatures:
        """Convert a gradient by features to one by the probabilities, in which features are linear."""
        n_columns, n_features = params.latent.logits.shape
        if gradient is None:
            return ByFeatures(np.zeros((n_columns, n_features)))
        pulled = arrays.gather(arrays.multiply_rows(as_array(rows).T, gradient.T))[0]
        return ByFeatures(pulled / (self.input_scale * np.sqrt(n_columns)))

    def terms(self, params: Posterior, stats: NoSums | None = None) -> dict[str, float]:
        """Return the named terms of ``r F_T / T``."""
        T, scale = self.scales.temperature, self.scales.generative / self.scales.temperature
        terms = generative_terms(params.latent, params.factors, self.moments, self.alpha, T)
        return {name: scale * value for name, value in terms.items()}

    def normalise(self, objective: float, latent: Latent) -> float:
        """Return the objective without the free energy of unused features, docs/math.md eq. (49).

        Unlike J, it can be compared between numbers of features.
        """
        T, D = self.scales.temperature, len(latent.logits)
        logits = np.linspace(-40.0, 40.0, 801)[:, None]
        p, expected = expit(logits), stick_expectations(latent.sticks)
        spread = 0.5 * self.moments.n_rows * np.log1p(D * p * latent.weight_variance / latent.noise_variance)
        entropy = p * np.logaddexp(0.0, -logits) + (1.0 - p) * np.logaddexp(0.0, logits)
        unused = spread - D * (p * expected.log_use + (1.0 - p) * expected.log_rest + T * entropy)
        return objective - self.scales.generative / T * float(unused.min(axis=0).sum())

    def wanted_logits(self, params: Posterior, pulled: ByFeatures) -> Floats:
        """Return the logits at which the gradient of J vanishes with all else fixed."""
        wanted = feature_logits(params.latent, params.factors, self.scales.temperature)
        return wanted - pulled.psi / self.scales.generative

    def gradient(self, params: Posterior, stats: NoSums, pulled: ByFeatures) -> Reals:
        """Return the gradient of J with respect to the logits, docs/math.md eq. (47)."""
        logits, psi = params.latent.logits, params.latent.psi
        return self.scales.generative * psi * (1.0 - psi) * (logits - self.wanted_logits(params, pulled))

    def position(self, params: Posterior) -> Floats:
        """Return the logits."""
        return params.latent.logits

    def move(self, params: Posterior, position: Reals) -> Posterior:
        """Return the parameters with other logits."""
        return self.at(replace(params.latent, logits=position.astype(np.float64, copy=False)))

    def update_blocks(self, params: Posterior, stats: NoSums | None = None) -> Posterior:
        """Update the sticks and, if estimated, the variances at fixed features, so J cannot increase."""
        latent = self._update_small_blocks(params.latent, params.factors)
        return self.at(latent) if self.estimate_noise or self.estimate_weights else Posterior(latent, params.factors)

    def alternate(self, params: Posterior, pulled: ByFeatures | None = None) -> Posterior:
        """Update q(Z), feature by feature at fixed multipliers, then q(nu), the variances and q(w)."""
        margins = None if pulled is None else -pulled.psi / self.scales.generative
        latent = update_features(params.latent, params.factors, self.scales.temperature, margins)
        return self.at(self._update_small_blocks(latent, params.factors))

    def _update_small_blocks(self, latent: Latent, factors: Factors) -> Latent:
        latent = update_sticks(latent, self.alpha)
        if self.estimate_noise:
            latent = update_noise_variance(latent, factors, self.moments)
        if self.estimate_weights:
            latent = update_weight_variance(latent, factors, self.moments)
        return latent


# Samples as arrays of any library, or of a mapped file


def sum_moments(X: Any, sample_weight: Floats | None = None, executor: Executor | None = None) -> Moments:
    """Return the moments of centered inputs (N, D), summed over blocks in order."""

    def of_block(rows: slice) -> Moments:
        part = as_array(X[rows, :])
        weights = None if sample_weight is None else sample_weight[rows]
        weighted = part if weights is None else part * to_device(weights[:, None], part)
        n_rows = float(part.shape[0]) if weights is None else float(weights.sum())
        return Moments(arrays.gather(arrays.multiply_rows(weighted.T, part.T))[0], n_rows)

    found = (executor or Serial()).map_reduce(of_block, cut_rows(X))
    return found if arrays.is_plain(X) else replace(found, there=to_device(found.gram, X, namespace_of(X).float64))


# Prediction from a fitted state


def latent_features(X: Any, psi: Floats, input_scale: float) -> Any:
    """Return ``E[Z]^T x / (scale sqrt(D))``, (n, K), of order one for any number of columns and units."""
    return X @ to_device(psi / (input_scale * np.sqrt(len(psi))), X)


def input_factor(n_columns: int, input_scale: float) -> float:
    """Return the factor on inputs that tasks use in addition to features."""
    return float(INPUT_GAIN / (input_scale * np.sqrt(n_columns)))


def features(X: Any, state: State) -> Any:
    """Return the latent features of samples, (n, K), on the device of the samples."""
    parts = [latent_features(as_array(X[rows, :]), state.latent.psi, state.input_scale) for rows in cut_rows(X)]
    return arrays.join(parts)


def decision(X: Any, state: State, outputs: Integers | None = None) -> Floats:
    """Return the scores of samples, in host memory.

    Parameters
    ----------
    X : (n, D)
    state : State
    outputs : (n,) or (n, c), optional
        One output per sample, or several. -1 - g selects the shared weights of group g, for a task without data.

    Returns
    -------
    Scores of all outputs, shape (n, M), or of the selected ones in the shape of ``outputs``.
    """
    weights, found = state.tasks.weights, []
    table = np.concatenate([weights, state.tasks.shared[::-1]])  # the shared weights of group g are at -1 - g
    for rows in cut_rows(X):
        part = as_array(X[rows, :])
        inputs = Inputs(part, factor=input_factor(X.shape[1], state.input_scale)) if state.include_inputs else None
        own = latent_features(part, state.latent.psi, state.input_scale)
        design = Design(own, inputs=inputs, fit_intercept=state.fit_intercept)
        if outputs is None:
            found.append(to_host(design.scores(weights)).T)
            continue
        seen = design.array()
        xp, there = namespace_of(seen), to_device(table, seen)
        wanted = outputs[rows] if outputs.ndim == 2 else outputs[rows, None]
        scores = [xp.sum(seen * arrays.take_rows(there, column % len(table)), axis=1) for column in wanted.T]
        found.append(np.stack(list(map(to_host, scores)), axis=1))
    all_scores: Floats = np.concatenate(found).astype(np.float64, copy=False)
    return all_scores if outputs is None else all_scores.reshape(outputs.shape)
