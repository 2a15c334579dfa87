"""The page of `anyscore translate --html` in a real browser."""

from __future__ import annotations

from pathlib import Path

import torch
from playwright.sync_api import sync_playwright
from test_browser import DESKTOP, PHONE, complaints, find_browser, width

from anyscore.lab.train.answering import Answer
from anyscore.lab.translate.pictures import write_html
from anyscore.lab.translate.translations import Translation


def told(source: str, output: str) -> Translation:
    weights = torch.rand(len(output) + 1, len(source)).softmax(-1)
    return Translation(source, tuple(source), Answer(tuple(output), True, -1.0, weights), output)


def test_the_page_is_sound(tmp_path: Path) -> None:
    """In two themes, on a phone; with hostile text and a source too long for a heatmap."""
    path = tmp_path / "said.html"
    page_of = [("30 mars 2024", "2024-03-30"), ("<script>alert(1)</script>", "b\u202e"),
               ("a" * 90, "ab")]  # fmt: skip
    write_html([told(*pair) for pair in page_of], "additive", ("character", "character"), path)
    wrong: list[str] = []
    with sync_playwright() as playwright:
        options = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        browser = playwright.chromium.launch(
            executable_path=find_browser(), headless=True, args=options
        )
        for look in ({"color_scheme": "light"}, {"color_scheme": "dark"}, {"viewport": PHONE}):
            page = browser.new_page(**{"viewport": DESKTOP} | look)  # type: ignore[arg-type]
            page.on("console", lambda message: wrong.append(message.text))
            page.on("pageerror", lambda error: wrong.append(str(error)))
            page.on("dialog", lambda dialog: (wrong.append("dialog"), dialog.dismiss()))
            page.goto(path.as_uri())
            assert complaints(page) == []
            assert width(page) <= (PHONE if "viewport" in look else DESKTOP)["width"]
            assert page.locator("table").count() == 3
            page.close()
        browser.close()
    assert wrong == []
