"""``regbayes fit --model medlda`` without the command line: from documents to a model file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regbayes._types import Integers
from regbayes.cli.errors import BadDataError, UserError, counted, listed
from regbayes.cli.modelfile import ModelFile
from regbayes.cli.output import Output
from regbayes.cli.search import FitSettings, Problem, fit_model
from regbayes.cli.tables import Table
from regbayes.cli.targets import TargetSpec, choose_targets, decide, shown_label
from regbayes.cli.training import Wishes, collect_report, facts_of, rows_with_target
from regbayes.cli.words import WordWishes, learn_words, shown_documents

__all__ = ["TopicProblem", "train_documents"]

FEWEST_TOPICS = 10
C_GRIDS: dict[str, tuple[float, ...]] = {"classifier": (0.3, 1.0), "multilabel": (0.3, 1.0), "regressor": (1.0, 3.0)}


@dataclass(frozen=True)
class TopicProblem(Problem):
    """A problem for MedLDA: counts of words, sparse, and classes, labels or numbers."""

    @property
    def single(self) -> bool:
        """Whether it is one question of classes."""
        return self.kind == "classifier"

    def estimator(self) -> Any:
        """Return the estimator for one setting."""
        from regbayes import MedLDAClassifier, MedLDARegressor

        s = self.settings
        whole = self.X.dtype.kind in "iu"
        wanted = {
            "n_components": s.n_components[0] if s.n_components else self._topics()[1],
            "C": s.C[0] if s.C else None,
            "inference": s.inference if whole or s.inference else "variational",
            "max_iter": s.max_iter,
            "class_weight": "balanced" if s.balanced else None,
        }
        options: dict[str, Any] = {name: value for name, value in wanted.items() if value is not None}
        return (MedLDARegressor if self.kind == "regressor" else MedLDAClassifier)(random_state=s.seed, **options)

    def grid(self) -> dict[str, tuple[Any, ...]]:
        """Return the settings to choose among: the user's values, or numbers of topics and prices that do well."""
        s = self.settings
        return {"n_components": s.n_components or self._topics(), "C": s.C or C_GRIDS[self.kind]}

    def _topics(self) -> tuple[int, int, int]:
        """Return numbers of topics to try: not fewer than classes, because each has something of its own."""
        answers = len(np.unique(self.y)) if self.single else np.atleast_2d(self.y.T).shape[0]
        least = max(FEWEST_TOPICS, answers)
        return least, 2 * least, 4 * least

    def search(self, folds: int, scorer: Any) -> Any:
        """Return the estimator that chooses among the settings."""
        from sklearn.model_selection import KFold, StratifiedKFold

        kind = StratifiedKFold if self.single else KFold
        return TopicSearch(self, kind(folds, shuffle=True, random_state=self.settings.seed), scorer)

    def possible_folds(self) -> int:
        """Return how many folds the documents allow: two classes at least must be in every training part."""
        if not self.single:
            return min(self.settings.folds, len(self.y))
        sizes = np.sort(np.unique(self.y, return_counts=True)[1])
        return min(self.settings.folds, int(sizes[-1])) if sizes[-2] > 1 else 1


class TopicSearch:
    """Tries every setting on every fold, and fits the best to all documents."""

    def __init__(self, problem: TopicProblem, splitter: Any, scorer: Any) -> None:
        self.problem = problem
        self.splitter = splitter
        self.scorer = scorer
        self.n_jobs = problem.settings.jobs
        self.verbose = 0

    def fit(self, X: Any, y: NDArray[Any]) -> TopicSearch:
        """Search and fit; Ctrl-C ends it with KeyboardInterrupt, also inside a fit of the search."""
        import warnings

        from regbayes.estimators._search import Samples, candidate_paths, score_paths

        grid = {name: (name, values) for name, values in self.problem.grid().items()}
        paths = [[candidate] for path in candidate_paths(grid) for candidate in path]  # each fit from its own start
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The least populated class")  # said already
            folds = list(self.splitter.split(X, y))
        base = self.problem.estimator()
        scores = score_paths(self, base, Samples(X, y), folds, paths, self.scorer)
        best = paths[int(np.argmax(scores.mean(axis=0)))][0]
        self.best_estimator_ = base.set_params(**best, n_jobs=self.n_jobs).fit(X, y)
        self.best_estimator_.set_params(n_jobs=None)
        return self


