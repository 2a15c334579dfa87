"""The results of proofs in words, for the report, the generated page and the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anyscore.lab.phrases import counted

SIGNS = {"holds": "✓", "fails": "✗", "open": "?"}


def bound(check: Mapping[str, Any]) -> str:
    """Say a bound, as in "at least 99" or "from −1 to 1"."""
    least, most = check["at_least"], check["at_most"]
    if least is not None and most is not None:
        return _minus(f"from {least:g} to {most:g}")
    return _minus(f"at least {least:g}" if most is None else f"at most {most:g}")


def number(x: float | None) -> str:
    """Return a number with one decimal; a dash for None."""
    return "—" if x is None else _minus(f"{round(x, 1) + 0.0:.1f}")


def interval(record: Mapping[str, Any]) -> str:
    """Say an interval, as in "0.9 to 2.6"; a dash where there is none."""
    if record["low"] is None:
        return "—"
    return f"{number(record['low'])} to {number(record['high'])}"


def summary(result: Mapping[str, Any]) -> str:
    """Say a result, as in "as published: 6 of 6 checks hold"; count failed and open checks."""
    states = [check["state"] for check in result["checks"]]
    sentence = f"{result['verdict']}: {states.count('holds')} of {len(states)} checks hold"
    if "fails" in states:
        sentence += f", {states.count('fails')} fail{'s' if states.count('fails') == 1 else ''}"
    if "open" in states:
        sentence += f", {states.count('open')} open"
    return sentence


def machine(record: Mapping[str, Any]) -> str:
    """Describe the machine in a line."""
    facts = record["machine"]
    return (
        f"{facts['processor']}, PyTorch {facts['torch']}, Python {facts['python']}, "
        f"{counted(facts['jobs'], 'trial')} side by side on one thread each"
    )


def minutes(result: Mapping[str, Any]) -> str:
    """Return the processor time of a result, in minutes."""
    return f"{result['processor_seconds'] / 60:.1f}"


def rows(part: Mapping[str, Any]) -> list[tuple[str, str | None, list[dict[str, Any] | None]]]:
    """Return a row for each score: its name, the published number, its standing by each measure."""
    by_measure = [
        {standing["score"]: standing for standing in measure["standings"]}
        for measure in part["measures"]
    ]
    return [
        (score, published, [standings.get(score) for standings in by_measure])
        for score, published in zip(part["scores"], part["published"], strict=True)
    ]


def _minus(text: str) -> str:
    return text.replace("-", "−")
