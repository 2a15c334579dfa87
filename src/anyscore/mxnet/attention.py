"""The attention layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import mxnet as mx
from mxnet import autograd

from anyscore.backends.mxnet import as_np, known_shapes
from anyscore.call.task import Call, Options, Task, lower_mask
from anyscore.functional.attention import attend
from anyscore.functional.cache.prepare import PreparedKeys, prepare_keys
from anyscore.functional.scores import scores
from anyscore.layers.last_weights import Chosen, LastWeights, chosen_weights, snapshot
from anyscore.layers.parameters import AnyScore, Parameter
from anyscore.layers.score_spec import BoundScore, ScoreSpec, describe
from anyscore.layers.state_dicts import rename_legacy_keys
from anyscore.modifiers.biases import lower_biases
from anyscore.modifiers.normalizers import Normalizer, check_normalizer
from anyscore.mxnet.layer import Layer
from anyscore.mxnet.symbolic import Mode
from anyscore.mxnet.weight import Weight
from anyscore.ops import Array, load
from anyscore.ops.checks import check_options, check_tensors, find_framework
from anyscore.score.base import Score

_xp = load("mxnet")


class Attention(LastWeights[Array], Layer):
    """Attention with any scoring function: output = softmax(score(queries, keys)) · values.

    Args:
        score: a name ("additive", "scaled_dot", …; `anyscore.score.SCORES`) or a score's class,
            whose parameters the layer creates and initialises as the class says; or a score
            object, whose parameters it registers, and arrays as constants; or any callable
            (queries, keys) → (..., T_q, T_k).
        hidden: width h of "additive", "concat" and "gatv2"; with `projected` that of the queries.
        d_q, d_k: widths of queries and keys; inferred at the first call if left out.
        dropout: rate on the weights, in training only.
        bias: whether an additive or concat score has one.
        heads, kv_heads: give each head (axis −3) its own parameters.
        projected: queries and keys come projected: leave out W_q and W_k.
        impl: as of `anyscore.attention`.
        softcap: c > 0 caps the scores, s → c · tanh(s / c), after scale and biases and before the
            softmax (Gemma Team 2024, Gemma 2, section 2); 0 does not.
        sink: one more logit, which takes weight and gives no value, so that weights sum to less
            than 1 (`anyscore.modifiers.sinks`). True: learned, one for each head if the layer has
            `heads`, from 0 on, which is "softmax one" (Miller 2023); a number: fixed; None: none.
        normalizer: as of `anyscore.attention`: "softmax", "sigmoid", "sparsemax", "entmax15".
        prefix, params: as of every block of Gluon.
        scales: sigma=, tau=, scale= or negative_slope= of the score, numbers in place of a learned
            or default one.

    Raises:
        TypeError, ValueError: an unknown score or argument, or sizes that it lacks.

    >>> layer = Attention("additive", hidden=8, d_q=20, d_k=2)
    >>> layer.initialize()
    >>> output = layer(mx.nd.ones((2, 1, 20)), mx.nd.ones((2, 10, 2)), valid_lens=[2, 6])
    >>> output.shape, layer.attention_weights.shape
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
        impl: str = "auto",
        softcap: float = 0.0,
        sink: bool | float | None = None,
        normalizer: Normalizer = "softmax",
        prefix: str | None = None,
        params: Any = None,
        **scales: float,
    ) -> None:
        super().__init__(prefix=prefix, params=params)
        check_options(dropout, None, impl, softcap)
        check_normalizer(normalizer, sink=sink)
        self._spec = ScoreSpec(
            score,
            hidden=hidden,
            d_q=d_q,
            d_k=d_k,
            bias=bias,
            heads=heads,
            kv_heads=kv_heads,
            projected=projected,
            sink=sink,
            **scales,
        )
        self.dropout, self.impl, self.softcap = dropout, impl, softcap
        self.normalizer = normalizer
        self._last: tuple[Task, bool] | None = None
        self._bound: BoundScore | None = None
        tensors = score.tensors() if isinstance(score, Score) else {}
        with self.name_scope():
            for name in self._spec.names:
                setattr(self, name, Weight(name, tensors.get(name)))
        if isinstance(self._spec.sink, Parameter):  # which asks for no widths
            self.sink.bind(self._spec.sink.init)
        if self._spec.sized:
            self._bind()

    def __call__(
        self,
        queries: Array,
        keys: Array | PreparedKeys,
        values: Array | None = None,
        valid_lens: Any = None,
        *,
        mask: Any = None,
        bias: Any = None,
        bias_after: Any = None,
    ) -> Array:
        """Attend: output (..., T_q, d_v).

        Args:
            queries: (..., T_q, d_q), of either kind of arrays.
            keys: (..., T_k, d_k), or what `prepare_keys` made of them.
            values: (..., T_k, d_v), by default the keys.
            valid_lens, mask, bias, bias_after: as of `anyscore.attention`. In a hybridized parent
                a bias that is trained is a tensor.

        Raises:
            TypeError, ValueError: as `anyscore.attention`, or widths that are not the layer's.
        """
        return super().__call__(queries, keys, values, valid_lens, mask, bias, bias_after)

    def scores(
        self,
        queries: Array,
        keys: Array | PreparedKeys,
        valid_lens: Any = None,
        *,
        mask: Any = None,
        bias: Any = None,
        bias_after: Any = None,
    ) -> Array:
        """Compute the matrix of scores (..., T_q, T_k) alone, with its gradients.

        Arguments are those of a call, and the result is that of `anyscore.scores`.

        Raises TypeError, ValueError: as `anyscore.scores`, or widths that are not the layer's.

        >>> layer = Attention("gaussian", d_q=4, d_k=4)
        >>> layer.initialize()
        >>> layer.scores(mx.nd.ones((2, 3, 4)), mx.nd.ones((2, 5, 4)), [2, 5]).shape
        (2, 3, 5)
        """
        with known_shapes():
            self.bind(queries, keys, None, valid_lens, mask, bias, bias_after)
        score = self._score(self.values(queries.ctx), len(queries.shape))
        return scores(
            queries,
            keys,
            score=score,
            mask=mask,
            valid_lens=valid_lens,
            bias=bias,
            bias_after=bias_after,
            softcap=self.softcap,
            impl=self.impl,
        )

    def prepare_keys(
        self, keys: Array, valid_lens: Any = None, *, mask: Any = None
    ) -> PreparedKeys:
        """Prepare keys (..., T_k, d_k) for calls `layer(queries, prepared, …)`.

        See `anyscore.prepare_keys`.

        Raises ValueError: the layer has not met its widths.

        >>> layer, keys = Attention("additive", hidden=8, d_q=20, d_k=2), mx.nd.ones((2, 10, 2))
        >>> layer.initialize()
        >>> prepared, queries = layer.prepare_keys(keys), mx.nd.ones((2, 1, 20))
        >>> same = layer(queries, prepared) - layer(queries, keys)
        >>> bool(same.abs().max().asscalar() < 1e-6)
        True
        """
        if self._bound is None:
            raise ValueError("give the layer d_q= and d_k=, or call it once, to prepare keys.")
        score = self._score(self.values(keys.ctx), len(keys.shape))
        return prepare_keys(keys, score, mask=mask, valid_lens=valid_lens)

    def _weights_of_last(self, *chosen: Chosen) -> Array | None:
        if self._last is None:
            return None
        task, legacy = self._last
        with autograd.pause(), known_shapes():
            attended = chosen_weights(task, *chosen)
        return attended.as_nd_ndarray() if legacy else attended

    def bind(self, *args: Any) -> None:
        """Give the parameters their shapes, at the first call."""
        queries, keys, values, valid_lens, mask, *biases = args
        keys = keys.key if isinstance(keys, PreparedKeys) else keys
        values = keys if values is None else values
        find_framework(queries=queries, keys=keys, values=values)
        if self._bound is None:  # once nothing else is wrong with the call
            sizes = check_tensors(_xp, queries, keys, values)
            lower_mask(_xp, sizes, queries, mask, valid_lens)
            bias, after = map(as_np, biases)
            lower_biases(_xp, bias, after, as_np(queries), sizes)
            self._bind(queries.shape[-1], keys.shape[-1])

    def shape_of(self, *args: Any) -> tuple[int, ...]:
        """Find the shape of the output; NumPy arrays stand for all. Parameters get their shapes."""
        queries, keys, values = args[:3]
        values = keys if values is None else values
        sizes = check_tensors(_xp, queries, keys, values)
        if self._bound is None:
            self._bind(queries.shape[-1], keys.shape[-1])
        return (*sizes.lead, sizes.queries, values.shape[-1])

    def compute(self, weights: Mapping[str, Array], mode: Mode, *args: Any) -> Array:
        """Compute the output of the arguments of `forward`, with the parameters `weights` by name.

        Raises TypeError, ValueError: as `anyscore.attention`.
        """
        queries, keys, values, valid_lens, mask, *biases = args
        tensor = keys.key if isinstance(keys, PreparedKeys) else keys
        values = tensor if values is None else values
        score, sink = self._score(weights, len(queries.shape)), self._spec.sink
        if isinstance(sink, Parameter):
            sink = weights["sink.weight"]
            sink = sink if len(queries.shape) > 2 else _xp.reshape(sink, ())  # as scales
        call = Call(queries, keys, values, score, mask, valid_lens, self.softcap, sink, *biases)
        result, task = attend(
            call._replace(normalizer=self.normalizer),
            Options(mode.dropout, mode.seed, impl=self.impl),
        )
        if mode.record:
            self._last = snapshot(_xp, task), type(queries) is mx.nd.NDArray
        output: Array = result.output
        return output

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles leave the last call behind."""
        return {**vars(self), "_last": None}

    def __repr__(self) -> str:
        about = describe(self._spec, self.dropout, self.softcap, self.normalizer)
        return f"{type(self).__name__}({about})"

    def _rename_legacy_keys(self, arrays: dict[str, Any]) -> None:
        rename_legacy_keys(arrays, "", self._spec)

    def _bind(self, d_q: int | None = None, d_k: int | None = None) -> None:
        """Give the parameters of a named score their shapes and initial values."""
        bound = self._spec.bind(d_q, d_k)
        for parameter in bound.parameters:
            self._children[parameter.name].bind(parameter.init)
        self._bound = bound

    def _score(self, weights: Mapping[str, Array], rank: int) -> Any:
        """Build the score of these parameters, for queries of a rank."""
        values = {name: weights[f"{name}.weight"] for name in self._spec.of_score}
        bound = cast(BoundScore, self._bound)
        if rank == 2:  # no leading dimension that a scale of shape (1,) could meet
            scales = [p.name for p in bound.parameters if p.init.shape == ()]
            values |= {name: _xp.reshape(values[name], ()) for name in scales}
        return bound.build(_xp, values)
