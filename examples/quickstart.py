"""The first examples: what is known about a clinic where a model will be used, and features that tell digits apart.

``python examples/quickstart.py`` runs it. (``make demo`` runs another one, ``regbayes demo``.)
"""

from __future__ import annotations

import time

import numpy as np
from scipy.special import expit, log_expit
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from sklearn.svm import LinearSVC

from example_tools import elliptical_slice
from regbayes import E, ILSVMClassifier, RegularizedPosterior, Samples, regularize

DATA = load_breast_cancer()
MALIGNANT = DATA.target == 0
INPUTS = DATA.data[:, :10]  # the ten means
ROWS = np.column_stack([np.ones(len(INPUTS)), (INPUTS - INPUTS.mean(axis=0)) / INPUTS.std(axis=0)])


def fit_and_regularize(seed: int, n_draws: int) -> tuple[RegularizedPosterior, np.ndarray]:
    """Label ten cases of each kind, draw from the posterior of a logistic regression, impose the prevalence.

    Returns the result and, for each kind of posterior (before, after), accuracy and log loss on the other cases.
    """
    rng = np.random.default_rng(seed)
    labelled = np.concatenate([rng.choice(np.flatnonzero(kind), 10, replace=False) for kind in (MALIGNANT, ~MALIGNANT)])
    others = np.setdiff1d(np.arange(len(ROWS)), labelled)
    signs, truth = np.where(MALIGNANT[labelled], 1.0, -1.0), MALIGNANT[others]
    draws = elliptical_slice(lambda w: log_expit(signs * (ROWS[labelled] @ w)).sum(), np.ones(11), n_draws, rng)

    rates = expit(draws @ ROWS[others].T)  # (draws, cases)
    share = E(rates.mean(axis=1), name="share malignant")
    result = regularize(Samples(draws), share.within(0.02, of=0.368))

    scores = []
    for posterior in (result.base, result.posterior):
        predicted = posterior.weights @ rates
        accuracy = np.mean((predicted > 0.5) == truth)
        scores.append((accuracy, -np.mean(np.log(np.where(truth, predicted, 1 - predicted)))))
    return result, np.array(scores)


def known_prevalence() -> None:
    result, scores = fit_and_regularize(seed=0, n_draws=4000)
    print("Ten malignant and ten benign cases have a label. At the clinic where the model will be used 36.8 % of the")
    print("cases are malignant, give or take 2. The posterior of a logistic regression says something else:\n")
    print(result)
    print("\non the 549 other cases     accuracy  log loss")
    print(f"20 labels                  {scores[0, 0]:8.3f}  {scores[0, 1]:8.3f}")
    print(f"and the share              {scores[1, 0]:8.3f}  {scores[1, 1]:8.3f}")

    gains = np.array([np.diff(fit_and_regularize(seed, n_draws=1000)[1], axis=0)[0] for seed in range(1, 21)])
    mean, error = gains.mean(axis=0), gains.std(axis=0, ddof=1) / np.sqrt(len(gains))
    better = np.sum(gains[:, 0] > 0), np.sum(gains[:, 1] < 0)
    print("\nchange, 20 other choices of the labelled cases")
    print(f"accuracy  {mean[0]:+.3f} (standard error {error[0]:.3f}), better in {better[0]} of 20")
    print(f"log loss  {mean[1]:+.3f} (standard error {error[1]:.3f}), better in {better[1]} of 20")


def features_of_digits() -> None:
    X, y = load_digits(return_X_y=True)
    X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.5, stratify=y, random_state=0)
    linear = make_pipeline(MinMaxScaler(), LinearSVC(random_state=0)).fit(X_train, y_train)
    model = ILSVMClassifier(n_components=50, random_state=0).fit(X_train, y_train)
    print("\n\nHalf of 1797 handwritten digits have a label. Which few features tell them apart?\n")
    print("on the other half                      features  accuracy")
    print(f"linear SVM on the pixels               {X.shape[1]:8d}  {linear.score(X_test, y_test):8.3f}")
    print(f"iLSVM, free to use up to 50 features   {model.n_components_:8d}  {model.score(X_test, y_test):8.3f}")
    print("\nIts features are learned together with its classifier, and their number comes from the data. Those of")
    print('slab="half-normal" are off, or on by an amount, and can be read: docs/models/ilsvm.md shows them.')


def main() -> None:
    started = time.perf_counter()
    known_prevalence()
    print("\nHow to read the first table. 'before' and 'after' are expectations under the posterior that went in and")
    print("under the closest one that meets the constraint; 'moved' is the divergence between the two, and the gap")
    print("bounds how much closer any other could be. The multiplier is the weight of the constraint in the answer.")
    print("Effective draws and k-hat say whether the draws can carry it: above 0.7 they cannot.")
    features_of_digits()
    print("\nWhere to look next: README.md, docs/constraining.md (problems and how to state them), examples/*.py")
    print(f"({time.perf_counter() - started:.0f} s)")


if __name__ == "__main__":
    main()
