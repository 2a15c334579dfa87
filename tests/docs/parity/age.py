"""Print the age of the summary of docs/parity.md in days and commits, and the names that it lacks.

PYTHONPATH=tests:tests/docs python -m parity.age
"""

from __future__ import annotations

import json
import subprocess
from datetime import date
from pathlib import Path
from typing import Any

from helpers.cases import MASKS, SCORES
from parity.rows import ROWS

ROOT = Path(__file__).parents[3]
SOURCES = "src/anyscore", "csrc", ":!src/anyscore/lab"


def newest() -> dict[str, Any]:
    """Return the newest summary, see `parity.summary`."""
    path = max((ROOT / "measurements").glob("parity-*.json"))
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def age(summary: dict[str, Any], today: date) -> int:
    """Return the days since the measurement."""
    return (today - date.fromisoformat(summary["date"])).days


def lacking(summary: dict[str, Any]) -> list[str]:
    """Return the scores, masks and extras of the tables that the summary does not name."""
    shown = {*summary["scores"], *summary["masks"], *summary["extras"]}
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
    summary = newest()
    print(f"docs/parity.md was measured {age(summary, date.today())} days ago", end="")
    commit = summary["commit"] or summary["published"]
    if commit:
        commit = commit.removesuffix("-dirty")
        if since := git("rev-list", "--count", f"{commit}..HEAD", "--", *SOURCES):
            print(f"; {since} commits changed the library since {commit}", end="")
    if names := lacking(summary):
        print(f"; it lacks {', '.join(names)}", end="")
    print(". `make parity` measures it anew.")


if __name__ == "__main__":
    main()
