"""The kernels as PyTorch operators `anyscore::forward_v3` and `::backward_v3`.

On the CPU they run the C++ core, on a GPU the kernels that `triton` registers. Operators take flat
arguments. Only this module converts between them and the records of `anyscore.call.operands`.

Operators support traced tensors, vmap and tensors without values; derivatives are in `autograd`.
The output has the dtype of sums, float32 or better, for the backward. For a result of None in
records the operator returns an empty tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias, get_type_hints

import torch
from torch import Tensor

from anyscore import ops
from anyscore.backends.torch.modes import must_dispatch
from anyscore.call.operands import (
    N_BACKWARD,
    N_DIFFERENTIABLE,
    TRAILING_NDIM,
    Operands,
    Results,
    Settings,
)
from anyscore.kernels import cpu

_xp = ops.load("torch")
Maybe: TypeAlias = Tensor | None

VERSION = 3
"""The version of arguments and results. Caches of compiled code and exported programs identify an
operator by its name alone, so a changed shape or meaning needs a new version.
"""

_TYPES = {float: "float", int: "SymInt", bool: "bool", str: "str", tuple[int, ...]: "SymInt[]"}
_SAVED_AS = {  # the names in exported programs
    "dropout_period": "period",
    "bias_is_diagonal": "diagonal",
    "bias_after_outer": "after",
}
_SETTINGS = ", ".join(
    f"{_TYPES[type_]} {_SAVED_AS.get(name, name)}"
    + (f"={Settings._field_defaults[name]!r}" if name in Settings._field_defaults else "")
    for name, type_ in get_type_hints(Settings).items()
    if name != "pair"
)
_SCORES = "str pair, Tensor a, Tensor b, Tensor? weight, Tensor? key_bias"
_MASK = "Tensor? start, Tensor? stop, Tensor? keep"
_EDGES = ", ".join(f"Tensor? {name}" for name in ("rowptr", "col", "colptr", "order", "row"))
_FACTORS = f"{_SCORES}, Tensor? value, Tensor? bias, Tensor? c"
_X = f"{_FACTORS}, {_MASK}, Tensor? seed, {_EDGES}, Tensor? origin"

# OpenMP is found through PyTorch's library: the process may hold other copies of OpenMP.
cpu.borrow_threads(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))

library = torch.library.Library("anyscore", "FRAGMENT")  # type: ignore[no-untyped-call]

# From PyTorch 2.10 on, the core takes tensors directly.
_LENDS_MEMORY = hasattr(Tensor, "__dlpack_c_exchange_api__")


def acc_dtype(*tensors: Maybe) -> torch.dtype:
    """Return `ops.acc_dtype` as a `torch.dtype`."""
    return torch.float64 if ops.acc_dtype(_xp, *tensors) == "float64" else torch.float32


def array(x: Maybe) -> Any:
    """Return a tensor's memory for the core, bfloat16 as int16."""
    if _LENDS_MEMORY or x is None:
        return x
    if x.requires_grad:
        x = x.detach()
    return (x.view(torch.int16) if x.dtype == torch.bfloat16 else x).numpy()


def _arrays(x: Operands) -> Operands:
    """Return operands for the core, with the seed of dropout as an integer."""
    seed = None if x.seed is None else int(x.seed)
    if _LENDS_MEMORY:
        return x if seed is None else x._replace(seed=seed)
    return x._replace(seed=None).map(array)._replace(seed=seed)


def _borrow(x: Results) -> Results:
    """Return results for the core."""
    return x if _LENDS_MEMORY else Results(*map(array, x))


# The core


def _forward(x: Operands, s: Settings) -> Results:
    made = _fake_forward(x, s)
    if x.packed is not None and x.packed.dtype != made.stats.dtype:
        x = x._replace(packed=None)
    cpu.forward(_arrays(x), s, _borrow(made), torch.get_num_threads())
    return made


def _wide_backward(
    x: Operands, s: Settings, results: Results, upstream: Results
) -> tuple[Maybe, ...]:
    output, stats, scores, d_stats, d_scores = (
        y if y is None else y.contiguous() for y in (*results, *upstream[1:])
    )
    made = [None if y is None else results.stats.new_empty(y.shape) for y in x[:N_DIFFERENTIABLE]]
    results = Results(output, stats, scores)
    upstream = Results(upstream.output, d_stats, d_scores)
    to = Operands(*map(array, made))
    cpu.backward(_arrays(x), s, _borrow(results), _borrow(upstream), to, torch.get_num_threads())
    return tuple(made)


def _backward(x: Operands, s: Settings, results: Results, upstream: Results) -> tuple[Tensor, ...]:
    return narrow(x, results, _wide_backward(x, s, results, upstream))


