"""The built site in a real browser: `make site` builds it, and runs these tests.

Each page is read by axe-core, on a desktop and on a phone, without a network.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from helpers.browser import Axe, Page, expect

SITE = Path(__file__).parents[3] / "build" / "site"
PAGES = sorted(str(path.relative_to(SITE)) for path in SITE.rglob("*.html"))
WRITTEN = [name for name in PAGES if name != "search.html"]
"""Pages with a heading; that of the search is the theme's."""
KINDS = "index.html", "masks.html", "flex_attention.html", "reference/torch.html"
"""A page of each kind: a frame, prose, tables of figures, a reference."""
PHONE = {"width": 390, "height": 844}
Open = Callable[..., Page]


def test_the_site_is_built() -> None:
    assert {*KINDS, "quickstart.html"} <= set(PAGES)


@pytest.mark.parametrize(
    "name", [x if x in KINDS else pytest.param(x, marks=pytest.mark.weekly) for x in WRITTEN]
)
def test_axe_finds_nothing(open_file: Open, name: str) -> None:
    page = open_file(SITE / name)
    # Files cannot be fetched, nor sent messages: a page in a frame is read by itself.
    found = Axe().run(page, options={"preload": False, "iframes": False}).response
    assert len(found["passes"]) > 10  # axe-core ran
    assert [f"{v['id']}: {v['nodes'][0]['html'][:200]}" for v in found["violations"]] == []


@pytest.mark.parametrize("name", PAGES)
def test_a_phone_shows_the_whole_width(open_file: Open, name: str) -> None:
    page = open_file(SITE / name, viewport=PHONE, color_scheme="dark")
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


def test_tabs_switch_together(open_file: Open) -> None:
    page = open_file(SITE / "quickstart.html")
    page.locator("label.sd-tab-label", has_text="JAX").first.click()
    blocks = page.locator("pre:visible", has_text="import Attention")
    assert blocks.count() == 1
    assert "from anyscore.jax import Attention" in blocks.inner_text()


def test_search_finds_a_name(open_file: Open) -> None:
    page = open_file(SITE / "search.html")
    page.goto(f"{(SITE / 'search.html').as_uri()}?q=LocationSensitive")
    page.wait_for_selector("#search-results li a", timeout=60_000)
    assert "LocationSensitive" in page.locator("#search-results").inner_text()


def test_the_models_of_the_front_page_answer_a_date(open_file: Open) -> None:
    """At least three of the five answer each date rightly; any other date may be a mistake."""
    frame = open_file(SITE / "index.html").frame_locator("iframe")
    for text, answer in [("30 mars 2024", "2024-03-30"), ("4. Juli 1995", "1995-07-04")]:
        frame.get_by_label("Your text").fill(text)
        expect(frame.get_by_text(answer, exact=True).nth(2)).to_be_visible()


def test_the_frame_has_the_theme_of_the_site(open_file: Open) -> None:
    """The system's theme is the light one, for a theme of Playwright's would reach the frame."""
    page = open_file(SITE / "index.html", color_scheme="null")
    button = page.frame_locator("iframe").locator("#theme")
    expect(button).to_have_text("Dark theme")
    page.evaluate("document.body.dataset.theme = 'dark'")
    expect(button).to_have_text("Light theme")


def test_the_front_page_is_small() -> None:
    """The page with its frame is below 1 MB; the theme of the site is shared by all pages."""
    assert sum((SITE / name).stat().st_size for name in ("index.html", "play.html")) < 1_000_000


def test_the_front_page_reads_whole_without_a_script(open_file: Open) -> None:
    page = open_file(SITE / "index.html", java_script_enabled=False)
    expect(page.get_by_text("Attention with any scoring function")).to_be_visible()
    expect(page.get_by_role("link", name="The page to play with, by itself")).to_be_visible()
    expect(page.get_by_text("One call and one layer, in your framework.")).to_be_visible()
    expect(
        page.frame_locator("iframe").get_by_text("which is switched off here").first
    ).to_be_visible()
