"""What a row of a table is: a system by its name, how to make it, and the settings to choose from."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from regbayes_paper.experiments.versions import model_code

PAPER, PEERS = "systems of the paper", "peers"
Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Context:
    """What an estimator is made for."""

    seed: int
    n_components: int
    n_inputs: int


@dataclass(frozen=True)
class System:
    """A row of a table."""

    name: str
    """As the paper has it, where it is one of the paper's."""
    make: Callable[..., Any] | None
    """``make(context, **settings)`` returns an estimator; None if there is none yet."""
    grid: tuple[Settings, ...] = ({},)
    quick_grid: tuple[Settings, ...] = ({},)
    group: str = PAPER
    needs: str = ""
    """Full name of a class that may not be there, looked up when the experiment runs."""
    extra: tuple[str, str] | None = None
    """An optional package that it needs, and the extra that brings it."""
    random: bool = True
    """Whether a fit to the same rows depends on the seed."""

    @property
    def missing(self) -> str:
        """Why it cannot be run; empty if it can."""
        if self.make is None:
            return "not available yet"
        if self.extra is not None and importlib.util.find_spec(self.extra[0]) is None:
            return f"not available here: pip install -e './paper[{self.extra[1]}]'"
        return "" if not self.needs or found(self.needs) else f"not available yet: needs {self.needs}"

    def settings(self, quick: bool) -> tuple[Settings, ...]:
        """Among which cross-validation chooses."""
        return self.quick_grid if quick else self.grid

    def estimator(self, context: Context, settings: Settings) -> Any:
        """Make the estimator."""
        assert self.make is not None
        return self.make(context, **settings)

    def facts(self, quick: bool, n_components: int) -> dict[str, Any]:
        """All that determines its numbers: the estimators with their parameters, and the code of our own."""
        context = Context(0, n_components, 1)
        made = [self.estimator(context, settings) for settings in self.settings(quick)]
        facts = {"system": self.name, "estimators": [model.__repr__(N_CHAR_MAX=10**6) for model in made]}
        ours = self.group == PAPER or type(made[0]).__module__.startswith("regbayes_paper.baselines.")
        return facts | {"code": model_code()} if ours else facts


def found(name: str) -> Any:
    """Return the class of a full name, None if it is not there."""
    module, _, attribute = name.rpartition(".")
    try:
        return getattr(importlib.import_module(module), attribute, None)
    except ModuleNotFoundError:
        return None


def grid(**lists: Any) -> tuple[Settings, ...]:
    """Return all combinations of listed values."""
    return tuple(dict(zip(lists, values, strict=True)) for values in product(*lists.values()))


def peers(systems: tuple[System, ...]) -> tuple[System, ...]:
    """Return the systems that are not the paper's."""
    return tuple(system for system in systems if system.group == PEERS)


def named(systems: tuple[System, ...], name: str) -> System:
    """Return a system by its name."""
    return next(system for system in systems if system.name == name)
