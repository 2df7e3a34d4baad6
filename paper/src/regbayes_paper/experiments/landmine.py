"""Landmine: one label per row, every field a task."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from regbayes import MultiTaskILSVMClassifier
from regbayes_paper.experiments import data
from regbayes_paper.experiments.comparison import FEATURES, Comparison, Paper, paired
from regbayes_paper.experiments.data import Dataset, Sample
from regbayes_paper.experiments.peers import How, TaskAdapter
from regbayes_paper.experiments.protocol import Metric
from regbayes_paper.experiments.registry import PEERS, Context, System, grid
from regbayes_paper.experiments.store import Record
from regbayes_paper.experiments.tuning import Outputs, Task

AUC = Metric("auc", "AUC", "area under the ROC curve, averaged over the tasks whose test rows have both classes")
DEVIATIONS = "logistic regression + task deviations"


def task_scores(estimator: Any, sample: Sample) -> Outputs:
    """Return a score for each row, larger for yes."""
    return np.asarray(estimator.decision_function(sample.X, sample.task))


def mean_auc(sample: Sample, scores: Outputs) -> float:
    """Average the area under the ROC curve over tasks with both classes."""
    assert sample.task is not None
    rows = [sample.task == task for task in np.unique(sample.task)]
    both = [own for own in rows if len(np.unique(sample.y[own])) == 2]
    return float(np.mean([roc_auc_score(sample.y[own], scores[own]) for own in both]))


def _mt_fields(context: Context, **settings: Any) -> Any:
    return MultiTaskILSVMClassifier(context.n_components, random_state=context.seed, **settings)


def _logistic(how: How) -> Callable[..., Any]:
    return lambda _, C, **settings: TaskAdapter(LogisticRegression(C=C, max_iter=2000), how, **settings)


CS = (0.01, 0.1, 1.0, 10.0, 100.0)
MT_GRID = grid(C=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0), temperature=(0.01, 0.03, 0.1), include_inputs=(False, True))
ROWS = (
    System("MT-iLSVM", _mt_fields, MT_GRID, grid(C=(0.003, 0.03))),
    System("one logistic regression for all", _logistic("ignore"), grid(C=CS), grid(C=(1.0,)), PEERS, random=False),
    System("one logistic regression per task", _logistic("separate"), grid(C=CS), grid(C=(1.0,)), PEERS, random=False),
    System(
        DEVIATIONS,
        _logistic("deviations"),
        grid(deviation=(0.1, 0.3, 1.0), C=CS[:-1]),
        grid(deviation=(0.3,), C=(1.0,)),
        PEERS,
        random=False,
    ),
)


class Landmine(Comparison):
    """Mines and clutter in 29 fields. The paper has no such table."""

    name = "landmine"
    title = "Landmine: which signals are mines, every field a task"
    metrics: ClassVar[tuple[Metric, ...]] = (AUC, FEATURES)
    drawn = ("auc",)
    systems = ROWS
    task = Task(task_scores, mean_auc, lambda sample, scores: {"auc": mean_auc(sample, scores)})
    paper: ClassVar[Paper] = {}

    @property
    def n_components(self) -> int:
        """More than the nine inputs."""
        return 8 if self.quick else 20

    @property
    def n_folds(self) -> int:
        """Of the cross-validation inside the training part."""
        return 2 if self.quick else 3

    def protocol(self) -> Sequence[str]:
        """What is done."""
        return (
            "Each seed is a random split in halves, within every task and class. Truncation "
            f"{self.n_components}. Settings by {self.n_folds}-fold cross-validation of the AUC inside the training "
            "part, with folds that divide every task; MT-iLSVM may have the inputs beside its features.",
            "With task deviations: logistic regression on the inputs and once more on those of the row's task, which "
            "are shrunk. The paper has no such table.",
        )

    def datasets(self) -> Sequence[Dataset]:
        """Landmine, or a set that stands for it."""
        found = data.fields(self.quick)
        return [data.smaller(found, 1500)] if self.quick else [found]

    def _notes(self, dataset: Dataset) -> tuple[str, ...]:
        return ()  # no numbers of the paper's to compare with

    def parts(self, dataset: Dataset, seed: int) -> tuple[Sample, Sample]:
        """Halves of every task and class."""
        return data.split_within_tasks(dataset.sample, seed, 0.5, by_class=True)

    def split_is_fixed(self, dataset: Dataset) -> bool:
        """Every seed is a split."""
        return False

    def remarks(self, records: Sequence[Record]) -> Sequence[str]:
        """The paired difference to the strongest way of sharing in a linear model."""
        return [line for d in self.datasets() for line in paired(records, "MT-iLSVM", DEVIATIONS, AUC, d.name)]
