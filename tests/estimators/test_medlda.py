"""Test MedLDA's estimators with Gibbs sampling."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import linear_sum_assignment
from scipy.sparse import csc_matrix, csr_array, csr_matrix
from sklearn.decomposition import LatentDirichletAllocation
from sklearn.exceptions import NotFittedError
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.metrics import r2_score
from sklearn.pipeline import make_pipeline
from sklearn.svm import LinearSVC

from medlda_tools import draw_documents
from reference_tools import fits_its_rows, is_nearer_to
from regbayes import MedLDAClassifier, MedLDARegressor

X, PROPORTIONS, TOPICS = draw_documents()
LABELS = np.array(["sport", "law", "food"])[np.argmax(PROPORTIONS[:, :3], axis=1)]
NUMBERS = 3 + 2 * PROPORTIONS @ np.array([2.0, -1.0, 0.5, 0.0])


def classifier(n_components=4, **parameters):
    return MedLDAClassifier(n_components, **{"inference": "gibbs", "max_iter": 15, "random_state": 0} | parameters)


def regressor(n_components=4, **parameters):
    return MedLDARegressor(n_components, **{"inference": "gibbs", "max_iter": 15, "random_state": 0} | parameters)


BOTH = pytest.mark.parametrize(("make", "y"), [(classifier, LABELS), (regressor, NUMBERS)], ids=["classes", "numbers"])


# --- what is learned


def test_fit_recovers_simulated_topics():
    X, _, topics = draw_documents(400, length=80)
    fitted = classifier(max_iter=60, C=0).fit(X, np.arange(400) % 2)
    found = fitted.components_ / fitted.components_.sum(axis=1, keepdims=True)
    distance = 0.5 * np.abs(found[:, None] - topics).sum(axis=2)
    ours, theirs = linear_sum_assignment(distance)
    assert distance[ours, theirs].max() < 0.1


def test_zero_C_matches_latent_dirichlet_allocation():
    held_out, _, _ = draw_documents(200, seed=0)
    train, test = held_out[:100], held_out[100:]
    ours = classifier(C=0, max_iter=60).fit(train, np.arange(100) % 2)
    priors = {"doc_topic_prior": 0.1, "topic_word_prior": 0.1}
    theirs = LatentDirichletAllocation(4, max_iter=60, random_state=0, **priors).fit(train)
    assert np.all(ours.coef_features_ == 0)
    assert ours.perplexity(test) < 1.05 * theirs.perplexity(test)


def test_perplexity_matches_bound_of_scikit_learn():
    fitted, counts = classifier().fit(X, LABELS), X.astype(float)
    theirs = LatentDirichletAllocation(4, doc_topic_prior=0.1, topic_word_prior=0.1, max_doc_update_iter=200).fit(
        counts
    )
    theirs.components_ = 1e7 * fitted.components_.astype(
        float
    )  # so many counts leave topics that are known for certain
    theirs.exp_dirichlet_component_ = theirs.components_ / theirs.components_.sum(axis=1, keepdims=True)
    documents = theirs._unnormalized_transform(counts)
    bound = theirs._approx_bound(counts, documents, sub_sampling=False)
    topics_part = theirs._approx_bound(csr_array((1, X.shape[1])), np.full((1, 4), 0.1), sub_sampling=False)
    expected = np.exp(-(bound - topics_part) / X.sum())
    assert fitted.perplexity(X) == pytest.approx(expected, rel=5e-3)


def test_supervised_topics_predict_better_than_unsupervised():
    """The classes differ in few words, which unsupervised topics miss."""
    rng = np.random.default_rng(0)
    X, _, _ = draw_documents(300, n_words=50, length=60, seed=3)
    y = rng.integers(0, 2, 300)
    signal = np.zeros((300, 10), dtype=np.int64)
    signal[np.arange(300), 5 * y + rng.integers(0, 5, 300)] = 4
    X = np.hstack([X.toarray(), signal])
    supervised = classifier(8, max_iter=30).fit(X[:150], y[:150]).score(X[150:], y[150:])
    pipeline = make_pipeline(classifier(8, max_iter=30, C=0), LinearSVC()).fit(X[:150], y[:150]).score(X[150:], y[150:])
    assert is_nearer_to(1.0, pipeline, supervised)  # the ten signal words determine the class


def test_regressor_recovers_simulated_linear_response():
    X, proportions, _ = draw_documents(500, length=120, seed=1)
    weights = np.array([2.0, -1.0, 0.5, 0.0])
    y = 10 + 5 * proportions @ weights
    fitted = regressor(max_iter=40).fit(X[:300], y[:300])
    assert is_nearer_to(1.0, 0.0, fitted.score(X[300:], y[300:]))
    assert np.max(np.abs(np.sort(fitted.coef_features_ + fitted.intercept_) - np.sort(10 + 5 * weights))) < 1.5


def test_regressor_fits_several_targets():
    Y = np.column_stack([NUMBERS, -NUMBERS, 100 * PROPORTIONS[:, 1]])
    fitted = regressor(max_iter=30).fit(X[:200], Y[:200])
    assert fitted.coef_features_.shape == (3, 4)
    assert is_nearer_to(1.0, 0.0, r2_score(Y[200:], fitted.predict(X[200:])))
    np.testing.assert_allclose(fitted.predict(X), fitted.transform(X) @ fitted.coef_features_.T + fitted.intercept_)


def test_classifier_fits_several_labels():
    Y = (PROPORTIONS > 0.25).astype(int)
    fitted = classifier(max_iter=30).fit(X[:200], Y[:200])
    assert fitted.decision_function(X).shape == fitted.predict(X).shape == (300, 4)
    constant = np.mean((Y[:200].mean(axis=0) > 0.5) == Y[200:])
    assert is_nearer_to(1.0, constant, np.mean(fitted.predict(X[200:]) == Y[200:]))
    sparse = classifier(max_iter=30).fit(X[:200], csr_matrix(Y[:200]))
    np.testing.assert_array_equal(sparse.coef_features_, fitted.coef_features_)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_decision_function_is_linear_in_topics(n_classes):
    kept = np.isin(LABELS, ["sport", "law"]) if n_classes == 2 else slice(None)
    fitted = classifier().fit(X[kept], LABELS[kept])
    scores = fitted.transform(X) @ fitted.coef_features_.T
    assert scores.shape == (300, 1 if n_classes == 2 else 3)
    np.testing.assert_allclose(fitted.decision_function(X), scores[:, 0] if n_classes == 2 else scores)
    best = (scores[:, 0] > 0).astype(int) if n_classes == 2 else scores.argmax(axis=1)
    np.testing.assert_array_equal(fitted.predict(X), fitted.classes_[best])
    assert fits_its_rows(fitted.predict(X[kept]), LABELS[kept])


@pytest.mark.parametrize("how", ["class_weight", "cost"])
def test_costs_and_class_weights_change_errors(how):
    rng = np.random.default_rng(0)
    noisy = np.where(rng.random(300) < 0.3, rng.permutation(LABELS), LABELS)
    classes = np.unique(noisy).tolist()
    first = 20.0
    if how == "class_weight":
        dear = {"class_weight": {classes[0]: first}}
    else:
        cost = 1.0 - np.eye(3)
        cost[0] *= first
        dear = {"cost": cost}
    before, after = classifier().fit(X, noisy), classifier(**dear).fit(X, noisy)
    assert np.sum(after.predict(X) == classes[0]) > np.sum(before.predict(X) == classes[0])
    if how == "cost":
        same = classifier(class_weight={classes[0]: first}).fit(X, noisy)
        np.testing.assert_allclose(same.coef_features_, after.coef_features_, rtol=1e-10)


def test_balanced_class_weight_is_supported():
    fitted = classifier(class_weight="balanced").fit(X, LABELS)
    assert fits_its_rows(fitted.predict(X), LABELS)


# --- containers and unusual documents


@BOTH
def test_fit_accepts_any_container_of_counts(make, y):
    expected = make().fit(X, y)
    dense = X.toarray()
    duplicates = csr_matrix((np.ones(int(X.sum())), np.repeat(X.indices, X.data), np.r_[0, np.cumsum(X.sum(axis=1))]))
    for container in (dense, dense.astype(float), csc_matrix(dense), csr_matrix(dense, dtype=np.int32), duplicates):
        fitted = make().fit(container, y)
        np.testing.assert_array_equal(fitted.components_, expected.components_)
        np.testing.assert_array_equal(fitted.predict(container), expected.predict(X))


@BOTH
def test_empty_short_and_unseen_documents_are_supported(make, y):
    Z = X.toarray().copy()
    Z[:5] = 0
    Z[5] = 0
    Z[5, 3] = 1
    Z[6, 3] = 100_000
    Z[:, -1] = 0
    fitted = make().fit(Z, y)
    assert np.all(np.isfinite(fitted.coef_features_))
    shares = fitted.transform(Z)
    np.testing.assert_allclose(shares.sum(axis=1), 1.0, rtol=1e-5)
    np.testing.assert_allclose(shares[:5], np.broadcast_to(shares[0], (5, 4)))
    unseen = np.zeros((1, Z.shape[1]))
    unseen[0, -1] = 7
    assert np.all(np.isfinite(fitted.transform(unseen)))
    assert np.isfinite(fitted.perplexity(np.vstack([unseen, Z])))


def test_transform_treats_documents_independently():
    fitted = classifier().fit(X, LABELS)
    order = np.random.default_rng(0).permutation(300)
    np.testing.assert_array_equal(fitted.transform(X[order]), fitted.transform(X)[order])
    np.testing.assert_array_equal(fitted.transform(X[:1]), fitted.transform(X)[:1])


def test_top_words_uses_vocabulary():
    texts = ["ball goal match", "goal team ball", "vote law party", "law vote court"] * 5
    vectorizer = CountVectorizer()
    counts = vectorizer.fit_transform(texts)
    names = vectorizer.get_feature_names_out()
    fitted = classifier(2).fit(counts, ["sport", "sport", "politics", "politics"] * 5)
    by_vocabulary = fitted.top_words(2, vocabulary=names)
    assert {frozenset(words) for words in by_vocabulary} == {frozenset({"ball", "goal"}), frozenset({"law", "vote"})}
    assert fitted.top_words(2) == [[names.tolist().index(word) for word in words] for words in by_vocabulary]
    frame = pd.DataFrame(counts.toarray(), columns=names)
    named = classifier(2).set_output(transform="pandas").fit(frame, ["sport", "sport", "politics", "politics"] * 5)
    assert named.top_words(2) == by_vocabulary
    assert list(named.transform(frame).columns) == ["medldaclassifier0", "medldaclassifier1"]


# --- sample weights


@BOTH
def test_integer_sample_weights_match_copies(make, y):
    """The Markov chain is that of the repeated documents."""
    weights = np.random.default_rng(0).integers(0, 3, 300)
    rows = np.repeat(np.arange(300), weights)
    weighted, repeated = make().fit(X, y, sample_weight=weights), make().fit(X[rows], y[rows])
    np.testing.assert_array_equal(weighted.components_, repeated.components_)
    np.testing.assert_array_equal(weighted.coef_features_, repeated.coef_features_)
    for model, documents, values, w in ((weighted, X, y, weights), (repeated, X[rows], y[rows], None)):
        model.partial_fit(documents, values, sample_weight=w)
    np.testing.assert_array_equal(weighted.coef_features_, repeated.coef_features_)


@BOTH
def test_invalid_sample_weight_raises(make, y):
    with pytest.raises(ValueError, match=r'whole numbers; it has the value 0\.5\. inference="variational"'):
        make().fit(X, y, sample_weight=np.full(300, 0.5))
    for inference in ("gibbs", "variational"):
        with pytest.raises(ValueError, match="Negative values"):
            make(inference=inference).fit(X, y, sample_weight=np.full(300, -1.0))
        with pytest.raises(ValueError, match=r"sample_weight\.shape"):
            make(inference=inference).fit(X, y, sample_weight=np.ones(7))


# --- invalid input


@BOTH
@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (-X, "Negative values"),
        (0.5 * X, "whole counts"),
        (TfidfVectorizer().fit_transform(["a few words", "more words here"] * 150), "whole counts"),
        (0 * X, "no words"),
        (X * 2**31, "less than 2\\*\\*31"),
        (["good film"] * 300, "CountVectorizer"),
        (pd.Series(["good film"] * 300), "CountVectorizer"),
        (np.full((300, 3), np.nan), "NaN"),
        (X[:10], "inconsistent numbers of samples"),
    ],
    ids=["negative", "fractions", "tf-idf", "empty", "huge", "texts", "series", "nan", "short"],
)
def test_fit_with_invalid_counts_raises(make, y, rows, message):
    with pytest.raises(ValueError, match=message):
        make().fit(rows, y)


@BOTH
@pytest.mark.parametrize(
    "parameters",
    [
        {"n_components": 0},
        {"n_components": 40_000},
        {"C": -1.0},
        {"doc_topic_prior": 0.0},
        {"topic_word_prior": -1.0},
        {"weight_variance": 0.0},
        {"max_iter": 0},
        {"burn_in": 15},
        {"burn_in": -1},
        {"C_warmup": 8},
        {"C_warmup": 1.5},
        {"n_blocks": 0},
        {"n_blocks": "many"},
        {"inference": "exact"},
        {"n_jobs": 0},
    ],
    ids=str,
)
def test_invalid_parameter_raises(make, y, parameters):
    with pytest.raises(ValueError, match=next(iter(parameters))):
        make().set_params(**parameters).fit(X, y)


@pytest.mark.parametrize(
    ("change", "y", "message"),
    [
        ({"cost": np.ones((2, 2))}, LABELS, "cost must have shape"),
        ({"cost": np.ones((3, 3))}, LABELS, "zero diagonal"),
        ({"class_weight": {"law": -1.0}}, LABELS, "class_weight must be finite and not negative"),
        ({"class_weight": {"law": np.nan}}, LABELS, "class_weight must be finite and not negative"),
        ({"class_weight": "fair"}, LABELS, "'class_weight' parameter"),
        ({"class_weight": [1, 2]}, LABELS, "'class_weight' parameter"),
        ({"class_weight": "balanced"}, PROPORTIONS > 0.3, "several labels"),
        ({}, None, "requires y to be passed"),
        ({}, np.repeat("one", 300), "at least 2 classes"),
        ({}, NUMBERS, "continuous"),
        ({}, [None, *LABELS[1:]], "y has missing values"),
    ],
    ids=str,
)
def test_fit_with_invalid_classes_raises(change, y, message):
    with pytest.raises(ValueError, match=message):
        classifier(**change).fit(X, y)


def test_partial_fit_with_inconsistent_batch_raises():
    model = classifier().partial_fit(X[:50], LABELS[:50], classes=np.unique(LABELS))
    with pytest.raises(ValueError, match="the classes are"):
        model.partial_fit(X[:50], np.repeat("new", 50))
    with pytest.raises(ValueError, match="not what it was"):
        model.partial_fit(X[:50], LABELS[:50], classes=["a", "b"])
    with pytest.raises(ValueError, match="expecting 60 features"):
        model.partial_fit(X[:50, :7], LABELS[:50])
    numbers = regressor().partial_fit(X[:50], NUMBERS[:50])
    with pytest.raises(ValueError, match="earlier documents had 1"):
        numbers.partial_fit(X[:50], np.ones((50, 2)))


@BOTH
def test_methods_with_invalid_arguments_raise(make, y):
    with pytest.raises(NotFittedError):
        make().transform(X)
    assert not hasattr(make(), "components_")
    fitted = make().fit(X, y)
    with pytest.raises(ValueError, match="Negative values"):
        fitted.transform(-X)
    with pytest.raises(ValueError, match="empty documents"):
        fitted.perplexity(0 * X)
    with pytest.raises(ValueError, match="n must be an integer"):
        fitted.top_words(0)
    with pytest.raises(ValueError, match="60 columns"):
        fitted.top_words(3, vocabulary=["too", "few"])
