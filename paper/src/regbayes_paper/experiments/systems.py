"""The systems: all rows of the paper's tables, under their names there, and additional methods."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from sklearn.dummy import DummyClassifier
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, LinearSVC

from regbayes import IBPFactorAnalysis, ILSVMClassifier, MultiTaskILSVMClassifier, MultiTaskILSVMRegressor
from regbayes_paper import baselines
from regbayes_paper.experiments.peers import TaskDeviationRidge
from regbayes_paper.experiments.protocol import PEERS, Context, System, grid
from regbayes_paper.printed_ilsvm import PrintedILSVMClassifier
from regbayes_paper.printed_mt_ilsvm import PrintedMTILSVMClassifier

LINEAR_CS = (0.001, 0.01, 0.1, 1.0)
HARMONIUM_SIZES = (20, 40)  # numbers of hidden units for cross-validation; the paper has 40


def _plain(cls: Callable[..., Any]) -> Callable[..., Any]:
    """Return a factory of estimators without truncation level and random state."""
    return lambda _, **settings: cls(**settings)


def _seeded(cls: Callable[..., Any]) -> Callable[..., Any]:
    return lambda context, **settings: cls(random_state=context.seed, **settings)


def _sized(cls: Callable[..., Any], **fixed: Any) -> Callable[..., Any]:
    return lambda context, **settings: cls(context.n_components, random_state=context.seed, **fixed, **settings)


def _scaled(model: Any, scale: bool = True) -> Any:
    return make_pipeline(StandardScaler(), model) if scale else model


def _linear_svc(context: Context, C: float, scale: bool = True) -> Any:
    return _scaled(LinearSVC(C=C, max_iter=5000, random_state=context.seed), scale)


def _rbf_svm(context: Context, C: float, gamma: float) -> Any:
    """Make an RBF SVM on standardized inputs; gamma is divided by the number of inputs."""
    return _scaled(SVC(C=C, gamma=gamma / context.n_inputs))


def _hinge_as_given(context: Context, C: float) -> Any:
    return LinearSVC(C=C, loss="hinge", fit_intercept=False, max_iter=5000, random_state=context.seed)


def _per_label(make: Callable[..., Any]) -> Callable[..., Any]:
    return lambda context, **settings: OneVsRestClassifier(make(context, **settings))


fixed = partial(System, random=False)
peer = partial(fixed, group=PEERS)

# --- Several classes (Table 1, Figures 3 to 6)


def _ibp_svm(context: Context, C: float, **settings: Any) -> Any:
    features = IBPFactorAnalysis(context.n_components, slab=None, random_state=context.seed, **settings)
    return make_pipeline(features, StandardScaler(), LinearSVC(C=C, max_iter=5000, random_state=context.seed))


def _efh_svm(context: Context, C: float, n_components: int) -> Any:
    classifier = LinearSVC(C=C, max_iter=5000, random_state=context.seed)
    features = baselines.ExponentialFamilyHarmonium(n_components)
    return make_pipeline(StandardScaler(), features, StandardScaler(), classifier)


def _mmh(context: Context, **settings: Any) -> Any:
    """Make an MMH with the objective of Chen, Zhu and Xing (2010): likelihood weight 1 and hinge loss."""
    model = baselines.MaxMarginHarmoniumClassifier(
        generative_weight=1.0, loss="hinge", random_state=context.seed, **settings
    )
    return _scaled(model)


MULTIWAY: tuple[System, ...] = (
    fixed(
        "EFH+SVM",
        _efh_svm,
        grid(n_components=HARMONIUM_SIZES, C=(0.01, 0.1, 1.0)),
        grid(n_components=(10, 20), C=(0.1,)),
    ),
    fixed(
        "MMH",
        _mmh,
        grid(n_components=HARMONIUM_SIZES, C=(0.003, 0.01)),
        grid(n_components=(10,), C=(0.01,), max_iter=(20,)),
    ),
    fixed(
        "IBP+SVM",
        _ibp_svm,
        grid(temperature=(0.003, 0.01), transform_temperature=(0.3, 1.0), C=(0.1, 1.0)),
        grid(transform_temperature=(0.3, 1.0), C=(0.1,)),
    ),
    fixed(
        "iLSVM",
        _sized(ILSVMClassifier),
        grid(C=(0.3, 1.0), temperature=(0.1, 0.2), alpha=(1.0, 5.0)),
        grid(C=(0.3, 1.0)),
    ),
    System(
        "iLSVM, posterior margins",
        _sized(ILSVMClassifier, margins="posterior"),
        grid(C=(0.3, 1.0), temperature=(0.02, 0.1), max_iter=(40,)),
        grid(C=(0.3,), temperature=(0.1,), max_iter=(10,)),
    ),
    System("iLSVM, as printed", _sized(PrintedILSVMClassifier), grid(C=(1.0, 10.0, 100.0)), grid(C=(10.0,))),
    System(
        "iLSVM, as printed, decaying start",
        _sized(PrintedILSVMClassifier, start="decaying"),
        grid(C=(1.0, 10.0, 100.0)),
        grid(C=(10.0,)),
    ),
    peer("majority class", lambda _: DummyClassifier(strategy="most_frequent")),
    peer("LinearSVC", _linear_svc, grid(C=LINEAR_CS, scale=(False, True)), grid(C=(0.01, 0.1))),
    peer("RBF-SVM", _rbf_svm, grid(C=(1.0, 3.0, 10.0), gamma=(0.3, 1.0, 3.0)), grid(C=(3.0,), gamma=(1.0,))),
)

# --- Labels of many tasks (Table 2)

MT_CS, MT_QUICK = (0.003, 0.01, 0.03, 0.1), (0.01, 0.03)
_mt_labels = _sized(MultiTaskILSVMClassifier)
_clusters, _subspace = _seeded(baselines.DirichletProcessTaskClassifier), _sized(baselines.PredictorSubspaceClassifier)

MULTILABEL: tuple[System, ...] = (
    fixed(
        "YaXue",
        _clusters,
        grid(alpha=(0.1, 1.0, 10.0), kernel_width=(0.5, 1.0, 2.0)),
        grid(kernel_width=(1.0,), max_iter=(10,)),
    ),
    fixed("YaXue, plain sticks", _clusters, grid(alpha=(0.1, 1.0, 10.0)), grid(max_iter=(10,))),
    fixed("Piyushrai-1", _subspace, grid(alpha=(1.0, 5.0)), grid(max_iter=(10,))),
    fixed("Piyushrai-2", _subspace, grid(alpha=(1.0, 5.0), augmented=(True,)), grid(augmented=(True,), max_iter=(10,))),
    fixed("STL", _plain(baselines.SingleTaskClassifier), grid(C=LINEAR_CS), grid(C=(0.01,))),
    fixed(
        "MTRL",
        _plain(baselines.MTRLClassifier),
        grid(relation_alpha=(30.0, 100.0, 300.0, 1000.0)),
        grid(relation_alpha=(100.0,)),
    ),
    System("MT-IBP+SVM", _mt_labels, grid(C=MT_CS, margins=("decoupled",)), grid(C=MT_QUICK, margins=("decoupled",))),
    System("MT-iLSVM", _mt_labels, grid(C=MT_CS), grid(C=MT_QUICK)),
    System("MT-iLSVM^f", _mt_labels, grid(C=MT_CS, include_inputs=(True,)), grid(C=MT_QUICK, include_inputs=(True,))),
    System("MT-iLSVM, as printed", _sized(PrintedMTILSVMClassifier), grid(C=(0.01, 0.1, 1.0)), grid(C=(0.1,))),
    peer("majority label", lambda _: DummyClassifier(strategy="most_frequent")),
    peer(
        "ASO",
        _plain(baselines.ASOClassifier),
        grid(n_components=(1,), alpha=(300.0, 1000.0, 3000.0), tol=(1e-4,)),
        grid(n_components=(1,), alpha=(1000.0,), tol=(1e-3,)),
    ),
    peer("LinearSVC", _per_label(_linear_svc), grid(C=LINEAR_CS), grid(C=(0.01,))),
    peer("hinge, no intercept, inputs as given", _per_label(_hinge_as_given), grid(C=(0.1, 1.0, 10.0)), grid(C=(1.0,))),
    peer("RBF-SVM", _per_label(_rbf_svm), grid(C=(1.0, 3.0, 10.0), gamma=(0.3, 1.0)), grid(C=(3.0,), gamma=(1.0,))),
)

# --- Regression in many tasks (Figures 7 to 9)

MT_SHARING = (1.0, 5.0)
REFERENCE = "ridge + task deviations"
_mt_numbers = _sized(MultiTaskILSVMRegressor)


RAGGED: tuple[System, ...] = (
    fixed(
        "STL", _plain(baselines.SingleTaskRegressor), grid(alpha=(3.0, 10.0, 30.0, 100.0)), grid(alpha=(10.0, 100.0))
    ),
    fixed("BMTL", _plain(baselines.BMTLRegressor)),
    System(
        "MTGP",
        _seeded(baselines.MTGPRegressor),
        grid(rank=(2,)),
        grid(rank=(1,), n_inducing=(20,), max_iter=(10,)),
        needs="torch",
    ),
    fixed(
        "MTRL",
        _plain(baselines.MTRLRegressor),
        grid(relation_alpha=(400.0, 700.0, 1000.0, 1500.0), intercept_scaling=(1.0, 3.0)),
        grid(relation_alpha=(300.0,)),
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
        grid(C=(0.01,), margins=("decoupled",), include_inputs=(True,)),
    ),
    System(
        "MT-iLSVM^f",
        _mt_numbers,
        grid(C=MT_CS, task_sharing=MT_SHARING, include_inputs=(True,)),
        grid(C=(0.01,), include_inputs=(True,)),
    ),
    System("MT-iLSVM, rho = 0", _mt_numbers, grid(C=MT_CS, task_sharing=(0.0,)), grid(C=(0.01,), task_sharing=(0.0,))),
    peer(
        REFERENCE,
        _plain(TaskDeviationRidge),
        grid(alpha=(10.0,), slope_alpha=(100.0, 300.0, 1000.0), intercept_alpha=(3.0, 10.0, 30.0)),
        grid(slope_alpha=(100.0, 300.0), intercept_alpha=(10.0,)),
    ),
    peer(
        "ASO",
        _plain(baselines.ASORegressor),
        grid(n_components=(1, 2), alpha=(100.0, 300.0, 1000.0, 3000.0)),
        grid(n_components=(1,), alpha=(100.0,)),
    ),
)
