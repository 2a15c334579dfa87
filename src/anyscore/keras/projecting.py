"""The base of layers with projections of queries, keys and values."""

from __future__ import annotations

from functools import partial
from typing import Any

import keras

from anyscore.keras.attention import Attention
from anyscore.keras.layer import Layer
from anyscore.keras.options import split
from anyscore.layers.heads import HeadSizes, QKVSizes, initializers, inner_sizes
from anyscore.layers.last_weights import LastWeights
from anyscore.layers.state_dicts import rename_legacy_heads


class Projecting(LastWeights[Any], Layer):
    """A layer with linear layers around an `Attention`."""

    def __init__(
        self, sizes: HeadSizes | QKVSizes, arguments: dict[str, Any], options: dict[str, Any]
    ) -> None:
        scales, ours, of_keras = split(options)
        super().__init__({**arguments, **scales}, ours, of_keras)
        self.sizes, self.bias = sizes, arguments["bias"]
        inner = {**inner_sizes(sizes, arguments["score"], ours.sink), **scales, **vars(ours)}
        inner |= {"dropout": arguments["dropout"], "dtype": self.dtype_policy, "name": "attention"}
        self.attention = Attention(arguments["score"], **inner)

    def make_linears(self) -> None:
        """Create the parameters of the linear layers."""
        self._weights_by_name = {}
        for name, init in initializers(self.sizes.linears, self.bias).items():
            bias = name.endswith(".bias")
            self._weights_by_name[name] = self.make(name.replace(".", "_"), init, bias)

    def current(self) -> dict[str, Any]:
        """Return the parameters of the linear layers as tensors, by name."""
        weights = self._weights_by_name.items()
        return {name: keras.ops.convert_to_tensor(x.value) for name, x in weights}

    def parameters_by_name(self) -> dict[str, Any]:
        """Map names of parameters, common to all frameworks, to the variables."""
        inner = self.attention.parameters_by_name()
        return {**self._weights_by_name, **{f"attention.{name}": x for name, x in inner.items()}}

    def _rename_legacy_keys(self, state: dict[str, Any]) -> None:
        rename_legacy_heads(state, "", self.sizes.linears, self.attention._spec)


class Attending:
    """The argument `attention` of `HeadSizes.attend`; keeps the weights if `return_scores`."""

    def __init__(self, attention: Attention, return_scores: bool, **options: Any) -> None:
        self.attention = partial(attention, return_attention_scores=return_scores, **options)
        self.return_scores = return_scores
        self.scores: Any = None

    def __call__(self, queries: Any, keys: Any, values: Any) -> Any:
        """Attend; return the output."""
        result = self.attention(queries, keys, values)
        output, self.scores = result if self.return_scores else (result, None)
        return output

    def result(self, output: Any) -> Any:
        """Return the output of the whole layer, or (output, weights) with `return_scores`."""
        return (output, self.scores) if self.return_scores else output
