"""The base of layers with projections of queries, keys and values."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from anyscore.layers.heads import HeadSizes, QKVSizes, inner_sizes
from anyscore.layers.last_weights import LastWeights
from anyscore.layers.parameters import AnyScore, makes_parameters
from anyscore.layers.state_dicts import rename_legacy_heads
from anyscore.torch.attention import Attention
from anyscore.torch.layer import Layer


class Projecting(Layer, LastWeights[Tensor]):
    """A layer with linear layers around an `Attention`.

    `nn.Module` comes first: libraries such as FSDP2 set `__class__` to a class of two bases.
    """

    W_o: nn.Linear | None

    def __init__(
        self,
        sizes: HeadSizes | QKVSizes,
        score: AnyScore,
        dropout: float,
        bias: bool,
        device: Any,
        dtype: torch.dtype | None,
        **options: Any,
    ) -> None:
        super().__init__()
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self._sizes, self.W_o = sizes, None
        for name, (outputs, inputs) in sizes.linears.items():
            setattr(self, name, nn.Linear(inputs, outputs, bias=bias, **factory))
        sink = options.get("sink")
        inner = inner_sizes(sizes, score, sink)
        inner |= factory if makes_parameters(score, sink) else {}
        self.attention = Attention(score, dropout=dropout, **{**inner, **options})

    def _project(self, x: Tensor, name: str) -> Tensor:
        return cast(Tensor, getattr(self, name)(x))

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        rename_legacy_heads(state_dict, prefix, self._sizes.linears)
        super()._load_from_state_dict(state_dict, prefix, *args)
