"""
Mini-batches from a file
========================

Learn latent features from batches of samples that do not fit in memory, then solve for the weights on all samples.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from regbayes import ILSVMClassifier

# A file of 20,000 simulated samples; your file may be larger than memory.
rng = np.random.default_rng(0)
features = rng.random((20_000, 6)) < 0.4
rows = features @ rng.normal(size=(6, 30)) + 0.7 * rng.normal(size=(20_000, 30))
y = np.argmax(features @ rng.normal(size=(6, 3)), axis=1)

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "rows.npy"
    np.save(path, rows)
    X = np.load(path, mmap_mode="r")  # memory-mapped, so only the required parts are read
    train, test = slice(0, 16_000), slice(16_000, None)

    model = ILSVMClassifier(12, random_state=0)
    model.partial_fit(X[:1000], y[:1000], classes=[0, 1, 2])  # the first batch determines features and scales
    print(f"after 1000 rows: {model.score(X[test], y[test]):.3f}")
    for _ in range(2):
        for first in range(0, 16_000, 500):
            model.partial_fit(X[first : first + 500], y[first : first + 500])
    print(f"after two passes: {model.score(X[test], y[test]):.3f}")
    model.fit_weights(X[train], y[train])
    print(f"weights solved for: {model.score(X[test], y[test]):.3f}, {model.n_samples_seen_} rows seen")
