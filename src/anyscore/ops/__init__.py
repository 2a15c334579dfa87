"""The few array operations that the mathematics needs, one small file per framework.

`load(framework(x))` returns the operations of a tensor's framework. `framework` looks at the type
alone, and `load` imports on demand: NumPy code never imports PyTorch. Arithmetic, comparisons,
`.shape` and indexing with `None` and `...` are common to all frameworks; `Ops` has the other
operations.
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
"""Top module of a framework's tensor types, also the name of its files here → the framework's
name.
"""
_ALSO = {"jaxlib": "jax"}


class Ops(Protocol):
    """The operations of one framework. Axes may be negative; dtypes are names ("float32")."""

    __name__: str

    def is_tracing(self) -> bool:
        """Return whether shapes may be symbols in this call."""

    def index_dtype(self) -> str:
        """Return the dtype of positions and lengths: int64, or int32 without int64."""

    def array(self, x: Any, like: Array) -> Array:
        """Return x, a number, list, NumPy array or tensor, as a tensor on the device of `like`."""

    def copy(self, x: Array) -> Array:
        """Return x in new memory, with its graph, if x can be changed in place; else x."""

    def device(self, x: Array) -> Any:
        """Return the framework's name for the device of x; None if x fits any device."""

    def placement(self, x: Array) -> Any:
        """Return a hashable; `device` and `layout_problem` depend on it and on the type of x."""

    def layout_problem(self, x: Array) -> str | None:
        """Return the layout of x with advice; None if x is a plain dense array."""

    def shape(self, x: Array) -> tuple[int, ...]:
        """Return the shape of x, with symbols for unknown lengths."""

    def dtype(self, x: Array) -> str:
        """Return the name of the dtype of x."""

    def astype(self, x: Array, dtype: str) -> Array:
        """Return x in a dtype; x itself if it has that dtype."""

    def tensor(self, x: Array, like: Array) -> Array:
        """Return a result of `array` or `arange` as an array that can be combined with `like`."""

    def arange(self, n: int, like: Array) -> Array:
        """Return 0 … n−1 in the index dtype, on the device of `like`."""

    def reshape(self, x: Array, shape: tuple[int, ...]) -> Array:
        """Return x in another shape with the same number of entries."""

    def broadcast_to(self, x: Array, shape: tuple[int, ...]) -> Array:
        """Return x broadcast to a shape; the result is not to be written to."""

    def transpose(self, x: Array) -> Array:
        """Return x with the last two axes exchanged."""

    def swapaxes(self, x: Array, one: int, other: int) -> Array:
        """Return x with two axes exchanged."""

    def stack(self, xs: list[Array], axis: int) -> Array:
        """Join arrays of one shape along a new axis."""

    def concat(self, xs: list[Array], axis: int) -> Array:
        """Join arrays along an existing axis."""

    def where(self, condition: Array, x: Any, y: Any) -> Array:
        """Return x where a condition holds, else y; x and y are arrays or numbers."""

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
        """Return x clamped to [low, high]."""

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
        """Return cumulative sums along the last axis; of booleans, in the index dtype."""

    def count(self, x: Array, n: int) -> Array:
        """Return the counts (..., n) of each number in [0, n) along the last axis of x (..., m).

        x and the counts are of the index dtype.
        """

    def take(self, x: Array, index: Array) -> Array:
        """Return x[index] along the last axis: x (..., n), index (..., m); others broadcast."""

    def index_select(self, x: Array, places: list[int], axis: int) -> Array:
        """Return x at the indices `places` along an axis, in their order."""

    def take_rows(self, x: Array, index: Array) -> Array:
        """Return rows x[..., index, :] of x (..., n, d), for index (m,): (..., m, d)."""

    def argsort(self, x: Array) -> Array:
        """Return the permutation that sorts integers (n,); the sort is stable."""

    def segment_sum(self, x: Array, index: Array, n: int) -> Array:
        """Return sums (..., n, d): row k sums the rows of x (..., m, d) where index (m,) is k."""

    def segment_max(self, x: Array, index: Array, n: int) -> Array:
        """Return maxima (..., n): entry k of the numbers x (..., m) where index (m,) is k.

        Entries without numbers are −∞. The result has no derivatives.
        """

    def outside_inference(self) -> AbstractContextManager[Any]:
        """Return a context for tensors that later calls keep, and that may record gradients."""

    def stop_gradient(self, x: Array) -> Array:
        """Return x without its derivatives."""

    def seed(self, x: Any, like: Array) -> Array:
        """Return x, an integer or an integer tensor (), modulo 2⁶⁴, in a form for `words`."""

    def words(self, x: Array) -> tuple[Array, Array]:
        """Return the low and high 32-bit words of integers, in the framework's dtype for words."""

    def add_word(self, x: Array, n: int) -> Array:
        """Return (x + n) mod 2³² for words x."""

    def multiply_words(self, x: Array, factor: int) -> tuple[Array, Array]:
        """Return the high and low words of x·factor, for words x."""

    def masked_scores(self, a: Array, b: Array, mask: Array) -> Array:
        """Return `masked.scores`, with derivatives that read nothing masked either."""

    def masked_sum(self, p: Array, v: Array, mask: Array) -> Array:
        """Return `masked.sum`, with derivatives that read nothing masked either."""


DTYPES = "float32", "float64", "bfloat16", "float16"
"""The dtypes of queries, keys and values."""
PLAIN = bool, int, float, list, tuple
"""Types without a framework that array arguments accept."""


def accumulation(dtype: str) -> str:
    """Return the accumulation dtype: float64 for float64, float32 for any other."""
    return dtype if dtype == "float64" else "float32"


def acc_dtype(xp: Ops, *xs: Array | None) -> str:
    """Return the accumulation dtype of sums over these arrays; None is skipped."""
    wide = "float64" in [xp.dtype(x) for x in xs if x is not None]
    return "float64" if wide else "float32"


def accumulated(xp: Ops, x: Array) -> Array:
    """Return x in its accumulation dtype."""
    return xp.astype(x, accumulation(xp.dtype(x)))


def framework(x: object) -> str | None:
    """Return the framework of a tensor, a key of FRAMEWORKS; None for anything else."""
    # torch.compile cannot see the class of a Parameter, nor the bases of a list.
    if hasattr(x, "__torch_function__"):
        return "torch"
    if x is None or isinstance(x, PLAIN):
        return None
    if type(x).__module__ == "numpy":  # before the bases: these take 1 µs
        return "numpy"
    roots = (cls.__module__.partition(".")[0] for cls in type(x).__mro__)
    return next((name for name in (_ALSO.get(x, x) for x in roots) if name in FRAMEWORKS), None)


def load(name: str) -> Ops:
    """Return the operations of a framework, by its key in FRAMEWORKS."""
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
