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
from regbayes.cli.errors import BadDataError, BadModelError, UserError, counted
from regbayes.cli.inputs import TableInputs
from regbayes.cli.probabilities import Certainty, predict_at, read_thresholds
from regbayes.cli.tables import Table
from regbayes.cli.targets import TargetSpec, shown_label, task_values
from regbayes.cli.words import WordCounts
from regbayes.persistence import PersistenceError, load

if TYPE_CHECKING:
    import pandas as pd

    from regbayes.cli.options import ModelRequest
    from regbayes.cli.output import Output

__all__ = ["ModelFile", "load_model", "open_model"]


@persistable(name="regbayes.cli.ModelFile")
@dataclass(frozen=True, eq=False)
class ModelFile(Saveable):
    """What ``regbayes fit`` writes, and the other commands read.

    The methods take a `Table` or a data frame.
    """

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
            f"  target    {', '.join(target.names)} ({target.kind})",
            f"  fitted to {facts['rows']} {noun} of {facts['source']}, {counted(facts['inputs'], 'input')}",
            f"  features  {len(self.in_use)} in use",
        ]
        if (cv := facts["cross_validation"]) is not None:
            score = f"{facts['metric']} {cv['pooled']:.3f} ± {cv['std']:.3f}"
            lines.append(f"  score     {score} over {counted(cv['folds'], 'fold')}")
        if facts["no_better_than_baseline"]:
            lines.append("  warning   no better than a baseline")
        if facts["interrupted"]:
            lines.append(f"  stopped   {facts['kept']}")
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

    @property
    def classes(self) -> list[Any]:
        """The classes of each target; those of labels of documents are 0 and 1. None of numbers."""
        if self.target.kind == "regressor":
            return []
        n_targets = len(self.target.names)
        if n_targets > 1 and not hasattr(self.estimator, "tasks_"):
            return [(0, 1)] * n_targets
        classes = self.estimator.classes_
        return classes if isinstance(classes, list) else [classes] * n_targets

    def encode(self, data: Table | pd.DataFrame) -> Any:
        """Return the estimator's inputs; warnings say which values could not be used as they are."""
        return self.inputs.encode(_as_table(data))

    def predict(self, data: Table | pd.DataFrame) -> NDArray[Any]:
        """Return the predictions: (n,) for one target, (n, targets) for several."""
        return self._ask("predict", data)

    def predict_proba(self, data: Table | pd.DataFrame) -> Any:
        """Return the probabilities of the classes, (n, classes); a list of them for several targets."""
        found = self.probabilities(data)
        return found[0] if len(self.target.names) == 1 else found

    def scores(self, data: Table | pd.DataFrame) -> dict[str, Floats]:
        """Return the scores behind predicted classes, by the name of their column.

        Two classes have one score, which is positive for the second one.
        """
        if self.target.kind == "regressor":
            raise BadModelError("this model predicts numbers; only classes have scores")
        found = self._ask("decision_function", data)
        several = len(self.target.names) > 1
        blocks = found if isinstance(found, list) else list(found.T) if several else [found]
        named: dict[str, Floats] = {}
        for name, block, labels in zip(self.target.names, blocks, self.classes, strict=True):
            columns = block[:, None] if block.ndim == 1 else block
            shown = labels[-columns.shape[1] :]
            named |= {f"{name}={shown_label(label)} score": columns[:, k] for k, label in enumerate(shown)}
        return named

    def probabilities(self, data: Table | pd.DataFrame) -> list[Floats]:
        """Return the probabilities of the classes of each target, (n, classes)."""
        if self.target.kind == "regressor":
            raise BadModelError("this model predicts numbers; only classes have probabilities")
        if self.certainty is None:
            raise BadModelError(
                "this model has no probabilities: they come from cross-validation, for which every class needs two "
                "rows or more. Fit it again, without --no-cv"
            )
        return self.certainty.calibration.by_output(self._ask("decision_function", data))

    def name_probabilities(self, shares: list[Floats]) -> dict[str, Floats]:
        """Return probabilities by the name of their column; of several labels with two classes, that of the second."""
        named: dict[str, Floats] = {}
        for name, found, labels in zip(self.target.names, shares, self.classes, strict=True):
            first = 1 if len(self.target.names) > 1 and len(labels) == 2 else 0
            for k in range(first, len(labels)):
                named[f"{name}={shown_label(labels[k])} probability"] = found[:, k]
        return named

    def predict_at(self, shares: list[Floats], given: Sequence[str]) -> NDArray[Any]:
        """Return predictions at thresholds that the user gave, as `read_thresholds` takes them."""
        assert self.certainty is not None  # whoever has probabilities has it
        thresholds = read_thresholds(given, self.target.names, self.classes, self.certainty.best)
        columns = [
            np.asarray(known)[predict_at(found, at)]
            for known, found, at in zip(self.classes, shares, thresholds, strict=True)
        ]
        return columns[0] if len(columns) == 1 else np.stack([column.astype(object) for column in columns], axis=1)

    def features(self, data: Table | pd.DataFrame) -> dict[str, Floats]:
        """Return the latent features of rows that are in use, by the name of their column."""
        found = self._ask("transform", data, with_tasks=False)
        noun = "topic" if self.of_documents else "feature"
        numbers = self.in_use.tolist()
        columns = range(len(numbers)) if found.shape[1] == len(numbers) else numbers
        return {f"{noun}{k}": found[:, column] for k, column in zip(numbers, columns, strict=True)}

    @property
    def in_use(self) -> Integers:
        """The features that are in use, by their numbers."""
        from regbayes.estimators._bases import features_in_use

        return features_in_use(self.estimator)

    def _ask(self, name: str, data: Table | pd.DataFrame, *, with_tasks: bool = True) -> Any:
        """Call a method of the estimator with the inputs of a table, and the tasks of rows where there are tasks."""
        table = _as_table(data)
        task = task_values(table, self.target) if with_tasks else None
        try:
            return getattr(self.estimator, name)(self.encode(table), **({} if task is None else {"task": task}))
        except BadDataError:
            raise
        except ValueError as error:
            raise BadDataError(str(error)) from None


def _as_table(data: Table | pd.DataFrame) -> Table:
    return data if isinstance(data, Table) else Table(data, "the data frame")


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
    return found


def open_model(request: ModelRequest, output: Output) -> tuple[ModelFile, Table]:
    """Load a model and the data for it; text may be in other columns than in training."""
    from regbayes.cli.readers import read_table

    model = load_model(request.model)
    words = model.inputs
    if request.text and not isinstance(words, WordCounts):
        raise UserError(f"--text {request.text[0]}: this model was not fitted to documents")
    table = read_table(request.data, sparse=model.of_documents, **request.reading())
    if isinstance(words, WordCounts):
        here = any(name in table for name in words.columns)
        renamed = WordCounts(words.words, request.text or (words.columns if here else table.text), words.ngrams)
        model = replace(model, pipeline=Pipeline([("inputs", renamed), ("model", model.estimator)]))
    task = task_values(table, model.target)
    new = 0 if task is None else int(np.sum(~np.isin(task, model.estimator.tasks_)))
    if new:
        output.warn(f"tasks that were not there in training, in {counted(new, 'row')}: predicted by what tasks share")
    return model, table
