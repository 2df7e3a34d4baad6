"""`collect` agrees with scikit-learn's metrics and averages of the features."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
from scipy.stats import gmean, pearsonr
from sklearn.datasets import load_iris
from sklearn.decomposition import NMF
from sklearn.feature_selection import f_classif
from sklearn.metrics import accuracy_score, confusion_matrix, f1_score, precision_score, r2_score, recall_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, StandardScaler
from sklearn.svm import LinearSVC

from ilsvm_estimator_tools import ibp, ilsvm, ilsvm_cv, overlapping
from multitask_tools import classifier, groups, holes, labels, regressor, regressor_cv
from regbayes import FeatureStability, ILSVMClassifier, ILSVMClassifierCV, MultiLabelThresholdCV, load
from regbayes.metrics import explained_variance_pooled, explained_variance_within_tasks, task_accuracy
from regbayes.report import collect, render
from report_tools import FITS, data_of, fitted, payload

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def scores(data):
    return {name: value for name, value, _ in data.model.scores}


def row_numbers(data, places):
    return [int(data.examples.names[place].split(",")[0].removeprefix("row ")) for place in places]


def test_confusion_and_scores_match_scikit_learn():
    estimator, X, y, _ = fitted("table")
    data = data_of("table")
    predicted = estimator.predict(X)
    np.testing.assert_array_equal(data.confusion.counts, confusion_matrix(y, predicted))
    assert scores(data)["accuracy"] == pytest.approx(accuracy_score(y, predicted))
    assert scores(data)["class-average F1"] == pytest.approx(f1_score(y, predicted, average="macro"))
    assert scores(data)["largest class"] == pytest.approx(np.bincount(y).max() / len(y))


def test_confused_pairs_are_sorted_with_matching_examples():
    estimator, X, y, _ = fitted("table")
    data = data_of("table")
    predicted = estimator.predict(X)
    counts = [data.confusion.counts[truth, said] for truth, said in data.confusion.pairs]
    assert counts == sorted(counts, reverse=True)
    assert len(counts) == np.sum(confusion_matrix(y, predicted)[~np.eye(3, dtype=bool)] > 0)
    for (truth, said), examples in zip(data.confusion.pairs, data.confusion.pair_examples, strict=True):
        rows = row_numbers(data, examples)
        assert rows
        assert np.all(y[rows] == truth)
        assert np.all(predicted[rows] == said)


def test_worst_rows_have_most_negative_margins():
    estimator, X, y, _ = fitted("table")
    data = data_of("table")
    rows = row_numbers(data, data.worst.examples)
    decision = estimator.decision_function(X)
    others = np.where(np.eye(3, dtype=bool)[y], -np.inf, decision).max(axis=1)
    margin = decision[np.arange(len(y)), y] - others
    assert sorted(margin[rows]) == pytest.approx(np.sort(margin)[: len(rows)])
    assert np.all(margin[rows] < 0)
    assert "most sure" in data.worst.title


def test_averages_and_histograms_match_feature_values():
    estimator, X, y, _ = fitted("images")
    features = data_of("images").features
    values = estimator.transform(X)[:, features.number]
    np.testing.assert_allclose(features.use, values.mean(axis=0))
    for label in range(4):
        np.testing.assert_allclose(features.group_means[:, label], values[y == label].mean(axis=0))
        np.testing.assert_allclose(features.group_deviations[:, label], values[y == label].std(axis=0))
    np.testing.assert_array_equal(features.group_counts, np.bincount(y))
    assert np.all(features.histogram.sum(axis=1) == len(X))
    assert np.all(np.diff(features.use) <= 0)
    np.testing.assert_allclose(features.weights, estimator.coef_features_[:, features.number].T)
    assert features.n_in_use == estimator.n_components_


@pytest.mark.parametrize("name", ["images", "table", "two classes"])
def test_separation_of_classes_matches_f_test(name):
    estimator, X, y, _ = fitted(name)
    features = data_of(name).features
    values = estimator.transform(X)[:, features.number]
    n_classes = len(np.unique(y))
    ratio = f_classif(values, y)[0] * (n_classes - 1) / (len(y) - n_classes)
    np.testing.assert_allclose(features.separation, ratio / (1 + ratio))


def test_separation_of_numbers_is_squared_correlation():
    estimator, X, Y, _ = fitted("numbers")
    features = data_of("numbers").features
    values = estimator.transform(X)
    for place, feature in enumerate(features.number):
        found = [pearsonr(values[seen, feature], t[seen])[0] ** 2 for t in Y.T for seen in [~np.isnan(t)]]
        assert features.separation[place] == pytest.approx(max(found))
        assert features.separates[place] == str(np.argmax(found))


@pytest.mark.parametrize("name", FITS)
def test_examples_are_rows_with_highest_values(name):
    estimator, X, _, _ = fitted(name)
    data = data_of(name)
    values = estimator.transform(X)
    assert len(data.features.number)
    for place, feature in enumerate(data.features.number):
        rows = row_numbers(data, data.features.examples[place])
        assert len(set(rows)) == 10
        np.testing.assert_allclose(values[rows, feature], np.sort(values[:, feature])[::-1][:10])
        np.testing.assert_allclose(data.features.example_values[place], values[rows, feature])


def test_loadings_are_largest_components():
    estimator, _, _, _ = fitted("images")
    features = data_of("images").features
    components = estimator.components_[features.number]
    np.testing.assert_allclose(np.abs(features.loading_values[:, 0]), np.abs(components).max(axis=1))
    named = [int(names[0].removeprefix("input ")) for names in features.loading_names]
    np.testing.assert_array_equal(named, np.abs(components).argmax(axis=1))
    pictures = features.pictures.reshape(len(components), -1) * features.picture_limit / 127
    np.testing.assert_allclose(pictures, components, atol=features.picture_limit / 254 * 1.001)


def test_label_scores_and_relations_match_scikit_learn():
    estimator, X, Y, _ = fitted("labels")
    data = data_of("labels")
    predicted, seen = estimator.predict(X), ~np.isnan(Y)
    columns = dict(zip(data.tasks.column_names, data.tasks.columns.T, strict=True))
    for task in range(5):
        truth, said = Y[seen[:, task], task], predicted[seen[:, task], task]
        assert columns["targets"][task] == len(truth)
        assert columns["share of yes"][task] == pytest.approx(truth.mean())
        assert columns["accuracy"][task] == pytest.approx(accuracy_score(truth, said))
        assert columns["precision"][task] == pytest.approx(precision_score(truth, said))
        assert columns["recall"][task] == pytest.approx(recall_score(truth, said))
        assert columns["F1"][task] == pytest.approx(f1_score(truth, said))
    assert scores(data)["F1-micro"] == pytest.approx(f1_score(Y[seen], predicted[seen]))
    assert scores(data)["F1-macro"] == pytest.approx(np.mean(columns["F1"]))
    latent = estimator.transform(X) @ estimator.coef_features_.T
    np.testing.assert_allclose(data.tasks.relations, np.corrcoef(latent[:, data.tasks.shown].T), atol=1e-9)
    assert scores(data)["label accuracy"] == pytest.approx(task_accuracy(Y, predicted))


def test_group_regression_scores_match_metrics():
    estimator, X, y, own = fitted("groups")
    data, task = data_of("groups"), own["task"]
    predicted = estimator.predict(X, task)
    assert scores(data)["R²"] == pytest.approx(explained_variance_pooled(y, predicted))
    assert scores(data)["R² within tasks"] == pytest.approx(explained_variance_within_tasks(y, predicted, task))
    assert scores(data)["RMSE"] == pytest.approx(np.sqrt(np.mean((y - predicted) ** 2)))
    columns = dict(zip(data.tasks.column_names, data.tasks.columns.T, strict=True))
    for place, name in enumerate(data.tasks.names):
        assert columns["R²"][place] == pytest.approx(r2_score(y[task == name], predicted[task == name]))
    worst = row_numbers(data, data.worst.examples)
    assert np.sort(np.abs(y - predicted))[::-1][: len(worst)] == pytest.approx(np.abs(y - predicted)[worst])
    np.testing.assert_allclose(np.sort(data.regression.observed), np.sort(y))
    assert data.regression.n_all == len(y)


def test_targets_in_different_units_are_scored_separately():
    estimator, X, Y, _ = fitted("numbers")
    data = data_of("numbers")
    predicted = estimator.predict(X)
    shares = [r2_score(t[~np.isnan(t)], p[~np.isnan(t)]) for t, p in zip(Y.T, predicted.T, strict=True)]
    np.testing.assert_allclose(data.tasks.columns[:, list(data.tasks.column_names).index("R²")], shares)
    assert scores(data) == {"R²": pytest.approx(np.mean(shares))}
    scaled = collect(estimator, X, Y, predictions=predicted)
    assert row_numbers(data, data.worst.examples) == row_numbers(scaled, scaled.worst.examples)


@pytest.mark.parametrize("kinds", [2, 3])
def test_multi_task_model_of_one_task_has_no_task_section(kinds):
    X, y, _ = groups()
    answer = np.array(["low", "mid", "top"])[np.digitize(y, np.quantile(y, np.linspace(0, 1, kinds + 1)[1:-1]))]
    data = collect(classifier().fit(X, answer), X, answer)
    assert data.tasks is None
    assert data.features.output_title == "class"
    assert data.features.output_names == (("mid",) if kinds == 2 else ("low", "mid", "top"))
    data = collect(regressor().fit(X, y), X, y)
    assert (data.tasks, data.features.output_names) == (None, ("target",))
    assert data.regression.task_names == ()


def test_collect_accepts_a_subset_of_tasks():
    estimator, X, y, own = fitted("groups")
    mine = np.isin(own["task"], ["north", "west"])
    data = collect(estimator, X[mine], y[mine], task=own["task"][mine])
    assert data.features.output_names == ("east", "north", "south", "west")
    assert data.tasks.names == ("north", "west")
    latent = estimator.transform(X[mine]) @ estimator.coef_features_[[1, 3]].T
    apart = latent - latent.mean(axis=1, keepdims=True)
    np.testing.assert_allclose(data.tasks.relations, np.corrcoef(apart.T), atol=1e-9)
    assert "average task" in data.tasks.relation_name


def test_group_labels_have_one_confusion_matrix():
    estimator, X, y, own = fitted("labels of groups")
    data = data_of("labels of groups")
    np.testing.assert_array_equal(data.confusion.counts, confusion_matrix(y, estimator.predict(X, own["task"])))
    assert data.confusion.classes == ("no", "yes")
    assert data.tasks.names == ("east", "north", "south", "west")
    assert all(name.endswith(("north", "south", "east", "west")) for name in data.examples.names)


def test_unlabeled_rows_are_left_out_of_errors():
    X, y = overlapping(150)
    some = np.where(np.arange(150) % 4 == 0, -1, y)
    model = ilsvm(5, unlabeled=-1).fit(X, some)
    data = collect(model, X, some)
    known = some != -1
    np.testing.assert_array_equal(data.confusion.counts, confusion_matrix(y[known], model.predict(X[known])))
    assert data.confusion.classes == ("0", "1", "2")
    assert data.model.n_rows == 150


def test_absent_and_new_classes_are_shown():
    X, y = overlapping(150)
    model = ilsvm(5).fit(X, y)
    few = collect(model, X[y < 2], y[y < 2])
    assert few.confusion.classes == ("0", "1", "2")
    np.testing.assert_array_equal(few.confusion.counts[2], 0)
    new = collect(model, X, y + (y == 2))
    assert new.confusion.classes == ("0", "1", "2", "3")
    assert new.confusion.counts[3].sum() == np.sum(y == 2)
    assert np.isnan(new.features.group_means[0, 2])


def test_collect_finds_model_in_meta_estimators():
    X, y = overlapping(150)
    search = ilsvm_cv().fit(X, y)
    data = collect(search, X, y)
    assert data.model.name == "ILSVMClassifier in ILSVMClassifierCV"
    assert scores(data)["cross-validation"] == search.best_score_
    assert data.model.deviations[0] == pytest.approx(search.cv_results_["std_test_score"][search.best_index_])
    two_stages = make_pipeline(MinMaxScaler(), ibp(5), LinearSVC(random_state=0)).fit(X, y)
    data = collect(two_stages, X, y)
    assert data.model.name == "MinMaxScaler → IBPFactorAnalysis → LinearSVC"
    np.testing.assert_allclose(data.features.weights, two_stages[-1].coef_[:, data.features.number].T)
    assert scores(data)["accuracy"] == pytest.approx(two_stages.score(X, y))
    X, Y = labels(n_rows=90)
    tuned = MultiLabelThresholdCV(classifier(), cv=2, random_state=0).fit(X, holes(Y))
    data = collect(tuned, X, Y)
    assert scores(data)["label accuracy"] == pytest.approx(task_accuracy(Y, tuned.predict(X)))
    np.testing.assert_allclose(data.features.weights, tuned.estimator_.coef_features_[:, data.features.number].T)


def test_tasks_are_passed_through_pipeline_and_search():
    _, X, y, own = fitted("groups")
    task = own["task"]
    search = regressor_cv().fit(X, y, task=task)
    assert scores(collect(search, X, y, task=task))["R²"] == pytest.approx(search.score(X, y, task))
    pipeline = make_pipeline(StandardScaler(), classifier())
    answer = y > np.median(y)
    pipeline.fit(X, answer, multitaskilsvmclassifier__task=task)
    data = collect(pipeline, X, answer, task=task)
    assert scores(data)["accuracy"] == pytest.approx(np.mean(pipeline.predict(X, task=task) == answer))


def test_collect_accepts_any_model_with_components():
    X = scipy.sparse.csr_matrix(np.abs(np.round(2 * overlapping(100)[0])))
    topics = NMF(2, init="nndsvda", max_iter=500, random_state=0).fit(X)
    data = collect(topics, X, feature_names=["sea", "sky", "sun"], texts=["a b c"] * 100)
    assert data.kind == "text"
    assert data.confusion is data.tasks is data.regression is data.history is None
    assert set(data.features.loading_names[0]) == {"sea", "sky", "sun"}
    assert not data.features.probabilities
    assert data.features.n_in_use == data.features.n_components == 2
    assert "fixed beforehand" in data.features.count_note
    assert np.all(np.isnan(data.features.separation))


def test_topics_have_distinctive_words_by_term_score():
    model, _, _, _ = fitted("topics")
    features = data_of("topics").features
    assert features.noun == "topic"
    topics = (model.components_ / model.components_.sum(axis=1, keepdims=True))[features.number]
    np.testing.assert_allclose(features.loading_values, -np.sort(-topics, axis=1), rtol=1e-5)
    assert all("with" in names[:2] for names in features.loading_names)  # frequent in all topics
    scores = topics * np.log(topics / gmean(topics, axis=0))
    words = np.array(["ball", "goal", "law", "vote", "with"])
    assert [list(names) for names in features.distinctive] == words[np.argsort(-scores, axis=1)].tolist()
    assert "with" not in {names[0] for names in features.distinctive}
    assert "mixture of topics" in features.value_note
    assert data_of("text").features.noun == "feature"


def test_labels_of_unsupervised_model_group_rows():
    X, y = overlapping(100)
    model = ibp(4).fit(X)
    data = collect(model, X, y, target_names=["a", "b", "c"])
    np.testing.assert_allclose(
        data.features.group_means[:, 1], model.transform(X)[y == 1][:, data.features.number].mean(0)
    )
    assert data.features.group_names == ("a", "b", "c")
    assert data.confusion is data.worst is None
    assert set(data.examples.truths) <= {"a", "b", "c"}
    assert data.model.scores == ()


def test_data_frame_names_rows_columns_and_tasks():
    import pandas as pd

    X, Y = labels(n_rows=60)
    frame = pd.DataFrame(X, columns=[f"column {i}" for i in range(X.shape[1])])
    targets = pd.DataFrame(Y, columns=["sea", "sky", "sun"])
    data = collect(classifier().fit(frame, targets), frame, targets, row_names=[f"case {i}" for i in range(60)])
    assert data.tasks.names == data.features.output_names == ("sea", "sky", "sun")
    assert all(name.startswith("column ") for names in data.features.loading_names for name in names)
    assert all(name.startswith("case ") for name in data.examples.names)
    X, y, _ = groups()
    data = collect(model := regressor().fit(X, y), X, pd.Series(y, name="price"))
    assert data.features.output_names == ("price",)
    assert data.model.target_name == data.effects.answer == "price"
    assert collect(model, X, y, target_name="weight").features.output_names == ("weight",)


def test_multiclass_task_outputs_are_named_by_class():
    X, Y = labels(n_rows=90, n_tasks=2)
    kinds = np.array([["low", "mid", "top"][i] for i in np.random.default_rng(0).integers(0, 3, 90)])
    mixed = np.stack([np.where(Y[:, 0] == 1, "yes", "no"), kinds], axis=1)
    model = classifier().fit(X, mixed)
    data = collect(model, X, mixed, target_names=["first", "second"])
    assert data.features.output_names == ("first", "second: low", "second: mid", "second: top")
    assert data.features.group_names == ("first", "second: low", "second: mid", "second: top")
    assert len(data.tasks.relations) == 0
    accuracy = data.tasks.columns[:, list(data.tasks.column_names).index("accuracy")]
    np.testing.assert_allclose(accuracy, np.mean(model.predict(X) == mixed, axis=0))


def test_report_size_does_not_grow_with_rows(tmp_path):
    X, y = overlapping(3000)
    model = ilsvm(5).fit(X[:300], y[:300])
    sizes = []
    for n in (300, 3000):
        collect(model, X[:n], y[:n]).save(tmp_path / "data")
        sizes.append((tmp_path / "data").stat().st_size)
    assert sizes[1] < 1.1 * sizes[0]


def test_collect_accepts_model_without_features_in_use():
    X = np.random.default_rng(0).standard_normal((60, 3))
    data = collect(ibp(4, temperature=10.0).fit(X), X)
    assert data.features.n_in_use == 0


def test_stability_sets_recurrence_of_features(tmp_path):
    estimator, X, y, _ = fitted("table")
    plain = data_of("table").features
    assert plain.returned is None
    numbers = np.sort(plain.number)[1:]  # the recurrence of one feature is unknown
    similarity = np.linspace(0.5, 1.0, 4 * len(numbers)).reshape(4, -1)
    found = FeatureStability(numbers, similarity, np.full(4, 3), 0.8)
    data = collect(estimator, X, y, stability=found)
    for place, number in enumerate(data.features.number):
        if number in numbers:
            column = similarity[:, np.flatnonzero(numbers == number)[0]]
            assert data.features.returned[place] == np.mean(column >= 0.8)
            assert data.features.similarity[place] == np.median(column)
        else:
            assert np.isnan(data.features.returned[place])
    assert "of 4 fits to other rows" in data.features.returned_note
    data.save(tmp_path / "data")
    np.testing.assert_array_equal(load(tmp_path / "data").features.returned, data.features.returned)
    shown = payload(render(data))["features"]["returned"]
    assert [value is None for value in shown] == np.isnan(data.features.returned).tolist()
    with pytest.raises(ValueError, match="stability is of another model"):
        collect(estimator, X, y, stability=FeatureStability(np.array([99]), np.ones((1, 1)), np.ones(1), 0.8))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"feature_names": ["a"]}, "feature_names has 1 names, but the model has 3 inputs"),
        ({"target_names": ["a"]}, "target_names has 1 names, but there are 3 classes: 0, 1, 2"),
        ({"image_shape": (2, 2)}, r"image_shape \(2, 2\) has 4 pixels, but X has 3 columns"),
        ({"image_shape": (3,)}, "image_shape must be"),
        ({"kind": "image"}, 'kind="image" needs image_shape'),
        ({"kind": "sound"}, 'kind must be "auto", "table", "image" or "text", got \'sound\''),
        ({"row_names": ["a"]}, "row_names must have one entry per row: it has 1, and X has 300 rows"),
        ({"texts": ["a"]}, "texts must have one entry per row"),
        ({"predictions": [1, 2]}, r"predictions must have the shape of y: 300 rows and 1 column\(s\); got \(2,\)"),
    ],
)
def test_invalid_options_raise(options, message):
    with pytest.raises(ValueError, match=message):
        data_of("table", **options)


def test_other_models_or_labels_raise():
    X, y = overlapping(60)
    with pytest.raises(TypeError, match=r"must be a fitted model with latent features .* got LinearSVC without them"):
        collect(make_pipeline(StandardScaler(), LinearSVC()).fit(X, y), X, y)
    with pytest.raises(ValueError, match="text among numbers"):
        collect(ilsvm(4).fit(X, y), X, y.astype(str))


def test_given_scores_replace_those_of_predictions():
    estimator, X, y, own = fitted("table")
    assert collect(estimator, X, y, **own).model.sample == ""
    assert collect(estimator, X, y, fitted_to=True, **own).model.sample == "training"
    assert collect(estimator, X, y, fitted_to=False, **own).model.sample == "new"
    given = {"fitted_to": True, "predictions": np.zeros_like(y), "prediction_note": "Always the first."}
    data = collect(estimator, X, y, scores={"F2": (0.7, 0.1)}, **given, **own)
    assert data.model.sample == "cross-validated"
    assert scores(data)["accuracy"] == pytest.approx(np.mean(y == 0))
    assert data.prediction_note == "Always the first."
    assert "most sure" not in data.worst.title  # the estimator's margins do not apply to given predictions
    assert (scores(data)["F2"], data.model.deviations[0]) == (0.7, 0.1)
    assert np.isnan(data.model.deviations[1:]).all()
    assert scores(collect(estimator, X, y, scores={"accuracy": 0.7}, **given, **own))["accuracy"] == 0.7


def test_errors_are_sorted_by_given_or_final_scores():
    estimator, X, y, own = fitted("table")
    rng = np.random.default_rng(0)
    decision = estimator.decision_function(X) + 0.5 * rng.standard_normal((len(X), 3))
    predictions = decision.argmax(axis=1)

    def margins(scored, rows):
        others = np.where(np.eye(3, dtype=bool)[y], -np.inf, scored).max(axis=1)
        return (scored[np.arange(len(y)), y] - others)[rows]

    data = collect(estimator, X, y, predictions=predictions, prediction_scores=decision, **own)
    found = margins(decision, row_numbers(data, data.worst.examples))
    np.testing.assert_allclose(data.worst.sizes, found)
    np.testing.assert_allclose(found, np.sort(margins(decision, predictions != y))[:12])
    data = collect(estimator, X, y, predictions=predictions, **own)
    assert "final fit" in data.worst.title
    found = margins(estimator.decision_function(X), row_numbers(data, data.worst.examples))
    np.testing.assert_allclose(found, np.sort(margins(estimator.decision_function(X), predictions != y))[:12])


def test_features_without_weights_have_zero_influence():
    X, y = overlapping(200)
    model = ilsvm(4).fit(X, y)
    model.coef_features_[:, collect(model, X, y).features.number[0]] = 0.0
    features = collect(model, X, y).features
    assert features.influence[0] == 0 < features.influence[1]
    expected = model.transform(X).std(0)[features.number] * np.sqrt(np.mean(features.weights**2, axis=1))
    np.testing.assert_allclose(features.influence, expected)


@pytest.mark.parametrize(
    "name", ["images", "table", "two classes", "unsupervised", "text", "labels", "groups", "numbers"]
)
def test_number_of_features_in_use_is_consistent(name):
    """Estimator, settings, feature list and feature chart agree on the number."""
    estimator = fitted(name)[0]
    model = getattr(estimator, "steps", [("", estimator)])[-1][1]
    data = data_of(name)
    assert len(data.features.number) == data.features.n_in_use == model.n_components_
    assert data.model.facts[0] == ("features in use", f"{model.n_components_} of {model.n_components}")


def test_features_are_named_by_largest_loadings():
    model = fitted("table")[0][-1]
    features = data_of("table").features
    inputs = np.array(["ash", "hue", "proline"])
    for number, name in zip(features.number, features.names, strict=True):
        strongest = np.argsort(-np.abs(model.components_[number]))[:2]
        assert name.replace("−", "").split(", ") == inputs[strongest].tolist()
        assert [part.startswith("−") for part in name.split(", ")] == (
            model.components_[number, strongest] < 0
        ).tolist()
    topics = data_of("topics").features
    assert topics.names == tuple(", ".join(words[:2]) for words in topics.distinctive)
    assert set(data_of("images").features.names) == {""}


def test_effects_open_on_largest_class_and_need_no_targets():
    X, y = overlapping(150)
    rare_first = np.concatenate([np.flatnonzero(y == 0)[:5], np.flatnonzero(y == 1), np.flatnonzero(y == 2)[:9]])
    model = ilsvm(4).fit(X[rare_first], np.array(["a", "b", "c"])[y[rare_first]])
    effects = collect(model, X[rare_first], np.array(["a", "b", "c"])[y[rare_first]]).effects
    assert effects.outputs[effects.opens_on] == "b"
    without = collect(model, X).effects
    assert (without.outputs, without.opens_on) == (("a", "b", "c"), 0)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_new_classes_do_not_rename_outputs(n_classes):
    X, y = overlapping(120)
    old = y < n_classes
    model = ilsvm(4).fit(X[old], np.array(["a", "c", "e"])[y[old]])
    rows = np.array(["b", "a", "c"])[y]
    data = collect(model, X, rows)
    known = tuple(model.classes_) if n_classes == 3 else ("c",)
    assert data.features.output_names == data.effects.outputs == known
    assert set(data.confusion.classes) == {*model.classes_, *rows}


class CtrlC:
    """Callback that raises KeyboardInterrupt in the third task."""

    n_tasks = 0

    def setup(self, estimator, context):
        pass

    teardown = on_fit_task_begin = setup

    def on_fit_task_end(self, estimator, context):
        self.n_tasks += 1
        if self.n_tasks == 3:
            raise KeyboardInterrupt


def test_interrupted_fit_adds_a_warning(tmp_path):
    X, y = load_iris(return_X_y=True)
    model = make_pipeline(StandardScaler(), ILSVMClassifier(4, max_iter=30, random_state=0))
    model[-1].set_callbacks(CtrlC())
    model.fit(X, y)
    (level, words), *others = collect(model, X, y, notices=[("note", "Flowers.")]).model.notices
    assert level == "warning"
    assert "ILSVMClassifier was interrupted" in words
    assert "Fit again" in words
    assert others == [("note", "Flowers.")]
    model[-1].save(tmp_path / "iris.model")
    loaded = load(tmp_path / "iris.model")
    assert collect(loaded, model[:-1].transform(X), y).model.notices == ((level, words),)
    told = collect(model, X, y, notices=[("warning", "It was interrupted by lunch.")]).model.notices
    assert told == (("warning", "It was interrupted by lunch."),)  # a given notice is not repeated
    model[-1].set_callbacks()
    assert collect(model.fit(X, y), X, y).model.notices == ()


def test_interrupted_search_reports_what_was_kept():
    X, y = load_iris(return_X_y=True)
    search = ILSVMClassifierCV(4, Cs=(0.1, 1.0, 10.0), cv=2, max_iter=5, random_state=0)
    counted = []

    def count(record):
        counted.append(record)
        if len(counted) == 4:
            raise KeyboardInterrupt

    search.fit(X, y, on_result=count)
    ((_, words),) = collect(search, X, y).model.notices
    assert "ILSVMClassifierCV was interrupted after 4 of 6 fits" in words
    assert str(search.best_params_) in words


def test_small_slab_values_are_not_probabilities():
    rng = np.random.default_rng(0)
    X = (0.1 * rng.exponential(size=(120, 3))) @ rng.standard_normal((3, 12)) + 0.01 * rng.standard_normal((120, 12))
    model = ibp(4, slab="half-normal").fit(X)
    rows = X.mean(axis=0) + 0.3 * (X - X.mean(axis=0)) / model.transform(X).max()  # all values are below one
    for name in ("embedding_", "probabilities_"):
        delattr(model, name)
    assert model.transform(rows).max() <= 1.0
    assert not collect(model, rows).features.probabilities
