"""Find words of the project's private dialect in pages, docstrings, comments, messages and test names.

    python tools/prose_lint.py .           # counts per pattern and kind of text
    python tools/prose_lint.py . --list    # file:line of each hit
    python tools/prose_lint.py . --max N   # exit 1 above N hits; lower N with every change

Uses only the standard library. Mark a line that needs a word with `# prose: ok`, or `<!-- prose: ok -->` on a page.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import subprocess
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

KINDS = ("page", "docstring", "message", "comment", "test name", "commit")

PATTERNS = {  # pattern -> replacement
    r"\b(rows|draws|data|target|labels) (is|are|was|were) asked\b|\basks? the rows\b|\brows that are asked\b": "detect, infer, test",
    r"\b(rows|draws|data|inputs|features|fits?|labels|columns|margins|prices?) (says?|tells?|asks?|wants?|knows?|hears?|heard|speaks?)\b": "name the attribute or the function: reports, requires, determines",
    r"\bcomes? back\b|\bcame back\b": "recur, are stable, are recovered; returns",
    r"\banswers?\b(?! key)": "result, solution, prediction, predicted class",
    r"\banswered\b": "predicted",
    r"\bprices?\b": "penalty, cost",
    r"\b(is|are|was|were|be) told\b|\btold (apart|by|that|no)\b": "is passed, is distinguished, receives",
    r"\bclimb\w*\b|\brungs?\b|\bladder\b": "adaptive tempering: run, stage, schedule",
    r"\broom\b": "memory, capacity, space",
    r"\bamounts?\b": "nonnegative value, activation",
    r"\bthe law\b": "reference implementation",
    r"\bcarry (the|this|a|it|what)\b|\bcarried\b": "represent, support (reweighting is reliable)",
    r"\bbeside\b": "in addition to, alongside, next to, and",
    r"\bvar(y|ies) by degrees\b": "are continuous",
    r"\bholes\b": "missing values",
    r"\bgo(es)? on from\b|\bwent on from\b": "continue from, warm-start from",
    r"\b(is|are) no (?!longer|more|less|such|need|other|better|worse|guarantee|way|reason|warning|difference|point|known|single)\w+": "is not a ...",
    r"\bput down to\b": "attributed to",
    r"\bkept aside\b|\bset aside\b": "held out",
    r"\bgraphics cards?\b|\bon a card\b|\bthe card\b": "GPU",
    r"\bby heart\b|\bfrom a stranger\b|\bstrangers\b": "memorized; untrusted file",
    r"\banew\b": "again",
    r"\bpays? (off|for itself|for themselves)\b|\bdoes not pay\b": "improves the objective",
    r"\btaken for\b": "treated as",
    r"\bis content with\b|\bare content with\b|\ba word is due\b|\bas they are\b|\bof which the\b": "rewrite",
    r"\belsewhere\b|\bcome home\b": "on another device or worker",
    r"\bsettle[sd]?\b": "update, prune, snap, converge: what it does",
}
RULES = [(re.compile(pattern, re.IGNORECASE), better) for pattern, better in PATTERNS.items()]
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
CODE = re.compile(r"```.*?```", re.DOTALL)


def python_prose(path: Path) -> Iterator[tuple[str, int, str]]:
    """Yield kind, line and text of comments, docstrings, messages and test names."""
    text = path.read_text(encoding="utf-8")
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and "prose: ok" not in token.string:
            yield "comment", token.start[0], token.string
    nodes = list(ast.walk(ast.parse(text)))
    docstrings = set()
    for node in (node for node in nodes if isinstance(node, DOCUMENTED)):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            yield "test name", node.lineno, node.name.replace("_", " ")
        if node.body and isinstance(node.body[0], ast.Expr) and isinstance(node.body[0].value, ast.Constant):
            docstring = node.body[0].value
            if isinstance(docstring.value, str):
                docstrings.add(docstring)
                yield "docstring", docstring.lineno, docstring.value
    for node in nodes:
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value.strip()
        if is_text and node not in docstrings:
            yield "message", node.lineno, node.value


def page_prose(path: Path) -> Iterator[tuple[str, int, str]]:
    """Yield the lines of a page outside code blocks."""
    text = CODE.sub(lambda block: "\n" * block[0].count("\n"), path.read_text(encoding="utf-8"))
    for number, line in enumerate(text.splitlines(), 1):
        if "prose: ok" not in line:
            yield "page", number, re.sub(r"`[^`]*`", "", line)


def all_prose(root: Path) -> Iterator[tuple[Path, str, int, str]]:
    """Yield path, kind, line and text of all prose of the repository."""
    pages = [root / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")]
    for path in filter(Path.exists, [*pages, *sorted((root / "docs").rglob("*.md"))]):
        yield from ((path, *found) for found in page_prose(path))
    for folder in ("src", "paper", "tests", "examples", "benchmarks"):
        for path in sorted((root / folder).rglob("*.py")):
            yield from ((path, *found) for found in python_prose(path))
    command = ["git", "-C", str(root), "log", "-60", "--format=%s"]
    log = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    yield from ((root / ".git", "commit", number, line) for number, line in enumerate(log.splitlines(), 1))


def main() -> int:
    """Print a table of hits."""
    parser = argparse.ArgumentParser(description="Find words that only this project uses.")
    parser.add_argument("root", type=Path, help="Root of the repository.")
    parser.add_argument("--list", action="store_true", help="Print file and line of each hit.")
    parser.add_argument("--max", type=int, metavar="N", help="Exit with status 1 above N hits.")
    options = parser.parse_args()
    table: Counter[tuple[int, str]] = Counter()
    for path, kind, line, text in all_prose(options.root):
        for index, (rule, better) in enumerate(RULES):
            for hit in rule.findall(text):
                table[index, kind] += 1
                if options.list:
                    word = hit if isinstance(hit, str) and hit else rule.search(text)[0]
                    print(f"{path}:{line}: {word!r} -> {better}")
    print(f"{'':60s}" + "".join(f"{kind:>11s}" for kind in KINDS))
    for index, (rule, _) in enumerate(RULES):
        print(f"{rule.pattern[:58]:60s}" + "".join(f"{table[index, kind] or '':>11}" for kind in KINDS))
    sums = [sum(table[index, kind] for index in range(len(RULES))) for kind in KINDS]
    print(f"{'all':60s}" + "".join(f"{n:>11d}" for n in sums), " total", sum(sums))
    return int(options.max is not None and sum(sums) > options.max)


if __name__ == "__main__":
    raise SystemExit(main())
