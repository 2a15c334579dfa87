"""FlexAttention with scores of pairs: the loop over features is unrolled in `score_mod`.

The product that it computes in any case is of zeros, of the least width. For it FlexAttention takes
tiles of 64 × 64 by 4 warps on Ampere and Hopper, which suit these loads better than larger ones.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import flex_attention

from anyscore.lab.bench.rivals import Unavailable, Variant
from anyscore.lab.bench.variants import gradient_call
from benchmarks.work import Work

_WIDTH = 16  # the least that it takes

Attend = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def tanh(work: Work) -> list[Variant]:
    """With the activation of the score, which gradients need."""
    if work.score == "additive":
        return _variants(work, "tanh", torch.tanh)
    leaky = partial(torch.nn.functional.leaky_relu, negative_slope=0.2)
    return _variants(work, "leaky_relu", leaky)


def sigmoid(work: Work) -> list[Variant]:
    """Score by tanh x = 2 σ(2x) − 1, of which the constant cancels in the softmax."""
    return _variants(work, "sigmoid", torch.sigmoid, 2.0)


def approximate(work: Work) -> list[Variant]:
    """By the processor's own tanh, with errors of 5e-4."""
    return _variants(work, "approximate", _approximate())


def _variants(
    work: Work, name: str, activation: Callable[[Tensor], Tensor], factor: float = 1.0
) -> list[Variant]:
    if work.training and work.device == "cpu":
        raise Unavailable("FlexAttention has no backward on the CPU")
    if work.training and name != "tanh":
        raise Unavailable("it is for the forward pass alone")
    shape = work.shape
    empty = [work.query.new_zeros((shape.batch, 1, n, _WIDTH)) for n in (shape.queries, shape.keys)]
    if work.training:
        how = (
            "FlexAttention, each feature a captured tensor of its own, and w one for each query: "
            "fewer atomic additions meet"
        )
        return [Variant(how, lambda: gradient_call(_trained(empty), work), compiles=True)]
    how = f"FlexAttention, {name}, the features unrolled in score_mod"
    return [
        Variant(
            how,
            lambda: gradient_call(_forward(work, empty, activation, factor), work),
            compiles=True,
        )
    ]


def _forward(
    work: Work, empty: list[Tensor], activation: Callable[[Tensor], Tensor], factor: float
) -> Attend:
    def mixed(none: Tensor, nothing: Tensor, q: Tensor, k: Tensor, v: Tensor, w: Tensor) -> Tensor:
        def score_mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            for d in range(work.shape.width):
                at = b * 0 + d  # older versions take tensors alone as indices
                score = score + w[at] * activation(q[b, at, i] + k[b, at, j])
            return score

        return flex_attention(none, nothing, v, score_mod=score_mod)

    call: Any = torch.compile(mixed, fullgraph=True, dynamic=False)

    def attend(q: Tensor, k: Tensor, v: Tensor, w: Tensor) -> Tensor:
        q, k = ((factor * x.float()).mT.contiguous() for x in (q, k))  # what is loaded is a row
        output: Tensor = call(*empty, q, k, v.unsqueeze(1), factor * w.float())
        return output.squeeze(1)

    return attend


def _trained(empty: list[Tensor]) -> Attend:
    """With gradients of captured tensors: by atomic additions, for one index of each tensor.

    None of them may be a view: PyTorch 2.13 gives such no gradient, in silence.
    """

    def mixed(none: Tensor, nothing: Tensor, v: Tensor, *features: Any) -> Tensor:
        def score_mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            for q, k, w in zip(*features, strict=True):
                score = score + w[b, i] * torch.tanh(q[b, i] + k[b, j])
            return score

        return flex_attention(none, nothing, v, score_mod=score_mod)

    call: Any = torch.compile(mixed, fullgraph=True, dynamic=False)

    def own(x: Tensor) -> Tensor:
        return x.clone(memory_format=torch.contiguous_format)

    def attend(q: Tensor, k: Tensor, v: Tensor, w: Tensor) -> Tensor:
        qs, ks = ([own(y) for y in x.float().unbind(-1)] for x in (q, k))
        ws = [own(y.expand(q.shape[:-1])) for y in w.float().unbind()]
        output: Tensor = call(*empty, v.unsqueeze(1), qs, ks, ws)
        return output.squeeze(1)

    return attend


def _approximate() -> Callable[[Tensor], Tensor]:
    """tanh.approx.f32 as an operator that Inductor lowers, as FlexAttention's authors advise."""
    from torch._inductor.lowering import make_pointwise, register_lowering
    from torch._inductor.virtualized import ops

    @torch.library.custom_op("anyscore_benchmark::tanh", mutates_args=())
    def tanh(x: Tensor) -> Tensor:
        return torch.tanh(x)

    @tanh.register_fake
    def _(x: Tensor) -> Tensor:
        return torch.empty_like(x)

    operator: Callable[[Tensor], Tensor] = torch.ops.anyscore_benchmark.tanh.default

    @tanh.register_vmap
    def _(info: Any, dims: tuple[Any, ...], x: Tensor) -> tuple[Tensor, Any]:
        return operator(x), dims[0]

    def instruction(x: Any) -> Any:
        return ops.inline_asm_elementwise(x, asm="tanh.approx.f32 $0, $1;", constraints="=f,f")

    register_lowering(operator, type_promotion_kind=None)(make_pointwise(instruction))
    return operator
