"""The page of recorded weights in a real browser: chosen, pointed at, by keyboard, on a phone."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib import image

from anyscore.plot.heatmaps import explore
from anyscore.plot.recording import Recording
from helpers.browser import Page, expect
from lab.report.test_browser import DESKTOP, PHONE, colour, complaints, width
from page_examples import page as examples

DOCS = Path(__file__).parents[2] / "docs"
SMALL_PHONE = {"width": 360, "height": 740}
HOSTILE = [
    "<img src=x onerror=alert(1)>",
    "\u202eevil",
    "🦊",
    "שלום",
    "</script>",
    "",
    " ",
    "a" * 90,
]
WORDS = ["the", "cat", "sat", "on", "mats"]
Open = Callable[..., Page]


def weights(*shape: int) -> np.ndarray[Any, Any]:
    x = np.random.default_rng(0).exponential(size=shape) ** 3
    return x / x.sum(-1, keepdims=True)


ENCODER, DECODER = weights(2, 3, 5, 5), weights(2, 2, 4, 5)


@pytest.fixture
def open_page(open_file: Open, tmp_path: Path) -> Open:
    """Return a function that opens a page of weights."""
    numbers = itertools.count()

    def opened(
        recording: Any = None, queries: Any = None, keys: Any = None, **options: Any
    ) -> Page:
        if recording is None:
            recording = {"encoder": ENCODER, "decoder": DECODER}
            queries = {"encoder": WORDS, "decoder": ["Die", "Katze", "saß", "da"]}
            keys = {"decoder": WORDS, "encoder": WORDS}
        path = tmp_path / f"page{next(numbers)}.html"
        return open_file(explore(recording, queries, keys, path), **options)

    return opened


def said(page: Page) -> str:
    return page.locator("#said").inner_text().replace("\u00a0", " ")


def percent(weight: float) -> str:
    level = round(254 * weight**0.5)
    return f"{100 * (level / 254) ** 2:#.2g}".rstrip(".") + " %"


def point(page: Page, row: int, column: int, tap: bool = False) -> None:
    """Point at the middle of a cell."""
    page.locator("#canvas").scroll_into_view_if_needed()
    box = page.locator("#canvas").bounding_box()
    assert box is not None
    side = float(page.evaluate("parseFloat(document.getElementById('cursor').parentElement"
                               ".closest('.map').style.getPropertyValue('--cell'))"))  # fmt: skip
    x, y = box["x"] + (column + 0.5) * side, box["y"] + (row + 0.5) * side
    page.touchscreen.tap(x, y) if tap else page.mouse.move(x, y)


PIXEL = """(canvas, [x, y]) => {
    const copy = document.createElement("canvas");
    [copy.width, copy.height] = [canvas.width, canvas.height];
    const context = copy.getContext("2d", { willReadFrequently: true });
    context.drawImage(canvas, 0, 0);
    const [r, g, b] = context.getImageData(x, y, 1, 1).data;
    return 765 - r - g - b;
}"""


def pixel(page: Page, selector: str, row: int, column: int) -> int:
    """Return the distance of a picture's pixel from white, at most 765."""
    return int(page.locator(selector).evaluate(PIXEL, [column, row]))


@pytest.mark.parametrize(
    "options", [{}, {"color_scheme": "dark"}, {"viewport": PHONE}, {"viewport": SMALL_PHONE}]
)
def test_it_is_sound(open_page: Open, options: dict[str, Any]) -> None:
    page = open_page(**options)
    point(page, 1, 2)
    assert complaints(page) == []
    assert width(page) <= options.get("viewport", DESKTOP)["width"]


def test_pointing_says_query_key_and_weight(open_page: Open) -> None:
    page = open_page()
    assert said(page) == "5 queries, 5 keys."
    for row, column in ((0, 0), (1, 3), (4, 4)):
        point(page, row, column)
        assert said(page) == (
            f"Query {WORDS[row]} ({row + 1}) looks at key {WORDS[column]} ({column + 1}): "
            f"{percent(ENCODER[0, 0, row, column])}"
        )
    assert page.locator(".queries .here").inner_text() == "mats"
    order = np.argsort(-ENCODER[0, 0, 4])
    most = page.locator("#most-list li span").all_inner_texts()
    assert most == [f"{WORDS[j]} ({j + 1})" for j in order]


