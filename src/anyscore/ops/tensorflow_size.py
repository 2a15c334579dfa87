"""Lengths that a trace of TensorFlow does not know: None in a shape."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import tensorflow as tf


class Size:
    """A length that only the running graph knows.

    For shapes to be checked while it is traced, it counts as a number above 1 that may equal any
    other: what does not fit, TensorFlow says when it runs. Arithmetic gives another; where tensors
    are expected it stands for an int32 tensor ().
    """

    dtype, shape = tf.int32, ()  # for slices, which look before they convert

    def __init__(self, make: Callable[[], tf.Tensor]) -> None:
        self._make = make

    @classmethod
    def of(cls, x: tf.Tensor, axis: int) -> Size:
        """The length of an axis of x."""
        return cls(lambda: tf.shape(x)[axis])

    def tensor(self) -> tf.Tensor:
        """Made anew for each use, in the graph that uses it."""
        return self._make()

    def __repr__(self) -> str:
        return "None"

    def __bool__(self) -> bool:
        return True

    def __float__(self) -> float:
        raise TypeError(
            "a width is None in this trace: state it, as by tf.ensure_shape(x, [None, None, 64])."
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Size) or (isinstance(other, int) and other > 1)

    def __hash__(self) -> int:
        return id(self)

    def __gt__(self, other: Any) -> bool:
        return isinstance(other, int) and other <= 1

    def __lt__(self, other: Any) -> bool:
        return False

    def __neg__(self) -> Size:
        return Size(lambda: -self.tensor())

    def _with(self, operation: Any, other: Any, reflected: bool = False) -> Any:
        if not isinstance(other, int | Size):
            return NotImplemented

        def make() -> tf.Tensor:
            one, two = self.tensor(), other.tensor() if isinstance(other, Size) else other
            return operation(two, one) if reflected else operation(one, two)

        return Size(make)

    def __add__(self, other: Any) -> Any:
        return self._with(operator.add, other)

    def __sub__(self, other: Any) -> Any:
        return self._with(operator.sub, other)

    def __rsub__(self, other: Any) -> Any:
        return self._with(operator.sub, other, reflected=True)

    def __mul__(self, other: Any) -> Any:
        return self._with(operator.mul, other)

    def __floordiv__(self, other: Any) -> Any:
        return self._with(operator.floordiv, other)

    __radd__, __rmul__ = __add__, __mul__


def _convert(x: Size, dtype: Any = None, name: Any = None, as_ref: bool = False) -> tf.Tensor:
    return x.tensor() if dtype is None else tf.cast(x.tensor(), dtype)


tf.register_tensor_conversion_function(Size, _convert)
