"""What all layers for PyTorch can do: take parameters from, and give them to, other frameworks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import is_lazy


class Layer(nn.Module):
    """A module whose parameters are known in every framework by the same names."""

    def numpy_parameters(self) -> dict[str, np.ndarray[Any, Any]]:
        """The state dict as NumPy arrays, half precision as float32.

        >>> from anyscore.torch import AdditiveAttention
        >>> arrays = AdditiveAttention(8, query_size=20, key_size=2).numpy_parameters()
        >>> {name: x.shape for name, x in arrays.items()}
        {'W_q.weight': (8, 20), 'W_k.weight': (8, 2), 'w_v.weight': (1, 8)}
        """
        state = self.state_dict()
        if any(map(is_lazy, state.values())):
            raise ValueError("give the layer its sizes, or call it once, to have its parameters.")
        half = torch.bfloat16, torch.float16
        tensors = {name: x.float() if x.dtype in half else x for name, x in state.items()}
        return {name: x.cpu().numpy().copy() for name, x in tensors.items()}

    def load_numpy_parameters(self, arrays: Mapping[str, Any]) -> None:
        """Take what a layer of any framework gave; old names are accepted, see `anyscore.layers`.

        Raises RuntimeError: as `load_state_dict`, if names or shapes are not those of the layer.
        """
        self.load_state_dict({name: torch.tensor(np.asarray(x)) for name, x in arrays.items()})
