"""Flat arrays of numbers have the same pairs, batches and checksum as a list."""

from __future__ import annotations

import pickle
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from anyscore.lab.built_in import _fingerprint, _fingerprint_of_all
from anyscore.lab.data import summary, tokenisers
from anyscore.lab.data.numbers import NumberedPairs, Pair
from anyscore.lab.data.options import DataOptions
from anyscore.lab.data.summary import summary_lines
from anyscore.lab.data.task import load_task
from anyscore.lab.data.tokens import BOS, PAD, Vocabulary
from anyscore.lab.train.batches import Pairs, shuffled

pytestmark = pytest.mark.sample

SIDES = ("source", "target")


def pairs(count: int) -> list[Pair]:
    luck = random.Random(1)
    return [
        Pair(*(tuple(luck.choices(range(4, 9), k=luck.randrange(1, 9))) for _ in range(2)))
        for _ in range(count)
    ]


def numbered(given: list[Pair]) -> NumberedPairs:
    return NumberedPairs([pair.source for pair in given], [pair.target for pair in given])


def test_numbered_pairs_can_be_sent() -> None:
    held = pairs(60)
    for found in (numbered(held), pickle.loads(pickle.dumps(numbered(held)))):
        assert list(found) == held
        assert len(found) == 60
    assert list(numbered([])) == []


def test_batches_are_the_padded_pairs() -> None:
    held = pairs(90)
    all_pairs = Pairs(numbered(held), torch.device("cpu"))
    for rows in shuffled(all_pairs.sources.lengths, 8, 5):
        batch, expected = all_pairs.batch(rows), [held[i] for i in rows.tolist()]
        sources, targets = ([list(getattr(x, side)) for x in expected] for side in SIDES)
        assert batch.source.tolist() == padded(sources)
        assert batch.lengths.tolist() == list(map(len, sources))
        assert batch.targets.tolist() == padded(targets)
        assert batch.inputs.tolist() == padded([[BOS, *x[:-1]] for x in padded(targets)])
        assert batch.tokens == sum(map(len, targets))
        assert batch.source.dtype == batch.targets.dtype == torch.int64


def padded(rows: list[list[int]]) -> list[list[int]]:
    longest = max(map(len, rows))
    return [row + [PAD] * (longest - len(row)) for row in rows]


@pytest.mark.parametrize("count", [0, 1, 1000, 2001])
def test_the_checksum_is_that_of_all_at_once(count: int) -> None:
    held = pairs(count)
    assert _fingerprint_of_all(iter(numbered(held))) == _fingerprint([vars(x) for x in held])


@given(st.lists(st.text("abcé漢😀", max_size=3), max_size=60), st.integers(1, 3), st.integers(0, 9))
def test_vocabularies_have_the_frequent_tokens_first(
    tokens: list[str], least: int, size: int
) -> None:
    ranked = sorted({*tokens}, key=lambda token: (-tokens.count(token), token))
    assert Vocabulary.build([tokens]).to_json() == ranked
    expected = [token for token in ranked if tokens.count(token) >= least][:size]
    assert Vocabulary.build([tokens], size=size, min_count=least).to_json() == expected


def test_subwords_are_made_of_so_many_characters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "pairs.tsv"
    table.write_text("".join(f"café {n} a\tmot{n % 12} mot{n % 7}\n" for n in range(90)))
    options = DataOptions(table, unit="bpe", subwords=80)
    read: list[str] = []
    marked = tokenisers.marked
    monkeypatch.setattr(tokenisers, "marked", lambda text: read.append(text) or marked(text))
    load_task(replace(options, source_unit="word"))
    every = len(read)
    for module in (tokenisers, summary):
        monkeypatch.setattr(module, "LEARNT_FROM", 100)
    read.clear()
    task = load_task(replace(options, source_unit="word"))
    assert len(read) < every
    assert "subwords are learnt from the first 100 characters of a side" in "; ".join(
        summary_lines(task.summary)
    )
