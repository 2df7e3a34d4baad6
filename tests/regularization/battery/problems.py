"""Hard problems for `regularize`, drawn by a seed and a number: `make_problem(seed, number)`.

A problem is drawn in ordinary units (features of the order of one, a point that can be reached, on an edge, or cannot)
and then written in others: scales from 1e-300 to 1e300, offsets to 1e13 standard deviations. What is asked is placed
relative to the features as they are after rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from battery.pieces import Wide, narrow, wide
from battery.references import Answer, Atoms, Normal, answer
from regbayes import Finite, Gaussian, Samples
from regbayes.regularizers import (
    KL,
    Affine,
    AtLeast,
    AtMost,
    Ball,
    EpsilonInsensitive,
    Equal,
    GeneralizedKL,
    Hinge,
    MultiClassHinge,
    MultiClassSquaredHinge,
    Regularizer,
    Ridge,
    Separable,
    Sum,
)

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Problem:
    """What is given to `regularize`, and what the references see of it."""

    name: str  # how it was made, in words
    posterior: Finite | Samples | Gaussian
    features: Floats  # (n, m) of atoms, (m, d) of a Gaussian
    regularizer: Regularizer
    base: Atoms | Normal
    face: NDArray[np.bool_] | None = None  # the atoms that alone can have weight where all expectations are prescribed
    reachable: bool = False  # whether the expectations asked for are, to the last bit, those of one atom or of a few

    def answer(self) -> Answer:
        return answer(self.base, self.regularizer, self.face)


def make_problem(seed: int, number: int) -> Problem:
    """Draw one problem; the same for the same two numbers. One in a hundred is large."""
    rng = np.random.default_rng([seed, number])
    if number % 100 == 99:
        return _large(rng)
    kind = rng.random()
    if kind < 0.12:
        return _gaussian(rng)
    if kind < 0.20:
        return _proportions(rng)
    return _atoms(rng)


def of_atoms(name: str, features: Any, regularizer: Regularizer, log_weights: Any = None) -> Problem:
    """A problem on models with these features, uniform unless log-weights are given."""
    features = np.asarray(features, dtype=np.float64)
    features = features[:, None] if features.ndim == 1 else features
    log_weights = np.zeros(len(features)) if log_weights is None else np.asarray(log_weights, dtype=np.float64)
    posterior = Finite(np.arange(float(len(features))), log_weights=log_weights)
    return Problem(name, posterior, features, regularizer, Atoms.of(features, log_weights))


def named_problems() -> list[Problem]:
    """Problems that were answered wrongly once, or given up, each with neighbours."""
    rng = np.random.default_rng(0)
    found = []
    for weight in (1e-2, 10.0, 1e3, 1e6):
        found.append(of_atoms("a constant beside zeros", [[1, 0], [1, 1], [1, 0]], KL([0.95, 0.05], weight)))
        classes = np.eye(3)[rng.integers(3, size=60)]
        found.append(of_atoms(f"proportions of weight {weight:g}", classes, KL([0.7, 0.2, 0.1], weight)))
    for power in range(9, 14):
        stamps = 10.0**power + np.round(100 * rng.normal(size=400)) / 100
        found.append(of_atoms(f"time stamps of 1e{power}", stamps, Equal(np.round(stamps.mean() + 1))))
        both = np.stack([stamps, rng.normal(size=400)], axis=1)
        found.append(of_atoms(f"time stamps of 1e{power} and another", both, AtLeast(both.mean(axis=0) + 0.5)))
    for power in range(2, 11):
        z = rng.normal(size=500)
        thin = np.stack([z, z + 10.0**-power * rng.normal(size=500)], axis=1)
        found.append(of_atoms(f"collinear but for 1e-{power}", thin, Equal(thin.mean(axis=0) + 0.5)))
        inside = thin.T @ rng.dirichlet(np.ones(500))
        found.append(of_atoms(f"collinear but for 1e-{power}, reachable", thin, Equal(inside)))
    for nats in (10, 40, 100, 700):
        found.append(of_atoms(f"one model ahead by {nats} nats", [0, 1], AtLeast(0.3), [0, -nats]))
        three = [[0, 0], [1, 0], [0, 1]]
        found.append(of_atoms(f"one of three ahead by {nats} nats", three, Equal([0.3, 0.2]), [0, -nats, -2 * nats]))
    for power in (-307, -200, 200, 307):
        z = rng.uniform(-1, 1, size=30) * 10.0**power
        found.append(of_atoms(f"features at 1e{power}", z, Equal(0.3 * 10.0**power)))
        found.append(of_atoms(f"features at 1e{power}, a bound", np.stack([z, -z], 1), AtMost(-0.1 * 10.0**power)))
    for power in (3, 6, 8):
        z = rng.normal(size=(200, 3))
        soft = Hinge(10.0**power).reflect([0.4, 0.2, 0.1])
        found.append(of_atoms(f"soft bounds at a price of 1e{power}", z, soft))
        found.append(of_atoms(f"a tube at a price of 1e{power}", z, EpsilonInsensitive(0.2, 0.0, 10.0**power)))
    z = rng.normal(size=(5, 8))
    found.append(of_atoms("five draws, eight equalities", z, Equal(z.mean(axis=0) + 0.1)))
    found.append(of_atoms("five draws, eight bounds", z, AtLeast(z.T @ rng.dirichlet(np.ones(5)) - 0.01)))
    found.append(of_atoms("five draws, eight bounds out of reach", z, AtLeast(z.mean(axis=0) + 0.3)))
    square = np.array([[0.0, 0], [0, 1], [1, 0], [1, 1]])
    for away in (-1e-3, 0.0, 1e-6, 1.0):
        place = {-1e-3: "inside", 0.0: "on the edge of"}.get(away, f"{away:g} outside")
        problem = of_atoms(f"{place} a square", square, Equal([0.5, 1 + away]))
        face = square[:, 1] == 1 if away == 0 else None
        found.append(Problem(problem.name, problem.posterior, square, problem.regularizer, problem.base, face))
        found.append(of_atoms(f"{place} an interval", [0, 0.3, 1], AtLeast(1 + away)))
    for power in (2, 4, 6, 8, 10, 11):
        near, far = rng.normal(size=(60, 2)), 10.0**power
        found.append(of_atoms(f"one draw at 1e{power}", np.append(near[:, 0], far), Equal(0.3)))
        found.append(of_atoms(f"one draw at -1e{power}, a bound", np.append(near[:, 0], -far), AtLeast(0.3)))
        for name, away in (("one draw", [[far, 0]]), ("two opposite draws", [[far, far], [-far, -far]])):
            both = np.concatenate([near, away])
            found.append(of_atoms(f"{name} at 1e{power}, beside others", both, Equal([0.5, 0.1])))
    for power in (3, 6, 9, 12):
        rare = (np.arange(1000) == 0).astype(float)
        found.append(of_atoms(f"one draw of a thousand, all but 1e-{power}", rare, AtLeast(1 - 10.0**-power)))
    for power in range(1, 8):
        rows = rng.normal(size=(3, 4))
        rows[1] = rows[0] + 10.0**-power * rows[1]
        aim = rows @ rng.normal(size=4)
        found.append(_of_gaussian(f"a Gaussian, collinear but for 1e-{power}", rows, Equal(aim), np.zeros(4)))
    for m in (199, 201):
        rows = rng.normal(size=(m, 220))
        found.append(_of_gaussian(f"{m} equalities on a Gaussian", rows, Equal(rng.normal(size=m)), np.zeros(220)))
    for power in (6, 9, 11, 12):  # two features that one draw makes equal but for 1e-power
        both = np.concatenate([rng.normal(size=(6, 2)), np.full((1, 2), 10.0**power)])
        aim = both.T @ np.append(0.999 * rng.dirichlet(np.full(6, 3.0)), 0.001)
        found.append(of_atoms(f"a draw at 1e{power} in both features, which keeps mass", both, Equal(aim)))
    return found


# Features and weights of atoms, in ordinary units


def _normal(rng: np.random.Generator, n: int, m: int) -> Floats:
    return rng.normal(size=(n, m))


def _rounded(rng: np.random.Generator, n: int, m: int) -> Floats:
    return np.round(rng.normal(size=(n, m)) * rng.choice([1.0, 3.0]))


def _indicators(rng: np.random.Generator, n: int, m: int) -> Floats:
    return (rng.random((n, m)) < rng.choice([0.1, 0.5])).astype(float)


def _skewed(rng: np.random.Generator, n: int, m: int) -> Floats:
    return np.exp(rng.choice([0.5, 2.0]) * rng.normal(size=(n, m)))


def _heavy(rng: np.random.Generator, n: int, m: int) -> Floats:
    return rng.standard_t(1.5, size=(n, m))


def _collinear(rng: np.random.Generator, n: int, m: int) -> Floats:
    """One feature more than there are directions, in small whole numbers: collinear without rounding."""
    z = np.round(3 * rng.normal(size=(n, m)))
    if m > 1:
        z[:, -1] = z[:, :-1] @ rng.integers(-2, 3, size=m - 1)
    return z


def _nearly_collinear(rng: np.random.Generator, n: int, m: int) -> Floats:
    z = rng.normal(size=(n, m))
    z[:, -1] = z[:, 0] + 10.0 ** rng.uniform(-9, -2) * rng.normal(size=n)
    return z


def _with_constant(rng: np.random.Generator, n: int, m: int) -> Floats:
    z = rng.normal(size=(n, m))
    z[:, rng.integers(m)] = rng.choice([0.0, 1.0, -3.7])
    return z


def _duplicated(rng: np.random.Generator, n: int, m: int) -> Floats:
    return rng.normal(size=(max(2, n // 4), m))[rng.integers(max(2, n // 4), size=n)]


def _classes(rng: np.random.Generator, n: int, m: int) -> Floats:
    """Indicators of m classes: they add up to one, and targets do so up to rounding."""
    return np.eye(m)[rng.integers(m, size=n)]


def _moments(rng: np.random.Generator, n: int, m: int) -> Floats:
    return rng.normal(size=(n, 1)) ** np.arange(1, m + 1)


def _rare(rng: np.random.Generator, n: int, m: int) -> Floats:
    """Events of tails, nested in each other."""
    return (rng.normal(size=(n, 1)) > np.linspace(0, 2.5, m)).astype(float)


FEATURES: dict[str, Callable[[np.random.Generator, int, int], Floats]] = {
    "normal": _normal,
    "rounded": _rounded,
    "indicators": _indicators,
    "skewed": _skewed,
    "heavy-tailed": _heavy,
    "collinear": _collinear,
    "nearly collinear": _nearly_collinear,
    "one constant": _with_constant,
    "duplicated atoms": _duplicated,
    "classes": _classes,
    "moments": _moments,
    "rare events": _rare,
}

WEIGHTS: dict[str, Callable[[np.random.Generator, int], Floats]] = {
    "uniform": lambda _, n: np.zeros(n),
    "uneven": lambda rng, n: np.log(rng.dirichlet(np.full(n, 0.5)) + 1e-300),
    "over nats": lambda rng, n: rng.choice([10.0, 100.0, 300.0]) * rng.normal(size=n),
    "one ahead": lambda rng, n: np.where(np.arange(n) == rng.integers(n), rng.uniform(20, 600), rng.normal(size=n)),
    "some zero": lambda rng, n: np.where((rng.random(n) < 0.3) & (np.arange(n) > 1), -np.inf, rng.normal(size=n)),
}


def _in_units(rng: np.random.Generator, z: Floats, common: bool, widest: float) -> tuple[str, Floats]:
    """Write features in other units, each in its own or all in common ones."""
    m = z.shape[1]
    size = 1 if common else m
    kind = rng.choice(["plain", "moderate", "extreme", "offset", "both"], p=[0.45, 0.2, 0.1, 0.15, 0.1])
    scale = np.ones(size)
    if kind in ("moderate", "both"):
        scale = 10.0 ** rng.uniform(-6, 6, size)
    if kind == "extreme":
        scale = 10.0 ** rng.uniform(-widest, widest, size)
    offset = np.zeros(m)
    if kind in ("offset", "both"):
        offset = rng.choice([-1.0, 1.0], m) * 10.0 ** rng.uniform(1, 13, m)
    return str(kind), scale * (z + offset)


# Where what is asked lies


@dataclass(frozen=True)
class Place:
    """A point of the expectations' space."""

    name: str
    x: Floats  # (m,)
    face: NDArray[np.bool_] | None = None  # the atoms that alone can have weight when the expectation is x, if known
    reachable: bool = False  # to the last bit


