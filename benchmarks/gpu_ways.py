"""The implementations that `gpu.py` compares, each set up at its best."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import gpu_flex
import torch
from gpu_work import Inputs, Work, additive
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from anyscore import Additive, attention, plan
from anyscore.cache import prepare_keys

Attend = Callable[..., Tensor]
Call = Callable[[Tensor], list[Tensor]]

GRAPH = ", CUDA graph"
"""Behind a name: its kernels are launched together, as decoders do."""
HELD = 0.3  # the share of the memory that the compiled formula may take, or it is chunked


class Built(NamedTuple):
    """One set up for a piece of work.

    call: the gradient of the output, ignored in a forward pass, → the output and in training the
    gradients. about: what to say of it; all of it can be written as JSON.
    """

    call: Call
    about: dict[str, Any]


def build(name: str, work: Work, x: Inputs) -> Built:
    """The implementation of that name, a key of WAYS, with or without GRAPH behind it."""
    built = WAYS[name.removesuffix(GRAPH)](work, x)
    return Built(graphed(built.call, x), built.about) if name.endswith(GRAPH) else built


def derived(attend: Attend, tensors: Sequence[Tensor], work: Work) -> Call:
    """`attend(*tensors)`, and in training the gradients of all of them."""
    if not work.training:

        def forward(d_output: Tensor) -> list[Tensor]:
            with torch.no_grad():
                return [attend(*tensors)]

        return forward
    leaves = [x.detach().requires_grad_() for x in tensors]

    def both(d_output: Tensor) -> list[Tensor]:
        output = attend(*leaves)
        return [output.detach(), *torch.autograd.grad(output, leaves, d_output)]

    return both


def graphed(call: Call, x: Inputs) -> Call:
    """A forward call captured once, and then replayed."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):  # whatever is compiled or set up at first
            call(x.d_output)
    torch.cuda.current_stream().wait_stream(side)
    gc.collect()
    gc.disable()  # a kernel unloaded meanwhile would spoil the capture
    try:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = call(x.d_output)
    finally:
        gc.enable()

    def replay(d_output: Tensor) -> list[Tensor]:
        graph.replay()
        return found

    return replay


def ours(work: Work, x: Inputs) -> Built:
    def attend(q: Tensor, k: Tensor, v: Tensor, w: Tensor) -> Tensor:
        return attention(q, k, v, score=Additive(None, None, w), impl="fused")

    chosen = plan(*x[:3], score=Additive(None, None, x.weight), impl="fused")
    return Built(derived(attend, x[:4], work), {"how": f"impl=fused: {chosen.route}"} | _tiles(x))


def separable(work: Work, x: Inputs) -> Built:
    def attend(q: Tensor, k: Tensor, v: Tensor, w: Tensor) -> Tensor:
        return attention(q, k, v, score=Additive(None, None, w), impl="separable")

    with torch.no_grad():
        chosen = plan(*x[:3], score=Additive(None, None, x.weight), impl="separable")
    return Built(derived(attend, x[:4], work), {"how": f"impl=separable: {chosen.reason}"})


def step(work: Work, x: Inputs) -> Built:
    """A decoder's step of ours: the keys are prepared once."""
    score = Additive(None, None, x.weight)
    keys = prepare_keys(x.key, score)

    def attend(q: Tensor, v: Tensor) -> Tensor:
        return attention(q, keys, v, score=score, impl="fused")

    return Built(derived(attend, (x.query, x.value), work), {"how": "impl=fused, prepared keys"})


def eager(work: Work, x: Inputs) -> Built:
    def attend(q: Tensor, k: Tensor, v: Tensor, w: Tensor) -> Tensor:
        if work.training:
            return additive(q, k, w).softmax(-1) @ v
        return ((q.unsqueeze(-2) + k.unsqueeze(-3)).tanh_() @ w).softmax(-1) @ v

    how = "the formula, broadcast" if work.training else "the formula, broadcast, tanh_ in place"
    return Built(derived(attend, x[:4], work), {"how": how})


