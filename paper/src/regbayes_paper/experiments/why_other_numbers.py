"""Comparisons that explain differences from the paper's numbers.

Run ``python -m regbayes_paper.experiments.why_other_numbers`` with the data sets in REGBAYES_DATA.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from sklearn.metrics import f1_score
from sklearn.multiclass import OneVsRestClassifier
from sklearn.svm import LinearSVC

from regbayes import MultiTaskILSVMRegressor
from regbayes_paper.baselines import SingleTaskRegressor
from regbayes_paper.data import load_scene, load_school, load_yeast
from regbayes_paper.experiments.peers import TaskDeviationRidge
from regbayes_paper.experiments.samples import Sample
from regbayes_paper.experiments.tuning import RAGGED, fit

model = partial(MultiTaskILSVMRegressor, n_components=50, C=0.01, task_sharing=5.0, random_state=0)
TEN = {
    "STL": SingleTaskRegressor(30.0),
    "MT-iLSVM": model(),
    "MT-IBP+SVM": model(margins="decoupled"),
    "MT-iLSVM, rho = 0": model(C=0.03, task_sharing=0.0),
}
THREE = {
    "MT-iLSVM": model(),
    "epsilon-insensitive": model(loss="epsilon_insensitive"),
    "rho = 0": model(task_sharing=0.0),
    "10 features": model(n_components=10, C=0.003),
    "27 features": model(n_components=27, C=0.003),
    "inputs too": model(C=0.003, include_inputs=True),
    "ridge + task deviations": TaskDeviationRidge(10.0, 300.0, 10.0),
}


def main() -> None:
    """Print all comparisons."""
    # --- School: explained variance relative to task means, with variances over n - 1, and relative to one mean
    school = load_school()
    sample = Sample(school.data, school.target, school.task)
    for models, n_splits in ((TEN, 10), (THREE, 3)):
        for name, one in models.items():
            scores = []
            for train, test in school.splits[:n_splits]:
                fit(one, sample.rows(train))
                scores.append(list(RAGGED.report(sample.rows(test), RAGGED.outputs(one, sample.rows(test))).values()))
            mean, std = np.mean(scores, axis=0), np.std(scores, axis=0, ddof=1)
            print(f"{name:24s}", *(f"{100 * m:.2f} ± {100 * s:.2f}" for m, s in zip(mean, std, strict=True)))

    # --- Yeast and Scene: accuracy, F1-micro and F1-macro of linear machines
    for data in (load_yeast(), load_scene()):
        X, Y, train, test = data.data, data.target, data.train, data.test
        print(f"\nmajority label {np.mean(Y[test] == (Y[train].mean(axis=0) > 0.5)):.3f}")
        for how, rows in (("as given", X), ("centered", X - X[train].mean(axis=0))):
            for C, intercept in ((0.03, False), (1.0, False), (1.0, True)):
                svm = LinearSVC(C=C, loss="hinge", fit_intercept=intercept, max_iter=3000, random_state=0)
                yes = OneVsRestClassifier(svm).fit(rows[train], Y[train]).predict(rows[test])
                f1 = [f1_score(Y[test], yes, average=average) for average in ("micro", "macro")]
                print(f"{how}, C={C}, intercept={intercept}: {np.mean(yes == Y[test]):.3f}", *(f"{x:.3f}" for x in f1))


if __name__ == "__main__":
    main()
