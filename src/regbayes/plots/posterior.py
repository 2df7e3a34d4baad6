"""What a regularizer did to a posterior: a feature's distribution before and after, and the multipliers.

The displays follow scikit-learn: ``from_result`` computes plain arrays, keeps them as attributes and draws; ``plot``
draws again, on other axes or with other options. matplotlib is imported when something is drawn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr

from regbayes._types import Floats
from regbayes.regularization.posteriors import Finite, Gaussian, Posterior, Samples
from regbayes.regularization.result import RegularizedPosterior
from regbayes.resampling.result import ResampledPosterior

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure


BEFORE_COLOR = "#9a9a9a"
AFTER_COLOR = "#0072b2"
MAX_DISTINCT = 20  # features with at most so many values get one bar per value
TAIL = 5e-4  # probability left out of the picture at either end
GAUSSIAN_BINS = 800


class PosteriorShiftDisplay:
    """One feature's distribution under the posterior before and after regularization.

    Make one with `from_result`; the parameters are what the picture shows.

    Parameters
    ----------
    edges : array of shape (n + 1,)
        Ends of the intervals on which the densities are constant.
    before, after : array of shape (n,)
        Densities of the feature.
    mean_before, mean_after : float
        Expectations of the feature.
    name : str, default="feature"
        Name of the feature, for the axis.

    Attributes
    ----------
    ax_ : matplotlib Axes
        Where the picture was drawn last.
    figure_ : matplotlib Figure
        The figure that holds it.
    """

    ax_: Axes
    figure_: Figure | SubFigure

    def __init__(
        self,
        edges: ArrayLike,
        before: ArrayLike,
        after: ArrayLike,
        *,
        mean_before: float,
        mean_after: float,
        name: str = "feature",
    ) -> None:
        self.edges = np.asarray(edges, dtype=np.float64)
        self.before = np.asarray(before, dtype=np.float64)
        self.after = np.asarray(after, dtype=np.float64)
        self.mean_before = float(mean_before)
        self.mean_after = float(mean_after)
        self.name = name

    @classmethod
    def from_result(
        cls,
        result: RegularizedPosterior,
        feature: Any,
        *,
        name: str | None = None,
        bins: int = 50,
        ax: Axes | None = None,
        **plot_kwargs: Any,
    ) -> PosteriorShiftDisplay:
        """Compute the two distributions of a feature and draw them.

        Parameters
        ----------
        result : RegularizedPosterior
            What `regbayes.regularize` returned.
        feature : callable, array or str
            One feature of the models or draws, as in ``E(feature)``. For a Gaussian, coefficients of shape (d,) or
            an affine function.
        name : str, default=None
            Label of the axis; the feature's own name by default.
        bins : int, default=50
            Bars for draws, at most; their ends are round numbers. Features with few values get one bar for each, a
            Gaussian gets its density.
        ax : matplotlib Axes, default=None
            Where to draw; a new figure by default.
        **plot_kwargs
            Options of `plot`.

        Returns
        -------
        PosteriorShiftDisplay
        """
        evaluated = result.base.evaluate(feature)
        if len(evaluated.names) != 1:
            raise ValueError(f"feature must be a single one, got {len(evaluated.names)}: {', '.join(evaluated.names)}")
        # A model that was sampled again has draws of its own after, and everything else the same atoms.
        same = not isinstance(result, ResampledPosterior)
        tilted = evaluated if same else result.posterior.evaluate(feature)
        mean_before, mean_after = (
            float(p.expectation(values)[0]) for p, values in ((result.base, evaluated), (result.posterior, tilted))
        )
        if isinstance(result.base, Gaussian) and isinstance(result.posterior, Gaussian):
            spread = float(result.base.bind(evaluated).spread[0])
            edges, before, after = _normal_densities(mean_before, mean_after, spread)
        else:
            weights = [_weights(p) for p in (result.base, result.posterior)]
            values = evaluated.values[:, 0]
            if not same:
                values = np.concatenate([values, tilted.values[:, 0]])
                zeros = [np.zeros_like(w) for w in weights]
                weights = [np.concatenate([weights[0], zeros[1]]), np.concatenate([zeros[0], weights[1]])]
            edges = _edges(values, weights, bins)
            before, after = (_density(values, w, edges) for w in weights)
        display = cls(
            edges, before, after, mean_before=mean_before, mean_after=mean_after, name=name or evaluated.names[0]
        )
        return display.plot(ax=ax, **plot_kwargs)

    def plot(
        self,
        ax: Axes | None = None,
        *,
        before_color: str = BEFORE_COLOR,
        after_color: str = AFTER_COLOR,
        legend: bool = True,
    ) -> PosteriorShiftDisplay:
        """Draw the two distributions, with a dashed line at each mean.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Where to draw; a new figure by default.
        before_color, after_color : str
            Any colour that matplotlib knows.
        legend : bool, default=True
            Whether to say which is which, with the means.

        Returns
        -------
        PosteriorShiftDisplay
            The display itself, with `ax_` and `figure_` set.
        """
        ax = _axes_or_new(ax)
        top = float(max(self.before.max(), self.after.max()))
        places = max(0, 2 - int(np.floor(np.log10(self.edges[-1] - self.edges[0]))))  # digits that the picture shows
        labels = (f"before, mean {self.mean_before:.{places}f}", f"after, mean {self.mean_after:.{places}f}")
        ax.stairs(self.before, self.edges, fill=True, color=before_color, alpha=0.55, label=labels[0])
        ax.stairs(self.after, self.edges, fill=True, color=after_color, alpha=0.25)
        ax.stairs(self.after, self.edges, color=after_color, linewidth=1.6, label=labels[1])
        for mean, color in ((self.mean_before, before_color), (self.mean_after, after_color)):
            ax.vlines(mean, 0.0, 1.04 * top, color=color, linestyle="--", linewidth=1.2)
        ax.set_ylim(0.0, top * (1.4 if legend else 1.08))  # room for the legend above the bars
        ax.set(xlabel=self.name, ylabel="density", xlim=(self.edges[0], self.edges[-1]))
        for side in ("top", "right"):
            ax.spines[side].set_visible(False)
        if legend:
            ax.legend(frameon=False, loc="upper right", fontsize="small")
        self.ax_, self.figure_ = ax, ax.figure
        return self


class DualMultipliersDisplay:
    """The multiplier of every constrained expectation: which constraints work, in which direction, and how hard.

    A bar to the right means that the posterior is pushed towards larger values of that feature, a bar to the left
    towards smaller ones, and no bar that the constraint holds by itself. Bars that run to the edge and are hatched are
    infinite: the constraint cuts away a part of the posterior.

    Parameters
    ----------
    multipliers : array of shape (m,)
    labels : sequence of m str

    Attributes
    ----------
    ax_ : matplotlib Axes
        Where the picture was drawn last.
    figure_ : matplotlib Figure
        The figure that holds it.
    """

    ax_: Axes
    figure_: Figure | SubFigure

    def __init__(self, multipliers: ArrayLike, labels: list[str] | tuple[str, ...]) -> None:
        self.multipliers = np.asarray(multipliers, dtype=np.float64)
        self.labels = tuple(labels)
        if self.multipliers.shape != (len(self.labels),):
            raise ValueError(f"multipliers has shape {self.multipliers.shape}, and there are {len(self.labels)} labels")

    @classmethod
    def from_result(
        cls, result: RegularizedPosterior, *, ax: Axes | None = None, **plot_kwargs: Any
    ) -> DualMultipliersDisplay:
        """Take the multipliers and labels of a result and draw them.

        Parameters
        ----------
        result : RegularizedPosterior
            What `regbayes.regularize` returned.
        ax : matplotlib Axes, default=None
            Where to draw; a new figure by default.
        **plot_kwargs
            Options of `plot`.

        Returns
        -------
        DualMultipliersDisplay
        """
        return cls(result.multipliers, result.labels).plot(ax=ax, **plot_kwargs)

    def plot(self, ax: Axes | None = None, *, color: str = AFTER_COLOR) -> DualMultipliersDisplay:
        """Draw one horizontal bar for each multiplier.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Where to draw; a new figure by default.
        color : str
            Any colour that matplotlib knows.

        Returns
        -------
        DualMultipliersDisplay
            The display itself, with `ax_` and `figure_` set.
        """
        ax = _axes_or_new(ax)
        infinite = np.isinf(self.multipliers)
        largest = float(np.max(np.abs(self.multipliers[~infinite]), initial=0.0)) or 1.0
        lengths = np.where(infinite, np.sign(self.multipliers) * 1.5 * largest, self.multipliers)
        bars = ax.barh(np.arange(len(lengths)), lengths, color=color, height=0.6)
        for bar, endless in zip(bars, infinite, strict=True):
            if endless:
                bar.set(hatch="///", facecolor="none", edgecolor=color)
        ax.bar_label(bars, [_number(m) for m in self.multipliers], padding=4, fontsize="small")
        ax.axvline(0.0, color="black", linewidth=0.8)
        ax.set_yticks(np.arange(len(lengths)), self.labels)
        ax.invert_yaxis()
        ax.margins(x=0.2)
        ax.set_xlabel("multiplier (nats per unit of the feature)")
        for side in ("top", "right"):
            ax.spines[side].set_visible(False)
        self.ax_, self.figure_ = ax, ax.figure
        return self


def _number(multiplier: float) -> str:
    if np.isinf(multiplier):
        return "∞" if multiplier > 0 else "−∞"
    return f"{multiplier + 0.0:.3g}"  # + 0.0 turns -0 into 0


def _axes_or_new(ax: Axes | None) -> Axes:
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt

    return plt.subplots(layout="constrained")[1]


def _weights(posterior: Posterior) -> Floats:
    if not isinstance(posterior, Finite | Samples):
        raise TypeError(f"a posterior must be a Finite, Gaussian or Samples, got {type(posterior).__name__}")
    return posterior.weights


def _edges(values: Floats, weights: list[Floats], bins: int) -> Floats:
    """Ends of the bars: one bar per value where there are few, else equal ones over what both distributions cover."""
    distinct = np.unique(values)
    if len(distinct) <= MAX_DISTINCT:
        half = 0.5 * np.diff(distinct) if len(distinct) > 1 else np.array([0.5])
        return np.concatenate(
            [[distinct[0] - half[0]], distinct[:-1] + half[: len(distinct) - 1], [distinct[-1] + half[-1]]]
        )
    order = np.argsort(values)
    ends = [np.interp([TAIL, 1 - TAIL], np.cumsum(w[order]), values[order]) for w in weights]
    return _round_edges(min(low for low, _ in ends), max(high for _, high in ends), bins)


def _round_edges(low: float, high: float, bins: int) -> Floats:
    """Multiples of a round number, so that zero is the end of a bar and never inside one."""
    width = (high - low) / bins
    power = 10.0 ** np.floor(np.log10(width))
    step = power * next(factor for factor in (1.0, 2.0, 2.5, 5.0, 10.0) if factor * power >= width * (1 - 1e-9))
    return step * np.arange(np.floor(low / step), np.ceil(high / step) + 1)


def _density(values: Floats, weights: Floats, edges: Floats) -> Floats:
    return np.histogram(values, edges, weights=weights)[0] / np.diff(edges)


def _normal_densities(mean_before: float, mean_after: float, spread: float) -> tuple[Floats, Floats, Floats]:
    """Two normal densities of one spread, on bars narrow enough to look smooth."""
    if spread == 0:
        raise ValueError("the feature does not vary under this Gaussian: there is no density to draw")
    low, high = sorted((mean_before, mean_after))
    edges = np.linspace(low - 4 * spread, high + 4 * spread, GAUSSIAN_BINS + 1)
    before, after = (np.diff(ndtr((edges - mean) / spread)) / np.diff(edges) for mean in (mean_before, mean_after))
    return edges, before, after
