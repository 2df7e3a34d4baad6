"""How well MT-iLSVM predicts, against linear models, against its decoupled twin and, behind a kernel map, kernels.

    python benchmarks/bench_mt_quality.py                             # with REGBAYES_DATA set: Yeast, Scene, School
    python benchmarks/bench_mt_quality.py --parts few                 # table, nystroem, few
    python benchmarks/bench_mt_quality.py --data emotions landmine --peers all
    python benchmarks/bench_mt_quality.py --smoke                     # seconds, on data that are drawn

Protocol. Labels (Yeast, Scene, emotions): the published split into training and test rows. Seeds 0 to 4 draw the folds
and the starts. Every method chooses its settings by 5-fold cross-validation on the training rows, from the scores of
rows that were left out; those of MT-iLSVM are what its CV estimators try by default, include_inputs among them (fewer
behind a kernel map, where fits are long). With --shortlist, seeds after the first choose among the best few. School:
10 splits, 75/25 within each school, settings by 3-fold cross-validation inside each training part. Landmine: 5 splits
into halves within each task and class, the same folds. Inputs are scaled on training rows. Nothing sees a test row
before the one score that is printed.
  accuracy [A]  1 - Hamming loss; settings of the best accuracy, a label is on where its score is above 0
  F1-micro [M]  F1 of all labels together; one threshold for all labels; settings of the best F1-micro
  F1-macro [P]  mean F1 of the labels; a threshold per label; settings of the best F1-macro
                thresholds as in MultiLabelThresholdCV: averaged over 50 resamples of the rows, for every method alike
  EV pooled / within   1 - SSE / sum (y - mean of all y)^2, and / sum (y - mean of the school's y)^2, in percent
  AUC           mean over tasks of the area under the ROC curve
Rows are mean +- standard deviation over seeds or splits; differences are paired, mean +- standard error.
"""

from __future__ import annotations

import argparse
import time
import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from joblib import Parallel, delayed
from mt_methods import (
    DECOUPLED_CS,
    DECOUPLED_TAUS,
    JOINT_CS,
    JOINT_TAUS,
    KERNEL_CS,
    KERNEL_TAUS,
    Method,
    Settings,
    Split,
    arrays,
    behind_kernels,
    decoupled,
    drawn_groups,
    drawn_labels,
    fit,
    group_peers,
    joint,
    kernel_peers,
    label_peers,
    landmine_peers,
    published_split,
    random_split,
)
from sklearn.base import clone
from sklearn.metrics import f1_score, roc_auc_score
from sklearn.model_selection import KFold, StratifiedKFold

from regbayes import MultiTaskILSVMClassifier, MultiTaskILSVMRegressor
from regbayes.estimators._cutoffs import DEFAULT_RESAMPLES, cells_of, choose_thresholds, draw_resamples
from regbayes.metrics import explained_variance_pooled, explained_variance_within_tasks

FOLDS, GROUP_FOLDS = 5, 3
POINTS = ("accuracy [A]", "F1-micro [M]", "F1-macro [P]")
KINDS = (None, ("shared", "f1_micro"), ("per_label", "f1_macro"))  # of thresholds, for each point
Variant = tuple[Method, Split]


@dataclass(frozen=True)
class Tried:
    """Settings of one variant of a method, and how they did on left-out rows."""

    which: int
    settings: Settings
    scores: np.ndarray  # (rows, labels)
    values: list[float]  # one for each of POINTS


# --- choosing on training rows


