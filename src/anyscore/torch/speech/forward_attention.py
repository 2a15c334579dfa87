"""Forward attention: weights that move by one key at most."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from anyscore.layers.parameters import AnyScore
from anyscore.ops.checks import brief
from anyscore.torch.attention import Attention
from anyscore.torch.speech.forward_recurrence import forward_alignment, forward_steps
from anyscore.torch.speech.location import LocationSensitive
from anyscore.torch.speech.scored_stepwise import ScoredAttention, energies_of
from anyscore.torch.speech.state import State, Step


class ForwardAttention(ScoredAttention):
    """Attention whose weights stay, or move by one key, from query to query.

        α_i = softmax_j(e_ij + log((1 − u_i) α_i−1,j + u_i α_i−1,j−1))        α_0 = (1, 0, …)

    α_0 is 1 at the first allowed key. Weights do not jump over masked keys: keys behind a masked
    key are never reached. Derivatives are of first order.

    Args:
        score, hidden, d_q, d_k: the score of the energies e, as for `Attention`; or a layer,
            `Attention` or `LocationSensitive`. By default "additive".
        agent: None, the default, for u = ½. Or a module such as torch.nn.Linear(d_v + d_q, 1). It
            maps [output; query] of a step to the logit of u of the next step, and u_1 is ½.

    Raises:
        TypeError, ValueError: As `Attention`; or the agent cannot be called.

    Source: Zhang et al. 2018, Forward Attention in Sequence-to-Sequence Acoustic Modeling,
    algorithms 1 and 2.

    >>> import torch
    >>> from anyscore.torch import ForwardAttention
    >>> layer = ForwardAttention("additive", hidden=8, d_q=20, d_k=16)
    >>> output, weights = layer(torch.randn(2, 3, 20), torch.randn(2, 5, 16), return_weights=True)
    >>> (weights[0] > 0).int()                              # one key further at most
    tensor([[1, 1, 0, 0, 0],
            [1, 1, 1, 0, 0],
            [1, 1, 1, 1, 0]], dtype=torch.int32)
    """

    def __init__(
        self,
        score: AnyScore | Attention | LocationSensitive = "additive",
        *,
        hidden: int | None = None,
        d_q: int | None = None,
        d_k: int | None = None,
        agent: nn.Module | None = None,
    ) -> None:
        super().__init__(score, hidden, d_q, d_k)
        if agent is not None and not callable(agent):
            raise TypeError(f"agent must be a module, or None, got {brief(agent)}.")
        self.agent = agent

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
            TypeError, ValueError: The query or the mask has another type or shape. The state is of
                another layer. Or the agent returns no logits (B, 1).
        """
        step = super().step(query, state, mask=mask)
        if self.agent is None:
            return step
        logits = self.agent(torch.cat([step.output, query], -1))
        shape = tuple(logits.shape) if isinstance(logits, Tensor) else brief(logits)
        if shape != (len(query), 1):
            raise ValueError(f"the agent gave {shape}, expected logits ({len(query)}, 1).")
        u = torch.sigmoid(logits)[:, 0]
        return step._replace(state=step.state._replace(transition=u))

    def _attend(
        self, queries: Tensor, keys: Tensor, values: Tensor | None, *masking: Any
    ) -> tuple[Tensor, Tensor]:
        if self.agent is None:
            return super()._attend(queries, keys, values, *masking)
        valid_lens, mask = masking
        state = self.start(keys, values, valid_lens, mask=mask)
        outputs, rows = [], []
        for query in queries.unbind(1):  # the agent needs the output of each step
            output, weights, state = self.step(query, state)
            outputs.append(output)
            rows.append(weights)
        output = torch.stack(outputs, 1) if rows else state.values[:, :0]
        return output, torch.stack(rows, 1) if rows else state.weights[:, None][:, :0]

    def _align_all(self, queries: Tensor, keys: Tensor, allowed: Tensor | None) -> Tensor:
        assert isinstance(self.energy, Attention)
        energies = energies_of(self.energy, queries, keys, allowed)
        return forward_alignment(energies, previous=self._initial(keys, allowed))

    def _move_on(self, query: Tensor, state: State) -> tuple[Tensor, State]:
        energies, keys = self._energies(query, state)
        u = 0.5 if state.transition is None else state.transition[:, None]
        rows, logarithms = forward_steps(
            energies[:, None], u, state.alignment, logarithms=state.in_logarithms
        )
        weights = rows[:, 0]
        return weights, state.moved(weights, keys, logarithms)
