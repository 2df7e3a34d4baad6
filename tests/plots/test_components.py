"""Displays of weights, of largest loadings and of related tasks hold what the estimator has, in the order they say."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
import pytest
from sklearn.decomposition import LatentDirichletAllocation
from sklearn.exceptions import NotFittedError

from ilsvm_estimator_tools import digits, ilsvm, ilsvm_cv
from multitask_tools import classifier, classifier_cv, groups, labels, regressor
from regbayes.plots import FeatureUseDisplay, FeatureWeightsDisplay, TaskRelationsDisplay, TopWordsDisplay
from regbayes.plots.tasks import correlations, related_order

mpl.use("Agg")
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

X, y = digits()
RAGGED = groups()


@pytest.fixture(autouse=True)
def close_figures():
    import matplotlib.pyplot as plt

    yield
    plt.close("all")


@pytest.fixture(scope="module")
def several():
    rows, targets = labels(n_rows=90, n_tasks=5)
    return classifier().fit(rows, targets), rows


def tick_labels(ticks):
    return [tick.get_text() for tick in ticks]


def test_weights_of_classes_are_the_coefficients_largest_first():
    fitted = ilsvm().fit(X, y)
    display = FeatureWeightsDisplay.from_estimator(fitted)
    np.testing.assert_array_equal(display.weights, fitted.coef_features_[:, list(display.features)])
    assert np.all(np.diff(np.linalg.norm(display.weights, axis=0)) <= 1e-12)
    assert set(display.features) == set(np.flatnonzero(np.any(fitted.coef_features_ != 0, axis=0)))
    assert (display.outputs, display.name) == ((0, 1, 2, 3), "class")
    np.testing.assert_array_equal(display.ax_.get_images()[0].get_array(), display.weights)
    assert tick_labels(display.ax_.get_xticklabels()) == [str(k) for k in display.features]
    assert tick_labels(display.ax_.get_yticklabels()) == ["0", "1", "2", "3"]
    display.figure_.canvas.draw()


def test_weights_of_two_classes_are_about_the_second():
    display = FeatureWeightsDisplay.from_estimator(ilsvm().fit(X, np.where(y == 0, "no", "yes")))
    assert (display.outputs, len(display.weights)) == (("yes",), 1)


def test_weights_of_tasks_have_their_names(several):
    fitted, _ = several
    display = FeatureWeightsDisplay.from_estimator(
        fitted, features=[3, 1], outputs=["sea", "sky", "sun", "tree", "town"]
    )
    np.testing.assert_array_equal(display.weights, fitted.coef_features_[:, [3, 1]])
    assert display.name == "task"
    assert tick_labels(display.ax_.get_yticklabels()) == ["sea", "sky", "sun", "tree", "town"]
    assert FeatureWeightsDisplay.from_estimator(fitted).outputs == (0, 1, 2, 3, 4)


def test_weights_of_tasks_with_several_classes_name_both():
    rows, targets = labels(n_rows=60, n_tasks=2)
    targets[:, 1] = np.arange(60) % 3
    display = FeatureWeightsDisplay.from_estimator(classifier().fit(rows, targets))
    assert display.outputs == (0, "1: 0", "1: 1", "1: 2")


def test_relations_are_correlations_of_the_scores(several):
    fitted, rows = several
    display = TaskRelationsDisplay.from_estimator(fitted, rows, tasks=["sea", "sky", "sun", "tree", "town"])
    np.testing.assert_allclose(display.relations, np.corrcoef(fitted.decision_function(rows).T), atol=1e-9)
    drawn = display.ax_.get_images()[0].get_array()
    order = [display.tasks.index(name) for name in tick_labels(display.ax_.get_xticklabels())]
    np.testing.assert_allclose(drawn, display.relations[np.ix_(order, order)])
    assert sorted(order) == [0, 1, 2, 3, 4]
    display.plot(ordered=False)
    np.testing.assert_allclose(display.ax_.get_images()[0].get_array(), display.relations)
    display.figure_.canvas.draw()


def test_relations_of_groups_are_about_what_sets_them_apart():
    rows, targets, task = RAGGED
    fitted = regressor().fit(rows, targets, task=task)
    latent = fitted.transform(rows) @ fitted.coef_features_.T
    apart = latent - latent.mean(axis=1, keepdims=True)
    display = TaskRelationsDisplay.from_estimator(fitted, rows)
    np.testing.assert_allclose(display.relations, np.corrcoef(apart.T), atol=1e-9)
    together = TaskRelationsDisplay.from_estimator(fitted, rows, centred=False)
    np.testing.assert_allclose(together.relations, np.corrcoef(latent.T), atol=1e-9)
    assert display.tasks == ("east", "north", "south", "west")


def test_a_task_that_says_nothing_is_related_to_none():
    scores = np.random.default_rng(0).standard_normal((50, 3))
    scores[:, 1] = 7.0
    found = correlations(scores)
    np.testing.assert_allclose(found[1], [0, 1, 0])
    assert found[0, 2] == pytest.approx(np.corrcoef(scores[:, [0, 2]].T)[0, 1])


def test_related_tasks_become_neighbours():
    rng = np.random.default_rng(0)
    common = rng.standard_normal((200, 3))
    kinds = np.array([0, 1, 2, 0, 1, 2, 0, 1, 2, 0])
    scores = common[:, kinds] + 0.1 * rng.standard_normal((200, 10))
    assert np.count_nonzero(np.diff(kinds[related_order(correlations(scores))])) == 2
    np.testing.assert_array_equal(related_order(np.eye(2)), [0, 1])


def test_many_tasks_are_drawn_without_names():
    display = TaskRelationsDisplay(np.eye(80), tasks=range(80)).plot()
    assert tick_labels(display.ax_.get_xticklabels()) == []
    assert "80 tasks" in display.ax_.get_xlabel()


def test_top_words_are_the_largest_loadings_of_any_model():
    counts = np.random.default_rng(0).poisson(2.0, (40, 7))
    topics = LatentDirichletAllocation(3, random_state=0).fit(counts)
    words = np.array(["sea", "sky", "sun", "tree", "town", "road", "rain"])
    display = TopWordsDisplay.from_estimator(topics, feature_names=words, n_words=4, features=[2, 0])
    for row, topic in enumerate([2, 0]):
        order = np.argsort(-topics.components_[topic])[:4]
        assert display.words[row] == tuple(words[order])
        np.testing.assert_array_equal(display.loadings[row], topics.components_[topic, order])
        assert tick_labels(display.axes_[row].get_yticklabels()) == list(words[order])
        assert [bar.get_width() for bar in display.axes_[row].patches] == pytest.approx(display.loadings[row])
    assert [ax.get_title() for ax in display.axes_] == ["feature 2", "feature 0"]
    display.figure_.canvas.draw()


def test_top_loadings_of_either_sign_and_features_without_any():
    fitted = ilsvm(8).fit(X, y)
    fitted.components_ = np.vstack([fitted.components_, np.zeros((1, 64))])
    display = TopWordsDisplay.from_estimator(fitted)
    assert len(fitted.components_) - 1 not in display.features
    sizes = np.abs(display.loadings)
    assert np.all(np.diff(sizes, axis=1) <= 0)
    np.testing.assert_allclose(sizes[:, 0], np.abs(fitted.components_[list(display.features)]).max(axis=1))
    colors = {patch.get_facecolor() for ax in display.axes_ for patch in ax.patches}
    assert len(colors) == 2
    assert display.words[0][0] == str(np.abs(fitted.components_[display.features[0]]).argmax())


def test_top_words_of_data_frames_have_their_names():
    import pandas as pd

    frame = pd.DataFrame(X[:, 20:30], columns=[f"pixel {i}" for i in range(10)])
    display = TopWordsDisplay.from_estimator(ilsvm(3).fit(frame, y))
    assert all(word.startswith("pixel ") for words in display.words for word in words)


def test_displays_look_into_a_search():
    search = ilsvm_cv().fit(X, y)
    np.testing.assert_array_equal(
        FeatureWeightsDisplay.from_estimator(search, features=[0]).weights,
        search.best_estimator_.coef_features_[:, [0]],
    )
    rows, targets = labels(n_rows=60)
    several = classifier_cv().fit(rows, targets)
    assert TaskRelationsDisplay.from_estimator(several, rows).relations.shape == (3, 3)


def test_they_draw_on_the_axes_they_are_given(several):
    import matplotlib.pyplot as plt

    fitted, rows = several
    figure, axes = plt.subplots(2, 2)
    assert FeatureWeightsDisplay.from_estimator(fitted, ax=axes[0, 0]).ax_ is axes[0, 0]
    assert TaskRelationsDisplay.from_estimator(fitted, rows, ax=axes[0, 1]).ax_ is axes[0, 1]
    display = TopWordsDisplay.from_estimator(fitted, features=[1, 2], axes=axes[1])
    assert list(display.axes_) == list(axes[1])
    assert display.figure_ is figure


def test_a_picture_of_many_features_stays_on_a_page():
    display = FeatureUseDisplay(np.linspace(1, 0, 300), np.zeros((0, 300)), classes=[], features=range(300)).plot()
    assert display.figure_.get_size_inches()[0] <= 16
    assert 20 <= len(display.axes_[-1].get_xticks()) <= 40
    wide = FeatureWeightsDisplay(np.ones((2, 300)), outputs="ab", features=range(300)).plot()
    assert len(wide.ax_.get_xticks()) <= 40


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FeatureWeightsDisplay(np.ones((2, 3)), outputs="ab", features="ab"), r"shape \(2, 3\)"),
        (lambda: TaskRelationsDisplay(np.eye(3), tasks="ab"), r"shape \(3, 3\), and there are 2 tasks"),
        (lambda: TopWordsDisplay(np.ones((1, 2)), words=[["a"]], features=[0]), r"the shape of loadings, \(1, 2\)"),
        (lambda: TopWordsDisplay(np.ones((0, 2)), words=[], features=[]).plot(), "no feature to draw"),
        (lambda: TopWordsDisplay.from_estimator(ilsvm(3).fit(X, y), n_words=0), "n_words must be at least 1, got 0"),
        (
            lambda: TopWordsDisplay.from_estimator(ilsvm(3).fit(X, y), feature_names=["a"]),
            "feature_names has 1 names, but components_ has 64 columns",
        ),
    ],
)
def test_what_does_not_fit_together_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_relations_of_tasks_with_several_outputs_are_refused():
    rows, targets, task = RAGGED
    fitted = classifier().fit(rows, np.digitize(targets, np.quantile(targets, [0.3, 0.6])), task=task)
    with pytest.raises(ValueError, match=r"need one output per task, but 4 task\(s\) have 12"):
        TaskRelationsDisplay.from_estimator(fitted, rows)


@pytest.mark.parametrize("display", [FeatureWeightsDisplay, TopWordsDisplay])
def test_estimators_that_are_not_fitted_are_refused(display):
    with pytest.raises(NotFittedError):
        display.from_estimator(ilsvm())
