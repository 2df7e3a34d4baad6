"""Common code of the displays: base class, new axes and annotated heat maps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from regbayes._types import Floats

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure, SubFigure

BLUE, RED, GRAY = "#0072b2", "#d55e00", "#9a9a9a"
MAX_TICKS = 40  # maximum number of tick labels on an axis
MAX_WRITTEN_CELLS = 200  # maximum number of annotated cells in a heat map


class Display:
    """Base class of the displays.

    As in scikit-learn, ``from_estimator`` or ``from_result`` computes plain arrays, stores them as attributes and draws
    them. `plot` draws them again on other axes. matplotlib is imported on the first plot.

    Attributes
    ----------
    ax_ : matplotlib Axes or array of them
        Axes of the last drawing.
    figure_ : matplotlib Figure
        Figure of the last drawing.
    """

    ax_: Any
    figure_: Figure | SubFigure

    def plot(self, ax: Any = None) -> Self:
        """Draw the arrays.

        Parameters
        ----------
        ax : matplotlib Axes, or an array of them for a display with several panels, default=None
            Where to draw; a new figure by default.
        """
        ax = self._new_axes() if ax is None else ax
        self._draw(ax)
        self.ax_, self.figure_ = ax, np.ravel(np.asarray(ax, dtype=object))[0].figure
        return self

    def _draw(self, ax: Any) -> None: ...

    def _new_axes(self) -> Any:
        return new_axes(6.4, 4.8)


def new_axes(width: float, height: float, n_rows: int = 1, n_columns: int = 1, **options: Any) -> Any:
    """Return the axes of a new figure with the given size in inches."""
    import matplotlib.pyplot as plt

    return plt.figure(figsize=(width, height), layout="constrained").subplots(n_rows, n_columns, **options)


def take_panels(ax: Any, n: int) -> list[Axes]:
    """Return the flattened axes; raise an error if there are fewer than n."""
    panels = np.ravel(np.asarray(ax, dtype=object)).tolist()
    if len(panels) < n:
        raise ValueError(f"ax has {len(panels)} Axes, and {n} are needed")
    return panels


def write_names(axis: Axis, names: Sequence[Any]) -> None:
    """Label an axis with names, skipping some if there are many."""
    step = max(1, -(-len(names) // MAX_TICKS))
    axis.set_ticks(np.arange(0, len(names), step), [str(name) for name in names[::step]])


def draw_map(ax: Axes, values: Floats, names: Sequence[Any], limits: tuple[float, float], digits: int = 2) -> Any:
    """Draw a heat map with names of rows, and with numbers if there are few cells."""
    low, high = limits
    image = ax.imshow(values, cmap="RdBu" if low < 0 else "Blues", vmin=low, vmax=high, aspect="auto")
    write_names(ax.yaxis, names)
    if values.size <= MAX_WRITTEN_CELLS:
        for (row, column), value in np.ndenumerate(values):
            shade = "white" if abs(value) > 0.6 * high else "black"
            ax.text(column, row, f"{value:.{digits}f}", ha="center", va="center", color=shade, fontsize="x-small")
    return image
