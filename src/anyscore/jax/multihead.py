"""Layers with projections of queries, keys and values, in one head or several."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax.numpy as jnp
from jax import Array

from anyscore.functional.attention import AttentionOutput
from anyscore.functional.cache.cache import Cache
from anyscore.functional.cache.make import make_cache
from anyscore.functional.cache.prepare import PreparedKeys
from anyscore.jax.attention import Attention
from anyscore.jax.layer import Initializers, Layer, as_jax
from anyscore.layers import heads
from anyscore.layers.course import multi_head
from anyscore.layers.heads import HeadSizes, QKVSizes, inner_sizes, linear
from anyscore.layers.parameters import AnyScore, Parameter
from anyscore.layers.state_dicts import rename_legacy_heads
from anyscore.layers.texts import with_texts
from anyscore.ops import load

_xp = load("jax")
_INNER = "attention."


class _Projecting(Layer):
    """Linear layers around an `Attention`, whose parameters have the prefix "attention."."""

    def __init__(
        self,
        sizes: HeadSizes | QKVSizes,
        score: AnyScore,
        dropout: float,
        bias: bool,
        dtype: Any,
        **options: Any,
    ) -> None:
        super().__init__(dtype)
        self.sizes, self._linears = sizes, heads.initializers(sizes.linears, bias)
        inner = inner_sizes(sizes, score, options.get("sink"))
        self.attention = Attention(score, dropout=dropout, dtype=dtype, **{**inner, **options})

    def initializers(self, *inputs: Any, **masking: Any) -> Initializers:
        inner = {_INNER + name: x for name, x in self.attention.initializers().items()}
        return {**self._linears, **inner}

    def names(self) -> list[str]:
        return [*self._linears, *(_INNER + name for name in self.attention.names())]

    def _rename_legacy_keys(self, state: dict[str, Any]) -> None:
        rename_legacy_heads(state, "", self.sizes.linears, self.attention._spec)

    def _attend(self, params: Mapping[str, Array], *inputs: Any, **options: Any) -> AttentionOutput:
        """Compute the whole layer. options: of the inner `Attention`."""
        results: list[AttentionOutput] = []

        def attention(*projected: Any) -> Array:
            results.append(self.attention.run(self._inner(params), *projected, **options))
            output: Array = results[0].output
            return output

        output = self.sizes.attend(_xp, partial(linear, _xp, params), attention, *inputs)
        return results[0]._replace(output=output)

    def _inner(self, params: Mapping[str, Array]) -> dict[str, Array]:
        return {
            name.removeprefix(_INNER): x for name, x in params.items() if name.startswith(_INNER)
        }


@with_texts
class SelfAttention(_Projecting):
    """Attention of a sequence to itself, with one fused projection to queries, keys and values.

        apply(params, x, valid_lens=None, *, mask=None, …): x (..., T, d) → (..., T, d_v)

    The keywords are those of `Attention`.

    Args:
        {self_attention}
        dtype: of the parameters. By default "float32".

    {errors}

    >>> import jax
    >>> import jax.numpy as jnp
    >>> from anyscore import Causal
    >>> from anyscore.jax import SelfAttention
    >>> layer, x = SelfAttention(8, 3, score="gaussian"), jnp.ones((2, 5, 8))
    >>> params = layer.init(jax.random.key(0))
    >>> layer.apply(params, x, mask=Causal()).shape, params["qkv.weight"].shape
    ((2, 5, 8), (14, 8))
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
        **options: Any,
    ) -> None:
        sizes = QKVSizes(embedding_size, d_k, d_v=d_v, project_output=project_output)
        super().__init__(sizes, score, dropout, bias, dtype, **options)

    def run(
        self,
        params: Mapping[str, Array],
        x: Array,
        valid_lens: Any = None,
        **options: Any,
    ) -> AttentionOutput:
        """Compute the results of `apply` as an `AttentionOutput`."""
        heads.check_projected_across(options.get("across"))
        return self._attend(params, as_jax(x), valid_lens=valid_lens, **options)


