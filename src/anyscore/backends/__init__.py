"""Backends: kernels made differentiable for each framework, and the reference.

    reference                  the definition in plain operations
    record                     a task as the record of operands that kernels take, or why it cannot
    numpy, mxnet               whole backends of these frameworks
    torch, jax, tensorflow     packages with the backends of these
    numpy_core                 the core on NumPy arrays, for frameworks that lend tensors as such
    ring                       attention to keys on several ranks, block by block
    repeated                   calls of the shapes of an earlier one go to the core unchecked

Imports `kernels` and lower layers. Start with `record` and `numpy`.
"""

from __future__ import annotations

from anyscore.backends.repeated import REPEATED, RepeatedCalls
from anyscore.call.backend import Backend
from anyscore.ops import Array


def load(name: str) -> Backend:
    """Return the backend of a framework, by its key in `anyscore.ops.FRAMEWORKS`."""
    # Plain import statements: torch.compile follows them, but not importlib.
    if name == "torch":
        from anyscore.backends.torch.backend import BACKEND
    elif name == "jax":
        from anyscore.backends.jax.backend import BACKEND  # type: ignore[assignment]
    elif name == "tensorflow":
        from anyscore.backends.tensorflow.backend import BACKEND  # type: ignore[assignment]
    elif name == "mxnet":
        from anyscore.backends.mxnet import BACKEND  # type: ignore[assignment]
    else:
        from anyscore.backends.numpy import BACKEND  # type: ignore[assignment]
    return BACKEND


def repeats(x: Array) -> RepeatedCalls | None:
    """Return the repeated calls of functions with x; None if x's type, or a mode, allows none."""
    if hasattr(x, "__torch_function__"):  # a compiler would guard the growing REPEATED
        import anyscore.backends.torch.backend

        of_torch = anyscore.backends.torch.backend
        return of_torch.REPEATED_CALLS if of_torch.may_repeat(x) else None
    return REPEATED.get(type(x))
