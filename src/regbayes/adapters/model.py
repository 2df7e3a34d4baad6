"""A joint model out of a user's differentiable code: all that does not depend on the library it is written in.

An encoder infers features of rows, without labels; a generative loss says, for each row, what explaining it costs. Both
are functions of one flat array of parameters, which descent moves. The library computes values and gradients.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from regbayes._types import Floats, Reals
from regbayes.engine import row_blocks
from regbayes.joint.model import Inferred, JointModel, RowSums

LEARNING_RATE = 1e-3  # size of a first step, for each parameter
N_PROBED = 8  # rows on which an encoder is tried before a fit
SAME = 1e-3  # how far a row's features may move with the rows beside it, relative to their size (float32 rounds)


@dataclass(frozen=True)
class RowBlock:
    """Rows as the library holds them, and the seed of what is drawn for them while parameters are learned."""

    rows: Any  # (n, ...)
    seed: int
    weights: Floats | None = None  # (n,): what each row counts; None: all the same

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True)
class LossSums(RowSums):
    """What the objective needs of rows."""

    n_rows: float  # with their weights
    loss: float  # generative, of all rows


@dataclass(frozen=True)
class Pulled(RowSums):
    """The gradient by the parameters, summed over rows."""

    by_params: Floats  # (P,)


class OwnModel(JointModel[RowBlock, Reals, LossSums, Pulled]):
    """Encoder and generative loss of a user, as a model that `regbayes.joint.descent.fit_joint` takes.

    The generative loss is a term of the objective with a weight; parameters may have a prior besides.
    Everything that the loss draws at random is a function of the block's seed, so the objective is one fixed function
    of the parameters.

    Attributes
    ----------
    weight : float
        Of the generative loss.
    prior : float or callable
        Of the parameters: the precision of a Gaussian, or minus the logarithm of the prior as a function of the user's.
    """

    weight: float
    prior: float | Callable[..., Any]

    def __init__(
        self,
        encoder: Callable[..., Any],
        generative_loss: Callable[..., Any],
        weight: float,
        prior: float | Callable[..., Any],
    ) -> None:
        for name, function in (("encoder", encoder), ("generative_loss", generative_loss)):
            if not callable(function):
                raise TypeError(f"{name} must be callable, got {type(function).__name__}")
            if isinstance(function, type):
                raise TypeError(f"{name} is the class {function.__name__}: give an object of it, or one of its methods")
        if not 0.0 <= float(weight) < np.inf:
            raise ValueError(f"weight must be a finite number that is not negative, got {weight}")
        if not callable(prior) and not 0.0 <= float(prior) < np.inf:
            raise ValueError(f"prior must be a function, or a finite number that is not negative, got {prior}")
        self.encoder, self.generative_loss, self.weight, self.prior = encoder, generative_loss, float(weight), prior

    def __repr__(self) -> str:
        names = [getattr(f, "__qualname__", type(f).__name__) for f in (self.encoder, self.generative_loss)]
        prior = "function" if callable(self.prior) else f"{self.prior:g}"
        return (
            f"{type(self).__name__}({names[0]}, {names[1]}, weight={self.weight:g}, prior={prior}; "
            f"{self.start.size:,} parameters)"
        )

    @property
    @abstractmethod
    def start(self) -> Reals:
        """Parameters to start from, as they are in the user's code, shape (P,)."""

    @abstractmethod
    def to_rows(self, X: Any) -> Any:
        """Return rows as the library holds them."""

    @abstractmethod
    def features(self, rows: Any, params: Reals) -> Reals:
        """Return the features of rows as predictions see them, shape (n, K): nothing is drawn."""

    @abstractmethod
    def forward(self, block: RowBlock, params: Reals) -> tuple[Reals, Reals]:
        """Return the features (n, K) and the generative loss of each row (n,) as parameters are learned from them."""

    @abstractmethod
    def backward(self, block: RowBlock, params: Reals, by_features: Floats | None) -> Reals:
        """Return the gradient of ``weight * loss + <by_features, features>`` by the parameters, shape (P,).

        Rows count as the block's weights say, in the loss; `by_features` knows of them already.
        """

    def find_unknown(self, block: RowBlock) -> list[tuple[int, ...]]:
        """Return the shapes of parameters that would have a gradient and are not among those of the model."""
        return []

    @abstractmethod
    def call_prior(self, params: Reals) -> tuple[float, Reals]:
        """Return the value of the user's own function for the prior, and its gradient by the parameters."""

    @abstractmethod
    def state_dict(self, params: Reals) -> dict[str, Any]:
        """Return the parameters as arrays, by the names that they have in the user's code."""

    @abstractmethod
    def from_state_dict(self, arrays: Mapping[str, Any]) -> Reals:
        """Return the flat parameters from arrays by name."""

    def blocks(self, X: Any, seed: int = 0, weights: Floats | None = None) -> list[RowBlock]:
        """Cut rows into blocks, once the encoder and the loss are known to be fit for them.

        Parameters
        ----------
        X : array of shape (n, ...)
        seed : int, default=0
            Of what is drawn for the rows.
        weights : array of shape (n,), default=None
            What each row counts.

        Raises
        ------
        ValueError
            If features or losses have wrong shapes, are not finite, have no gradient, or depend on other rows.
        """
        rows = self.to_rows(X)
        check(self, rows)
        return [
            RowBlock(rows[part], seed + i, None if weights is None else weights[part])
            for i, part in enumerate(row_blocks(len(rows)))
        ]

    def encode(self, X: Any, params: Reals) -> Reals:
        """Return the features of rows, shape (n, K)."""
        rows = self.to_rows(X)
        return np.concatenate([self.features(rows[part], params) for part in row_blocks(len(rows))])

    def has_noise(self, X: Any) -> bool:
        """Whether the encoder draws at random while parameters are learned, as dropout does."""
        rows = self.to_rows(X[:N_PROBED])
        return _distance(self.features(rows, self.start), self.forward(RowBlock(rows, 0), self.start)[0]) > SAME

    def infer(self, rows: RowBlock, params: Reals) -> Inferred[LossSums]:
        """Infer features without labels, and sum the generative loss."""
        features, losses = self.forward(rows, params)
        weights = np.ones(len(losses)) if rows.weights is None else rows.weights
        loss = float(weights @ losses) if np.all(np.isfinite(features)) else np.inf
        return Inferred(features, LossSums(float(weights.sum()), loss))

    def pull_back(self, rows: RowBlock, params: Reals, inferred: Inferred[LossSums], gradient: Floats | None) -> Pulled:
        """Differentiate both by the parameters. The forward pass runs again: no block's activations are kept."""
        return Pulled(self.backward(rows, params, gradient).astype(np.float64))

    def terms(self, params: Reals, stats: LossSums) -> dict[str, float]:
        """Return the generative loss with its weight, and the prior of the parameters."""
        loss = self.weight * stats.loss
        found = {"generative": loss if np.isfinite(loss) else np.inf}
        if self.prior:
            found["prior"] = self.prior_value(params)[0]
        return found

    def gradient(self, params: Reals, stats: LossSums, pulled: Pulled) -> Reals:
        """Return the gradient of the objective by the parameters."""
        found = pulled.by_params + self.prior_value(params)[1] if self.prior else pulled.by_params
        return found.astype(params.dtype)

    def prior_value(self, params: Reals) -> tuple[float, Reals]:
        """Return minus the logarithm of the prior, up to a constant, and its gradient."""
        if callable(self.prior):
            return self.call_prior(params)
        return 0.5 * self.prior * float(np.sum(np.square(params, dtype=np.float64))), self.prior * params

    def position(self, params: Reals) -> Reals:
        """Return the parameters: all of them move."""
        return params

    def move(self, params: Reals, position: Reals) -> Reals:
        """Return other parameters."""
        return position

    def first_length(self, params: Reals) -> float:
        """Return a short first step: a gradient says nothing of how far it holds."""
        return LEARNING_RATE * float(np.sqrt(params.size))


