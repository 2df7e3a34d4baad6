"""
Related tasks with missing values
=================================

Predict several outcomes of the same samples, and one outcome in many small groups. Both data sets are simulated, so the
ground truth is known.
"""

from __future__ import annotations

import numpy as np
from sklearn.linear_model import RidgeCV
from sklearn.metrics import f1_score
from sklearn.model_selection import GridSearchCV
from sklearn.svm import LinearSVC

from regbayes import MultiLabelThresholdCV, MultiTaskILSVMClassifier, MultiTaskILSVMRegressor
from regbayes.metrics import explained_variance_pooled, explained_variance_within_tasks

N_OUTCOMES, N_INPUTS, N_HIDDEN = 40, 60, 4


def outcomes(seed):
    """Draw 40 outcomes of 1000 cases that depend on 60 inputs through four hidden groups of inputs."""
    rng = np.random.default_rng(seed)
    groups = rng.random((N_INPUTS, N_HIDDEN)) < 0.3
    X = rng.standard_normal((1000, N_HIDDEN)) @ groups.T + rng.standard_normal((1000, N_INPUTS))
    weights = rng.standard_normal((N_HIDDEN, N_OUTCOMES))
    score = X @ groups / np.sqrt(N_INPUTS) @ weights + rng.standard_normal((1000, N_OUTCOMES))
    return X, (score > np.quantile(score, 0.8, axis=0)).astype(int)


def many_outcomes() -> None:
    X, Y = outcomes(seed=0)
    train, test = slice(0, 300), slice(300, None)

    observed = np.random.default_rng(1).random((300, N_OUTCOMES)) < 0.4
    Y_seen = np.where(observed, Y[train], np.nan)  # six in ten are missing

    model = MultiTaskILSVMClassifier(n_components=10, random_state=0)
    tuned = MultiLabelThresholdCV(model, thresholds="shared", random_state=0).fit(X[train], Y_seen)

    alone = np.zeros(Y[test].shape, dtype=int)
    grid = {"C": [0.001, 0.003, 0.01, 0.03, 0.1]}
    for outcome in range(N_OUTCOMES):
        rows = observed[:, outcome]
        svm = GridSearchCV(LinearSVC(class_weight="balanced", random_state=0), grid, scoring="f1")
        alone[:, outcome] = svm.fit(X[train][rows], Y[train][rows, outcome]).predict(X[test])

    print(f"{N_OUTCOMES} outcomes, 300 training cases, {np.isnan(Y_seen).mean():.0%} of the outcomes missing")
    print("F1 over all outcomes of 700 other cases")
    print(f"  one linear SVM per outcome       {f1_score(Y[test], alone, average='micro'):.3f}")
    print(f"  shared features, one threshold   {f1_score(Y[test], tuned.predict(X[test]), average='micro'):.3f}")


def many_groups() -> None:
    rng = np.random.default_rng(2)
    school = np.repeat(np.arange(60), 30)
    X = rng.standard_normal((1800, 8))
    slopes = rng.standard_normal(8) + 0.4 * rng.standard_normal((60, 8))
    level = rng.standard_normal(60)
    y = 50 + 10 * (level[school] + np.sum(X * slopes[school], axis=1) / 2 + 1.5 * rng.standard_normal(1800))
    train = np.arange(1800) % 30 < 10  # ten pupils of each school

    model = MultiTaskILSVMRegressor(n_components=10, unseen_tasks="shared", random_state=0)
    model.fit(X[train], y[train], task=school[train])
    shared = model.predict(X[~train], task=school[~train])

    strengths = np.geomspace(0.1, 1000, 9)
    one_for_all = RidgeCV(strengths).fit(X[train], y[train]).predict(X[~train])
    alone = np.empty(len(one_for_all))
    for k in range(60):
        mine = RidgeCV(strengths).fit(X[train & (school == k)], y[train & (school == k)])
        alone[school[~train] == k] = mine.predict(X[~train & (school == k)])

    print("\n60 schools, ten pupils of each; explained variance of the others")
    print("                            pooled  within schools")
    for name, predicted in (("one ridge for all", one_for_all), ("one ridge per school", alone), ("shared", shared)):
        pooled = explained_variance_pooled(y[~train], predicted)
        within = explained_variance_within_tasks(y[~train], predicted, task=school[~train])
        print(f"  {name:24}  {pooled:6.3f}  {within:6.3f}")

    new = model.predict(X[:1], task=[60])
    print(f"\na pupil of a school that was not there: {new[0]:.1f}")
    few = school < 5
    hand_tasks_on(X[few], y[few], school[few])


def hand_tasks_on(X: np.ndarray, y: np.ndarray, school: np.ndarray) -> None:
    """Pass tasks through scikit-learn's metadata routing."""
    import sklearn
    from sklearn.model_selection import GridSearchCV, KFold, cross_val_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    folds = KFold(5, shuffle=True, random_state=0)  # rows come school by school: every fold needs some of each
    with sklearn.config_context(enable_metadata_routing=True):
        model = MultiTaskILSVMRegressor(n_components=10, random_state=0)
        model.set_fit_request(task=True).set_predict_request(task=True).set_score_request(task=True)
        cross_val_score(make_pipeline(StandardScaler(), model), X, y, cv=folds, params={"task": school})
        search = GridSearchCV(model, {"C": [0.1, 1.0]}, cv=folds).fit(X, y, task=school)
        search.best_estimator_.predict(X[:2], task=school[:2])  # GridSearchCV.predict takes rows alone


def main() -> None:
    many_outcomes()
    many_groups()


if __name__ == "__main__":
    main()
