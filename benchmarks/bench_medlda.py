"""Quality, speed and memory of MedLDA and of other models.

    REGBAYES_DATA=folder python benchmarks/bench_medlda.py words    # 20 Newsgroups: linear models on words
    REGBAYES_DATA=folder python benchmarks/bench_medlda.py news     # 20 Newsgroups: accuracy and CPU seconds
    REGBAYES_DATA=folder python benchmarks/bench_medlda.py peers    # 20 Newsgroups: other topic models
    REGBAYES_DATA=folder python benchmarks/bench_medlda.py movies   # movie reviews: predictive R2
    REGBAYES_DATA=folder python benchmarks/bench_medlda.py estep    # 20 Newsgroups: one mean-field pass
    python benchmarks/bench_medlda.py size                          # simulated documents: cost by tokens and blocks
    python benchmarks/bench_medlda.py topics                        # simulated documents: cost by topics and threads
    python benchmarks/bench_medlda.py --smoke                       # all parts, on small simulated documents

Settings are the defaults. They were chosen on late posts of the *training* part and on a part of one training half of
the reviews (docs/decisions.md). Times are CPU seconds of one thread unless ``--jobs`` is given; set OMP_NUM_THREADS=1.
Rates of the sampler count each sweep over each token, and include weights and initialization.
"""

from __future__ import annotations

import argparse
import importlib.util
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from common import peak_bytes, timed
from scipy.sparse import csr_array, csr_matrix, vstack
from sklearn.decomposition import LatentDirichletAllocation
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.svm import LinearSVC

from regbayes import MedLDAClassifier, MedLDARegressor
from regbayes.kernels.meanfield import (
    Prior,
    WordCounts,
    as_table,
    even_gamma,
    meanfield_sweeps,
)

INPUTS: dict[str, Callable[[], Any]] = {
    "raw counts": FunctionTransformer,
    "log counts": lambda: FunctionTransformer(np.log1p, accept_sparse=True),
    "tf-idf": TfidfTransformer,
    "sublinear tf-idf": lambda: TfidfTransformer(sublinear_tf=True),
}
INFERENCE = {"sampler": "gibbs", "mean field": "variational"}


def draw(n_documents: int, n_topics: int, n_words: int, length: int, seed: int = 0) -> tuple[csr_array, np.ndarray]:
    """Draw LDA documents in portions to limit memory, with ten classes that depend on the proportions."""
    world = np.random.default_rng(0)
    topics = np.cumsum(world.dirichlet(np.full(n_words, 0.05), n_topics), axis=1)
    rng, parts, labels = np.random.default_rng(seed), [], []
    for first in range(0, n_documents, 20_000):
        n = min(20_000, n_documents - first)
        proportions = rng.dirichlet(np.full(n_topics, 0.1), n)
        labels.append(np.argmax(proportions, axis=1) % 10)
        numbers = rng.multinomial(length, proportions)
        rows = np.concatenate([np.repeat(np.arange(n, dtype=np.int32), numbers[:, k]) for k in range(n_topics)])
        drawn = [np.searchsorted(topics[k], rng.random(numbers[:, k].sum()) * topics[k, -1]) for k in range(n_topics)]
        words = np.concatenate(drawn).astype(np.int32)
        part = csr_matrix((np.ones(n * length, np.int32), (rows, words)), shape=(n, n_words))
        part.sum_duplicates()
        parts.append(part)
    return csr_array(vstack(parts)), np.concatenate(labels)


def news_data(smoke: bool) -> tuple[Any, Any, Any, Any]:
    if smoke:
        X, y = draw(600, 12, 400, 60)
        return X[:400], y[:400], X[400:], y[400:]
    from regbayes_paper.data import load_20newsgroups

    bunch = load_20newsgroups()
    return bunch.data[bunch.train], bunch.target[bunch.train], bunch.data[bunch.test], bunch.target[bunch.test]


