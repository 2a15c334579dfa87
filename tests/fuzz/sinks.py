"""A sink is one more column of scores, always attended, with a value of 0.

The exact results are those of the softmax with this column. The allowed error is that of a softmax
of the keys alone, with weights p and log-sum-exp l. Its results are multiplied by the weight of all
keys, the share e^l / (e^l + e^σ).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fuzz.rounding import BAND, Number, sigmoid


@dataclass(frozen=True)
class Sunk:
    """Numbers for each query. share: of the keys. rest: of the sink. lse: with the sink.

    slope: share · rest, the derivative of the share by l, which may be computed as share − share².
    """

    share: Number
    rest: Number
    slope: Number
    lse: Number

    def back(self, d_share: Number, d_lse: np.ndarray) -> tuple[Number, Number]:
        """Return derivatives by l and by the sink of each query, from those by share and lse."""
        by_share = d_share * self.rest * self.share
        return d_share * self.slope + self.share * d_lse, self.rest * d_lse - by_share


def sunk(alone: Number, sink: Number) -> Sunk:
    """Return the shares of the sink and of keys with the log-sum-exp `alone`."""
    some = np.isfinite(alone.x)
    keys, e = np.where(some, alone.x, sink.x), np.where(some, alone.e, 0.0)
    total = np.where(some, np.logaddexp(keys, sink.x), sink.x)
    # Largest error of the difference of the two logits.
    off = e + sink.e + alone.eps * (BAND + 0.5 * np.abs(keys - sink.x))
    share = sigmoid(alone.like(np.where(some, keys - sink.x, -np.inf), off))
    rest = sigmoid(alone.like(np.where(some, sink.x - keys, np.inf), off))
    slope = (share * rest).worse(4 * alone.eps * share.x)
    more = share.x * np.expm1(np.minimum(e, 50.0)) + rest.x * sink.e
    lse = alone.like(total, more + alone.eps * (2 + np.abs(total)))
    return Sunk(share, rest, slope, lse)
