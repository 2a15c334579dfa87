"""Layers that project queries, keys and values themselves, in one head or several."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from anyscore.backends.mxnet import as_np
from anyscore.cache import PreparedKeys
from anyscore.checks import check_tensors, find_framework
from anyscore.heads import HeadSizes, QKVSizes, linear, read, split, starts
from anyscore.layers import AnyScore, is_named
from anyscore.mxnet.attention import Attention
from anyscore.mxnet.layer import Layer
from anyscore.mxnet.symbolic import Mode
from anyscore.mxnet.weight import Weight
from anyscore.old_names import rename_heads
from anyscore.ops import Array, load

_xp = load("mxnet")


class _Projecting(Layer):
    """A layer with linear layers around an attention layer."""

    def __init__(
        self,
        sizes: HeadSizes | QKVSizes,
        score: AnyScore,
        dropout: float,
        bias: bool,
        impl: str,
        prefix: str | None,
        params: Any,
        **numbers: float,
    ) -> None:
        super().__init__(prefix=prefix, params=params)
        self.dropout, self._sizes = dropout, sizes
        with self.name_scope():
            for name in sizes.linears:
                setattr(self, name, Weight(name, bias=bias))
            own = {**(sizes.score if is_named(score) else {}), **numbers}
            self.attention = Attention(
                score, dropout=dropout, impl=impl, prefix="attention_", **own
            )
        for name, init in starts(sizes.linears, bias).items():
            layer, _, kind = name.partition(".")
            self._children[layer].bind(init, kind)

    @property
    def attention_weights(self) -> Array | None:
        """Weights (batch, heads, T_q, T_k), or without heads, as of `Attention`."""
        return self.attention.attention_weights

    def renamed(self, arrays: dict[str, Any]) -> dict[str, Any]:
        rename_heads(arrays, "", self._sizes.linears, self.attention._spec)
        return arrays

    def _attend(
        self, weights: Mapping[str, Array], mode: Mode, valid_lens: Any, mask: Any, *inputs: Any
    ) -> Array:
        """The whole layer, with the parameters of the inner one among the weights."""
        start = "attention."
        own = {x.removeprefix(start): y for x, y in weights.items() if x.startswith(start)}

        def attention(*projected: Any) -> Array:
            return self.attention.compute(own, mode, *projected, valid_lens, mask)

        return self._sizes.attend(_xp, partial(linear, _xp, weights), attention, *inputs)


class SelfAttention(_Projecting):
    """Attention of a sequence to itself, by one fused projection to queries, keys and values.

    Args:
        embedding_size: width d of the input.
        d_k, d_v: widths of queries and keys, and of values (d if left out). Without a bias the
            projection has d · (2 · d_k + d_v) parameters.
        score, impl, numbers: as for `Attention`; the score meets projected queries and keys.
        project_output: add a linear layer from d_v to d.
    """

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
        impl: str = "auto",
        prefix: str | None = None,
        params: Any = None,
        **numbers: float,
    ) -> None:
        sizes = QKVSizes(embedding_size, d_k, d_v=d_v, project_output=project_output)
        super().__init__(sizes, score, dropout, bias, impl, prefix, params, **numbers)

    def __call__(self, x: Array, valid_lens: Any = None, *, mask: Any = None) -> Array:
        """x (..., T, d) → (..., T, d_v), or (..., T, d) with `project_output`."""
        return super().__call__(x, valid_lens, mask)

    def shape_of(self, *given: Any) -> tuple[int, ...]:
        x = given[0]
        check_tensors(_xp, x, x, x)
        return (*x.shape[:-1], self._sizes.output_width)

    def compute(self, weights: Mapping[str, Array], mode: Mode, *given: Any) -> Array:
        x, valid_lens, mask = given
        check_tensors(_xp, x, x, x)
        return self._attend(weights, mode, valid_lens, mask, as_np(x))


class MultiHeadAttention(_Projecting):
    """Attention in several heads, of a sequence to itself or to another, with any score.

    Args:
        embedding_size: width d of the output; each head has d / n_heads.
        n_heads: query heads; kv_heads: key and value heads, fewer if they divide n_heads.
        score, impl, numbers: as for `Attention`; each head has parameters of its own for the score,
            which meets projected queries and keys.
        d_q, d_k, d_v: widths of queries, keys and values, d if left out.
        bias, project_output: without both, and with kv_heads = n_heads, the projections have
            d · (d_q + d_k + d_v) parameters.
    """

    _sizes: HeadSizes

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
        impl: str = "auto",
        prefix: str | None = None,
        params: Any = None,
        **numbers: float,
    ) -> None:
        widths: dict[str, Any] = {"d_q": d_q, "d_k": d_k, "d_v": d_v, "kv_heads": kv_heads}
        sizes = HeadSizes(embedding_size, n_heads, project_output=project_output, **widths)
        super().__init__(sizes, score, dropout, bias, impl, prefix, params, **numbers)

    def __call__(
        self,
        queries: Array,
        keys: Array | PreparedKeys | None = None,
        values: Array | None = None,
        valid_lens: Any = None,
        *,
        mask: Any = None,
    ) -> Array:
        """(batch, T_q, d_q), (batch, T_k, d_k), (batch, T_k, d_v) → (batch, T_q, d).

        keys default to queries, values to keys. A boolean mask has four axes or two, heads third
        from the end.
        """
        if values is None and isinstance(keys, PreparedKeys):
            raise ValueError("prepared keys are projected already: pass values beside them.")
        return super().__call__(queries, keys, values, valid_lens, mask)

    def prepare_keys(
        self, keys: Array, valid_lens: Any = None, *, mask: Any = None
    ) -> PreparedKeys:
        """As of `Attention`, of keys (batch, T_k, d_k) that the layer projects."""
        projected = linear(_xp, self.values(keys.ctx), as_np(keys), "W_k")
        keys = split(_xp, projected, self._sizes.kv_heads)
        return self.attention.prepare_keys(keys, valid_lens, mask=mask)

    def bind(self, *given: Any) -> None:
        queries, keys, values = self._three(*given[:3])
        keys = keys.key if isinstance(keys, PreparedKeys) else keys
        find_framework(queries=queries, keys=keys, values=values)

    def shape_of(self, *given: Any) -> tuple[int, ...]:
        queries, keys, values = self._three(*given[:3])
        q, k, v, _ = read(_xp, self._sizes.n_heads, queries, keys, values, None, None)
        sizes = check_tensors(_xp, q, k, v)
        return (*sizes.lead, sizes.queries, self._sizes.output_width)

    def compute(self, weights: Mapping[str, Array], mode: Mode, *given: Any) -> Array:
        queries, keys, values = map(as_np, self._three(*given[:3]))
        valid_lens, mask = given[3:]
        queries, keys, values, mask = read(
            _xp, self._sizes.n_heads, queries, keys, values, valid_lens, mask
        )
        return self._attend(weights, mode, None, mask, queries, keys, values)

    @staticmethod
    def _three(queries: Any, keys: Any, values: Any) -> tuple[Any, Any, Any]:
        keys = queries if keys is None else keys
        return queries, keys, keys if values is None else values
