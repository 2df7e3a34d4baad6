"""Fit iLSVM from data and settings, and search for the number of features.

A new fit starts from directions of the samples (`starts`). The structure search descends, then drops features that
barely improve the normalized objective, docs/math.md eq. (35). The objective J itself cannot be compared between
numbers of features. Low-temperature features are first learned at higher temperatures. The search uses a subsample of
the data. The final descent uses all samples and has one objective, which never increases.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from operator import attrgetter
from typing import Any, Literal, cast

import numpy as np

from regbayes._types import Floats, Indices, Integers
from regbayes.engine import AbsoluteChange, FitResult, Progress, Status, Trace, run
from regbayes.engine.source import Ranges
from regbayes.joint import alternation, descent
from regbayes.joint import problem as joint_problem
from regbayes.joint.problem import RowBlock, Version
from regbayes.margins.head import Tolerance, WarmStart
from regbayes.margins.targets import Classes
from regbayes.models.ilsvm.model import (
    FINAL,
    PATIENCE,
    BinaryFeatures,
    Data,
    ILSVMProblem,
    Params,
    Rows,
    Settings,
    State,
    Stats,
)
from regbayes.models.ilsvm.slab import SlabFeatures, convert_params
from regbayes.models.ilsvm.starts import (
    POLICY,
    StructurePolicy,
    is_cold,
    settle_sticks,
    soft_temperature,
    take_features,
)
from regbayes.models.indian_buffet import find_idle

Search = descent.Search[Params, Stats]
Callback = Callable[[Progress[State]], bool | None]
MarginKind = Literal["consistent", "posterior"]
Evaluation = joint_problem.Evaluation[Params, Stats]

AS_IT_IS = Tolerance(gap=1.0, max_epochs=0.0)
ROUND = Tolerance(gap=1e-4, max_epochs=20.0)  # accuracy of the head in an iteration of the alternation
MAX_EPOCHS = 10.0  # maximum passes over the samples where features are judged
TRANSDUCTIVE_WEIGHTS = (0.01, 0.1, 0.3, 1.0)  # successive weights of unlabeled samples (Joachims 1999)
CUT_SHORT = (Status.STOPPED, Status.INTERRUPTED)
WARM_UP = "warm-up"  # name of the structure search stage in callbacks
STAGES: dict[MarginKind, str] = {"consistent": "descent", "posterior": "alternation"}


def fit(
    data: Data,
    settings: Settings,
    start: Params | State,
    *,
    margins: MarginKind = "consistent",
    sample: Integers | None = None,
    callbacks: Sequence[Callback] = (),
    stage: str | None = None,
    policy: StructurePolicy = POLICY,
) -> FitResult[State]:
    """Fit the model to data, from new parameters or from an earlier fit, whose features are not pruned again.

    Margins act on the features that prediction infers, or on the posterior of the training samples (the paper,
    docs/math.md eq. (27)-(28)). The structure search uses ``sample``, by default all samples. An earlier fit at a
    higher temperature is cooled in steps. Callbacks receive the `Progress` of every iteration, with the state that a
    fit stopped there would return. ``stage`` names the iterations after the search.

    The objective of the result is normalized, so that fits with different numbers of features can be compared. Its
    trace begins after the search and never increases with consistent margins. A fit that is stopped during the search
    has no iterations.
    """
    problem = ILSVMProblem(data, settings, SlabFeatures if settings.slab else BinaryFeatures)
    joint, multipliers, halted = problem.joint, _known_start(problem, start), None
    params = _resume(start.params, settings) if isinstance(start, State) else start
    params = convert_params(params, settings)
    searches = settings.max_iter > 0 and (isinstance(start, Params) or params.temperature > settings.temperature)
    if margins == "posterior":
        state: Any = alternation.start(joint, replace(params, temperature=settings.temperature), multipliers, ROUND)
    elif not searches:
        state = descent.start(joint, replace(params, temperature=settings.temperature), multipliers)
    else:
        is_new = isinstance(start, Params)
        state, halted = StructureSearch(problem, sample, policy, callbacks).run(params, multipliers, is_new)
        if halted is not None:
            state = descent.start(joint, replace(state.at.params, temperature=settings.temperature), multipliers)
        elif sample is not None or not joint.blocks.is_local:
            state, halted = _evaluate_on_all(problem, state)
        if is_new and halted is None and (settings.estimate_noise or settings.estimate_prior):
            state = _estimate_variances(problem, state)
    result = run(
        partial(alternation.step, joint, tolerance=ROUND) if margins == "posterior" else partial(descent.step, joint),
        state,
        objective=attrgetter("at.terms"),
        max_iter=0 if halted else settings.max_iter,
        stop=AbsoluteChange(settings.tol * problem.unit, PATIENCE),
        callbacks=callbacks,
        view=lambda state: _finish(problem, state.at, FINAL),
        stage=stage or STAGES[margins],
    )
    at, model = result.state.at, cast(BinaryFeatures, joint.model)
    result = replace(result, objective=model.normalise(result.objective, at.params, problem.n_rows))
    try:
        return replace(result, state=_finish(problem, at, FINAL), status=halted or result.status)
    except KeyboardInterrupt:  # the result has the head of the last iteration and an interrupted status
        return replace(result, state=_finish(problem, at, AS_IT_IS), status=Status.INTERRUPTED)


class _CutShortError(Exception):
    """A callback stopped a descent of the search, or Ctrl-C interrupted it."""


@dataclass
class StructureSearch:
    """Structure search: descend, then drop features that barely improve the objective."""

    whole: ILSVMProblem  # problem with all samples, used for callbacks
    sample: Integers | None  # indices of the samples used; None: all
    policy: StructurePolicy
    callbacks: Sequence[Callback] = ()
    problem: ILSVMProblem = field(init=False)
    latest: Search | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        # Variances estimated before any features are learned would attribute everything to noise.
        fixed = replace(self.whole.settings, estimate_noise=False, estimate_prior=False)
        sees_all = self.sample is None and self.whole.joint.blocks.is_local
        data = self.whole.data if sees_all else self.whole.data.take(self.sample)
        self.problem = ILSVMProblem(data, fixed, self.whole.features, self.whole if sees_all else None)

    def run(self, params: Params, warm_start: Any, is_new: bool) -> tuple[Search, Status | None]:
        """Return the model, and the status if the search was stopped; an earlier fit is only cooled."""
        try:
            search = self._learn(params, warm_start, is_new)
            return (self._prune(search) if is_new else search), None
        except (KeyboardInterrupt, _CutShortError) as end:
            if self.latest is None:
                raise  # no model exists yet
            return self.latest, end.args[0] if isinstance(end, _CutShortError) else Status.INTERRUPTED

    def _learn(self, params: Params, warm_start: Any, is_new: bool) -> Search:
        """Descend, learning low-temperature features at higher temperatures first."""
        policy, settings, X = self.policy, self.problem.settings, self.problem.data.X
        T = policy.cooling * params.temperature
        if is_new:
            T = settings.temperature
            if not settings.slab and not settings.per_input and is_cold(X, settings):
                T = min(policy.heat * T, soft_temperature(X, settings.noise_variance, settings.noise_ratios))
        while settings.temperature < T:
            search = self._descend(change_temperature(self.problem, T), params, policy.short_steps, warm_start)
            params, warm_start, T = search.at.params, search.at.warm_start, policy.cooling * T
        return self._descend(self.problem, params, policy.first_steps if is_new else policy.short_steps, warm_start)

    def _prune(self, search: Search) -> Search:
        """Drop features that barely improve the objective, half of the candidates at a time."""
        problem = self.problem
        min_gain = self.policy.min_gain * problem.unit
        while len(search.at.params.loadings) > 1:
            at = search.at
            value = 1.0 if at.head is None else max(at.head.value, np.finfo(np.float64).tiny)
            tolerance = Tolerance(self.policy.max_error * min_gain / value, MAX_EPOCHS)
            values = np.array(
                [
                    self._judge(problem.joint.evaluate(self._without(at, [k]), at.warm_start, tolerance)[0])
                    for k in range(len(at.params.loadings))
                ]
            )
            leaving = find_idle(self._judge(at), values, min_gain)
            if len(leaving) == 0:
                break
            search = self._descend(problem, self._without(at, leaving), self.policy.short_steps, at.warm_start)
        return search

    def _without(self, at: Evaluation, leaving: Sequence[int] | Indices) -> Params:
        """Remove features and add their mean contribution to the offset."""
        params, stats = at.params, at.stats
        kept = np.delete(np.arange(len(params.loadings)), leaving)
        offset = params.offset + stats.first_moment[leaving] / stats.n_rows @ params.loadings[leaving]
        smaller = replace(take_features(params, kept), offset=offset)
        return settle_sticks(smaller, stats.counts[kept], stats.n_rows, self.problem.settings.alpha)

    def _judge(self, at: Evaluation) -> float:
        """Return the normalized objective."""
        model = cast(BinaryFeatures, self.problem.joint.model)
        return model.normalise(at.objective, at.params, at.stats.n_rows)

    def _descend(self, problem: ILSVMProblem, params: Params, n_steps: int, warm_start: Any) -> Search:
        """Take up to ``n_steps`` descent steps, stopping early if they gain little."""
        params = replace(params, temperature=problem.settings.temperature)
        result = run(
            partial(descent.step, problem.joint),
            descent.start(problem.joint, params, warm_start),
            objective=attrgetter("at.terms"),
            max_iter=min(n_steps, problem.settings.max_iter),
            stop=AbsoluteChange(self.policy.tol * problem.unit, PATIENCE),
            callbacks=self.callbacks,
            view=lambda state: _finish(self.whole, state.at, FINAL),
            stage=WARM_UP,
        )
        self.latest = result.state
        if result.status in CUT_SHORT:
            raise _CutShortError(result.status)
        return result.state


def change_temperature(problem: ILSVMProblem, temperature: float) -> ILSVMProblem:
    """Return the problem at another temperature.

    The generative part is divided by the temperature, so its weight is multiplied by the square root of the change.
    """
    settings = problem.settings
    weight = settings.generative_weight * float(np.sqrt(temperature / settings.temperature))
    settings = replace(settings, temperature=temperature, generative_weight=weight)
    return ILSVMProblem(problem.data, settings, like=problem)


def _evaluate_on_all(problem: ILSVMProblem, search: Search) -> tuple[Search, Status | None]:
    """Evaluate the result of the search on all samples; return a status if that was interrupted."""
    try:
        return descent.start(problem.joint, search.at.params, None), None
    except KeyboardInterrupt:  # the caller ends the fit with this status
        return descent.start(problem.joint, search.at.params, None), Status.INTERRUPTED


def _estimate_variances(problem: ILSVMProblem, search: Search) -> Search:
    """Estimate the variances that the settings leave free, since the final descent may take no step."""
    updated = problem.joint.model.update_blocks(search.at.params, search.at.stats)
    assert updated is not None
    again = descent.start(problem.joint, updated, search.at.warm_start)
    return again if again.at.objective < search.at.objective else search


def fit_transductive(
    data: Data,
    settings: Settings,
    start: Params | State,
    *,
    margins: MarginKind = "consistent",
    sample: Integers | None = None,
    callbacks: Sequence[Callback] = (),
    policy: StructurePolicy = POLICY,
) -> FitResult[State]:
    """Fit with margins on unlabeled samples too, whose labels are guessed with increasing weight.

    Each stage warm-starts from the previous one with new guesses. A guess is weighted relative to the labeled samples
    of its class. A stop or an interrupt ends the stages. The trace concatenates those of all stages.
    """
    results = [fit(data, settings, start, margins=margins, sample=sample, callbacks=callbacks, policy=policy)]
    targets, labeled = data.targets, data.labeled
    assert isinstance(targets, Classes)
    guessed, by_class = np.setdiff1d(np.arange(len(data.X)), labeled), _weights_by_class(data, targets)
    labels, weights = np.zeros(len(data.X), dtype=np.int64), np.zeros(len(data.X))
    labels[labeled], weights[labeled] = targets.labels, targets.C
    for weight in TRANSDUCTIVE_WEIGHTS if len(guessed) else ():
        last = results[-1]
        if last.status in CUT_SHORT or last.state.head is None:
            break
        labels[guessed] = data.X.take(guessed).choose(last.state, last.state.embedding[guessed])
        weights[guessed] = weight * by_class[labels[guessed]]
        if data.X.weights is not None:
            weights[guessed] *= data.X.weights[guessed]
        full = Data.of_classes(data.X, labels.copy(), weights.copy(), targets.cost)
        stage, known = name_round(weight), settings.follow(last.state.params)
        results.append(fit(full, known, last.state, margins=margins, callbacks=callbacks, stage=stage, policy=policy))
    *earlier, last = results
    n_before = sum(result.n_iter for result in earlier)
    return replace(
        last,
        trace=Trace.joined([result.trace for result in results]),
        n_iter=n_before + last.n_iter,
        kept_iteration=n_before + last.kept_iteration,
    )


def _weights_by_class(data: Data, targets: Classes) -> Floats:
    """Return the mean C of the labeled samples of each class per unit of sample weight, shape (classes,)."""
    counted = np.ones(len(targets)) if data.X.weights is None else data.X.weights[data.labeled]
    counts = np.bincount(targets.labels, counted, minlength=targets.n_outputs)
    sums = np.bincount(targets.labels, targets.C, minlength=targets.n_outputs)
    return np.divide(sums, counts, out=np.zeros_like(sums), where=counts > 0)


def list_stages(margins: MarginKind, transductive: bool, max_iter: int) -> dict[str, int | None]:
    """Return the possible stages of a fit in order, with their maximum numbers of iterations where known."""
    rounds = [name_round(weight) for weight in TRANSDUCTIVE_WEIGHTS] if transductive else []
    warm_up: dict[str, int | None] = {WARM_UP: None} if margins == "consistent" else {}
    return warm_up | dict.fromkeys([STAGES[margins], *rounds], max_iter)


def name_round(weight: float) -> str:
    """Return the name of the stage whose guessed labels have this weight."""
    return f"guesses at weight {weight:g}"


def _resume(previous: Params, settings: Settings) -> Params:
    """Return the parameters of an earlier fit for other settings; a higher temperature is cooled later."""
    return replace(
        previous,
        noise_variance=previous.noise_variance if settings.estimate_noise else settings.noise_variance,
        prior_variance=previous.prior_variance if settings.estimate_prior else settings.prior_variance,
        temperature=max(previous.temperature, settings.temperature),
        n_sweeps=settings.n_sweeps,
        noise_ratios=settings.noise_ratios,
    )


def _known_start(problem: ILSVMProblem, start: Params | State | Evaluation) -> WarmStart | None:
    """Return the weights of a warm start, and its multipliers if rows and classes match."""
    if problem.head is None or isinstance(start, Params):
        return None
    if not isinstance(start, State):
        before: WarmStart | None = start.warm_start
        return before
    known = start.multipliers  # None if blocks are remote
    is_same = known is not None and known.shape == (len(problem.head.targets), problem.head.targets.n_outputs)
    return WarmStart(None if start.head is None else start.head.weights, known if is_same else None)


def _finish(problem: ILSVMProblem, at: Evaluation, tolerance: Tolerance) -> State:
    """Infer the training samples as prediction does, and solve for the head at their features.

    If blocks are remote, the range of each feature replaces the embedding.
    """
    settings = problem.settings
    # Callbacks may request a state during the warm-up, at a higher temperature.
    params = replace(at.params, temperature=settings.temperature)
    joint = problem.joint
    if not joint.blocks.is_local:
        inference, head = joint.infer(params), None
        if problem.head is not None:
            head = joint.solve(inference, at.warm_start, tolerance).head
        names = ["infer", *(["infer_probabilities"] if settings.slab else [])]
        ranges = [joint.blocks.map_sum(range_features, inference.shared, name).array() for name in names]
        return State(params, ranges[0], head, None, settings.input_scale, *ranges[1:])
    parts = joint.blocks.gather(lambda block: params.infer(block.pieces[0]))
    features = problem.data.X.join(parts)
    psi = None
    if settings.slab:
        psi = problem.data.X.join(joint.blocks.gather(lambda block: params.infer_probabilities(block.pieces[0])))
    if problem.head is None:
        return State(params, features, None, None, 0.0, psi)
    fitted = problem.head.solve(parts, _known_start(problem, at), tolerance, joint.executor)
    return State(params, features, fitted.head, fitted.dual, settings.input_scale, psi)


def range_features(block: RowBlock[Rows], version: Version, name: str) -> Ranges:
    """Return the ranges of the features of a block, as a method of the parameters infers them."""
    return Ranges.of([getattr(version.params, name)(rows) for rows in block.pieces])
