"""How MT-iLSVM is fitted: a factor analysis to start from, then the joint fit, docs/math.md section 4.4."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from scipy.linalg import eigh
from scipy.special import expit

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
from regbayes.models.indian_buffet import Sticks, prior_sticks, update_sticks
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
PATIENCE = 2  # consecutive small changes at which the fit has converged
CUT_SHORT = (Status.STOPPED, Status.INTERRUPTED)
WARM_UP = "warm-up"  # the stages of a fit, as callbacks see them
STAGES: dict[Margins, str] = {"consistent": "descent", "posterior": "alternation", "decoupled": WARM_UP}

START_LOGIT = 2.0  # root mean square of the logits that the principal directions start from
NOISE_LOGIT = 0.1  # standard deviation of the noise that separates features which would start alike
TEMPERATURES = (0.1, 0.03, 0.01, 0.003, 0.001, 0.0)  # of the initial factor analysis, tried from high to low
AUTO_FACTOR, AUTO_TEMPERATURE = 3.0, 0.03  # the default temperature: a multiple of that of the start, at least this
UNUSED_RANGE = 0.1  # a feature whose probabilities differ less over the columns does not separate them
COLLAPSED = 0.15  # mean of psi (1 - psi) above which the features have collapsed; it is 0.25 where all are 1/2
COLLAPSING = 0.2  # the same during the factor analysis, from where it did not recover

FIRST_STEP, SHRINK, GROW, MAX_HALVINGS = 0.3, 0.5, 1.2, 20  # step lengths of the descent
# Root mean square of the first change of the logits, at most, if targets are many. These change the logits more, a
# longer step sets all features to 0 or 1 at once, and each shorter trial takes a pass over the samples.
FIRST_MOVE, MANY_TARGETS = 16.0, 50_000
LARGEST_GAP, SMALLEST_GAP, GAP_PER_TOL = 1e-3, 1e-12, 10.0  # relative duality gap of the head, and its ratio to `tol`
# While steps gain more, the gap may be this many times as large, if Newton steps suggest that less is left to gain than
# this share of the last gain, and than this share of the value.
EARLY_GAP = 50.0
TIGHTER_GAPS = (1.0, 0.1, 0.01)  # factors on the gap while it is larger than the change of the objective


@dataclass(frozen=True)
class Problem(JointProblem[Floats, Any, Any]):
    """What stays the same through a fit, at one temperature; blocks are of the rows with targets."""

    model: MultiTaskModel
    head: Any  # Head, SampledHead, or None: no target is observed
    settings: Settings
    moments: Moments  # of all rows
    n_targets: float

    def at_temperature(self, tau: float) -> Problem:
        """Return the same problem at another temperature."""
        scales = resolve_scales(self.settings, tau, self.moments.n_rows, self.n_targets)
        return replace(self, model=replace(self.model, moments=self.moments.count(scales.multiplicity), scales=scales))

    @property
    def tolerance(self) -> Tolerance:
        """How accurately the large-margin problems are solved."""
        gap = float(np.clip(GAP_PER_TOL * self.settings.tol, SMALLEST_GAP, LARGEST_GAP))
        return Tolerance(gap, DEFAULT_MAX_EPOCHS)

    @property
    def groups(self) -> Integers:
        """Return the group of each output whose weights are shared, (outputs,)."""
        if self.head is None:
            return np.zeros(0, dtype=np.int64)
        head: Head = self.head.problem if isinstance(self.head, SampledHead) else self.head
        return head.prior.group

    def no_weights(self) -> TaskWeights:
        """Return the weights of outputs that have not been solved for."""
        settings = self.settings
        n_seen = settings.n_components + settings.include_inputs * len(self.moments.gram) + settings.fit_intercept
        groups = self.groups
        n_groups = int(groups.max(initial=-1)) + 1
        return TaskWeights(np.zeros((len(groups), n_seen)), np.zeros((n_groups, n_seen)), groups, np.zeros(0))

    def find_weights(self, at: Evaluation[Posterior, NoSums]) -> TaskWeights:
        """Return the weights of outputs at an evaluation."""
        head = at.head
        return TaskWeights(head.head.weights, head.shared, self.groups, np.zeros(0) if head.dual is None else head.dual)

    def state(self, latent: Latent, tasks: TaskWeights | None = None) -> State:
        """Return a point of the fit as what prediction needs."""
        return State(
            latent,
            self.no_weights() if tasks is None else tasks,
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
    """Gather what a fit works on: statistics of all rows, and the rows that have targets.

    Parameters
    ----------
    X : (N, D)
        Centred inputs, one row per example, with targets or without; an array, or `StandardRows` of a file.
    observations, outputs
        The targets; see `observe_numbers` and `observe_classes`.
    settings : Settings
    sample_weight : (N,), optional
        How often each row counts, its targets included.
    executor : Executor, optional
        Takes the blocks of rows; one after another by default. The result does not depend on it.
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
    """Return the head of the rows that have targets."""
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
    """Return the model of rows with such moments and so many targets, at the first temperature that is tried."""
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


