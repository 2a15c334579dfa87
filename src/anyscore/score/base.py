"""The base of scores, and the initial values of their parameters.

A score is a small frozen class whose fields are its parameters. `lower` returns it as `Factors`.
`parameters` returns the parameters that a layer creates, with their initial values. For queries and
keys of independent entries, of mean 0 and variance 1, the initial variance of every score is about
1. A comparison then compares scores, not scales.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from numbers import Real
from typing import ClassVar, TypeAlias, TypeVar

from anyscore.ops import Array, Ops, framework
from anyscore.ops.pytrees import register_pytrees, tree
from anyscore.score.factors import Factors

S = TypeVar("S", bound="Score")
Shapes: TypeAlias = dict[str, tuple[str, ...]]


@dataclass(frozen=True)
class Init:
    """The initial values of one parameter: its shape, and a bound or a constant.

    bound: the values are uniform in [−bound, bound] (variance bound²/3). Otherwise `value`.
    """

    shape: tuple[int, ...]
    bound: float = 0.0
    value: float = 0.0


def uniform(*shape: int, variance: float) -> Init:
    """Return uniform initial values of a shape, of mean 0 and this variance."""
    return Init(shape, bound=math.sqrt(3 * variance))


class Projection:
    """A matrix that is called, not multiplied: a module that other libraries may watch or replace.

    call: x (..., d) → x Wᵀ (..., h). shape, dtype: of W, (h, d). tensors: the learned tensors.
    """

    __slots__ = "call", "dtype", "shape", "tensors"

    def __init__(  # a frozen dataclass takes 0.5 µs more of every call of a layer
        self,
        call: Callable[[Array], Array],
        shape: tuple[int, ...],
        dtype: str,
        tensors: tuple[Array, ...] = (),
    ) -> None:
        self.call, self.shape, self.dtype, self.tensors = call, shape, dtype, tensors


@dataclass(frozen=True, eq=False)
class Score:
    """A scoring function s(q, k), lowered to factors.

    formula: the formula for display. shapes: the trailing dimensions of each tensor field, in terms
    of d_q, d_k and a hidden width h. linears: the fields that may be a `Projection`. equal_widths:
    whether d_q = d_k is required. number_fields: the fields that must be numbers > 0.
    uses_key_heads: the fields that are combined with keys as well as queries, and so have key
    heads.

    Scores are trees of their tensors in PyTorch and JAX.
    """

    formula: ClassVar[str]
    shapes: ClassVar[Shapes] = {}
    linears: ClassVar[tuple[str, ...]] = ()
    equal_widths: ClassVar[bool] = False
    number_fields: ClassVar[tuple[str, ...]] = ()
    uses_key_heads: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        tree(cls)

    def __post_init__(self) -> None:
        register_pytrees()

    def lower(self, xp: Ops, query: Array, key: Array) -> Factors:
        """Return the score of all queries (..., T_q, d_q) and keys (..., T_k, d_k) as factors.

        Tensors are of the framework of `xp`, in the dtype of the call. Rows of tokens that every
        mask excludes are zeros, so the factors must be differentiable at 0.
        """
        raise NotImplementedError

    @classmethod
    def parameters(cls, d_q: int, d_k: int, hidden: int) -> dict[str, Init | float]:
        """Map field names to the initial values of learned parameters, or to fixed numbers.

        d_q, d_k: widths of queries and keys. hidden: width of a hidden layer.
        """
        return {}

    def projections(self) -> dict[str, Projection]:
        """Map field names to the parameters that are `Projection` objects."""
        return {name: x for name, x in vars(self).items() if isinstance(x, Projection)}

    def tensors(self) -> dict[str, Array]:
        """Map field names to the parameters that are tensors."""
        fields = self.__dataclass_fields__  # vars() may hold caches too
        return {
            name: x
            for name, x in vars(self).items()
            if name in fields and not isinstance(x, Real) and framework(x) is not None
        }

    def map(self: S, function: Callable[[Array], Array]) -> S:
        """Return a copy with a function applied to each parameter that is a tensor."""
        return replace(self, **{name: function(x) for name, x in self.tensors().items()})
