"""Displays of fitted models: stored arrays and drawings."""

from __future__ import annotations

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
from sklearn.decomposition import LatentDirichletAllocation
from sklearn.exceptions import NotFittedError

from ilsvm_estimator_tools import digits, ibp, ilsvm, ilsvm_cv
from multitask_tools import classifier, classifier_cv, groups, labels, regressor
from regbayes.plots import (
    FeatureUseDisplay,
    FeatureWeightsDisplay,
    ObjectiveDisplay,
    TaskRelationsDisplay,
    TopWordsDisplay,
)
from regbayes.plots.models import correlations, related_order

mpl.use("Agg")
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

X, y = digits()
RAGGED = groups()
PLACES = ["sea", "sky", "sun", "tree", "town"]


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


@pytest.fixture(scope="module")
def fitted():
    return ilsvm().fit(X, y)


@pytest.fixture(scope="module")
def several():
    rows, targets = labels(n_rows=90, n_tasks=5)
    return classifier().fit(rows, targets), rows


def tick_labels(ticks):
    return [tick.get_text() for tick in ticks]


def test_objective_lines_are_changes_of_terms_and_sum(fitted):
    display = ObjectiveDisplay.from_estimator(fitted)
    changes = {line.get_label(): line.get_ydata() for line in display.ax_.get_lines()}
    trace = fitted.trace_
    np.testing.assert_allclose(changes["objective"], trace.objective - trace.objective[0], atol=1e-9)
    for name, values in trace.terms.items():
        np.testing.assert_allclose(changes[name], np.subtract(values, values[0]), atol=1e-9)
    display.figure_.canvas.draw()


def test_feature_use_averages_are_sorted_by_frequency(fitted):
    display = FeatureUseDisplay.from_estimator(fitted, X, y)
    psi = fitted.transform(X)[:, display.features]
    np.testing.assert_allclose(display.overall, psi.mean(axis=0))
    np.testing.assert_allclose(display.by_class[3], psi[y == 3].mean(axis=0))
    np.testing.assert_allclose(np.bincount(y) / len(y) @ display.by_class, display.overall)
    assert display.classes == [0, 1, 2, 3]
    assert np.all(np.diff(display.overall) <= 0)
    assert len(display.features) == fitted.n_components_
    bars, mapped = display.ax_
    assert [bar.get_height() for bar in bars.patches] == pytest.approx(display.overall)
    np.testing.assert_allclose(mapped.get_images()[0].get_array(), display.by_class)
    assert tick_labels(mapped.get_xticklabels()) == [str(k) for k in display.features]
    display.figure_.canvas.draw()


def test_feature_use_without_classes_draws_only_bars():
    display = FeatureUseDisplay.from_estimator(ibp().fit(X), X)
    assert display.ax_.get_images() == []
    assert np.all(display.deviation == 0)


def test_class_weights_are_sorted_coefficients(fitted):
    display = FeatureWeightsDisplay.from_estimator(fitted)
    np.testing.assert_array_equal(display.weights, fitted.coef_features_[:, display.features])
    assert np.all(np.diff(np.linalg.norm(display.weights, axis=0)) <= 1e-12)
    assert set(display.features) == set(np.flatnonzero(np.any(fitted.coef_features_ != 0, axis=0)))
    assert (display.outputs, display.name) == ([0, 1, 2, 3], "class")
    np.testing.assert_array_equal(display.ax_.get_images()[0].get_array(), display.weights)
    assert tick_labels(display.ax_.get_xticklabels()) == [str(k) for k in display.features]
    assert tick_labels(display.ax_.get_yticklabels()) == ["0", "1", "2", "3"]
    display.figure_.canvas.draw()


def test_weights_of_two_classes_are_those_of_the_second():
    import pandas as pd

    frame = pd.DataFrame(X[:, 20:30], columns=[f"pixel {i}" for i in range(10)])
    model = ilsvm(3).fit(frame, np.where(y == 0, "no", "yes"))
    display = FeatureWeightsDisplay.from_estimator(model)
    assert (display.outputs, len(display.weights)) == (["yes"], 1)
    assert all(word.startswith("pixel ") for words in TopWordsDisplay.from_estimator(model).words for word in words)


def test_task_weights_are_named_by_task(several):
    display = FeatureWeightsDisplay.from_estimator(several[0], features=[3, 1], outputs=PLACES)
    np.testing.assert_array_equal(display.weights, several[0].coef_features_[:, [3, 1]])
    assert display.name == "task"
    assert tick_labels(display.ax_.get_yticklabels()) == PLACES
    assert FeatureWeightsDisplay.from_estimator(several[0]).outputs == [0, 1, 2, 3, 4]


def test_task_relations_are_score_correlations(several):
    fitted, rows = several
    display = TaskRelationsDisplay.from_estimator(fitted, rows, tasks=PLACES)
    np.testing.assert_allclose(display.relations, np.corrcoef(fitted.decision_function(rows).T), atol=1e-9)
    order = [PLACES.index(name) for name in tick_labels(display.ax_.get_xticklabels())]
    assert sorted(order) == [0, 1, 2, 3, 4]
    np.testing.assert_allclose(display.ax_.get_images()[0].get_array(), display.relations[np.ix_(order, order)])
    display.figure_.canvas.draw()


def test_task_relations_of_groups_are_centered():
    rows, targets, task = RAGGED
    fitted = regressor().fit(rows, targets, task=task)
    latent = fitted.transform(rows) @ fitted.coef_features_.T
    apart = latent - latent.mean(axis=1, keepdims=True)
    display = TaskRelationsDisplay.from_estimator(fitted, rows)
    np.testing.assert_allclose(display.relations, np.corrcoef(apart.T), atol=1e-9)
    together = TaskRelationsDisplay.from_estimator(fitted, rows, centered=False)
    np.testing.assert_allclose(together.relations, np.corrcoef(latent.T), atol=1e-9)
    assert display.tasks == ["east", "north", "south", "west"]


