"""`ReportData`: all that the page about a fitted model shows, as plain arrays and strings.

It is small enough to be kept in a model's file, so that the page can be written later and without the data: averages
and histograms of the features, ten examples of each, counts of errors and the worst of them. Everything is registered
with `persistable`, so `regbayes.load` reads it without pickle.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from regbayes._registry import Saveable, persistable
from regbayes._types import Floats, Integers

Kind = Literal["table", "image", "text"]
Sample = Literal["", "training", "cross-validated", "new"]
Level = Literal["warning", "note"]
Cell = float | str  # a value of an input: a number, or a category


@dataclass(frozen=True)
class Limits:
    """How much a report shows at most; none of it changes what is computed of a feature, an input or a sample."""

    features: int = 100
    bins: int = 24  # of a histogram
    loadings: int = 15  # inputs of a feature
    distinctive_words: int = 10  # of a topic
    examples: int = 10  # of a feature
    example_inputs: int = 5  # of an example of a feature
    row_inputs: int = 12  # of any other sample
    target_groups: int = 5  # into which numbers are divided
    worst: int = 12  # samples
    confused_pairs: int = 8  # of classes
    pair_examples: int = 4  # of a confused pair
    points: int = 1500  # of predicted against observed
    related_tasks: int = 120
    iterations: int = 300  # of the trace
    characters: int = 280  # of a document
    setting_characters: int = 90
    labels: int = 6  # of one sample
    categories: int = 20  # of one column that are compared
    curves: int = 40  # inputs with a curve
    curve_points: int = 13
    words: int = 60  # with an effect
    pixels: int = 64  # of the longer side of a picture


LIMITS = Limits()


@persistable(name="regbayes.report.Model")
@dataclass(frozen=True, eq=False)
class Model:
    """What was fitted, to what, and how well it does."""

    name: str  # of the estimator's class
    settings: tuple[tuple[str, str, bool], ...]  # parameter, value, whether it differs from the default
    facts: tuple[tuple[str, str], ...]  # what the fit found: a name and a value
    scores: tuple[tuple[str, float, str], ...]  # a name, the value, what it means
    deviations: tuple[float, ...]  # of the scores over folds; NaN where there are none
    sample: Sample  # what the scores were measured on
    n_rows: int
    n_inputs: int
    data_name: str  # what the samples are: "training rows"
    target_name: str  # what is predicted; empty without targets
    notices: tuple[tuple[Level, str], ...]  # what a reader must know before anything else


@persistable(name="regbayes.report.Effects")
@dataclass(frozen=True, eq=False)
class Effects:
    """What one input does to the predictions of the whole model, all other inputs unchanged.

    The I inputs are those that the user gave, before steps that scale or encode them, the strongest first. A number has
    a slope, per unit of its own, and the change of a step of one standard deviation, half of it to either side. A
    category has the change that it makes in place of the most frequent one, and a word that of one more occurrence.
    All of them are averages over samples.
    """

    linear: bool  # whether they are the same for every sample
    answer: str  # what changes: the name of the target, or "score"
    output_title: str  # what the O outputs are: "class", "label", "target", "task"
    outputs: tuple[str, ...]  # (O,)
    opens_on: int  # the output of the largest class
    names: tuple[str, ...]  # (I,)
    kinds: tuple[Literal["number", "category", "word"], ...]  # (I,)
    sizes: Floats  # (I, O): the change of one standard deviation, or the largest of a category, with its sign
    errors: Floats  # (I, O): standard errors of the sizes
    deviations: Floats  # (I,): of the numbers, in their units; NaN otherwise
    slopes: Floats  # (I, O): of numbers and words; NaN of categories
    n_rows: int  # over which averages are taken
    n_inputs: int  # at least I
    categories: tuple[tuple[str, ...], ...] = ()  # (I,): what is compared, first what with; empty where nothing is
    changes: tuple[Floats, ...] = ()  # (I,) of (categories - 1, O)
    change_errors: tuple[Floats, ...] = ()  # like `changes`
    direct: Floats | None = None  # (I, O): the part of the slopes that does not go through features, where there is one
    direct_changes: tuple[Floats, ...] = ()  # like `changes`
    grids: tuple[Floats, ...] = ()  # (I,) of (points,): values of the input at which a curve is known
    curves: tuple[Floats, ...] = ()  # (I,) of (points, O): the average prediction at these values, less their mean
    left_out: tuple[str, ...] = ()  # inputs without an effect here, such as columns of free text
    pictures: NDArray[np.int8] | None = None  # (O, height, width): sizes of the pixels, 127 is `picture_limit`
    picture_limit: float = 0.0


@persistable(name="regbayes.report.Comparison")
@dataclass(frozen=True, eq=False)
class Comparison:
    """The model and its baselines on the same folds."""

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
    """Bins of predictions by their probability, and how many of each bin are right."""

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
    note: str  # what to know of a fit that samples


@persistable(name="regbayes.report.Features")
@dataclass(frozen=True, eq=False)
class Features:
    """The F features that are shown, of those in use, the most used first."""

    noun: str  # "feature", or "topic" where values are shares of documents
    n_in_use: int
    n_components: int  # most features that the model may have
    use_name: str  # what `use` measures
    count_note: str  # whether the truncation binds
    separation_name: str  # what `separation` measures; empty without targets
    value_note: str  # what a value means
    probabilities: bool  # whether values lie between 0 and 1

    number: Integers  # (F,): place in the model
    names: tuple[str, ...]  # (F,): the two inputs that say most about it; empty for pictures
    use: Floats  # (F,)
    influence: Floats  # (F,): how much it moves the predictions
    separation: Floats  # (F,); NaN without targets
    separates: tuple[str, ...]  # (F,): the task that it says most about; empty strings for a single task
    mean: Floats  # (F,)
    deviation: Floats  # (F,)
    histogram: Integers  # (F, bins): samples by value
    limits: Floats  # (F, 2): ends of the histogram

    group_title: str  # what the groups of samples are
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
    loading_units: Floats | None  # (F, T): the loadings in the units of the inputs, where they have others
    distinctive: tuple[tuple[str, ...], ...]  # (F, W): inputs that tell a topic from the others
    pictures: NDArray[np.int8] | None  # (F, height, width): loadings of images, 127 is `picture_limit`
    picture_limit: float

    examples: Integers  # (F, E): top-ranked samples, as places in `Examples`
    example_values: Floats  # (F, E)
    example_input_names: tuple[tuple[str, ...], ...]  # (F, S): the inputs with the largest loadings
    example_inputs: tuple[tuple[tuple[Cell, ...], ...], ...]  # (F, E, S)

    returned: Floats | None = None  # (F,): share of other fits in which it recurs; NaN where unknown
    similarity: Floats | None = None  # (F,): median similarity to the feature of another fit
    returned_note: str = ""  # what those fits were


@persistable(name="regbayes.report.Examples")
@dataclass(frozen=True, eq=False)
class Examples:
    """The P samples that something on the page refers to."""

    names: tuple[str, ...]
    truths: tuple[str, ...]  # empty strings where there is no target
    predictions: tuple[str, ...]  # empty where nothing was predicted; of several labels, those that are wrong
    texts: tuple[str, ...]  # how documents begin; empty strings otherwise
    pictures: NDArray[np.uint8] | None  # (P, height, width) or (P, height, width, 3)
    input_names: tuple[str, ...]  # (S,): the inputs that matter most
    inputs: tuple[tuple[Cell, ...], ...]  # (P, S)


@persistable(name="regbayes.report.Worst")
@dataclass(frozen=True, eq=False)
class Worst:
    """The samples that the model is most wrong about."""

    title: str  # in what sense they are the worst
    examples: Integers  # (n,): places in `Examples`
    notes: tuple[str, ...]
    sizes: Floats | None = None  # (n,): how wrong, in the sense of the title
    size_name: str = ""  # what a size is


@persistable(name="regbayes.report.Confusion")
@dataclass(frozen=True, eq=False)
class Confusion:
    """How often each class is predicted as which."""

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
    """Predicted against observed numbers, of no more samples than a picture needs."""

    tasks: Integers  # (n,): place in `task_names`
    task_names: tuple[str, ...]  # empty for a single unit of targets
    observed: Floats  # (n,)
    predicted: Floats  # (n,)
    n_all: int  # before thinning


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
    effects: Effects | None
    comparison: Comparison | None
    reliability: Reliability | None
    image_shape: tuple[int, ...]  # of the samples, where they are images
