"""Layers that project queries, keys and values themselves, in one head or several."""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from anyscore.cache import PreparedKeys
from anyscore.heads import Fused, Heads, read, rename, split
from anyscore.layers import AnyScore, is_named
from anyscore.ops import load
from anyscore.torch.attention import Attention
from anyscore.torch.layer import Layer

_xp = load("torch")


class _Projecting(Layer):
    """A layer with linear layers around an `Attention`."""

    W_o: nn.Linear | None

    def __init__(
        self,
        sizes: Heads | Fused,
        score: AnyScore,
        dropout: float,
        bias: bool,
        device: Any,
        dtype: torch.dtype | None,
        **numbers: float,
    ) -> None:
        super().__init__()
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        self._sizes, self.W_o = sizes, None
        for name, (outputs, inputs) in sizes.linears.items():
            setattr(self, name, nn.Linear(inputs, outputs, bias=bias, **made))
        own = {**({**sizes.score, **made} if is_named(score) else {}), **numbers}
        self.attention = Attention(score, dropout=dropout, **own)

    @property
    def attention_weights(self) -> Tensor | None:
        """Weights (batch, heads, T_q, T_k), or without heads, as of `Attention`."""
        return self.attention.attention_weights

    def _project(self, x: Tensor, name: str) -> Tensor:
        return cast(Tensor, getattr(self, name)(x))

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        rename(state_dict, prefix, self._sizes.linears)
        super()._load_from_state_dict(state_dict, prefix, *args)


class SelfAttention(_Projecting):
    """Attention of a sequence to itself, by one fused projection to queries, keys and values.

    Args:
        embedding_size: width d of the input.
        d_k, d_v: widths of queries and keys, and of values (d if left out). Without a bias the
            projection has d · (2 · d_k + d_v) parameters.
        score, numbers: as for `Attention`; the score meets projected queries and keys.
        project_output: add a linear layer from d_v to d.
    """

    _sizes: Fused
    qkv: nn.Linear

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
        sizes = Fused(embedding_size, d_k, d_v=d_v, project_output=project_output)
        super().__init__(sizes, score, dropout, bias, device, dtype, **numbers)

    def forward(self, x: Tensor, valid_lens: Any = None, *, mask: Any = None) -> Tensor:
        """x (..., T, d) → (..., T, d_v), or (..., T, d) with `project_output`."""
        queries, keys, values = self.qkv(x).split(self._sizes.widths, dim=-1)
        output = self.attention(queries, keys, values, valid_lens, mask=mask)
        return output if self.W_o is None else cast(Tensor, self.W_o(output))


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
    """

    _sizes: Heads

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
        widths: dict[str, Any] = {"d_q": d_q, "d_k": d_k, "d_v": d_v, "kv_heads": kv_heads}
        sizes = Heads(embedding_size, n_heads, project_output=project_output, **widths)
        super().__init__(sizes, score, dropout, bias, device, dtype, **numbers)
        self.n_heads, self.kv_heads = sizes.n_heads, sizes.kv_heads

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
        attention = partial(self.attention, mask=mask)
        output = self._sizes.attend(_xp, self._project, attention, queries, keys, values)
        return cast(Tensor, output)

    def prepare_keys(
        self, keys: Tensor, valid_lens: Any = None, *, mask: Any = None
    ) -> PreparedKeys:
        """As of `Attention`, of keys (batch, T_k, d_k) that the layer projects."""
        keys = split(_xp, self._project(keys, "W_k"), self.kv_heads)
        return self.attention.prepare_keys(keys, valid_lens, mask=mask)
