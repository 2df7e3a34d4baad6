"""A fixed number of real-valued features, learned with or without the labels: harmoniums on scikit-learn's digits.

The page paper/docs/harmonium.md walks through it.
"""

from __future__ import annotations

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.svm import LinearSVC

from regbayes_paper.baselines import ExponentialFamilyHarmonium, MaxMarginHarmoniumClassifier

X, y = load_digits(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(X, y, train_size=400, stratify=y, random_state=0)

# --- features first, or features and classifier together
svm = LinearSVC(C=0.01, multi_class="crammer_singer", max_iter=50_000)
two_stages = make_pipeline(ExponentialFamilyHarmonium(n_components=10), svm).fit(X_train, y_train)
model = MaxMarginHarmoniumClassifier(n_components=10, C=0.01, random_state=0).fit(X_train, y_train)
print(f"EFH+SVM, 10 hidden units: {two_stages.score(X_test, y_test):.3f}")
print(f"MMH, 10 hidden units: {model.score(X_test, y_test):.3f}")

# --- how many hidden units? C by cross-validation on the training rows
Cs = [0.01, 0.03]
print("\nhidden units  EFH+SVM    MMH")
for n_components in (2, 5, 10, 20, 40):
    searches = (
        GridSearchCV(make_pipeline(ExponentialFamilyHarmonium(n_components), svm), {"linearsvc__C": Cs}, cv=3),
        GridSearchCV(MaxMarginHarmoniumClassifier(n_components, random_state=0), {"C": Cs}, cv=3),
    )
    scores = [search.fit(X_train, y_train).score(X_test, y_test) for search in searches]
    print(f"{n_components:12d}    {scores[0]:.3f}  {scores[1]:.3f}")

# --- two views of different kinds: the upper half as ink or no ink, the lower half as counts
upper, lower = X[:, :32] > 7, X[:, 32:]
both = np.hstack([upper, lower])
views = [("bernoulli", slice(0, 32)), ("poisson", slice(32, 64))]
model = MaxMarginHarmoniumClassifier(n_components=10, C=0.01, visible=views, random_state=0)
both_train, both_test, _, _ = train_test_split(both, y, train_size=400, stratify=y, random_state=0)
print(f"\ntwo views: {model.fit(both_train, y_train).score(both_test, y_test):.3f}")
