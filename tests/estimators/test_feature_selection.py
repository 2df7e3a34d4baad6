"""Test scikit-learn's feature selectors with latent and input features."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.feature_selection import RFE, SelectFromModel

from regbayes import (
    ILSVMClassifier,
    ILSVMClassifierCV,
    MedLDAClassifier,
    MedLDARegressor,
    MultiTaskILSVMClassifier,
    MultiTaskILSVMRegressor,
)
from regbayes_paper.baselines import MaxMarginHarmoniumClassifier, SingleTaskRegressor

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

TELLING = [1, 4]  # columns that depend on the class; the others are noise


def data():
    rng = np.random.default_rng(0)
    y = np.arange(120) % 3
    X = 0.3 * rng.standard_normal((120, 6))
    X[:, TELLING] += 4.0 * np.array([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0]])[y]
    return X, y


SMALL = {"n_components": 4, "max_iter": 5, "random_state": 0}
CLASSIFIERS = [
    ILSVMClassifier(**SMALL),
    ILSVMClassifierCV(**SMALL, alphas=[2.0], Cs=[1.0], cv=2),
    MultiTaskILSVMClassifier(**SMALL),
    MaxMarginHarmoniumClassifier(**SMALL),
]
REGRESSORS = [MultiTaskILSVMRegressor(**SMALL)]
OF_COUNTS = [MedLDAClassifier(**SMALL), MedLDARegressor(**SMALL)]


@pytest.mark.parametrize("selector", [SelectFromModel, RFE])
@pytest.mark.parametrize("model", CLASSIFIERS + REGRESSORS + OF_COUNTS, ids=lambda model: type(model).__name__)
def test_selector_rejects_weights_of_latent_features(selector, model):
    """The four latent features do not correspond to the six input features."""
    X, y = data()
    with pytest.raises((AttributeError, ValueError), match="should have `coef_` or `feature_importances_`"):
        selector(model).fit(np.round(np.abs(X)) if model in OF_COUNTS else X, y).get_support()


@pytest.mark.parametrize("selector", [lambda *m, **o: SelectFromModel(*m, max_features=2, threshold=-np.inf, **o), RFE])
@pytest.mark.parametrize("model", [CLASSIFIERS[0], REGRESSORS[0]], ids=lambda model: type(model).__name__)
def test_importance_getter_selects_informative_inputs(selector, model):
    """The importance getter is that of docs/models/ilsvm.md."""
    X, y = data()
    options = {"n_features_to_select": 2} if selector is RFE else {}
    chosen = selector(model, importance_getter=lambda model: model.coef_features_ @ model.components_, **options)
    np.testing.assert_array_equal(np.flatnonzero(chosen.fit(X, y).get_support()), TELLING)


def test_selector_uses_coef_of_linear_baseline():
    X, _ = data()
    chosen = SelectFromModel(SingleTaskRegressor(), max_features=1, threshold=-np.inf).fit(X, 2.0 * X[:, 3])
    np.testing.assert_array_equal(np.flatnonzero(chosen.get_support()), [3])
