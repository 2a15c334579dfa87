"""Dropout draws sixteen bits for each number."""

from __future__ import annotations

import pytest
import torch

from anyscore.lab.train.dropout import Dropout


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_it_drops_at_its_rate_and_keeps_the_mean(rate: float) -> None:
    torch.manual_seed(0)
    x = torch.full((311, 7, 211), 2.0, requires_grad=True)  # no multiple of four
    y = Dropout(rate)(x)
    dropped = y == 0
    assert dropped.float().mean().item() == pytest.approx(rate, abs=0.003)
    assert dropped.float().mean((0, 1)).std() < 0.02  # along every axis alike
    torch.testing.assert_close(
        y[~dropped], torch.full_like(y[~dropped], 2 / (1 - rate)), rtol=1e-3, atol=0
    )
    y.sum().backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None
    torch.testing.assert_close(x.grad, y.detach() / 2)


def test_neighbours_fall_independently() -> None:
    torch.manual_seed(1)
    dropped = (Dropout(0.5)(torch.ones(400_000)) == 0).double()
    for distance in (1, 2, 3, 4):
        both = (dropped[distance:] * dropped[:-distance]).mean().item()
        assert both == pytest.approx(0.25, abs=0.004)


def test_it_depends_on_the_generator_alone() -> None:
    x, layer = torch.ones(5, 7), Dropout(0.5)
    torch.manual_seed(0)
    one, other = layer(x), layer(x)
    torch.manual_seed(0)
    assert torch.equal(layer(x), one)
    assert not torch.equal(one, other)


def test_outside_training_and_at_rate_0_nothing_falls() -> None:
    x = torch.randn(5, 7)
    assert torch.equal(Dropout(0.5).eval()(x), x)
    assert torch.equal(Dropout(0.0)(x), x)
