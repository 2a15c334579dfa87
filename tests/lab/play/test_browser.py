"""The page to play with in a real browser: where each score looks, by every way to ask."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from anyscore.lab.play.export import play_data
from anyscore.lab.play.page import play_page
from anyscore.lab.train.checkpoint import load_run
from anyscore.lab.translate.translations import Notes, translate
from anyscore.lab.translate.trials import find_trials
from anyscore.lab.trials import Trial
from helpers.browser import Page, expect
from lab.report.test_browser import DESKTOP, PHONE, complaints, width
from lab.translate.test_translate import make

SCORES = {"scaled_dot": "Scaled dot product", "gaussian": "Gaussian", "additive": "Additive"}
WORDS = ["ab", "abc", "cab", "dab", "acdb", "ca", "adc", "bd", "dca", "bad cab", "a b", "dabc"]
Open = Callable[..., Page]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "run"
    return make(folder, "recurrent", [Trial(score, 0) for score in SCORES], words=WORDS)


@pytest.fixture
def open_play(open_file: Open, run: Path, tmp_path: Path) -> Open:
    """Return a function that opens a page of models that reverse words."""
    numbers = itertools.count()

    def opened(change: Callable[[Any], Any] = lambda data: None, **options: Any) -> Page:
        data = play_data(run, find_trials(run))
        change(data)
        path = tmp_path / f"page{next(numbers)}.html"
        path.write_bytes(play_page(data))
        return open_file(path, **options)

    return opened


def answers(run: Path, text: str) -> dict[str, Any]:
    """Return PyTorch's answers to a text, by score, of parameters in float16."""
    found = {}
    for trial in find_trials(run):
        loaded = load_run(trial)
        with torch.no_grad():
            for x in loaded.model.parameters():
                x.copy_(x.half())
        (found[trial.name[:-6]],) = translate(
            loaded, [text], Notes(loaded.limit, None), return_weights=True
        )
    return found


def texts(page: Page) -> list[str]:
    return page.locator(".map .reply bdi").all_inner_texts()


def looks(page: Page) -> list[str]:
    return [x.replace("\u00a0", " ") for x in page.locator(".look").all_inner_texts()]


def chosen(page: Page) -> tuple[str, str]:
    """Return the heading and the sentence of the detailed step."""
    said = page.locator(".said").inner_text().replace("\u00a0", " ")
    return page.locator("#play-step").inner_text(), said


def percent(weight: float) -> str:
    if weight < 0.0005:
        return "0 %"
    return f"{100 * weight:.1f} %" if weight < 0.0995 else f"{int(100 * weight + 0.5)} %"


def bars(page: Page, chart: str) -> list[float]:
    """Return the length of each bar as a share of the chart's height."""
    lengths: list[float] = page.locator(f"[data-chart='{chart}'] .chart li").evaluate_all(
        "bars => bars.map(({style}) => style.getPropertyValue('--to')"
        " - style.getPropertyValue('--from'))"
    )
    return lengths


def test_every_key_gets_the_answers_and_weights_of_pytorch(open_play: Open, run: Path) -> None:
    page = open_play()
    page.locator("#play-text").fill("")
    for letter in "dac":
        page.locator("#play-text").press(letter)
    wanted = answers(run, "dac")
    expect(page.locator(".map h3")).to_have_text([SCORES[name] for name in wanted])
    assert texts(page) == [x.text or "nothing" for x in wanted.values()]
    for number, (name, answer) in enumerate(wanted.items()):
        weights = answer.answer.weights
        cells = page.locator(".cells").nth(number)
        cells.focus()
        for step in range(len(weights)):
            for key in range(3):
                page.keyboard.press("Home")
                for _ in range(key):
                    page.keyboard.press("ArrowRight")
                title, said = chosen(page)
                assert title.startswith(f"{SCORES[name]}, output {step + 1} of {len(weights)}: ")
                assert said.endswith(
                    f"You chose “{'dac'[key]}” (place {key + 1}): {percent(weights[step, key])}."
                )
            torch.testing.assert_close(
                torch.tensor(bars(page, "weights")), weights[step], rtol=0, atol=1e-4
            )
            page.keyboard.press("ArrowDown")
        for _ in weights:
            page.keyboard.press("ArrowUp")


