"""What a model with latent features learned and how it got there: use of the features by class, course of the fit.

The displays follow scikit-learn: ``from_estimator`` computes plain arrays, keeps them as attributes and draws; ``plot``
draws again, on other axes or with other options. matplotlib is imported when something is drawn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_consistent_length, check_is_fitted

from regbayes._types import Floats
from regbayes.estimators._bases import in_use
from regbayes.kernels.arrays import to_host

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure


COLOR = "#0072b2"
TERM_COLORS = ("#d55e00", "#0072b2", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#9a9a9a")
MAX_TICKS = 40  # features whose numbers can be read below the bars
MAX_WRITTEN = 200  # cells of the map that are still legible with their numbers


class ObjectiveDisplay:
    """The terms of the objective over the iterations of a fit: what was paid, and what was bought with it.

    Make one with `from_estimator`; the parameters are what the picture shows.

    Parameters
    ----------
    iterations : array of shape (n,)
    terms : mapping of str to array of shape (n,)
        Their sum is the objective.

    Attributes
    ----------
    ax_ : matplotlib Axes
        Where the picture was drawn last.
    figure_ : matplotlib Figure
        The figure that holds it.
    """

    ax_: Axes
    figure_: Figure | SubFigure

    def __init__(self, iterations: ArrayLike, terms: Mapping[str, ArrayLike]) -> None:
        self.iterations = np.asarray(iterations)
        self.terms = {name: np.asarray(values, dtype=np.float64) for name, values in terms.items()}

    @property
    def objective(self) -> Floats:
        """The sum of the terms, shape (n,)."""
        return np.asarray(sum(self.terms.values()))

    @classmethod
    def from_estimator(cls, estimator: Any, *, ax: Axes | None = None, **plot_kwargs: Any) -> ObjectiveDisplay:
        """Take the trace of a fitted estimator and draw it.

        Parameters
        ----------
        estimator : fitted estimator
            One that has `trace_`.
        ax : matplotlib Axes, default=None
            Where to draw; a new figure by default.
        **plot_kwargs
            Options of `plot`.

        Returns
        -------
        ObjectiveDisplay
        """
        check_is_fitted(estimator, "trace_")
        return cls(estimator.trace_.iterations, estimator.trace_.terms).plot(ax=ax, **plot_kwargs)

    def plot(self, ax: Axes | None = None, *, change: bool = True, legend: bool = True) -> ObjectiveDisplay:
        """Draw one line for each term, and a black one for their sum.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Where to draw; a new figure by default.
        change : bool, default=True
            Whether to draw how each has changed since the first iteration. Terms contain constants of any size, so
            their values themselves rarely fit on one axis.
        legend : bool, default=True
            Whether to say which line is which.

        Returns
        -------
        ObjectiveDisplay
            The display itself, with `ax_` and `figure_` set.
        """
        if ax is None:
            import matplotlib.pyplot as plt

            ax = plt.subplots(layout="constrained")[1]
        for i, (name, values) in enumerate(self.terms.items()):
            color = TERM_COLORS[i % len(TERM_COLORS)]
            ax.plot(self.iterations, values - change * values[0], color=color, linewidth=1.2, label=name)
        total = self.objective
        ax.plot(self.iterations, total - change * total[0], color="black", linewidth=2.0, label="objective")
        if change:
            ax.axhline(0.0, color="black", linewidth=0.6)
        ax.set(xlabel="iteration", ylabel="change since the start (nats)" if change else "nats")
        for side in ("top", "right"):
            ax.spines[side].set_visible(False)
        if legend:
            ax.legend(frameon=False, fontsize="small")
        self.ax_, self.figure_ = ax, ax.figure
        return self


class FeatureUseDisplay:
    """How often rows have each feature: over all of them, and by class.

    The bars are overall averages, and the lines on them one standard deviation of the classes' averages to either side.
    A feature with a long line tells classes apart; one with none is of no use to the classifier. The map below has the
    classes' averages themselves.

    Parameters
    ----------
    overall : array of shape (n_features,)
        Average over all rows.
    by_class : array of shape (n_classes, n_features)
        Average over the rows of each class; no rows without labels.
    classes : sequence
        The classes, in order.
    features : sequence
        Names or numbers of the features, in order.

    Attributes
    ----------
    axes_ : array of matplotlib Axes
        Where the picture was drawn last: the bars and, with classes, the map.
    figure_ : matplotlib Figure
        The figure that holds it.
    """

    axes_: NDArray[Any]
    figure_: Figure | SubFigure

    def __init__(
        self, overall: ArrayLike, by_class: ArrayLike, *, classes: Sequence[Any], features: Sequence[Any]
    ) -> None:
        self.overall = np.asarray(overall, dtype=np.float64)
        self.by_class = np.asarray(by_class, dtype=np.float64).reshape(len(classes), len(features))
        self.classes = tuple(classes)
        self.features = tuple(features)
        if self.overall.shape != (len(self.features),):
            raise ValueError(f"overall has shape {self.overall.shape}, and there are {len(self.features)} features")

    @property
    def deviation(self) -> Floats:
        """Standard deviation of the classes' averages, shape (n_features,); 0 without classes."""
        return self.by_class.std(axis=0) if len(self.classes) else np.zeros_like(self.overall)

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: ArrayLike,
        y: ArrayLike | None = None,
        *,
        features: ArrayLike | None = None,
        axes: Any = None,
        **plot_kwargs: Any,
    ) -> FeatureUseDisplay:
        """Infer the features of rows, average them by class, and draw the averages.

        Parameters
        ----------
        estimator : fitted estimator
            One whose `transform` gives probabilities of features, or that has `feature_probabilities`.
        X : array-like of shape (n_samples, n_features)
            Rows, better not those of the fit.
        y : array-like of shape (n_samples,), default=None
            Their classes; without them there is only the overall average.
        features : array-like of int, default=None
            The features to show, in this order. By default those in use among the rows, the most frequent first.
        axes : pair of matplotlib Axes, default=None
            Where to draw; a new figure by default.
        **plot_kwargs
            Options of `plot`.

        Returns
        -------
        FeatureUseDisplay
        """
        check_consistent_length(X, y)
        probabilities = getattr(estimator, "feature_probabilities", estimator.transform)
        psi = to_host(probabilities(X))
        overall = psi.mean(axis=0)
        if features is None:
            order = np.argsort(-overall, kind="stable")
            features = order[in_use(psi)[order]]
        features = np.asarray(features, dtype=np.intp)
        labels = np.zeros(0) if y is None else to_host(y)
        classes = np.unique(labels)
        by_class = [psi[labels == label][:, features].mean(axis=0) for label in classes]
        display = cls(overall[features], by_class, classes=classes.tolist(), features=features.tolist())
        return display.plot(axes, **plot_kwargs)

    def plot(self, axes: Any = None, *, color: str = COLOR, cmap: str = "Blues") -> FeatureUseDisplay:
        """Draw the bars and, with classes, the map.

        Parameters
        ----------
        axes : pair of matplotlib Axes, default=None
            Where to draw the bars and the map; a new figure by default.
        color : str
            Of the bars; any colour that matplotlib knows.
        cmap : str
            Colours of the map; any name that matplotlib knows.

        Returns
        -------
        FeatureUseDisplay
            The display itself, with `axes_` and `figure_` set.
        """
        axes = self._new_axes() if axes is None else np.atleast_1d(np.asarray(axes, dtype=object))
        needed = 2 if len(self.classes) else 1
        if len(axes) < needed:
            raise ValueError(
                f"axes has {len(axes)} Axes, and {needed} are needed: bars, and a map of the classes below"
            )
        places = np.arange(len(self.features))
        bars = axes[0]
        bars.bar(places, self.overall, color=color, alpha=0.6, width=0.7)
        if len(self.classes):
            bars.errorbar(places, self.overall, yerr=self.deviation, fmt="none", ecolor="black", elinewidth=1.2)
            self._draw_map(axes[1], cmap)
        bars.set(ylabel="all rows", xlim=(-0.5, len(places) - 0.5), ylim=(0.0, 1.0))
        for side in ("top", "right"):
            bars.spines[side].set_visible(False)
        bars.tick_params(labelbottom=not len(self.classes))
        step = -(-len(places) // MAX_TICKS)
        axes[-1].set_xticks(places[::step], self.features[::step])
        axes[-1].set_xlabel("feature")
        self.axes_, self.figure_ = axes, axes[0].figure
        return self

    def _draw_map(self, ax: Axes, cmap: str) -> None:
        ax.imshow(self.by_class, cmap=cmap, vmin=0.0, vmax=1.0, aspect="auto")
        ax.set_yticks(np.arange(len(self.classes)), self.classes)
        ax.set_ylabel("class")
        if self.by_class.size <= MAX_WRITTEN:
            for (row, column), share in np.ndenumerate(self.by_class):
                shade = "white" if share > 0.6 else "black"
                ax.text(column, row, f"{share:.1f}", ha="center", va="center", color=shade, fontsize="x-small")

    def _new_axes(self) -> NDArray[Any]:
        import matplotlib.pyplot as plt

        n = len(self.classes)
        size = (float(np.clip(0.45 * len(self.features) + 1.0, 4.0, 16.0)), min(2.2 + 0.28 * n, 12.0))
        ratios = [1.4, max(0.2 * n, 0.6)] if n else [1.0]
        figure = plt.figure(figsize=size, layout="constrained")
        return figure.subplots(len(ratios), 1, sharex=True, height_ratios=ratios, squeeze=False)[:, 0]
