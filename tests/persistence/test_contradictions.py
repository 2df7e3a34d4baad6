"""Test that files with valid checksums but inconsistent contents raise on load."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse
from sklearn.feature_extraction.text import CountVectorizer, HashingVectorizer

from regbayes import MedLDAClassifier, MultiTaskILSVMRegressor
from regbayes.persistence import PersistenceError, load, save

rng = np.random.default_rng(0)
COUNTS = scipy.sparse.csr_array(rng.poisson(0.5, size=(40, 30)))
LABELS = np.arange(40) % 2


@pytest.fixture(scope="module")
def sampled():
    return MedLDAClassifier(3, inference="gibbs", n_sweeps=5, random_state=0).fit(COUNTS, LABELS)


def refuses(model, path):
    save(model, path / "model")
    with pytest.raises(PersistenceError, match="contradicts itself"):
        load(path / "model")


def change_topics(model, **changes):
    model._fitted = replace(model._fitted, **changes)


def change_posterior(model, **changes):
    model._posterior = replace(model._posterior, **changes)


CONTRADICTIONS = {
    "more columns than words": lambda m: setattr(m, "n_features_in_", 10**6),
    "an endless number of sweeps": lambda m: setattr(m, "max_iter", 2**62),
    "a number of sweeps that is not whole": lambda m: setattr(m, "max_iter", 1e300),
    "columns are not a number": lambda m: setattr(m, "n_features_in_", "30"),
    "fewer words": lambda m: change_topics(m, word_given_topic=m._fitted.word_given_topic[:-1]),
    "fewer priors": lambda m: change_topics(m, doc_prior=m._fitted.doc_prior[:-1]),
    "weights of other topics": lambda m: change_topics(m, weights=m._fitted.weights[:, :-1]),
    "a probability that is NaN": lambda m: change_topics(m, topic_total=m._fitted.topic_total * np.nan),
    "negative probabilities": lambda m: change_topics(m, word_given_topic=-m._fitted.word_given_topic),
    "topics that are a list": lambda m: change_topics(m, topic_total=m._fitted.topic_total.tolist()),
    "endless sweeps": lambda m: change_topics(m, n_sweeps=2**31 - 1),
    "negative counts": lambda m: change_posterior(m, word_topic=m._posterior.word_topic - 100),
    "counts beyond 32 bits": lambda m: change_posterior(m, word_topic=np.full_like(m._posterior.word_topic, 2**30)),
    "counts of other words": lambda m: change_posterior(m, word_topic=m._posterior.word_topic[:-1]),
    "precision of other weights": lambda m: change_posterior(m, precision=m._posterior.precision[:, :-1]),
}


@pytest.mark.parametrize("change", CONTRADICTIONS.values(), ids=CONTRADICTIONS)
def test_load_inconsistent_topics_raises(change, sampled, tmp_path):
    save(sampled, tmp_path / "intact")
    model = load(tmp_path / "intact")
    change(model)
    refuses(model, tmp_path)


def test_load_batches_of_another_vocabulary_raises(tmp_path):
    model = MedLDAClassifier(3, inference="variational", random_state=0)
    with warnings.catch_warnings(action="ignore"):
        model.partial_fit(COUNTS, LABELS, classes=[0, 1])
    state = model._batches.state
    smaller = replace(state.params, logits=state.params.logits[:-1], table=state.params.table[:-1])
    model._batches = replace(model._batches, state=replace(state, params=smaller))
    refuses(model, tmp_path)


@pytest.mark.parametrize("number", [-(2**31), 0, 7])
def test_load_vocabulary_with_invalid_index_raises(number, tmp_path):
    vectorizer = CountVectorizer().fit(["one two three"])
    vectorizer.vocabulary_["two"] = number
    refuses(vectorizer, tmp_path)


@pytest.mark.parametrize("n_features", [0, -1, 2**40])
def test_load_hashing_with_invalid_n_features_raises(n_features, tmp_path):
    refuses(HashingVectorizer(n_features=n_features), tmp_path)


@pytest.mark.parametrize(("part", "value"), [("indices", 10**7), ("indices", -5), ("indptr", 10**7)])
def test_counts_with_out_of_bounds_indices_raise(part, value, sampled):
    broken = COUNTS.copy()
    getattr(broken, part)[5] = value
    with pytest.raises(ValueError, match="not a valid sparse matrix"):
        sampled.predict(broken)
    with pytest.raises(ValueError, match="not a valid sparse matrix"):
        MedLDAClassifier(3, inference="gibbs", n_sweeps=2, random_state=0).fit(broken, LABELS)


def change_state(model, part, **changes):
    state = (
        model._state
        if part is None
        else replace(model._state, **{part: replace(getattr(model._state, part), **changes)})
    )
    model._state = replace(state, **changes) if part is None else state


@pytest.mark.parametrize(
    "change",
    [
        lambda m: change_state(m, "latent", logits=m._state.latent.logits[:, :-1]),
        lambda m: change_state(m, "latent", noise_variance=-1.0),
        lambda m: change_state(m, "tasks", weights=m._state.tasks.weights[:, :-1]),
        lambda m: change_state(m, None, input_scale=np.nan),
        lambda m: setattr(m, "_used", [10**6] * len(m._used)),
        lambda m: setattr(m, "mean_", m.mean_[:-1]),
        lambda m: setattr(m, "n_features_in_", 10**6),
    ],
    ids=["features", "variance", "weights", "scale", "features in use", "means", "inputs"],
)
def test_load_inconsistent_tasks_raises(change, tmp_path):
    X = rng.normal(size=(60, 5))
    model = MultiTaskILSVMRegressor(3, max_iter=2, tol=1.0, random_state=0).fit(X, X[:, :2])
    change(model)
    refuses(model, tmp_path)


def test_load_running_means_of_fewer_outputs_raises(tmp_path):
    model = MedLDAClassifier(3, inference="variational", random_state=0)
    with warnings.catch_warnings(action="ignore"):
        model.partial_fit(COUNTS, LABELS, classes=[0, 1])
    state = model._batches.state
    picture = replace(state.picture, linear=state.picture.linear[:, :-1])
    model._batches = replace(model._batches, state=replace(state, picture=picture))
    refuses(model, tmp_path)
