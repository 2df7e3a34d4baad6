"""The rounds of a model that was drawn again: expectations and multipliers, run by run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from regbayes.resampling.result import ResampledPosterior

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class RoundsDisplay:
    """Expectations with their Monte Carlo errors above, multipliers below, one mark for each run of the sampler.

    Make one with `from_result`; the parameters are what the picture shows.

    Parameters
    ----------
    expectations, errors, multipliers : array of shape (rounds, m)
    final : array of shape (rounds,)
        Whether a run was a long one.
    labels : sequence of str
        One for each constraint.

    Attributes
    ----------
    axes_ : array of two matplotlib Axes
        Where the picture was drawn last.
    figure_ : matplotlib Figure
    """

    axes_: Any
    figure_: Figure

    def __init__(
        self, expectations: ArrayLike, errors: ArrayLike, multipliers: ArrayLike, *, final: ArrayLike, labels: Any
    ) -> None:
        self.expectations = np.asarray(expectations, dtype=np.float64)
        self.errors = np.asarray(errors, dtype=np.float64)
        self.multipliers = np.asarray(multipliers, dtype=np.float64)
        self.final = np.asarray(final, dtype=np.bool_)
        self.labels = tuple(labels)

    @classmethod
    def from_result(cls, result: ResampledPosterior, *, axes: tuple[Axes, Axes] | None = None) -> RoundsDisplay:
        """Take the rounds of a result and draw them.

        Parameters
        ----------
        result : ResampledPosterior
            What `regbayes.regularize` returned for a model.
        axes : pair of matplotlib Axes, default=None
            Where to draw; a new figure by default.
        """
        if not isinstance(result, ResampledPosterior):
            raise TypeError("rounds belong to a model that was sampled; draws that were reweighted have none")
        rounds = result.rounds
        display = cls(
            [r.expectation for r in rounds],
            [r.mcse for r in rounds],
            [r.multipliers for r in rounds],
            final=[r.final for r in rounds],
            labels=result.labels,
        )
        return display.plot(axes)

    def plot(self, axes: tuple[Axes, Axes] | None = None) -> RoundsDisplay:
        """Draw the rounds; returns the display itself."""
        from matplotlib import pyplot as plt

        if axes is None:
            _, pair = plt.subplots(2, 1, sharex=True, layout="constrained")
            axes = (pair[0], pair[1])
        upper, lower = axes
        at = np.arange(len(self.expectations))
        for j, label in enumerate(self.labels):
            color = f"C{j}"
            upper.errorbar(at, self.expectations[:, j], 2 * self.errors[:, j], color=color, marker="o", label=label)
            lower.plot(at, self.multipliers[:, j], color=color, marker="o")
            for ax, values in ((upper, self.expectations), (lower, self.multipliers)):
                ax.plot(at[self.final], values[self.final, j], "s", color=color, markersize=9)
        upper.set_ylabel("expectation")
        lower.set_ylabel("multiplier")
        lower.set_xlabel("round (square: a long run)")
        upper.legend()
        self.axes_ = np.array([upper, lower])
        self.figure_ = upper.get_figure()  # type: ignore[assignment]
        return self
