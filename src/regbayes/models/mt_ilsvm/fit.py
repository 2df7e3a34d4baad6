"""Initial factor analysis and joint fit of MT-iLSVM, docs/math.md section 4.4."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from scipy.linalg import eigh
from scipy.special import expit

from regbayes._registry import persistable
from regbayes._types import Floats, Integers
from regbayes.engine import AbsoluteChange, Executor, FitResult, Progress, Serial, Status, StepResult, run
from regbayes.engine.source import cut_rows
from regbayes.joint.descent import DescentOptions
from regbayes.joint.problem import Evaluation, JointProblem, SampledHead, hold_rows
from regbayes.kernels.arrays import is_plain, take_rows
from regbayes.margins.ascent import DEFAULT_MAX_EPOCHS
from regbayes.margins.design import Inputs
from regbayes.margins.head import Head, Tolerance, WarmStart
from regbayes.margins.targets import Cells, Observations, ObservedMatrix, Outputs
from regbayes.models.ilsvm.starts import POLICY, StructurePolicy
from regbayes.models.indian_buffet import Sticks, find_idle, prior_sticks, update_sticks
from regbayes.models.mt_ilsvm.model import (
    ByFeatures,
    Latent,
    Margins,
    Moments,
    MultiTaskModel,
    NoSums,
    Posterior,
    Settings,
    State,
    TaskWeights,
    input_factor,
    resolve_scales,
    sum_moments,
)

Callback = Callable[[Progress[State]], bool | None]
PATIENCE = 2  # consecutive small changes after which the fit has converged
CUT_SHORT = (Status.STOPPED, Status.INTERRUPTED)
WARM_UP = "warm-up"  # names of the stages of a fit in callbacks
MAX_EPOCHS = 10.0  # maximum passes over the samples where features are judged
STAGES: dict[Margins, str] = {"consistent": "descent", "posterior": "alternation", "decoupled": WARM_UP}

START_LOGIT = 2.0  # root mean square of the initial logits along principal directions
NOISE_LOGIT = 0.1  # standard deviation of the noise that breaks ties between initial features
TEMPERATURES = (0.1, 0.03, 0.01, 0.003, 0.001, 0.0)  # of the initial factor analysis, tried from high to low
AUTO_FACTOR, AUTO_TEMPERATURE = 3.0, 0.03  # default temperature: factor on that of the factor analysis, and minimum
UNUSED_RANGE = 0.1  # a feature whose probabilities differ less over the columns does not separate them
COLLAPSED = 0.15  # mean of psi (1 - psi) above which the features have collapsed; it is 0.25 where all are 1/2
COLLAPSING = 0.2  # the same threshold during the factor analysis, which stops there

FIRST_STEP, SHRINK, GROW, MAX_HALVINGS = 0.3, 0.5, 1.2, 20  # step lengths of the descent
# Maximum root mean square of the first change of the logits if there are many targets. A longer step would set all
# features to 0 or 1 at once, and each shorter trial takes a pass over the samples.
FIRST_MOVE, MANY_TARGETS = 16.0, 50_000
LARGEST_GAP, SMALLEST_GAP, GAP_PER_TOL = 1e-3, 1e-12, 10.0  # relative duality gap of the head, and its ratio to `tol`
EARLY_GAP = 50.0  # maximum factor on the gap of the head while it is smaller than the gain of the last step
TIGHTER_GAPS = (1.0, 0.1, 0.01)  # factors on the gap while it is larger than the change of the objective


@dataclass(frozen=True)
class Problem(JointProblem[Floats, Any, Any]):
    """Constants of a fit at one temperature; blocks contain the samples with targets."""

    model: MultiTaskModel
    head: Any  # Head, SampledHead, or None: no target is observed
    settings: Settings
    moments: Moments  # moments of all samples
    n_targets: float

    def at_temperature(self, tau: float) -> Problem:
        """Return the same problem at another temperature."""
        scales = resolve_scales(self.settings, tau, self.moments.n_rows, self.n_targets)
        return replace(self, model=replace(self.model, moments=self.moments.count(scales.multiplicity), scales=scales))

    @property
    def tolerance(self) -> Tolerance:
        """Accuracy of the large-margin problems."""
        gap = float(np.clip(GAP_PER_TOL * self.settings.tol, SMALLEST_GAP, LARGEST_GAP))
        return Tolerance(gap, DEFAULT_MAX_EPOCHS)

    @property
    def groups(self) -> Integers:
        """Group of each output, whose members share weights, (outputs,)."""
        if self.head is None:
            return np.zeros(0, dtype=np.int64)
        head: Head = self.head.problem if isinstance(self.head, SampledHead) else self.head
        return head.prior.group

    def no_weights(self, n_features: int) -> TaskWeights:
        """Zero weights of the outputs before the first solve."""
        settings = self.settings
        n_seen = n_features + settings.include_inputs * len(self.moments.gram) + settings.fit_intercept
        groups = self.groups
        n_groups = int(groups.max(initial=-1)) + 1
        return TaskWeights(np.zeros((len(groups), n_seen)), np.zeros((n_groups, n_seen)), groups, np.zeros(0))

    def find_weights(self, at: Evaluation[Posterior, NoSums]) -> TaskWeights:
        """Return the weights of the outputs at an evaluation."""
        head = at.head
        return TaskWeights(head.head.weights, head.shared, self.groups, np.zeros(0) if head.dual is None else head.dual)

    def state(self, latent: Latent, tasks: TaskWeights | None = None) -> State:
        """Return the state for prediction."""
        return State(
            latent,
            self.no_weights(latent.logits.shape[1]) if tasks is None else tasks,
            self.model.scales,
            self.model.input_scale,
            self.settings.include_inputs,
            self.settings.fit_intercept,
        )


def prepare(
    X: Any,
    observations: Observations | ObservedMatrix,
    outputs: Outputs,
    settings: Settings,
    sample_weight: Floats | None = None,
    executor: Executor | None = None,
) -> Problem:
    """Prepare a fit: the moments of all samples, and the samples with targets.

    Parameters
    ----------
    X : (N, D)
        Centered inputs with or without targets: an array, or `StandardRows` of a file.
    observations, outputs
        The targets; see `observe_numbers` and `observe_classes`.
    settings : Settings
    sample_weight : (N,), optional
        Weight of each sample and its targets.
    executor : Executor, optional
        Executes the blocks of samples, serially by default. The result does not depend on it.
    """
    executor, n_targets, head = executor or Serial(), float(len(observations)), None
    if not is_plain(X):
        executor = Serial()  # one block keeps a device busy
    if sample_weight is not None:
        observations, n_targets = observations.count(sample_weight)
    moments = sum_moments(X, sample_weight, executor)
    has_target = observations.find_rows(X.shape[0])
    if not has_target.all():
        observations = observations.keep_rows(has_target)
        X = X[has_target] if is_plain(X) else take_rows(X, np.flatnonzero(has_target))
    if isinstance(X, np.ndarray):
        X = np.ascontiguousarray(X, dtype=np.float64)
    if len(observations):
        head = build_head(settings, observations, outputs, X, float(np.sqrt(moments.mean_square)))
    model = first_model(settings, moments, n_targets)
    held = hold_rows([X[rows, :] for rows in cut_rows(X, wide=isinstance(X, np.ndarray))], executor)
    return Problem(model, held, head, DescentOptions(), settings, moments, n_targets)


def build_head(
    settings: Settings,
    observations: Observations | ObservedMatrix,
    outputs: Outputs,
    X: Floats,
    input_scale: float,
) -> Head:
    """Return the head of the samples with targets."""
    epsilon = None if settings.loss.endswith("hinge") else settings.epsilon
    return Head(
        Cells(observations, X.shape[0], len(outputs), settings.C, epsilon),
        settings.loss.startswith("squared"),
        groups=outputs.groups,
        sharing=settings.task_sharing,
        fit_intercept=settings.fit_intercept,
        centred=False,
        inputs=Inputs(X, factor=input_factor(X.shape[1], input_scale)) if settings.include_inputs else None,
    )


def first_model(settings: Settings, moments: Moments, n_targets: float) -> MultiTaskModel:
    """Return the model for these moments and ``n_targets`` targets, at the first temperature."""
    tau = TEMPERATURES[0] if settings.temperature == "auto" else settings.temperature
    to_the_end = settings.variances == "always"
    scales = resolve_scales(settings, tau, moments.n_rows, n_targets)
    return MultiTaskModel(
        moments=moments.count(scales.multiplicity),
        scales=scales,
        input_scale=float(np.sqrt(moments.mean_square)),
        alpha=settings.alpha,
        estimate_noise=to_the_end and settings.noise_variance is None,
        estimate_weights=to_the_end and settings.weight_variance is None,
    )


def fit(
    problem: Problem, start: State | Floats, callbacks: Sequence[Callback] = (), policy: StructurePolicy = POLICY
) -> FitResult[State]:
    """Fit the model.

    Parameters
    ----------
    problem : Problem
        What `prepare` gathered.
    start : (D, K), or State
        Standard normal numbers for the initial factor analysis, or a state to resume from. Decoupled margins keep the
        q(Z) of the state.
    callbacks : sequence of callable
        Each receives the `Progress` of every iteration. States of the factor analysis have no weights.
    policy : StructurePolicy
        Decides which features are dropped.

    Returns
    -------
    FitResult of State
        The trace is that of the joint fit, or of the factor analysis with decoupled margins. If the factor analysis is
        interrupted or stopped by a callback, the fit ends with weights for its features.
    """
    if problem.head is None:
        raise ValueError("no target is observed")
    settings = problem.settings
    decoupled, searches = settings.margins == "decoupled", False
    max_iter, status, known, found = (0 if decoupled else settings.max_iter), None, None, None
    if isinstance(start, State):
        if settings.temperature == "auto":
            problem = problem.at_temperature(start.scales.tau)
        latent = start.latent
        known = _known_start(problem, start)
    else:
        problem, latent, found = find_features(problem, start, callbacks)
        searches = settings.margins == "consistent" and settings.max_iter > 0
        if found.status in CUT_SHORT:
            max_iter, status, searches = 0, found.status, False
    at, inferred = problem.evaluate(problem.model.at(latent), known, problem.tolerance)
    if decoupled and found is not None:
        state = problem.state(latent, problem.find_weights(at))
        return FitResult(state, found.trace, found.status, found.n_iter, found.kept_iteration, found.objective)
    point = Point(at, problem.pull_back(at, inferred))
    if searches:
        point, status = search_structure(problem, point, callbacks, policy)
        max_iter = 0 if status else max_iter
    result = _iterate(problem, point, max_iter, settings.tol, callbacks, STAGES[settings.margins])
    at, status = result.state.at, status or result.status
    if at.head.gap > problem.tolerance.gap * at.head.value:  # the last solve stopped early
        try:
            at, _ = problem.evaluate(at.params, at.warm_start, problem.tolerance)
        except KeyboardInterrupt:  # the result has the current weights and an interrupted status
            status = Status.INTERRUPTED
    state = problem.state(result.state.latent, problem.find_weights(at))
    objective = problem.model.normalise(result.objective, state.latent)
    return FitResult(state, result.trace, status, result.n_iter, result.kept_iteration, objective)


def stages_of(settings: Settings) -> dict[str, int | None]:
    """Return the possible stages of a fit in order, with their maximum numbers of iterations where known."""
    last = {} if settings.margins == "decoupled" else {STAGES[settings.margins]: settings.max_iter}
    return {WARM_UP: None} | last


def _known_start(problem: Problem, start: State) -> WarmStart | None:
    """Return the weights of an earlier fit, and its multipliers if outputs and targets match."""
    tasks = start.tasks
    if tasks.weights.shape != problem.no_weights(start.latent.logits.shape[1]).weights.shape:
        return None
    targets = problem.head.targets if isinstance(problem.head, Head) else None
    is_same = isinstance(targets, Cells) and len(tasks.multipliers) == len(targets.observed)
    return WarmStart(tasks.weights, tasks.multipliers if is_same else None)


# Initialization


def find_features(
    problem: Problem, noise: Floats, callbacks: Sequence[Callback] = ()
) -> tuple[Problem, Latent, FitResult[Posterior]]:
    """Find the temperature and the initial features by factor analysis; return its result too.

    The features of a factor analysis collapse to 1/2 above a data-dependent temperature, so lower ones are tried until
    there are features. The joint fit uses the requested temperature and restarts removed features (`reinitialize`).
    """
    settings, wanted = problem.settings, problem.settings.temperature
    lower = TEMPERATURES if wanted == "auto" else (wanted, *(tau for tau in TEMPERATURES if tau < wanted))
    for tau in lower:
        problem = problem.at_temperature(tau)
        found = factor_analysis(problem, noise, callbacks, to_the_end=tau == lower[-1])
        if found.status in CUT_SHORT or not have_collapsed(found.state.latent):
            break
    if settings.margins == "decoupled":
        return problem, found.state.latent, found
    problem = problem.at_temperature(max(AUTO_FACTOR * tau, AUTO_TEMPERATURE) if wanted == "auto" else wanted)
    tempered = problem.model.scales.temperature > 1.0
    return problem, reinitialize(found.state.latent, noise, settings.alpha, tempered), found


def factor_analysis(
    problem: Problem, noise: Floats, callbacks: Sequence[Callback] = (), to_the_end: bool = True
) -> FitResult[Posterior]:
    """Minimize the free energy and estimate the variances at the problem's temperature, ignoring targets.

    Without ``to_the_end``, it stops with STALLED once its features are collapsing.
    """
    settings = problem.settings
    model = replace(
        problem.model,
        scales=replace(problem.model.scales, generative=1.0),
        estimate_noise=settings.noise_variance is None,
        estimate_weights=settings.weight_variance is None,
    )

    def step(at: Posterior) -> StepResult[Posterior]:
        new = model.alternate(at)
        lost = not to_the_end and have_collapsed(new.latent, COLLAPSING)
        return StepResult(new, model.terms(new), status=Status.STALLED if lost else None)

    start = start_latent(model.moments, settings, noise)
    return run(
        step,
        model.at(start),
        max_iter=settings.start_iter,
        objective=model.terms,
        stop=AbsoluteChange(settings.tol * start.logits.size, PATIENCE),
        callbacks=callbacks,
        view=lambda at: problem.state(at.latent),
        stage=WARM_UP,
    )


def have_collapsed(latent: Latent, limit: float = COLLAPSED) -> bool:
    """Return whether the temperature of a factor analysis was too high to find features."""
    return float(np.mean(latent.psi * (1.0 - latent.psi))) > limit


def start_latent(moments: Moments, settings: Settings, noise: Floats) -> Latent:
    """Return logits along the principal directions of the inputs, with one feature per sign.

    A binary feature of the columns can follow only one sign of a direction, so each direction gives two features.

    Parameters
    ----------
    moments : Moments
    settings : Settings
    noise : (D, K)
        Standard normal numbers. They alone initialize features beyond twice the rank of the inputs.
    """
    n_columns, n_features = len(moments.gram), settings.n_components
    n_directions = min((n_features + 1) // 2, n_columns)
    values, vectors = eigh(moments.gram, subset_by_index=[n_columns - n_directions, n_columns - 1])
    values, vectors = values[::-1], vectors[:, ::-1]
    vectors = vectors[:, values > 1e-10 * max(values[0], 1e-300)]
    # Fix the arbitrary signs of eigenvectors in a way that does not depend on the order of columns.
    vectors = vectors * np.where((vectors**3).sum(axis=0) < 0, -1.0, 1.0)
    pairs = np.stack([vectors, -vectors], axis=2).reshape(n_columns, -1)[:, :n_features]
    logits = NOISE_LOGIT * noise
    logits[:, : pairs.shape[1]] += START_LOGIT * np.sqrt(n_columns) * pairs
    logits, sticks = order_by_use(logits, settings.alpha)
    mean_square = moments.mean_square
    return Latent(
        logits=logits,
        sticks=sticks,
        noise_variance=0.5 * mean_square if settings.noise_variance is None else settings.noise_variance,
        weight_variance=mean_square if settings.weight_variance is None else settings.weight_variance,
    )


def order_by_use(logits: Floats, alpha: float) -> tuple[Floats, Sticks]:
    """Sort features by decreasing use, as the sticks expect, and return matching sticks."""
    n_columns, n_features = logits.shape
    counts = expit(logits).sum(axis=0)
    order = np.argsort(-counts, kind="stable")
    sticks = prior_sticks(alpha, n_features)
    for _ in range(5):
        sticks = update_sticks(sticks, counts[order], float(n_columns), alpha)
    return logits[:, order], sticks


def reinitialize(latent: Latent, noise: Floats, alpha: float, tempered: bool) -> Latent:
    """Restart features that a factor analysis has removed from noise.

    A feature that no column or every column has equally has a zero gradient, so margins cannot restore it. Tempered
    features are restarted individually. Without tempering the number of features is inferred, and they are restarted
    only if none is left.
    """
    psi = latent.psi
    highest, lowest = psi.max(axis=0), psi.min(axis=0)
    unused = (highest < 0.5) | (highest - lowest < UNUSED_RANGE)
    if not (unused.any() if tempered else unused.all()):
        return latent
    logits, sticks = order_by_use(np.where(unused, noise, latent.logits), alpha)
    return replace(latent, logits=logits, sticks=sticks)


# The joint fit


@persistable(name="regbayes.mt_ilsvm.Point")
@dataclass(frozen=True)
class Point:
    """Iterate of a joint fit."""

    at: Evaluation[Posterior, NoSums]
    pulled: ByFeatures  # gradient of the head's value with respect to psi
    step_length: float = FIRST_STEP  # gamma, the next trial step length
    gained: float = np.inf  # decrease of J by the last step; infinite before the first

    @property
    def latent(self) -> Latent:
        """q(Z), q(nu) and the variances."""
        return self.at.params.latent


def descend(problem: Problem, point: Point) -> StepResult[Point]:
    """Take a monotone natural-gradient step on the logits of Z, docs/math.md eq. (48).

    ``A <- A + gamma (wanted - A)``. At gamma = 1 this is the paper's update of q(Z) at temperature T, for all features
    at once. J is evaluated at the weights found; inexact weights may delay acceptance but never excuse an increase.
    """
    model, head = problem.model, point.at.head
    params = model.update_blocks(point.at.params)  # features and head do not depend on these blocks
    at = Evaluation.of(params, NoSums(), model.terms(params), head)
    direction = model.wanted_logits(params, point.pulled) - params.latent.logits
    length = point.step_length
    if np.isinf(point.gained) and problem.n_targets >= MANY_TARGETS:
        length = min(length, FIRST_MOVE / max(float(np.sqrt(np.mean(np.square(direction)))), 1e-300))
    for _ in range(MAX_HALVINGS):
        moved = model.move(params, params.latent.logits + length * direction)
        found = _evaluate_if_no_higher(problem, moved, at, point.gained)
        if found is not None:
            gained = point.at.objective - found[0].objective
            new = Point(found[0], problem.pull_back(*found), min(1.0, GROW * length), gained)
            return StepResult(new, new.at.terms, {"step_length": length, "gap": new.at.gap})
        length *= SHRINK
    return StepResult(replace(point, at=at), at.terms, {"step_length": 0.0, "gap": at.gap}, Status.STALLED)


def _iterate(
    problem: Problem, point: Point, max_iter: int, tol: float, callbacks: Sequence[Callback], stage: str
) -> FitResult[Point]:
    """Descend or alternate until the objective per target changes little."""
    return run(
        partial(alternate if problem.settings.margins == "posterior" else descend, problem),
        point,
        max_iter=max_iter,
        objective=lambda point: point.at.terms,
        stop=AbsoluteChange(tol * problem.settings.C * problem.n_targets, PATIENCE),
        callbacks=callbacks,
        view=lambda point: problem.state(point.latent, problem.find_weights(point.at)),
        stage=stage,
    )


def search_structure(
    problem: Problem, point: Point, callbacks: Sequence[Callback], policy: StructurePolicy
) -> tuple[Point, Status | None]:
    """Descend and drop features that barely improve the objective; return the status if that was stopped.

    The rule is that of iLSVM: half of the candidates are dropped at a time, followed by a short descent.
    """
    min_gain, n_steps = policy.min_gain * problem.settings.C * problem.n_targets, policy.first_steps
    try:
        while True:
            most = min(n_steps, problem.settings.max_iter)
            result = _iterate(problem, point, most, policy.tol, callbacks, WARM_UP)
            point, n_steps = result.state, policy.short_steps
            if result.status in CUT_SHORT:
                return point, result.status
            smaller = _drop_idle_features(problem, point, min_gain, policy.max_error)
            if smaller is None:
                return point, None
            point = smaller
    except KeyboardInterrupt:
        return point, Status.INTERRUPTED


def _drop_idle_features(problem: Problem, point: Point, min_gain: float, max_error: float) -> Point | None:
    """Return an iterate without some of the features that barely improve the objective; None if there are none."""
    model, at, latent = problem.model, point.at, point.latent
    K = latent.logits.shape[1]
    tolerance = Tolerance(max_error * min_gain / max(at.head.value, np.finfo(np.float64).tiny), MAX_EPOCHS)

    def evaluate(leaving: Integers, tolerance: Tolerance) -> tuple[Evaluation[Posterior, NoSums], Any]:
        logits, sticks = order_by_use(np.delete(latent.logits, leaving, axis=1), model.alpha)
        params = model.at(replace(latent, logits=logits, sticks=sticks))
        return problem.evaluate(params, carry_weights(problem, at, params), tolerance)

    def judge(found: Evaluation[Posterior, NoSums]) -> float:
        return model.normalise(found.objective, found.params.latent)

    if K == 1:
        return None
    without = np.array([judge(evaluate(np.array([k]), tolerance)[0]) for k in range(K)])
    leaving = find_idle(judge(at), without, min_gain)
    if len(leaving) == 0:
        return None
    found, inferred = evaluate(leaving, problem.tolerance)
    return Point(found, problem.pull_back(found, inferred))


def _evaluate_if_no_higher(
    problem: Problem, params: Posterior, before: Evaluation[Posterior, NoSums], gained: float
) -> tuple[Evaluation[Posterior, NoSums], Any] | None:
    """Return the evaluation at new parameters if J does not increase, None otherwise.

    The dual value at the earlier multipliers is a lower bound, which rejects most bad steps without solving. Without
    multipliers, the gap may be as large as the gain of the last step within limits, which saves passes over the
    samples.
    """
    inference = problem.infer(params)  # runs asynchronously on a device
    terms, tolerance = problem.model.terms(params), problem.tolerance
    room, warm_start = before.objective - sum(terms.values()), carry_weights(problem, before, params)
    if room < 0:
        return None
    if warm_start.multipliers is not None:
        bound = problem.solve(inference, warm_start, replace(tolerance, max_epochs=0.0))
        if bound.value - bound.gap > room:
            return None
    tighter = [replace(tolerance, gap=factor * tolerance.gap) for factor in TIGHTER_GAPS]
    value = before.head.value
    if problem.settings.tol > 0 and warm_start.multipliers is None and gained > tighter[0].gap * value:
        gap = min(gained / max(value, 1e-300), EARLY_GAP * tighter[0].gap)
        tighter.insert(0, replace(tighter[0], gap=gap))
    for tolerance in tighter:
        fitted = problem.solve(inference, warm_start, tolerance)
        if fitted.value <= room:
            return Evaluation.of(params, NoSums(), terms, fitted), inference
        if fitted.value - fitted.gap > room:
            return None
        warm_start = fitted.warm_start
        del fitted  # frees the multipliers before the next evaluation
    return None


def carry_weights(problem: Problem, before: Evaluation[Posterior, NoSums], params: Posterior) -> WarmStart:
    """Return initial weights for new features that approximate the earlier scores of the samples.

    The earlier weights would give other scores, and correcting them takes Newton's method several passes over the
    samples. Features are linear in the samples, so least squares with the weights' prior needs only known moments.
    Multipliers, if any, are a warm start themselves.
    """
    start: WarmStart = before.warm_start
    scales, latent = problem.model.scales, params.latent
    if start.multipliers is not None:
        return start
    assert start.weights is not None
    (n_columns, K), psi = latent.psi.shape, latent.psi
    products = latent.products + latent.noise_variance / latent.weight_variance * np.eye(K)
    seen = params.factors.cross @ products  # moments times psi, from the cross moments of q(w)
    seen *= 2.0 * problem.settings.C / (scales.multiplicity * problem.model.input_scale**2 * n_columns)
    psi_before = before.params.latent.psi
    own, rest = np.split(start.weights, [psi_before.shape[1]], axis=1)
    carry = np.linalg.solve(psi.T @ seen + np.eye(K), seen.T @ psi_before)
    return WarmStart(np.hstack([own @ carry.T, rest]))


def alternate(problem: Problem, point: Point) -> StepResult[Point]:
    """Run one iteration of the paper's alternation, with exact updates.

    q(Z) is updated at fixed multipliers, which lowers a Lagrangian instead of the objective, so J may increase.
    """
    params = problem.model.alternate(point.at.params, point.pulled)
    at, inferred = problem.evaluate(params, point.at.warm_start, problem.tolerance)
    return StepResult(Point(at, problem.pull_back(at, inferred)), at.terms, {"gap": at.gap})
