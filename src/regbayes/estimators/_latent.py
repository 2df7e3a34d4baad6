"""What iLSVM and the features without labels share: from parameters to the model's settings, back to attributes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from regbayes._types import Floats, Integers
from regbayes.engine import FitResult, make_executor
from regbayes.estimators._bases import (
    LatentModel,
    binary_difference,
    find_fault,
    generator,
    in_use,
    kept_objective,
    n_threads,
    one_blas_thread,
    warn_if_noise,
    warn_if_truncated,
    warn_if_unused,
)
from regbayes.kernels.arrays import join, namespace_of, to_host
from regbayes.kernels.sweeps import sweeps_are_loaded
from regbayes.margins.head import MAX_CLASS_WEIGHTS, MIN_BLOCK_ROWS
from regbayes.models.ilsvm import fit, warmup
from regbayes.models.ilsvm.device import centre
from regbayes.models.ilsvm.model import UNLABELED, Data, Params, Rows, Settings, State
from regbayes.models.ilsvm.noise import is_noise
from regbayes.models.ilsvm.warmup import PRIOR_RATIO, default_noise_variance
from regbayes.priors.indian_buffet import stick_expectations, stick_weights

DEFAULT_TEMPERATURE = 0.2  # per input: soft features, the predictive end of the dial
UNSUPERVISED_TEMPERATURE = 0.01  # per input: at a higher one, features that no label holds together fade away
UNSUPERVISED_SLAB_TEMPERATURE = 0.05  # per input: on planted sets the number of features is right there
DEFAULT_GENERATIVE_SHARE = 0.03  # of C, for each margin that a row has
SLAB_TEMPERATURE = 0.02  # per input: where features with amounts are decided
SLAB_C = 0.1  # amounts reach several units: the same margins cost less weight
SLAB_GENERATIVE_SHARE = 0.003  # of C, for each margin that a row has
SLAB_PRICE = 2.0  # nats, of a feature that is on, where labels ask for features
LABELED_POWER = 0.75  # of the share of rows with a label: what "auto" lets rows without one add to the generative part
INPUT_ENERGY = 2.0  # mean squared norm of the inputs beside latent features


FEW_ROWS = 16  # that are predicted before compiled code is loaded


class BinaryFeatures(LatentModel):
    """Binary features of rows, with labels or without: the part of a fit that does not depend on them."""

    _takes_devices: ClassVar[bool] = True  # arrays of PyTorch and CuPy, where they lie

    def _start(self, X: Rows, settings: Settings, rng: np.random.Generator) -> Params | list[Params]:
        """Return where a new fit starts; the paper's alternation has random features, as many as there may be."""
        if getattr(self, "margins", "consistent") == "posterior":
            return warmup.random_params(X, settings, rng)
        return warmup.initial_params(X, settings)

    def _attributes(self, state: State) -> dict[str, Any]:
        """Return the fitted attributes."""
        return latent_attributes(state)

    def _fit_features(
        self,
        data: Data,
        settings: Settings,
        given: Floats,
        shown: dict[str, Any],
        margins: str = "consistent",
        transductive: bool = False,
    ) -> None:
        """Fit the model, from the last solution if that is wanted and possible; set the fitted attributes.

        ``given`` are all rows, those that do not count among them: the embedding has them too.
        """
        self.mean_ = data.X.mean
        previous: State | None = getattr(self, "_state", None) if self.warm_start else None
        goes_on = previous is not None and previous.params.loadings.shape == (settings.n_components, data.X.n_inputs)
        rng = generator(self.random_state)

        def draw() -> Iterator[tuple[Any, Integers | None]]:
            if goes_on:
                yield previous, None
            early_rows = draw_early_rows(data, rng)
            yield self._start(data.X if early_rows is None else data.X.take(early_rows), settings, rng), early_rows
            n = (len(data.X) + 1) // 2
            n = min(n, 2 * warmup.EARLY_ROWS) if data.X.on_device else n  # starts are on the host
            while True:  # other starts are those of a random half of the rows
                half = np.sort(rng.permutation(len(data.X))[:n])
                yield self._start(data.X.take(half), settings, rng), draw_early_rows(data, rng)

        def attributes(state: State) -> dict[str, Any]:
            found = self._attributes(state) | {"offset_": data.X.mean + state.params.offset}
            if len(data.X) < given.shape[0]:
                rows = centre(given, data.X.mean)
                found["embedding_"] = infer_label_free(rows, state.params, self.n_jobs)
                if settings.slab:
                    found["probabilities_"] = infer_by_blocks(state.params.infer_probabilities, rows, self.n_jobs)
            return found

        guesses = transductive and bool(np.any(data.labels == UNLABELED))
        run = fit.fit_transductive if transductive else fit.fit
        stages = fit.list_stages(margins, guesses, settings.max_iter)
        with self._fitting(attributes, stages, shown, self.verbose) as reporter:
            tried = self._try_starts(
                reporter,
                draw(),
                1 if goes_on else self.n_init,
                partial(self._find_fault, data),
                lambda result: normalised_objective(result, settings.generative_weight * data.X.total_weight),
            )
            for start, early_rows in tried:
                reporter.result = run(
                    data, settings, start, margins=margins, early_rows=early_rows, callbacks=[reporter]
                )
        if reporter.result.status not in fit.CUT_SHORT:  # the number of features is not to be judged by half a fit
            with one_blas_thread():
                noise = is_noise(data, settings, rng)
            if noise:
                warn_if_noise()
                return
            if not settings.input_scale:
                warn_if_unused(self.n_components_)
            warn_if_truncated(self.n_components_, self.n_components)

    def _find_fault(self, data: Data, state: State) -> str:
        """Return what is wrong with the answers for the training rows; nothing where there are none."""
        if state.head is None:
            return ""
        rows, psi, codes, weights = data.X, state.embedding, data.labels, data.weights
        if len(data.labeled) < len(rows) and not rows.on_device:
            seen = data.labeled
            rows, psi, codes, weights = rows.take(seen), psi[seen], codes[seen], weights[seen]
        scores = state.scores(rows, psi)
        answers = to_host(namespace_of(scores).argmax(scores, axis=1))
        if rows.on_device:
            codes, weights, answers = codes[data.labeled], weights[data.labeled], answers[data.labeled]
        return find_fault(codes, answers, data.cost, weights, self.classes_)

    def feature_probabilities(self, X: ArrayLike) -> Floats:
        """Return the probabilities that rows have the features, shape (n_samples, n_components).

        Without ``slab`` they are what `transform` returns; with it, `transform` returns the expected amounts.
        """
        rows = centre(self._valid_rows(X), to_host(self.mean_))
        return infer_by_blocks(self._state.params.infer_probabilities, rows, self.n_jobs)

    def _infer(self, X: ArrayLike) -> tuple[Rows, Floats]:
        """Return rows and their features as prediction infers them."""
        rows = centre(self._valid_rows(X), to_host(self.mean_))
        return rows, infer_label_free(rows, self._state.params, self.n_jobs)


