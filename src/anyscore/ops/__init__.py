"""The few array operations that the mathematics needs, one small file per framework.

`find(*tensors)` gives the namespace of the framework that the tensors belong to, found by their
type and imported on demand: NumPy code never imports PyTorch. Arithmetic, comparisons, `.shape` and
indexing with `None` and `...` are common to all frameworks and used as they are; the rest is `Ops`.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias, cast

Array: TypeAlias = Any
"""A tensor of any supported framework."""

FRAMEWORKS = {
    "numpy": "NumPy",
    "torch": "PyTorch",
    "jax": "JAX",
    "tensorflow": "TensorFlow",
    "mxnet": "MXNet",
}
"""Module in which a framework's tensor types are defined, which names its files here → its name."""
_ALSO = {"jaxlib": "jax"}


class Ops(Protocol):
    """What a framework's file provides. Axes may be negative; dtypes are names ("float32")."""

    __name__: str

    def is_tracing(self) -> bool:
        """Whether shapes may be symbols now."""

    def index_dtype(self) -> str:
        """The dtype of positions and lengths: int64, or what the framework has of it."""

    def array(self, x: Any, like: Array) -> Array:
        """`x`, a number, list, NumPy array or tensor, as a tensor on the device of `like`."""

    def copy(self, x: Array) -> Array:
        """x in memory of its own, if x can be changed in place; with its graph."""

    def device(self, x: Array) -> Any:
        """Where x lies, as the framework names it; None where x fits any place."""

    def place(self, x: Array) -> Any:
        """All that `device` and `layout_problem` depend on beside the type of x; can be hashed."""

    def layout_problem(self, x: Array) -> str | None:
        """What x is instead of a plain dense array, and what to pass; None if x is one."""

    def shape(self, x: Array) -> tuple[int, ...]: ...
    def dtype(self, x: Array) -> str: ...
    def astype(self, x: Array, dtype: str) -> Array: ...
    def arange(self, n: int, like: Array) -> Array:
        """0 … n−1 in the index dtype, on the device of `like`."""

    def reshape(self, x: Array, shape: tuple[int, ...]) -> Array: ...
    def broadcast_to(self, x: Array, shape: tuple[int, ...]) -> Array: ...
    def transpose(self, x: Array) -> Array:
        """The last two axes exchanged."""

    def swapaxes(self, x: Array, one: int, other: int) -> Array: ...

    def stack(self, xs: list[Array], axis: int) -> Array: ...
    def concat(self, xs: list[Array], axis: int) -> Array: ...
    def where(self, condition: Array, x: Any, y: Any) -> Array: ...
    def logical_and(self, x: Array, y: Array) -> Array: ...
    def logical_not(self, x: Array) -> Array: ...
    def isfinite(self, x: Array) -> Array: ...
    def exp(self, x: Array) -> Array: ...
    def log(self, x: Array) -> Array: ...
    def tanh(self, x: Array) -> Array: ...
    def sqrt(self, x: Array) -> Array: ...
    def abs(self, x: Array) -> Array:
        """Its gradient at 0 is 0."""

    def ceil(self, x: Array) -> Array: ...
    def minimum(self, x: Array, y: Any) -> Array: ...
    def maximum(self, x: Array, y: Any) -> Array: ...
    def clip(self, x: Array, low: int, high: int) -> Array: ...
    def sum(self, x: Array, axis: int, keepdims: bool = False) -> Array: ...
    def max(self, x: Array, axis: int, keepdims: bool = False) -> Array: ...
    def any(self, x: Array, axis: int, keepdims: bool = False) -> Array: ...
    def matmul(self, x: Array, y: Array) -> Array: ...
    def cumsum(self, x: Array) -> Array:
        """Sums along the last axis; of booleans, in the index dtype."""

    def count(self, x: Array, n: int) -> Array:
        """x (..., m) in [0, n) → (..., n), how often each number occurs in the last axis.

        Both are of the index dtype.
        """

    def take(self, x: Array, index: Array) -> Array:
        """x (..., n) and index (..., m) → x[index] along the last axis; the others broadcast."""

    def stop_gradient(self, x: Array) -> Array: ...
    def seed(self, x: Any, like: Array) -> Array:
        """x, an integer or an integer tensor (), modulo 2⁶⁴, in a form that `words` takes."""

    def words(self, x: Array) -> tuple[Array, Array]:
        """Low and high 32-bit words of integers, in the dtype that the framework has for words."""

    def add_word(self, x: Array, n: int) -> Array:
        """(x + n) mod 2³² of words x."""

    def multiply_words(self, x: Array, factor: int) -> tuple[Array, Array]:
        """High and low words of x·factor, of words x."""

    def masked_scores(self, a: Array, b: Array, keep: Array) -> Array:
        """`masked.scores`, with derivatives that keep its promise."""

    def masked_sum(self, p: Array, v: Array, keep: Array) -> Array:
        """`masked.sum`, with derivatives that keep its promise."""


DTYPES = "float32", "float64", "bfloat16", "float16"
"""What queries, keys and values may be."""
PLAIN = bool, int, float, list, tuple
"""What is not a tensor but stands for one where an array is expected."""


def accumulation(dtype: str) -> str:
    """The dtype that sums over this one are taken in: float64 stays, all else is float32."""
    return dtype if dtype == "float64" else "float32"


def framework(x: object) -> str | None:
    """The framework that a tensor belongs to, as a key of FRAMEWORKS; None for anything else."""
    # torch.compile cannot see the class of a Parameter, nor the bases of a list.
    if hasattr(x, "__torch_function__"):
        return "torch"
    if x is None or isinstance(x, PLAIN):
        return None
    roots = (cls.__module__.partition(".")[0] for cls in type(x).__mro__)
    return next((name for name in (_ALSO.get(x, x) for x in roots) if name in FRAMEWORKS), None)


def load(name: str) -> Ops:
    """The operations of one framework, by its key in FRAMEWORKS."""
    # Plain import statements: torch.compile follows them, but not importlib.
    if name == "torch":
        from anyscore.ops import torch as ops
    elif name == "jax":
        from anyscore.ops import jax as ops  # type: ignore[no-redef]
    elif name == "tensorflow":
        from anyscore.ops import tensorflow as ops  # type: ignore[no-redef]
    elif name == "mxnet":
        from anyscore.ops import mxnet as ops  # type: ignore[no-redef]
    else:
        from anyscore.ops import numpy as ops  # type: ignore[no-redef]
    return cast(Ops, ops)
