"""Models that label tokens or sequences."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

from anyscore.lab.data.numbers import NumberedPairs
from anyscore.lab.data.tokens import EOS
from anyscore.lab.train.batches import Pairs, Sequences
from anyscore.lab.train.models import new_model
from anyscore.lab.train.settings import Settings
from anyscore.score import SCORES
from helpers.by_pair import by_pair

CPU = torch.device("cpu")
SOURCES = [[5, 6, 7, 8, 9], [7, 5], [9], [4, 4, 6, 8]]

of_both = pytest.mark.parametrize("model", ["tagger", "classifier"])
with_every_score = by_pair("score", SCORES)


def build(model: str, score: str, hidden: int = 12) -> Any:
    return new_model(Settings(model=model, hidden=hidden), score, 13, 9, 0).eval()


def pad() -> tuple[torch.Tensor, torch.Tensor]:
    return Sequences(SOURCES, CPU).take(torch.arange(len(SOURCES)))


@of_both
@with_every_score
def test_padding_changes_nothing(model: str, score: str) -> None:
    built = build(model, score)
    source, lengths = pad()
    together = built(source, lengths)
    rubbish = built(source.masked_fill(source == 0, 12), lengths)
    for i, tokens in enumerate(SOURCES):
        alone = built(torch.tensor([tokens]), lengths[i : i + 1])[0]
        for logits in (together, rubbish):
            torch.testing.assert_close(logits[i, : len(alone)], alone, rtol=1e-5, atol=2e-6)


@of_both
def test_labels_and_weights_are_as_many_as_there_should_be(model: str) -> None:
    said = build(model, "additive").greedy(*pad(), limit=1, return_weights=True)
    for tokens, (output, _, rows) in zip(SOURCES, said, strict=True):
        assert len(output) == (len(tokens) if model == "tagger" else 1)
        assert min(output) > 3
        assert rows.shape == (len(output), len(tokens))
        torch.testing.assert_close(rows.sum(-1), torch.ones(len(output)))


@of_both
def test_the_loss_is_over_labels_alone(model: str) -> None:
    built = build(model, "dot")
    labels = [[4 + n % 5 for n in tokens] for tokens in SOURCES]
    labels = labels if model == "tagger" else [row[:1] for row in labels]
    pairs = NumberedPairs(SOURCES, [(*row, EOS) for row in labels])
    batch = Pairs(pairs, CPU).batch(torch.arange(len(pairs)))
    expected = torch.zeros(())
    for tokens, row in zip(SOURCES, labels, strict=True):
        logits = built(torch.tensor([tokens]), torch.tensor([len(tokens)]))[0]
        expected = expected + cross_entropy(logits, torch.tensor(row), reduction="sum")
    ends = len(pairs)
    torch.testing.assert_close(built.loss(batch), expected / (sum(map(len, labels)) + ends))


@of_both
@pytest.mark.parametrize("score", ["scaled_dot", "additive"])
def test_it_learns(model: str, score: str) -> None:
    """A tagger learns which tokens precede a 5; a classifier learns whether a 5 occurs."""
    generator = torch.Generator().manual_seed(0)
    sources = torch.randint(4, 9, (64, 4), generator=generator).tolist()
    if model == "tagger":
        targets = [[4 + (b == 5) for b in [*s[1:], 0]] for s in sources]
    else:
        targets = [[4 + (5 in s)] for s in sources]
    pairs = NumberedPairs(sources, [(*t, EOS) for t in targets])
    batch = Pairs(pairs, CPU).batch(torch.arange(64))
    built = build(model, score, hidden=24).train()
    optimiser = torch.optim.Adam(built.parameters(), lr=1e-2)
    for _ in range(120):
        optimiser.zero_grad()
        built.loss(batch).backward()
        optimiser.step()
    said = built.eval().greedy(batch.source, batch.lengths, limit=1)
    right = sum(x.numbers == target for x, target in zip(said, targets, strict=True))
    assert right >= 62
