"""Print the age of docs/parity.md in days and commits, and the names that the page lacks.

PYTHONPATH=tests/helpers:tests/docs python -m parity.age
"""

from __future__ import annotations

import re
import subprocess
from datetime import date
from pathlib import Path

from helpers.cases import MASKS, SCORES
from parity.rows import ROWS

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "parity.md"
MEASURED = "Measured on {}."
SOURCES = "src/anyscore", "csrc", ":!src/anyscore/lab"


def age(text: str, today: date) -> int | None:
    """Return the days since the measurement of the page; None if the page has no date."""
    found = re.search(re.escape(MEASURED).replace(r"\{\}", r"(\d{4}-\d\d-\d\d)"), text)
    return None if found is None else (today - date.fromisoformat(found[1])).days


def lacking(text: str) -> list[str]:
    """Return the scores, masks and extras of the tables that the page does not show."""
    lines = text.splitlines()
    shown = {line.split("|")[1] for line in lines if line.startswith("|")}
    shown |= {name for line in lines if line.startswith("|mask, heads") for name in line.split("|")}
    extras = (", ".join((extra, *at)) for _, *at, extra in ROWS if extra)
    return [name for name in dict.fromkeys((*SCORES, *MASKS, *extras)) if name not in shown]


def git(*arguments: str) -> str:
    """Return the output of git; an empty string without a checkout."""
    command = ["git", "-C", str(ROOT), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True).stdout.strip()
    except OSError:
        return ""


def main() -> None:
    text = PAGE.read_text(encoding="utf-8")
    days = age(text, date.today())
    commit, _, committed = git("log", "-1", "--format=%h %cs", "-G^[|]", "--", str(PAGE)).partition(
        " "
    )
    when = f"{days} days ago" if days is not None else f"before {committed or 'it was committed'}"
    print(f"docs/parity.md was measured {when}", end="")
    if commit:
        since = git("rev-list", "--count", f"{commit}..HEAD", "--", *SOURCES)
        print(f"; {since} commits changed the library since its tables were committed", end="")
    if names := lacking(text):
        print(f"; it lacks {', '.join(names)}", end="")
    print(". `make parity` measures it anew.")


if __name__ == "__main__":
    main()
