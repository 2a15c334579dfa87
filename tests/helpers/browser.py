"""Fixtures: a real browser and its pages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from helpers import machine
from helpers.hang import HANG

if find_spec("playwright"):
    from axe_playwright_python.sync_playwright import Axe
    from playwright.sync_api import Browser, Page, expect, sync_playwright
else:  # tests of pages are collected, and skipped
    Axe = Browser = Page = expect = Any

__all__ = ["Axe", "Page", "browser", "expect", "open_file"]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    path = machine.program("a browser")
    machine.package("playwright")
    expect.set_options(timeout=1000 * HANG)
    with sync_playwright() as playwright:
        options = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        found = playwright.chromium.launch(
            executable_path=path, headless=True, args=options, timeout=1000 * HANG
        )
        yield found
        found.close()


@pytest.fixture
def open_file(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Yield a function that opens a page; fail at teardown after any error or network request."""
    pages: list[Page] = []
    wrong: list[str] = []

    def note_request(url: str) -> None:
        if not url.startswith(("file://", "data:")):
            wrong.append(f"request: {url}")

    def opened(path: Path, **options: Any) -> Page:
        desktop = {"viewport": {"width": 1280, "height": 900}, "color_scheme": "light"}
        page = browser.new_page(**desktop | options)
        page.set_default_timeout(1000 * HANG)
        pages.append(page)
        page.on("console", lambda message: wrong.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: wrong.append(f"error: {error}"))
        page.on("dialog", lambda dialog: (wrong.append("dialog"), dialog.dismiss()))
        page.on("request", lambda request: note_request(request.url))
        page.goto(path.as_uri())
        return page

    opened.wrong = wrong  # type: ignore[attr-defined]
    yield opened
    for page in pages:
        page.close()
    assert wrong == []