def test_a_step_is_chosen_in_all_maps(open_play: Open, run: Path) -> None:
    page = open_play()
    page.locator("#play-text").fill("abcd")
    wanted = answers(run, "abcd")
    cells = page.locator(".cells").nth(1)
    cells.scroll_into_view_if_needed()
    box = cells.bounding_box()
    assert box is not None
    rows = len(list(wanted.values())[1].answer.weights)
    page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + box["height"] * 1.5 / rows)
    title, said = chosen(page)
    assert title.startswith(f"Gaussian, output 2 of {rows}")
    assert "You chose “c” (place 3)" in said
    for look, answer in zip(looks(page), wanted.values(), strict=True):
        weights = answer.answer.weights[1]
        token = [*answer.answer.tokens, "⏎"][1]
        most = int(weights.argmax())
        assert look == f"“{token}” looks at “{'abcd'[most]}”: {percent(weights[most])}"
    expect(page.locator(".map.chosen h3")).to_have_text("Gaussian")
    assert page.locator(".map .queries .here").count() == len(SCORES)


@pytest.mark.parametrize("score", SCORES)
def test_the_terms_sum_to_the_score(open_play: Open, score: str) -> None:
    page = open_play()
    page.locator(".map", has_text=SCORES[score]).locator(".cells").focus()
    drawn = page.locator("[data-chart='terms'] .chart").evaluate(
        """chart => {
          const number = text => Number(text.replace("−", "-"));
          const [high, low] = [...chart.querySelectorAll("span")].map(x => number(x.textContent));
          const at = (bar, end) => Number(bar.style.getPropertyValue(end));
          const base = Number(chart.querySelector("ol").style.getPropertyValue("--base"));
          const sum = [...chart.querySelectorAll("li")].reduce((sum, bar) =>
            sum + at(bar, "--to") - base + at(bar, "--from") - base, 0);
          return [sum * (high - low), chart.querySelectorAll("li").length];
        }"""
    )
    said = page.locator("[data-chart='terms'] p").inner_text()
    score_said = page.locator("[data-chart='scores'] p").inner_text().split("= ")[1]
    assert said.split("\n")[0].endswith(f" = {score_said}")
    assert drawn[1] == 16
    # the ends of the chart are rounded to two decimals
    assert drawn[0] == pytest.approx(float(score_said.replace("−", "-")), abs=0.3, rel=0.05)


def test_temperature_and_bandwidth_change_the_weights(open_play: Open) -> None:
    page = open_play()
    page.locator("#play-text").fill("abcd")
    page.locator(".cells").nth(1).focus()
    learned, scores = bars(page, "weights"), bars(page, "scores")
    temperature, bandwidth = (page.locator(f"[data-dial='{x}']") for x in ("temperature", "sigma"))
    temperature.focus()
    page.keyboard.press("End")
    expect(temperature).to_have_attribute("aria-valuetext", "8.00")
    even = bars(page, "weights")
    assert max(even) - min(even) < max(learned) - min(learned)
    page.keyboard.press("Home")
    sharp = bars(page, "weights")
    assert max(sharp) > max(learned)
    assert bars(page, "scores") == pytest.approx(scores)
    page.get_by_role("button", name="As learned").click()
    assert bars(page, "weights") == pytest.approx(learned)
    before = page.locator("[data-chart='scores'] p").inner_text()
    other = looks(page)[0]
    bandwidth.focus()
    page.keyboard.press("Home")
    assert page.locator("[data-chart='scores'] p").inner_text() != before
    assert looks(page)[0] == other  # the bandwidth is no parameter of a product
    page.get_by_role("button", name="As learned").click()
    assert bars(page, "weights") == pytest.approx(learned)


def test_without_a_distance_there_is_no_bandwidth(open_play: Open) -> None:
    def products(data: Any) -> None:
        data["models"] = [m for m in data["models"] if m["score"] != "gaussian"]

    page = open_play(products)
    expect(page.locator("[data-dial='sigma']")).to_be_hidden()
    expect(page.locator("[data-dial='temperature']")).to_be_visible()


def test_right_answers_are_marked_where_they_are_known(open_play: Open, run: Path) -> None:
    text = "cab"
    given = answers(run, text)
    right = next(iter(given.values())).text

    def known(data: Any) -> None:
        data["examples"][1] = {"source": text, "target": right}

    page = open_play(known)
    page.get_by_role("button", name=text, exact=True).click()
    assert page.locator("#play-text").input_value() == text
    marks = page.locator(".reply span").all_inner_texts()
    assert marks == ["✓ right" if x.text == right else "✗ wrong" for x in given.values()]
    assert page.locator(".verdict").inner_text().startswith(f"The right answer is {right}.")
    page.locator("#play-text").press("End")
    page.locator("#play-text").press("d")
    assert page.locator(".reply span").all_inner_texts() == [""] * len(SCORES)
    assert "right" not in page.locator(".verdict").inner_text()


