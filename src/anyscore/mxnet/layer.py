"""What all layers for Gluon share: parameters by name, first calls, and hybridized parents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mxnet as mx
import numpy as np
from mxnet import autograd
from mxnet.gluon import HybridBlock, Parameter

from anyscore.backends.mxnet import as_np, known_shapes, wrap
from anyscore.mxnet import symbolic
from anyscore.mxnet.symbolic import Mode
from anyscore.ops import Array


class Layer(HybridBlock):  # type: ignore[misc]
    """A block that computes with arrays always: `hybridize` makes it one operator of its parent.

    Its parameters are known in every framework by the same names.
    """

    dropout: float = 0.0

    def __init__(self, prefix: str | None = None, params: Any = None) -> None:
        super().__init__(prefix=prefix, params=params)
        self.calls: list[symbolic.Call] = []  # in graphs of parents, which live no longer

    def compute(self, weights: Mapping[str, Array], mode: Mode, *given: Any) -> Array:
        """The output, of parameters by name and of the arguments of `forward`."""
        raise NotImplementedError

    def bind(self, *given: Any) -> None:
        """Give the parameters their shapes, at the first call."""

    def shape_of(self, *given: Any) -> tuple[int, ...]:
        """The shape of the output, of NumPy arrays in place of all; parameters get theirs."""
        raise NotImplementedError

    def forward(self, *given: Any) -> Any:
        """Output of arrays, or a symbol of it."""
        if any(isinstance(x, mx.sym.Symbol) for x in given):
            return symbolic.call(self, given)
        if not isinstance(given[0], mx.nd.NDArray):
            raise TypeError(
                f"{type(self).__name__} got a {type(given[0]).__name__}, expected an MXNet array."
            )
        with known_shapes():
            self.bind(*given)
            mode = Mode(self.dropout if autograd.is_training() else 0.0)
            return wrap(self.compute(self.values(given[0].ctx), mode, *given), given[0])

    def values(self, context: Any) -> dict[str, Array]:
        """The values of the parameters on a device, made now if their shapes were not known."""
        found = {}
        for name, parameter in self.parameters().items():
            if parameter._deferred_init:
                parameter._finish_deferred_init()
            found[name] = as_np(parameter.data(context))
        return found

    def parameters(self) -> dict[str, Parameter]:
        """The parameters by the names that they have in files."""
        found: dict[str, Parameter] = self._collect_params_with_prefix()
        return found

    def renamed(self, arrays: dict[str, Any]) -> dict[str, Any]:
        """Arrays under old names, under ours."""
        return arrays

    def numpy_parameters(self) -> dict[str, np.ndarray[Any, Any]]:
        """The parameters as NumPy arrays, half precision as float32.

        >>> from anyscore.mxnet import AdditiveAttention
        >>> layer = AdditiveAttention(8, query_size=20, key_size=2)
        >>> layer.initialize()
        >>> {name: x.shape for name, x in layer.numpy_parameters().items()}
        {'W_q.weight': (8, 20), 'W_k.weight': (8, 2), 'w_v.weight': (1, 8)}
        """
        made = {}
        for name, parameter in self.parameters().items():
            if parameter._data is None:
                raise ValueError(
                    "initialize the layer, and give it its sizes or call it once, to have its "
                    "parameters."
                )
            x = parameter.data(parameter.list_ctx()[0]).asnumpy()
            x = x.astype("float32") if x.dtype == "float16" else x
            made[name] = x.reshape(()) if _is_scale(name, x) else x
        return made

    def load_numpy_parameters(self, arrays: Mapping[str, Any]) -> None:
        """Take what a layer of any framework gave; old names are accepted, see `anyscore.layers`.

        Raises ValueError: if names or shapes are not those of the layer.
        """
        given = self.renamed({name: np.atleast_1d(np.asarray(x)) for name, x in arrays.items()})
        ours = self.parameters()
        if given.keys() != ours.keys():
            raise ValueError(
                f"expected parameters {', '.join(ours)}, got {', '.join(given) or 'none'}."
            )
        for name, parameter in ours.items():
            if parameter.shape not in (None, given[name].shape):
                raise ValueError(
                    f"{name} has shape {given[name].shape}, expected {parameter.shape}."
                )
        for name, parameter in ours.items():
            x = given[name]
            parameter.shape = x.shape
            if parameter._data is None and not parameter._deferred_init:
                parameter.initialize()
            made = mx.np.array(x, dtype=parameter.dtype)
            parameter.set_data(made if mx.util.is_np_array() else made.as_nd_ndarray())
            parameter._finish_deferred_init()


def _is_scale(name: str, x: Array) -> bool:
    return x.shape == (1,) and name.rpartition(".")[0].rpartition(".")[2].startswith("log_")
