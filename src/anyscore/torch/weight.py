"""One parameter of a layer, whose shape may be known only at the first call."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter, is_lazy

from anyscore.layers import Parameter


class Weight(nn.Module):
    """A tensor named `weight`: a parameter, or a buffer if it is a plain tensor."""

    weight: Any

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.parameter: Parameter | None = None
        if isinstance(weight, nn.Parameter):
            self.weight = weight
        elif not isinstance(weight, Tensor):
            raise TypeError(f"expected a PyTorch tensor, got a {type(weight).__name__}.")
        else:
            self.register_buffer("weight", weight)

    @classmethod
    def lazy(cls, device: Any, dtype: torch.dtype | None) -> Weight:
        """A parameter without a shape; a state dict or `meet` gives it one."""
        lazy = UninitializedParameter(device=device, dtype=dtype)  # type: ignore[call-arg]
        return cls(lazy)

    def meet(self, parameter: Parameter) -> None:
        """Take the shape and the initial values of `parameter`, unless it has them."""
        self.parameter = parameter
        if is_lazy(self.weight):
            self.weight.materialize(parameter.init.shape)
            self.reset()
        elif tuple(self.weight.shape) != parameter.init.shape:
            raise ValueError(
                f"{parameter.name} was loaded with shape {tuple(self.weight.shape)}, expected "
                f"{parameter.init.shape}."
            )

    @torch.no_grad()
    def reset(self) -> None:
        """Draw the values anew."""
        if self.parameter is None:
            return
        init = self.parameter.init
        if init.bound:
            nn.init.uniform_(self.weight, -init.bound, init.bound)
        else:
            nn.init.constant_(self.weight, init.value)

    def extra_repr(self) -> str:
        return "uninitialised" if is_lazy(self.weight) else str(tuple(self.weight.shape))

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        loaded = state_dict.get(prefix + "weight")
        if loaded is not None and is_lazy(self.weight) and not is_lazy(loaded):
            self.weight.materialize(loaded.shape)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        if is_lazy(self.weight):  # it cannot be detached
            destination[prefix + "weight"] = self.weight
        else:
            super()._save_to_state_dict(destination, prefix, keep_vars)
