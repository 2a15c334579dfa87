"""Layers with projections of queries, keys and values, in one head or several."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from numbers import Integral
from typing import Any, ClassVar

import keras

from anyscore.keras.arguments import OURS, Shape, check_shapes, output_shape, shapes, three
from anyscore.keras.layer import BACKEND, register, xp
from anyscore.keras.masks import masks
from anyscore.keras.projecting import Attending, Projecting
from anyscore.layers import heads
from anyscore.layers.course import multi_head
from anyscore.layers.heads import HeadSizes, QKVSizes, linear
from anyscore.layers.parameters import AnyScore
from anyscore.layers.texts import with_texts
from anyscore.ops.checks import check_size


@register
@with_texts
class SelfAttention(Projecting):
    """Attention of a sequence to itself, with one fused projection to queries, keys and values.

        output = attention(x W_q, x W_k, x W_v)

    Args:
        {self_attention}

    {errors}

    >>> import numpy as np
    >>> from anyscore.keras import SelfAttention
    >>> layer = SelfAttention(8, 3, score="gaussian")
    >>> tuple(layer(np.ones((2, 5, 8)), valid_lens=[2, 5]).shape)
    (2, 5, 8)
    """

    by_position = "x", "valid_lens"
    takes_packed = BACKEND == "torch"
    names_of_keras: ClassVar[dict[str, str]] = {
        name: "x_mask" if name.endswith("_mask") else "x" for name in OURS
    }
    sizes: QKVSizes

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
        **options: Any,
    ) -> None:
        sizes: dict[str, Any] = {"embedding_size": embedding_size, "d_k": d_k, "d_v": d_v}
        sizes |= {"project_output": project_output}
        arguments = {**sizes, "score": score, "dropout": dropout, "bias": bias}
        super().__init__(QKVSizes(**sizes), arguments, options)

    def known_shapes(self) -> list[Shape]:
        """Return shapes to build the layer with."""
        return [(None, None, self.sizes.linears["qkv"][1])]

    def build(  # type: ignore[override]
        self, x_shape: Any = None, **of_keras: Any
    ) -> None:
        """Create the parameters. The shape has anyscore's name or Keras's, input_shape= included.

        Raises:
            TypeError, ValueError: a shape that does not fit the sizes of the layer.
        """
        super().build(x_shape, **of_keras)

    def complete(self, x: Any, *others: Any) -> tuple[Any, Any, Any]:
        """Return the input, or its shape, three times."""
        return x, x, x

    def check(self, x: Shape, *others: Shape) -> None:
        """Check the shape against the sizes of the layer.

        Raises:
            ValueError: a shape that does not fit.
        """
        width = self.sizes.linears["qkv"][1]
        check_shapes((width, width, width), x, x, x)

    def make_all(self, *shapes: Shape) -> None:
        """Create all parameters."""
        self.make_linears()
        self.attention.build(*((None, None, n) for n in self.sizes.widths))

    def call(
        self,
        x: Any,
        valid_lens: Any = None,
        *,
        mask: Any = None,
        bias: Any = None,
        bias_after: Any = None,
        attention_mask: Any = None,
        return_attention_scores: bool = False,
        use_causal_mask: bool = False,
        x_mask: Any = None,
    ) -> Any:
        """Attend from x to itself.

        Args:
            x: (..., T, d).
            valid_lens, mask, bias, bias_after, attention_mask: as for `Attention`.
            return_attention_scores: True also returns the weights (..., T, T), before dropout.
            use_causal_mask: True lets query i attend keys 0 … i alone. By default False.
            x_mask: padding mask (batch, T), passed by Keras.

        Returns:
            The output (..., T, d_v), or (..., T, d) with `project_output`; or (output, weights).

        Raises:
            TypeError, ValueError: As `anyscore.attention`; or the width is not that of the layer.
        """
        self.check(*shapes(x))
        padding = x_mask, x_mask, None
        by_wrapper = not self.record.calls
        both = masks(
            x, (x, x, x), mask, padding, attention_mask, use_causal_mask, False, by_wrapper
        )
        attention = Attending(
            self.attention,
            return_attention_scores,
            valid_lens=valid_lens,
            mask=both,
            bias=bias,
            bias_after=bias_after,
        )
        output = self.sizes.attend(xp, partial(linear, xp, self.current()), attention, x)
        return attention.result(output)

    def shape_of_output(self, x: Shape, *others: Shape) -> Shape:
        """Return the shape of the output."""
        return (*x[:-1], self.sizes.output_width)

    def shape_of_weights(self, x: Shape, *others: Shape) -> Shape:
        """Return the shape of the weights, (..., T, T)."""
        return (*x[:-1], x[-2])


@register
@with_texts
class MultiHeadAttention(Projecting):
    """Attention in several heads, of a sequence to itself or to another, with any score.

        head_h = attention(queries W_q^h, keys W_k^h, values W_v^h)
        output = [head_1; …; head_n] W_o

    {book_arguments}

    Args:
        {multi_head}
        output_shape: the last axes of the output in place of d, as in Keras: one width or several.
            By default None.

    {multi_head_errors}

    Source: Vaswani et al. 2017, Attention Is All You Need, section 3.2.2.

    >>> import numpy as np
    >>> from anyscore.keras import MultiHeadAttention
    >>> layer = MultiHeadAttention(12, 3, score="additive")
    >>> tuple(layer(np.ones((2, 5, 12)), use_causal_mask=True).shape)
    (2, 5, 12)
    """

    sizes: HeadSizes

    @multi_head
    def __init__(
        self,
        embedding_size: int,
        n_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        *,
        kv_heads: int | None = None,
        score: AnyScore = "scaled_dot",
        d_q: int | None = None,
        d_k: int | None = None,
        d_v: int | None = None,
        project_output: bool = True,
        output_shape: int | Sequence[int] | None = None,
        **options: Any,
    ) -> None:
        sizes: dict[str, Any] = {"embedding_size": embedding_size, "n_heads": n_heads}
        sizes |= {"kv_heads": kv_heads, "d_q": d_q, "d_k": d_k, "d_v": d_v}
        sizes |= {"project_output": project_output}
        arguments = {**sizes, "score": score, "dropout": dropout, "bias": bias}
        axes = _axes(output_shape, project_output)
        arguments["output_shape"] = axes or None
        width = math.prod(axes) if axes else None
        super().__init__(HeadSizes(**sizes, output_width=width), arguments, options)
        self._last_axes = axes or (self.sizes.output_width,)

    def known_shapes(self) -> list[Shape]:
        """Return shapes to build the layer with."""
        return [(None, None, width) for width in self._widths]

    def complete(self, queries: Any, keys: Any, values: Any) -> tuple[Any, Any, Any]:
        """Return (queries, keys, values), or their shapes; keys are by default the queries."""
        return heads.complete(queries, keys, values)

    def check(self, queries: Shape, keys: Shape, values: Shape) -> None:
        """Check shapes against the sizes of the layer.

        Raises:
            ValueError: shapes that do not fit.
        """
        check_shapes(self._widths, queries, keys, values)

    def make_all(self, *shapes: Shape) -> None:
        """Create all parameters."""
        self.make_linears()
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
        bias: Any = None,
        bias_after: Any = None,
        attention_mask: Any = None,
        return_attention_scores: bool = False,
        use_causal_mask: bool = False,
        queries_mask: Any = None,
        keys_mask: Any = None,
        values_mask: Any = None,
    ) -> Any:
        """Attend in all heads.

        Args:
            queries: (batch, T_q, d_q); or one list, or Keras's names, as for `Attention`.
            keys: (batch, T_k, d_k). By default None, the queries.
            values: (batch, T_k, d_v). By default None, the keys.
            valid_lens: as for `anyscore.attention`.
            mask, attention_mask: as for `Attention`. Booleans are (T_q, T_k), (batch, T_q, T_k)
                for all heads, or have heads at axis −3.
            bias, bias_after: as for `Attention`, with heads at axis −3.
            return_attention_scores: True returns (output, weights (batch, heads, T_q, T_k)).
            use_causal_mask: True lets query i attend keys 0 … i alone. By default False.
            queries_mask, keys_mask, values_mask: padding masks (batch, T), passed by Keras.

        Returns:
            The output (batch, T_q, d), or (output, weights) with `return_attention_scores`.

        Raises:
            TypeError, ValueError: As `anyscore.attention`; or widths are not those of the layer.
        """
        is_alone = keys is None and not isinstance(queries, list | tuple)
        if is_alone and keys_mask is None:
            keys_mask = queries_mask
        by_wrapper = not self.record.calls if is_alone else None
        q, k, v = self.complete(*three(queries, keys, values))
        self.check(*shapes(q, k, v))
        padding = queries_mask, keys_mask, values_mask
        both = masks(
            queries, (q, k, v), mask, padding, attention_mask, use_causal_mask, True, by_wrapper
        )
        current = self.current()
        q, k, v, lowered = heads.mask_inputs(
            xp, self.sizes.n_heads, q, k, v, valid_lens, both, current.values()
        )
        options = {"mask": lowered, "bias": bias, "bias_after": bias_after}
        attention = Attending(self.attention, return_attention_scores, **options)
        output = self.sizes.attend(xp, partial(linear, xp, current), attention, q, k, v)
        if len(self._last_axes) > 1:
            output = keras.ops.reshape(output, (*keras.ops.shape(output)[:-1], *self._last_axes))
        return attention.result(output)

    def shape_of_output(self, queries: Shape, keys: Shape, values: Shape) -> Shape:
        """Return the shape of the output."""
        return (*output_shape(queries, keys, values)[:-1], *self._last_axes)

    def shape_of_weights(self, queries: Shape, keys: Shape, values: Shape) -> Shape:
        """Return the shape of the weights, (batch, heads, T_q, T_k)."""
        *lead, tokens, _ = output_shape(queries, keys, values)
        return (*lead, self.sizes.n_heads, tokens, keys[-2])

    @property
    def _widths(self) -> tuple[int, int, int]:
        """Return the widths of queries, keys and values, from the weights of the layer."""
        of_queries, of_keys, of_values = (
            self.sizes.linears[name][1] for name in ("W_q", "W_k", "W_v")
        )
        return of_queries, of_keys, of_values


def _axes(given: int | Sequence[int] | None, project_output: bool) -> tuple[int, ...]:
    """Return the last axes of an output from output_shape=; an empty tuple for None."""
    if given is None:
        return ()
    if not project_output:
        raise ValueError("output_shape: of the output projection; leave out project_output=False.")
    axes = tuple(given) if isinstance(given, list | tuple) else (given,)
    if not all(isinstance(n, Integral) for n in axes):
        raise TypeError(f"output_shape must be an integer or a tuple of integers, got {given!r}.")
    check_size(output_shape=min(axes, default=0))
    return axes
