"""Tokens lose nothing; the vocabulary is small, deterministic and survives JSON."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anyscore.lab.data.tokens import (
    BOS,
    EOS,
    GLUE,
    PAD,
    UNK,
    Vocabulary,
    detokenise,
    normalise,
    tokenise,
)

pytestmark = pytest.mark.sample

ANY = st.text()
# Dense in hard characters: joiners, the escape, apostrophes, marks, no-break spaces.
HARD = st.text(alphabet="ab 1'’.,!-_\u00a0\u202f\t\n\uffed\uffeeé\u0301\u093fक", max_size=20)


@given(ANY | HARD, st.sampled_from(["character", "word", "token", "label"]))
def test_round_trip(text: str, unit: str) -> None:
    tokens = tokenise(text, unit)
    assert detokenise(tokens, unit) == normalise(text)
    assert all(tokens)


@given(HARD)
def test_word_tokens_hold_no_space_and_survive_being_tokenised_again(text: str) -> None:
    tokens = tokenise(text, "word")
    assert not any(" " in token for token in tokens)
    assert tokenise(detokenise(tokens, "word"), "word") == tokens


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", []),
        ("Go.", ["Go", GLUE + "."]),
        ("Va\u202f!", ["Va", "!"]),
        ("J'ai vu.", ["J'", GLUE + "ai", "vu", GLUE + "."]),
        ("Wait... «oui»", ["Wait", GLUE + "...", "«", GLUE + "oui", GLUE + "»"]),
        ("the dogs' tails", ["the", "dogs", GLUE + "'", "tails"]),
        ("हिन्दी में।", ["हिन्दी", "में", GLUE + "।"]),
        ("cafe\u0301 3.5", ["café", "3", GLUE + ".", GLUE + "5"]),
    ],
)
def test_words(text: str, words: list[str]) -> None:
    assert tokenise(text, "word") == words


@pytest.mark.parametrize(
    ("unit", "tokens"), [("token", ["a@@", "b", "c."]), ("label", ["a@@ b c."])]
)
def test_ready_tokens_and_labels(unit: str, tokens: list[str]) -> None:
    assert tokenise(" a@@\u00a0b  c.", unit) == tokens
    assert tokenise(" ", unit) == []


def test_characters() -> None:
    assert tokenise(" e\u0301a  b", "character") == ["é", "a", " ", "b"]


@pytest.mark.parametrize("call", [tokenise, detokenise])
def test_unknown_unit(call: object) -> None:
    with pytest.raises(
        ValueError, match=r"unit must be character, word, token.* or label, got 'line'"
    ):
        call("a", "line")  # type: ignore[operator]


def test_vocabulary_keeps_the_most_frequent_and_breaks_ties_by_text() -> None:
    texts = [list("bbbaac"), list("dcz")]
    assert Vocabulary.build(texts).to_json() == ["b", "a", "c", "d", "z"]
    assert Vocabulary.build(reversed(texts)).to_json() == ["b", "a", "c", "d", "z"]
    assert Vocabulary.build(texts, size=2).to_json() == ["b", "a"]
    assert Vocabulary.build(texts, min_count=2).to_json() == ["b", "a", "c"]


def test_vocabulary_numbers() -> None:
    vocabulary = Vocabulary.build([list("aab")])
    assert (PAD, BOS, EOS, UNK) == (0, 1, 2, 3)
    assert len(vocabulary) == 6
    assert "a" in vocabulary
    assert "<pad>" not in vocabulary
    assert vocabulary.encode(["a", "b", "x", "a"]) == [4, 5, UNK, 4]
    assert vocabulary.decode([BOS, 4, PAD, UNK, 5, EOS, 4]) == ["a", "<unk>", "b"]
    with pytest.raises(IndexError, match="expected numbers 0 to 5, got 6"):
        vocabulary.decode([6])


def test_text_spelt_like_a_special_is_ordinary() -> None:
    vocabulary = Vocabulary.build([["<pad>", "</s>"]])
    numbers = vocabulary.encode(["<pad>", "</s>"])
    assert min(numbers) > UNK
    assert vocabulary.decode(numbers) == ["<pad>", "</s>"]


@given(st.lists(st.lists(ANY.filter(bool), max_size=5), max_size=5))
def test_vocabulary_round_trip(texts: list[list[str]]) -> None:
    vocabulary = Vocabulary.build(texts)
    for tokens in texts:
        assert vocabulary.decode(vocabulary.encode(tokens)) == tokens
    again = Vocabulary(json.loads(json.dumps(vocabulary.to_json())))
    assert again == vocabulary
    assert hash(again) == hash(vocabulary)
    assert Vocabulary([*vocabulary.to_json(), ""]) != vocabulary


def test_a_token_twice() -> None:
    with pytest.raises(ValueError, match="twice"):
        Vocabulary(["a", "a"])
