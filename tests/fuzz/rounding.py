"""Numbers with bounds on their rounding errors: a running error analysis.

A `Number` is an exact array x and a bound e of the same shape. The bound limits the distance of x
from the result of an implementation. Each operation adds its own rounding, eps · |result|, to the
errors of its arguments. Each operation also adds `least`, since numbers below the smallest normal
one may be 0. Sums are of two kinds:

- Sums over features have many terms with independent errors, unless few of them differ. The errors
  add up to `SPREAD` times the root of their squares. The sum itself rounds by `roundings` of
  |Σ t| + 12 √(Σ t²): partial sums of terms in random order may be larger than the sum.
- Errors of sums over tokens may have one cause (a log-sum-exp, say), so they add up directly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

Operand: TypeAlias = "Number | np.ndarray | float"

BLOCK = 64
"""Number of terms that one accumulator may sum before another takes over."""
SPREAD = 3.0
"""Nine terms may all be off in the same direction; for more, the root of squares is an estimate."""
FEW = 16
"""Number of different terms below which their errors are not independent."""
BAND = 8
"""Absolute roundings that any score may be off, and relative roundings of any weight."""


def roundings(terms: int) -> float:
    """Return the roundings of a steadily growing sum, in eps: two standard deviations plus ½.

    A rounding has a root mean square of 0.22 eps. The n roundings of growing partial sums have
    √(n/3) of it, 0.125 √n. Blocks of 64 terms are summed one by one, and then their sums.
    """
    inside, blocks = min(max(terms, 1), BLOCK), max(terms / BLOCK, 1.0)
    return 0.5 + 0.25 * ((inside / blocks) ** 0.5 + (blocks**0.5 if blocks > 1 else 0.0))


@dataclass(frozen=True, eq=False)
class Number:
    """An array x, and bounds e ≥ 0 on the errors of an implementation of precision eps.

    store: half the precision of the tensors' dtype, or 0 if it is the dtype of the computation.
    """

    x: np.ndarray
    e: np.ndarray
    eps: float
    store: float = 0.0

    def __array_ufunc__(self, *_: Any, **__: Any) -> Any:
        return NotImplemented

    @property
    def least(self) -> float:
        """Return the smallest normal number of the dtype of the computation."""
        narrow = self.eps > np.finfo(np.float64).eps
        return float(np.finfo(np.float32 if narrow else np.float64).tiny)

    def like(self, x: Any, e: Any = 0.0) -> Number:
        """Return x with error e in this precision."""
        x = np.asarray(x, self.x.dtype)
        return Number(x, np.broadcast_to(np.asarray(e, x.dtype), x.shape), self.eps, self.store)

    def _of(self, other: Operand) -> Number:
        return other if isinstance(other, Number) else self.like(other)

    def rounded(self, x: np.ndarray, e: np.ndarray) -> Number:
        """Return a result x with error e from its arguments, rounded once more."""
        return self.like(x, e + self.eps / 2 * np.abs(x) + self.least)

    def stored(self) -> Number:
        """Return the number as a tensor stores it; the smallest of float16 are multiples of 2⁻²⁴.

        The rounding is relative to the largest possible number, |x| + e.
        """
        step = 2.0**-25 if self.store == 2.0**-11 else 0.0
        return self.like(self.x, self.e + self.store * (np.abs(self.x) + self.e) + step)

    def plus(self, y: Number) -> Number:
        """Return the sum; a sum of exact numbers is rounded as by the dtype."""
        if self.e.any() or y.e.any():
            return self + y
        narrow = self.eps > np.finfo(np.float64).eps
        with np.errstate(over="ignore"):
            return self.like((self.x + y.x).astype(np.float32 if narrow else np.float64))

    def worse(self, e: Any) -> Number:
        """Return x with an additional error e."""
        return self.like(self.x, self.e + e)

    def __add__(self, other: Operand) -> Number:
        y = self._of(other)
        return self.rounded(self.x + y.x, self.e + y.e)

    def __sub__(self, other: Operand) -> Number:
        return self + -1 * self._of(other)

    def __mul__(self, other: Operand) -> Number:
        y = self._of(other)
        e = np.abs(self.x) * y.e + self.e * (np.abs(y.x) + y.e)
        return self.rounded(self.x * y.x, e)

    __rmul__ = __mul__
    __radd__ = __add__

    def __getitem__(self, at: Any) -> Number:
        return self.like(self.x[at], self.e[at])

    @property
    def T(self) -> Number:
        return self.like(self.x.T, self.e.T)

    def features(self) -> Number:
        """Return the sum over the last axis, of terms with independent errors.

        Few different terms, such as integers times one weight, round in one direction. A sum in
        sequence is then off by up to 1/30 rounding for each term, as of PyTorch's products.
        """
        x, squares = self.x.sum(-1), np.sqrt(np.square(self.x).sum(-1))
        own = self.eps * roundings(self.x.shape[-1]) * (np.abs(x) + 12 * squares)
        of_terms = SPREAD * np.sqrt(np.square(self.e).sum(-1))
        if self.x.shape[-1] >= BLOCK:
            few = (np.diff(np.sort(self.x, -1), axis=-1) != 0).sum(-1) < FEW
            of_terms = np.where(few, self.e.sum(-1), of_terms)
            drift = self.eps * self.x.shape[-1] / 16 * np.abs(self.x).sum(-1)
            own = own + np.where(few, drift, 0.0)
        return self.like(x, of_terms + own)

    def tokens(self, axis: int) -> Number:
        """Return the sum over an axis of tokens, with errors that may all have one sign."""
        own = self.eps * roundings(self.x.shape[axis]) * np.abs(self.x).sum(axis)
        return self.like(self.x.sum(axis), self.e.sum(axis) + own)


def project(x: Number, y: Number) -> Number:
    """Return x (m, n) times y (n, k), a sum over n features."""
    size = np.sqrt(np.square(x.x) @ np.square(y.x))
    brought = np.sqrt(np.square(x.e) @ np.square(y.x) + np.square(x.x) @ np.square(y.e))
    out = x.x @ y.x
    own = x.eps * (roundings(x.x.shape[1]) * (np.abs(out) + 12 * size))
    return x.like(out, SPREAD * brought + own)


def mix(x: Number, y: Number) -> Number:
    """Return x (m, n) times y (n, k), a sum over n tokens."""
    size = np.abs(x.x) @ np.abs(y.x)
    brought = x.e @ (np.abs(y.x) + y.e) + np.abs(x.x) @ y.e
    return x.like(x.x @ y.x, brought + x.eps * roundings(x.x.shape[1]) * size)


def unit(x: Number) -> tuple[Number, Number]:
    """Return x/‖x‖ of each row (0 for a row of 0), and 1/‖x‖."""
    norm = np.sqrt(np.square(x.x).sum(-1, keepdims=True))
    one = np.divide(1.0, norm, where=norm > 0, out=np.zeros_like(norm))
    rounds = roundings(x.x.shape[-1]) + 4
    inverse = x.like(one, x.eps * rounds * one)
    return x * inverse, inverse


def softmax(s: Number, keep: np.ndarray) -> tuple[Number, Number]:
    """Return the weights over the last axis where `keep`, and the log-sum-exp.

    Both come from the largest score m, which is not rounded, and l = log Σ exp(s − m). The weights
    are exp((s − m) − l), and m + l is not rounded here. With scores off by at most e, l is off by
    at most log Σ p exp(e). A weight p is then off by a factor exp(±(e + log Σ p exp(e))) with its
    own e.
    """
    kept = np.where(keep, s.x, -np.inf)
    top = kept.max(-1, keepdims=True, initial=-np.inf)
    some = np.isfinite(top)
    top = np.where(some, top, 0.0)
    kept = kept - top
    off = s.e + s.eps * BAND
    log_sum, high = _log_sum(kept), _log_sum(kept + np.where(keep, off, 0.0))
    at = np.where(some, log_sum, 0.0)
    more = np.where(some, high, 0.0) - at + s.eps * (roundings(s.x.shape[-1]) + np.abs(at))
    log_p = kept - at
    factor = off + more + s.eps * np.where(keep & some, np.abs(log_p), 0.0)
    p = np.exp(log_p)
    error = np.maximum(np.exp(np.minimum(log_p + factor, 0.0)) - p, p * -np.expm1(-factor))
    error = np.where(keep, error + 4 * s.eps * p + s.least, 0.0)
    lse = np.where(some, top + at, -np.inf)
    return s.like(p, error), s.like(lse[..., 0], more[..., 0])


def sigmoid(x: Number) -> Number:
    """Return 1 / (1 + e^−x), with errors from x − e and x + e."""
    y, low, high = (np.exp(-np.logaddexp(0.0, -z)) for z in (x.x, x.x - x.e, x.x + x.e))
    return x.like(y, np.maximum(high - y, y - low) + 4 * x.eps * y + x.least)


def _log_sum(x: np.ndarray) -> np.ndarray:
    """Return log Σ exp(x) over the last axis, which becomes 1; −∞ without terms."""
    top = x.max(-1, keepdims=True, initial=-np.inf)
    top = np.where(np.isfinite(top), top, 0.0)
    with np.errstate(divide="ignore"):
        return np.asarray(top + np.log(np.exp(x - top).sum(-1, keepdims=True)))
