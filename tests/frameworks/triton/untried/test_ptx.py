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
from frameworks.triton.untried import ptx
from frameworks.triton.untried.ptx import emulated

pytestmark = [
    pytest.mark.weekly,
    pytest.mark.skipif(
        os.environ.get("TRITON_INTERPRET") == "1", reason="compiled kernels, not interpreted ones"
    ),
]


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


@pytest.mark.parametrize(
    ("pattern", "other"),
    [(r"wait_group\s+2", "wait_group 3"), (r"bar\.sync\s+0", "bar.warp.sync -1")],
)
def test_a_missing_wait_shows(pattern: str, other: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that does not wait for a copy or for another warp reads NaN."""
    found: list[Any] = []
    monkeypatch.setattr(ptx, "launch", lambda *args, apart: found.append(args))
    a, b = normal(64, 320, dtype=torch.bfloat16), normal(320, 64, dtype=torch.bfloat16)
    c = torch.zeros(64, 64)
    _product[(1,)](a, b, c, 320, N=64, PRECISION="tf32")
    monkeypatch.undo()
    ((text, *args),) = found
    assert re.search(pattern, text)
    for changed, right in ((text, True), (re.sub(pattern, other, text), False)):
        ptx.launch(changed, *args, apart=True)
        assert c.isfinite().all() == right


PAIRS: dict[str, tuple[pairs.Functions, Callable[[Tensor, Tensor], Tensor]]] = {
    "product": (pairs.UNTRIED["product"], lambda a, b: a * b),
    "tanh": (pairs.TANH, lambda a, b: (a + b).tanh()),
    "leaky_relu": (pairs.UNTRIED["leaky_relu"], lambda a, b: leaky_relu(a + b, 0.2)),
}


@pytest.mark.parametrize(
    ("name", "dtype", "error"),
    [
        ("product", torch.bfloat16, 2e-3),
        ("tanh", torch.float32, 1e-6),
        ("leaky_relu", torch.float32, 1e-6),
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


ONE, TWO, THREE, NAN = 0x3F80, 0x4000, 0x4040, 0x7FFF
"""Numbers in bfloat16; the upper half of float32."""
A, B, C = 0x89ABCDEF, 0x01234567, 0xF0F0A5A5
INSTRUCTIONS = {
    "lop3.b32 %r9, %r0, %r1, %r2, 0xCA;": A & B | ~A & C,
    "prmt.b32 %r9, %r0, %r1, 0x7610;": 0x0123CDEF,
    "prmt.b32 %r9, %r0, %r1, 0xF4B0;": 0x0067FFEF,
    "shf.l.wrap.b32 %r9, %r0, %r1, 40;": 0x23456789,
    "shf.r.clamp.b32 %r9, %r0, %r1, 40;": B,
    "bfi.b32 %r9, %r0, %r1, 4, 8;": 0x01234EF7,
    "bfe.s32 %r9, %r0, 4, 8;": 0xFFFFFFDE,
    "bfe.u32 %r9, %r0, 28, 8;": 8,
    "shr.s32 %r9, %r0, 40;": 0xFFFFFFFF,
    "shl.b32 %r9, %r0, 32;": 0,
    "div.s32 %r9, -7, 2;": -3,
    "rem.s32 %r9, -7, 2;": -1,
    "mul.hi.s32 %r9, %r0, %r1;": (A - 2**32) * B >> 32,
    "mul.hi.u32 %r9, %r0, %r2;": A * C >> 32,
    "{ .reg .b64 w; mad.wide.s32 w, %r0, %r1, -1; mov.b64 {_, %r9}, w; }": (A - 2**32) * B >> 32,
    "{ .reg .b64 w; mul.hi.u64 w, 0x8000000000000000, 6; cvt.u32.u64 %r9, w; }": 3,
    "cvt.rzi.s32.f32 %r9, 0fC0300000;": -2,
    "cvt.rni.s32.f32 %r9, 0f40200000;": 2,
    "cvt.rzi.u32.f32 %r9, 0f50000000;": 0xFFFFFFFF,
    "cvt.rzi.s32.f32 %r9, 0f7FC00000;": 0,
    "cvt.rn.f32.u32 %r9, 3;": THREE << 16,
    "cvt.rna.tf32.f32 %r9, 0f3F801000;": 0x3F802000,
    "cvt.rn.bf16x2.f32 %r9, 0f3F808000, 0f3F818000;": 0x3F803F82,
    "cvt.rn.f16x2.f32 %r9, 0f3F800000, 0f40000000;": 0x3C004000,
    f"max.NaN.bf16x2 %r9, {NAN << 16 | ONE}, {TWO << 16 | TWO};": NAN << 16 | TWO,
    f"max.bf16x2 %r9, {NAN << 16 | ONE}, {TWO << 16 | TWO};": TWO << 16 | TWO,
    f"fma.rn.bf16x2 %r9, {ONE << 16 | TWO}, {TWO << 16 | ONE}, {ONE << 16}": THREE << 16 | TWO,
    "{ .reg .pred p; setp.ne.f32 p, 0f7FC00000, 0f00000000; selp.b32 %r9, 1, 2, p; }": 2,
    "{ .reg .pred p; setp.neu.f32 p, 0f7FC00000, 0f00000000; selp.b32 %r9, 1, 2, p; }": 1,
    "add.rz.f32 %r9, 0f3F800000, 0f33FFFFFF;": 0x3F800000,
    "add.rn.f32 %r9, 0f3F800000, 0f33FFFFFF;": 0x3F800001,
    "mul.ftz.f32 %r9, 0f00400000, 0f40000000;": 0,
    "mul.f32 %r9, 0f00400000, 0f40000000;": 0x00800000,
    "shfl.sync.up.b32 %r9, %r8, 3, 0, -1;": [i - 3 if i > 2 else i for i in range(32)],
    "shfl.sync.down.b32 %r9, %r8, 3, 31, -1;": [i + 3 if i < 29 else i for i in range(32)],
    "shfl.sync.idx.b32 %r9, %r8, 5, 31, -1;": 5,
    "shfl.sync.bfly.b32 %r9, %r8, 5, 31, -1;": [i ^ 5 for i in range(32)],
    "redux.sync.add.s32 %r9, %r8, -1;": 31 * 16,
    "{ .reg .pred p; setp.lt.u32 p, %r8, 3; vote.sync.ballot.b32 %r9, p, -1; }": 7,
}  # fmt: skip


@pytest.mark.parametrize("text", INSTRUCTIONS)
def test_instructions(text: str) -> None:
    numbers = "\n".join(f"mov.b32 %r{i}, {x};" for i, x in enumerate((A, B, C)))
    found = torch.zeros(32, dtype=torch.int32)
    ptx.launch(
        f""".visible .entry f(
        .param .u64 .ptr .global .align 1 f_param_0
)
.reqntid 32
{{
        .reg .b32 %r<10>;
        .reg .b64 %rd<2>;
        {numbers}
        mov.u32 %r8, %tid.x;
        {text.rstrip(";")};
        ld.param.b64 %rd0, [f_param_0];
        mad.wide.u32 %rd1, %r8, 4, %rd0;
        st.global.b32 [%rd1], %r9;
        ret;
}}
""",
        (1,), (found,), 0,
    )  # fmt: skip
    expected = INSTRUCTIONS[text]
    each = expected if isinstance(expected, list) else [expected] * 32
    assert [x % 2**32 for x in found.tolist()] == [x % 2**32 for x in each]
