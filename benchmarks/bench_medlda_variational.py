"""Quality, speed and memory of MedLDA by mean field, beside the sampler's benchmark, whose data it takes.

    REGBAYES_DATA=folder python benchmarks/bench_medlda_variational.py news      # 20 Newsgroups: accuracy, CPU seconds
    REGBAYES_DATA=folder python benchmarks/bench_medlda_variational.py course    # accuracy on late posts by steps
    REGBAYES_DATA=folder python benchmarks/bench_medlda_variational.py movies    # movie reviews: predictive R2
    REGBAYES_DATA=folder python benchmarks/bench_medlda_variational.py memory    # peak of a few steps
    REGBAYES_DATA=folder python benchmarks/bench_medlda_variational.py estep     # one pass, against scikit-learn's
    python benchmarks/bench_medlda_variational.py --smoke                        # all parts, on generated documents

Settings are the defaults, which were chosen on late posts of the *training* part and on parts of one training half of
the reviews; see docs/decisions.md. Times are CPU seconds of one thread; set OMP_NUM_THREADS=1.
"""

from __future__ import annotations

import argparse
import tracemalloc
import warnings
from functools import partial
from typing import Any

import numpy as np
from bench_medlda import INPUTS, draw, late_rows, news_data, timed, words
from sklearn.decomposition import LatentDirichletAllocation
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline

from regbayes import MedLDAClassifier, MedLDARegressor
from regbayes.kernels.meanfield import (
    Prior,
    WordCounts,
    as_table,
    even_gamma,
    meanfield_statistics,
    meanfield_sweeps,
    no_tilt,
)
from regbayes_paper.baselines import PosteriorMedLDAClassifier, PosteriorMedLDARegressor


def news(smoke: bool) -> None:
    """Accuracy of both kinds of margins, and of linear models on words."""
    X, y, X_new, y_new = news_data(smoke)
    kinds = {"consistent": partial(MedLDAClassifier, inference="variational"), "posterior": PosteriorMedLDAClassifier}
    for margins, make in kinds.items():
        for K in (8,) if smoke else (20, 40):
            rows = []
            for seed in range(1 if smoke else 3):
                model = make(K, random_state=seed)
                _, seconds = timed(lambda model=model: model.fit(X, y))
                rows.append((model.score(X_new, y_new), seconds))
                print(f"    {margins}, K = {K}, seed {seed}: {rows[-1][0]:.4f}  {seconds:.1f} s  "
                      f"{model.n_iter_} iterations", flush=True)  # fmt: skip
            accuracy, seconds = np.mean(rows, axis=0)
            lowest = min(row[0] for row in rows)
            print(f"  {margins}, K = {K}: accuracy {accuracy:.4f} (lowest {lowest:.4f})   {seconds:7.1f} s", flush=True)
    words(smoke, 1)


def course(smoke: bool) -> None:
    """Accuracy on late posts of the training part after so many steps."""
    X, y, _, _ = news_data(smoke)
    late = late_rows(y)
    X, y, X_new, y_new = X[~late], y[~late], X[late], y[late]
    for K in (8,) if smoke else (40, 100):
        for steps in (2, 4) if smoke else (5, 10, 20, 40, 80):
            model = MedLDAClassifier(K, inference="variational", max_iter=steps, tol=0.0, random_state=0)
            _, seconds = timed(lambda model=model: model.fit(X, y))
            print(
                f"  K = {K}: {steps:3d} steps, {seconds:6.1f} s, accuracy {model.score(X_new, y_new):.4f}", flush=True
            )


