"""Mean-field MedLDA on a GPU and on 16 CPU threads: inference, its derivative, and a whole fit.

A corpus with Zipf frequencies (50,000 words, 200 tokens per document, five classes) is drawn on the device and copied
to the host. Forward and reverse passes are `infer` and `pull_back` of the model, including sums and terms of the bound.
The fit adds the margins and the steps. The device uses double precision by default, and the host single precision.

    python benchmarks/bench_gpu_topics.py            # 10^7 and 10^8 tokens, 40 and 200 topics
    python benchmarks/bench_gpu_topics.py --smoke    # small, on PyTorch's CPU arrays without a GPU
"""

from __future__ import annotations

import argparse
import time
from functools import partial

import numpy as np

from regbayes.engine import Serial, make_executor
from regbayes.joint.model import Inferred
from regbayes.kernels.meanfield import WordCounts
from regbayes.margins.targets import Classes, zero_one_cost
from regbayes.models.medlda import meanfield
from regbayes.models.medlda.topics import DeviceCorpus

try:
    import torch
except ModuleNotFoundError:
    print("skipped: needs PyTorch, pip install 'regbayes[gpu,torch]'")
    raise SystemExit(0) from None

N_CLASSES, LENGTH = 5, 200
PART = 50_000  # number of documents drawn at once


