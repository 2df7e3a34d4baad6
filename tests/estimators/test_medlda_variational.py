"""Test MedLDA's estimators with variational inference."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_array, vstack
from sklearn.base import clone
from sklearn.dummy import DummyClassifier
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.multioutput import MultiOutputClassifier
from sklearn.svm import LinearSVC

from medlda_tools import draw_documents
from reference_tools import fits_its_rows, is_nearer_to
from regbayes import MedLDAClassifier, MedLDARegressor
from regbayes.persistence import load, save

X, PROPORTIONS, TOPICS = draw_documents()
LABELS = np.array(["sport", "law", "food"])[np.argmax(PROPORTIONS[:, :3], axis=1)]
NUMBERS = 3 + 2 * PROPORTIONS @ np.array([2.0, -1.0, 0.5, 0.0])
INDICATORS = (PROPORTIONS[:, :3] > 0.3).astype(int)
QUIET = pytest.mark.filterwarnings("ignore:.*stopped at max_iter")


def classifier(n_components=4, **parameters):
    return MedLDAClassifier(n_components, **{"inference": "variational", "random_state": 0} | parameters)


def regressor(n_components=4, **parameters):
    return MedLDARegressor(n_components, **{"inference": "variational", "random_state": 0} | parameters)


BOTH = pytest.mark.parametrize(("make", "y"), [(classifier, LABELS), (regressor, NUMBERS)], ids=["classes", "numbers"])


@QUIET
def test_fit_learns_classes_labels_and_numbers():
    held_out, proportions, _ = draw_documents(500, length=80)
    train, test = slice(0, 300), slice(300, 500)
    names = np.array(["a", "b", "c"])[np.argmax(proportions[:, :3], axis=1)]
    several = (proportions[:, :3] > 0.3).astype(int)
    for y in (names, names == "b", several):
        model, known, constant = classifier(), LinearSVC(), DummyClassifier()
        if y.ndim == 2:
            known, constant = MultiOutputClassifier(known), MultiOutputClassifier(constant)
        found = model.fit(held_out[train], y[train]).predict(held_out[test])
        references = (rule.fit(proportions[train], y[train]).predict(proportions[test]) for rule in (known, constant))
        assert is_nearer_to(*(np.mean(answer == y[test]) for answer in (*references, found)))
    numbers = 3 + 2 * proportions @ np.array([2.0, -1.0, 0.5, 0.0])
    fitted = regressor().fit(held_out[train], numbers[train])
    assert is_nearer_to(1.0, 0.0, fitted.score(held_out[test], numbers[test]))


@BOTH
def test_words_in_addition_to_topics_are_weighted_by_tf_idf(make, y, tmp_path):
    """Scores are those of topics plus a linear function of scikit-learn's tf-idf, which solves the joint head."""
    fitted = make(include_inputs=True).fit(X[:200], y[:200])
    words = TfidfTransformer().fit(X[:200]).transform(X)
    score = fitted.decision_function if make is classifier else fitted.predict
    expected = fitted.transform(X) @ fitted.coef_features_.T + words @ fitted.coef_inputs_.T
    np.testing.assert_allclose(score(X), expected + getattr(fitted, "intercept_", 0.0), rtol=1e-6, atol=1e-9)
    assert np.abs(fitted.coef_inputs_).max() > 0
    assert fitted.trace_.rises.count == 0
    save(fitted, tmp_path / "model.regbayes")
    loaded = load(tmp_path / "model.regbayes")
    np.testing.assert_array_equal(loaded.predict(X), fitted.predict(X))


@QUIET
@BOTH
def test_words_in_addition_to_topics_count_documents_by_weight(make, y):
    weights = np.arange(len(y)) % 3
    weighted = make(include_inputs=True, tol=0.0, max_iter=10).fit(X, y, sample_weight=weights)
    rows = np.repeat(np.arange(len(y)), weights)
    repeated = clone(weighted).fit(X[rows], y[rows])
    np.testing.assert_allclose(weighted.idf_, TfidfTransformer().fit(X[rows]).idf_)
    np.testing.assert_allclose(weighted.coef_inputs_, repeated.coef_inputs_, atol=0.02 * np.ptp(repeated.coef_inputs_))


