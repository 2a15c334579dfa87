"""One parameter of a layer; its shape may be unknown until the first call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.nn.parameter import UninitializedParameter, is_lazy

from anyscore.layers.parameters import Parameter
from anyscore.ops import load
from anyscore.score.base import Projection

_xp = load("torch")


class Weight(nn.Module):
    """A tensor named `weight`: a parameter, or a buffer if it is a plain tensor.

    A call returns the tensor, so that hooks of modules see the tensor.
    """

    weight: Any

    def __init__(self, weight: Tensor) -> None:
        nn.Module.__init__(self)
        self.parameter: Parameter | None = None
        if isinstance(weight, nn.Parameter):
            self.weight = weight
        elif not isinstance(weight, Tensor):
            raise TypeError(f"expected a PyTorch tensor, got a {type(weight).__name__}.")
        else:
            self.register_buffer("weight", weight)

    @classmethod
    def lazy(cls, device: Any, dtype: torch.dtype | None) -> Weight:
        """Create a parameter without a shape; a state dict or `bind` sets the shape."""
        lazy = UninitializedParameter(device=device, dtype=dtype)  # type: ignore[call-arg]
        return cls(lazy)

    def forward(self, queries: Tensor) -> Tensor:
        """Return the tensor; under Opacus expanded to one for each example of the queries."""
        weight: Tensor = self.weight
        if self.parameter is None or not hasattr(weight, "grad_sample"):
            return weight
        between = queries.dim() - 3 - self.parameter.per_head
        return weight.expand(len(queries), *(1,) * between, *weight.shape)

    def bind(self, parameter: Parameter) -> None:
        """Set the shape and the initial values of the parameter, unless values were loaded.

        Raises:
            ValueError: the loaded tensor has another shape.
        """
        self.parameter = parameter
        if is_lazy(self.weight):
            self._materialize(parameter.init.shape)
            self.reset_parameters()
        elif tuple(self.weight.shape) != parameter.init.shape:
            raise ValueError(
                f"{parameter.name} was loaded with shape {tuple(self.weight.shape)}, expected "
                f"{parameter.init.shape}."
            )

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw the values again."""
        if self.parameter is None:
            return
        init = self.parameter.init
        if init.bound:
            nn.init.uniform_(self.weight, -init.bound, init.bound)
        else:
            nn.init.constant_(self.weight, init.value)

    def extra_repr(self) -> str:
        """Describe the weight in the repr of a module."""
        return "uninitialised" if is_lazy(self.weight) else str(tuple(self.weight.shape))

    def _materialize(self, shape: tuple[int, ...]) -> None:
        self.weight.materialize(shape)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        loaded = state_dict.get(prefix + "weight")
        if loaded is not None and is_lazy(self.weight) and not is_lazy(loaded):
            self._materialize(loaded.shape)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        if is_lazy(self.weight):  # a lazy parameter cannot be detached
            destination[prefix + "weight"] = self.weight
        else:
            super()._save_to_state_dict(destination, prefix, keep_vars)


class Linear(Weight, nn.Linear):
    """A matrix that projects tokens, as a linear layer without a bias: x → x Wᵀ.

    Libraries that watch, wrap or replace `nn.Linear` find this layer.
    """

    def __init__(self, weight: Tensor) -> None:
        super().__init__(weight)
        self.register_parameter("bias", None)
        self.in_features = self.out_features = 0
        if not is_lazy(weight):
            self.out_features, self.in_features = weight.shape

    def forward(self, x: Tensor) -> Tensor:
        """Project x (..., in_features) to (..., out_features)."""
        return nn.Linear.forward(self, x)

    def _materialize(self, shape: tuple[int, ...]) -> None:
        super()._materialize(shape)
        self.out_features, self.in_features = shape


def is_unwatched(module: Any) -> bool:
    """Return whether a module does what its class says: nobody replaced, patched or watches it."""
    return (
        type(module) in (Linear, Weight)
        and not module._forward_hooks
        and not module._forward_pre_hooks
        and not module._backward_hooks
        and not module._backward_pre_hooks
        and "forward" not in vars(module)
        and module._parameters.get("bias") is None
    )


def tensors_in(module: nn.Module) -> Iterator[Tensor]:
    """Yield the tensors of a module and of those inside, also of a replica.

    `nn.DataParallel` keeps the tensors of a replica as attributes, and `parameters()` is empty.
    """
    if type(module) is nn.Linear and "weight" in module._parameters:  # quickly
        yield from [x for x in module._parameters.values() if x is not None]
        return
    for part in module.modules():
        for x in (*part._parameters.values(), *vars(part).values()):
            if isinstance(x, Tensor):
                yield x


def tensor_of(module: Any) -> Tensor:
    """Return the tensor of a `Weight` that nobody watches."""
    weight: Tensor | None = module._parameters.get("weight")  # faster than `module.weight`
    return module.weight if weight is None else weight


def plain_projection(weight: Tensor) -> Projection:
    """Return the projection of a `Linear` that nobody watches, by its matrix."""
    return Projection(lambda x: linear(x, weight), weight.shape, "", (weight,))


def projection(module: nn.Module, like: Tensor) -> Projection:
    """Return a `Linear`, or its replacement, as a `Projection` for tokens like `like`."""
    weight: Any = module.weight
    tensors = (weight,) if type(module) is Linear else tuple(tensors_in(module))
    call: Callable[[Tensor], Tensor] = module
    if torch._C._is_any_autocast_enabled():
        device = like.device.type
        if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
            call = _autocast(module, device, torch.get_autocast_dtype(device))
    return Projection(call, weight.shape, _xp.dtype(weight), tensors)


def _autocast(module: nn.Module, device: str, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    """Wrap a module in the current autocast, which is off while a score is computed."""

    def call(x: Tensor) -> Tensor:
        with torch.autocast(device, dtype):
            projected: Tensor = module(x)
        return projected

    return call
