"""Count lines, module constants, functions and numeric literals of the source.

    python tools/sizes.py            # totals, and lines of each package

Only tracked files count. tests/test_sizes.py compares the totals with the table in docs/architecture.md.
"""

from __future__ import annotations

import ast
import subprocess
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = "src/regbayes/"
PLAIN_NUMBERS = {-1, 0, 1, 2, 3, 0.5}  # literals that do not count


def tracked_files() -> list[Path]:
    """Return the tracked files of the repository, relative to its root."""
    command = ["git", "-C", str(ROOT), "ls-files"]
    names = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return [Path(name) for name in names if (ROOT / name).is_file()]


def read(path: Path) -> str:
    return (ROOT / path).read_text(encoding="utf-8", errors="replace")


def module_constants(tree: ast.Module) -> list[str]:
    """Return the uppercase names assigned at module level, once for each assignment."""
    names = []
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                parts = target.elts if isinstance(target, ast.Tuple) else [target]
                names += [part.id for part in parts if isinstance(part, ast.Name)]
    return [name for name in names if name.strip("_").isupper() and len(name) > 1]


def numeric_literals(function: ast.AST) -> int:
    """Count the numeric literals of a function, except small integers and one half."""
    constants = (node.value for node in ast.walk(function) if isinstance(node, ast.Constant))
    return sum(type(value) in (int, float) and value not in PLAIN_NUMBERS for value in constants)


def measure() -> dict[str, int]:
    """Return the totals by name."""
    files = tracked_files()

    def lines(folder: str, *suffixes: str) -> int:
        return sum(read(path).count("\n") for path in files if path.is_relative_to(folder) and path.suffix in suffixes)

    sources = [read(path) for path in files if path.is_relative_to("src") and path.suffix == ".py"]
    trees = [ast.parse(source) for source in sources]
    functions = [n for tree in trees for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    return {
        "src lines": lines("src", ".py"),
        "src kilobytes": round(sum(len(source) for source in sources) / 1024),
        "paper lines": lines("paper", ".py"),
        "tests lines": lines("tests", ".py"),
        "benchmarks lines": lines("benchmarks", ".py"),
        "examples lines": lines("examples", ".py"),
        "docs lines": lines("docs", ".md", ".rst"),
        "js and css lines": lines("src", ".js", ".css", ".html"),
        "module constants": sum(len(module_constants(tree)) for tree in trees),
        "functions": len(functions),
        "numeric literals": sum(numeric_literals(function) for function in functions),
    }


def package_lines() -> Counter[str]:
    """Return the lines of Python in each package; ``front`` is the modules outside packages."""
    found: Counter[str] = Counter()
    for path in tracked_files():
        if path.is_relative_to(PACKAGE) and path.suffix == ".py":
            parts = path.relative_to(PACKAGE).parts
            found[parts[0] if len(parts) > 1 else "(front)"] += read(path).count("\n")
    return found


def main() -> None:
    """Print the totals and the lines of each package."""
    for name, value in (*measure().items(), ("", ""), *package_lines().most_common()):
        print(f"{name:18}{value:>8}")


if __name__ == "__main__":
    main()
