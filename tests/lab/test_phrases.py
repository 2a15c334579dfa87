"""Counts and lists in English."""

from __future__ import annotations

import pytest

from anyscore.lab.phrases import counted, listed, visible


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
