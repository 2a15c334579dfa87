"""Exact match is right item by item; chrF and BLEU from sums equal sacrebleu's."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from anyscore.lab.train.metrics import SCORE_OF_SUMS, exact_match, matches, statistics

pytestmark = pytest.mark.sample

WORDS = ["der", "Hund", "schläft", "im", "Haus", "ab", "c", "d.", "the", "cat,"]


def test_a_match_is_any_answer() -> None:
    answers = [[["a", "b"]], [["c"], ["d"]], [["e"]]]
    assert matches([["a", "b"], ["d"], []], answers) == [1, 1, 0]
    assert exact_match([["a", "b"], ["d"], ["f"]], answers) == pytest.approx(2 / 3)


def texts(rng: random.Random, most: int) -> list[str]:
    return [" ".join(rng.choices(WORDS, k=rng.randint(0, most))) for _ in range(12)]


@pytest.mark.parametrize("characters", [False, True])
@pytest.mark.parametrize("seed", range(30))
def test_scores_of_sums_are_those_of_the_corpus(seed: int, characters: bool) -> None:
    """Scores of sums equal corpus scores, with short and empty texts and two references."""
    rng = random.Random(seed)
    most = 1 + seed % 7
    outputs, first, second = texts(rng, most), texts(rng, most), texts(rng, most)
    first[:3] = outputs[:3]
    two = [rng.random() < 0.5 for _ in outputs]
    references = [(a, b) if both else (a,) for a, b, both in zip(first, second, two, strict=True)]
    streams: Any = [first, [b if both else None for b, both in zip(second, two, strict=True)]]
    rows = statistics(outputs, references, characters=characters)
    sums = {name: np.array(x, np.float64).sum(0) for name, x in rows.items()}
    assert {len(x) for x in rows.values()} == {len(outputs)}
    if not any(two):
        streams = streams[:1]
    bleu = BLEU(force=True, tokenize="char" if characters else "13a")
    expected = {
        "chrf": CHRF().corpus_score(outputs, streams).score,
        "bleu": bleu.corpus_score(outputs, streams).score,
    }
    for name, score in expected.items():
        assert SCORE_OF_SUMS[name](sums[name]) == pytest.approx(score, abs=1e-9)


@pytest.mark.parametrize("name", SCORE_OF_SUMS)
def test_many_sums_at_once_are_each_alone(name: str) -> None:
    rng = np.random.default_rng(0)
    width = {"chrf": 18, "bleu": 10}[name]
    sums = rng.integers(0, 9, (4, 5, width)).astype(np.float64)
    sums[0] = 0
    together = SCORE_OF_SUMS[name](sums)
    assert together.shape == (4, 5)
    assert (together[0] == 0).all()
    for i in np.ndindex(4, 5):
        assert together[i] == pytest.approx(float(SCORE_OF_SUMS[name](sums[i])))


def test_bleu_of_single_words_is_of_characters() -> None:
    outputs, references = ["2024-05-13", "1999-12-31"], [("2024-05-13",), ("1999-12-30",)]
    sums = {
        characters: np.array(statistics(outputs, references, characters=characters)["bleu"]).sum(0)
        for characters in (False, True)
    }
    assert SCORE_OF_SUMS["bleu"](sums[True]) > 90


def test_right_outputs_have_the_most() -> None:
    references = [("der Hund schläft im Haus",), ("the cat sat on a mat", "the cat was on the mat")]
    rows = statistics(
        ["der Hund schläft im Haus", "the cat was on the mat"], references, characters=False
    )
    for name, x in rows.items():
        assert SCORE_OF_SUMS[name](np.sum(x, 0)) == pytest.approx(100)
