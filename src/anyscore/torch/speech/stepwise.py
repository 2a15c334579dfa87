"""Attention for decoders that attend step by step, with the weights of earlier steps."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor

from anyscore.masks.offsets import check_whole
from anyscore.ops import DTYPES, load
from anyscore.ops.checks import brief
from anyscore.torch.layer import Layer, check_inputs
from anyscore.torch.speech.state import Kind, State, Step
from anyscore.torch.speech.weighted_sum import Spans, weighted_sum

_xp = load("torch")


class StepwiseAttention(Layer):
    """The base of layers that attend step by step.

    `start` prepares keys and values once. `step` attends with one query of each sequence. A call
    attends with all queries of a sequence, known in training.
    """

    def start(
        self,
        keys: Tensor,
        values: Tensor | None = None,
        valid_lens: Any = None,
        *,
        mask: Any = None,
    ) -> State:
        """Prepare keys and values once for many steps.

        Masked keys are not read, NaN included; their weights and gradients are 0.

        Args:
            keys: (B, T_k, d_k).
            values: (B, T_k, d_v). By default None, the keys.
            valid_lens: (B,), the number of keys of each sequence. By default None, all.
            mask: booleans (B, T_k), True = may attend. By default None.

        Returns:
            The state for the first step.

        Raises:
            TypeError, ValueError: A tensor has another type or shape.
        """
        keys, values, allowed = open_keys(keys, values, valid_lens, mask)
        weights = self._initial(keys, allowed)
        kind = Kind(type(self).__name__)
        state = State(None, values, allowed, weights, torch.zeros_like(weights), values, kind=kind)
        return state._replace(keys=self._prepare(keys, state))

    def step(self, query: Tensor, state: State, *, mask: Tensor | None = None) -> Step:
        """Attend with one query of each sequence.

        Args:
            query: (B, d_q).
            state: from `start` of this layer, or from its last step.
            mask: booleans (B, T_k), True = may attend in this step; intersected with the mask of
                `start`. By default None, all.

        Returns:
            A `Step`: output (B, d_v), weights (B, T_k), and the state for the next step.

        Raises:
            TypeError, ValueError: The query or the mask has another type or shape, or the state is
                of another layer.
        """
        self._check_state(state)
        check_inputs(query, state.values, state.values)
        if query.dim() != 2 or len(query) != len(state.values):
            raise ValueError(
                f"query has shape {tuple(query.shape)}, expected ({len(state.values)}, d_q): one "
                "for each sequence."
            )
        allowed, spans = state.allowed, self._spans(state)
        if mask is not None:
            state = state._replace(allowed=_masked(allowed, mask, tuple(state.total.shape)))
        weights, state = self._move_on(query, state)
        output, passed_on = weighted_sum(weights, state.passed_on, spans)
        return Step(output, weights, state._replace(passed_on=passed_on, allowed=allowed))

    def forward(
        self,
        queries: Tensor,
        keys: Tensor,
        values: Tensor | None = None,
        valid_lens: Any = None,
        *,
        mask: Any = None,
        return_weights: bool = False,
    ) -> Any:
        """Attend with all queries, in parallel if no energy depends on weights.

        Args:
            queries: (B, T_q, d_q).
            keys, values, valid_lens, mask: as for `start`.
            return_weights: True also returns the weights (B, T_q, T_k). By default False.

        Returns:
            The output (B, T_q, d_v), or (output, weights) with `return_weights`.

        Raises:
            TypeError, ValueError: A tensor has another type or shape.
        """
        check_queries(queries, keys)
        output, weights = self._attend(queries, keys, values, valid_lens, mask)
        return (output, weights) if return_weights else output

    def _attend(
        self, queries: Tensor, keys: Tensor, values: Tensor | None, valid_lens: Any, mask: Any
    ) -> tuple[Tensor, Tensor]:
        """Attend with one query after the other. Return (output, weights)."""
        state = self.start(keys, values, valid_lens, mask=mask)
        rows = []
        for query in queries.unbind(1):
            weights, state = self._move_on(query, state)
            rows.append(weights)
        weights = torch.stack(rows, 1) if rows else state.weights[:, None][:, :0]
        return torch.bmm(weights.to(state.values.dtype), state.values), weights

    def _spans(self, state: State) -> Spans | None:
        """Return ranges of keys that hold all weights of this step; None if unknown."""
        return None

    def _check_state(self, state: Any) -> None:
        """Check that the state comes from a layer of this class and these sizes.

        Raises:
            TypeError: the state comes from another layer, or is no `State`.
        """
        if isinstance(state, State):
            name = state.kind.name if state.kind else "of no name"
            if name == type(self).__name__ and self.knows_keys(state.keys):
                return
            got = f"that of another layer, {name}"
        else:
            got = "a whole Step: pass its state" if isinstance(state, Step) else brief(state)
        raise TypeError(
            f"state must be what start() of this layer gave, or its last step, got {got}."
        )

    @abstractmethod
    def knows_keys(self, keys: Any) -> bool:
        """Return whether a layer of these sizes prepared the keys of a state.

        Args:
            keys: the keys of a state.
        """

    @abstractmethod
    def _initial(self, keys: Tensor, allowed: Tensor | None) -> Tensor:
        """Return the weights (B, T_k) before the first step."""

    @abstractmethod
    def _prepare(self, keys: Tensor, state: State) -> Any:
        """Prepare the keys once for all steps."""

    @abstractmethod
    def _move_on(self, query: Tensor, state: State) -> tuple[Tensor, State]:
        """Return (weights of a step, the next state without its parts that need the output)."""


def check_queries(queries: Any, keys: Any) -> None:
    """Check queries (B, T_q, d_q) against keys (B, T_k, d_k).

    Raises:
        TypeError, ValueError: queries have another type or shape.
    """
    check_inputs(queries, keys, keys)
    if queries.dim() != 3 or len(queries) != len(keys):
        raise ValueError(
            f"queries has shape {tuple(queries.shape)}, expected ({len(keys)}, T_q, d_q)."
        )


def open_keys(
    keys: Any, values: Any, valid_lens: Any, mask: Any
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return (keys, values, allowed): masked rows are 0; allowed is boolean (B, T_k), None: all.

    Raises:
        TypeError, ValueError: as `StepwiseAttention.start`.
    """
    values = keys if values is None else values
    check_inputs(keys, keys, values)
    for name, x in (("keys", keys), ("values", values)):
        if _xp.dtype(x) not in DTYPES:
            raise TypeError(f"{name} is {_xp.dtype(x)}, expected one of {', '.join(DTYPES)}.")
        if x.dim() != 3 or x.shape[:2] != keys.shape[:2]:
            raise ValueError(
                f"{name} has shape {tuple(x.shape)}, expected (B, T_k, width), keys and values "
                "with the same B and T_k."
            )
    allowed = _allowed(keys, valid_lens, mask)
    if allowed is None:
        return keys, values, None
    unread, same = ~allowed[..., None], values is keys
    keys = keys.masked_fill(unread, 0.0)
    return keys, keys if same else values.masked_fill(unread, 0.0), allowed


