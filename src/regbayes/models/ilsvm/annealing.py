"""The phases before the descent of features with amounts: a start from parts of the rows, and a price that rises.

An amount is never negative, so a feature is a direction in which some rows lie and no other: the start divides the rows
into as many parts as there are features, the classes first. No random number is drawn.

A descent that starts at the full price stays where it began: most features are off in most rows, and what is off
everywhere learns nothing. So features begin free, and their price rises in stages, at the wanted temperature. At each
the sticks follow the features, because the prior is what makes rare features rarer; the objective is another one at
every stage. At last features that do not pay for themselves are taken out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from regbayes._types import Flags, Floats, Integers
from regbayes.joint import descent
from regbayes.models.ilsvm.model import UNLABELED, Data, HostRows, Params, Rows, Settings, update_offset
from regbayes.models.ilsvm.slab import convert_params
from regbayes.models.ilsvm.warmup import (
    FEW_INPUTS,
    Phase,
    Phases,
    WarmUp,
    find_noise_edge,
    leading_directions,
    make_params,
    settle_sticks,
    take_features,
)

PRICES = (0.0, 0.25, 0.5, 0.75, 1.0)  # shares of the full price
STEPS = (30, 20, 20, 20, 50)  # of descent in each round at a price
ROUNDS = 2  # at each price, with new sticks before each
TOL = 1e-4  # gain per row, in units of its loss, below which a round is over
WORTH = 1e-3  # what a feature must be worth per row, in units of its loss, to stay
START_LENGTH = 1.0  # squared length of a loading at the start, in units of the tempered noise
SHARED = 8.0  # directions that may share the signal at the full temperature, without labels
PER_DIRECTION = 2  # features of the start: amounts are never negative, so a direction takes one for either way
MIDDLE = 1e-3  # of the rows' spread: a mean nearer to theirs says nothing about a part
POWER_STEPS = 30  # towards the direction along which a part of the rows is divided


class Annealing(WarmUp):
    """The phases before the descent of features with amounts."""

    worth: ClassVar[float] = WORTH

    def run(self, starts: Sequence[Params], multipliers: Floats | None, is_new: bool) -> Phases:
        """Raise the price of features from nothing; an earlier fit has paid it, and goes on as it is."""
        settings, joint = self.problem.settings, self.problem.joint
        if not is_new:
            params = replace(starts[0], temperature=settings.temperature)
            return descent.start(joint, params, multipliers)
        params = self._start()
        for share, n_steps in zip(PRICES, STEPS, strict=True):
            params = replace(params, price=share * settings.price)  # type: ignore[call-arg] # of SlabParams
            for _ in range(ROUNDS):
                search = descent.start(joint, params, multipliers)
                if self.latest is not None:
                    stats = search.at.stats
                    params = update_offset(params, stats)
                    order = np.argsort(-stats.counts, kind="stable")
                    params = take_features(params, order)
                    params = settle_sticks(params, stats.counts[order], stats.n_rows, settings.alpha)
                    search = descent.start(joint, params, multipliers)
                self.latest = search = yield Phase(self.problem, search, n_steps, TOL)
                params, head = search.at.params, search.at.head
                multipliers = None if head is None else head.multipliers
        return (yield from self._prune(search))

    def _start(self) -> Params:
        """Return the start: loadings from as many parts of the rows as there may be features, all of them as frequent.

        A row has alpha features. There are two for each direction in which rows stand out from the noise, at most:
        what margins find beyond these they learn by heart, and without labels they are pruned again.
        """
        data, settings = self.problem.data, self.problem.settings
        n_clear = count_clear(data.X.take(None), settings)
        directions = divide_rows(data, min(settings.n_components, PER_DIRECTION * n_clear))
        if len(directions) == 0:  # all rows are the same
            directions = np.eye(1, data.X.n_inputs)
        lengths = np.linalg.norm(directions, axis=1, keepdims=True)
        tempered = settings.noise_variance * settings.temperature
        loadings = np.sqrt(START_LENGTH * tempered) * directions / lengths
        shares = np.full(len(loadings), settings.alpha / (settings.alpha + len(loadings)))
        return convert_params(make_params(loadings, shares, np.zeros(data.X.n_inputs), data.X, settings), settings)


def adapt_temperature(X: HostRows, settings: Settings) -> Settings:
    """Return the settings with a lower temperature where more than `SHARED` directions share the signal of the rows.

    A feature that explains little of the rows beside the temperature melts, and of a signal that many directions share
    each explains little. How many do is docs/math.md eq. (130).
    """
    if not settings.adapts:
        return settings
    signal = find_signal(X, settings)
    n_sharing = float(signal.sum()) ** 2 / max(float(signal @ signal), np.finfo(np.float64).tiny)
    return replace(settings, temperature=settings.temperature * min(1.0, SHARED / max(n_sharing, 1.0)))


def count_clear(X: HostRows, settings: Settings) -> int:
    """Return in how many directions rows stand out from the noise, at least one."""
    return max(1, int(np.sum(find_signal(X, settings) > 0)))


def find_signal(X: HostRows, settings: Settings) -> Floats:
    """Return by how much rows vary more than noise does along their main directions, falling, shape (n,).

    Of many inputs these are as many directions as there may be features.
    """
    D = X.n_inputs
    most = min(len(X), D if D <= FEW_INPUTS else min(settings.n_components, D))
    variances = leading_directions(X.moment, D, most)[0] / X.totals.n_rows
    return np.maximum(variances - find_noise_edge(X, settings.noise_variance), 0.0)


@dataclass(frozen=True, eq=False)
class Part:
    """Some of the rows."""

    rows: Integers  # (n,)
    weight: float  # what they count together
    mean: Floats  # (D,)
    scatter: float  # summed squared distance from the mean

    @classmethod
    def of(cls, X: Rows, rows: Integers) -> Part:
        """Describe some of the rows."""
        part = X.take(rows)
        mean = part.combine(part.weigh(np.ones((len(part), 1))))[0] / part.totals.n_rows
        return cls(rows, part.totals.n_rows, mean, part.totals.n_rows * (part.totals.mean_square - float(mean @ mean)))

    def halve(self, X: Rows) -> tuple[Floats, Flags]:
        """Return the main direction of the rows, by power iteration from the longest, and which lie ahead on it."""
        part = X.take(self.rows)
        left = part.array() - self.mean
        direction = left[np.argmax(np.einsum("nd,nd->n", left, left))]
        for _ in range(POWER_STEPS):
            moved = left.T @ part.weigh(left @ direction[:, None])[:, 0]
            length = float(np.linalg.norm(moved))
            direction = moved / length if length > 0.0 else moved
        return direction, left @ direction > 0.0


def divide_rows(data: Data, n_parts: int) -> Floats:
    """Divide rows into parts and return the mean of each, the largest parts first, shape (at most n_parts, D).

    The parts are the classes, where these are not too many, and of these the one that is most spread out is divided in
    two, across its main direction, and so on (principal direction divisive partitioning; Boley 1998). A part in the
    middle of the rows has its main direction in the place of its mean.
    """
    X, labels = data.X, data.labels
    classes = [np.flatnonzero(labels == label) for label in np.unique(labels[labels != UNLABELED])]
    parts = [Part.of(X, rows) for rows in (classes if 0 < len(classes) <= n_parts else [np.arange(len(X))])]
    while len(parts) < n_parts:
        widest = max(range(len(parts)), key=lambda place: parts[place].scatter)
        _, ahead = parts[widest].halve(X)
        if not ahead.any() or ahead.all():
            break  # copies of one row are left, which differ by rounding at most
        rows = parts.pop(widest).rows
        parts += [Part.of(X, rows[ahead]), Part.of(X, rows[~ahead])]
    parts.sort(key=lambda part: -part.weight)
    middle = MIDDLE * np.sqrt(X.totals.mean_square)
    found = [part.mean if np.linalg.norm(part.mean) > middle else part.halve(X)[0] for part in parts]
    return np.array([mean for mean in found if np.any(mean)]).reshape(-1, X.n_inputs)
