"""The task that needs no file: dates as the world's languages write them, to ISO 8601.

The dates are those of the Unicode CLDR, through Babel. Each language has its own order and words;
the calendar is the Gregorian one throughout.

Languages come in a fixed order: first the languages with most names of countries and languages
translated in the CLDR, equals by code. Four rules choose the forms:

- There is one locale per language, with its own names only. A form with inherited names of months
  or days is left out: names of another language, or placeholders such as "M03".

- The forms are full, long and medium, with year, month and day. The short form is often ISO already
  or drops the century.

- No text may mean two different months, such as 03/05/2024, or a month's name that means another
  month in another language. No text is already its answer.

- Digits are the language's own, unless it writes Latin ones.
"""

from __future__ import annotations

import pickle
import random
import re
import unicodedata
from dataclasses import dataclass
from datetime import date, timedelta
from functools import cache
from typing import Any

from babel import Locale, localedata
from babel.dates import format_date

from anyscore.lab.data.pairs import Example
from anyscore.lab.data.task import Split, held_out_size
from anyscore.lab.data.tokens import normalise
from anyscore.lab.errors import InputError
from anyscore.lab.phrases import counted

LANGUAGES = 60
PAIRS = 12000
YEARS = (1900, 2099)  # first and last
FORMATS = ("full", "long", "medium")

_WIDTHS = {3: "abbreviated", 4: "wide", 5: "narrow"}
# The CLDR's numbering systems, as the Unicode character database calls their digits.
_DIGITS = {
    "arab": "ARABIC-INDIC",
    "arabext": "EXTENDED ARABIC-INDIC",
    "beng": "BENGALI",
    "cakm": "CHAKMA",
    "deva": "DEVANAGARI",
    "hmnp": "NYIAKENG PUACHUE HMONG",
    "mymr": "MYANMAR",
    "nkoo": "NKO",
    "olck": "OL CHIKI",
    "tibt": "TIBETAN",
}
# Marks of writing direction say nothing and cannot be seen.
_INVISIBLE = dict.fromkeys(map(ord, "\u200e\u200f\u061c"))


@dataclass(frozen=True)
class Form:
    """One way of writing dates.

    Attributes:
        language: its code.
        format: one of `FORMATS`.
        locale: writes the dates.
        weekday: whether the day of the week is written.
        readings: for each month, how a reader tells it: its number, where it is written in words;
            else the order of the two short numbers, "dM" or "Md".
    """

    language: str
    format: str
    locale: Locale
    weekday: bool
    readings: tuple[int | str, ...]

    def plain(self, day: date) -> str:
        """Return `day` in this form, in Latin digits."""
        text = format_date(day, self.format, locale=self.locale)
        return normalise(text.translate(_INVISIBLE))

    def write(self, day: date) -> str:
        """Return `day` in this form."""
        return self.plain(day).translate(_digits(self.locale.default_numbering_system))


