"""Layers with projections of queries, keys and values, in one head or several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from anyscore.backends.mxnet import as_np
from anyscore.functional.cache.prepare import PreparedKeys
from anyscore.layers.course import multi_head
from anyscore.layers.heads import (
    HeadSizes,
    QKVSizes,
    complete,
    initializers,
    inner_sizes,
    linear,
    mask_inputs,
)
from anyscore.layers.last_weights import LastWeights
from anyscore.layers.parameters import AnyScore
from anyscore.layers.state_dicts import rename_legacy_heads
from anyscore.layers.texts import with_texts
from anyscore.mxnet.attention import Attention
from anyscore.mxnet.layer import Layer
from anyscore.mxnet.symbolic import Mode
from anyscore.mxnet.weight import Weight
from anyscore.ops import Array, load
from anyscore.ops.checks import check_tensors, find_framework

_xp = load("mxnet")


class _Projecting(LastWeights[Array], Layer):
    """A layer with linear layers around an `Attention`."""

    def __init__(
        self,
        sizes: HeadSizes | QKVSizes,
        score: AnyScore,
        dropout: float,
        bias: bool,
        prefix: str | None,
        params: Any,
        **options: Any,
    ) -> None:
        super().__init__(prefix=prefix, params=params)
        self.dropout, self._sizes = dropout, sizes
        with self.name_scope():
            for name in sizes.linears:
                setattr(self, name, Weight(name, bias=bias))
            options = {**inner_sizes(sizes, score, options.get("sink")), **options}
            self.attention = Attention(score, dropout=dropout, prefix="attention_", **options)
        for name, init in initializers(sizes.linears, bias).items():
            layer, _, kind = name.partition(".")
            self._children[layer].bind(init, kind)

    def _rename_legacy_keys(self, arrays: dict[str, Any]) -> None:
        rename_legacy_heads(arrays, "", self._sizes.linears, self.attention._spec)

    def _attend(
        self, weights: Mapping[str, Array], mode: Mode, others: Sequence[Any], *inputs: Any
    ) -> Array:
        """Compute the whole layer.

        weights: parameters of both layers, by name. others: lengths, mask and biases.
        """
        start = "attention."
        inner = {x.removeprefix(start): y for x, y in weights.items() if x.startswith(start)}

        def attention(*projected: Any) -> Array:
            return self.attention.compute(inner, mode, *projected, *others)

        return self._sizes.attend(_xp, partial(linear, _xp, weights), attention, *inputs)


@with_texts
class SelfAttention(_Projecting):
    """Attention of a sequence to itself, with one fused projection to queries, keys and values.

        output = attention(x W_q, x W_k, x W_v)

    Args:
        {self_attention}
        prefix, params: as for every Gluon block. By default None.

    {errors}

    >>> import mxnet as mx
    >>> from anyscore.mxnet import SelfAttention
    >>> layer = SelfAttention(8, 3, score="gaussian")
    >>> layer.initialize()
    >>> layer(mx.nd.ones((2, 5, 8)), valid_lens=[2, 5]).shape
    (2, 5, 8)
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
        prefix: str | None = None,
        params: Any = None,
        **options: Any,
    ) -> None:
        sizes = QKVSizes(embedding_size, d_k, d_v=d_v, project_output=project_output)
        super().__init__(sizes, score, dropout, bias, prefix, params, **options)

    def __call__(
        self,
        x: Array,
        valid_lens: Any = None,
        *,
        mask: Any = None,
        bias: Any = None,
        bias_after: Any = None,
    ) -> Array:
        """Attend from x to itself.

        Args:
            x: (..., T, d).
            valid_lens, mask, bias, bias_after: as for `Attention`.

        Returns:
            The output (..., T, d_v), or (..., T, d) with `project_output`.

        Raises:
            TypeError, ValueError: As `anyscore.attention`.
        """
        return super().__call__(x, valid_lens, mask, bias, bias_after)

    def shape_of(self, *args: Any) -> tuple[int, ...]:
        """Return the shape of the output for NumPy arguments."""
        x = args[0]
        check_tensors(_xp, x, x, x)
        return (*x.shape[:-1], self._sizes.output_width)

    def compute(self, weights: Mapping[str, Array], mode: Mode, *args: Any) -> Array:
        """Compute the output for the arguments of `forward`. weights: the parameters by name.

        Raises:
            TypeError, ValueError: as `anyscore.attention`.
        """
        x, *others = args
        check_tensors(_xp, x, x, x)
        return self._attend(weights, mode, others, as_np(x))


