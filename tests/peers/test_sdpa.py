"""What PyTorch asks of `scaled_dot_product_attention` is asked of `attention` with that score.

The tables are our own. The mathematics are PyTorch's, in float64. Where both differ on purpose, a
test says how: a query without keys gives 0, and True in a mask means "may attend" in both.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from anyscore import Causal, Keys, ScaledDot, attention
from helpers.samples import normal
from helpers.transformed import WARNINGS
from peers.layouts import LAYOUTS

pytestmark = [pytest.mark.weekly, *WARNINGS]

BATCH, HEADS, QUERIES, TOKENS, WIDTH = 2, 4, 7, 11, 8


def tensors(
    dtype: torch.dtype = torch.float64, heads: int = HEADS, queries: int = QUERIES, d_v: int = WIDTH
) -> list[Tensor]:
    shapes = ((HEADS, queries, WIDTH), (heads, TOKENS, WIDTH), (heads, TOKENS, d_v))
    return [
        torch.tensor(normal(BATCH, *x, seed=n)).to(dtype).requires_grad_()
        for n, x in enumerate(shapes)
    ]


def theirs(*inputs: Tensor, **options: Any) -> Tensor:
    with sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(*inputs, **options)


def ours(*inputs: Tensor, scale: float | None = None, **options: Any) -> Tensor:
    score = ScaledDot() if scale is None else ScaledDot(scale=scale)
    return attention(*inputs, score=score, **options)


def assert_same(found: Tensor, expected: Tensor, mine: list[Tensor], exact: list[Tensor]) -> None:
    """Assert that outputs, and gradients of a fixed sum of them, are equal."""
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-11)
    upstream = torch.tensor(normal(*expected.shape, seed=5))
    slopes = torch.autograd.grad(found, mine, upstream)
    exact_slopes = torch.autograd.grad(expected, exact, upstream)
    torch.testing.assert_close(slopes, exact_slopes, rtol=1e-9, atol=1e-10)


MASKS = (
    (QUERIES, TOKENS), (1, TOKENS), (QUERIES, 1), (1, 1), (1, 1, TOKENS), (HEADS, 1, TOKENS),
    (BATCH, 1, 1, TOKENS), (BATCH, HEADS, QUERIES, TOKENS), (1, HEADS, QUERIES, TOKENS),
)  # fmt: skip


@pytest.mark.parametrize("learned", [True, False])
@pytest.mark.parametrize("shape", MASKS, ids=str)
def test_added_masks_of_every_shape(shape: tuple[int, ...], learned: bool) -> None:
    """A floating mask is a bias here; it broadcasts, and its gradient is summed."""
    inputs, bias = tensors(), torch.tensor(normal(*shape, seed=3)).requires_grad_(learned)
    leaves = [*inputs, bias] if learned else inputs
    expected = theirs(*inputs, attn_mask=bias)
    assert_same(ours(*inputs, bias=bias), expected, leaves, leaves)


@pytest.mark.parametrize("shape", MASKS, ids=str)
def test_boolean_masks_of_every_shape(shape: tuple[int, ...]) -> None:
    keep = torch.tensor(normal(*shape, seed=4)) > -0.7
    inputs = tensors()
    found, expected = ours(*inputs, mask=keep), theirs(*inputs, attn_mask=keep)
    alone = ~keep.expand(BATCH, HEADS, QUERIES, TOKENS).any(-1)
    assert (found[alone] == 0).all()
    seen = ~alone[..., None]
    assert_same(
        torch.where(seen, found, 0.0), torch.where(seen, expected, 0.0).nan_to_num(), inputs, inputs
    )


@pytest.mark.parametrize("queries", [1, QUERIES, TOKENS, 70])
@pytest.mark.parametrize("scale", [None, 0.0, 0.3, 1.0])
def test_causal(queries: int, scale: float | None) -> None:
    """PyTorch's `is_causal` aligns the first query and the first key."""
    inputs = tensors(queries=queries)
    expected = theirs(*inputs, is_causal=True, scale=scale)
    found = ours(*inputs, mask=Causal(align="start"), scale=scale)
    assert_same(found, expected, inputs, inputs)


@pytest.mark.parametrize("heads", [1, 2, 4])
@pytest.mark.parametrize("d_v", [1, 5, 32])
def test_grouped_heads_and_other_values(heads: int, d_v: int) -> None:
    inputs = tensors(heads=heads, d_v=d_v)
    assert_same(ours(*inputs), theirs(*inputs, enable_gqa=True), inputs, inputs)