def fit(problem: Problem, start: State | Floats, callbacks: Sequence[Callback] = ()) -> FitResult[State]:
    """Fit the model.

    Parameters
    ----------
    problem : Problem
        What `prepare` gathered.
    start : (D, K), or State
        Standard normal numbers for the initial factor analysis, or a state to resume instead. With decoupled margins
        the q(Z) of the state is kept.
    callbacks : sequence of callable
        Each sees the `Progress` of every iteration, including the factor analysis, whose states have no weights.

    Returns
    -------
    FitResult of State
        The trace is that of the joint fit, or of the factor analysis with decoupled margins. A factor analysis that is
        interrupted, or that a callback stops, ends the fit; its features are given weights.
    """
    if problem.head is None:
        raise ValueError("no target is observed")
    settings = problem.settings
    decoupled = settings.margins == "decoupled"
    max_iter, status, known, found = (0 if decoupled else settings.max_iter), None, None, None
    if isinstance(start, State):
        if settings.temperature == "auto":
            problem = problem.at_temperature(start.scales.tau)
        latent = start.latent
        known = _known_start(problem, start.tasks)
    else:
        problem, latent, found = find_features(problem, start, callbacks)
        if found.status in CUT_SHORT:
            max_iter, status = 0, found.status
    at, inferred = problem.evaluate(problem.model.at(latent), known, problem.tolerance)
    if decoupled and found is not None:
        state = problem.state(latent, problem.find_weights(at))
        return FitResult(state, found.trace, found.status, found.n_iter, found.kept_iteration, found.objective)
    result = run(
        partial(alternate if settings.margins == "posterior" else descend, problem),
        Point(at, problem.pull_back(at, inferred)),
        max_iter=max_iter,
        objective=lambda point: point.at.terms,
        stop=AbsoluteChange(settings.tol * settings.C * problem.n_targets, PATIENCE),
        callbacks=callbacks,
        view=lambda point: problem.state(point.latent, problem.find_weights(point.at)),
        stage=STAGES[settings.margins],
    )
    at, status = result.state.at, status or result.status
    if at.head.gap > problem.tolerance.gap * at.head.value:  # the last solve was one of those that may end early
        try:
            at, _ = problem.evaluate(at.params, at.warm_start, problem.tolerance)
        except KeyboardInterrupt:  # the model has the weights that are there, and a status that says so
            status = Status.INTERRUPTED
    state = problem.state(result.state.latent, problem.find_weights(at))
    return FitResult(state, result.trace, status, result.n_iter, result.kept_iteration, result.objective)


def stages_of(settings: Settings) -> dict[str, int | None]:
    """Return the stages that a fit can have, in their order, and the most iterations of each, where that is known."""
    last = {} if settings.margins == "decoupled" else {STAGES[settings.margins]: settings.max_iter}
    return {WARM_UP: None} | last


def _known_start(problem: Problem, tasks: TaskWeights) -> WarmStart | None:
    """Return the weights of an earlier fit, and its multipliers, unless they are of other outputs or targets."""
    if tasks.weights.shape != problem.no_weights().weights.shape:
        return None
    targets = problem.head.targets if isinstance(problem.head, Head) else None
    is_same = isinstance(targets, Cells) and len(tasks.multipliers) == len(targets.observed)
    return WarmStart(tasks.weights, tasks.multipliers if is_same else None)


# The start


def find_features(
    problem: Problem, noise: Floats, callbacks: Sequence[Callback] = ()
) -> tuple[Problem, Latent, FitResult[Posterior]]:
    """Return the problem at the temperature of the fit itself, where the fit starts, and how that was found.

    Above a temperature that depends on the inputs, the features of a factor analysis collapse to 1/2. Lower ones are
    tried until there are features. The joint fit has the requested temperature, and features that were removed are
    restarted (`reinitialize`).
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
    """Minimise the free energy at the problem's temperature, variances included, as if there were no targets.

    Unless it is to go ``to_the_end``, it gives up (STALLED) once its features are collapsing.
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
        lost = not to_the_end and _softness(new.latent) > COLLAPSING
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


def have_collapsed(latent: Latent) -> bool:
    """Whether the temperature of a factor analysis was too high to find features."""
    return _softness(latent) > COLLAPSED


def _softness(latent: Latent) -> float:
    psi = latent.psi
    return float(np.mean(psi * (1.0 - psi)))


