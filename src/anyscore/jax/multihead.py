"""Layers that project queries, keys and values themselves, in one head or several."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jax import Array

from anyscore import heads
from anyscore.cache import PreparedKeys
from anyscore.checks import check_size
from anyscore.functional import AttentionOutput
from anyscore.heads import Heads, linear, starts
from anyscore.jax.attention import Attention
from anyscore.jax.layer import Layer, Starts
from anyscore.layers import AnyScore, is_named
from anyscore.ops import load

_xp = load("jax")
_INNER = "attention."


class _Projecting(Layer):
    """A layer with linear maps around an `Attention`, whose parameters start with "attention."."""

    attention: Attention

    def __init__(self, linears: dict[str, tuple[int, int]], bias: bool, dtype: Any) -> None:
        super().__init__(dtype)
        self._starts = starts(linears, bias)
        self.linears = linears

    def starts(self, *inputs: Any, **masking: Any) -> Starts:
        inner = {_INNER + name: x for name, x in self.attention.starts().items()}
        return {**self._starts, **inner}

    def names(self) -> list[str]:
        return [*self._starts, *(_INNER + name for name in self.attention.names())]

    def _inner(self, params: Mapping[str, Array]) -> dict[str, Array]:
        return {
            name.removeprefix(_INNER): x for name, x in params.items() if name.startswith(_INNER)
        }


class SelfAttention(_Projecting):
    """Attention of a sequence to itself, by one fused projection to queries, keys and values.

        apply(params, x, valid_lens=None, *, mask=None, …): x (..., T, d) → (..., T, d_v)

    Args:
        embedding_size: width d of the input.
        d_k, d_v: widths of queries and keys, and of values (d if left out). Without a bias the
            projection has d · (2 · d_k + d_v) parameters.
        score, numbers: as for `Attention`; the score meets projected queries and keys.
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
        dtype: Any = "float32",
        **numbers: float,
    ) -> None:
        check_size(embedding_size=embedding_size, d_k=d_k, d_v=d_v)
        d_v = embedding_size if d_v is None else d_v
        linears = {"qkv": (2 * d_k + d_v, embedding_size)}
        if project_output:
            linears["W_o"] = embedding_size, d_v
        super().__init__(linears, bias, dtype)
        self._cuts = d_k, 2 * d_k
        sizes: dict[str, Any] = {"d_q": d_k, "d_k": d_k, "projected": True}
        own = {**(sizes if is_named(score) else {}), **numbers}
        self.attention = Attention(score, dropout=dropout, dtype=dtype, **own)

    def run(
        self,
        params: Mapping[str, Array],
        x: Array,
        valid_lens: Any = None,
        **options: Any,
    ) -> AttentionOutput:
        fused, (first, second) = linear(_xp, x, params, "qkv"), self._cuts
        cut = fused[..., :first], fused[..., first:second], fused[..., second:]
        found = self.attention.run(self._inner(params), *cut, valid_lens, **options)
        if "W_o" not in self.linears:
            return found
        return found._replace(output=linear(_xp, found.output, params, "W_o"))

    def rename(self, state: dict[str, Any]) -> None:
        for name in [name for name in state if name.startswith("_Attention__qkv.")]:
            state[name.removeprefix("_Attention__")] = state.pop(name)


class MultiHeadAttention(_Projecting):
    """Attention in several heads, of a sequence to itself or to another, with any score.

        apply(params, queries, keys=None, values=None, valid_lens=None, *, mask=None, …)

    of (batch, T_q, d_q), (batch, T_k, d_k) and (batch, T_k, d_v) → (batch, T_q, d). keys default to
    queries, values to keys. A boolean mask has four axes or two, heads third from the end.

    Args:
        embedding_size: width d of the output; each head has d / n_heads.
        n_heads: query heads; kv_heads: key and value heads, fewer if they divide n_heads.
        score, numbers: as for `Attention`; each head has parameters of its own for the score, which
            meets projected queries and keys.
        d_q, d_k, d_v: widths of queries, keys and values, d if left out.
        bias, project_output: without both, and with kv_heads = n_heads, the projections have
            d · (d_q + d_k + d_v) parameters.
    """

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
        dtype: Any = "float32",
        **numbers: float,
    ) -> None:
        widths: dict[str, Any] = {"d_q": d_q, "d_k": d_k, "d_v": d_v, "kv_heads": kv_heads}
        self.heads = Heads(embedding_size, n_heads, project_output=project_output, **widths)
        super().__init__(self.heads.linears, bias, dtype)
        own = {**(self.heads.score if is_named(score) else {}), **numbers}
        self.attention = Attention(score, dropout=dropout, dtype=dtype, **own)

    def run(
        self,
        params: Mapping[str, Array],
        queries: Array,
        keys: Array | PreparedKeys | None = None,
        values: Array | None = None,
        valid_lens: Any = None,
        *,
        mask: Any = None,
        **options: Any,
    ) -> AttentionOutput:
        keys = queries if keys is None else keys
        if values is None:
            if isinstance(keys, PreparedKeys):
                raise ValueError("prepared keys are projected already: pass values beside them.")
            values = keys
        queries, keys, values, lowered = heads.read(
            _xp, self.heads.n_heads, queries, keys, values, valid_lens, mask
        )
        found: list[AttentionOutput] = []

        def attention(*projected: Array, mask: Any) -> Array:
            found.append(self.attention.run(self._inner(params), *projected, mask=mask, **options))
            output: Array = found[0].output
            return output

        output = heads.attend(_xp, self.heads, params, queries, keys, values, lowered, attention)
        return found[0]._replace(output=output)

    def prepare_keys(
        self, params: Mapping[str, Array], keys: Array, valid_lens: Any = None, *, mask: Any = None
    ) -> PreparedKeys:
        """As of `Attention`, of keys (batch, T_k, d_k) that the layer projects."""
        projected = heads.split(_xp, linear(_xp, keys, params, "W_k"), self.heads.kv_heads)
        return self.attention.prepare_keys(self._inner(params), projected, valid_lens, mask=mask)

    def rename(self, state: dict[str, Any]) -> None:
        heads.rename(state, "", self.heads.linears)
