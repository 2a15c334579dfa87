"""The tests of pictures and pages open these in a browser."""

from __future__ import annotations

from helpers.browser import browser, open_file  # noqa: F401
