"""PyTorch: autocasting, the generator, SDPA where it keeps the contract, and the kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import torch
from torch import Tensor

from anyscore.backends.reference.run import reference_in
from anyscore.backends.repeated import REPEATED, RepeatedCalls
from anyscore.backends.torch import core, modes, triton
from anyscore.backends.torch import flops as _counts_of_operations  # noqa: F401
from anyscore.backends.torch.buffers import TorchBuffers
from anyscore.backends.torch.modes import is_compiling, is_transforming
from anyscore.backends.torch.modes import may_repeat as may_repeat
from anyscore.backends.torch.nested import NestedAdapter
from anyscore.backends.torch.repeated import core_arrays
from anyscore.backends.torch.sparse import sparse_weights
from anyscore.backends.torch.triton import why_not_device
from anyscore.call.backend import (
    AS_THEY_ARE,
    Adapter,
    Backend,
    Implementation,
    Result,
)
from anyscore.call.operands import Results
from anyscore.call.shards import Exchange, Part, Scheme, Sharded
from anyscore.call.task import Options, Task
from anyscore.kernels import cpu
from anyscore.ops import load
from anyscore.ops.pytrees import register_pytrees
from anyscore.score.factors import Factors
from anyscore.score.pairs import PRODUCT

register_pytrees()
_sdpa = torch._C._nn.scaled_dot_product_attention
"""PyTorch's own function: users put `attention` in the place of the public name."""


class Torch(Backend):
    """SDPA, the C++ core or Triton, else the reference."""

    xp = load("torch")
    reference = reference_in(xp)
    separable = triton.SEPARABLE
    buffers = TorchBuffers()

    def fused(self, task: Task) -> tuple[Implementation, ...]:
        return _ON_CPU if task.first.is_cpu else _ON_GPU

    def prefers_separable(self, task: Task, options: Options) -> bool:
        return not task.first.is_cpu and triton.prefers_separable(task, options)

    def lacks_kernels(self, task: Task) -> bool:
        device = task.first.device
        return device.type != "cpu" and not is_compiling() and why_not_device(device) is not None

    def differentiable(self, tensors: Iterable[Tensor]) -> bool:
        return modes.differentiable(tensors)

    def precision(
        self, query: Tensor
    ) -> tuple[Callable[[], AbstractContextManager[Any]], str | None]:
        device = query.device.type
        if not isinstance(device, str):
            raise TypeError(
                "torch.fx.symbolic_trace cannot look into attention: use a layer of "
                'anyscore.torch, which it records whole, or put torch.fx.wrap("attention") where '
                "you import it."
            )
        if not torch.amp.is_autocast_available(device) or not torch.is_autocast_enabled(device):
            return nullcontext, None
        dtype = str(torch.get_autocast_dtype(device)).removeprefix("torch.")
        return lambda: torch.autocast(device, enabled=False), dtype

    def draw_seed(self, query: Tensor) -> Tensor:
        return torch.randint(2**63 - 1, (), device=query.device)

    def sparse(self, scores: Tensor, power: int) -> Tensor:
        return sparse_weights(scores, power)

    def exchange(self, over: Any) -> Exchange:
        from anyscore.backends.torch.exchange import exchange_of

        return exchange_of(over)

    def attend_sharded(self, part: Part, sharded: Sharded, scheme: Scheme, fused: bool) -> Results:
        from anyscore.backends.torch.sharded import attend

        return attend(part, sharded, scheme, fused)

    def pack_keys(self, f: Factors) -> Tensor | None:
        return core.pack_keys(f)

    def adapter(self, query: Any, key: Any, value: Any) -> Adapter:
        return NestedAdapter(query, key, value) if query.is_nested else AS_THEY_ARE


def _why_not(task: Task, options: Options) -> str | None:
    f = task.score
    if not isinstance(f, Factors) or f.pair.key != PRODUCT.key:  # comparing pairs is slower
        return "the score is not a product"
    if f.query_bias is not None or f.key_bias is not None:
        return "the product has biases"
    if task.has_outer:
        return "it has no outer function"
    if task.biases:
        return "it adds no bias with a gradient"
    if task.normalizer != "softmax":
        return "its weights are those of the softmax"
    if task.mask is not None:
        return "NaN in masked keys or values would reach the output"
    if options.dropout:
        return "its dropout is not reproducible across devices"
    if task.value is None or options.return_lse or options.return_scores:
        return "it gives the output alone"
    tensors = [x for x in (f.a, f.b, f.weight, task.value) if x is not None]
    if torch.is_grad_enabled() and any(x.requires_grad for x in tensors):
        return "its second derivatives raise"
    if f.a.dtype != task.value.dtype:
        return "the factors are not of the value's dtype"
    if f.a.shape[-1] != task.value.shape[-1]:
        return "d_v ≠ d_k leaves its fused path"
    if 0 in (*task.sizes.lead, *f.a.shape, *f.b.shape):
        return "there is nothing to compute"
    is_half = f.a.dtype not in (torch.float32, torch.float64)
    if f.a.is_cpu and cpu.problem() is None and not (is_half and task.sizes.queries > 2):
        return "the core is faster"  # in half precision only for decoding steps
    if not is_compiling() and is_transforming():
        return "function transforms do not reach into it"
    return modes.why_not()


def _run(task: Task, options: Options, seed: Any) -> Result:
    f, sizes = cast(Factors, task.score), task.sizes
    a: Tensor = f.a if f.weight is None else (f.a * f.weight[..., None, :]).to(f.a.dtype)

    def four(x: Tensor, lead: tuple[int, ...]) -> Tensor:
        """Return x (..., T, d) as (batch, heads, T, d), the only rank of the fused path."""
        lead = (1,) * (2 - len(lead)) + lead
        return x.expand(*lead, *x.shape[-2:]).reshape(-1, *lead[-1:], *x.shape[-2:])

    output = _sdpa(
        four(a, sizes.lead),
        four(f.b, sizes.kv_lead),
        four(cast(Tensor, task.value), sizes.kv_lead),
        scale=f.scale,
        enable_gqa=sizes.groups > 1,
    )
    output = output.reshape(*sizes.lead, *output.shape[-2:])
    # On the CPU SDPA returns 0 for a query with NaN or ±inf.
    return Result(output + (0 * a).sum(-1, keepdim=True), None)


_SDPA = Implementation("sdpa", _why_not, _run)
_ON_CPU = _SDPA, core.CORE
_ON_GPU = _SDPA, triton.KERNELS
BACKEND = Torch()
ARRAYS = core_arrays(BACKEND, core.CORE)
REPEATED_CALLS = RepeatedCalls(ARRAYS)

REPEATED[Tensor] = REPEATED_CALLS
