"""Empirical Bayes, also with posteriors of chain graphs."""

from __future__ import annotations

import importlib.util
import itertools
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.stats import multivariate_normal, norm

import cvxpy_oracle
import regbayes
from regbayes import E, Finite, Gaussian, Samples, empirical_bayes, regularize
from regbayes.engine import Status
from regbayes.regularizers import AtLeast, Hinge, Ridge, Separable

POINTS = np.array([-1.9, -1.1, -0.2, 0.6, 1.4, 2.3])
ASSIGNMENTS = np.array(list(itertools.product((0, 1), repeat=len(POINTS))))  # (64, 6): component of each point


@dataclass(frozen=True)
class Theta:
    share: float  # probability of the second component
    means: tuple[float, float]


class Mixture:
    """Two normal components of variance one; the assignment is the latent variable."""

    def posterior(self, theta: Theta) -> Finite:
        log_component = norm.logpdf(POINTS[:, None], loc=theta.means)  # (6, 2)
        log_share = np.log([1 - theta.share, theta.share])
        log_joint = (log_share + log_component)[np.arange(len(POINTS)), ASSIGNMENTS].sum(axis=1)
        return Finite(ASSIGNMENTS, log_weights=log_joint)

    def update(self, q: Finite) -> Theta:
        second = q.expectation(lambda z: z)
        first = 1 - second
        return Theta(float(second.mean()), (float(first @ POINTS / first.sum()), float(second @ POINTS / second.sum())))


START = Theta(0.4, (-0.5, 0.5))
NOTHING = E(lambda z: z.mean(axis=1)) <= 2.0  # satisfied by every distribution
ALIKE = E(lambda z: z[:, 1] == z[:, 3], name="second and fourth alike") >= 0.8
CONSTRAINTS = {
    "hard": ALIKE,
    "soft": (E(lambda z: z.mean(axis=1)) == 0.3).soft(5.0, power=2),
    "both": [ALIKE, (E(lambda z: z.mean(axis=1)) <= 0.3).soft(2.0)],
}


def objective(theta: Theta, constraints: object) -> float:
    posterior = Mixture().posterior(theta)
    return regularize(posterior, constraints).primal - posterior.log_evidence


def plain_em(theta: Theta, rounds: int) -> tuple[list[Theta], list[float]]:
    """Return the log-likelihoods of textbook EM with responsibilities."""
    thetas, log_likelihoods = [theta], []
    for _ in range(rounds + 1):
        theta = thetas[-1]
        dense = np.array([1 - theta.share, theta.share]) * norm.pdf(POINTS[:, None], loc=theta.means)
        log_likelihoods.append(float(np.log(dense.sum(axis=1)).sum()))
        r = dense / dense.sum(axis=1, keepdims=True)
        thetas.append(Theta(float(r[:, 1].mean()), tuple(r.T @ POINTS / r.sum(axis=0))))
    return thetas[: rounds + 1], log_likelihoods


def test_empirical_bayes_without_regularizer_is_em():
    fit = empirical_bayes(Mixture(), START, NOTHING, tol=0.0, max_iter=25)
    thetas, log_likelihoods = plain_em(START, 25)
    np.testing.assert_allclose(-fit.trace.objective, log_likelihoods, atol=1e-9)
    assert fit.theta.share == pytest.approx(thetas[-1].share, abs=1e-9)
    assert fit.theta.means == pytest.approx(thetas[-1].means, abs=1e-9)
    np.testing.assert_allclose(fit.trace.terms["regularizer"], 0.0, atol=1e-9)


def test_empirical_bayes_vanishing_regularizer_is_em():
    thetas, _ = plain_em(START, 10)
    gaps = []
    for price in (1e-1, 1e-2, 1e-3):
        faint = (E(lambda z: z.mean(axis=1)) == 0.1).soft(price)
        fit = empirical_bayes(Mixture(), START, faint, tol=0.0, max_iter=10)
        gaps.append(abs(fit.theta.share - thetas[-1].share))
    assert gaps[0] > gaps[1] > gaps[2] > 0
    assert gaps[2] < 0.02 * gaps[0]


@pytest.mark.parametrize("name", CONSTRAINTS)
def test_empirical_bayes_objective_is_monotone(name):
    fit = empirical_bayes(Mixture(), START, CONSTRAINTS[name], tol=1e-13, max_iter=2000)
    assert fit.status is Status.CONVERGED
    course = fit.trace.objective
    assert np.all(np.diff(course) <= 1e-9)
    assert course[0] - course[-1] > 0.1
    assert course[-1] == pytest.approx(objective(fit.theta, CONSTRAINTS[name]), abs=1e-8)
    np.testing.assert_allclose(course, sum(fit.trace.terms.values()), atol=1e-12)