def _place(rng: np.random.Generator, base: Atoms, features: Floats) -> Place:
    """A point inside, on the edge or outside what atoms can reach."""
    kinds = ["inside", "tilted", "mean", "near an edge", "on an edge", "just outside", "outside", "far"]
    kind = str(rng.choice(kinds, p=[0.26, 0.18, 0.05, 0.12, 0.16, 0.1, 0.08, 0.05]))
    n, m = base.z.shape
    direction = wide(rng.normal(size=m))
    vertex = base.z[int(np.argmax(base.z @ direction))]
    if kind == "on an edge":
        return _on_an_edge(rng, base, features, vertex, direction)
    if kind == "inside":
        point = wide(rng.dirichlet(np.ones(n))) @ base.z
    elif kind == "tilted":
        point = base.expectation(base.tilted(wide(rng.normal(size=m))))
    elif kind == "mean":
        point = base.expectation(np.exp(base.log_weights))
    elif kind == "near an edge":
        point = vertex + 10.0 ** rng.uniform(-5, -1) * (base.z.mean(axis=0) - vertex)
    else:
        away = {"just outside": 1e-6, "outside": 10.0 ** rng.uniform(-4, -1), "far": 10.0 ** rng.uniform(0, 3)}[kind]
        # Along the direction itself, in which no atom is farther than the vertex.
        point = vertex + away * direction / np.sqrt(np.sum(direction**2))
    return Place(kind, narrow(base.centre + base.unit * point))


