"""The laboratory's GRU is PyTorch's."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from anyscore.lab.train.gru import read_both_ways, read_forwards

LENGTHS = torch.tensor([3, 7, 1, 5, 7])


def tokens(requires_grad: bool = True) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(5, 7, 4, generator=generator, dtype=torch.float64)
    return x.requires_grad_(requires_grad)


def build(both: bool) -> nn.GRU:
    torch.manual_seed(0)
    return nn.GRU(4, 3, batch_first=True, bidirectional=both).double()


def native(gru: nn.GRU, x: Tensor) -> Tensor:
    packed = pack_padded_sequence(x, LENGTHS, batch_first=True, enforce_sorted=False)
    return pad_packed_sequence(gru(packed)[0], batch_first=True, total_length=x.shape[1])[0]


def inside() -> Tensor:
    """Return a mask (5, 7, 1): 1 at a token, 0 at padding."""
    return (torch.arange(7) < LENGTHS[:, None])[..., None].double()


def test_both_ways_are_those_of_pytorch_on_packed_sequences() -> None:
    gru, x = build(True), tokens()
    names = [name for name, _ in gru.named_parameters()]
    weights = torch.randn(5, 7, 6, dtype=torch.float64) * inside()
    results = []
    for states in (read_both_ways(gru, x, LENGTHS), native(gru, x)):
        gradients = torch.autograd.grad((states * weights).sum(), [x, *gru.parameters()])
        results.append([states * inside(), *gradients])
    for name, own, expected in zip(["states", "x", *names], *results, strict=True):
        torch.testing.assert_close(own, expected, rtol=1e-12, atol=1e-12, msg=lambda m: name + m)  # noqa: B023


@pytest.mark.parametrize("given", [False, True])
def test_one_way_is_that_of_pytorch(given: bool) -> None:
    gru, x = build(False), tokens()
    start = torch.randn(1, 5, 3, dtype=torch.float64, requires_grad=True) if given else None
    inputs = [x, *gru.parameters(), *([start] if start is not None else [])]
    results = []
    for states, last in (read_forwards(gru, x, start), gru(x, start)):
        loss = states.sin().sum() + (last * 2).cos().sum()
        results.append([states, last, *torch.autograd.grad(loss, inputs)])
    for own, expected in zip(*results, strict=True):
        torch.testing.assert_close(own, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("both", [False, True])
def test_derivatives_are_those_of_differences(both: bool) -> None:
    gru = build(both)
    parameters = dict(gru.named_parameters())

    def run(x: Tensor, *values: Tensor) -> Tensor:
        state = dict(zip(parameters, values, strict=True))
        return torch.func.functional_call(
            Reader(gru, both), {f"gru.{n}": v for n, v in state.items()}, (x,)
        )

    assert torch.autograd.gradcheck(run, (tokens(), *parameters.values()))


class Reader(nn.Module):
    """A GRU called as the laboratory calls it."""

    def __init__(self, gru: nn.GRU, both: bool) -> None:
        super().__init__()
        self.gru, self.both = gru, both

    def forward(self, x: Tensor) -> Tensor:
        if self.both:
            return read_both_ways(self.gru, x, LENGTHS) * inside()
        return read_forwards(self.gru, x, None)[0]


def test_steps_one_at_a_time_are_those_of_the_whole() -> None:
    gru, x = build(False), tokens()
    expected, last = read_forwards(gru, x, None)
    state = None
    for t in range(x.shape[1]):
        states, state = read_forwards(gru, x[:, t : t + 1], state)
        torch.testing.assert_close(states[:, 0], expected[:, t])
    torch.testing.assert_close(state, last)
