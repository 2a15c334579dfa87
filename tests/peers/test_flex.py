"""What PyTorch asks of its `flex_attention` is asked of ours: layouts, captured tensors, pages.

The tables are our own. `helpers/flex.py` has PyTorch's mathematics, with gradients on a CPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention.experimental._paged_attention import PagedAttention
from torch.nn.attention.flex_attention import create_block_mask

from anyscore.torch import flex_attention
from helpers.flex import assert_same, eager, gradients, ours
from helpers.samples import normal
from peers.layouts import LAYOUTS

pytestmark = pytest.mark.weekly

Mod = Callable[..., Any]
BATCH, HEADS, TOKENS, WIDTH = 2, 4, 24, 8


def tensors(dtype: torch.dtype = torch.float64, keys: int = TOKENS) -> list[Tensor]:
    shapes = ((BATCH, HEADS, n, WIDTH) for n in (TOKENS, keys, keys))
    return [torch.tensor(normal(*shape, seed=n)).to(dtype) for n, shape in enumerate(shapes)]


@pytest.mark.parametrize("of_values", LAYOUTS)
@pytest.mark.parametrize("of_keys", LAYOUTS)
@pytest.mark.parametrize("of_queries", LAYOUTS)
def test_layouts(of_queries: str, of_keys: str, of_values: str) -> None:
    """Strides change no number and no gradient; outputs are contiguous, as the page says."""
    dense = [
        LAYOUTS[x](y).detach()
        for x, y in zip((of_queries, of_keys, of_values), tensors(), strict=True)
    ]
    leaves = [x.contiguous().requires_grad_() for x in dense]
    laid_out = [x.requires_grad_() for x in dense]

    def mod(score: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return score + 0.1 * (i - j)

    expected, _ = ours(*leaves, mod)
    found, _ = ours(*laid_out, mod)
    assert found[0].is_contiguous()
    assert_same(found, expected)
    assert_same(gradients(found, laid_out), gradients(expected, leaves))


INTEGERS = torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64
FLOATS = torch.float16, torch.bfloat16, torch.float32, torch.float64
CAPTURED: dict[str, tuple[tuple[int, ...], Callable[[Tensor], Mod]]] = {
    "number": ((), lambda t: lambda s, b, h, i, j: s + t),
    "of heads": ((HEADS,), lambda t: lambda s, b, h, i, j: s + t[h]),
    "of keys": ((BATCH, TOKENS), lambda t: lambda s, b, h, i, j: s - t[b, j]),
    "of queries": ((TOKENS,), lambda t: lambda s, b, h, i, j: s * (1 + t[i] / 8)),
    "of distances": ((2 * TOKENS,), lambda t: lambda s, b, h, i, j: s + t[i - j + TOKENS]),
    "of pairs": ((HEADS, TOKENS, TOKENS), lambda t: lambda s, b, h, i, j: s + t[h, i, j]),
    "chosen": ((TOKENS,), lambda t: lambda s, b, h, i, j: torch.where(t[i] > t[j], s, s / 2)),
    "masking": ((TOKENS,), lambda t: lambda s, b, h, i, j: s.masked_fill(t[j] == 1, -math.inf)),
}


@pytest.mark.parametrize("dtype", [*INTEGERS, *FLOATS, torch.bool], ids=str)
@pytest.mark.parametrize("name", CAPTURED)
def test_captured_tensors_of_every_dtype(name: str, dtype: torch.dtype) -> None:
    """Numbers that the dtype holds give the results of float64, and gradients if it is floating."""
    shape, make = CAPTURED[name]
    if dtype == torch.bool and name == "of keys":
        pytest.skip("PyTorch subtracts no booleans")
    generator = torch.Generator().manual_seed(0)
    whole = torch.randint(0, 2 if dtype == torch.bool else 4, shape, generator=generator)
    query, key, value = tensors()
    exact = whole.double().requires_grad_(dtype in FLOATS)
    held = whole.to(dtype).requires_grad_(dtype in FLOATS)
    expected = eager(query, key, value, make(exact))
    found, _ = ours(query, key, value, make(held))
    assert_same(found, expected)
    assert found[0].requires_grad == expected[0].requires_grad
    if found[0].requires_grad:
        (slope,), (exact_slope,) = gradients(found, [held]), gradients(expected, [exact])
        assert slope.dtype == dtype
        torch.testing.assert_close(slope, exact_slope.to(dtype), rtol=1e-3, atol=1e-4)


LEARNED: dict[str, tuple[tuple[int, ...], Callable[[Tensor], Mod]]] = {
    "of distances": ((2 * TOKENS,), lambda t: lambda s, b, h, i, j: s + t[i - j + TOKENS]),
    "of clipped distances": (
        (17,),
        lambda t: lambda s, b, h, i, j: s + t[(i - j).clamp(-8, 8) + 8],
    ),
    "of buckets": ((HEADS, 5), lambda t: lambda s, b, h, i, j: s + t[h, (i - j).abs() // 5]),
    "slopes": ((HEADS,), lambda t: lambda s, b, h, i, j: s + t[h] * (j - i)),
    "gate of heads": ((HEADS,), lambda t: lambda s, b, h, i, j: s * torch.sigmoid(t[h])),
    "of queries": ((HEADS, TOKENS), lambda t: lambda s, b, h, i, j: s + t[h, i] * 0.5),
    "of keys": ((BATCH, TOKENS), lambda t: lambda s, b, h, i, j: s + t[b, j]),
    "of pairs": ((TOKENS, TOKENS), lambda t: lambda s, b, h, i, j: s + t[i, j]),
    "read twice": ((TOKENS,), lambda t: lambda s, b, h, i, j: s + t[i] + t[j]),
    "factor and bias": ((TOKENS,), lambda t: lambda s, b, h, i, j: s * t[j] + t[i]),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", LEARNED)
def test_learned_biases_in_half_precision(name: str, dtype: torch.dtype) -> None:
    """Output and gradients are as near to float64 as PyTorch's mathematics in the same dtype."""
    shape, make = LEARNED[name]
    # As PyTorch asks of its kernels: 1.35 times the error of its mathematics.
    allowed = 1.35
    leaves = [
        x.to(dtype).requires_grad_() for x in [*tensors(), torch.tensor(normal(*shape, seed=9))]
    ]
    exact = [x.detach().double().requires_grad_() for x in leaves]
    true = eager(*exact[:3], make(exact[3]))
    theirs = eager(*leaves[:3], make(leaves[3]))
    found, _ = ours(*leaves[:3], make(leaves[3]))
    results = zip(
        (found[0], *gradients(found, leaves)),
        (theirs[0], *gradients(theirs, leaves)),
        (true[0], *gradients(true, exact)),
        strict=True,
    )
    for x, y, z in results:
        off, least = (
            (x - z).square().mean().sqrt(),
            torch.finfo(dtype).eps * z.square().mean().sqrt(),
        )
        assert off <= max(allowed * (y - z).square().mean().sqrt(), least / 4)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("lengths", [(24, 24), (9, 20)])
