"""`ILSVMClassifier`, and the code that it shares with `IBPFactorAnalysis` and `ILSVMRegressor`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
from joblib import effective_n_jobs
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import check_array, check_consistent_length
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.validation import check_is_fitted

from regbayes._registry import persistable
from regbayes._types import Floats, Integers
from regbayes.engine import make_executor
from regbayes.estimators._arrays import bring_targets, on_host, put_beside
from regbayes.estimators._bases import (
    LATENT_CONSTRAINTS,
    NOT_NEGATIVE,
    POSITIVE,
    LatentModel,
    TrainingRows,
    binary_difference,
    check_features_in_use,
    drop_weightless,
    find_fault,
    fit_data,
    generator,
    in_use,
    judge_signs,
    one_blas_thread,
    read_rows,
    room_for,
    warn_if_unscaled,
    warn_of_no_features,
    warn_of_noise,
    warn_of_truncation,
)
from regbayes.estimators._batches import BatchClassifier, TargetRows
from regbayes.estimators._calibration import NoProbabilities
from regbayes.estimators.metrics import subset_accuracy
from regbayes.kernels.arrays import sum_of, take_columns, to_host
from regbayes.margins.head import HEAD_POLICY
from regbayes.margins.targets import Classes, Signs
from regbayes.models.ilsvm import fit, starts
from regbayes.models.ilsvm.model import Data, Params, Rows, Settings, State, centre_rows
from regbayes.models.indian_buffet import stick_weights

DEFAULT_TEMPERATURE = 0.2  # temperature per input of "auto": a predictive setting with high-temperature features
DEFAULT_GENERATIVE_SHARE = 0.03  # generative weight of "auto", as a share of C for each margin of a sample
SLAB_TEMPERATURE = 0.003  # temperature per input of "auto" with a slab: most features are clearly zero or not
SLAB_C = 10 / 3  # factor on C and the temperature per input: values grow as 1 / sqrt(T), so C follows T
SLAB_GENERATIVE_SHARE = 0.003  # generative weight of "auto" with a slab, as a share of C for each margin of a sample
SLAB_PENALTY = 2.5  # penalty on a nonzero feature, in nats, in a supervised fit with a slab
PER_INPUT_TEMPERATURE = 0.02  # temperature per input in the "auto" rules for noise_variance="per_input"
PRIOR_RATIO = 1 / 0.3  # prior variance of a loading for prior_variance="auto", in noise variances
LABELED_POWER = 0.75  # power of the share of labeled samples in generative_weight="auto"
NOISE_SHARE = 0.5  # noise variance of "auto", as a share of the inputs' variance
INPUT_ENERGY = 2.0  # mean squared norm of the inputs that a classifier has in addition to latent features


NOISE_VARIANCE = [POSITIVE, StrOptions({"auto", "estimate", "per_input"})]


class BinaryFeatures(LatentModel):
    """Base of the estimators with binary features: a fit for any type of target.

    A subclass turns training samples and parameters into data and settings in ``_prepare``.
    """

    _takes_devices: ClassVar[bool] = True  # accepts arrays of PyTorch and CuPy on their device
    _policy: ClassVar[starts.StructurePolicy] = starts.POLICY
    _in_blocks: ClassVar[bool] = True  # reads memory-mapped samples by blocks, in their type

    def _check_loaded(self) -> None:
        self._validate_params()  # scikit-learn does not validate them in `partial_fit` of a fitted model
        if not hasattr(self, "_state"):
            return
        n_inputs = self._state.params.loadings.shape[1]
        if n_inputs != self.n_features_in_ or to_host(self.mean_).shape != (n_inputs,):
            raise ValueError("n_features_in_ and mean_ must fit the loadings")
        check_features_in_use(self, len(self._state.params.loadings))
        loadings = self._state.params.loadings
        if hasattr(self, "_batches") and self._batches.state.params.loadings.shape != loadings.shape:
            raise ValueError("the batches must have as many features as the loadings")

    def _start(self, data: Data, settings: Settings, rng: np.random.Generator) -> Params:
        """Return the initial parameters of a fit; with ``margins="posterior"`` they are random."""
        if getattr(self, "margins", "consistent") == "posterior":
            return starts.random_params(data.X, settings, rng)
        return starts.start(data, settings, self._policy)

    def _attributes(self, state: State, used: Integers | None = None) -> dict[str, Any]:
        """Return the fitted attributes of the features in use, and of the classifier if there is one.

        ``used`` are the features in use of an earlier batch, which stay in use.
        """
        if used is None:
            varies = in_use(state.embedding)
            if state.probabilities is not None:
                varies |= in_use(state.probabilities)
            used = np.flatnonzero(varies)
        found = {} if state.head is None else self._head_attributes(state, used)
        ratios, mean = state.params.noise_ratios, self.mean_
        if state.probabilities is not None:
            found["probabilities_"] = take_columns(state.probabilities, used)
        return found | {
            "_used": list(map(int, used)),
            "components_": state.params.loadings[used],
            "embedding_": take_columns(state.embedding, used),
            "stick_weights_": stick_weights(state.params.sticks)[used],
            "n_components_": len(used),
            "noise_variance_": state.params.noise_variance,
            "noise_ratios_": np.ones(state.params.loadings.shape[1]) if ratios is None else ratios,
            "prior_variance_": state.params.prior_variance,
            "offset_": (mean if isinstance(mean, np.ndarray) else to_host(mean)) + state.params.offset,
            "_state": state,
        }

    def _attributes_of_all(self, given: Any, state: State) -> dict[str, Any]:
        """Return the fitted attributes; the embedding includes samples of weight zero."""
        rows, found = centre_rows(given, self.mean_), self._attributes(state)
        found["embedding_"] = take_columns(self._infer(rows, state.params.infer), found["_used"])
        if state.probabilities is not None:
            found["probabilities_"] = take_columns(self._infer(rows, state.params.infer_probabilities), found["_used"])
        return found

    def _learn(self, rows: TrainingRows, prepared: tuple[Data, Settings] | None = None) -> None:
        """Fit the model and set the fitted attributes.

        With ``warm_start`` the fit starts from the last solution if its shape fits. ``prepared`` has data and settings
        if the caller has made them. The embedding includes samples of weight zero.
        """
        if prepared is None:
            warn_if_unscaled(rows.X)
            prepared = self._prepare(rows, centre_rows(rows.X, weights=rows.row_weights))
        (data, settings), self.mean_ = prepared, prepared[0].X.mean
        margins, transductive = getattr(self, "margins", "consistent"), getattr(self, "transductive", False)
        previous: State | None = getattr(self, "_state", None) if self.warm_start else None
        n_known, n_inputs = (0, 0) if previous is None else previous.params.loadings.shape
        goes_on = 0 < n_known <= settings.n_components and n_inputs == data.X.n_inputs
        rng, policy = generator(self.random_state), self._policy

        def draw() -> Iterator[tuple[Any, Integers | None, Settings]]:
            if previous is not None and goes_on:
                yield previous, None, settings.follow(previous.params)
            sample = starts.sample_rows(data, rng, policy)
            known = starts.find_input_noise(data.X.take(sample), settings, policy) if settings.per_input else settings
            yield self._start(data.take(sample), known, rng), sample, known
            n = min((len(data.X) + 1) // 2, 2 * policy.sample_rows)
            while True:  # a degenerate fit is restarted from a random half of the samples
                half = np.sort(rng.permutation(len(data.X))[:n])
                yield self._start(data.take(half), known, rng), starts.sample_rows(data, rng, policy), known

        all_count = len(data.X) == rows.given.shape[0]
        attributes = self._attributes if all_count else partial(self._attributes_of_all, rows.given)
        guesses = transductive and len(data.labeled) < len(data.X)
        run = fit.fit_transductive if transductive else fit.fit
        stages = fit.list_stages(margins, guesses, settings.max_iter)
        with self._fitting(attributes, stages, rows.data, self.verbose) as reporter:
            n_init, find_fault = 1 if goes_on else getattr(self, "n_init", 1), partial(self._find_fault, data)
            for start, sample, known in self._try_starts(reporter, draw(), n_init, find_fault, only_faults=True):
                given = {"margins": margins, "sample": sample, "callbacks": [reporter], "policy": policy}
                reporter.result = run(data, known, start, **given)
        if reporter.result.status not in fit.CUT_SHORT:  # the number of features of an unfinished fit is not meaningful
            self._judge_features(data.take(starts.sample_rows(data, rng, policy)), settings)

    def _judge_features(self, data: Data, settings: Settings) -> None:
        """Warn if ``X`` has no structure, if no feature is in use, or if all of them are."""
        with one_blas_thread():
            structured = starts.has_structure(data)
        if not structured:
            warn_of_noise()
        elif self.n_components_ == 0 and not settings.input_scale:
            warn_of_no_features()
        elif self.n_components_ == self.n_components > 1:
            warn_of_truncation(self.n_components_)

    def _find_fault(self, data: Data, state: State) -> str:
        """Return why the predictions for the training samples are degenerate; an empty string if they are not."""
        if state.head is None:
            return ""
        seen, targets = data.labeled, data.targets
        features = state.embedding if data.population is None else state.params.infer(data.X)
        if isinstance(targets, Classes):
            answers = data.X.choose(state, features)[seen]
            return find_fault(targets.labels, answers, targets.cost, targets.C, self.classes_)
        if not isinstance(targets, Signs):
            return ""
        signs, prices, scores = targets.signs, targets.C, to_host(data.X.score(state, features))[seen]
        wrong = float(np.sum(prices * ((scores > 0) != (signs > 0))))
        return judge_signs(wrong, *((prices * (signs == sign)).sum(axis=0) for sign in (-1, 1)))

    def feature_probabilities(self, X: ArrayLike) -> Floats:
        """Return the probability of each feature in use, ``(n_samples, n_components_)``.

        With ``slab`` it is the probability that the feature is not zero. Without, it is the feature at the temperature
        of the fit.
        """
        with room_for(self, X):
            rows = centre_rows(self._valid_rows(X), self.mean_)
            return take_columns(self._infer(rows, self._state.params.infer_probabilities), self._used)

    def transform(self, X: ArrayLike) -> Floats:
        """Return posterior means of the features in use, ``(n_samples, n_components_)``.

        Targets are not used. The means are probabilities or, with ``slab``, expected values.
        """
        with room_for(self, X):
            return take_columns(self._infer(centre_rows(self._valid_rows(X), self.mean_)), self._used)

    def _linear_in_use(self, state: State, used: Integers) -> tuple[Floats, Floats]:
        """Return the weights of the features in use, and intercepts that include the other features."""
        head = state.head
        assert head is not None
        weights, means = head.feature_weights, head.centre
        if state.embedding.shape[0]:  # features that are not in use have nearly the same value in all samples
            means = to_host(sum_of(state.embedding, axis=0)) / state.embedding.shape[0]
        rest = np.delete(np.arange(len(means)), used)
        constant = head.weights[:, -1] if head.fit_intercept else 0.0
        return weights[:, used], constant - weights @ head.centre + weights[:, rest] @ means[rest]

    def _scores(self, X: ArrayLike) -> Floats:
        """Return the score of each output, (n, outputs)."""
        with room_for(self, X):
            rows = centre_rows(self._valid_rows(X), self.mean_)
            return rows.score(self._state, self._infer(rows))

    def _infer(self, rows: Rows, function: Callable[[Rows], Floats] | None = None) -> Floats:
        """Return the features of samples, (n, K), or another function of samples, by blocks."""
        with one_blas_thread():
            executor = make_executor(min(effective_n_jobs(self.n_jobs), rows.max_threads))
            return rows.join(executor.map(function or self._state.params.infer, rows.blocks))


@dataclass(frozen=True)
class Supervision:
    """Settings that depend on the classifier or the regression."""

    C: float
    squared: bool
    one_vs_rest: bool
    generative_weight: float
    temperature: float  # per input, for temperature="auto"
    price: float = 0.0  # penalty on a nonzero feature, with a slab


def make_supervision(
    parameters: Mapping[str, Any], n_outputs: int, labeled_share: float, n_labeled: int = 0, unit: float = 1.0
) -> Supervision:
    """Turn parameters of the linear model into numbers; ``unit`` is the C of "auto" at the default temperature."""
    given = dict(parameters)
    temperature, share, price = DEFAULT_TEMPERATURE, DEFAULT_GENERATIVE_SHARE, 0.0
    if given["slab"]:
        temperature, share, price = SLAB_TEMPERATURE, SLAB_GENERATIVE_SHARE, SLAB_PENALTY
    if given["noise_variance"] == "per_input":
        temperature = PER_INPUT_TEMPERATURE
    elif given["temperature"] != "auto":
        temperature = float(given["temperature"])
    # Scores of nearly binary features vary more, so smaller weights reach the same margins: C is smaller.
    C = unit if given["slab"] else unit * min(1.0, float(np.sqrt(temperature / DEFAULT_TEMPERATURE)))
    if given["C"] != "auto":
        C = float(given["C"])
    if given["slab"]:
        C *= SLAB_C * temperature
    one_vs_rest = given["multi_class"] == "ovr"
    if given["multi_class"] == "auto":
        # With samples in blocks, one-vs-rest margins are solved exactly for any number of weights.
        n_weights = n_outputs * (int(given["n_components"]) + 1)
        is_many = n_labeled * n_outputs > HEAD_POLICY.max_ascent_scores and n_weights > HEAD_POLICY.max_class_weights
        many = is_many and given["loss"] == "squared_hinge"
        one_vs_rest = (bool(given["include_inputs"]) or many) and given["cost"] is None and n_outputs > 2
    weight = given["generative_weight"]
    if weight == "auto":
        n_margins = n_outputs if one_vs_rest else 1
        # Nearly binary features that only the labels support depend on chance, so the reconstruction weighs more.
        heat = min(1.0, temperature / DEFAULT_TEMPERATURE)
        raised = share if given["slab"] else share / np.sqrt(heat)
        weight = raised * C * n_margins * labeled_share**LABELED_POWER
    return Supervision(C, given["loss"] == "squared_hinge", one_vs_rest, float(weight), temperature, price)


def make_settings(
    parameters: Mapping[str, Any], mean_square: float, n_inputs: int, supervision: Supervision
) -> Settings:
    """Turn the parameters that all latent-feature models have into settings.

    ``mean_square`` is the mean squared norm of the centered samples.
    """
    given = dict(parameters)
    temperature = supervision.temperature if given["temperature"] == "auto" else float(given["temperature"])
    noise, prior = given["noise_variance"], given["prior_variance"]
    # The variance has the scale of the inputs; only its product with the temperature matters.
    share = NOISE_SHARE * mean_square / n_inputs if mean_square > 0 else 1.0
    noise_variance = share if isinstance(noise, str) else float(noise)
    weight, prior_ratio = supervision.generative_weight, PRIOR_RATIO
    if given["slab"] and supervision.C > 0 and weight > 0:
        # Shorter loadings make longer values, so the prior sets the scale. In tempered units, a loading of squared
        # length one costs half of a unit of margin loss, for any generative weight.
        prior_ratio = weight / supervision.C
    prior_variance = prior_ratio * noise_variance if isinstance(prior, str) else float(prior)
    tempered = temperature * n_inputs
    if noise == "per_input":
        tempered = 1.0 if given["temperature"] == "auto" else float(given["temperature"])
    input_scale = np.sqrt(INPUT_ENERGY / mean_square) if mean_square > 0 else 1.0
    return Settings(
        n_components=int(given["n_components"]),
        alpha=float(given["alpha"]),
        C=supervision.C,
        squared=supervision.squared,
        one_vs_rest=supervision.one_vs_rest,
        temperature=tempered,
        generative_weight=weight,
        noise_variance=noise_variance,
        prior_variance=prior_variance,
        estimate_noise=noise == "estimate",
        estimate_prior=prior == "estimate",
        fit_intercept=bool(given.get("fit_intercept", False)),
        input_scale=float(input_scale) if given.get("include_inputs", False) else 0.0,
        n_sweeps=int(given["n_sweeps"]),
        max_iter=int(given["max_iter"]),
        tol=float(given["tol"]),
        n_threads=effective_n_jobs(given["n_jobs"]),
        slab=given["slab"],
        price=supervision.price,
        per_input=noise == "per_input",
    )


def labeled_share(data: Data) -> float:
    """Return the share of the samples that have a target."""
    X, labeled = data.X, data.labeled
    return len(labeled) / len(X) if X.weights is None else float(X.weights[labeled].sum()) / X.totals.n_rows


def target_shape(y: Any) -> tuple[int, ...]:
    """Return the shape of targets; () for ragged lists, which validation rejects."""
    try:
        return tuple(y.shape) if hasattr(y, "shape") else np.asarray(y).shape
    except ValueError:
        return ()


def is_label_matrix(y: Any) -> bool:
    """Return whether targets have several columns."""
    shape = target_shape(y)
    return len(shape) == 2 and int(shape[1]) > 1


def read_numbers(y: Any, X: Any) -> Floats:
    """Return targets as a new array in host memory, (n, outputs), NaN where missing."""
    if y is None:
        raise ValueError("this estimator requires y to be passed, but the target y is None")
    (y,) = bring_targets(X, y=y)
    values = check_array(
        y.toarray() if hasattr(y, "toarray") else y,
        dtype=np.float64,
        ensure_2d=False,
        ensure_all_finite="allow-nan",
        input_name="y",
        copy=True,
    )
    if values.ndim not in (1, 2):
        raise ValueError(f"`y` must be of shape (n_samples,) or (n_samples, n_outputs); got {values.shape}.")
    check_consistent_length(np.empty(X.shape[0]), values)
    return values.reshape(len(values), -1)


@persistable(skip=("_skl_callbacks",))
class ILSVMClassifier(BinaryFeatures, BatchClassifier):
    """Max-margin classifier on latent features with an Indian buffet process prior.

    The infinite latent support vector machine (iLSVM) jointly learns binary latent features and a max-margin classifier
    on them. Prediction infers the features of a sample without its label, and the margins act on these features.
    ``n_components`` truncates the prior; ``n_components_`` is the number of features in use. ``X`` is centered but not
    scaled.

    For several labels, ``y`` is a matrix of 0 and 1 with a column per label and NaN where a label is missing.

    Tune ``slab`` (None to predict, "half-normal" to interpret the features), ``C``, ``temperature`` and
    ``include_inputs`` first, then ``generative_weight`` and ``alpha``. ``n_components`` only has to be large enough.

    Parameters
    ----------
    n_components : int, default=50
        Maximum number of features.
    alpha : float, default=2.0
        Controls the prior number of features (concentration of the Indian buffet process). Larger values expect more.
    C : float or "auto", default="auto"
        Controls the penalty on margin violations. Larger values fit the training labels more closely. "auto" is 1 at
        the default temperature and smaller for nearly binary features (formula in Notes).
    loss : {"squared_hinge", "hinge"}, default="squared_hinge"
        Loss of a margin violation.
    multi_class : {"auto", "crammer_singer", "ovr"}, default="auto"
        Controls the margins of a sample. "crammer_singer" is one margin, against the best wrong class; "ovr" is one
        margin per class, against the rest. "auto" chooses by ``include_inputs``, ``cost`` and size (rule in Notes).
    cost : array-like of shape (n_classes, n_classes), default=None
        ``cost[true, predicted]`` is the margin required against a wrong class, in the order of ``classes_``. The
        diagonal is zero; other entries are 1 by default. Larger costs make an error rarer with the squared hinge. Not
        valid with one-vs-rest margins.
    class_weight : dict, "balanced" or None, default=None
        Factors on ``C`` by class.
    fit_intercept : bool, default=True
        Whether the classifier has a (penalized) intercept.
    include_inputs : bool, default=False
        Whether the classifier uses the inputs in addition to the latent features.
    temperature : float or "auto", default="auto"
        Controls how far probabilities stay from 0 and 1, per input. 0.2 ("auto") is a predictive setting; 0.02 gives
        nearly binary features. With ``noise_variance="per_input"`` it is the temperature of the whole model, and "auto"
        is 1.
    generative_weight : float or "auto", default="auto"
        Controls the weight of the reconstruction of ``X`` relative to the margin loss. Larger values give features that
        explain ``X``; smaller values, features that predict ``y``. "auto" scales with ``C`` and the share of labeled
        samples (formula in Notes).
    margins : {"consistent", "posterior"}, default="consistent"
        Whether margins act on the features that prediction infers ("consistent") or on the posterior given the labels
        ("posterior", the algorithm of the paper).
    unlabeled : object, default=None
        Value of ``y`` that marks an unlabeled sample: a number or a string, but not NaN. Unlabeled samples contribute
        to the features and have no margins. None: all samples are labeled.
    transductive : bool, default=False
        Whether unlabeled samples get margins too, with guessed labels (Joachims, 1999). Their weight grows up to that
        of a labeled sample of the class.
    slab : {"half-normal", "normal"} or None, default=None
        Controls the values of features. None: binary, and `transform` returns probabilities. "half-normal": zero or a
        nonnegative value. "normal": zero or a real value (spike and slab). With a slab most features are clearly zero
        or not, so they are easier to interpret. Then `transform` returns expected values, and `feature_probabilities`
        the probabilities of not being zero. ``C`` is relative to the temperature, and the "auto" rules differ (Notes).
        Only valid with ``margins="consistent"``.
    noise_variance : float, "auto", "estimate" or "per_input", default="auto"
        Controls the variance of the noise. "auto" is half of the inputs' variance, and "estimate" re-estimates that
        value during the fit. "per_input" estimates one variance per input by factor analysis, for data made of binary
        parts; it requires ``slab=None`` and ``margins="consistent"``.
    prior_variance : float, "auto" or "estimate", default="auto"
        Controls the prior variance of the loadings. "auto" is proportional to the noise variance (formula in Notes);
        "estimate" re-estimates it during the fit.
    n_sweeps : int, default=1
        Number of sweeps of mean-field inference for a sample.
    n_init : int, default=1
        Maximum number of restarts of a degenerate fit: one that is worse than a constant prediction on the training
        samples, or never predicts classes with a large share of them. A `PoorFitWarning` reports that restarts failed.
    max_iter : int, default=200
        Maximum number of steps after the structure search, which determines the number of features.
    tol : float, default=1e-3
        Relative change of the objective at which to stop.
    warm_start : bool, default=False
        Whether ``fit`` continues from the last solution, without a structure search. Features that the last fit pruned
        do not return. A lower temperature is approached in steps.
    random_state : int, RandomState instance or None, default=None
        Controls the samples that the structure search uses if there are more than 8192, and the restarts. With
        ``margins="posterior"`` it controls the initialization, which is deterministic otherwise.
    n_jobs : int or None, default=None
        Number of threads. The result does not depend on it.
    verbose : int, default=0
        Whether to show a progress bar.

    Attributes
    ----------
    classes_ : array of shape (n_classes,)
        The classes. For several labels, the indices of their columns.
    multi_class_ : {"crammer_singer", "ovr"}
        The margins of the fit.
    n_components_ : int
        Number of features in use: those whose values range over more than 0.1 in the training samples.
    components_ : array of shape ``(n_components_, n_features)``
        Loadings of the features in use.
    coef_features_ : array of shape ``(n_classes, n_components_)``, or ``(1, n_components_)`` for two classes
        Weights of the features in use.
    intercept_ : array of shape (n_classes,) or (1,)
    coef_inputs_ : array of shape (n_classes, n_features) or (1, n_features)
        Weights of the inputs, with ``include_inputs=True``.
    embedding_ : array of shape ``(n_samples, n_components_)``
        Posterior means of the training samples' features, inferred without labels.
    probabilities_ : array of shape ``(n_samples, n_components_)``
        With ``slab``: probabilities that the training samples' features are not zero.
    stick_weights_ : array of shape ``(n_components_,)``
        Prior probability of each feature.
    mean_ : array of shape (n_features,)
        Means of the inputs.
    offset_ : array of shape (n_features,)
        Offset of the reconstruction, which is ``embedding_ @ components_ + offset_``.
    noise_variance_, prior_variance_ : float
    noise_ratios_ : array of shape (n_features,)
        Noise variance of each input over ``noise_variance_``, with product 1. All are 1 except with
        ``noise_variance="per_input"``.
    objective_ : float
        Objective of the fit, with a normalized prior. It is comparable between fits with different numbers of features.
    trace_ : Trace
        History of the objective and its named terms after the structure search. A transductive fit has the histories of
        all its stages in sequence.
    n_iter_ : int
        Number of iterations in ``trace_``.
    n_samples_seen_ : int or float
        After ``partial_fit``: total weight of the samples of all batches.
    n_features_in_, feature_names_in_
        As in scikit-learn.

    See Also
    --------
    IBPFactorAnalysis : The features without labels.
    ILSVMClassifierCV : Chooses the parameters by cross-validation.

    Notes
    -----
    Let ``T`` be the temperature, ``r = min(1, T / 0.2)``, ``m`` the number of margins of a sample, and ``s`` the share
    of labeled samples. The "auto" rules are:

    - Without a slab, ``C`` is ``sqrt(r)``, ``generative_weight`` is ``0.03 * C * m * s**0.75 / sqrt(r)``, and the prior
      variance is the noise variance over 0.3. With ``noise_variance="per_input"``, these formulas use ``T = 0.02``.
    - With a slab, ``T`` is 0.003, and ``C`` (1 for "auto") is multiplied by ``10 / 3 * T``. ``generative_weight`` is
      ``0.003 * C * m * s**0.75``, and the prior variance is the noise variance times ``generative_weight / C``.
    - ``multi_class`` is "ovr" for three or more classes without ``cost`` in two cases: with ``include_inputs``, or with
      the squared hinge, more than 100,000 labeled samples times classes, and more than 2,000 weights.

    The model is in docs/math.md, sections 2 and 3. Arrays of PyTorch and CuPy are supported under
    ``sklearn.config_context(array_api_dispatch=True)``: docs/scale.md.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from regbayes import ILSVMClassifier
    >>> X, y = load_digits(return_X_y=True)
    >>> model = ILSVMClassifier(n_components=16, tol=1e-2, random_state=0).fit(X[::2], y[::2])
    >>> model.score(X[1::2], y[1::2]) > 0.9
    True
    """

    predict_proba = NoProbabilities("ILSVMClassifierCV")
    _several: bool = False  # whether the targets are several labels
    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **LATENT_CONSTRAINTS,
        "noise_variance": NOISE_VARIANCE,
        "C": [POSITIVE, StrOptions({"auto"})],
        "loss": [StrOptions({"squared_hinge", "hinge"})],
        "multi_class": [StrOptions({"auto", "crammer_singer", "ovr"})],
        "cost": ["array-like", None],
        "class_weight": [dict, StrOptions({"balanced"}), None],
        "fit_intercept": ["boolean"],
        "include_inputs": ["boolean"],
        "generative_weight": [NOT_NEGATIVE, StrOptions({"auto"})],
        "slab": [StrOptions({"half-normal", "normal"}), None],
        "margins": [StrOptions({"consistent", "posterior"})],
        "unlabeled": "no_validation",
        "transductive": ["boolean"],
    }

    def __init__(
        self,
        n_components: int = 50,
        *,
        alpha: float = 2.0,
        C: float | Literal["auto"] = "auto",
        loss: Literal["squared_hinge", "hinge"] = "squared_hinge",
        multi_class: Literal["auto", "crammer_singer", "ovr"] = "auto",
        cost: ArrayLike | None = None,
        class_weight: Any = None,
        fit_intercept: bool = True,
        include_inputs: bool = False,
        temperature: float | Literal["auto"] = "auto",
        generative_weight: float | Literal["auto"] = "auto",
        margins: Literal["consistent", "posterior"] = "consistent",
        unlabeled: Any = None,
        transductive: bool = False,
        slab: Literal["half-normal", "normal"] | None = None,
        noise_variance: float | Literal["auto", "estimate", "per_input"] = "auto",
        prior_variance: float | Literal["auto", "estimate"] = "auto",
        n_sweeps: int = 1,
        n_init: int = 1,
        max_iter: int = 200,
        tol: float = 1e-3,
        warm_start: bool = False,
        random_state: Any = None,
        n_jobs: int | None = None,
        verbose: int = 0,
    ) -> None:
        self.n_components = n_components
        self.alpha = alpha
        self.C = C
        self.loss = loss
        self.multi_class = multi_class
        self.cost = cost
        self.class_weight = class_weight
        self.fit_intercept = fit_intercept
        self.include_inputs = include_inputs
        self.temperature = temperature
        self.generative_weight = generative_weight
        self.margins = margins
        self.unlabeled = unlabeled
        self.transductive = transductive
        self.slab = slab
        self.noise_variance = noise_variance
        self.prior_variance = prior_variance
        self.n_sweeps = n_sweeps
        self.n_init = n_init
        self.max_iter = max_iter
        self.tol = tol
        self.warm_start = warm_start
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.verbose = verbose

    def _read(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None) -> Any:
        self._several = is_label_matrix(y)
        if not self._several:
            return super()._read(X, y, sample_weight)
        given = read_rows(self, X, ensure_min_samples=2)
        return self._read_labels(given, y, sample_weight)

    def _read_batch(
        self, X: ArrayLike, y: ArrayLike, classes: ArrayLike | None, sample_weight: ArrayLike | None, first: bool
    ) -> Any:
        if first:
            self._several = is_label_matrix(y)
        if not self._several:
            return super()._read_batch(X, y, classes, sample_weight, first)
        given = read_rows(self, X, ensure_min_samples=2 if first else 1, reset=first)
        return self._read_labels(given, y, sample_weight, None if first else len(self.classes_))

    def _refit_weights(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None) -> None:
        if not self._several:
            super()._refit_weights(X, y, sample_weight)
            return
        given = read_rows(self, X, reset=False)
        self._solve_target_weights(self._read_labels(given, y, sample_weight, len(self.classes_)))

    def _read_labels(
        self, given: Any, y: ArrayLike, sample_weight: ArrayLike | None, n_labels: int | None = None
    ) -> TargetRows:
        """Return the samples that count and their labels; ``n_labels`` is the number required, if known."""
        self._check_several()
        labels = read_numbers(y, given)
        if self.unlabeled is not None:
            labels[labels == self.unlabeled] = np.nan
        unknown = labels[~np.isnan(labels) & (labels != 0) & (labels != 1)]
        if len(unknown):
            raise ValueError(
                f"Several columns of `y` must be labels: 0, 1, or NaN where missing; got {unknown[0]:g}. "
                "Use MultiTaskILSVMClassifier for several targets with other classes."
            )
        if n_labels not in (None, labels.shape[1]):
            raise ValueError(f"`y` has {labels.shape[1]} labels, but earlier samples had {n_labels}.")
        data = fit_data(given, y, sample_weight=sample_weight)
        rows, labels, weights = drop_weightless(given, labels, sample_weight)
        found = TargetRows.of(rows, labels, weights, given, data, signs=True)
        self.classes_ = np.arange(labels.shape[1])
        return found

    def _check_several(self) -> None:
        for name in ("cost", "class_weight"):
            if getattr(self, name) is not None:
                raise ValueError(f"`{name}` is for classes, but `y` has several labels.")
        if self.transductive or self.multi_class == "crammer_singer":
            raise ValueError('several labels need `transductive=False` and `multi_class="auto"` or `"ovr"`.')

    def _prepare(self, rows: Any, X: Rows, n_labeled: int | None = None) -> tuple[Data, Settings]:
        """Return centered samples with their targets, and the settings.

        ``n_labeled`` is the expected number of labels if more batches follow.
        """
        if isinstance(rows, TargetRows):
            data = Data(X, rows.targets, rows.places)
        else:
            data = Data.of_classes(X, rows.codes, rows.label_weights, rows.cost)
        return data, self._make_settings(data, n_labeled)

    def _make_settings(self, data: Data, n_labeled: int | None = None) -> Settings:
        if self.margins == "posterior" and self.generative_weight == 0:
            raise ValueError('generative_weight must be positive with margins="posterior", got 0')
        if self.margins == "posterior" and self.slab is not None:
            raise ValueError('slab is for margins="consistent": the other algorithm knows no amounts')
        if self.noise_variance == "per_input" and (self.slab is not None or self.margins == "posterior"):
            raise ValueError('`noise_variance="per_input"` needs `slab=None` and `margins="consistent"`.')
        if self.cost is not None and self.multi_class == "ovr":
            raise ValueError('cost is for multi_class="crammer_singer": margins against the rest know no wrong answers')
        parameters, X, labeled = self.get_params(deep=False), data.X, data.labeled
        if self._several:
            parameters["multi_class"] = "ovr"
        share = labeled_share(data)
        n_labeled = len(labeled) if n_labeled is None else n_labeled
        supervision = make_supervision(parameters, len(self.classes_), share, n_labeled)
        self.multi_class_ = "ovr" if supervision.one_vs_rest else "crammer_singer"
        return make_settings(parameters, X.totals.mean_square, X.n_inputs, supervision)

    def _head_attributes(self, state: State, used: Integers) -> dict[str, Any]:
        """Return the fitted attributes of the classifier; for two classes, the difference of their scores."""
        head = state.head
        assert head is not None
        latent, intercept = self._linear_in_use(state, used)
        found = {"coef_features_": latent, "intercept_": intercept}
        if state.input_scale:
            K, D = state.params.loadings.shape
            found["coef_inputs_"] = state.input_scale * head.weights[:, K : K + D]
        return found if self._several else binary_difference(found)

    def _class_scores(self, X: ArrayLike) -> Floats:
        return self._scores(X)

    def decision_function(self, X: ArrayLike) -> Floats:
        """Return the score of each class or label, shape (n_samples, n_classes), or (n_samples,) for two classes."""
        check_is_fitted(self, "_state")
        return self._scores(X) if self._several else super().decision_function(X)

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Return the class of each sample, shape (n_samples,), or its labels as 0 or 1, (n_samples, n_labels)."""
        check_is_fitted(self, "_state")
        if not self._several:
            return super().predict(X)
        scores = self._scores(X)
        return put_beside(to_host(scores > 0).astype(np.int64), scores)

    def score(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """Return the accuracy.

        For several labels it is the share of samples whose observed labels are all predicted.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : array-like of shape (n_samples,) or (n_samples, n_labels)
        sample_weight : array-like of shape (n_samples,), default=None
            Weight of each sample.
        """
        check_is_fitted(self, "_state")
        if not self._several:
            return float(super().score(X, y, sample_weight))
        y, predicted, sample_weight = on_host(y, self.predict(X), sample_weight)
        y = y.toarray() if hasattr(y, "toarray") else y
        return subset_accuracy(y, predicted, unlabeled=self.unlabeled, sample_weight=sample_weight)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        tags.target_tags.multi_output = True
        return tags