def narrow(x: Operands, results: Results, wide: tuple[Maybe, ...]) -> tuple[Tensor, ...]:
    """Return gradients in the dtypes of their operands; an empty tensor for None."""
    pairs = zip(wide, x[:N_DIFFERENTIABLE], strict=True)
    return tuple(
        results.stats.new_empty(0) if d is None or y is None else d.to(y.dtype) for d, y in pairs
    )


WIDE: dict[str, Callable[..., tuple[Maybe, ...]]] = {"cpu": _wide_backward}
"""Backwards whose gradients have the dtype of sums, by type of device."""


def wide_backward(
    x: Operands, s: Settings, results: Results, upstream: Results
) -> tuple[Maybe, ...]:
    """Return the gradients of a call in the dtype of sums, where nothing observes the call.

    Traces and profiles see the operator, and its gradients in the dtypes of the operands.
    """
    tensors = (*x, *results, *upstream)
    kernel = WIDE.get(x.a.device.type)
    if kernel is None or must_dispatch(*tensors):
        made: tuple[Maybe, ...] = backward(x, s, results, upstream)
        return made
    return kernel(x, s, results, upstream)


# Without values


def _fake_forward(x: Operands, s: Settings) -> Results:
    dtype, empty = acc_dtype(*x[:N_DIFFERENTIABLE]), x.a.new_empty
    made = (y if y is None else empty(y, dtype=dtype) for y in x.result_shapes(s))
    return Results(*made)


def _fake_backward(
    x: Operands, s: Settings, results: Results, upstream: Results
) -> tuple[Tensor, ...]:
    empty = results.stats.new_empty
    return tuple(empty(0) if y is None else y.new_empty(y.shape) for y in x[:N_DIFFERENTIABLE])


def _as_tuple(results: Results) -> tuple[Tensor, ...]:
    """Return results as a tuple of tensors, empty ones for None."""
    return tuple(results.stats.new_empty(0) if y is None else y for y in results)


# Batched by vmap: one more leading dimension


def _front(x: Maybe, at: int | None, n: int, rank: int, own: bool = False) -> Maybe:
    """Return x as (batched, *rank dimensions); own: expand x if it is not batched."""
    if x is None or (at is None and not own):
        return x
    x = x.expand(n, *x.shape) if at is None else x.movedim(at, 0)
    return x.reshape(n, *(1,) * (rank - x.dim() + 1), *x.shape[1:])


def _moved(x: Operands, at: Operands, n: int, lead: int, own: bool = False) -> Operands:
    """Return operands with one more than `lead` leading dimensions; own: all factors have it."""
    each = enumerate(zip(x, at, TRAILING_NDIM, strict=True))
    return Operands(
        *(
            _front(y, where, n, lead + rank, own and i < N_DIFFERENTIABLE)
            for i, (y, where, rank) in each
        )
    )


def _loop(call: Callable[..., Any], n: int, dims: tuple[Any, ...], args: tuple[Any, ...]) -> Any:
    """Return the stacked results of one operator call per batch entry."""

    def entry(i: int) -> list[Any]:
        pairs = zip(args, dims, strict=True)
        return [x.select(at, i) if isinstance(at, int) else x for x, at in pairs]

    each = [call(*entry(i)) for i in range(n)]
    stacked = tuple(torch.stack(xs) for xs in zip(*each, strict=True))
    return stacked, (0,) * len(stacked)


def _batched_forward(info: Any, dims: tuple[Any, ...], *args: Any) -> Any:
    n, (x, s), (at, _) = info.batch_size, forward.record(*args), forward.record(*dims)
    if not at.seed is at.origin is None:  # seeds or origins differ between entries
        return _loop(forward.operator, n, dims, args)
    results = forward(_moved(x, at, n, len(s.lead)), s._replace(lead=[n, *s.lead]))
    found = (y.new_empty(n, 0) if y.dim() == 1 and not y.numel() else y for y in _as_tuple(results))
    return tuple(found), (0,) * len(results)


def _batched_backward(info: Any, dims: tuple[Any, ...], *args: Any) -> Any:
    n, (x, s, results, upstream) = info.batch_size, backward.record(*args)
    at, _, results_at, upstream_at = backward.record(*dims)
    if not at.seed is at.origin is None:
        return _loop(backward.operator, n, dims, args)
    # Gradients differ between batch entries, even of an input without the batch dimension.
    moved = _moved(x, at, n, len(s.lead), own=True)
    results, upstream = (
        Results(*(_front(y, where, n, 0, True) for y, where in zip(ys, wheres, strict=True)))
        for ys, wheres in ((results, results_at), (upstream, upstream_at))
    )
    found = backward(moved, s._replace(lead=[n, *s.lead]), results, upstream)
    pairs = zip(x[:N_DIFFERENTIABLE], at, strict=False)
    alone = [y if where is None else y.select(where, 0) for y, where in pairs]
    return tuple(
        d.new_empty(n, 0) if y is None else d.reshape(n, *y.shape)
        for y, d in zip(alone, found, strict=True)
    ), (0,) * N_DIFFERENTIABLE


