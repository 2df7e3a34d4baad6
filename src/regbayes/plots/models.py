"""Displays of fitted models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.cluster.hierarchy import leaves_list, linkage
from sklearn.utils.validation import check_consistent_length, check_is_fitted

from regbayes._types import Floats, Integers
from regbayes.estimators._bases import in_use
from regbayes.kernels.arrays import to_host
from regbayes.plots._drawing import (
    BLUE,
    RED,
    Display,
    draw_map,
    new_axes,
    take_panels,
    write_names,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_PANELS = 12  # default maximum number of features with drawn loadings, in rows of four


@dataclass(eq=False)
class ObjectiveDisplay(Display):
    """Terms of the objective over the iterations of a fit.

    Parameters
    ----------
    iterations : array of shape (n,)
    terms : mapping of str to array of shape (n,)
        Their sum is the objective.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from regbayes import ILSVMClassifier
    >>> from regbayes.plots import ObjectiveDisplay
    >>> X, y = load_iris(return_X_y=True)
    >>> model = ILSVMClassifier(8, tol=1e-2, random_state=0).fit(X, y)
    >>> display = ObjectiveDisplay.from_estimator(model)
    >>> sorted(display.terms)
    ['kl_features', 'kl_loadings', 'kl_sticks', 'kl_weights', 'likelihood', 'margin']
    """

    iterations: NDArray[Any]
    terms: Mapping[str, Floats]

    @classmethod
    def from_estimator(cls, estimator: Any, *, ax: Axes | None = None) -> ObjectiveDisplay:
        """Draw the trace of a fitted estimator.

        Parameters
        ----------
        estimator : fitted estimator
            Estimator with ``trace_``.
        ax : matplotlib Axes, default: a new figure
        """
        check_is_fitted(estimator, "trace_")
        terms = {name: np.asarray(values) for name, values in estimator.trace_.terms.items()}
        return cls(np.asarray(estimator.trace_.iterations), terms).plot(ax)

    def _draw(self, ax: Axes) -> None:
        """Draw changes since the first iteration, because terms contain arbitrary constants."""
        for name, values in self.terms.items():
            ax.plot(self.iterations, values - values[0], linewidth=1.2, label=name)
        total = np.sum(list(self.terms.values()), axis=0)
        ax.plot(self.iterations, total - total[0], color="black", linewidth=2.0, label="objective")
        ax.axhline(0.0, color="black", linewidth=0.6)
        ax.set(xlabel="iteration", ylabel="change since the first iteration (nats)")
        ax.spines[["top", "right"]].set_visible(False)
        ax.legend(frameon=False, fontsize="small")


@dataclass(eq=False)
class FeatureUseDisplay(Display):
    """Average value of each feature over all samples and by class.

    Bars show averages over all samples. Error bars show one standard deviation of the class averages, so features with
    a long error bar distinguish classes. The heat map below shows the class averages.

    Parameters
    ----------
    overall : array of shape (n_features,)
        Average over all samples.
    by_class : array of shape (n_classes, n_features)
        Average over the samples of each class; of shape (0, n_features) without labels.
    classes : sequence
        The classes, in order.
    features : sequence
        Names or numbers of the features, in order.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from regbayes import ILSVMClassifier
    >>> from regbayes.plots import FeatureUseDisplay
    >>> X, y = load_iris(return_X_y=True)
    >>> model = ILSVMClassifier(8, tol=1e-2, random_state=0).fit(X, y)
    >>> display = FeatureUseDisplay.from_estimator(model, X, y)
    >>> display.classes, display.by_class.shape == (3, len(display.features))
    ([0, 1, 2], True)
    """

    overall: Floats
    by_class: Floats
    _: KW_ONLY
    classes: Sequence[Any]
    features: Sequence[Any]

    @property
    def deviation(self) -> Floats:
        """Standard deviation of the class averages, shape (n_features,); 0 without classes."""
        return self.by_class.std(axis=0) if len(self.classes) else np.zeros_like(self.overall)

    @classmethod
    def from_estimator(
        cls, estimator: Any, X: ArrayLike, y: ArrayLike | None = None, *, ax: Any = None
    ) -> FeatureUseDisplay:
        """Compute and draw the averages of the features in use, overall and by class.

        Parameters
        ----------
        estimator : fitted estimator
            Estimator whose `transform` returns feature probabilities, or with `feature_probabilities`.
        X : array-like of shape (n_samples, n_features)
            Samples, preferably held out.
        y : array-like of shape (n_samples,), default=None
            Class labels of the samples.
        ax : pair of matplotlib Axes, default: a new figure
        """
        check_consistent_length(X, y)
        psi = to_host(getattr(estimator, "feature_probabilities", estimator.transform)(X))
        overall = psi.mean(axis=0)
        order = np.argsort(-overall, kind="stable")  # by decreasing frequency
        features = order[in_use(psi)[order]]
        labels = np.zeros(0) if y is None else to_host(y)
        classes = np.unique(labels)
        means = [psi[labels == label][:, features].mean(axis=0) for label in classes]
        by_class = np.array(means).reshape(len(classes), len(features))
        return cls(overall[features], by_class, classes=classes.tolist(), features=features.tolist()).plot(ax)

    def _new_axes(self) -> Any:
        n_classes = len(self.classes)
        width, height = float(np.clip(0.45 * len(self.features) + 1.0, 4.0, 16.0)), min(2.2 + 0.28 * n_classes, 12.0)
        if not n_classes:
            return new_axes(width, height)
        return new_axes(width, height, n_rows=2, sharex=True, height_ratios=[1.4, max(0.2 * n_classes, 0.6)])

    def _draw(self, ax: Any) -> None:
        axes, places = take_panels(ax, 2 if len(self.classes) else 1), np.arange(len(self.features))
        bars = axes[0]
        bars.bar(places, self.overall, color=BLUE, alpha=0.6, width=0.7)
        if self.classes:
            bars.errorbar(places, self.overall, yerr=self.deviation, fmt="none", ecolor="black", elinewidth=1.2)
            draw_map(axes[1], self.by_class, self.classes, (0.0, 1.0), digits=1)
            axes[1].set_ylabel("class")
        bars.set(ylabel="all samples", xlim=(-0.5, len(places) - 0.5), ylim=(0.0, 1.0))
        bars.spines[["top", "right"]].set_visible(False)
        write_names(axes[-1].xaxis, self.features)
        axes[-1].set_xlabel("feature")


@dataclass(eq=False)
class FeatureWeightsDisplay(Display):
    """Weight of each feature for each class or task.

    Parameters
    ----------
    weights : array of shape (n_outputs, n_features)
    outputs : sequence of n_outputs names
        Classes or tasks.
    features : sequence of n_features names or numbers
    name : str, default="output"
        Label of the axis of outputs.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from regbayes import ILSVMClassifier
    >>> from regbayes.plots import FeatureWeightsDisplay
    >>> X, y = load_iris(return_X_y=True)
    >>> model = ILSVMClassifier(8, tol=1e-2, random_state=0).fit(X, y)
    >>> display = FeatureWeightsDisplay.from_estimator(model, outputs=["setosa", "versicolor", "virginica"])
    >>> display.name, display.weights.shape == (3, len(display.features))
    ('class', True)
    """

    weights: Floats
    _: KW_ONLY
    outputs: Sequence[Any]
    features: Sequence[Any]
    name: str = "output"

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        *,
        outputs: Sequence[Any] | None = None,
        features: ArrayLike | None = None,
        ax: Axes | None = None,
    ) -> FeatureWeightsDisplay:
        """Draw the weights of a fitted estimator.

        Parameters
        ----------
        estimator : fitted estimator
            Estimator with ``coef_features_``, and with ``tasks_`` or ``classes_``.
        outputs : sequence, default=None
            Names of the rows of ``coef_features_``; the tasks or classes by default.
        features : array-like of int, default=None
            Features to draw, in order; by default all with a weight, by decreasing weight.
        ax : matplotlib Axes, default: a new figure
        """
        check_is_fitted(estimator, "coef_features_")
        coef = np.atleast_2d(np.asarray(to_host(estimator.coef_features_), dtype=np.float64))
        if features is None:
            sizes = np.sqrt(np.mean(coef**2, axis=0))
            order = np.argsort(-sizes, kind="stable")
            features = order[sizes[order] > 1e-8 * sizes.max(initial=0.0)]
        chosen = np.asarray(features, dtype=np.intp)
        names, title = _output_names(estimator, len(coef))
        names = names if outputs is None else list(outputs)
        return cls(coef[:, chosen], outputs=names, features=chosen.tolist(), name=title).plot(ax)

    def _new_axes(self) -> Any:
        n_rows, n_columns = self.weights.shape
        return new_axes(float(np.clip(0.42 * n_columns + 2.2, 4, 14)), float(np.clip(0.26 * n_rows + 1.2, 2, 11)))

    def _draw(self, ax: Axes) -> None:
        """Draw a heat map with positive weights in blue and negative ones in red."""
        limit = float(np.abs(self.weights).max(initial=0.0)) or 1.0
        image = draw_map(ax, self.weights, self.outputs, (-limit, limit))
        write_names(ax.xaxis, self.features)
        ax.set(xlabel="feature", ylabel=self.name)
        ax.figure.colorbar(image, ax=ax, label="weight")


def _output_names(estimator: Any, n_outputs: int) -> tuple[list[Any], str]:
    """Return names for the rows of ``coef_features_``: tasks, classes, the second of two classes, or numbers."""
    for title, attribute in (("task", "tasks_"), ("class", "classes_")):
        found = getattr(estimator, attribute, ())
        names = [] if isinstance(found, list) else to_host(found).tolist()
        names = names[1:] if title == "class" and len(names) == 2 else names
        if len(names) == n_outputs and (title == "class" or n_outputs > 1):
            return names, title
    return list(range(n_outputs)), "output"


@dataclass(eq=False)
class TopWordsDisplay(Display):
    """Largest loadings of each feature, such as the top words of a topic.

    Parameters
    ----------
    loadings : array of shape (n_features, n_words)
        The largest loadings of each feature, the largest first.
    words : sequence of n_features sequences of n_words names
    features : sequence of n_features names or numbers

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.decomposition import PCA
    >>> from regbayes.plots import TopWordsDisplay
    >>> iris = load_iris()
    >>> TopWordsDisplay.from_estimator(PCA(1).fit(iris.data), feature_names=iris.feature_names, n_words=2).words
    [['petal length (cm)', 'sepal length (cm)']]
    """

    loadings: Floats
    _: KW_ONLY
    words: Sequence[Sequence[str]]
    features: Sequence[Any]

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        *,
        feature_names: Sequence[str] | None = None,
        n_words: int = 10,
        features: ArrayLike | None = None,
        ax: Any = None,
    ) -> TopWordsDisplay:
        """Find the largest loadings of each feature and draw them.

        Parameters
        ----------
        estimator : fitted estimator
            Estimator of any package with ``components_``, such as a topic model or a matrix factorization.
        feature_names : sequence of str, default=None
            Names of the columns; by default ``feature_names_in_``, or column numbers without names.
        n_words : int, default=10
            Maximum number of loadings of a feature.
        features : array-like of int, default=None
            Features to draw, in order; by default the twelve with the largest loadings.
        ax : array of matplotlib Axes, one for each feature, default: a new figure
        """
        check_is_fitted(estimator, "components_")
        components = np.asarray(to_host(estimator.components_), dtype=np.float64)
        names = getattr(estimator, "feature_names_in_", None) if feature_names is None else feature_names
        named = [str(name) for name in (range(components.shape[1]) if names is None else names)]
        if len(named) != components.shape[1]:
            raise ValueError(f"feature_names has {len(named)} names, but components_ has {components.shape[1]} columns")
        if features is None:
            sizes = np.sum(components**2, axis=1)
            order = np.argsort(-sizes, kind="stable")
            features = order[sizes[order] > 1e-12 * sizes.max(initial=0.0)][:MAX_PANELS]
        chosen = np.asarray(features, dtype=np.intp)
        if not len(chosen):
            raise ValueError("there is no feature to draw: all loadings are zero")
        places = np.argsort(-np.abs(components[chosen]), axis=1, kind="stable")[:, :n_words]
        loadings = np.take_along_axis(components[chosen], places, axis=1)
        words = [[named[place] for place in mine] for mine in places]
        return cls(loadings, words=words, features=chosen.tolist()).plot(ax)

    def _new_axes(self) -> Any:
        n, n_words = self.loadings.shape
        across, down = min(n, 4), -(-n // 4)
        return new_axes(2.8 * across, down * (0.22 * n_words + 0.9), down, across)

    def _draw(self, ax: Any) -> None:
        n_features, n_words = self.loadings.shape
        panels, places = take_panels(ax, n_features), np.arange(n_words)
        for panel, loadings, words, feature in zip(panels, self.loadings, self.words, self.features, strict=False):
            panel.barh(places, loadings, color=np.where(loadings < 0, RED, BLUE).tolist(), height=0.7)
            panel.set_yticks(places, words, fontsize="small")
            panel.invert_yaxis()
            panel.set_title(f"feature {feature}" if isinstance(feature, int) else str(feature), fontsize="medium")
            panel.tick_params(axis="x", labelsize="x-small")
            panel.locator_params(axis="x", nbins=4)
            panel.axvline(0.0, color="black", linewidth=0.8)
            panel.spines[["top", "right"]].set_visible(False)
        for panel in panels[n_features:]:
            panel.set_axis_off()


@dataclass(eq=False)
class TaskRelationsDisplay(Display):
    """Correlations between the task scores of a multi-task model.

    Tasks are sorted so that related ones are adjacent.

    Parameters
    ----------
    relations : array of shape (n_tasks, n_tasks)
        Correlations, between -1 and 1.
    tasks : sequence of n_tasks names
    name : str, default="correlation"
        Label of the color bar.

    Examples
    --------
    >>> from sklearn.datasets import make_multilabel_classification
    >>> from regbayes import MultiTaskILSVMClassifier
    >>> from regbayes.plots import TaskRelationsDisplay
    >>> X, Y = make_multilabel_classification(60, n_classes=3, random_state=0)
    >>> model = MultiTaskILSVMClassifier(8, tol=1e-2, random_state=0).fit(X, Y)
    >>> TaskRelationsDisplay.from_estimator(model, X, tasks=["news", "sport", "art"]).relations.shape
    (3, 3)
    """

    relations: Floats
    _: KW_ONLY
    tasks: Sequence[Any]
    name: str = "correlation"

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: ArrayLike,
        *,
        centered: bool | Literal["auto"] = "auto",
        tasks: Sequence[Any] | None = None,
        ax: Axes | None = None,
    ) -> TaskRelationsDisplay:
        """Predict the scores of samples for all tasks and draw their correlations.

        Parameters
        ----------
        estimator : fitted estimator
            Estimator with `transform`, ``coef_features_``, ``tasks_`` and one output per task.
        X : array-like of shape (n_samples, n_features)
            Typical samples; targets are not needed.
        centered : bool or "auto", default="auto"
            Whether to subtract the mean score over tasks. Scores of tasks that share weights are highly correlated
            otherwise, so "auto" subtracts it after ``fit(X, y, task=...)``.
        tasks : sequence, default=None
            Names of the tasks; ``tasks_`` by default.
        ax : matplotlib Axes, default: a new figure
        """
        check_is_fitted(estimator, ["coef_features_", "tasks_"])
        coef = to_host(estimator.coef_features_)
        if len(coef) != len(estimator.tasks_):
            raise ValueError(
                f"task relations need one output per task, but {len(estimator.tasks_)} task(s) have {len(coef)}: some "
                "have more than two classes"
            )
        if centered == "auto":
            centered = getattr(getattr(estimator, "best_estimator_", estimator), "_layout", None) == "ragged"
        found = correlations(to_host(estimator.transform(X)) @ coef.T, centered=bool(centered))
        name = "correlation beyond the average task" if centered else "correlation"
        return cls(found, tasks=estimator.tasks_.tolist() if tasks is None else list(tasks), name=name).plot(ax)

    def _new_axes(self) -> Any:
        side = float(np.clip(0.24 * len(self.tasks) + 2.0, 3.6, 11.0))
        return new_axes(side + 1.0, side)

    def _draw(self, ax: Axes) -> None:
        order = related_order(self.relations)
        names = [str(self.tasks[place]) for place in order]
        image = draw_map(ax, self.relations[np.ix_(order, order)], names, (-1.0, 1.0))
        ax.set_aspect("equal")
        write_names(ax.xaxis, names)
        ax.tick_params(axis="x", rotation=90)
        ax.figure.colorbar(image, ax=ax, shrink=0.8, label=self.name)


def correlations(scores: Floats, *, centered: bool = False) -> Floats:
    """Return the correlations between tasks, (tasks, tasks).

    Parameters
    ----------
    scores : (samples, tasks)
        Tasks with constant scores have correlation 0 with all others.
    centered : bool, default=False
        Whether to subtract the mean score over tasks.
    """
    if centered:
        scores = scores - scores.mean(axis=1, keepdims=True)
    scores = scores - scores.mean(axis=0)
    norms = np.linalg.norm(scores, axis=0)
    unit = scores / np.where(norms > 1e-12 * norms.max(initial=0.0), norms, np.inf)
    found = np.clip(unit.T @ unit, -1.0, 1.0)
    np.fill_diagonal(found, 1.0)
    return np.asarray(found)


def related_order(relations: Floats) -> Integers:
    """Return the leaf order of average-linkage clustering of the tasks."""
    n = len(relations)
    if n < 3:
        return np.arange(n, dtype=np.int64)
    distances = (1.0 - relations)[np.triu_indices(n, 1)]
    return np.asarray(leaves_list(linkage(distances, "average", optimal_ordering=True)), dtype=np.int64)
