"""The page of `anyscore prove` in a real browser."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from anyscore.lab.prove.runner import run_proofs
from anyscore.lab.report.charts import png
from helpers.browser import Page
from lab.prove.test_prove import check, made
from lab.report.test_browser import DESKTOP, PHONE, complaints, width


def drawn() -> bytes:
    from matplotlib.figure import Figure

    return png(Figure(figsize=(7.5, 2)))


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    checks = check("good", 90, None), check("bad", 50, None), check("broken", 1, None)
    scores = ("good", "bad", "broken")
    proof = made(*checks, scores=scores, picture=(drawn, "Nothing to see."))
    out = tmp_path_factory.mktemp("proofs")
    run_proofs([proof], seeds=2, out=out, jobs=1, here=True)
    return out / "report.html"


def test_the_page_is_sound(open_file: Callable[..., Page], report: Path) -> None:
    """A page with a picture, a failed trial and a missing number fits, in themes and on a phone."""
    for look in ({"color_scheme": "light"}, {"color_scheme": "dark"}, {"viewport": PHONE}):
        page = open_file(report, **look)
        assert complaints(page) == []
        assert width(page) <= (PHONE if "viewport" in look else DESKTOP)["width"]


def test_its_theme_can_be_chosen(open_file: Callable[..., Page], report: Path) -> None:
    page = open_file(report)
    page.click("#theme")
    assert page.locator("#theme").text_content() == "Light theme"
