"""One call of the raw interface as plain data: arrays as `anyscore._core` takes them."""

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
    """Shapes are those of `csrc`: full rank, leading dimensions 1 or those of `lead` (for keys,
    values and key biases: the last of them divided by `groups`). bfloat16 is held as int16.

    compute: float32 or float64, the dtype of the log-sum-exp. period: the number of leading
    positions after which dropout repeats; None = it does not.
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
    c: None = None  # of graphs
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
        """What dropout's count of leading positions is taken modulo."""
        return max(math.prod(self.lead), 1) if self.period is None else self.period

    @property
    def keeps_scores(self) -> bool:
        """Whether a backward takes the scores: a bias after the outer function hides its values."""
        return not (self.outer and self.after)

    def operands(self, packed: np.ndarray | None = None) -> Operands:
        """The arrays, as the core takes them."""
        return Operands(
            self.a, self.b, self.weight, self.key_bias, self.value, self.bias, self.c, self.start,
            self.stop, self.mask, self.seed, packed=packed,
        )  # fmt: skip

    @property
    def numbers(self) -> tuple[float, ...]:
        """The numbers, as the core takes them."""
        return Settings(
            self.pair, self.scale, self.groups, self.dropout, self.repeats, self.lead, self.outer,
            self.outer_scale, bias_is_diagonal=self.diagonal, bias_after_outer=self.after,
        ).numbers  # fmt: skip

    def __repr__(self) -> str:
        """What it takes to recognise the call in a failure."""
        shown = []
        for field in fields(self):
            x = getattr(self, field.name)
            if isinstance(x, np.ndarray):
                shown.append(f"{field.name}={name_of(x)}{x.shape} strides {x.strides}")
            elif x is not None:
                shown.append(f"{field.name}={x}")
        return "Call(" + ", ".join(shown) + ")"


def name_of(x: np.ndarray) -> str:
    """The dtype that an array stands for."""
    return "bfloat16" if x.dtype == np.int16 else str(x.dtype)


def numbers(x: np.ndarray, dtype: Any = np.float64) -> np.ndarray:
    """The numbers of an array, bfloat16 held as int16 among them."""
    if x.dtype == np.int16:
        x = (x.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return x.astype(dtype)


def stored(x: np.ndarray, dtype: str) -> np.ndarray:
    """Numbers rounded to `dtype`, bfloat16 held as int16; what is too large becomes infinite."""
    with np.errstate(all="ignore"):
        if dtype != "bfloat16":
            return np.asarray(x).astype(dtype)
        bits = np.asarray(x, np.float32).view(np.uint32)
        nearest = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16  # ties to even
        nearest = np.where(np.isnan(x), 0x7FC0, nearest)
        return nearest.astype(np.uint16).view(np.int16)