def call_encoder(encoder: Callable[[Any], Any], rows: Any, beside: str = "") -> tuple[Any, ...]:
    """Call an encoder; return all that it returned, the features of rows first. A note says what it got beside rows."""
    try:
        encoded = encoder(rows)
    except Exception as error:
        error.add_note(
            f"Raised by the encoder, which was called with {beside}rows of shape {tuple(rows.shape)}: it gets no "
            "labels, features are inferred without them."
        )
        raise
    encoded = tuple(encoded) if isinstance(encoded, tuple | list) else (encoded,)
    shape = tuple(getattr(encoded[0], "shape", ())) if encoded else ()
    if len(shape) != 2 or shape[0] != len(rows) or shape[1] == 0:
        found = f"shape {shape}" if shape else type(encoded[0] if encoded else encoded).__name__
        raise ValueError(
            f"the encoder must return features of shape ({len(rows)}, K) for {len(rows)} rows, or a tuple whose first "
            f"item they are, got {found}"
        )
    return encoded


def call_in_turn(
    encoder: Callable[[Any], Any], loss: Callable[..., Any], rows: Any, beside: str = ""
) -> tuple[Any, Any]:
    """Call an encoder, and a loss with the rows and all that it returned; return features and losses."""
    encoded = call_encoder(encoder, rows, beside)
    try:
        losses = loss(rows, *encoded)
    except Exception as error:
        shapes = [tuple(getattr(value, "shape", ())) for value in (rows, *encoded)]
        error.add_note(
            f"Raised by generative_loss, which was called with {beside}the rows and all that the encoder returned, of "
            f"shapes {', '.join(map(str, shapes))}."
        )
        raise
    n_rows, shape = len(rows), tuple(getattr(losses, "shape", ()))
    if shape != (n_rows,):
        found = f"shape {shape}" if hasattr(losses, "shape") else type(losses).__name__
        raise ValueError(
            f"generative_loss must return one number for each row, shape ({n_rows},) for {n_rows} rows, got {found}; "
            "take neither the sum nor the mean over rows: blocks and batches are added up"
        )
    return encoded[0], losses