def left_out_scores(method: Method, split: Split, seed: int, jobs: int) -> list[tuple[Settings, np.ndarray]]:
    """Return, for every setting, the scores of all training rows by models that were not fitted to them."""
    if split.task is None:
        folds = list(KFold(FOLDS, shuffle=True, random_state=seed).split(split.X))
    else:
        folds = list(StratifiedKFold(GROUP_FOLDS, shuffle=True, random_state=seed).split(split.X, split.task))

    def follow(path: Any, train: np.ndarray, test: np.ndarray) -> list[np.ndarray]:
        model, found = clone(method.model), []
        if "random_state" in model.get_params():
            model.set_params(random_state=seed)
        X, X_test = method.inputs(split.X[train], split.X[test])
        for settings in path:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                fit(model.set_params(**settings), X, split.y[train], part(split.task, train))
            found.append(answers(model, X_test, part(split.task, test)))
        return found

    work = [(path, fold) for path in method.paths for fold in folds]
    parts = Parallel(n_jobs=jobs)(delayed(follow)(path, *fold) for path, fold in work)
    scores: list[tuple[Settings, np.ndarray]] = []
    for i, path in enumerate(method.paths):
        of_path = parts[i * len(folds) : (i + 1) * len(folds)]
        for j, settings in enumerate(path):
            whole = np.empty((len(split.X), *of_path[0][j].shape[1:]))
            for (_, test), values in zip(folds, of_path, strict=True):
                whole[test] = values[j]
            scores.append((settings, whole))
    return scores


def part(task: np.ndarray | None, rows: np.ndarray) -> np.ndarray | None:
    return None if task is None else task[rows]


def answers(model: Any, X: np.ndarray, task: np.ndarray | None) -> np.ndarray:
    """Scores of labels, or predicted numbers."""
    method = model.decision_function if hasattr(model, "decision_function") else model.predict
    return method(X) if task is None else method(X, task)


def thresholds(scores: np.ndarray, Y: np.ndarray, point: int, resamples: np.ndarray | None = None) -> np.ndarray:
    """Return the thresholds of one of `POINTS`: the best for these rows, or the average over resamples of them."""
    kind = KINDS[point]
    if kind is None:
        return np.zeros(Y.shape[1])
    return choose_thresholds(cells_of(scores, Y == 1), *kind, 0.0, resamples)


def metrics(answered: np.ndarray, Y: np.ndarray) -> tuple[float, float, float]:
    """Accuracy, F1-micro and F1-macro."""
    given = answered.astype(int)
    micro, macro = (f1_score(Y, given, average=kind, zero_division=0) for kind in ("micro", "macro"))
    return float(np.mean(given == Y)), float(micro), float(macro)


def refit(method: Method, settings: Settings, split: Split, seed: int) -> np.ndarray:
    """Fit to all training rows, and return the scores of the test rows."""
    model = clone(method.model)
    known = model.get_params()
    model.set_params(
        **{name: value for name, value in (("warm_start", False), ("random_state", seed)) if name in known}
    )
    X, X_test = method.inputs(split.X, split.X_test)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit(model.set_params(**settings), X, split.y, split.task)
    return answers(model, X_test, split.task_test)


# --- labels


def run_labels(variants: list[Variant], seed: int, jobs: int) -> tuple[np.ndarray, str, list[Tried]]:
    """Choose among variants (one method, or one for each kernel map) and settings for each point; return test values.

    After the three come the three metrics of the one model and the thresholds that were chosen for F1-macro.
    """
    tried = []
    for which, (method, split) in enumerate(variants):
        for settings, scores in left_out_scores(method, split, seed, jobs):
            found = [metrics(scores > thresholds(scores, split.y, i), split.y)[i] for i in range(len(POINTS))]
            tried.append(Tried(which, settings, scores, found))
    values, chosen, fitted = [], [], {}
    resamples = draw_resamples(len(variants[0][1].X), DEFAULT_RESAMPLES, np.random.RandomState(seed))
    for i in range(len(POINTS)):
        best = max(tried, key=lambda t: t.values[i])
        method, split = variants[best.which]
        if id(best) not in fitted:
            fitted[id(best)] = refit(method, best.settings, split, seed)
        found = metrics(fitted[id(best)] > thresholds(best.scores, split.y, i, resamples), split.y_test)
        values.append(found[i])
        chosen.append(f"{best.values[i]:.4f} {best.which} {shown(best.settings)}")
    return np.array([*values, *found]), " | ".join(chosen), tried


def shortlisted(variants: list[Variant], tried: list[Tried], size: int) -> list[Variant]:
    """Return the variants with those settings only that are among the best few for some point."""
    kept = {id(t) for i in range(len(POINTS)) for t in sorted(tried, key=lambda t: -t.values[i])[:size]}
    short = []
    for which, (method, split) in enumerate(variants):
        paths = [[t.settings] for t in tried if t.which == which and id(t) in kept]
        if paths:
            short.append((replace(method, paths=paths), split))
    return short


