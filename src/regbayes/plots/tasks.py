"""Which tasks are alike: the correlations of what a model says about rows for each of them.

The display follows scikit-learn: ``from_estimator`` computes plain arrays, keeps them as attributes and draws; ``plot``
draws again, on other axes or with other options. matplotlib is imported when something is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy.cluster.hierarchy import leaves_list, linkage
from sklearn.utils.validation import check_is_fitted

from regbayes._types import Floats, Integers
from regbayes.kernels.arrays import to_host

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure


MAX_NAMED = 60  # tasks whose names can still be read beside the map
MAX_WRITTEN = 12  # tasks whose correlations can be written into the map


def correlations(scores: Floats, *, centred: bool = False) -> Floats:
    """Return the correlations of tasks, (tasks, tasks).

    Parameters
    ----------
    scores : (rows, tasks)
        What is said about every row for every task. A task for which it does not vary is related to no other.
    centred : bool, default=False
        Whether to take off first what is said for the average task.
    """
    if centred:
        scores = scores - scores.mean(axis=1, keepdims=True)
    scores = scores - scores.mean(axis=0)
    norms = np.sqrt(np.sum(scores**2, axis=0))
    vary = norms > 1e-12 * norms.max(initial=0.0)
    unit = np.divide(scores, norms, out=np.zeros_like(scores), where=vary)
    found = np.clip(unit.T @ unit, -1.0, 1.0)
    np.fill_diagonal(found, 1.0)
    return np.asarray(found)


def relation_name(*, centred: bool) -> str:
    """Say what `correlations` are."""
    what = "what sets two tasks apart from the average task" if centred else "what the features say for two tasks"
    return f"correlation over the rows of {what}"


def related_order(relations: Floats) -> Integers:
    """Return an order of the tasks in which related ones are neighbours: the leaves of average linkage."""
    n = len(relations)
    if n < 3:
        return np.arange(n, dtype=np.int64)
    distances = (1.0 - relations)[np.triu_indices(n, 1)]
    return np.asarray(leaves_list(linkage(distances, "average", optimal_ordering=True)), dtype=np.int64)


class TaskRelationsDisplay:
    """How alike the tasks of a multi-task model are.

    Two tasks are alike if the features say the same about rows for both: the map shows the correlations of their
    scores. Tasks that are alike stand side by side.

    Parameters
    ----------
    relations : array of shape (n_tasks, n_tasks)
        Correlations, between -1 and 1.
    tasks : sequence of n_tasks names
    name : str, default="correlation"
        What a relation is, for the colour bar.

    Attributes
    ----------
    ax_ : matplotlib Axes
        Where the picture was drawn last.
    figure_ : matplotlib Figure
        The figure that holds it.
    """

    ax_: Axes
    figure_: Figure | SubFigure

    def __init__(self, relations: ArrayLike, *, tasks: Sequence[Any], name: str = "correlation") -> None:
        self.relations = np.asarray(relations, dtype=np.float64)
        self.tasks = tuple(tasks)
        self.name = name
        n = len(self.tasks)
        if self.relations.shape != (n, n):
            raise ValueError(f"relations has shape {self.relations.shape}, and there are {n} tasks")

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: ArrayLike,
        *,
        centred: bool | Literal["auto"] = "auto",
        tasks: Sequence[Any] | None = None,
        ax: Axes | None = None,
        **plot_kwargs: Any,
    ) -> TaskRelationsDisplay:
        """Let a fitted model speak about rows for every task, and draw how alike that is.

        Parameters
        ----------
        estimator : fitted estimator
            One that has `transform`, `coef_features_` and `tasks_`, with one output per task.
        X : array-like of shape (n_samples, n_features)
            Rows; any that are typical will do, without targets.
        centred : bool or "auto", default="auto"
            Whether to take off first what is said for the average task. Tasks that share weights all say much the
            same otherwise, so "auto" does it after ``fit(X, y, task=...)``.
        tasks : sequence, default=None
            Names of the tasks; `tasks_` by default.
        ax : matplotlib Axes, default=None
            Where to draw; a new figure by default.
        **plot_kwargs
            Options of `plot`.

        Returns
        -------
        TaskRelationsDisplay
        """
        check_is_fitted(estimator, ["coef_features_", "tasks_"])
        coef = to_host(estimator.coef_features_)
        if len(coef) != len(estimator.tasks_):
            raise ValueError(
                f"task relations need one output per task, but {len(estimator.tasks_)} task(s) have {len(coef)}: some "
                "have more than two classes"
            )
        if centred == "auto":
            model = getattr(estimator, "best_estimator_", estimator)
            centred = getattr(model, "_layout", None) == "ragged"
        scores = to_host(estimator.transform(X)) @ coef.T
        names = estimator.tasks_.tolist() if tasks is None else list(tasks)
        name = "correlation beyond the average task" if centred else "correlation"
        return cls(correlations(scores, centred=bool(centred)), tasks=names, name=name).plot(ax=ax, **plot_kwargs)

    def plot(self, ax: Axes | None = None, *, cmap: str = "RdBu", ordered: bool = True) -> TaskRelationsDisplay:
        """Draw the map.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Where to draw; a new figure by default.
        cmap : str, default="RdBu"
            Colours; any name that matplotlib knows.
        ordered : bool, default=True
            Whether related tasks stand side by side, rather than in their own order.

        Returns
        -------
        TaskRelationsDisplay
            The display itself, with `ax_` and `figure_` set.
        """
        n = len(self.tasks)
        if ax is None:
            import matplotlib.pyplot as plt

            side = float(np.clip(0.24 * n + 2.0, 3.6, 11.0))
            ax = plt.subplots(figsize=(side + 1.0, side), layout="constrained")[1]
        order = related_order(self.relations) if ordered else np.arange(n)
        shown = self.relations[np.ix_(order, order)]
        image = ax.imshow(shown, cmap=cmap, vmin=-1.0, vmax=1.0)
        names = [str(self.tasks[place]) for place in order]
        if n <= MAX_NAMED:
            ax.set_xticks(np.arange(n), names, rotation=90, fontsize="small")
            ax.set_yticks(np.arange(n), names, fontsize="small")
        else:
            ax.set(xticks=[], yticks=[], xlabel=f"{n} tasks", ylabel=f"{n} tasks")
        if n <= MAX_WRITTEN:
            for (row, column), value in np.ndenumerate(shown):
                shade = "white" if abs(value) > 0.6 else "black"
                ax.text(column, row, f"{value:.2f}", ha="center", va="center", color=shade, fontsize="x-small")
        ax.figure.colorbar(image, ax=ax, shrink=0.8, label=self.name)
        self.ax_, self.figure_ = ax, ax.figure
        return self
