"""Quality, speed and memory of MedLDA by Gibbs sampling, with its peers in the same run.

    REGBAYES_DATA=folder python benchmarks/bench_medlda.py words      # 20 Newsgroups: linear models on words
    REGBAYES_DATA=folder python benchmarks/bench_medlda.py --peers    # 20 Newsgroups: other topic models, beside ours
    REGBAYES_DATA=folder python benchmarks/bench_medlda.py news       # 20 Newsgroups: accuracy, tokens/s, CPU seconds
    REGBAYES_DATA=folder python benchmarks/bench_medlda.py course     # accuracy on late posts as the chain goes on
    REGBAYES_DATA=folder python benchmarks/bench_medlda.py movies     # movie reviews: predictive R2
    REGBAYES_DATA=folder python benchmarks/bench_medlda.py transform  # topics of new posts, against scikit-learn
    python benchmarks/bench_medlda.py size [--documents 1000000]      # generated documents: cost by tokens and blocks
    python benchmarks/bench_medlda.py topics                          # generated documents: cost by topics, threads
    python benchmarks/bench_medlda.py --smoke                         # all parts, on small generated documents

Settings of our models are the defaults, which were chosen on late posts of the *training* part (and on a part of one
training half of the reviews); see docs/decisions.md. Times are CPU seconds of one thread unless
``--jobs`` says otherwise; set OMP_NUM_THREADS=1. Rates count every sweep over every token, weights and start-up
included.
"""

from __future__ import annotations

import argparse
import importlib.util
import time
import tracemalloc
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.sparse import csr_array, csr_matrix, vstack
from sklearn.decomposition import LatentDirichletAllocation
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.svm import LinearSVC

from regbayes import MedLDAClassifier, MedLDARegressor

INPUTS: dict[str, Callable[[], Any]] = {
    "raw counts": FunctionTransformer,
    "log counts": lambda: FunctionTransformer(np.log1p, accept_sparse=True),
    "tf-idf": TfidfTransformer,
    "sublinear tf-idf": lambda: TfidfTransformer(sublinear_tf=True),
}


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    start = time.process_time()
    result = work()
    return result, time.process_time() - start


def draw(n_documents: int, n_topics: int, n_words: int, length: int, seed: int = 0) -> tuple[csr_array, np.ndarray]:
    """Documents of latent Dirichlet allocation, ten classes by their proportions, in portions to bound memory."""
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
    """Mark the last quarter of each class's rows, which come in the order of time: what settings are chosen on."""
    late = np.zeros(len(y), dtype=bool)
    for label in np.unique(y):
        rows = np.flatnonzero(y == label)
        late[rows[int(0.75 * len(rows)) :]] = True
    return late


def words(smoke: bool, jobs: int) -> None:
    """Accuracy of linear models on words."""
    del jobs
    X, y, X_new, y_new = news_data(smoke)
    late = late_rows(y)
    for name, make in INPUTS.items():
        tried = {C: make_pipeline(make(), LinearSVC(C=C)).fit(X[~late], y[~late]) for C in (0.01, 0.1, 1.0)}
        C = max(tried, key=lambda C, tried=tried: tried[C].score(X[late], y[late]))
        model, seconds = timed(lambda make=make, C=C: make_pipeline(make(), LinearSVC(C=C)).fit(X, y))
        accuracy = model.score(X_new, y_new)
        print(f"  LinearSVC, {name:17} accuracy {accuracy:.4f}   {seconds:7.1f} s   C = {C:g}", flush=True)


