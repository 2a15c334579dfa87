"""Dates are reproducible, divided by day, and determined by their text."""

from __future__ import annotations

import re
import subprocess
import sys
import unicodedata
from collections import defaultdict
from datetime import date, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from anyscore.lab.data import dates
from anyscore.lab.data.options import DataOptions
from anyscore.lab.data.task import load_task
from anyscore.lab.data.tokens import normalise
from anyscore.lab.errors import InputError

SAMPLE = dates.make_dates(3, languages=40, pairs=1000)


def numbers(text: str) -> list[int]:
    """Return the numbers in a text, in digits of any script."""
    latin = "".join(str(unicodedata.decimal(c)) if c.isdecimal() else c for c in normalise(text))
    return [int(run) for run in re.findall("[0-9]+", latin)]


def read(text: str, forms: list[list[dates.Form]], years: set[int]) -> set[date]:
    """Return the dates that some form writes as `text`, among dates of the text's numbers."""
    found = set()
    (year,) = (n for n in numbers(text) if n in years)
    days = set(numbers(text))
    for month in range(1, 13):
        for number in days & set(range(1, 29)):
            day = date(year, month, number)
            found |= {day for language in forms for f in language if f.write(day) == text}
    return found


def test_same_seed_same_dates() -> None:
    assert dates.make_dates(3, languages=40, pairs=1000) == SAMPLE
    assert dates.make_dates(4, languages=40, pairs=1000) != SAMPLE


@pytest.mark.weekly
def test_same_dates_whatever_babel_was_asked_before() -> None:
    """Dates do not depend on inherited names that Babel kept and gives to other locales."""
    code = """if True:
        from babel import Locale, localedata
        from babel.dates import format_date
        from datetime import date
        from anyscore.lab.data.dates import make_dates
        import hashlib, sys
        if sys.argv[1] == "after":
            for name in sorted(localedata.locale_identifiers()):
                if "_" not in name:
                    len(Locale.parse(name).territories)
                    format_date(date(1987, 3, 5), "medium", locale=name)
        made = make_dates(3, languages=200, pairs=3000)
        print(hashlib.sha256(repr(made).encode()).hexdigest())
    """
    runs = [
        subprocess.run(
            [sys.executable, "-c", code, when], capture_output=True, text=True, check=True
        )
        for when in ("before", "after")
    ]
    assert runs[0].stdout == runs[1].stdout != ""


def test_sizes_and_division_by_day() -> None:
    assert [len(part) for part in SAMPLE] == [800, 100, 100]
    days = [{e.references[0] for e in part} for part in SAMPLE]
    assert not days[0] & days[1]
    assert not days[0] & days[2]
    assert not days[1] & days[2]
    texts = [e.source for part in SAMPLE for e in part]
    assert len(set(texts)) == 1000


def test_few_years_use_a_day_in_several_languages() -> None:
    train, valid, test = dates.make_dates(0, languages=30, pairs=3000, years=(2000, 2001))
    assert [len(train), len(valid), len(test)] == [2400, 300, 300]
    days = [{e.references[0] for e in part} for part in (train, valid, test)]
    assert len(days[0]) < 2400
    assert not days[0] & days[2]
    assert not days[0] & days[1]
    assert not days[1] & days[2]
    assert {day[:4] for part in days for day in part} == {"2000", "2001"}


def test_texts_read_back() -> None:
    forms = dates.known_forms()[:40]
    for example in SAMPLE[0][:60]:
        (reference,) = example.references
        day = date.fromisoformat(reference)
        assert {day.year, day.day} <= set(numbers(example.source))
        if day.day <= 28:
            assert read(example.source, forms, {day.year}) == {day}


def test_no_clear_text_means_two_days_in_any_language() -> None:
    """A text that is not left out has one reading among all forms of all languages."""
    forms = dates.known_forms()
    unclear = dates._unclear(forms)
    readings: dict[str, set[date]] = defaultdict(set)
    for n in range(366):
        day = date(2012, 1, 1) + timedelta(n)
        if day.day in (3, 4, 12, 29):  # below, at and above the largest month
            for language in forms:
                for form in language:
                    text = form.plain(day)
                    if dates._skeleton(text) not in unclear:
                        readings[text].add(day)
    assert len(readings) > 10_000
    assert [text for text, days in readings.items() if len(days) > 1] == []


MONTHS = {month: f"month{'abcdefghijkl'[month - 1]}" for month in range(1, 13)}
DAYS = dict.fromkeys(range(7), "day")


