"""The classes of *Dive into Deep Learning*, each over the `Attention` of any framework.

A class here is the first base of a framework's class of that name, whose second is `Attention`.
"""

from __future__ import annotations

from typing import Any


class DotProductAttention:
    """Scaled dot-product attention, as *Dive into Deep Learning* calls it.

    options: as of `Attention`.
    """

    def __init__(self, dropout: float = 0.0, **options: Any) -> None:
        super().__init__("scaled_dot", dropout=dropout, **options)  # type: ignore[call-arg]


class AdditiveAttention:
    """Additive attention, as *Dive into Deep Learning* calls it.

    num_hiddens: width of the hidden layer. query_size, key_size: widths of queries and keys,
    inferred from the first inputs if left out. dropout, bias, options: as of `Attention`.
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
    """Additive attention under its earlier name, by its formula: vᵀ tanh(W_k k + W_q q).

    units: width of the hidden layer. dropout, options: as of `AdditiveAttention`.
    """

    def __init__(self, units: int, dropout: float = 0.0, **options: Any) -> None:
        super().__init__(units, dropout, **options)
