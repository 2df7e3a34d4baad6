"""The registry of systems: every row of the paper's tables by its name there, and the peers a user would pick instead.

A system is one entry: its name, how to make the estimator, and the settings among which cross-validation chooses. An
entry without ``make`` is a row of the paper that the package cannot run yet; it is printed with the paper's numbers and
says so. To add a system, write its entry.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sklearn.decomposition import PCA
from sklearn.dummy import DummyClassifier, DummyRegressor
from sklearn.ensemble import ExtraTreesClassifier, RandomForestClassifier, RandomForestRegressor
from sklearn.kernel_approximation import Nystroem
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, LinearSVC

from regbayes import IBPFactorAnalysis, ILSVMClassifier, MultiTaskILSVMClassifier, MultiTaskILSVMRegressor
from regbayes_paper.baselines import (
    ASOClassifier,
    ASORegressor,
    BMTLRegressor,
    DirichletProcessTaskClassifier,
    MTGPRegressor,
    MTRLClassifier,
    MTRLRegressor,
    PredictorSubspaceClassifier,
    SingleTaskClassifier,
    SingleTaskRegressor,
)
from regbayes_paper.experiments.peers import RangeScaled, TaskAdapter, TaskDeviationRidge
from regbayes_paper.experiments.registry import PEERS, Context, System, found, grid


def _scaled(model: Any, scale: bool = True) -> Any:
    return make_pipeline(StandardScaler(), model) if scale else model


# Multi-way classification (Table 1, Figures 3 to 6).


def _ilsvm(context: Context, **settings: Any) -> Any:
    return ILSVMClassifier(context.n_components, random_state=context.seed, **settings)


def _ibp_svm(context: Context, C: float, **settings: Any) -> Any:
    features = IBPFactorAnalysis(context.n_components, slab=None, random_state=context.seed, **settings)
    return make_pipeline(features, StandardScaler(), LinearSVC(C=C, max_iter=5000, random_state=context.seed))


EFH = "regbayes_paper.baselines.ExponentialFamilyHarmonium"
MMH = "regbayes_paper.baselines.MaxMarginHarmoniumClassifier"


def _efh_svm(context: Context, C: float, **settings: Any) -> Any:
    features = found(EFH)(**settings)
    classifier = LinearSVC(C=C, max_iter=5000, random_state=context.seed)
    return make_pipeline(StandardScaler(), features, StandardScaler(), classifier)


def _mmh(context: Context, C: float, share: float | None = None, **settings: Any) -> Any:
    """A share is that of the generative part, in units of C."""
    weight = {} if share is None else {"generative_weight": share * C}
    return _scaled(found(MMH)(C=C, random_state=context.seed, **weight, **settings))


HARMONIUM_SIZES = (10, 20, 40, 80)  # a finite model has no truncation to be generous with
MMH_ORIGINAL = {"generative_weight": (1.0,), "loss": ("hinge",), "noise_variance": ("residual",)}
"""The objective of Chen, Zhu and Xing (2010): likelihood and margins as they are, the noise the likeliest."""
MMH_SHARES = {"share": (0.01, 0.1)}
LINEAR_CS = (0.001, 0.01, 0.1, 1.0)


def _linear_svc(context: Context, C: float, scale: bool = True) -> Any:
    return _scaled(LinearSVC(C=C, max_iter=5000, random_state=context.seed), scale)


def _logistic(context: Context, C: float, scale: bool = True) -> Any:
    return _scaled(LogisticRegression(C=C, max_iter=2000, random_state=context.seed), scale)


def _rbf_svm(context: Context, C: float, gamma: float | str) -> Any:
    """A number is for standardised inputs, per input; "scale" takes them as they are, with their own variance."""
    if gamma == "scale":
        return SVC(C=C, gamma=gamma, random_state=context.seed)
    return _scaled(SVC(C=C, gamma=float(gamma) / context.n_inputs, random_state=context.seed))


def _forest(context: Context, min_samples_leaf: int, n_estimators: int = 200) -> Any:
    return RandomForestClassifier(n_estimators, min_samples_leaf=min_samples_leaf, random_state=context.seed)


MULTIWAY: tuple[System, ...] = (
    System(
        "EFH+SVM",
        _efh_svm,
        grid(n_components=HARMONIUM_SIZES, C=(0.01, 0.1, 1.0)),
        grid(n_components=(10, 20), C=(0.1,)),
        needs=EFH,
        random=False,
    ),
    System(
        "MMH",
        _mmh,
        grid(n_components=HARMONIUM_SIZES, C=(0.003, 0.01), **MMH_SHARES)
        + grid(n_components=HARMONIUM_SIZES, C=(0.003, 0.01), **MMH_ORIGINAL),
        grid(n_components=(10,), C=(0.01,), max_iter=(20,)),
        needs=MMH,
        random=False,
    ),
    System(
        "IBP+SVM",
        _ibp_svm,
        # Learned cold, inferred warm.
        grid(temperature=(0.003, 0.01), transform_temperature=(0.3, 1.0), C=(0.1, 1.0)),
        grid(transform_temperature=(0.3, 1.0), C=(0.1,)),
    ),
    System("iLSVM", _ilsvm, grid(C=(0.3, 1.0), temperature=(0.1, 0.2), alpha=(1.0, 5.0)), grid(C=(0.3, 1.0))),
    System(
        "iLSVM, printed updates",
        _ilsvm,
        grid(C=(0.3, 1.0), temperature=(0.02, 0.1), alpha=(1.0, 5.0), margins=("posterior",), max_iter=(40,)),
        grid(C=(0.3,), temperature=(0.02, 0.1), margins=("posterior",), max_iter=(20,)),
    ),
    System("majority", lambda _: DummyClassifier(strategy="most_frequent"), group=PEERS, random=False),
    System("LinearSVC", _linear_svc, grid(C=LINEAR_CS, scale=(False, True)), grid(C=(0.01, 0.1)), PEERS, random=False),
    System(
        "logistic regression",
        _logistic,
        grid(C=LINEAR_CS, scale=(False, True)),
        grid(C=(0.01, 0.1)),
        PEERS,
        random=False,
    ),
    System(
        "RBF-SVM",
        _rbf_svm,
        grid(C=(1.0, 3.0, 10.0), gamma=(0.3, 1.0, 3.0, "scale")),
        grid(C=(3.0,), gamma=(0.3, 1.0, "scale")),
        PEERS,
        random=False,
    ),
    System(
        "random forest",
        _forest,
        grid(min_samples_leaf=(1, 2, 5)),
        grid(min_samples_leaf=(1,), n_estimators=(50,)),
        PEERS,
    ),
)


# Labels of many tasks (Table 2).


def _mt_labels(context: Context, **settings: Any) -> Any:
    return MultiTaskILSVMClassifier(context.n_components, random_state=context.seed, **settings)


MT_CS = (0.003, 0.01, 0.03, 0.1)
MT_QUICK = (0.01, 0.03)


def _mt_behind_kernels(
    context: Context, width: float, n_components: int, n_landmarks: int = 1500, **settings: Any
) -> Any:
    """The map has a scale of its own, so its columns are not scaled again; a landmark for every training row, if few.

    It is fitted inside the folds: a landmark is like itself, and has larger features than a new row.
    """
    kernel = Nystroem(gamma=width / context.n_inputs, n_components=n_landmarks, random_state=0)
    model = MultiTaskILSVMClassifier(
        n_components, scale_inputs=False, include_inputs=True, random_state=context.seed, **settings
    )
    return make_pipeline(StandardScaler(), kernel, model)


def _predictor_subspace(context: Context, **settings: Any) -> Any:
    return PredictorSubspaceClassifier(context.n_components, random_state=context.seed, **settings)


def _task_clusters(context: Context, **settings: Any) -> Any:
    return DirichletProcessTaskClassifier(random_state=context.seed, **settings)


def _per_label(model: Callable[..., Any]) -> Callable[..., Any]:
    return lambda context, **settings: OneVsRestClassifier(model(context, **settings))


def _pca_svc(context: Context, share: float, C: float) -> Any:
    """As many components as have that share of the variance of the inputs."""
    return make_pipeline(StandardScaler(), PCA(share), LinearSVC(C=C, max_iter=5000, random_state=context.seed))


def _extra_trees(context: Context, min_samples_leaf: int, max_features: float, n_estimators: int = 300) -> Any:
    return ExtraTreesClassifier(
        n_estimators, min_samples_leaf=min_samples_leaf, max_features=max_features, random_state=context.seed
    )


MULTILABEL: tuple[System, ...] = (
    System(
        "YaXue",
        _task_clusters,
        grid(alpha=(0.1, 1.0, 10.0), kernel_width=(0.5, 1.0, 2.0)),
        grid(kernel_width=(1.0,), max_iter=(10,)),
    ),
    System("YaXue, plain sticks", _task_clusters, grid(alpha=(0.1, 1.0, 10.0)), grid(max_iter=(10,))),
    System("Piyushrai-1", _predictor_subspace, grid(alpha=(1.0, 5.0)), grid(max_iter=(10,))),
    System(
        "Piyushrai-2",
        _predictor_subspace,
        grid(alpha=(1.0, 5.0), augmented=(True,)),
        grid(augmented=(True,), max_iter=(10,)),
    ),
    System(
        "STL", lambda _, **settings: SingleTaskClassifier(**settings), grid(C=LINEAR_CS), grid(C=(0.01,)), random=False
    ),
    System(
        "MTRL",
        lambda _, **settings: MTRLClassifier(**settings),
        grid(relation_alpha=(30.0, 100.0, 300.0, 1000.0)),
        grid(relation_alpha=(100.0,)),
        random=False,
    ),
    System(
        "MT-IBP+SVM",
        _mt_labels,
        grid(C=MT_CS, margins=("decoupled",)),
        grid(C=MT_QUICK, margins=("decoupled",)),
    ),
    System("MT-iLSVM", _mt_labels, grid(C=MT_CS), grid(C=MT_QUICK)),
    System(
        "MT-iLSVM^f",
        _mt_labels,
        grid(C=MT_CS, include_inputs=(True,)),
        grid(C=MT_QUICK, include_inputs=(True,)),
    ),
    System(
        "MT-iLSVM, printed updates",
        _mt_labels,
        grid(C=MT_CS, margins=("posterior",)),
        grid(C=(0.01,), margins=("posterior",), max_iter=(20,)),
    ),
    System(
        "MT-iLSVM^f behind an RBF map",
        _mt_behind_kernels,
        grid(width=(1.0, 2.0), n_components=(20,), C=(0.01, 0.03, 0.1), temperature=(0.01, 0.03)),
        grid(width=(1.0,), n_components=(10,), n_landmarks=(100,), C=(0.03,)),
    ),
    System("majority", lambda _: DummyClassifier(strategy="most_frequent"), group=PEERS, random=False),
    System(
        "ASO",
        lambda _, **settings: ASOClassifier(**settings),
        grid(n_components=(1,), alpha=(300.0, 1000.0, 3000.0), tol=(1e-4,)),
        grid(n_components=(1,), alpha=(1000.0,), tol=(1e-3,)),
        PEERS,
        random=False,
    ),
    System("LinearSVC", _per_label(_linear_svc), grid(C=LINEAR_CS), grid(C=(0.01,)), PEERS, random=False),
    System("logistic regression", _per_label(_logistic), grid(C=LINEAR_CS), grid(C=(0.01,)), PEERS, random=False),
    System(
        "RBF-SVM",
        _per_label(_rbf_svm),
        grid(C=(1.0, 3.0, 10.0), gamma=(0.3, 1.0, 3.0)),
        grid(C=(3.0,), gamma=(1.0,)),
        PEERS,
        random=False,
    ),
    System(
        "random forest",
        _forest,
        grid(min_samples_leaf=(1, 2, 5)),
        grid(min_samples_leaf=(2,), n_estimators=(50,)),
        PEERS,
    ),
    System(
        "extra trees",
        _extra_trees,
        grid(min_samples_leaf=(1, 3), max_features=(0.1, 0.3)),
        grid(min_samples_leaf=(3,), max_features=(0.3,), n_estimators=(50,)),
        PEERS,
    ),
    System(
        "PCA + LinearSVC",
        _per_label(_pca_svc),
        grid(share=(0.8, 0.9, 0.95), C=(0.001, 0.003, 0.01, 0.03, 0.1)),
        grid(share=(0.9,), C=(0.01,)),
        PEERS,
        random=False,
    ),
)


# A number in each of many groups (Figures 7 to 9).


def _mt_numbers(context: Context, **settings: Any) -> Any:
    return MultiTaskILSVMRegressor(context.n_components, random_state=context.seed, **settings)


MT_SHARING = (1.0, 5.0)
RIDGES = (1.0, 10.0, 100.0)


def _relations(_: Context, ranged: bool = False, **settings: Any) -> Any:
    model = MTRLRegressor(scale_inputs=not ranged, **settings)
    return RangeScaled(model) if ranged else model


def _ridge(how: Any) -> Callable[..., Any]:
    return lambda _, alpha: TaskAdapter(Ridge(alpha), how)


def _forest_with_tasks(context: Context, min_samples_leaf: int, n_estimators: int = 100) -> Any:
    forest = RandomForestRegressor(
        n_estimators, min_samples_leaf=min_samples_leaf, max_features=1 / 3, random_state=context.seed
    )
    return TaskAdapter(forest, "columns")


def _kernel_ridge(context: Context, alpha: float, gamma: float, n_centres: int = 500) -> Any:
    kernel = Nystroem(gamma=gamma / context.n_inputs, n_components=n_centres, random_state=context.seed)
    return TaskAdapter(make_pipeline(kernel, Ridge(alpha)), "columns")


RAGGED: tuple[System, ...] = (
    System(
        "STL",
        lambda _, **settings: SingleTaskRegressor(**settings),
        grid(alpha=(3.0, 10.0, 30.0, 100.0)),
        grid(alpha=(10.0, 100.0)),
        random=False,
    ),
    System(
        "BMTL",
        lambda context, **settings: BMTLRegressor(random_state=context.seed, **settings),
        grid(n_clusters=(1, 2)),
        grid(n_clusters=(1,)),
    ),
    System(
        "MTGP",
        lambda context, **settings: MTGPRegressor(random_state=context.seed, **settings),
        grid(rank=(2,), n_inducing=(60,)),
        grid(rank=(1,), n_inducing=(20,), max_iter=(10,)),
        extra=("torch", "gp"),
    ),
    System(
        "MTRL",
        _relations,
        # Values around those that are best in training folds.
        grid(relation_alpha=(400.0, 700.0, 1000.0, 1500.0), intercept_scaling=(1.0, 3.0))
        + grid(ranged=(True,), relation_alpha=(50.0, 75.0, 100.0, 150.0, 220.0), intercept_scaling=(0.4, 1.0)),
        grid(relation_alpha=(300.0,)) + grid(ranged=(True,), relation_alpha=(50.0,)),
        random=False,
    ),
    System(
        "MT-IBP+SVM",
        _mt_numbers,
        grid(C=MT_CS, task_sharing=MT_SHARING, margins=("decoupled",)),
        grid(C=MT_QUICK, margins=("decoupled",)),
    ),
    System("MT-iLSVM", _mt_numbers, grid(C=MT_CS, task_sharing=MT_SHARING), grid(C=MT_QUICK)),
    System(
        "MT-IBP+SVM^f",
        _mt_numbers,
        grid(C=MT_CS, task_sharing=MT_SHARING, margins=("decoupled",), include_inputs=(True,)),
        grid(C=MT_QUICK, margins=("decoupled",), include_inputs=(True,)),
    ),
    System(
        "MT-iLSVM^f",
        _mt_numbers,
        grid(C=MT_CS, task_sharing=MT_SHARING, include_inputs=(True,)),
        grid(C=MT_QUICK, include_inputs=(True,)),
    ),
    System(
        "MT-iLSVM, nothing but features shared",
        _mt_numbers,
        grid(C=MT_CS, task_sharing=(0.0,)),
        grid(C=MT_QUICK, task_sharing=(0.0,)),
    ),
    System("task mean", lambda _: TaskAdapter(DummyRegressor(), "separate"), group=PEERS, random=False),
    System("one ridge for all", _ridge("ignore"), grid(alpha=RIDGES), grid(alpha=(10.0,)), PEERS, random=False),
    System("ridge + task columns", _ridge("columns"), grid(alpha=RIDGES), grid(alpha=(10.0,)), PEERS, random=False),
    System(
        "ridge + task deviations",
        lambda _, **settings: TaskDeviationRidge(**settings),
        grid(alpha=(10.0,), slope_alpha=(100.0, 300.0, 1000.0), intercept_alpha=(3.0, 10.0, 30.0)),
        grid(slope_alpha=(100.0, 300.0), intercept_alpha=(10.0,)),
        PEERS,
        random=False,
    ),
    System(
        "ASO",
        lambda _, **settings: ASORegressor(**settings),
        grid(n_components=(1, 2), alpha=(100.0, 300.0, 1000.0, 3000.0)),
        grid(n_components=(1,), alpha=(30.0, 100.0)),
        PEERS,
        random=False,
    ),
    System(
        "RBF ridge + task columns",
        _kernel_ridge,
        grid(alpha=(0.1, 1.0), gamma=(0.03, 0.1, 0.3)),
        grid(alpha=(1.0,), gamma=(0.1,), n_centres=(100,)),
        PEERS,
    ),
    System(
        "random forest + task columns",
        _forest_with_tasks,
        grid(min_samples_leaf=(3, 10)),
        grid(min_samples_leaf=(5,), n_estimators=(30,)),
        PEERS,
    ),
)
