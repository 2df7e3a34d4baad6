"""Heads and targets of every kind, for the tests of margins."""

from __future__ import annotations

from itertools import product

import numpy as np

from regbayes.margins.head import MarginHead
from regbayes.margins.targets import Classes, Numbers, Signs, zero_one_cost

N, K, N_INPUTS, N_OUTPUTS = 24, 3, 2, 3
KINDS = ("classes", "one_vs_rest", "signs", "numbers")


def make_targets(kind, rng, n=N, C=0.4):
    """Targets with a price for each row or observation; some observations have none."""
    prices = C * rng.uniform(0.5, 1.5, (n, N_OUTPUTS))
    if kind in ("classes", "one_vs_rest"):
        cost = rng.uniform(0.5, 1.5, (N_OUTPUTS, N_OUTPUTS)) * zero_one_cost(N_OUTPUTS)
        classes = Classes(np.arange(n) % N_OUTPUTS, cost, prices[:, 0])
        return classes if kind == "classes" else classes.one_vs_rest()
    prices[rng.random(prices.shape) < 0.2] = 0.0
    if kind == "signs":
        return Signs(rng.choice([-1.0, 1.0], (n, N_OUTPUTS)), prices)
    return Numbers(rng.normal(size=(n, N_OUTPUTS)), prices, 0.1)


def make_head(kind, squared, rng, *, inputs=False, rows=False, weighted=False, **options):
    """A head over all rows, or over some of them, and the features of all rows."""
    n = N - 5 if rows else N
    targets = make_targets(kind, rng, n)
    head = MarginHead(
        targets,
        squared,
        inputs=rng.normal(size=(n, N_INPUTS)) if inputs else None,
        rows=rng.permutation(N)[:n] if rows else None,
        row_weights=rng.uniform(0.5, 2.0, n) if weighted else None,
        **options,
    )
    return head, rng.normal(size=(N, K)) + 0.5


def all_options():
    """Every way to see rows: with an intercept, centred, inputs beside, rows without targets, rows that count more."""
    for intercept, centred, inputs, rows, weighted in product([False, True], repeat=5):
        if (centred and not intercept) or (weighted and not centred):
            continue  # of no consequence
        yield {
            "fit_intercept": intercept,
            "centred": centred,
            "inputs": inputs,
            "rows": rows,
            "weighted": weighted,
        }


OPTIONS = {"-".join(name for name, on in options.items() if on) or "bare": options for options in all_options()}
