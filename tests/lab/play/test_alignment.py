"""The first tab's functions without a document, under node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from helpers.node import run_module


@pytest.mark.parametrize(
    ("answers", "target", "said"),
    [
        ({"A": "x", "B": "x"}, None, "All 2 models give one answer."),
        ({"A": "x"}, None, ""),
        ({"A": "x", "B": "y", "C": "x"}, None, "3 models give 2 different answers."),
        ({"A": "x", "B": "x"}, "x", "The right answer is x. Every model finds it."),
        ({"A": "y", "B": "x"}, "z", "The right answer is z. No model finds it."),
        (
            {"A": "y", "B": "x", "C": "z"},
            "x",
            "The right answer is x. 1 of 3 models find it. Not so: A, C.",
        ),
    ],
)
def test_the_verdict_counts_answers(
    answers: dict[str, str], target: str | None, said: str, tmp_path: Path
) -> None:
    expression = "verdictOn(given.answers, given.target ?? undefined)"
    given: Any = {"answers": answers, "target": target}
    assert run_module("lab/play/alignment.js", expression, given, tmp_path) == said


@pytest.mark.parametrize(("token", "goal"), [(4, "write “x”"), (2, "end its answer")])
def test_a_sentence_reads_the_map(token: int, goal: str, tmp_path: Path) -> None:
    given = {
        "title": "Dot product",
        "steps": [{"token": token, "weights": [0.25, 0.75]}],
        "outputs": ["x"],
    }
    expression = 'readingOf(given, 0, ["a", "b"])'
    assert run_module("lab/play/alignment.js", expression, given, tmp_path) == (
        f"Darker means a closer look. To {goal}, the Dot product model looks at “b” with 75\u00a0% "
        "of its weight."
    )


def test_changes_change_the_text_and_nothing_else(tmp_path: Path) -> None:
    expression = """Array.from({ length: 200 }, () => [
      shuffledText("one two  three"), shuffledText("abc"),
      perturbed([..."a bc"], [..." abcd"]).join(""),
    ])"""
    drawn = run_module("lab/play/changes.js", expression, None, tmp_path)
    words, letters, changed = ({row[i] for row in drawn} for i in range(3))
    assert len(words) == len(letters) == 3 * 2 - 1  # every order but the first
    assert {tuple(sorted(x.split(" "))) for x in words} == {("one", "three", "two")}
    assert {"".join(sorted(x)) for x in letters} == {"abc"}
    assert changed == {
        *("b bc", "c bc", "d bc"),
        *("a ac", "a cc", "a dc"),
        *("a ba", "a bb", "a bd"),
    }


def test_texts_without_another_order_or_token_stay(tmp_path: Path) -> None:
    expression = """[shuffledText(""), shuffledText("aa"), shuffledText("b b"),
      perturbed([], ["a"]), perturbed([" "], ["a"]), perturbed(["a"], ["a", " "])]"""
    found = run_module("lab/play/changes.js", expression, None, tmp_path)
    assert found == ["", "aa", "b b", [], [" "], ["a"]]


@pytest.mark.parametrize(
    ("weight", "said"),
    [(0, "0"), (0.0004, "0"), (0.0006, "0.1"), (0.0994, "9.9"), (0.0996, "10"), (1, "100")],
)
def test_percents_are_short(weight: float, said: str, tmp_path: Path) -> None:
    found = run_module("lab/play/words.js", "percent(given)", weight, tmp_path)
    assert found == f"{said}\u00a0%"


def test_tokens_have_visible_labels(tmp_path: Path) -> None:
    tokens = [" ", "a", "\u202e", "\u0301", "\u3000", "\u200d"]
    expression = "given.map((token) => tokenLabel(token, 'character'))"
    found = run_module("lab/play/words.js", expression, tokens, tmp_path)
    assert found == ["␣", "a", "⟨U+202E⟩", "◌\u0301", "␣", "\u200d"]