def movies(smoke: bool) -> None:
    """Predictive R2 of ratings on five random halves, of both kinds of margins, a Gaussian response, and ridge."""
    if smoke:
        X, y = draw(600, 12, 400, 60)
        y = y.astype(float)
    else:
        from regbayes_paper.data import load_movie_reviews

        bunch = load_movie_reviews()
        X, y = bunch.data, bunch.target
    kinds: dict[str, Any] = {
        "consistent": partial(MedLDARegressor, inference="variational"),
        "posterior": PosteriorMedLDARegressor,
        "posterior, squared": partial(PosteriorMedLDARegressor, loss="squared_epsilon_insensitive"),
        "posterior, response": partial(PosteriorMedLDARegressor, response_variance="auto"),
    }
    rows: dict[str, list[tuple[float, float]]] = {}
    for half in range(1 if smoke else 5):
        order = np.random.default_rng(half).permutation(len(y))
        train, test = order[: len(y) // 2], order[len(y) // 2 :]
        inner, held_out = np.split(train, [int(0.8 * len(train))])
        for name, make in INPUTS.items():
            tried = {a: make_pipeline(make(), Ridge(a)).fit(X[inner], y[inner]) for a in (0.3, 1, 3, 30, 100, 300)}
            best = max(tried, key=lambda a, tried=tried, rows=held_out: tried[a].score(X[rows], y[rows]))
            model, seconds = timed(lambda m=make, a=best, t=train: make_pipeline(m(), Ridge(a)).fit(X[t], y[t]))
            rows.setdefault(f"ridge, {name}", []).append((model.score(X[test], y[test]), seconds))
        for K in (8,) if smoke else (20, 40, 50):
            for name, make in kinds.items():
                if name != "consistent" and (K > 20 or ("response" in name and half)):
                    continue  # what predicts worse is shown where it costs least
                model = make(K, random_state=half)
                _, seconds = timed(lambda model=model, t=train: model.fit(X[t], y[t]))
                found = (model.score(X[test], y[test]), seconds)
                rows.setdefault(f"{name}, K = {K}", []).append(found)
                print(f"    {name}, K = {K}, half {half}: R2 {found[0]:.4f}  {seconds:.1f} s  "
                      f"{model.n_iter_} iterations", flush=True)  # fmt: skip
    for name, values in rows.items():
        (score, seconds), lowest = np.mean(values, axis=0), min(values)[0]
        print(f"  {name:28} R2 {score:.4f} (lowest {lowest:.4f}, {len(values)} halves)  {seconds:7.1f} s", flush=True)


def memory(smoke: bool) -> None:
    """Peak of traced memory in twelve steps of consistent margins."""
    X, y, _, _ = news_data(smoke)
    K = 8 if smoke else 40
    tracemalloc.start()
    MedLDAClassifier(K, inference="variational", max_iter=12, tol=0.0, random_state=0).fit(X, y)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    sizes = {"corpus": 8 * X.nnz, "documents by topics": 4 * X.shape[0] * K, "topics by words": 4 * K * X.shape[1]}
    parts = ", ".join(f"{name} {size / 2**20:.1f}" for name, size in sizes.items())
    print(f"  K = {K}: peak {peak / 2**20:.0f} MiB; {parts}", flush=True)


def estep(smoke: bool) -> None:
    """One pass over documents and the sums for the topics: time at the same topics and tolerance."""
    X, _, _, _ = news_data(smoke)
    X, K, tol = X[:1500].tocsr(), 8 if smoke else 40, 1e-3
    theirs = LatentDirichletAllocation(
        K, doc_topic_prior=0.1, topic_word_prior=0.1, max_iter=5, mean_change_tol=tol, random_state=0
    ).fit(X)
    X = X.astype(np.float64)
    (_, expected), their_seconds = timed(lambda: theirs._e_step(X, cal_sstats=True, random_init=False))
    documents = WordCounts(X.indices.astype(np.int32), X.data.astype(np.float32), X.indptr.astype(np.int64))
    alpha, lengths = np.full(K, 0.1), np.asarray(X.sum(axis=1)).ravel()
    prior = Prior(as_table(theirs.exp_dirichlet_component_.T), alpha.astype(np.float32))
    counts = np.empty_like(prior.word_given_topic)
    # scikit-learn stops at a mean change per topic; ours is relative to the length: the strictest of all documents.
    relative = tol * K / lengths.max()

    def ours() -> None:
        gamma = even_gamma(lengths, alpha)
        meanfield_sweeps(documents, prior, no_tilt(gamma), 100, relative, gamma)
        once = np.ones(len(gamma))
        meanfield_statistics(documents, prior, no_tilt(gamma), gamma, once, counts, np.empty_like(gamma))

    ours()
    _, seconds = timed(ours)
    tokens = X.sum() / 1e6
    print(f"  E-step, K = {K}: ours {tokens / seconds:.2f} M tokens/s, scikit-learn {tokens / their_seconds:.2f} M/s")
    distance = np.abs(counts[:, :K].T - expected).sum() / X.sum()
    print(f"  distance of the sums, per token: {distance:.4f}", flush=True)


PARTS = {"news": news, "course": course, "movies": movies, "memory": memory, "estep": estep}


def main() -> None:
    """Run the parts that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", nargs="*", choices=[*PARTS, []], default=[])
    parser.add_argument("--smoke", action="store_true")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")  # that max_iter was reached
    X, y = draw(40, 3, 30, 20)  # compile before anything is timed
    MedLDAClassifier(3, inference="variational", max_iter=2).fit(X, y).transform(X)
    PosteriorMedLDARegressor(3, max_iter=2).fit(X, y)
    for name in arguments.part or PARTS:
        print(name, flush=True)
        PARTS[name](arguments.smoke)


if __name__ == "__main__":
    main()