def shown(settings: Settings) -> str:
    return ",".join(f"{v:.3g}" if isinstance(v, float) else str(v) for v in settings.values())


def label_table(name: str, methods: dict[str, list[Variant]], options: argparse.Namespace) -> dict[str, np.ndarray]:
    """Print a row per method; return the test values, (seeds, 6) each."""
    found, seeds = {}, options.seeds
    for label, variants in methods.items():
        start, rows = time.perf_counter(), []
        for seed in range(seeds):
            values, chosen, tried = run_labels(variants, seed, options.jobs)
            rows.append(values)
            if options.shortlist and seed == 0:
                variants = shortlisted(variants, tried, options.shortlist)
            if options.verbose:
                print(f"    {label} seed {seed}: {values[:3].round(4)} chosen at {chosen}", flush=True)
        found[label] = np.array(rows)
        mean, spread = found[label].mean(axis=0), found[label].std(axis=0)
        text = " / ".join(f"{m:.4f} +- {s:.4f}" for m, s in zip(mean[:3], spread[:3], strict=True))
        one = " / ".join(f"{m:.3f}" for m in mean[3:])
        seconds = (time.perf_counter() - start) / seeds
        print(f"{name:9} {label:32} {text}   one model: {one}   {seconds:5.0f} s a seed", flush=True)
    return found


def labels_part(part_name: str, name: str, split: Split, options: argparse.Namespace) -> None:
    """One part of the comparison on one set of labels."""
    model, both, taus = MultiTaskILSVMClassifier(), (False, True), taus_of(options)
    if part_name == "table":
        methods = {m.name: [(m, split)] for m in label_peers(options.peers)}
        for K in options.components or (50,):
            methods[f"MT-iLSVM, K = {K}"] = [(joint(model, K, both, JOINT_CS, taus), split)]
        label_table(name, methods, options)
    if part_name == "nystroem":
        width = split.X.shape[1]
        methods = {m.name: [(m, split)] for m in kernel_peers(options.peers, width)}
        for K in options.components or (20,):
            variants = behind_kernels(joint(model, K, (True,), KERNEL_CS, KERNEL_TAUS), width)
            methods[f"Nystroem + MT-iLSVM, K = {K}"] = [(variant, split) for variant in variants]
        label_table(name, methods, options)
    if part_name == "few":
        for K in options.components or (10, 20, 50):
            methods = {
                f"MT-IBP+SVM, K = {K}": [(decoupled(model, K, (False,), DECOUPLED_CS, DECOUPLED_TAUS), split)],
                f"MT-iLSVM, K = {K}": [(joint(model, K, (False,), JOINT_CS, taus), split)],
            }
            apart, together = label_table(name, methods, options).values()
            print_ahead(name, f"K = {K}", 100 * (together - apart)[:, :3], POINTS)


def taus_of(options: argparse.Namespace) -> Any:
    """The temperatures to try; a smoke test is content with one."""
    return (0.03,) if options.smoke else JOINT_TAUS


def print_ahead(name: str, what: str, differences: np.ndarray, columns: Any) -> None:
    """Print paired differences in points."""
    error = differences.std(axis=0) / np.sqrt(max(len(differences) - 1, 1))
    shown = ", ".join(
        f"{c} {d:+.3g} +- {e:.2g}" for c, d, e in zip(columns, differences.mean(axis=0), error, strict=True)
    )
    print(f"{name:9} {what}: ahead by {shown}", flush=True)


# --- one target per row


def group_values(name: str, given: np.ndarray, split: Split) -> list[float]:
    """Test values: both explained variances, or the mean AUC over tasks."""
    y, task = split.y_test, split.task_test
    if name == "landmine":
        tasks = [t for t in np.unique(task) if len(np.unique(y[task == t])) == 2]
        return [float(np.mean([roc_auc_score(y[task == t], given[task == t]) for t in tasks]))]
    return [100 * explained_variance_pooled(y, given), 100 * explained_variance_within_tasks(y, given, task)]


