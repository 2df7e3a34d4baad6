"""What the latent features are: average values, overall and by class, and top-ranked examples (Figures 4 to 6)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from regbayes._types import Floats
from regbayes.estimators._bases import in_use, one_blas_thread
from regbayes.plots import FeatureUseDisplay
from regbayes_paper.experiments import systems, tuning
from regbayes_paper.experiments.comparison import FEATURES
from regbayes_paper.experiments.data import Dataset, Sample
from regbayes_paper.experiments.figures import new_figure, save
from regbayes_paper.experiments.measure import measured
from regbayes_paper.experiments.protocol import Block, Line, Measurement, Metric
from regbayes_paper.experiments.registry import PAPER, Context, System, named, peers
from regbayes_paper.experiments.store import Cell, Record
from regbayes_paper.experiments.table1 import ACCURACY, Table1

DEVIATION = Metric(
    "deviation",
    "deviation",
    "standard deviation of a feature's average values over the classes, averaged over the features in use: the larger, "
    "the better features tell classes apart",
)
UNDECIDED = Metric(
    "undecided", "undecided", "share of the values of features in use between 0.1 and 0.9: neither on nor off"
)

N_TOP = 5  # examples of a feature, as in Figure 6
N_SHOWN = 6  # features, as there
ILSVM, READABLE, UNSUPERVISED = "iLSVM", "iLSVM, temperature 0.02", "IBP+SVM"


def _latent() -> tuple[System, ...]:
    joint, pipeline = named(systems.MULTIWAY, ILSVM), named(systems.MULTIWAY, UNSUPERVISED)
    return (
        replace(joint, grid=({},), quick_grid=({},)),
        replace(joint, name=READABLE, grid=({"temperature": 0.02},), quick_grid=({"temperature": 0.02},)),
        replace(pipeline, grid=({"C": 0.1},), quick_grid=({"C": 0.1},)),
    )


class Features(Table1):
    """Figures 4 to 6 of the paper."""

    name = "features"
    title = "Figures 4 to 6: what the latent features are"
    metrics: ClassVar[tuple[Metric, ...]] = (ACCURACY, FEATURES, DEVIATION, UNDECIDED)
    default_seeds = 3
    systems = (*_latent(), *peers(systems.MULTIWAY))

    def protocol(self) -> Sequence[str]:
        """What is done."""
        return (
            f"Truncation {self.n_components}; latent models at their default settings, peers tuned as in `table1`, on "
            "the splits of `table1`. A feature is in use if its values differ between test rows by more than .1. "
            "Averages are over test rows, whose features are inferred without labels. Top-ranked "
            f"examples are the {N_TOP} test rows with the largest values of a feature.",
            "The paper: about 45 features are active on TRECVID2003 (Figure 4); the probability that a feature is "
            "active falls with its number (Figure 5, Flickr); features shown by their 5 top-ranked images are mostly "
            "about one class or a side of it (Figure 6).",
        )

    def blocks(self) -> Sequence[Block]:
        """The paper's count of features beside ours."""
        found = []
        for dataset in self.datasets():
            counted = "about 45" if (dataset.stands_for or dataset.name) == "TRECVID2003" else "figure only"
            lines = tuple(
                Line(s.name, paper={"features": counted} if s.name == ILSVM else {}, missing=s.missing, group=s.group)
                for s in self.systems
            )
            found.append(Block(dataset.name, dataset.description, self._notes(dataset), lines))
        return found

    def evaluate(self, cell: Cell) -> Measurement:
        """Fit, score, and look at the features of the test rows."""
        system = named(self.systems, cell.row)
        if system.group != PAPER:
            return super().evaluate(cell)
        train, test = self.parts(self._dataset(cell), cell.seed)
        model = system.estimator(
            Context(cell.seed, self.n_components, train.X.shape[1]), system.settings(self.quick)[0]
        )
        with one_blas_thread(), measured(memory=True) as usage:
            tuning.fit(model, train)
        latent = model[0] if hasattr(model, "steps") else model
        psi = np.asarray(latent.transform(test.X))
        values = tuning.MULTIWAY.report(test, tuning.predict(model, test))
        detail = describe(psi, test.y)
        chosen = np.array(detail["features"], dtype=int)
        values |= {
            "features": float(len(chosen)),
            "deviation": float(np.mean(np.std(detail["by_class"], axis=0))) if len(chosen) else 0.0,
            "undecided": float(np.mean((psi[:, chosen] > 0.1) & (psi[:, chosen] < 0.9))) if len(chosen) else 0.0,
        }
        return Measurement(values, usage.seconds, memory_mb=usage.memory_mb, detail=detail)

    def facts(self, cell: Cell) -> Mapping[str, Any]:
        """As in the table, and how features are described."""
        return dict(super().facts(cell)) | {"n_top": N_TOP}

    def remarks(self, records: Sequence[Record]) -> Sequence[str]:
        """The top-ranked examples of the features that tell classes apart best."""
        lines = []
        for dataset in self.datasets():
            record = self._shown(records, dataset)
            if record is not None:
                lines.append(_list_features(dataset.name, record, self._parts_of(record)[1]))
        return lines

    def _shown(self, records: Sequence[Record], dataset: Dataset) -> Record | None:
        """Return the record that is drawn: iLSVM's with the first seed."""
        ours = [r for r in records if r.cell.row == ILSVM and r.cell.dataset == dataset.name and r.detail["features"]]
        return min(ours, key=lambda r: r.cell.seed, default=None)

    def _parts_of(self, record: Record) -> tuple[Sample, Sample]:
        return self.parts(self._dataset(record.cell), record.cell.seed)

    def draw(self, records: Sequence[Record], folder: Path) -> list[Path]:
        """Draw use of the features (Figures 4 and 5) and their top-ranked examples (Figure 6), for each data set."""
        files = []
        for dataset in self.datasets():
            record = self._shown(records, dataset)
            if record is not None:
                files.append(_draw_use(record, folder / f"{self.stem}-{dataset.name}.png"))
                test = self._parts_of(record)[1]
                files.append(_draw_top(record, test, dataset, folder / f"{self.stem}-{dataset.name}-top.png"))
        return files


