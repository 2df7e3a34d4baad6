"""Harmoniums on digits, with and without labels."""

from __future__ import annotations

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.svm import LinearSVC

from regbayes_paper.baselines import ExponentialFamilyHarmonium, MaxMarginHarmoniumClassifier

X, y = load_digits(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(X, y, train_size=400, stratify=y, random_state=0)

# --- two-stage or joint learning of features and classifier
svm = LinearSVC(C=0.01, multi_class="crammer_singer", max_iter=50_000)
two_stages = make_pipeline(ExponentialFamilyHarmonium(n_components=10), svm).fit(X_train, y_train)
model = MaxMarginHarmoniumClassifier(n_components=10, C=0.01, random_state=0).fit(X_train, y_train)
print(f"EFH+SVM, 10 hidden units: {two_stages.score(X_test, y_test):.3f}")
print(f"MMH, 10 hidden units: {model.score(X_test, y_test):.3f}")

# --- two views of different kinds: binary pixels in the upper half, counts in the lower
upper, lower = X[:, :32] > 7, X[:, 32:]
both = np.hstack([upper, lower])
views = [("bernoulli", slice(0, 32)), ("poisson", slice(32, 64))]
model = MaxMarginHarmoniumClassifier(n_components=10, C=0.01, visible=views, random_state=0)
both_train, both_test, _, _ = train_test_split(both, y, train_size=400, stratify=y, random_state=0)
print(f"\ntwo views: {model.fit(both_train, y_train).score(both_test, y_test):.3f}")