def draw(n_tokens: int, n_words: int, where: str) -> tuple[DeviceCorpus, np.ndarray]:
    """Draw documents with a fifth of the words from their class."""
    generator = torch.Generator(where).manual_seed(0)
    ends = torch.cumsum(1.0 / torch.arange(1, n_words + 1, dtype=torch.float64, device=where), 0)
    words, numbers, sizes, labels = [], [], [], []
    n_documents = n_tokens // LENGTH
    for first in range(0, n_documents, PART):
        n = min(PART, n_documents - first)
        uniform = torch.rand((n, LENGTH), dtype=torch.float64, device=where, generator=generator)
        word = torch.searchsorted(ends, uniform * ends[-1]).clamp_(max=n_words - 1)
        label = torch.randint(N_CLASSES, (n, 1), device=where, generator=generator)
        own = torch.rand((n, LENGTH), device=where, generator=generator) < 0.2
        word = torch.where(own, (word * 13 + label * (n_words // N_CLASSES)) % n_words, word).sort(dim=1).values
        new = torch.ones_like(own)
        new[:, 1:] = word[:, 1:] != word[:, :-1]
        at = torch.nonzero(new.flatten()).flatten()
        words.append(word.flatten()[at].to(torch.int32))
        last = torch.tensor([n * LENGTH], device=where)
        numbers.append(torch.diff(at, append=last).to(torch.float64))
        sizes.append(new.sum(dim=1))
        labels.append(label.flatten().cpu().numpy())
    starts = torch.cumsum(torch.cat([torch.zeros(1, dtype=torch.int64, device=where), *sizes]), 0)
    counts = WordCounts(torch.cat(words), torch.cat(numbers), starts)
    return DeviceCorpus(counts, n_words, starts.cpu().numpy()), np.concatenate(labels)


def seconds(work, repeats: int, where: str = "cpu") -> float:
    """Return the shortest time of several runs after a warm-up."""
    found = []
    for _ in range(repeats + 1):
        began = time.perf_counter()
        work()
        if where == "cuda":
            torch.cuda.synchronize()
        found.append(time.perf_counter() - began)
    return min(found[1:])


def timed(work):
    """Return seconds and the result."""
    began = time.perf_counter()
    found = work()
    return time.perf_counter() - began, found


def settings(n_topics: int, n_steps: int) -> meanfield.Settings:
    return meanfield.Settings(n_topics, 1.0, 0.1, 0.003, True, 5, n_steps, 0.0, 0)


def targets(labels: np.ndarray) -> Classes:
    return Classes(labels, zero_one_cost(N_CLASSES), np.full(len(labels), float(LENGTH)))


class OnDevice:
    """Forward and reverse pass over a corpus on the device."""

    def __init__(self, corpus, labels, logits, where, dtype=torch.float64, in_order=False):
        n_topics, counts = logits.shape[1], corpus.counts
        corpus = DeviceCorpus(counts._replace(numbers=counts.numbers.to(dtype)), corpus.n_words, corpus.starts)
        shape = corpus.n_words, n_topics
        self.rows, _ = meanfield.select_documents(corpus.counts, targets(labels), None, *shape, in_order)
        self.model = meanfield.LabelFreeTopics(np.ones(n_topics), 0.1, 5)
        self.params = meanfield.make_topics(torch.asarray(logits, dtype=dtype, device=where))
        self.slopes = torch.full((len(self.rows), n_topics), 0.01, dtype=torch.float64, device=where)

    def forward(self) -> Inferred:
        return self.model.infer(self.rows, self.params)

    def reverse(self, inferred: Inferred):
        return self.model.pull_back(self.rows, self.params, inferred, self.slopes)


class OnHost:
    """Forward and reverse pass over a corpus on the host, in threads."""

    def __init__(self, corpus, labels, logits, n_threads):
        counts = corpus.on_host()
        counts = counts._replace(numbers=counts.numbers.astype(np.float32))
        self.rows, _ = meanfield.select_documents(counts, targets(labels), None)
        self.model = meanfield.LabelFreeTopics(np.ones(logits.shape[1]), 0.1, 5)
        self.params, self.executor = meanfield.make_topics(logits.astype(np.float32)), make_executor(n_threads)
        self.blocks = [self.rows.rows(block) for block in self.rows.cut(corpus.n_words)]

    def forward(self) -> list[Inferred]:
        return self.executor.map(partial(self.model.infer, params=self.params), self.blocks)

    def reverse(self, inferred):
        def of_block(pair):
            rows, part = pair
            return self.model.pull_back(rows, self.params, part, np.full(part.features.shape, 0.01))

        return self.executor.map_reduce(of_block, list(zip(self.blocks, inferred, strict=True)))


def time_single(there: OnDevice, repeats: int, where: str) -> float:
    found = there.forward()
    return seconds(there.forward, repeats, where) + seconds(lambda: there.reverse(found), repeats, where)


def time_sorted(there: OnDevice, inferred: Inferred, repeats: int, where: str) -> tuple[float, bool]:
    took = seconds(lambda: there.reverse(inferred), repeats, where)
    return took, torch.equal(there.reverse(inferred).by_table, there.reverse(inferred).by_table)


def compare_passes(corpus, labels, n_topics, where, n_threads, repeats):
    """Time both passes on host and device; return their seconds on the device."""
    n_tokens = LENGTH * len(labels)
    logits = 0.5 * np.random.default_rng(0).standard_normal((corpus.n_words, n_topics))
    logits -= np.log(np.arange(1, corpus.n_words + 1))[:, None]
    there = OnDevice(corpus, labels, logits, where)
    forward = seconds(there.forward, repeats, where)
    inferred = there.forward()
    reverse = seconds(lambda: there.reverse(inferred), repeats, where)
    in_single = time_single(OnDevice(corpus, labels, logits, where, torch.float32), repeats, where)
    sorted_reverse, same = time_sorted(OnDevice(corpus, labels, logits, where, in_order=True), inferred, repeats, where)
    few = OnHost(corpus[np.arange(200)], labels[:200], logits, n_threads)  # compiles
    few.reverse(few.forward())
    here = OnHost(corpus, labels, logits, n_threads)
    host_forward, expected = timed(here.forward)
    host_reverse, found = timed(lambda: here.reverse(expected))
    table = found.by_table[:, :n_topics]
    gamma = np.concatenate([part.cache[:, :n_topics] for part in expected])
    away = np.abs(inferred.cache[:, -1].cpu().numpy() / gamma - 1.0).max()
    by_table = there.reverse(inferred).by_table.cpu().numpy()
    away_table = np.abs(by_table - table).max() / np.abs(table).max()
    both, host = forward + reverse, host_forward + host_reverse
    print(
        f"{n_tokens:>11,} tokens, K = {n_topics}: forward {1e3 * forward:.1f} ms, reverse {1e3 * reverse:.1f} "
        f"({n_tokens / both / 1e6:,.0f} M tokens/s); float32 both {1e3 * in_single:.1f}; sorted reverse "
        f"{1e3 * sorted_reverse:.1f}, same bits {same}"
    )
    print(
        f"{'':>11}  {n_threads} threads: forward {1e3 * host_forward:.0f} ms, reverse {1e3 * host_reverse:.0f} "
        f"({n_tokens / host / 1e6:,.1f} M tokens/s, {len(here.blocks)} blocks); ratio {host / both:.1f}; "
        f"differences: gamma {away:.1e}, table {away_table:.1e} (the host's single precision)"
    )
    return both


def compare_fits(corpus, labels, n_topics, where, n_threads, n_steps, host=True):
    """Time a whole fit on host and device."""
    given = corpus.counts, corpus.n_words, targets(labels)
    meanfield.fit(*given, settings(n_topics, 1), executor=Serial())  # warm-up
    began = time.perf_counter()
    there = meanfield.fit(*given, settings(n_topics, n_steps), executor=Serial())
    took = time.perf_counter() - began
    rises = len(there.trace.rises.sizes)
    line = f"{LENGTH * len(labels):>11,} tokens, K = {n_topics}: {n_steps} steps {took:.2f} s, J rose {rises} times"
    if host:
        counts = corpus.on_host()
        counts = counts._replace(numbers=counts.numbers.astype(np.float32))
        began = time.perf_counter()
        here = meanfield.fit(
            counts, corpus.n_words, targets(labels), settings(n_topics, n_steps), executor=make_executor(n_threads)
        )
        slower = time.perf_counter() - began
        line += (
            f"; {n_threads} threads {slower:.1f} s, ratio {slower / took:.1f}; "
            f"J {there.trace.objective[-1]:.6g} and {here.trace.objective[-1]:.6g}"
        )
    if where == "cuda":
        line += f"; most memory {torch.cuda.max_memory_allocated() / 1e9:.1f} GB"
        torch.cuda.reset_peak_memory_stats()
    print(line)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="a small problem")
    parser.add_argument("--tokens", type=float, nargs="+", default=[1e7, 1e8])
    parser.add_argument("--topics", type=int, nargs="+", default=[40, 200])
    parser.add_argument("--threads", type=int, default=16)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--no-fit", action="store_true", help="forward and reverse alone")
    options = parser.parse_args()
    where, n_words = "cuda" if torch.cuda.is_available() else "cpu", 50_000
    if options.smoke:
        options.tokens, options.topics, options.threads, options.steps, n_words = [4e4, 8e4], [8], 2, 2, 500
    print(f"on {torch.cuda.get_device_name() if where == 'cuda' else 'the CPU, in array operations'}")
    corpora = [draw(int(n), n_words, where) for n in options.tokens]
    for n_topics in options.topics:
        took = [
            compare_passes(*corpus, n_topics, where, options.threads, 1 if options.smoke else 5) for corpus in corpora
        ]
        if len(took) > 1:
            slope = np.log(took[-1] / took[0]) / np.log(options.tokens[-1] / options.tokens[0])
            print(f"K = {n_topics}: time grows with the power {slope:.3f} of the tokens")
    for n_topics in () if options.no_fit else options.topics:
        for number, corpus in enumerate(corpora):
            compare_fits(*corpus, n_topics, where, options.threads, options.steps, host=number == 0)


if __name__ == "__main__":
    main()
