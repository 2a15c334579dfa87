"""Monotonic attention, hard and soft, and in chunks."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from anyscore.layers.parameters import AnyScore
from anyscore.ops.checks import check_numbers, check_size, check_switches
from anyscore.ops.pytrees import named_tuple
from anyscore.torch.attention import Attention
from anyscore.torch.speech.chunks import chunkwise
from anyscore.torch.speech.location import LocationSensitive
from anyscore.torch.speech.monotonic_recurrence import monotonic_alignment
from anyscore.torch.speech.scored_stepwise import (
    ScoredAttention,
    energies_of,
    energy_layer,
    knows_keys,
    prepare,
)
from anyscore.torch.speech.state import State, take_entries


@named_tuple
class ChunkKeys(NamedTuple):
    """Prepared keys of `MoChA`: for the energies of stops, and for those of chunks."""

    stops: Any
    chunks: Any

    def reorder(self, index: Tensor) -> ChunkKeys:
        """Return the keys with entry i of the batch from entry index[i]."""
        return ChunkKeys(*(take_entries(x, index) for x in self))


class MonotonicAttention(ScoredAttention):
    """Attention to one key, which never moves to the left from query to query.

        p_ij = σ(e_ij + r + noise)      α = `monotonic_alignment`(p)      output_i = Σ_j α_ij v_j

    In training α are probabilities, with gradients. In hard mode p is 1 if e_ij + r > 0, else 0:
    the head inspects keys from its last stop on, and stops at the first key with p = 1. After the
    head has passed the last key, this query and all later ones have output 0. Derivatives are of
    first order.

    Args:
        score, hidden, d_q, d_k: the score of the energies e, as for `Attention`; or a layer,
            `Attention` or `LocationSensitive`. By default "additive".
        noise: the standard deviation of Gaussian noise on energies in training. Noise drives p
            towards 0 or 1. By default 1.
        offset: the initial value of the learned number r. Longer sequences of keys need lower r.
            By default −1.
        hard: True, False, or None (the default): hard except in training.

    The published e has w_v = g · v / ‖v‖, another parametrization of the same function. Use
    torch.nn.utils.parametrizations.weight_norm(layer.energy.w_v, dim=None) to train it so.

    Raises:
        TypeError, ValueError: As `Attention`; or the noise is below 0.

    Source: Raffel et al. 2017, Online and Linear-Time Attention by Enforcing Monotonic Alignments,
    eq. 8 to 16 and algorithm 1.

    >>> import torch
    >>> from anyscore.torch import MonotonicAttention
    >>> layer = MonotonicAttention(lambda q, k: q @ k.mT, offset=0.0, hard=True)
    >>> keys, queries = torch.eye(4)[None], torch.eye(4)[None, [1, 3]]
    >>> output, weights = layer(queries, keys, return_weights=True)
    >>> weights                                             # one key each, from left to right
    tensor([[[0., 1., 0., 0.],
             [0., 0., 0., 1.]]])
    """

    def __init__(
        self,
        score: AnyScore | Attention | LocationSensitive = "additive",
        *,
        hidden: int | None = None,
        d_q: int | None = None,
        d_k: int | None = None,
        noise: float = 1.0,
        offset: float = -1.0,
        hard: bool | None = None,
    ) -> None:
        super().__init__(score, hidden, d_q, d_k)
        check_numbers(0, noise=noise)
        check_numbers(offset=offset)
        if hard is not None:
            check_switches(hard=hard)
        self.noise, self.hard = noise, hard
        self.offset = nn.Parameter(torch.tensor(float(offset)))

    def _is_hard(self) -> bool:
        return not self.training if self.hard is None else self.hard

    def _stops(self, energies: Tensor) -> Tensor:
        """Return the probabilities p of stopping."""
        energies = energies + self.offset
        if self._is_hard():
            return (energies > 0).to(energies.dtype)
        if self.training and self.noise:
            energies = energies + self.noise * torch.randn_like(energies)
        return torch.sigmoid(energies)

    def _align_all(self, queries: Tensor, keys: Tensor, allowed: Tensor | None) -> Tensor:
        assert isinstance(self.energy, Attention)
        energies = energies_of(self.energy, queries, keys, allowed)
        return monotonic_alignment(self._stops(energies))

    def _move_on(self, query: Tensor, state: State) -> tuple[Tensor, State]:
        energies, keys = self._energies(query, state)
        weights = self._move(energies, state)
        return weights, state.moved(weights, keys)

    def _move(self, energies: Tensor, state: State) -> Tensor:
        """Return the alignment (B, T_k) that follows the weights of the state."""
        p = self._stops(energies)
        if not self._is_hard():
            return monotonic_alignment(p[:, None], state.weights)[:, 0]
        inspected = state.weights.cumsum(-1) > 0  # no key after the head has passed the last
        stops = (p > 0) & inspected
        return (stops & (stops.cumsum(-1) == 1)).to(energies.dtype)


class MoChA(MonotonicAttention):
    """Soft attention in a chunk of keys up to the key where a monotonic head stops.

        β = `chunkwise`(α, u, width)        output_i = Σ_j β_ij v_j

    α are the weights of `MonotonicAttention` with energies e; u are energies of a second score. In
    hard mode β is a softmax over the `width` keys up to the stop, as in `Window(width − 1, 0)`.
    Derivatives are of first order.

    Args:
        score, hidden, d_q, d_k: the score of the energies e, as for `MonotonicAttention`.
        width: the width of the chunk, an integer ≥ 1.
        chunk_score: the score of the energies u: a name or class, with the same hidden, d_q and
            d_k; or a layer `Attention`. By default "additive".
        noise, offset, hard: as for `MonotonicAttention`.

    Raises:
        TypeError, ValueError: As `MonotonicAttention`; or width is no integer ≥ 1.

    Source: Chiu & Raffel 2018, Monotonic Chunkwise Attention, eq. 6 to 13.

    >>> import torch
    >>> from anyscore.torch import Attention, MoChA
    >>> by_content = Attention(lambda q, k: q @ k.mT)
    >>> layer = MoChA(by_content, width=2, chunk_score=by_content, offset=0.0, hard=True)
    >>> keys, queries = torch.eye(4)[None], 100 * torch.eye(4)[None, [1, 3]]
    >>> (layer(queries, keys, return_weights=True)[1] > 0).int()     # 2 keys up to the stop
    tensor([[[1, 1, 0, 0],
             [0, 0, 1, 1]]], dtype=torch.int32)
    """

    def __init__(
        self,
        score: AnyScore | Attention | LocationSensitive = "additive",
        *,
        width: int,
        chunk_score: AnyScore | Attention = "additive",
        hidden: int | None = None,
        d_q: int | None = None,
        d_k: int | None = None,
        noise: float = 1.0,
        offset: float = -1.0,
        hard: bool | None = None,
    ) -> None:
        of_layer = isinstance(score, Attention | LocationSensitive)
        sizes = {"hidden": hidden, "d_q": d_q, "d_k": d_k}
        own = dict.fromkeys(sizes) if of_layer else sizes
        super().__init__(score, **own, noise=noise, offset=offset, hard=hard)
        check_size(width=width)
        self.width = width
        if isinstance(chunk_score, Attention):
            sizes = {}
        self.chunk = energy_layer(chunk_score, **sizes)

    def knows_keys(self, keys: Any) -> bool:
        """Return whether a layer of these sizes prepared the keys of a state.

        Args:
            keys: the keys of a state.
        """
        if not isinstance(keys, ChunkKeys):
            return False
        return super().knows_keys(keys.stops) and knows_keys(self.chunk, keys.chunks)

    def _prepare(self, keys: Tensor, state: State) -> Any:
        return ChunkKeys(super()._prepare(keys, state), prepare(self.chunk, keys, state))

    def _align_all(self, queries: Tensor, keys: Tensor, allowed: Tensor | None) -> Tensor:
        assert isinstance(self.chunk, Attention)
        alignment = super()._align_all(queries, keys, allowed)
        return chunkwise(alignment, energies_of(self.chunk, queries, keys, allowed), self.width)

    def _move_on(self, query: Tensor, state: State) -> tuple[Tensor, State]:
        assert isinstance(self.chunk, Attention)
        keys: ChunkKeys = state.keys
        energies, stops = self._energies(query, state._replace(keys=keys.stops))
        alignment = self._move(energies, state)
        u = energies_of(self.chunk, query[:, None], keys.chunks, state.allowed)
        weights = chunkwise(alignment[:, None], u, self.width)[:, 0]
        return weights, state.moved(alignment, keys._replace(stops=stops))