def test_pages(lengths: tuple[int, int], causal: bool) -> None:
    """Keys in pages of a common store, in another order, give what keys in rows give."""
    page, n_pages = 8, 9
    query, key, value = tensors()

    def keep(b: Any, h: Any, i: Any, j: Any) -> Any:
        return (i >= j) if causal else (i >= 0) & (j >= 0)

    used = torch.tensor(lengths)
    expected, _ = ours(
        query, key, value,
        block_mask=lambda b, h, i, j: keep(b, h, i, j) & (j < used[b]),
    )  # fmt: skip
    pages = PagedAttention(n_pages, page, BATCH, device="cpu")
    store = [torch.randn(1, HEADS, n_pages * page, WIDTH, dtype=torch.float64) for _ in "kv"]
    for number in (1, 0):  # so that the second text has the first pages
        pages.reserve(torch.tensor([number]), torch.tensor([TOKENS])[0])
    positions = torch.arange(TOKENS).expand(BATCH, TOKENS)
    pages.assign(torch.arange(BATCH), positions, key, value, *store)
    mask = create_block_mask(keep, BATCH, 1, TOKENS, TOKENS, device="cpu", BLOCK_SIZE=(page, page))
    found, _ = ours(
        query, *store,
        pages.get_score_mod(lambda s, b, h, i, j: s, kv_len=used),
        block_mask=pages.convert_logical_block_mask(mask, kv_len=used),
    )  # fmt: skip
    assert_same(found, expected)


EMPTY: dict[str, Mod] = {
    "no pair": lambda b, h, i, j: (i < 0) & (j < 0),
    "no key of some queries": lambda b, h, i, j: (i > 3) & (j < 5),
    "no key of a head": lambda b, h, i, j: (h != 1) & (j >= 0) & (i >= 0),
}


@pytest.mark.parametrize("name", EMPTY)
def test_queries_without_keys(name: str) -> None:
    """Their output is 0, their log-sum-exp −∞, and gradients are finite."""
    leaves = [x.requires_grad_() for x in tensors()]
    found, _ = ours(*leaves, block_mask=EMPTY[name])
    assert_same(found, eager(*leaves, mask_mod=EMPTY[name]))
    assert all(x.isfinite().all() for x in gradients(found, leaves))


@pytest.mark.parametrize("keys", [1, 7, 24, 130])
@pytest.mark.parametrize("scale", [None, 0.0, -1.0, 3.0])
def test_scales_and_numbers_of_keys(scale: float | None, keys: int) -> None:
    leaves = [x.requires_grad_() for x in tensors(keys=keys)]
    expected, (found, _) = eager(*leaves, scale=scale), ours(*leaves, scale=scale)
    assert_same(found, expected)
    assert_same(gradients(found, leaves), gradients(expected, leaves))


@pytest.mark.parametrize("what", ["shape", "ndim", "size", "dtype", "device", "numel", "dim"])
def test_a_position_is_a_tensor_of_one_number(what: str) -> None:
    """Mods ask positions for what tensors have, as `h.new_zeros(h.shape)`."""
    seen: list[Any] = []

    def mod(score: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        for x in (score, h, j):
            asked = getattr(x, what)
            seen.append(asked() if callable(asked) else asked)
        return score + h.new_zeros(h.shape)

    query, key, value = tensors()
    found = flex_attention(query, key, value, mod)
    assert_same([found], [flex_attention(query, key, value)])
    number = {
        "shape": torch.Size([]), "ndim": 0, "size": torch.Size([]), "device": query.device,
        "numel": 1, "dim": 0,
    }  # fmt: skip
    assert all(x == number[what] for x in seen) if what != "dtype" else seen[0].is_floating_point
