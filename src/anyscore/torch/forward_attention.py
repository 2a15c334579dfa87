"""Forward attention: weights that move by one key at most."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from anyscore.layers import AnyScore
from anyscore.torch.attention import Attention
from anyscore.torch.forward_recurrence import forward_alignment
from anyscore.torch.location import LocationSensitive
from anyscore.torch.scored import ScoredAttention, energies_of
from anyscore.torch.stepwise import State, Step, check_queries


class ForwardAttention(ScoredAttention):
    """Attention whose weights stay, or move on by one key, from query to query.

        α_i = softmax_j(e_ij + log((1 − u_i) α_i−1,j + u_i α_i−1,j−1))        α_0 = (1, 0, …)

    Args:
        score, hidden, d_q, d_k: the energies e, as of `Attention`; or a layer, `Attention` or
            `LocationSensitive`.
        agent: None for u = ½, or a module, such as torch.nn.Linear(d_v + d_q, 1), that maps the
            output and the query of a step, [output; query], to the logit of u for the next;
            u_1 = ½.

    Raises TypeError, ValueError: as `Attention`.

    Source: Zhang et al. 2018, Forward Attention in Sequence-to-Sequence Acoustic Modeling,
    algorithms 1 and 2.

    >>> import torch
    >>> from anyscore.torch import ForwardAttention
    >>> layer = ForwardAttention("additive", hidden=8, d_q=20, d_k=16)
    >>> output, weights = layer(torch.randn(2, 3, 20), torch.randn(2, 5, 16), return_weights=True)
    >>> weights.sum(-1).allclose(torch.ones(2, 3)), weights[:, 0, 2:].any().item()
    (True, False)
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
        self.agent = agent

    def step(self, query: Tensor, state: State) -> Step:
        """Attend with one query (B, d_q) of each sequence.

        Raises TypeError, ValueError: a query of another type or shape.
        """
        step = super().step(query, state)
        if self.agent is None:
            return step
        u = torch.sigmoid(self.agent(torch.cat([step.output, query], -1)))[:, 0]
        return step._replace(state=step.state._replace(transition=u))

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
        """Attend with queries (B, T_q, d_q): all at once, unless an agent sees the outputs.

        Arguments, results and errors are those of `LocationSensitive`.
        """
        if self.agent is None:
            return super().forward(
                queries, keys, values, valid_lens, mask=mask, return_weights=return_weights
            )
        check_queries(queries, keys)
        state = self.start(keys, values, valid_lens, mask=mask)
        outputs, rows = [], []
        for query in queries.unbind(1):
            output, weights, state = self.step(query, state)
            outputs.append(output[:, None])
            rows.append(weights[:, None])
        output = torch.cat([state.values[:, :0], *outputs], 1)
        weights = torch.cat([state.weights[:, None][:, :0], *rows], 1)
        return (output, weights) if return_weights else output

    def _align_all(self, queries: Tensor, keys: Tensor, allowed: Tensor | None) -> Tensor:
        assert isinstance(self.energy, Attention)
        return forward_alignment(energies_of(self.energy, queries, keys, allowed))

    def _weigh(self, query: Tensor, state: State) -> tuple[Tensor, Tensor, Any]:
        energies, keys = self._energies(query, state)
        u = 0.5 if state.transition is None else state.transition[:, None]
        weights = forward_alignment(energies[:, None], u, state.weights)[:, 0]
        return weights, weights, keys