def _on_an_edge(rng: np.random.Generator, base: Atoms, features: Floats, vertex: Wide, direction: Wide) -> Place:
    """A vertex, or where features are whole numbers the middle of atoms on a common face: both without rounding."""
    if np.all(features == np.round(features)) and np.max(np.abs(features)) < 1e6:
        scores = features @ rng.integers(-2, 3, size=features.shape[1])
        face = scores == np.max(scores)
        chosen = rng.choice(np.flatnonzero(face), size=int(rng.choice([1, 2, 4])))
        return Place("on a face", features[chosen].mean(axis=0), face, True)
    face = np.all(base.z == vertex, axis=1)
    beside = base.z[~face] @ direction
    clear = not len(beside) or np.max(beside) < vertex @ direction - 1e-9 * np.sqrt(np.sum(direction**2))
    return Place("at a vertex", features[int(np.argmax(face))], face if clear else None, True)


# What is asked of expectations near x, in units of each feature

Maker = Callable[[np.random.Generator, Floats, Floats], Regularizer]


def _price(rng: np.random.Generator) -> float:
    return float(10.0 ** rng.uniform(-3, 8)) if rng.random() < 0.5 else float(10.0 ** rng.uniform(-1, 2))


def _bounds(rng: np.random.Generator, x: Floats, unit: Floats) -> Regularizer:
    return AtLeast(x) if rng.random() < 0.5 else AtMost(x)