def train_documents(
    table: Table, wishes: Wishes, words: WordWishes, settings: FitSettings, output: Output
) -> ModelFile:
    """Fit a topic model to documents, and gather what its page shows.

    Raises
    ------
    UserError
        If the documents or the wishes make no sense; the message says which.
    StoppedError
        If the user stopped it before there was anything to keep.
    """
    for note in table.notes:
        output.warn(note)
    spec, why = decide(table, choose_targets(table, wishes.targets), wishes.kind, None)
    output.say(f"MedLDA, {why}")
    _check_wishes(spec, words, settings.balanced)
    table, y, names = rows_with_target(table, spec, wishes, output, needs_all=True)
    if spec.kind == "multilabel":
        y = _indicators(y, spec)
    if table.first is not None:
        output.say(f"the columns of {table.source} are counted from {table.first}")
    schema, X = learn_words(table, words, output.say, output.warn)
    full = np.diff(X.indptr) > 0
    if not full.all():
        output.say(f"{int((~full).sum())} of {len(full)} documents have no words and are left out")
        table, y, X, names = table.take(full), y[full], X[full], np.array(names, dtype=object)[full].tolist()
    _check_classes(y, spec, settings.folds if settings.cross_validate else 0, output)
    output.say(f"{counted(X.shape[0], 'document')} with {X.sum():.0f} words, {X.shape[1]} different ones")
    if X.dtype.kind == "f" and settings.inference is None:
        output.say("counts are not whole, so topics are inferred by mean field (--inference variational)")
    problem = TopicProblem(X, y, spec.kind, None, settings)
    fitted = fit_model(problem, output)
    shown = {
        "kind": "text",
        "feature_names": schema.encoded_names,
        "row_names": names,
        "texts": shown_documents(table, schema, X),
        "data_name": "training documents",
    }
    report = collect_report(fitted, problem, spec, shown, output)
    return ModelFile(fitted.estimator, schema, spec, fitted.search, report, facts_of(problem, fitted, spec, why, table))


def _check_wishes(spec: TargetSpec, words: WordWishes, balanced: bool) -> None:
    if balanced and spec.kind != "classifier":
        raise UserError("--balanced is about the classes of one target")
    both = [name for name in words.columns if name in spec.names]
    if both:
        raise UserError(f"--text and --target name the same column, {both[0]!r}")


def _indicators(y: NDArray[Any], spec: TargetSpec) -> Integers:
    """Return labels as zeros and ones."""
    values = {shown_label(value) for value in y.ravel().tolist()}
    if y.dtype == object or not np.all((y == 0) | (y == 1)):
        raise BadDataError(
            f"several targets of documents must be 0 or 1 each; {listed(spec.names)} hold {listed(sorted(values))}"
        )
    return np.asarray(y, dtype=np.int64)


def _check_classes(y: NDArray[Any], spec: TargetSpec, folds: int, output: Output) -> None:
    """Say which classes are too small to be judged; refuse a single class."""
    if spec.kind == "regressor":
        if len(y) < 2:
            raise BadDataError("only one document is left; at least 2 are needed, and many more to learn")
        return
    if spec.kind == "multilabel":
        return
    labels, counts = np.unique(y, return_counts=True)
    if len(labels) < 2:
        raise BadDataError(f"all documents with words are of one class, {labels.tolist()[0]!r}: nothing to learn")
    rare = [shown_label(label) for label in labels[counts < folds].tolist()]
    if rare:
        few = int(counts.min())
        output.warn(
            f"classes with fewer documents than folds ({listed(rare, 4)}; the smallest has {few}): what "
            "cross-validation says of them is worth little"
        )
