"""Model files: a fitted pipeline and the data of its report."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sklearn.pipeline import Pipeline

from regbayes._registry import Saveable, persistable
from regbayes._types import Floats, Integers
from regbayes.cli.errors import BadDataError, BadModelError, UserError, counted, listed
from regbayes.cli.inputs import TableInputs, WordCounts
from regbayes.cli.read import Table
from regbayes.cli.targets import TargetSpec, shown_label, task_values
from regbayes.estimators._calibration import Calibration
from regbayes.persistence import PersistenceError, load

if TYPE_CHECKING:
    import pandas as pd

    from regbayes.cli.options import ModelRequest
    from regbayes.cli.output import Output


@persistable(name="regbayes.cli.ModelFile")
@dataclass(frozen=True, eq=False)
class ModelFile(Saveable):
    """A fitted model as ``regbayes fit`` saves it.

    The methods accept a `Table` or a data frame.
    """

    pipeline: Pipeline  # steps: "inputs" (TableInputs or WordCounts) and "model" (an estimator)
    target: TargetSpec
    report: Any  # regbayes.report.ReportData, or None
    facts: dict[str, Any]  # number of rows, seconds, cross-validation results, interruption
    calibration: Calibration | None = None  # maps scores to probabilities; None without cross-validation

    def __repr__(self) -> str:
        """Return a short summary without the arrays."""
        facts, target = self.facts, self.target
        lines = [
            f"{type(self.estimator).__name__} of a file that 'regbayes fit' wrote",
            f"  target    {', '.join(target.names)} ({target.kind})",
            f"  fitted to {facts['rows']} {self.noun}s of {facts['source']}, {counted(facts['inputs'], 'input')}",
            f"  features  {len(self.estimator.components_)} in use",
        ]
        if (cv := facts["cross_validation"]) is not None:
            score = f"{facts['metric']} {cv['pooled']:.3f} ± {cv['std']:.3f}"
            lines.append(f"  score     {score} over {counted(cv['folds'], 'fold')}")
        lines += ["  warning   no better than a baseline"] if facts["no_better_than_baseline"] else []
        lines += [f"  stopped   {facts['kept']}"] if facts["interrupted"] else []
        return "\n".join([*lines, "  see       .pipeline, .estimator, .inputs, .target, .facts, .report"])

    @property
    def inputs(self) -> TableInputs | WordCounts:
        """The transformer from rows to inputs."""
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
    def noun(self) -> str:
        """What a row is: a row or a document."""
        return "document" if self.of_documents else "row"

    @property
    def classes(self) -> list[Any]:
        """The classes of each target (0 and 1 for indicators); empty for regression."""
        if self.target.kind == "regressor":
            return []
        classes, n_targets = self.estimator.classes_, len(self.target.names)
        if isinstance(classes, list):
            return classes
        indicators = n_targets > 1 and not hasattr(self.estimator, "tasks_")
        return [(0, 1) if indicators else classes] * n_targets

    def encode(self, data: Table | pd.DataFrame) -> Any:
        """Return the estimator's inputs; warn about replaced values with their number."""
        return self.inputs.encode(data if isinstance(data, Table) else Table(data, "the data frame"))

    def predict(self, data: Table | pd.DataFrame) -> NDArray[Any]:
        """Return predictions of shape (n,), or (n, targets) for several targets."""
        return self._call("predict", data)

    def predict_proba(self, data: Table | pd.DataFrame) -> Any:
        """Return class probabilities (n, classes), or a list for several targets."""
        found = self.probabilities(data)
        return found[0] if len(self.target.names) == 1 else found

    def probabilities(self, data: Table | pd.DataFrame) -> list[Floats]:
        """Return a list with the class probabilities of each target, (n, classes)."""
        self._check_classes("probabilities")
        if self.calibration is None:
            raise BadModelError(
                "this model has no probabilities: they come from cross-validation, for which every class needs two "
                "rows or more. Fit it again, without --no-cv"
            )
        return self.calibration.by_output(self._call("decision_function", data))

    def predict_at(self, shares: list[Floats], given: Sequence[str]) -> NDArray[Any]:
        """Return the predictions at thresholds in the syntax of ``--threshold``."""
        thresholds = self._read_thresholds(given)
        columns = [
            np.asarray(known)[predict_at(*pair)] for known, *pair in zip(self.classes, shares, thresholds, strict=True)
        ]
        return columns[0] if len(columns) == 1 else np.stack([column.astype(object) for column in columns], axis=1)

    def score_columns(self, data: Table | pd.DataFrame) -> dict[str, Floats]:
        """Return the decision scores by column name.

        A binary target has one score, which is positive for the second class.
        """
        self._check_classes("scores")
        found = self._call("decision_function", data)
        several = len(self.target.names) > 1
        blocks = found if isinstance(found, list) else list(found.T) if several else [found]
        return self._name_columns([block.reshape(len(block), -1) for block in blocks], "score")

    def probability_columns(self, shares: list[Floats]) -> dict[str, Floats]:
        """Return probabilities by column name, only of the second class for binary labels."""
        several = len(self.target.names) > 1
        return self._name_columns(
            [one[:, 1:] if several and one.shape[1] == 2 else one for one in shares], "probability"
        )

    def _name_columns(self, blocks: list[Floats], what: str) -> dict[str, Floats]:
        """Return the columns of each target by name; there may be none for the first class."""
        return {
            f"{name}={shown_label(label)} {what}": column
            for name, block, labels in zip(self.target.names, blocks, self.classes, strict=True)
            for label, column in zip(labels[-block.shape[1] :], block.T, strict=True)
        }

    def feature_columns(self, data: Table | pd.DataFrame) -> dict[str, Floats]:
        """Return the latent features in use by column name."""
        noun = "topic" if self.of_documents else "feature"
        return {f"{noun}{k}": column for k, column in enumerate(self._call("transform", data).T)}

    def _check_classes(self, what: str) -> None:
        if self.target.kind == "regressor":
            raise BadModelError(f"this model predicts numbers; only classes have {what}")

    def _call(self, method: str, data: Table | pd.DataFrame) -> Any:
        """Call a method of the estimator with the inputs of a table and, if needed, its tasks."""
        table = data if isinstance(data, Table) else Table(data, "the data frame")
        task = None if method == "transform" else task_values(table, self.target)
        try:
            return getattr(self.estimator, method)(self.encode(table), **({} if task is None else {"task": task}))
        except BadDataError:
            raise
        except ValueError as error:
            raise BadDataError(str(error)) from None

    def _read_thresholds(self, given: Sequence[str]) -> list[Floats]:
        """Return the class thresholds of each target, (classes,); NaN for classes without one.

        ``0.3`` applies to the second class of every binary target. In ``NAME=0.3``, NAME is a target or, for a single
        target, a class.
        """
        names, classes = self.target.names, self.classes
        places = {shown_label(label): [(0, k)] for known in classes[:1] for k, label in enumerate(known)}
        if len(names) > 1:
            places = {name: [(j, 1)] for j, name in enumerate(names) if len(classes[j]) == 2}
        if all(len(known) == 2 for known in classes):
            places[""] = [(j, 1) for j in range(len(classes))]
        found = [np.full(len(known), np.nan) for known in classes]
        for text in given:
            name, _, number = text.rpartition("=")
            try:
                value = float(number)
            except ValueError:
                value = np.nan
            if not 0 < value < 1:
                raise UserError(f"--threshold must be a number between 0 and 1, or NAME=number; got {text!r}")
            if name not in places:
                raise UserError(f"--threshold {text}: give NAME=number, where NAME is one of {listed(list(places))}")
            for target, place in places[name]:
                found[target][place] = value
        return found


