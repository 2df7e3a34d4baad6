"""
iLSVM on handwritten digits
===========================

Which latent features distinguish handwritten digits? :doc:`/models/ilsvm` explains the results.
"""

from __future__ import annotations

import sys
import warnings

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from sklearn.svm import LinearSVC

from regbayes import IBPFactorAnalysis, ILSVMClassifier, ILSVMClassifierCV, TruncationWarning

warnings.simplefilter("ignore", TruncationWarning)  # fits with ten features use all of them on purpose
figure = sys.argv[2] if sys.argv[1:2] == ["--figure"] else None

# --- the number of features is inferred
X, y = load_digits(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.5, stratify=y, random_state=0)

model = ILSVMClassifier(random_state=0).fit(X_train, y_train)
print(f"features in use: {model.n_components_} of {model.n_components}")
print(f"accuracy on new digits: {model.score(X_test, y_test):.3f}")

# --- interpretable features: zero or nonnegative
reader = ILSVMClassifier(slab="half-normal", random_state=0).fit(X_train, y_train)
psi = reader.feature_probabilities(X_test)
print(f"\naccuracy: {reader.score(X_test, y_test):.3f}")
print(f"off: {np.mean(psi < 0.1):.0%} of all values, undecided: {np.mean((psi >= 0.1) & (psi <= 0.9)):.0%}")
print(f"features that a digit has, on average: {np.mean(np.sum(psi > 0.5, axis=1)):.1f}")

by_class = np.array([psi[y_test == digit].mean(axis=0) for digit in range(10)])
print("\nfeature  share of rows  digits that have it (one in three do)")
for k in np.argsort(-psi.mean(axis=0)):
    print(
        f"{k:7d}  {psi[:, k].mean():13.2f}  {' '.join(str(digit) for digit in np.flatnonzero(by_class[:, k] > 1 / 3))}"
    )


# --- comparison on three splits, with default settings
def splits():
    for seed in range(3):
        yield train_test_split(X, y, test_size=0.5, stratify=y, random_state=seed)


def mean_score(make, split_in_two=splits):
    fitted = [(make().fit(rows, labels), new, truth) for rows, new, labels, truth in split_in_two()]
    return np.mean([estimator.score(new, truth) for estimator, new, truth in fitted])


def linear_svc():
    return make_pipeline(MinMaxScaler(), LinearSVC(random_state=0))


methods = {
    "LinearSVC on the 64 pixels": linear_svc,
    "ten features, then LinearSVC": lambda: make_pipeline(
        IBPFactorAnalysis(10, slab=None, transform_temperature=0.3, random_state=0), LinearSVC(random_state=0)
    ),
    "iLSVM, ten on/off features": lambda: ILSVMClassifier(10, temperature=0.02, random_state=0),
    "iLSVM, ten soft features": lambda: ILSVMClassifier(10, random_state=0),
    "iLSVM, up to 50 features": lambda: ILSVMClassifier(50, random_state=0),
    "iLSVM, 20 on/off features": lambda: ILSVMClassifier(20, temperature=0.02, random_state=0),
    "iLSVM, 20 nonnegative features": lambda: ILSVMClassifier(20, slab="half-normal", random_state=0),
}
print("\naccuracy, mean of three splits")
for name, make in methods.items():
    print(f"  {name:30s} {mean_score(make):.3f}")


# --- few labels
def with_labels(n, keep_the_rest):
    def split_in_two():
        for rows, new, labels, truth in splits():
            some = np.where(np.arange(len(rows)) < n, labels, -1)
            yield (rows, new, some, truth) if keep_the_rest else (rows[:n], new, labels[:n], truth)

    return split_in_two


print("\nlabelled rows                           50    200")
for name, make, keep_the_rest in [
    ("LinearSVC on the 64 pixels", linear_svc, False),
    ("iLSVM", lambda: ILSVMClassifier(20, random_state=0), False),
    ("iLSVM, the other rows unlabelled", lambda: ILSVMClassifier(20, unlabeled=-1, random_state=0), True),
]:
    print(f"  {name:34s}", *(f"{mean_score(make, with_labels(n, keep_the_rest)):.3f}" for n in (50, 200)), sep="  ")

# --- settings by cross-validation
search = ILSVMClassifierCV(20, Cs=(0.3, 1.0, 3.0), temperatures=(0.05, 0.2, 0.5), cv=3, random_state=0)
search.fit(X_train, y_train)
print(f"\nchosen: C={search.C_}, temperature={search.temperature_}; accuracy {search.score(X_test, y_test):.3f}")


def draw(path):
    """Draw a row for each feature: loadings, the ten test digits with the largest values, and use by class."""
    import matplotlib.pyplot as plt

    features = np.argsort(-psi.mean(axis=0))[:10]
    amounts = reader.transform(X_test)
    fig = plt.figure(figsize=(10, 6.6), layout="constrained")
    grid = fig.add_gridspec(
        len(features) + 1, 17, width_ratios=[1] * 11 + [0.4] + [1] * 5, height_ratios=[0.4] + [1] * 10
    )
    limit = np.abs(reader.components_).max()
    for row, k in enumerate(features, start=1):
        top = np.argsort(-amounts[:, k], kind="stable")[:10]
        images = [(reader.components_[k], "RdBu_r", -limit, limit), *((X_test[n], "gray_r", 0, 16) for n in top)]
        for column, (image, cmap, low, high) in enumerate(images):
            ax = fig.add_subplot(grid[row, column])
            ax.imshow(image.reshape(8, 8), cmap=cmap, vmin=low, vmax=high)
            ax.set(xticks=[], yticks=[])
            if column == 0:
                ax.set_ylabel(k, rotation=0, ha="right", va="center")
    for columns, title in [
        (slice(0, 1), "loading"),
        (slice(1, 11), "the ten digits that have most of it"),
        (slice(12, 17), "share that has it"),
    ]:
        ax = fig.add_subplot(grid[0, columns])
        ax.text(0.5, 0.0, title, ha="center", va="bottom")
        ax.axis("off")
    ax = fig.add_subplot(grid[1:, 12:])
    ax.imshow(by_class[:, features].T, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    ax.set(xticks=range(10), yticks=[], xlabel="digit")
    fig.savefig(path, dpi=110)


if figure:
    draw(figure)
