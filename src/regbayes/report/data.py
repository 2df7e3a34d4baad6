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
Sample = Literal["", "training", "cross-validated", "new"]
Level = Literal["warning", "note"]
EffectKind = Literal["number", "category", "word"]
Cell = float | str  # a value of an input: a number, or a category


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
    deviations: tuple[float, ...] = ()  # of the scores over folds, in their order; NaN where there are none
    sample: Sample = ""  # what the scores were measured on
    target_name: str = ""  # what is predicted
    notices: tuple[tuple[Level, str], ...] = ()  # what a reader must know before anything else


@persistable(name="regbayes.report.Effects")
@dataclass(frozen=True, eq=False)
class Effects:
    """What one input does to the answers of the whole model, everything else left as it is.

    The I inputs are those that the user gave, before steps that scale or encode them, the strongest first. A number has
    a slope, per unit of its own, and the change of a step of one standard deviation, half of it to either side; a
    category has the change that it makes in place of the most frequent one; a word that of one more occurrence. Where
    the model is linear these hold for every row, otherwise they are averages over rows.
    """

    linear: bool
    answer: str  # what changes: the name of the target, or "score"
    output_title: str  # what the O outputs are: "class", "label", "target", "task"
    outputs: tuple[str, ...]  # (O,)
    names: tuple[str, ...]  # (I,)
    kinds: tuple[EffectKind, ...]  # (I,)
    sizes: Floats  # (I, O): the change of one standard deviation, or the largest of a category, with its sign
    deviations: Floats  # (I,): of the numbers, in their units; NaN otherwise
    slopes: Floats  # (I, O): of numbers and words; NaN of categories
    direct: Floats  # (I, O) the part of the slopes that does not go through features; (0, O) where there is none
    categories: tuple[tuple[str, ...], ...]  # (I,): what is compared, first what with; empty where nothing is
    changes: tuple[Floats, ...]  # (I,) of (categories - 1, O)
    direct_changes: tuple[Floats, ...]  # like `changes`; empty where there is no direct part
    grids: tuple[Floats, ...]  # (I,) of (points,): values of the input at which a curve is known; empty without one
    curves: tuple[Floats, ...]  # (I,) of (points, O): the average answer at these values, less that over the grid
    n_rows: int  # over which averages are taken
    n_inputs: int  # of which the I are some
    left_out: tuple[str, ...]  # inputs without an effect here, such as columns of free text
    pictures: NDArray[np.int8] | None  # (O, height, width): sizes of the pixels of images, 127 is `picture_limit`
    picture_limit: float


@persistable(name="regbayes.report.Comparison")
@dataclass(frozen=True, eq=False)
class Comparison:
    """The model beside plain ones, on the same folds."""

    metric: str  # what the scores are
    names: tuple[str, ...]  # (systems,): the model itself among them
    own: int  # its place
    scores: Floats  # (systems,)
    deviations: Floats  # (systems,): over the folds; NaN where unknown
    n_things: Integers  # (systems,): what a reader has to look at, features or weights; -1 where nobody can
    seconds: Floats  # (systems,); NaN where unknown
    verdict: str  # one sentence


@persistable(name="regbayes.report.Reliability")
@dataclass(frozen=True, eq=False)
class Reliability:
    """Of predictions with a probability of about so much, how many are right: bins of it."""

    probability: Floats  # (bins,): the mean in each
    share: Floats  # (bins,): how many are right
    counts: Integers  # (bins,)
    note: str  # whose probabilities, and how far off they are


@persistable(name="regbayes.report.History")
@dataclass(frozen=True, eq=False)
class History:
    """The objective over the iterations, at no more of them than a picture needs."""

    iterations: Integers  # (n,)
    objective: Floats  # (n,)
    term_names: tuple[str, ...]
    terms: Floats  # (terms, n)
    n_iter: int
    seconds: float
    n_rises: int
    largest_rise: float
    note: str = ""  # what to know of a fit that is no descent


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
    example_inputs: tuple[
        tuple[tuple[Cell, ...], ...], ...
    ]  # (F, E, S): values of the inputs with the largest loadings

    noun: str = "feature"  # what a feature is called: "topic" where values are shares of documents
    distinctive: tuple[tuple[str, ...], ...] = ()  # (F, W): inputs that tell a topic from the others
    example_input_names: tuple[tuple[str, ...], ...] = ()  # (F, S)
    loading_units: Floats | None = None  # (F, T): the loadings in the units of the inputs, where they have others
    influence: Floats | None = None  # (F,): how much it moves the answers
    idle: Flags | None = None  # (F,): whether no answer rests on it
    twins: Integers | None = None  # (F,): the number of a feature before it with the same values; -1 if none
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
    input_names: tuple[str, ...] = ()  # (S,): the inputs that matter most
    inputs: tuple[tuple[Cell, ...], ...] = ()  # (P, S)


@persistable(name="regbayes.report.Worst")
@dataclass(frozen=True, eq=False)
class Worst:
    """The rows that the model is most wrong about."""

    title: str  # in what sense they are the worst
    examples: Integers  # (n,): places in `Examples`
    notes: tuple[str, ...]
    sizes: Floats | None = None  # (n,): how wrong, in the sense of the title
    size_name: str = ""  # what a size is


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
    history: History | None
    features: Features
    examples: Examples
    prediction_note: str  # whose predictions are judged
    confusion: Confusion | None
    tasks: Tasks | None
    regression: Regression | None
    worst: Worst | None
    effects: Effects | None = None
    comparison: Comparison | None = None
    reliability: Reliability | None = None
    image_shape: tuple[int, ...] = ()  # of the rows, where they are images
