"""From an estimator's parameters to a mean-field fit, and back to fitted attributes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from regbayes.estimators._common import generator, n_threads, one_blas_thread
from regbayes.estimators._reporting import FitReporter, warn_of_status
from regbayes.estimators._topics import Counts, as_documents, iteration_limit, weight_variance
from regbayes.models.medlda import variational
from regbayes.models.medlda.margins import Supervision
from regbayes.models.medlda.meanfield import MeanField

# Chosen on late posts of a training part of 20 Newsgroups (classes) and on parts of one training half of the movie
# reviews (numbers); docs/notes/medlda.md.
DOC_TOPIC_PRIOR = {"consistent": 1.0, "posterior": 0.1}
FIRST_RESPONSE_VARIANCE = 1.0  # that of the targets: topics explain nothing yet


def run_variational(estimator: Any, counts: Counts, supervision: Supervision | None, data: dict[str, Any]) -> None:
    """Fit by mean field and set the fitted attributes.

    Parameters
    ----------
    estimator : estimator
        Its method ``_attributes`` turns `MeanField` into fitted attributes.
    counts : sparse matrix
    supervision : Supervision or None
        In the order of the rows; None leaves plain latent Dirichlet allocation.
    data : dict
        What callbacks may ask for.
    """
    settings = _settings(estimator, supervision)

    def attributes(finish: Callable[[], MeanField]) -> dict[str, Any]:
        return estimator._attributes(finish())

    reporter = FitReporter(estimator, settings.max_iter, data, attributes, estimator.verbose)
    with one_blas_thread(), reporter:
        result = variational.fit(
            as_documents(counts),
            counts.shape[1],
            supervision,
            settings,
            start=_earlier(estimator, counts.shape[1]),
            callbacks=[reporter],
        )
        for name, value in estimator._attributes(result.state).items():
            setattr(estimator, name, value)
        estimator.trace_, estimator.n_iter_ = result.trace, result.n_iter
    warn_of_status(estimator, result)


def _settings(estimator: Any, supervision: Supervision | None) -> variational.Settings:
    """Turn parameters into numbers."""
    scheme = "posterior" if supervision is None else estimator.margins
    alpha, beta = estimator.doc_topic_prior, estimator.topic_word_prior
    estimate = alpha == "estimate"
    if estimate and scheme == "consistent":
        raise ValueError(
            'doc_topic_prior="estimate" needs margins="posterior": with consistent margins the prior is a part of how '
            "documents are inferred, and must be a number"
        )
    variance = getattr(estimator, "response_variance", None)  # classes have none
    if variance is not None and scheme == "consistent":
        raise ValueError(
            f'response_variance={variance!r} needs margins="posterior": with consistent margins documents are inferred '
            'without their numbers, and a Gaussian response is no more than loss="squared_epsilon_insensitive" with '
            "epsilon=0"
        )
    return variational.Settings(
        n_components=int(estimator.n_components),
        doc_topic_prior=DOC_TOPIC_PRIOR[scheme] if alpha is None or estimate else float(alpha),
        estimate_doc_prior=estimate,
        topic_word_prior=estimator._default_word_prior if beta is None else float(beta),
        weight_variance=weight_variance(estimator),
        squared=scheme == "consistent" if estimator.loss is None else estimator.loss.startswith("squared"),
        response_variance=FIRST_RESPONSE_VARIANCE if variance == "auto" else variance,
        estimate_response=variance == "auto",
        margins=scheme,
        n_sweeps=int(estimator.n_sweeps),
        max_iter=iteration_limit(estimator),
        tol=float(estimator.tol),
        seed=int(generator(estimator.random_state).integers(2**31)),
        n_threads=n_threads(estimator.n_jobs),
    )


def _earlier(estimator: Any, n_words: int) -> MeanField | None:
    """Return the last fit, if this one shall begin at its topics and can."""
    fitted = getattr(estimator, "_fitted", None)
    fits = isinstance(fitted, MeanField) and fitted.word_topic.shape == (n_words, int(estimator.n_components))
    return fitted if estimator.warm_start and fits else None
