"""`ReportData`: the content of the HTML report as plain arrays and strings.

It contains averages, histograms and examples of the features, error counts and the worst errors. It is small enough for
a model file, so the report can be written later without the data. All classes are registered with `persistable`, so
`regbayes.load` reads them without pickle.
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
Cell = float | str  # value of an input: a number or a category


@dataclass(frozen=True)
class Limits:
    """Maximum sizes of the parts of a report; they do not affect the computed values."""

    features: int = 100
    bins: int = 24  # bins of a histogram
    loadings: int = 15  # largest loadings of a feature
    distinctive_words: int = 10  # distinctive words of a topic
    examples: int = 10  # examples of a feature
    example_inputs: int = 5  # inputs shown for an example of a feature
    row_inputs: int = 12  # inputs shown for other samples
    target_groups: int = 5  # quantile groups of a numeric target
    worst: int = 12  # worst errors
    confused_pairs: int = 8  # most confused pairs of classes
    pair_examples: int = 4  # examples of a confused pair
    points: int = 1500  # points in the plot of predicted against observed values
    related_tasks: int = 120
    iterations: int = 300  # points of the objective's history
    characters: int = 280  # characters shown of a document
    setting_characters: int = 90
    labels: int = 6  # labels shown for a sample
    categories: int = 20  # categories compared for a column
    distinct_texts: int = 200  # distinct values of a text column with categories; free text has more
    effects: int = 400_000  # inputs times outputs
    curves: int = 40  # inputs with a partial dependence curve
    curve_points: int = 13
    words: int = 60  # words with an effect
    pixels: int = 64  # longer side of an image
    thumbnail_bytes: int = 1_500_000  # all thumbnails together


LIMITS = Limits()


@persistable(name="regbayes.report.Model")
@dataclass(frozen=True, eq=False)
class Model:
    """The model, its data and its scores."""

    name: str  # name of the estimator's class
    settings: tuple[tuple[str, str, bool], ...]  # parameter, value, whether the value differs from the default
    facts: tuple[tuple[str, str], ...]  # names and values found by the fit
    scores: tuple[tuple[str, float, str], ...]  # name, value and description
    deviations: tuple[float, ...]  # standard deviations of the scores over folds; NaN if unavailable
    sample: Sample  # data behind the scores
    n_rows: int
    n_inputs: int
    data_name: str  # description of the samples, such as "training rows"
    target_name: str  # name of the target; empty without targets
    notices: tuple[tuple[Level, str], ...]  # notices at the top of the page


@persistable(name="regbayes.report.Effects")
@dataclass(frozen=True, eq=False)
class Effects:
    """Average effect of each input on the predictions, with all other inputs unchanged.

    The I inputs are the user's columns before scaling and encoding, sorted by decreasing effect. A number has a slope
    per unit and the change for one standard deviation (a central difference). A category has the change relative to
    the most frequent category, and a word the change for one more occurrence. All values are averages over samples.
    """

    linear: bool  # whether the effects are equal for all samples
    answer: str  # name of the target, or "score"
    output_title: str  # kind of the O outputs: "class", "label", "target" or "task"
    outputs: tuple[str, ...]  # (O,)
    opens_on: int  # index of the output shown first, that of the largest class
    names: tuple[str, ...]  # (I,)
    kinds: tuple[Literal["number", "category", "word"], ...]  # (I,)
    sizes: Floats  # (I, O): signed change for one standard deviation, or the largest of a category
    errors: Floats  # (I, O): standard errors of the sizes
    deviations: Floats  # (I,): standard deviations of numbers; NaN otherwise
    slopes: Floats  # (I, O): slopes of numbers and words; NaN for categories
    n_rows: int  # samples in the averages
    n_inputs: int  # number of all inputs, at least I
    categories: tuple[tuple[str, ...], ...] = ()  # (I,): compared categories, the reference first; empty if none
    changes: tuple[Floats, ...] = ()  # (I,) of (categories - 1, O): differences from the reference
    change_errors: tuple[Floats, ...] = ()  # like `changes`
    direct: Floats | None = None  # (I, O): part of the slopes due to direct weights
    direct_changes: tuple[Floats, ...] = ()  # like `changes`
    grids: tuple[Floats, ...] = ()  # (I,) of (points,): input values of the curves
    curves: tuple[Floats, ...] = ()  # (I,) of (points, O): centered partial dependence
    left_out: tuple[str, ...] = ()  # inputs without computed effects, such as free text
    pictures: NDArray[np.int8] | None = None  # (O, height, width): sizes of pixels, 127 represents `picture_limit`
    picture_limit: float = 0.0


@persistable(name="regbayes.report.Comparison")
@dataclass(frozen=True, eq=False)
class Comparison:
    """The model and its baselines on the same folds."""

    metric: str  # name of the scores
    names: tuple[str, ...]  # (systems,): including the model
    own: int  # index of the model
    scores: Floats  # (systems,)
    deviations: Floats  # (systems,): standard deviations over folds; NaN if unknown
    n_things: Integers  # (systems,): number of features or weights to inspect; -1 if not interpretable
    seconds: Floats  # (systems,); NaN if unknown
    verdict: str  # conclusion in one sentence


@persistable(name="regbayes.report.Reliability")
@dataclass(frozen=True, eq=False)
class Reliability:
    """Reliability diagram: accuracy of predictions binned by probability."""

    probability: Floats  # (bins,): mean probability
    share: Floats  # (bins,): fraction of correct predictions
    counts: Integers  # (bins,)
    note: str  # source of the probabilities and their calibration error


@persistable(name="regbayes.report.History")
@dataclass(frozen=True, eq=False)
class History:
    """The objective over the iterations, thinned for plotting."""

    iterations: Integers  # (n,)
    objective: Floats  # (n,)
    term_names: tuple[str, ...]
    terms: Floats  # (terms, n)
    n_iter: int
    seconds: float
    n_rises: int
    largest_rise: float
    note: str  # note about fits that use sampling


@persistable(name="regbayes.report.Features")
@dataclass(frozen=True, eq=False)
class Features:
    """The F features in use that are shown, by decreasing use."""

    noun: str  # "feature", or "topic" if values are topic proportions
    n_in_use: int
    n_components: int  # maximum number of features of the model
    use_name: str  # description of `use`
    count_note: str  # whether the truncation binds
    separation_name: str  # description of `separation`; empty without targets
    value_note: str  # description of the feature values
    probabilities: bool  # whether values lie between 0 and 1

    number: Integers  # (F,): index in the model
    names: tuple[str, ...]  # (F,): the two inputs with the largest loadings; empty for images
    use: Floats  # (F,)
    influence: Floats  # (F,): influence on the predictions
    separation: Floats  # (F,); NaN without targets
    separates: tuple[str, ...]  # (F,): task of the largest separation; empty for a single task
    mean: Floats  # (F,)
    histogram: Integers  # (F, bins): counts of samples by value
    limits: Floats  # (F, 2): limits of the histogram

    group_title: str  # kind of the groups of samples
    group_names: tuple[str, ...]
    group_counts: Integers  # (G,)
    group_means: Floats  # (F, G)
    group_deviations: Floats  # (F, G)

    output_title: str  # kind of the outputs with weights for the features
    output_names: tuple[str, ...]
    weights: Floats  # (F, outputs)

    loading_title: str  # description of the loadings
    loading_names: tuple[tuple[str, ...], ...]  # (F, T): the inputs with the largest loadings
    loading_values: Floats  # (F, T)
    loading_units: Floats | None  # (F, T): loadings in units of the inputs, if different
    distinctive: tuple[tuple[str, ...], ...]  # (F, W): most distinctive words of a topic
    pictures: NDArray[np.int8] | None  # (F, height, width): loadings of images, 127 represents `picture_limit`
    picture_limit: float

    examples: Integers  # (F, E): top-ranked samples as indices into `Examples`
    example_values: Floats  # (F, E)
    example_input_names: tuple[tuple[str, ...], ...]  # (F, S): the inputs with the largest loadings
    example_inputs: tuple[tuple[tuple[Cell, ...], ...], ...]  # (F, E, S)

    returned: Floats | None = None  # (F,): share of other fits in which the feature recurs; NaN if unknown
    similarity: Floats | None = None  # (F,): median similarity to the matching feature of another fit
    returned_note: str = ""  # description of those fits


@persistable(name="regbayes.report.Examples")
@dataclass(frozen=True, eq=False)
class Examples:
    """The P samples that the report refers to."""

    names: tuple[str, ...]
    truths: tuple[str, ...]  # empty strings without a target
    predictions: tuple[str, ...]  # empty without predictions; the wrong ones of several labels
    texts: tuple[str, ...]  # beginnings of documents; empty strings otherwise
    pictures: NDArray[np.uint8] | None  # (P, height, width) or (P, height, width, 3)
    input_names: tuple[str, ...]  # (S,): names of the main inputs
    inputs: tuple[tuple[Cell, ...], ...]  # (P, S)


@persistable(name="regbayes.report.Worst")
@dataclass(frozen=True, eq=False)
class Worst:
    """The samples with the worst errors."""

    title: str  # criterion for the worst errors
    examples: Integers  # (n,): indices into `Examples`
    notes: tuple[str, ...]
    sizes: Floats | None = None  # (n,): error sizes by the criterion
    size_name: str = ""  # description of the sizes


@persistable(name="regbayes.report.Confusion")
@dataclass(frozen=True, eq=False)
class Confusion:
    """The confusion matrix with examples."""

    classes: tuple[str, ...]
    counts: Integers  # (classes, classes): true class, prediction
    pairs: Integers  # (pairs, 2): the most confused pairs of true and predicted class
    pair_examples: tuple[tuple[int, ...], ...]  # indices into `Examples` for each pair


@persistable(name="regbayes.report.Tasks")
@dataclass(frozen=True, eq=False)
class Tasks:
    """Scores and relations of several tasks."""

    names: tuple[str, ...]
    column_names: tuple[str, ...]
    columns: Floats  # (tasks, columns): counts and scores of each task
    relation_name: str  # description of the relations
    relations: Floats  # (shown, shown)
    shown: Integers  # (shown,): tasks in the order of `relations`, with related ones adjacent


@persistable(name="regbayes.report.Regression")
@dataclass(frozen=True, eq=False)
class Regression:
    """Predicted and observed numbers, thinned for plotting."""

    tasks: Integers  # (n,): index into `task_names`
    task_names: tuple[str, ...]  # empty if all targets have the same units
    observed: Floats  # (n,)
    predicted: Floats  # (n,)
    n_all: int  # number of targets before thinning


@persistable(name="regbayes.report.ReportData")
@dataclass(frozen=True, eq=False)
class ReportData(Saveable):
    """Content of a report; create it with `collect` and write it with `render`.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from regbayes import ILSVMClassifier
    >>> from regbayes.report import collect
    >>> X, y = load_iris(return_X_y=True)
    >>> model = ILSVMClassifier(8, tol=1e-2, random_state=0).fit(X, y)
    >>> data = collect(model, X, y)
    >>> data.title, data.confusion.counts.shape
    ('ILSVMClassifier on 150 rows', (3, 3))
    """

    title: str
    kind: Kind
    model: Model
    history: History | None
    features: Features
    examples: Examples
    prediction_note: str  # source of the evaluated predictions
    confusion: Confusion | None
    tasks: Tasks | None
    regression: Regression | None
    worst: Worst | None
    effects: Effects | None
    comparison: Comparison | None
    reliability: Reliability | None
    image_shape: tuple[int, ...]  # image shape of the samples, or empty
