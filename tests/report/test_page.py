"""The report is one self-contained file that shows the collected data."""

from __future__ import annotations

import base64
import hashlib
import re
import subprocess
import sys
from email.message import Message

import numpy as np
import pytest

import regbayes
from ilsvm_estimator_tools import ilsvm, overlapping
from persistence_tools import assert_same
from regbayes.report import collect, render, write_report
from regbayes.report._examples import loading_pictures, shrunk, thumbnails
from report_tools import FITS, HOSTILE, data_of, fitted, hostile_data, payload

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


@pytest.mark.parametrize("name", FITS)
def test_render_contains_collected_data(name):
    data = data_of(name)
    page = payload(render(data))
    assert page["title"] == data.title
    np.testing.assert_allclose(page["features"]["use"], data.features.use, rtol=1e-4)
    assert page["features"]["number"] == data.features.number.tolist()
    assert page["examples"]["names"] == list(data.examples.names)
    parts = [part for part in ("confusion", "tasks", "regression", "worst") if page[part] is not None]
    assert parts == [part for part in ("confusion", "tasks", "regression", "worst") if getattr(data, part) is not None]


@pytest.mark.parametrize("name", FITS)
def test_saved_data_render_the_same_page(name, tmp_path):
    data = data_of(name)
    data.save(tmp_path / "data")
    found = regbayes.load(tmp_path / "data")
    assert_same(found, data)
    assert render(found) == render(data)


def test_new_process_loads_saved_data(tmp_path):
    data_of("images").save(tmp_path / "data")
    program = "import regbayes, sys; print(type(regbayes.load(sys.argv[1])).__name__)"
    command = [sys.executable, "-c", program, str(tmp_path / "data")]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == "ReportData"


def test_page_allows_only_its_own_script_and_style():
    page = render(data_of("images"))
    assert not re.search(r"(src|href)\s*=\s*[\"'](?!#)|@import|url\(|fetch\(|XMLHttpRequest|import\(", page)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)[1]
    assert policy.startswith("default-src 'none'; ")
    for kind in ("script", "style"):
        (content,) = re.findall(rf"<{kind}>(.*?)</{kind}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
    assert "unsafe" not in policy


def test_script_never_inserts_text_as_markup():
    (script,) = re.findall(r"<script>(.*?)</script>", render(data_of("images")), re.DOTALL)
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|srcdoc", script)


def test_untrusted_names_stay_inside_json():
    data = hostile_data()
    page = render(data)
    assert page.count("<script") == page.count("</script") == 2
    assert page.count("<title") == page.count("</title") == 1
    assert not re.search(r"<(img|svg|!-- <)", page)
    assert payload(page)["confusion"]["classes"] == list(data.confusion.classes)
    assert payload(page)["features"]["loading_names"][0][0] in [
        name.encode("utf-8", "replace").decode() for name in HOSTILE[3:6]
    ]
    page.encode("utf-8")


def test_non_finite_numbers_become_null():
    X, y = overlapping(90)
    page = render(collect(ilsvm(4).fit(X, y), X[y > 0], y[y > 0]))
    assert payload(page)["features"]["group_means"][0][0] is None


def test_write_report_writes_page(tmp_path):
    estimator, X, y, own = fitted("images")
    path = write_report(estimator, X, y, tmp_path / "page.html", title="Näive ☃", **own)
    assert path.read_text(encoding="utf-8") == render(collect(estimator, X, y, title="Näive ☃", **own))


def test_render_without_report_data_raises():
    with pytest.raises(TypeError, match=r"data must be a ReportData, .* got dict"):
        render({})


def test_thumbnails_are_scaled_from_dark_to_bright():
    rows = np.arange(12.0).reshape(3, 4)
    pictures = thumbnails(rows, (2, 2))
    assert pictures.shape == (3, 2, 2)
    assert np.all(np.diff(pictures.ravel().astype(int)) >= 0)
    assert (pictures.min(), pictures.max()) == (0, 255)
    assert np.all(thumbnails(np.ones((2, 4)), (2, 2)) == 0)
    assert thumbnails(np.zeros((2, 12)), (2, 2, 3)).shape == (2, 2, 2, 3)
    assert thumbnails(np.zeros((0, 4)), (2, 2)).shape == (0, 2, 2)
    many = thumbnails(np.random.default_rng(0).random((1500, 64 * 64)), (64, 64))
    assert many.nbytes < 2_000_000


def test_large_images_are_downsampled():
    image = np.add.outer(np.arange(100.0), np.arange(150.0))[None]
    small = shrunk(image, 50)
    assert small.shape == (1, 34, 50)
    np.testing.assert_allclose(small[0, 3, 5], image[0, 9:12, 15:18].mean())
    assert shrunk(image, 150) is image
    loadings, limit = loading_pictures(-np.ones((2, 12)), (2, 2, 3))
    assert (loadings.shape, loadings.min(), loadings.max(), limit) == ((2, 2, 2), -127, -127, 1.0)


def test_page_links_to_documentation_of_package_metadata(monkeypatch):
    def link(*urls):
        named = Message()
        for url in urls:
            named.add_header("Project-URL", url)
        monkeypatch.setattr("importlib.metadata.metadata", lambda _: named)
        return payload(render(data_of("table")))["documentation"]

    docs = "https://example.org/docs"
    assert link("Source, https://example.org/code", f"Documentation, {docs}") == docs
    assert link("Documentation, javascript:alert(1)") is None
    assert link() is None
