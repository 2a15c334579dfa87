"""The attention layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import mxnet as mx
from mxnet import autograd

from anyscore.backends.mxnet import as_np, known_shapes
from anyscore.call.task import Call, Options, Task
from anyscore.functional.attention import attend
from anyscore.functional.cache.prepare import PreparedKeys
from anyscore.layers.attention import AttentionLayer, check_first_call
from anyscore.layers.last_weights import Chosen, chosen_weights, snapshot
from anyscore.layers.parameters import AnyScore, Parameter
from anyscore.layers.score_spec import BoundScore
from anyscore.layers.state_dicts import rename_legacy_keys
from anyscore.layers.texts import with_texts
from anyscore.modifiers.normalizers import Normalizer
from anyscore.mxnet.layer import Layer
from anyscore.mxnet.symbolic import Mode
from anyscore.mxnet.weight import Weight
from anyscore.ops import Array, load
from anyscore.ops.checks import check_tensors, find_framework
from anyscore.score.base import Score

_xp = load("mxnet")


@with_texts
class Attention(AttentionLayer[Array], Layer):
    """Attention layer for MXNet's Gluon, with any scoring function.

        output_i = Σ_j softmax_j score(query_i, key_j) · value_j        over the attended keys j

    Args:
        score: a name ("additive", "scaled_dot", …; `anyscore.score.SCORES`) or a score's class:
            the layer creates and initialises its parameters. Or a score object: the layer
            registers its parameters, and its arrays as constants. Or any callable (queries, keys)
            → (..., T_q, T_k). By default "scaled_dot".
        {options}
        prefix, params: as for every Gluon block. By default None.
        {scales}

    {errors}

    >>> import mxnet as mx
    >>> from anyscore.mxnet import Attention
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
        sizes: dict[str, Any] = {"hidden": hidden, "d_q": d_q, "d_k": d_k, "bias": bias, **scales}
        sizes |= {"heads": heads, "kv_heads": kv_heads, "projected": projected}
        self._set_options("mxnet", score, sizes, dropout, impl, softcap, sink, normalizer)
        self._last: tuple[Task, bool] | None = None
        tensors = score.tensors() if isinstance(score, Score) else {}
        with self.name_scope():
            for name in self._spec.names:
                setattr(self, name, Weight(name, tensors.get(name)))
        if isinstance(self._spec.sink, Parameter):  # its shape needs no widths
            self.sink.bind(self._spec.sink.init)
        if self._spec.widths_known:
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
            queries: (..., T_q, d_q), an array of `mx.np` or `mx.nd`.
            keys: (..., T_k, d_k), or `PreparedKeys`.
            values: (..., T_k, d_v). By default None, the keys.
            valid_lens, mask, bias, bias_after: as for `anyscore.attention`. In a hybridized parent
                a trained bias must be a tensor.

        Returns:
            The output in the dtype of the queries.

        Raises:
            TypeError, ValueError: As `anyscore.attention`; or widths are not those of the layer.
        """
        return super().__call__(queries, keys, values, valid_lens, mask, bias, bias_after)

    def _weights_of_last(self, *chosen: Chosen) -> Array | None:
        if self._last is None:
            return None
        task, legacy = self._last
        with autograd.pause(), known_shapes():
            attended = chosen_weights(task, *chosen)
        return attended.as_nd_ndarray() if legacy else attended

    def bind(self, *args: Any) -> None:
        """Set the shapes of the parameters at the first call."""
        queries, keys, values, *masking = args
        keys = keys.key if isinstance(keys, PreparedKeys) else keys
        self._meet(queries, keys, keys if values is None else values, *masking)

    def _meet(self, queries: Array, keys: Array, values: Array, *masking: Any) -> None:
        find_framework(queries=queries, keys=keys, values=values)
        if self._bound is None:  # check the whole call before parameters are created
            q, k, v = map(as_np, (queries, keys, values))
            valid_lens, mask, *biases = masking
            with known_shapes():
                check_first_call(_xp, q, k, v, valid_lens, mask, *map(as_np, biases))
            self._bind(queries.shape[-1], keys.shape[-1])

    def shape_of(self, *args: Any) -> tuple[int, ...]:
        """Return the shape of the output for NumPy arguments; set the shapes of the parameters."""
        queries, keys, values = args[:3]
        values = keys if values is None else values
        sizes = check_tensors(_xp, queries, keys, values)
        if self._bound is None:
            self._bind(queries.shape[-1], keys.shape[-1])
        return (*sizes.lead, sizes.queries, values.shape[-1])

    def compute(self, weights: Mapping[str, Array], mode: Mode, *args: Any) -> Array:
        """Compute the output for the arguments of `forward`. weights: the parameters by name.

        Raises:
            TypeError, ValueError: as `anyscore.attention`.
        """
        queries, keys, values, valid_lens, mask, *biases = args
        tensor = keys.key if isinstance(keys, PreparedKeys) else keys
        values = tensor if values is None else values
        score, sink = self._build(weights, len(queries.shape)), self._spec.sink
        if isinstance(sink, Parameter):
            sink = weights["sink.weight"]
            sink = sink if len(queries.shape) > 2 else _xp.reshape(sink, ())  # as for scales
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
        """Leave the last call out of copies and pickles."""
        return {**vars(self), "_last": None}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._describe()})"

    def _rename_legacy_keys(self, arrays: dict[str, Any]) -> None:
        rename_legacy_keys(arrays, "", self._spec)

    def _bind(self, d_q: int | None = None, d_k: int | None = None) -> None:
        """Set the shapes and initial values of the parameters of a named score."""
        bound = self._spec.bind(d_q, d_k)
        for parameter in bound.parameters:
            self._children[parameter.name].bind(parameter.init)
        self._bound = bound

    def _score(self, like: Array) -> Any:
        return self._build(self.values(like.ctx), len(like.shape))

    def _build(self, weights: Mapping[str, Array], rank: int) -> Any:
        """Build the score from these parameters, for queries of a rank."""
        values = {name: weights[f"{name}.weight"] for name in self._spec.score_parameters}
        bound = cast(BoundScore, self._bound)
        if rank == 2:  # without leading dimensions a scale (1,) does not broadcast
            scales = [p.name for p in bound.parameters if p.init.shape == ()]
            values |= {name: _xp.reshape(values[name], ()) for name in scales}
        return bound.build(_xp, values)