def describe(psi: Floats, labels: NDArray[Any]) -> dict[str, Any]:
    """Return averages and top-ranked rows of the features in use, the most frequent first, as plain lists.

    Parameters
    ----------
    psi : array of shape (n_samples, n_components)
        Values of the features.
    labels : array of shape (n_samples,)
        Classes of the rows.
    """
    order = np.argsort(-psi.mean(axis=0), kind="stable")
    chosen = order[in_use(psi)[order]]
    classes = np.unique(labels)
    return {
        "features": chosen.tolist(),
        "overall": psi[:, chosen].mean(axis=0).tolist(),
        "classes": classes.tolist(),
        "by_class": [psi[labels == c][:, chosen].mean(axis=0).tolist() for c in classes],
        "top": np.argsort(-psi[:, chosen], axis=0, kind="stable")[:N_TOP].T.tolist(),
    }


def _most_discriminative(detail: Mapping[str, Any]) -> list[int]:
    """Return the places of the features that differ most between classes."""
    deviation = np.std(detail["by_class"], axis=0)
    return np.argsort(-deviation, kind="stable")[:N_SHOWN].tolist()


def _list_features(name: str, record: Record, test: Sample) -> str:
    detail = record.detail
    deviation = np.std(detail["by_class"], axis=0)
    lines = [f"{name}: the {N_SHOWN} features of iLSVM that differ most between classes (seed {record.cell.seed})"]
    for place in _most_discriminative(detail):
        classes = ", ".join(str(label) for label in test.y[detail["top"][place]])
        lines.append(
            f"  feature {detail['features'][place]:3d}: average {detail['overall'][place]:.2f}, deviation over classes "
            f"{deviation[place]:.2f}; classes of the {N_TOP} top-ranked rows: {classes}"
        )
    return "\n".join(lines)


def _draw_use(record: Record, path: Path) -> Path:
    detail = record.detail
    n, m = len(detail["features"]), len(detail["classes"])
    figure = new_figure(max(5.0, 0.4 * n + 1.5), 3.0 + 0.28 * m)
    axes = figure.subplots(2, 1, sharex=True, height_ratios=[1.4, max(0.2 * m, 0.6)])
    display = FeatureUseDisplay(
        np.asarray(detail["overall"]),
        np.asarray(detail["by_class"]),
        classes=detail["classes"],
        features=detail["features"],
    )
    display.plot(axes)
    figure.suptitle(
        f"{record.cell.dataset}: average values of {n} features; bars ± deviation over classes", fontsize="medium"
    )
    return save(figure, path)


def _draw_top(record: Record, test: Sample, dataset: Dataset, path: Path) -> Path:
    """Draw the top-ranked rows: as pictures where rows are pictures, else as profiles of their inputs."""
    places = _most_discriminative(record.detail)
    figure = new_figure(7.5, 1.15 * len(places) + 0.6)
    axes = figure.subplots(len(places), N_TOP, squeeze=False)
    shown = test.X[np.concatenate([record.detail["top"][place] for place in places])]
    limits = (float(shown.min()), float(shown.max()))
    for row, place in zip(axes, places, strict=True):
        for ax, index in zip(row, record.detail["top"][place], strict=False):
            if dataset.image_shape is not None:
                ax.imshow(test.X[index].reshape(dataset.image_shape), cmap="gray_r")
            else:
                ax.plot(test.X[index], color="#1f5fa8", linewidth=0.7)
                ax.set_ylim(*limits)
            ax.set_title(f"class {test.y[index]}", fontsize="x-small", pad=2)
        for ax in row:
            ax.set(xticks=[], yticks=[])
        row[0].set_ylabel(f"feature {record.detail['features'][place]}", fontsize="small")
    what = "pictures" if dataset.image_shape is not None else "inputs"
    figure.suptitle(f"{dataset.name}: {what} of the top-ranked rows of each feature", fontsize="medium")
    return save(figure, path)
