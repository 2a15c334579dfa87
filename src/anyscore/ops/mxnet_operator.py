"""Functions on NumPy arrays as operators of MXNet, with derivatives of first order.

Each is a `CustomOp`, which honours every grad_req; `autograd.Function` is silently wrong for "add".
Second derivatives raise, as MXNet has none for such operators.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, TypeAlias

import mxnet as mx
import numpy as np

from anyscore.ops import Array

Arrays: TypeAlias = list[np.ndarray[Any, Any]]
Form: TypeAlias = tuple[tuple[int, ...], str]
"""Shape and dtype."""


@dataclass(frozen=True)
class Operator:
    """forward: inputs → outputs. backward: (inputs, outputs, d_outputs) → d_inputs.

    inputs: the number of inputs. outputs: shape and dtype of each output.
    """

    inputs: int
    outputs: tuple[Form, ...]
    forward: Callable[[Arrays], Sequence[Array]]
    backward: Callable[[Arrays, Arrays, Arrays], Sequence[Array]]


_called: dict[str, Operator] = {}
_tokens = count()


def call(operator: Operator, inputs: Sequence[Array]) -> list[Array]:
    """Return the outputs of an operator, with a graph while autograd records."""
    token = str(next(_tokens))
    _called[token] = operator
    try:
        given = (x.as_nd_ndarray() for x in inputs)
        made = mx.nd.Custom(*given, op_type="anyscore", token=token)
    finally:
        del _called[token]  # MXNet's own objects hold the operator
    return [x.as_np_ndarray() for x in ([made] if len(operator.outputs) == 1 else made)]


def host(x: Array) -> np.ndarray[Any, Any]:
    """Return an MXNet array as a NumPy array."""
    found: np.ndarray[Any, Any] = x.asnumpy()
    return found


def device(x: Array, kind: Any = mx.np.ndarray) -> Array:
    """Return a NumPy array as an MXNet array on the CPU; with shared memory x becomes read-only.

    kind: `mx.np.ndarray` or `mx.nd.NDArray`.
    """
    if x.size == 0 or x.ndim == 0 or not x.flags.c_contiguous:
        made = mx.np.array(x, dtype=x.dtype)
        return made if kind is mx.np.ndarray else made.as_nd_ndarray()
    return mx.nd.from_numpy(x, array_cls=kind)


@mx.operator.register("anyscore")
class _Property(mx.operator.CustomOpProp):  # type: ignore[misc]
    def __init__(self, token: str) -> None:
        super().__init__(need_top_grad=True)
        self.operator = _called[token]

    def list_arguments(self) -> list[str]:
        return [f"input{i}" for i in range(self.operator.inputs)]

    def list_outputs(self) -> list[str]:
        return [f"output{i}" for i in range(len(self.operator.outputs))]

    def infer_shape(self, shapes: Any) -> tuple[Any, ...]:
        return shapes, [shape for shape, _ in self.operator.outputs], []

    def infer_type(self, dtypes: Any) -> tuple[Any, ...]:
        return dtypes, [np.dtype(dtype).type for _, dtype in self.operator.outputs], []

    def create_operator(self, context: Any, shapes: Any, dtypes: Any) -> _Custom:
        return _Custom(self.operator)


class _Custom(mx.operator.CustomOp):  # type: ignore[misc]
    def __init__(self, operator: Operator) -> None:
        super().__init__()
        self.operator = operator

    def forward(self, is_train: Any, req: Any, in_data: Any, out_data: Any, aux: Any) -> None:
        write(out_data, req, self.operator.forward([host(x) for x in in_data]))

    def backward(
        self, req: Any, out_grad: Any, in_data: Any, out_data: Any, in_grad: Any, aux: Any
    ) -> None:
        read = ([host(x) for x in xs] for xs in (in_data, out_data, out_grad))
        write(in_grad, req, self.operator.backward(*read))


def write(targets: Any, req: Any, made: Sequence[Array]) -> None:
    """Write the results of an operator to MXNet's targets."""
    for target, how, x in zip(targets, req, made, strict=True):
        if not x.size or how == "null":  # MXNet cannot copy an empty array
            continue
        if how == "add":
            target[:] += device(x, type(target))
        else:
            target[:] = device(x, type(target))