def test_choosing_layer_head_and_example(open_page: Open) -> None:
    page = open_page()
    page.locator("#layer").select_option(label="decoder")
    page.locator("#head").select_option(index=1)
    page.locator("#example").select_option(index=1)
    expect(page.locator("#weights-title")).to_have_text("decoder, head 2")
    point(page, 2, 1)
    assert said(page).endswith(f"key cat (2): {percent(DECODER[1, 1, 2, 1])}")
    assert page.locator("#head option").count() == 2
    page.locator("#layer").select_option(index=0)
    assert page.locator("#head option").count() == 3
    assert page.locator("#head").evaluate("e => e.selectedIndex") == 1
    assert said(page).endswith(percent(ENCODER[1, 1, 2, 1]))


def test_what_was_chosen_keeps_its_number(open_page: Open) -> None:
    calls = [("encoder", weights(2, 2, 3, 3).astype("f4"))] * 2
    page = open_page(Recording(["encoder"], calls, {"heads": [0, 2], "examples": slice(-2, None)}))
    assert page.locator("#head option").all_inner_texts() == ["1", "3"]
    wanted = ["\u22122", "\u22121", "\u22122, call 2", "\u22121, call 2"]
    assert page.locator("#example option").all_inner_texts() == wanted
    page.get_by_role("button", name="encoder, head 3").click()  # head 3 exists


def test_all_heads_are_small_pictures(open_page: Open) -> None:
    page = open_page()
    assert page.locator("#overview button").count() == 5
    assert page.locator("#overview [aria-pressed=true]").count() == 1
    shades = [[pixel(page, "#overview canvas >> nth=2", i, j) for j in range(5)] for i in range(5)]
    assert (np.argsort(np.ravel(shades))[-3:] == np.argsort(ENCODER[0, 2].ravel())[-3:]).all()
    page.get_by_role("button", name="decoder, head 2").click()
    expect(page.locator("#weights-title")).to_have_text("decoder, head 2")
    pressed = page.locator("#overview [aria-pressed=true]")
    assert pressed.get_attribute("aria-label") == "decoder, head 2"


def test_by_keyboard(open_page: Open) -> None:
    page = open_page()
    reached = []
    for _ in range(11):
        page.keyboard.press("Tab")
        reached.append(
            page.evaluate("document.activeElement.id || document.activeElement.ariaLabel")
        )
    assert reached[:5] == ["theme", "layer", "head", "example", "cells"]
    assert "encoder, head 1" in reached
    page.locator("#cells").focus()
    outline = page.locator("#scroll").evaluate("e => getComputedStyle(e).outlineStyle")
    assert outline == "solid"
    for key in ("ArrowDown", "ArrowDown", "ArrowRight", "ArrowLeft", "ArrowLeft", "End"):
        page.keyboard.press(key)
    assert said(page).startswith("Query cat (2) looks at key mats (5): ")
    page.keyboard.press("Home")
    for _ in range(9):
        page.keyboard.press("ArrowUp")
    assert said(page).startswith("Query the (1) looks at key the (1): ")
    page.keyboard.press("PageDown")
    expect(page.locator("#weights-title")).to_have_text("decoder, head 1")
    page.keyboard.press("PageUp")
    page.keyboard.press("PageUp")
    expect(page.locator("#weights-title")).to_have_text("encoder, head 1")
    page.get_by_role("button", name="encoder, head 1").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    expect(page.locator("#weights-title")).to_have_text("encoder, head 2")


def test_the_keyboard_brings_cells_into_sight(open_page: Open) -> None:
    page = open_page({"a": weights(60, 60)}, viewport=SMALL_PHONE)
    page.locator("#cells").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("End")
    for _ in range(59):
        page.keyboard.press("ArrowDown")
    assert said(page).startswith("Query 59 (60) looks at key 59 (60)")
    box, frame = page.locator("#cursor").bounding_box(), page.locator("#scroll").bounding_box()
    assert box is not None
    assert frame is not None
    assert frame["x"] <= box["x"] <= frame["x"] + frame["width"] - box["width"]
    assert frame["y"] <= box["y"] <= frame["y"] + frame["height"] - box["height"]


def test_a_tap_on_a_phone(open_page: Open) -> None:
    page = open_page(viewport=PHONE, has_touch=True, is_mobile=True)
    point(page, 3, 2, tap=True)
    assert said(page).startswith("Query on (4) looks at key sat (3): ")
    assert width(page) <= PHONE["width"]


