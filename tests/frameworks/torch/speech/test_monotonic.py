"""Monotonic, chunkwise and forward layers follow formulas in modes, steps and sequences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from anyscore import Window, attention
from anyscore.torch import (
    Attention,
    ForwardAttention,
    LocationSensitive,
    MoChA,
    MonotonicAttention,
)
from frameworks.torch.speech.plain_speech import (
    D_K,
    D_Q,
    HIDDEN,
    SIZES,
    drawn,
    expected_alignment,
    expected_chunks,
)

pytestmark = pytest.mark.sample

MAKE: dict[str, Callable[[], Any]] = {
    "forward": lambda: ForwardAttention("additive", **SIZES),
    "agent": lambda: ForwardAttention("additive", **SIZES, agent=torch.nn.Linear(D_K + D_Q, 1)),
    "forward, dot": lambda: ForwardAttention(Attention("bilinear", d_q=D_Q, d_k=D_K)),
    "forward, location": lambda: ForwardAttention(LocationSensitive(D_Q, D_K, HIDDEN, kernel=5)),
    "soft": lambda: MonotonicAttention("additive", **SIZES, noise=0, hard=False),
    "hard": lambda: MonotonicAttention("additive", **SIZES, hard=True, offset=0.1),
    "location": lambda: MonotonicAttention(
        LocationSensitive(D_Q, D_K, HIDDEN), noise=0, hard=False
    ),
    "mocha": lambda: MoChA("additive", width=3, **SIZES, noise=0, hard=False),
    "hard mocha": lambda: MoChA("additive", width=3, **SIZES, hard=True, offset=0.1),
    "mocha, other chunks": lambda: MoChA(
        "gatv2", width=2, chunk_score="concat", **SIZES, noise=0, hard=False
    ),
}


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", MAKE)
def test_steps_are_the_sequence(name: str, masked: bool) -> None:
    """Whole sequences and steps give the same values and gradients, and read no padding."""
    torch.manual_seed(0)
    layer = MAKE[name]().double()
    queries, values = drawn(3, 5, D_Q), drawn(3, 9, D_K, seed=2)
    keys = drawn(3, 9, D_K, seed=1).detach()
    lengths = torch.tensor([9, 4, 0]) if masked else None
    if masked:
        keys[1, 4:], keys[2] = torch.nan, torch.inf
    keys.requires_grad_()
    output, weights = layer(queries, keys, values, lengths, return_weights=True)
    state, steps = layer.start(keys, values, lengths), []
    for query in queries.unbind(1):
        step = layer.step(query, state)
        state = step.state
        steps.append(step[:2])
    stepped = [torch.stack(x, 1) for x in zip(*steps, strict=True)]
    xs = [queries, keys, values, *(x for n, x in layer.named_parameters())]
    results = []
    for found in ((output, weights), stepped):
        loss = sum((x * drawn(*x.shape, seed=7).detach()).sum() for x in found)
        slopes = torch.autograd.grad(loss, xs, allow_unused=True)
        results.append(
            (
                *found,
                [torch.zeros_like(x) if s is None else s for x, s in zip(xs, slopes, strict=True)],
            )
        )
    torch.testing.assert_close(*results)
    torch.testing.assert_close(output, weights @ values)
    if masked:
        assert not weights[1, :, 4:].any()
        assert not weights[2].any()
        assert all(torch.isfinite(x).all() for x in results[0][2])


def test_the_layer_is_the_formula() -> None:
    layer = MoChA("additive", width=2, **SIZES, noise=0.0, hard=False).double()
    queries, keys = drawn(2, 4, D_Q), drawn(2, 6, D_K)

    def energies(of: Any) -> Tensor:
        hidden = torch.tanh(
            (queries @ of.W_q.weight.T)[:, :, None] + (keys @ of.W_k.weight.T)[:, None]
        )
        return hidden @ of.w_v.weight.flatten()

    p = torch.sigmoid(energies(layer.energy) + layer.offset)
    alpha = torch.tensor([expected_alignment(rows) for rows in p.tolist()], dtype=torch.float64)
    weights = layer(queries, keys, return_weights=True)[1]
    torch.testing.assert_close(weights, expected_chunks(alpha, energies(layer.chunk), 2))


def test_hard_is_the_algorithm() -> None:
    """Weight 1 is on the first key from the last one on with p > ½.

    Source: Raffel et al. 2017, algorithm 1.
    """
    torch.manual_seed(3)
    layer = MonotonicAttention("bilinear", d_q=D_Q, d_k=D_K, offset=0.0).double().eval()
    queries, keys = 3 * drawn(8, 7, D_Q), drawn(8, 6, D_K)
    energies = layer.energy.scores(queries, keys)
    weights = layer(queries, keys, return_weights=True)[1]
    ends = 0
    for b in range(8):
        position = 0
        for i in range(7):
            stops = [j for j in range(position, 6) if energies[b, i, j] > 0]
            expected = torch.zeros(6, dtype=torch.float64)
            if stops:
                expected[stops[0]] = 1
            position = stops[0] if stops else 6
            ends += not stops
            assert torch.equal(weights[b, i], expected)
    assert 0 < ends < 56


def test_hard_chunks_are_a_window() -> None:
    torch.manual_seed(0)
    layer = MoChA("bilinear", width=3, chunk_score="scaled_dot", d_q=6, d_k=6, offset=0.0)
    layer = layer.double().eval()
    queries, keys = 2 * drawn(2, 5, 6), drawn(2, 9, 6)
    output, _weights = layer(queries, keys, return_weights=True)
    stops = MonotonicAttention(layer.energy, offset=0.0).eval().double()
    alpha = stops(queries, keys, return_weights=True)[1]
    assert alpha.any()
    for b in range(2):
        for i in range(5):
            if not alpha[b, i].any():
                assert not output[b, i].any()
                continue
            stop = int(alpha[b, i].argmax())
            window = Window(2, 0, offset=stop)
            found = attention(queries[b, i : i + 1], keys[b], keys[b], mask=window)
            torch.testing.assert_close(output[b, i], found[0])


def test_noise_and_modes() -> None:
    torch.manual_seed(0)
    layer, queries, keys = (
        MonotonicAttention("additive", **SIZES),
        drawn(1, 3, D_Q),
        drawn(1, 4, D_K),
    )
    layer = layer.double()
    assert not torch.equal(layer(queries, keys), layer(queries, keys))
    hard = layer.eval()(queries, keys, return_weights=True)[1]
    assert set(hard.unique().tolist()) <= {0.0, 1.0}
    layer.hard = False
    soft = layer(queries, keys, return_weights=True)[1]
    assert ((soft > 0) & (soft < 1)).all()


def test_weight_normalization_of_the_paper() -> None:
    """PyTorch's parametrization of w_v gives e = g v/‖v‖ · tanh(…)."""
    layer = MonotonicAttention("additive", **SIZES, noise=0.0, hard=False).double()
    queries, keys = drawn(1, 3, D_Q), drawn(1, 4, D_K)
    before = layer(queries, keys)
    normalized = torch.nn.utils.parametrizations.weight_norm(layer.energy.w_v, dim=None)
    torch.testing.assert_close(layer(queries, keys), before)
    layer(queries, keys).sum().backward()
    assert normalized.parametrizations.weight.original0.grad.abs().sum() > 0
