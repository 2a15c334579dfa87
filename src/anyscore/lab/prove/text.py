"""What is said of a proof, in the report, on the generated page and on the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SIGNS = {"holds": "✓", "fails": "✗", "open": "?"}


def bound(check: Mapping[str, Any]) -> str:
    """As in "at least 99" or "from −1 to 1"."""
    least, most = check["at_least"], check["at_most"]
    if least is not None and most is not None:
        return _minus(f"from {least:g} to {most:g}")
    return _minus(f"at least {least:g}" if most is None else f"at most {most:g}")


def number(x: float | None) -> str:
    """With one decimal; a dash for what is none."""
    return "—" if x is None else _minus(f"{round(x, 1) + 0.0:.1f}")


def interval(found: Mapping[str, Any]) -> str:
    """As in "0.9 to 2.6"; a dash where there is none."""
    if found["low"] is None:
        return "—"
    return f"{number(found['low'])} to {number(found['high'])}"


def summary(result: Mapping[str, Any]) -> str:
    """As in "as published: 6 of 6 checks hold"; what fails or is open is counted."""
    states = [check["state"] for check in result["checks"]]
    told = f"{result['verdict']}: {states.count('holds')} of {len(states)} checks hold"
    if "fails" in states:
        told += f", {states.count('fails')} fail{'s' if states.count('fails') == 1 else ''}"
    if "open" in states:
        told += f", {states.count('open')} open"
    return told


def machine(record: Mapping[str, Any]) -> str:
    """The machine, in a line."""
    known = record["machine"]
    jobs = known["jobs"]
    return (
        f"{known['processor']}, PyTorch {known['torch']}, Python {known['python']}, "
        f"{jobs} trial{'' if jobs == 1 else 's'} side by side on one thread each"
    )


def minutes(result: Mapping[str, Any]) -> str:
    """Time of a processor, in minutes."""
    return f"{result['processor_seconds'] / 60:.1f}"


def rows(part: Mapping[str, Any]) -> list[tuple[str, str | None, list[dict[str, Any] | None]]]:
    """A line for each score: its name, what was published, its standing by each measure."""
    by_measure = [{s["score"]: s for s in m["standings"]} for m in part["measures"]]
    return [
        (score, said, [standings.get(score) for standings in by_measure])
        for score, said in zip(part["scores"], part["published"], strict=True)
    ]


def _minus(text: str) -> str:
    return text.replace("-", "−")
