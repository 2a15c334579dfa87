"""Layers that project queries, keys and values themselves, in one head or several."""

from __future__ import annotations

from functools import partial
from typing import Any

import keras

from anyscore import heads
from anyscore.heads import Fused, Heads, linear, starts
from anyscore.keras.attention import Attention
from anyscore.keras.layer import (
    OF_KERAS,
    Layer,
    Shape,
    masks,
    named_only,
    output_shape,
    register,
    shapes,
    three,
    xp,
)
from anyscore.layers import AnyScore
from anyscore.old_names import rename_heads


class _Projecting(Layer):
    """A layer of linear layers around an `Attention`."""

    def __init__(
        self, sizes: Heads | Fused, given: dict[str, Any], numbers: dict[str, Any]
    ) -> None:
        of_keras = {name: numbers.pop(name) for name in OF_KERAS if name in numbers}
        super().__init__({**given, **numbers}, **of_keras)
        self.sizes, self.bias = sizes, given["bias"]
        own = {**named_only(given["score"], sizes.score), **numbers}
        own |= {"dropout": given["dropout"], "dtype": self.dtype_policy, "name": "attention"}
        self.attention = Attention(given["score"], **own)

    def make_all(self) -> None:
        """The parameters of the linear layers."""
        self._parameters = {}
        for name, init in starts(self.sizes.linears, self.bias).items():
            self._parameters[name] = self.make(name.replace(".", "_"), init)

    def values(self) -> dict[str, Any]:
        return {name: keras.ops.convert_to_tensor(x.value) for name, x in self._parameters.items()}

    @property
    def attention_weights(self) -> Any:
        """Weights of the last call, as of `Attention`."""
        return self.attention.attention_weights

    def parameters_by_name(self) -> dict[str, Any]:
        inner = self.attention.parameters_by_name()
        return {**self._parameters, **{f"attention.{name}": x for name, x in inner.items()}}

    def rename(self, state: dict[str, Any]) -> None:
        rename_heads(state, "", self.sizes.linears, self.attention._recipe)


@register
class SelfAttention(_Projecting):
    """Attention of a sequence to itself, by one fused projection to queries, keys and values.

    Args:
        embedding_size: width d of the input.
        d_k, d_v: widths of queries and keys, and of values (d if left out). Without a bias the
            projection has d · (2 · d_k + d_v) parameters.
        score, numbers: as for `Attention`; the score meets projected queries and keys.
        project_output: add a linear layer from d_v to d.

    >>> import numpy as np
    >>> layer = SelfAttention(8, 3, score="gaussian")
    >>> tuple(layer(np.ones((2, 5, 8)), valid_lens=[2, 5]).shape)
    (2, 5, 8)
    """

    inputs = 1
    sizes: Fused

    def __init__(
        self,
        embedding_size: int,
        d_k: int,
        *,
        d_v: int | None = None,
        score: AnyScore = "scaled_dot",
        dropout: float = 0.0,
        bias: bool = True,
        project_output: bool = False,
        **numbers: Any,
    ) -> None:
        sizes: dict[str, Any] = {"embedding_size": embedding_size, "d_k": d_k, "d_v": d_v}
        sizes |= {"project_output": project_output}
        given = {**sizes, "score": score, "dropout": dropout, "bias": bias}
        super().__init__(Fused(**sizes), given, numbers)

    def known_shapes(self) -> list[Shape]:
        return [(None, None, self.sizes.linears["qkv"][1])]

    def build(self, x_shape: Any) -> None:
        self.make_all()
        self.attention.build(*((None, None, n) for n in self.sizes.widths))

    def call(
        self,
        x: Any,
        valid_lens: Any = None,
        *,
        mask: Any = None,
        x_mask: Any = None,
        use_causal_mask: bool = False,
    ) -> Any:
        """x (..., T, d) → (..., T, d_v), or (..., T, d) with `project_output`."""
        both = masks(x, mask, x_mask, x_mask, None, use_causal_mask)
        attention = partial(self.attention, valid_lens=valid_lens, mask=both)
        return self.sizes.attend(xp, partial(linear, xp, self.values()), attention, x)

    def compute_output_shape(self, x_shape: Any) -> Shape:
        return (*x_shape[:-1], self.sizes.output_width)

    def compute_output_spec(self, x: Any, *args: Any, **options: Any) -> Any:
        return keras.KerasTensor(self.compute_output_shape(x.shape), dtype=self.compute_dtype)


