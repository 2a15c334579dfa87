"""anyscore, and what PyTorch has to offer instead, each set up at its best."""

from __future__ import annotations

import gc
import importlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import repeat
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from anyscore import Additive, attention, plan
from anyscore import make_cache as cache_of
from anyscore.functional.cache import prepare as cache
from anyscore.lab.bench import truth
from anyscore.lab.bench.formulas import LEAKY_RELU, OwnPair
from anyscore.lab.bench.private import tiles
from anyscore.lab.bench.rivals import GRAPH, Call, Unavailable, Variant
from anyscore.lab.bench.tasks import BY_QUERY
from anyscore.lab.bench.work import Work

_BLOCK = 2**18  # elements that the formula in blocks of queries holds at once: they stay in a cache
_SHARE = 0.3  # of a GPU's memory that the compiled formula may take, or it is chunked

Attend = Callable[..., Tensor]


def call_of(attend: Attend, inputs: Sequence[Tensor], work: Work) -> Call:
    """Make a call of `attend(*inputs)`, with the gradients of all of them when training."""
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


def anyscore_(work: Work) -> list[Variant]:
    """List anyscore's variants: the function as users call it."""
    impl = "fused" if work.device == "cuda" else "auto"
    score = work.formula.score(work.weight)
    options: dict[str, Any] = {"valid_lens": work.valid_lens} if work.lengths else {}
    ours, of_weight = partial(work.of_scores.ours, impl=impl, **options), work.formula.score

    def learned(*inputs: Tensor) -> Tensor:
        *tensors, w = inputs
        if work.projected:
            return ours(*tensors, score=of_weight(w))  # type: ignore[no-any-return]
        *tensors, W_q, W_k = tensors
        return ours(*tensors, score=Additive(W_q, W_k, w))  # type: ignore[no-any-return]

    def step() -> Call:
        """The last token comes, and goes again, so that every call is the same."""
        room = work.shape.keys + 1
        known = cache_of(work.key[:, :-1], work.value[:, :-1], score, capacity=room)
        key, value = work.key[:, -1:].contiguous(), work.value[:, -1:].contiguous()

        def call() -> Sequence[Tensor]:
            known.append(key, value, score=score)
            output = known.attend(work.query, score=score, causal=False)
            known.length.sub_(1)
            return (output,)

        return call

    def build() -> Call:
        if work.prepared:
            keys = cache.prepare_keys(work.key, score)
            return lambda: (attention(work.query, keys, work.value, score=score, impl=impl),)
        if work.formula.learned and (work.training or not work.projected):
            return gradient_call(learned, work)
        inputs = [x for name, x in work.inputs.items() if name != "weight"]
        return call_of(lambda *tensors: ours(*tensors, score=score), inputs, work)

    if work.task == "cache":
        if work.training:
            raise Unavailable("a cache keeps no graph")
        return [Variant("anyscore.Cache: append and attend", step)]
    keys = " with prepared keys" if work.prepared else ""
    if work.task != "attention":
        return [Variant(f"anyscore: {work.task}", build)]
    if work.device == "cpu":
        return [Variant(f"anyscore.attention{keys}", build)]
    chosen = plan(work.query, work.key, work.value, score=score, impl=impl)
    shares = {"tiles": tiles(work)} if tiles(work) else {}
    return [Variant(f"anyscore.attention{keys}, {chosen.route}", build, about=shares)]


def separable(work: Work) -> list[Variant]:
    """List anyscore's additive score as a product."""

    def attend(q: Tensor, k: Tensor, v: Tensor, w: Tensor) -> Tensor:
        output: Tensor = attention(q, k, v, score=work.formula.score(w), impl="separable")
        return output

    score = work.formula.score(work.weight)
    chosen = plan(work.query, work.key, work.value, score=score, impl="separable")
    return [Variant(f"impl=separable: {chosen.reason}", partial(gradient_call, attend, work))]


def eager(work: Work) -> list[Variant]:
    """List the formula in PyTorch's own operations, all pairs at once."""
    plain = partial(truth.attend, work, work.score)

    def in_place(q: Tensor, k: Tensor, *beside: Tensor) -> Tensor:
        *others, w = beside
        return work.of_scores.plain((q.unsqueeze(-2) + k.unsqueeze(-3)).tanh_() @ w, *others)

    found = [Variant("the formula, broadcast", partial(gradient_call, plain, work))]
    if work.score == "additive" and work.framework is None:
        how = "the formula, broadcast, tanh_ in place"
        found.append(Variant(how, partial(gradient_call, in_place, work)))
    return found


