"""The few array operations that the mathematics needs, one small file per framework.

`find(*tensors)` gives the namespace of the framework that the tensors belong to, found by their
type and imported on demand: NumPy code never imports PyTorch. Arithmetic, comparisons, `.shape` and
indexing with `None` and `...` are common to all frameworks and used as they are; the rest is `Ops`.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
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
    """The operations of one framework. Axes may be negative; dtypes are names ("float32")."""

    __name__: str

    def is_tracing(self) -> bool:
        """Return whether shapes may be symbols now."""

    def index_dtype(self) -> str:
        """Return the dtype of positions and lengths: int64, or what the framework has of it."""

    def array(self, x: Any, like: Array) -> Array:
        """Return x, a number, list, NumPy array or tensor, as a tensor on the device of `like`."""

    def copy(self, x: Array) -> Array:
        """Return x in memory of its own, if x can be changed in place; with its graph."""

    def device(self, x: Array) -> Any:
        """Return the device of x, as the framework names it; None where x fits any device."""

    def placement(self, x: Array) -> Any:
        """Return what `device` and `layout_problem` depend on beside the type of x, hashable."""

    def layout_problem(self, x: Array) -> str | None:
        """Return what x is instead of a plain dense array, and what to pass; None if x is one."""

    def shape(self, x: Array) -> tuple[int, ...]:
        """Return the shape of x; where lengths are unknown, with symbols."""

    def dtype(self, x: Array) -> str:
        """Return the name of the dtype of x."""

    def astype(self, x: Array, dtype: str) -> Array:
        """Return x in a dtype; x itself if it has that dtype."""

    def tensor(self, x: Array, like: Array) -> Array:
        """Return an array that `array` or `arange` made as one that meets tensors like `like`."""

    def arange(self, n: int, like: Array) -> Array:
        """Return 0 … n−1 in the index dtype, on the device of `like`."""

    def reshape(self, x: Array, shape: tuple[int, ...]) -> Array:
        """Return x in another shape of as many entries."""

    def broadcast_to(self, x: Array, shape: tuple[int, ...]) -> Array:
        """Return x broadcast to a shape; the result is not to be written to."""

    def transpose(self, x: Array) -> Array:
        """Return x with the last two axes exchanged."""

    def swapaxes(self, x: Array, one: int, other: int) -> Array:
        """Return x with two axes exchanged."""

    def stack(self, xs: list[Array], axis: int) -> Array:
        """Join arrays of one shape along a new axis."""

    def concat(self, xs: list[Array], axis: int) -> Array:
        """Join arrays along an axis that they have."""

    def where(self, condition: Array, x: Any, y: Any) -> Array:
        """Return x where a condition holds and y elsewhere; both arrays or numbers."""

    def logical_and(self, x: Array, y: Array) -> Array:
        """Return the conjunction of booleans."""

    def logical_not(self, x: Array) -> Array:
        """Return the negation of booleans."""

    def isfinite(self, x: Array) -> Array:
        """Return where x is neither NaN nor infinite."""

    def exp(self, x: Array) -> Array:
        """Return e^x."""

    def log(self, x: Array) -> Array:
        """Return the natural logarithm of x."""

    def expm1(self, x: Array) -> Array:
        """Return e^x − 1, accurate near 0."""

    def log1p(self, x: Array) -> Array:
        """Return the natural logarithm of 1 + x, accurate near 0."""

    def sin(self, x: Array) -> Array:
        """Return the sine of x."""

    def cos(self, x: Array) -> Array:
        """Return the cosine of x."""

    def erf(self, x: Array) -> Array:
        """Return the error function of x."""

    def tanh(self, x: Array) -> Array:
        """Return the hyperbolic tangent of x."""

    def sqrt(self, x: Array) -> Array:
        """Return the square root of x."""

    def abs(self, x: Array) -> Array:
        """Return |x|, of gradient 0 at 0."""

    def ceil(self, x: Array) -> Array:
        """Return ⌈x⌉, in the dtype of x."""

    def minimum(self, x: Array, y: Any) -> Array:
        """Return the lesser of x and y, an array or a number."""

    def maximum(self, x: Array, y: Any) -> Array:
        """Return the greater of x and y, an array or a number."""

    def clip(self, x: Array, low: int, high: int) -> Array:
        """Return x moved into [low, high]."""

    def sum(self, x: Array, axis: int, keepdims: bool = False) -> Array:
        """Return the sum of x over an axis."""

    def add_pair(self, x: Array) -> Array:
        """Return x[..., 0, :] + x[..., 1, :]."""

    def max(self, x: Array, axis: int, keepdims: bool = False) -> Array:
        """Return the maximum of x over an axis."""

    def any(self, x: Array, axis: int, keepdims: bool = False) -> Array:
        """Return whether any of booleans x holds along an axis."""

    def matmul(self, x: Array, y: Array) -> Array:
        """Return the product of matrices; leading dimensions broadcast."""

    def cumsum(self, x: Array) -> Array:
        """Sums along the last axis; of booleans, in the index dtype."""

    def count(self, x: Array, n: int) -> Array:
        """x (..., m) in [0, n) → (..., n), how often each number occurs in the last axis.

        Both are of the index dtype.
        """

    def take(self, x: Array, index: Array) -> Array:
        """x (..., n) and index (..., m) → x[index] along the last axis; the others broadcast."""

    def pick(self, x: Array, places: list[int], axis: int) -> Array:
        """Return x at places along an axis, in their order."""

    def take_rows(self, x: Array, index: Array) -> Array:
        """Return rows x[..., index, :] of x (..., n, d), for index (m,): (..., m, d)."""

    def argsort(self, x: Array) -> Array:
        """Return the order that sorts integers (n,); of equal ones the first comes first."""

    def segment_sum(self, x: Array, index: Array, n: int) -> Array:
        """Sums (..., n, d) of the rows of x (..., m, d) that have each number of index (m,)."""

    def segment_max(self, x: Array, index: Array, n: int) -> Array:
        """The largest (..., n) of the numbers x (..., m) that have each number of index (m,).

        −∞ where none has; without derivatives.
        """

    def outside_inference(self) -> AbstractContextManager[Any]:
        """Let what is made within be kept for later calls, which may record gradients."""

    def stop_gradient(self, x: Array) -> Array:
        """Return x without its derivatives."""

    def seed(self, x: Any, like: Array) -> Array:
        """x, an integer or an integer tensor (), modulo 2⁶⁴, in a form that `words` takes."""

    def words(self, x: Array) -> tuple[Array, Array]:
        """Low and high 32-bit words of integers, in the dtype that the framework has for words."""

    def add_word(self, x: Array, n: int) -> Array:
        """(x + n) mod 2³² of words x."""

    def multiply_words(self, x: Array, factor: int) -> tuple[Array, Array]:
        """High and low words of x·factor, of words x."""

    def masked_scores(self, a: Array, b: Array, mask: Array) -> Array:
        """Return `masked.scores`, with derivatives that read nothing masked either."""

    def masked_sum(self, p: Array, v: Array, mask: Array) -> Array:
        """Return `masked.sum`, with derivatives that read nothing masked either."""


DTYPES = "float32", "float64", "bfloat16", "float16"
"""What queries, keys and values may be."""
PLAIN = bool, int, float, list, tuple
"""What is not a tensor but stands for one where an array is expected."""


def accumulation(dtype: str) -> str:
    """The dtype that sums over this one are taken in: float64 stays, all else is float32."""
    return dtype if dtype == "float64" else "float32"


def acc_dtype(xp: Ops, *xs: Array | None) -> str:
    """Return the dtype that sums over these arrays are taken in, None left out."""
    wide = "float64" in [xp.dtype(x) for x in xs if x is not None]
    return "float64" if wide else "float32"


def accumulated(xp: Ops, x: Array) -> Array:
    """Return x in the dtype that sums over x are taken in."""
    return xp.astype(x, accumulation(xp.dtype(x)))


def framework(x: object) -> str | None:
    """The framework that a tensor belongs to, as a key of FRAMEWORKS; None for anything else."""
    # torch.compile cannot see the class of a Parameter, nor the bases of a list.
    if hasattr(x, "__torch_function__"):
        return "torch"
    if x is None or isinstance(x, PLAIN):
        return None
    if type(x).__module__ == "numpy":  # asked before all bases are, which takes 1 µs
        return "numpy"
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
