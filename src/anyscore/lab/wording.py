"""Numbers, names and qualities in words."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import Any, Literal

Measure = Literal["exact_match", "chrf"]


def quality(score: dict[str, Any], measure: Measure) -> str:
    """The test result of a score."""
    test = score["test"]
    if measure == "chrf":
        return f"chrF {test['chrf']:.1f}"
    return f"{percent(test['exact_match'])} exact match (chrF {test['chrf']:.1f})"


def gap(better: dict[str, Any], worse: dict[str, Any], measure: Measure) -> str:
    """By how much one score's test result is better than another's."""
    return points(better["test"][measure] - worse["test"][measure], measure)


def points(difference: float, measure: Measure) -> str:
    """A difference of two test results."""
    number = difference * 100 if measure == "exact_match" else difference
    return "less than 0.1 points" if number < 0.05 else f"{number:.1f} points"


def percent(share: float, digits: int = 1) -> str:
    """A share in [0, 1]; one that is not perfect is never rounded up to 100 %."""
    if share < 1 and round(share * 100, digits) == 100:
        return "just under 100 %"
    return f"{share * 100:.{digits}f} %"


def listed(names: Sequence[str]) -> str:
    """As in "a, b and c"."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def visible(text: str) -> str:
    """The text without what would steer a terminal; line ends stay."""
    return "".join("\ufffd" if unicodedata.category(c) == "Cc" and c != "\n" else c for c in text)