def softmax(energies: Tensor, allowed: Tensor | None) -> Tensor:
    """Return the softmax over the allowed keys; 0 for masked keys and in a row without keys."""
    if allowed is None:
        return torch.softmax(energies, -1)
    empty = ~allowed.any(-1, keepdim=True)
    energies = energies.masked_fill(~allowed, -math.inf).masked_fill(empty, 0.0)
    return torch.softmax(energies, -1).masked_fill(~allowed, 0.0)


def _allowed(keys: Tensor, valid_lens: Any, mask: Any) -> Tensor | None:
    """Return lengths and mask as one boolean tensor (B, T_k); None without either."""
    shape, allowed = tuple(keys.shape[:2]), None
    if valid_lens is not None:
        lengths = torch.as_tensor(valid_lens, device=keys.device)
        if lengths.dtype == torch.bool:
            raise TypeError("valid_lens is boolean, expected lengths (B,): pass it as mask=.")
        if tuple(lengths.shape) != shape[:1]:
            raise ValueError(
                f"valid_lens has shape {tuple(lengths.shape)}, expected {shape[:1]}: one length "
                "for each sequence."
            )
        if lengths.is_floating_point():
            check_whole(_xp, lengths.float(), "valid_lens")
        allowed = torch.arange(shape[1], device=keys.device) < lengths[:, None]
    return allowed if mask is None else _masked(allowed, mask, shape)


def _masked(allowed: Tensor | None, mask: Any, shape: tuple[int, ...]) -> Tensor:
    """Return the intersection of `allowed` and a checked mask."""
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        got = mask.dtype if isinstance(mask, Tensor) else brief(mask)
        raise TypeError(f"mask must be a boolean tensor, True = may be attended, got {got}.")
    if tuple(mask.shape) != shape:
        raise ValueError(f"mask has shape {tuple(mask.shape)}, expected {shape}.")
    return mask if allowed is None else allowed & mask