def draw_early_rows(data: Data, rng: np.random.Generator) -> Integers | None:
    """Draw the rows for a warm-up, None where it can have them all; of rows on a device they come to the host."""
    found = warmup.draw_early_rows(data.labels, rng)
    return np.arange(len(data.X)) if found is None and data.X.on_device else found


def normalised_objective(result: FitResult[State], weight: float) -> float:
    """Return J with the tempered prior of each row's features normalised, which can be compared between their numbers.

    ``weight`` is that of the generative part, times the number of rows. What the variance of a feature's loadings costs
    where it is on counts as part of its prior. Features without loadings are not in J.
    """
    params = result.state.params
    odds = params.log_odds - 0.5 * params.precision * params.loadings.shape[1] * params.variances
    sums = stick_expectations(params.sticks).log_rest / params.temperature + np.logaddexp(0.0, odds)
    return kept_objective(result) + weight * float(sums[params.loadings.any(axis=1)].sum())


@dataclass(frozen=True)
class Supervision:
    """What a classifier adds to the settings, in numbers."""

    C: float
    squared: bool
    one_vs_rest: bool
    generative_weight: float
    temperature: float  # per input, where nothing else is said
    price: float = 0.0  # of a feature with an amount


UNSUPERVISED = Supervision(
    0.0, squared=True, one_vs_rest=False, generative_weight=1.0, temperature=UNSUPERVISED_TEMPERATURE
)

UNSUPERVISED_SLAB = replace(UNSUPERVISED, temperature=UNSUPERVISED_SLAB_TEMPERATURE)


def make_supervision(
    parameters: Mapping[str, Any], n_classes: int, labeled_share: float, n_labeled: int = 0
) -> Supervision:
    """Turn a classifier's parameters, "auto" among them, into numbers."""
    given = dict(parameters)
    temperature, share, price = DEFAULT_TEMPERATURE, DEFAULT_GENERATIVE_SHARE, 0.0
    if given["slab"]:
        temperature, share, price = SLAB_TEMPERATURE, SLAB_GENERATIVE_SHARE, SLAB_PRICE
    if given["temperature"] != "auto":
        temperature = float(given["temperature"])
    # On/off features vary more than soft ones, and so do the scores: the same margins cost less weight.
    C = SLAB_C if given["slab"] else min(1.0, float(np.sqrt(temperature / DEFAULT_TEMPERATURE)))
    if given["C"] != "auto":
        C = float(given["C"])
    one_vs_rest = given["multi_class"] == "ovr"
    if given["multi_class"] == "auto":
        # Where rows are taken in blocks, a margin against the rest is solved exactly, whatever the number of weights.
        n_weights = n_classes * (int(given["n_components"]) + 1)
        many = n_labeled >= MIN_BLOCK_ROWS and n_weights > MAX_CLASS_WEIGHTS and given["loss"] == "squared_hinge"
        one_vs_rest = (bool(given["include_inputs"]) or many) and given["cost"] is None and n_classes > 2
    weight = given["generative_weight"]
    if weight == "auto":
        n_margins = n_classes if one_vs_rest else 1
        # On/off features that the labels alone hold together are found by chance: X has to speak for them, too.
        heat = min(1.0, temperature / DEFAULT_TEMPERATURE)
        raised = share if given["slab"] else share / np.sqrt(heat)
        weight = raised * C * n_margins * labeled_share**LABELED_POWER
    return Supervision(C, given["loss"] == "squared_hinge", one_vs_rest, float(weight), temperature, price)