def predict_at(shares: Floats, thresholds: Floats) -> Integers:
    """Predict classes from probabilities (n, classes) and thresholds (classes,).

    The prediction is the class that exceeds its threshold by the largest factor. If no class does, it is the most
    probable class without a threshold. If all classes have one, it is the class closest to its threshold.
    """
    named = np.isfinite(thresholds)
    factors = np.where(named, shares / np.where(named, thresholds, 1.0), -1.0)
    others = np.argmax(np.where(named, -1.0, shares), axis=1)
    return np.where((factors.max(axis=1) > 1) | named.all(), np.argmax(factors, axis=1), others)


def load_model(path: str) -> ModelFile:
    """Load a model file; raise an error if it is damaged, newer or of another kind."""
    if not os.path.exists(path):
        raise BadModelError(f"the model file {path!r} does not exist")
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
    """Load a model and its data; text may be in other columns than in training."""
    from regbayes.cli.read import read_table

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


# --- the report


def collect_page(model: ModelFile, table: Table, X: Any, y: NDArray[Any], shown: Mapping[str, Any]) -> Any:
    """Return the `ReportData` of a model for these rows; `shown` are further options of `regbayes.report.collect`."""
    from regbayes.report import collect

    inputs, spec, facts = model.inputs, model.target, model.facts
    notices = [*facts["warnings"]]
    if facts["no_better_than_baseline"]:
        notices.insert(0, facts["comparison"]["messages"][0])
    if facts["interrupted"]:
        notices.insert(0, f"{facts['kept']} Fit again for a model to rely on.")
    more = " and more" if len(spec.names) > 3 else ""
    options = {
        "title": f"Predicting {', '.join(spec.names[:3])}{more} from {Path(facts['source']).name}",
        "target_names": list(spec.names) if len(spec.names) > 1 else None,
        "target_name": spec.names[0] if len(spec.names) == 1 else "target",
        "notices": [("warning", text) for text in notices],
        "task": task_values(table, spec),
        **shown,
    }
    if isinstance(inputs, WordCounts):
        return collect(model.estimator, X, y, feature_names=inputs.get_feature_names_out().tolist(), **options)
    report = collect(model.pipeline, inputs.expand_dates(table.select(inputs.columns_)), y, **options)
    return replace(report, model=replace(report.model, name=type(model.estimator).__name__))


