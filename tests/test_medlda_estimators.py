"""MedLDA's estimators: scikit-learn's promises, documents drawn from the model, chains that go on, bad input."""

from __future__ import annotations

import pickle
from collections import Counter

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import linear_sum_assignment
from scipy.sparse import csc_matrix, csr_array, csr_matrix
from sklearn.base import clone
from sklearn.callback import ProgressBar
from sklearn.decomposition import LatentDirichletAllocation
from sklearn.exceptions import NotFittedError
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.metrics import r2_score
from sklearn.pipeline import make_pipeline
from sklearn.svm import LinearSVC
from sklearn.utils.estimator_checks import check_estimator

import regbayes
from medlda_tools import draw_documents
from regbayes import MedLDAClassifier, MedLDARegressor
from regbayes.models.medlda import gibbs
from regbayes.models.medlda.corpus import default_groups

X, PROPORTIONS, TOPICS = draw_documents()
LABELS = np.array(["sport", "law", "food"])[np.argmax(PROPORTIONS[:, :3], axis=1)]
NUMBERS = 3 + 2 * PROPORTIONS @ np.array([2.0, -1.0, 0.5, 0.0])


def classifier(n_components=4, **parameters):
    return MedLDAClassifier(n_components, **{"max_iter": 15, "random_state": 0} | parameters)


def regressor(n_components=4, **parameters):
    return MedLDARegressor(n_components, **{"max_iter": 15, "random_state": 0} | parameters)


BOTH = pytest.mark.parametrize(("make", "y"), [(classifier, LABELS), (regressor, NUMBERS)], ids=["classes", "numbers"])


# --- scikit-learn's own checks


@pytest.mark.parametrize(
    ("estimator", "expected"), [(classifier(max_iter=5), 67), (regressor(max_iter=5), 60)], ids=["classes", "numbers"]
)
def test_all_of_scikit_learns_checks_pass(estimator, expected):
    negative = {"check_class_weight_classifiers": "its rows have negative values, whatever the tags say"}
    results = check_estimator(estimator, on_skip=None, on_fail=None, expected_failed_checks=negative)
    failed = {result["check_name"]: result["exception"] for result in results if result["status"] == "failed"}
    skipped = {result["check_name"] for result in results if result["status"] == "skipped"}
    assert not failed
    # The first runs where SCIPY_ARRAY_API is set; scores are no probabilities.
    assert skipped <= {"check_array_api_input", "check_classifiers_multilabel_output_format_predict_proba"}
    assert Counter(result["status"] for result in results)["passed"] == expected - len(skipped)


# --- what is learned


def test_topics_that_generated_the_documents_are_found():
    X, _, topics = draw_documents(400, length=80)
    fitted = classifier(max_iter=60, C=0).fit(X, np.arange(400) % 2)
    found = fitted.components_ / fitted.components_.sum(axis=1, keepdims=True)
    distance = 0.5 * np.abs(found[:, None] - topics).sum(axis=2)
    ours, theirs = linear_sum_assignment(distance)
    assert distance[ours, theirs].max() < 0.1


def test_without_a_price_it_is_latent_dirichlet_allocation():
    held_out, _, _ = draw_documents(200, seed=0)
    train, test = held_out[:100], held_out[100:]
    ours = classifier(C=0, max_iter=60).fit(train, np.arange(100) % 2)
    priors = {"doc_topic_prior": 0.1, "topic_word_prior": 0.1}
    theirs = LatentDirichletAllocation(4, max_iter=60, random_state=0, **priors).fit(train)
    assert np.all(ours.coef_ == 0)
    assert ours.perplexity(test) < 1.05 * theirs.perplexity(test)


def test_perplexity_is_the_bound_of_scikit_learn_at_the_same_topics():
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


def test_labels_move_the_topics():
    """Two classes whose difference explains few words: topics without labels overlook it."""
    rng = np.random.default_rng(0)
    X, _, _ = draw_documents(300, n_words=50, length=60, seed=3)
    y = rng.integers(0, 2, 300)
    signal = np.zeros((300, 10), dtype=np.int64)
    signal[np.arange(300), 5 * y + rng.integers(0, 5, 300)] = 4
    X = np.hstack([X.toarray(), signal])
    supervised = classifier(8, max_iter=30).fit(X[:150], y[:150]).score(X[150:], y[150:])
    pipeline = make_pipeline(classifier(8, max_iter=30, C=0), LinearSVC()).fit(X[:150], y[:150]).score(X[150:], y[150:])
    assert supervised > 0.9
    assert supervised > pipeline + 0.1


