"""FlexAttention with additive scores: the loop over features is unrolled in `score_mod`.

The product that it computes in any case is of zeros, of the least width. For it FlexAttention takes
tiles of 64 × 64 by 4 warps on Ampere and Hopper, which suit these loads better than larger ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from gpu_work import Work
from torch import Tensor
from torch.nn.attention.flex_attention import flex_attention

WIDTH = 16  # the least that it takes

Attend = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def attend(work: Work, like: Tensor, activation: str) -> tuple[Attend, str]:
    """(query, key, value, w) → output; and how, in words.

    activation: "tanh"; "sigmoid", as tanh x = 2 σ(2x) − 1, of which the constant cancels in the
    softmax; or "approximate", by the processor's own tanh with errors of 5e-4. In training "tanh".
    """
    size = work.size
    empty = [like.new_zeros((*size[:2], n, WIDTH)) for n in (size.queries, size.keys)]
    if work.training:
        return _trained(empty), (
            "FlexAttention, each feature a captured tensor of its own, and w one for each query: "
            "fewer atomic additions meet"
        )
    function, factor = {"tanh": (torch.tanh, 1.0), "sigmoid": (torch.sigmoid, 2.0)}.get(
        activation, (None, 1.0)
    )
    function = function or _approximate()

    def mixed(none: Tensor, nothing: Tensor, q: Tensor, k: Tensor, v: Tensor, w: Tensor) -> Tensor:
        def score_mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            for d in range(size.width):
                at = b * 0 + d  # older versions take tensors alone as indices
                score = score + w[at] * function(q[b, h, at, i] + k[b, h, at, j])
            return score

        return flex_attention(none, nothing, v, score_mod=score_mod)

    call = torch.compile(mixed, fullgraph=True, dynamic=False)

    def features(q: Tensor, k: Tensor, v: Tensor, w: Tensor) -> Tensor:
        q, k = ((factor * x.float()).mT.contiguous() for x in (q, k))  # what is loaded is a row
        return call(*empty, q, k, v, factor * w.float())

    return features, f"FlexAttention, {activation}, the features unrolled in score_mod"


def _trained(empty: list[Tensor]) -> Attend:
    """With gradients of captured tensors: by atomic additions, for one index of each tensor.

    None of them may be a view: PyTorch 2.13 gives such no gradient, in silence.
    """

    def mixed(none: Tensor, nothing: Tensor, v: Tensor, *features: list[Tensor]) -> Tensor:
        def score_mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            for q, k, w in zip(*features, strict=True):
                score = score + w[b, h, i] * torch.tanh(q[b, h, i] + k[b, h, j])
            return score

        return flex_attention(none, nothing, v, score_mod=score_mod)

    call = torch.compile(mixed, fullgraph=True, dynamic=False)

    def own(x: Tensor) -> Tensor:
        return x.clone(memory_format=torch.contiguous_format)

    def features(q: Tensor, k: Tensor, v: Tensor, w: Tensor) -> Tensor:
        qs, ks = ([own(y) for y in x.float().unbind(-1)] for x in (q, k))
        ws = [own(y.expand(q.shape[:-1])) for y in w.float().unbind()]
        return call(*empty, v, qs, ks, ws)

    return features


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

    operator = torch.ops.anyscore_benchmark.tanh.default

    @tanh.register_vmap
    def _(info: Any, dims: tuple[Any, ...], x: Tensor) -> tuple[Tensor, Any]:
        return operator(x), dims[0]

    def instruction(x: Any) -> Any:
        return ops.inline_asm_elementwise(x, asm="tanh.approx.f32 $0, $1;", constraints="=f,f")

    register_lowering(operator, type_promotion_kind=None)(make_pointwise(instruction))
    return operator
