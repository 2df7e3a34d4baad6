"""Base class of joint models from a user's differentiable code.

An encoder infers features of samples without labels, and a generative loss measures their reconstruction. Both are
functions of one flat array of parameters. The library (PyTorch or JAX) computes values and gradients.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from regbayes._types import Floats, Reals
from regbayes.engine import row_blocks
from regbayes.joint.model import Inferred, JointModel, RowSums

Function = Callable[..., Any]
LEARNING_RATE = 1e-3  # length of the first step per parameter
N_CHECKED = 8  # number of samples for testing an encoder before a fit
TOLERANCE = 1e-3  # largest relative change of features that is attributed to float32 rounding


@dataclass(frozen=True)
class RowBlock:
    """Samples as arrays of the library, with the seed of their random numbers.

    Examples
    --------
    >>> import numpy as np
    >>> from regbayes.adapters import RowBlock
    >>> len(RowBlock(np.ones((9, 4)), seed=0))
    9
    """

    rows: Any  # (n, ...)
    seed: int
    weights: Floats | None = None  # (n,); None means equal weights

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True)
class LossSums(RowSums):
    """Sums over samples for the objective."""

    n_rows: float  # total weight of the samples
    loss: float  # generative loss of all samples


@dataclass(frozen=True)
class Pulled(RowSums):
    """The gradient with respect to the parameters, summed over samples."""

    by_params: Floats  # (P,)


class OwnModel(JointModel[RowBlock, Reals, LossSums, Pulled]):
    """A user's encoder and generative loss as a model for `fit_joint`.

    Random numbers of the loss depend only on the seed of the block, so the objective is a fixed function of the
    parameters.

    Attributes
    ----------
    weight : float
        Weight of the generative loss in the objective.
    prior : float or callable
        Precision of a Gaussian prior on the parameters, or a function that returns the negative log prior.

    Examples
    --------
    >>> import numpy as np
    >>> from regbayes.adapters import from_jax
    >>> encode, loss = lambda p, x: x @ p, lambda p, x, z: ((x - z @ p.T) ** 2).sum(1)
    >>> model = from_jax(encode, loss, np.eye(4)[:, :2])
    >>> model.encode(np.ones((9, 4)), model.start).shape
    (9, 2)
    """

    def __init__(self, encoder: Function, generative_loss: Function, weight: float, prior: float | Function) -> None:
        for name, function in (("encoder", encoder), ("generative_loss", generative_loss)):
            if not callable(function):
                raise TypeError(f"`{name}` must be callable; got {type(function).__name__}.")
            if isinstance(function, type):
                raise TypeError(f"`{name}` must be an object or a method; got the class {function.__name__}.")
        for name, value in (("weight", weight), ("prior", 0.0 if callable(prior) else prior)):
            if not 0.0 <= float(value) < np.inf:
                raise ValueError(f"`{name}` must be a finite number that is not negative; got {value}.")
        self.encoder, self.generative_loss, self.weight, self.prior = encoder, generative_loss, float(weight), prior

    def __repr__(self) -> str:
        names = [getattr(f, "__qualname__", type(f).__name__) for f in (self.encoder, self.generative_loss)]
        prior = "function" if callable(self.prior) else f"{self.prior:g}"
        return (
            f"{type(self).__name__}({names[0]}, {names[1]}, weight={self.weight:g}, prior={prior}; "
            f"{self.start.size:,} parameters)"
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return the model itself, because fits do not modify it and estimators may share it."""
        return self

    @property
    @abstractmethod
    def start(self) -> Reals:
        """Initial parameters from the user's code, shape (P,)."""

    @abstractmethod
    def to_rows(self, X: Any) -> Any:
        """Convert samples to an array of the library."""

    @abstractmethod
    def features(self, rows: Any, params: Reals) -> Reals:
        """Return the features of samples for prediction, without randomness, shape (n, K)."""

    @abstractmethod
    def forward(self, block: RowBlock, params: Reals) -> tuple[Reals, Reals]:
        """Return the features (n, K) and the generative losses (n,) for training."""

    @abstractmethod
    def backward(self, block: RowBlock, params: Reals, by_features: Floats | None) -> Reals:
        """Return the gradient of ``weight * loss + <by_features, features>``, shape (P,).

        The weights of the block apply to the loss; ``by_features`` already includes them.
        """

    @abstractmethod
    def call_prior(self, params: Reals) -> tuple[float, Reals]:
        """Return the value and gradient of the user's negative log prior."""

    @abstractmethod
    def state_dict(self, params: Reals) -> dict[str, Any]:
        """Return the parameters as NumPy arrays by their names in the user's code."""

    def from_state_dict(self, arrays: Mapping[str, Any]) -> Reals:
        """Return flat parameters from named arrays."""
        shapes = {name: array.shape for name, array in self.state_dict(self.start).items()}
        for name, shape in shapes.items():
            found = np.shape(arrays[name]) if name in arrays else "nothing"
            if found != shape:
                raise ValueError(f"The parameter {name} has shape {shape} in the model and {found} in the file.")
        return np.concatenate([np.ravel(arrays[name]) for name in shapes])

    def find_unknown(self, block: RowBlock) -> list[tuple[int, ...]]:
        """Return the shapes of trainable tensors that are not parameters of the model."""
        return []

    def blocks(self, X: Any, seed: int = 0, weights: Floats | None = None) -> list[RowBlock]:
        """Split samples into blocks after testing encoder and loss on a few samples.

        Raises
        ------
        ValueError
            If features or losses have wrong shapes, are not finite, have no gradient, or depend on other samples.
        """
        rows = self.to_rows(X)
        check(self, rows)
        return [
            RowBlock(rows[part], seed + i, None if weights is None else weights[part])
            for i, part in enumerate(row_blocks(len(rows)))
        ]

    def encode(self, X: Any, params: Reals) -> Reals:
        """Return the features of samples, shape (n, K)."""
        rows = self.to_rows(X)
        return np.concatenate([self.features(rows[part], params) for part in row_blocks(len(rows))])

    def has_noise(self, X: Any) -> bool:
        """Return whether the encoder is random during training, as with dropout."""
        rows = self.to_rows(X[:N_CHECKED])
        return _differ(self.features(rows, self.start), self.forward(RowBlock(rows, 0), self.start)[0])

    def infer(self, rows: RowBlock, params: Reals) -> Inferred[LossSums]:
        """Infer features without labels and sum the generative loss."""
        features, losses = self.forward(rows, params)
        weights = np.ones(len(losses)) if rows.weights is None else rows.weights
        loss = float(weights @ losses) if np.all(np.isfinite(features)) else np.inf
        return Inferred(features, LossSums(float(weights.sum()), loss))

    def pull_back(self, rows: RowBlock, params: Reals, inferred: Inferred[LossSums], gradient: Floats | None) -> Pulled:
        """Backpropagate both gradients, recomputing the forward pass to save memory."""
        return Pulled(self.backward(rows, params, gradient).astype(np.float64))

    def terms(self, params: Reals, stats: LossSums) -> dict[str, float]:
        """Return the weighted generative loss and the negative log prior."""
        loss = self.weight * stats.loss
        terms = {"generative": loss if np.isfinite(loss) else np.inf}
        return terms | {"prior": self.prior_value(params)[0]} if self.prior else terms

    def gradient(self, params: Reals, stats: LossSums, pulled: Pulled) -> Reals:
        """Return the gradient of the objective by the parameters."""
        gradient = pulled.by_params + self.prior_value(params)[1] if self.prior else pulled.by_params
        return gradient.astype(params.dtype)

    def prior_value(self, params: Reals) -> tuple[float, Reals]:
        """Return the negative log prior, up to a constant, and its gradient."""
        if callable(self.prior):
            return self.call_prior(params)
        return 0.5 * self.prior * float(np.sum(np.square(params, dtype=np.float64))), self.prior * params

    def position(self, params: Reals) -> Reals:
        """Return all parameters."""
        return params

    def move(self, params: Reals, position: Reals) -> Reals:
        """Return the new parameters."""
        return position

    def first_length(self, params: Reals) -> float:
        """Return a short first step, because the gradient has no information about its scale."""
        return LEARNING_RATE * float(np.sqrt(params.size))