@pytest.mark.parametrize("of_values", LAYOUTS)
@pytest.mark.parametrize("of_keys", LAYOUTS)
def test_layouts(of_keys: str, of_values: str) -> None:
    query, key, value = (x.detach() for x in tensors())
    inputs = [
        x.requires_grad_()
        for x in (LAYOUTS[of_values](query), LAYOUTS[of_keys](key), LAYOUTS[of_values](value))
    ]
    assert_same(ours(*inputs), theirs(*inputs), inputs, inputs)


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_narrow_dtypes(dtype: torch.dtype, masked: bool) -> None:
    """Results are as near to float64 as PyTorch's mathematics in the same dtype, or ε/4."""
    inputs = tensors(dtype, queries=64)
    exact = [x.detach().double().requires_grad_() for x in inputs]
    keep = torch.tensor(normal(64, TOKENS, seed=4)) > -0.7
    given: tuple[dict[str, Any], dict[str, Any]] = (
        ({"mask": keep}, {"attn_mask": keep}) if masked else ({}, {})
    )
    upstream = torch.tensor(normal(BATCH, HEADS, 64, WIDTH, seed=5))
    results = []
    for function, options, leaves in (
        (ours, given[0], inputs), (theirs, given[1], inputs), (theirs, given[1], exact),
    ):  # fmt: skip
        output = function(*leaves, **options)
        slopes = torch.autograd.grad(output, leaves, upstream.to(output.dtype))
        results.append((output, *slopes))
    for x, y, z in zip(*results, strict=True):
        off, other = ((w - z).square().mean().sqrt() for w in (x, y))
        least = torch.finfo(dtype).eps * z.square().mean().sqrt()
        assert off <= max(1.2 * other, least / 4)


@pytest.mark.parametrize("shape", [(0, 3, 5), (2, 0, 5), (2, 3, 0)], ids=str)
def test_nothing_to_attend(shape: tuple[int, int, int]) -> None:
    """No batch, no query, no key: outputs have their shapes, and are 0 where there is no key."""
    batch, queries, keys = shape
    query, key = torch.ones(batch, 2, queries, 4), torch.ones(batch, 2, keys, 4)
    found = ours(query, key, key)
    assert found.shape == (batch, 2, queries, 4)
    assert (found == 0).all() or keys > 0


TRANSFORMED: dict[str, Callable[[Callable[..., Tensor]], Callable[..., Tensor]]] = {
    "vmap over heads": lambda f: torch.vmap(f, 1, 1),
    "vmap over both": lambda f: torch.vmap(torch.vmap(f)),
    "compiled": lambda f: torch.compile(f, backend="aot_eager"),
    "checkpoint": lambda f: (
        lambda *x: torch.utils.checkpoint.checkpoint(f, *x, use_reentrant=False)
    ),
}


@pytest.mark.parametrize("name", TRANSFORMED)
def test_transforms(name: str) -> None:
    inputs = tensors()
    assert_same(TRANSFORMED[name](ours)(*inputs), theirs(*inputs), inputs, inputs)


def test_padding_of_nan() -> None:
    """PyTorch's gradients are NaN there; here NaN reaches no gradient of what attends."""
    inputs = tensors()
    dirty = [x.detach().clone().requires_grad_() for x in inputs]
    with torch.no_grad():
        for x in dirty[1:]:
            x[:, :, 5:] = math.nan
    keep = torch.arange(TOKENS) < 5
    found = ours(*dirty, mask=Keys(keep))
    expected = theirs(*inputs, attn_mask=keep)
    torch.testing.assert_close(found, expected)
    slopes = torch.autograd.grad(found.sum(), dirty)
    torch.testing.assert_close(slopes, torch.autograd.grad(expected.sum(), inputs))


WRONG: dict[str, Callable[[Tensor, Tensor, Tensor], Any]] = {
    "widths": lambda q, k, v: ours(q, k[..., :3], v),
    "tokens": lambda q, k, v: ours(q, k, v[:, :, :3]),
    "heads": lambda q, k, v: ours(q, k[:, :3], v[:, :3]),
    "dtypes": lambda q, k, v: ours(q, k.float(), v),
    "integers": lambda q, k, v: ours(q.long(), k.long(), v.long()),
    "complex": lambda q, k, v: ours(q + 1j, k + 1j, v + 1j),
    "one axis": lambda q, k, v: ours(q[0, 0, 0], k[0, 0, 0], v[0, 0, 0]),
    "mask of another shape": lambda q, k, v: ours(q, k, v, mask=torch.ones(3, 3).bool()),
    "floating mask": lambda q, k, v: ours(q, k, v, mask=torch.ones(QUERIES, TOKENS)),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_calls(name: str) -> None:
    """They raise ValueError or TypeError in one line; PyTorch raises RuntimeError."""
    with pytest.raises((ValueError, TypeError), match=r"^.{20,}\.$"):
        WRONG[name](*tensors())
