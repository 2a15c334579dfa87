"""Step-by-step attention with energies of any score, or of location-sensitive attention."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from anyscore.functional.cache.prepare import PreparedKeys
from anyscore.layers.parameters import AnyScore
from anyscore.masks.objects import Keys
from anyscore.score.base import Score
from anyscore.torch.attention import Attention
from anyscore.torch.speech.location import LocationSensitive
from anyscore.torch.speech.state import State
from anyscore.torch.speech.stepwise import StepwiseAttention, open_keys


def energy_layer(
    score: AnyScore | Attention | LocationSensitive, **options: Any
) -> Attention | LocationSensitive:
    """Return the layer that computes energies: `score` if it is a layer, else a new `Attention`.

    Raises:
        TypeError, ValueError: options together with a layer; or a layer with options beyond
            energies (dropout, sink, normalizer, smoothing), which belong to the outer layer.
    """
    options = {name: x for name, x in options.items() if x is not None}
    if not isinstance(score, Attention | LocationSensitive):
        return Attention(score, **options)
    if options:
        raise TypeError(f"score is a layer and has its options: leave out {', '.join(options)}.")
    if isinstance(score, LocationSensitive):
        unused = {"smoothing": score.smoothing}
    else:
        unused = {"dropout": score.dropout > 0, "sink": score._spec.sink is not None}
        unused |= {"normalizer": score.normalizer != "softmax"}
    if given := [name for name, is_given in unused.items() if is_given]:
        raise ValueError(f"score gives energies alone: make it without {', '.join(given)}.")
    return score


class ScoredAttention(StepwiseAttention):
    """The base of layers that compute weights from energies of any score.

    score, hidden, d_q, d_k: as for `Attention`. Or score is a layer: an `Attention`, or a
    `LocationSensitive`, whose filters then take the weights of this layer.
    """

    def __init__(
        self,
        score: AnyScore | Attention | LocationSensitive,
        hidden: int | None,
        d_q: int | None,
        d_k: int | None,
    ) -> None:
        super().__init__()
        self.energy = energy_layer(score, hidden=hidden, d_q=d_q, d_k=d_k)

    def _attend(
        self, queries: Tensor, keys: Tensor, values: Tensor | None, *masking: Any
    ) -> tuple[Tensor, Tensor]:
        if not isinstance(self.energy, Attention):
            return super()._attend(queries, keys, values, *masking)
        keys, values, allowed = open_keys(keys, values, *masking)
        weights = self._align_all(queries, keys, allowed)
        return torch.bmm(weights.to(values.dtype), values), weights

    def _align_all(self, queries: Tensor, keys: Tensor, allowed: Tensor | None) -> Tensor:
        """Return the weights (B, T_q, T_k) of all queries."""
        raise NotImplementedError

    def _initial(self, keys: Tensor, allowed: Tensor | None) -> Tensor:
        """Return weights (B, T_k): 1 at the first allowed key."""
        dtype = torch.promote_types(keys.dtype, torch.float32)
        if allowed is not None:
            return (allowed & (allowed.cumsum(-1) == 1)).to(dtype)
        weights = keys.new_zeros(keys.shape[:2], dtype=dtype)
        weights[:, :1] = 1
        return weights

    def knows_keys(self, keys: Any) -> bool:
        """Return whether a layer of these sizes prepared the keys of a state."""
        return knows_keys(self.energy, keys)

    def _prepare(self, keys: Tensor, state: State) -> Any:
        return prepare(self.energy, keys, state)

    def _energies(self, query: Tensor, state: State) -> tuple[Tensor, Any]:
        """Return (energies (B, T_k), −∞ for masked keys; keys for the next step)."""
        if isinstance(self.energy, Attention):
            return energies_of(self.energy, query[:, None], state.keys, state.allowed)[:, 0], (
                state.keys
            )
        energies, keys = self.energy.energies(query, state)
        reached = self.energy.reached(state)
        if reached is not None:
            energies = energies.masked_fill(~reached, -torch.inf)
        return energies, keys


def prepare(energy: Attention | LocationSensitive, keys: Tensor, state: State) -> Any:
    """Prepare the keys once for the energies of all steps."""
    if isinstance(energy, LocationSensitive):
        return energy._prepare(keys, state)
    if not is_prepared(energy):
        return keys
    return energy.prepare_keys(keys, mask=_mask(state.allowed))


def is_prepared(energy: Attention) -> bool:
    """Return whether the score takes prepared keys: a callable takes tensors alone."""
    return isinstance(energy.score, type | Score)


def knows_keys(energy: Attention | LocationSensitive, keys: Any) -> bool:
    """Return whether `prepare` made the keys for a layer of this class."""
    if isinstance(energy, LocationSensitive):
        return energy.knows_keys(keys)
    return isinstance(keys, PreparedKeys if is_prepared(energy) else Tensor)


def energies_of(energy: Attention, queries: Tensor, keys: Any, allowed: Tensor | None) -> Tensor:
    """Return energies (B, T_q, T_k) by content; −∞ for masked keys."""
    return energy.scores(queries, keys, mask=_mask(allowed))


def _mask(allowed: Tensor | None) -> Keys | None:
    return None if allowed is None else Keys(allowed)
