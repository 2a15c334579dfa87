"""The base of all layers for PyTorch: tracing, nested tensors, and exchange of parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NoReturn

import numpy as np
import torch
from torch import Tensor, nn
from torch.fx import Proxy
from torch.nn.parameter import is_lazy

from anyscore.backends.torch import backend as _operators_of_exported_programs  # noqa: F401
from anyscore.backends.torch.nested import call_packed, is_nested, sequences, tokens_of
from anyscore.masks.sequences import Sequences
from anyscore.ops.checks import find_framework


def check_inputs(queries: Any, keys: Any, values: Any) -> None:
    """Check that queries, keys and values are tensors of PyTorch.

    Raises:
        TypeError: one of them is not.
    """
    if isinstance(queries, Tensor) and isinstance(keys, Tensor) and isinstance(values, Tensor):
        return  # quickly
    if find_framework(queries=queries, keys=keys, values=values) != "torch":
        raise TypeError(f"queries is a {type(queries).__name__}, expected a PyTorch tensor.")


class Layer(nn.Module):
    """A module whose parameters have the same names in every framework."""

    _tokens: ClassVar[tuple[str, ...]] = ()
    """The first arguments of a call, if they may be nested tensors: queries, keys and values."""
    _packed: Sequences | None = None
    """The sequences of the nested tensors of a call, while the call runs."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the layer. torch.fx.symbolic_trace records one call, as for layers of torch.nn.

        Jagged nested tensors become packed sequences, and the results become nested again.
        """
        for x in (*args, *kwargs.values()):
            if isinstance(x, Proxy):
                path = x.tracer.path_of_module(self)  # type: ignore[attr-defined]
                return x.tracer.create_proxy("call_module", path, args, kwargs)
        if not any(map(is_nested, (*args, *kwargs.values()))):
            return super().__call__(*args, **kwargs)
        tokens = tokens_of(self._tokens, args, kwargs)
        if not any(map(is_nested, tokens)):
            raise TypeError(
                f"{type(self).__name__} takes no nested tensor here: pass "
                "torch.nested.to_padded_tensor(x, 0.0), and the lengths as valid_lens=."
            )
        inner: Any = getattr(self, "attention", self)
        inner._packed = sequences(*tokens)
        try:
            return call_packed(super().__call__, tokens, inner._packed, args, kwargs)
        finally:
            inner._packed = None

    def __prepare_scriptable__(self) -> NoReturn:
        raise NotImplementedError(
            f"torch.jit.script cannot compile {type(self).__name__}: use torch.jit.trace, "
            "torch.export.export or torch.onnx.export."
        )

    def numpy_parameters(self) -> dict[str, np.ndarray[Any, Any]]:
        """Return the state dict as NumPy arrays, half precision as float32.

        Returns:
            A mapping from names, common to all frameworks, to arrays.

        Raises:
            ValueError: The parameters have no shapes yet.

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
        """Load arrays of `numpy_parameters` of a layer of any framework.

        Args:
            arrays: a mapping from names to arrays. Names of *Dive into Deep Learning* and other
                libraries are accepted; see the page migrate of the documentation.

        Raises:
            RuntimeError: As `load_state_dict`, if names or shapes are not those of the layer.
        """
        self.load_state_dict({name: torch.tensor(np.asarray(x)) for name, x in arrays.items()})
