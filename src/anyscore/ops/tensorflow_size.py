"""Unknown lengths in a trace of TensorFlow, None in its shapes."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import tensorflow as tf


class Size:
    """A length that is known only when the graph runs.

    Checks of shapes in a trace treat it as a number above 1 that may equal any other. TensorFlow
    raises at run time if lengths do not fit. Arithmetic returns another `Size`; as a tensor
    argument it converts to an int32 tensor ().
    """

    dtype, shape = tf.int32, ()  # slices read these before they convert

    def __init__(self, make: Callable[[], tf.Tensor]) -> None:
        self._make = make

    @classmethod
    def of(cls, x: tf.Tensor, axis: int) -> Size:
        """Return the length of an axis of x."""
        return cls(lambda: tf.shape(x)[axis])

    def tensor(self) -> tf.Tensor:
        """Return the length as a tensor, new for each use, in the graph of that use."""
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
