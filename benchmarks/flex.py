"""`anyscore.torch.flex_attention` beside PyTorch's: `python -m benchmarks.flex`.

Forward passes are timed beside PyTorch's function under torch.compile, with a `BlockMask` where
there is a mask. On a CPU that function has no gradients. Training is therefore timed beside what
people write instead: a matrix of scores in plain operations, and `scaled_dot_product_attention`
with a matrix as its attn_mask where the mod fits it. Each pair runs in turns; the table has medians
of the ratio of their times. Parity is checked first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask
from torch.nn.attention.flex_attention import flex_attention as of_pytorch

from anyscore.torch import flex_attention
from benchmarks.record import row, script_options, write_script
from benchmarks.small_layers import ratio

SHAPES = (1, 8, 2048, 64), (4, 16, 1024, 64)
"""Batch, heads, tokens and width."""
ROUNDS = 7
UNIT = "the other ÷ anyscore"
CAP, WINDOW, DOCUMENTS = 20.0, 256, 4


@dataclass(frozen=True)
class Case:
    """A workload: a score_mod, a mask_mod, and the matrices that plain operations add and keep."""

    score_mod: Any
    mask_mod: Any
    bias: Tensor | None
    cap: float


def cases(heads: int, tokens: int) -> Iterator[tuple[str, Case]]:
    """Yield (name, case) of a shape."""
    i, j = torch.arange(tokens)[:, None], torch.arange(tokens)
    slopes = 2.0 ** (-8 * torch.arange(1, heads + 1) / heads)
    document = torch.arange(tokens) * DOCUMENTS // tokens
    distance = slopes[:, None, None] * (j - i)

    def causal(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return q_idx >= kv_idx

    def window(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return (q_idx >= kv_idx) & (q_idx - kv_idx < WINDOW)

    def same(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return document[q_idx] == document[kv_idx]

    def alibi(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return score + slopes[h] * (kv_idx - q_idx)

    def capped(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return CAP * torch.tanh(score / CAP)

    yield "causal", Case(None, causal, None, 0.0)
    yield "sliding window", Case(None, window, None, 0.0)
    yield "ALiBi", Case(alibi, causal, distance, 0.0)
    yield "soft cap", Case(capped, causal, None, CAP)
    yield "documents", Case(None, same, None, 0.0)


def kept(case: Case, tokens: int) -> Tensor:
    """Return the boolean matrix of a mask (T, T)."""
    i, j = torch.arange(tokens)[:, None], torch.arange(tokens)
    found: Tensor = case.mask_mod(None, None, i, j)
    return found


def plain(case: Case, mask: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend by a matrix of scores."""
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    if case.bias is not None:
        scores = scores + case.bias
    if case.cap:
        scores = case.cap * torch.tanh(scores / case.cap)
    return torch.softmax(scores.masked_fill(~mask, -torch.inf), -1) @ v


def by_sdpa(case: Case, mask: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend by PyTorch's fused function, with a matrix as its mask."""
    matrix = mask
    if case.bias is not None:
        matrix = case.bias.masked_fill(~mask, -torch.inf)
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=matrix)


def train(attend: Callable[..., Tensor], leaves: list[Tensor]) -> list[Tensor]:
    """Return the output, and gradients of its sum of squares."""
    output = attend(*leaves)
    return [output.detach(), *torch.autograd.grad(output.square().sum(), leaves)]


def contests(
    case: Case, shape: tuple[int, ...], compiled: Any
) -> Iterator[tuple[str, Callable[[], Any], Callable[[], Any]]]:
    """Yield (mode, the other's step, anyscore's step), after their answers agreed."""
    batch, heads, tokens, width = shape
    tensors = [torch.randn(batch, heads, tokens, width) for _ in range(3)]
    leaves = [x.clone().requires_grad_() for x in tensors]
    mask = kept(case, tokens)
    blocks: BlockMask = create_block_mask(case.mask_mod, None, None, tokens, tokens, device="cpu")

    def own(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        output: Tensor = flex_attention(q, k, v, case.score_mod, blocks)
        return output

    def infer(attend: Callable[..., Tensor]) -> Callable[[], Tensor]:
        def step() -> Tensor:
            with torch.no_grad():
                return attend(*tensors)

        return step

    forward = infer(lambda q, k, v: compiled(q, k, v, case.score_mod, blocks))
    torch.testing.assert_close(infer(own)(), forward(), rtol=1e-4, atol=1e-5)
    yield "forward, compiled FlexAttention", forward, infer(own)
    others: dict[str, Callable[..., Tensor]] = {"plain": plain}
    if not case.cap:
        others["SDPA with a matrix"] = by_sdpa
    for name, other in others.items():
        steps = [
            lambda attend=attend: train(attend, leaves)
            for attend in (lambda q, k, v, other=other: other(case, mask, q, k, v), own)
        ]
        for one, two in zip(steps[0](), steps[1](), strict=True):
            torch.testing.assert_close(one, two, rtol=1e-3, atol=1e-3 * one.abs().max().item())
        yield f"training, {name}", steps[0], steps[1]


def main() -> None:
    """Print the table."""
    given = script_options(__doc__)
    rows = []
    for shape in SHAPES:
        for name, case in cases(shape[1], shape[2]):
            torch.compiler.reset()  # after eight kinds of calls it would stop to compile
            compiled = torch.compile(of_pytorch)
            for mode, other, own in contests(case, shape, compiled):
                found = ratio(other, own, ROUNDS, warm=2)
                size = " × ".join(map(str, shape))
                print(f"{name:16s} {size:18s} {mode:34s} {found['median']:6.2f}", flush=True)
                rows.append(row(size, name, "float32", f"{mode}: {UNIT}", found))
    write_script(given, "benchmarks.flex", rows)


if __name__ == "__main__":
    main()