def test_constant_scores_have_zero_correlation():
    scores = np.random.default_rng(0).standard_normal((50, 3))
    scores[:, 1] = 7.0
    found = correlations(scores)
    np.testing.assert_allclose(found[1], [0, 1, 0])
    assert found[0, 2] == pytest.approx(np.corrcoef(scores[:, [0, 2]].T)[0, 1])


def test_related_order_puts_related_tasks_together():
    rng = np.random.default_rng(0)
    common = rng.standard_normal((200, 3))
    kinds = np.array([0, 1, 2, 0, 1, 2, 0, 1, 2, 0])
    scores = common[:, kinds] + 0.1 * rng.standard_normal((200, 10))
    assert np.count_nonzero(np.diff(kinds[related_order(correlations(scores))])) == 2
    np.testing.assert_array_equal(related_order(np.eye(2)), [0, 1])


def test_top_words_are_largest_loadings():
    counts = np.random.default_rng(0).poisson(2.0, (40, 7))
    topics = LatentDirichletAllocation(3, random_state=0).fit(counts)
    words = np.array(["sea", "sky", "sun", "tree", "town", "road", "rain"])
    display = TopWordsDisplay.from_estimator(topics, feature_names=words, n_words=4, features=[2, 0])
    for panel, topic in enumerate([2, 0]):
        order = np.argsort(-topics.components_[topic])[:4]
        assert display.words[panel] == list(words[order])
        np.testing.assert_array_equal(display.loadings[panel], topics.components_[topic, order])
        ax = display.ax_[panel]
        assert tick_labels(ax.get_yticklabels()) == list(words[order])
        assert [bar.get_width() for bar in ax.patches] == pytest.approx(display.loadings[panel])
        assert ax.get_title() == f"feature {topic}"
    display.figure_.canvas.draw()


def test_top_words_accept_negative_and_zero_loadings():
    fitted = ilsvm(8).fit(X, y)
    fitted.components_ = np.vstack([fitted.components_, np.zeros((1, 64))])
    display = TopWordsDisplay.from_estimator(fitted)
    assert len(fitted.components_) - 1 not in display.features
    sizes = np.abs(display.loadings)
    assert np.all(np.diff(sizes, axis=1) <= 0)
    np.testing.assert_allclose(sizes[:, 0], np.abs(fitted.components_[display.features]).max(axis=1))
    assert len({patch.get_facecolor() for ax in np.ravel(display.ax_) for patch in ax.patches}) == 2
    assert display.words[0][0] == str(np.abs(fitted.components_[display.features[0]]).argmax())


def test_displays_accept_a_search():
    search = ilsvm_cv().fit(X, y)
    np.testing.assert_array_equal(
        FeatureWeightsDisplay.from_estimator(search, features=[0]).weights,
        search.best_estimator_.coef_features_[:, [0]],
    )
    rows, targets = labels(n_rows=60)
    assert TaskRelationsDisplay.from_estimator(classifier_cv().fit(rows, targets), rows).relations.shape == (3, 3)


def test_displays_draw_on_given_axes(fitted, several):
    figure, axes = plt.subplots(2, 2)
    assert FeatureWeightsDisplay.from_estimator(several[0], ax=axes[0, 0]).ax_ is axes[0, 0]
    assert TaskRelationsDisplay.from_estimator(*several, ax=axes[0, 1]).ax_ is axes[0, 1]
    assert ObjectiveDisplay.from_estimator(fitted, ax=axes[1, 1]).ax_ is axes[1, 1]
    for display in (
        TopWordsDisplay.from_estimator(several[0], features=[1, 2], ax=axes[1]),
        FeatureUseDisplay.from_estimator(fitted, X, y, ax=axes[1]),
    ):
        assert list(display.ax_) == list(axes[1])
        assert display.figure_ is figure


def test_figure_of_many_features_has_limited_width():
    display = FeatureUseDisplay(np.linspace(1, 0, 300), np.zeros((0, 300)), classes=[], features=range(300)).plot()
    assert display.figure_.get_size_inches()[0] <= 16
    assert 20 <= len(display.ax_.get_xticks()) <= 40
    wide = FeatureWeightsDisplay(np.ones((2, 300)), outputs="ab", features=range(300)).plot()
    assert len(wide.ax_.get_xticks()) <= 40


def test_inconsistent_arguments_raise(fitted):
    with pytest.raises(ValueError, match="ax has 1 Axes, and 2 are needed"):
        FeatureUseDisplay.from_estimator(fitted, X, y, ax=plt.subplots()[1])
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        FeatureUseDisplay.from_estimator(fitted, X, y[:5])
    with pytest.raises(ValueError, match="feature_names has 1 names, but components_ has 64 columns"):
        TopWordsDisplay.from_estimator(fitted, feature_names=["a"])
    with pytest.raises(ValueError, match="no feature to draw"):
        TopWordsDisplay.from_estimator(fitted, features=[])
    rows, targets, task = RAGGED
    graded = classifier().fit(rows, np.digitize(targets, np.quantile(targets, [0.3, 0.6])), task=task)
    with pytest.raises(ValueError, match=r"need one output per task, but 4 task\(s\) have 12"):
        TaskRelationsDisplay.from_estimator(graded, rows)


@pytest.mark.parametrize("display", [FeatureWeightsDisplay, TopWordsDisplay, ObjectiveDisplay])
def test_unfitted_estimator_raises(display):
    with pytest.raises(NotFittedError):
        display.from_estimator(ilsvm())