def blocks(work: Work) -> list[Variant]:
    """List the formula block by block of queries, as memory demands."""
    shape = work.shape
    rows = max(1, _BLOCK * shape.queries // shape.triples)
    if rows >= shape.queries:
        raise Unavailable("small enough for one block")
    attend = _in_blocks(partial(truth.attend, work, work.score), rows, work)
    how = f"the formula for {rows} queries at a time{_again(work)}"
    return [Variant(how, partial(gradient_call, attend, work))]


def _in_blocks(attend: Attend, rows: int, work: Work) -> Attend:
    """Compute `attend` for so many queries at a time, when training each with a checkpoint."""

    cut = [name in BY_QUERY for name in (*work.inputs, "weight")]

    def blocked(*inputs: Tensor) -> Tensor:
        parts = zip(*_split(inputs), strict=False)  # what is not split has no end
        if not work.training:
            return torch.cat([attend(*part) for part in parts], -2)
        options: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": False}
        return torch.cat([checkpoint(attend, *part, **options) for part in parts], -2)

    def _split(inputs: tuple[Tensor, ...]) -> list[Iterable[Tensor]]:
        pairs = zip(inputs, cut, strict=False)
        return [torch.split(x, rows, -2) if by_query else repeat(x) for x, by_query in pairs]

    return blocked


def _again(work: Work) -> str:
    return ", each with a checkpoint" if work.training else ""


def compiled(work: Work) -> list[Variant]:
    """List the formula compiled by torch.compile."""

    pair, plain = work.formula.pair, work.of_scores.plain

    def formula(q: Tensor, k: Tensor, *beside: Tensor) -> Tensor:
        # w * … summed, not @ w: then the sum is fused too, and the backward is twice as fast.
        *others, w = beside
        q, k, w = q.float(), k.float(), w.float()
        if pair is not None:
            scores = (pair(q.unsqueeze(-2) + k.unsqueeze(-3)) * w).sum(-1)
        else:
            scores = work.formula.scores(q, k, w)
        if work.task == "attention":
            return scores.softmax(-1).to(others[0].dtype) @ others[0]
        return plain(scores, *others)

    rows = chunk_of(work)
    whole = rows >= work.shape.queries

    def build() -> Call:
        attend = torch.compile(formula, fullgraph=True, dynamic=False)
        return gradient_call(attend if whole else _in_blocks(attend, rows, work), work)

    if whole:
        return [Variant("torch.compile of the formula, for this size alone", build, compiles=True)]
    how = f"torch.compile of the formula, {rows} queries at a time{_again(work)}: memory ends"
    return [Variant(how, build, compiles=True, about={"chunk": rows})]


def chunk_of(work: Work) -> int:
    """Say how many queries the compiled formula takes at once; a power of two, or all.

    Of each query it holds about four float32 of scores, in training three of every element.
    """
    shape = work.shape
    if work.device != "cuda":
        return shape.queries  # `Rival.copies` says whether memory suffices
    each = 4 * shape.batch * shape.keys * (3 * shape.width if work.training else 4)
    most = max(1, int(_SHARE * gpu_memory()) // each)
    return shape.queries if most >= shape.queries else 1 << (most.bit_length() - 1)


def gpu_memory() -> int:
    """The bytes that the first GPU has."""
    return int(torch.cuda.get_device_properties(0).total_memory)


def cdist(work: Work) -> list[Variant]:
    """List the distance by torch.cdist, where the score is of one."""
    p = 1.0 if work.score == "laplace" else 2.0

    def scores(distance: Tensor, w: Tensor) -> Tensor:
        if work.score in ("laplace", "euclidean"):
            return -w * distance
        if work.score == "gaussian":
            return -w * distance.square()
        return -torch.log1p(w * distance.square())

    def attend(q: Tensor, k: Tensor, *beside: Tensor) -> Tensor:
        *others, w = beside
        return work.of_scores.plain(scores(torch.cdist(q, k, p), w), *others)

    how = f"torch.cdist with p={p:g}, then the same in plain operations"
    return [Variant(how, partial(gradient_call, attend, work))]


def own_pair(work: Work) -> list[Variant]:
    """List a built-in pair as a formula of one's own."""

    def attend(q: Tensor, k: Tensor, v: Tensor, w: Tensor) -> Tensor:
        return attention(q, k, v, score=OwnPair(w, LEAKY_RELU))  # type: ignore[no-any-return]

    how = f"anyscore.attention, Pair.from_formula of {LEAKY_RELU!r}"
    return [Variant(how, partial(gradient_call, attend, work), compiles=True)]


def graphed(variant: Variant) -> Variant:
    """A forward call captured once as a CUDA graph, and then replayed."""

    def build() -> Call:
        call = variant.build()
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):  # whatever is compiled or set up at first
                call()
        torch.cuda.current_stream().wait_stream(side)
        gc.collect()
        gc.disable()  # a kernel unloaded meanwhile would spoil the capture
        try:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                found = call()
        finally:
            gc.enable()

        def replay() -> Sequence[Any]:
            graph.replay()
            return found

        return replay

    return replace(variant, how=f"{variant.how}{GRAPH}", build=build)


def core() -> Any:
    """The C++ core, or None."""
    try:
        return importlib.import_module("anyscore._core")
    except ImportError:
        return None


def confined(variant: Variant, isa: str) -> Variant:
    """The variant while the C++ core has one instruction set."""

    def build() -> Call:
        known = core()
        known.use(isa)
        call = variant.build()

        def confined_call() -> Sequence[Any]:
            known.use(isa)
            return call()

        return confined_call

    return replace(variant, how=f"{variant.how}, {isa}", build=build)
