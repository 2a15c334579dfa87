"""LocationSensitive follows the published formula; its backward keeps T_q × T_k numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from anyscore.torch import LocationSensitive
from anyscore.torch.speech.location_energies import COLUMNS
from benchmarks.speech import AttLoc
from frameworks.torch.speech.plain_speech import (
    BATCH,
    D_K,
    D_Q,
    FILTERS,
    HIDDEN,
    KEYS,
    QUERIES,
    TacotronLocation,
    drawn,
    layer,
)

pytestmark = pytest.mark.sample

LENGTHS = torch.tensor([37, 20, 1])


def literal(of: LocationSensitive, queries: Tensor, keys: Tensor, allowed: Tensor) -> Tensor:
    """Return weights by loops over batch, queries and keys, from the formula."""
    W, V, U, F, w = of.W_q.weight, of.W_k.weight, of.U.weight, of.filters, of.w_v.weight[0]
    reach = F.shape[2] // 2
    found = []
    for b in range(len(keys)):
        n = int(allowed[b].sum())
        last = (
            allowed[b].double() / max(n, 1)
            if of.initial == "uniform"
            else torch.zeros(keys.shape[1])
        )
        last = last.to(keys)
        total, rows = torch.zeros_like(last), []
        for i, query in enumerate(queries[b]):
            both = [last, total if i else last]  # at first, `initial` gives both
            seen = {"previous": both[:1], "cumulative": both[1:], "both": both}[of.location]
            reachable = [j for j in range(keys.shape[1]) if allowed[b, j]]
            if of.window and i:
                peak = int(last.argmax())
                reachable = [
                    j for j in reachable if peak - of.window[0] <= j <= peak + of.window[1]
                ]
            energies = {}
            for j in reachable:
                feature = sum(
                    F[:, c, m] * channel[j + m - reach]
                    for c, channel in enumerate(seen)
                    for m in range(F.shape[2])
                    if 0 <= j + m - reach < len(channel)
                )
                bias = 0.0 if of.W_k.bias is None else of.W_k.bias
                hidden = torch.tanh(W @ query + V @ keys[b, j] + bias + U @ feature)
                offset = 0.0 if of.w_v.bias is None else of.w_v.bias[0]
                energies[j] = of.scale * (w @ hidden + offset)
            numbers = {
                j: torch.sigmoid(e) if of.smoothing else e.exp() for j, e in energies.items()
            }
            sums = sum(numbers.values())
            zero = 0 * keys[b, 0, 0]
            last = torch.stack([numbers[j] / sums if j in numbers else zero for j in range(KEYS)])
            total = total + last
            rows.append(last)
        found.append(torch.stack(rows))
    return torch.stack(found)


OPTIONS: dict[str, dict[str, Any]] = {
    "previous": {},
    "cumulative": {"location": "cumulative"},
    "cumulative from 0": {"location": "cumulative", "initial": "zero"},
    "both": {"location": "both"},
    "bias and scale": {"bias": True, "scale": 2.0},
    "smoothing": {"smoothing": True, "scale": 0.5},
    "window": {"window": (1, 2), "location": "both"},
    "wide kernel": {"kernel": 2 * KEYS + 1},
    "one tap": {"kernel": 1},
}


def compare(
    one: Callable[..., Any], other: Callable[..., Any], xs: list[Tensor], weights: Any
) -> None:
    """Assert that two functions and their gradients agree."""
    results = []
    for function in (one, other):
        found = function()
        loss = sum((x * drawn(*x.shape, seed=9).detach()).sum() for x in found)
        results.append((found, torch.autograd.grad(loss, [*xs, *weights])))
    torch.testing.assert_close(*results, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("masked", ["lengths", "mask", "none"])
@pytest.mark.parametrize("options", OPTIONS)
def test_literal(options: str, masked: str) -> None:
    of = layer(**OPTIONS[options])
    queries, keys, values = (
        drawn(BATCH, QUERIES, D_Q),
        drawn(BATCH, KEYS, D_K),
        drawn(BATCH, KEYS, 3),
    )
    allowed = torch.ones(BATCH, KEYS, dtype=torch.bool)
    if masked == "lengths":
        allowed = torch.arange(KEYS) < LENGTHS[:, None]
    elif masked == "mask":
        allowed = torch.rand(BATCH, KEYS, generator=torch.Generator().manual_seed(3)) < 0.5

    def ours() -> tuple[Tensor, Tensor]:
        lengths = {"valid_lens": LENGTHS} if masked == "lengths" else {}
        mask = {"mask": allowed} if masked == "mask" else {}
        output, weights = of(queries, keys, values, **lengths, **mask, return_weights=True)
        return output, weights

    def published() -> tuple[Tensor, Tensor]:
        weights = literal(of, queries, keys, allowed)
        return weights @ values, weights

    compare(ours, published, [queries, keys, values], list(of.parameters()))


@pytest.mark.parametrize("kind", ["espnet", "tacotron"])
@pytest.mark.parametrize("kernel", [5, 2 * COLUMNS + 1])
def test_their_layers(kind: str, kernel: int) -> None:
    """Parameters of ESPnet and Tacotron load by name, and give the same values and gradients."""
    theirs: Any
    if kind == "espnet":
        theirs = AttLoc(D_Q, D_K, HIDDEN, FILTERS, kernel).double()
        options: dict[str, Any] = {"location": "previous", "scale": 2, "bias": True}
    else:
        theirs = TacotronLocation(D_Q, D_K, HIDDEN, FILTERS, kernel).double()
        options = {"location": "both", "initial": "zero"}
    of = layer(kernel=kernel, **options)
    of.load_state_dict(theirs.state_dict())
    queries, keys = drawn(BATCH, QUERIES, D_Q), drawn(BATCH, KEYS, D_K)
    pairs = {
        "espnet": {"W_q": "mlp_dec", "W_k": "mlp_enc", "U": "mlp_att", "w_v": "gvec"},
        "tacotron": {
            "W_q": "query_layer.linear_layer",
            "W_k": "memory_layer.linear_layer",
            "U": "location_layer.location_dense.linear_layer",
            "w_v": "v.linear_layer",
        },
    }[kind]

    def rows(step: Callable[[Tensor], Any]) -> list[Tensor]:
        found = [step(query)[:2] for query in queries.unbind(1)]
        return [torch.stack(list(x), 1) for x in zip(*found, strict=True)]

    results: list[Any] = []
    for mine in (True, False):
        if mine:
            output, weights = of(queries, keys, valid_lens=LENGTHS, return_weights=True)
            parameters = [of.get_submodule(name).weight for name in pairs]
        else:
            theirs.start(keys, LENGTHS)
            output, weights = rows(theirs.step)
            parameters = [theirs.get_submodule(name).weight for name in pairs.values()]
        loss = (output**2).sum() + (weights**2).sum()
        results.append((output, weights, torch.autograd.grad(loss, [queries, keys, *parameters])))
    torch.testing.assert_close(*results, rtol=1e-9, atol=1e-9)


def test_cumulated_weights_of_espnet() -> None:
    """Cumulated weights follow ESPnet's decoder of Tacotron 2: uniform, w₁, w₁ + w₂, …"""
    theirs: Any = AttLoc(D_Q, D_K, HIDDEN, FILTERS, 5).double()
    of = layer(location="cumulative", scale=2, bias=True)
    of.load_state_dict(theirs.state_dict())
    queries, keys = drawn(BATCH, QUERIES, D_Q), drawn(BATCH, KEYS, D_K)
    theirs.start(keys, LENGTHS)
    rows: list[Tensor] = []
    for query in queries.unbind(1):
        rows.append(theirs.step(query)[1])
        theirs.last = sum(rows)
    found = of(queries, keys, valid_lens=LENGTHS, return_weights=True)[1]
    torch.testing.assert_close(found, torch.stack(rows, 1))


@settings(max_examples=25, deadline=None)
@given(
    batch=st.integers(1, 3),
    keys=st.integers(1, 40),
    kernel=st.integers(0, 20).map(lambda n: 2 * n + 1),
    window=st.none() | st.tuples(st.integers(0, 3), st.integers(0, 3)),
    seed=st.integers(0, 99),
)
def test_gradcheck(batch: int, keys: int, kernel: int, window: Any, seed: int) -> None:
    of = layer(seed, kernel=kernel, window=window, location="both", smoothing=seed % 2 == 0)
    lengths = torch.randint(0, keys + 1, (batch,), generator=torch.Generator().manual_seed(seed))

    def weights(query: Tensor, key: Tensor) -> Tensor:
        found: Tensor = of(query, key, valid_lens=lengths, return_weights=True)[1]
        return found

    xs = drawn(batch, 2, D_Q, seed=seed), drawn(batch, keys, D_K, seed=seed + 1)
    assert torch.autograd.gradcheck(weights, xs, fast_mode=True)
