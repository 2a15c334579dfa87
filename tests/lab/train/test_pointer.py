"""The pointer network gives tokens of its source."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from anyscore.lab.data.encoding import encode
from anyscore.lab.data.numbers import NumberedPairs, Pair
from anyscore.lab.data.task import Example, Task
from anyscore.lab.data.tokens import BOS, EOS, UNK
from anyscore.lab.errors import InputError
from anyscore.lab.train.answering import answers
from anyscore.lab.train.batches import Pairs, Sequences
from anyscore.lab.train.metrics import exact_match
from anyscore.lab.train.models import build_model, check_fits, new_model
from anyscore.lab.train.settings import Settings
from anyscore.lab.train.training import train
from anyscore.score import SCORES
from helpers.by_pair import by_pair
from lab.command_line import SMALL, call, plain

CPU = torch.device("cpu")
SOURCES = [[5, 6, 7, 8, 5, 10, 11], [7, 5], [9], [4, 4, 6, 8]]
with_every_score = by_pair("score", SCORES)


def build(score: str = "additive", hidden: int = 12) -> Any:
    return new_model(Settings(model="pointer", hidden=hidden), score, 13, 9, 0).eval()


def pad() -> tuple[torch.Tensor, torch.Tensor]:
    return Sequences(SOURCES, CPU).take(torch.arange(len(SOURCES)))


def sorting(count: int = 400, most: int = 6, seed: int = 0) -> Task:
    """Return a task: numbers, with repetitions, to the same numbers in order."""
    luck = random.Random(seed)
    examples = []
    for _ in range(count):
        numbers = [luck.randrange(10, 40) for _ in range(luck.randrange(2, most + 1))]
        source, target = (" ".join(map(str, x)) for x in (numbers, sorted(numbers)))
        examples.append(Example(source, (target,)))
    held = count // 10
    parts = examples[2 * held :], examples[:held], examples[held : 2 * held]
    return Task("sorting", "", "token", *parts)


def steps(model: Any, source: list[int], said: list[int]) -> torch.Tensor:
    """Return log-probabilities (T, V) after the start and each token of `said`, step by step."""
    memory = model.begin(torch.tensor([source]), torch.tensor([len(source)]))
    found = []
    for number in [BOS, *said]:
        row, memory = model.step(torch.tensor([[number]]), memory)
        found.append(row[0])
    return torch.stack(found)


@with_every_score
def test_the_loss_is_that_of_what_is_said_step_by_step(score: str) -> None:
    """A padded batch with repeated tokens has the loss of single steps, and finite gradients."""
    model = build(score)
    targets = [[4, 4, 7, EOS], [5, 4, EOS], [EOS], [4, 6, EOS]]
    pairs = NumberedPairs(SOURCES, targets)
    batch = Pairs(pairs, CPU).batch(torch.arange(len(pairs)))
    loss = model.loss(batch)
    with torch.no_grad():
        nats = [
            -steps(model, source, target[:-1])[range(len(target)), target].sum()
            for source, target in zip(SOURCES, targets, strict=True)
        ]
    torch.testing.assert_close(loss, sum(nats) / batch.tokens, rtol=1e-4, atol=1e-5)
    loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
    lost = model.source_embedding.weight.grad[0]
    assert not lost.any()  # padding has no gradient


def test_the_loss_is_right_where_the_probability_underflows() -> None:
    """The loss is finite with scores of thousands: a wrong place is likelier by e^1000 and more."""
    model = build("dot")
    with torch.no_grad():
        for parameter in model.to_keys.parameters():
            parameter.mul_(3e4)
    batch = Pairs(NumberedPairs([(5, 6), (6, 5)], [(4, 5, EOS), (4, 5, EOS)]), CPU).batch(
        torch.arange(2)
    )
    loss = model.loss(batch)
    assert loss.isfinite()
    assert loss > 100
    loss.backward()
    assert model.decoder.weight_ih_l0.grad.isfinite().all()
    assert model.decoder.weight_ih_l0.grad.any()


@with_every_score
def test_padding_changes_nothing(score: str) -> None:
    model = build(score)
    source, lengths = pad()
    together, _ = model.step(torch.full((len(SOURCES), 1), BOS), model.begin(source, lengths))
    for i, tokens in enumerate(SOURCES):
        alone = steps(model, tokens, [])[0]
        torch.testing.assert_close(together[i, : len(alone)], alone, rtol=1e-5, atol=2e-6)
        assert (together[i, len(alone) :] == -torch.inf).all()


def test_a_token_that_stands_twice_is_said_by_either_place() -> None:
    """A token's first place has the weights of all its places; unknown tokens stay apart."""
    model = build()
    source = [5, 6, 5, UNK, UNK]
    found = steps(model, source, [])[0].exp()
    memory = model.begin(torch.tensor([source]), torch.tensor([5]))
    model.follow(torch.tensor([[BOS]]), memory)
    weights = model.weights()[0, 0]
    expected = torch.stack([weights[0] + weights[2], weights[1], weights[3], weights[4]])
    torch.testing.assert_close(found[[4, 5, 7, 8]], expected)
    assert not found[[0, 1, UNK, 6]].any()
    torch.testing.assert_close(found.sum(), torch.tensor(1.0))
    torch.testing.assert_close(found[EOS], 1 - weights.sum())


