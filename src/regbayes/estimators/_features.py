"""Latent features of samples: the bases of `ILSVMClassifier`, `ILSVMRegressor` and `IBPFactorAnalysis`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from numbers import Integral
from typing import Any, ClassVar, Literal, Self

import numpy as np
from joblib import effective_n_jobs
from numpy.typing import ArrayLike
from sklearn.base import _fit_context
from sklearn.callback import with_callbacks
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_array, check_consistent_length
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted

from regbayes._types import Floats, Integers
from regbayes.engine import make_executor, row_blocks
from regbayes.estimators._arrays import bring_targets, work_here
from regbayes.estimators._bases import (
    NOT_NEGATIVE,
    POSITIVE,
    FirstBatchWarning,
    LatentModel,
    check_features_in_use,
    drop_weightless,
    find_fault,
    fit_beside,
    fit_data,
    generator,
    in_use,
    judge_signs,
    keep_on_failure,
    one_blas_thread,
    read_rows,
    room_for,
    warn_if_unscaled,
    warn_of_no_features,
    warn_of_truncation,
)
from regbayes.kernels.arrays import sum_of, take_columns, to_host
from regbayes.margins.head import HEAD_POLICY
from regbayes.margins.targets import Classes, Numbers, Signs, Targets
from regbayes.models.ilsvm import batches, fit, starts
from regbayes.models.ilsvm.batches import Batches
from regbayes.models.ilsvm.model import FINAL, Data, Params, Rows, Settings, State, centre_rows
from regbayes.models.indian_buffet import stick_weights

FEW_ROWS = 500  # samples of the first batch below which its features depend on chance
LOOSE = 100.0  # factor on the duality gap above which the weights have not converged
VARIANCES = {
    "noise_variance": [POSITIVE, StrOptions({"auto", "estimate", "per_input"})],
    "prior_variance": [POSITIVE, StrOptions({"auto", "estimate"})],
}


# --- "auto" parameters


@dataclass(frozen=True)
class AutoRule:
    """Numbers of the "auto" parameters for one kind of features; Notes of `ILSVMClassifier` have the formulas."""

    temperature: float  # per input, with targets
    unsupervised_temperature: float  # per input, without targets
    generative_share: float  # generative weight as a share of C for each margin of a sample
    price: float  # penalty on a nonzero feature with targets, in nats


BINARY = AutoRule(0.2, 0.01, 0.03, 0.0)  # a predictive setting with high-temperature features
SLAB = AutoRule(0.003, 0.05, 0.003, 2.5)  # most features are clearly zero or not
SLAB_C = 10 / 3  # factor on C and the temperature per input: values grow as 1 / sqrt(T), so C follows T
PER_INPUT_TEMPERATURE = 0.02  # temperature per input in the "auto" rules for noise_variance="per_input"
PRIOR_RATIO = 1 / 0.3  # prior variance of a loading for prior_variance="auto", in noise variances
LABELED_POWER = 0.75  # power of the share of labeled samples in generative_weight="auto"
NOISE_SHARE = 0.5  # noise variance of "auto", as a share of the inputs' variance
INPUT_ENERGY = 2.0  # mean squared norm of the inputs that a classifier has in addition to latent features


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
    given: Mapping[str, Any], n_outputs: int, labeled_share: float, n_labeled: int = 0, unit: float = 1.0
) -> Supervision:
    """Turn parameters of the linear model into numbers; ``unit`` is the C of "auto" at the default temperature."""
    rule = SLAB if given["slab"] else BINARY
    temperature = rule.temperature if given["temperature"] == "auto" else float(given["temperature"])
    if given["noise_variance"] == "per_input":
        temperature = PER_INPUT_TEMPERATURE
    heat = min(1.0, temperature / BINARY.temperature)
    # Scores of nearly binary features vary more, so smaller weights reach the same margins: C is smaller.
    C = unit if given["slab"] else unit * float(np.sqrt(heat))
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
        # Nearly binary features that only the labels support depend on chance, so the reconstruction weighs more.
        share = rule.generative_share if given["slab"] else rule.generative_share / np.sqrt(heat)
        weight = share * C * (n_outputs if one_vs_rest else 1) * labeled_share**LABELED_POWER
    return Supervision(C, given["loss"] == "squared_hinge", one_vs_rest, float(weight), temperature, rule.price)


def make_settings(given: Mapping[str, Any], mean_square: float, n_inputs: int, supervision: Supervision) -> Settings:
    """Turn the parameters that all latent-feature models have into settings.

    ``mean_square`` is the mean squared norm of the centered samples.
    """
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


# --- targets


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
    (y,) = bring_targets(X, y=y)
    if y is None:
        raise ValueError("this estimator requires y to be passed, but the target y is None")
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


def observe_values(
    values: Floats, weights: Floats | None, signs: bool, required: bool = False
) -> tuple[Signs | Numbers, Integers | None]:
    """Return the targets, and the indices of the samples that have any; None if all do.

    ``values`` are (n, outputs), NaN where missing. As signs, positive values are true. If targets are ``required``, an
    error is raised without any.
    """
    seen = ~np.isnan(values)
    places = np.flatnonzero(seen.any(axis=1))
    if required and not len(places):
        raise ValueError("`y` has no observed target: every value is missing.")
    prices = seen * (1.0 if weights is None else weights[:, None])
    found: Signs | Numbers = Numbers(np.where(seen, values, 0.0), prices)
    if signs:
        found = Signs(np.where(values > 0, 1, -1).astype(np.int8), prices)
    return (found, None) if len(places) == len(values) else (found.take(places), places)


@dataclass(frozen=True)
class TrainingRows:
    """Training samples with nonzero weight, and their targets."""

    X: Floats  # (n, d)
    row_weights: Floats | None  # (n,): weight of each sample, positive; None if all count once
    given: Floats  # all samples, including those of weight zero
    data: dict[str, Any]  # data of the fit for callbacks
    targets: Targets | None = None  # targets of the samples that have any
    places: Integers | None = None  # indices of these samples, ascending; None if all samples have targets


# --- estimators


@dataclass(eq=False, repr=False)
class LatentFeatures(LatentModel):
    """Base of the estimators of iLSVM's features: a fit for any kind of target, mini-batches, and transforms.

    A subclass reads targets in ``_check_targets`` and ``_observe``, and turns data into settings in ``_make_settings``.

    Parameters
    ----------
    n_components : int
        Maximum number of features.
    slab : {"half-normal", "normal"} or None
        Controls the values of features. None: binary, and `transform` returns probabilities. "half-normal": zero or a
        nonnegative value. "normal": zero or a real value (spike and slab). With a slab `transform` returns expected
        values, and `feature_probabilities` the probabilities of not being zero.
    n_sweeps : int
        Number of sweeps of mean-field inference for a sample.
    max_iter : int
        Maximum number of steps after the structure search, which determines the number of features.
    tol : float
        Relative change of the objective at which to stop.
    random_state : int, RandomState instance or None
        Controls the samples that the structure search uses if there are more than 8192.

    Attributes
    ----------
    n_components_ : int
        Number of features in use: those whose values range over more than 0.1 in the training samples.
    components_ : array of shape ``(n_components_, n_features)``
        Loadings of the features in use.
    embedding_ : array of shape ``(n_samples, n_components_)``
        Posterior means of the training samples' features, inferred without targets: probabilities or, with ``slab``,
        expected values.
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
        Noise variance of each input over ``noise_variance_``, with product 1.
    objective_ : float
        Objective of the fit, with a normalized prior. It is comparable between fits with different numbers of features.
    trace_ : Trace
        History of the objective and its named terms after the structure search.
    n_iter_ : int
        Number of iterations in ``trace_``.
    n_samples_seen_ : int or float
        After ``partial_fit``: total weight of the samples of all batches.
    """

    _: KW_ONLY
    slab: Literal["half-normal", "normal"] | None = None
    n_sweeps: int = 1

    _policy: ClassVar[starts.StructurePolicy] = starts.POLICY
    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **LatentModel._parameter_constraints,
        "slab": [StrOptions({"half-normal", "normal"}), None],
        "n_sweeps": [Interval(Integral, 1, None, closed="left")],
    }

    def _check_targets(self, y: Any, X: Any, first: bool) -> Any:
        """Return the validated targets of all samples."""

    def _observe(
        self, values: Any, weights: Floats | None, first: bool, classes: ArrayLike | None
    ) -> tuple[Targets | None, Integers | None]:
        """Return the targets, and the indices of the samples that have any; None if all do."""
        return None, None

    def _make_settings(self, data: Data, n_labeled: int | None = None) -> Settings:
        """Return the settings; ``n_labeled`` is the expected number of targets if more batches follow."""
        raise NotImplementedError

    def _head_attributes(self, state: State, used: Integers) -> dict[str, Any]:
        """Return the fitted attributes of the linear model."""
        raise NotImplementedError

    def _check_batch_settings(self, settings: Settings) -> None:
        """Raise an error for settings that do not support mini-batches."""

    def _check_loaded(self) -> None:
        self._validate_params()  # scikit-learn does not validate them in `partial_fit` of a fitted model
        if not hasattr(self, "_state"):
            return
        n_components, n_inputs = self._state.params.loadings.shape
        if n_inputs != self.n_features_in_ or to_host(self.mean_).shape != (n_inputs,):
            raise ValueError("n_features_in_ and mean_ must fit the loadings")
        check_features_in_use(self, n_components)
        if hasattr(self, "_batches") and self._batches.state.params.loadings.shape != (n_components, n_inputs):
            raise ValueError("the batches must have as many features as the loadings")

    # Fits.

    def _fit_rows(self, X: ArrayLike, y: Any, sample_weight: ArrayLike | None) -> Self:
        with keep_on_failure(self), room_for(self, X):
            rows = self._read(X, y, sample_weight, first=True)
            with fit_beside(self, rows.given):
                self._learn(rows)
        return self

    def _partial_fit(
        self, X: ArrayLike, y: Any, sample_weight: ArrayLike | None, classes: ArrayLike | None = None
    ) -> Self:
        work_here(self, X, "partial_fit")
        with keep_on_failure(self):
            self._learn_batch(self._read(X, y, sample_weight, not hasattr(self, "_state"), classes))
        return self

    def _read(
        self, X: ArrayLike, y: Any, sample_weight: ArrayLike | None, first: bool, classes: ArrayLike | None = None
    ) -> TrainingRows:
        """Return the samples with nonzero weight; the first ones determine the classes or the units of targets."""
        given = read_rows(self, X, ensure_min_samples=2 if first else 1, reset=first)
        values = self._check_targets(y, given, first)
        rows, weights, values = drop_weightless(given, sample_weight, values)
        data = fit_data(given, y, sample_weight=sample_weight)
        return TrainingRows(rows, weights, given, data, *self._observe(values, weights, first, classes))

    def _start(self, data: Data, settings: Settings, rng: np.random.Generator) -> Params:
        """Return the initial parameters of a fit; with ``margins="posterior"`` they are random."""
        if getattr(self, "margins", "consistent") == "posterior":
            return starts.random_params(data.X, settings, rng)
        return starts.start(data, settings, self._policy)

    def _learn(self, rows: TrainingRows, prepared: tuple[Data, Settings] | None = None, is_fit: bool = True) -> None:
        """Fit the model and set the fitted attributes.

        With ``warm_start`` the fit starts from the last solution if its shape fits. ``prepared`` has data and settings
        if the caller has made them; ``is_fit`` is False for `partial_fit`. The embedding includes samples of weight
        zero.
        """
        if prepared is None:
            warn_if_unscaled(rows.X)
            data = Data(centre_rows(rows.X, weights=rows.row_weights), rows.targets, rows.places)
            prepared = data, self._make_settings(data)
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
        with self._fitting(attributes, stages, rows.data, self.verbose, is_fit) as reporter:
            n_init, judge = 1 if goes_on else getattr(self, "n_init", 1), partial(self._find_fault, data)
            for start, sample, known in self._try_starts(reporter, draw(), n_init, judge, only_faults=True):
                given = {"margins": margins, "sample": sample, "callbacks": [reporter], "policy": policy}
                reporter.result = run(data, known, start, **given)
        if reporter.result.status not in fit.CUT_SHORT:  # the number of features of an unfinished fit is not meaningful
            self._judge_features(data.take(starts.sample_rows(data, rng, policy)), settings)

    def _judge_features(self, data: Data, settings: Settings) -> None:
        """Warn if ``X`` has no structure, if no feature is in use, or if all of them are."""
        with one_blas_thread():
            structured = starts.has_structure(data)
        if not structured:
            warnings.warn(
                "No structure found: no direction of `X` has more variance than uncorrelated noise would have. "
                "The features may describe noise. Collect more samples or check the labels.",
                ConvergenceWarning,
                stacklevel=3,
            )
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

    def _learn_batch(self, rows: TrainingRows) -> None:
        """Fit the first batch, or update the fit with a further one; set the fitted attributes."""
        if not hasattr(self, "_state"):
            if len(rows.X) < FEW_ROWS:
                warnings.warn(
                    f"The first batch has {len(rows.X)} samples, and it determines the features, their number and the "
                    f"scales. Begin with at least {FEW_ROWS} samples in random order.",
                    FirstBatchWarning,
                    stacklevel=4,
                )
            warn_if_unscaled(rows.X)
            data, settings = self._prepare_batch(rows, centre_rows(rows.X, weights=rows.row_weights))
            self._check_batch_settings(settings)
            self._learn(rows, (data, settings), is_fit=False)
            with one_blas_thread():
                found = settings.follow(self._state.params)
                self._set_batches(batches.begin(data, found, self._state, data.X.totals.n_rows))
            return
        centred = centre_rows(rows.X, self.mean_, rows.row_weights)
        if not np.isfinite(centred.totals.mean_square):
            raise ValueError("X is too large to square it: give it in the units of the first batch")
        data, settings = self._prepare_batch(rows, centred)
        known: Batches | None = getattr(self, "_batches", None)
        if known is None:  # the model was fitted with ``fit``
            settings = self._take_fitted_scales(settings)
            self._check_batch_settings(settings)
            # A fit on a Dask cluster keeps no embedding.
            n_rows = getattr(self, "n_samples_seen_", self._state.embedding.shape[0])
            known = batches.begin(None, settings, self._state, float(n_rows))
        with one_blas_thread():
            learned, state = batches.learn(data, known)
        self.__dict__.update(self._attributes(state, self._used))
        self._set_batches(learned)

    def _prepare_batch(self, rows: TrainingRows, X: Rows) -> tuple[Data, Settings]:
        """Return data and settings that do not depend on the size of a batch."""
        data = Data(X, rows.targets, rows.places)
        return data, self._make_settings(data, HEAD_POLICY.max_ascent_scores)

    def _take_fitted_scales(self, settings: Settings) -> Settings:
        """Return settings with the scales and the feature type of the fitted model."""
        params = self._state.params
        return replace(
            settings.follow(params),
            n_components=len(params.loadings),
            noise_variance=params.noise_variance,
            prior_variance=params.prior_variance,
            temperature=params.temperature,
            n_sweeps=params.n_sweeps,
            input_scale=self._state.input_scale,
            slab=params.slab,
        )

    def _set_batches(self, learned: Batches) -> None:
        n_rows = learned.state.n_rows
        self._batches, self.n_samples_seen_ = learned, int(n_rows) if n_rows.is_integer() else n_rows

    def _attributes(self, state: State, used: Integers | None = None) -> dict[str, Any]:
        """Return the fitted attributes of the features in use, and of the linear model if there is one.

        ``used`` are the features in use of an earlier batch, which stay in use.
        """
        if used is None:
            varies = in_use(state.embedding)
            if state.probabilities is not None:
                varies |= in_use(state.probabilities)
            used = np.flatnonzero(varies)
        found = {} if state.head is None else self._head_attributes(state, used)
        if state.probabilities is not None:
            found["probabilities_"] = take_columns(state.probabilities, used)
        params, ratios = state.params, state.params.noise_ratios
        return found | {
            "_used": list(map(int, used)),
            "components_": params.loadings[used],
            "embedding_": take_columns(state.embedding, used),
            "stick_weights_": stick_weights(params.sticks)[used],
            "n_components_": len(used),
            "noise_variance_": params.noise_variance,
            "noise_ratios_": np.ones(params.loadings.shape[1]) if ratios is None else ratios,
            "prior_variance_": params.prior_variance,
            "offset_": to_host(self.mean_) + params.offset,
            "_state": state,
        }

    def _attributes_of_all(self, given: Any, state: State) -> dict[str, Any]:
        """Return the fitted attributes; the embedding includes samples of weight zero."""
        rows, found = centre_rows(given, self.mean_), self._attributes(state)
        found["embedding_"] = take_columns(self._infer(rows, state.params.infer), found["_used"])
        if state.probabilities is not None:
            found["probabilities_"] = take_columns(self._infer(rows, state.params.infer_probabilities), found["_used"])
        return found

    # Functions of samples.

    def _centred(self, X: ArrayLike) -> Rows:
        check_is_fitted(self, "_state")
        return centre_rows(read_rows(self, X, reset=False), self.mean_)

    def _infer(self, rows: Rows, function: Callable[[Rows], Floats] | None = None) -> Floats:
        """Return the features of samples, (n, K), or another function of samples, by blocks."""
        with one_blas_thread():
            executor = make_executor(min(effective_n_jobs(self.n_jobs), rows.max_threads))
            return rows.join(executor.map(function or self._state.params.infer, rows.blocks))

    def transform(self, X: ArrayLike) -> Floats:
        """Return posterior means of the features in use, ``(n_samples, n_components_)``.

        Targets are not used. The means are probabilities or, with ``slab``, expected values; see
        `feature_probabilities`.
        """
        with room_for(self, X):
            return take_columns(self._infer(self._centred(X)), self._used)

    def feature_probabilities(self, X: ArrayLike) -> Floats:
        """Return the probability of each feature in use, ``(n_samples, n_components_)``.

        With ``slab`` it is the probability that the feature is not zero. Without, it is the feature at the temperature
        of the fit.
        """
        with room_for(self, X):
            return take_columns(self._infer(self._centred(X), self._state.params.infer_probabilities), self._used)


@dataclass(eq=False, repr=False)
class PredictiveFeatures(LatentFeatures):
    """Base of the estimators that learn features together with a linear model of targets.

    Parameters
    ----------
    generative_weight : float or "auto"
        Controls the weight of the reconstruction of ``X`` relative to the prediction of ``y``. Larger values give
        features that explain ``X``; smaller values, features that predict ``y``. "auto" scales with ``C`` and the share
        of labeled samples (formula in the Notes of `ILSVMClassifier`).
    """

    _: KW_ONLY
    C: float | Literal["auto"] = "auto"
    generative_weight: float | Literal["auto"] = "auto"

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **LatentFeatures._parameter_constraints,
        "C": [POSITIVE, StrOptions({"auto"})],
        "generative_weight": [NOT_NEGATIVE, StrOptions({"auto"})],
    }

    @with_callbacks
    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Learn the features and the linear model together.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Sparse samples become dense.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Targets: classes, or labels as 0 and 1 or numbers, with NaN where missing.
        sample_weight : array-like of shape (n_samples,), default=None
            How often each sample counts: 2 counts it twice, 0 leaves it out. The sum is the data's size relative to the
            prior. Divide survey weights by their mean to keep the balance of an unweighted fit.

        Returns
        -------
        self
        """
        return self._fit_rows(X, y, sample_weight)

    @with_callbacks
    @_fit_context(prefer_skip_nested_validation=True)
    def partial_fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Learn from a batch of samples, which are not kept.

        It works as `ILSVMClassifier.partial_fit`. The first batch determines the features, their number, and the scales
        of inputs and targets.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Targets, as for ``fit``.
        sample_weight : array-like of shape (n_samples,), default=None
            How often each sample counts. A sample of a second pass counts again.

        Returns
        -------
        self
        """
        return self._partial_fit(X, y, sample_weight)

    @_fit_context(prefer_skip_nested_validation=True)
    def fit_weights(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Solve for the weights of the linear model at the fitted features.

        Use it after ``partial_fit``. The features that `transform` returns do not change. Samples are read by blocks,
        in at most about a dozen passes, so ``X`` may be a `numpy.memmap` that does not fit in memory. Other samples,
        other targets of the same kind, or another ``C`` give another linear model on the same features.

        Not valid with ``loss="hinge"``.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Targets, as for ``fit``; samples without a target are left out.
        sample_weight : array-like of shape (n_samples,), default=None
            How often each sample counts.

        Returns
        -------
        self
        """
        check_is_fitted(self, "_state")
        work_here(self, X, "fit_weights")
        self._check_squared("fit_weights")
        given = read_rows(self, X, reset=False)
        values = self._check_targets(y, given, first=False)
        every = np.arange(len(given))[:, None]
        kept, weights, values = drop_weightless(every, sample_weight, values)
        targets, places = self._observe(values, weights, first=False, classes=None)
        assert targets is not None
        if len(targets) == 0:
            raise ValueError("`y` has no observed target: every value is missing or `unlabeled`.")
        if places is not None:
            kept, weights = kept[places], None if weights is None else weights[places]
        state = self._state

        def read(part: Any) -> Data:
            own = part if len(kept) == len(given) else kept[part, 0]
            counts = None if weights is None else weights[part]
            rows = centre_rows(np.asarray(given[own], dtype=np.float64), self.mean_, counts)
            return Data(rows, targets.take(part))

        parts = row_blocks(len(targets))
        settings = self._take_fitted_scales(self._make_settings(read(parts[0]), HEAD_POLICY.max_ascent_scores))
        self._check_batch_settings(settings)
        kinds = targets.labels if isinstance(targets, Classes) else None
        with one_blas_thread():
            head, gap = batches.solve_weights(read, parts, kinds, len(targets), settings, state)
        if gap > LOOSE * FINAL.gap:
            warnings.warn(
                f"The weights are solved for to a relative gap of {gap:.1g} only. Lower C, or scale the inputs.",
                ConvergenceWarning,
                stacklevel=2,
            )
        state = replace(state, head=head, multipliers=None)
        if hasattr(self, "_batches"):
            self._batches = batches.settle(self._batches, head)
        self.__dict__.update(self._head_attributes(state, self._used), _state=state)
        return self

    def _check_squared(self, method: str) -> None:
        if getattr(self, "loss", "squared_hinge") != "squared_hinge":
            raise ValueError(f'`{method}` requires loss="squared_hinge"; got {self.loss!r}. Set it, or use `fit`.')

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
            rows = self._centred(X)
            return rows.score(self._state, self._infer(rows))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags
