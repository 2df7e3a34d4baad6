"""The one place where a backend is chosen.

A backend is a module with the functions of ``Backend``; ``reference`` documents them and is the law.
"""

from __future__ import annotations

from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from regbayes._types import Floats, Indices, Reals, Singles
from regbayes.kernels import cpu, reference
from regbayes.kernels.types import BoxRows, BoxState, MarginCheck, Progress, SimplexRows, SimplexState, SweepGradient
from regbayes.kernels.types_meanfield import Prior, WordCounts
from regbayes.kernels.types_topics import (
    Assignments,
    CountTable,
    Layout,
    Places,
    Tilt,
    Tokens,
    TopicCounts,
    WeightPrior,
    WeightStatistics,
    WordLists,
    Words,
)

BackendName = Literal["cpu", "reference"]


class Backend(Protocol):
    """The kernels every backend has; see the docstrings in ``reference``."""

    def sweep_features(
        self, theta: Reals, coupling: Floats, start: Reals, n_sweeps: int, out: Reals, n_threads: int = 1
    ) -> float:
        """Run mean-field sweeps over binary features."""

    def reverse_features(
        self,
        grad: Reals,
        psi: Reals,
        theta: Reals | None,
        coupling: Floats,
        start: Reals,
        n_sweeps: int,
        grad_theta: Reals,
        n_threads: int = 1,
    ) -> SweepGradient:
        """Differentiate through the sweeps."""

    def box_epoch(self, rows: BoxRows, order: Indices, restart: bool, state: BoxState) -> Progress:
        """Minimise the box dual over one multiplier after another."""

    def box_check(self, rows: BoxRows, state: BoxState) -> MarginCheck:
        """Evaluate the loss and the duality gap of the box dual."""

    def box_weights(self, rows: BoxRows, dual: Floats) -> Floats:
        """Sum the weights that belong to given multipliers."""

    def box_scores(self, rows: BoxRows, weights: Floats) -> Floats:
        """Evaluate the score of every row of the box dual."""

    def simplex_epoch(self, rows: SimplexRows, order: Indices, restart: bool, state: SimplexState) -> Progress:
        """Maximise the multi-class dual over one row after another."""

    def simplex_check(self, rows: SimplexRows, state: SimplexState) -> MarginCheck:
        """Evaluate the multi-class loss and the duality gap."""

    def simplex_weights(self, rows: SimplexRows, omega: Floats) -> Floats:
        """Sum the weights that belong to given multipliers."""

    def solve_assignments(
        self,
        logits: Floats,
        gains: Floats,
        cost: Floats,
        labels: Indices,
        price: Floats,
        squared: bool,
        tol: float,
        max_steps: int,
        omega: Floats,
        q: Floats,
    ) -> float:
        """Solve for the component of every row, and the multipliers of its margins."""

    def sample_topics(
        self,
        tokens: Tokens,
        first_run: int,
        last_run: int,
        tilt: Tilt,
        doc_prior: float,
        word_prior: float,
        uniforms: Singles,
        counts: TopicCounts,
    ) -> int:
        """Draw the topics of tokens, one after another."""

    def propose_topics(
        self,
        tokens: Tokens,
        first_run: int,
        last_run: int,
        tilt: Tilt,
        scores: Floats,
        portion: int,
        doc_prior: float,
        word_prior: float,
        uniforms: Singles,
        counts: TopicCounts,
        lists: WordLists,
    ) -> int:
        """Propose topics of tokens, one after another, and accept or reject them."""

    def list_words(self, counts: TopicCounts) -> WordLists:
        """List the topics of each word."""

    def count_words(
        self, words: NDArray[np.signedinteger], numbers: NDArray[np.signedinteger], n_words: int
    ) -> Indices:
        """Count how often each word occurs."""

    def lay_out(
        self,
        indptr: Indices,
        words: NDArray[np.signedinteger],
        numbers: NDArray[np.signedinteger],
        documents: Places,
        vocabulary: Places,
        n_groups: int,
    ) -> Layout:
        """Write out the tokens of a matrix of counts, block by block."""

    def tally(self, table: CountTable | Indices) -> Indices:
        """Count how often each value occurs in a table of counts."""

    def count_tokens(self, tokens: Tokens, topics: Assignments, doc_topic: CountTable, word_topic: CountTable) -> None:
        """Add tokens to tables of counts."""

    def sweep_weights(
        self,
        tilt: Tilt,
        counts: TopicCounts,
        prior: WeightPrior,
        normals: Floats,
        weights: Floats,
        scores: Floats,
        n_threads: int = 1,
    ) -> None:
        """Draw weights one after another."""

    def weight_statistics(self, tilt: Tilt, counts: TopicCounts, n_threads: int = 1) -> WeightStatistics:
        """Sum what the weights' normal distribution needs."""

    def infer_proportions(
        self,
        words: Words,
        numbers: Singles,
        starts: Indices,
        word_given_topic: Singles,
        doc_prior: float,
        max_sweeps: int,
        tol: float,
        out: Floats,
        n_threads: int = 1,
    ) -> int:
        """Infer the topics of documents, given the topics' words."""

    def meanfield_sweeps(
        self,
        documents: WordCounts,
        prior: Prior,
        tilt: Singles,
        max_sweeps: int,
        tol: float,
        gamma: Singles,
        n_threads: int = 1,
    ) -> int:
        """Alternate between topics of words and proportions of documents."""

    def meanfield_statistics(
        self,
        documents: WordCounts,
        prior: Prior,
        tilt: Singles,
        gamma: Singles,
        word_topic: Singles | None,
        doc_topic: Singles,
        n_threads: int = 1,
    ) -> Floats:
        """Sum the topics of words that belong to given proportions."""

    def infer_by_sweeps(
        self, documents: WordCounts, prior: Prior, n_sweeps: int, gamma: Singles, n_threads: int = 1
    ) -> Floats:
        """Make a fixed number of label-free sweeps."""

    def reverse_sweeps(
        self,
        documents: WordCounts,
        prior: Prior,
        n_sweeps: int,
        gamma: Singles,
        grad: Singles,
        weight: float,
        n_threads: int = 1,
    ) -> Singles:
        """Differentiate through the sweeps."""


def get_backend(name: BackendName = "cpu") -> Backend:
    """Return the kernels of the named backend."""
    if name == "reference":
        return reference
    return cpu