def choose_groups(name: str, method: Method, split: Split, seed: int, jobs: int) -> tuple[Settings, float]:
    """Return the best settings on left-out training rows."""
    whole = Split(split.X, split.y, split.X, split.y, split.task, split.task)
    tried = [
        (group_values(name, scores, whole)[0], settings)
        for settings, scores in left_out_scores(method, split, seed, jobs)
    ]
    value, settings = max(tried, key=lambda pair: pair[0])
    return settings, value


def groups_part(part_name: str, name: str, splits: list[Split], options: argparse.Namespace) -> None:
    """One part of the comparison on one set of ragged tasks."""
    landmine = name == "landmine"
    model = MultiTaskILSVMClassifier() if landmine else MultiTaskILSVMRegressor()
    few, taus = part_name == "few", taus_of(options)
    methods = [] if few else (landmine_peers if landmine else group_peers)(options.peers)
    for K in options.components or ((10, 20, 50) if few else (20,)):
        if few:
            methods.append(decoupled(model, K, (False,), DECOUPLED_CS, DECOUPLED_TAUS))
        prices = JOINT_CS if landmine else JOINT_CS[:-2]
        methods.append(joint(model, K, (False,) if few else (False, True), prices, taus))
    found: dict[str, np.ndarray] = {}
    for method in methods:
        start, rows = time.perf_counter(), []
        for seed, split in enumerate(splits):
            settings, value = choose_groups(name, method, split, seed, options.jobs)
            rows.append(group_values(name, refit(method, settings, split, seed), split))
            if options.verbose:
                chosen = f"chosen at {value:.4f} {shown(settings)}"
                print(f"    {method.name} split {seed}: {np.round(rows[-1], 4)} {chosen}", flush=True)
        found[method.name] = np.array(rows)
        mean, spread = found[method.name].mean(axis=0), found[method.name].std(axis=0)
        text = " / ".join(f"{m:.4g} +- {s:.3g}" for m, s in zip(mean, spread, strict=True))
        seconds = (time.perf_counter() - start) / len(splits)
        print(f"{name:9} {method.name:32} {text}   {seconds:5.0f} s a split", flush=True)
    for ours in (label for label in found if label.startswith("MT-iLSVM")):
        theirs = ours.replace("MT-iLSVM", "MT-IBP+SVM") if few else next(iter(found))
        if theirs != ours:
            columns = ("AUC",) if landmine else ("EV pooled", "EV within")
            print_ahead(name, f"{ours} against {theirs}", found[ours] - found[theirs], columns)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="seconds, on data that are drawn")
    parser.add_argument(
        "--parts", nargs="*", default=["table", "nystroem", "few"], choices=["table", "nystroem", "few"]
    )
    parser.add_argument("--data", nargs="*", default=["yeast", "scene", "school"])
    parser.add_argument("--peers", default="linear", choices=["none", "linear", "all"])
    parser.add_argument("--components", nargs="*", type=int, help="n_components; by default what the parts are about")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--splits", type=int, default=10, help="of School")
    parser.add_argument(
        "--shortlist",
        type=int,
        default=0,
        help="settings of each point after the first seed; 0: all",
    )
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--verbose", action="store_true", help="print every choice")
    options = parser.parse_args()
    print(__doc__.split("Protocol. ")[1])
    if options.smoke:
        options.seeds, options.components = 1, [4]
        for part_name in ("table", "nystroem", "few"):
            labels_part(part_name, "drawn", drawn_labels(), options)
        drawn = drawn_groups()
        groups_part("few", "drawn", [random_split(drawn, 0, 0.75, drawn["task"])], options)
        return
    for name in options.data:
        data = arrays(name)
        if data is None:
            print(f"{name}: not found; set REGBAYES_DATA to a folder that holds {name}.npz")
        elif "Y" in data:
            for part_name in options.parts:
                labels_part(part_name, name, published_split(data), options)
        else:
            landmine = name == "landmine"
            strata = 2 * data["task"] + data["y"].astype(int) if landmine else data["task"]
            n_splits, share = (options.seeds, 0.5) if landmine else (options.splits, 0.75)
            splits = [random_split(data, seed, share, strata) for seed in range(n_splits)]
            for part_name in (p for p in options.parts if p != "nystroem"):
                groups_part(part_name, name, splits, options)


if __name__ == "__main__":
    main()
