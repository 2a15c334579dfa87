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
from anyscore.ops.pytrees import Restored, register_pytrees, tree
from anyscore.score.factors import Factors

S = TypeVar("S", bound="Score")
Shapes: TypeAlias = dict[str, tuple[str, ...]]


@dataclass(frozen=True)
class Init:
    """Initial values of one parameter: its shape, and a bound or a constant.

    Args:
        shape: the shape of the parameter, integers.
        bound: a number > 0: the values are uniform in [−bound, bound], with the variance bound²/3.
            By default 0: the values are constant.
        value: the constant. By default 0.

    >>> from anyscore.score import Gaussian
    >>> Gaussian.parameters(d_q=8, d_k=8, hidden=0)
    {'sigma': Init(shape=(), bound=0.0, value=2.0)}
    """

    shape: tuple[int, ...]
    bound: float = 0.0
    value: float = 0.0


def uniform(*shape: int, variance: float) -> Init:
    """Return uniform initial values of a shape, of mean 0 and this variance."""
    return Init(shape, bound=math.sqrt(3 * variance))


class Projection:
    """Matrix that is called, not multiplied: a module that other libraries may watch or replace.

    A score takes a projection in place of a matrix, such as W_q of `Additive`.

    Args:
        call: a function x (..., d) → x Wᵀ (..., h).
        shape: the shape of W, (h, d).
        dtype: the name of the dtype of W, such as "float32".
        tensors: the learned tensors of the module. By default none.

    >>> import torch
    >>> from anyscore import Additive, scores
    >>> from anyscore.score import Projection
    >>> linear = torch.nn.Linear(3, 8, bias=False)
    >>> W_q = Projection(linear, (8, 3), "float32", (linear.weight,))
    >>> score = Additive(W_q, torch.ones(8, 2), torch.ones(8))
    >>> scores(torch.ones(4, 3), torch.ones(5, 2), score=score).shape
    torch.Size([4, 5])
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
class Score(Restored):
    """Base class of scoring functions s(q, k).

    A score is a frozen dataclass; its fields are its parameters. `lower` brings it to `Factors`,
    the form that all implementations take. Scores are trees of their tensors in PyTorch and JAX.
    The call that uses a score checks its fields, and raises TypeError or ValueError before any
    work.

    Attributes:
        formula: the formula for display.
        shapes: a mapping from fields of tensors to their trailing dimensions, in terms of d_q, d_k
            and a hidden width h.
        linears: the fields that may be a `Projection`.
        equal_widths: True if d_q = d_k is required.
        number_fields: the fields that must be numbers > 0.
        uses_key_heads: the fields that are combined with keys as well as queries, and so have key
            heads.

    Raises:
        NotImplementedError: A call uses a subclass without `lower`.

    >>> from dataclasses import dataclass
    >>> from typing import Any, ClassVar
    >>> import numpy as np
    >>> from anyscore import Score, scores
    >>> from anyscore.score import ABSOLUTE, Factors
    >>> @dataclass(frozen=True, eq=False)
    ... class WeightedLaplace(Score):               # s(q, k) = −Σ_d w_d |q_d − k_d|
    ...     w: Any
    ...     formula: ClassVar[str] = "−w·|q − k|"
    ...     equal_widths: ClassVar[bool] = True
    ...     def lower(self, xp, query, key):
    ...         return Factors(query, key, ABSOLUTE, weight=-self.w)
    >>> query, key = np.zeros((1, 2)), np.array([[3.0, 4.0]])
    >>> scores(query, key, score=WeightedLaplace(np.array([1.0, 10.0])))
    array([[-43.]])
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
        """Return the score of all queries and all keys as factors.

        Tensors are of the framework of `xp`, in the dtype of the call. Rows of tokens that every
        mask excludes are zeros, so the factors must be differentiable at 0.

        Args:
            xp: the operations of the framework, such as `xp.matmul` and `xp.exp`.
            query: (..., T_q, d_q).
            key: (..., T_k, d_k).

        Returns:
            The `Factors` of the score.

        Raises:
            NotImplementedError: The subclass does not define the method.
        """
        raise NotImplementedError

    @classmethod
    def parameters(cls, d_q: int, d_k: int, hidden: int) -> dict[str, Init | float]:
        """Map field names to the initial values of learned parameters, or to fixed numbers.

        Layers call the method for a score that is given by name or by class.

        Args:
            d_q: the width of queries.
            d_k: the width of keys.
            hidden: the width of a hidden layer.

        Returns:
            A mapping from field names to `Init` objects or numbers. The base class returns an
            empty one.
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
