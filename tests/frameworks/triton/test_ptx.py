"""Kernels that Triton compiles for NVIDIA's GPUs give right answers in the emulator of PTX."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from anyscore.call.operands import Operands, Settings
from anyscore.kernels.triton import attention, pairs
from frameworks.triton import ptx
from frameworks.triton.ptx import emulated

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") == "1", reason="compiled kernels, not interpreted ones"
)


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    with emulated(monkeypatch):
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
