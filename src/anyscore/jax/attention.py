"""The attention layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jax import Array

from anyscore.call.task import Call, Options
from anyscore.functional.attention import AttentionOutput, attend
from anyscore.functional.cache.prepare import PreparedKeys, prepare_keys
from anyscore.functional.scores import scores
from anyscore.jax.layer import Initializers, Layer, as_jax
from anyscore.layers.attention import AttentionOptions, check_first_call
from anyscore.layers.parameters import AnyScore, Parameter
from anyscore.layers.state_dicts import rename_legacy_keys
from anyscore.layers.texts import with_texts
from anyscore.modifiers.normalizers import Normalizer
from anyscore.ops import load
from anyscore.ops.checks import find_framework, widths
from anyscore.score.base import Score

_xp = load("jax")


@with_texts
class Attention(AttentionOptions, Layer):
    """Attention layer for JAX, with any scoring function.

        apply(params, queries, keys, values=None, valid_lens=None, *, mask=None, bias=None, …)

    `init` and `apply` take queries (..., T_q, d_q), keys (..., T_k, d_k) and values (..., T_k,
    d_v), by default the keys. The arguments valid_lens, mask, bias and bias_after are as for
    `anyscore.attention`; so is across, an argument of `apply` alone.

    Args:
        score: a name ("additive", "scaled_dot", …; `anyscore.score.SCORES`) or a score's class:
            `init` draws its parameters. Or a score object: its arrays are the parameters. Or any
            callable (queries, keys) → (..., T_q, T_k). By default "scaled_dot".
        {options}
        dtype: of the parameters. By default "float32".
        {scales}

    {errors}

    >>> import jax
    >>> import jax.numpy as jnp
    >>> from anyscore.jax import Attention
    >>> layer = Attention("additive", hidden=8)
    >>> inputs = jnp.ones((2, 1, 20)), jnp.ones((2, 10, 2)), jnp.ones((2, 10, 4)), jnp.array([2, 6])
    >>> (output, weights), params = layer.init_with_output(jax.random.key(0), *inputs)
    >>> {name: x.shape for name, x in params.items()}
    {'W_q.weight': (8, 20), 'W_k.weight': (8, 2), 'w_v.weight': (1, 8)}
    >>> jax.jit(layer.apply)(params, *inputs).shape, weights.shape
    ((2, 1, 4), (2, 1, 10))
    """

    def __init__(
        self,
        score: AnyScore = "scaled_dot",
        *,
        hidden: int | None = None,
        d_q: int | None = None,
        d_k: int | None = None,
        dropout: float = 0.0,
        bias: bool = False,
        heads: int | None = None,
        kv_heads: int | None = None,
        projected: bool = False,
        impl: str = "auto",
        softcap: float = 0.0,
        sink: bool | float | None = None,
        normalizer: Normalizer = "softmax",
        dtype: Any = "float32",
        **scales: float,
    ) -> None:
        super().__init__(dtype)
        sizes: dict[str, Any] = {"hidden": hidden, "d_q": d_q, "d_k": d_k, "bias": bias, **scales}
        sizes |= {"heads": heads, "kv_heads": kv_heads, "projected": projected}
        self._set_options("jax", score, sizes, dropout, impl, softcap, sink, normalizer)

    def initializers(
        self,
        queries: Array | None = None,
        keys: Array | None = None,
        values: Array | None = None,
        valid_lens: Any = None,
        *,
        mask: Any = None,
        bias: Any = None,
        bias_after: Any = None,
    ) -> Initializers:
        """Map names of parameters to the score's arrays, or to shapes and initial values.

        Raises:
            TypeError, ValueError: as `init`.
        """
        found: Initializers = self._of_score(
            queries, keys, values, valid_lens, mask, bias, bias_after
        )
        if isinstance(self._spec.sink, Parameter):
            found["sink.weight"] = self._spec.sink.init
        return found

    def _of_score(
        self, queries: Any, keys: Any, values: Any, valid_lens: Any, mask: Any, *biases: Any
    ) -> Initializers:
        """Map names of the score's parameters, as `initializers`."""
        if isinstance(self._spec.score, Score):
            return {f"{name}.weight": x for name, x in self._spec.score.tensors().items()}
        if not self._spec.score_parameters:
            return {}
        if queries is None or keys is None:
            if not self._spec.widths_known:
                raise ValueError("give the layer d_q= and d_k=, or show init queries and keys.")
            bound = self._spec.bind()
        else:
            queries, keys, values = map(as_jax, (queries, keys, values))
            values = keys if values is None else values
            check_first_call(_xp, queries, keys, values, valid_lens, mask, *map(as_jax, biases))
            bound = self._spec.bind(queries.shape[-1], keys.shape[-1])
        return {f"{p.name}.weight": p.init for p in bound.parameters}

    def run(
        self,
        params: Mapping[str, Array],
        queries: Array,
        keys: Array | PreparedKeys,
        values: Array | None = None,
        valid_lens: Any = None,
        *,
        mask: Any = None,
        bias: Any = None,
        bias_after: Any = None,
        training: bool = False,
        dropout_seed: Any = None,
        return_weights: bool = False,
        across: Any = None,
    ) -> AttentionOutput:
        """Compute the results of `apply` as an `AttentionOutput`."""
        queries, keys, values = map(as_jax, (queries, keys, values))
        tensor = keys.key if isinstance(keys, PreparedKeys) else keys
        values = tensor if values is None else values
        find_framework(queries=queries, keys=tensor, values=values)
        score = self._score(params, *widths(queries=queries, keys=tensor))
        sink = self._spec.sink
        sink = as_jax(params["sink.weight"]) if isinstance(sink, Parameter) else sink
        dropout = self.dropout if training else 0.0
        biases = as_jax(bias), as_jax(bias_after)
        call = Call(queries, keys, values, score, mask, valid_lens, self.softcap, sink, *biases)
        result, _ = attend(
            call._replace(normalizer=self.normalizer, across=across),
            Options(dropout, dropout_seed, return_weights, impl=self.impl),
        )
        return result

    def scores(
        self,
        params: Mapping[str, Array],
        queries: Array,
        keys: Array | PreparedKeys,
        valid_lens: Any = None,
        *,
        mask: Any = None,
        bias: Any = None,
        bias_after: Any = None,
    ) -> Array:
        """Return the matrix of scores, differentiable, as `anyscore.scores`.

        Args:
            params: the parameters from `init`.
            queries: (..., T_q, d_q).
            keys: (..., T_k, d_k), or `PreparedKeys`.
            valid_lens, mask, bias, bias_after: as for `apply`.

        Returns:
            Scores (..., T_q, T_k), float32 or float64; −∞ where the mask forbids a key.

        Raises:
            TypeError, ValueError: As `anyscore.scores`; or widths are not those of the layer.
        """
        queries, keys = map(as_jax, (queries, keys))
        tensor = keys.key if isinstance(keys, PreparedKeys) else keys
        find_framework(queries=queries, keys=tensor)
        score = self._score(params, *widths(queries=queries, keys=tensor))
        given = {"mask": mask, "valid_lens": valid_lens}
        given |= {"bias": as_jax(bias), "bias_after": as_jax(bias_after)}
        options: Any = {"softcap": self.softcap, "impl": self.impl}
        found: Array = scores(queries, keys, score=score, **given, **options)
        return found

    def prepare_keys(
        self,
        params: Mapping[str, Array],
        keys: Array,
        valid_lens: Any = None,
        *,
        mask: Any = None,
        d_q: int | None = None,
    ) -> PreparedKeys:
        """Prepare keys for many calls, as `anyscore.prepare_keys`.

        Args:
            params: the parameters from `init`.
            keys: (..., T_k, d_k).
            valid_lens, mask: keys that no query of any call may attend, as for
                `anyscore.prepare_keys`.
            d_q: the width of the queries. Required for a layer that was made without d_q=.

        Returns:
            `PreparedKeys`, for calls `apply(params, queries, prepared, values)`.

        Raises:
            TypeError, ValueError: As `anyscore.prepare_keys`; or the width of the queries is
                unknown.
        """
        keys = as_jax(keys)
        score = self._score(params, d_q, keys.shape[-1])
        return prepare_keys(keys, score, mask=mask, valid_lens=valid_lens)

    def names(self) -> list[str]:
        """List the names of the parameters."""
        return [f"{name}.weight" for name in self._spec.names]

    def _rename_legacy_keys(self, state: dict[str, Any]) -> None:
        rename_legacy_keys(state, "", self._spec)

    def _score(self, params: Mapping[str, Array], d_q: int | None, d_k: int) -> Any:
        if self._spec.named and d_q is None and self._spec.d_q is None:
            raise ValueError("say d_q=, the width of the queries, to prepare keys.")
        values = {name: as_jax(params[f"{name}.weight"]) for name in self._spec.score_parameters}
        return self._spec.bind(d_q, d_k).build(_xp, values)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._describe()})"
