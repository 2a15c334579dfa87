"""Write and parse a report for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lxml import html

from anyscore.lab.report.page import report_page
from anyscore.lab.run_folder import write_whole


def write_report(comparison: dict[str, Any], path: Path) -> None:
    write_whole(path, report_page(comparison))


def parsed(comparison: dict[str, Any], folder: Path) -> Any:
    """Write the report of a comparison into the folder; return the parsed page."""
    path = folder / "report.html"
    write_report(comparison, path)
    return html.fromstring(path.read_text(encoding="utf-8"))


def words(element: Any) -> str:
    return " ".join(element.text_content().split())


def section(page: Any, heading: str) -> Any:
    (found,) = page.xpath(f'//section[h2[starts-with(., "{heading}")]]')
    return found


def rows(table: Any) -> list[list[str]]:
    return [[words(cell) for cell in row.xpath("th|td")] for row in table.xpath(".//tbody/tr")]