# Records as flat arguments, and back


def _forward_record(pair: str, *args: Any) -> tuple[Operands, Settings]:
    return Operands(*args[: N_BACKWARD + 1]), Settings(pair, *args[N_BACKWARD + 1 :])


def _forward_args(x: Operands, s: Settings) -> tuple[Any, ...]:
    return s.pair, *x[: N_BACKWARD + 1], *s[1:]


def _backward_record(pair: str, *args: Any) -> tuple[Operands, Settings, Results, Results]:
    x, results = Operands(*args[:N_BACKWARD]), Results(*args[N_BACKWARD : N_BACKWARD + 3])
    upstream = Results(*args[N_BACKWARD + 3 : N_BACKWARD + 6])
    return x, Settings(pair, *args[N_BACKWARD + 6 :]), results, upstream


def _backward_args(
    x: Operands, s: Settings, results: Results, upstream: Results
) -> tuple[Any, ...]:
    return s.pair, *x[:N_BACKWARD], *results, *upstream, *s[1:]


def _results_of(found: tuple[Tensor, ...], x: Operands, s: Settings) -> Results:
    """Return results of the operator as a record."""
    output, stats, scores = found
    return Results(None if x.value is None else output, stats, scores if s.scores else None)


class _Operator:
    """A kernel, called with records, as an operator of PyTorch.

    args: function from records to the operator's arguments. record: its inverse. tensors: the slice
    of the arguments that are tensors. kernels: functions of records by device type. fake: function
    of records that returns results without values. batched: the vmap rule, a function of the
    arguments.
    """

    def __init__(self, name: str, signature: str, args: Any, record: Any) -> None:
        self.args, self.record = args, record
        self.registered = f"{name}_v{VERSION}"
        self.kernels: dict[str, Callable[..., Any]] = {}
        tags = (torch.Tag.pt2_compliant_tag,)
        library.define(self.registered + signature, tags=tags)  # type: ignore[no-untyped-call]
        # Not torch.library.custom_op, which costs 9 µs more per call.
        self.operator = getattr(torch.ops.anyscore, self.registered).default
        kinds = [str(argument.type) for argument in self.operator._schema.arguments]
        self.tensors = slice(1, 1 + sum("Tensor" in kind for kind in kinds))

    def implement(self, core: Any, fake: Any, batched: Any, unpack: Any) -> None:
        """Register the operator's functions; unpack: (results, *records) → their record."""
        self.unpack, full = unpack, f"anyscore::{self.registered}"
        self.run_on("cpu", core)
        torch.library.register_fake(full, self._of_args(fake), lib=library)
        torch.library.register_vmap(full, batched, lib=library)

    def run_on(self, device: str, kernel: Callable[..., Any], **options: Any) -> None:
        """Register a kernel, a function of records, for a type of device."""
        self.kernels[device] = kernel
        library.impl(self.registered, self._of_args(kernel), device.upper(), **options)  # type: ignore[no-untyped-call]

    def _of_args(self, kernel: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> tuple[Tensor, ...]:
            found = kernel(*self.record(*args))
            return _as_tuple(found) if isinstance(found, Results) else found

        return run

    def __call__(self, x: Operands, *rest: Any) -> Any:
        """Call the operator; skip the dispatcher, 10 µs, when nothing observes the call."""
        args = self.args(x, *rest)
        kernel = self.kernels.get("cpu" if x.a.is_cpu else x.a.device.type)
        if kernel is None or must_dispatch(*args[self.tensors]):
            return self.unpack(self.operator(*args), x, *rest)
        return kernel(x, *rest)


forward = _Operator(
    "forward",
    f"({_X}, Tensor? packed, {_SETTINGS}) -> (Tensor output, Tensor stats, Tensor scores)",
    _forward_args,
    _forward_record,
)
backward = _Operator(
    "backward",
    f"({_X}, Tensor? output, Tensor stats, Tensor? kept, "
    f"Tensor? d_output, Tensor? d_stats, Tensor? d_scores, {_SETTINGS})"
    f" -> ({', '.join(['Tensor'] * N_DIFFERENTIABLE)})",
    _backward_args,
    _backward_record,
)
forward.implement(_forward, _fake_forward, _batched_forward, _results_of)
backward.implement(_backward, _fake_backward, _batched_backward, lambda found, *_: found)
