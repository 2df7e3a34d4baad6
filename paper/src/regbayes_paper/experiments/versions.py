"""What code a number came from: a part of the fingerprint of every record.

Between releases the version stays the same while the code changes, so the source itself is digested: of the shared
protocol for all systems, and of the models for those that the package implements.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import regbayes

PACKAGE = Path(__file__).parent.parent
LIBRARY = Path(regbayes.__file__).parent
MODELS = (
    *(LIBRARY / name for name in ("kernels", "engine", "regularization", "margins", "joint", "models", "estimators")),
    *(PACKAGE / name for name in ("priors", "models", "baselines")),
)
PROTOCOL = ("tuning.py", "data.py", "peers.py", "variants.py")


def digest_of(files: Iterable[Path]) -> str:
    """Return a digest of the names and the content of files, whatever their order."""
    digest = hashlib.sha256()
    for path in sorted(files):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


@cache
def protocol_code() -> str:
    """Digest of how systems are tuned and scored."""
    return digest_of(PACKAGE / "experiments" / name for name in PROTOCOL)


@cache
def model_code() -> str:
    """Digest of the models, the estimators and the code they use."""
    return digest_of(path for folder in MODELS for path in folder.rglob("*.py"))