def start_latent(moments: Moments, settings: Settings, noise: Floats) -> Latent:
    """Return logits along the principal directions of the inputs, one feature for each sign.

    A binary feature of the columns can follow a direction of either sign only one way, so each direction gives two.

    Parameters
    ----------
    moments : Moments
    settings : Settings
    noise : (D, K)
        Standard normal numbers. Beyond twice the rank of the inputs they are all that a feature starts from.
    """
    n_columns, n_features = len(moments.gram), settings.n_components
    n_directions = min((n_features + 1) // 2, n_columns)
    values, vectors = eigh(moments.gram, subset_by_index=[n_columns - n_directions, n_columns - 1])
    values, vectors = values[::-1], vectors[:, ::-1]
    vectors = vectors[:, values > 1e-10 * max(values[0], 1e-300)]
    # Fix the signs, which an eigen-solver leaves open, by something that does not change with the order of columns.
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
    """Return features in falling order of use, which is what sticks expect, and sticks that suit them."""
    n_columns, n_features = logits.shape
    counts = expit(logits).sum(axis=0)
    order = np.argsort(-counts, kind="stable")
    sticks = prior_sticks(alpha, n_features)
    for _ in range(5):
        sticks = update_sticks(sticks, counts[order], float(n_columns), alpha)
    return logits[:, order], sticks


def reinitialize(latent: Latent, noise: Floats, alpha: float, tempered: bool) -> Latent:
    """Restart features that a factor analysis has removed, from noise.

    A feature that no column has, or that all columns have alike, has gradient zero, so the margins cannot restore it.
    Tempered features are each restarted. Without tempering the number of features is inferred, and they are restarted
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


@dataclass(frozen=True)
class Point:
    """Where a joint fit is."""

    at: Evaluation[Posterior, NoSums]
    pulled: ByFeatures  # what the head's gradient by features is by psi
    step_length: float = FIRST_STEP  # gamma, the step to try next
    gained: float = np.inf  # by the last step; of the first one much is hoped for

    @property
    def latent(self) -> Latent:
        """q(Z), q(nu) and the variances."""
        return self.at.params.latent


def descend(problem: Problem, point: Point) -> StepResult[Point]:
    """One natural-gradient step on the logits of Z, docs/math.md eq. (48), halved until J does not rise.

    ``A <- A + gamma (wanted - A)``; gamma = 1 is the paper's update of q(Z) at temperature T, for all features at once.
    J is that of the *weights found*: the duality gap delays a verdict but never excuses a rise.
    """
    model, head = problem.model, point.at.head
    params = model.update_blocks(point.at.params)  # of which features and head do not depend
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


def _evaluate_if_no_higher(
    problem: Problem, params: Posterior, before: Evaluation[Posterior, NoSums], gained: float
) -> tuple[Evaluation[Posterior, NoSums], Any] | None:
    """Return J at some parameters if it is not higher than before, None otherwise.

    The dual value at the earlier multipliers is a lower bound, so most bad steps are rejected without solving. Without
    multipliers the gap may be what the last step gained, within limits, which saves passes over the samples while steps
    gain much.
    """
    inference = problem.infer(params)  # a device infers features while the host goes on
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
        del fitted  # it may hold multipliers, and the next one needs the memory
    return None


def carry_weights(problem: Problem, before: Evaluation[Posterior, NoSums], params: Posterior) -> WarmStart:
    """Return weights to start from at other features: with them, rows have nearly the scores that they had before.

    When features move, the earlier weights give other scores, which would cost Newton's method passes over the samples.
    Features are linear in the samples, so the best weights are those of least squares over known moments, with the
    prior of the weights. Multipliers, if there are any, are a start of their own.
    """
    start: WarmStart = before.warm_start
    scales, latent = problem.model.scales, params.latent
    if start.multipliers is not None:
        return start
    assert start.weights is not None
    (n_columns, K), psi = latent.psi.shape, latent.psi
    products = latent.products + latent.noise_variance / latent.weight_variance * np.eye(K)
    seen = params.factors.cross @ products  # the moments times psi: so q(w) has its cross moments
    seen *= 2.0 * problem.settings.C / (scales.multiplicity * problem.model.input_scale**2 * n_columns)
    carry = np.linalg.solve(psi.T @ seen + np.eye(K), seen.T @ before.params.latent.psi)
    return WarmStart(np.hstack([start.weights[:, :K] @ carry.T, start.weights[:, K:]]))


def alternate(problem: Problem, point: Point) -> StepResult[Point]:
    """One round of the paper's alternation: q(Z), q(nu), the variances, q(w), then the weights, each exact.

    q(Z) is updated for fixed multipliers, which lowers a Lagrangian and not the objective: J may rise.
    """
    params = problem.model.alternate(point.at.params, point.pulled)
    at, inferred = problem.evaluate(params, point.at.warm_start, problem.tolerance)
    return StepResult(Point(at, problem.pull_back(at, inferred)), at.terms, {"gap": at.gap})