@register
class MultiHeadAttention(_Projecting):
    """Attention in several heads, of a sequence to itself or to another, with any score.

    Args:
        embedding_size: width d of the output; each head has d / n_heads.
        n_heads: query heads; kv_heads: key and value heads, fewer if they divide n_heads.
        score, numbers: as for `Attention`; each head has parameters of its own for the score, which
            meets projected queries and keys.
        d_q, d_k, d_v: widths of queries, keys and values, d if left out.
        bias, project_output: without both, and with kv_heads = n_heads, the projections have
            d · (d_q + d_k + d_v) parameters.

    >>> import numpy as np
    >>> layer = MultiHeadAttention(12, 3, score="additive")
    >>> tuple(layer(np.ones((2, 5, 12)), use_causal_mask=True).shape)
    (2, 5, 12)
    """

    sizes: Heads

    def __init__(
        self,
        embedding_size: int,
        n_heads: int,
        *,
        kv_heads: int | None = None,
        score: AnyScore = "scaled_dot",
        d_q: int | None = None,
        d_k: int | None = None,
        d_v: int | None = None,
        dropout: float = 0.0,
        bias: bool = True,
        project_output: bool = True,
        **numbers: Any,
    ) -> None:
        sizes: dict[str, Any] = {"embedding_size": embedding_size, "n_heads": n_heads}
        sizes |= {"kv_heads": kv_heads, "d_q": d_q, "d_k": d_k, "d_v": d_v}
        sizes |= {"project_output": project_output}
        given = {**sizes, "score": score, "dropout": dropout, "bias": bias}
        super().__init__(Heads(**sizes), given, numbers)

    def known_shapes(self) -> list[Shape]:
        return [(None, None, self.sizes.linears[name][1]) for name in ("W_q", "W_k", "W_v")]

    def build(self, queries_shape: Any, keys_shape: Any = None, values_shape: Any = None) -> None:
        self.make_all()
        head = self.sizes.score["d_q"]
        q, k = ((None, n, None, head) for n in (self.sizes.n_heads, self.sizes.kv_heads))
        self.attention.build(q, k, k)

    def call(
        self,
        queries: Any,
        keys: Any = None,
        values: Any = None,
        valid_lens: Any = None,
        *,
        mask: Any = None,
        return_attention_scores: bool = False,
        use_causal_mask: bool = False,
        queries_mask: Any = None,
        keys_mask: Any = None,
        values_mask: Any = None,
    ) -> Any:
        """(batch, T_q, d_q), (batch, T_k, d_k), (batch, T_k, d_v) → (batch, T_q, d).

        keys default to queries, values to keys; or one list, as for `Attention`. A boolean mask has
        four axes or two, heads third from the end.
        """
        if keys is None and keys_mask is None and not isinstance(queries, list | tuple):
            keys_mask = queries_mask
        mask = masks(queries, mask, queries_mask, keys_mask, values_mask, use_causal_mask)
        q, k, v = self._three(queries, keys, values)
        q, k, v, mask = heads.read(xp, self.sizes.n_heads, q, k, v, valid_lens, mask)
        scores: list[Any] = []

        def attention(*tensors: Any) -> Any:
            options = {"mask": mask, "return_attention_scores": return_attention_scores}
            found = self.attention(*tensors, **options)
            if not return_attention_scores:
                return found
            scores.append(found[1])
            return found[0]

        output = self.sizes.attend(xp, partial(linear, xp, self.values()), attention, q, k, v)
        return (output, *scores) if return_attention_scores else output

    def compute_output_shape(
        self, queries_shape: Any, keys_shape: Any = None, values_shape: Any = None
    ) -> Shape:
        shape = output_shape(*self._three(queries_shape, keys_shape, values_shape))
        return (*shape[:-1], self.sizes.output_width)

    def compute_output_spec(
        self, queries: Any, keys: Any = None, values: Any = None, *args: Any, **options: Any
    ) -> Any:
        q, k, v = shapes(*self._three(queries, keys, values))
        output = keras.KerasTensor(self.compute_output_shape(q, k, v), dtype=self.compute_dtype)
        if not options.get("return_attention_scores"):
            return output
        weights = (*output.shape[:-2], self.sizes.n_heads, q[-2], k[-2])
        return output, keras.KerasTensor(weights, dtype=self.compute_dtype)

    @staticmethod
    def _three(queries: Any, keys: Any, values: Any) -> tuple[Any, Any, Any]:
        """As `three`; keys are the queries if left out."""
        q, k, v = three(queries, keys, values)
        k = q if k is None else k
        return q, k, k if v is None else v
