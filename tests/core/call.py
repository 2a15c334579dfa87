"""One call of the raw interface as plain data, with the arrays of `anyscore._core`."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from anyscore.call.operands import Operands, Settings

PAIRS = "product", "tanh", "leaky_relu", "absolute", "squared"
DTYPES = "float32", "float64", "bfloat16", "float16"
LARGEST = {"float16": 65504.0, "bfloat16": 3.3895314e38, "float32": 3.4028235e38}


@dataclass(frozen=True, eq=False)
class Call:
    """A call. Arrays have full rank, as in `csrc`. Each leading dimension is 1 or the one in
    `lead`. Keys, values and key biases divide the last one by `groups`. int16 holds bfloat16.

    compute: float32 or float64, the dtype of the log-sum-exp. period: the number of leading
    positions after which dropout repeats; None if dropout does not repeat.
    """

    pair: str
    lead: tuple[int, ...]
    a: np.ndarray
    b: np.ndarray
    value: np.ndarray
    d_output: np.ndarray
    weight: np.ndarray | None = None
    key_bias: np.ndarray | None = None
    bias: np.ndarray | None = None
    c: None = None  # only graphs have it
    start: np.ndarray | None = None
    stop: np.ndarray | None = None
    mask: np.ndarray | None = None
    d_lse: np.ndarray | None = None
    d_scores: np.ndarray | None = None
    scale: float = 1.0
    groups: int = 1
    dropout: float = 0.0
    seed: int = 0
    period: int | None = None
    outer: str = ""
    outer_scale: float = 0.0
    diagonal: bool = False
    after: bool = False
    compute: str = "float32"

    @property
    def queries(self) -> int:
        return int(self.a.shape[-2])

    @property
    def keys(self) -> int:
        return int(self.b.shape[-2]) if self.b.ndim > 1 else 0

    @property
    def repeats(self) -> int:
        """Return the modulus of dropout's count of leading positions."""
        return max(math.prod(self.lead), 1) if self.period is None else self.period

    @property
    def keeps_scores(self) -> bool:
        """Return whether a backward can take scores; a bias after an outer function hides them."""
        return not (self.outer and self.after)

    def operands(self, packed: np.ndarray | None = None) -> Operands:
        """Return the arrays in the core's order."""
        return Operands(
            self.a, self.b, self.weight, self.key_bias, self.value, self.bias, self.c, self.start,
            self.stop, self.mask, self.seed, packed=packed,
        )  # fmt: skip

    @property
    def numbers(self) -> tuple[float, ...]:
        """Return the numbers in the core's order."""
        return Settings(
            self.pair, self.scale, self.groups, self.dropout, self.repeats, self.lead, self.outer,
            self.outer_scale, bias_is_diagonal=self.diagonal, bias_after_outer=self.after,
        ).numbers  # fmt: skip

    def __repr__(self) -> str:
        """Return a text that identifies the call in a failure."""
        shown = []
        for field in fields(self):
            x = getattr(self, field.name)
            if isinstance(x, np.ndarray):
                shown.append(f"{field.name}={name_of(x)}{x.shape} strides {x.strides}")
            elif x is not None:
                shown.append(f"{field.name}={x}")
        return "Call(" + ", ".join(shown) + ")"


def name_of(x: np.ndarray) -> str:
    """Return the name of the dtype of x; int16 holds bfloat16."""
    return "bfloat16" if x.dtype == np.int16 else str(x.dtype)


def numbers(x: np.ndarray, dtype: Any = np.float64) -> np.ndarray:
    """Return the numbers of x in `dtype`; int16 holds bfloat16."""
    if x.dtype == np.int16:
        x = (x.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return x.astype(dtype)


def stored(x: np.ndarray, dtype: str) -> np.ndarray:
    """Return x rounded to `dtype`, too large numbers to ±∞; int16 holds bfloat16."""
    with np.errstate(all="ignore"):
        if dtype != "bfloat16":
            return np.asarray(x).astype(dtype)
        bits = np.asarray(x, np.float32).view(np.uint32)
        nearest = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16  # ties to even
        nearest = np.where(np.isnan(x), 0x7FC0, nearest)
        return nearest.astype(np.uint16).view(np.int16)
