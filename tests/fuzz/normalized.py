"""Weights of scores and their derivatives: softmax, sigmoid, sparsemax, entmax15.

    sigmoid    p_j = 1 / (1 + e^−(s_j + β))       β = −log n of n attended keys, or a number
    sparsemax  p_j = max(s_j − τ, 0)              Σ p = 1
    entmax15   p_j = max(s_j / 2 − τ, 0)²         Σ p = 1

τ grows with every score. With scores off by e, τ lies between τ(s − e) and τ(s + e), and p between
the weights with these τ.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fuzz.rounding import BAND, Number, roundings, sigmoid, softmax


@dataclass(frozen=True)
class Softmax:
    """p: weights (T_q, T_k). lse: log-sum-exp."""

    p: Number
    lse: Number | None = None

    def back(self, d_p: Number, along_e: np.ndarray, d_row: Number) -> tuple[Number, Number]:
        """Return derivatives by scores, and their sum for each query, from d_p by weights.

        along_e: additional error of Σ p d_p. d_row: derivative by the log-sum-exp.
        """
        along = (self.p * d_p).tokens(1).worse(along_e)
        return self.p * (d_p - along[:, None] + d_row[:, None]), d_row


@dataclass(frozen=True)
class Sigmoid(Softmax):
    """The slope p (1 − p) may be computed as p − p², or from two quotients."""

    def back(self, d_p: Number, along_e: np.ndarray, d_row: Number) -> tuple[Number, Number]:
        slope = (self.p * (1.0 + -1 * self.p)).worse(4 * self.p.eps * self.p.x)
        d_s = slope * d_p
        return d_s, d_s.tokens(1)


@dataclass(frozen=True)
class Sparse(Softmax):
    """g: 1 where p > 0 (sparsemax), or √p (entmax15); off by 1 where p may be 0 or not."""

    g: Number | None = None

    def back(self, d_p: Number, along_e: np.ndarray, d_row: Number) -> tuple[Number, Number]:
        assert self.g is not None
        total, weighed = self.g.tokens(1), (self.g * d_p).tokens(1)
        # Σ g is at least 1 in a row with keys: Σ g² is 1, or some g is 1.
        x = weighed.x / np.maximum(total.x, 1.0)
        e = (weighed.e + np.abs(x) * total.e) / np.maximum(total.x - total.e, 1.0)
        return self.g * (d_p - total.rounded(x, e)[:, None]), d_row * 0.0


def normalized(normalizer: str | float, s: Number, keep: np.ndarray) -> Softmax:
    """Return the weights of a normalizer; a number is β of the sigmoid."""
    if normalizer == "softmax":
        return Softmax(*softmax(s, keep))
    if normalizer == "sparsemax":
        return _sparse(s, keep, 1)
    if normalizer == "entmax15":
        return _sparse(s, keep, 2)
    count = np.maximum(keep.sum(1, keepdims=True), 1).astype(s.x.dtype)
    shift = -np.log(count) if isinstance(normalizer, str) else normalizer + 0 * count
    logit = (s + s.like(shift, 2 * s.eps * np.abs(shift))).worse(s.eps * BAND)
    p = sigmoid(logit)
    return Sigmoid(p.like(np.where(keep, p.x, 0.0), np.where(keep, p.e, 0.0)))


def _sparse(s: Number, keep: np.ndarray, power: int) -> Sparse:
    """Return weights of scores relative to the largest one; τ is a mean over at most all keys."""
    top = np.where(keep, s.x, -np.inf).max(1, keepdims=True, initial=-np.inf)
    z = (s.x - np.where(np.isfinite(top), top, 0.0)) / power
    e = s.e / power + s.eps * (2 + roundings(z.shape[1]) + np.abs(z) / 2)
    tau, low, high = (_threshold(np.where(keep, x, -np.inf), power) for x in (z, z - e, z + e))
    g = np.where(keep, np.maximum(z - tau, 0.0), 0.0)
    least = np.where(keep, np.maximum(z - e - high, 0.0), 0.0)
    most = np.where(keep, np.maximum(z + e - low, 0.0), 0.0)
    p = s.like(g**power, np.maximum(most**power - g**power, g**power - least**power))
    p = s.like(p.x, p.e + 2 * s.eps * p.x)
    if power == 1:
        return Sparse(p, None, s.like(g > 0, (most > 0) & (least == 0)))
    return Sparse(p, None, s.like(g, np.maximum(most - g, g - least) + 2 * s.eps * g))


def _threshold(z: np.ndarray, power: int) -> np.ndarray:
    """Return τ (T_q, 1) of the k largest z, for the largest k with all of them above τ."""
    z = -np.sort(-z, axis=1)
    tau = np.full((len(z), 1), -np.inf, z.dtype)
    for k in range(1, z.shape[1] + 1):
        one = z[:, :k]
        some = np.isfinite(one).all(1, keepdims=True)
        one = np.where(some, one, 0.0)
        mean = one.mean(1, keepdims=True)
        if power == 1:
            found = mean - 1 / one.dtype.type(k)
        else:
            room = (1 - np.square(one - mean).sum(1, keepdims=True)) / k
            some = some & (room >= 0)
            found = mean - np.sqrt(np.maximum(room, 0.0))
        tau = np.where(some & (one[:, -1:] > found), found, tau)
    return np.where(np.isfinite(tau), tau, 0.0)
