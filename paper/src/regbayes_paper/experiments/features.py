"""Averages of latent features, overall and by class, and top-ranked examples (Figures 4 to 6)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from threadpoolctl import threadpool_limits

from regbayes_paper._types import Floats
from regbayes_paper.experiments import samples, systems, tuning
from regbayes_paper.experiments.figures import new_figure
from regbayes_paper.experiments.protocol import PEERS, Cell, Context, Metric, Record, named
from regbayes_paper.experiments.table1 import ACCURACY, FEATURES, Table1

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DEVIATION = Metric("deviation", "deviation", "deviation of a feature's averages over classes, averaged over features")
UNDECIDED = Metric("undecided", "undecided", "share of the values of features in use between 0.1 and 0.9")
N_TOP, N_SHOWN = 5, 6  # examples per feature, and number of features, as in Figure 6
JOINT, APART = named(systems.MULTIWAY, "iLSVM", "IBP+SVM")
COLD = ({"temperature": 0.02},)


class Features(Table1):
    """Figures 4 to 6 of the paper."""

    name, title = "features", "Figures 4 to 6: what the latent features are"
    metrics: ClassVar[tuple[Metric, ...]] = (ACCURACY, FEATURES, DEVIATION, UNDECIDED)
    systems = (
        replace(JOINT, grid=({},), quick_grid=({},)),
        replace(JOINT, name="iLSVM, temperature 0.02", grid=COLD, quick_grid=COLD),
        replace(APART, grid=({"C": 0.1},), quick_grid=({"C": 0.1},)),
        *named(systems.MULTIWAY, "LinearSVC"),
    )
    paper: ClassVar[Mapping[str, Any]] = {"TRECVID2003": {"iLSVM": {"features": "45"}}}  # section 5.1, "about 45"
    most_datasets = 2
    text: ClassVar[tuple[str, ...]] = (
        "Truncation {n_components}; latent models at their default settings, on the splits of `table1`. A feature is "
        "in use if its values differ between test samples by more than 0.1. Averages are over test samples, whose "
        "features are inferred without labels; features are in the order of their averages.",
        "The paper: about 45 features are active on TRECVID2003 (Figure 4), the probability of a feature falls with "
        "its number (Figure 5), and top-ranked images of a feature are mostly of one class (Figure 6).",
    )

    def evaluate(self, cell: Cell) -> Record:
        """Fit a latent feature model with one setting and describe its features."""
        system = named(self.systems, cell.row)[0]
        if system.group == PEERS:
            return super().evaluate(cell)
        train, test = self.dataset(cell.dataset).split(cell.seed)
        context = Context(cell.seed, self.n_components, train.X.shape[1])
        started = time.process_time()
        with threadpool_limits(1):
            model = tuning.fit(system.make(context, **system.settings(self.quick)[0]), train)
            seconds = time.process_time() - started
            psi = np.asarray((model[0] if hasattr(model, "steps") else model).transform(test.X))
            values = tuning.MULTIWAY.report(test, tuning.predict(model, test))
        detail = describe(psi, test.y)
        used = psi[:, detail["features"]]
        values |= {"features": float(used.shape[1]), "deviation": float(np.std(detail["by_class"], axis=0).mean())}
        values["undecided"] = float(np.mean((used > 0.1) & (used < 0.9)))
        return Record(cell, values, seconds, detail=detail)

    def drawings(self, records: Sequence[Record]) -> dict[str, Callable[[], Figure]]:
        """Draw averages of iLSVM's features (Figures 4 and 5) and, for digits, top-ranked examples (Figure 6)."""
        found: dict[str, Callable[[], Figure]] = {}
        for record in records:
            if (record.cell.row, record.cell.seed) == ("iLSVM", 0):
                words = [word.strip("()") for word in record.cell.dataset.split()]
                stem = f"{self.stem}-{'-'.join(words)}"
                found[stem] = partial(_draw_use, record)
                if record.cell.dataset == "digits":
                    found[f"{stem}-top"] = partial(_draw_top, record, samples.digits(self.quick))
        return found


def describe(psi: Floats, labels: Any) -> dict[str, Any]:
    """Return averages and top-ranked samples of the features in use, by decreasing frequency, as lists."""
    order = np.argsort(-psi.mean(axis=0), kind="stable")
    chosen = order[np.ptp(psi, axis=0)[order] > 0.1]
    classes = np.unique(labels)
    return {
        "features": chosen.tolist(),
        "overall": psi[:, chosen].mean(axis=0).tolist(),
        "classes": classes.tolist(),
        "by_class": [psi[labels == one][:, chosen].mean(axis=0).tolist() for one in classes],
        "top": np.argsort(-psi[:, chosen], axis=0, kind="stable")[:N_TOP].T.tolist(),
    }


def _draw_use(record: Record) -> Figure:
    from regbayes.plots import FeatureUseDisplay

    detail = record.detail
    figure = new_figure(max(5.0, 0.4 * len(detail["features"]) + 1.5), 3.0 + 0.28 * len(detail["classes"]))
    axes = figure.subplots(2, 1, sharex=True, height_ratios=[1.4, max(0.2 * len(detail["classes"]), 0.6)])
    overall, by_class = np.asarray(detail["overall"]), np.asarray(detail["by_class"])
    FeatureUseDisplay(overall, by_class, classes=detail["classes"], features=detail["features"]).plot(axes)
    figure.suptitle(f"{record.cell.dataset}: averages of features; bars ± deviation over classes", fontsize="medium")
    return figure


def _draw_top(record: Record, dataset: samples.Dataset) -> Figure:
    """Draw the top-ranked images of the features that differ most between classes."""
    test = dataset.split(record.cell.seed)[1]
    places = np.argsort(-np.std(record.detail["by_class"], axis=0), kind="stable")[:N_SHOWN].tolist()
    figure = new_figure(7.5, 1.15 * len(places) + 0.6)
    axes = figure.subplots(len(places), N_TOP, squeeze=False)
    for row, place in zip(axes, places, strict=True):
        for ax, index in zip(row, record.detail["top"][place], strict=False):
            ax.imshow(test.X[index].reshape(8, 8), cmap="gray_r")
            ax.set_title(f"class {test.y[index]}", fontsize="x-small", pad=2)
            ax.set(xticks=[], yticks=[])
        row[0].set_ylabel(f"feature {record.detail['features'][place]}", fontsize="small")
    figure.suptitle(f"{dataset.name}: the top-ranked samples of each feature", fontsize="medium")
    return figure