def score_for_page(model: ModelFile, where: str = "") -> dict[str, tuple[float, float]]:
    """Return the score of cross-validation and its deviation by its name in the report."""
    found = model.facts["cross_validation"]
    if found is None:
        return {}
    short = {"accuracy over all labels": "label accuracy", "R², mean over targets": "R²"}
    return {f"{short.get(found['metric'], found['metric'])}{where}": (found["pooled"], found["std"])}


def reliability_of(shares: Sequence[Floats], codes: Integers, weights: Floats | None, note: str) -> Any:
    """Return the reliability diagram of predicted classes, in ten bins of equal width.

    Parameters
    ----------
    shares : of each target, (n, classes)
    codes : (n, targets)
        The true classes; -1 where unknown.
    weights : (n,) or None
    note : str
        Source of the probabilities.
    """
    from regbayes.report.data import Reliability

    largest = np.column_stack([found.max(axis=1) for found in shares])
    hits = np.column_stack([found.argmax(axis=1) for found in shares]) == codes
    seen, n_bins = codes >= 0, 10
    counts = np.broadcast_to(np.ones(len(codes))[:, None] if weights is None else weights[:, None], codes.shape)[seen]
    place = np.minimum((n_bins * largest[seen]).astype(np.int64), n_bins - 1)
    in_bin = np.bincount(place, counts, n_bins)
    kept = in_bin > 0
    mean, share = (np.bincount(place, counts * values[seen], n_bins)[kept] / in_bin[kept] for values in (largest, hits))
    error = np.average(np.abs(share - mean), weights=in_bin[kept])
    said = f"{note} Probability and share differ by {error:.3f} on average (expected calibration error)."
    return Reliability(mean, share, np.bincount(place, minlength=n_bins)[kept], said)
