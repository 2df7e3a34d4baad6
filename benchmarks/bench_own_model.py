"""A max-margin variational autoencoder, a network of the same size, and a two-stage pipeline.

    python benchmarks/bench_own_model.py                 # digits and scene15 (REGBAYES_DATA), ten half splits
    python benchmarks/bench_own_model.py --sets digits --output digits.jsonl
    python benchmarks/bench_own_model.py --smoke

All systems have the same encoder: one hidden layer of 256 units with dropout, and as many features as classes.
`margins` is the autoencoder of examples/extending/vae_margins.py with a max-margin head. `two stages` is the same
autoencoder without labels, then LinearSVC. `network` is the encoder and a linear layer with cross-entropy loss. Each is
trained for 60 epochs with batches of 100. Settings are chosen by cross-validated accuracy on the training half:
dropout, and the generative weight and weight decay (`margins`), C (`two stages`), or weight decay and learning rate
(`network`). Inputs are pixels, and square roots of the histograms of scene15. `rows explained` is the share of the test
samples' sum of squares that is reconstructed.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from joblib import Parallel, delayed
from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV, StratifiedKFold, train_test_split
from sklearn.svm import LinearSVC

from regbayes_paper.data import DataError, load_scene15

sys.path.insert(0, str(Path(__file__).parent.parent / "examples" / "extending"))
SETTINGS = {  # generative weight, weight decay, dropout; C is 1, since only ratios matter
    "digits": [(0.003, 1.0, 0.5), (0.003, 1.0, 0.3), (0.01, 1.0, 0.5), (0.003, 10.0, 0.5)],
    "scene15": [(0.003, 60.0, 0.5), (0.01, 60.0, 0.5), (0.01, 60.0, 0.3), (0.01, 30.0, 0.5)],
}
OF_NETWORK = {  # weight decay, dropout, learning rate
    "digits": [(1e-3, 0.0, 5e-3), (1e-3, 0.5, 5e-3), (1e-3, 0.5, 1e-2), (3e-3, 0.3, 1e-2)],
    "scene15": [(1e-3, 0.0, 2e-3), (3e-3, 0.0, 2e-3), (1e-3, 0.5, 2e-3), (1e-3, 0.5, 5e-3)],
}
DROPOUTS = [0.0, 0.5]  # dropout of the two-stage pipeline
BARS = {"digits": (0.978, 0.04), "scene15": (0.79, 0.10)}  # required accuracy, and required difference from two stages
RATE, BATCH_SIZE = 2e-3, 100


def read(name: str) -> tuple[np.ndarray, np.ndarray]:
    X, y = load_digits(return_X_y=True) if name == "digits" else load_scene15(return_X_y=True)
    X = np.asarray(X, dtype=np.float64)
    if name == "scene15":  # three histograms with fixed sums: their square roots have constant norm
        X = np.sqrt(X)
    return X, np.unique(y, return_inverse=True)[1]


def scale(name: str, X: np.ndarray, train: np.ndarray) -> np.ndarray:
    """Center columns; scale pixels jointly and other columns separately."""
    spread = X[train].std() if name == "digits" else X[train].std(axis=0) + 1e-9
    return (X - X[train].mean(axis=0)) / spread


def fit_margins(setting: tuple[float, ...], X: Any, y: Any, passes: int, seed: int) -> Callable[[Any], tuple]:
    """Return a function that predicts classes and the share of the samples explained."""
    from regbayes import MarginClassifier
    from vae_margins import make_model

    weight, decay, dropout = setting
    vae, model = make_model(X.shape[1], int(y.max()) + 1, weight=weight, decay=decay, dropout=dropout, seed=seed)
    together = MarginClassifier(
        model, multi_class="ovr", batch_size=BATCH_SIZE, learning_rate=RATE, max_iter=passes, random_state=seed
    ).fit(X, y)
    model.load(together.params_)
    vae.eval()
    return lambda rows: (together.predict(rows), vae.explained(rows))


def fit_two_stages(dropout: float, X: Any, y: Any, passes: int, seed: int) -> Callable[[Any], tuple]:
    """Fit an autoencoder without labels, then choose C of a classifier on its features."""
    from regbayes.adapters import fit
    from vae_margins import make_model

    vae, model = make_model(X.shape[1], int(y.max()) + 1, weight=1.0, decay=0.0, dropout=dropout, seed=seed)
    found = fit(model, X, None, max_iter=passes, batch_size=BATCH_SIZE, learning_rate=RATE, seed=seed).state
    model.load(found.params)
    vae.eval()
    search = GridSearchCV(LinearSVC(dual=False), {"C": [0.01, 0.1, 1.0, 10.0]}, cv=3)
    search.fit(model.encode(X, found.params), y)
    return lambda rows: (search.predict(model.encode(rows, found.params)), vae.explained(rows))


def fit_network(setting: tuple[float, ...], X: Any, y: Any, passes: int, seed: int) -> Callable[[Any], tuple]:
    import torch
    from torch import nn

    torch.manual_seed(seed)
    (decay, dropout, rate), n_classes = setting, int(y.max()) + 1
    net = nn.Sequential(
        nn.Linear(X.shape[1], 256),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(256, n_classes),
        nn.Linear(n_classes, n_classes),
    )
    rows, labels = torch.tensor(X, dtype=torch.float32), torch.tensor(y)
    adam = torch.optim.AdamW(net.parameters(), lr=rate, weight_decay=decay / rate)
    n_batches = max(round(len(X) / BATCH_SIZE), 1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(adam, passes * n_batches)
    rng = np.random.default_rng(seed)
    for _ in range(passes):
        for chosen in np.array_split(rng.permutation(len(X)), n_batches):
            adam.zero_grad()
            nn.functional.cross_entropy(net(rows[chosen]), labels[chosen]).backward()
            adam.step()
            schedule.step()
    net.eval()

    def answer(rows: np.ndarray) -> tuple[np.ndarray, float]:
        with torch.no_grad():
            return net(torch.tensor(rows, dtype=torch.float32)).argmax(1).numpy(), float("nan")

    return answer


SYSTEMS = {
    "margins": (fit_margins, SETTINGS),
    "two stages": (fit_two_stages, dict.fromkeys(BARS, DROPOUTS)),
    "network": (fit_network, OF_NETWORK),
}


def measure(name: str, X: Any, y: Any, system: str, seed: int, given: argparse.Namespace) -> dict[str, Any]:
    """Choose settings by cross-validation on the training half, refit, and score the other half."""
    import torch

    torch.set_num_threads(1)
    fit, of_sets = SYSTEMS[system]
    settings = of_sets[name]
    train, test = train_test_split(np.arange(len(y)), train_size=0.5, stratify=y, random_state=seed)
    begun, means = time.process_time(), [0.0]
    if len(settings) > 1:
        folds = list(StratifiedKFold(3, shuffle=True, random_state=seed).split(train, y[train]))[: given.folds]

        def score(setting: Any, inner: np.ndarray, held: np.ndarray) -> float:
            rows = scale(name, X, train[inner])
            answer = fit(setting, rows[train[inner]], y[train[inner]], given.passes, seed)
            return float(np.mean(answer(rows[train[held]])[0] == y[train[held]]))

        means = [float(np.mean([score(setting, *fold) for fold in folds])) for setting in settings]
    chosen = settings[int(np.argmax(means))]
    rows = scale(name, X, train)
    predicted, explained = fit(chosen, rows[train], y[train], given.passes, seed)(rows[test])
    return {
        "set": name,
        "system": system,
        "seed": seed,
        "accuracy": float(np.mean(predicted == y[test])),
        "explained": explained,
        "setting": chosen,
        "on_folds": means,
        "seconds": time.process_time() - begun,
    }


def summarize(name: str, found: list[dict[str, Any]]) -> None:
    """Print a line for each system, and whether the required values are reached."""
    means = {}
    for system in SYSTEMS:
        runs = [one for one in found if one["system"] == system]
        accuracy = np.array([one["accuracy"] for one in runs])
        means[system] = accuracy.mean()
        spread = accuracy.std(ddof=1) if len(accuracy) > 1 else float("nan")
        explained = np.mean([one["explained"] for one in runs])
        seconds = np.mean([one["seconds"] for one in runs])
        print(f"{name:8s} {system:11s} {means[system]:.4f} ± {spread:.4f}  {explained:6.2f}  {seconds:8.1f}")
    bar, ahead = BARS[name]
    lead = means["margins"] - means["two stages"]
    print(
        f"{name:8s} margins {'reach' if means['margins'] >= bar else 'do not reach'} {bar}; ahead of two stages by "
        f"{100 * lead:.1f} points, {'at least' if lead >= ahead else 'less than'} {100 * ahead:.0f}; ahead of the "
        f"network by {100 * (means['margins'] - means['network']):+.1f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", default=tuple(BARS), choices=tuple(BARS))
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--folds", type=int, default=3, help="thirds of the training half that are held out in turn")
    parser.add_argument("--passes", type=int, default=60, help="over the rows")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--output", type=Path, help="a file of JSON lines, to which runs are added that it has not yet")
    parser.add_argument("--smoke", action="store_true", help="digits, one split, few passes, to see that it runs")
    given = parser.parse_args()
    if importlib.util.find_spec("torch") is None:
        print("skipped: needs PyTorch, pip install 'regbayes[torch]'")
        return
    if given.smoke:
        given.sets, given.splits, given.folds, given.passes = ("digits",), 1, 1, 1
    print("set      system      accuracy, sd     rows explained  seconds")
    for name in given.sets:
        try:
            X, y = read(name)
        except DataError as error:
            print(f"{name:8s} skipped: {error}")
            continue
        lines = given.output.read_text().splitlines() if given.output and given.output.exists() else []
        found = [one for one in map(json.loads, lines) if one["set"] == name]
        known = {(one["system"], one["seed"]) for one in found}
        missing = [run for run in itertools.product(SYSTEMS, range(given.splits)) if run not in known]
        runs = Parallel(given.jobs, return_as="generator_unordered")
        for one in runs(delayed(measure)(name, X, y, system, seed, given) for system, seed in missing):
            found.append(one)
            if given.output:
                with given.output.open("a") as file:
                    file.write(json.dumps(one) + "\n")
        summarize(name, found)


if __name__ == "__main__":
    main()
