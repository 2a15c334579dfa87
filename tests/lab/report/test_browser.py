"""The report in a real browser: drawn, read aloud, by keyboard, in two themes, on a phone."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from helpers.browser import Axe, Page, expect
from lab.hostile_comparison import HOSTILE, hostile_comparison
from lab.parsed_report import write_report
from lab.sample_comparison import sample_comparison

DESKTOP = {"width": 1280, "height": 900}
PHONE = {"width": 390, "height": 844}
Open = Callable[..., Page]


@pytest.fixture
def open_report(open_file: Open, tmp_path: Path) -> Open:
    """Return a function that opens the report of a comparison."""
    numbers = itertools.count()

    def open_page(comparison: dict[str, Any] | None = None, **options: Any) -> Page:
        path = tmp_path / f"report{next(numbers)}.html"
        write_report(comparison or sample_comparison(), path)
        return open_file(path, **options)

    open_page.wrong = open_file.wrong  # type: ignore[attr-defined]
    return open_page


def colour(page: Page, selector: str, name: str = "color") -> tuple[int, ...]:
    value = page.eval_on_selector(selector, f"node => getComputedStyle(node)['{name}']")
    return tuple(int(n) for n in re.findall(r"\d+", value)[:3])


def width(page: Page) -> int:
    return int(page.evaluate("document.documentElement.scrollWidth"))


def complaints(page: Page) -> list[str]:
    """Return the violations that axe-core finds."""
    found = Axe().run(page).response
    assert len(found["passes"]) > 20  # axe-core ran
    return [f"{v['id']}: {v['nodes'][0]['html'][:200]}" for v in found["violations"]]


@pytest.mark.parametrize(
    ("kind", "seeds", "options"),
    [
        ("dates", 1, {"color_scheme": "dark"}),
        ("dates", 3, {}),
        ("sentences", 1, {"viewport": PHONE}),
        ("sentences", 3, {"color_scheme": "dark", "viewport": PHONE}),
    ],
)
def test_axe_finds_nothing(
    open_report: Open, kind: str, seeds: int, options: dict[str, Any]
) -> None:
    page = open_report(sample_comparison(kind, seeds), **options)
    page.locator("summary").last.click()
    assert complaints(page) == []


def test_axe_would_find_something(open_report: Open) -> None:
    page = open_report()
    page.evaluate(
        "document.querySelectorAll('.scroll').forEach(e => e.setAttribute('aria-label', 'same'))"
    )
    assert [text.split(":")[0] for text in complaints(page)] == ["landmark-unique"]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_does_nothing(open_report: Open, text: str) -> None:
    comparison = hostile_comparison(text)
    page = open_report(comparison | {"examples": comparison["examples"][:2]})
    page.locator("summary").last.click()
    assert width(page) <= DESKTOP["width"]
    page.set_viewport_size(PHONE)
    assert width(page) <= PHONE["width"]
    assert page.locator("h2").count() == (7 if text else 6)  # empty code is not shown
    assert page.locator("footer").is_visible()


def test_marks_stand_where_the_numbers_say(open_report: Open) -> None:
    for options in ({}, {"viewport": PHONE}):
        page = open_report(**options)
        ticks = page.locator(".forest thead .ticks text").evaluate_all(
            "all => all.map(t => { const b = t.getBoundingClientRect();"
            " return [Number(t.textContent), b.x + b.width / 2]; })"
        )
        (low, left), (high, right) = ticks[0], ticks[-1]
        pairs = sorted(
            sample_comparison()["verdict"]["differences"], key=lambda d: -d["difference"]
        )
        marks = page.locator(".forest .layer path[transform]:not([fill-opacity])")
        assert marks.count() == len(pairs) == 10
        for i, pair in enumerate(pairs):
            box = marks.nth(i).bounding_box()
            assert box is not None
            wanted = left + (pair["difference"] - low) * (right - left) / (high - low)
            assert box["x"] + box["width"] / 2 == pytest.approx(wanted, abs=1.5)


def test_pictures_keep_their_letters(open_report: Open) -> None:
    """A narrow page narrows the pictures, and keeps the size of their letters."""
    sizes = []
    for options in ({}, {"viewport": PHONE}):
        page = open_report(**options)
        box = page.locator(".panel text").first.bounding_box()
        assert box is not None
        sizes.append(box["height"])
        panel = page.locator(".panel svg > path").first.bounding_box()
        line = page.locator(".panel .layer path").first.bounding_box()
        assert panel is not None
        assert line is not None
        assert line["width"] == pytest.approx(panel["width"], abs=3)
    assert sizes[0] == pytest.approx(sizes[1])


def test_it_reads_aloud(open_report: Open) -> None:
    page = open_report()
    forest = page.get_by_role("table", name="Differences between the scores").aria_snapshot()
    assert '- rowheader "additive over scaled_dot"' in forest
    assert re.search(r'- cell "8.7 7.7 to 9.7"', forest)
    weights = page.get_by_role("region", name="Weights of additive, test item 1", exact=True)
    snapshot = weights.get_by_role("table").aria_snapshot()
    assert '- columnheader "end of output"' in snapshot
    assert '- rowheader "space"' in snapshot
    example = sample_comparison()["examples"][0]
    row = weights.get_by_role("row").nth(1)
    cells = [cell.aria_snapshot() for cell in row.get_by_role("cell").all()]
    wanted = [round(100 * w[0]) for w in example["answers"]["additive"]["weights"]]
    assert cells == [f'- cell "{percent}"' for percent in wanted]
    assert page.get_by_role("img", name=re.compile(r"additive: 9\d\.\d % right")).count() == 1


def test_the_table_of_pairs_is_one_on_a_phone_too(open_report: Open) -> None:
    page = open_report(viewport=PHONE)
    table = page.get_by_role("table", name="Differences between the scores")
    assert table.get_by_role("row").count() == 11
    assert table.get_by_role("columnheader").count() == 5
    assert table.get_by_role("row").nth(1).get_by_role("cell").count() == 4


def test_by_keyboard(open_report: Open) -> None:
    page = open_report()
    reached = []
    for _ in range(40):
        page.keyboard.press("Tab")
        reached.append(
            page.evaluate(
                "(({id, tagName, ariaLabel}) => id || ariaLabel || tagName)(document.activeElement)"
            )
        )
    for wanted in ("theme", "Table of scores", "SUMMARY", "previous", "example", "next", "Code"):
        assert wanted in reached
    assert "Weights of additive, test item 1" in reached
    page.locator("#next").focus()
    page.keyboard.press("Enter")
    assert page.locator("#example").evaluate("e => e.selectedIndex") == 1
    expect(page.locator(".item:visible dd").last).to_have_text("2019-08-14")


def test_choosing_another_item(open_report: Open) -> None:
    page = open_report()
    assert page.locator(".example:visible").count() == 1
    page.locator("#example").select_option(index=3)
    verdicts = page.locator(".example:visible h3 span").all_text_contents()
    assert verdicts == ["✓ right"] * 4 + ["✗ wrong"]
    page.locator("#example").select_option(index=6)
    page.click("#next")
    assert page.locator("#example").evaluate("e => e.selectedIndex") == 0
    page.click("#previous")
    expect(page.locator(".item:visible dd").last).to_have_text("2000-06-06")


def test_it_is_whole_without_script(open_report: Open) -> None:
    page = open_report(java_script_enabled=False)
    assert page.locator(".example").count() == 7
    assert all(page.locator(".example").nth(i).is_visible() for i in range(7))
    assert page.locator(".chooser").is_hidden()
    assert page.locator("#theme").is_hidden()


def test_themes(open_report: Open) -> None:
    page = open_report()
    drawn = ".panel text", ".forest .ticks text"
    assert min(colour(page, "html", "background-color")) > 230
    assert max(colour(page, drawn[0], "fill")) < 130
    page.click("#theme")
    assert max(colour(page, "html", "background-color")) < 50
    assert all(min(colour(page, selector, "fill")) > 130 for selector in drawn)
    expect(page.locator("#theme")).to_have_text("Light theme")
    page.emulate_media(media="print")
    assert min(colour(page, "html", "background-color")) > 230
    assert max(colour(page, drawn[0], "fill")) < 130


def test_the_system_decides_the_theme(open_report: Open) -> None:
    page = open_report(color_scheme="dark")
    assert max(colour(page, "html", "background-color")) < 50
    page.emulate_media(color_scheme="light")
    expect(page.locator("#theme")).to_have_text("Dark theme")
    assert min(colour(page, "html", "background-color")) > 230


@pytest.mark.parametrize("kind", ["dates", "sentences"])
def test_fits_a_phone(open_report: Open, kind: str) -> None:
    page = open_report(sample_comparison(kind), viewport=PHONE, has_touch=True)
    for item in range(page.locator("#example option").count()):
        page.locator("#example").select_option(index=item)
        assert width(page) <= PHONE["width"]


def test_desktop_shows_the_whole_table(open_report: Open) -> None:
    page = open_report()
    table = page.get_by_role("region", name="Table of scores")
    assert table.evaluate("e => e.scrollWidth - e.clientWidth") == 0


def test_row_lines_cross_the_whole_table(open_report: Open) -> None:
    page = open_report(viewport=PHONE)
    page.get_by_role("region", name="Table of scores").evaluate("e => { e.scrollLeft = 300; }")
    row = page.locator(".scores tbody tr").first
    for cell in ("th", "td"):
        style = row.locator(cell).first.evaluate("e => getComputedStyle(e).borderBottom")
        assert style.startswith("1px solid")
    assert page.locator(".scores").evaluate("e => getComputedStyle(e).borderCollapse") == "separate"


def test_paper_has_no_heading_without_its_picture(open_report: Open) -> None:
    page = open_report()
    page.emulate_media(media="print")
    for selector in ("h2", ".lead", "figcaption", ".key"):
        style = page.locator(selector).first.evaluate("e => getComputedStyle(e).breakAfter")
        assert style == "avoid"
    for selector in (".forest tr", ".panel", ".heat"):
        style = page.locator(selector).first.evaluate("e => getComputedStyle(e).breakInside")
        assert style == "avoid"
    assert page.pdf(format="A4").startswith(b"%PDF")


def test_the_network_is_closed(open_report: Open) -> None:
    """Other tests can fail: a request is noticed, and the page's policy forbids the request."""
    page = open_report()
    page.evaluate("fetch('http://example.invalid/').catch(() => 0)")
    noticed = open_report.wrong  # type: ignore[attr-defined]
    assert any("Content Security Policy" in text for text in noticed)
    noticed.clear()


def test_a_script_that_is_not_the_reports_does_not_run(open_report: Open) -> None:
    page = open_report()
    page.evaluate(
        "document.body.append(Object.assign(document.createElement('script'),"
        " {textContent: 'document.title = \"run\"'}))"
    )
    assert page.title() != "run"
    noticed = open_report.wrong  # type: ignore[attr-defined]
    assert any("Content Security Policy" in text for text in noticed)
    noticed.clear()
