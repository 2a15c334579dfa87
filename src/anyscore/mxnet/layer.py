"""The base of all layers for Gluon: parameters by name, first calls, and hybridized parents."""

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
    """A block that always computes with arrays; in a hybridized parent the block is one operator.

    Its parameters have the same names in every framework.
    """

    dropout: float = 0.0

    def __init__(self, prefix: str | None = None, params: Any = None) -> None:
        super().__init__(prefix=prefix, params=params)
        self.calls: list[symbolic.SymbolicCall] = []  # keeps calls alive

    def compute(self, weights: Mapping[str, Array], mode: Mode, *args: Any) -> Array:
        """Compute the output for the arguments of `forward`. weights: the parameters by name.

        Raises:
            TypeError, ValueError: as `anyscore.attention`.
        """
        raise NotImplementedError

    def bind(self, *args: Any) -> None:
        """Set the shapes of the parameters at the first call."""

    def shape_of(self, *args: Any) -> tuple[int, ...]:
        """Return the shape of the output for NumPy arguments; set the shapes of the parameters."""
        raise NotImplementedError

    def forward(self, *args: Any) -> Any:
        """Return the output for arrays, or its symbol for symbols.

        Raises:
            TypeError, ValueError: as `anyscore.attention`; or widths other than the layer's.
        """
        if any(isinstance(x, mx.sym.Symbol) for x in args):
            return symbolic.call(self, args)
        if not isinstance(args[0], mx.nd.NDArray):
            raise TypeError(
                f"{type(self).__name__} got a {type(args[0]).__name__}, expected an MXNet array."
            )
        with known_shapes():
            self.bind(*args)
            mode = Mode(self.dropout if autograd.is_training() else 0.0)
            return wrap(self.compute(self.values(args[0].ctx), mode, *args), args[0])

    def values(self, context: Any) -> dict[str, Array]:
        """Return the values of the parameters on a device; finish deferred initialisation."""
        values = {}
        for name, parameter in self.parameters().items():
            if parameter._deferred_init:
                parameter._finish_deferred_init()
            values[name] = as_np(parameter.data(context))
        return values

    def parameters(self) -> dict[str, Parameter]:
        """Map names of parameters in files to the parameters."""
        parameters: dict[str, Parameter] = self._collect_params_with_prefix()
        return parameters

    def _rename_legacy_keys(self, arrays: dict[str, Any]) -> None:
        """Rename keys of other libraries to anyscore's, in place."""

    def numpy_parameters(self) -> dict[str, np.ndarray[Any, Any]]:
        """Return the parameters as NumPy arrays, half precision as float32.

        Returns:
            A mapping from names, common to all frameworks, to arrays.

        Raises:
            ValueError: The layer is not initialised, or does not know its sizes yet.

        >>> from anyscore.mxnet import AdditiveAttention
        >>> layer = AdditiveAttention(8, query_size=20, key_size=2)
        >>> layer.initialize()
        >>> {name: x.shape for name, x in layer.numpy_parameters().items()}
        {'W_q.weight': (8, 20), 'W_k.weight': (8, 2), 'w_v.weight': (1, 8)}
        """
        arrays = {}
        for name, parameter in self.parameters().items():
            if parameter._data is None:
                raise ValueError(
                    "initialize the layer, and give it its sizes or call it once, to have its "
                    "parameters."
                )
            x = parameter.data(parameter.list_ctx()[0]).asnumpy()
            x = x.astype("float32") if x.dtype == "float16" else x
            arrays[name] = x.reshape(()) if _is_number(name, parameter) else x
        return arrays

    def load_numpy_parameters(self, arrays: Mapping[str, Any]) -> None:
        """Load arrays of `numpy_parameters` of a layer of any framework.

        Args:
            arrays: a mapping from names to arrays. Names of *Dive into Deep Learning* and other
                libraries are accepted; see the page migrate of the documentation.

        Raises:
            ValueError: Names or shapes are those of another layer.
        """
        state = {name: np.atleast_1d(np.asarray(x)) for name, x in arrays.items()}
        self._rename_legacy_keys(state)
        ours = self.parameters()
        if state.keys() != ours.keys():
            raise ValueError(
                f"expected parameters {', '.join(ours)}, got {', '.join(state) or 'none'}."
            )
        for name, parameter in ours.items():
            if parameter.shape not in (None, state[name].shape):
                raise ValueError(
                    f"{name} has shape {state[name].shape}, expected {parameter.shape}."
                )
        for name, parameter in ours.items():
            x = state[name]
            parameter.shape = x.shape
            if parameter._data is None and not parameter._deferred_init:
                parameter.initialize()
            array = mx.np.array(x, dtype=parameter.dtype)
            parameter.set_data(array if mx.util.is_np_array() else array.as_nd_ndarray())
            parameter._finish_deferred_init()


def _is_number(name: str, parameter: Parameter) -> bool:
    """Check if a parameter (1,) is a scalar. Without a known shape its name decides."""
    known = getattr(parameter.init, "number", None)
    if known is not None:
        return bool(known)
    scale = name.rpartition(".")[0].rpartition(".")[2].startswith("log_")
    return scale and parameter.shape == (1,)