def compiled(work: Work, x: Inputs) -> Built:
    """w · … summed, not @ w: so the sum is fused with tanh. Its gradients are not."""

    def block(q: Tensor, k: Tensor, v: Tensor, w: Tensor) -> Tensor:
        q, k, w = q.float(), k.float(), w.float()
        s = (torch.tanh(q.unsqueeze(-2) + k.unsqueeze(-3)) * w).sum(-1)
        return s.softmax(-1).to(v.dtype) @ v

    one = torch.compile(block, fullgraph=True, dynamic=False)
    rows = chunk_of(work, _memory(x.query))

    def chunked(q: Tensor, k: Tensor, v: Tensor, w: Tensor) -> Tensor:
        parts = q.split(rows, -2)
        if work.training:
            options = {"use_reentrant": False, "preserve_rng_state": False}
            found = [checkpoint(one, part, k, v, w, **options) for part in parts]
        else:
            found = [one(part, k, v, w) for part in parts]
        return torch.cat(found, -2)

    if rows >= work.size.queries:
        return Built(derived(one, x[:4], work), {"how": "torch.compile, all queries at once"})
    again = ", each with a checkpoint" if work.training else ""
    how = f"torch.compile, chunks of {rows} queries{again}: all would not fit memory"
    return Built(derived(chunked, x[:4], work), {"how": how, "chunk": rows})


def chunk_of(work: Work, memory: int) -> int:
    """How many queries the compiled formula takes at once; a power of two, or all.

    Of each it holds about four float32 of scores, and in training three of every element.
    """
    size = work.size
    each = 4 * size.batch * size.heads * size.keys * (3 * size.width if work.training else 4)
    most = max(1, int(HELD * memory) // each)
    return size.queries if most >= size.queries else 1 << (most.bit_length() - 1)


def sdpa(work: Work, x: Inputs) -> Built:
    call = derived(scaled_dot_product_attention, x[:3], work)
    return Built(call, {"how": "scaled_dot_product_attention", "computes": "dot"})


def flex(activation: str) -> Callable[[Work, Inputs], Built]:
    def built(work: Work, x: Inputs) -> Built:
        attend, how = gpu_flex.attend(work, x.query, activation)
        return Built(derived(attend, x[:4], work), {"how": how})

    return built


def _memory(x: Tensor) -> int:
    return torch.cuda.get_device_properties(x.device).total_memory if x.is_cuda else 2**33


def _tiles(x: Inputs) -> dict[str, Any]:
    """Which share of the tiles is computed in which way; nothing if the kernels do not say."""
    try:
        from anyscore.kernels.triton import packed as triton_packed
        from anyscore.kernels.triton import pairs as triton_pairs
        from anyscore.kernels.triton import scores as triton_scores
        from anyscore.operands import Operands, Settings

        lead = tuple(x.query.shape[:-2])
        settings = Settings("tanh", 1.0, 1, 0.0, 1, lead)
        given = triton_packed.Inputs(Operands(*x[:2], x.weight), settings)
        call = triton_packed.PackedCall(triton_pairs.TANH, given, torch.float32)
        a, b = call.of_queries.bounds[:, :, None], call.of_keys.bounds[:, None]
        free = a[..., 0] + b[..., 0] <= triton_scores.FREE.value
        near = ~free & (b[..., 1] <= triton_scores.WIDE.value) & a[..., 0].isfinite()
        shares = {"free": free, "clamped": near, "one by one": ~(free | near)}
        return {"tiles": {name: float(share.float().mean()) for name, share in shares.items()}}
    except Exception:  # no GPU, no Triton, or they have changed inside
        return {}


WAYS: dict[str, Callable[[Work, Inputs], Built]] = {
    "anyscore": ours,
    "separable": separable,
    "step": step,
    "formula": eager,
    "compile": compiled,
    "dot": sdpa,
    "flex": flex("tanh"),
    "flex, sigmoid": flex("sigmoid"),
    "flex, approximate": flex("approximate"),
}
