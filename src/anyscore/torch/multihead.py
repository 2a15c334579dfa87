"""Layers that project queries, keys and values themselves, in one head or several."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from typing import Any, cast

import torch
from torch import Tensor, nn

from anyscore.cache import PreparedKeys
from anyscore.checks import check_size, check_tensors
from anyscore.masks import Keep, Mask, parts
from anyscore.ops import load
from anyscore.seams.torch_modes import differentiable
from anyscore.task import Lowered, lower
from anyscore.torch.attention import AnyScore, Attention, is_named
from anyscore.unread import zero

_xp = load("torch")


class SelfAttention(nn.Module):
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


class MultiHeadAttention(nn.Module):
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
        check_size(embedding_size=embedding_size, n_heads=n_heads, kv_heads=kv_heads)
        check_size(d_q=d_q, d_k=d_k, d_v=d_v)
        kv_heads = n_heads if kv_heads is None else kv_heads
        if embedding_size % n_heads or n_heads % kv_heads:
            raise ValueError(
                f"n_heads={n_heads} must divide embedding_size={embedding_size}, and "
                f"kv_heads={kv_heads} must divide n_heads."
            )
        head = embedding_size // n_heads
        self.n_heads, self.kv_heads = n_heads, kv_heads
        self.W_q = nn.Linear(d_q or embedding_size, n_heads * head, bias=bias, **made)
        self.W_k = nn.Linear(d_k or embedding_size, kv_heads * head, bias=bias, **made)
        self.W_v = nn.Linear(d_v or embedding_size, kv_heads * head, bias=bias, **made)
        self.W_o = (
            nn.Linear(embedding_size, embedding_size, bias=bias, **made) if project_output else None
        )
        sizes: dict[str, Any] = {"d_q": head, "d_k": head, "projected": True, **made}
        sizes |= {"heads": n_heads, "kv_heads": kv_heads}
        own = {**(sizes if is_named(score) else {}), **numbers}
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
        queries, keys, values, read = self._read(queries, keys, values, valid_lens, mask)
        if not isinstance(keys, PreparedKeys):
            keys = self._heads(self.W_k(keys), self.kv_heads)
        output = self.attention(
            self._heads(self.W_q(queries), self.n_heads),
            keys,
            self._heads(self.W_v(values), self.kv_heads),
            mask=read,
        )
        output = output.transpose(-3, -2).flatten(-2)
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
            self._heads(self.W_k(keys), self.kv_heads), valid_lens, mask=mask
        )

    def _read(
        self,
        queries: Tensor,
        keys: Tensor | PreparedKeys,
        values: Tensor,
        valid_lens: Any,
        mask: Any,
    ) -> tuple[Tensor, Tensor | PreparedKeys, Tensor, Mask | None]:
        """The three with the rows zeroed that no head reads, so that projections do not either.

        And the mask, lowered.
        """
        tensors = {"queries": queries, "keys": keys, "values": values}
        for name, x in tensors.items():
            if isinstance(x, Tensor) and x.dim() < 3:
                raise ValueError(
                    f"{name} has shape {tuple(x.shape)}, expected (batch, tokens, width)."
                )
        for part in parts(mask):
            if isinstance(part, Keep) and len(getattr(part.keep, "shape", ())) == 3:
                raise ValueError(
                    f"mask has shape {tuple(part.keep.shape)}, expected (T_q, T_k) or four axes "
                    "with heads third from the end: for a mask without heads pass mask[:, None]."
                )
        q, k, v = (
            x.key if isinstance(x, PreparedKeys) else x.unsqueeze(-3) for x in tensors.values()
        )
        sizes = check_tensors(_xp, q, k, v)
        sizes = replace(sizes, lead=(*sizes.lead[:-1], self.n_heads))
        attendable = lower(_xp, sizes, q, mask, valid_lens)
        if attendable is None:
            return queries, keys, values, None
        if differentiable(chain((q, k, v), self.parameters())):
            by_queries, of_keys = attendable.used(_xp, sizes.keys)
            queries = zero(_xp, q, by_queries)[0].squeeze(-3)
            values = zero(_xp, v, of_keys)[0].squeeze(-3)
            if not isinstance(keys, PreparedKeys):
                keys = zero(_xp, k, of_keys)[0].squeeze(-3)
        return queries, keys, values, Lowered(attendable)

    @staticmethod
    def _heads(x: Tensor, heads: int) -> Tensor:
        """(batch, T, heads · d) → (batch, heads, T, d)."""
        return x.reshape(*x.shape[:-1], heads, -1).transpose(-3, -2)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        sizes = [layer.out_features for layer in (self.W_q, self.W_k, self.W_v)]
        for old, kind in _FUSED.items():
            fused = state_dict.get(prefix + old)
            if fused is not None and fused.shape[0] == sum(sizes):
                del state_dict[prefix + old]
                for name, part in zip(("W_q", "W_k", "W_v"), fused.split(sizes), strict=True):
                    state_dict[f"{prefix}{name}.{kind}"] = part.clone()
        for old, ours in _OLD_NAMES.items():
            if prefix + old in state_dict:
                state_dict[prefix + ours] = state_dict.pop(prefix + old)
        super()._load_from_state_dict(state_dict, prefix, *args)


_FUSED = {
    "_MultiHeadAttention__qkv.weight": "weight",
    "_MultiHeadAttention__qkv.bias": "bias",
    "in_proj_weight": "weight",
    "in_proj_bias": "bias",
}
"""Fused projections of other multi-head layers, torch.nn.MultiheadAttention among them."""

_OLD_NAMES = {
    "q_proj_weight": "W_q.weight",
    "k_proj_weight": "W_k.weight",
    "v_proj_weight": "W_v.weight",
    "out_proj.weight": "W_o.weight",
    "out_proj.bias": "W_o.bias",
    "_MultiHeadAttention__fc.weight": "W_o.weight",
    "_MultiHeadAttention__fc.bias": "W_o.bias",
}
"""Their other names → ours."""
