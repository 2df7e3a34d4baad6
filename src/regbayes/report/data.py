"""`ReportData`: all that the page about a fitted model shows, as plain arrays and strings, and no row that it does not.

It is a summary, small enough to be kept in a model's file, so that the page can be written later and without the data:
averages and histograms of the features, the ten top-ranked examples of each, counts of errors and the worst of them.
Everything is registered with `persistable`, so `regbayes.load` reads it back without pickle.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from regbayes._registry import Saveable, persistable
from regbayes._types import Flags, Floats, Integers

Bytes = NDArray[np.uint8]
Kind = Literal["table", "image", "text"]


@persistable(name="regbayes.report.Model")
@dataclass(frozen=True, eq=False)
class Model:
    """What was fitted, to what, and how well it does."""

    name: str  # of the estimator's class
    settings: tuple[tuple[str, str, bool], ...]  # parameter, value, whether it differs from the default
    facts: tuple[tuple[str, str], ...]  # what the fit found: a name and a value
    scores: tuple[tuple[str, float, str], ...]  # a name, the value, what it means
    n_rows: int
    n_inputs: int
    data_name: str  # what the rows are: "training rows"


@persistable(name="regbayes.report.Course")
@dataclass(frozen=True, eq=False)
class Course:
    """The objective over the iterations, at no more of them than a picture needs."""

    iterations: Integers  # (n,)
    objective: Floats  # (n,)
    term_names: tuple[str, ...]
    terms: Floats  # (terms, n)
    n_iter: int
    seconds: float
    n_rises: int
    largest_rise: float
    note: str = ""  # what to know of a course that is no descent


@persistable(name="regbayes.report.Features")
@dataclass(frozen=True, eq=False)
class Features:
    """The F features that are shown, the most used first, out of the K that the model may have."""

    all_use: Floats  # (K,)
    all_in_use: Flags  # (K,)
    use_name: str  # what `use` measures
    count_note: str  # whether the truncation binds
    separation_name: str  # what `separation` measures; empty without targets
    value_note: str  # what a value means
    probabilities: bool  # whether values lie between 0 and 1

    number: Integers  # (F,): place in the model
    use: Floats  # (F,)
    separation: Floats  # (F,); NaN without targets
    separates: tuple[str, ...]  # (F,): the task that it says most about; empty strings for a single task
    mean: Floats  # (F,)
    deviation: Floats  # (F,)
    histogram: Integers  # (F, bins): rows by value
    limits: Floats  # (F, 2): ends of the histogram

    group_title: str  # what the groups of rows are
    group_names: tuple[str, ...]
    group_counts: Integers  # (G,)
    group_means: Floats  # (F, G)
    group_deviations: Floats  # (F, G)

    output_title: str  # what has weights for the features
    output_names: tuple[str, ...]
    weights: Floats  # (F, outputs)

    loading_title: str  # what a loading means
    loading_names: tuple[tuple[str, ...], ...]  # (F, T): the inputs with the largest loadings
    loading_values: Floats  # (F, T)
    pictures: NDArray[np.int8] | None  # (F, height, width): loadings of images, 127 is `picture_limit`
    picture_limit: float

    examples: Integers  # (F, E): top-ranked rows, as places in `Examples`
    example_values: Floats  # (F, E)
    example_inputs: Floats  # (F, E, S): their values of the S inputs with the largest loadings

    noun: str = "feature"  # what a feature is called: "topic" where values are shares of documents
    telling: tuple[tuple[str, ...], ...] = ()  # (F, W): inputs that tell a topic from the others
    returned: Floats | None = None  # (F,): share of other fits in which it came back; NaN where that was not asked
    likeness: Floats | None = None  # (F,): median likeness to what it came back as
    returned_note: str = ""  # what those fits were


@persistable(name="regbayes.report.Examples")
@dataclass(frozen=True, eq=False)
class Examples:
    """The P rows that something on the page refers to."""

    names: tuple[str, ...]
    truths: tuple[str, ...]  # empty where there is no target
    predictions: tuple[str, ...]  # empty where nothing was predicted; of several labels, those that are wrong
    texts: tuple[str, ...]  # how documents begin; empty strings otherwise
    pictures: Bytes | None  # (P, height, width) or (P, height, width, 3)


@persistable(name="regbayes.report.Worst")
@dataclass(frozen=True, eq=False)
class Worst:
    """The rows that the model is most wrong about."""

    title: str  # in what sense they are the worst
    examples: Integers  # (n,): places in `Examples`
    notes: tuple[str, ...]


@persistable(name="regbayes.report.Confusion")
@dataclass(frozen=True, eq=False)
class Confusion:
    """What one question's answers are taken for."""

    classes: tuple[str, ...]
    counts: Integers  # (classes, classes): true class, prediction
    pairs: Integers  # (pairs, 2): the most confused, true class and prediction
    pair_examples: tuple[tuple[int, ...], ...]  # of each pair, places in `Examples`


@persistable(name="regbayes.report.Tasks")
@dataclass(frozen=True, eq=False)
class Tasks:
    """Several tasks: how the model does on each, and how they are related."""

    names: tuple[str, ...]
    column_names: tuple[str, ...]
    columns: Floats  # (tasks, columns): counts and scores of each task
    relation_name: str  # what a relation is
    relations: Floats  # (shown, shown)
    shown: Integers  # (shown,): tasks in the order of `relations`, related ones together


@persistable(name="regbayes.report.Regression")
@dataclass(frozen=True, eq=False)
class Regression:
    """Predicted against observed numbers, of no more rows than a picture needs."""

    tasks: Integers  # (n,): place in `task_names`
    task_names: tuple[str, ...]  # empty for a single unit of targets
    observed: Floats  # (n,)
    predicted: Floats  # (n,)
    n_all: int  # of which the n are some


@persistable(name="regbayes.report.ReportData")
@dataclass(frozen=True, eq=False)
class ReportData(Saveable):
    """What the page about a fitted model shows. Make one with `collect`, and a page of it with `render`."""

    title: str
    kind: Kind
    model: Model
    course: Course | None
    features: Features
    examples: Examples
    prediction_note: str  # whose predictions are judged
    confusion: Confusion | None
    tasks: Tasks | None
    regression: Regression | None
    worst: Worst | None
