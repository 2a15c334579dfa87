"""The tab "Draw a score": its mathematics under node, its points in a real browser."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anyscore import Additive, Cosine, Dot, GATv2, Gaussian, ScaledDot, attention, scores
from helpers.browser import Page, expect
from helpers.node import run_module
from lab.play.dragging import drag
from lab.report.test_browser import DESKTOP, PHONE, complaints, width
from plot.test_browser import PIXEL, pixel

SEEN = """
Object.fromEntries(Object.keys(VIEWS).map((name) => {
  const { weights, values, shares, half } =
    seen(name, given.query, given.keys, given.temperature);
  return [name, { weights: [...weights], values: [...values], shares: [...shares], half,
    with1: !!VIEWS[name].with1, p: VIEWS[name].p }];
}))
"""
NODES = np.linspace(-3, 3, 41)
GRID = np.stack(np.meshgrid(NODES, NODES), -1).reshape(-1, 2)


def library(name: str, seen: dict[str, Any]) -> Any:
    """Return the library's score with the parameters of a picture."""
    p = seen["p"]
    if name in ("additive", "gatv2"):
        width = len(p["w_v"])
        W_q, W_k = (np.array(p[w], float).reshape(width, -1) for w in ("W_q", "W_k"))
        return (Additive if name == "additive" else GATv2)(W_q, W_k, np.array(p["w_v"], float))
    return {
        "dot": Dot(),
        "scaled_dot": ScaledDot(),
        "cosine": Cosine(p.get("tau")),
        "gaussian": Gaussian(p.get("sigma")),
    }[name]


@pytest.mark.parametrize("temperature", [1.0, 0.3])
def test_the_pictures_have_the_scores_and_weights_of_the_library(
    temperature: float, tmp_path: Path
) -> None:
    random = np.random.default_rng(0)
    query, keys = random.uniform(-3, 3, 2), random.uniform(-3, 3, (4, 2))
    given = {"query": query.tolist(), "keys": keys.tolist(), "temperature": temperature}
    pictures = run_module("lab/play/plane.js", SEEN, given, tmp_path)
    assert len(pictures) == 6
    for name, seen in pictures.items():
        score = library(name, seen)
        q = np.append(query, 1.0)[None] if seen["with1"] else query[None]
        at_nodes = scores(q, GRID, score=score)[0] / temperature
        at_keys = scores(q, keys, score=score)[0] / temperature
        np.testing.assert_allclose(seen["values"], at_nodes, rtol=0, atol=1e-12)
        weights = np.exp(at_keys) / np.exp(at_keys).sum()
        np.testing.assert_allclose(seen["weights"], weights, rtol=0, atol=1e-12)
        if temperature == 1:
            found = attention(q, keys, keys, score=score, return_weights=True).weights
            np.testing.assert_allclose(seen["weights"], found[0], rtol=0, atol=1e-12)
        one_more = np.exp(at_nodes) / (np.exp(at_nodes) + np.exp(at_keys).sum())
        np.testing.assert_allclose(seen["shares"], one_more, rtol=0, atol=1e-12)
        assert seen["half"] == pytest.approx(np.log(np.exp(at_keys).sum()), abs=1e-12)


LESSON = """
Object.fromEntries(Object.entries(LESSONS).map(([lesson, { places }]) => {
  const { query, ...keys } = places;
  return [lesson, Object.fromEntries(Object.keys(VIEWS).map((name) => {
    const { weights } = seen(name, query, Object.values(keys));
    return [name, Object.keys(keys)[weights.indexOf(Math.max(...weights))]];
  }))];
}))
"""


def test_the_lessons_are_true(tmp_path: Path) -> None:
    found = run_module("lab/play/plane.js", LESSON, None, tmp_path)
    products, others = ("dot", "scaled_dot"), ("gaussian", "additive", "gatv2")
    assert {found["between"][name] for name in products} == {"C"}
    assert {found["between"][name] for name in others} == {"B"}
    assert {found["longer"][name] for name in products} == {"B"}
    assert found["longer"]["cosine"] == "A"
    assert {found["distance"][name] for name in products} == {"B"}
    assert found["distance"]["gaussian"] == "A"