def late_rows(y: Any) -> np.ndarray:
    """Mark the latest quarter of each class, the validation set; samples are sorted by time."""
    late = np.zeros(len(y), dtype=bool)
    for label in np.unique(y):
        rows = np.flatnonzero(y == label)
        late[rows[int(0.75 * len(rows)) :]] = True
    return late


def words(smoke: bool, jobs: int) -> None:
    """Print the accuracy of linear models on words."""
    del jobs
    X, y, X_new, y_new = news_data(smoke)
    late = late_rows(y)
    for name, make in INPUTS.items():
        tried = {C: make_pipeline(make(), LinearSVC(C=C)).fit(X[~late], y[~late]) for C in (0.01, 0.1, 1.0)}
        C = max(tried, key=lambda C, tried=tried: tried[C].score(X[late], y[late]))
        model, seconds = timed(lambda make=make, C=C: make_pipeline(make(), LinearSVC(C=C)).fit(X, y))
        accuracy = model.score(X_new, y_new)
        print(f"  LinearSVC, {name:17} accuracy {accuracy:.4f}   {seconds:7.1f} s   C = {C:g}", flush=True)


def news(smoke: bool, jobs: int) -> None:
    """Print accuracy and speed of MedLDA."""
    X, y, X_new, y_new = news_data(smoke)
    print(f"  {X.shape[0]} documents, {float(X.sum()):.0f} tokens; {X_new.shape[0]} new documents")
    for name, inference in INFERENCE.items():
        for K, seeds in ((8, 1),) if smoke else ((20, 3), (40, 3), (100, 1)):
            rows = []
            for seed in range(seeds):
                model = MedLDAClassifier(K, inference=inference, random_state=seed, n_jobs=jobs)
                _, seconds = timed(lambda model=model: model.fit(X, y))
                rows.append((model.score(X_new, y_new), seconds, model.n_iter_))
            (accuracy, seconds, n_iter), lowest = np.mean(rows, axis=0), min(rows)[0]
            print(f"  MedLDA, {name}, K = {K}: accuracy {accuracy:.4f} (lowest of {seeds}: {lowest:.4f})   "
                  f"{seconds:7.1f} s   {n_iter:.0f} iterations", flush=True)  # fmt: skip


def peers(smoke: bool, jobs: int) -> None:
    """Compare topic models fitted to early training posts and scored on late ones."""
    X, y, _, _ = news_data(smoke)
    late = late_rows(y)
    K, sweeps, tokens = (8, 5, float(X[~late].sum())) if smoke else (40, 40, float(X[~late].sum()))
    data, new = (X[~late], y[~late]), (X[late], y[late])

    def show(name: str, accuracy: float, seconds: float, passes: int) -> None:
        rate = tokens * passes / seconds / 1e6
        print(f"  {name:34} accuracy {accuracy:.4f}  {seconds:7.1f} s  {passes:3d} passes  {rate:6.2f} M/s", flush=True)

    ours, seconds = timed(
        lambda: MedLDAClassifier(K, inference="gibbs", max_iter=sweeps, random_state=0, n_jobs=jobs).fit(*data)
    )
    show(f"MedLDA, K = {K}", ours.score(*new), seconds, sweeps)
    lda = make_pipeline(LatentDirichletAllocation(K, random_state=0), LinearSVC())
    _, seconds = timed(lambda: lda.fit(*data))
    show("scikit-learn LDA + LinearSVC", lda.score(*new), seconds, lda[0].n_iter_)
    if importlib.util.find_spec("tomotopy") is None:
        print("  tomotopy is not installed: its row is left out")
        return
    show("tomotopy LDA + LinearSVC", *tomotopy_lda(K, 5 * sweeps, data, new), 5 * sweeps)


