"""The kernels as PyTorch operators `anyscore::forward`, `::backward` and `::weights`.

On the CPU they run the C++ core, on a GPU Triton, which is imported then.

They follow tensors that are only traced, batched by vmap or without values, but not derivatives:
those are for `torch_autograd`. Settings are plain numbers: scale, groups (query heads per key/value
head), dropout, period (dropout counts leading indices modulo it) and lead (the leading dimensions
of the output). Tensors may lack leading dimensions of 1. The output is float32 or better, as sums
are: the backward needs it so.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from anyscore.backends.torch_modes import is_watched
from anyscore.kernels import cpu

Maybe: TypeAlias = Tensor | None

FACTORS = "str pair, Tensor a, Tensor b, Tensor? weight, Tensor? key_bias"
MASK = "Tensor? start, Tensor? stop, Tensor? keep"
SETTINGS = "float scale, SymInt groups, float dropout, SymInt period, SymInt[] lead"

# Found through the library that needs it: there may be other copies of OpenMP in the process.
cpu.borrow_threads(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))

_library = torch.library.Library("anyscore", "FRAGMENT")  # type: ignore[no-untyped-call]


# From PyTorch 2.10 on, the core takes tensors as they are.
_LENDS_MEMORY = hasattr(Tensor, "__dlpack_c_exchange_api__")


def _on_gpu(name: str, *args: Any) -> Any:
    return getattr(import_module("anyscore.backends.torch_triton_flat"), name)(*args)


def _operator(name: str, signature: str, cpu: Any, fake: Any, batched: Any) -> Callable[..., Any]:
    """Defined by hand: torch.library.custom_op costs 9 µs more a call."""
    tags = (torch.Tag.pt2_compliant_tag,)
    _library.define(name + signature, tags=tags)  # type: ignore[no-untyped-call]
    _library.impl(name, cpu, "CPU")  # type: ignore[no-untyped-call]
    _library.impl(name, partial(_on_gpu, name), "CUDA")  # type: ignore[no-untyped-call]
    full = f"anyscore::{name}"
    torch.library.register_fake(full, fake, lib=_library)
    torch.library.register_vmap(full, batched, lib=_library)
    operator = getattr(torch.ops.anyscore, name).default

    def call(*args: Any) -> Any:
        """The operator, or where nobody would see the difference what it comes to: 10 µs less."""
        return operator(*args) if is_watched(*args) else cpu(*args)

    return call


def accumulation(*tensors: Maybe) -> torch.dtype:
    """The dtype that sums over these are taken in."""
    wide = any(x is not None and x.dtype == torch.float64 for x in tensors)
    return torch.float64 if wide else torch.float32


def array(x: Maybe) -> Any:
    """A tensor's memory as the core takes it, bfloat16 as int16."""
    if _LENDS_MEMORY or x is None:
        return x
    if x.requires_grad:
        x = x.detach()
    return (x.view(torch.int16) if x.dtype == torch.bfloat16 else x).numpy()


def _forward(
    pair: str, a: Tensor, b: Tensor, weight: Maybe, key_bias: Maybe, value: Tensor,
    start: Maybe, stop: Maybe, keep: Maybe, seed: Maybe, packed: Maybe,
    scale: float, groups: int, dropout: float, period: int, lead: list[int],
) -> tuple[Tensor, Tensor]:  # fmt: skip
    rows = (*lead, a.shape[-2])
    dtype = accumulation(a, b, weight, key_bias, value)
    output = a.new_empty((*rows, value.shape[-1]), dtype=dtype)
    lse = a.new_empty(rows, dtype=dtype)
    if packed is not None and packed.dtype != lse.dtype:
        packed = None
    cpu.forward(
        pair, array(a), array(b), array(weight), array(key_bias), array(value), array(start),
        array(stop), array(keep), scale, groups, dropout, 0 if seed is None else int(seed), period,
        array(packed), array(output), array(lse), torch.get_num_threads(),
    )  # fmt: skip
    return output, lse


def _backward(
    pair: str, a: Tensor, b: Tensor, weight: Maybe, key_bias: Maybe, value: Tensor,
    start: Maybe, stop: Maybe, keep: Maybe, seed: Maybe,
    output: Tensor, lse: Tensor, d_output: Tensor, d_lse: Tensor,
    scale: float, groups: int, dropout: float, period: int, lead: list[int],
) -> tuple[Tensor, ...]:  # fmt: skip
    output, lse, d_lse = output.contiguous(), lse.contiguous(), d_lse.contiguous()
    inputs = a, b, weight, key_bias, value
    made = [lse.new_empty(0 if x is None else x.shape) for x in inputs]
    da, db, d_weight, d_key_bias, d_value = made
    cpu.backward(
        pair, array(a), array(b), array(weight), array(key_bias), array(value), array(start),
        array(stop), array(keep), scale, groups, dropout, 0 if seed is None else int(seed), period,
        array(output), array(lse), array(d_output), array(d_lse), array(da), array(db),
        None if weight is None else array(d_weight),
        None if key_bias is None else array(d_key_bias), array(d_value), torch.get_num_threads(),
    )  # fmt: skip
    return tuple(d if x is None else d.to(x.dtype) for x, d in zip(inputs, made, strict=True))


