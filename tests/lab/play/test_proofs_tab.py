"""The tab "Two proofs": its claims under node, its tables and line in a real browser."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anyscore import Dot, GATv2, Gaussian, scores
from helpers.browser import Page, expect
from helpers.node import run_module
from lab.play.dragging import drag
from lab.report.test_browser import DESKTOP, PHONE, complaints, width

PROOFS = "lab/play/proofs.js"
VALUES = [3, 8, 1, 6, 2, 7, 5, 4]
QUERIES = np.stack([np.arange(1.0, 9), np.zeros(8)], -1)
KEYS = np.stack([np.arange(1.0, 9), np.array(VALUES, float)], -1)


def test_the_dictionary_has_the_scores_of_the_library(tmp_path: Path) -> None:
    expression = """[dictionaryScores(given, gat([0.7, 0.3], [-0.4, 1.1])),
                     dictionaryScores(given, LOOKS_UP), LOOKS_UP]"""
    gat, gatv2, p = run_module(PROOFS, expression, VALUES, tmp_path)
    score = GATv2(np.array([[0.7, 0.3]]), np.array([[-0.4, 1.1]]), np.ones(1))
    np.testing.assert_allclose(gat, scores(QUERIES, KEYS, score=score), rtol=0, atol=1e-12)
    W_q, W_k = (np.array(p[name], float).reshape(2, 2) for name in ("W_q", "W_k"))
    score = GATv2(W_q, W_k, np.array(p["w_v"], float))
    np.testing.assert_allclose(gatv2, scores(QUERIES, KEYS, score=score), rtol=0, atol=1e-12)
    np.testing.assert_allclose(gatv2, -4 * np.abs(QUERIES[:, :1] - KEYS[:, 0]), rtol=0, atol=1e-12)


def test_gat_finds_one_word_at_most_and_gatv2_every_word(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    weights = random.uniform(-2, 2, (500, 2, 2)).tolist()
    dictionaries = [(random.permutation(8) + 1).tolist() for _ in weights]
    expression = """given.weights.map(([a_q, a_k], i) => {
      const rows = dictionaryScores(given.dictionaries[i], gat(a_q, a_k));
      return [wordsFound(rows), new Set(rows.map((row) => ranking(row).join())).size,
              wordsFound(dictionaryScores(given.dictionaries[i], LOOKS_UP))];
    })"""
    given = {"weights": weights, "dictionaries": dictionaries}
    found = np.array(run_module(PROOFS, expression, given, tmp_path))
    assert set(found[:, 0]) == {1}
    assert set(found[:, 1]) == {1}  # one ranking for all queries
    assert set(found[:, 2]) == {8}


def test_a_tie_has_no_winner(tmp_path: Path) -> None:
    rows = [[0, 1, 1], [2, 2, 1], [1, 2, 3], [3, 2, 1], [1, 3, 2], [0, 0, 0]]
    found = run_module(PROOFS, "given.map(winner)", rows, tmp_path)
    assert found == [-1, -1, 2, 0, 1, -1]
    equal = "wordsFound(dictionaryScores(given, gat([1, 0], [0, 0])))"
    assert run_module(PROOFS, equal, VALUES, tmp_path) == 0


def test_which_keys_of_the_line_can_win(tmp_path: Path) -> None:
    expression = """[LINE, Object.fromEntries(ON_LINE.map((name) => {
      const { winning } = regionsOf(name);
      return [name, { winning, middles: LINE.map((_, j) => middleOf(winning, j) ?? null) }];
    }))]"""
    line, found = run_module(PROOFS, expression, None, tmp_path)
    nodes = np.linspace(-3, 3, 41)
    grid = np.stack(np.meshgrid(nodes, nodes), -1).reshape(-1, 2)
    steps = np.diff(line, axis=0)
    np.testing.assert_allclose(steps, steps[:1].repeat(4, 0), rtol=0, atol=1e-12)
    for name, score in (("dot", Dot()), ("gaussian", Gaussian())):
        ranked = scores(grid, np.array(line), score=score)
        first, second = np.sort(ranked, -1)[:, ::-1][:, :2].T
        wanted = np.where(first - second > 1e-9, ranked.argmax(-1), -1)
        assert found[name]["winning"] == wanted.tolist()
    assert set(found["dot"]["winning"]) <= {-1, 0, 4}
    for name in ("additive", "gaussian"):
        assert set(found[name]["winning"]) >= set(range(5))
    for of in found.values():
        for key, middle in enumerate(of["middles"]):
            assert (middle is None) == (key not in of["winning"])
            if middle is not None:
                at = np.abs(grid - middle).sum(-1).argmin()
                assert of["winning"][at] == key


def test_shuffled_values_are_a_dictionary(tmp_path: Path) -> None:
    found = run_module(PROOFS, "[1, 2, 3].map(() => shuffled())", None, tmp_path)
    assert all(sorted(values) == list(range(1, 9)) for values in found)
    assert len({tuple(values) for values in found}) > 1


Open = Callable[..., Page]


@pytest.fixture
def open_proofs(open_tab: Open) -> Open:
    def opened(**options: Any) -> Page:
        return open_tab("proofs.js", "showProofs", **options)

    return opened


@pytest.mark.parametrize("viewport", [DESKTOP, PHONE])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_it_is_sound(open_proofs: Open, viewport: dict[str, int], theme: str) -> None:
    page = open_proofs(viewport=viewport, color_scheme=theme)
    page.get_by_role("button", name="Try every query").click()
    assert complaints(page) == []
    assert width(page) <= viewport["width"]


def answer(page: Page, name: str) -> str:
    return page.locator(f"[data-lookup={name}] .answer").inner_text()


def test_looking_up_each_word(open_proofs: Open) -> None:
    page = open_proofs()
    looked_at, rankings = set(), set()
    page.get_by_role("radio", name="cat").focus()
    for word in ("dog", "elk", "fox", "gnu", "hen", "ant", "bee", "cat"):
        page.keyboard.press("ArrowRight")
        expect(page.locator("[data-lookup=gatv2] .answer")).to_contain_text(
            f"The query {word} looks at {word} and reads "
        )
        assert answer(page, "gatv2").endswith(": right. Right for 8 of 8 words.")
        assert page.locator("[data-lookup=gat] .chosen th").inner_text() == word
        assert answer(page, "gat").endswith("Right for 1 of 8 words.")
        looked_at.add(answer(page, "gat").split(" looks at ")[1].split()[0])
        rankings.add(page.locator("[data-lookup=gat] .ranking").inner_text().split(": ")[1])
    assert len(looked_at) == len(rankings) == 1


def test_the_marks_of_a_table_do_not_need_colour(open_proofs: Open) -> None:
    page = open_proofs()
    cells = page.locator("[data-lookup=gatv2] tbody td").all_inner_texts()
    weights = np.array([int(cell) for cell in cells]).reshape(8, 8)
    assert (weights.argmax(1) == np.arange(8)).all()
    assert page.locator("[data-lookup=gatv2] .most").all_inner_texts() == [
        str(weights[i, i]) for i in range(8)
    ]
    assert np.abs(weights.sum(1) - 100).max() <= 4


def test_a_row_is_chosen_by_a_click(open_proofs: Open) -> None:
    page = open_proofs()
    page.locator("[data-lookup=gat] tbody tr").nth(6).locator("td").first.click()
    expect(page.locator("[data-lookup=gatv2] .answer")).to_contain_text("The query gnu")
    expect(page.get_by_role("radio", name="gnu")).to_be_checked()


def test_nobody_breaks_it(open_proofs: Open) -> None:
    page = open_proofs()
    before = page.locator("[data-lookup=gat] tbody td").all_inner_texts()
    # With a_k = (0.5, −0.45) no two of the eight words tie, whatever their values are.
    page.get_by_role("slider", name="of the key’s value").fill("-0.45")
    expect(page.locator(".tried")).to_have_text(
        "GATs tried: 1. The best was right for 1 of 8 words."
    )
    assert page.locator("[data-lookup=gat] tbody td").all_inner_texts() != before
    page.get_by_role("button", name="Try 1,000 random GATs").click()
    expect(page.locator(".tried")).to_have_text(
        "GATs tried: 1,001. The best was right for 1 of 8 words."
    )
    dictionary = page.locator("[data-lookup=gat] .value").all_inner_texts()
    page.get_by_role("button", name="New dictionary").click()
    page.wait_for_function(
        "before => [...document.querySelectorAll('[data-lookup=gat] .value')]"
        ".map((e) => e.textContent).join() !== before",
        arg=",".join(dictionary),
    )


def test_the_query_of_the_line_is_dragged_and_winners_are_counted(open_proofs: Open) -> None:
    page = open_proofs()
    won = {name: page.locator(f"[data-score={name}] .won") for name in ("dot", "gaussian")}
    expect(won["dot"]).to_have_text("Key 5 wins. Keys that have won: 5; 1 of 5.")
    drag(page, "gaussian", "query", (0.2, 0.2))
    expect(won["dot"]).to_contain_text("Key 1 wins. Keys that have won: 1, 5; 2 of 5.")
    expect(won["gaussian"]).to_contain_text("Key 1 wins.")
    every = page.get_by_role("button", name="Try every query")
    every.click()
    expect(every).to_have_attribute("aria-pressed", "true")
    expect(won["gaussian"]).to_contain_text("Keys that have won: 1, 2, 3, 4, 5; 5 of 5.")
    expect(won["dot"]).to_contain_text("Keys that have won: 1, 5; 2 of 5.")
    expect(page.locator("[data-told]")).to_contain_text("Dot product: Key 1 wins.")
    page.get_by_role("button", name="Start again").click()
    expect(won["dot"]).to_have_text("Key 5 wins. Keys that have won: 5; 1 of 5.")


def test_the_dot_product_is_straight_along_the_line(open_proofs: Open) -> None:
    page = open_proofs()
    for name, straight in (("dot", True), ("gaussian", False)):
        points = page.locator(f"[data-score={name}] polyline").get_attribute("points") or ""
        x, y = np.array([point.split(",") for point in points.split()], float).T
        assert (np.abs(y - np.interp(x, x[[0, -1]], y[[0, -1]])).max() < 0.2) == straight
