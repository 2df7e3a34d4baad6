"""Displays of latent features and of the course of a fit hold the averages and terms that they claim to hold."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
import pytest
from sklearn.exceptions import NotFittedError

from ilsvm_estimator_tools import digits, ibp, ilsvm
from regbayes.plots import FeatureUseDisplay, ObjectiveDisplay

mpl.use("Agg")
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

X, y = digits()


@pytest.fixture(autouse=True)
def close_figures():
    import matplotlib.pyplot as plt

    yield
    plt.close("all")


@pytest.fixture(scope="module")
def fitted():
    return ilsvm().fit(X, y)


def test_the_terms_add_up_to_the_objective(fitted):
    display = ObjectiveDisplay.from_estimator(fitted)
    np.testing.assert_allclose(display.objective, fitted.trace_.objective)
    assert set(display.terms) == set(fitted.trace_.terms)


def test_lines_show_changes_or_values(fitted):
    display = ObjectiveDisplay.from_estimator(fitted)
    changes = {line.get_label(): line.get_ydata() for line in display.ax_.get_lines()}
    np.testing.assert_allclose(changes["objective"], fitted.trace_.objective - fitted.trace_.objective[0], atol=1e-9)
    np.testing.assert_allclose(
        changes["margin"], np.subtract(fitted.trace_.terms["margin"], display.terms["margin"][0])
    )
    values = {line.get_label(): line.get_ydata() for line in display.plot(change=False, legend=False).ax_.get_lines()}
    np.testing.assert_allclose(values["margin"], fitted.trace_.terms["margin"])
    assert display.ax_.get_legend() is None
    display.figure_.canvas.draw()


def test_an_estimator_without_a_trace_is_refused():
    with pytest.raises(NotFittedError):
        ObjectiveDisplay.from_estimator(ilsvm())


def test_averages_are_those_of_the_rows(fitted):
    display = FeatureUseDisplay.from_estimator(fitted, X, y, features=[2, 0])
    psi = fitted.transform(X)[:, [2, 0]]
    np.testing.assert_allclose(display.overall, psi.mean(axis=0))
    np.testing.assert_allclose(display.by_class[3], psi[y == 3].mean(axis=0))
    shares = np.bincount(y) / len(y)
    np.testing.assert_allclose(shares @ display.by_class, display.overall)
    np.testing.assert_allclose(display.deviation, [np.std(display.by_class[:, k]) for k in range(2)])
    assert (display.classes, display.features) == ((0, 1, 2, 3), (2, 0))


def test_features_in_use_are_shown_most_frequent_first(fitted):
    display = FeatureUseDisplay.from_estimator(fitted, X, y)
    assert np.all(np.diff(display.overall) <= 0)
    assert len(display.features) == fitted.n_components_
    bars, mapped = display.axes_
    assert [bar.get_height() for bar in bars.patches] == pytest.approx(display.overall)
    np.testing.assert_allclose(mapped.get_images()[0].get_array(), display.by_class)
    assert [text.get_text() for text in mapped.get_xticklabels()] == [str(k) for k in display.features]
    display.figure_.canvas.draw()


def test_without_classes_there_are_bars_alone():
    display = FeatureUseDisplay.from_estimator(ibp().fit(X), X)
    assert len(display.axes_) == 1
    assert np.all(display.deviation == 0)


def test_it_draws_on_the_axes_it_is_given(fitted):
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 1)
    display = FeatureUseDisplay.from_estimator(fitted, X, y, axes=axes)
    assert list(display.axes_) == list(axes)
    assert display.figure_ is figure
    assert ObjectiveDisplay.from_estimator(fitted, ax=axes[0]).ax_ is axes[0]


def test_too_few_axes_or_labels_are_named(fitted):
    import matplotlib.pyplot as plt

    _, ax = plt.subplots()
    with pytest.raises(ValueError, match="axes has 1 Axes, and 2 are needed"):
        FeatureUseDisplay.from_estimator(fitted, X, y, axes=ax)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        FeatureUseDisplay.from_estimator(fitted, X, y[:5])


def test_averages_and_names_must_match():
    with pytest.raises(ValueError, match=r"shape \(2,\), and there are 3 features"):
        FeatureUseDisplay([0.1, 0.2], np.zeros((0, 3)), classes=[], features="abc")