def call_encoder(encoder: Callable[[Any], Any], rows: Any) -> tuple[Any, ...]:
    """Return the outputs of an encoder as a tuple; add a note to errors."""
    try:
        encoded = encoder(rows)
    except Exception as error:
        error.add_note(
            f"Raised by the encoder, which was called with rows of shape {tuple(rows.shape)}. It gets no labels: "
            "features are inferred without them."
        )
        raise
    encoded = tuple(encoded) if isinstance(encoded, tuple | list) else (encoded,)
    shape = tuple(getattr(encoded[0], "shape", ())) if encoded else ()
    if len(shape) != 2 or shape[0] != len(rows) or shape[1] == 0:
        found = f"shape {shape}" if shape else type(encoded[0] if encoded else encoded).__name__
        raise ValueError(
            f"`encoder` must return features of shape ({len(rows)}, K) for {len(rows)} rows, or a tuple whose first "
            f"item they are; got {found}."
        )
    return encoded


def call_in_turn(encoder: Callable[[Any], Any], loss: Function, rows: Any) -> tuple[Any, Any]:
    """Call the encoder, then the loss with its outputs; return features and losses."""
    encoded = call_encoder(encoder, rows)
    try:
        losses = loss(rows, *encoded)
    except Exception as error:
        shapes = ", ".join(str(tuple(getattr(value, "shape", ()))) for value in (rows, *encoded))
        error.add_note(f"Raised by generative_loss, which was called with arrays of shapes {shapes}.")
        raise
    if tuple(getattr(losses, "shape", ())) != (len(rows),):
        found = f"shape {tuple(losses.shape)}" if hasattr(losses, "shape") else type(losses).__name__
        raise ValueError(
            f"`generative_loss` must return one number for each row, shape ({len(rows)},), without sum or mean over "
            f"rows; got {found}."
        )
    return encoded[0], losses