def tomotopy_lda(K: int, sweeps: int, data: tuple[Any, Any], new: tuple[Any, Any]) -> tuple[float, float]:
    import tomotopy

    def spell(X: Any) -> list[list[str]]:
        return [np.repeat(row.indices, row.data.astype(int)).astype(str).tolist() for row in csr_matrix(X)]

    model = tomotopy.LDAModel(k=K, alpha=0.1, eta=0.1, seed=0)
    documents = spell(data[0])
    kept = np.array([bool(document) for document in documents])  # an empty document makes the process crash
    for document in documents:
        if document:
            model.add_doc(document)
    _, seconds = timed(lambda: model.train(sweeps, workers=1))
    shares = np.array([document.get_topic_dist() for document in model.docs])
    classifier = LinearSVC().fit(shares, np.asarray(data[1])[kept])
    known = set(model.used_vocabs)
    new_documents = [[word for word in document if word in known] for document in spell(new[0])]
    made = [model.make_doc(document) if document else None for document in new_documents]
    model.infer([document for document in made if document is not None], iterations=50, workers=1)
    new_shares = np.array([np.full(K, 1 / K) if one is None else one.get_topic_dist() for one in made])
    return classifier.score(new_shares, new[1]), seconds


def movies(smoke: bool, jobs: int) -> None:
    """Print the predictive R2 of ratings on five random halves."""
    if smoke:
        X, y = draw(600, 12, 400, 60)
        y = y.astype(float)
    else:
        from regbayes_paper.data import load_movie_reviews

        bunch = load_movie_reviews()
        X, y = bunch.data, bunch.target
    rows: dict[str, list[tuple[float, float]]] = {}

    def note(name: str, model: Any, train: np.ndarray, test: np.ndarray) -> None:
        _, seconds = timed(lambda: model.fit(X[train], y[train]))
        rows.setdefault(name, []).append((model.score(X[test], y[test]), seconds))

    for half in range(1 if smoke else 5):
        order = np.random.default_rng(half).permutation(len(y))
        train, test = order[: len(y) // 2], order[len(y) // 2 :]
        inner, held_out = np.split(train, [int(0.8 * len(train))])
        for name, make in INPUTS.items():
            tried = {a: make_pipeline(make(), Ridge(a)).fit(X[inner], y[inner]) for a in (0.3, 1, 3, 30, 100, 300)}
            best = max(tried, key=lambda a, tried=tried, rows=held_out: tried[a].score(X[rows], y[rows]))
            note(f"ridge, {name}", make_pipeline(make(), Ridge(best)), train, test)
        for K in (8,) if smoke else (20, 50):
            for name, inference in INFERENCE.items():
                model = MedLDARegressor(K, inference=inference, random_state=half, n_jobs=jobs)
                note(f"MedLDA, {name}, K = {K}", model, train, test)
    for name, values in rows.items():
        (score, seconds), lowest = np.mean(values, axis=0), min(values)[0]
        print(f"  {name:28} R2 {score:.4f} (lowest {lowest:.4f})  {seconds:7.1f} s", flush=True)


def estep(smoke: bool, jobs: int) -> None:
    """Time one mean-field pass over documents, with equal topics and tolerance."""
    del jobs
    X, _, _, _ = news_data(smoke)
    X, K, tol = X[:1500].tocsr(), 8 if smoke else 40, 1e-3
    theirs = LatentDirichletAllocation(
        K, doc_topic_prior=0.1, topic_word_prior=0.1, max_iter=5, mean_change_tol=tol, random_state=0
    ).fit(X)
    X = X.astype(np.float64)
    (expected, _), their_seconds = timed(lambda: theirs._e_step(X, cal_sstats=False, random_init=False))
    documents = WordCounts(X.indices.astype(np.int32), X.data.astype(np.float32), X.indptr.astype(np.int64))
    alpha, lengths = np.full(K, 0.1), np.asarray(X.sum(axis=1)).ravel()
    prior = Prior(as_table(theirs.exp_dirichlet_component_.T), alpha.astype(np.float32))
    # scikit-learn's tolerance is a mean change per topic, ours is relative to the length: use the strictest document.
    relative = tol * K / lengths.max()

    def ours() -> np.ndarray:
        gamma = even_gamma(lengths, alpha)
        meanfield_sweeps(documents, prior, 100, relative, gamma)
        return gamma[:, :K]

    ours()
    found, seconds = timed(ours)
    tokens = X.sum() / 1e6
    print(f"  E-step, K = {K}: ours {tokens / seconds:.2f} M tokens/s, scikit-learn {tokens / their_seconds:.2f} M/s")
    print(f"  distance of gamma, per token: {np.abs(found - expected).sum() / X.sum():.4f}", flush=True)


def size(smoke: bool, jobs: int) -> None:
    """Print CPU time and memory by number of tokens and of blocks."""
    length, sweeps = 100, 3
    for n_documents in (200, 400) if smoke else (1_000, 10_000, 100_000):
        X, y = draw(n_documents, 20, 2_000, length)
        model = MedLDAClassifier(20, inference="gibbs", max_iter=sweeps, random_state=0, n_jobs=jobs, refit=False)
        _, seconds = timed(partial(model.fit, X, y))
        tokens, peak = n_documents * length, peak_bytes(partial(model.fit, X, y))
        each = 1e9 * seconds / tokens / sweeps
        print(f"  {tokens:11d} tokens: {each:6.0f} ns per token and sweep; peak {peak / tokens:.0f} bytes per token")
    X, y = draw(400 if smoke else 10_000, 20, 2_000, length)
    for n_blocks in (1, 4) if smoke else (1, 2, 4, 8, 16):
        model = MedLDAClassifier(
            20, inference="gibbs", max_iter=5, random_state=0, n_jobs=jobs, refit=False, n_blocks=n_blocks
        )
        _, seconds = timed(partial(model.fit, X, y))
        print(f"  {int(X.sum())} tokens, n_blocks = {n_blocks:2d}: {1e9 * seconds / X.sum() / 5:6.0f} ns", flush=True)


def topics(smoke: bool, jobs: int) -> None:
    """Print rates by number of topics, and with two threads."""
    X, y = draw(300 if smoke else 8_000, 50, 5_000, 120)
    tokens = float(X.sum())
    for K in (8, 40) if smoke else (10, 20, 40, 100, 200, 500, 1000):
        for C in (1.0, 0.0):
            model = MedLDAClassifier(K, inference="gibbs", C=C, max_iter=5, random_state=0, n_jobs=jobs, refit=False)
            _, seconds = timed(partial(model.fit, X, y))
            print(f"  K = {K:4d}, C = {C:g}: {tokens * 5 / seconds / 1e6:6.2f} M tokens/s and CPU", flush=True)
    for n_jobs in (1, 2):
        model = MedLDAClassifier(
            40, inference="gibbs", max_iter=5, n_blocks=8, random_state=0, n_jobs=n_jobs, refit=False
        )
        _, seconds = timed(partial(model.fit, X, y), clock=time.perf_counter)
        print(f"  K = 40, {n_jobs} thread(s): {seconds:.2f} s elapsed")


PARTS: dict[str, Callable[[bool, int], None]] = {
    part.__name__: part for part in (words, news, peers, movies, estep, size, topics)
}


def main() -> None:
    """Run the selected parts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", nargs="*", choices=[*PARTS, []], default=[])
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # convergence warnings of the linear models
    X, y = draw(40, 3, 30, 20)  # compile before timing
    for inference in INFERENCE.values():
        MedLDAClassifier(3, inference=inference, max_iter=2).fit(X, y).transform(X)
        MedLDARegressor(3, inference=inference, max_iter=2).fit(X, y)
    for name in options.part or PARTS:
        print(name, flush=True)
        PARTS[name](options.smoke, options.jobs)


if __name__ == "__main__":
    main()
