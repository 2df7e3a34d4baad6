"""Updates of the posterior scheme that are not the documents': the prior of proportions, by empirical Bayes."""

from __future__ import annotations

import numpy as np
from scipy.special import digamma, gammaln, polygamma

from regbayes._types import Floats

MAX_NEWTON_STEPS = 20
SMALLEST, LARGEST = 1e-3, 1e3  # of a Dirichlet parameter: beyond, nothing would change any more


def update_doc_prior(doc_prior: Floats, expected_logs: Floats, n_documents: int) -> Floats:
    """Return Dirichlet parameters of the proportions that raise the bound: Newton's method in their logarithms.

    The Hessian is diagonal plus a constant, so that a step costs no more than the gradient (Blei, Ng and Jordan,
    JMLR 2003, appendix A.4.2); steps that would lower the bound are halved.

    Parameters
    ----------
    doc_prior : (K,)
        The start.
    expected_logs : (K,)
        E[log theta_dk], summed over the documents.
    n_documents : int
    """

    def bound(alpha: Floats) -> float:
        return float(n_documents * (gammaln(alpha.sum()) - gammaln(alpha).sum()) + np.vdot(alpha, expected_logs))

    alpha, value = doc_prior, bound(doc_prior)
    for _ in range(MAX_NEWTON_STEPS):
        total = alpha.sum()
        slope = n_documents * (digamma(total) - digamma(alpha)) + expected_logs
        # By log alpha: the chain rule adds the gradient itself to the diagonal.
        by_log = alpha * slope
        diagonal = n_documents * alpha**2 * polygamma(1, alpha) - by_log
        diagonal = np.maximum(diagonal, 1e-3 * n_documents * alpha**2 * polygamma(1, alpha))
        coupling = n_documents * polygamma(1, total)
        room = 1.0 / coupling - np.sum(alpha**2 / diagonal)  # not positive: the Hessian is not negative definite here
        shared = np.sum(alpha * by_log / diagonal) / room if room > 0 else 0.0
        step = (by_log + alpha * shared) / diagonal
        length, moved = 1.0, alpha
        while length > 1e-4:
            moved = np.clip(alpha * np.exp(np.clip(length * step, -2.0, 2.0)), SMALLEST, LARGEST)
            if bound(moved) > value:
                break
            length *= 0.5
        else:
            return alpha
        gained, alpha, value = bound(moved) - value, moved, bound(moved)
        if gained <= 1e-10 * abs(value):
            break
    return np.asarray(alpha)
