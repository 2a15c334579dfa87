"""The calls of anyscore, and PyTorch's alternatives, each set up at its best."""

from __future__ import annotations

import gc
import importlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import repeat
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from anyscore import Additive, attention, make_cache, plan
from anyscore.lab.bench import variants
from anyscore.lab.bench.formulas import LEAKY_RELU, OwnPair
from anyscore.lab.bench.rivals import Call, Unavailable, Variant
from anyscore.lab.bench.variants import Attend, gradient_call
from benchmarks.private import tiles
from benchmarks.work import Work

_BLOCK = 2**18  # elements that the formula in blocks of queries holds at once, to stay in a cache
_SHARE = 0.3  # of a GPU's memory: the compiled formula is chunked above it


def anyscore_(work: Work) -> list[Variant]:
    """List anyscore's variants: the function of the task as users call it."""
    if work.task == "cache":
        if work.training:
            raise Unavailable("a cache keeps no graph")
        return [Variant("anyscore.Cache: append and attend", partial(_step, work))]
    ours, name = work.of_scores.ours, "" if work.task == "attention" else work.task
    if work.lengths:
        ours = partial(ours, valid_lens=work.valid_lens)
    if not work.projected:

        def attend(*inputs: Tensor) -> Tensor:
            *tensors, W_q, W_k, w = inputs
            return ours(*tensors, score=Additive(W_q, W_k, w))  # type: ignore[no-any-return]

        return [Variant("anyscore.attention", partial(gradient_call, attend, work))]
    return variants.anyscore_(work, ours, name)


def exact(work: Work) -> list[Variant]:
    """List anyscore's exact kernels, with the share of each way of tanh."""
    shares = {"tiles": tiles(work)} if tiles(work) else {}
    return [replace(x, about=shares) for x in variants.anyscore_(work, impl="fused")]


def _step(work: Work) -> Call:
    """Make a call in which the last token comes, and goes again, so that every call is the same."""
    room, score = work.shape.keys + 1, work.formula.score(work.weight)
    known = make_cache(work.key[:, :-1], work.value[:, :-1], score, capacity=room)
    key, value = work.key[:, -1:].contiguous(), work.value[:, -1:].contiguous()

    def call() -> Sequence[Tensor]:
        known.append(key, value, score=score)
        output = known.attend(work.query, score=score, causal=False)
        known.length.sub_(1)
        return (output,)

    return call


def formula(work: Work) -> list[Variant]:
    """List the formula with projections and lengths, broadcast."""
    plain = partial(work.plain, work.score)
    return [Variant("the formula, broadcast", partial(gradient_call, plain, work))]


def separable(work: Work) -> list[Variant]:
    """List anyscore's additive score as products of rows."""

    def attend(q: Tensor, k: Tensor, v: Tensor, w: Tensor) -> Tensor:
        output: Tensor = attention(q, k, v, score=work.formula.score(w), impl="separable")
        return output

    score = work.formula.score(work.weight)
    chosen = plan(work.query, work.key, work.value, score=score, impl="separable")
    return [Variant(f"impl=separable: {chosen.reason}", partial(gradient_call, attend, work))]


def blocks(work: Work) -> list[Variant]:
    """List the formula block by block of queries, as memory demands."""
    shape = work.shape
    rows = max(1, _BLOCK * shape.queries // shape.triples)
    if rows >= shape.queries:
        raise Unavailable("small enough for one block")
    attend = _in_blocks(partial(work.plain, work.score), rows, work)
    how = f"the formula for {rows} queries at a time{_again(work)}"
    return [Variant(how, partial(gradient_call, attend, work))]


def _in_blocks(attend: Attend, rows: int, work: Work) -> Attend:
    """Compute `attend` for so many queries at a time, when training each with a checkpoint."""

    cut = [name in work.by_query for name in (*work.inputs, "weight")]

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


def compiled_in_chunks(work: Work) -> list[Variant]:
    """List the formula compiled by torch.compile, for as many queries as memory holds."""
    rows = chunk_of(work)
    if rows >= work.shape.queries:
        return [*variants.compiled(work), _tuned(work)]

    def build() -> Call:
        attend = torch.compile(variants.fusible(work), fullgraph=True, dynamic=False)
        return gradient_call(_in_blocks(attend, rows, work), work)

    how = f"torch.compile of the formula, {rows} queries at a time{_again(work)}: memory ends"
    return [Variant(how, build, compiles=True, about={"chunk": rows})]


def _tuned(work: Work) -> Variant:
    """Return the compiled formula with tuned tiles."""

    def build() -> Call:
        attend = torch.compile(
            variants.fusible(work),
            fullgraph=True,
            dynamic=False,
            mode="max-autotune-no-cudagraphs",
        )
        return gradient_call(attend, work)

    return Variant("torch.compile of the formula, max-autotune", build, compiles=True)


def chunk_of(work: Work) -> int:
    """Say how many queries the compiled formula takes at once; a power of two, or all.

    Of each query it holds about four float32 of scores, in training three of every element.
    """
    shape = work.shape
    each = 4 * shape.batch * shape.keys * (3 * shape.width if work.training else 4)
    most = max(1, int(_SHARE * gpu_memory()) // each)
    return shape.queries if most >= shape.queries else 1 << (most.bit_length() - 1)


def gpu_memory() -> int:
    """The bytes that the first GPU has."""
    return int(torch.cuda.get_device_properties(0).total_memory)


def cdist(work: Work) -> list[Variant]:
    """List the distance by torch.cdist, where the score is of one."""
    p, weighed = 1.0 if work.score == "laplace" else 2.0, work.weighed

    def scores(distance: Tensor, w: Tensor) -> Tensor:
        if work.score in ("laplace", "euclidean"):
            return -w * distance
        if work.score == "gaussian":
            return -w * distance.square()
        return -torch.log1p(w * distance.square())

    def attend(q: Tensor, k: Tensor, *beside: Tensor) -> Tensor:
        *others, w = beside
        return weighed(scores(torch.cdist(q, k, p), w), *others)

    how = f"torch.cdist with p={p:g}, then the same in plain operations"
    return [Variant(how, partial(gradient_call, attend, work))]


def own_pair(work: Work) -> list[Variant]:
    """List a built-in pair as a formula of one's own."""

    def attend(q: Tensor, k: Tensor, v: Tensor, w: Tensor) -> Tensor:
        return attention(q, k, v, score=OwnPair(w, LEAKY_RELU))  # type: ignore[no-any-return]

    how = f"anyscore.attention, Pair.from_formula of {LEAKY_RELU!r}"
    return [Variant(how, partial(gradient_call, attend, work), compiles=True)]


def graphed(variant: Variant) -> Variant:
    """Return a variant whose forward is captured once as a CUDA graph, and then replayed."""

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

    return replace(variant, how=f"{variant.how}, CUDA graph", build=build)


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
