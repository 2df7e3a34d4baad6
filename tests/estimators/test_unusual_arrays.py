"""Test arrays like those that `tools/fuzz.py arrays` found: an error names the argument, or results are finite."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse

from regbayes import (
    IBPFactorAnalysis,
    ILSVMClassifier,
    ILSVMRegressor,
    MedLDAClassifier,
    MedLDARegressor,
    MultiTaskILSVMClassifier,
    MultiTaskILSVMRegressor,
)

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

RNG = np.random.default_rng(0)
COUNTS, X = RNG.poisson(0.6, (60, 20)).astype(np.float64), RNG.standard_normal((60, 6))
CLASSES, NUMBERS = np.arange(60) % 3, RNG.standard_normal(60)
QUICK = {"max_iter": 3, "random_state": 0}
ESTIMATORS = [
    ILSVMClassifier,
    ILSVMRegressor,
    IBPFactorAnalysis,
    MultiTaskILSVMClassifier,
    MultiTaskILSVMRegressor,
    MedLDAClassifier,
    MedLDARegressor,
]
both_inferences = pytest.mark.parametrize("inference", ["gibbs", "variational"])


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("dtype", ["M8[s]", "m8[D]"])
def test_dates_in_x_raise(estimator, dtype):
    with pytest.raises(TypeError, match="X has dates or durations"):
        estimator(3).fit(X.astype("i8").astype(dtype), CLASSES)


@pytest.mark.parametrize("estimator", [MultiTaskILSVMClassifier, MultiTaskILSVMRegressor, MedLDARegressor])
def test_sparse_y_raises(estimator):
    with pytest.raises(TypeError, match=r"y is sparse|Sparse data was passed for y"):
        estimator(3).fit(COUNTS, scipy.sparse.csr_array(COUNTS[:, :2] > 0))


@both_inferences
@pytest.mark.parametrize("factor", [1e-300, 1e-20, 1e100, 1e160, 1e300])
def test_scaled_numbers_are_predicted_or_raise(inference, factor):
    model = MedLDARegressor(3, inference=inference, **QUICK)
    if factor >= 1e160:
        with pytest.raises(ValueError, match="y has values too large to square"):
            model.fit(COUNTS, NUMBERS * factor)
    else:
        assert np.isfinite(model.fit(COUNTS, NUMBERS * factor).predict(COUNTS)).all()


@pytest.mark.parametrize("factor", [1e-300, 1e-100, 1e-20, 1e-6, 1e10, 1e20, 1e300])
def test_scaled_counts_are_predicted_or_raise(factor):
    model = MedLDAClassifier(3, inference="variational", **QUICK)
    if 1e-6 <= factor <= 1e10:
        assert np.isfinite(model.fit(COUNTS * factor, CLASSES).decision_function(COUNTS * factor)).all()
        return
    with pytest.raises(ValueError, match="counts in X must be 0 or between 1e-06 and 1e\\+15"):
        model.fit(COUNTS * factor, CLASSES)
    with pytest.raises(ValueError, match="counts in X must be 0 or between"):
        model.fit(COUNTS, CLASSES).predict(COUNTS * factor)


@both_inferences
@pytest.mark.parametrize("dtype", ["f2", "f4", ">f8", "f16", "i1", "u2", "?", "O"])
def test_counts_of_every_type_are_accepted(inference, dtype):
    counts = np.minimum(COUNTS, 1.0)
    model = MedLDAClassifier(3, inference=inference, **QUICK)
    found = model.fit(counts.astype(dtype), CLASSES).decision_function(counts.astype(dtype))
    np.testing.assert_allclose(found, model.fit(counts, CLASSES).decision_function(counts), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("weight", [1e16, 1e160, 1e300])
def test_sample_weights_beyond_exact_counts_raise(weight):
    weights = np.ones(60)
    weights[3] = weight
    with pytest.raises(ValueError, match="sample_weight must have a sum of at most"):
        ILSVMClassifier(3, **QUICK).fit(X, CLASSES, sample_weight=weights)
    for inference in ("gibbs", "variational"):
        with pytest.raises(ValueError, match="sample_weight must have a sum of at most"):
            MedLDAClassifier(3, inference=inference).fit(COUNTS, CLASSES, sample_weight=weights)
