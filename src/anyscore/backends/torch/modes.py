"""The modes in which PyTorch may run a call: recording, transforming, compiling, tracing."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import _C, Tensor, nn
from torch.autograd import forward_ad
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from anyscore.ops.torch_masked import is_forward_mode, is_functionalizing, is_jit_tracing

__all__ = [
    "apply",
    "check_reverse_mode",
    "differentiable",
    "is_compiling",
    "is_forward_mode",
    "is_plain",
    "is_transformed",
    "is_transforming",
    "is_wrapper",
    "may_repeat",
    "must_dispatch",
    "wants_gradients",
    "why_not",
    "without_autocast",
]


is_compiling = torch.compiler.is_compiling


def is_transforming() -> bool:
    """Return whether a function transform (grad, vmap, …) is active."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def is_transformed(x: Tensor) -> bool:
    """Return whether x belongs to a function transform or a trace, and must not outlive it."""
    return is_jit_tracing() or bool(torch._C._functorch.is_functorch_wrapped_tensor(x))


def why_not() -> str | None:
    """Return why the operators cannot be called in the current modes, None if they can."""
    if is_forward_mode():
        return "forward mode does not reach into it"
    if is_compiling():
        return "ONNX cannot hold it" if torch.onnx.is_in_onnx_export() else None
    if is_jit_tracing():
        return "torch.jit.trace cannot hold it"
    return "functionalize does not reach into it" if is_functionalizing() else None


def is_plain(x: Tensor) -> bool:
    """Return whether x is a tensor of no subclass."""
    return type(x) in (Tensor, nn.Parameter)


def is_wrapper(x: Tensor) -> bool:
    """Return whether x wraps other tensors, distributed or nested, without memory of its own."""
    return not is_plain(x) and is_traceable_wrapper_subclass(x)


_saving_hooks: Any = getattr(  # unknown: assume hooks
    torch._C._autograd, "_top_saved_tensors_default_hooks", lambda _: True
)


def _plain_keys() -> set[int]:
    with torch.inference_mode():
        of_inference = torch.empty(0)
    return {torch._C._dispatch_keys(x).raw_repr() for x in (torch.empty(0), of_inference)}


_PLAIN = _plain_keys()


def must_dispatch(*args: Any) -> bool:
    """Return whether the dispatcher must see an operator call.

    Traces, profiles, subclasses, and lazy zeros or signs need the dispatcher.
    """
    return is_compiling() or _is_seen(args)


def _is_seen(args: Iterable[Any] = ()) -> bool:
    """Return `must_dispatch` outside of compilers."""
    if (
        torch._C._functorch.peek_interpreter_stack() is not None
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._autograd._profiler_enabled()
        or is_jit_tracing()
    ):
        return True
    keys = torch._C._dispatch_keys
    for x in args:  # a generator would take 1 µs more per call
        if x is not None and isinstance(x, Tensor) and keys(x).raw_repr() not in _PLAIN:
            return True
    return False


def may_repeat(query: Tensor) -> bool:
    """Return whether no compiler, transform, trace or subclass observes a call of this query.

    Nor do hooks of saved tensors: a checkpoint counts them, and lowering a score saves some.
    """
    return (  # spelled out: a call of each of the functions above takes 0.1 µs
        type(query) is Tensor
        and not is_compiling()
        and _C._functorch.peek_interpreter_stack() is None
        and not _C._len_torch_dispatch_stack()
        and not _C._autograd._profiler_enabled()
        and _C._get_tracing_state() is None
        and not _C._is_any_autocast_enabled()
        and forward_ad._current_level < 0
        and not query.is_nested
        and _saving_hooks(True) is None
    )


def wants_gradients(
    a: Tensor, b: Tensor, value: Tensor | None, weight: Tensor | None, key_bias: Tensor | None
) -> bool | None:
    """Return whether a call of these tensors needs gradients, outside of compilers and transforms.

    None if memory alone does not tell, for a lazy negation.
    """
    if a.is_neg() or b.is_neg() or (value is not None and value.is_neg()):
        return None
    if (weight is not None and weight.is_neg()) or (key_bias is not None and key_bias.is_neg()):
        return None
    return torch.is_grad_enabled() and (
        a.requires_grad
        or b.requires_grad
        or (value is not None and value.requires_grad)
        or (weight is not None and weight.requires_grad)
        or (key_bias is not None and key_bias.requires_grad)
    )


def without_autocast(device: str) -> AbstractContextManager[Any]:
    """Return a context without autocast on a type of devices; entering it costs 2 µs if needed."""
    if torch.is_autocast_enabled(device):
        return torch.autocast(device, enabled=False)
    return nullcontext()


def differentiable(tensors: Iterable[Tensor]) -> bool:
    """Return whether a derivative with respect to any of these tensors may be computed."""
    if torch.is_grad_enabled():
        for x in tensors:
            if x.requires_grad:
                return True
    return is_compiling() or is_transforming() or is_forward_mode() or is_jit_tracing()


def check_reverse_mode(name: str) -> None:
    """Check that a function without a `jvp` is not differentiated in forward mode.

    Raises:
        NotImplementedError: forward mode is active.
    """
    if is_forward_mode():
        raise NotImplementedError(
            f"{name} has no derivatives in forward mode: take them by backward() or "
            "torch.autograd.grad."
        )


def _without_duplicates(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return arguments with a view for each repeated tensor: the compiler rejects duplicates."""
    found: list[Any] = []
    for x in args:
        again = isinstance(x, Tensor) and any(x is y for y in found)
        found.append(x.view_as(x) if again else x)
    return tuple(found)


def apply(function: type[torch.autograd.Function], *args: Any, tensors: slice = slice(None)) -> Any:
    """Return `function.apply(*args)`, without its work for transforms, 60 µs per call.

    tensors: the slice of the arguments that are tensors.
    """
    if is_compiling():
        args = _without_duplicates(args)
    if is_compiling() or is_transforming():
        return function.apply(*args)  # type: ignore[no-untyped-call]
    if must_dispatch(*args[tensors]):
        args = torch._functorch.utils.unwrap_dead_wrappers(args)
    return super(torch.autograd.Function, function).apply(*args)  # type: ignore[misc]