@BOTH
def test_words_are_used_as_fitted(make, y):
    fitted = make(include_inputs=True).fit(X[:200], y[:200])
    expected = fitted.predict(X)
    np.testing.assert_array_equal(fitted.set_params(include_inputs=False).predict(X), expected)
    with pytest.raises(ValueError, match="fit_weights does not take include_inputs=True"):
        fitted.fit_weights(X[:50], y[:50])
    without = make().fit(X[:200], y[:200])
    expected = without.predict(X)
    np.testing.assert_array_equal(without.set_params(include_inputs=True).predict(X), expected)


@BOTH
def test_words_in_addition_to_topics_need_whole_fits_by_mean_field(make, y):
    with pytest.raises(ValueError, match=r"include_inputs=True needs inference=.variational"):
        make(include_inputs=True, inference="gibbs").fit(X[:50], y[:50])
    options = {"classes": np.unique(y)} if make is classifier else {}
    with pytest.raises(ValueError, match="partial_fit does not take include_inputs=True"):
        make(include_inputs=True).partial_fit(X[:50], y[:50], **options)
    with pytest.raises(ValueError, match="fit_weights does not take include_inputs=True"):
        make(include_inputs=True).fit(X[:50], y[:50]).fit_weights(X[:50], y[:50])


@BOTH
@pytest.mark.parametrize("squared", [False, True])
def test_defaults_converge_without_warning(make, y, squared):
    plain = "hinge" if make is classifier else "epsilon_insensitive"
    fitted = make(loss=f"squared_{plain}" if squared else plain).fit(X[:150], y[:150])
    assert fitted.trace_.rises.count == 0
    assert fits_its_rows(fitted.predict(X[:150]), y[:150])


@BOTH
def test_predictions_are_linear_in_topics(make, y):
    fitted = make(max_iter=6, tol=1.0).fit(X, y)
    shares = fitted.transform(X)
    np.testing.assert_allclose(shares.sum(axis=1), 1)
    np.testing.assert_allclose(fitted.components_.sum(), X.sum(), rtol=1e-3)
    if make is classifier:
        np.testing.assert_allclose(fitted.decision_function(X), shares @ fitted.coef_features_.T)
    else:
        np.testing.assert_allclose(fitted.predict(X), shares @ fitted.coef_features_ + fitted.intercept_)


@BOTH
def test_fit_accepts_fractional_counts(make, y):
    weighted = TfidfTransformer().fit_transform(X) * 10
    assert fits_its_rows(make().fit(weighted, y).predict(weighted), y)
    with pytest.raises(ValueError, match="whole counts"):
        make(inference="gibbs").fit(weighted, y)


@BOTH
def test_zero_C_gives_zero_weights_and_unsupervised_topics(make, y):
    starts = [make(C=0, topic_word_prior=0, random_state=seed).fit(X, y) for seed in range(3)]
    assert not any(np.any(fitted.coef_features_) for fitted in starts)
    best = min(fitted.perplexity(X) for fitted in starts)
    assert best < 1.05 * make(C=0, inference="gibbs", max_iter=40).fit(X, y).perplexity(X)


