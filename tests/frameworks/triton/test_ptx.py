"""Kernels that Triton compiles for NVIDIA's GPUs give right answers in the emulator of PTX."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.functional import leaky_relu

from anyscore.call.operands import Operands, Settings
from anyscore.kernels.triton import attention, pairs
from frameworks.triton import ptx
from frameworks.triton.ptx import emulated

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") == "1", reason="compiled kernels, not interpreted ones"
)


@pytest.fixture(autouse=True)
def gpu() -> Iterator[None]:
    with emulated():
        yield


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


@triton.jit
def _elementwise(X, Y, Out, Whole, n, B: tl.constexpr):
    o = tl.program_id(0) * B + tl.arange(0, B)
    x = tl.load(X + o, o < n, other=-1.0)
    y = tl.load(Y + o, o < n, other=1)
    found = tl.exp(x) / (1 + tl.exp(x)) + tl.where(x > 0, tl.sqrt(tl.abs(x)), tl.log2(2 - x))
    tl.store(Out + o, found + tl.minimum(x, 0.5), o < n)
    tl.store(Whole + o, (y // 7) * 1000 + (y % 5) * 10 + ((y >> 3) ^ (y & 6)), o < n)


def test_arithmetic() -> None:
    n = 1001
    x, y = normal(n), torch.arange(n, dtype=torch.int32) * 77 - 30000
    out, whole = torch.full((n,), torch.nan), torch.zeros(n, dtype=torch.int32)
    _elementwise[(4,)](x, y, out, whole, n, B=256)
    found = torch.sigmoid(x) + torch.where(x > 0, x.abs().sqrt(), (2 - x).log2())
    torch.testing.assert_close(out, found + x.clamp(max=0.5))
    quotient = torch.div(y, 7, rounding_mode="trunc")
    exact = quotient * 1000 + torch.fmod(y, 5) * 10 + ((y >> 3) ^ (y & 6))
    assert torch.equal(whole, exact)


@triton.jit
def _product(A, B, C, k, N: tl.constexpr, PRECISION: tl.constexpr):
    o_m, o_n = tl.arange(0, N), tl.arange(0, N)
    found = tl.zeros((N, N), tl.float32)
    for i in tl.range(0, k, N, num_stages=3):
        a = tl.load(A + o_m[:, None] * k + (i + o_n)[None, :])
        b = tl.load(B + (i + o_m)[:, None] * N + o_n[None, :])
        found = tl.dot(a, b, found, input_precision=PRECISION)
    tl.store(C + o_m[:, None] * N + o_n[None, :], found)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_a_product_with_copies_ahead(dtype: torch.dtype) -> None:
    a, b = normal(64, 320, dtype=dtype), normal(320, 64, dtype=dtype)
    c = torch.full((64, 64), torch.nan)
    _product[(1,)](a, b, c, 320, N=64, PRECISION="tf32x3")
    exact = a.double() @ b.double()
    torch.testing.assert_close(c.double(), exact, rtol=1e-5, atol=1e-5)


@triton.jit
def _rows(X, Out, Sums, Sorted, N: tl.constexpr):
    o = tl.arange(0, N)
    x = tl.load(X + o)
    tl.store(Out, tl.max(x, 0))
    tl.store(Out + 1, tl.sum(x, 0))
    tl.store(Sums + o, tl.cumsum(x, 0))
    tl.store(Sorted + o, tl.sort(x))


def test_reductions_scans_and_sorts() -> None:
    x = normal(512)
    out, sums, ordered = torch.zeros(2), torch.zeros(512), torch.zeros(512)
    _rows[(1,)](x, out, sums, ordered, N=512)
    torch.testing.assert_close(out, torch.stack([x.max(), x.sum()]))
    torch.testing.assert_close(sums, x.cumsum(0))
    assert torch.equal(ordered, x.sort().values)


@triton.jit
def _count(X, Counts, n, B: tl.constexpr):
    o = tl.program_id(0) * B + tl.arange(0, B)
    x = tl.load(X + o, o < n, other=0)
    tl.atomic_add(Counts + x, 1.0, o < n)


def test_atomic_additions() -> None:
    x = torch.arange(1000, dtype=torch.int32) ** 2 % 7
    counts = torch.zeros(7)
    _count[(8,)](x, counts, 1000, B=128)
    assert counts.tolist() == np.bincount(x.numpy(), minlength=7).tolist()


def test_an_address_out_of_bounds_is_found() -> None:
    x, counts = torch.zeros(1000, dtype=torch.int32), torch.zeros(7)
    with pytest.raises(AssertionError, match=r"_count, test_ptx.py:\d+.* out of bounds"):
        _count[(8,)](x, counts, 1001, B=128)
    with pytest.raises(AssertionError, match="out of bounds"):
        _count[(8,)](x + 7, counts, 1000, B=128)


def test_a_copy_lands_when_the_program_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that waits for one copy fewer reads memory that nobody has written."""
    texts: list[Any] = []
    monkeypatch.setattr(ptx, "launch", lambda text, *args, apart: texts.append((text, args)))
    a, b = normal(64, 320, dtype=torch.bfloat16), normal(320, 64, dtype=torch.bfloat16)
    c = torch.zeros(64, 64)
    _product[(1,)](a, b, c, 320, N=64, PRECISION="tf32")
    monkeypatch.undo()
    ((text, args),) = texts
    assert re.search(r"wait_group\s+2;", text)
    for pending, right in ((2, True), (3, False)):
        ptx.launch(re.sub(r"(wait_group\s+)2;", rf"\g<1>{pending};", text), *args)
        assert c.isfinite().all() == right


PAIRS: dict[str, tuple[pairs.Functions, Callable[[Tensor, Tensor], Tensor]]] = {
    "product": (pairs.PRODUCT, lambda a, b: a * b),
    "tanh": (pairs.TANH, lambda a, b: (a + b).tanh()),
    "leaky_relu": (pairs.LEAKY_RELU, lambda a, b: leaky_relu(a + b, 0.2)),
}


@pytest.mark.parametrize(
    ("name", "dtype", "error"),
    [
        ("product", torch.bfloat16, 2e-3),
        pytest.param("tanh", torch.float32, 1e-6, marks=pytest.mark.weekly),
        pytest.param("leaky_relu", torch.float32, 1e-6, marks=pytest.mark.weekly),
    ],
)
def test_forward(name: str, dtype: torch.dtype, error: float) -> None:
    """A causal call has the output and the log-sum-exp of float64."""
    queries, keys, width = 70, 100, 24
    a, b, value = (normal(1, n, width, dtype=dtype) for n in (queries, keys, keys))
    pair, plain = PAIRS[name]
    weight = None if name == "product" else normal(width)
    stop = torch.arange(queries)[None] + keys - queries + 1
    x, s = Operands(a, b, weight, None, value, stop=stop), Settings("", 0.3, 1, 0.0, 1, (1,))
    found = attention.forward(pair, x, s, torch.float32)

    terms = plain(a.double()[:, :, None], b.double()[:, None])
    scores = 0.3 * (terms if weight is None else terms * weight).sum(-1)
    scores = scores.masked_fill(torch.arange(keys) >= stop[..., None], -torch.inf)
    output = scores.softmax(-1) @ value.double()
    assert (found.output - output).abs().max() < error
    assert (found.stats.double().sum(-2) - scores.logsumexp(-1)).abs().max() < 5e-6
