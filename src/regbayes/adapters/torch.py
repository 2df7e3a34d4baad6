"""Adapter for models in PyTorch."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from regbayes._extras import import_extra
from regbayes._types import Floats, Reals
from regbayes.adapters.model import Function, OwnModel, RowBlock, call_encoder, call_in_turn

_SWAPPING = threading.RLock()  # a module can have only one set of parameters at a time


def from_torch(
    encoder: Function, generative_loss: Function, *, weight: float = 1.0, prior: float | Function = 0.0
) -> TorchModel:
    """Create a joint model from PyTorch modules or functions.

    Parameters
    ----------
    encoder : torch.nn.Module, method of one, or function
        Maps samples (n, ...) to features (n, K), or to a tuple with the features first. It receives no labels, and the
        features of a sample must not depend on other samples. Modules are in evaluation mode in predictions, and in
        their own mode during training. Use dropout only with mini-batches.
    generative_loss : torch.nn.Module, method of one, or function
        Called with the samples and the outputs of the encoder. It returns the loss of each sample, shape (n,), such as
        its negative evidence lower bound. Random numbers use the seed of the block.
    weight : float, default=1.0
        Weight of the generative loss in the objective.
    prior : float or callable, default=0.0
        Precision of a Gaussian prior on all parameters, or a function without arguments that returns their negative
        log prior, a scalar.

    Returns
    -------
    TorchModel
        Joint model with all trainable parameters of the modules that encoder and loss are, belong to or refer to. Fits
        do not change the modules; `TorchModel.load` copies parameters into them. Samples are converted to the type and
        device of the parameters. In float64, the line search can detect smaller improvements.

    Examples
    --------
    >>> import torch
    >>> from regbayes.adapters import from_torch
    >>> encoder, decoder = torch.nn.Linear(64, 5), torch.nn.Linear(5, 64)
    >>> model = from_torch(encoder, lambda rows, z: ((rows - decoder(z)) ** 2).sum(1))
    >>> model.start.shape
    (709,)
    """
    return TorchModel(encoder, generative_loss, weight, prior)


class TorchModel(OwnModel):
    """A joint model in PyTorch; create it with `from_torch`."""

    def __init__(self, encoder: Function, generative_loss: Function, weight: float, prior: float | Function) -> None:
        super().__init__(encoder, generative_loss, weight, prior)
        import_extra("torch", "from_torch")
        self._caller = _gather_modules(encoder, generative_loss, *([prior] if callable(prior) else []))
        self._moving = {name: p for name, p in self._caller.named_parameters() if p.requires_grad}
        names = {id(p): name for name, p in self._moving.items()}
        self._places = {  # names of each parameter; tied parameters have several
            f"{at}.{own}": names[id(p)]
            for at, part in self._caller.named_modules()
            for own, p in part.named_parameters(recurse=False, remove_duplicate=False)
            if id(p) in names
        }
        self._before_load: Reals | None = None
        if not self._moving:
            raise ValueError(
                "`encoder` and `generative_loss` have no parameters that require a gradient. Give torch.nn.Modules, "
                "methods of them, or functions that refer to them by name."
            )
        kinds = {(p.dtype, p.device) for p in self._moving.values()}
        self._dtype, self._device = next(iter(kinds))
        if len(kinds) > 1 or str(self._dtype) not in ("torch.float32", "torch.float64"):
            found = ", ".join(sorted(f"{dtype} on {device}" for dtype, device in kinds))
            raise ValueError(f"All parameters must have one type, float32 or float64, and one device; got {found}.")

    @property
    def start(self) -> Reals:
        """The initial parameters of the modules, from before the first `load`, shape (P,)."""
        if self._before_load is not None:
            return self._before_load
        return np.concatenate([p.detach().cpu().numpy().ravel() for p in self._moving.values()])

    def to_rows(self, X: Any) -> Any:
        """Convert rows to a tensor with the type and device of the parameters."""
        import torch

        if isinstance(X, np.ndarray) and not X.flags.writeable:
            X = X.copy()  # avoids PyTorch's warning about read-only memory
        rows = torch.as_tensor(X, device=self._device)
        return rows.to(self._dtype) if rows.is_floating_point() or rows.dtype == torch.bool else rows

    def features(self, rows: Any, params: Reals) -> Reals:
        """Return features with all modules in evaluation mode."""
        import torch

        with torch.no_grad(), _SWAPPING, self._evaluating():
            found = self._call_with(self._tensor(params), call_encoder, self.encoder, rows)
        return np.asarray(found[0].cpu().numpy())

    def forward(self, block: RowBlock, params: Reals) -> tuple[Reals, Reals]:
        """Return features and losses as arrays."""
        import torch

        with torch.no_grad():
            features, losses = self._run(block, self._tensor(params))
        return features.cpu().numpy(), losses.cpu().numpy()

    def backward(self, block: RowBlock, params: Reals, by_features: Floats | None) -> Reals:
        """Return the gradient with respect to the parameters."""
        import torch

        flat = self._tensor(params).requires_grad_()
        total = self._total(block, flat, by_features)
        found = torch.autograd.grad(total, flat, allow_unused=True)[0] if total.requires_grad else None
        return np.zeros_like(params) if found is None else found.cpu().numpy()

    def call_prior(self, params: Reals) -> tuple[float, Reals]:
        """Return the value and gradient of the user's negative log prior."""
        import torch

        assert callable(self.prior)
        flat = self._tensor(params).requires_grad_()
        with _SWAPPING, torch.enable_grad():
            value = self._call_with(flat, self.prior)
            if not (torch.is_tensor(value) and value.ndim == 0 and value.requires_grad):
                found = f"shape {tuple(value.shape)}" if torch.is_tensor(value) else type(value).__name__
                raise ValueError(f"`prior` must return a scalar tensor that depends on the parameters; got {found}.")
            gradient = torch.autograd.grad(value, flat)[0]
        return float(value.detach()), gradient.cpu().numpy()

    def find_unknown(self, block: RowBlock) -> list[tuple[int, ...]]:
        """Return the shapes of trainable tensors that are not parameters of the modules."""
        flat = self._tensor(self.start).requires_grad_()
        found, seen, nodes = [], set(), [self._total(block, flat, np.ones((1, 1))).grad_fn]
        while nodes:
            node = nodes.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            leaf = getattr(node, "variable", None)
            if leaf is not None and leaf is not flat:
                found.append(tuple(leaf.shape))
            nodes += [following for following, _ in node.next_functions]
        return found

    def state_dict(self, params: Reals) -> dict[str, Any]:
        """Return the parameters as NumPy arrays by name."""
        return {name: value.numpy() for name, value in self._split(self._tensor(params).cpu()).items()}

    def load(self, params: Reals) -> None:
        """Copy parameters into the user's modules; later fits start as before."""
        import torch

        self._before_load = self.start
        with torch.no_grad():
            for name, value in self._split(self._tensor(params)).items():
                self._moving[name].copy_(value)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the model by its constructor arguments."""
        made_of = (self.encoder, self.generative_loss, self.weight, self.prior)
        return type(self), made_of, {"_before_load": self._before_load}

    def _total(self, block: RowBlock, flat: Any, by_features: Floats | None) -> Any:
        """Return ``weight * loss + <by_features, features>`` as a scalar of the graph."""
        import torch

        with torch.enable_grad():
            features, losses = self._run(block, flat)
            total = self.weight * (losses if block.weights is None else losses * self._tensor(block.weights)).sum()
            return total if by_features is None else total + (features * self._tensor(by_features)).sum()

    def _run(self, block: RowBlock, flat: Any) -> tuple[Any, Any]:
        """Call encoder and loss with given parameters and the seed of the block, leaving modules unchanged."""
        import torch

        with _SWAPPING, torch.random.fork_rng([self._device] if self._device.type == "cuda" else []):
            torch.manual_seed(block.seed)
            return self._call_with(flat, call_in_turn, self.encoder, self.generative_loss, block.rows)

    def _call_with(self, flat: Any, function: Function, *arguments: Any) -> Any:
        """Call a function with temporary parameters and copies of buffers in the modules."""
        import torch

        split = self._split(flat)
        values = {place: split[name] for place, name in self._places.items()}
        values |= {place: buffer.clone() for place, buffer in self._caller.named_buffers()}
        # Tied parameters have an entry per name, so that every module is restored.
        return torch.func.functional_call(self._caller, values, (function, *arguments), tie_weights=False)

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        """Put modules in training mode temporarily into evaluation mode."""
        learning = [module for module in self._caller.modules() if module.training]
        for module in learning:
            module.training = False
        try:
            yield
        finally:
            for module in learning:
                module.training = True

    def _tensor(self, params: Reals) -> Any:
        import torch

        return torch.tensor(params, dtype=self._dtype, device=self._device)

    def _split(self, flat: Any) -> dict[str, Any]:
        sizes = [p.numel() for p in self._moving.values()]
        parts = zip(self._moving.items(), flat.split(sizes), strict=True)
        return {name: part.view(p.shape) for (name, p), part in parts}


def _gather_modules(*functions: Function) -> Any:
    """Return a module that contains all modules that functions are, belong to or refer to."""
    import torch

    found: list[Any] = []
    for candidate in (candidate for function in functions for candidate in _refer(function)):
        if isinstance(candidate, torch.nn.Module) and not any(candidate is known for known in found):
            found.append(candidate)
    gathered = torch.nn.ModuleList(found)
    gathered.forward = lambda function, *arguments: function(*arguments)
    return gathered


def _refer(function: Function) -> list[Any]:
    """Return objects that a function is, belongs to or refers to, including attributes of non-modules."""
    if isinstance(function, partial):
        return [*_refer(function.func), *function.args, *function.keywords.values()]
    owner = getattr(function, "__self__", None if inspect.isfunction(function) else function)
    candidates = [function, owner, *getattr(owner, "__dict__", {}).values()]
    if inspect.isfunction(function):
        names = inspect.getclosurevars(function)
        candidates += [*names.nonlocals.values(), *names.globals.values()]
    return candidates
