"""
An HTML report
==============

Write an HTML report on an iLSVM of handwritten digits, for readers who do not use Python. ``--output`` sets the file,
and ``--screenshot`` takes a picture of the page (with Chromium and the extra ``browser``).
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from contextlib import chdir
from pathlib import Path

from sklearn.datasets import load_diabetes, load_digits
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import regbayes
from regbayes import ILSVMClassifier, MultiTaskILSVMRegressor
from regbayes.report import collect, render, write_report


def take_screenshot(page: Path, picture: Path) -> None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"))
        tab = browser.new_page(viewport={"width": 1180, "height": 1500})
        tab.goto(page.resolve().as_uri())
        tab.locator("[data-sort=separation]").click()
        tab.screenshot(path=picture)
        browser.close()


def show() -> None:
    X, y = load_digits(return_X_y=True)
    X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.5, stratify=y, random_state=0)
    model = ILSVMClassifier(slab="half-normal", random_state=0).fit(X_train, y_train)

    write_report(model, X_test, y_test, "page.html", image_shape=(8, 8), data_name="held-out digits", title="Digits")
    page = Path("page.html")
    print(f"{page.name}: {page.stat().st_size / 1000:.0f} kB, with everything in it")

    data = collect(model, X_test, y_test, image_shape=(8, 8), data_name="held-out digits", title="Digits")
    data.save("digits.report")
    html = render(regbayes.load("digits.report"))  # later, without the digits

    print(f"the same page again: {html == page.read_text(encoding='utf-8')}")
    for name, value, meaning in data.model.scores:
        print(f"{name}: {value:.3f} ({meaning})")
    print(f"features in use: {data.features.n_in_use} of {data.features.n_components}")


def show_net_effects() -> None:
    frame, progression = load_diabetes(return_X_y=True, as_frame=True, scaled=False)
    regressor = MultiTaskILSVMRegressor(include_inputs=True, max_iter=20, random_state=0)
    pipeline = make_pipeline(StandardScaler(), regressor).fit(frame, progression)
    effects = collect(pipeline, frame, progression).effects
    for name, slope, deviation in zip(effects.names[:3], effects.slopes[:, 0], effects.deviations, strict=False):
        print(f"{name}: {slope:+.2f} per unit, {slope * deviation:+.1f} per standard deviation")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, help="the file to write; one that is thrown away by default")
    parser.add_argument("--screenshot", type=Path, help="write a picture of the page to this file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        with chdir(folder):
            show()
        show_net_effects()
        if options.output:
            shutil.copy(Path(folder) / "page.html", options.output)
        if options.screenshot:
            take_screenshot(Path(folder) / "page.html", options.screenshot)


if __name__ == "__main__":
    main()
