"""A page of one tab in a real browser."""

from __future__ import annotations

from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from anyscore.plot.page import document, joined_modules
from helpers.browser import Page


@pytest.fixture
def open_tab(open_file: Callable[..., Page], tmp_path: Path) -> Callable[..., Page]:
    """Return a function that opens a page whose body a function of a module fills."""

    def opened(module: str, show: str, **options: Any) -> Page:
        folder = files("anyscore.lab.play")
        style = "".join(
            folder.joinpath(f"{x}.css").read_text() for x in ("play", "plane", "proofs")
        )
        body = '<main><h1>Play</h1><button id="theme" hidden></button><div id="tab"></div></main>'
        script = f'{joined_modules(f"lab/play/{module}")}{show}(document.getElementById("tab"));\n'
        path = tmp_path / "tab.html"
        path.write_bytes(document("Play", body, style=style, script=script))
        return open_file(path, **options)

    return opened