def test_a_planted_linear_response_is_found():
    X, proportions, _ = draw_documents(500, length=120, seed=1)
    weights = np.array([2.0, -1.0, 0.5, 0.0])
    y = 10 + 5 * proportions @ weights
    fitted = regressor(max_iter=40).fit(X[:300], y[:300])
    assert fitted.score(X[300:], y[300:]) > 0.93
    assert np.max(np.abs(np.sort(fitted.coef_ + fitted.intercept_) - np.sort(10 + 5 * weights))) < 1.5


def test_several_targets_at_once():
    Y = np.column_stack([NUMBERS, -NUMBERS, 100 * PROPORTIONS[:, 1]])
    fitted = regressor(max_iter=30).fit(X[:200], Y[:200])
    assert fitted.coef_.shape == (3, 4)
    assert r2_score(Y[200:], fitted.predict(X[200:])) > 0.8
    np.testing.assert_allclose(fitted.predict(X), fitted.transform(X) @ fitted.coef_.T + fitted.intercept_)


def test_several_labels_at_once():
    Y = (PROPORTIONS > 0.25).astype(int)
    fitted = classifier(max_iter=30).fit(X[:200], Y[:200])
    assert fitted.decision_function(X).shape == fitted.predict(X).shape == (300, 4)
    assert np.mean(fitted.predict(X[200:]) == Y[200:]) > 0.85
    sparse = classifier(max_iter=30).fit(X[:200], csr_matrix(Y[:200]))
    np.testing.assert_array_equal(sparse.coef_, fitted.coef_)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_decisions_are_linear_in_the_topics(n_classes):
    kept = np.isin(LABELS, ["sport", "law"]) if n_classes == 2 else slice(None)
    fitted = classifier().fit(X[kept], LABELS[kept])
    scores = fitted.transform(X) @ fitted.coef_.T
    assert scores.shape == (300, 1 if n_classes == 2 else 3)
    np.testing.assert_allclose(fitted.decision_function(X), scores[:, 0] if n_classes == 2 else scores)
    best = (scores[:, 0] > 0).astype(int) if n_classes == 2 else scores.argmax(axis=1)
    np.testing.assert_array_equal(fitted.predict(X), fitted.classes_[best])
    assert fitted.score(X[kept], LABELS[kept]) > 0.9


def test_margin_weight_variance_and_price_have_one_unit():
    one = classifier(C=1.0, margin=1.0, weight_variance=0.3, n_blocks=1).fit(X, LABELS)
    two = classifier(C=0.5, margin=2.0, weight_variance=1.2, n_blocks=1).fit(X, LABELS)
    np.testing.assert_array_equal(one.components_, two.components_)
    assert np.mean(one.predict(X) == two.predict(X)) > 0.99


@pytest.mark.parametrize("how", ["class_weight", "cost"])
def test_prices_move_errors_between_classes(how):
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
        np.testing.assert_allclose(same.coef_, after.coef_, rtol=1e-10)


def test_balanced_class_weights():
    fitted = classifier(class_weight="balanced").fit(X, LABELS)
    assert fitted.score(X, LABELS) > 0.85


# --- documents as they come


@BOTH
def test_any_container_of_counts(make, y):
    expected = make().fit(X, y)
    dense = X.toarray()
    duplicates = csr_matrix((np.ones(int(X.sum())), np.repeat(X.indices, X.data), np.r_[0, np.cumsum(X.sum(axis=1))]))
    for container in (dense, dense.astype(float), csc_matrix(dense), csr_matrix(dense, dtype=np.int32), duplicates):
        fitted = make().fit(container, y)
        np.testing.assert_array_equal(fitted.components_, expected.components_)
        np.testing.assert_array_equal(fitted.predict(container), expected.predict(X))


@BOTH
def test_empty_documents_short_ones_and_words_never_seen(make, y):
    Z = X.toarray().copy()
    Z[:5] = 0
    Z[5] = 0
    Z[5, 3] = 1
    Z[6, 3] = 100_000
    Z[:, -1] = 0
    fitted = make().fit(Z, y)
    assert np.all(np.isfinite(fitted.coef_))
    shares = fitted.transform(Z)
    np.testing.assert_allclose(shares.sum(axis=1), 1.0, rtol=1e-5)
    np.testing.assert_allclose(shares[:5], np.broadcast_to(shares[0], (5, 4)))
    unseen = np.zeros((1, Z.shape[1]))
    unseen[0, -1] = 7
    assert np.all(np.isfinite(fitted.transform(unseen)))
    assert np.isfinite(fitted.perplexity(np.vstack([unseen, Z])))


def test_a_vocabulary_of_a_hundred_thousand_words():
    wide = csr_array((X.data, 1600 * X.indices, X.indptr), shape=(300, 100_000))
    fitted = classifier(max_iter=3).fit(wide, LABELS)
    assert fitted.components_.shape == (4, 100_000)
    assert fitted.transform(wide).shape == (300, 4)


