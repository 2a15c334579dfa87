"""The attention layer, and the names that *Dive into Deep Learning* has for two of its scores."""

from __future__ import annotations

from typing import Any

import keras

from anyscore import seams
from anyscore.checks import check_options
from anyscore.functional import attend, weights
from anyscore.keras.layer import (
    BACKEND,
    OF_KERAS,
    Layer,
    Shape,
    masks,
    output_shape,
    own_arrays,
    register,
    shapes,
    three,
    xp,
)
from anyscore.layers import AnyScore, Recipe, snapshot
from anyscore.old_names import rename
from anyscore.reference import masked_softmax as _masked_softmax
from anyscore.score import Init
from anyscore.task import combine


def masked_softmax(X: Any, valid_lens: Any = None, *, mask: Any = None) -> Any:
    """Softmax over the last axis of X (..., queries, keys), of the attended keys alone.

    valid_lens: (batch,) or (batch, queries), see `anyscore.Lengths`. A row without any gives 0.

    >>> import numpy as np
    >>> weights = masked_softmax(np.zeros((1, 2, 4)), [[1, 4]])
    >>> print(keras.ops.convert_to_numpy(weights))
    [[[1.   0.   0.   0.  ]
      [0.25 0.25 0.25 0.25]]]
    """
    return _masked_softmax(xp, keras.ops.convert_to_tensor(X), combine(mask, valid_lens))


@register
class Attention(Layer):
    """Attention with any scoring function: output = softmax(score(queries, keys)) · values.

    Args:
        score: a name ("additive", "scaled_dot", …; `anyscore.layers.SCORES`) or a score's class,
            whose parameters the layer creates and initialises as the class says; or a score
            object, of whose tensors the layer makes weights (trained if they were variables that
            are); or any callable (queries, keys) → (..., T_q, T_k).
        hidden: width h of "additive", "concat" and "gatv2"; with `projected` that of the queries.
        d_q, d_k: widths of queries and keys; inferred at the first call if left out.
        dropout: rate on the weights, in training only.
        bias: whether an additive or concat score has one.
        heads, kv_heads: give each head (axis −3) its own parameters.
        projected: queries and keys come projected: leave out W_q and W_k.
        numbers: sigma=, tau= or scale= of the score, where it should not be learned or the
            default; and what every layer of Keras takes, as name= and dtype=.

    Raises:
        ValueError: an unknown score, or sizes that it lacks.

    >>> import numpy as np
    >>> layer = Attention("additive", hidden=8)
    >>> output = layer(np.ones((2, 1, 20)), np.ones((2, 10, 2)), valid_lens=[2, 6])
    >>> tuple(output.shape), tuple(layer.attention_weights.shape)
    ((2, 1, 2), (2, 1, 10))
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
        **numbers: Any,
    ) -> None:
        of_keras = {name: numbers.pop(name) for name in OF_KERAS if name in numbers}
        check_options(dropout, None, "auto")
        bare, own = own_arrays(score)
        sizes: dict[str, Any] = {"hidden": hidden, "d_q": d_q, "d_k": d_k, "bias": bias}
        sizes |= {"heads": heads, "kv_heads": kv_heads, "projected": projected, **numbers}
        recipe = Recipe(bare, **sizes)
        super().__init__({"score": score, "dropout": dropout, **sizes}, **of_keras)
        self.score = bare  # tracked, if it is a layer
        self.dropout = dropout
        self._recipe, self._own = recipe, own
        self.seed_generator = keras.random.SeedGenerator() if dropout else None

    def build(self, queries_shape: Any, keys_shape: Any = None, values_shape: Any = None) -> None:
        queries, keys, _ = three(queries_shape, keys_shape, values_shape)
        if keys is None:
            raise ValueError("pass keys, or one list [query, value]; got queries alone.")
        self._met = self._recipe.meet(queries[-1], keys[-1])
        self._parameters = {}
        for p in self._met.parameters:
            scale = p.field in ("scale", "sigma", "tau")  # not rounded in mixed precision
            self._parameters[p.name] = self.make(p.name, p.init, autocast=not scale)
        for name, (x, trained) in self._own.items():
            scale = name in ("scale", "sigma", "tau")
            options = {"autocast": not scale, "trainable": trained}
            self._parameters[name] = self.make(name, Init(x.shape), **options)
            self._parameters[name].assign(x)

    def call(
        self,
        queries: Any,
        keys: Any = None,
        values: Any = None,
        valid_lens: Any = None,
        *,
        mask: Any = None,
        training: bool | None = None,
        return_attention_scores: bool = False,
        use_causal_mask: bool = False,
        queries_mask: Any = None,
        keys_mask: Any = None,
        values_mask: Any = None,
    ) -> Any:
        """Output (..., T_q, d_v); with `return_attention_scores` also the weights.

        Called with queries, keys, values (keys if left out) and lengths, as `anyscore.attention`,
        or with one list [query, value] or [query, value, key]. mask: of ours, or Keras's list of
        padding masks; padding masks of layers before this one come by themselves. What a padded
        query gives is 0.
        """
        mask = masks(queries, mask, queries_mask, keys_mask, values_mask, use_causal_mask)
        queries, keys, values = three(queries, keys, values)
        score, dropout = self._score(), self.dropout if training else 0.0
        seed = _seed(self.seed_generator) if dropout else None
        result, task, lse = attend(
            queries, keys, values, score, mask, valid_lens, dropout, seed, return_attention_scores
        )
        self.record.last = (snapshot(xp, task), lse) if _is_eager(result.output) else None
        return (result.output, result.weights) if return_attention_scores else result.output

    def compute_output_shape(
        self, queries_shape: Any, keys_shape: Any = None, values_shape: Any = None
    ) -> Shape:
        return output_shape(*three(queries_shape, keys_shape, values_shape))

    def compute_output_spec(
        self, queries: Any, keys: Any = None, values: Any = None, *args: Any, **options: Any
    ) -> Any:
        q, k, v = shapes(*three(queries, keys, values))
        output = keras.KerasTensor(output_shape(q, k, v), dtype=self.compute_dtype)
        if not options.get("return_attention_scores"):
            return output
        return output, keras.KerasTensor((*output.shape[:-1], k[-2]), dtype=self.compute_dtype)

    @property
    def attention_weights(self) -> Any:
        """Weights (..., T_q, T_k) of the last call, before dropout; None if there was none.

        Computed when asked, with the score's parameters of that call. Traced calls, as those of
        `fit` and `predict`, are not recorded.
        """
        return None if self.record.last is None else weights(*self.record.last)

    def known_shapes(self) -> list[Shape] | None:
        recipe = self._recipe
        return [(None, None, recipe.d_q), (None, None, recipe.d_k)] if recipe.sized else None

    def parameters_by_name(self) -> dict[str, Any]:
        return {f"{name}.weight": x for name, x in self._parameters.items()}

    def rename(self, state: dict[str, Any]) -> None:
        rename(state, "", self._recipe)

    def _score(self) -> Any:
        """The score with the current parameters."""
        if not self._parameters:
            return self._met.build(xp, {}) if self._recipe.named else self.score
        values = {
            name: keras.ops.convert_to_tensor(x.value) for name, x in self._parameters.items()
        }
        return self._met.build(xp, values)


def _is_eager(x: Any) -> bool:
    if BACKEND == "jax":
        return not seams.load("jax").differentiable([x])
    return not xp.is_tracing()


def _seed(generator: Any) -> Any:
    """A dropout seed from Keras's generator."""
    words = generator.next()
    if BACKEND == "jax":
        import jax

        return jax.random.wrap_key_data(words, impl="threefry2x32")
    low, high = (xp.astype(words[i], "int64") for i in range(2))
    return low + high * 2**32


