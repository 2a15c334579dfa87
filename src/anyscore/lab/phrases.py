"""Counts and lists are put into English; texts are made safe to print."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence

from anyscore.lab.forms import numbers

_DIRECTIONS = ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")
"""The classes of the characters that change the direction of a text until another comes."""


def listed(names: Sequence[str]) -> str:
    """Join names as in "a, b and c"."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def visible(text: str) -> str:
    """Replace characters that could steer a terminal or reorder a line; line ends stay."""
    return "".join("\ufffd" if steers(c) and c != "\n" else c for c in text)


def steers(character: str) -> bool:
    """Return whether a character is a control, another end of a line, or a change of direction.

    Marks of right-to-left scripts and joiners of letters are none of these.
    """
    return (
        unicodedata.category(character) in ("Cc", "Zl", "Zp")
        or unicodedata.bidirectional(character) in _DIRECTIONS
    )


def counted(number: int, noun: str) -> str:
    """Return a number and its noun: "1 thread", "1,000 items", "2 searches", "3 queries".

    Args:
        noun: in the singular.
    """
    return f"{number:,} {noun if number == 1 else plural(noun)}"


def number(value: object, digits: int = 0) -> str:
    """Return a number with thousands separators, zero without a sign; a dash for anything else."""
    finite = numbers([value])
    return minus(f"{round(finite[0], digits) + 0.0:,.{digits}f}") if finite else "—"


def at_most(bound: float, digits: int) -> str:
    """Return a bound above 0, rounded up."""
    return number(math.ceil(bound * 10**digits - 1e-6) / 10**digits, digits)


def rounded(count: int) -> str:
    """Return an estimated count, to two digits: "13,000"."""
    return f"{float(f'{count:.2g}'):,.0f}"


def percent(level: float) -> str:
    """Return a level below 1 in percent, never rounded to 100: "95 %", "99.96 %"."""
    texts = (f"{100 * level:.{digits}g}" for digits in range(3, 17))
    return f"{next((text for text in texts if text != '100'), '100')} %"


def minus(text: str) -> str:
    """Return the text with a minus sign in place of each hyphen."""
    return text.replace("-", "\u2212")


def plural(noun: str) -> str:
    """Return the plural of a regular English noun."""
    if noun.endswith(("s", "x", "ch", "sh")):
        return f"{noun}es"
    if noun.endswith("y") and noun[-2:-1] not in "aeiou":
        return f"{noun[:-1]}ies"
    return f"{noun}s"


def present(finished: int, trials: int) -> str:
    """Count finished trials: "1 of 10 trials has finished", "2 of 10 trials have finished"."""
    verb = "has" if finished == 1 else "have"
    return f"{finished:,} of {counted(trials, 'trial')} {verb} finished"