@QUIET
@BOTH
def test_sample_weights_match_copies(make, y):
    """Lengths, scales, class weights and initial topics use the sample weights."""
    weights = np.random.default_rng(0).integers(0, 4, 300)
    rows = np.repeat(np.arange(300), weights)
    # At this C the head converges within its limit of passes.
    options = {"class_weight": "balanced"} if make is classifier else {"C": 0.03}
    models = [make(max_iter=1, **options) for _ in range(2)]
    weighted, repeated = models[0].fit(X, y, sample_weight=weights), models[1].fit(X[rows], y[rows])
    ours, theirs = weighted.trace_, repeated.trace_
    for name in ("likelihood", "kl_proportions", "kl_topics"):
        assert ours.terms[name][0] == pytest.approx(theirs.terms[name][0], rel=1e-6)
    head = sum(theirs.terms[name][0] for name in ("kl_weights", "margin"))
    assert ours.objective[0] == pytest.approx(theirs.objective[0], abs=2e-3 * head)  # sum of both duality gaps
    np.testing.assert_allclose(weighted.components_.sum(), repeated.components_.sum(), rtol=1e-5)


@QUIET
@BOTH
def test_fit_is_reproducible_after_clone_and_load(make, y, tmp_path):
    fitted = make(max_iter=4, n_jobs=2).fit(X, y)
    again = clone(fitted).set_params(n_jobs=1).fit(X, y)
    np.testing.assert_array_equal(fitted.coef_features_, again.coef_features_)
    fitted.save(tmp_path / "model")
    loaded = load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict(X), fitted.predict(X))
    np.testing.assert_array_equal(loaded.components_, fitted.components_)


@QUIET
@BOTH
def test_warm_start_continues_from_topics(make, y):
    model = make(max_iter=10, warm_start=True).fit(X, y)
    before = model.trace_.objective
    model.fit(X, y)
    assert model.trace_.objective[0] < before[0]
    assert model.trace_.objective[0] == pytest.approx(before[-1], rel=1e-2)
    model.set_params(n_components=3).fit(X, y)  # another number of topics: a cold start
    assert model.components_.shape == (3, 60)


@QUIET
def test_long_short_and_empty_documents_are_supported():
    rng = np.random.default_rng(0)
    long = rng.multinomial(100_000, TOPICS[0])[None]
    short = np.eye(60, dtype=int)[:2]
    everything = vstack([X[:60], csr_array(long), csr_array(short), csr_array((1, 60), dtype=int)]).tocsr()
    labels = np.append(LABELS[:60], ["law", "food", "sport", "law"])
    fitted = classifier(max_iter=5).fit(everything, labels)
    assert np.all(np.isfinite(fitted.decision_function(everything)))
    assert np.isfinite(fitted.perplexity(everything))


@QUIET
def test_large_vocabulary_and_unseen_words_are_supported():
    wide = csr_array((X.data, X.indices * 1500, X.indptr), shape=(300, 100_000))
    fitted = classifier(max_iter=5).fit(wide, LABELS)
    unseen = csr_array(([3], ([0], [99_999])), shape=(1, 100_000))
    assert np.all(np.isfinite(fitted.decision_function(unseen)))
    assert fits_its_rows(fitted.predict(wide), LABELS)


@QUIET
def test_costs_and_class_weights_shift_predictions():
    plain = classifier(max_iter=10).fit(X, LABELS)
    heavy = classifier(max_iter=10, class_weight={"law": 20.0}).fit(X, LABELS)
    assert np.sum(heavy.predict(X) == "law") > np.sum(plain.predict(X) == "law")
    cost = np.array([[0, 1, 1], [9, 0, 9], [1, 1, 0]])  # missing "law", the second class, is expensive
    careful = classifier(max_iter=10, cost=cost).fit(X, LABELS)
    assert np.sum(careful.predict(X) == "law") > np.sum(plain.predict(X) == "law")


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"doc_topic_prior": "estimate"}, "doc_topic_prior"),
        ({"topic_word_prior": 0, "inference": "gibbs"}, 'needs inference="variational"'),
        ({"loss": "squared_hinge", "inference": "gibbs"}, 'needs inference="variational"'),
        ({"n_sweeps": 0}, "n_sweeps"),
        ({"loss": "squared"}, "loss"),
    ],
)
def test_invalid_parameter_raises(parameters, message):
    with pytest.raises(ValueError, match=message):
        classifier(**parameters).fit(X, LABELS)
