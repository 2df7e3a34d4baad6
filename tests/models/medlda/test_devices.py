"""MedLDA on device documents: the model, the head, the fit and the estimators match those in host memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.sparse import csr_array

from medlda_tools import documents_of, draw_documents
from regbayes import MedLDAClassifier, MedLDARegressor
from regbayes.engine import Serial
from regbayes.estimators import _topics
from regbayes.margins.targets import Classes, Numbers, Signs, zero_one_cost
from regbayes.models.medlda import meanfield
from regbayes.models.medlda.meanfield import LabelFreeTopics
from regbayes.models.medlda.topics import DeviceCorpus
from regbayes.persistence import load, save
from topic_array_tools import LIBRARIES, as_documents, to_numpy
from topic_array_tools import place as put

pytestmark = pytest.mark.filterwarnings("ignore:.*[Ss]parse:UserWarning")  # PyTorch warns that CSR support is in beta

ELSEWHERE = LIBRARIES[1:]
N, V, K = 120, 40, 6


def make_corpus(n=N, seed=1):
    X, proportions, _ = draw_documents(n, n_topics=4, n_words=V, length=30, seed=seed)
    return csr_array(X).astype(np.float64), proportions


def make_targets(proportions):
    n = len(proportions)
    prices = np.random.default_rng(0).uniform(10.0, 30.0, (n, 2))
    return {
        "classes": Classes(proportions[:, :3].argmax(1), zero_one_cost(3), prices[:, 0]),
        "costs": Classes(proportions[:, :3].argmax(1), 1.5 * zero_one_cost(3), prices[:, 0]),
        "signs": Signs(np.where(proportions[:, :2] > 0.3, 1.0, -1.0), prices, 1.5),
        "numbers": Numbers(2.0 * proportions[:, :2], prices, 0.1),
    }


KINDS = ["classes", "costs", "signs", "numbers"]
SETTINGS = meanfield.Settings(K, 1.0, 0.1, 0.05, True, 4, 15, 0.0, 3)


def corpus_there(X, library, dtype="float64"):
    counts = documents_of(X, dtype)
    return DeviceCorpus(as_documents(counts, library), X.shape[1], counts.starts)


def fit_there(corpus, targets, **options):
    return meanfield.fit(corpus.counts, corpus.n_words, targets, SETTINGS, executor=Serial(), **options)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("weighted", [False, True])
def test_model_matches_the_host(library, weighted):
    X, proportions = make_corpus()
    rng = np.random.default_rng(2)
    targets, logits = make_targets(proportions)["classes"], rng.standard_normal((V, K))
    weights = rng.uniform(0.5, 2.0, N) if weighted else None
    here, asked = meanfield.select_documents(documents_of(X), targets, weights)
    there, asked_there = meanfield.select_documents(corpus_there(X, library).counts, targets, weights)
    np.testing.assert_allclose(asked_there.C, asked.C)
    host = meanfield.LabelFreeTopics(np.linspace(0.5, 1.5, K), 0.1, 4)
    model = LabelFreeTopics(host.doc_prior, 0.1, 4)
    params, params_there = (meanfield.make_topics(part) for part in (logits.astype(np.float32), put(logits, library)))
    assert params_there.log_sum == pytest.approx(params.log_sum, rel=1e-5)
    expected, found = host.infer(here, params), model.infer(there, params_there)
    np.testing.assert_allclose(to_numpy(found.features), expected.features, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(to_numpy(found.features).sum(axis=1), 1.0, rtol=1e-6)
    for name, value in host.terms(params, expected.stats).items():
        assert model.terms(params_there, found.stats)[name] == pytest.approx(value, rel=1e-5)
    np.testing.assert_allclose(found.stats.tokens, expected.stats.tokens, rtol=1e-5)
    slopes = rng.standard_normal((N, K))
    for given in (None, slopes):
        pulled = host.pull_back(here, params, expected, given)
        pulled_there = model.pull_back(there, params_there, found, None if given is None else put(given, library))
        gradient = host.gradient(params, expected.stats, pulled)
        np.testing.assert_allclose(
            to_numpy(model.gradient(params_there, found.stats, pulled_there)),
            gradient,
            rtol=1e-3,
            atol=1e-4 * np.abs(gradient).max(),
        )


@pytest.mark.parametrize("library", LIBRARIES[1:])
@pytest.mark.parametrize("kind", [*KINDS, None])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_fit_matches_the_host_and_never_increases(library, kind, dtype):
    X, proportions = make_corpus()
    targets = make_targets(proportions).get(kind)
    result = fit_there(corpus_there(X, library, dtype), targets)
    assert len(result.trace.rises.sizes) == 0
    host = meanfield.fit(documents_of(X), V, targets, SETTINGS, executor=Serial())
    assert result.trace.objective[0] == pytest.approx(host.trace.objective[0], rel=1e-3)
    assert result.trace.objective[-1] == pytest.approx(host.trace.objective[-1], rel=0.02)
    fitted = result.state
    assert isinstance(fitted.word_given_topic, np.ndarray)
    np.testing.assert_allclose(fitted.word_given_topic.sum(axis=0), 1.0, rtol=1e-5)


@pytest.mark.parametrize("library", LIBRARIES[1:])
def test_deterministic_fit_is_bitwise_reproducible(library):
    X, proportions = make_corpus()
    X.data += np.random.default_rng(0).random(X.nnz)  # fractions make sums depend on their order
    fits = [fit_there(corpus_there(X, library), make_targets(proportions)["classes"], in_order=True) for _ in range(2)]
    assert np.array_equal(fits[0].state.word_given_topic, fits[1].state.word_given_topic)
    assert np.array_equal(fits[0].state.weights, fits[1].state.weights)


def test_documents_can_be_selected():
    X, _ = make_corpus(20)
    rows = np.array([3, 4, 9, 15])
    chosen = corpus_there(X, "numpy")[rows]
    words, numbers, starts = chosen.counts
    np.testing.assert_array_equal(csr_array((numbers, words, starts), (4, V)).toarray(), X[rows].toarray())
    np.testing.assert_allclose(chosen.lengths, X[rows].sum(axis=1))


# --- estimators


def sparse_there(X, library):
    X = csr_array(X)
    if library == "cupy":
        import cupyx.scipy.sparse

        return cupyx.scipy.sparse.csr_matrix(X)
    import torch

    parts = (put(part, library) for part in (X.indptr.astype(np.int64), X.indices.astype(np.int64), X.data))
    return torch.sparse_csr_tensor(*parts, size=X.shape, check_invariants=True)


def classifier(**changes):
    return MedLDAClassifier(K, inference="variational", random_state=0, max_iter=8, tol=0.0, **changes)


@pytest.fixture
def quiet():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_topics, "warn_of_status", lambda *_: None)  # eight steps end at the iteration limit
        yield


@pytest.mark.usefixtures("dispatch", "quiet")
@pytest.mark.parametrize("library", ELSEWHERE)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("n_classes", [2, 3])
def test_classifier_predicts_on_the_device_of_the_documents(library, dtype, n_classes, tmp_path):
    X, proportions = make_corpus()
    X, y = X.astype(dtype), proportions[:, :n_classes].argmax(axis=1)
    there, labels = put(X.toarray(), library), put(y, library)
    model = classifier().fit(there, labels)
    for found in (model.coef_features_, model.components_, model.transform(there), model.decision_function(there)):
        assert type(found) is type(there)
        assert found.dtype == there.dtype
        assert found.device == there.device
    answers = model.predict(there)
    assert type(answers) is type(there)
    assert answers.device == there.device
    assert model.top_words(3) == [list(map(int, row)) for row in np.argsort(-to_numpy(model.components_), 1)[:, :3]]
    # Compare with the same documents as CSR, and with the saved model in host memory.
    sparse = sparse_there(X, library)
    again = classifier().fit(sparse, labels)
    np.testing.assert_allclose(to_numpy(again.coef_features_), to_numpy(model.coef_features_), rtol=1e-3, atol=1e-3)
    np.testing.assert_array_equal(to_numpy(model.predict(sparse)), to_numpy(answers))
    save(model, tmp_path / "model")
    local = load(tmp_path / "model")
    assert isinstance(local.coef_features_, np.ndarray)
    tolerance = 1e-4
    np.testing.assert_allclose(local.transform(X), to_numpy(model.transform(there)), atol=tolerance)
    np.testing.assert_allclose(to_numpy(local.transform(there)), to_numpy(model.transform(there)), atol=1e-6)
    assert model.perplexity(there) == pytest.approx(local.perplexity(X), rel=1e-4)
    # Compare with the fit in host memory.
    host = classifier().fit(X, y)
    assert model.trace_.objective[-1] == pytest.approx(host.trace_.objective[-1], rel=0.02)
    assert np.mean(host.predict(X) == to_numpy(answers)) > 0.9


@pytest.mark.usefixtures("dispatch", "quiet")
@pytest.mark.parametrize("library", ELSEWHERE)
def test_regressor_labels_and_weights_match_the_host(library):
    X, proportions = make_corpus()
    there = put(X.toarray(), library)
    one, several = proportions[:, 0], proportions[:, :2]
    weights = np.random.default_rng(0).integers(0, 3, N).astype(float)
    options = {"inference": "variational", "random_state": 0, "max_iter": 8, "tol": 0.0}
    for y in (one, several):
        model = MedLDARegressor(K, **options).fit(there, put(y, library), put(weights, library))
        host = MedLDARegressor(K, **options).fit(X, y, weights)
        found = model.predict(there)
        assert type(found) is type(there)
        assert tuple(found.shape) == y.shape
        assert model.trace_.objective[-1] == pytest.approx(host.trace_.objective[-1], rel=0.02)
    indicators = (proportions[:, :2] > 0.3).astype(np.int64)
    model = classifier().fit(there, put(indicators, library))
    answers = model.predict(there)
    assert type(answers) is type(there)
    assert tuple(answers.shape) == indicators.shape
    # String labels are NumPy arrays; empty documents have the shares of the corpus.
    names = np.array(["a", "b"])[indicators[:, 0]]
    model = classifier().fit(there, names)
    assert set(model.predict(there)) <= {"a", "b"}
    empty = to_numpy(model.transform(0.0 * there[:2]))
    np.testing.assert_allclose(empty, np.tile(model._fitted.shares, (2, 1)))


@pytest.mark.usefixtures("dispatch")
@pytest.mark.parametrize("library", ELSEWHERE)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"inference": "gibbs"}, r'inference="gibbs" runs on the CPU'),
        ({"loss": "hinge"}, "loss='hinge' needs X on the CPU"),
    ],
)
def test_options_without_kernels_raise(library, options, message):
    X, proportions = make_corpus()
    model = MedLDAClassifier(K, **{"inference": "variational", **options})
    with pytest.raises(ValueError, match=message):
        model.fit(put(X.toarray(), library), put(proportions[:, :3].argmax(1), library))
    assert not any(name.endswith("_") for name in vars(model))


@pytest.mark.usefixtures("dispatch", "quiet")
@pytest.mark.parametrize("library", ELSEWHERE)
def test_bad_input_on_a_device_raises(library):
    X, proportions = make_corpus()
    dense, y = X.toarray(), proportions[:, :3].argmax(1)
    there, labels = put(dense, library), put(y, library)
    half = put(dense.astype(np.float16), library)
    with pytest.raises(TypeError, match="float16: give it as float32 or float64"):
        classifier().fit(half, labels)
    for where, message in ((-there, "Negative values"), (there * np.nan, "NaN or infinity")):
        with pytest.raises(ValueError, match=message):
            classifier().fit(where, labels)
    with pytest.raises(ValueError, match="all documents are empty"):
        classifier().fit(0.0 * there, labels)
    with pytest.raises(ValueError, match="0 rows"):
        classifier().fit(there[:0], labels[:0])
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        classifier().fit(there, labels[:-1])
    with pytest.raises(TypeError, match="give both as arrays of one kind on one device"):
        classifier().fit(there, y)
    with pytest.raises(TypeError, match="give both as arrays of one kind on one device"):
        classifier().fit(there, labels, np.ones(N))
    model = classifier().fit(there, labels)
    with pytest.raises(ValueError, match=f"{V - 1} features"):
        model.predict(there[:, :-1])
    with pytest.raises(TypeError, match="fit_weights works on the CPU"):
        model.fit_weights(there, labels)
    with pytest.raises(TypeError, match="partial_fit works on the CPU"):
        classifier().partial_fit(there, labels, classes=[0, 1, 2])
    sampler = MedLDAClassifier(K, inference="gibbs", max_iter=2, random_state=0).fit(X.astype(np.int64), y)
    with pytest.raises(ValueError, match="this model infers documents on the CPU"):
        sampler.predict(there)


@pytest.mark.usefixtures("dispatch")
def test_insufficient_memory_error_names_the_sizes_and_a_remedy(monkeypatch):
    pytest.importorskip("torch")

    class OutOfMemoryError(RuntimeError):
        pass

    def fail(*_, **__):
        raise OutOfMemoryError

    X, proportions = make_corpus()
    monkeypatch.setattr(_topics.meanfield, "fit", fail)
    model = classifier()
    with pytest.raises(MemoryError, match=r"hold 120 documents.*words by .* topics.*blocks"):
        model.fit(put(X.toarray(), "torch"), put(proportions[:, :2].argmax(1), "torch"))
    assert not any(name.endswith("_") for name in vars(model))


def test_sparse_torch_arrays_without_dispatch_raise():
    pytest.importorskip("torch")
    X, proportions = make_corpus()
    with pytest.raises(TypeError, match="array_api_dispatch is off"):
        classifier().fit(sparse_there(X, "torch"), proportions[:, :2].argmax(1))


@pytest.mark.gpu
@pytest.mark.parametrize("library", ["torch:cuda", "cupy"])
def test_device_arrays_without_dispatch_raise(library):
    X, proportions = make_corpus()
    y = proportions[:, :2].argmax(1)
    with pytest.raises(TypeError, match="array_api_dispatch is off"):
        classifier().fit(put(X.toarray(), library), y)
    with pytest.raises(TypeError, match="X is on the host and y is"):
        classifier().fit(X, put(y, library))


@pytest.mark.gpu
@pytest.mark.usefixtures("dispatch")
def test_out_of_memory_on_a_device_raises(monkeypatch):
    torch = pytest.importorskip("torch")
    X, proportions = make_corpus()
    there, labels = put(X.toarray(), "torch:cuda"), put(proportions[:, :2].argmax(1), "torch:cuda")

    def fail(*_, **__):
        torch.empty(1 << 50, dtype=torch.uint8, device="cuda")

    monkeypatch.setattr(_topics.meanfield, "fit", fail)
    with pytest.raises(MemoryError, match="does not hold"):
        classifier().fit(there, labels)


def test_too_many_topics_for_deterministic_sums_raise():
    X, _ = make_corpus()
    settings = replace(SETTINGS, n_components=5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(meanfield.cuda, "is_cuda", lambda _: True)
        patch.setattr(meanfield.cuda, "takes", lambda *_: False)
        with pytest.raises(ValueError, match="deterministic=True takes at most"):
            meanfield.check_order(corpus_there(X, "numpy").counts, settings, in_order=True)


@pytest.mark.parametrize("library", LIBRARIES)
def test_words_are_counted_like_on_the_host(library):
    X, proportions = make_corpus()
    X = csr_array(np.vstack([np.zeros((2, V)), X.toarray()[:-2]]))  # empty documents are dropped
    weights, targets = np.random.default_rng(0).random(N), make_targets(proportions)["classes"]
    here, asked = meanfield.select_documents(documents_of(X), targets, weights)
    there, _ = meanfield.select_documents(corpus_there(X, library).counts, targets, weights)
    np.testing.assert_allclose(there.count_words(V, weights[2:]), here.count_words(V, weights[2:]), rtol=1e-6)
    logits = [meanfield.first_logits(rows, V, asked, K, 0, None) for rows in (here, there)]
    np.testing.assert_allclose(logits[1], logits[0], atol=1e-6)
