"""What is distributed: the wheel and the sdist hold the package, and nothing of the paper or the tests."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import regbayes
import sizes

ROOT = Path(__file__).parents[1]

pytestmark = pytest.mark.skipif(not (ROOT / ".git").exists(), reason="the checkout says which files belong in a wheel")


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "--directory", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return folder


def test_wheel_holds_the_tracked_files_of_the_package(distributions):
    (wheel,) = distributions.glob(f"regbayes-{regbayes.__version__}-*.whl")
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    package = {str(path.relative_to("src")) for path in sizes.tracked_files() if path.is_relative_to("src")}
    assert names == package
    assert "regbayes/py.typed" in names


def test_sdist_holds_the_source_and_what_it_is_built_from(distributions):
    (sdist,) = distributions.glob("regbayes-*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = [Path(*Path(member.name).parts[1:]) for member in archive if member.isfile()]
    source = [path for path in sizes.tracked_files() if path.is_relative_to("src")]
    written = ["PKG-INFO", "pyproject.toml", ".gitignore", "README.md", "CHANGELOG.md", "LICENSE"]
    assert sorted(names) == sorted([*source, *map(Path, written)])
