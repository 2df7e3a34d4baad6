"""The phases before the descent of features with amounts: the price of being on rises, at the wanted temperature.

A descent that starts at the full price stays where it began: most features are off in most rows, and what is off
everywhere learns nothing. So features begin free, and their price rises in stages. At each the sticks follow the
features, because the prior is what makes rare features rarer; the objective is another one at every stage.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from regbayes._types import Floats
from regbayes.engine import Status
from regbayes.joint import descent
from regbayes.models.ilsvm.model import Params
from regbayes.models.ilsvm.slab import SlabParams
from regbayes.models.ilsvm.warmup import STICK_ROUNDS, CutShortError, Search, WarmUp, select
from regbayes.priors.indian_buffet import prior_sticks, update_sticks

PRICES = (0.0, 0.25, 0.5, 0.75, 1.0)  # shares of the full price
STEPS = (20, 13, 13, 13, 33)  # of descent in each round at a price
ROUNDS = 3  # at each price, with new sticks before each
TOL = 1e-4  # gain per row, in units of its loss, below which a round is over


class Annealing(WarmUp):
    """The phases before the descent of features with amounts."""

    def run(self, start: Params, multipliers: Floats | None, is_new: bool) -> tuple[Search, Status]:
        """Raise the price of features from nothing; an earlier fit has paid it, and goes on as it is.

        Return the model, and CONVERGED, or STOPPED or INTERRUPTED with what there is.
        """
        settings, joint = self.problem.settings, self.problem.joint
        params = replace(start, temperature=settings.temperature)
        assert isinstance(params, SlabParams)
        if not is_new:
            return descent.start(joint, params, multipliers), Status.CONVERGED
        params = self._start_sticks(params)
        try:
            for share, n_steps in zip(PRICES, STEPS, strict=True):
                params = replace(params, price=share * settings.price)
                for _ in range(ROUNDS):
                    search = descent.start(joint, params, multipliers)
                    if self.latest is not None:
                        counts, n_rows = search.at.stats.counts, search.at.stats.n_rows
                        params = select(params, np.arange(len(counts)), counts, n_rows, settings.alpha)
                        search = descent.start(joint, params, multipliers)
                    self.latest = search = self._run_phase(self.problem, search, n_steps, TOL)
                    params, multipliers = search.at.params, search.at.multipliers
            return search, Status.CONVERGED
        except CutShortError as cut:
            return cut.search, cut.status
        except KeyboardInterrupt:  # between two phases
            if self.latest is None:
                raise  # nothing was learned yet
            return self.latest, Status.INTERRUPTED

    def _start_sticks(self, params: SlabParams) -> SlabParams:
        """Return the parameters with sticks as if a row had as many features as the prior expects, alpha, evenly."""
        alpha, K, n_rows = self.problem.settings.alpha, len(params.loadings), self.problem.data.X.total_weight
        counts = np.full(K, n_rows * alpha / (alpha + K))
        sticks = prior_sticks(alpha, K)
        for _ in range(STICK_ROUNDS):
            sticks = update_sticks(sticks, counts, n_rows, alpha)
        return replace(params, sticks=sticks)
