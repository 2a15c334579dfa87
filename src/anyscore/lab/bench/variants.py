"""The calls of anyscore and of plain PyTorch, each set up at its best."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from anyscore import attention, plan, prepare_keys
from anyscore.lab.bench.formulas import DOT
from anyscore.lab.bench.rivals import Call, Rival, Variant
from anyscore.lab.bench.work import Work

Attend = Callable[..., Tensor]


def call_of(attend: Attend, inputs: Sequence[Tensor], work: Work) -> Call:
    """Make a call of `attend(*inputs)`, in training with the gradients of all inputs."""
    if not work.training:
        return lambda: (attend(*inputs),)
    leaves = [x.detach().requires_grad_() for x in inputs]
    upstream = work.upstream

    def both() -> Sequence[Tensor]:
        output = attend(*leaves)
        return (output.detach(), *torch.autograd.grad(output, leaves, upstream.view_as(output)))

    return both


def gradient_call(attend: Attend, work: Work) -> Call:
    """Make a call of `attend(*work.inputs)`, with the weight last even where it has no gradient."""
    inputs = list(work.inputs.values())
    if not work.formula.learned:
        weight = work.weight
        return call_of(lambda *some: attend(*some, weight), inputs, work)
    return call_of(attend, inputs, work)


def anyscore_(
    work: Work,
    function: Callable[..., Any] = attention,
    name: str = "",
    impl: str | None = None,
) -> list[Variant]:
    """List anyscore's variant: the function as users call it.

    function: (query, key, …, score=…, impl=…), a function of anyscore that does the work. name: its
        name, "" for `attention`. impl: None for "auto", on a GPU for the kernels that "auto" takes.
    """
    if impl is None:
        is_auto = work.device == "cpu" or (not name and _takes_products(work))
        impl = "auto" if is_auto else "fused"
    score, of_weight = work.formula.score(work.weight), work.formula.score

    def learned(*inputs: Tensor) -> Tensor:
        *tensors, w = inputs
        return function(*tensors, score=of_weight(w), impl=impl)  # type: ignore[no-any-return]

    def build() -> Call:
        if work.prepared:
            keys = prepare_keys(work.key, score)
            return lambda: (attention(work.query, keys, work.value, score=score, impl=impl),)
        if work.formula.learned and work.training:
            return gradient_call(learned, work)
        inputs = [x for name, x in work.inputs.items() if name != "weight"]
        return call_of(lambda *tensors: function(*tensors, score=score, impl=impl), inputs, work)

    if name:
        return [Variant(f"anyscore: {name}", build)]
    keys = " with prepared keys" if work.prepared else ""
    if work.device == "cpu":
        return [Variant(f"anyscore.attention{keys}", build)]
    chosen = plan(work.query, work.key, work.value, score=score, impl=impl)
    return [Variant(f"anyscore.attention{keys}, {chosen.route}", build)]


def _takes_products(work: Work) -> bool:
    """Return whether `attention` computes such work as products of rows without being asked."""
    score = work.formula.score(work.weight)
    return plan(work.query, work.key, work.value, score=score).route == "separable"


def eager(work: Work) -> list[Variant]:
    """List the formula in PyTorch's own operations, all pairs at once."""
    plain, weighed = partial(work.plain, work.score), work.weighed

    def in_place(q: Tensor, k: Tensor, *beside: Tensor) -> Tensor:
        *others, w = beside
        return weighed((q.unsqueeze(-2) + k.unsqueeze(-3)).tanh_() @ w, *others)

    variants = [Variant("the formula, broadcast", partial(gradient_call, plain, work))]
    if work.score == "additive":
        how = "the formula, broadcast, tanh_ in place"
        variants.append(Variant(how, partial(gradient_call, in_place, work)))
    return variants


def fusible(work: Work) -> Attend:
    """Return the formula in a form that torch.compile fuses whole.

    The sum over features is a sum of products: torch.compile fuses it too, and the backward is
    twice as fast as with `@ w`.
    """
    pair, scores_of, weighed = work.formula.pair, work.formula.scores, work.weighed

    def formula(q: Tensor, k: Tensor, *beside: Tensor) -> Tensor:
        *others, w = beside
        q, k, w = q.float(), k.float(), w.float()
        if pair is not None:
            scores = (pair(q.unsqueeze(-2) + k.unsqueeze(-3)) * w).sum(-1)
        else:
            scores = scores_of(q, k, w)
        return weighed(scores, *others)

    return formula


def compiled(work: Work) -> list[Variant]:
    """List the formula compiled by torch.compile."""

    def build() -> Call:
        attend = torch.compile(fusible(work), fullgraph=True, dynamic=False)
        return gradient_call(attend, work)

    return [Variant("torch.compile of the formula, for this size alone", build, compiles=True)]


def dot(work: Work) -> list[Variant]:
    """List a dot product by PyTorch's fused attention, and by products with a softmax between."""
    fused = torch.nn.functional.scaled_dot_product_attention
    return [
        Variant("scaled_dot_product_attention, 4-D", partial(dot_call, fused, work, heads=True)),
        Variant("bmm, softmax, bmm", partial(dot_call, products, work)),
    ]


def products(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Compute attention with a dot product by two products."""
    scale = 1 / math.sqrt(q.shape[-1])
    return torch.bmm(torch.softmax(torch.bmm(q * scale, k.mT), -1), v)


def dot_call(attend: Attend, work: Work, heads: bool = False) -> Call:
    """Make a call of three tensors (B, T, …), or (B, 1, T, …) with heads."""
    tensors = work.query, work.key, work.value
    return call_of(attend, [x.unsqueeze(1) if heads else x for x in tensors], work)


OURS = Rival("anyscore", anyscore_)
RIVALS = {
    rival.name: rival
    for rival in (
        Rival("eager", eager, copies=(2, 3)),
        Rival("compile", compiled, copies=(0, 3)),
        Rival("dot", dot, computes=DOT),
    )
}
"""The rivals that plain PyTorch offers, by name."""
