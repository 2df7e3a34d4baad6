"""A model of your own, in six files and a shell: it finds which of sixty inputs tell two classes apart.

The page docs/adding_a_model.md walks through the folder ``relevant_inputs`` beside this script.
"""

from __future__ import annotations

import numpy as np
from sklearn.svm import LinearSVC

from relevant_inputs.estimator import RelevantInputsClassifier

# --- two classes that four of sixty inputs tell apart, with noise
rng = np.random.default_rng(0)
X, weights = rng.standard_normal((1200, 60)), np.zeros(60)
weights[[3, 14, 15, 32]] = [2.0, -2.0, 1.5, -1.5]
y = np.where(X @ weights + rng.standard_normal(1200) > 0, "yes", "no")
train, test = slice(0, 200), slice(200, None)

# --- the model, beside the same margins with one precision for all inputs
model = RelevantInputsClassifier().fit(X[train], y[train])
plain = LinearSVC(loss="hinge", C=1.0, max_iter=100_000).fit(X[train], y[train])
order = np.argsort(-model.relevance_)
print("inputs by relevance:", order[:6], model.relevance_[order[:6]].round(2))
print(f"accuracy on new rows: {model.score(X[test], y[test]):.3f}; linear SVM {plain.score(X[test], y[test]):.3f}")

# --- the objective's terms, at the start and at the end
print(f"objective after {model.n_iter_} iterations:")
for name, course in model.trace_.terms.items():
    print(f"  {name:15s} {course[0]:8.2f} -> {course[-1]:8.2f}")
print(f"  it rose {model.trace_.rises.count} times")