@register
class DotProductAttention(Attention):
    """Scaled dot-product attention, as *Dive into Deep Learning* calls it."""

    def __init__(self, dropout: float = 0.0, **of_keras: Any) -> None:
        super().__init__("scaled_dot", dropout=dropout, **of_keras)
        self.record.given = {"dropout": dropout}


@register
class AdditiveAttention(Attention):
    """Additive attention, as *Dive into Deep Learning* calls it.

    query_size and key_size are inferred at the first call if left out.
    """

    def __init__(
        self,
        num_hiddens: int,
        dropout: float = 0.0,
        *,
        query_size: int | None = None,
        key_size: int | None = None,
        bias: bool = False,
        **of_keras: Any,
    ) -> None:
        sizes: dict[str, Any] = {"d_q": query_size, "d_k": key_size, "bias": bias}
        super().__init__("additive", hidden=num_hiddens, dropout=dropout, **sizes, **of_keras)
        self.record.given = {
            "num_hiddens": num_hiddens,
            "dropout": dropout,
            "query_size": query_size,
        }
        self.record.given |= {"key_size": key_size, "bias": bias}


@register
class MLPAttention(AdditiveAttention):
    """Additive attention under its earlier name, by its formula: vᵀ tanh(W_k k + W_q q)."""

    def __init__(self, units: int, dropout: float = 0.0, **of_keras: Any) -> None:
        super().__init__(units, dropout, **of_keras)
        self.record.given = {"units": units, "dropout": dropout}
