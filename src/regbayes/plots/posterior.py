"""Displays of a regularized posterior: marginal distributions and multipliers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import ndtr

from regbayes._types import Floats
from regbayes.plots._drawing import BLUE, GRAY, Display
from regbayes.regularization.posteriors import Finite, Gaussian, Samples
from regbayes.regularization.result import RegularizedPosterior

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_DISTINCT = 20  # functions with at most this many distinct values get one bar per value
TAIL = 5e-4  # probability outside the plot at either end
GAUSSIAN_BINS = 800


@dataclass(eq=False)
class PosteriorShiftDisplay(Display):
    """Distribution of one function of the parameters before and after regularization.

    Parameters
    ----------
    edges : array of shape (n + 1,)
        Edges of the histogram bins.
    before, after : array of shape (n,)
        Densities of the function on the bins.
    mean_before, mean_after : float
        Expectations of the function.
    name : str, default="feature"
        Label of the axis.

    Examples
    --------
    >>> import numpy as np
    >>> from regbayes import E, Gaussian, regularize
    >>> from regbayes.plots import PosteriorShiftDisplay
    >>> result = regularize(Gaussian(np.zeros(2), np.eye(2)), E([1.0, -1.0]) >= 1.0)
    >>> display = PosteriorShiftDisplay.from_result(result, [1.0, -1.0], name="difference")
    >>> round(display.mean_before, 3), round(display.mean_after, 3)
    (0.0, 1.0)
    """

    edges: Floats
    before: Floats
    after: Floats
    _: KW_ONLY
    mean_before: float
    mean_after: float
    name: str = "feature"

    @classmethod
    def from_result(
        cls,
        result: RegularizedPosterior,
        feature: Any,
        *,
        name: str | None = None,
        bins: int = 50,
        ax: Axes | None = None,
    ) -> PosteriorShiftDisplay:
        """Compute the two distributions of a function and draw them.

        Parameters
        ----------
        result : RegularizedPosterior
            Result of `regbayes.regularize`.
        feature : callable, array or str
            One function of the parameters, as in ``E(feature)``. For a Gaussian, coefficients of shape (d,) or
            an affine function.
        name : str, default=None
            Label of the axis; the function's own name by default.
        bins : int, default=50
            Maximum number of bars for draws; their edges are round numbers. Functions with few values get one bar per
            value, and a Gaussian is drawn as a density.
        ax : matplotlib Axes, default: a new figure
        """
        posteriors = (result.base, result.posterior)
        evaluated = [posterior.evaluate(feature) for posterior in posteriors]
        names = evaluated[0].names
        if len(names) != 1:
            raise ValueError(f"feature must be a single one, got {len(names)}: {', '.join(names)}")
        means = [float(p.expectation(one)[0]) for p, one in zip(posteriors, evaluated, strict=True)]
        if isinstance(result.base, Gaussian):
            spread = float(result.base.bind(evaluated[0]).spread[0])
            if spread == 0:
                raise ValueError("the feature does not vary under this Gaussian: there is no density to draw")
            edges = np.linspace(min(means) - 4 * spread, max(means) + 4 * spread, GAUSSIAN_BINS + 1)
            masses = [np.diff(ndtr((edges - mean) / spread)) for mean in means]
        else:
            samples = [
                (one.values[:, 0], posterior.weights)
                for posterior, one in zip(posteriors, evaluated, strict=True)
                if isinstance(posterior, Finite | Samples)
            ]
            edges = _edges(samples, bins)
            masses = [np.histogram(values, edges, weights=weights)[0] for values, weights in samples]
        before, after = (mass / np.diff(edges) for mass in masses)
        return cls(edges, before, after, mean_before=means[0], mean_after=means[1], name=name or names[0]).plot(ax)

    def _draw(self, ax: Axes) -> None:
        """Draw the two distributions, with a dashed line at each mean."""
        top = float(max(self.before.max(), self.after.max()))
        digits = max(0, 2 - int(np.floor(np.log10(self.edges[-1] - self.edges[0]))))
        labels = (f"before, mean {self.mean_before:.{digits}f}", f"after, mean {self.mean_after:.{digits}f}")
        ax.stairs(self.before, self.edges, fill=True, color=GRAY, alpha=0.55, label=labels[0])
        ax.stairs(self.after, self.edges, fill=True, color=BLUE, alpha=0.25)
        ax.stairs(self.after, self.edges, color=BLUE, linewidth=1.6, label=labels[1])
        for mean, color in ((self.mean_before, GRAY), (self.mean_after, BLUE)):
            ax.vlines(mean, 0.0, 1.04 * top, color=color, linestyle="--", linewidth=1.2)
        ax.set_ylim(0.0, top * 1.4)  # leaves space for the legend above the bars
        ax.set(xlabel=self.name, ylabel="density", xlim=(self.edges[0], self.edges[-1]))
        ax.spines[["top", "right"]].set_visible(False)
        ax.legend(frameon=False, loc="upper right", fontsize="small")


@dataclass(eq=False)
class DualMultipliersDisplay(Display):
    """Multiplier of every constrained expectation.

    A positive multiplier shifts the posterior towards larger values of the function, a negative one towards smaller
    values. Zero means that the unconstrained posterior satisfies the constraint. Hatched bars that reach the edge are
    infinite: the constraint excludes a region.

    Parameters
    ----------
    multipliers : array of shape (m,)
    labels : sequence of m str

    Examples
    --------
    >>> import numpy as np
    >>> from regbayes import E, Gaussian, regularize
    >>> from regbayes.plots import DualMultipliersDisplay
    >>> result = regularize(Gaussian(np.zeros(2), np.eye(2)), E([1.0, -1.0]) >= 1.0)
    >>> DualMultipliersDisplay.from_result(result).multipliers.round(3).tolist()
    [0.5]
    """

    multipliers: Floats
    labels: Sequence[str]

    @classmethod
    def from_result(cls, result: RegularizedPosterior, *, ax: Axes | None = None) -> DualMultipliersDisplay:
        """Draw the multipliers of a result.

        Parameters
        ----------
        result : RegularizedPosterior
            Result of `regbayes.regularize`.
        ax : matplotlib Axes, default: a new figure
        """
        return cls(result.multipliers, result.labels).plot(ax)

    def _draw(self, ax: Axes) -> None:
        infinite = np.isinf(self.multipliers)
        largest = float(np.max(np.abs(self.multipliers[~infinite]), initial=0.0)) or 1.0
        lengths = np.where(infinite, np.sign(self.multipliers) * 1.5 * largest, self.multipliers)
        bars = ax.barh(np.arange(len(lengths)), lengths, color=BLUE, height=0.6)
        for bar, endless in zip(bars, infinite, strict=True):
            if endless:
                bar.set(hatch="///", facecolor="none", edgecolor=BLUE)
        numbers = [f"{value + 0.0:.3g}" for value in self.multipliers]  # + 0.0 turns -0 into 0
        ax.bar_label(bars, [text.replace("inf", "∞") for text in numbers], padding=4, fontsize="small")
        ax.axvline(0.0, color="black", linewidth=0.8)
        ax.set_yticks(np.arange(len(lengths)), self.labels)
        ax.invert_yaxis()
        ax.margins(x=0.2)
        ax.set_xlabel("multiplier (nats per unit of the function)")
        ax.spines[["top", "right"]].set_visible(False)


def _edges(samples: list[tuple[Floats, Floats]], bins: int) -> Floats:
    """Return bin edges for weighted values: one bin per value if there are few, else round numbers."""
    from matplotlib.ticker import MaxNLocator

    distinct = np.unique(np.concatenate([values for values, _ in samples]))
    if len(distinct) == 1:
        return np.asarray(distinct[0] + np.array([-0.5, 0.5]))
    if len(distinct) <= MAX_DISTINCT:
        middles = 0.5 * (distinct[1:] + distinct[:-1])
        return np.concatenate([[2 * distinct[0] - middles[0]], middles, [2 * distinct[-1] - middles[-1]]])
    ends = []
    for values, weights in samples:
        order = np.argsort(values)
        ends.append(np.interp([TAIL, 1 - TAIL], np.cumsum(weights[order]), values[order]))
    return np.asarray(MaxNLocator(bins, steps=[1, 2, 2.5, 5, 10]).tick_values(np.min(ends), np.max(ends)))