def _weights(
    pair: str, a: Tensor, b: Tensor, weight: Maybe, key_bias: Maybe,
    start: Maybe, stop: Maybe, keep: Maybe, lse: Tensor, scale: float, groups: int,
) -> Tensor:  # fmt: skip
    output = lse.new_empty((*lse.shape, b.shape[-2]))
    cpu.weights(
        pair, array(a), array(b), array(weight), array(key_bias), array(start), array(stop),
        array(keep), scale, groups, array(lse.contiguous()), array(output),
        torch.get_num_threads(),
    )  # fmt: skip
    return output


# Without values


def _fake_forward(pair: str, a: Tensor, b: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    weight, key_bias, value, *_, lead = rest
    rows = (*lead, a.shape[-2])
    dtype = accumulation(a, b, weight, key_bias, value)
    output = a.new_empty((*rows, value.shape[-1]), dtype=dtype)
    return output, a.new_empty(rows, dtype=dtype)


def _fake_backward(pair: str, a: Tensor, b: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    lse: Tensor = rest[8]
    inputs = a, b, *rest[:3]
    return tuple(lse.new_empty(0) if x is None else x.new_empty(x.shape) for x in inputs)


def _fake_weights(pair: str, a: Tensor, b: Tensor, *rest: Any) -> Tensor:
    lse: Tensor = rest[5]
    return lse.new_empty((*lse.shape, b.shape[-2]))


# Batched by vmap: one more leading dimension


def _front(x: Maybe, at: int | None, n: int, rank: int, own: bool = False) -> Maybe:
    """x with the batched dimension before `rank` others; made up if it must be x's own."""
    if x is None or (at is None and not own):
        return x
    x = x.expand(n, *x.shape) if at is None else x.movedim(at, 0)
    return x.reshape(n, *(1,) * (rank - x.dim() + 1), *x.shape[1:])


def _loop(call: Callable[..., Any], n: int, dims: tuple[Any, ...], args: tuple[Any, ...]) -> Any:
    """One call for each entry of the batch."""

    def entry(i: int) -> list[Any]:
        pairs = zip(args, dims, strict=True)
        return [x.select(at, i) if isinstance(at, int) else x for x, at in pairs]

    each = [call(*entry(i)) for i in range(n)]
    stacked = tuple(torch.stack(xs) for xs in zip(*each, strict=True))
    return stacked, (0,) * len(stacked)


def _batched_forward(info: Any, dims: tuple[Any, ...], *args: Any) -> Any:
    pair, *tensors, seed, packed = args[:11]
    n, lead = info.batch_size, args[-1]
    if dims[9] is not None:  # the seeds differ
        return _loop(forward, n, dims, args)
    ranks = [len(lead) + own for own in (2, 2, 1, 1, 2, 1, 1, 2)]
    moved = [_front(x, at, n, r) for x, at, r in zip(tensors, dims[1:9], ranks, strict=True)]
    packed = _front(packed, dims[10], n, len(lead) + 2)
    return forward(pair, *moved, seed, packed, *args[11:15], [n, *lead]), (0, 0)


def _batched_backward(info: Any, dims: tuple[Any, ...], *args: Any) -> Any:
    pair, *tensors, seed, output, lse, d_output, d_lse = args[:14]
    n, lead = info.batch_size, args[-1]
    if dims[9] is not None:
        return _loop(backward, n, dims, args)
    inputs, mask, results = tensors[:5], tensors[5:], [output, lse, d_output, d_lse]
    # Each entry of the batch has gradients of its own, whether or not the input has.
    ranks = [len(lead) + own for own in (2, 2, 1, 1, 2)]
    own = [_front(x, at, n, r, True) for x, at, r in zip(inputs, dims[1:6], ranks, strict=True)]
    ranks = [len(lead) + own for own in (1, 1, 2)]
    mask = [_front(x, at, n, r) for x, at, r in zip(mask, dims[6:9], ranks, strict=True)]
    results = [_front(x, at, n, 0, True) for x, at in zip(results, dims[10:14], strict=True)]
    found = backward(pair, *own, *mask, seed, *results, *args[14:18], [n, *lead])
    alone = [x if at is None else x.select(at, 0) for x, at in zip(inputs, dims[1:6], strict=True)]
    return tuple(
        d.new_empty(n, 0) if x is None else d.reshape(n, *x.shape)
        for x, d in zip(alone, found, strict=True)
    ), (0,) * 5


def _batched_weights(info: Any, dims: tuple[Any, ...], *args: Any) -> Any:
    pair, *tensors, lse = args[:9]
    n = info.batch_size
    lse = lse.expand(n, *lse.shape) if dims[8] is None else lse.movedim(dims[8], 0)
    ranks = [lse.dim() - 2 + own for own in (2, 2, 1, 1, 1, 1, 2)]
    moved = [_front(x, at, n, r) for x, at, r in zip(tensors, dims[1:8], ranks, strict=True)]
    return weights(pair, *moved, lse, *args[9:]), 0


forward = _operator(
    "forward",
    f"({FACTORS}, Tensor value, {MASK}, Tensor? seed, Tensor? packed, {SETTINGS})"
    " -> (Tensor output, Tensor lse)",
    _forward,
    _fake_forward,
    _batched_forward,
)
backward = _operator(
    "backward",
    f"({FACTORS}, Tensor value, {MASK}, Tensor? seed, Tensor output, Tensor lse, Tensor d_output, "
    f"Tensor d_lse, {SETTINGS}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    _backward,
    _fake_backward,
    _batched_backward,
)
weights = _operator(
    "weights",
    f"({FACTORS}, {MASK}, Tensor lse, float scale, SymInt groups) -> Tensor",
    _weights,
    _fake_weights,
    _batched_weights,
)
