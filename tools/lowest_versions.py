"""Print a pip constraint for the lowest minor version that pyproject.toml allows of each dependency.

    python tools/lowest_versions.py dask ppl    # the dependencies, and those of the extras named

The newest patch of that minor version is taken: older ones have known bugs.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def lowest(requirement: str) -> str:
    """Turn ``name>=1.2.3`` or ``name>=1.2`` into ``name==1.2.*``.

    >>> lowest("dask[array]>=2024.8.1")
    'dask==2024.8.*'
    """
    name, _, version = requirement.partition(">=")
    return f"{name.split('[')[0]}=={'.'.join(version.split('.')[:2])}.*"


def main(extras: list[str]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    requirements = list(project["dependencies"])
    for extra in extras:
        requirements += project["optional-dependencies"][extra]
    print("\n".join(lowest(requirement) for requirement in requirements))


if __name__ == "__main__":
    main(sys.argv[1:])