def test_it_reads_aloud(open_page: Open) -> None:
    page = open_page()
    assert page.get_by_role("application", name="encoder, head 1").count() == 1
    assert page.get_by_role("combobox", name="Layer").count() == 1
    page.locator("#cells").focus()
    page.keyboard.press("ArrowRight")
    assert "Query the (1) looks at key the (1)" in page.get_by_role("status").aria_snapshot()


def test_hostile_labels_are_texts(open_page: Open) -> None:
    n = len(HOSTILE)
    for look in ({}, {"viewport": SMALL_PHONE}):
        page = open_page({HOSTILE[0]: weights(n, n), HOSTILE[1]: weights(n, n)}, HOSTILE, **look)
        for row in range(n):
            point(page, row, row)
        assert page.locator("main img").count() == 0
        names = page.locator(".queries li").all_text_contents()
        assert names[:7] == [HOSTILE[0], "⟨U+202E⟩evil", *HOSTILE[2:5], "∅", "␣"]
        point(page, 1, 0)
        assert said(page).startswith(f"Query ⟨U+202E⟩evil (2) looks at key {HOSTILE[0]} (1): ")
        assert width(page) <= look.get("viewport", DESKTOP)["width"]


def test_themes_and_paper(open_page: Open) -> None:
    page = open_page()
    light = pixel(page, "#scale", 0, 5)
    assert min(colour(page, "html", "background-color")) > 230
    page.click("#theme")
    expect(page.locator("#theme")).to_have_text("Light theme")
    assert max(colour(page, "html", "background-color")) < 50
    assert pixel(page, "#scale", 0, 5) > 400 > light
    page.emulate_media(media="print")
    page.wait_for_function("matchMedia('print').matches")
    assert min(colour(page, "html", "background-color")) > 230
    drawn = f"light => ({PIXEL})(document.querySelector('#scale'), [5, 0]) === light"
    page.wait_for_function(drawn, arg=light)  # a moment after the change of media
    assert page.pdf(format="A4").startswith(b"%PDF")


def test_not_a_number_has_a_colour_of_its_own(open_page: Open) -> None:
    page = open_page({"a": np.array([[np.nan, 1.0], [0.0, 0.25]])})
    point(page, 0, 0)
    assert said(page).endswith(": not a number")
    point(page, 1, 1)
    assert said(page).endswith(": 25 %")
    shades = {pixel(page, "#overview canvas", *place) for place in ((0, 0), (0, 1), (1, 0), (1, 1))}
    assert len(shades) == 4


def test_twelve_layers_of_sixty_tokens_are_shown(open_page: Open) -> None:
    layers = {f"layer {i}": weights(1, 8, 60, 60) for i in range(12)}
    page = open_page(layers, [f"token{i}" for i in range(60)])
    page.locator("#layer").select_option(index=11)
    expect(page.locator("#weights-title")).to_have_text("layer 11, head 1")
    assert page.locator("#overview button").count() == 96


def test_many_tokens_have_no_labels_and_still_answer(open_page: Open) -> None:
    page = open_page({"a": np.full((1500, 1500), 1 / 1500)})
    page.locator("#cells").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("End")
    assert said(page).startswith("Query 0 (1) looks at key 1499 (1500): 0.0")


def test_without_script_it_says_so(open_page: Open) -> None:
    page = open_page(java_script_enabled=False)
    assert page.get_by_text("draws its pictures by script").is_visible()
    assert page.locator("#one").is_hidden()


def test_the_picture_of_the_documentation(
    open_file: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/pictures.png shows the page that the first example of docs/pictures.md writes."""
    shown, drawn = DOCS / "pictures.png", tmp_path / "pictures.png"
    first = examples.read(shown.with_suffix(".md").read_text(encoding="utf-8"))[0]
    monkeypatch.chdir(tmp_path)
    exec(first.blocks["pytorch"].source, {})
    page = open_file(tmp_path / "attention.html", viewport={"width": 720, "height": 700})
    point(page, 0, 8)
    assert "Query n (1) looks at key n (9): " in said(page)
    page.screenshot(path=drawn, full_page=True)
    shapes = [image.imread(path).shape for path in (shown, drawn)]
    assert np.allclose(*shapes, rtol=0.1)  # fonts differ
