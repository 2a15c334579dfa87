"""Attention that returns log-probabilities: the last step of a pointer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from anyscore.call.task import Call, Options
from anyscore.functional.cache.prepare import PreparedKeys
from anyscore.functional.scores import attend_to_scores, log_weights
from anyscore.layers.last_weights import Chosen
from anyscore.torch.attention import Attention


class PointerEnergy(Attention):
    """An `Attention` that returns the logarithms of its weights, not an output."""

    clip = 0.0
    _weights: Tensor | None = None

    def forward(  # type: ignore[override]
        self, queries: Tensor, keys: Any, valid_lens: Any = None, *, mask: Any = None
    ) -> Tensor:
        """Return the logarithms of weights (B, T_q, T_k), of clipped scores if clip > 0."""
        if self.clip:
            s, allowed = self._scores(queries, keys, valid_lens, mask)
            found = _log_softmax(self.clip * torch.tanh(s), allowed)
        else:
            given = {"mask": mask, "valid_lens": valid_lens, "impl": self.impl}
            self._meet_keys(queries, keys, valid_lens, mask)
            found = log_weights(queries, keys, score=self._score(queries), **given)
        self._weights = None if torch.compiler.is_compiling() else found.detach()
        return found

    def _scores(
        self, queries: Tensor, keys: Any, valid_lens: Any, mask: Any
    ) -> tuple[Tensor, Tensor | None]:
        """Return the scores, and booleans of the allowed pairs; None: all."""
        kind, _, found = self._earlier(queries, keys, None, valid_lens, mask, 0.0)
        if found is not None:
            s, lowered, known, bounds = found
            return s, known.task(lowered, bounds).boolean
        self._meet_keys(queries, keys, valid_lens, mask)
        call = Call(queries, keys, None, self._score(queries), mask, valid_lens)
        s, _, task = attend_to_scores(call, Options(return_scores=True, impl=self.impl))
        if kind is not None:
            self._calls.remember(kind, call, task)
        return s, task.boolean

    def _meet_keys(self, queries: Tensor, keys: Any, valid_lens: Any, mask: Any) -> None:
        tensor = keys.key if isinstance(keys, PreparedKeys) else keys
        self._meet(queries, tensor, tensor, valid_lens, mask, None, None)

    def last_weights(
        self, rows: Chosen = None, heads: Chosen = None, examples: Chosen = None
    ) -> Tensor | None:
        """Return probabilities (B, T_q, T_k) of the last call, for chosen queries and examples."""
        if heads is not None:
            raise IndexError("heads= chooses of weights with heads, and a pointer has none.")
        if self._weights is None:
            return None
        found = self._weights if rows is None else self._weights[:, rows]
        return (found if examples is None else found[examples]).exp()

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_weights": None}


def _log_softmax(scores: Tensor, allowed: Tensor | None) -> Tensor:
    """Return the log-softmax of clipped scores over the allowed keys; −∞ for the others."""
    if allowed is None:
        return scores.log_softmax(-1)
    masked = ~allowed
    # A finite number, unlike −∞, gives no NaN in a row without keys, in gradients too.
    least = torch.finfo(scores.dtype).min
    return scores.masked_fill(masked, least).log_softmax(-1).masked_fill(masked, -torch.inf)
