"""The infinite SVM on simulated clusters, each with its own classifier."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.svm import SVC, LinearSVC

from regbayes_paper.baselines import InfiniteSVMClassifier


def draw(n_rows, rng):
    """Draw four clusters around the corners of a square, each with its own linear rule for two classes."""
    kind = rng.choice(4, size=n_rows, p=[0.4, 0.3, 0.2, 0.1])
    offset = rng.normal(size=(n_rows, 2))
    rules = np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    y = (np.sum(offset * rules[kind], axis=1) > 0).astype(int)
    return 6.0 * np.array([[0, 0], [1, 0], [0, 1], [1, 1]])[kind] + offset, y


def main() -> None:
    """Print the numbers of the page."""
    rng = np.random.default_rng(0)
    X, y = draw(400, rng)
    X_new, y_new = draw(2000, rng)
    model = InfiniteSVMClassifier(n_components=10, random_state=0).fit(X, y)

    # --- baselines: one linear rule, and clusters without rules; then a rule for each cluster
    print(f"one linear rule: {LinearSVC(max_iter=20_000).fit(X, y).score(X_new, y_new):.3f}")
    print(f"RBF-SVM: {SVC(C=10.0).fit(X, y).score(X_new, y_new):.3f}")
    print(f"iSVM: {model.score(X_new, y_new):.3f}, {model.n_components_} components")

    # --- the estimated components
    print("\nshare  centre        weights")
    for k in range(model.n_components_):
        centre, weights = np.round(model.means_[k], 1) + 0.0, np.round(model.coef_[k, 0], 1) + 0.0
        print(f"{model.weights_[k]:5.2f}  {centre[0]:4.1f} {centre[1]:4.1f}   {weights[0]:5.1f} {weights[1]:5.1f}")

    # --- margins on the training posterior, which uses the labels
    options: dict[str, Any] = {"n_components": 10, "C": 10.0, "tol": 1e-3, "random_state": 0}
    model = InfiniteSVMClassifier(**options).fit(X, y)
    original = InfiniteSVMClassifier(**options, refit_classifiers=False).fit(X, y)
    moved = 0.5 * np.abs(model.responsibilities_ - model.transform(X)).sum(axis=1).mean()
    print(f"\nshare of a training row that its label moves to other components: {moved:.3f}")
    print(f"classifiers of the responsibilities that know the label: {original.score(X_new, y_new):.3f}")
    print(f"classifiers of those that do not: {model.score(X_new, y_new):.3f}")


if __name__ == "__main__":
    main()
