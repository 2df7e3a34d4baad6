"""The start-up of a fit: first steps, cooling, and the removal of features that do not pay for themselves.

What happens here changes the objective itself (its temperature, the number of features), so that its values cannot be
compared. The descent that follows has one objective, which never rises.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from regbayes.engine import run
from regbayes.models.ilsvm import descent
from regbayes.models.ilsvm.descent import Problem, Search, settled
from regbayes.models.ilsvm.objective import kl_of_each_loading
from regbayes.models.ilsvm.state import Globals
from regbayes.priors.indian_buffet import Sticks, prior_sticks, update_sticks

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]

STEPS = 40  # of descent before features are judged
TOL = 1e-3  # gain per row, in units of its loss, below which they are judged earlier
COOLING = 0.8  # factor between the temperatures of two stages
COOLING_STEPS = 4  # of descent in a stage
TRIAL_STEPS = 8  # of descent that a model with fewer features gets before it is compared
WEAK = 0.5  # squared length of loadings, in units of the tempered noise: longer ones are not judged
STICK_ROUNDS = 5


def start_up(problem: Problem, start: Globals, multipliers: Floats | None, share: float = 1.0) -> Search:
    """Descend a little from the start, cool to the wanted temperature, and leave out features that do not pay.

    ``share`` is the share of all rows that the problem has: what features are worth grows with the rows, their price
    does not.
    """
    wanted = problem.settings.temperature
    search = _descend_at(problem, start, multipliers, max(start.temperature, wanted), STEPS)
    while (temperature := search.at.globals.temperature) > wanted:
        temperature = max(COOLING * temperature, wanted)
        search = _descend_at(problem, search.at.globals, search.at.multipliers, temperature, COOLING_STEPS)
    return prune(problem, search, share)


def _descend_at(problem: Problem, g: Globals, multipliers: Floats | None, temperature: float, n_steps: int) -> Search:
    """Take some steps at a temperature that may not be the final one.

    The generative part is divided by the temperature; on the way its weight is larger by the square root of it.
    """
    settings = problem.settings
    weight = settings.generative_weight * float(np.sqrt(temperature / settings.temperature))
    here = replace(problem, settings=replace(settings, temperature=temperature, generative_weight=weight))
    return descend(here, descent.start(here, replace(g, temperature=temperature), multipliers), n_steps)


def descend(problem: Problem, start: Search, n_steps: int) -> Search:
    """Take some steps of descent, fewer if they gain little, and no more than a fit may have."""
    return run(
        lambda at: descent.step(problem, at),
        start,
        max_iter=min(n_steps, problem.settings.max_iter),
        objective=lambda at: at.at.terms,
        stop=settled(TOL * problem.unit),
    ).state


def prune(problem: Problem, search: Search, share: float = 1.0) -> Search:
    """Leave out weak features, several at once, as long as the model without them has the lower objective.

    A feature whose loadings are zero is the same for all rows. It still pays the divergence of its loadings from their
    prior, which a model without the feature does not: that is its price. And it earns by being undecided, the more the
    higher the temperature; but so would any number of features that do nothing. Here the tempered prior counts as
    normalised, and that earns nothing.
    """
    batch = len(search.at.globals.loadings)
    while True:
        g = search.at.globals
        strength = g.precision * np.einsum("kd,kd->k", g.loadings, g.loadings)
        weak = np.argsort(strength, kind="stable")[: int(np.sum(strength < WEAK))]
        batch = min(batch, len(weak), len(strength) - 1)
        if batch == 0:
            return search
        smaller = _without(problem, search, weak[:batch], share)
        if smaller is None:
            batch //= 2
        else:
            search, batch = smaller, 2 * batch


def _without(problem: Problem, search: Search, removed: Indices, share: float) -> Search | None:
    """Return the search without some features, after some steps, or None if they are worth what they cost."""
    at, g = search.at, search.at.globals
    loadings = g.loadings.copy()
    loadings[removed] = 0.0
    empty = replace(g, loadings=loadings)
    weight = share * problem.settings.generative_weight / g.temperature
    limit = at.objective + weight * float(kl_of_each_loading(empty)[removed].sum())
    zeroed = descent.evaluate(problem, empty, at.multipliers, search.accuracy)
    kept = np.setdiff1d(np.arange(len(loadings)), removed)
    smaller = select(g, kept, at.stats.counts, at.stats.n_rows, problem.settings.alpha)
    start = descent.start(problem, smaller, zeroed.multipliers)
    constant = zeroed.objective - start.at.objective  # what the features say about themselves: the same at any loadings
    moved = descend(problem, start, TRIAL_STEPS)
    return moved if moved.at.objective + constant <= limit else None


def without_empty(g: Globals) -> Globals:
    """Return the model without the features that an earlier fit left out, unless it left out all."""
    kept = np.flatnonzero(np.any(g.loadings != 0.0, axis=1))
    if len(kept) == 0:
        return g
    sticks = Sticks(g.sticks.first[kept], g.sticks.second[kept])
    return replace(g, loadings=g.loadings[kept], variances=g.variances[kept], sticks=sticks)


def select(g: Globals, kept: Indices, counts: Floats, n_rows: float, alpha: float) -> Globals:
    """Return the model of some features alone, the most used first, as the sticks expect them."""
    kept = kept[np.argsort(-counts[kept], kind="stable")]
    sticks = Sticks(g.sticks.first[kept], g.sticks.second[kept])
    for _ in range(STICK_ROUNDS):
        sticks = update_sticks(sticks, counts[kept], n_rows, alpha)
    return replace(g, loadings=g.loadings[kept], variances=g.variances[kept], sticks=sticks)


def pad(g: Globals, n_components: int, alpha: float) -> Globals:
    """Return the model with features that have no loadings behind its own, up to a number of them.

    Sticks depend on those before them alone: nothing changes for the features that were there.
    """
    missing = n_components - len(g.loadings)
    prior = prior_sticks(alpha, missing)
    return replace(
        g,
        loadings=np.vstack([g.loadings, np.zeros((missing, g.loadings.shape[1]))]),
        variances=np.concatenate([g.variances, np.full(missing, g.prior_variance)]),
        sticks=Sticks(np.concatenate([g.sticks.first, prior.first]), np.concatenate([g.sticks.second, prior.second])),
    )