def _interval(rng: np.random.Generator, x: Floats, unit: Floats) -> Regularizer:
    width = rng.choice([0.0, 1e-6, 0.1, 1.0]) * unit
    return AtLeast(x) + AtMost(x + width)


def _hinge(rng: np.random.Generator, x: Floats, unit: Floats) -> Regularizer:
    power = float(rng.choice([1.0, 1.0, 1.5, 2.0, 3.0]))
    hinge = Hinge(_price(rng) / unit**power, power)
    return hinge.shift(x) if rng.random() < 0.5 else hinge.reflect(x)


def _tube(rng: np.random.Generator, x: Floats, unit: Floats) -> Regularizer:
    power = float(rng.choice([1, 2]))
    price = np.inf if rng.random() < 0.2 else _price(rng)
    return EpsilonInsensitive(x, float(rng.choice([0.0, 0.1]) * unit.min()), price / unit**power, power)


def _signed(rng: np.random.Generator, x: Floats, unit: Floats) -> Regularizer:
    signs = rng.choice([-1.0, 1.0], len(x))
    return Affine(Hinge(_price(rng) / unit).shift(signs * x), scale=signs)


def _ball(rng: np.random.Generator, x: Floats, unit: Floats) -> Regularizer:
    radius = float(rng.choice([0.0, 1e-6, 0.1, 1.0]) * unit.min())
    C = np.inf if rng.random() < 0.6 else _price(rng) / float(unit.max())
    return Ball(x, radius, float(rng.choice([1, 2, np.inf])), C)


def _ridge(rng: np.random.Generator, x: Floats, unit: Floats) -> Regularizer:
    return Ridge(x, float(np.mean(unit**2)) / _price(rng))


def _multi_class(rng: np.random.Generator, x: Floats, unit: Floats) -> Regularizer:
    cost = rng.random(len(x)) * float(unit.min())
    price = np.inf if rng.random() < 0.2 else _price(rng)
    if rng.random() < 0.5:
        return MultiClassHinge(price / float(unit.max()), cost).shift(x)
    return MultiClassSquaredHinge(price / float(unit.max()) ** 2, cost).shift(x)


def _two_at_once(rng: np.random.Generator, x: Floats, unit: Floats) -> Regularizer:
    parts = [MAKERS[str(name)][0](rng, x, unit) for name in rng.choice(["bounds", "hinge", "tube", "signed"], 2)]
    return Sum([parts[0], Affine(parts[1], float(rng.choice([0.1, 1.0, 10.0])))])