@pytest.mark.parametrize("name", CONSTRAINTS)
def test_empirical_bayes_ends_at_stationary_point(name):
    fit = empirical_bayes(Mixture(), START, CONSTRAINTS[name], tol=1e-14, max_iter=5000)
    here = objective(fit.theta, CONSTRAINTS[name])
    for width in (1e-2, -1e-2):
        low, high = fit.theta.means
        for moved in (
            Theta(fit.theta.share + width, (low, high)),
            Theta(fit.theta.share, (low + width, high)),
            Theta(fit.theta.share, (low, high + width)),
        ):
            assert objective(moved, CONSTRAINTS[name]) > here - 1e-8


def test_empirical_bayes_meets_constraint_only_if_given():
    fit = empirical_bayes(Mixture(), START, ALIKE, tol=1e-12, max_iter=2000)
    assert fit.regularized.status == "optimal"
    assert fit.regularized.after[0] == pytest.approx(0.8, abs=1e-6)
    free = empirical_bayes(Mixture(), START, NOTHING, tol=1e-12, max_iter=2000)
    assert free.regularized.expectation(ALIKE.features)[0] < 0.7
    # The objective increases by the cost of the constraint.
    assert fit.trace.objective[-1] > free.trace.objective[-1]


def test_empirical_bayes_accepts_features_and_regularizer_pair():
    fit = empirical_bayes(Mixture(), START, lambda z: z.mean(axis=1), Ridge(0.3, 0.01), max_iter=50)
    assert fit.regularized.after[0] == pytest.approx(0.3, abs=0.1)


class Worse(Mixture):
    """An update that moves away from the maximum."""

    def update(self, q: Finite) -> Theta:
        best = super().update(q)
        return Theta(best.share, (best.means[0] - 2.0, best.means[1] + 2.0))


class WorseLater(Mixture):
    """An update that fails after the first iteration."""

    def __init__(self) -> None:
        self.rounds = 0

    def update(self, q: Finite) -> Theta:
        self.rounds += 1
        return super().update(q) if self.rounds < 4 else Worse().update(q)


def test_empirical_bayes_bad_update_is_reported():
    fit = empirical_bayes(Worse(), START, ALIKE)
    assert fit.status is Status.STALLED
    assert fit.theta == START
    assert fit.n_iter == 1


def test_empirical_bayes_keeps_best_parameters():
    fit = empirical_bayes(WorseLater(), START, ALIKE)
    good = empirical_bayes(Mixture(), START, ALIKE, max_iter=3, tol=0.0)
    assert fit.status is Status.STALLED
    assert fit.theta == good.theta
    assert np.all(np.diff(fit.trace.objective) <= 1e-9)


def test_empirical_bayes_iteration_limit():
    fit = empirical_bayes(Mixture(), START, ALIKE, max_iter=3, tol=0.0)
    assert fit.status is Status.ITERATION_LIMIT
    assert fit.n_iter == 3
    assert empirical_bayes(Mixture(), START, ALIKE, max_iter=0).theta == START


def test_empirical_bayes_posterior_without_evidence_raises():
    class Drawn(Mixture):
        def posterior(self, theta: Theta) -> Samples:
            return Samples(ASSIGNMENTS)

    with pytest.raises(ValueError, match="must carry log_evidence"):
        empirical_bayes(Drawn(), START, NOTHING)


def test_empirical_bayes_result_save_and_load(tmp_path):
    fit = empirical_bayes(VARIANCE, 1.0, np.eye(3)[:1], AtLeast(0.5), max_iter=5)
    fit.save(tmp_path / "fit")
    found = regbayes.load(tmp_path / "fit")
    assert found.theta == fit.theta
    assert found.status is fit.status
    assert np.array_equal(found.trace.objective, fit.trace.objective)
    assert np.array_equal(found.regularized.multipliers, fit.regularized.multipliers)


class Regression:
    """``y = X w + noise`` with ``w ~ N(0, theta I)``; theta is the prior variance."""

    noise = 0.5

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.rows = rng.normal(size=(8, 3))
        self.responses = self.rows @ np.array([1.0, -2.0, 0.3]) + np.sqrt(self.noise) * rng.normal(size=8)

    def posterior(self, theta: float) -> Gaussian:
        covariance = np.linalg.inv(self.rows.T @ self.rows / self.noise + np.eye(3) / theta)
        mean = covariance @ self.rows.T @ self.responses / self.noise
        marginal = theta * self.rows @ self.rows.T + self.noise * np.eye(8)
        return Gaussian(mean, covariance, log_evidence=float(multivariate_normal.logpdf(self.responses, cov=marginal)))

    def update(self, q: Gaussian) -> float:
        return float(q.mean @ q.mean + np.trace(q.covariance)) / 3


VARIANCE = Regression()