def check(model: OwnModel, rows: Any) -> None:
    """Try encoder and loss on a few rows, and say what is wrong with them."""
    if len(rows) == 0:
        raise ValueError("there are no rows")
    few = rows[np.linspace(0, len(rows) - 1, min(len(rows), N_PROBED)).astype(np.intp)]  # neighbours may be alike
    features, losses = model.forward(RowBlock(few, 0), model.start)
    predicting = model.features(few, model.start)
    for name, values in (
        ("features of the encoder", features),
        ("losses of generative_loss", losses),
        ("features of the encoder, as predictions see them,", predicting),
    ):
        if not np.all(np.isfinite(values)):
            raise ValueError(f"{name} have NaN or infinite values at the parameters to start from")
    _check_rows_alone(model, few, predicting)
    _check_rows_together(model, few, features)
    unknown = model.find_unknown(RowBlock(few, 0))
    if unknown:
        raise ValueError(
            f"there are parameters that would not be learned, of shapes {unknown}: encoder and generative_loss must be "
            "modules, methods of modules, or functions that refer to the modules by name"
        )
    if callable(model.prior):
        value, slope = model.call_prior(model.start)
        if not (np.isfinite(value) and np.all(np.isfinite(slope))):
            raise ValueError(f"prior, or its gradient, is not finite at the parameters to start from: it is {value}")
    by_loss = model.backward(RowBlock(few, 0), model.start, None)
    if model.weight:  # what is drawn may differ with the rows beside a row, so losses are not compared as features are
        _check_gradient(by_loss, "generative_loss")
    _check_gradient(
        model.backward(RowBlock(few, 0), model.start, np.ones(features.shape)) - by_loss, "the encoder's features"
    )


def _check_rows_alone(model: OwnModel, few: Any, features: Reals) -> None:
    """Compare the features that predictions see with those of the rows one by one."""
    if _distance(features, model.features(few, model.start)) > SAME:
        raise ValueError(
            "the encoder draws at random where predictions are made, so a row would have other features at every call. "
            "Noise is welcome while parameters are learned: in PyTorch, use torch.nn.Dropout, or ask for self.training "
            "before drawing (dropout(x, training=self.training)); in JAX, draw from the argument key unless it is None"
        )
    try:
        alone = np.concatenate([model.features(few[i : i + 1], model.start) for i in range(len(few))])
        far = _distance(features, alone)
    except (ValueError, RuntimeError):  # shapes differ, or one row is refused
        far = np.inf
    if not far <= SAME:
        raise ValueError(
            "the encoder gives a row other features when it stands alone: it mixes rows, or looks at something by "
            f"their place (labels?); features move by {far:.3g} of their size. A prediction is made for one row: what "
            "is needed of other rows (means, scales) must be fixed before the fit"
        )


def _check_rows_together(model: OwnModel, few: Any, features: Reals) -> None:
    """See that a row's features, as parameters are learned from them, do not move with the rows beside it.

    What is drawn stays the same, so noise does not hide it.
    """
    for i in (0, len(few) - 1) if len(few) > 1 else ():
        order = [i if j == i else (j + 1) % len(few) for j in range(len(few))]  # others change, this row has its place
        among_others = model.forward(RowBlock(few[np.array(order)], 0), model.start)[0]
        far = _distance(features[i], among_others[i])
        if not far <= SAME:
            raise ValueError(
                f"the encoder mixes rows while parameters are learned: a row's features move by {far:.3g} of their "
                "size with the rows beside. Batch normalisation must be in evaluation mode (module.eval(), once rows "
                "have passed through it in training mode); LayerNorm and GroupNorm look at one row each and are fine"
            )


def _distance(features: Reals, other: Reals) -> float:
    """Return how far features differ, relative to their size."""
    size = max(float(np.max(np.abs(features))), float(np.finfo(np.float32).tiny))
    return float(np.max(np.abs(features - other))) / size


def _check_gradient(gradient: Reals, what: str) -> None:
    if not np.all(np.isfinite(gradient)):
        raise ValueError(f"the gradient of {what} by the parameters has NaN or infinite values")
    if not np.any(gradient):
        raise ValueError(
            f"there is no gradient of {what} by the parameters: it does not depend on them, they are frozen "
            "(requires_grad=False), or it leaves the library on the way (detach, no_grad, stop_gradient, NumPy)"
        )
