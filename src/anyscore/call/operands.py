"""A fused call as plain data: arguments and results of the kernels in every language.

forward(x: Operands, s: Settings) -> Results
backward(x: Operands, s: Settings, results: Results, upstream: Results) -> Operands
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any, NamedTuple

from anyscore.ops import Array
from anyscore.score.outer import number


class Operands(NamedTuple):
    """The arrays of a call; None for absent ones: an absent `weight` is 1, an absent `key_bias` 0.

    Each leading dimension is 1 or that of the output, `Settings.lead`; outer ones of size 1 may be
    absent. In b, key_bias, value and packed the last leading dimension, heads, is divided by
    `groups`.

    a: (..., T_q, h).
    b: (..., T_k, h).
    weight: (..., h).
    key_bias: (..., T_k).
    value: (..., T_k, d_v); None where there is no output.
    bias: (..., T_q, T_k); or (..., 1, T_q + T_k − 1), one number per diagonal, see `Settings`.
    start, stop: (..., {1, T_q}), integers: query i may attend key j if start ≤ j < stop.
    mask: (..., {1, T_q}, {1, T_k}), boolean, True = may attend.
    c: (..., E, h), with all leading dimensions; added to the key of each edge.
    seed: (), an integer: the key of the random numbers of dropout.
    rowptr, col, colptr, order, row: (T_q + 1,), (E,), (T_k + 1,), (E,), (E,): the edges of a graph,
    see `masks.lowered_edges`; start, stop and mask are then None. Only gradients need the last
    three. With edges, bias is (..., 1, E), and scores are (..., E).
    origin: (2,), int64: the places of the first query and the first key in a longer call of which
    this call is a block, for dropout; see `modifiers.dropout`. Without edges only.
    packed: (..., T_k + 1, h), the result of the core's `prepare_keys` for b.
    counter: (...), the number of the problem, for dropout where problems are spread over devices.

    The first `N_DIFFERENTIABLE` operands have gradients, which are `Operands` too.
    """

    a: Array
    b: Array
    weight: Any = None
    key_bias: Any = None
    value: Any = None
    bias: Any = None
    c: Any = None
    start: Any = None
    stop: Any = None
    mask: Any = None
    seed: Any = None
    rowptr: Any = None
    col: Any = None
    colptr: Any = None
    order: Any = None
    row: Any = None
    origin: Any = None
    packed: Any = None
    counter: Any = None

    @property
    def factors(self) -> Operands:
        """Return only the operands that have gradients; others are None."""
        return Operands(*self[:N_DIFFERENTIABLE])

    def present(self) -> dict[str, Array]:
        """Return the operands that are not None, by name, in their order."""
        return {name: x for name, x in zip(self._fields, self, strict=True) if x is not None}

    def map(self, function: Callable[[Array], Array]) -> Operands:
        """Return these operands with a function applied to each that is not None."""
        return Operands(*(None if x is None else function(x) for x in self))

    def fill(self, arrays: Iterable[Array]) -> Operands:
        """Return these operands with the next array in place of each operand that is not None."""
        each = iter(arrays)
        return Operands(*(None if x is None else next(each) for x in self))

    def result_shapes(
        self, s: Settings, shape: Callable[[Array], Any] = attrgetter("shape")
    ) -> Results:
        """Return the shapes of the results of a forward, None for absent results.

        shape: array → its shape, for frameworks with unknown lengths.
        """
        rows, output, scores = (*s.lead, shape(self.a)[-2]), None, None
        if self.value is not None:
            output = *rows, shape(self.value)[-1]
        if s.scores and self.col is None:
            scores = *rows, shape(self.b)[-2]
        elif s.scores:
            scores = *s.lead, shape(self.col)[-1]
        return Results(output, (*s.lead, 2, rows[-1]), scores)

    def results_from(self, s: Settings, arrays: Iterable[Array]) -> Results:
        """Return the results of a forward, or their gradients, from arrays in their order."""
        each = iter(arrays)
        output = None if self.value is None else next(each)
        return Results(output, next(each), next(each) if s.scores else None)


TRAILING_NDIM = Operands(2, 2, 1, 1, 2, 2, 2, 1, 1, 2, 0, 1, 1, 1, 1, 1, 1, 2, 0)
"""The number of axes of each operand after its leading dimensions."""
N_DIFFERENTIABLE = 7
"""The number of operands with gradients: a, b, weight, key_bias, value, bias and c."""
N_BACKWARD = 17
"""The number of operands that a backward needs: all but packed and counter."""
WITH_KEY_HEADS = frozenset(("b", "key_bias", "value", "packed"))
"""The operands with key heads."""
GRAPH_OPERANDS = frozenset(("rowptr", "col", "colptr", "order", "row"))
"""The operands that describe the edges of a graph, shared by all problems."""


class Settings(NamedTuple):
    """The numbers of a call; hashable.

        s = φ(scale · Σ_d weight_d · pair(a_d, b_d) + key_bias + bias)

    pair: the name of the pair. scale: a number. groups: query heads per key/value head. dropout:
    the rate, in [0, 1). dropout_period: dropout counts the leading indices of the output modulo it.
    lead: the leading dimensions of the output. outer, outer_scale: φ, see `outer.Outer`; "" for the
    identity. scores: whether the results include the scores. bias_is_diagonal: whether the bias
    has one number per diagonal, in entry j − i + T_q − 1. bias_after_outer: whether the bias is
    added to φ(…) instead.
    normalizer: 0 is the softmax of s, 1 the sigmoid of s + sigmoid_bias, 2 the sigmoid of s +
    sigmoid_bias − log n for n attended keys.
    """

    pair: str
    scale: float
    groups: int
    dropout: float
    dropout_period: int
    lead: tuple[int, ...]
    outer: str = ""
    outer_scale: float = 0.0
    scores: bool = False
    bias_is_diagonal: bool = False
    bias_after_outer: bool = False
    normalizer: int = 0
    sigmoid_bias: float = 0.0

    @property
    def numbers(self) -> tuple[float, ...]:
        """The numbers that the C++ core takes: `Settings` of csrc/bindings/calls.h."""
        return (*self[1:5], number(self.outer), self.outer_scale, *self[9:])


class Results(NamedTuple):
    """The results of a forward, in the dtype of sums; or their gradients.

    output: (*lead, T_q, d_v), None without values. stats: (*lead, 2, T_q), see
    `normalizers.softmax`. scores: (*lead, T_q, T_k), −∞ where masked, or (*lead, E) of edges; None
    without `Settings.scores`. Gradients of stats and scores are None if the loss does not depend on
    them.
    """

    output: Any
    stats: Any
    scores: Any = None

    def present(self) -> dict[str, Array]:
        """Return the results that are not None, by name, in their order."""
        return {name: x for name, x in zip(self._fields, self, strict=True) if x is not None}