@pytest.mark.parametrize(
    "regularizer", [AtLeast(-50.0), AtLeast(0.5), Hinge(4.0).reflect(0.5)], ids=["none", "hard", "soft"]
)
def test_prior_variance_maximizes_profile_likelihood(regularizer):
    def profile(log_theta: float) -> float:
        posterior = VARIANCE.posterior(np.exp(log_theta))
        return regularize(posterior, np.array([0.0, 0.0, 1.0]), regularizer).primal - posterior.log_evidence

    best = minimize_scalar(profile, bounds=(-3, 4), method="bounded", options={"xatol": 1e-9})
    fit = empirical_bayes(VARIANCE, 0.1, np.array([0.0, 0.0, 1.0]), regularizer, tol=1e-14, max_iter=2000)
    assert fit.trace.objective[-1] == pytest.approx(best.fun, abs=1e-7)
    assert np.log(fit.theta) == pytest.approx(best.x, abs=1e-4)
    assert np.all(np.diff(fit.trace.objective) <= 1e-9)


# Chain graphs: the posterior of an undirected model with a prior on its weights.


@pytest.fixture(scope="module")
def machine() -> ModuleType:
    path = Path(__file__).parents[2] / "examples" / "constraints" / "plot_boltzmann_machine.py"
    spec = importlib.util.spec_from_file_location("boltzmann_machine", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def machine_table(machine: ModuleType, weights: tuple[float, ...]) -> dict[tuple[int, ...], float]:
    """Enumerate the probabilities of all states, hidden unit first, of one machine."""
    unnormalised = {}
    for state in itertools.product((0, 1), repeat=4):
        h, *v = state
        score = machine.HIDDEN_BIAS * h
        for weight, visible in zip(weights, v, strict=True):
            score += (weight * h + machine.VISIBLE_BIAS) * visible
        unnormalised[state] = np.exp(score)
    total = sum(unnormalised.values())
    return {state: value / total for state, value in unnormalised.items()}


@pytest.fixture(scope="module")
def joint(machine) -> dict[tuple[tuple[float, ...], tuple[int, ...]], float]:
    """Return p(w) p(H, D | w) for every w and every H."""
    prior = {w: np.exp(-abs(w)) for w in machine.WEIGHTS}
    scale = sum(prior.values())
    table = {}
    for weights in itertools.product(machine.WEIGHTS, repeat=3):
        states = machine_table(machine, weights)
        for hidden in itertools.product((0, 1), repeat=len(machine.ANSWERS)):
            p = np.prod([prior[w] / scale for w in weights])
            for h, answers in zip(hidden, machine.ANSWERS.tolist(), strict=True):
                p *= states[h, *answers]
            table[weights, hidden] = p
    return table


def test_boltzmann_machine_enumeration_is_exact(machine, joint):
    posterior = machine.chain_graph()
    assert posterior.n_atoms == len(joint) == 4096
    assert posterior.log_evidence == pytest.approx(np.log(sum(joint.values())), abs=1e-10)
    models = posterior.draws.variables
    keys = zip(map(tuple, models["weights"].tolist()), map(tuple, models["ill"].tolist()), strict=True)
    by_hand = np.array([joint[key] for key in keys]) / sum(joint.values())
    np.testing.assert_allclose(posterior.probabilities, by_hand, rtol=1e-9)


def test_marginal_posterior_of_weights_is_bayes_rule(machine):
    posterior = machine.chain_graph()
    likelihood = {}
    for weights in itertools.product(machine.WEIGHTS, repeat=3):
        states = machine_table(machine, weights)
        rows = [states[0, *row] + states[1, *row] for row in machine.ANSWERS.tolist()]
        likelihood[weights] = np.exp(-np.abs(weights).sum()) * np.prod(rows)
    total = sum(likelihood.values())
    mean = sum(np.array(w) * p for w, p in likelihood.items()) / total
    np.testing.assert_allclose(posterior.expectation("weights"), mean, atol=1e-10)


def test_chain_graph_constraints_on_hidden_units_and_weights(machine, joint):
    posterior = machine.chain_graph()
    result = regularize(
        posterior,
        [
            E(lambda m: m.ill[:, 1] == m.ill[:, 5]) >= 0.9,
            (E(lambda m: m.weights[:, 2]) >= 0.5).soft(0.3),
        ],
    )
    weights, hidden = (np.array(part) for part in zip(*joint, strict=True))
    p = np.array(list(joint.values())) / sum(joint.values())
    features = np.column_stack([hidden[:, 1] == hidden[:, 5], weights[:, 2]]).astype(float)
    oracle = cvxpy_oracle.solve(features, p, Separable([AtLeast(0.9), Hinge(0.3).reflect(0.5)], [1, 1]))
    assert result.status == "optimal"
    assert result.primal == pytest.approx(oracle.value, abs=1e-6)
    np.testing.assert_allclose(result.after, features.T @ oracle.probabilities, atol=1e-5)
    # The penalty is too small to meet the soft constraint, so that its multiplier is the whole penalty.
    assert result.multipliers[1] == pytest.approx(0.3, abs=1e-8)
    # For the joint with the data, the minimized objective is KL(q || p(M, D)), which includes minus the log evidence.
    q = result.posterior.probabilities
    with_evidence = float(np.sum(q * (np.log(q) - np.log(posterior.probabilities) - posterior.log_evidence)))
    assert with_evidence == pytest.approx(result.kl - np.log(sum(joint.values())), abs=1e-9)
