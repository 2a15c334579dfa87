"""Tokenisers lose nothing, survive JSON, and learn from the training data alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anyscore.lab.data.encoding import encode
from anyscore.lab.data.options import DataOptions, Unit
from anyscore.lab.data.pairs import Example
from anyscore.lab.data.task import Task, load_task
from anyscore.lab.data.tokenisers import (
    Subwords,
    Tokeniser,
    tokeniser_from_json,
)
from anyscore.lab.data.tokens import SPACE, detokenise, normalise
from anyscore.lab.errors import InputError

TEXTS = [f"{who} {does} it{end}" for who in ("she", "he", "they") for does in ("sees", "seeks")
         for end in ("", ".", "!")]  # fmt: skip
SUBWORDS = Subwords.train(TEXTS, 60)
# Dense in hard characters: the mark of a space, the escape, joiners, unknown characters.
HARD = st.text(alphabet="she tk.'\u2581\uffed\uffee\u00a0\né\u0301日", max_size=20)


@given(st.text() | HARD, st.sampled_from(get_args(Unit)))
def test_round_trip(text: str, unit: Unit) -> None:
    tokeniser = SUBWORDS if unit == "bpe" else Tokeniser(unit)
    tokens = tokeniser.tokenise(text)
    assert tokeniser.detokenise(tokens) == normalise(text)
    assert detokenise(tokens, unit) == normalise(text)
    assert all(tokens)


def test_subwords_join_what_recurs() -> None:
    assert SUBWORDS.tokenise("she sees!") == [SPACE + "she", SPACE + "sees", "!"]
    assert SUBWORDS.tokenise("日 he") == [SPACE, "日", SPACE + "he"]
    few, many = (Subwords.train(TEXTS, size) for size in (20, 60))
    assert len(few.tokenise("they seek")) > len(many.tokenise("they seek"))
    assert Subwords.train(list(reversed(TEXTS)), 60) == SUBWORDS != few


@pytest.mark.parametrize("unit", get_args(Unit))
def test_json(unit: Unit) -> None:
    tokeniser = SUBWORDS if unit == "bpe" else Tokeniser(unit)
    again = tokeniser_from_json(json.loads(json.dumps(tokeniser.to_json())))
    assert (again, hash(again), type(again)) == (tokeniser, hash(tokeniser), type(tokeniser))
    assert again.tokenise("she seeks 日.") == tokeniser.tokenise("she seeks 日.")


@pytest.mark.parametrize(
    "value",
    [
        *(None, [], {}, {"unit": "line"}, {"unit": []}, {"unit": "bpe"}),
        {"unit": "bpe", "tokenizer": 3},
        {"unit": "bpe", "tokenizer": {"model": {"type": "BPE"}}},
    ],
)
def test_damaged_json(value: object) -> None:
    with pytest.raises(InputError, match="the run folder is damaged: train again"):
        tokeniser_from_json(value)


def test_subwords_are_made_of_the_training_data_alone() -> None:
    examples = [Example(text, (text,)) for text in TEXTS]
    train, rest = examples[:12], [Example("zebra zebra", ("zebra",))] * 4
    data = encode(Task("t", "t", "bpe", train, rest, rest))
    assert data.unit == "bpe"
    for tokeniser in (data.source_tokeniser, data.target_tokeniser):
        assert "z" not in tokeniser.to_json()["tokenizer"]["model"]["vocab"]
    item = data.test[0]
    assert data.source_tokeniser.detokenise(item.source) == "zebra zebra"
    assert data.target_tokeniser.detokenise(item.answers[0]) == "zebra"


@pytest.mark.parametrize(
    ("options", "units"),
    [
        ({}, ("word", "word")),
        ({"unit": "character"}, ("character", "character")),
        ({"target_unit": "token"}, ("word", "token")),
        ({"source_unit": "character", "target_unit": "bpe", "subwords": 50}, ("character", "bpe")),
        ({"source_unit": "bpe", "unit": "word"}, ("bpe", "word")),
        ({"target": 3, "target_unit": "label"}, ("word", "label")),
        ({"target": 3}, ("character", "character")),
    ],
)
def test_a_unit_for_each_side(
    pairs: Path, options: dict[str, object], units: tuple[str, str]
) -> None:
    task = load_task(DataOptions(pairs, **options))  # type: ignore[arg-type]
    assert task.units == units
    data = encode(task)
    assert (data.source_tokeniser.unit, data.target_tokeniser.unit) == units
    assert task.tokenisers is not None
    assert data.source_tokeniser is task.tokenisers[0]
    assert data.target_tokeniser is task.tokenisers[1]
    lengths = task.summary["lengths"]
    assert (lengths["source"]["unit"], lengths["target"]["unit"]) == units
    item = data.test[0]
    assert data.source_tokeniser.detokenise(item.source) == task.test[0].source
    assert data.target_tokeniser.detokenise(item.answers[0]) == task.test[0].references[0]


def test_a_label_is_one_token(pairs: Path) -> None:
    data = encode(load_task(DataOptions(pairs, target=3, target_unit="label")))
    assert data.target_vocabulary.to_json() == ["note"]
    assert all(item.answers == (("note",),) for item in data.test)
