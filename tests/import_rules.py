"""The rules on imports between the layers of the package, and the checker that reads them off the source.

Nothing is imported to check it: the syntax trees are walked, so an import inside a function counts too.
"""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

PACKAGE = "regbayes"

# Each layer may import from those before it. `_registry` holds the names of the classes that can be saved and imports
# the standard library alone; `_types` names the array types; `_extras` imports what is optional; `__init__` is the
# package's own front, the public names.
LAYERS = (
    "_registry",
    "_types",
    "_extras",
    "kernels",
    "engine",
    "framework",
    "margins",
    "joint",
    "adapters",
    "ppl",
    "priors",
    "models",
    "persistence",
    "estimators",
    "dask",
    "baselines",
    "datasets",
    "plots",
    "report",
    "__init__",
    "experiments",
    "cli",
)
PUBLIC_MODULES = {"metrics", "regularizers", "search", "testing"}  # beside __init__.py: they belong to the front
SILENT_LAYERS = LAYERS[: LAYERS.index("estimators")]  # no scikit-learn, no warning, no print

# module -> what it may import although its layer may not
EXCEPTIONS = {
    # regularize() is called by users directly; it warns when the draws cannot carry the tilt (Pareto k-hat).
    "regbayes.framework.regularize": {"warnings"},
    # regularize_moments() too: it calls regularize() many times and lets only the last call speak.
    "regbayes.framework.moments": {"warnings"},
}

# A method such as `save` reaches up, when it is called and not before.
LAZY_FROM_ANYWHERE = "persistence"

# layer -> packages of its own extra: nothing imports the modules that need them but a user who has it
EXTRA_OF_LAYER = {"cli": {"pandas", "typer"}, "dask": {"dask", "distributed"}}

COMES_WITH_SCIKIT_LEARN = {"joblib", "threadpoolctl"}

When = Literal["import", "call", "typing"]


@dataclass(frozen=True)
class Import:
    """One imported module or name, and when the import happens."""

    target: str
    line: int
    when: When


@dataclass(frozen=True)
class Violation:
    path: Path
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}"


def hard_dependencies(pyproject: Path) -> set[str]:
    """The top-level modules that an installation without extras has, beyond the standard library."""
    requirements = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]["dependencies"]
    names = {requirement.split(">")[0].split("=")[0].split("<")[0].strip() for requirement in requirements}
    return {"sklearn" if name == "scikit-learn" else name for name in names} | COMES_WITH_SCIKIT_LEARN


def violations(source: Path, dependencies: set[str]) -> list[Violation]:
    """Check every module below ``source``, the folder of the package itself."""
    return [found for path in sorted(source.rglob("*.py")) for found in _check_module(path, source, dependencies)]


def _check_module(path: Path, source: Path, dependencies: set[str]) -> Iterator[Violation]:
    parts = path.relative_to(source).with_suffix("").parts
    layer = "__init__" if parts[0] in PUBLIC_MODULES else "cli" if parts[0] == "__main__" else parts[0]
    if layer not in LAYERS:
        yield Violation(path, 1, f"{layer!r} is not one of the layers; give it a place in tests/import_rules.py")
        return
    module = ".".join((PACKAGE, *(part for part in parts if part != "__init__")))
    package = module if parts[-1] == "__init__" else module.rpartition(".")[0]
    tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    for found in sorted(_imports(tree, package), key=lambda found: found.line):
        message = _verdict(found, module, layer, dependencies)
        if message:
            yield Violation(path, found.line, message)
    if layer in SILENT_LAYERS:
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
                yield Violation(path, node.lineno, f"{layer} prints; below the estimators nothing does")


def _verdict(found: Import, module: str, layer: str, dependencies: set[str]) -> str | None:
    """Say what is wrong with an import; None if nothing is."""
    top = found.target.partition(".")[0]
    if top in EXCEPTIONS.get(module, ()):
        return None
    if top == PACKAGE:
        return _verdict_inside(found, layer)
    if layer in SILENT_LAYERS and top in ("sklearn", "warnings"):
        return f"{layer} imports {top}; below the estimators nothing does"
    if top in sys.stdlib_module_names:
        return None
    if layer == "_registry":
        return f"_registry imports {top}; it may use the standard library alone"
    if found.when == "import" and top not in dependencies | EXTRA_OF_LAYER.get(layer, set()):
        return f"{top} is optional: import it inside the function that needs it"
    return None


def _verdict_inside(found: Import, layer: str) -> str | None:
    parts = found.target.split(".")
    imported = parts[1] if len(parts) > 1 and parts[1] in LAYERS else "__init__"
    if len(parts) > 2 and imported == "__init__" and parts[1] not in PUBLIC_MODULES:
        return f"{found.target} is in none of the layers"
    if imported == LAZY_FROM_ANYWHERE and found.when == "call":
        return None
    if LAYERS.index(imported) > LAYERS.index(layer):
        what = "the package's public names" if imported == "__init__" else imported
        return f"{layer} imports {what} ({found.target}), which comes after it"
    return None


def _imports(tree: ast.Module, package: str) -> Iterator[Import]:
    """Yield all imports below a module's tree; ``from a import b`` counts as ``a.b``."""
    stack: list[tuple[ast.AST, When]] = [(tree, "import")]
    while stack:
        node, when = stack.pop()
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, when)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(node, package)
            for alias in node.names:
                yield Import(f"{base}.{alias.name}", node.lineno, when)
        elif isinstance(node, ast.If) and _is_type_checking(node.test):
            stack += [(child, "typing") for child in node.body]
            stack += [(child, when) for child in node.orelse]
        else:
            inside: When = "call" if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else when
            stack += [(child, inside) for child in ast.iter_child_nodes(node)]


def _absolute(node: ast.ImportFrom, package: str) -> str:
    if node.level == 0:
        return node.module or ""
    parents = package.split(".")
    base = parents[: len(parents) - (node.level - 1)]
    return ".".join([*base, node.module] if node.module else base)


def _is_type_checking(test: ast.expr) -> bool:
    name = test.attr if isinstance(test, ast.Attribute) else getattr(test, "id", None)
    return name == "TYPE_CHECKING"
