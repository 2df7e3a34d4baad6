"""``fit``: from data and settings to a fitted model; and whether there was anything to find (`is_noise`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Any, Literal, cast

import numpy as np

from regbayes._types import Floats, Integers
from regbayes.engine import AbsoluteChange, FitResult, Progress, Status, Trace, run
from regbayes.joint import alternation, descent
from regbayes.joint import problem as joint_problem
from regbayes.joint.problem import RowBlock
from regbayes.kernels.arrays import append_columns
from regbayes.margins.head import LinearHead, Tolerance
from regbayes.models.ilsvm.annealing import Annealing
from regbayes.models.ilsvm.model import (
    FINAL,
    PATIENCE,
    UNLABELED,
    BinaryFeatures,
    Data,
    HostRows,
    ILSVMProblem,
    Params,
    Rows,
    Settings,
    State,
    Stats,
)
from regbayes.models.ilsvm.on_off import Enumeration, find_two_valued
from regbayes.models.ilsvm.slab import SlabFeatures, SlabParams, convert_params
from regbayes.models.ilsvm.warmup import (
    Search,
    WarmUp,
    drop_empty,
    initial_params,
    leading_directions,
    pad,
)

Callback = Callable[[Progress[State]], bool | None]
MarginKind = Literal["consistent", "posterior"]
Evaluation = joint_problem.Evaluation[Params, Stats]

AS_IT_IS = Tolerance(gap=1.0, max_epochs=0.0)
ROUND = Tolerance(gap=1e-4, max_epochs=20.0)  # of the head in a round of the alternation
TRANSDUCTIVE_WEIGHTS = (0.01, 0.1, 0.3, 1.0)  # of unlabelled rows' margins, in turn (Joachims 1999)
CUT_SHORT = (Status.STOPPED, Status.INTERRUPTED)
FEWEST_ROWS = 40  # that can be judged to be noise, or not
MOST_ROWS = 4096  # that are looked at
CLEAR = 3.0  # standard errors
RANK = 1e-6  # of the columns of a category, relative to the largest singular value: all of them add up to a constant
FOLDS = 3  # of the rows: labels of each are predicted by a model of the others
WARM_UP = "warm-up"  # a stage, as callbacks see it
STAGES: dict[MarginKind, str] = {"consistent": "descent", "posterior": "alternation"}


def fit(
    data: Data,
    settings: Settings,
    start: Params | State | Sequence[Params],
    *,
    margins: MarginKind = "consistent",
    early_rows: Integers | None = None,
    callbacks: Sequence[Callback] = (),
    stage: str | None = None,
) -> FitResult[State]:
    """Fit the model.

    Parameters
    ----------
    data : Data
    settings : Settings
    start : Params, State or sequence of Params
        A new start, or several of which the warm-up takes the best, from `warmup.initial_params`; or an earlier fit to
        go on from, which has its warm-up behind it: the features that it has are not judged again. Where its
        temperature was higher, it is cooled in steps.
    margins : {"consistent", "posterior"}
        Whether margins act on the features that prediction infers, through the loadings, or on the posterior of the
        training rows (the paper, docs/math.md eq. (27)-(28)).
    early_rows : array of int, default=None
        Rows that the warm-up is content with, in order; all of them by default. `warmup.draw_early_rows` draws them.
    callbacks : sequence of callable
        Each sees the `Progress` of every iteration, those of the warm-up too. Its ``stage`` says which they are, and
        its ``state`` is the `State` of a fit that ends there: rows are inferred for it when it is looked at.
    stage : str, default=None
        Name of the iterations after the warm-up: "descent" or "alternation", as the margins are, unless given.

    Returns
    -------
    FitResult
        Its objective is normalised, so that fits can be compared whose features are not as many. Its trace begins
        after the warm-up. With consistent margins the objective never rises in it. A fit that is
        stopped or interrupted in the warm-up ends there, with no iteration, and the trace has its end alone.
    """
    problem = ILSVMProblem(data, settings, SlabFeatures if settings.slab else BinaryFeatures)
    joint, multipliers = problem.joint, _known_start(problem, start)
    is_new, starts = not isinstance(start, State), _list_starts(start, settings)
    there = replace(starts[0], temperature=settings.temperature)
    iterate = partial(run, objective=attrgetter("at.terms"), callbacks=callbacks)
    halted: Status | None = None
    if margins == "posterior":
        state: Any = alternation.start(joint, there, multipliers, ROUND)
    elif settings.max_iter == 0 or (not is_new and starts[0].temperature == settings.temperature):
        state = descent.start(joint, there, multipliers)
    else:
        warm_up = (Annealing if settings.slab else WarmUp if settings.noise_ratios is None else Enumeration).of(
            problem, early_rows, is_new
        )
        phases = warm_up.run(starts, multipliers, is_new)
        try:
            phase = next(phases)
            while True:  # until there are no more; none has more steps than a fit may have
                made = iterate(
                    partial(descent.step, phase.problem.joint),
                    descent.start(phase.problem.joint, phase.start, phase.warm_start)
                    if isinstance(phase.start, Params)
                    else phase.start,
                    max_iter=min(phase.n_steps, phase.problem.settings.max_iter),
                    stop=AbsoluteChange(phase.tol * phase.problem.unit, PATIENCE),
                    view=partial(_view, problem, keep=phase.keep),
                    stage=WARM_UP,
                )
                if made.status in CUT_SHORT:
                    state, halted = phase.keep or made.state, made.status
                    break
                phase = phases.send(made.state)
        except StopIteration as end:
            state = end.value
        except KeyboardInterrupt:  # between two phases
            if warm_up.latest is None:
                raise  # nothing was learned yet
            state, halted = warm_up.latest, Status.INTERRUPTED
        if halted is not None:
            state = descent.start(joint, replace(state.at.params, temperature=settings.temperature), multipliers)
        elif warm_up.problem.data is not data:
            state, halted = _evaluate_on_all(problem, state)
    if margins == "consistent" and is_new and halted is None and settings.max_iter > 0:
        state = _estimate_variances(problem, state) if settings.estimate_noise or settings.estimate_prior else state
    result = iterate(
        partial(alternation.step, joint, tolerance=ROUND) if margins == "posterior" else partial(descent.step, joint),
        state,
        max_iter=0 if halted else settings.max_iter,
        stop=AbsoluteChange(settings.tol * problem.unit, PATIENCE),
        view=partial(_view, problem),
        stage=stage or STAGES[margins],
    )
    at, model = result.state.at, cast(BinaryFeatures, joint.model)
    result = replace(result, objective=model.normalise(result.objective, at.params, data.X.totals.n_rows))
    try:
        return replace(result, state=_finish(problem, at, FINAL), status=halted or result.status)
    except KeyboardInterrupt:  # the model has the head that is there, and a status that says so
        return replace(result, state=_finish(problem, at, AS_IT_IS), status=Status.INTERRUPTED)


def _evaluate_on_all(problem: ILSVMProblem, search: Search) -> tuple[Search, Status | None]:
    """Return what some of the rows found, evaluated on all of them, and the status if that was interrupted."""
    try:
        return descent.start(problem.joint, search.at.params, None), None
    except KeyboardInterrupt:  # the fit ends there, and says so
        return descent.start(problem.joint, search.at.params, None), Status.INTERRUPTED


def _list_starts(start: Params | State | Sequence[Params], settings: Settings) -> Sequence[Params]:
    """Return what a fit may start from, as the settings have features: binary, or with amounts."""
    if isinstance(start, State):
        starts: Sequence[Params] = [drop_empty(_resume(start.params, settings))]
    else:
        starts = [start] if isinstance(start, Params) else start
    if settings.slab or isinstance(starts[0], SlabParams):
        starts = [convert_params(params, settings) for params in starts]
    return starts


def _estimate_variances(problem: ILSVMProblem, search: Search) -> Search:
    """Estimate the variances that the settings say, for the warm-up may have left nothing to descend."""
    updated = problem.joint.model.update_blocks(search.at.params, search.at.stats)
    assert updated is not None
    again = descent.start(problem.joint, updated, search.at.warm_start)
    return again if again.at.objective < search.at.objective else search


def fit_transductive(
    data: Data,
    settings: Settings,
    start: Params | State | Sequence[Params],
    *,
    margins: MarginKind = "consistent",
    early_rows: Integers | None = None,
    callbacks: Sequence[Callback] = (),
) -> FitResult[State]:
    """Fit with margins on unlabelled rows too: guess their labels, and let the guesses count more and more.

    Every round is a fit that goes on from the last one, with new guesses, which weigh a share of what labelled rows of
    their class do. A stop or an interrupt ends the rounds. The trace is that of all rounds, and iterations count on;
    the one at which a round ends and the next begins is there twice, with the objectives of both.
    """
    results = [fit(data, settings, start, margins=margins, early_rows=early_rows, callbacks=callbacks)]
    guessed, by_class = np.flatnonzero(data.labels == UNLABELED), _weights_by_class(data)
    for weight in TRANSDUCTIVE_WEIGHTS if len(guessed) else ():
        last = results[-1]
        if last.status in CUT_SHORT or last.state.head is None:
            break
        labels, weights = data.labels.copy(), data.weights.copy()
        labels[guessed] = data.X.take(guessed).choose(last.state, last.state.embedding[guessed])
        weights[guessed] = weight * by_class[labels[guessed]]
        if data.X.weights is not None:
            weights[guessed] *= data.X.weights[guessed]
        full = replace(data, labels=labels, weights=weights)
        stage, known = name_round(weight), settings.follow(last.state.params)
        results.append(fit(full, known, last.state, margins=margins, callbacks=callbacks, stage=stage))
    *earlier, last = results
    n_before = sum(result.n_iter for result in earlier)
    return replace(
        last,
        trace=Trace.joined([result.trace for result in results]),
        n_iter=n_before + last.n_iter,
        kept_iteration=n_before + last.kept_iteration,
    )


def _weights_by_class(data: Data) -> Floats:
    """Return the mean weight of the labelled rows of each class, beyond their own, shape (classes,)."""
    labels = data.labels[data.labeled]
    counted = np.ones(len(labels)) if data.X.weights is None else data.X.weights[data.labeled]
    counts = np.bincount(labels, counted, minlength=len(data.cost))
    sums = np.bincount(labels, data.weights[data.labeled], minlength=len(data.cost))
    return np.divide(sums, counts, out=np.zeros_like(sums), where=counts > 0)


def list_stages(margins: MarginKind, transductive: bool, max_iter: int) -> dict[str, int | None]:
    """Return the stages that a fit can have, in their order, and the most iterations of each, where that is known."""
    rounds = [name_round(weight) for weight in TRANSDUCTIVE_WEIGHTS] if transductive else []
    warm_up: dict[str, int | None] = {WARM_UP: None} if margins == "consistent" else {}
    return warm_up | dict.fromkeys([STAGES[margins], *rounds], max_iter)


def name_round(weight: float) -> str:
    """Return the stage of a round with guessed labels."""
    return f"guesses at weight {weight:g}"


def _resume(previous: Params, settings: Settings) -> Params:
    """Return the parameters of an earlier fit as the start of one with other settings, cooled later where warmer."""
    return replace(
        previous,
        noise_variance=previous.noise_variance if settings.estimate_noise else settings.noise_variance,
        prior_variance=previous.prior_variance if settings.estimate_prior else settings.prior_variance,
        temperature=max(previous.temperature, settings.temperature),
        n_sweeps=settings.n_sweeps,
        noise_ratios=settings.noise_ratios,
    )


def _known_start(
    problem: ILSVMProblem, start: Params | State | Evaluation | Sequence[Params]
) -> Floats | LinearHead | None:
    """Return the multipliers that came with a start, unless they are of other rows or classes, or else its weights."""
    if problem.head is None or not isinstance(start, State | joint_problem.Evaluation):
        return None
    if isinstance(start, State):
        known = start.head if start.multipliers is None else start.multipliers
    else:
        known = start.warm_start
    is_other = isinstance(known, np.ndarray) and known.shape != (len(problem.head.targets), len(problem.data.cost))
    return None if is_other else known


def _view(problem: ILSVMProblem, state: Any, keep: Search | None = None) -> State:
    """Return the fitted model that a step of either scheme would end with; it may be an earlier one that is kept."""
    return _finish(problem, (keep or state).at, FINAL)


def _finish(problem: ILSVMProblem, at: Evaluation, tolerance: Tolerance) -> State:
    """Infer the training rows as prediction does, and solve for the head there."""
    settings = problem.settings
    # A callback may look during the warm-up, when it is warmer.
    params = replace(at.params, temperature=settings.temperature)
    joint = problem.joint
    parts = joint.blocks.gather(_infer_block, params)
    features = problem.data.X.join(parts)
    psi = problem.data.X.join(joint.blocks.gather(_infer_probabilities, params)) if settings.slab else None
    if problem.head is None:
        return pad_state(State(params, features, None, None, 0.0, psi), settings)
    fitted = problem.head.solve(parts, _known_start(problem, at), tolerance, joint.executor)
    return pad_state(State(params, features, fitted.head, fitted.multipliers, settings.input_scale, psi), settings)


def _infer_block(block: RowBlock[Rows], params: Params) -> Floats:
    return params.infer(block.pieces[0])


def _infer_probabilities(block: RowBlock[Rows], params: Params) -> Floats:
    return params.infer_probabilities(block.pieces[0])


def pad_state(state: State, settings: Settings) -> State:
    """Give the features that were left out their places again, behind the others: no loadings, no weights."""
    n_kept = len(state.params.loadings)
    missing = settings.n_components - n_kept
    if missing == 0:
        return state
    params = pad(state.params, settings.n_components, settings.alpha)
    D = params.loadings.shape[1]
    anywhere = HostRows(np.zeros((1, D)), np.zeros(D))
    constant = params.infer(anywhere)[0, n_kept:]

    added = {"embedding": constant}
    if state.probabilities is not None:
        added["probabilities"] = params.infer_probabilities(anywhere)[0, n_kept:]
    wider: dict[str, Any] = {}
    for name, values in added.items():
        known = getattr(state, name)
        if isinstance(known, np.ndarray):
            wider[name] = np.hstack([known, np.broadcast_to(values, (len(known), missing))])
        else:
            wider[name] = append_columns(known, values)
    head = state.head
    if head is not None:
        latent, rest = np.split(head.weights, [n_kept], axis=1)
        weights = np.hstack([latent, np.zeros((len(latent), missing)), rest])
        centre = np.concatenate([head.centre, constant if head.fit_intercept else np.zeros(missing)])
        head = LinearHead(weights, centre, head.fit_intercept)
    return replace(state, params=params, head=head, **wider)


# --- whether there was anything to find, judged on rows that a fit has not seen


def is_noise(data: Data, settings: Settings, rng: np.random.Generator) -> bool:
    """Return whether nothing that is found in some rows holds in others.

    Inputs vary together if the direction along which one half of the rows varies most, in units of each input, is one
    along which the other half varies more than inputs do alone. Where they do not, a model that is fitted to some of
    the labelled rows predicts the labels of the others no better than their largest class does. Columns that code one
    category vary together by the coding, which is no finding where there are labels to ask.
    """
    rows = rng.permutation(len(data.X))[:MOST_ROWS]
    labeled = rows[np.isin(rows, data.labeled)] if settings.C > 0 else rows[:0]
    asks_labels = len(labeled) >= FEWEST_ROWS
    if len(rows) < FEWEST_ROWS or varies_together(data.X, rows, decode=asks_labels):
        return False
    return not (asks_labels and predicts_labels(data, settings, labeled))


def varies_together(X: Rows, rows: Integers, decode: bool = False) -> bool:
    """Return whether the main direction of each half of some rows is one in which the other half varies more.

    With ``decode``, columns that code one category do not count as varying together.
    """
    scaled = X.take(rows).array()
    spread = scaled.std(axis=0)
    scaled = scaled[:, spread > 0] / spread[spread > 0]
    if scaled.shape[1] < 2:
        return True  # one input varies by itself, or none does: there is nothing to compare it with
    scaled -= scaled.mean(axis=0)
    if decode:
        scaled = decode_categories(scaled)
    errors = []
    halves = np.array_split(scaled, 2)
    for seen, unseen in (halves, halves[::-1]):
        around = HostRows(seen, np.zeros(seen.shape[1]))
        squares = np.square(unseen @ leading_directions(around.moment, seen.shape[1], 1)[1][0])
        errors.append((squares.mean() - 1.0) / max(squares.std() / np.sqrt(len(squares)), np.finfo(np.float64).eps))
    return bool(np.mean(errors) > CLEAR / np.sqrt(2.0))


def decode_categories(columns: Floats) -> Floats:
    """Return centred columns in which those that may code one category are uncorrelated, with a variance of one.

    Such columns have two values, and no row has the larger one of two of them.
    """
    coded = np.flatnonzero(find_two_valued(columns))
    on = columns[:, coded] == columns[:, coded].max(axis=0)
    together = on.T.astype(np.float64) @ on
    groups: list[list[int]] = []
    for j in range(len(coded)):
        for group in groups:
            if not together[j, group].any():
                group.append(j)
                break
        else:
            groups.append([j])
    found = [np.delete(columns, coded, axis=1)]
    for group in groups:
        left, sizes, _ = np.linalg.svd(columns[:, coded[group]], full_matrices=False)
        found.append(np.sqrt(len(columns)) * left[:, sizes > RANK * sizes[0]])
    return np.hstack(found)


def predicts_labels(data: Data, settings: Settings, rows: Integers) -> bool:
    """Return whether models of most of the rows predict the labels of the others better than the largest class.

    Fold by fold, until it is clear: few rows, or labels that are hard to predict, tell only all together.
    """
    share = float(np.bincount(data.labels[rows]).max()) / len(rows)
    gained = variance = 0.0
    for unseen_rows in np.array_split(rows, FOLDS):
        seen, unseen = data.take(rows[~np.isin(rows, unseen_rows)]), data.take(unseen_rows)
        state = fit(seen, settings, initial_params(seen.X.take(None), settings)).state
        right = unseen.X.choose(state, state.params.infer(unseen.X)) == unseen.labels
        gained += float(np.sum(right)) - share * len(right)
        variance += max(share * (1.0 - share), 1e-12) * len(right)
        if gained > CLEAR * np.sqrt(variance):
            return True
    return False