def test_new_documents_may_have_fractions_of_words():
    fitted = classifier().fit(X, LABELS)
    np.testing.assert_allclose(fitted.transform(0.5 * X + 0.5 * X), fitted.transform(X))
    assert np.all(np.isfinite(fitted.transform(0.3 * X)))


def test_documents_are_inferred_one_by_one():
    fitted = classifier().fit(X, LABELS)
    order = np.random.default_rng(0).permutation(300)
    np.testing.assert_array_equal(fitted.transform(X[order]), fitted.transform(X)[order])
    np.testing.assert_array_equal(fitted.transform(X[:1]), fitted.transform(X)[:1])


def test_words_have_names():
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


# --- the chain


@BOTH
@pytest.mark.parametrize("n_blocks", [1, 3])
def test_the_number_of_threads_changes_no_bit(make, y, n_blocks):
    fits = [make(n_blocks=n_blocks, n_jobs=n_jobs).fit(X, y) for n_jobs in (1, 2, 5)]
    for other in fits[1:]:
        np.testing.assert_array_equal(other.components_, fits[0].components_)
        np.testing.assert_array_equal(other.coef_, fits[0].coef_)
        np.testing.assert_array_equal(other.transform(X), fits[0].transform(X))


def test_the_number_of_threads_changes_no_bit_with_many_topics():
    many = np.arange(300) % 20
    fits = [classifier(320, max_iter=3, n_blocks=3, n_jobs=n_jobs).fit(X, many) for n_jobs in (1, 2, 5)]
    assert gibbs.prefers_proposals(320, 20)
    assert gibbs.MOST_DRAWN_TOGETHER < 320
    for other in fits[1:]:
        np.testing.assert_array_equal(other.components_, fits[0].components_)
        np.testing.assert_array_equal(other.coef_, fits[0].coef_)


@pytest.mark.parametrize(
    ("n_tokens", "n_documents", "expected"),
    [(400_000, 4_000, 1), (1_100_000, 8_500, 4), (10**7, 10**5, 8), (10**7, 10**6, 4), (10**8, 10**5, 16), (0, 3, 1)],
)
def test_how_a_corpus_is_cut(n_tokens, n_documents, expected):
    assert default_groups(n_tokens, n_documents) == expected


def test_blocks_change_little():
    train, test = X[:200], X[200:]
    perplexities = [classifier(n_blocks=n, max_iter=40).fit(train, LABELS[:200]).perplexity(test) for n in (1, 2, 8)]
    assert max(perplexities) < 1.03 * min(perplexities)


def test_seeds():
    one, same, other = (classifier(random_state=seed).fit(X, LABELS) for seed in (3, 3, 4))
    np.testing.assert_array_equal(one.components_, same.components_)
    assert not np.array_equal(one.components_, other.components_)


@BOTH
def test_a_warm_start_goes_on_with_the_chain(make, y):
    whole = make(max_iter=12, burn_in=4).fit(X, y)
    parts = make(max_iter=6, burn_in=4, warm_start=True).fit(X, y).fit(X, y)
    np.testing.assert_allclose(parts.components_, whole.components_, rtol=1e-5)
    np.testing.assert_allclose(parts.coef_, whole.coef_, rtol=1e-5)
    assert parts.n_iter_ == 6


def test_a_warm_start_with_other_documents_begins_at_the_topics():
    model = classifier(max_iter=30, warm_start=True).fit(X[:200], LABELS[:200])
    model.set_params(max_iter=1, burn_in=0).fit(X[200:], LABELS[200:])
    cold = classifier(max_iter=1, burn_in=0).fit(X[200:], LABELS[200:])
    assert model.trace_.objective[0] < 0.98 * cold.trace_.objective[0]


@BOTH
def test_documents_in_portions(make, y):
    known = {"classes": np.unique(y)} if make is classifier else {}
    model = make(max_iter=40, random_state=1)
    model.partial_fit(X[:60], y[:60], **known)
    first = model.score(X[180:], y[180:]), model.perplexity(X[180:])
    for begin in (60, 120):
        model.partial_fit(X[begin : begin + 60], y[begin : begin + 60])
    assert model.components_.sum() == pytest.approx(X[:180].sum() + 4 * 60 * 0.1)
    assert model.score(X[180:], y[180:]) > first[0]
    assert model.perplexity(X[180:]) < first[1]


@BOTH
def test_portions_with_many_topics(make, y, monkeypatch):
    """Weights of many topics are remembered by the diagonal of their precision, which takes no square of memory."""
    monkeypatch.setattr(gibbs, "MOST_DRAWN_TOGETHER", 3)
    model = make(max_iter=30, refit=False).fit(X[:150], y[:150])
    assert model._memory.precision.shape == (len(np.atleast_2d(model.coef_)), 4)
    model.partial_fit(X[150:], y[150:])
    assert model.score(X, y) > 0.8
    assert set(model.trace_.terms) == {"words", "margin", "weights"}
    model.set_params(warm_start=True).fit(X[:100], y[:100])
    assert model.score(X, y) > 0.8