def peers(smoke: bool, jobs: int) -> None:
    """Other topic models on early posts of the training part, scored on late ones, with ours in the same run."""
    X, y, _, _ = news_data(smoke)
    late = late_rows(y)
    K, sweeps, tokens = (8, 5, float(X[~late].sum())) if smoke else (40, 40, float(X[~late].sum()))
    data, new = (X[~late], y[~late]), (X[late], y[late])
    ours = MedLDAClassifier(K, max_iter=sweeps, random_state=0, n_jobs=jobs)
    _, own = timed(lambda: ours.fit(*data))

    def show(name: str, accuracy: float, seconds: float, passes: int) -> None:
        rate = tokens * passes / seconds / 1e6
        print(f"  {name:34} accuracy {accuracy:.4f}  {seconds:7.1f} s  {passes:3d} passes  {rate:6.2f} M/s  "
              f"ours / its rate {tokens * sweeps / own / 1e6 / rate:5.1f}", flush=True)  # fmt: skip

    show(f"MedLDA, K = {K}", ours.score(*new), own, sweeps)
    lda = make_pipeline(LatentDirichletAllocation(K, random_state=0), LinearSVC())
    _, seconds = timed(lambda: lda.fit(*data))
    show("scikit-learn LDA + LinearSVC", lda.score(*new), seconds, lda[0].n_iter_)
    if importlib.util.find_spec("tomotopy") is None:
        print("  tomotopy is not installed: its rows are left out")
        return
    for name, find in (
        ("tomotopy LDA + LinearSVC", tomotopy_lda),
        ("tomotopy SLDA, one response a class", tomotopy_slda),
    ):
        passes = max(sweeps // 4, 1) if find is tomotopy_slda else 5 * sweeps  # it is slow
        (accuracy, seconds), _ = timed(lambda find=find, passes=passes: find(K, passes, data, new))
        show(name, accuracy, seconds, passes)


def tomotopy_documents(X: Any) -> list[list[str]]:
    return [np.repeat(row.indices, row.data.astype(int)).astype(str).tolist() for row in csr_matrix(X)]


def tomotopy_shares(model: Any, X: Any) -> np.ndarray:
    """Return the topics' shares that tomotopy infers; a document of unknown words has the same of each."""
    known = set(model.used_vocabs)
    documents = [[word for word in document if word in known] for document in tomotopy_documents(X)]
    made = [model.make_doc(document) if document else None for document in documents]
    model.infer([document for document in made if document is not None], iterations=50, workers=1)
    return np.array([np.full(model.k, 1 / model.k) if one is None else one.get_topic_dist() for one in made])


def tomotopy_lda(K: int, sweeps: int, data: tuple[Any, Any], new: tuple[Any, Any]) -> tuple[float, float]:
    import tomotopy

    model = tomotopy.LDAModel(k=K, alpha=0.1, eta=0.1, seed=0)
    documents = tomotopy_documents(data[0])
    kept = np.array([bool(document) for document in documents])  # an empty document ends the process
    for document in documents:
        if document:
            model.add_doc(document)
    _, seconds = timed(lambda: model.train(sweeps, workers=1))
    shares = np.array([document.get_topic_dist() for document in model.docs])
    classifier = LinearSVC().fit(shares, np.asarray(data[1])[kept])
    return classifier.score(tomotopy_shares(model, new[0]), new[1]), seconds


def tomotopy_slda(K: int, sweeps: int, data: tuple[Any, Any], new: tuple[Any, Any]) -> tuple[float, float]:
    import tomotopy

    classes = np.unique(data[1])
    model = tomotopy.SLDAModel(k=K, vars="b" * len(classes), alpha=0.1, eta=0.1, seed=0)
    for document, label in zip(tomotopy_documents(data[0]), data[1], strict=True):
        if document:
            model.add_doc(document, y=(classes == label).astype(float).tolist())
    _, seconds = timed(lambda: model.train(sweeps, workers=1))
    weights = np.array([model.get_regression_coef(response) for response in range(len(classes))])
    scores = tomotopy_shares(model, new[0]) @ weights.T
    return float(np.mean(classes[scores.argmax(axis=1)] == new[1])), seconds


def news(smoke: bool, jobs: int) -> None:
    """Accuracy and speed of MedLDA."""
    X, y, X_new, y_new = news_data(smoke)
    tokens = float(X.sum())
    print(f"  {X.shape[0]} documents, {tokens:.0f} tokens; {X_new.shape[0]} new documents")
    for K, seeds in ((8, 1),) if smoke else ((20, 5), (40, 5), (100, 2)):
        rows = []
        for seed in range(seeds):
            model = MedLDAClassifier(K, random_state=seed, n_jobs=jobs)
            _, seconds = timed(lambda model=model: model.fit(X, y))
            rows.append((model.score(X_new, y_new), seconds, tokens * model.n_iter_ / seconds / 1e6))
            print(f"    K = {K}, seed {seed}: {rows[-1][0]:.4f}  {seconds:.1f} s  {rows[-1][2]:.2f} M/s", flush=True)
        accuracy, seconds, rate = np.mean(rows, axis=0)
        lowest = min(row[0] for row in rows)
        print(f"  MedLDA, K = {K}: accuracy {accuracy:.4f} (lowest {lowest:.4f})   {seconds:7.1f} s   {rate:.2f} M/s")


def course(smoke: bool, jobs: int) -> None:
    """Accuracy on late rows of the training part as the chain goes on."""
    X, y, _, _ = news_data(smoke)
    late = late_rows(y)
    for K in (8,) if smoke else (40, 100):
        model, spent, sweeps = MedLDAClassifier(K, random_state=0, warm_start=True, n_jobs=jobs, burn_in=5), 0.0, 0
        for more in (6, 10) if smoke else (10, 10, 20, 40, 80):
            _, seconds = timed(lambda model=model, more=more: model.set_params(max_iter=more).fit(X[~late], y[~late]))
            spent, sweeps = spent + seconds, sweeps + more
            print(
                f"  K = {K}: {sweeps:4d} sweeps, {spent:6.1f} s, accuracy {model.score(X[late], y[late]):.4f}",
                flush=True,
            )


def movies(smoke: bool, jobs: int) -> None:
    """Predictive R2 of ratings on five random halves."""
    if smoke:
        X, y = draw(600, 12, 400, 60)
        y = y.astype(float)
    else:
        from regbayes_paper.data import load_movie_reviews

        bunch = load_movie_reviews()
        X, y = bunch.data, bunch.target
    rows: dict[str, list[float]] = {}
    for half in range(1 if smoke else 5):
        order = np.random.default_rng(half).permutation(len(y))
        train, test = order[: len(y) // 2], order[len(y) // 2 :]
        inner, held_out = np.split(train, [int(0.8 * len(train))])
        for name, make in INPUTS.items():
            tried = {a: make_pipeline(make(), Ridge(a)).fit(X[inner], y[inner]) for a in (0.3, 1, 3, 30, 100, 300)}
            best = max(tried, key=lambda a, tried=tried, rows=held_out: tried[a].score(X[rows], y[rows]))
            model = make_pipeline(make(), Ridge(best)).fit(X[train], y[train])
            rows.setdefault(f"ridge, {name}", []).append(model.score(X[test], y[test]))
        for K in (8,) if smoke else (20, 50):
            model = MedLDARegressor(K, random_state=half, n_jobs=jobs).fit(X[train], y[train])
            rows.setdefault(f"MedLDA, K = {K}", []).append(model.score(X[test], y[test]))
        print("  half", half, {name: round(values[-1], 4) for name, values in rows.items()}, flush=True)
    for name, values in rows.items():
        print(f"  {name:24} R2 {np.mean(values):.4f} (lowest {np.min(values):.4f})")


def transform(smoke: bool, jobs: int) -> None:
    """Topics of new documents: time and bound, at the same topics."""
    X, y, X_new, _ = news_data(smoke)
    K = 8 if smoke else 40
    ours = MedLDAClassifier(K, random_state=0, max_iter=5, n_jobs=jobs).fit(X, y)
    ours.transform(X_new[:10])
    theirs = LatentDirichletAllocation(K, doc_topic_prior=0.1, topic_word_prior=0.1, max_iter=1, random_state=0).fit(
        X[:50]
    )
    theirs.components_ = 1e7 * ours.components_.astype(float)  # topics that are known for certain
    theirs.exp_dirichlet_component_ = theirs.components_ / theirs.components_.sum(axis=1, keepdims=True)
    X_new = X_new.astype(float)
    found, seconds = timed(lambda: ours.transform(X_new))
    expected, their_seconds = timed(lambda: theirs.transform(X_new))
    distance = 0.5 * np.abs(found - expected).sum(axis=1).mean()
    print(f"  transform: ours {seconds:.3f} s, scikit-learn {their_seconds:.3f} s, ratio {their_seconds / seconds:.1f}")
    print(f"  perplexity bound: ours {ours.perplexity(X_new):.1f}; mean distance of the shares {distance:.3f}")
    theirs_better = theirs._approx_bound(X_new, theirs._unnormalized_transform(X_new), sub_sampling=False)
    constant = theirs._approx_bound(csr_array((1, X.shape[1])), np.full((1, K), 0.1), sub_sampling=False)
    print(f"  perplexity bound of scikit-learn's inference: {np.exp(-(theirs_better - constant) / X_new.sum()):.1f}")


def size(smoke: bool, jobs: int, documents: tuple[int, ...] = (1_000, 10_000, 100_000)) -> None:
    """Seconds and memory as tokens grow: both should be linear. And what cutting a corpus into blocks costs."""
    length = 100
    for n_documents in (200, 400) if smoke else documents:
        X, y = draw(n_documents, 20, 2_000, length)
        tokens, sweeps = n_documents * length, 3
        tracemalloc.start()
        model = MedLDAClassifier(20, max_iter=sweeps, random_state=0, n_jobs=jobs, refit=False)
        _, seconds = timed(lambda model=model, X=X, y=y: model.fit(X, y))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        rate = tokens * sweeps / seconds / 1e6
        print(f"  {tokens:11d} tokens: {1e9 * seconds / tokens / sweeps:6.0f} ns per token and sweep ({rate:.2f} M/s); "
              f"peak {peak / tokens:.0f} bytes per token", flush=True)  # fmt: skip
        del model
    X, y = draw(400 if smoke else 10_000, 20, 2_000, length)
    for n_blocks in (1, 4) if smoke else (1, 2, 4, 8, 16):
        model = MedLDAClassifier(20, max_iter=5, random_state=0, n_jobs=jobs, refit=False, n_blocks=n_blocks)
        _, seconds = timed(lambda model=model: model.fit(X, y))
        print(f"  {int(X.sum())} tokens, n_blocks = {n_blocks:2d}: {1e9 * seconds / X.sum() / 5:6.0f} ns", flush=True)


def topics(smoke: bool, jobs: int) -> None:
    """Rates as the number of topics grows, and with two threads."""
    X, y = draw(300 if smoke else 8_000, 50, 5_000, 120)
    tokens = float(X.sum())
    for K in (8, 40) if smoke else (10, 20, 40, 100, 200, 500, 1000):
        for C in (1.0, 0.0):
            model = MedLDAClassifier(K, C=C, max_iter=5, random_state=0, n_jobs=jobs, refit=False)
            _, seconds = timed(lambda model=model: model.fit(X, y))
            print(f"  K = {K:4d}, C = {C:g}: {tokens * 5 / seconds / 1e6:6.2f} M tokens/s and CPU", flush=True)
    for n_jobs in (1, 2):
        model = MedLDAClassifier(40, max_iter=5, n_blocks=8, random_state=0, n_jobs=n_jobs, refit=False)
        start = time.perf_counter()
        model.fit(X, y)
        print(f"  K = 40, {n_jobs} thread(s): {time.perf_counter() - start:.2f} s elapsed")


PARTS: dict[str, Callable[..., None]] = {
    "words": words,
    "news": news,
    "course": course,
    "movies": movies,
    "transform": transform,
    "size": size,
    "topics": topics,
}


def main() -> None:
    """Run the parts that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", nargs="*", choices=[*PARTS, []], default=[])
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--peers", action="store_true", help="other topic models too (tomotopy where installed)")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--documents", type=int, nargs="*", help="numbers of documents of 100 tokens, for size")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")  # convergence warnings of the linear peers
    X, y = draw(40, 3, 30, 20)  # compile before anything is timed
    MedLDAClassifier(3, max_iter=2).fit(X, y).transform(X)
    MedLDARegressor(3, max_iter=2).fit(X, y)
    if arguments.peers:
        print("peers", flush=True)
        peers(arguments.smoke, arguments.jobs)
    for name in arguments.part or ([] if arguments.peers else PARTS):
        print(name, flush=True)
        options = {"documents": arguments.documents} if name == "size" and arguments.documents else {}
        PARTS[name](arguments.smoke, arguments.jobs, **options)


if __name__ == "__main__":
    main()
