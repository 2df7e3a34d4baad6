"""What is distributed: the wheel holds the package and nothing else, the sdist nothing of the paper."""

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


def test_sdist_holds_nothing_of_the_paper(distributions):
    (sdist,) = distributions.glob("regbayes-*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = [Path(name).relative_to(Path(name).parts[0]) for name in archive.getnames()]
    assert Path("src/regbayes/__init__.py") in names
    assert not [name for name in names if name.is_relative_to("paper") or name.is_relative_to("tests/paper")]