@pytest.mark.parametrize(
    ("pattern", "months", "days", "readings"),
    [
        ("EEEE d MMMM y", MONTHS, DAYS, tuple(range(1, 13))),
        ("d 'MMM' M y", {}, {}, ("dM",) * 12),
        ("yyyy-MM-dd", {}, {}, ("Md",) * 12),
        ("d MMMM y", {n: f"{n}-th" for n in MONTHS}, {}, ("dM",) * 12),
        ("d MMMM y", {n: f"{n % 12 + 1}-th" for n in MONTHS}, {}, None),  # January is 2
        ("d MMMM y", {**MONTHS, 12: "M12"}, {}, None),  # a placeholder
        ("d MMMM y", {n: MONTHS[n] for n in range(1, 12)}, {}, None),  # December is inherited
        ("EEEE d MMMM y", MONTHS, {}, None),
        ("d MMMM y G", MONTHS, {}, None),  # the era's name is inherited
        ("d MMMM yy", MONTHS, {}, None),
        ("MMMM y", MONTHS, {}, None),
        ("d y", MONTHS, {}, None),
        ("d MMMM", MONTHS, {}, None),
    ],
)
def test_which_forms_are_taken(
    pattern: str,
    months: dict[int, str],
    days: dict[int, str],
    readings: tuple[int | str, ...] | None,
) -> None:
    locale: Any = SimpleNamespace(date_formats={"long": SimpleNamespace(pattern=pattern)})
    own = {"months": {"format": {"wide": months}}, "days": {"format": {"wide": days}}}
    form = dates._form(locale, "long", own)
    assert (form.readings if form else None) == readings
    assert form is None or form.weekday == ("E" in pattern)


def test_unclear_texts_are_found() -> None:
    by_name = {(f.language, f.format): f for forms in dates.known_forms() for f in forms}
    day_first, year_first = by_name["ast", "long"], by_name["ja", "medium"]
    swapped = dates.Form("xx", "medium", by_name["fur", "medium"].locale, False, ("Md",) * 12)
    assert dates._unclear([[day_first], [year_first]]) == set()
    assert dates._unclear([[by_name["fur", "medium"]], [swapped]]) == {"0/0/y"}
    constant = dates.Form("xx", "long", day_first.locale, False, (1,) * 12)
    assert len(dates._unclear([[day_first], [constant]])) == 11  # January agrees


def test_no_source_is_unclear_or_its_answer_or_a_placeholder() -> None:
    forms = dates.known_forms()
    unclear = dates._unclear(forms)
    assert unclear
    everything = dates.make_dates(0, languages=len(forms), pairs=20_000)
    for part in everything:
        for example in part:
            assert example.source != example.references[0]
            assert example.source == normalise(example.source)
            assert not re.search("M[01][0-9]", example.source)
            assert dates._skeleton(example.source) not in unclear


def test_languages() -> None:
    forms = dates.known_forms()
    assert len(forms) >= 200
    names = [language[0].language for language in forms]
    assert len(set(names)) == len(names)
    assert {"en", "fr", "ja", "ar", "hi", "th", "ru", "sw"} <= set(names[:100])
    by_name = {f.language: f for language in forms for f in language if f.format == "long"}
    day = date(1987, 3, 5)
    assert by_name["en"].write(day) == "March 5, 1987"
    assert by_name["fr"].write(day) == "5 mars 1987"
    assert by_name["mr"].write(day) == "५ मार्च, १९८७"
    assert by_name["fa"].write(day) == "۵ مارس ۱۹۸۷"


def test_native_digits_of_every_language() -> None:
    """Every system is in the table: a missing system would silently give Latin digits."""
    for language in dates.known_forms():
        for form in language:
            system = form.locale.default_numbering_system
            text = form.write(date(1987, 3, 5))
            assert (re.search("[0-9]", text) is not None) == (system == "latn"), form


def test_default_task() -> None:
    task = load_task(DataOptions(split_seed=1, limit=100))
    assert (task.name, task.unit) == ("dates", "character")
    assert task.description == f"Dates in {dates.LANGUAGES} languages → ISO 8601"
    assert [len(task.train), len(task.valid), len(task.test)] == [80, 10, 10]
    assert load_task(DataOptions(split_seed=1, limit=100)) == task
    assert (
        len(load_task(DataOptions()).train) + 2 * len(load_task(DataOptions()).test) == dates.PAIRS
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"languages": 0}, r"expected 1 to \d+ languages, got 0"),
        ({"languages": 9999}, r"expected 1 to \d+ languages, got 9999"),
        ({"pairs": 9}, "expected at least 10 dates, got 9"),
        ({"years": (1, 2000)}, "expected years first to last between 1000 and 9999"),
        (
            {"languages": 1, "pairs": 2000, "years": (2000, 2000)},
            "292 days in 1 language cannot give 1,600 different texts; ask for fewer pairs",
        ),
    ],
)
def test_what_cannot_be_made(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        dates.make_dates(0, **arguments)  # type: ignore[arg-type]