def make_dates(
    seed: int = 0,
    *,
    languages: int = LANGUAGES,
    pairs: int = PAIRS,
    years: tuple[int, int] = YEARS,
    formats: tuple[str, ...] = FORMATS,
) -> Split:
    """Make training, validation and test examples of dates, each text a different one.

    A day, a language and a format are drawn for each example. The days are divided among the three
    parts, so no date of the test is in training in any language. The same arguments and the same
    release of Babel give the same examples.

    Args:
        seed: of the draws.
        languages: the first so many languages are used.
        pairs: examples in all three parts together.
        years: first and last, between 1000 and 9999.
        formats: of `FORMATS`.

    Raises:
        InputError: there are not so many languages or texts.
    """
    if not 1000 <= years[0] <= years[1] <= 9999:
        raise InputError(f"expected years first to last between 1000 and 9999, got {years}")
    if pairs < 10:
        raise InputError(f"expected at least 10 dates, got {pairs}")
    available = [[f for f in forms if f.format in formats] for forms in known_forms()]
    available = [forms for forms in available if forms]
    if not 1 <= languages <= len(available):
        raise InputError(f"expected 1 to {len(available)} languages, got {languages}")
    forms = available[:languages]
    unclear = _unclear(forms)
    rng = random.Random(seed)
    first = date(years[0], 1, 1)
    span = (date(years[1], 12, 31) - first).days + 1
    days = [first + timedelta(n) for n in rng.sample(range(span), min(pairs, span))]
    held_out = held_out_size(pairs)
    parts = []
    start = 0
    for size in (pairs - 2 * held_out, held_out, held_out):
        share = max(1, len(days) * size // pairs)
        parts.append(_write(days[start : start + share], size, forms, unclear, rng))
        start += share
    return parts[0], parts[1], parts[2]


def _write(
    days: list[date], size: int, forms: list[list[Form]], unclear: set[str], rng: random.Random
) -> list[Example]:
    """Write `size` examples of `days`, taken in turn, each in a form drawn by language first."""
    examples: dict[str, Example] = {}
    tries = 0
    while len(examples) < size:
        if tries == 20 * size:
            raise InputError(
                f"{counted(len(days), 'day')} in {counted(len(forms), 'language')} cannot give "
                f"{size:,} different texts; ask for fewer pairs, or for more years or languages"
            )
        day = days[tries % len(days)]
        tries += 1
        form = rng.choice(rng.choice(forms))
        text = form.write(day)
        clear = _skeleton(form.plain(day)) not in unclear
        if clear and text not in examples and text != day.isoformat():
            examples[text] = Example(text, (day.isoformat(),))
    return list(examples.values())


@cache
def known_forms() -> list[list[Form]]:
    """Return the forms of each language that has any, the languages in their fixed order."""
    entries = []
    for language in localedata.locale_identifiers():
        if "_" not in language:
            # The locale's own data. Not Babel's merged view: resolving inherited names there
            # depends on which locales the process has used before.
            with open(localedata.resolve_locale_filename(language), "rb") as stream:
                data = pickle.load(stream)
            described = len(data.get("territories", ())) + len(data.get("languages", ()))
            entries.append((-described, language, data))
    languages = []
    for _, language, data in sorted(entries, key=lambda entry: entry[:2]):
        locale = Locale.parse(language)
        candidates = (_form(locale, name, data) for name in FORMATS)
        forms = [form for form in candidates if form is not None]
        if forms:
            languages.append(forms)
    return languages


def _form(locale: Locale, name: str, data: dict[str, Any]) -> Form | None:
    """Return the form `name` of a locale; None if `data` lacks names or the date is not whole."""
    fields = _fields(locale.date_formats[name].pattern)
    parts = [field[0].replace("L", "M") for field in fields if field[0] not in "EcG"]
    if sorted(parts) != ["M", "d", "y"]:
        return None
    order = ""
    weekday = False
    readings: tuple[int | str, ...] = ()
    for field in fields:
        letter, width = field[0], _WIDTHS.get(max(3, len(field)), "")
        context = "stand-alone" if letter in "cL" else "format"
        if letter == "y" and len(field) not in (1, 4):
            return None  # the century would be lost
        if letter in "dML":
            order += "d" if letter == "d" else "M"
        if letter in "Ec":
            weekday = True
            if set(_names(data, "days", context, width)) != set(range(7)):
                return None
        if letter == "G" and 1 not in _names(data, "eras", width):
            return None
        if letter in "ML" and len(field) >= 3:
            names = _names(data, "months", context, width)
            if set(names) != set(range(1, 13)):
                return None
            for month in range(1, 13):
                digits = "".join(re.findall("[0-9]", names[month]))
                if digits not in ("", str(month)) or names[month] == f"M{month:02}":
                    return None
                readings += (0 if digits else month,)
    readings = tuple(reading or order for reading in readings or 12 * (0,))
    return Form(str(locale), name, locale, weekday, readings)


def _fields(pattern: str) -> list[str]:
    """Return the fields of a CLDR date pattern, as "EEEE", "d", "MMMM", "y", without literals."""
    return [match[0] for match in re.finditer(r"([A-Za-z])\1*", re.sub("'[^']*'", "", pattern))]


def _names(data: dict[str, Any], *keys: str) -> dict[int, str]:
    """Return the names at `keys`; none where the locale refers to those of others."""
    value: Any = data
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def _unclear(forms: list[list[Form]]) -> set[str]:
    """Return the skeletons that some two of `forms` read as different months."""
    readings: dict[str, set[int | str]] = {}
    for form in (form for language in forms for form in language):
        for month, reading in enumerate(form.readings, 1):
            for number in range(10, 17 if form.weekday else 11):
                skeleton = _skeleton(form.plain(date(2001, month, number)))
                readings.setdefault(skeleton, set()).add(reading)
    return {skeleton for skeleton, meanings in readings.items() if len(meanings) > 1}


def _skeleton(text: str) -> str:
    """Return `text` without its numbers; a year leaves "y", other numbers "0"."""
    return re.sub("[0-9]+", "0", re.sub("[0-9]{4}", "y", text))


@cache
def _digits(system: str) -> dict[int, str]:
    """Return Latin digits to those of a numbering system; {} for one that is not in `_DIGITS`."""
    if system not in _DIGITS:
        return {}
    names = ["ZERO", "ONE", "TWO", "THREE", "FOUR", "FIVE", "SIX", "SEVEN", "EIGHT", "NINE"]
    digits = (unicodedata.lookup(f"{_DIGITS[system]} DIGIT {name}") for name in names)
    return {ord("0") + n: digit for n, digit in enumerate(digits)}
