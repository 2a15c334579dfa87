"""Layers that project queries, keys and values themselves, in one head or several."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from anyscore.cache import PreparedKeys
from anyscore.checks import check_size
from anyscore.heads import Heads, merge, read, rename, split
from anyscore.layers import AnyScore, is_named
from anyscore.ops import load
from anyscore.torch.attention import Attention
from anyscore.torch.layer import Layer

_xp = load("torch")


class SelfAttention(Layer):
    """Attention of a sequence to itself, by one fused projection to queries, keys and values.

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
        device: Any = None,
        dtype: torch.dtype | None = None,
        **numbers: float,
    ) -> None:
        super().__init__()
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        check_size(embedding_size=embedding_size, d_k=d_k, d_v=d_v)
        d_v = embedding_size if d_v is None else d_v
        self.sizes = [d_k, d_k, d_v]
        self.qkv = nn.Linear(embedding_size, 2 * d_k + d_v, bias=bias, **made)
        sizes: dict[str, Any] = {"d_q": d_k, "d_k": d_k, "projected": True, **made}
        own = {**(sizes if is_named(score) else {}), **numbers}
        self.attention = Attention(score, dropout=dropout, **own)
        self.W_o = nn.Linear(d_v, embedding_size, bias=bias, **made) if project_output else None

    def forward(self, x: Tensor, valid_lens: Any = None, *, mask: Any = None) -> Tensor:
        """x (..., T, d) → (..., T, d_v), or (..., T, d) with `project_output`."""
        queries, keys, values = self.qkv(x).split(self.sizes, dim=-1)
        output = self.attention(queries, keys, values, valid_lens, mask=mask)
        return output if self.W_o is None else cast(Tensor, self.W_o(output))

    @property
    def attention_weights(self) -> Tensor | None:
        """As of `Attention`."""
        return self.attention.attention_weights

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        for kind in ("weight", "bias"):
            old = f"{prefix}_Attention__qkv.{kind}"
            if old in state_dict:
                state_dict[f"{prefix}qkv.{kind}"] = state_dict.pop(old)
        super()._load_from_state_dict(state_dict, prefix, *args)


class MultiHeadAttention(Layer):
    """Attention in several heads, of a sequence to itself or to another, with any score.

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
        device: Any = None,
        dtype: torch.dtype | None = None,
        **numbers: float,
    ) -> None:
        super().__init__()
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        sizes = Heads(
            embedding_size,
            n_heads,
            kv_heads=kv_heads,
            d_q=d_q,
            d_k=d_k,
            d_v=d_v,
            project_output=project_output,
        )
        self.n_heads, self.kv_heads, self._linears = sizes.n_heads, sizes.kv_heads, sizes.linears
        linears = {
            name: nn.Linear(inputs, outputs, bias=bias, **made)
            for name, (outputs, inputs) in sizes.linears.items()
        }
        self.W_q, self.W_k, self.W_v = (linears[name] for name in ("W_q", "W_k", "W_v"))
        self.W_o = linears.get("W_o")
        own = {**({**sizes.score, **made} if is_named(score) else {}), **numbers}
        self.attention = Attention(score, dropout=dropout, **own)

    def forward(
        self,
        queries: Tensor,
        keys: Tensor | PreparedKeys | None = None,
        values: Tensor | None = None,
        valid_lens: Any = None,
        *,
        mask: Any = None,
    ) -> Tensor:
        """(batch, T_q, d_q), (batch, T_k, d_k), (batch, T_k, d_v) → (batch, T_q, d).

        keys default to queries, values to keys. A boolean mask has four axes or two, heads third
        from the end.
        """
        keys = queries if keys is None else keys
        if values is None and isinstance(keys, PreparedKeys):
            raise ValueError("prepared keys are projected already: pass values beside them.")
        values = cast(Tensor, keys) if values is None else values
        queries, keys, values, mask = read(
            _xp, self.n_heads, queries, keys, values, valid_lens, mask
        )
        if not isinstance(keys, PreparedKeys):
            keys = split(_xp, self.W_k(keys), self.kv_heads)
        output = self.attention(
            split(_xp, self.W_q(queries), self.n_heads),
            keys,
            split(_xp, self.W_v(values), self.kv_heads),
            mask=mask,
        )
        output = merge(_xp, output)
        return output if self.W_o is None else cast(Tensor, self.W_o(output))

    @property
    def attention_weights(self) -> Tensor | None:
        """Weights (batch, heads, T_q, T_k), as of `Attention`."""
        return self.attention.attention_weights

    def prepare_keys(
        self, keys: Tensor, valid_lens: Any = None, *, mask: Any = None
    ) -> PreparedKeys:
        """As of `Attention`, of keys (batch, T_k, d_k) that the layer projects."""
        return self.attention.prepare_keys(
            split(_xp, self.W_k(keys), self.kv_heads), valid_lens, mask=mask
        )

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        rename(state_dict, prefix, self._linears)
        super()._load_from_state_dict(state_dict, prefix, *args)