def test_shuffle_and_change_keep_the_rest(open_play: Open) -> None:
    page = open_play()
    field = page.locator("#play-text")
    for text in ("abcd", "bad cab dab"):
        field.fill(text)
        page.get_by_role("button", name="Shuffle").click()
        shuffled = field.input_value()
        assert shuffled != text
        parts = (lambda x: sorted(x.split())) if " " in text else sorted
        assert parts(shuffled) == parts(text)
        page.get_by_role("button", name="Change one character").click()
        changed = field.input_value()
        assert sum(a != b for a, b in zip(shuffled, changed, strict=True)) == 1
    field.fill("")
    page.get_by_role("button", name="Shuffle").click()
    page.get_by_role("button", name="Change one character").click()
    assert field.input_value() == ""


def test_an_empty_text_and_an_unknown_token(open_play: Open) -> None:
    page = open_play()
    page.locator("#play-text").fill("  ")
    expect(page.locator(".verdict")).to_have_text("Type a text, or choose an example.")
    expect(page.locator(".detail")).to_be_hidden()
    page.locator("#play-text").fill("aßb")
    expect(page.locator(".strange")).to_have_text("The models have never seen “ß”.")
    expect(page.locator(".detail")).to_be_visible()
    page.locator("#play-text").fill("ab")
    expect(page.locator(".strange")).to_be_hidden()


def test_the_step_is_said_only_while_a_map_has_the_focus(open_play: Open) -> None:
    page = open_play()
    page.locator(".cells").first.focus()
    expect(page.locator(".said")).to_have_attribute("aria-live", "polite")
    page.locator("#play-text").focus()
    expect(page.locator(".said")).to_have_attribute("aria-live", "off")


def test_tabs_are_chosen_by_keyboard(open_play: Open) -> None:
    page = open_play()
    tabs = page.get_by_role("tab")
    tabs.first.focus()
    for number in (1, 2, 0):
        page.keyboard.press("ArrowRight")
        expect(tabs.nth(number)).to_be_focused()
        expect(tabs.nth(number)).to_have_attribute("aria-selected", "true")
        assert page.get_by_role("tabpanel").count() == 1
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "play-text"


@pytest.mark.parametrize("tab", ["alignment", "plane", "proofs"])
@pytest.mark.parametrize("options", [{}, {"color_scheme": "dark", "viewport": PHONE}])
def test_axe_finds_nothing(open_play: Open, tab: str, options: dict[str, Any]) -> None:
    page = open_play(**options)
    page.locator(f"#{tab}-tab").click()
    assert complaints(page) == []
    assert width(page) <= (PHONE if "viewport" in options else DESKTOP)["width"]


def test_a_tap_chooses_a_cell_on_a_phone(open_play: Open) -> None:
    page = open_play(viewport=PHONE, has_touch=True)
    page.locator("#play-text").fill("dab c " * 6)
    assert width(page) == PHONE["width"]
    cells = page.locator(".cells").last
    cells.scroll_into_view_if_needed()
    box = cells.bounding_box()
    assert box is not None
    page.touchscreen.tap(box["x"] + 3, box["y"] + 3)
    title, said = chosen(page)
    assert title.startswith("Additive, output 1 of ")
    assert "You chose “d” (place 1)" in said


def test_the_theme_repaints_the_maps(open_play: Open) -> None:
    page = open_play()
    picture = "document.querySelector('.map canvas').toDataURL()"
    light = page.evaluate(picture)
    page.get_by_role("button", name="Dark theme").click()
    page.wait_for_function(f"light => {picture} !== light", arg=light)


def test_an_answer_at_the_limit_has_no_end(open_play: Open, run: Path) -> None:
    page = open_play(lambda data: data.update(limit=2))
    page.locator("#play-text").fill("abcd")
    for number, answer in enumerate(answers(run, "abcd").values()):
        tokens = [*answer.answer.tokens, "⏎"][:2]
        assert page.locator(".map").nth(number).locator(".queries li").all_inner_texts() == tokens
