"""A layer inside a hybridized parent: one operator that computes with arrays when it runs.

The backward of the operator computes the layer again and differentiates it with autograd. Masks
and lengths may be symbols or constants. The operator refers to a layer of this process, so the
graph cannot be exported.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import mxnet as mx
import numpy as np
from mxnet import autograd

from anyscore.backends.mxnet import as_np, known_shapes
from anyscore.ops import Array
from anyscore.ops.mxnet_operator import write

if TYPE_CHECKING:
    from anyscore.mxnet.layer import Layer


@dataclass(frozen=True)
class Mode:
    """The mode of a call: dropout rate, dropout seed, and True to record the call."""

    dropout: float = 0.0
    seed: Any = None
    record: bool = True


@dataclass(frozen=True)
class SymbolicCall:
    """A call of a layer.

    args: the arguments, with None in place of symbols. symbols: the indices of symbols. is_np:
    True if the symbols belong to MXNet's NumPy interface.
    """

    layer: Layer
    args: tuple[Any, ...]
    symbols: tuple[int, ...]
    is_np: bool

    def fill(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """Return the arguments, with inputs in place of symbols."""
        args = list(self.args)
        for i, x in zip(self.symbols, inputs, strict=True):
            args[i] = x
        return tuple(args)


_calls: WeakValueDictionary[str, SymbolicCall] = WeakValueDictionary()
_tokens = count()


def call(layer: Layer, args: tuple[Any, ...]) -> Any:
    """Return the symbol of a layer's output.

    Raises:
        TypeError: the queries are an array, and another argument is a symbol.
    """
    symbols = tuple(i for i, x in enumerate(args) if isinstance(x, mx.sym.Symbol))
    if 0 not in symbols:
        raise TypeError(f"{type(layer).__name__} got symbols and arrays, expected all of one kind.")
    is_np = isinstance(args[0], mx.sym.np._Symbol)
    token = f"{layer.prefix}{next(_tokens)}"
    constants = tuple(None if i in symbols else x for i, x in enumerate(args))
    symbolic_call = _calls[token] = SymbolicCall(layer, constants, symbols, is_np)
    layer.calls.append(symbolic_call)
    inputs = [args[i] for i in symbols]
    inputs += [parameter.var() for parameter in layer.parameters().values()]
    if layer.dropout:
        inputs.append(mx.sym.random.randint(0, 2**31 - 1, shape=(2,), dtype="int32"))
    inputs = [x.as_nd_ndarray() for x in inputs]
    output = mx.sym.Custom(*inputs, op_type="anyscore_layer", token=token, name=layer.name)[0]
    return output.as_np_ndarray() if is_np else output


@mx.operator.register("anyscore_layer")
class _Property(mx.operator.CustomOpProp):  # type: ignore[misc]
    def __init__(self, token: str) -> None:
        super().__init__(need_top_grad=True)
        self.token = token

    @property
    def call(self) -> SymbolicCall:
        if self.token not in _calls:
            raise ValueError("a layer of anyscore in a graph of another process: build it anew.")
        return _calls[self.token]

    @property
    def names(self) -> list[str]:
        return list(self.call.layer.parameters())

    def list_arguments(self) -> list[str]:
        seed = ["seed"] if self.call.layer.dropout else []
        return [*(f"input{i}" for i in self.call.symbols), *self.names, *seed]

    def list_outputs(self) -> list[str]:
        return ["output", "training"]  # the backward reads "training"

    def infer_shape(self, shapes: Any) -> tuple[Any, ...]:
        inputs, layer = len(self.call.symbols), self.call.layer
        stand_ins = [np.broadcast_to(np.float32(0), shape) for shape in shapes[:inputs]]
        args = self.call.fill(stand_ins)
        with known_shapes():
            output = layer.shape_of(*args)
        parameters = layer.parameters().values()
        known = [*shapes[:inputs], *(parameter.shape for parameter in parameters)]
        return known + ([[2]] if layer.dropout else []), [output, (1,)], []

    def infer_type(self, dtypes: Any) -> tuple[Any, ...]:
        parameters = self.call.layer.parameters().values()
        inputs = len(self.call.symbols)
        known = [*dtypes[:inputs], *(np.dtype(p.dtype).type for p in parameters)]
        seed = [np.int32] if self.call.layer.dropout else []
        return known + seed, [dtypes[0], np.float32], []

    def create_operator(self, context: Any, shapes: Any, dtypes: Any) -> _Operator:
        return _Operator(self.call, self.names)


class _Operator(mx.operator.CustomOp):  # type: ignore[misc]
    def __init__(self, call: SymbolicCall, names: list[str]) -> None:
        super().__init__()
        self.call, self.names = call, names

    def forward(self, is_train: Any, req: Any, in_data: Any, out_data: Any, aux: Any) -> None:
        with known_shapes(), autograd.pause(bool(is_train)):
            output = self._compute([as_np(x) for x in in_data], bool(is_train))
            _assign(out_data[0], req[0], output)
            write(out_data[1:], ["write"], [np.array([bool(is_train)], "float32")])

    def backward(
        self, req: Any, out_grad: Any, in_data: Any, out_data: Any, in_grad: Any, aux: Any
    ) -> None:
        training = bool(out_data[1].asnumpy()[0])
        with known_shapes():
            inputs = [as_np(x).detach() for x in in_data]
            for x, how in zip(inputs, req, strict=True):
                if how != "null" and np.dtype(x.dtype).kind == "f":
                    x.attach_grad()
            with autograd.record(training):
                output = self._compute(inputs, training)
            output.backward(as_np(out_grad[0]))
            for x, how, target in zip(inputs, req, in_grad, strict=True):
                if how != "null":
                    grad = mx.np.zeros_like(x) if x.grad is None else x.grad
                    _assign(target, how, grad)

    def _compute(self, data: list[Array], training: bool) -> Array:
        layer, inputs = self.call.layer, len(self.call.symbols)
        arrays = [x if self.call.is_np else x.as_nd_ndarray() for x in data[:inputs]]
        weights = dict(zip(self.names, data[inputs:], strict=False))
        mode = Mode(record=False)
        if layer.dropout and training:
            low, high = (int(x) for x in data[-1].asnumpy())
            mode = Mode(layer.dropout, low + (high << 31), False)
        return as_np(layer.compute(weights, mode, *self.call.fill(arrays)))


def _assign(target: Any, how: str, x: Array) -> None:
    x = x if isinstance(target, mx.np.ndarray) else x.as_nd_ndarray()
    if how == "add":
        target[:] += x
    elif how != "null":
        target[:] = x
