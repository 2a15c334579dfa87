"""Attention that returns log-probabilities: the last step of a pointer."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from anyscore.call.lowering import lower_mask
from anyscore.functional.cache.prepare import PreparedKeys
from anyscore.functional.scores import log_weights, scores
from anyscore.layers.last_weights import Chosen
from anyscore.ops import load
from anyscore.ops.checks import Sizes
from anyscore.torch.attention import Attention

_xp = load("torch")


class PointerEnergy(Attention):
    """An `Attention` that returns the logarithms of its weights, not an output."""

    clip = 0.0
    _weights: Tensor | None = None

    def forward(  # type: ignore[override]
        self, queries: Tensor, keys: Any, valid_lens: Any = None, *, mask: Any = None
    ) -> Tensor:
        """Return the logarithms of weights (B, T_q, T_k), of clipped scores if clip > 0."""
        tensor = keys.key if isinstance(keys, PreparedKeys) else keys
        self._meet(queries, tensor, tensor, valid_lens, mask, None, None)
        score, given = self._score(queries), {"mask": mask, "valid_lens": valid_lens}
        if self.clip:
            s = scores(queries, keys, score=score, impl=self.impl, **given)
            masked = _masked(s, queries, mask, valid_lens)  # a score of −∞ may be an overflow
            s = (self.clip * torch.tanh(s)).masked_fill(masked, -torch.inf)
            s = s.masked_fill(masked.all(-1, keepdim=True), 0)  # avoids NaN, in gradients too
            found = s.log_softmax(-1).masked_fill(masked, -torch.inf)
        else:
            found = log_weights(queries, keys, score=score, impl=self.impl, **given)
        self._weights = None if torch.compiler.is_compiling() else found.detach()
        return found

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


def _masked(scores: Tensor, queries: Tensor, mask: Any, valid_lens: Any) -> Tensor:
    """Return booleans (..., T_q, T_k): True for masked pairs."""
    sizes = Sizes(tuple(scores.shape[:-2]), scores.shape[-2], scores.shape[-1], groups=1)
    lowered = lower_mask(_xp, sizes, queries, mask, valid_lens)
    nothing = torch.zeros_like(scores, dtype=torch.bool)
    return nothing if lowered is None else nothing | ~cast(Tensor, lowered.boolean)
