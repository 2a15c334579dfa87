"""Layouts: which tokens of a long sequence each rank has.

Contiguous    [0 0 0 0 1 1 1 1 2 2 2 2 3 3 3 3]
Zigzag        [0 0 1 1 2 2 3 3 3 3 2 2 1 1 0 0]      equal work under a causal mask
Uneven        [0 0 0 1 1 1 1 1 1 1 2 2 2 2 3 3]      pieces of any lengths
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from weakref import ref

from anyscore import backends
from anyscore.call.shards import Exchange, Shards, of_tokens
from anyscore.ops import Array, framework, load
from anyscore.ops.checks import brief


class Layout:
    """Base class of layouts.

    over: a `DeviceMesh` of one dimension or a process group of PyTorch; or the name of an axis, for
    JAX inside `jax.shard_map`. The layout does not keep a process group alive. tokens: the number
    of tokens of the whole sequence; None: every rank has as many as this one.
    """

    over: Any
    tokens: int | None

    def __post_init__(self) -> None:
        tokens = self.tokens
        if tokens is not None and not _is_count(tokens):
            raise ValueError(f"tokens must be an integer ≥ 0 or None, got {brief(tokens)}.")
        object.__setattr__(self, "over", _weakly(self.over))

    def shard(self, x: Array, dim: int = -2) -> Array:
        """Return this rank's tokens of the whole sequence.

        Args:
            x: the whole sequence, the same on every rank.
            dim: the dimension of tokens. By default −2.

        Returns:
            The tokens of this rank, in the order of their positions.

        Raises:
            ValueError: x has another number of tokens than the layout.
        """
        xp, exchange = self._found(x)
        tokens = xp.shape(x)[dim]
        if self.tokens not in (None, tokens):
            raise ValueError(f"x has {tokens} tokens, and the layout is of {self.tokens}.")
        rank, shards = exchange.rank, self._shards_of(exchange, tokens, "x")
        each = [of_tokens(xp, x, c.start, c.length, dim) for c in shards.chunks(xp, rank)]
        return each[0] if len(each) == 1 else xp.concat(each, dim)

    def gather(self, x: Array, dim: int = -2) -> Array:
        """Return the whole sequence, the same on every rank. All ranks call it.

        In JAX its type says that ranks may differ: `out_specs` of `shard_map` keep the axis.

        Args:
            x: this rank's tokens.
            dim: the dimension of tokens. By default −2.

        Returns:
            The tokens of all ranks, in the order of their positions. The gradient of x is the sum
            of what all ranks send back.

        Raises:
            ValueError: x has another number of tokens than the layout gives this rank.
        """
        xp, exchange = self._found(x)
        shards = self.of_rank(exchange, xp.shape(x)[dim], "x")
        counts = [shards.count(rank) for rank in range(exchange.ranks)]
        whole = exchange.gather_differentiably(x, dim, counts)
        order = self.order(exchange.ranks, shards.tokens)
        places = sorted(range(len(order)), key=order.__getitem__)
        if places == list(range(len(order))):
            return whole
        return xp.index_select(whole, places, dim)

    def order(self, ranks: int, tokens: int | None = None) -> list[int]:
        """Return the positions of all tokens, rank after rank. No exchange.

        An array with its tokens in this order, cut into one piece for each rank, has this layout:
        `x[..., order, :]`. NumPy's `argsort(order)` leads back.

        Args:
            ranks: the number of ranks, ≥ 1.
            tokens: the number of tokens of the whole sequence. By default the layout's own.

        Raises:
            ValueError: the layout has another number of ranks or tokens, or none is known.
        """
        tokens = self.tokens if tokens is None else tokens
        if not _is_count(ranks) or ranks == 0:
            raise ValueError(f"ranks must be an integer ≥ 1, got {brief(ranks)}.")
        if tokens is None:
            raise ValueError("the number of tokens is unknown: pass order(ranks, tokens).")
        if not _is_count(tokens) or self.tokens not in (None, tokens):
            expected = "an integer ≥ 0" if self.tokens is None else f"{self.tokens}, as the layout"
            raise ValueError(f"tokens is {brief(tokens)}, expected {expected}.")
        shards = self._shards(ranks, tokens)
        return [p for rank in range(ranks) for p in shards.numbers(rank)]

    def positions(self, like: Array, dim: int = -2) -> Array:
        """Return the positions (T,) of this rank's tokens in the whole sequence.

        Args:
            like: this rank's tokens, for their number, framework and device.
            dim: the dimension of tokens. By default −2.

        Raises:
            ValueError: like has another number of tokens than the layout gives this rank.
        """
        xp, exchange = self._found(like)
        shards = self.of_rank(exchange, xp.shape(like)[dim], "like")
        return shards.positions(xp, exchange.rank, like)

    def of_rank(self, exchange: Exchange, count: int, name: str) -> Shards:
        """Return the shards of a sequence of which this rank has `count` tokens.

        Raises:
            ValueError: this rank has another number of tokens.
        """
        tokens = count * exchange.ranks if self.tokens is None else self.tokens
        shards = self._shards_of(exchange, tokens, name)
        expected, rank = shards.count(exchange.rank), exchange.rank
        if expected != count:
            here = f"rank {rank}" if isinstance(rank, int) else "each rank"
            raise ValueError(
                f"{name} has {count} tokens on {here}, and the layout gives {expected} of "
                f"{shards.tokens} tokens: shard it by layout.shard(x, dim)."
            )
        return shards

    def _shards_of(self, exchange: Exchange, tokens: int, name: str) -> Shards:
        """Return the shards of a sequence of this number of tokens.

        Raises:
            ValueError: ranks of one program, as in JAX, have pieces of different lengths.
        """
        shards = self._shards(exchange.ranks, tokens)
        if not isinstance(exchange.rank, int) and len(set(shards.lengths)) > 1:
            raise ValueError(
                f"{name} has {shards.tokens} tokens, and {type(self).__name__} gives "
                f"{exchange.ranks} ranks pieces of different lengths. In JAX all pieces have one "
                "length: append masked tokens."
            )
        return shards

    def _found(self, x: Array) -> tuple[Any, Exchange]:
        name = framework(x)
        if name is None:
            raise TypeError(f"x is {brief(x)}, expected a tensor.")
        return load(name), backends.load(name).exchange(self.over)

    def _shards(self, ranks: int, tokens: int) -> Shards:
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class Contiguous(Layout):
    """Layout of pieces in the order of the ranks, as `Shard(dim)` of PyTorch's DTensor.

        rank r has the tokens [r n, (r + 1) n),    n = ⌈tokens / ranks⌉

    The last ranks have fewer tokens, or none, if the ranks do not divide them.

    Args:
        over: a `DeviceMesh` of one dimension, or a process group; in JAX the name of an axis.
        tokens: the number of tokens of the whole sequence. By default None: every rank has as
            many as this one.

    Raises:
        ValueError: tokens is no integer ≥ 0.
        TypeError: A call uses the layout, and `over` is no group of one dimension.

    >>> import torch
    >>> import torch.distributed as dist
    >>> from anyscore import Contiguous, attention
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> layout = Contiguous(dist.group.WORLD)              # here of one process
    >>> x = layout.shard(torch.ones(2, 8, 4))
    >>> attention(x, x, x, across=layout).shape
    torch.Size([2, 8, 4])
    >>> dist.destroy_process_group()
    """

    over: Any
    tokens: int | None = None

    def _shards(self, ranks: int, tokens: int) -> Shards:
        bounds = _bounds(tokens, ranks)
        return Shards(
            tuple((start,) for start, _ in bounds), tuple((stop - start,) for start, stop in bounds)
        )


@dataclass(frozen=True, eq=False)
class Zigzag(Layout):
    """Layout of two pieces for each rank, one from each end: equal work under a causal mask.

        rank r has the pieces r and 2 ranks − 1 − r of 2 ranks pieces of ⌈tokens / (2 ranks)⌉

    Args:
        over: a `DeviceMesh` of one dimension, or a process group; in JAX the name of an axis.
        tokens: the number of tokens of the whole sequence. By default None: every rank has as
            many as this one.

    Raises:
        ValueError: tokens is no integer ≥ 0.
        TypeError: A call uses the layout, and `over` is no group of one dimension.

    Source: Zhu 2024, ring-flash-attention; the balance of Brandon et al. 2023, Striped Attention.

    >>> import torch
    >>> import torch.distributed as dist
    >>> from anyscore import Zigzag, attention
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> layout = Zigzag(dist.group.WORLD)              # here of one process
    >>> x = layout.shard(torch.ones(2, 8, 4))
    >>> attention(x, x, x, across=layout).shape
    torch.Size([2, 8, 4])
    >>> dist.destroy_process_group()
    """

    over: Any
    tokens: int | None = None

    def _shards(self, ranks: int, tokens: int) -> Shards:
        bounds = _bounds(tokens, 2 * ranks)
        pairs = [(bounds[r], bounds[2 * ranks - 1 - r]) for r in range(ranks)]
        return Shards(
            tuple((one[0], other[0]) for one, other in pairs),
            tuple((one[1] - one[0], other[1] - other[0]) for one, other in pairs),
        )


@dataclass(frozen=True, eq=False)
class Uneven(Layout):
    """Layout of pieces of any lengths, in the order of the ranks.

    Args:
        over: a `DeviceMesh` of one dimension, or a process group; in JAX the name of an axis.
        lengths: the number of tokens of each rank, integers ≥ 0.

    Raises:
        ValueError: lengths are no integers ≥ 0.
        TypeError: A call uses the layout, and `over` is no group of one dimension.

    >>> import torch
    >>> import torch.distributed as dist
    >>> from anyscore import Uneven, attention
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> layout = Uneven(dist.group.WORLD, [8])              # here of one process
    >>> x = layout.shard(torch.ones(2, 8, 4))
    >>> attention(x, x, x, across=layout).shape
    torch.Size([2, 8, 4])
    >>> dist.destroy_process_group()
    """

    over: Any
    lengths: Sequence[int]

    def __post_init__(self) -> None:
        if not isinstance(self.lengths, Sequence) or not all(map(_is_count, self.lengths)):
            raise ValueError(f"lengths must be integers ≥ 0, got {brief(self.lengths)}.")
        object.__setattr__(self, "lengths", tuple(self.lengths))
        super().__post_init__()

    @property
    def tokens(self) -> int:  # type: ignore[override]
        """The number of tokens of the whole sequence."""
        return sum(self.lengths)

    def _shards(self, ranks: int, tokens: int) -> Shards:
        if len(self.lengths) != ranks:
            raise ValueError(
                f"lengths has {len(self.lengths)} entries, expected one for each of {ranks} ranks."
            )
        starts = [sum(self.lengths[:r]) for r in range(ranks)]
        return Shards(tuple((x,) for x in starts), tuple((n,) for n in self.lengths))


def _weakly(over: Any) -> Any:
    """Return a weak reference to a process group, and anything else as it is.

    `destroy_process_group` ends the threads of a group only if nothing else holds the group. A
    thread that lives on may crash the end of the program (pytorch/pytorch#190489).
    """
    distributed = sys.modules.get("torch.distributed")
    is_group = distributed is not None and isinstance(over, distributed.ProcessGroup)
    return ref(over) if is_group else over


def _is_count(n: object) -> bool:
    """Return whether n is an integer ≥ 0."""
    return isinstance(n, int) and not isinstance(n, bool) and n >= 0


def _bounds(tokens: int, pieces: int) -> list[tuple[int, int]]:
    """Return the first and the last bound of each of some pieces of a sequence."""
    n = -(-tokens // pieces)
    return [(min(i * n, tokens), min((i + 1) * n, tokens)) for i in range(pieces)]