def check(model: OwnModel, rows: Any) -> None:  # noqa: C901 - a sequence of checks
    """Test encoder and loss on a few samples and raise an error for invalid outputs."""
    if len(rows) == 0:
        raise ValueError("`X` must have at least one sample.")
    few = rows[np.linspace(0, len(rows) - 1, min(len(rows), N_CHECKED)).astype(np.intp)]  # neighbors may be similar
    block, start = RowBlock(few, 0), model.start
    (features, losses), predicting = model.forward(block, start), model.features(few, start)
    for name, values in (
        ("Features of the encoder", features),
        ("Losses of generative_loss", losses),
        ("Features of the encoder for predictions", predicting),
    ):
        if not np.all(np.isfinite(values)):
            raise ValueError(f"{name} have NaN or infinite values at the parameters to start from.")
    if _differ(predicting, model.features(few, start)):
        raise ValueError(
            "The encoder draws at random in predictions. Draw only while parameters are learned: in PyTorch with "
            "torch.nn.Dropout or if self.training, in JAX from the argument key unless it is None."
        )
    try:
        alone = np.concatenate([model.features(few[i : i + 1], start) for i in range(len(few))])
        is_mixed = _differ(predicting, alone)
    except (ValueError, RuntimeError):  # the shapes differ, or single samples are not supported
        is_mixed = True
    if is_mixed:
        raise ValueError(
            "The encoder gives a sample other features when it stands alone: it mixes rows, or reads something by "
            "their place (labels?). Fix what is needed of other rows, such as means, before the fit."
        )
    for i in (0, len(few) - 1) if len(few) > 1 else ():  # reorders the other samples with the same random numbers
        order = np.array([i if j == i else (j + 1) % len(few) for j in range(len(few))])
        if _differ(features[i], model.forward(RowBlock(few[order], 0), start)[0][i]):
            raise ValueError(
                "The encoder mixes rows while parameters are learned. Put batch normalization into evaluation mode "
                "(module.eval()), or use LayerNorm or GroupNorm."
            )
    unknown = model.find_unknown(block)
    if unknown:
        raise ValueError(
            f"Parameters of shapes {unknown} would not be learned. `encoder` and `generative_loss` must be modules, "
            "methods of modules, or functions that refer to the modules by name."
        )
    if callable(model.prior):
        value, slope = model.call_prior(start)
        if not (np.isfinite(value) and np.all(np.isfinite(slope))):
            raise ValueError(f"`prior` and its gradient must be finite at the parameters to start from; got {value}.")
    by_loss = model.backward(block, start, None)
    by_both = model.backward(block, start, np.ones(features.shape))
    gradients = {"generative_loss": by_loss} if model.weight else {}
    for name, gradient in (gradients | {"the encoder's features": by_both - by_loss}).items():
        if not np.all(np.isfinite(gradient)):
            raise ValueError(f"The gradient of {name} by the parameters has NaN or infinite values.")
        if not np.any(gradient):
            raise ValueError(
                f"Found no gradient of {name} by the parameters: it does not depend on them, they are frozen "
                "(requires_grad=False), or it leaves the library on the way (detach, stop_gradient, NumPy)."
            )


def _differ(features: Reals, other: Reals) -> bool:
    """Return whether features differ by more than rounding errors."""
    size = max(float(np.max(np.abs(features))), float(np.finfo(np.float32).tiny))
    return not float(np.max(np.abs(features - other))) <= TOLERANCE * size