def _side_by_side(rng: np.random.Generator, x: Floats, unit: Floats) -> Regularizer:
    if len(x) == 1:
        return Separable([_tube(rng, x, unit)], [1])
    cut = int(rng.integers(1, len(x)))
    names = rng.choice(["equal", "bounds", "interval", "hinge", "tube", "signed"], 2)
    runs = [slice(0, cut), slice(cut, None)]
    parts = [MAKERS[str(name)][0](rng, x[run], unit[run]) for name, run in zip(names, runs, strict=True)]
    return Separable(parts, [cut, len(x) - cut])


# name -> maker, whether all features must share a unit, the widest scale as a power of ten
MAKERS: dict[str, tuple[Maker, bool, float]] = {
    "equal": (lambda _, x, unit: Equal(x), False, 300),
    "bounds": (_bounds, False, 300),
    "interval": (_interval, False, 300),
    "hinge": (_hinge, False, 90),
    "tube": (_tube, True, 140),
    "signed": (_signed, False, 290),
    "ball": (_ball, True, 290),
    "ridge": (_ridge, True, 140),
    "multi-class": (_multi_class, True, 140),
    "two at once": (_two_at_once, True, 90),
    "side by side": (_side_by_side, True, 90),
}
SHARES = np.array([6, 4, 2, 3, 2, 1, 4, 2, 2, 2, 2]) / 30


def _posterior(rng: np.random.Generator, n: int, log_weights: Floats) -> tuple[str, Finite | Samples]:
    if rng.random() < 0.5:
        return "Finite", Finite(np.arange(float(n)), log_weights=log_weights)
    return "Samples", Samples(np.arange(float(n)), log_weights=log_weights)


def _atoms(rng: np.random.Generator) -> Problem:
    m = int(rng.choice([1, 1, 1, 2, 3, 5, 8, 20], p=[0.15, 0.15, 0.1, 0.22, 0.18, 0.1, 0.07, 0.03]))
    n = int(rng.choice([2, 3, 5, 8, 20, 50, 150]))
    shape, weighting = str(rng.choice(list(FEATURES))), str(rng.choice(list(WEIGHTS), p=[0.4, 0.2, 0.15, 0.15, 0.1]))
    asked = str(rng.choice(list(MAKERS), p=SHARES))
    maker, common, widest = MAKERS[asked]
    units, features = _in_units(rng, FEATURES[shape](rng, n, m), common, widest)
    log_weights = WEIGHTS[weighting](rng, n)
    base = Atoms.of(features, log_weights)
    place = _place(rng, base, features[log_weights > -np.inf])
    kind, posterior = _posterior(rng, n, log_weights)
    name = f"{kind} {n} x {m}, {shape}, weights {weighting}, units {units}, {asked} {place.name}"
    regularizer = maker(rng, place.x, narrow(base.unit))
    return Problem(name, posterior, features, regularizer, base, place.face, place.reachable and asked != "multi-class")


def _proportions(rng: np.random.Generator) -> Problem:
    """Divergences from known proportions: features are class indicators or positive numbers."""
    m = int(rng.choice([1, 2, 3, 5]))
    n = int(rng.choice([3, 5, 8, 20, 100]))
    shape = str(rng.choice(["classes", "soft classes", "one constant", "positive"]))
    if shape == "classes":
        features = np.eye(m)[rng.integers(m, size=n)]
    elif shape == "soft classes":
        features = rng.dirichlet(np.full(m, 0.3), n)
    else:
        features = np.exp(rng.normal(size=(n, m)) - 1) * (rng.random((n, m)) < 0.7)
        if shape == "one constant":
            features[:, 0] = 1.0
    target = rng.dirichlet(np.ones(m)) if rng.random() < 0.7 else features.mean(axis=0)
    if m > 1 and rng.random() < 0.2:
        target[0] = 0.0
    if not np.any(target > 0):
        target = np.full(m, 1.0 / m)
    weight = float(10.0 ** rng.uniform(-2, 6))
    weighting = str(rng.choice(list(WEIGHTS), p=[0.5, 0.3, 0.05, 0.05, 0.1]))
    log_weights = WEIGHTS[weighting](rng, n)
    regularizer: Regularizer = (KL if rng.random() < 0.6 else GeneralizedKL)(target, weight)
    asked = type(regularizer).__name__
    if rng.random() < 0.2:
        scale = 10.0 ** rng.uniform(-3, 3)
        features, regularizer = scale * features, type(regularizer)(scale * target, weight)
    if rng.random() < 0.15:
        regularizer = regularizer + AtMost(narrow(np.quantile(features, 0.8, axis=0)) + 0.1)
        asked += " and bounds"
    elif rng.random() < 0.2:
        beside = rng.normal(size=(n, 1))
        features = np.hstack([features, beside])
        x = np.array([rng.dirichlet(np.ones(n)) @ beside[:, 0]])
        regularizer = Separable([regularizer, _bounds(rng, x, x) if rng.random() < 0.5 else Equal(x)], [m, 1])
        asked += " beside another"
    kind, posterior = _posterior(rng, n, log_weights)
    name = f"{kind} {n} x {features.shape[1]}, {shape}, weights {weighting}, {asked} of weight {weight:.2g}"
    return Problem(name, posterior, features, regularizer, Atoms.of(features, log_weights))