def test_a_dot_product_never_gives_the_middle_key_most(tmp_path: Path) -> None:
    expression = """["dot", "additive"].map((name) => GRID.filter((query) => {
      const { A, B, C } = LESSONS.between.places;
      const [a, b, c] = scoresOf(name, query, keyFeatures(name, [A, B, C]));
      return b > a + 1e-9 && b > c + 1e-9;
    }).length)"""
    dot, additive = run_module("lab/play/plane.js", expression, None, tmp_path)
    assert dot == 0
    assert additive > 100


def test_contours_are_level_sets(tmp_path: Path) -> None:
    """Linear interpolation is exact for a linear function; a circle is closed."""
    expression = """["linear", "circle", "hole"].map((name) => {
      const found = [], f = {
        linear: ([x, y]) => 2 * x - y,
        circle: ([x, y]) => x * x + y * y,
        hole: ([x, y]) => (x > 0 ? NaN : x + y),
      }[name];
      contours(Float64Array.from(GRID, f), [given], (...ends) => found.push(ends));
      return found;
    })"""
    linear, circle, hole = (
        np.array(x) for x in run_module("lab/play/plane.js", expression, 1.3, tmp_path)
    )
    for x, y in (linear[:, :2].T, linear[:, 2:].T):
        np.testing.assert_allclose(2 * x - y, 1.3, rtol=0, atol=1e-12)
    assert np.hypot(*(linear[:, :2] - linear[:, 2:]).T).sum() == pytest.approx(45**0.5)
    radius = np.hypot(circle[:, ::2], circle[:, 1::2])
    np.testing.assert_allclose(radius, 1.3**0.5, rtol=0, atol=0.01)
    ends = np.round(circle.reshape(-1, 2), 9)
    assert (np.unique(ends, axis=0, return_counts=True)[1] == 2).all()
    assert (hole[:, ::2] <= 0).all()
    np.testing.assert_allclose(hole[:, 0] + hole[:, 1], 1.3, rtol=0, atol=1e-12)


def test_levels_are_round_and_few(tmp_path: Path) -> None:
    expression = "given.map((values) => roundLevels(values, 12))"
    small, large = run_module("lab/play/plane.js", expression, [[-2.5, 3.2], [-60, 61]], tmp_path)
    assert small == [-2, -1, 0, 1, 2, 3]
    assert large == [-60, -40, -20, 0, 20, 40, 60]


Open = Callable[..., Page]


@pytest.fixture
def open_plane(open_tab: Open) -> Open:
    def opened(**options: Any) -> Page:
        return open_tab("plane.js", "showPlane", **options)

    return opened


def shares(page: Page, score: str) -> list[str]:
    texts = page.locator(f"[data-score={score}] .bars li").all_inner_texts()
    return [" ".join(text.split()) for text in texts]


def most(page: Page, score: str) -> str:
    return page.locator(f"[data-score={score}] .bars .most b").inner_text()


def point(page: Page, name: str) -> tuple[float, float]:
    """Return the coordinates on the button of a point."""
    text = page.locator(".points button", has_text=name).inner_text().replace("\u2212", "-")
    x, y = re.findall(r"-?\d+\.\d+", text)
    return float(x), float(y)


@pytest.mark.parametrize("viewport", [DESKTOP, PHONE])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_it_is_sound(open_plane: Open, viewport: dict[str, int], theme: str) -> None:
    page = open_plane(viewport=viewport, color_scheme=theme)
    page.locator("summary").click()
    assert complaints(page) == []
    assert width(page) <= viewport["width"]


def test_dragging_a_point_on_any_picture_moves_it_on_all(open_plane: Open) -> None:
    page = open_plane()
    expect(page.locator("[data-score=dot] .bars .most b")).to_have_text("C")
    x, y = drag(page, "additive", "query", (0.4, 0.25))
    expect(page.locator(".points button").first).to_have_text("Query (\u22120.60, 1.50)")
    assert point(page, "Query") == (-0.6, 1.5)
    expect(page.locator("[data-score=dot] .bars .most b")).to_have_text("A")
    assert most(page, "gaussian") == "A"
    page.mouse.move(x, y)  # nothing holds the point any more
    assert point(page, "Query") == (-0.6, 1.5)


