"""What features are made of and what they are for: the largest loadings, and the weights of classes or tasks.

The displays follow scikit-learn: ``from_estimator`` computes plain arrays, keeps them as attributes and draws; ``plot``
draws again, on other axes or with other options. matplotlib is imported when something is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_is_fitted

from regbayes.kernels.arrays import to_host

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure


PLUS_COLOR = "#0072b2"
MINUS_COLOR = "#d55e00"
MAX_NAMED = 60  # rows of the map whose names can still be read
MAX_WRITTEN = 200  # cells of the map that are still legible with their numbers
MAX_PANELS = 12  # features drawn unless told otherwise


class FeatureWeightsDisplay:
    """The weight of every feature for every class or task: what speaks for what, and against.

    Parameters
    ----------
    weights : array of shape (n_outputs, n_features)
    outputs : sequence of n_outputs names
        Classes or tasks.
    features : sequence of n_features names or numbers
    name : str, default="output"
        What the outputs are, for the axis.

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
        self, weights: ArrayLike, *, outputs: Sequence[Any], features: Sequence[Any], name: str = "output"
    ) -> None:
        self.weights = np.asarray(weights, dtype=np.float64)
        self.outputs = tuple(outputs)
        self.features = tuple(features)
        self.name = name
        if self.weights.shape != (len(self.outputs), len(self.features)):
            raise ValueError(
                f"weights has shape {self.weights.shape}, and there are {len(self.outputs)} outputs and "
                f"{len(self.features)} features"
            )

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        *,
        outputs: Sequence[Any] | None = None,
        features: ArrayLike | None = None,
        ax: Axes | None = None,
        **plot_kwargs: Any,
    ) -> FeatureWeightsDisplay:
        """Take the weights of a fitted estimator and draw them.

        Parameters
        ----------
        estimator : fitted estimator
            One that has `coef_features_`, and `tasks_` or `classes_`.
        outputs : sequence, default=None
            Names of the rows of `coef_features_`; the tasks or classes by default.
        features : array-like of int, default=None
            Features to draw, in order; by default all that have a weight, the largest first.
        ax : matplotlib Axes, default=None
            Where to draw; a new figure by default.
        **plot_kwargs
            Options of `plot`.

        Returns
        -------
        FeatureWeightsDisplay
        """
        check_is_fitted(estimator, "coef_features_")
        coef = np.atleast_2d(np.asarray(to_host(estimator.coef_features_), dtype=np.float64))
        sizes = np.sqrt(np.mean(coef**2, axis=0))
        if features is None:
            order = np.argsort(-sizes, kind="stable")
            features = order[sizes[order] > 1e-8 * sizes.max(initial=0.0)]
        chosen = np.asarray(features, dtype=np.intp)
        found, name = _output_names(estimator, len(coef))
        names = found if outputs is None else list(outputs)
        return cls(coef[:, chosen], outputs=names, features=chosen.tolist(), name=name).plot(ax=ax, **plot_kwargs)

    def plot(self, ax: Axes | None = None, *, cmap: str = "RdBu") -> FeatureWeightsDisplay:
        """Draw the map: blue speaks for a class or task, red against it.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Where to draw; a new figure by default.
        cmap : str, default="RdBu"
            Colours; any name that matplotlib knows.

        Returns
        -------
        FeatureWeightsDisplay
            The display itself, with `ax_` and `figure_` set.
        """
        n_rows, n_columns = self.weights.shape
        if ax is None:
            import matplotlib.pyplot as plt

            size = (float(np.clip(0.42 * n_columns + 2.2, 4.0, 14.0)), float(np.clip(0.26 * n_rows + 1.2, 2.0, 11.0)))
            ax = plt.subplots(figsize=size, layout="constrained")[1]
        limit = float(np.abs(self.weights).max(initial=0.0)) or 1.0
        image = ax.imshow(self.weights, cmap=cmap, vmin=-limit, vmax=limit, aspect="auto")
        if n_rows <= MAX_NAMED:
            ax.set_yticks(np.arange(n_rows), [str(name) for name in self.outputs])
        else:
            ax.set_yticks([])
        step = -(-n_columns // 40)
        ax.set_xticks(np.arange(0, n_columns, step), self.features[::step])
        ax.set(xlabel="feature", ylabel=self.name)
        if self.weights.size <= MAX_WRITTEN:
            for (row, column), value in np.ndenumerate(self.weights):
                shade = "white" if abs(value) > 0.6 * limit else "black"
                ax.text(column, row, f"{value:.2f}", ha="center", va="center", color=shade, fontsize="x-small")
        ax.figure.colorbar(image, ax=ax, label="weight")
        self.ax_, self.figure_ = ax, ax.figure
        return self


def _output_names(estimator: Any, n_outputs: int) -> tuple[list[Any], str]:
    """Name the rows of `coef_features_`: tasks, classes, or classes of tasks."""
    tasks = to_host(getattr(estimator, "tasks_", ())).tolist()
    classes = getattr(estimator, "classes_", None)
    classes = classes if classes is None or isinstance(classes, list) else to_host(classes)
    if len(tasks) > 1:
        if n_outputs == len(tasks):
            return tasks, "task"
        by_task = classes if isinstance(classes, list) else [classes] * len(tasks)
        return [
            task if len(labels) == 2 else f"{task}: {label}"
            for task, labels in zip(tasks, by_task, strict=True)
            for label in (labels[1:] if len(labels) == 2 else labels)
        ], "task"
    labels = [] if classes is None else np.asarray(classes).tolist()
    if len(labels) == 2 and n_outputs == 1:
        return labels[1:], "class"
    return (labels, "class") if len(labels) == n_outputs else (list(range(n_outputs)), "output")


class TopWordsDisplay:
    """The inputs with the largest loadings of each feature: the top words of a topic, the columns of a feature.

    Parameters
    ----------
    loadings : array of shape (n_features, n_words)
        The largest loadings of each feature, the largest first.
    words : sequence of n_features sequences of n_words names
    features : sequence of n_features names or numbers

    Attributes
    ----------
    axes_ : array of matplotlib Axes
        Where the picture was drawn last, one for each feature.
    figure_ : matplotlib Figure
        The figure that holds it.
    """

    axes_: NDArray[Any]
    figure_: Figure | SubFigure

    def __init__(self, loadings: ArrayLike, *, words: Sequence[Sequence[str]], features: Sequence[Any]) -> None:
        self.loadings = np.atleast_2d(np.asarray(loadings, dtype=np.float64))
        self.words = tuple(tuple(mine) for mine in words)
        self.features = tuple(features)
        if len(self.loadings) != len(self.features):
            raise ValueError(f"loadings has shape {self.loadings.shape}, and there are {len(self.features)} features")
        if [len(mine) for mine in self.words] != [self.loadings.shape[1]] * len(self.features):
            raise ValueError(f"words must have the shape of loadings, {self.loadings.shape}")

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        *,
        feature_names: Sequence[str] | None = None,
        n_words: int = 10,
        features: ArrayLike | None = None,
        axes: Any = None,
        **plot_kwargs: Any,
    ) -> TopWordsDisplay:
        """Find the largest loadings of each feature and draw them.

        Parameters
        ----------
        estimator : fitted estimator
            One that has `components_`: a topic model, a factor analysis, a matrix factorisation, of any package.
        feature_names : sequence of str, default=None
            Names of the inputs; `feature_names_in_` by default, and numbers where there are none.
        n_words : int, default=10
            Loadings of a feature, at most.
        features : array-like of int, default=None
            Features to draw, in order; by default the twelve with the largest loadings.
        axes : array of matplotlib Axes, default=None
            Where to draw, one for each feature; a new figure by default.
        **plot_kwargs
            Options of `plot`.

        Returns
        -------
        TopWordsDisplay
        """
        check_is_fitted(estimator, "components_")
        components = np.asarray(to_host(estimator.components_), dtype=np.float64)
        if n_words < 1:
            raise ValueError(f"n_words must be at least 1, got {n_words}")
        names = getattr(estimator, "feature_names_in_", None) if feature_names is None else feature_names
        named = [str(place) for place in range(components.shape[1])] if names is None else [str(name) for name in names]
        if len(named) != components.shape[1]:
            raise ValueError(f"feature_names has {len(named)} names, but components_ has {components.shape[1]} columns")
        if features is None:
            sizes = np.sum(components**2, axis=1)
            order = np.argsort(-sizes, kind="stable")
            features = order[sizes[order] > 1e-12 * sizes.max(initial=0.0)][:MAX_PANELS]
        chosen = np.asarray(features, dtype=np.intp)
        places = np.argsort(-np.abs(components[chosen]), axis=1, kind="stable")[:, :n_words]
        display = cls(
            np.take_along_axis(components[chosen], places, axis=1),
            words=[[named[place] for place in mine] for mine in places],
            features=chosen.tolist(),
        )
        return display.plot(axes, **plot_kwargs)

    def plot(
        self, axes: Any = None, *, n_columns: int = 4, color: str = PLUS_COLOR, negative_color: str = MINUS_COLOR
    ) -> TopWordsDisplay:
        """Draw horizontal bars for each feature.

        Parameters
        ----------
        axes : array of matplotlib Axes, default=None
            Where to draw, one for each feature; a new figure by default.
        n_columns : int, default=4
            Features beside each other in a new figure.
        color, negative_color : str
            Of positive and negative loadings; any colour that matplotlib knows.

        Returns
        -------
        TopWordsDisplay
            The display itself, with `axes_` and `figure_` set.
        """
        if not self.features:
            raise ValueError("there is no feature to draw: all loadings are zero")
        drawn = self._new_axes(n_columns) if axes is None else np.atleast_1d(np.asarray(axes, dtype=object)).ravel()
        if len(drawn) < len(self.features):
            raise ValueError(f"axes has {len(drawn)} Axes, and there are {len(self.features)} features")
        for ax, loadings, words, feature in zip(drawn, self.loadings, self.words, self.features, strict=False):
            places = np.arange(len(words))
            ax.barh(places, loadings, color=np.where(loadings < 0, negative_color, color).tolist(), height=0.7)
            ax.set_yticks(places, words, fontsize="small")
            ax.invert_yaxis()
            ax.set_title(f"feature {feature}" if isinstance(feature, int) else str(feature), fontsize="medium")
            ax.tick_params(axis="x", labelsize="x-small")
            ax.locator_params(axis="x", nbins=4)
            if np.any(loadings < 0):
                ax.axvline(0.0, color="black", linewidth=0.8)
            for side in ("top", "right"):
                ax.spines[side].set_visible(False)
        for ax in drawn[len(self.features) :]:
            ax.set_axis_off()
        self.axes_, self.figure_ = drawn[: len(self.features)], drawn[0].figure
        return self

    def _new_axes(self, n_columns: int) -> NDArray[Any]:
        import matplotlib.pyplot as plt

        n = len(self.features)
        across = min(n, n_columns)
        down = -(-n // across)
        height = down * (0.22 * self.loadings.shape[1] + 0.9)
        figure = plt.figure(figsize=(2.8 * across, height), layout="constrained")
        return figure.subplots(down, across, squeeze=False).ravel()
