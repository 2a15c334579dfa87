"""Sinks, biases and normalizers of a call as plain data, which is drawn and made into arguments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

import anyscore
from fuzz.bias_specs import Bias, biases, far_biases, shapes

Shape = tuple[int, ...]
Tensors = dict[str, Any]
"""Tensors by argument name and "=", since parameters of scores may have the same name."""


@dataclass(frozen=True)
class Beside:
    """sink: number, shape of a tensor, or None. normalizer: name, or β of a sigmoid."""

    sink: float | Shape | None = None
    bias: Bias | None = None
    bias_after: Bias | None = None
    normalizer: str | float = "softmax"

    @property
    def biases(self) -> dict[str, Bias]:
        """Return the biases by the names of their tensors."""
        both = {"bias=": self.bias, "bias_after=": self.bias_after}
        return {name: bias for name, bias in both.items() if bias is not None}

    @property
    def ranks(self) -> dict[str, int]:
        """Return the rank of each tensor for one head."""
        return {"sink=": 0} | {name: bias.rank for name, bias in self.biases.items()}

    def draw_numbers(
        self, rng: np.random.Generator, keep: np.ndarray, fill: float | None
    ) -> Tensors:
        """Draw the numbers of the tensors; `fill` is in masked entries of a bias."""
        found: Tensors = {n: x.draw_numbers(rng, keep, fill) for n, x in self.biases.items()}
        if isinstance(self.sink, tuple):
            found["sink="] = 3 * rng.standard_normal(self.sink)
        return found

    def arguments(self, tensors: Tensors) -> dict[str, Any]:
        """Return the arguments of `attention` for a framework's tensors."""
        made = {name[:-1]: bias.build(tensors[name]) for name, bias in self.biases.items()}
        one = self.normalizer
        normalizer = one if isinstance(one, str) else anyscore.Sigmoid(one)
        return {"sink": tensors.get("sink=", self.sink), "normalizer": normalizer, **made}


# --------------------------------------------------------------------------------- strategies

NORMALIZERS: tuple[str | float, ...] = (
    *["softmax"] * 8,
    "sigmoid",
    "sparsemax",
    "entmax15",
    -3.25,
)
FAR_TOO = (*["softmax"] * 6, "sparsemax", "entmax15", "sigmoid")
NUMBERS = (0, 0.0, -2.5, 4, 30.0, -100.0)


@st.composite
def far_besides(draw: st.DrawFn, lead: Shape, queries: int, keys: int, dtype: str) -> Beside:
    """Draw a bias that moves rows of scores far from 0, and a normalizer with weights there."""
    sink = draw(st.none() | st.sampled_from((*NUMBERS, -1e9, 1e8)))
    bias, normalizer = draw(far_biases(lead, queries, keys, dtype)), draw(st.sampled_from(FAR_TOO))
    if normalizer != "softmax":
        sink = None  # only the softmax takes a sink
    return Beside(
        sink, **{draw(st.sampled_from(("bias", "bias_after"))): bias}, normalizer=normalizer
    )


@st.composite
def besides(draw: st.DrawFn, lead: Shape, queries: int, keys: int) -> Beside:
    """Draw sink, biases and normalizer, mostly none. lead: leading dimensions of the call."""
    sink: float | Shape | None = None
    if draw(st.integers(0, 9)) < 2:
        sink = draw(st.sampled_from(NUMBERS) | shapes(lead))
    some = st.sampled_from(((), (), (), ("bias",), ("bias_after",), ("bias", "bias_after")))
    names = draw(some)
    given = {name: draw(biases(lead, queries, keys)) for name in names}
    normalizer = draw(st.sampled_from(NORMALIZERS))
    if normalizer != "softmax":
        sink = None  # only the softmax takes a sink
    return Beside(sink, **given, normalizer=normalizer)
