"""What the model is made of: settings, what is known of the responses, the chain, and what a fit leaves behind."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from regbayes._registry import persistable
from regbayes._types import Floats, Singles
from regbayes.kernels.types import TopicCounts


@dataclass(frozen=True)
class Settings:
    """How to sample."""

    n_components: int  # K
    doc_topic_prior: float  # alpha, of each topic
    topic_word_prior: float  # beta, of each word
    weight_variance: float  # v^2
    n_sweeps: int
    n_burn_in: int  # sweeps before averages are taken
    n_rising: int  # sweeps over which prices grow from zero
    propose: bool  # whether topics are proposed and accepted, or drawn; see `gibbs.prefers_proposals`
    seed: int
    n_threads: int


@dataclass(frozen=True)
class Margins:
    """Responses of +-1, each asking for ``sign * score >= margin``, at a price per unit of violation."""

    signs: Floats  # (N, L)
    prices: Floats  # (N, L): 0 where nothing is asked
    margin: float


@dataclass(frozen=True)
class Targets:
    """Responses that are numbers: a residual beyond epsilon has a price."""

    values: Floats  # (N, L)
    prices: Floats  # (N, L)
    epsilon: float


Responses = Margins | Targets


@persistable(name="regbayes.medlda.Squares")
@dataclass(frozen=True)
class Squares:
    """Sums over documents for weights by least squares, at the shares of topics that prediction sees."""

    precision: Floats  # (K, K)
    linear: Floats  # (L, K)


@persistable(name="regbayes.medlda.Memory")
@dataclass(frozen=True)
class Memory:
    """What earlier documents left behind: the prior of later ones."""

    word_topic: NDArray[np.int32]  # (V, K): counts of the last sweep
    precision: Floats  # (L, K, K): of the weights; (L, K), its diagonal, where there are many topics
    linear: Floats  # (L, K): precision times mean of the weights
    squares: Squares | None = None  # None: weights are not refitted


@persistable(name="regbayes.medlda.Fitted")
@dataclass(frozen=True)
class Fitted:
    """Averages over the chain: all that prediction needs."""

    word_topic: Singles  # (V, K): mean counts
    topic_total: Floats  # (K,)
    weights: Floats  # (L, K)
    doc_topic_prior: float
    topic_word_prior: float


@dataclass(frozen=True)
class Averages:
    """Sums over the sweeps that were kept."""

    n_kept: int
    word_topic: Singles  # (V, columns), in the corpus's order of words
    weights: Floats  # (L, K)


@dataclass(frozen=True)
class Chain:
    """Where the chain stands after a sweep."""

    counts: TopicCounts
    weights: Floats  # (L, K)
    linear: Floats  # (N, L): of the tilt, given the augmentation variables
    quadratic: Floats  # (N, L)
    scores: Floats  # (N, L)
    sweep: int  # sweeps so far
    averages: Averages | None  # None before the first sweep that is kept
