"""The classes of *Dive into Deep Learning*, for the `Attention` of any framework.

A framework's class of the same name inherits from the class here, and then from `Attention`.
"""

from __future__ import annotations

from typing import Any


class DotProductAttention:
    """Scaled dot-product attention, under its name in *Dive into Deep Learning*.

    options: as for `Attention`.
    """

    def __init__(self, dropout: float = 0.0, **options: Any) -> None:
        super().__init__("scaled_dot", dropout=dropout, **options)  # type: ignore[call-arg]


class AdditiveAttention:
    """Additive attention, under its name in *Dive into Deep Learning*.

    num_hiddens: width of the hidden layer.
    query_size, key_size: widths of queries and keys; inferred from the first inputs if left out.
    dropout, bias, options: as for `Attention`.
    """

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
    """Additive attention under its earlier name: score(q, k) = vᵀ tanh(W_k k + W_q q).

    units: width of the hidden layer. dropout, options: as for `AdditiveAttention`.
    """

    def __init__(self, units: int, dropout: float = 0.0, **options: Any) -> None:
        super().__init__(units, dropout, **options)
