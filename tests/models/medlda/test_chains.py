"""Chains of the MedLDA estimators: threads, blocks, resuming, mini-batches, reports and saved models."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.callback import ProgressBar

import regbayes
from medlda_tools import corpus_of, draw_documents, settings
from reference_tools import fits_its_rows
from regbayes import MedLDAClassifier, MedLDARegressor
from regbayes.kernels.corpus import default_groups
from regbayes.margins.targets import Signs
from regbayes.models.medlda import gibbs
from regbayes.models.medlda.gibbs import Problem

X, PROPORTIONS, TOPICS = draw_documents()
LABELS = np.array(["sport", "law", "food"])[np.argmax(PROPORTIONS[:, :3], axis=1)]
NUMBERS = 3 + 2 * PROPORTIONS @ np.array([2.0, -1.0, 0.5, 0.0])


def classifier(n_components=4, **parameters):
    return MedLDAClassifier(n_components, **{"inference": "gibbs", "max_iter": 15, "random_state": 0} | parameters)


def regressor(n_components=4, **parameters):
    return MedLDARegressor(n_components, **{"inference": "gibbs", "max_iter": 15, "random_state": 0} | parameters)


BOTH = pytest.mark.parametrize(("make", "y"), [(classifier, LABELS), (regressor, NUMBERS)], ids=["classes", "numbers"])


@BOTH
@pytest.mark.parametrize("n_blocks", [1, 3])
def test_chain_is_bitwise_identical_for_any_number_of_threads(make, y, n_blocks):
    fits = [make(n_blocks=n_blocks, n_jobs=n_jobs).fit(X, y) for n_jobs in (1, 2, 5)]
    for other in fits[1:]:
        np.testing.assert_array_equal(other.components_, fits[0].components_)
        np.testing.assert_array_equal(other.coef_features_, fits[0].coef_features_)
        np.testing.assert_array_equal(other.transform(X), fits[0].transform(X))


@pytest.mark.parametrize(
    ("n_tokens", "n_documents", "expected"),
    [(400_000, 4_000, 1), (1_100_000, 8_500, 4), (10**7, 10**5, 8), (10**7, 10**6, 4), (10**8, 10**5, 16), (0, 3, 1)],
)
def test_default_groups_for_corpus_sizes(n_tokens, n_documents, expected):
    assert default_groups(n_tokens, n_documents) == expected


def test_blocks_change_predictions_little():
    train, test = X[:200], X[200:]
    perplexities = [classifier(n_blocks=n, max_iter=40).fit(train, LABELS[:200]).perplexity(test) for n in (1, 2, 8)]
    assert max(perplexities) < 1.03 * min(perplexities)


def test_seeds_determine_the_chain():
    one, same, other = (classifier(random_state=seed).fit(X, LABELS) for seed in (3, 3, 4))
    np.testing.assert_array_equal(one.components_, same.components_)
    assert not np.array_equal(one.components_, other.components_)


@BOTH
def test_warm_start_resumes_the_chain(make, y):
    whole = make(max_iter=12, burn_in=4).fit(X, y)
    parts = make(max_iter=6, burn_in=4, warm_start=True).fit(X, y).fit(X, y)
    np.testing.assert_allclose(parts.components_, whole.components_, rtol=1e-5)
    np.testing.assert_allclose(parts.coef_features_, whole.coef_features_, rtol=1e-5)
    assert parts.n_iter_ == 6


def test_warm_start_on_other_documents_starts_at_the_topics():
    model = classifier(max_iter=30, warm_start=True).fit(X[:200], LABELS[:200])
    model.set_params(max_iter=1, burn_in=0).fit(X[200:], LABELS[200:])
    cold = classifier(max_iter=1, burn_in=0).fit(X[200:], LABELS[200:])
    assert model.trace_.objective[0] < 0.98 * cold.trace_.objective[0]


@BOTH
def test_partial_fit_on_mini_batches_improves_predictions(make, y):
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
def test_mini_batch_of_empty_documents_changes_nothing(make, y):
    model = make().fit(X, y)
    before, coef = model.components_, model.coef_features_
    after = model.partial_fit(0 * X, y)
    assert before.sum() == pytest.approx(after.components_.sum())
    assert np.all(np.isfinite(coef))
    assert np.all(np.isfinite(after.coef_features_))


@BOTH
def test_partial_fit_continues_after_fit(make, y):
    model = make().fit(X[:200], y[:200])
    model.partial_fit(X[200:], y[200:])
    assert model.components_.sum() == pytest.approx(X.sum() + 4 * 60 * 0.1)
    assert fits_its_rows(model.predict(X), y)


@BOTH
def test_partial_fit_with_and_without_a_penalty(make, y):
    model = make(C=0).fit(X[:100], y[:100])
    model.partial_fit(X[100:200], y[100:200])
    assert np.all(model.coef_features_ == 0)
    model.set_params(C=1.0, max_iter=30).partial_fit(X[200:], y[200:])
    assert fits_its_rows(model.predict(X), y)
    with pytest.raises(ValueError, match="n_components is 7"):
        model.set_params(n_components=7).partial_fit(X, y)


def test_longer_chains_do_not_predict_worse():
    train, test = slice(200), slice(200, None)
    scores = [classifier(max_iter=n).fit(X[train], LABELS[train]).score(X[test], LABELS[test]) for n in (20, 150)]
    assert scores[1] > scores[0] - 0.03


def test_warm_up_increases_C_to_its_final_value():
    """Each warm-up sweep equals a sweep of the problem with its intermediate C."""
    responses = Signs(np.where(np.arange(300)[:, None] % 2, 1.0, -1.0), np.full((300, 1), 50.0), 1.0)
    rising, full = settings(4, n_warm_up=3), settings(4)
    chain = gibbs.start(Problem(corpus_of(X), responses, rising))
    for sweep in range(6):
        cheaper = replace(responses, C=responses.C * min(1.0, (sweep + 2) / 4))
        expected = gibbs.step(Problem(corpus_of(X), cheaper, full), chain).state
        chain = gibbs.step(Problem(corpus_of(X), responses, rising), chain).state
        np.testing.assert_array_equal(chain.quadratic, expected.quadratic)
        np.testing.assert_array_equal(chain.counts.topics, expected.counts.topics)


def test_resumed_chain_has_the_full_penalty():
    one, two = (classifier(C_warmup=1, max_iter=6, warm_start=True).fit(X, LABELS) for _ in range(2))
    one.set_params(max_iter=12, C_warmup=6).fit(X, LABELS)
    two.set_params(max_iter=12, C_warmup=0).fit(X, LABELS)
    np.testing.assert_array_equal(one.components_, two.components_)


def test_trace_has_the_named_terms():
    fitted = classifier().fit(X, LABELS)
    assert set(fitted.trace_.terms) == {"likelihood", "margin", "kl_weights"}
    assert len(fitted.trace_) == fitted.n_iter_ == 15
    assert fitted.trace_.terms["likelihood"][-1] < fitted.trace_.terms["likelihood"][0]
    assert np.all((fitted.trace_.diagnostics["changed"] > 0) & (fitted.trace_.diagnostics["changed"] <= 1))


@BOTH
def test_callbacks_and_verbose_report_progress(make, y, capsys):
    model = make(max_iter=3, verbose=1)
    model.set_callbacks(ProgressBar())
    model.fit(X, y)
    assert "3/3" in capsys.readouterr().err


@BOTH
def test_model_survives_saving_copying_and_pickling(make, y, tmp_path):
    fitted = make(warm_start=True).fit(X, y)
    fitted.save(tmp_path / "model")
    for other in (regbayes.load(tmp_path / "model"), pickle.loads(pickle.dumps(fitted))):
        np.testing.assert_array_equal(other.predict(X), fitted.predict(X))
        np.testing.assert_array_equal(other.components_, fitted.components_)
        other.partial_fit(X, y)
    assert clone(fitted).get_params() == fitted.get_params()