def test_targets_are_places_and_unknown_tokens_can_be_said() -> None:
    examples = [Example("b a", ("a b",)), Example("a b a", ("a a b",))] * 2
    once = Example("x a y", ("y x",))
    data = encode(Task("t", "", "token", [*examples, once], [once], [once]), places=True)
    assert [pair.target for pair in list(data.train)[:2]] == [(5, 4, EOS), (4, 4, 5, EOS)]
    first, *_, last = data.train
    assert last == Pair((UNK, first.source[1], UNK), (6, 4, EOS))
    model = build_model("dot", data, Settings(model="pointer", hidden=8), 0)
    assert model.tokens([6, 4, EOS], once.source.split(), data.target_vocabulary) == ["y", "x"]


@pytest.mark.parametrize(
    "score",
    ["additive", "scaled_dot", "gaussian"],
)
def test_it_learns_to_sort(score: str) -> None:
    data = encode(sorting(most=3), places=True)
    settings = Settings(model="pointer", hidden=32, epochs=30, learning_rate=1e-2, batch_size=32)
    check_fits("pointer", data)
    model = build_model(score, data, settings, 0)
    train(model, data, settings, seed=0)
    given = answers(model, data, data.test, return_weights=True)
    right = exact_match([x.tokens for x in given], [item.answers for item in data.test])
    assert right >= 0.6
    for item, answer in zip(data.test, given, strict=True):
        assert set(answer.tokens) <= set(item.source)
        assert answer.weights is not None
        assert answer.weights.shape == (len(answer.tokens) + answer.complete, len(item.source))
        assert (answer.weights.sum(-1)[: len(answer.tokens)] <= 1 + 1e-5).all()


def test_targets_that_stand_in_no_source_are_told() -> None:
    task = replace(sorting(40), valid=[Example("10 11", ("10 12",))])
    with pytest.raises(InputError) as caught:
        check_fits("pointer", encode(task, places=True))
    assert str(caught.value) == (
        "--model pointer: expected targets made of tokens of their sources, got others in 1 of 33 "
        "pairs; give another --unit, or another --model"
    )


@pytest.mark.parametrize("model", ["pointer", "recurrent"])
def test_data_encoded_for_another_model_is_told(model: str) -> None:
    data = encode(sorting(40), places=model != "pointer")
    with pytest.raises(InputError, match=f"encode the task with places={model == 'pointer'}"):
        check_fits(model, data)


def test_it_is_compared_on_the_command_line(tmp_path: Path) -> None:
    """The command compares two scores on sorting, and refuses data that do not fit."""
    task = sorting(60)
    rows = [f"{e.source}\t{e.references[0]}\n" for e in (*task.train, *task.valid, *task.test)]
    file, out = tmp_path / "sorting.tsv", tmp_path / "run"
    file.write_text("".join(rows), encoding="utf-8")
    options = ("--model", "pointer", "--scores", "dot,additive", "--unit", "token", *SMALL)
    result = call("compare", file, *options, "--out", out)
    assert result.exit_code == 0, result.output
    found = json.loads((out / "comparison.json").read_text(encoding="utf-8"))
    assert found["settings"]["model"] == "pointer"
    for example in found["examples"]:
        for answer in example["answers"].values():
            assert set(answer["output"]) <= {*example["source"], "</s>"}
            assert len(answer["weights"]) == len(answer["output"])
    file.write_text("".join(f"{i}\t{i + 1}\n" for i in range(40)), encoding="utf-8")
    result = call("compare", file, *options, "--out", tmp_path / "other", width=300)
    assert result.exit_code == 2
    assert "expected targets made of tokens of their sources, got others in 36 of 36" in plain(
        result.stderr
    )
    assert not (tmp_path / "other").exists()
