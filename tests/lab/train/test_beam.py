"""Beam search is compared with all possible outputs."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch

from anyscore.lab.data.tokens import BOS, EOS, UNK
from anyscore.lab.train.batches import Sequences
from anyscore.lab.train.beam import beam_search
from anyscore.lab.train.models import MODELS, new_model
from anyscore.lab.train.settings import Settings
from anyscore.lab.train.stepwise import Stepwise

SOURCES = [[5, 6, 4], [7, 5], [9], [4, 4, 6]]
LIMIT = 3
of_every_model = pytest.mark.parametrize(
    "name", [name for name, kind in MODELS.items() if issubclass(kind, Stepwise)]
)


def build(name: str, seed: int = 0) -> Any:
    """Return a model with six target numbers, and parameters so large that outputs differ."""
    settings = Settings(model=name, hidden=8, layers=1, heads=2)
    model = new_model(settings, "additive", 10, 6, seed).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.5)
    return model


def pad() -> tuple[torch.Tensor, torch.Tensor]:
    return Sequences(SOURCES, torch.device("cpu")).take(torch.arange(len(SOURCES)))


def worth_of(model: Any, source: list[int], said: tuple[int, ...]) -> float:
    """Return the mean log-probability of `said`, step by step."""
    memory = model.begin(torch.tensor([source]), torch.tensor([len(source)]))
    total = 0.0
    for token, following in zip([BOS, *said], said, strict=False):
        found, memory = model.step(torch.tensor([[token]]), memory)
        total += float(found[0, following])
    return total / len(said)


def all_outputs(numbers: list[int]) -> list[tuple[int, ...]]:
    """Return the outputs that end within the limit, and the outputs that the limit cuts."""
    others = [n for n in numbers if n != EOS]
    found = [(*x, EOS) for size in range(LIMIT) for x in product(others, repeat=size)]
    return found + list(product(others, repeat=LIMIT))


@of_every_model
@pytest.mark.parametrize("seed", range(3))
@torch.no_grad()
def test_a_beam_that_drops_nothing_finds_the_best_of_all(name: str, seed: int) -> None:
    model = build(name, seed)
    found = beam_search(model, *pad(), width=90, limit=LIMIT)
    greedy = model.greedy(*pad(), limit=LIMIT)
    for source, one, other in zip(SOURCES, found, greedy, strict=True):
        places = [4 + source.index(n) for n in set(source)]
        numbers = [EOS, *places] if name == "pointer" else [EOS, UNK, 4, 5]
        worth = {said: worth_of(model, source, said) for said in all_outputs(numbers)}
        best = max(worth, key=worth.__getitem__)
        assert tuple(one.numbers) == best
        assert one.log_probability / len(best) == pytest.approx(worth[best], abs=1e-5)
        assert other.log_probability / len(other.numbers) <= worth[best] + 1e-5


@of_every_model
@pytest.mark.parametrize("seed", range(3))
def test_a_beam_of_one_is_greedy(name: str, seed: int) -> None:
    model = build(name, seed)
    one = beam_search(model, *pad(), width=1, limit=5, return_weights=True)
    other = model.greedy(*pad(), limit=5, return_weights=True)
    for a, b in zip(one, other, strict=True):
        assert a.numbers == b.numbers
        assert a.log_probability == pytest.approx(b.log_probability, abs=1e-4)
        torch.testing.assert_close(a.weights, b.weights)


@of_every_model
def test_what_stands_beside_it_changes_nothing(name: str) -> None:
    """A source has the same output and weights alone as in a padded batch."""
    model = build(name)
    together = beam_search(model, *pad(), width=4, limit=5, return_weights=True)
    for source, one in zip(SOURCES, together, strict=True):
        lengths = torch.tensor([len(source)])
        (alone,) = beam_search(
            model, torch.tensor([source]), lengths, width=4, limit=5, return_weights=True
        )
        assert alone.numbers == one.numbers
        assert one.weights is not None
        assert one.weights.shape == (len(one.numbers), len(source))
        torch.testing.assert_close(alone.weights, one.weights, rtol=1e-4, atol=1e-5)


@of_every_model
def test_weights_are_those_of_the_output_that_was_chosen(name: str) -> None:
    model = build(name, seed=1)
    for source in SOURCES:
        lengths = torch.tensor([len(source)])
        (said,) = beam_search(
            model, torch.tensor([source]), lengths, width=5, limit=5, return_weights=True
        )
        memory = model.begin(torch.tensor([source]), lengths)
        assert said.weights is not None
        for token, row in zip([BOS, *said.numbers], said.weights, strict=False):
            _, memory = model.follow(torch.tensor([[token]]), memory)
            torch.testing.assert_close(model.weights()[0, 0], row, rtol=1e-4, atol=1e-5)


@of_every_model
@pytest.mark.parametrize(("width", "seed"), [(2, 3), (3, 4)])
@torch.no_grad()
def test_of_many_outputs_those_of_most_worth_stay(name: str, width: int, seed: int) -> None:
    """The output equals plain Python: all continuations of all outputs, sorted by mean."""
    model = build(name, seed)
    found = beam_search(model, *pad(), width=width, limit=6)
    for source, one in zip(SOURCES, found, strict=True):
        places = [4 + source.index(n) for n in set(source)]
        numbers = [EOS, *places] if name == "pointer" else [EOS, UNK, 4, 5]
        beams: list[tuple[int, ...]] = [()]
        for _ in range(6):
            ended = [said for said in beams if said[-1:] == (EOS,)]
            grown = [(*said, n) for said in beams if said[-1:] != (EOS,) for n in numbers]
            worth = {said: worth_of(model, source, said) for said in [*ended, *grown]}
            beams = sorted(worth, key=worth.__getitem__, reverse=True)[:width]
        assert tuple(one.numbers) == beams[0]
