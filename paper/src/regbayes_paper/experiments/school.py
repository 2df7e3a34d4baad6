"""School: exam scores of pupils, every school a task (Figure 7)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from regbayes_paper.experiments import data, systems, tuning
from regbayes_paper.experiments.comparison import FEATURES, Comparison, Paper, paired
from regbayes_paper.experiments.data import Dataset, Sample
from regbayes_paper.experiments.protocol import Metric
from regbayes_paper.experiments.store import Record

POOLED = Metric(
    "pooled",
    "EV pooled",
    "explained variance, 1 - SSE / sum of (y - mean of all test targets)², over all test rows",
    digits=2,
    percent=True,
)
WITHIN = Metric(
    "within",
    "EV within",
    "the same with the mean of each task's test targets: predicting every task's mean explains nothing",
    digits=2,
    percent=True,
)
TRAIN_SIZE = 0.75
REFERENCE = "ridge + task deviations"


class School(Comparison):
    """Figure 7 of the paper: STL, BMTL, MTGP, MTRL, MT-IBP+SVM and MT-iLSVM, the last two with inputs too."""

    name = "school"
    title = "School (Figure 7): explained variance of exam scores, every school a task"
    metrics: ClassVar[tuple[Metric, ...]] = (POOLED, WITHIN, FEATURES)
    drawn = ("pooled", "within")
    systems = systems.RAGGED
    task = tuning.RAGGED
    # The paper's "total variance of the data" reads as the pooled one; below which mean it is taken, it does not say.
    paper: ClassVar[Paper] = {
        "School": {
            "STL": {"pooled": "23.5"},
            "BMTL": {"pooled": "29.5"},
            "MTGP": {"pooled": "29.2"},
            "MTRL": {"pooled": "29.9"},
            "MT-iLSVM": {"pooled": "30.9"},
            "MT-iLSVM^f": {"pooled": "31.7"},
            "MT-IBP+SVM": {"pooled": "figure only"},
            "MT-IBP+SVM^f": {"pooled": "figure only"},
        }
    }
    default_seeds = 10

    @property
    def n_components(self) -> int:
        """The paper needs about 50 features."""
        return 10 if self.quick else 50

    @property
    def n_folds(self) -> int:
        """Of the cross-validation inside the training part."""
        return 2 if self.quick else 3

    def protocol(self) -> Sequence[str]:
        """What is done."""
        return (
            "Each seed is a random split, 75 % of the rows of every task for training and 25 % for testing, by "
            "numpy.random.default_rng(seed); the paper's own ten splits are no longer public. Truncation "
            f"{self.n_components}. Settings by {self.n_folds}-fold cross-validation (the paper: 5-fold) of the pooled "
            "explained variance inside the training part, with folds that divide every task.",
            'The paper: "the total variance of the data minus the sum-squared error on the test set as a percentage of '
            'the total variance". That reads as the pooled one, below which its numbers stand; whether its total '
            "variance is about one mean or about every task's it does not say, so both are printed. Rows of MT-IBP+SVM "
            "are drawn in the paper's figure and not printed.",
            "STL is one ridge regression per task; BMTL is linear, with one or two clusters of tasks. In MT-iLSVM "
            "tasks share weights as well as features (task_sharing, "
            'chosen by cross-validation); "nothing but features shared" is the paper\'s model.',
        )

    def datasets(self) -> Sequence[Dataset]:
        """School, or a set that stands for it."""
        found = data.ragged(self.quick)
        return [data.smaller(found, 1500)] if self.quick else [found]

    def parts(self, dataset: Dataset, seed: int) -> tuple[Sample, Sample]:
        """Three quarters of every task."""
        return data.split_within_tasks(dataset.sample, seed, TRAIN_SIZE)

    def split_is_fixed(self, dataset: Dataset) -> bool:
        """Every seed is a split."""
        return False

    def remarks(self, records: Sequence[Record]) -> Sequence[str]:
        """The paired differences that decide which of two systems is ahead on these splits."""
        names = [dataset.name for dataset in self.datasets()]
        ours = ("MT-iLSVM", "MT-iLSVM^f")
        return [line for name in names for one in ours for line in paired(records, one, REFERENCE, POOLED, name)]