def _gaussian(rng: np.random.Generator) -> Problem:
    """Affine features of a Gaussian: full rank, more than variables, repeated, constant."""
    d, m = int(rng.choice([1, 2, 5, 10])), int(rng.choice([1, 2, 3, 8, 15]))
    mean = 10.0 ** rng.uniform(-2, 2) * rng.normal(size=d)
    root: Floats = np.diag(10.0 ** rng.uniform(-2, 2, d))
    covariance: Floats = np.diag(root) ** 2
    dense = rng.random() < 0.5
    if dense:
        root = np.tril(np.round(4 * rng.normal(size=(d, d)))) / 4 + 2 * np.eye(d)  # exact: few bits
        covariance = root @ root.T
    features = np.round(8 * rng.normal(size=(m, d))) / 8
    shape = str(rng.choice(["free", "repeated", "constant"], p=[0.7, 0.2, 0.1]))
    if shape == "repeated":
        features[-1] = 2 * features[0]
    if shape == "constant":
        features[-1] = 0.0
    asked = str(rng.choice(list(MAKERS), p=SHARES))
    maker, common, widest = MAKERS[asked]
    scale = np.ones((m, 1))
    if rng.random() < 0.3:
        scale = 2.0 ** np.round(rng.uniform(-1, 1, 1 if common else (m, 1)) * rng.choice([20.0, 3.3 * widest]))
    features = scale * features
    base = Normal.of(features, mean, root)
    where = str(rng.choice(["reachable", "anywhere", "far"], p=[0.6, 0.3, 0.1]))
    move = wide(rng.normal(size=d)) @ base.factor.T if where != "anywhere" else wide(rng.normal(size=m))
    x = narrow(base.centre + base.unit * (move * (100 if where == "far" else 1)))
    name = f"Gaussian {d} x {m}, {'dense' if dense else 'diagonal'}, {shape} features, {asked} {where}"
    return Problem(name, Gaussian(mean, covariance), features, maker(rng, x, narrow(base.unit)), base)


def _of_gaussian(name: str, rows: Floats, regularizer: Regularizer, mean: Floats) -> Problem:
    """A problem on a standard Gaussian around a mean."""
    base = Normal.of(rows, mean, np.eye(len(mean)))
    return Problem(name, Gaussian(mean, np.ones(len(mean))), rows, regularizer, base)


def _large(rng: np.random.Generator) -> Problem:
    """Many draws and constraints, or a Gaussian with more equalities than Newton steps like."""
    if rng.random() < 0.2:
        m = int(rng.integers(150, 260))
        rows = rng.normal(size=(m, m + 10))
        return _of_gaussian(f"Gaussian {m + 10} x {m}, equal", rows, Equal(rng.normal(size=m)), np.zeros(m + 10))
    n, m = int(rng.choice([500, 1000])), int(rng.choice([1, 5, 20, 40]))
    features = rng.normal(size=(n, m)) @ (np.eye(m) + 0.5 * rng.normal(size=(m, m)) / np.sqrt(m))
    base = Atoms.of(features, np.zeros(n))
    x = narrow(base.centre + base.unit * base.expectation(base.tilted(wide(rng.normal(size=m)))))
    asked = str(rng.choice(["equal", "bounds", "hinge", "tube", "ball"]))
    regularizer = MAKERS[asked][0](rng, x, features.std(axis=0))
    kind, posterior = _posterior(rng, n, np.zeros(n))
    return Problem(f"{kind} {n} x {m}, large, {asked}", posterior, features, regularizer, base)
