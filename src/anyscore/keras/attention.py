"""The attention layer."""

from __future__ import annotations

from typing import Any

import keras

from anyscore import backends
from anyscore.call.autocast import autocast
from anyscore.call.task import Call, Options
from anyscore.functional.attention import attend
from anyscore.functional.scores import scores
from anyscore.keras.arguments import Shape, check_shapes, output_shape, shapes, three
from anyscore.keras.config import own_arrays
from anyscore.keras.layer import BACKEND, Layer, register, xp
from anyscore.keras.masks import masks, unwrap
from anyscore.keras.options import split
from anyscore.layers.last_weights import Chosen, LastWeights, chosen_weights, snapshot
from anyscore.layers.parameters import SINK, AnyScore, Parameter, is_named
from anyscore.layers.score_spec import ScoreSpec, replaced_score
from anyscore.layers.state_dicts import rename_legacy_keys
from anyscore.layers.texts import with_texts
from anyscore.modifiers.normalizers import check_normalizer
from anyscore.ops.checks import check_options
from anyscore.score.base import Init, Score


@register
@with_texts
class Attention(LastWeights[Any], Layer):
    """Attention layer for Keras, with any scoring function.

        output_i = Σ_j softmax_j score(query_i, key_j) · value_j        over the attended keys j

    Args:
        score: a name ("additive", "scaled_dot", …; `anyscore.score.SCORES`) or a score's class:
            the layer creates and initialises its parameters. Or a score object: the layer creates
            weights from its tensors, trained if a tensor is a trained variable. Or any callable
            (queries, keys) → (..., T_q, T_k). By default "scaled_dot".
        {sizes}
        options: the options below, and the scales of the score: sigma=, tau=, nu=, scale= or
            negative_slope=, a fixed number in place of the learned or default one. Also name=,
            dtype= and other arguments of every Keras layer.

    The options of every layer are:

    {keras_options}

    {errors}

    >>> import numpy as np
    >>> from anyscore.keras import Attention
    >>> layer = Attention("additive", hidden=8)
    >>> output = layer(np.ones((2, 1, 20)), np.ones((2, 10, 2)), valid_lens=[2, 6])
    >>> tuple(output.shape), tuple(layer.attention_weights.shape)
    ((2, 1, 2), (2, 1, 10))
    """

    takes_packed = True

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
        **options: Any,
    ) -> None:
        scales, ours, of_keras = split(options)
        check_options(dropout, None, ours.impl, ours.softcap)
        check_normalizer(ours.normalizer, sink=ours.sink)
        bare, arrays = own_arrays(score)
        sizes: dict[str, Any] = {"hidden": hidden, "d_q": d_q, "d_k": d_k, "bias": bias}
        sizes |= {"heads": heads, "kv_heads": kv_heads, "projected": projected, **scales}
        spec = ScoreSpec(bare, **sizes, sink=ours.sink)
        super().__init__({"score": score, "dropout": dropout, **sizes}, ours, of_keras)
        self.score = self._first_score = bare  # tracked, if it is a layer
        self.dropout = dropout
        self._spec, self._arrays = spec, arrays
        self._shapes_of_score = (
            self._spec.score.shapes if is_named(bare) or isinstance(bare, Score) else {}
        )
        self.seed_generator = keras.random.SeedGenerator(ours.seed) if dropout else None

    def complete(self, queries: Any, keys: Any, values: Any) -> tuple[Any, Any, Any]:
        """Return (queries, keys, values), or their shapes; values are by default the keys.

        Raises:
            ValueError: keys are missing.
        """
        if keys is None:
            raise ValueError("pass keys, or one list [query, value]; got queries alone.")
        return queries, keys, keys if values is None else values

    def check(self, queries: Shape, keys: Shape, values: Shape) -> None:
        """Check shapes against the sizes of the layer.

        Raises:
            ValueError: shapes that do not fit.
        """
        d_q, d_k = self._widths
        if getattr(self._spec.score, "equal_widths", False) and values[-1] == queries[-1]:
            d_k = queries[-1]
        check_shapes((d_q, d_k, None), queries, keys, values)

    def make_all(self, queries: Shape, keys: Shape, values: Shape) -> None:
        """Create all parameters for these shapes."""
        self._bound = self._spec.bind(queries[-1], keys[-1])
        of_score = self._shapes_of_score
        self._weights_by_name = {}
        for p in self._bound.parameters:
            scale = of_score.get(p.field) == ()  # scales keep their precision in mixed precision
            options = {"bias": p.field == "bias", "autocast": not scale}
            self._weights_by_name[p.name] = self.make(p.name, p.init, **options)
        for name, (x, trained) in self._arrays.items():
            options = {"autocast": of_score.get(name) != (), "trainable": trained}
            self._weights_by_name[name] = self.make(name, Init(x.shape), **options)
            self._weights_by_name[name].assign(x)
        sink = self._spec.sink
        if isinstance(sink, Parameter):  # keeps its precision, as scales do
            self._weights_by_name[SINK] = self.make(SINK, sink.init, autocast=False)

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
        training: bool | None = None,
        return_attention_scores: bool = False,
        use_causal_mask: bool = False,
        queries_mask: Any = None,
        keys_mask: Any = None,
        values_mask: Any = None,
    ) -> Any:
        """Attend: output (..., T_q, d_v), or (output, weights) with `return_attention_scores`.

        Args:
            queries: (..., T_q, d_q); or one list in Keras's order: [query, value] or [query,
                value, key]. Keras's names query=, value= and key= are accepted too.
            keys: (..., T_k, d_k).
            values: (..., T_k, d_v). By default None, the keys.
            valid_lens: as for `anyscore.attention`.
            mask: as for `anyscore.attention`, or Keras's list of padding masks. Keras passes masks
                of earlier layers itself. The output of a padded query is 0.
            bias, bias_after: as for `anyscore.attention`; tensors may be symbolic.
            attention_mask: booleans (batch, T_q, T_k), True = may attend. By default None.
            training: True applies dropout.
            return_attention_scores: True also returns the weights (..., T_q, T_k), before dropout.
            use_causal_mask: True lets query i attend keys 0 … i alone. By default False.
            queries_mask, keys_mask, values_mask: padding masks (batch, T), passed by Keras.

        Returns:
            The output, or (output, weights) with `return_attention_scores`.

        Raises:
            TypeError, ValueError: As `anyscore.attention`; or widths are not those of the layer.
        """
        q, k, v = self.complete(*three(queries, keys, values))
        self.check(*shapes(q, k, v))
        padding = queries_mask, keys_mask, values_mask
        both = masks(queries, (q, k, v), mask, padding, attention_mask, use_causal_mask)
        score, sink, options = self._score(), self._sink(), self.record.options
        dropout = self.dropout if training else 0.0
        seed = _seed(self.seed_generator) if dropout else None
        biases = unwrap(bias, bias_after)
        call = Call(q, k, v, score, both, valid_lens, options.softcap, sink, *biases)
        result, task = attend(
            call._replace(normalizer=options.normalizer),
            Options(dropout, seed, return_attention_scores, impl=options.impl),
        )
        self.record.last = snapshot(xp, task) if _is_eager(result.output) else None
        return (result.output, result.weights) if return_attention_scores else result.output

    def scores(
        self,
        queries: Any,
        keys: Any,
        valid_lens: Any = None,
        *,
        mask: Any = None,
        bias: Any = None,
        bias_after: Any = None,
    ) -> Any:
        """Return the matrix of scores, differentiable, as `anyscore.scores`.

        Keras's masks of earlier layers are ignored.

        Args:
            queries: (..., T_q, d_q).
            keys: (..., T_k, d_k).
            valid_lens, mask, bias, bias_after: as for a call of the layer.

        Returns:
            Scores (..., T_q, T_k), float32 or float64; −∞ where the mask forbids a key.

        Raises:
            TypeError, ValueError: As `anyscore.scores`; or widths are not those of the layer.
        """
        q, k = (keras.ops.convert_to_tensor(x) for x in (queries, keys))
        if not self.built:
            self.build(*shapes(q, k, k))
        self.check(*shapes(q, k, k))
        score, options = self._score(), self.record.options
        if self.autocast:
            (q, k), score = autocast(xp, self.compute_dtype, (q, k), score)
        given = {"score": score, "mask": mask, "valid_lens": valid_lens}
        given |= dict(zip(("bias", "bias_after"), unwrap(bias, bias_after), strict=True))
        return scores(q, k, **given, softcap=options.softcap, impl=options.impl)

    def shape_of_output(self, queries: Shape, keys: Shape, values: Shape) -> Shape:
        """Return the shape of the output, (..., T_q, d_v)."""
        return output_shape(queries, keys, values)

    def shape_of_weights(self, queries: Shape, keys: Shape, values: Shape) -> Shape:
        """Return the shape of the weights, (..., T_q, T_k)."""
        return *output_shape(queries, keys, values)[:-1], keys[-2]

    def _weights_of_last(self, *chosen: Chosen) -> Any:
        last = self.record.last
        return None if last is None else chosen_weights(last, *chosen)

    def known_shapes(self) -> list[Shape] | None:
        """Return shapes to build the layer with; None if its widths are unknown."""
        spec = self._spec
        return [(None, None, spec.d_q), (None, None, spec.d_k)] if spec.widths_known else None

    def parameters_by_name(self) -> dict[str, Any]:
        """Map names of parameters, common to all frameworks, to the variables."""
        return {f"{name}.weight": x for name, x in self._weights_by_name.items()}

    def _rename_legacy_keys(self, state: dict[str, Any]) -> None:
        rename_legacy_keys(state, "", self._spec)

    @property
    def _widths(self) -> tuple[int | None, int | None]:
        """Return the widths of queries and keys, from arguments or weights; None if unknown."""
        built = self.record.built
        if built is None or not any(self._shapes_of_score.values()):
            return self._spec.d_q, self._spec.d_k
        return built["queries_shape"][-1], built["keys_shape"][-1]

    def _score(self) -> Any:
        """Build the score from the current parameters."""
        if self.score is not self._first_score:
            return replaced_score(self.score)
        names = self._spec.score_parameters
        if not names and not self._spec.named:
            return self.score
        return self._bound.build(xp, {name: self._value(name) for name in names})

    def _sink(self) -> Any:
        """Return the sink; None without a sink."""
        sink = self._spec.sink
        return self._value(SINK) if isinstance(sink, Parameter) else sink

    def _value(self, name: str) -> Any:
        """Return a parameter as a tensor."""
        return keras.ops.convert_to_tensor(self._weights_by_name[name].value)


def _is_eager(x: Any) -> bool:
    if BACKEND == "jax":
        return not backends.load("jax").differentiable([x])
    return not xp.is_tracing()


def _seed(generator: Any) -> Any:
    """Draw a dropout seed from Keras's generator."""
    words = generator.next()
    if BACKEND == "jax":
        import jax

        return jax.random.wrap_key_data(words, impl="threefry2x32")
    low, high = (xp.astype(words[i], "int64") for i in range(2))
    return low + high * 2**32
