"""The exchange of arrays along an axis of a mesh, inside `jax.shard_map`.

All ranks run one traced program, so that a rank's number is a tracer, and calls cannot differ. The
types of shard_map say which arrays differ between ranks: JAX sums the gradients of the others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from anyscore.kernels.xla.devices import varying
from anyscore.ops import Array
from anyscore.ops.checks import brief

_lax: Any = jax.lax
"""Its functions have no types."""


class AxisExchange:
    """An `Exchange` along an axis of a mesh.

    axis: its name. rank: the number of this rank, a tracer. ranks: the number of ranks.
    """

    def __init__(self, axis: str) -> None:
        self.axis = axis
        self.rank: Any = _lax.axis_index(axis)
        self.ranks = int(_lax.psum(1, axis))

    @property
    def is_typed(self) -> bool:
        """Tell whether types say which arrays differ between ranks: shard_map's check_vma."""
        return self.axis in varying(self.rank)

    def pass_on(
        self, arrays: list[Array], tokens: list[int], count: int
    ) -> Callable[[], list[Array]]:
        """Send arrays to the next rank; see `Exchange.pass_on`."""
        pairs = [(rank, (rank + 1) % self.ranks) for rank in range(self.ranks)]
        came = [_lax.ppermute(x, self.axis, pairs) for x in arrays]
        return lambda: came

    compares = False

    def agree(self, facts: dict[str, str], error: Exception | None) -> None:
        """Agree: every rank runs the same program."""

    def first(self, x: Array) -> Array:
        """Return x: a seed is an argument of the call."""
        return x

    def sum(self, arrays: list[Array]) -> list[Array]:
        """Return the sums of each array over the ranks."""
        return [_lax.psum(x, self.axis) for x in arrays]

    def max(self, x: Array) -> Array:
        """Return the maxima of x over the ranks."""
        return _lax.pmax(x, self.axis)

    def gather(self, x: Array, axis: int, counts: list[int]) -> Array:
        """Return the arrays of all ranks, one after the other along an axis."""
        return _lax.all_gather(x, self.axis, axis=axis % x.ndim, tiled=True)

    def shared(self, tree: Any) -> Any:
        """Return the tree: shard_map sums its gradients."""
        return tree

    def once(self, x: Array) -> Array:
        """Return x: shard_map sums no gradients of what is the same on all ranks."""
        return x

    gather_differentiably = gather


def exchange_of(over: Any) -> AxisExchange:
    """Return the exchange along an axis of a mesh.

    Raises:
        TypeError: `over` is no name of an axis.
        ValueError: no axis of that name is here.
    """
    if not isinstance(over, str):
        raise TypeError(
            f"a layout is over {brief(over)}, expected the name of an axis of a mesh in JAX, as in "
            'Contiguous("cp").'
        )
    try:
        return AxisExchange(over)
    except NameError:
        raise ValueError(
            f"across names the axis {brief(over)}, which is no axis here: call attention inside "
            "jax.shard_map, over a mesh with that axis."
        ) from None
