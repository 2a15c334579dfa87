"""anyscore, and what PyTorch has to offer instead, each set up at its best."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from anyscore import attention, cache
from anyscore.lab.bench.rival import Call, Unavailable, Way
from anyscore.lab.bench.work import Work

_BLOCK = 2**18  # elements that the formula in blocks of queries holds at once: they stay in a cache
_FLEX_WIDTH = 16  # of the product that FlexAttention computes in any case


def anyscore_(work: Work) -> list[Way]:
    def build() -> Call:
        formula = work.formula
        if work.prepared:
            score = formula.score(work.weight)
            keys = cache.prepare_keys(work.key, score)
            return lambda: (attention(work.query, keys, work.value, score=score),)
        if formula.learned:
            return _call(lambda q, k, v, w: attention(q, k, v, score=formula.score(w)), work)
        fixed = formula.score(work.weight)
        return _call(lambda q, k, v, w: attention(q, k, v, score=fixed), work)

    keys = " with prepared keys" if work.prepared else ""
    return [Way(f"anyscore.attention{keys}", build)]


def eager(work: Work) -> list[Way]:
    def plain(q: Tensor, k: Tensor, v: Tensor, w: Tensor) -> Tensor:
        return work.formula.scores(q, k, w).softmax(-1) @ v

    def in_place(q: Tensor, k: Tensor, v: Tensor, w: Tensor) -> Tensor:
        return ((q.unsqueeze(-2) + k.unsqueeze(-3)).tanh_() @ w).softmax(-1) @ v

    ways = [Way("the formula, broadcast", partial(_call, plain, work))]
    if work.score == "additive":
        ways.append(Way("the formula, broadcast, tanh_ in place", partial(_call, in_place, work)))
    return ways


def blocks(work: Work) -> list[Way]:
    shape = work.shape
    rows = max(1, _BLOCK * shape.queries // shape.triples)
    if rows >= shape.queries:
        raise Unavailable("small enough for one block")

    def block(q: Tensor, k: Tensor, v: Tensor, w: Tensor) -> Tensor:
        return work.formula.scores(q, k, w).softmax(-1) @ v

    def attend(q: Tensor, k: Tensor, v: Tensor, w: Tensor) -> Tensor:
        parts = torch.split(q, rows, dim=1)
        if not work.training:
            return torch.cat([block(part, k, v, w) for part in parts], 1)
        return torch.cat([checkpoint(block, p, k, v, w, use_reentrant=False) for p in parts], 1)

    again = ", each with a checkpoint" if work.training else ""
    return [Way(f"the formula for {rows} queries at a time{again}", partial(_call, attend, work))]


def compiled(work: Work) -> list[Way]:
    def formula(q: Tensor, k: Tensor, v: Tensor, w: Tensor) -> Tensor:
        # w * … summed, not @ w: then the sum is fused too, and the backward is twice as fast.
        if work.score == "additive":
            scores = (torch.tanh(q.unsqueeze(-2) + k.unsqueeze(-3)) * w).sum(-1)
        elif work.score == "gatv2":
            x = q.unsqueeze(-2) + k.unsqueeze(-3)
            scores = (torch.nn.functional.leaky_relu(x, 0.2) * w).sum(-1)
        else:
            scores = work.formula.scores(q, k, w)
        return scores.softmax(-1) @ v

    def build() -> Call:
        return _call(torch.compile(formula, fullgraph=True, dynamic=False), work)

    return [Way("torch.compile of the formula, for this size alone", build, compiles=True)]


def flex(work: Work) -> list[Way]:
    if work.training:
        raise Unavailable("FlexAttention has no backward on the CPU")
    from torch.nn.attention.flex_attention import flex_attention

    shape = work.shape
    act = torch.tanh if work.score == "additive" else partial(
        torch.nn.functional.leaky_relu, negative_slope=0.2
    )  # fmt: skip

    def attend(none: Tensor, nothing: Tensor, q: Tensor, k: Tensor, v: Tensor, w: Tensor) -> Tensor:
        def score_mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            for d in range(shape.width):
                score = score + w[d] * act(q[b, i, d] + k[b, j, d])
            return score

        return flex_attention(none, nothing, v, score_mod=score_mod)

    def build() -> Call:
        none = torch.zeros(shape.batch, 1, shape.queries, _FLEX_WIDTH, dtype=work.query.dtype)
        nothing = torch.zeros(shape.batch, 1, shape.keys, _FLEX_WIDTH, dtype=work.query.dtype)
        inputs = (none, nothing, work.query, work.key, work.value.unsqueeze(1), work.weight)
        call = torch.compile(attend, fullgraph=True, dynamic=False)
        return lambda: (call(*inputs),)

    return [Way("FlexAttention, the features unrolled in score_mod", build, compiles=True)]


def cdist(work: Work) -> list[Way]:
    p = 1.0 if work.score == "laplace" else 2.0

    def attend(q: Tensor, k: Tensor, v: Tensor, w: Tensor) -> Tensor:
        distance = torch.cdist(q, k, p)
        return (-w * (distance if p == 1 else distance.square())).softmax(-1) @ v

    return [Way(f"torch.cdist with p={p:g}, softmax, product", partial(_call, attend, work))]


def dot(work: Work) -> list[Way]:
    """The better of the two; the product is scaled by 1/√H in both."""
    scale = 1 / math.sqrt(work.shape.width)

    def products(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.bmm(torch.softmax(torch.bmm(q * scale, k.mT), -1), v)

    def fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v)

    def build(attend: Callable[..., Tensor], axes: int) -> Call:
        tensors = work.query, work.key, work.value, work.d_output
        if axes == 4:
            tensors = tuple(x.unsqueeze(1) for x in tensors)  # type: ignore[assignment]
        return _torch_call(attend, tensors[:3], tensors[3], work.training)

    return [
        Way("scaled_dot_product_attention, 4-D", partial(build, attend=fused, axes=4)),
        Way("bmm, softmax, bmm", partial(build, attend=products, axes=3)),
    ]


def _torch_call(
    attend: Callable[..., Tensor], inputs: Sequence[Tensor], d_output: Tensor, training: bool
) -> Call:
    """`attend(*inputs)`, with the gradients of all of them when training."""
    if not training:
        return lambda: (attend(*inputs),)
    leaves = [x.detach().requires_grad_() for x in inputs]

    def both() -> Sequence[Tensor]:
        output = attend(*leaves)
        return (output.detach(), *torch.autograd.grad(output, leaves, d_output))

    return both


def _call(attend: Callable[..., Tensor], work: Work) -> Call:
    """A function of query, key, value and, where it is learned, the weight."""
    inputs = [work.query, work.key, work.value]
    if work.formula.learned:
        inputs.append(work.weight)
    else:
        attend = partial(attend, w=work.weight)
    return _torch_call(attend, inputs, work.d_output, work.training)
