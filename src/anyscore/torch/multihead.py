"""Layers with projections of queries, keys and values, in one head or several."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn

from anyscore.functional.cache.cache import Cache
from anyscore.functional.cache.make import make_cache
from anyscore.functional.cache.prepare import PreparedKeys
from anyscore.layers.course import multi_head
from anyscore.layers.heads import (
    HeadSizes,
    QKVSizes,
    check_projected_across,
    complete,
    mask_inputs,
    merge,
)
from anyscore.layers.last_weights import Chosen, select
from anyscore.layers.parameters import AnyScore
from anyscore.layers.texts import with_texts
from anyscore.ops import load
from anyscore.ops.checks import brief, check_integers, widths
from anyscore.torch.layer import check_inputs
from anyscore.torch.projecting import Projecting
from anyscore.torch.torch_mha import NOT_FUSED, native_masks, with_floats
from anyscore.torch.weight import tensors_in

_xp = load("torch")


@with_texts
class SelfAttention(Projecting):
    """Attention of a sequence to itself, with one fused projection to queries, keys and values.

        output = attention(x W_q, x W_k, x W_v)

    Args:
        {self_attention}
        device, dtype: of the parameters. By default None, as for `torch.nn.Linear`.

    {errors}

    >>> import torch
    >>> from anyscore import Causal
    >>> from anyscore.torch import SelfAttention
    >>> layer = SelfAttention(8, 3, score="gaussian")
    >>> layer(torch.ones(2, 5, 8), mask=Causal()).shape
    torch.Size([2, 5, 8])
    >>> layer.qkv                                           # 3 + 3 + 8 outputs
    Linear(in_features=8, out_features=14, bias=True)
    """

    _tokens = ("x",)
    _sizes: QKVSizes
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
        **options: Any,
    ) -> None:
        sizes = QKVSizes(embedding_size, d_k, d_v=d_v, project_output=project_output)
        super().__init__(sizes, score, dropout, bias, device, dtype, **options)

    def forward(
        self,
        x: Tensor,
        valid_lens: Any = None,
        *,
        mask: Any = None,
        bias: Any = None,
        bias_after: Any = None,
        across: Any = None,
    ) -> Tensor:
        """Attend from x to itself.

        Args:
            x: (..., T, d).
            valid_lens, mask, bias, bias_after, across: as for `anyscore.attention`.

        Returns:
            The output (..., T, d_v), or (..., T, d) with `project_output`.

        Raises:
            TypeError, ValueError: As `anyscore.attention`.
        """
        check_projected_across(across)
        widths(x=x)
        queries, keys, values = self.qkv(x).split(self._sizes.widths, dim=-1)
        options = {"mask": mask, "bias": bias, "bias_after": bias_after, "across": across}
        output = self.attention(queries, keys, values, valid_lens, **options)
        return output if self.W_o is None else cast(Tensor, self.W_o(output))


@with_texts
class MultiHeadAttention(Projecting):
    """Attention in several heads, of a sequence to itself or to another, with any score.

        head_h = attention(queries W_q^h, keys W_k^h, values W_v^h)
        output = [head_1; …; head_n] W_o

    {book_arguments}

    Args:
        {multi_head}
        batch_first: False for tensors (T, batch, d). By default True.
        device, dtype: of the parameters. By default None, as for `torch.nn.Linear`.

    {multi_head_errors}

    Source: Vaswani et al. 2017, Attention Is All You Need, section 3.2.2. With kv_heads: Ainslie
    et al. 2023, GQA: Training Generalized Multi-Query Transformer Models from Multi-Head
    Checkpoints.

    >>> import torch
    >>> from anyscore.torch import MultiHeadAttention
    >>> layer = MultiHeadAttention(16, 4, kv_heads=2, score="additive")
    >>> queries, keys = torch.ones(2, 3, 16), torch.ones(2, 10, 16)
    >>> output, weights = layer(queries, keys, need_weights=True, average_attn_weights=False)
    >>> output.shape, weights.shape                         # weights by query head
    (torch.Size([2, 3, 16]), torch.Size([2, 4, 3, 10]))

    The layer accepts the call of `torch.nn.MultiheadAttention`, and so can replace one:

    >>> encoder = torch.nn.TransformerEncoderLayer(16, 4, batch_first=True)
    >>> encoder.self_attn = MultiHeadAttention(16, 4, score="additive")
    >>> padding = torch.tensor([[False, False, True]])
    >>> encoder(torch.ones(1, 3, 16), src_key_padding_mask=padding).shape
    torch.Size([1, 3, 16])
    """

    _tokens = "queries", "keys", "values"
    _sizes: HeadSizes
    # PyTorch's Transformer modules read these before they bypass the layer with fused kernels.
    in_proj_weight, in_proj_bias = NOT_FUSED, None
    _qkv_same_embed_dim = False

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
        batch_first: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
        **options: Any,
    ) -> None:
        widths: dict[str, Any] = {"d_q": d_q, "d_k": d_k, "d_v": d_v, "kv_heads": kv_heads}
        sizes = HeadSizes(embedding_size, n_heads, project_output=project_output, **widths)
        super().__init__(sizes, score, dropout, bias, device, dtype, **options)
        self.n_heads, self.kv_heads = sizes.n_heads, sizes.kv_heads
        self.num_heads, self.embed_dim, self.batch_first = n_heads, embedding_size, batch_first

    @property
    def out_proj(self) -> nn.Linear | None:
        """W_o, under PyTorch's name."""
        return self.W_o

    def forward(
        self,
        queries: Tensor,
        keys: Tensor | PreparedKeys | None = None,
        values: Tensor | None = None,
        valid_lens: Any = None,
        *,
        mask: Any = None,
        bias: Any = None,
        bias_after: Any = None,
        key_padding_mask: Tensor | None = None,
        attn_mask: Tensor | None = None,
        need_weights: bool | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
        across: Any = None,
    ) -> Any:
        """Attend in all heads.

        Args:
            queries: (batch, T_q, d_q); or queries, keys and values without the batch.
            keys: (batch, T_k, d_k), or `PreparedKeys`. By default None, the queries.
            values: (batch, T_k, d_v). By default None, the keys.
            valid_lens, mask, bias, bias_after: as for `anyscore.attention`. A boolean mask has two
                or four axes; axis −3 of masks and biases is heads.
            key_padding_mask, attn_mask, is_causal: as for `torch.nn.MultiheadAttention`, where
                True = may not attend. Booleans are intersected with the other masks; floats are
                added as `bias_after`.
            need_weights: None, the default, returns the output alone. True returns (output,
                weights before dropout), False returns (output, None).
            average_attn_weights: True, the default, averages the weights over heads: (batch, T_q,
                T_k). False returns (batch, heads, T_q, T_k).
            across: the layout of the tokens on several ranks, as for `anyscore.attention`, or a
                pair of layouts. Such a call has no weights.

        Returns:
            The output (batch, T_q, d), or (output, weights); see need_weights.

        Raises:
            TypeError, ValueError: As `anyscore.attention`; or keys are prepared, and values are
                missing.
            NotImplementedError: The call does not run across ranks.
        """
        tensors = queries, keys, values = complete(queries, keys, values)
        check_inputs(queries, keys.key if isinstance(keys, PreparedKeys) else keys, values)
        unbatched = all(not isinstance(x, PreparedKeys) and x.dim() == 2 for x in tensors)
        q, k, v = (self._batched(x, unbatched) for x in tensors)
        batch = q.shape[0] if q.dim() else 0  # a query without axes is refused below
        native, floats = native_masks(self.n_heads, batch, key_padding_mask, attn_mask, is_causal)
        if native is not None:
            mask = native if mask is None else native & mask
        bias_after = with_floats(floats, bias_after)
        q, k, v, lowered = mask_inputs(
            _xp, self.n_heads, q, k, v, valid_lens, mask, self._tensors(), across
        )
        options = {"mask": lowered, "bias": bias, "bias_after": bias_after, "across": across}
        weights: Tensor | None = None

        def attention(*projected: Any) -> Tensor:
            nonlocal weights
            if not need_weights:
                return cast(Tensor, self.attention(*projected, **options))
            output, weights = self.attention(*projected, **options, return_weights=True)
            return cast(Tensor, output)

        output = self._sizes.attend(_xp, self._project, attention, q, k, v)
        if weights is not None and average_attn_weights:
            weights = weights.mean(1)
        if unbatched:
            output, weights = output[0], None if weights is None else weights[0]
        elif not self.batch_first:
            output = output.transpose(0, 1)
        return output if need_weights is None else (output, weights)

    def _tensors(self) -> Iterator[Tensor]:
        """Yield the tensors of the projections of queries, keys and values."""
        for name in ("W_q", "W_k", "W_v"):
            yield from tensors_in(getattr(self, name))

    def _batched(self, x: Any, unbatched: bool) -> Any:
        """Return x as (batch, T, d)."""
        if unbatched:
            return x[None]
        if self.batch_first or isinstance(x, PreparedKeys) or x.dim() < 3:
            return x
        return x.transpose(0, 1)

    @with_texts
    def prepare_keys(
        self, keys: Tensor, valid_lens: Any = None, *, mask: Any = None
    ) -> PreparedKeys:
        """
        {prepare_keys}
        """
        keys = self._sizes.split(_xp, self._project(keys, "W_k"), "W_k")
        return self.attention.prepare_keys(keys, valid_lens, mask=mask)

    def make_cache(self, batch: int, capacity: int, window: int | None = None) -> Cache:
        """Make an empty cache for `step`, as `anyscore.make_cache`.

        Args:
            batch: the number of sequences, an integer ≥ 0.
            capacity: the largest number of tokens in the cache.
            window: the number of last tokens that a query attends, its own included. By default
                None, all.

        Returns:
            A `Cache`, of the device and dtype of the parameters.

        Raises:
            TypeError, ValueError: An argument is no integer of this range.
        """
        check_integers(0, batch=batch)
        like, inputs = next(self._tensors(), torch.empty(0)), self._sizes.linears
        with torch.no_grad():
            tokens = {n: like.new_empty(batch, 0, inputs[n][1]) for n in ("W_k", "W_v")}
            k, v = (self._sizes.split(_xp, self._project(x, n), n) for n, x in tokens.items())
            score = self.attention._score(k)
            return make_cache(k, v, score, capacity=capacity, window=window)

    def step(
        self, x: Tensor, cache: Cache, *, mask: Any = None, bias: Any = None, bias_after: Any = None
    ) -> Tensor:
        """Append tokens to a cache, and attend causally.

        Steps together compute `layer(x, mask=Causal())` in evaluation mode. As for `Cache.append`,
        tokens must not need gradients. `attention_weights` stay the weights of the last call;
        `step_weights` returns the weights of a step.

        Args:
            x: the tokens (batch, n, d).
            cache: from `make_cache` of this layer; the layer writes to it.
            mask, bias, bias_after: as for `Cache.attend`.

        Returns:
            The output (batch, n, d).

        Raises:
            TypeError, ValueError: As `Cache.append` and `Cache.attend`. The error comes before any
                work.

        >>> import torch
        >>> from anyscore import Causal
        >>> from anyscore.torch import MultiHeadAttention
        >>> layer, x = MultiHeadAttention(16, 4, score="additive").eval(), torch.randn(2, 10, 16)
        >>> cache = layer.make_cache(batch=2, capacity=10)
        >>> with torch.no_grad():
        ...     outputs = [layer.step(x[:, t : t + 1], cache) for t in range(10)]
        ...     together = layer(x, mask=Causal())
        >>> torch.allclose(torch.cat(outputs, 1), together, atol=1e-5)
        True
        """
        if not isinstance(cache, Cache):
            made = "layer.make_cache(batch, capacity)"
            raise TypeError(f"cache is {brief(cache)}, expected what {made} made.")
        tokens = self._batched(x, False)
        k, v = (self._sizes.split(_xp, self._project(tokens, n), n) for n in ("W_k", "W_v"))
        q, given = self._of_step(x)
        options = {"mask": mask, "bias": bias, "bias_after": bias_after}
        if not (mask is bias is bias_after is None):
            cache.check_step(q, **given, **options)
        cache = cache.append(k, v, score=given["score"])
        output = merge(_xp, cache.attend(q, **given, **options))
        output = output if self.W_o is None else self.W_o(output)
        return cast(Tensor, output if self.batch_first else output.transpose(0, 1))

    def step_weights(
        self,
        x: Tensor,
        cache: Cache,
        heads: Chosen = None,
        examples: Chosen = None,
        **options: Any,
    ) -> Tensor | None:
        """Return the weights of the last step.

        Args:
            x: the tokens of the step.
            cache: the cache of the step.
            heads, examples: as for `last_weights`. By default None, all.
            options: the other arguments of the step.

        Returns:
            Weights (batch, heads, n, tokens); None under compilation.

        Raises:
            TypeError, IndexError: As `last_weights`.
        """
        if torch.compiler.is_compiling():
            return None
        with torch.no_grad():
            q, given = self._of_step(x)
            found = cache.attend(q, **given, **options, return_weights=True).weights
        places, there = cache.positions(), int(cache.length)
        weights = found.new_zeros(*found.shape[:-1], there)
        weights[..., places[places >= 0]] = found[..., places >= 0]
        if heads is not None:
            weights = select(_xp, weights, -3, "heads", heads)
        if examples is not None:
            weights = select(_xp, weights, -weights.dim(), "examples", examples)
        return cast(Tensor, weights)

    def _of_step(self, x: Tensor) -> tuple[Tensor, dict[str, Any]]:
        """Return (queries of tokens x by head, score and other options of `Cache.attend`)."""
        q = self._sizes.split(_xp, self._project(self._batched(x, False), "W_q"), "W_q")
        inner = self.attention
        given = {"softcap": inner.softcap, "normalizer": inner.normalizer, "impl": inner.impl}
        return q, {"score": inner._score(q), "sink": inner._sink(q), **given}
