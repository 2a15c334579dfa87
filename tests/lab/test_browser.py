"""The report in a real browser: it renders, answers the mouse, has two themes, fits a phone."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright
from sample_metrics import sample_metrics

from anyscore.lab.report import write_report

DESKTOP = {"width": 1280, "height": 900}
PHONE = {"width": 375, "height": 740}
Open = Callable[..., Page]


def find_browser() -> str:
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if found := shutil.which(name):
            return found
    pytest.fail(
        "the report is tested in a real browser, and none was found: "
        "install chromium (Debian: apt-get install chromium)"
    )


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = find_browser()
    with sync_playwright() as playwright:
        options = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        browser = playwright.chromium.launch(executable_path=path, headless=True, args=options)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("reports")
    paths = {kind: folder / f"{kind}.html" for kind in ("dates", "sentences")}
    for kind, path in paths.items():
        write_report(sample_metrics(kind), path)
    return paths


@pytest.fixture
def open_report(browser: Browser, reports: dict[str, Path]) -> Iterator[Open]:
    """Opens a report; at the end of the test nothing may have gone wrong in it."""
    pages: list[Page] = []
    wrong: list[str] = []

    def open_page(kind: str = "dates", path: Path | None = None, **options: Any) -> Page:
        page = browser.new_page(**{"viewport": DESKTOP, "color_scheme": "light"} | options)
        pages.append(page)
        page.on("console", lambda message: wrong.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: wrong.append(f"error: {error}"))
        page.on("request", lambda request: note_request(request.url))
        page.goto((path or reports[kind]).as_uri())
        return page

    def note_request(url: str) -> None:
        if not url.startswith(("file://", "data:", "blob:")):
            wrong.append(f"request: {url}")

    open_page.wrong = wrong  # type: ignore[attr-defined]
    yield open_page
    for page in pages:
        page.close()
    assert wrong == []


def colour(page: Page, selector: str, name: str = "color") -> tuple[int, ...]:
    value = page.eval_on_selector(selector, f"node => getComputedStyle(node)['{name}']")
    return tuple(int(n) for n in re.findall(r"\d+", value)[:3])


def hover(page: Page, panel: int, key: int, query: int, shape: tuple[int, int]) -> str:
    """Move the mouse onto a cell of an alignment, and read what the report says there."""
    keys, queries = shape
    area = page.locator(".heat").nth(panel).locator(".nsewdrag")
    area.scroll_into_view_if_needed()
    box = area.bounding_box()
    assert box is not None
    x = box["x"] + box["width"] * (query + 0.5) / queries
    y = box["y"] + box["height"] * (key + 0.5) / keys
    page.mouse.move(x - 3, y - 3)
    page.mouse.move(x, y)
    label = page.locator(".heat").nth(panel).locator(".hoverlayer .hovertext")
    label.wait_for()
    page.wait_for_timeout(120)  # Plotly updates a label that already shows after a moment
    return re.sub("[\u2068\u2069]", "", label.text_content() or "")


def test_everything_is_drawn(open_report: Open) -> None:
    page = open_report()
    assert page.locator("#match .scatterlayer .trace").count() == 5
    assert page.locator("#loss .scatterlayer .trace").count() == 10
    assert page.locator("#trade .scatterlayer .point").count() == 5
    assert page.locator("#panels .panel").count() == 5
    assert page.locator("#panels .heatmaplayer image").count() == 5
    top = page.locator("#panels .panel").evaluate_all("all => all.map(p => p.offsetTop)")
    assert len(set(top)) == 1  # side by side
    assert page.locator("h1").text_content() == "Dates in 60 languages → ISO 8601"


def test_hover_tells_tokens_and_weight(open_report: Open) -> None:
    page = open_report()
    for panel, name in ((0, "additive"), (4, "scaled_dot")):
        score = next(s for s in sample_metrics()["scores"] if s["name"] == name)
        example = score["examples"][0]
        for key, query in ((0, 8), (2, 10), (8, 0), (11, 3)):
            text = hover(page, panel, key, query, (12, 11))
            source = {" ": "space"}.get(example["source"][key], example["source"][key])
            output = [*example["output"], "end of output"][query]
            weight = f"{example['weights'][query][key]:.3f}"
            assert text == f"output {output}source {source}weight {weight}"


def test_choosing_another_item(open_report: Open) -> None:
    page = open_report()
    page.select_option("#item", "5")  # with right-to-left marks, which cannot be seen
    example = sample_metrics()["scores"][2]["examples"][5]
    assert example["source"][2] == "\u200f"
    text = hover(page, 0, 2, 4, (len(example["source"]), 11))
    assert text == f"output -source right-to-left markweight {example['weights'][4][2]:.3f}"
    page.click("#next")
    assert page.locator(".verdict").all_text_contents() == ["✓ right"] * 3 + ["✗ wrong"] * 2
    assert page.locator(".item:visible dd").last.text_content() == "2000-06-06"
    for _ in range(2):
        page.click("#next")
    assert page.input_value("#item") == "0"
    page.click("#previous")
    assert page.input_value("#item") == "7"


def test_markup_in_tokens_is_text(open_report: Open) -> None:
    page = open_report("sentences")
    page.select_option("#item", "3")
    assert hover(page, 0, 0, 0, (10, 11)).startswith("output <source <weight 0.")
    assert "<b>stop</b> & réfléchis" in (page.locator(".output").first.text_content() or "")


def test_button_turns_everything_dark(open_report: Open) -> None:
    page = open_report()
    plot_text, tick = "#trade .scatterlayer text", "#panels .heat .xtick text, #panels .heat text"
    assert min(colour(page, "body", "background-color")) > 230
    assert max(colour(page, plot_text, "fill")) < 80
    assert max(colour(page, tick, "fill")) < 80
    page.click("#theme")
    assert max(colour(page, "body", "background-color")) < 50
    assert min(colour(page, plot_text, "fill")) > 180
    assert min(colour(page, tick, "fill")) > 180
    assert page.text_content("#theme") == "Light theme"
    page.click("#theme")
    assert min(colour(page, "body", "background-color")) > 230
    assert max(colour(page, plot_text, "fill")) < 80


def test_follows_the_system(open_report: Open) -> None:
    page = open_report(color_scheme="dark")
    assert max(colour(page, "body", "background-color")) < 50
    assert min(colour(page, "#trade .scatterlayer text", "fill")) > 180
    page.emulate_media(color_scheme="light")
    expect(page.locator("#theme")).to_have_text("Dark theme")
    assert max(colour(page, "#trade .scatterlayer text", "fill")) < 80


@pytest.mark.parametrize("kind", ["dates", "sentences"])
def test_fits_a_phone(open_report: Open, kind: str) -> None:
    page = open_report(kind, viewport=PHONE, has_touch=True)
    for item in range(page.locator("#item option").count()):
        page.select_option("#item", str(item))
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


def test_interrupted_before_the_first_epoch(open_report: Open, tmp_path: Path) -> None:
    metrics = sample_metrics()
    metrics["interrupted"] = True
    for score in metrics["scores"]:
        score |= {"test": None, "finished": False, "epochs": [], "examples": [], "step_ms": None}
    write_report(metrics, tmp_path / "report.html")
    page = open_report(path=tmp_path / "report.html")
    assert page.locator("text=Interrupted.").is_visible()
    assert page.text_content("#theme") == "Dark theme"  # the script ran to its end


def test_the_network_is_closed(open_report: Open, reports: dict[str, Path]) -> None:
    """That the other tests can fail: a request is noticed, and the page's policy forbids it."""
    page = open_report()
    page.evaluate("fetch('http://example.invalid/').catch(() => 0)")
    noticed = open_report.wrong  # type: ignore[attr-defined]
    assert any("Content Security Policy" in text for text in noticed)
    noticed.clear()
