"""The classes of *Dive into Deep Learning*, for the `Attention` of any framework.

A framework's class of the same name inherits from the class here, and then from `Attention`.
"""

from __future__ import annotations

from typing import Any


class DotProductAttention:
    """Constructor of `DotProductAttention` in every framework."""

    def __init__(self, dropout: float = 0.0, **options: Any) -> None:
        super().__init__("scaled_dot", dropout=dropout, **options)  # type: ignore[call-arg]


class AdditiveAttention:
    """Constructor of `AdditiveAttention` in every framework."""

    def __init__(
        self,
        num_hiddens: int,
        dropout: float = 0.0,
        *,
        query_size: int | None = None,
        key_size: int | None = None,
        bias: bool = False,
        **options: Any,
    ) -> None:
        sizes: dict[str, Any] = {"hidden": num_hiddens, "d_q": query_size, "d_k": key_size}
        super().__init__("additive", dropout=dropout, bias=bias, **sizes, **options)  # type: ignore[call-arg]


class MLPAttention(AdditiveAttention):
    """Constructor of `MLPAttention` in every framework."""

    def __init__(self, units: int, dropout: float = 0.0, **options: Any) -> None:
        super().__init__(units, dropout, **options)
