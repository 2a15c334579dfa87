"""The page of `anyscore translate --html` in a real browser."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from anyscore.lab.train.answering import Answer
from anyscore.lab.translate.pictures import write_html
from anyscore.lab.translate.translations import Translation
from helpers.browser import Page
from lab.report.test_browser import DESKTOP, PHONE, complaints, width


def told(source: str, output: str) -> Translation:
    weights = torch.rand(len(output) + 1, len(source)).softmax(-1)
    return Translation(source, tuple(source), Answer(tuple(output), True, -1.0, weights), output)


def test_the_page_is_sound(open_file: Callable[..., Page], tmp_path: Path) -> None:
    """A page with hostile text and a very long source fits, in two themes and on a phone."""
    path = tmp_path / "said.html"
    page_of = [("30 mars 2024", "2024-03-30"), ("<script>alert(1)</script>", "b\u202e"),
               ("a" * 90, "ab")]  # fmt: skip
    write_html([told(*pair) for pair in page_of], "additive", ("character", "character"), path)
    for look in ({"color_scheme": "light"}, {"color_scheme": "dark"}, {"viewport": PHONE}):
        page = open_file(path, **look)
        assert complaints(page) == []
        assert width(page) <= (PHONE if "viewport" in look else DESKTOP)["width"]
        assert page.locator("table").count() == 3