def make_settings(parameters: Mapping[str, Any], X: Rows, supervision: Supervision) -> Settings:
    """Turn the parameters that all latent-feature models have, "auto" among them, into numbers."""
    given = dict(parameters)
    mean_square = X.mean_square
    temperature = supervision.temperature if given["temperature"] == "auto" else float(given["temperature"])
    noise, prior = given["noise_variance"], given["prior_variance"]
    noise_variance = default_noise_variance(X) if isinstance(noise, str) else float(noise)
    prior_variance = default_prior_ratio(supervision, bool(given["slab"])) * noise_variance
    if not isinstance(prior, str):
        prior_variance = float(prior)
    input_scale = np.sqrt(INPUT_ENERGY / mean_square) if mean_square > 0 else 1.0
    return Settings(
        n_components=int(given["n_components"]),
        alpha=float(given["alpha"]),
        C=supervision.C,
        squared=supervision.squared,
        one_vs_rest=supervision.one_vs_rest,
        temperature=temperature * X.n_inputs,
        generative_weight=supervision.generative_weight,
        noise_variance=noise_variance,
        prior_variance=prior_variance,
        estimate_noise=noise == "estimate",
        estimate_prior=prior == "estimate",
        fit_intercept=bool(given.get("fit_intercept", False)),
        input_scale=float(input_scale) if given.get("include_inputs", False) else 0.0,
        n_sweeps=int(given["n_sweeps"]),
        max_iter=int(given["max_iter"]),
        tol=float(given["tol"]),
        n_threads=n_threads(given["n_jobs"]),
        slab=bool(given["slab"]),
        price=supervision.price,
    )


def default_prior_ratio(supervision: Supervision, slab: bool) -> float:
    """Return the prior variance of loadings in noise variances, where nothing is said.

    The length of loadings with amounts is the model's choice: amounts are the longer, the shorter they are. Under
    labels a squared length of one, in tempered units, costs half of what a margin does, however little the generative
    part counts.
    """
    weight = supervision.generative_weight
    return weight / supervision.C if slab and supervision.C > 0 and weight > 0 else PRIOR_RATIO


def centre_rows(X: Floats, weights: Floats | None = None) -> Rows:
    """Return rows less their mean; rows whose squares leave the floating-point numbers are refused."""
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        rows = centre(X, weights=weights)
        mean_square = rows.mean_square
    varies = mean_square < np.finfo(np.float64).tiny and np.any(rows.mean != to_host(X))
    if not np.isfinite(mean_square) or varies:
        raise ValueError(f"X is too {'small' if mean_square < 1 else 'large'} to square it: give it in other units")
    return rows


def infer_by_blocks(function: Callable[[Rows], Floats], X: Rows, n_jobs: int | None) -> Floats:
    """Return a function of all rows, as prediction sees them without labels, block by block."""
    with one_blas_thread():
        return join(make_executor(1 if X.on_device else n_threads(n_jobs)).map(function, X.blocks()))


def infer_label_free(X: Rows, params: Params, n_jobs: int | None) -> Floats:
    """Return the features of rows as prediction infers them, shape (n, K)."""
    few = len(X) <= FEW_ROWS and not X.on_device and not sweeps_are_loaded()
    return infer_by_blocks(params.infer_few if few else params.infer, X, n_jobs)


def latent_attributes(state: State) -> dict[str, Any]:
    """Fitted attributes that describe the features."""
    psi, found = state.embedding, {}
    if state.probabilities is not None:
        psi = state.probabilities
        found = {"probabilities_": psi}
    return found | {
        "components_": state.params.loadings,
        "embedding_": state.embedding,
        "stick_weights_": stick_weights(state.params.sticks),
        "n_components_": int(in_use(psi).sum()),
        "noise_variance_": state.params.noise_variance,
        "prior_variance_": state.params.prior_variance,
        "_state": state,
    }


def classifier_attributes(state: State) -> dict[str, Any]:
    """Fitted attributes that describe the classifier; a binary one is the difference of its two scores."""
    head = state.head
    assert head is not None
    K, weights, latent = len(head.centre), head.weights, head.feature_weights
    intercept = (weights[:, -1] if head.fit_intercept else 0.0) - latent @ head.centre
    found = {"coef_": latent, "intercept_": intercept}
    if state.input_scale:
        D = state.params.loadings.shape[1]
        found["coef_inputs_"] = state.input_scale * weights[:, K : K + D]
    return binary_difference(found)
