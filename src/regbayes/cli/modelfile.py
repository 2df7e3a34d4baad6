"""The file of a fitted model: the pipeline from tables to predictions, and what the page about it shows."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sklearn.pipeline import Pipeline

from regbayes._registry import Saveable, persistable
from regbayes._types import Floats, Integers
from regbayes.cli import resume_collection
from regbayes.cli.errors import BadDataError, BadModelError, UserError, counted
from regbayes.cli.inputs import TableInputs
from regbayes.cli.probabilities import Certainty, answer_at, read_thresholds
from regbayes.cli.tables import Table, read_table
from regbayes.cli.targets import TargetSpec, shown_label, task_values
from regbayes.cli.words import WordCounts
from regbayes.persistence import PersistenceError, load

if TYPE_CHECKING:
    from regbayes.cli.options import ModelRequest
    from regbayes.cli.output import Output

__all__ = ["ModelFile", "classes_by_target", "load_model", "open_model"]


@persistable(name="regbayes.cli.ModelFile")
@dataclass(frozen=True, eq=False)
class ModelFile(Saveable):
    """What ``regbayes fit`` writes, and the other commands read."""

    pipeline: Pipeline  # "inputs", a TableInputs or WordCounts, and "model", an estimator: it takes data frames
    target: TargetSpec
    report: Any  # regbayes.report.ReportData, or None
    facts: dict[str, Any]  # rows, seconds, what cross-validation found, whether it was interrupted
    certainty: Certainty | None = None  # how scores become probabilities; None without cross-validation

    def __repr__(self) -> str:
        """Return what the model is in a few lines; all of its arrays would take thousands."""
        facts, target = self.facts, self.target
        noun = "documents" if self.of_documents else "rows"
        lines = [
            f"{type(self.estimator).__name__} of a file that 'regbayes fit' wrote",
            f"  target    {', '.join(target.names[:3])}{' and more' if len(target.names) > 3 else ''} ({target.kind})",
            *([] if target.task is None else [f"  task      {target.task}"]),
            f"  fitted to {facts['rows']} {noun} of {facts['source']}, {counted(facts['inputs'], 'input')}",
            f"  features  {len(self.in_use)} in use",
        ]
        if (cv := facts["cross_validation"]) is not None:
            score = f"{facts['metric']} {cv.get('pooled', cv['mean']):.3f} ± {cv['std']:.3f}"
            lines.append(f"  score     {score} over {counted(cv['folds'], 'fold')}")
        if facts.get("no_better_than_baseline"):
            lines.append("  warning   no better than a baseline")
        if facts["interrupted"]:
            lines.append(f"  stopped   {facts.get('kept') or 'by Ctrl-C'}")
        return "\n".join([*lines, "  see       .pipeline, .estimator, .inputs, .target, .facts, .report"])

    @property
    def inputs(self) -> TableInputs | WordCounts:
        """How rows become inputs."""
        return self.pipeline["inputs"]

    @property
    def estimator(self) -> Any:
        """The fitted estimator."""
        return self.pipeline["model"]

    @property
    def of_documents(self) -> bool:
        """Whether rows are documents."""
        return isinstance(self.inputs, WordCounts)

    def read(self, path: str, text: list[str], **options: Any) -> tuple[ModelFile, Table]:
        """Read a file as this model needs it.

        Parameters
        ----------
        path : str
        text : list of str
            Columns with text that have another name in training.
        **options
            Of `regbayes.cli.tables.read_table`.

        Returns
        -------
        model, table
            The model, which now takes the text from these columns, and the table.
        """
        words = self.inputs
        if not isinstance(words, WordCounts):
            if text:
                raise UserError(f"--text {text[0]}: this model was not fitted to documents")
            return self, read_table(path, **options)
        from regbayes.cli.documents import read_documents

        table = read_documents(path, **options)
        columns = text or words.columns
        if not text and not any(name in table for name in columns):
            columns = table.text or columns
        renamed = WordCounts(words.words, columns, words.numbered)
        return replace(self, pipeline=Pipeline([("inputs", renamed), ("model", self.estimator)])), table

    def encode(self, table: Table) -> Any:
        """Return the estimator's inputs; warnings say which values could not be used as they are."""
        return self.inputs.encode(table)

    def predict(self, table: Table) -> NDArray[Any]:
        """Return the predictions for a table: (n,) for one target, (n, targets) for several."""
        return self._ask(self.estimator.predict, table)

    def scores(self, table: Table) -> dict[str, Floats]:
        """Return the scores behind predicted classes, by the name of their column."""
        if self.target.kind == "regressor":
            raise BadModelError("this model predicts numbers; only classes have scores")
        return _name_scores(self._ask(self.estimator.decision_function, table), self.estimator, self.target.names)

    def probabilities(self, table: Table) -> list[Floats]:
        """Return the probabilities of the classes of each target, (n, classes)."""
        if self.target.kind == "regressor":
            raise BadModelError("this model predicts numbers; only classes have probabilities")
        if self.certainty is None:
            raise BadModelError(
                "this model has no probabilities: they come from cross-validation, of which every class needs two rows "
                "or more. Fit it again, without --no-cv"
            )
        return self.certainty.calibration.by_output(self._ask(self.estimator.decision_function, table))

    def answer(self, shares: list[Floats], given: Sequence[str]) -> NDArray[Any]:
        """Return predictions at thresholds that the user gave, as `read_thresholds` takes them."""
        assert self.certainty is not None  # whoever has probabilities has it
        names, classes = self.target.names, classes_by_target(self.estimator, len(self.target.names))
        thresholds = read_thresholds(given, names, classes, self.certainty.best)
        columns = [
            np.asarray(known)[answer_at(found, at)]
            for known, found, at in zip(classes, shares, thresholds, strict=True)
        ]
        if len(columns) == 1:
            return columns[0]
        return np.stack([column.astype(object) for column in columns], axis=1)

    def features(self, table: Table) -> dict[str, Floats]:
        """Return the latent features of rows that are in use, by the name of their column."""
        found = self._ask(self.estimator.transform, table, with_tasks=False)
        noun = "topic" if self.of_documents else "feature"
        return {f"{noun}{k}": found[:, k] for k in self.in_use.tolist()}

    @property
    def in_use(self) -> Integers:
        """The features that are in use, by their numbers."""
        from regbayes.estimators._bases import features_in_use

        return features_in_use(self.estimator)

    def _ask(self, method: Any, table: Table, *, with_tasks: bool = True) -> Any:
        """Call a method of the estimator with the inputs of a table, and the tasks of rows where there are tasks."""
        task = task_values(table, self.target)
        tasks = {"task": task} if with_tasks and task is not None else {}
        try:
            return method(self.encode(table), **tasks)
        except BadDataError:
            raise
        except ValueError as error:
            raise BadDataError(str(error)) from None

    def doubts(self, table: Table) -> list[str]:
        """Return what looks odd in a table beside the training table: its tasks, and where its columns begin."""
        found = []
        known = self.facts["first_column"]
        if known is not None and table.first is not None and known != table.first:
            found.append(
                f"{table.source} has a column 0, but columns were counted from 1 in training: are they the same?"
                if known == 1
                else f"no row of {table.source} has a column 0, and in training some did: if this file counts columns "
                "from 1, they are not the model's"
            )
        task = task_values(table, self.target)
        new = 0 if task is None else int(np.sum(~np.isin(task, self.estimator.tasks_)))
        if new:
            rows = counted(new, "row")
            found.append(f"tasks that were not there in training, in {rows}, get what all tasks have in common")
        return found


def open_model(request: ModelRequest, output: Output) -> tuple[ModelFile, Table]:
    """Load a model and the data for it, and say what looks odd in them."""
    model, table = load_model(request.model).read(request.data, request.text, **request.reading())
    for doubt in model.doubts(table):
        output.warn(doubt)
    return model, table


def load_model(path: str) -> ModelFile:
    """Load a model file; refuse what is damaged, altered, newer or something else."""
    if not os.path.exists(path):
        raise BadModelError(f"there is no model file {path!r}")
    try:
        found = load(path)
    except PersistenceError as error:
        raise BadModelError(str(error)) from None
    if not isinstance(found, ModelFile):
        raise BadModelError(
            f"{path!r} holds an object of class {type(found).__name__}, not a model that 'regbayes fit' wrote; "
            "read it in Python with regbayes.load"
        )
    resume_collection()
    return found


def _name_scores(found: Any, estimator: Any, names: tuple[str, ...]) -> dict[str, Floats]:
    """Name the scores of classes: one column for two classes, one per class for more."""
    several = len(names) > 1
    blocks = found if isinstance(found, list) else list(found.T) if several else [found]
    classes = classes_by_target(estimator, len(names))
    named: dict[str, Floats] = {}
    for name, block, labels in zip(names, blocks, classes, strict=True):
        if block.ndim == 1:  # a positive score speaks for the second class
            named[f"{name}={shown_label(labels[-1])} score"] = block
        else:
            named |= {f"{name}={shown_label(label)} score": block[:, k] for k, label in enumerate(labels)}
    return named


def name_probabilities(shares: list[Floats], estimator: Any, names: tuple[str, ...]) -> dict[str, Floats]:
    """Name the probabilities of classes; of several labels with two classes, that of the second alone."""
    named: dict[str, Floats] = {}
    for name, found, labels in zip(names, shares, classes_by_target(estimator, len(names)), strict=True):
        first = 1 if len(names) > 1 and len(labels) == 2 else 0
        for k in range(first, len(labels)):
            named[f"{name}={shown_label(labels[k])} probability"] = found[:, k]
    return named


def classes_by_target(estimator: Any, n_targets: int) -> list[Any]:
    """Return the classes of each target; those of documents' labels are no and yes."""
    if n_targets > 1 and not hasattr(estimator, "tasks_"):
        return [(0, 1)] * n_targets
    classes = estimator.classes_
    return classes if isinstance(classes, list) else [classes] * n_targets
