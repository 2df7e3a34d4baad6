"""Mini-batches of samples: ``partial_fit`` of the iLSVM family, and ``fit_weights`` on memory-mapped samples."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import _fit_context
from sklearn.callback import with_callbacks
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted, column_or_1d

from regbayes._types import Floats, Integers
from regbayes.engine import row_blocks
from regbayes.estimators._arrays import work_here
from regbayes.estimators._bases import (
    FirstBatchWarning,
    LatentClassifier,
    LatentModel,
    TrainingRows,
    check_known_classes,
    check_several,
    drop_weightless,
    find_labeled,
    fit_data,
    known_codes,
    one_blas_thread,
    read_rows,
    row_weights,
    warn_if_unscaled,
)
from regbayes.margins.head import HEAD_POLICY
from regbayes.margins.targets import Numbers, Signs, Targets
from regbayes.models.ilsvm import batches
from regbayes.models.ilsvm.batches import Batches
from regbayes.models.ilsvm.model import FINAL, Data, Settings, centre_rows

FEW_ROWS = 500  # samples of the first batch below which its features depend on chance
LOOSE = 100.0  # factor on the duality gap above which the weights have not converged


@dataclass(frozen=True)
class TargetRows(TrainingRows):
    """Training samples with several labels or numbers as targets."""

    targets: Signs | Numbers  # targets of the samples that have any
    places: Integers | None  # indices of these samples, ascending; None if all samples have targets

    @classmethod
    def of(
        cls, rows: Floats, values: Floats, weights: Floats | None, given: Floats, data: dict[str, Any], signs: bool
    ) -> Self:
        """Return samples with targets from values (n, outputs), NaN where missing; positive labels are true."""
        targets, places = observe_values(values, weights, signs)
        if len(targets) == 0:
            raise ValueError("y has no observed target: every value is missing.")
        return cls(rows, weights, given, data, targets, places)


def observe_values(values: Floats, weights: Floats | None, signs: bool) -> tuple[Signs | Numbers, Integers | None]:
    """Return the targets, and the indices of the samples that have any; None if all do."""
    seen = ~np.isnan(values)
    places = np.flatnonzero(seen.any(axis=1))
    prices = seen * (1.0 if weights is None else weights[:, None])
    found: Signs | Numbers = Numbers(np.where(seen, values, 0.0), prices)
    if signs:
        found = Signs(np.where(values > 0, 1, -1).astype(np.int8), prices)
    return (found, None) if len(places) == len(values) else (found.take(places), places)


class BatchFeatures(LatentModel):
    """Base of the estimators with binary features that learn from mini-batches."""

    _batches: Batches

    def _learn_batch(self, rows: TrainingRows) -> None:
        """Fit the first batch, or update the fit with a further one; set the fitted attributes.

        The attributes change last, so an invalid batch leaves the model unchanged.
        """
        if not hasattr(self, "_state"):
            warn_of_few_rows(len(rows.X))
            warn_if_unscaled(rows.X)
            data, settings = self._prepare(
                rows, centre_rows(rows.X, weights=rows.row_weights), HEAD_POLICY.max_ascent_scores
            )
            self._check_batch_settings(settings)
            self._learn(rows, (data, settings))
            with one_blas_thread():
                found = settings.follow(self._state.params)
                self._set_batches(batches.begin(data, found, self._state, data.X.totals.n_rows))
            return
        centred = centre_rows(rows.X, self.mean_, rows.row_weights)
        if not np.isfinite(centred.totals.mean_square):
            raise ValueError("X is too large to square it: give it in the units of the first batch")
        data, settings = self._prepare(rows, centred, HEAD_POLICY.max_ascent_scores)
        known: Batches | None = getattr(self, "_batches", None)
        if known is None:  # the model was fitted with ``fit``
            settings = self._take_fitted_scales(settings)
            self._check_batch_settings(settings)
            # A fit on a Dask cluster keeps no embedding.
            n_rows = getattr(self, "n_samples_seen_", self._state.embedding.shape[0])
            known = batches.begin(None, settings, self._state, float(n_rows))
        with one_blas_thread():
            learned, state = batches.learn(data, known)
        for name, value in self._attributes(state, self._used).items():
            setattr(self, name, value)
        self._set_batches(learned)

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

    def _check_batch_settings(self, settings: Settings) -> None:
        """Raise an error for settings that do not support mini-batches."""

    def _solve_weights(
        self,
        X: Any,
        targets: Targets,
        weights: Floats | None,
        places: Integers | None,
        kinds: Integers | None = None,
    ) -> None:
        """Solve for the weights at the fitted features; set the fitted attributes of the head.

        Parameters
        ----------
        X : (N, D)
            Samples, which are read by blocks.
        targets : Targets
            Targets of the samples with nonzero weight that have any.
        weights : (n,) or None
            Weights of these samples.
        places : (n,) or None
            Indices of these samples in ``X``; None if they are all.
        kinds : (n,) or None
            Their class codes, if the targets are classes.
        """
        state, parts = self._state, row_blocks(len(targets))

        def read(part: Any) -> Data:
            own = part if places is None else places[part]
            counts = None if weights is None else weights[part]
            rows = centre_rows(np.asarray(X[own], dtype=np.float64), self.mean_, counts)
            return Data(rows, targets.take(part))

        settings = self._take_fitted_scales(self._make_settings(read(parts[0]), HEAD_POLICY.max_ascent_scores))
        self._check_batch_settings(settings)
        with one_blas_thread():
            head, gap = batches.solve_weights(read, parts, kinds, len(targets), settings, state)
        if gap > LOOSE * FINAL.gap:
            warnings.warn(
                f"The weights are solved for to a relative gap of {gap:.1g} only. Lower C, or scale the inputs.",
                ConvergenceWarning,
                stacklevel=4,
            )
        state = replace(state, head=head, multipliers=None)
        if hasattr(self, "_batches"):
            self._batches = batches.settle(self._batches, head)
        for name, value in {**self._head_attributes(state, self._used), "_state": state}.items():
            setattr(self, name, value)

    def _solve_target_weights(self, rows: TargetRows) -> None:
        """Solve for the weights of labels or numbers."""
        weights, places = rows.row_weights, rows.places
        self._solve_weights(
            rows.X, rows.targets, weights if weights is None or places is None else weights[places], places
        )

    def _set_batches(self, learned: Batches) -> None:
        n_rows = learned.state.n_rows
        self._batches, self.n_samples_seen_ = learned, int(n_rows) if n_rows.is_integer() else n_rows


class BatchClassifier(LatentClassifier, BatchFeatures):
    """A classifier on binary features that learns from mini-batches.

    A subclass returns the public attributes of its linear model in ``_head_attributes``.
    """

    @with_callbacks
    @_fit_context(prefer_skip_nested_validation=True)
    def partial_fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        classes: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> Self:
        """Learn from a batch of samples, which are not kept.

        The first batch is fitted like any other data: it determines the features, their number and the centering. Give
        it at least a thousand samples in random order. Each further batch of at least some dozens updates features and
        weights. After ``fit``, learning continues from that solution.

        Make about two passes over the data, then call `fit_weights`. Parameters are read in the first call;
        ``embedding_`` is that of the last batch, and ``trace_`` that of the first.

        Not valid with ``loss="hinge"``, ``margins="posterior"``, ``transductive=True`` or ``class_weight="balanced"``.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : array-like of shape (n_samples,)
            Labels.
        classes : array-like of shape (n_classes,), default=None
            All classes; required in the first call.
        sample_weight : array-like of shape (n_samples,), default=None
            How often each sample counts. A sample of a second pass counts again.

        Returns
        -------
        self
        """
        first = not hasattr(self, "_state")
        work_here(self, X, "partial_fit")
        self._check_batchable()
        self._learn_batch(self._read_batch(X, y, classes, sample_weight, first))
        return self

    def _read_batch(
        self, X: ArrayLike, y: ArrayLike, classes: ArrayLike | None, sample_weight: ArrayLike | None, first: bool
    ) -> Any:
        """Validate a batch; return its samples with nonzero weight."""
        given, y = read_rows(self, X, y, ensure_min_samples=2 if first else 1, reset=first)
        rows, labels, weights = drop_weightless(given, y, sample_weight)
        if first:
            if classes is None:
                raise ValueError("the first call of partial_fit needs classes=, all the classes that y will have")
            named = np.unique(column_or_1d(classes))
            check_several(self, named)
        else:
            check_known_classes(classes, self.classes_)
            named = self.classes_
        labeled = np.ones(len(labels), dtype=bool)
        if self.unlabeled is not None:
            labeled = find_labeled(labels, self.unlabeled) if first else np.asarray(labels != self.unlabeled)
        found = known_codes(labels[labeled], named)
        self.classes_ = named
        data = fit_data(given, y, sample_weight=sample_weight)
        return self._describe_rows(rows, labeled, found, weights, given, data)

    @_fit_context(prefer_skip_nested_validation=True)
    def fit_weights(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Solve for the weights of the classifier at the fitted features.

        Use it after ``partial_fit``. The features that `transform` returns do not change. Samples are read by blocks,
        in at most about a dozen passes, so ``X`` may be a `numpy.memmap` that does not fit in memory. Other samples,
        other labels of the same classes, another ``C`` or ``class_weight`` give another classifier on the same
        features.

        Not valid with ``loss="hinge"``.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : array-like of shape (n_samples,)
            Labels; unlabeled samples are left out.
        sample_weight : array-like of shape (n_samples,), default=None
            How often each sample counts.

        Returns
        -------
        self
        """
        check_is_fitted(self, "_state")
        work_here(self, X, "fit_weights")
        self._check_squared("fit_weights")
        self._refit_weights(X, y, sample_weight)
        return self

    def _refit_weights(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None) -> None:
        """Solve for the weights of classes."""
        everywhere, given = read_rows(self, X, y, reset=False)
        weights, labeled = row_weights(sample_weight, everywhere), find_labeled(given, self.unlabeled)
        kept = labeled if weights is None else labeled & (weights > 0)
        places = None if kept.all() else np.flatnonzero(kept)
        if places is not None:
            weights = None if weights is None else weights[places]
        codes = known_codes(given if places is None else given[places], self.classes_)
        rows = self._describe_rows(codes, np.ones(len(codes), dtype=bool), codes, weights, codes, {})
        self._solve_weights(everywhere, rows.targets(1.0), weights, places, codes)

    def _check_batchable(self) -> None:
        """Raise an error for parameters that require all samples at once."""
        self._check_squared("partial_fit")
        if self.margins == "posterior":
            raise ValueError('partial_fit needs margins="consistent": the posterior of a row is not kept; or use fit')
        if self.transductive:
            raise ValueError("partial_fit needs transductive=False: guessed labels of rows are not kept; or use fit")
        if isinstance(self.class_weight, str):
            raise ValueError(
                f"partial_fit does not know how often classes will occur: give class_weight={self.class_weight!r} as a "
                "dict, from sklearn.utils.compute_class_weight; fit_weights takes it as it is"
            )

    def _check_squared(self, method: str) -> None:
        if self.loss != "squared_hinge":
            raise ValueError(f'{method} needs loss="squared_hinge", got {self.loss!r}; or use fit')

    def _check_batch_settings(self, settings: Settings) -> None:
        self._check_class_weights(settings)

    def _check_class_weights(self, settings: Settings) -> None:
        """Raise an error for multi-class margins with too many weights for Newton's method."""
        n_weights = len(self.classes_) * (settings.n_components + 1)
        if not settings.one_vs_rest and n_weights > HEAD_POLICY.max_class_weights:
            raise ValueError(
                f"margins between {len(self.classes_)} classes have {n_weights} weights here, and batches take "
                f'{HEAD_POLICY.max_class_weights} at most: set multi_class="ovr", or use fit'
            )


def warn_of_few_rows(n_rows: int) -> None:
    """Warn if the first batch is small."""
    if n_rows < FEW_ROWS:
        warnings.warn(
            f"the first batch has {n_rows} rows, and features, their number and the scales are learned from it: begin "
            f"with {FEW_ROWS} rows or more, in no particular order",
            FirstBatchWarning,
            stacklevel=4,
        )
