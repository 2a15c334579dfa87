"""The formulas of these tests agree with the package's definition and its derivatives."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from anyscore.backends.reference import definition
from anyscore.modifiers.biases import LoweredBias
from anyscore.ops import load
from anyscore.score.factors import Factors
from anyscore.score.outer import Outer
from anyscore.score.pairs import pair_named
from core import literal
from core.call import PAIRS, Call, numbers, stored
from core.draw import MASKS, draw

pytestmark = pytest.mark.sample

torch = pytest.importorskip("torch")


def by_reference(call: Call) -> dict[str, np.ndarray]:
    """Return all results by `reference.attend` in float64, with gradients by autograd."""
    names = [x for x in literal.OF_FLOATS if getattr(call, x) is not None]
    leaf = {name: torch.tensor(numbers(getattr(call, name)), requires_grad=True) for name in names}

    def in_full(name: str) -> Any:
        x = leaf[name]
        if name in literal.OF_KEY and call.groups > 1:
            axis = -1 - literal.OWN_RANK.get(name, 2)
            x = x.repeat_interleave(call.groups, axis) if x.shape[axis] > 1 else x
        return x

    every = {name: in_full(name) for name in names}
    pair = pair_named(call.pair)
    f = Factors(
        every["a"], every["b"], pair, every.get("weight"), call.scale, None, every.get("key_bias"),
        Outer(call.outer, call.outer_scale) if call.outer else None,
    )  # fmt: skip
    rows = list(literal.heads(call, np.float64))
    keep = np.array([head.keep for _, head in rows], bool)
    keep = torch.tensor(keep.reshape(*call.lead, call.queries, call.keys))
    kept = literal.kept_by_dropout(call)
    kept = np.array([kept[n % call.repeats] for n in range(math.prod(call.lead))])
    kept = torch.tensor(kept.reshape(keep.shape))
    value = every["value"].expand(*call.lead, *every["value"].shape[-2:])
    biases = []
    if call.bias is not None:
        bias = LoweredBias(every["bias"], call.diagonal, call.after)
        biases = [(bias.matrix(load("torch"), call.queries, call.keys), call.after)]
    results = definition.attend(
        load("torch"), f, value, keep, p=call.dropout, dropout_mask=kept, biases=biases
    )
    lse, scores = (
        results[1].sum(-2).broadcast_to(keep.shape[:-1]),
        results[2].broadcast_to(keep.shape),
    )
    weights, _ = definition.softmax(load("torch"), scores, keep)
    sides = [torch.tensor(numbers(call.d_output)), torch.zeros_like(lse), torch.zeros_like(scores)]
    for i, d in ((1, call.d_lse), (2, call.d_scores)):
        if d is not None:
            sides[i] = torch.tensor(numbers(d))
    slopes = torch.autograd.grad(
        [results[0], lse, scores], list(leaf.values()), sides, materialize_grads=True
    )
    stats = torch.where(lse.isnan()[..., None, :], torch.nan, results[1])  # NaN in both statistics
    found = {"output": results[0], "weights": weights, "stats": stats, "lse": lse}
    found |= {"scores": scores}
    found |= {f"d_{name}": x for name, x in zip(leaf, slopes, strict=True)}
    return {name: x.detach().numpy() for name, x in found.items()}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("pair", PAIRS)
def test_against_the_reference(pair: str, mask: str) -> None:
    rng = np.random.default_rng([PAIRS.index(pair), MASKS.index(mask)])
    for _ in range(3):
        call = draw(rng, pair, mask, "float64", queries=rng.integers(5), keys=rng.integers(9))
        found, expected = literal.run(call, np.float64), by_reference(call)
        assert found.keys() == expected.keys()
        for name, x in found.items():
            np.testing.assert_allclose(x, expected[name], rtol=1e-11, atol=1e-11, err_msg=name)


@pytest.mark.parametrize("which", ["a", "b", "value", "key_bias", "weight"])
@pytest.mark.parametrize("pair", PAIRS)
def test_nan_and_infinities(pair: str, which: str) -> None:
    """Results have the same NaN and ±∞; gradients are not finite in the same places."""
    rng = np.random.default_rng([PAIRS.index(pair), len(which)])
    for fill in (math.nan, math.inf, -math.inf):
        call = draw(
            rng, pair, "interval and boolean", "float64", queries=4, keys=9, hidden=3, width=5,
            lead=(2, 2), groups=2, weight=rng.standard_normal((2, 2, 3)), dropout=0.0,
            key_bias=rng.standard_normal((2, 1, 9)), a=rng.standard_normal((2, 2, 4, 3)),
            b=rng.standard_normal((2, 1, 9, 3)), value=rng.standard_normal((2, 1, 9, 5)),
            outer="",
        )  # fmt: skip
        getattr(call, which).flags.writeable = True
        getattr(call, which)[1, 0, ..., 2] = fill
        found, expected = literal.run(call, np.float64), by_reference(call)
        for name, x in found.items():
            y = expected[name]
            if name == "weights":  # the reference has NaN in masked keys too
                y = np.where((x == 0) & np.isnan(y), 0, y)
            if name == "d_a" and which == "weight":  # 0 · weight of queries without keys
                y = np.where((x == 0) & np.isnan(y), 0, y)
            if name.startswith("d_"):
                x, y = np.where(np.isfinite(x), x, np.nan), np.where(np.isfinite(y), y, np.nan)
            np.testing.assert_allclose(x, y, rtol=1e-11, atol=1e-11, err_msg=f"{name} {fill}")


def test_the_rounding_of_bfloat16() -> None:
    """bfloat16 rounds as in PyTorch: to nearest, ties to even, NaN kept, large numbers to ∞."""
    x = np.random.default_rng(0).standard_normal(1000) * 10.0 ** np.arange(-40, 38, 0.078)
    x = np.concatenate([x, [0.0, -0.0, math.nan, math.inf, -math.inf, 3.4e38, 1 + 2**-8]])
    x = x.astype(np.float32)
    expected = torch.tensor(x).to(torch.bfloat16)
    np.testing.assert_array_equal(numbers(stored(x, "bfloat16")), expected.double().numpy())
