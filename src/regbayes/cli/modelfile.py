"""The file of a fitted model: the estimator, how tables become its inputs, and what the page about it shows."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regbayes._registry import Saveable, persistable
from regbayes._types import Floats
from regbayes.cli.errors import BadDataError, BadModelError, UserError, counted
from regbayes.cli.schema import Say, Schema
from regbayes.cli.tables import ReadOptions, Table, read_table
from regbayes.cli.targets import TargetSpec, task_values
from regbayes.cli.words import WordSchema
from regbayes.persistence import PersistenceError, load

__all__ = ["ModelFile", "Search", "load_model"]


@persistable(name="regbayes.cli.Search")
@dataclass(frozen=True)
class Search:
    """What cross-validation found."""

    candidates: tuple[dict[str, Any], ...]
    mean: Floats  # (candidates,): score of each over the folds it was tried on
    deviation: Floats  # (candidates,)
    n_folds: int  # that the chosen one was tried on
    best: int  # place of the one that was chosen

    @property
    def chosen(self) -> dict[str, Any]:
        """The settings that were chosen."""
        return self.candidates[self.best]


@persistable(name="regbayes.cli.ModelFile")
@dataclass(frozen=True, eq=False)
class ModelFile(Saveable):
    """What ``regbayes fit`` writes, and the other commands read."""

    estimator: Any
    schema: Schema | WordSchema
    target: TargetSpec
    search: Search | None
    report: Any  # regbayes.report.ReportData, or None
    facts: dict[str, Any]  # rows, seconds, baseline, whether it was interrupted

    def read(self, path: str, options: ReadOptions, text: tuple[str, ...] = ()) -> tuple[ModelFile, Table]:
        """Read a file as this model needs it; ``text`` are columns with text that have another name in training.

        Returns
        -------
        model, table
            The model, which now takes the text from these columns, and the table.
        """
        if not isinstance(self.schema, WordSchema):
            if text:
                raise UserError(f"--text {text[0]}: this model was not fitted to documents")
            return self, read_table(path, options)
        from regbayes.cli.documents import read_documents

        table = read_documents(path, options)
        columns = text or self.schema.columns
        if not text and not any(name in table for name in columns):
            columns = table.text or columns
        return replace(self, schema=replace(self.schema, columns=columns)), table

    def inputs(self, table: Table, say: Say) -> tuple[Any, dict[str, Any]]:
        """Return what the estimator's methods take: inputs, and the tasks of rows where there are tasks."""
        self._compare_numbering(table, say)
        task = task_values(table, self.target)
        return self.schema.encode(table, say), {} if task is None else {"task": task}

    def predict(self, table: Table, say: Say) -> NDArray[Any]:
        """Return the predictions for a table: (n,) for one target, (n, targets) for several."""
        X, tasks = self.inputs(table, say)
        self._note_new_tasks(tasks, say)
        return _called(self.estimator.predict, X, tasks)

    def scores(self, table: Table, say: Say) -> dict[str, Floats]:
        """Return the scores behind predicted classes, by the name of their column."""
        if self.target.kind == "regressor":
            raise BadModelError("this model predicts numbers; only classes have scores")
        X, tasks = self.inputs(table, say)
        found = _called(self.estimator.decision_function, X, tasks)
        return _named_scores(found, self.estimator, self.target.names)

    def features(self, table: Table, say: Say) -> dict[str, Floats]:
        """Return the latent features of rows, by the name of their column."""
        X, _ = self.inputs(table, say)
        found = _called(self.estimator.transform, X, {})
        noun = "topic" if isinstance(self.schema, WordSchema) else "feature"
        return {f"{noun}{k}": found[:, k] for k in range(found.shape[1])}

    def _compare_numbering(self, table: Table, say: Say) -> None:
        """Say so if the columns of a LIBSVM file begin elsewhere than in training."""
        known = self.facts.get("first_column")
        if None in (known, table.first) or known == table.first:
            return
        if known == 1:
            say(f"{table.source} has a column 0, but columns were counted from 1 in training: are they the same?")
        else:
            say(
                f"no row of {table.source} has a column 0, and in training some did: if this file counts columns from "
                "1, they are not the model's"
            )

    def _note_new_tasks(self, tasks: dict[str, Any], say: Say) -> None:
        if tasks and len(new := np.setdiff1d(tasks["task"], self.estimator.tasks_)):
            rows = counted(int(np.isin(tasks["task"], new).sum()), "row")
            say(f"tasks that were not there in training, in {rows}, get what all tasks have in common")


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


def _called(method: Any, X: Any, tasks: dict[str, Any]) -> Any:
    try:
        return method(X, **tasks)
    except ValueError as error:
        raise BadDataError(str(error)) from None


def _named_scores(found: Any, estimator: Any, names: tuple[str, ...]) -> dict[str, Floats]:
    """Name the scores of classes: one column for two classes, one per class for more."""
    from regbayes.cli.targets import shown_label

    if isinstance(found, list):
        blocks, classes = found, estimator.classes_ if isinstance(estimator.classes_, list) else None
    elif len(names) > 1:
        blocks, classes = list(found.T), None
    else:
        blocks, classes = [found], [estimator.classes_]
    named: dict[str, Floats] = {}
    for place, (name, block) in enumerate(zip(names, blocks, strict=True)):
        if block.ndim == 1:
            named[f"{name} score"] = block
        else:
            labels = classes[place] if classes is not None else estimator.classes_
            named |= {f"{name}={shown_label(label)} score": block[:, k] for k, label in enumerate(labels)}
    return named
