"""The report in a browser: clicks, sorting, keys, themes and phone layout."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from regbayes import FeatureStability
from regbayes.report import collect, render
from regbayes.report.data import Comparison, Reliability
from report_tools import FITS, HOSTILE, data_of, fitted, hostile_data

pytestmark = [
    pytest.mark.browser,
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
]

PHONE = {"width": 375, "height": 812}
NO_OVERFLOW = "document.documentElement.scrollWidth <= window.innerWidth"
BACKGROUND = "getComputedStyle(document.body).backgroundColor"


@pytest.fixture(scope="module")
def browser(chromium_path) -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=chromium_path)
        yield found
        found.close()


@pytest.fixture
def show(browser, tmp_path) -> Iterator[Any]:
    """Open a page from a file, offline; errors of the page fail the test at the end."""
    complaints: list[str] = []
    contexts = []

    def opened(data, **options):
        path = tmp_path / "page.html"
        path.write_text(render(data), encoding="utf-8")
        context = browser.new_context(offline=True, **options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(10_000)
        page.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: None if request.url == path.as_uri() else complaints.append(request.url))
        page.goto(path.as_uri())
        wait_for_charts(page)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert complaints == []


def wait_for_charts(page) -> None:
    """Wait for the next frame, in which charts are drawn."""
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def wait_until(page, condition: str) -> None:
    """Wait for a condition; the page's security policy blocks Playwright's own method."""
    for _ in range(50):
        if page.evaluate(condition):
            return
        page.wait_for_timeout(100)
    raise AssertionError(condition)


def options(page) -> list[str]:
    names = page.locator("[role=option] .name span:first-child").all_inner_texts()
    return [name.strip().split(":")[0] for name in names]


def chosen(page) -> str:
    head = page.locator("#detail h3").first.inner_text()
    (selected,) = page.locator("[role=option][aria-selected=true] .name span:first-child").all_inner_texts()
    assert head.lower() == selected.strip().lower()
    return selected.strip().split(":")[0]


@pytest.mark.parametrize("name", FITS)
def test_page_opens_on_desktop_and_phone(show, name):
    data = data_of(name)
    page = show(data)
    assert page.locator("h1").inner_text() == data.title
    assert page.evaluate(NO_OVERFLOW)
    n_used = data.features.n_in_use
    assert len(options(page)) == n_used
    if data.features.noun == "feature":
        tile = page.locator(".tile").filter(has_text="features in use")
        assert tile.locator(".value").inner_text() == str(n_used)
    expected = {
        "confusion": ".confusion",
        "tasks": "#tasks",
        "regression": "#errors circle",
        "history": "#history polyline",
        "effects": "#effects",
    }
    for part, selector in expected.items():
        assert (page.locator(selector).count() > 0) == (getattr(data, part) is not None)
    assert page.locator("canvas.picture").count() == 0 or data.kind == "image"
    page.set_viewport_size(PHONE)
    wait_until(page, NO_OVERFLOW)


def test_click_shows_feature(show):
    data = data_of("images")
    page = show(data)
    place = len(data.features.number) - 3  # two features follow
    page.locator("[role=option]").nth(place).click()
    assert chosen(page) == f"feature {data.features.number[place]}"
    shown = page.locator("#detail .bars").nth(1).locator(".figure").all_inner_texts()
    np.testing.assert_allclose([float(text) for text in shown], data.features.group_means[place], atol=6e-4)
    assert page.locator("#detail .thumbs li").count() == 10
    page.get_by_role("button", name="Next feature").click()
    assert chosen(page) == f"feature {data.features.number[place + 1]}"
    page.keyboard.press("Enter")  # the button keeps the focus
    assert chosen(page) == f"feature {data.features.number[place + 2]}"
    page.get_by_role("button", name="Previous feature").click()
    assert chosen(page) == f"feature {data.features.number[place + 1]}"
    assert page.get_by_role("status").inner_text().startswith(f"Feature {data.features.number[place + 1]}, ")


def test_feature_shows_recurrence(show):
    estimator, X, y, options = fitted("images")
    numbers = np.sort(data_of("images").features.number)
    similarity = np.linspace(0.3, 1.0, 2 * len(numbers)).reshape(2, -1)
    found = FeatureStability(numbers, similarity, np.full(2, 3), 0.8)
    data = collect(estimator, X, y, stability=found, **options)
    page = show(data)
    page.get_by_role("button", name="recurs", exact=True).click()
    best = int(np.lexsort((np.arange(len(numbers)), -data.features.returned))[0])
    assert chosen(page) == f"feature {data.features.number[best]}"
    share = f"{100 * data.features.returned[best]:.0f}%"
    assert f"recurs {share}" in page.locator("[role=option]").first.inner_text()
    facts = page.locator("#detail .facts").inner_text()
    assert share in facts
    assert data.features.returned_note in facts
    assert show(data_of("images")).get_by_role("button", name="recurs", exact=True).count() == 0


def test_click_on_topic_overview_opens_topic(show):
    data = data_of("topics")
    page = show(data)
    rows = page.locator(".glance tbody tr")
    order = np.argsort(-data.features.weights[:, 0])
    assert [row.locator("button").inner_text() for row in rows.all()] == [str(data.features.number[i]) for i in order]
    assert rows.last.locator("td").last.inner_text() == ", ".join(data.features.distinctive[order[-1]])
    rows.last.locator("button").click()
    assert chosen(page) == f"topic {data.features.number[order[-1]]}"
    assert page.get_by_role("button", name="Next topic").count() == 1
    assert page.locator(".texts").count() == 2  # top-ranked documents and worst errors
    show(data_of("text"))
    page.set_viewport_size(PHONE)
    page.locator(".glance thead").wait_for(state="hidden")


def test_feature_sorting_puts_largest_first(show):
    data = data_of("images")
    page = show(data)
    for key, keys in {
        "separation": -data.features.separation,
        "number": data.features.number,
        "use": -data.features.use,
    }.items():
        button = page.get_by_role("button", name=key, exact=True)
        button.click()
        assert button.get_attribute("aria-pressed") == "true"
        order = data.features.number[np.argsort(keys, kind="stable")]
        assert options(page) == [f"feature {number}" for number in order]
        assert chosen(page) == options(page)[0]


def test_arrow_keys_move_through_features(show):
    page = show(data_of("images"))
    names = options(page)
    page.locator("[role=option][tabindex='0']").focus()
    for key, place in [("ArrowDown", 1), ("ArrowRight", 2), ("ArrowUp", 1), ("End", len(names) - 1), ("Home", 0)]:
        page.keyboard.press(key)
        assert chosen(page) == names[place]
        assert page.evaluate("document.activeElement.getAttribute('aria-selected')") == "true"
    page.keyboard.press("ArrowLeft")
    assert chosen(page) == names[0]
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_tab_reaches_every_control_in_page_order(show):
    page = show(data_of("table"))
    seen = []
    for _ in range(24):
        page.keyboard.press("Tab")
        seen.append(page.evaluate("document.activeElement.textContent.trim().split(/\\s{2,}/)[0]"))
    assert seen[0] == "Skip to the features"
    assert seen[1:4] == ["What moves the prediction", "Features", "Errors"]
    assert {"use", "separation", "number"} <= set(seen)
    assert len([name for name in seen if name.startswith(("ash", "hue", "proline"))]) == 3


def test_theme_follows_system_and_button(show):
    page = show(data_of("images"), color_scheme="dark")
    dark = page.evaluate(BACKGROUND)
    picture = "document.querySelector('#detail canvas').toDataURL()"
    dark_picture = page.evaluate(picture)
    button = page.locator("#theme")
    button.click()  # light theme, unlike the system
    light = page.evaluate(BACKGROUND)
    assert sum(map(int, light[4:-1].split(","))) > 600 > 200 > sum(map(int, dark[4:-1].split(",")))
    assert page.evaluate(picture) != dark_picture  # canvases are redrawn
    button.click()
    assert page.evaluate(BACKGROUND) == dark
    page.reload()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.emulate_media(color_scheme="light")
    assert page.evaluate(BACKGROUND) == dark  # chosen by the button
    button.click()  # back to the theme of the system
    assert page.evaluate(BACKGROUND) == light
    page.reload()
    assert button.inner_text().strip() == "◐ auto"


def test_text_contrast_meets_wcag_in_both_themes(show):
    contrast = (Path(__file__).parent / "contrast.js").read_text(encoding="utf-8")
    for scheme in ("light", "dark"):
        for name in ("images", "labels"):
            ratio, where = show(data_of(name), color_scheme=scheme).evaluate(contrast)
            assert ratio >= 4.5, (scheme, name, where)  # minimum contrast of WCAG 2, level AA


def test_click_on_table_head_sorts_table(show):
    data = data_of("labels")
    page = show(data)
    table = page.locator("#tasks table").filter(has=page.locator("caption", has_text="Scores by task"))
    column = [*data.tasks.column_names].index("F1") + 1
    order = np.argsort(-data.tasks.columns[:, column - 1], kind="stable")
    table.get_by_role("button", name="F1", exact=True).click()
    names = table.locator("tbody tr td:first-child").all_inner_texts()
    assert names == [data.tasks.names[place] for place in order]
    assert table.locator("th").nth(column).get_attribute("aria-sort") == "descending"
    table.get_by_role("button", name="F1", exact=True).click()
    assert table.locator("tbody tr td:first-child").all_inner_texts() == names[::-1]


def test_objective_terms_can_be_hidden(show):
    data = data_of("images")
    page = show(data)
    lines = page.locator("#history polyline")
    assert not page.locator("#history .legend").is_visible()  # folded by default
    page.locator("#history summary").click()
    wait_for_charts(page)
    assert lines.count() == len(data.history.term_names) + 1
    page.locator("#history .legend button").first.click()
    wait_for_charts(page)
    assert lines.count() == len(data.history.term_names)


def test_invalid_embedded_data_show_an_error(browser, tmp_path):
    path = tmp_path / "page.html"
    path.write_text(render(replace(data_of("table"), features="</script><b>nothing</b>")), encoding="utf-8")
    page = browser.new_page()
    errors: list[str] = []
    page.on("console", lambda message: errors.append(message.text))
    page.goto(path.as_uri())
    assert "damaged" in page.locator("main").inner_text()
    assert page.locator("b").count() == 0
    assert len(errors) == 1
    page.close()


def test_untrusted_names_are_shown_and_not_executed(show):
    data = hostile_data()
    page = show(data)
    for place in range(len(data.features.number)):
        page.locator("[role=option]").nth(place).click()
    for button in page.locator("#effects .effect").all() + page.locator("#errors .row-link").all()[:2]:
        button.click()
        if page.locator("dialog").count():
            page.keyboard.press("Escape")
    assert page.evaluate("window.hacked") is None
    assert page.locator("h1").inner_text() == data.title
    heads = page.locator(".confusion tbody th").all_text_contents()
    assert heads == list(data.confusion.classes)
    assert page.locator("script").count() == 2
    assert page.locator("img").count() == 0
    page.set_viewport_size(PHONE)
    wait_until(page, NO_OVERFLOW)
    features = replace(data.features, noun="topic", distinctive=(HOSTILE,) * len(data.features.number))
    page = show(replace(data, features=features))
    assert page.locator(".glance td:last-child").first.text_content() == ", ".join(HOSTILE[:8]).replace("\ud800", "?")
    assert page.evaluate("window.hacked") is None


def table_of(page, button) -> list[list[str]]:
    """Press a button and read the downloaded file."""
    with page.expect_download() as found:
        button.click()
    text = Path(found.value.path()).read_text(encoding="utf-8-sig")
    return list(csv.reader(io.StringIO(text, newline="")))


def test_click_on_input_shows_effect_and_curve(show):
    data = data_of("table")
    page = show(data)
    effects = data.effects
    heads = page.locator("#effects .effect-name")
    order = np.argsort(-np.abs(effects.sizes[:, effects.opens_on]), kind="stable")
    assert heads.all_inner_texts() == [effects.names[i] for i in order]
    page.locator("#effects .effect").nth(1).click()
    wait_for_charts(page)
    assert page.locator(".effect-detail h3").inner_text() == effects.names[order[1]]
    assert page.locator(".effect[aria-pressed=true] .effect-name").all_inner_texts() == [effects.names[order[1]]]
    assert page.locator(".effect-curve").count() == 1
    shown = page.locator("#effects .effect .size").all_inner_texts()
    np.testing.assert_allclose([number(text) for text in shown], effects.sizes[order, effects.opens_on], atol=6e-4)
    shown = [number(text.strip(" ±")) for text in page.locator("#effects .effect .error").all_inner_texts()]
    np.testing.assert_allclose(shown, effects.errors[order, effects.opens_on], rtol=0.5)
    assert page.locator("#effects select").first.input_value() == str(effects.opens_on)
    page.locator("#effects select").first.select_option("2")
    order = np.argsort(-np.abs(effects.sizes[:, 2]), kind="stable")
    assert heads.all_inner_texts() == [effects.names[i] for i in order]
    assert "not linear" in page.locator("#effects header p").inner_text()
    page = show(replace(data, effects=replace(effects, left_out=("<b>note</b>",), n_inputs=4)))
    assert "of its own: <b>note</b>." in page.locator("#effects header p").inner_text()
    page = show(data_of("groups"))
    assert "linear in its inputs" in page.locator("#effects header p").inner_text()
    assert page.locator(".effect-curve").count() == 0


def number(text: str) -> float:
    return float(text.replace("−", "-").replace(",", ""))


@pytest.mark.parametrize("name", ["table", "labels", "topics"])
def test_every_table_can_be_downloaded(show, name):
    page = show(data_of(name))
    page.evaluate("document.querySelectorAll('details').forEach((node) => (node.open = true))")
    buttons = page.locator(".csv").all()
    assert len(buttons) >= page.locator("main table").count() > 0
    for i, button in enumerate(buttons):
        if i % 8 == 7:  # Chromium blocks more than ten downloads in quick succession
            page.reload()
            page.evaluate("document.querySelectorAll('details').forEach((node) => (node.open = true))")
        heads, *rows = table_of(page, button)
        assert rows
        assert all(len(row) == len(heads) for row in rows)


def test_downloads_match_page_and_have_no_formulas(show):
    data = replace(
        data_of("table"), effects=replace(data_of("table").effects, names=("=1+2", '"a", b', "@proline <b>"))
    )
    page = show(data)
    _, *rows = table_of(page, page.get_by_role("button", name="Download as CSV: net effects"))
    assert [row[0] for row in rows[::3]] == ["'=1+2", '"a", b', "'@proline <b>"]
    np.testing.assert_allclose([float(row[7]) for row in rows], data.effects.sizes.ravel(), rtol=1e-4)
    _, *rows = table_of(page, page.get_by_role("button", name="Download as CSV: confusion matrix"))
    assert [[int(cell) for cell in row[1:]] for row in rows] == data.confusion.counts.tolist()


def test_click_on_row_opens_dialog_with_all_inputs(show):
    data = data_of("table")
    page = show(data)
    page.locator("#errors .row-link").last.click()
    dialog = page.get_by_role("dialog")
    names = dialog.locator("dt").all_inner_texts()
    assert names[-3:] == list(data.examples.input_names)
    place = data.worst.examples[-1]
    assert dialog.locator("h3").inner_text() == data.examples.names[place]
    shown = dialog.locator("dd").all_inner_texts()[-3:]
    np.testing.assert_allclose([number(text) for text in shown], data.examples.inputs[place], rtol=1e-3)
    page.get_by_role("button", name="Close").click()
    dialog.wait_for(state="detached")  # the close event of a dialog is asynchronous


def test_warnings_are_shown_first(show):
    told = {
        "notices": [("warning", "This fit was interrupted.")],
        "fitted_to": True,
        "scores": {"accuracy": (0.9, 0.02)},
    }
    page = show(data_of("table", **told))
    assert page.locator(".notice.warning").inner_text() == "This fit was interrupted."
    assert page.locator(".tile .value").first.inner_text() == "0.900 ± 0.020"
    assert page.locator(".tile .training").first.inner_text() == "on the rows it was fitted to"
    assert (
        page.locator(".tile").filter(has_text="accuracy").count() == 2
    )  # one baseline always predicts the largest class


def test_folded_sections_open_by_link_and_in_print(show):
    page = show(data_of("table"))
    assert not page.locator("#settings dl").first.is_visible()
    page.locator("#nav").get_by_role("link", name="Settings").click()
    assert page.locator("#settings dl").first.is_visible()
    assert not page.locator("#guide dl").is_visible()
    page.pdf()
    assert page.locator("#guide dl").is_visible()


def long_names() -> Any:
    data = data_of("table")
    names = tuple(f"standardscaler_{name}_measured_in_the_field_by_hand_before_noon" for name in data.effects.names)
    five = tuple(names[i % 3] + str(i) for i in range(5))
    features = replace(
        data.features,
        example_input_names=(five,) * len(data.features.number),
        example_inputs=tuple(
            tuple((1.0, 2.0, 3.0, 4.0, "a category") for _ in range(10)) for _ in data.features.number
        ),
        loading_names=(names,) * len(data.features.number),
    )
    return replace(
        data,
        effects=replace(data.effects, names=names),
        features=features,
        examples=replace(data.examples, input_names=names),
    )


@pytest.mark.parametrize("width", [375, 1024, 1280])
def test_long_names_do_not_overlap(show, width):
    page = show(long_names(), viewport={"width": width, "height": 900})
    assert page.evaluate(NO_OVERFLOW)
    spilled = page.evaluate(
        "[...document.querySelectorAll('th, .effect-name')].filter((n) => n.scrollWidth > n.clientWidth + 1).length"
    )
    assert spilled == 0


def test_nonnegative_image_features_name_main_classes(show):
    data = data_of("images")
    means = np.tile([0.0, 3.0, 1.0, 2.0] + [0.1] * 6, (len(data.features.number), 1))
    changed = replace(data, features=replace(data.features, probabilities=False, group_means=means))
    hints = show(changed).locator("#features .option").all_inner_texts()
    assert len(hints) == len(data.features.number)
    assert all("most in 1, 3" in hint and "input" not in hint for hint in hints)


def test_comparison_and_reliability_are_shown_if_given(show):
    page = show(data_of("table"))
    assert page.locator("#comparison").count() == page.get_by_text("How far probabilities hold").count() == 0
    scores, deviations = np.array([0.4, 0.9]), np.array([np.nan, 0.02])
    sizes, seconds, verdict = np.array([-1, 5]), np.array([0.0, 2.0]), "This model is better."
    names = ("majority", "this model")
    comparison = Comparison("accuracy", names, 1, scores, deviations, sizes, seconds, verdict)
    reliability = Reliability(np.array([0.2, 0.8]), np.array([0.3, 0.7]), np.array([5, 15]), "Out of fold.")
    page = show(data_of("table", comparison=comparison, reliability=reliability))
    assert page.locator("#comparison header p").inner_text() == verdict
    assert page.locator("#comparison tr.own td").all_inner_texts() == ["this model", "0.900 ± 0.020", "5", "2"]
    assert page.locator("#comparison tbody tr").first.locator("td").all_inner_texts()[2] == "not readable"
    shown = page.locator(".panel:has(.reliability)")
    titles = ["20% probable: 30% right, of 5", "80% probable: 70% right, of 15"]
    assert shown.locator("circle title").all_text_contents() == titles
    assert shown.locator("tbody td").all_inner_texts() == ["0.200", "0.300", "5", "0.800", "0.700", "15"]