@BOTH
def test_a_portion_of_empty_documents_changes_nothing(make, y):
    model = make().fit(X, y)
    before, coef = model.components_, model.coef_
    after = model.partial_fit(0 * X, y)
    assert before.sum() == pytest.approx(after.components_.sum())
    assert np.all(np.isfinite(coef))
    assert np.all(np.isfinite(after.coef_))


@BOTH
def test_partial_fit_goes_on_after_fit(make, y):
    model = make().fit(X[:200], y[:200])
    model.partial_fit(X[200:], y[200:])
    assert model.components_.sum() == pytest.approx(X.sum() + 4 * 60 * 0.1)
    assert model.score(X, y) > 0.8


@BOTH
def test_portions_without_and_with_a_price(make, y):
    model = make(C=0).fit(X[:100], y[:100])
    model.partial_fit(X[100:200], y[100:200])
    assert np.all(model.coef_ == 0)
    model.set_params(C=1.0, max_iter=30).partial_fit(X[200:], y[200:])
    assert model.score(X, y) > 0.7
    with pytest.raises(ValueError, match="n_components is 7"):
        model.set_params(n_components=7).partial_fit(X, y)


def test_longer_chains_do_not_predict_worse():
    train, test = slice(200), slice(200, None)
    scores = [classifier(max_iter=n).fit(X[train], LABELS[train]).score(X[test], LABELS[test]) for n in (20, 150)]
    assert scores[1] > scores[0] - 0.03


def test_prices_grow_to_what_they_should_be():
    whole, grown = (classifier(price_rise=rise, max_iter=15, n_blocks=1).fit(X, LABELS) for rise in (0, 5))
    assert whole.trace_.terms["margin"][2] < grown.trace_.terms["margin"][2]
    assert grown.trace_.terms["margin"][-1] < grown.trace_.terms["margin"][2]


def test_the_trace_has_the_terms():
    fitted = classifier().fit(X, LABELS)
    assert set(fitted.trace_.terms) == {"words", "margin", "weights"}
    assert len(fitted.trace_) == fitted.n_iter_ == 15
    assert fitted.trace_.terms["words"][-1] < fitted.trace_.terms["words"][0]
    assert np.all((fitted.trace_.diagnostics["changed"] > 0) & (fitted.trace_.diagnostics["changed"] <= 1))


@BOTH
def test_callbacks_and_progress(make, y, capsys):
    model = make(max_iter=3, verbose=1)
    model.set_callbacks(ProgressBar())
    model.fit(X, y)
    assert "3/3" in capsys.readouterr().err


@BOTH
def test_saved_copied_and_pickled(make, y, tmp_path):
    fitted = make(warm_start=True).fit(X, y)
    fitted.save(tmp_path / "model")
    for other in (regbayes.load(tmp_path / "model"), pickle.loads(pickle.dumps(fitted))):
        np.testing.assert_array_equal(other.predict(X), fitted.predict(X))
        np.testing.assert_array_equal(other.components_, fitted.components_)
        other.partial_fit(X, y)
    assert clone(fitted).get_params() == fitted.get_params()


# --- bad input


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
def test_counts_that_cannot_be_fitted(make, y, rows, message):
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
        {"price_rise": 15},
        {"price_rise": 1.5},
        {"n_blocks": 0},
        {"n_blocks": "many"},
        {"inference": "exact"},
        {"n_jobs": 0},
    ],
    ids=str,
)
def test_parameters_that_cannot_be(make, y, parameters):
    with pytest.raises(ValueError, match=next(iter(parameters))):
        make().set_params(**parameters).fit(X, y)


@pytest.mark.parametrize(
    ("change", "y", "message"),
    [
        ({"cost": np.ones((2, 2))}, LABELS, "cost must have shape"),
        ({"cost": np.ones((3, 3))}, LABELS, "zero diagonal"),
        ({"class_weight": {"law": -1.0}}, LABELS, "class_weight must be finite and not negative"),
        ({"class_weight": {"law": np.nan}}, LABELS, "class_weight must be finite and not negative"),
        ({"class_weight": "balanced"}, PROPORTIONS > 0.3, "several labels"),
        ({}, np.repeat("one", 300), "at least 2 classes"),
        ({}, NUMBERS, "continuous"),
    ],
    ids=["cost shape", "cost diagonal", "negative weight", "no weight", "labels", "one class", "numbers"],
)
def test_classes_that_cannot_be(change, y, message):
    with pytest.raises(ValueError, match=message):
        classifier(**change).fit(X, y)


def test_portions_that_do_not_fit_together():
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
def test_what_is_asked_of_a_fitted_model(make, y):
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
