"""Triton kernels that do one thing over and over, for `gpu_rates`; they need no CUDA compiler."""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl

WARPS, CHAINS, IN_A_ROW = 4, 4, 16
BLOCK = tl.constexpr(32 * WARPS * CHAINS)
"""Elements of a program: a thread has CHAINS of them, which hide the latency of an instruction."""


class Instruction(NamedTuple):
    """Instructions of PTX that change $0 in place; $2 does not change.

    opcode: the name of the first in machine code. Where the assembler would merge two in a row,
    an instruction of another unit follows. values: the numbers in a register. least: the compute
    capability that has it.
    """

    ptx: str
    opcode: str
    values: int = 1
    least: tuple[int, int] = (8, 0)

    @property
    def asm(self) -> str:
        """Return the instruction IN_A_ROW times; $1 is the register at first."""
        return "\n".join(["mov.b32 $0, $1;", *[self.ptx] * IN_A_ROW])


_MAX, _FMA = "max.NaN.bf16x2", "fma.rn.bf16x2 $0, $0, $2, $2;"
INSTRUCTIONS = {
    "x + y, float32": Instruction("add.f32 $0, $0, $2;", "FADD"),
    "|x| + y, float32": Instruction("{.reg .b32 t; abs.f32 t, $0; add.f32 $0, t, $2;}", "FADD"),
    "x · y + y, float32": Instruction("fma.rn.f32 $0, $0, $2, $2;", "FFMA"),
    "max(x, y), two bfloat16": Instruction(f"{_MAX} $0, $0, $2; {_FMA}", "HMNMX2", 2),
    "max(x, y, z), two bfloat16": Instruction(
        f"{_MAX} $0, $0, $2; {_MAX} $0, $0, $2;", "VHMNMX", 2, (9, 0)
    ),
    "x · y + y, two bfloat16": Instruction(_FMA, "HFMA2", 2),
    "x > y, two bfloat16": Instruction("set.gt.bf16x2.bf16x2 $0, $0, $2;", "HSET2", 2, (9, 0)),
    "1/x, float32": Instruction("rcp.approx.ftz.f32 $0, $0; add.f32 $0, $0, $2;", "MUFU"),
    "2^x, float32": Instruction("ex2.approx.ftz.f32 $0, $0;", "MUFU"),
    "tanh x, float32": Instruction("tanh.approx.f32 $0, $0;", "MUFU"),
    "tanh x, two bfloat16": Instruction("tanh.approx.bf16x2 $0, $0;", "MUFU", 2, (9, 0)),
}
"""Instructions of the kernels, and of those that may replace them, by name."""

_MMA = "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"
_SUMS = "{$0, $1, $2, $3}"
MMA_FLOP = 2 * 16 * 8 * 16
MMA_IN_A_ROW = 4
MIXES = {"mma.sync 16 × 8 × 16": False, "the same, its left operand made by max(x, y)": True}
"""Products of bfloat16 on the tensor core → whether four packed maxima go before each."""


def mix_asm(maxima: bool) -> str:
    """Return products of a warp. $0 to $3 are sums, $4 is x; $10 to $13 do not change."""
    moves = [f"mov.b32 ${i}, ${i + 5};" for i in range(5)]
    made = [f"{_MAX} t{i}, $4, $1{i};" for i in range(4)]
    left = "t0, t1, t2, t3" if maxima else "$10, $11, $12, $13"
    multiply = f"{_MMA} {_SUMS}, {{{left}}}, {{$10, $11}}, {_SUMS};"
    one = [*made, "fma.rn.bf16x2 $4, $4, $10, $10;", multiply] if maxima else [multiply]
    return "\n".join(["{.reg .b32 t<4>;", *moves, *one * MMA_IN_A_ROW, "}"])


@triton.jit
def repeat(out, y, rounds, ASM: tl.constexpr):
    """Run ASM rounds times on registers, and write them to out."""
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    b_x = tl.load(out + o)
    b_y = tl.zeros_like(b_x) + y
    for _ in range(rounds):
        b_x = tl.inline_asm_elementwise(
            ASM, "=&r,r,r", [b_x, b_y], dtype=tl.int32, is_pure=True, pack=1
        )
    tl.store(out + o, b_x)


@triton.jit
def mix(out, y, rounds, ASM: tl.constexpr):
    """Run ASM of `mix_asm` rounds times, and write its registers to out."""
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    b_x = tl.load(out + o)
    y_0 = tl.zeros_like(b_x) + y
    y_1, y_2, y_3 = y_0 + 1, y_0 + 2, y_0 + 3
    b_0 = tl.zeros((BLOCK,), tl.float32)
    b_1, b_2, b_3 = b_0, b_0, b_0
    for _ in range(rounds):
        b_0, b_1, b_2, b_3, b_x = tl.inline_asm_elementwise(
            ASM, "=&f,=&f,=&f,=&f,=&r,f,f,f,f,r,r,r,r,r",
            [b_0, b_1, b_2, b_3, b_x, y_0, y_1, y_2, y_3],
            dtype=(tl.float32, tl.float32, tl.float32, tl.float32, tl.int32), is_pure=True, pack=1,
        )  # fmt: skip
    tl.store(out + o, b_x + (b_0 + b_1 + b_2 + b_3).to(tl.int32))


@triton.jit
def multiply(a, b, out, rounds, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    """Add a (M, K) · b (K, N) rounds times; the operands stay where they are."""
    o_m, o_n, o_k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    b_a = tl.load(a + o_m[:, None] * K + o_k[None, :])
    b_b = tl.load(b + o_k[:, None] * N + o_n[None, :])
    b_sum = tl.zeros((M, N), tl.float32)
    for _ in range(rounds):
        b_sum = tl.dot(b_a, b_b, b_sum)
    tl.store(out + tl.program_id(0) * N + o_n, tl.sum(b_sum, 0))


@triton.jit
def read(x, out, blocks, rounds, SIZE: tl.constexpr):
    """Sum blocks of SIZE numbers of x, each program from another block on, past the first cache."""
    o = tl.arange(0, SIZE)
    b_sum = tl.zeros((SIZE,), tl.float32)
    for i in range(rounds):
        i_block = (tl.program_id(0) * 7 + i) % blocks
        b_sum += tl.load(x + i_block * SIZE + o, cache_modifier=".cg")
    tl.store(out + tl.program_id(0), tl.sum(b_sum, 0))


@triton.jit
def leave(wanted, out):
    """Write to out if `wanted` is not 0: a program that need not do anything."""
    if tl.load(wanted) != 0:
        tl.store(out + tl.program_id(0), 1)
