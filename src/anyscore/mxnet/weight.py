"""Parameters of a layer; their shapes may be unknown until the first call."""

from __future__ import annotations

from typing import Any

import mxnet as mx
from mxnet.gluon import HybridBlock, Parameter

from anyscore.score.base import Init


class Initializer(mx.init.Initializer):  # type: ignore[misc]
    """Fill an array with `value`, or uniformly from [−bound, bound], as `anyscore.score.base.Init`.

    number: True if the array (1,) is a scalar of shape (); None if the shape is unknown yet.
    """

    def __init__(self) -> None:
        super().__init__()
        self.bound = self.value = 0.0
        self.number: bool | None = None

    def _init_weight(self, name: str, array: Any) -> None:
        if not self.bound:
            array[:] = self.value
            return
        drawn = mx.nd.random.uniform(-self.bound, self.bound, array.shape).astype(array.dtype)
        array[:] = drawn.as_np_ndarray() if isinstance(array, mx.np.ndarray) else drawn


class Weight(HybridBlock):  # type: ignore[misc]
    """A block with a parameter `weight`, and optionally a parameter `bias`, read by a layer.

    weight: a parameter; or an array, which is not learned; None: a new parameter.
    """

    def __init__(self, name: str, weight: Any = None, bias: bool = False) -> None:
        super().__init__(prefix=f"{name}_")
        self._initializers: dict[str, Initializer] = {}
        if isinstance(weight, Parameter):
            self.params.update({weight.name: weight})
            self.weight = weight
        elif weight is not None:
            self.weight = self.params.get_constant("weight", weight)
        else:
            for kind in ("weight", "bias") if bias else ("weight",):
                init = self._initializers[kind] = Initializer()
                setattr(self, kind, self.params.get(kind, init=init, allow_deferred_init=True))

    def __repr__(self) -> str:
        return f"Weight({self.weight.shape})"

    def bind(self, init: Init, kind: str = "weight") -> None:
        """Set the shape and the initial values.

        Raises:
            ValueError: the loaded array has another shape.
        """
        initializer, parameter = self._initializers[kind], getattr(self, kind)
        initializer.bound, initializer.value = init.bound, init.value
        initializer.number = init.shape == ()
        shape = init.shape or (1,)  # () is unknown to Gluon
        loaded = parameter.shape
        if parameter._data is not None:
            loaded = parameter.data(parameter.list_ctx()[0]).shape
        if loaded not in (None, shape):
            raise ValueError(f"{parameter.name} was loaded with shape {loaded}, expected {shape}.")
        parameter.shape = shape