@with_texts
class MultiHeadAttention(_Projecting):
    """Attention in several heads, of a sequence to itself or to another, with any score.

        apply(params, queries, keys=None, values=None, valid_lens=None, *, mask=None, …)

    Queries are (batch, T_q, d_q). Keys are (batch, T_k, d_k), by default the queries. Values are
    (batch, T_k, d_v), by default the keys. The output is (batch, T_q, d). A boolean mask has two
    or four axes; axis −3 of masks and biases is heads. The other keywords are those of `Attention`.

    {book_arguments}

    Args:
        {multi_head}
        dtype: of the parameters. By default "float32".

    {multi_head_errors}

    Source: Vaswani et al. 2017, Attention Is All You Need, section 3.2.2.

    >>> import jax
    >>> import jax.numpy as jnp
    >>> from anyscore.jax import MultiHeadAttention
    >>> layer, x = MultiHeadAttention(16, 4, score="additive"), jnp.ones((2, 3, 16))
    >>> params = layer.init(jax.random.key(0))
    >>> output, weights = layer.apply(params, x, valid_lens=jnp.array([3, 1]), return_weights=True)
    >>> output.shape, weights.shape
    ((2, 3, 16), (2, 4, 3, 3))
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
        dtype: Any = "float32",
        **options: Any,
    ) -> None:
        widths: dict[str, Any] = {"d_q": d_q, "d_k": d_k, "d_v": d_v, "kv_heads": kv_heads}
        sizes = HeadSizes(embedding_size, n_heads, project_output=project_output, **widths)
        super().__init__(sizes, score, dropout, bias, dtype, **options)

    def run(
        self,
        params: Mapping[str, Array],
        queries: Array,
        keys: Array | PreparedKeys | None = None,
        values: Array | None = None,
        valid_lens: Any = None,
        *,
        mask: Any = None,
        across: Any = None,
        **options: Any,
    ) -> AttentionOutput:
        """Compute the results of `apply` as an `AttentionOutput`."""
        queries, keys, values = heads.complete(*map(as_jax, (queries, keys, values)))
        linears = (params[name] for name in self._linears)
        queries, keys, values, lowered = heads.mask_inputs(
            _xp, self.sizes.n_heads, queries, keys, values, valid_lens, mask, linears, across
        )
        options |= {"mask": lowered, "across": across}
        return self._attend(params, queries, keys, values, **options)

    def prepare_keys(
        self, params: Mapping[str, Array], keys: Array, valid_lens: Any = None, *, mask: Any = None
    ) -> PreparedKeys:
        """Project keys and prepare them, as `Attention.prepare_keys`.

        Args:
            params: the parameters from `init`.
            keys: (batch, T_k, d_k).
            valid_lens, mask: keys that no query of any call may attend, as for
                `anyscore.prepare_keys`.

        Returns:
            `PreparedKeys`, for calls `apply(params, queries, prepared, values)`.

        Raises:
            TypeError, ValueError: As `anyscore.prepare_keys`.
        """
        projected = self.sizes.split(_xp, linear(_xp, params, as_jax(keys), "W_k"), "W_k")
        return self.attention.prepare_keys(self._inner(params), projected, valid_lens, mask=mask)

    def make_cache(
        self,
        params: Mapping[str, Array],
        batch: int,
        capacity: int,
        window: int | None = None,
    ) -> Cache:
        """Make an empty cache for `step`, as `anyscore.make_cache`.

        Args:
            params: the parameters from `init`.
            batch: the number of sequences.
            capacity: the largest number of tokens in the cache.
            window: the number of last tokens that a query attends, its own included. By default
                None, all.

        Returns:
            A `Cache`, of the dtype of the parameters.

        Raises:
            TypeError, ValueError: capacity or window is no integer of its range.
        """
        weights = {name: params[f"{name}.weight"] for name in ("W_k", "W_v")}
        tokens = {name: jnp.zeros((batch, 0, w.shape[1]), w.dtype) for name, w in weights.items()}
        k, v = (self._heads(params, x, name) for name, x in tokens.items())
        score = self.attention._score(self._inner(params), k.shape[-1], k.shape[-1])
        return make_cache(k, v, score, capacity=capacity, window=window)

    def step(
        self, params: Mapping[str, Array], x: Array, cache: Cache, **options: Any
    ) -> tuple[Array, Cache]:
        """Append tokens to a cache, and attend causally.

        Steps together compute `apply(params, x, mask=Causal())`.

        Args:
            params: the parameters from `init`.
            x: the tokens (batch, n, d).
            cache: from `make_cache` of this layer, or from its last step.
            options: mask, bias and bias_after, as for `Cache.attend`.

        Returns:
            (output (batch, n, d), cache with these tokens).

        Raises:
            TypeError, ValueError: As `Cache.append` and `Cache.attend`.

        >>> import jax
        >>> import jax.numpy as jnp
        >>> from anyscore.jax import MultiHeadAttention
        >>> layer = MultiHeadAttention(16, 4, score="additive")
        >>> params = layer.init(jax.random.key(0))
        >>> cache = layer.make_cache(params, batch=2, capacity=10)
        >>> output, cache = layer.step(params, jnp.ones((2, 1, 16)), cache)
        >>> output.shape, int(cache.length)
        ((2, 1, 16), 1)
        """
        x, inner = as_jax(x), self.attention
        q, k, v = (self._heads(params, x, name) for name in ("W_q", "W_k", "W_v"))
        of_score = self._inner(params)
        score, sink = inner._score(of_score, q.shape[-1], k.shape[-1]), inner._spec.sink
        sink = as_jax(of_score["sink.weight"]) if isinstance(sink, Parameter) else sink
        cache = cache.append(k, v, score=score)
        options |= {"softcap": inner.softcap, "normalizer": inner.normalizer, "impl": inner.impl}
        output = heads.merge(_xp, cache.attend(q, score=score, sink=sink, **options))
        if "W_o" in self.sizes.linears:
            output = linear(_xp, params, output, "W_o")
        return output, cache

    def _heads(self, params: Mapping[str, Array], x: Array, name: str) -> Array:
        """Project x (batch, T, …) and split it into heads."""
        found: Array = self.sizes.split(_xp, linear(_xp, params, x, name), name)
        return found
