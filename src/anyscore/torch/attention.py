"""The attention layer."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.nn.modules.module import _has_any_global_hook

from anyscore.backends.repeated import (
    NAMED,
    KnownCall,
    Lowered,
    RepeatedCalls,
    kind_of_mask,
    kind_of_score,
)
from anyscore.backends.torch.backend import ARRAYS
from anyscore.backends.torch.modes import is_transformed, may_repeat
from anyscore.backends.torch.repeated import kept_bounds
from anyscore.call.task import Call, Options, Task
from anyscore.functional.attention import attend
from anyscore.functional.cache.prepare import PreparedKeys
from anyscore.layers.attention import AttentionLayer, check_first_call
from anyscore.layers.last_weights import Chosen, chosen_weights, snapshot
from anyscore.layers.parameters import SINK, AnyScore, Parameter, makes_parameters
from anyscore.layers.score_spec import BoundScore, replaced_score
from anyscore.layers.state_dicts import rename_legacy_keys
from anyscore.layers.texts import with_texts
from anyscore.modifiers.normalizers import Normalizer, Sigmoid
from anyscore.ops import load
from anyscore.ops.checks import widths
from anyscore.ops.locks import Lock
from anyscore.score.base import Score
from anyscore.torch.layer import Layer, check_inputs
from anyscore.torch.nested_weights import PackedCall
from anyscore.torch.weight import (
    Linear,
    Weight,
    is_unwatched,
    plain_projection,
    projection,
    tensor_of,
)

_xp = load("torch")
_MAKING = Lock()
"""Held while a first call creates parameters: concurrent calls wait."""


class _LastCall(NamedTuple):
    """A repeated call: its task is made if its weights are asked for."""

    call: KnownCall
    lowered: Lowered
    bounds: tuple[Any, Any, Any]


@with_texts
class Attention(AttentionLayer[Tensor], Layer):
    """Attention layer for PyTorch, with any scoring function.

        output_i = Σ_j softmax_j score(query_i, key_j) · value_j        over the attended keys j

    Args:
        score: a name ("additive", "scaled_dot", …; `anyscore.score.SCORES`) or a score's class:
            the layer creates and initialises its parameters. Or a score object: the layer
            registers its tensors. Or any callable (queries, keys) → (..., T_q, T_k). By default
            "scaled_dot".
        {options}
        device, dtype: of the parameters. By default None, as for `torch.nn.Linear`.
        {scales}

    {errors}

    >>> import torch
    >>> from anyscore.torch import Attention
    >>> layer = Attention("additive", hidden=8, d_q=20, d_k=2)
    >>> output = layer(torch.ones(2, 1, 20), torch.ones(2, 10, 2), valid_lens=torch.tensor([2, 6]))
    >>> output.shape, layer.attention_weights.shape
    (torch.Size([2, 1, 2]), torch.Size([2, 1, 10]))
    >>> layer.attention_weights[0]                          # the length of this example is 2
    tensor([[0.5000, 0.5000, 0.0000, 0.0000, 0.0000, 0.0000, 0.0000, 0.0000, 0.0000,
             0.0000]])
    """

    _tokens = "queries", "keys", "values"

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
        device: Any = None,
        dtype: torch.dtype | None = None,
        **scales: float,
    ) -> None:
        super().__init__()
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        sizes: dict[str, Any] = {"hidden": hidden, "d_q": d_q, "d_k": d_k, "bias": bias, **scales}
        sizes |= {"heads": heads, "kv_heads": kv_heads, "projected": projected}
        sizes |= {} if makes_parameters(score, sink) else factory  # refused without parameters
        self._set_options("torch", score, sizes, dropout, impl, softcap, sink, normalizer)
        self._last: Task | PackedCall | _LastCall | None = None
        self._calls = RepeatedCalls(ARRAYS)
        tensors = score.tensors() if isinstance(score, Score) else {}
        for name in self._spec.names:
            kind = Linear if name in self._spec.linears else Weight
            self.add_module(
                name, Weight(tensors[name]) if name in tensors else kind.lazy(**factory)
            )
        if isinstance(score, Score):  # the module holds its tensors
            self._spec.score = score.map(lambda x: None)
        self.score = self._spec.score  # registers the score if it is a module
        if isinstance(self._spec.sink, Parameter):  # its shape needs no widths
            cast(Weight, self.get_submodule(SINK)).bind(self._spec.sink)
        if self._spec.widths_known:
            self._bind()

    def forward(
        self,
        queries: Tensor,
        keys: Tensor | PreparedKeys,
        values: Tensor | None = None,
        valid_lens: Any = None,
        *,
        mask: Any = None,
        bias: Any = None,
        bias_after: Any = None,
        return_weights: bool = False,
        across: Any = None,
    ) -> Any:
        """Attend: output (..., T_q, d_v), or (output, weights) with `return_weights`.

        Args:
            queries: (..., T_q, d_q).
            keys: (..., T_k, d_k), or `PreparedKeys`.
            values: (..., T_k, d_v). By default None, the keys.
            valid_lens, mask, bias, bias_after: as for `anyscore.attention`.
            return_weights: True also returns the weights (..., T_q, T_k), before dropout.
            across: the layout of the tokens on several ranks, as for `anyscore.attention`. Such a
                call has no weights.

        Returns:
            The output in the dtype of the queries, or (output, weights).

        Raises:
            TypeError, ValueError: As `anyscore.attention`; or widths are not those of the layer.
        """
        tensor = keys.key if isinstance(keys, PreparedKeys) else keys
        values = tensor if values is None else values
        dropout = self.dropout if self.training else 0.0
        kind = seed = found = None
        if bias is bias_after is across is None and not return_weights:
            kind, seed, found = self._earlier(queries, keys, values, valid_lens, mask, dropout)
        if found is not None:
            return self._of_known_call(valid_lens, *found)
        self._meet(queries, tensor, values, valid_lens, mask, bias, bias_after)
        score, sink = self._score(queries), self._sink(queries)
        rest = bias, bias_after, self.normalizer, across
        call = Call(queries, keys, values, score, mask, valid_lens, self.softcap, sink, *rest)
        options = Options(dropout, seed, return_scores=return_weights, impl=self.impl)
        result, task = attend(call, options)
        if not torch.compiler.is_compiling():
            has_none = across is not None or is_transformed(result.output)
            self._last = None if has_none else self._snapshot(task)
            if kind is not None:
                self._calls.remember(kind, call, task, dropout)
        elif not torch.compiler.is_exporting():
            self._last = None
        return (result.output, result.weights) if return_weights else result.output

    def _earlier(
        self,
        queries: Tensor,
        keys: Any,
        values: Tensor | None,
        lengths: Any,
        mask: Any,
        dropout: float,
    ) -> tuple[Any, Tensor | None, Any]:
        """Repeat an earlier call, if there is one like this.

        Return (kind to remember the call by, seed of dropout, the result of `RepeatedCalls.run`).
        Each is None if there is none; without a kind the call is never repeated.
        """
        if self._packed is not None or self.impl != "auto" or not may_repeat(queries):
            return None, None, None
        kind, seed = self._kind(mask) if self._is_unwatched() else None, None
        if kind is None:
            return None, None, None
        if dropout:
            kind, seed = (kind, dropout), ARRAYS.backend.draw_seed(queries)
        score = self._score_of_tensors
        found = self._calls.run(kind, queries, keys, values, lengths, mask, score, seed)
        return kind, seed, found

    def _is_unwatched(self) -> bool:
        """Return whether nobody counts the calls of the modules that hold the parameters."""
        for module in self._modules.values():
            if not is_unwatched(module):
                return False
        return not _has_any_global_hook()  # type: ignore[no-untyped-call]

    def _kind(self, mask: Any) -> Any:
        """Return the kind of a call for `RepeatedCalls`; None for a score that is not repeated."""
        score, cap, normalizer = self.score, self.softcap, self.normalizer
        if score is not self._spec.score:
            return None
        kind = score if isinstance(score, type) and score in NAMED else kind_of_score(score)
        if kind is None or not (type(normalizer) is str or isinstance(normalizer, Sigmoid)):
            return None
        return kind, type(cap), cap, normalizer, mask if mask is None else kind_of_mask(mask)

    def _of_known_call(
        self,
        lengths: Any,
        output: Tensor,
        lowered: Lowered,
        call: KnownCall,
        bounds: tuple[Any, Any, Any],
    ) -> Tensor:
        """Return the output of a repeated call; keep its arrays without their graph."""
        a, b, weight, key_bias = lowered
        weight = None if weight is None else weight.detach().clone()  # an optimiser changes it
        key_bias = None if key_bias is None else key_bias.detach()
        lowered = a.detach(), b.detach(), weight, key_bias
        self._last = _LastCall(call, lowered, kept_bounds(bounds, lengths))
        return output

    def _snapshot(self, task: Task) -> Task | PackedCall:
        kept = snapshot(_xp, task)
        return kept if self._packed is None else PackedCall(kept, self._packed)

    def _weights_of_last(self, *chosen: Chosen) -> Tensor | None:
        last = self._last
        with torch.no_grad():
            if isinstance(last, _LastCall):
                last = last.call.task(*last[1:])
            if isinstance(last, PackedCall):
                return last.weights(*chosen)
            return None if last is None else chosen_weights(last, *chosen)

    def reset_parameters(self) -> None:
        """Draw the parameters of a named score again, if their shapes are known."""
        for name in self._spec.names:
            cast(Weight, self.get_submodule(name)).reset_parameters()

    def extra_repr(self) -> str:
        """Describe the layer in the repr of a module."""
        return self._describe()

    def _meet(self, queries: Tensor, keys: Tensor, values: Tensor, *masking: Any) -> None:
        check_inputs(queries, keys, values)
        if self._bound is not None:
            self._spec.check_widths(*widths(queries=queries, keys=keys))
            return
        make = self._make_parameters
        if torch.compiler.is_compiling():  # a decorator would import the whole compiler
            make = torch.compiler.disable(make)  # type: ignore[no-untyped-call]
        make(queries, keys, values, *masking)

    def _make_parameters(self, queries: Tensor, keys: Tensor, *others: Any) -> None:
        """Check the first call, then create the parameters."""
        check_first_call(_xp, queries, keys, *others)
        with _MAKING, torch.inference_mode(False):
            if self._bound is None:
                self._bind(queries.shape[-1], keys.shape[-1])

    def _bind(self, d_q: int | None = None, d_k: int | None = None) -> None:
        """Set the shapes and initial values of the parameters of a named score."""
        bound = self._spec.bind(d_q, d_k)
        for parameter in bound.parameters:
            cast(Weight, self.get_submodule(parameter.name)).bind(parameter)
        self._bound = bound

    def _score(self, like: Tensor) -> Any:
        if self.score is not self._spec.score:
            return replaced_score(self.score)
        if not isinstance(self.score, type | Score):
            return self.score
        values, linears, detached = {}, self._spec.linears, like.detach()
        for name in self._spec.score_parameters:
            module: Any = self._modules[name]
            values[name] = projection(module, like) if name in linears else module(detached)
        return cast(BoundScore, self._bound).build(_xp, values)

    def _score_of_tensors(self) -> Any:
        """Build the score without calls of the modules, which nobody watches."""
        values: dict[str, Any] = {}
        for name in self._spec.score_parameters:
            weight = tensor_of(self._modules[name])
            values[name] = plain_projection(weight) if name in self._spec.linears else weight
        return cast(BoundScore, self._bound).build(_xp, values)

    def _sink(self, like: Tensor) -> Any:
        """Return the sink for tokens like `like`; None without a sink."""
        if not isinstance(self._spec.sink, Parameter):
            return self._spec.sink
        return cast(Any, self._modules[SINK])(like.detach())

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_last": None, "_calls": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._calls = RepeatedCalls(ARRAYS)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        rename_legacy_keys(state_dict, prefix, self._spec)
        super()._load_from_state_dict(state_dict, prefix, *args)