def test_a_point_stays_in_the_picture(open_plane: Open) -> None:
    page = open_plane()
    page.locator(".points button", has_text="Key C").focus()
    for _ in range(30):
        page.keyboard.press("Shift+ArrowRight")
    expect(page.locator(".points button", has_text="Key C")).to_have_text(
        "Key C (3.00, \u22120.40)"
    )


def test_a_finger_drags(open_plane: Open) -> None:
    page = open_plane(viewport=PHONE, has_touch=True, is_mobile=True)
    handle = page.locator("[data-score=cosine] [data-point=D]")
    handle.scroll_into_view_if_needed()
    assert handle.evaluate("e => getComputedStyle(e).touchAction") == "none"
    box = handle.bounding_box()
    assert box is not None
    x, y = box["x"] + box["width"] / 2 - 5, box["y"] + box["height"] / 2 + 7
    before = point(page, "Key D")
    client = page.context.new_cdp_session(page)
    for kind, dx in (("touchStart", 0), ("touchMove", 20), ("touchMove", 40), ("touchEnd", None)):
        touches = [] if dx is None else [{"x": x + dx, "y": y}]
        client.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": touches})
    expect(page.locator(".points button", has_text="Key D")).not_to_have_text(
        f"Key D ({before[0]:.2f}, {before[1]:.2f})".replace("-", "\u2212")
    )
    assert point(page, "Key D")[0] > before[0] + 0.5
    assert point(page, "Key D")[1] == before[1]  # the finger was beside the point's middle


def test_by_keyboard_and_aloud(open_plane: Open) -> None:
    page = open_plane()
    query = page.get_by_role("button", name="Query (0.80, 0.80)")
    query.focus()
    for key in ("ArrowUp", "ArrowLeft", "Shift+ArrowDown"):
        page.keyboard.press(key)
    expect(page.locator(".points button").first).to_have_text("Query (0.70, 0.40)")
    told = page.locator("[data-told]")
    expect(told).to_contain_text("Query at x 0.70, y 0.40. Most weight: Dot product C ")
    expect(told).to_contain_text("Additive B ")


def test_lessons_and_temperature(open_plane: Open) -> None:
    page = open_plane()
    lesson = page.get_by_role("button", name="Longer vectors")
    lesson.click()
    expect(lesson).to_have_attribute("aria-pressed", "true")
    expect(page.locator("[aria-pressed=true]")).to_have_count(1)
    expect(page.locator(".lesson")).to_contain_text("The cosine ignores both lengths.")
    expect(page.locator("[data-score=dot] .bars .most b")).to_have_text("B")
    assert most(page, "cosine") == "A"
    before = shares(page, "dot")
    slider = page.get_by_role("slider", name="Temperature")
    slider.focus()
    page.keyboard.press("End")
    expect(page.locator(".dial output")).to_have_text("4.00")
    assert shares(page, "dot") != before
    assert most(page, "dot") == "B"


def test_pictures_follow_theme_and_size(open_plane: Open) -> None:
    page = open_plane()
    corner = "[data-score=gaussian] canvas", 8, 8
    expect(page.locator("[data-score=dot] .bars .most b")).to_have_text("C")
    assert pixel(page, *corner) < 100
    page.click("#theme")
    page.wait_for_function(f"({PIXEL})(document.querySelector('{corner[0]}'), [8, 8]) > 500")
    page.set_viewport_size({"width": 390, "height": 844})
    page.wait_for_function(
        "canvas => canvas.clientWidth < 200 && canvas.width === canvas.clientWidth",
        arg=page.locator(corner[0]).element_handle(),
    )
    assert pixel(page, *corner) > 500


def test_a_picture_out_of_sight_is_drawn_once_the_hand_rests(open_plane: Open) -> None:
    page = open_plane(viewport={"width": 1280, "height": 500})
    expect(page.locator("[data-score=gatv2] .bars .most b")).to_have_text("B")
    handle = page.locator("[data-score=dot] [data-point=query]")
    handle.scroll_into_view_if_needed()
    box = handle.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 5, box["y"] + 5)
    page.mouse.down()
    page.mouse.move(box["x"] + 150, box["y"] + 100, steps=5)
    page.mouse.up()
    expect(page.locator("[data-score=gatv2] .bars .most b")).to_have_text("C")