@with_texts
class MultiHeadAttention(_Projecting):
    """Attention in several heads, of a sequence to itself or to another, with any score.

        head_h = attention(queries W_q^h, keys W_k^h, values W_v^h)
        output = [head_1; …; head_n] W_o

    {book_arguments}

    Args:
        {multi_head}
        prefix, params: as for every Gluon block. By default None.

    {multi_head_errors}

    Source: Vaswani et al. 2017, Attention Is All You Need, section 3.2.2.

    >>> import mxnet as mx
    >>> from anyscore.mxnet import MultiHeadAttention
    >>> layer = MultiHeadAttention(16, 4, score="additive")
    >>> layer.initialize()
    >>> layer(mx.nd.ones((2, 3, 16)), mx.nd.ones((2, 10, 16)), valid_lens=[2, 6]).shape
    (2, 3, 16)
    """

    _sizes: HeadSizes

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
        prefix: str | None = None,
        params: Any = None,
        **options: Any,
    ) -> None:
        widths: dict[str, Any] = {"d_q": d_q, "d_k": d_k, "d_v": d_v, "kv_heads": kv_heads}
        sizes = HeadSizes(embedding_size, n_heads, project_output=project_output, **widths)
        super().__init__(sizes, score, dropout, bias, prefix, params, **options)

    def __call__(
        self,
        queries: Array,
        keys: Array | PreparedKeys | None = None,
        values: Array | None = None,
        valid_lens: Any = None,
        *,
        mask: Any = None,
        bias: Any = None,
        bias_after: Any = None,
    ) -> Array:
        """Attend in all heads.

        Args:
            queries: (batch, T_q, d_q).
            keys: (batch, T_k, d_k), or `PreparedKeys`. By default None, the queries.
            values: (batch, T_k, d_v). By default None, the keys.
            valid_lens, mask, bias, bias_after: as for `Attention`. A boolean mask has two or four
                axes; axis −3 of masks and biases is heads.

        Returns:
            The output (batch, T_q, d).

        Raises:
            TypeError, ValueError: As `anyscore.attention`; or keys are prepared, and values are
                missing.
        """
        return super().__call__(queries, keys, values, valid_lens, mask, bias, bias_after)

    @with_texts
    def prepare_keys(
        self, keys: Array, valid_lens: Any = None, *, mask: Any = None
    ) -> PreparedKeys:
        """
        {prepare_keys}
        """
        projected = linear(_xp, self.values(keys.ctx), as_np(keys), "W_k")
        keys = self._sizes.split(_xp, projected, "W_k")
        return self.attention.prepare_keys(keys, valid_lens, mask=mask)

    def bind(self, *args: Any) -> None:
        """Check that queries, keys and values are arrays of one framework."""
        queries, keys, values = complete(*args[:3])
        keys = keys.key if isinstance(keys, PreparedKeys) else keys
        find_framework(queries=queries, keys=keys, values=values)

    def shape_of(self, *args: Any) -> tuple[int, ...]:
        """Return the shape of the output for NumPy arguments."""
        queries, keys, values = complete(*args[:3])
        q, k, v, _ = mask_inputs(_xp, self._sizes.n_heads, queries, keys, values, None, None, ())
        sizes = check_tensors(_xp, q, k, v)
        return (*sizes.lead, sizes.queries, self._sizes.output_width)

    def compute(self, weights: Mapping[str, Array], mode: Mode, *args: Any) -> Array:
        """Compute the output for the arguments of `forward`. weights: the parameters by name.

        Raises:
            TypeError, ValueError: as `anyscore.attention`.
        """
        queries, keys, values = map(as_np, complete(*args[:3]))
        valid_lens, mask, *biases = args[3:]
        queries, keys, values, mask = mask_inputs(
            _xp, self._sizes.n_heads, queries, keys, values, valid_lens, mask, weights.values()
        )
        return self._attend(weights, mode, (None, mask, *biases), queries, keys, values)
