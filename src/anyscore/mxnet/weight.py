"""Parameters of a layer, whose shapes may be known only at the first call."""

from __future__ import annotations

from typing import Any

import mxnet as mx
from mxnet.gluon import HybridBlock, Parameter

from anyscore.score import Init


class Start(mx.init.Initializer):  # type: ignore[misc]
    """The initial values that a score, or a linear layer, asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.bound = self.value = 0.0

    def _init_weight(self, name: str, array: Any) -> None:
        if not self.bound:
            array[:] = self.value
            return
        drawn = mx.nd.random.uniform(-self.bound, self.bound, array.shape).astype(array.dtype)
        array[:] = drawn.as_np_ndarray() if isinstance(array, mx.np.ndarray) else drawn


class Weight(HybridBlock):  # type: ignore[misc]
    """Holds a parameter named `weight`, and perhaps one named `bias`, for a layer that reads them.

    given: a parameter to hold, or an array, which is not learned.
    """

    def __init__(self, name: str, given: Any = None, bias: bool = False) -> None:
        super().__init__(prefix=f"{name}_")
        self._starts: dict[str, Start] = {}
        if isinstance(given, Parameter):
            self.params.update({given.name: given})
            self.weight = given
        elif given is not None:
            self.weight = self.params.get_constant("weight", given)
        else:
            for kind in ("weight", "bias") if bias else ("weight",):
                self._starts[kind] = Start()
                made = self.params.get(kind, init=self._starts[kind], allow_deferred_init=True)
                setattr(self, kind, made)

    def __repr__(self) -> str:
        return f"Weight({self.weight.shape})"

    def bind(self, init: Init, kind: str = "weight") -> None:
        """Take a shape and initial values."""
        start, parameter = self._starts[kind], getattr(self, kind)
        start.bound, start.value = init.bound, init.value
        shape = init.shape or (1,)  # () is unknown to Gluon
        loaded = parameter.shape
        if parameter._data is not None:
            loaded = parameter.data(parameter.list_ctx()[0]).shape
        if loaded not in (None, shape):
            raise ValueError(f"{parameter.name} was loaded with shape {loaded}, expected {shape}.")
        parameter.shape = shape
