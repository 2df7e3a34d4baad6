"""How often the features of a model come back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from regbayes.estimators.stability import FeatureStability
from regbayes.plots.latent import COLOR, MAX_TICKS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure


class FeatureStabilityDisplay:
    """The share of fits in which each feature came back, as bars, and how alike it was in each, as dots.

    Make one with `from_result`; the parameters are what the picture shows.

    Parameters
    ----------
    returned : array of shape (n_features,)
        Share of the fits.
    likeness : array of shape (n_fits, n_features)
        Likeness in each of them.
    features : sequence
        Names or numbers of the features, in order.
    threshold : float
        Likeness from which on a feature has come back.

    Attributes
    ----------
    ax_ : matplotlib Axes
        Where the picture was drawn last.
    figure_ : matplotlib Figure
        The figure that holds it.
    """

    ax_: Axes
    figure_: Figure | SubFigure

    def __init__(self, returned: ArrayLike, likeness: ArrayLike, *, features: Sequence[Any], threshold: float) -> None:
        self.returned = np.asarray(returned, dtype=np.float64)
        self.likeness = np.asarray(likeness, dtype=np.float64)
        self.features = tuple(features)
        self.threshold = threshold
        if self.likeness.ndim != 2 or {self.likeness.shape[-1], len(self.returned)} != {len(self.features)}:
            raise ValueError(
                f"returned and likeness have shapes {self.returned.shape} and {self.likeness.shape}, and there are "
                f"{len(self.features)} features"
            )

    @classmethod
    def from_result(
        cls, stability: FeatureStability, *, ax: Axes | None = None, **plot_kwargs: Any
    ) -> FeatureStabilityDisplay:
        """Draw what `regbayes.feature_stability` found, the features that come back most often first.

        Parameters
        ----------
        stability : FeatureStability
        ax : matplotlib Axes, default=None
            Where to draw; a new figure by default.
        **plot_kwargs
            Options of `plot`.

        Returns
        -------
        FeatureStabilityDisplay
        """
        order = np.lexsort((-stability.median_likeness, -stability.returned))
        display = cls(
            stability.returned[order],
            stability.likeness[:, order],
            features=stability.numbers[order].tolist(),
            threshold=stability.threshold,
        )
        return display.plot(ax, **plot_kwargs)

    def plot(self, ax: Axes | None = None, *, color: str = COLOR) -> FeatureStabilityDisplay:
        """Draw the bars and the dots.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Where to draw; a new figure by default.
        color : str
            Of the bars; any colour that matplotlib knows.

        Returns
        -------
        FeatureStabilityDisplay
            The display itself, with `ax_` and `figure_` set.
        """
        if ax is None:
            import matplotlib.pyplot as plt

            width = float(np.clip(0.45 * len(self.features) + 1.0, 4.0, 16.0))
            ax = plt.subplots(figsize=(width, 3.0), layout="constrained")[1]
        places = np.arange(len(self.features))
        ax.bar(places, self.returned, color=color, alpha=0.4, width=0.7, label="share of fits that have it")
        dots = np.broadcast_to(places, self.likeness.shape)
        ax.plot(dots.ravel(), self.likeness.ravel(), "k.", markersize=4, alpha=0.6, label="likeness in each fit")
        ax.axhline(self.threshold, color="black", linewidth=0.8, linestyle=":")
        ax.set(xlabel="feature", xlim=(-0.5, len(places) - 0.5), ylim=(0.0, 1.02))
        step = max(1, -(-len(places) // MAX_TICKS))
        ax.set_xticks(places[::step], self.features[::step])
        for side in ("top", "right"):
            ax.spines[side].set_visible(False)
        ax.legend(frameon=False, fontsize="small", loc="lower left")
        self.ax_, self.figure_ = ax, ax.figure
        return self
