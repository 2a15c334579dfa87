"""Counts and lists in English."""

from __future__ import annotations

import pytest

from anyscore.lab.phrases import counted, listed, visible

pytestmark = pytest.mark.sample


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [
        (0, "trial", "0 trials"),
        (1, "trial", "1 trial"),
        (2, "trial", "2 trials"),
        (1000, "more test item", "1,000 more test items"),
        (2, "search", "2 searches"),
        (2, "query", "2 queries"),
        (2, "day", "2 days"),
    ],
)
def test_a_noun_agrees_with_its_number(number: int, noun: str, text: str) -> None:
    assert counted(number, noun) == text


def test_names_are_listed_as_in_a_sentence() -> None:
    assert listed(["dot"]) == "dot"
    assert listed(["dot", "additive"]) == "dot and additive"
    assert listed(["dot", "additive", "gatv2"]) == "dot, additive and gatv2"


def test_a_text_cannot_steer_a_terminal() -> None:
    assert visible("a\x1b[31m\nb") == "a\ufffd[31m\nb"


@pytest.mark.parametrize(
    "steering", [*"\x7f\x85\x9b\u2028\u2029", *"\u202a\u202b\u202c\u202d\u202e"]
)
def test_a_text_cannot_reorder_a_line(steering: str) -> None:
    assert visible(f"a{steering}b") == "a\ufffdb"


@pytest.mark.parametrize("isolate", "\u2066\u2067\u2068\u2069")
def test_a_text_cannot_hold_the_rest_of_a_line(isolate: str) -> None:
    assert visible(f"a{isolate}b") == "a\ufffdb"


@pytest.mark.parametrize(
    "text", ["é", "加", "می\u200cخواهم", "👩\u200d🔬", "‏שלום‎", "\u0600١", "co\xadop"]
)
def test_what_texts_are_written_with_stays(text: str) -> None:
    assert visible(text) == text
