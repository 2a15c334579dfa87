"""Conditions of FlexAttention as masks: intervals of keys where they are some, else booleans."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import reduce
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, noop_mask

from anyscore.backends.torch.modes import is_transformed
from anyscore.masks.objects import BooleanMask, Interval, Mask
from anyscore.torch.flex.trace import POSITIONS, Traced, call, numbers

PAIRS = 2**22
"""The most pairs of queries and keys whose condition is computed at a time."""
KEPT = 4
"""The most masks of a `BlockMask` that are kept, those of the latest sizes and mask_mods."""
_KEPT: WeakKeyDictionary[BlockMask, dict[Any, tuple[Any, Mask | None]]] = WeakKeyDictionary()
"""(weak reference to mask_mod, mask) of a `BlockMask`, for sizes, device and mask_mod of a call.

A mask_mod may hold its `BlockMask`, which would then live on with its own entry.
"""

Positions = Mapping[str, Tensor]


def of_conditions(conditions: list[Any], positions: Positions) -> Mask | None:
    """Return the mask of pairs that have all conditions, traced or numbers; None for all pairs."""
    if not conditions:
        return None
    whole = reduce(lambda x, y: Traced("", torch.logical_and, (x, y)), conditions)
    return recognised(lambda some: numbers(whole, some), positions)


def of_block_mask(block_mask: Any, positions: Positions, like: Tensor) -> Mask | None:
    """Return the mask of a `BlockMask`, or of a mask_mod; a mask is kept with its `BlockMask`."""
    if not isinstance(block_mask, BlockMask):
        return of_conditions([call(block_mask, POSITIONS, like)], positions)
    kept = _KEPT.setdefault(block_mask, {})
    mod = block_mask.mask_mod  # a caller may set another one, as after a slice
    key = *(len(x) for x in positions.values()), like.device, id(mod)
    of_mod, mask = kept.get(key, (None, None))
    if of_mod is None or of_mod() is not mod:
        with torch.inference_mode(False):  # the mask may serve a call with gradients
            mask = _of_blocks(block_mask, positions, like)
        kept.pop(key, None)  # of an earlier function at that address
        while len(kept) >= KEPT:
            del kept[next(iter(kept))]
        with suppress(TypeError):  # an object without weak references
            kept[key] = ref(mod), mask
    return mask


def _of_blocks(block_mask: BlockMask, positions: Positions, like: Tensor) -> Mask | None:
    """Return the mask of pairs in full blocks, and of those in other blocks that mask_mod keeps.

    Compiled PyTorch reads both; its eager function reads mask_mod alone.
    """
    mod: Callable[..., Any] = block_mask.mask_mod
    condition = None if mod is noop_mask else call(mod, POSITIONS, like)
    rows, columns = block_mask.BLOCK_SIZE
    blocks, full = block_mask.to_dense().bool(), _full_blocks(block_mask)
    if condition is None and blocks.all():
        return None

    def kept(some: Positions) -> Tensor:
        i, j = (some["q_idx"] // rows).long()[:, None], (some["kv_idx"] // columns).long()
        inside = blocks[..., i, j]
        if condition is None:
            return inside
        by_mod = numbers(condition, some).bool()
        return inside & (by_mod if full is None else by_mod | full[..., i, j])

    return recognised(kept, positions)


def _full_blocks(block_mask: BlockMask) -> Tensor | None:
    """Return which blocks are full, (B, H, blocks of queries, blocks of keys); None for none."""
    counts, indices = block_mask.full_kv_num_blocks, block_mask.full_kv_indices
    if counts is None or indices is None:
        return None
    columns = block_mask.kv_indices.shape[-1]
    listed = torch.arange(indices.shape[-1], device=indices.device) < counts[..., None]
    full = torch.zeros((*counts.shape, columns + 1), dtype=torch.bool, device=indices.device)
    places = torch.where(listed, indices.long(), columns)  # the last column is for no block
    return full.scatter_(-1, places, True)[..., :columns]


@torch.no_grad()
def recognised(kept: Callable[[Positions], Tensor], positions: Positions) -> Mask:
    """Return the mask of booleans kept(positions), (B or 1, H or 1, T_q or 1, T_k or 1).

    Rows without a gap are an `Interval`, of which no matrix is kept. Other masks are booleans, and
    so are those of a function transform.
    """
    keys = positions["kv_idx"]
    starts, stops, parts, whole = [], [], [], True
    for some in _rows(positions):
        found = kept(some).bool()
        if is_transformed(found):  # no number of it is known
            return BooleanMask(kept(positions).bool())
        found = found.expand(*found.shape[:-1], len(keys))
        parts.append(found)
        j = torch.arange(len(keys), device=keys.device)
        start = torch.where(found, j, len(keys)).amin(-1) if len(keys) else found.sum(-1)
        stop = torch.where(found, j + 1, 0).amax(-1) if len(keys) else start
        whole = whole and bool((found.sum(-1) == (stop - start).clamp(min=0)).all())
        if whole:
            parts.clear()  # booleans are needed from the first row with a gap on
        starts.append(start)
        stops.append(stop)
        if found.shape[-2] == 1 < len(some["q_idx"]):
            break  # all queries have one row
    if whole:
        return Interval(*(torch.cat(x, -1) for x in (starts, stops)))
    if len(parts) < len(starts):
        parts = [kept(some).bool() for some, _ in zip(_rows(positions), starts, strict=False)]
    return BooleanMask(torch.cat(parts, -2))


def _rows(positions: Positions) -> Iterator[Positions]:
    """Yield positions with some queries at a time."""
    queries = positions["q_idx"]
    others = [len(x) for name, x in positions.items() if name != "q_idx"]
    step = max(PAIRS // max(math.prod(others), 1), 2)
    for i in range(0, max(len(queries), 1), step):
        yield {**positions, "q_idx": queries[i : i + step]}
