"""A checked call is lowered to a `Task`: its mask to bounds or edges, its score to factors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from anyscore.call.prepared import PreparedKeys
from anyscore.call.shards import Sharded
from anyscore.call.task import Call, Task
from anyscore.masks.context import MaskContext
from anyscore.masks.lowered import LoweredMask, zero_unread
from anyscore.masks.lowered_edges import AnyLowered, LoweredEdges
from anyscore.masks.objects import Lengths, Mask, as_mask
from anyscore.modifiers.biases import Bias, LoweredBias, lower_biases
from anyscore.modifiers.edge_biases import biases_of_edges, biases_of_terms
from anyscore.modifiers.normalizers import as_normalizer
from anyscore.ops import Array, Ops, framework
from anyscore.ops.checks import Sizes, brief
from anyscore.score.base import Score
from anyscore.score.checks import check_scores, factors_of
from anyscore.score.factors import Factors

_LEAKING = "bfloat16", "float16"
"""Dtypes whose matrix products may read neighbouring rows, as PyTorch's do with AMX."""


def prepare(
    xp: Ops,
    call: Call,
    sizes: Sizes,
    prepared: PreparedKeys | None,
    differentiable: Callable[[], bool],
    sharded: Sharded | None = None,
) -> Task:
    """Lower mask and score of a checked call to a task.

    If derivatives may be computed, unattended rows are zeroed before they reach parameters, because
    gradients of parameters sum over all tokens. For callables and in half precision they are always
    zeroed.

    prepared: replaces the key of the call, None without prepared keys. differentiable: () → whether
    inputs may need gradients; called only if that matters. sharded: the shards of the call, None on
    one rank. The mask of a sharded call has the keys of the whole sequence; its biases are lowered
    by `shard_biases`.
    """
    query, key, value, score, *_ = call
    dtype = xp.dtype(query)
    biases: tuple[LoweredBias, ...] = ()
    mask = lower_mask(xp, sizes, query, call.mask, call.valid_lens, sharded)
    edges = mask if isinstance(mask, LoweredEdges) else None
    if sharded is None and not call.bias is call.bias_after is None:
        if edges is not None:
            biases = biases_of_edges(xp, edges, call.bias, call.bias_after, query, sizes)
        else:
            has = not isinstance(mask, LoweredMask) or mask.has_diagonals
            biases = lower_biases(xp, call.bias, call.bias_after, query, sizes, has)
    of_score = isinstance(score, Score)  # a callable may not be differentiable at 0
    finite, per_query, packed = mask is None, mask is not None, None
    if mask is not None and mask.unread_is_finite and prepared is None:
        finite, per_query = True, mask.per_query
    elif edges is not None and prepared is None and _gathers(xp, query, key, score):
        pass  # tokens without an edge are not read
    elif mask is not None and (not of_score or dtype in _LEAKING or differentiable()):
        queries, keys = mask.attending_attended
        keys = keys if sharded is None else sharded.own_keys(xp, keys)
        query, shared = zero_unread(xp, query, queries, 1, of_score)
        if value is not None:
            value, of_values = zero_unread(xp, value, keys, sizes.groups)
            shared = shared or of_values
        if prepared is None:
            key, of_keys = zero_unread(xp, key, keys, sizes.groups, of_score)
            finite, per_query = True, shared or of_keys or mask.per_query
    if prepared is not None:
        prepared.check(xp, query, sizes)
        lowered: Factors | Array = prepared.bind(xp, score, query)
        packed = prepared.packed
    elif isinstance(score, Score):
        lowered = factors_of(xp, score, query, key)
    elif edges is not None:
        lowered = _call_along(xp, edges, score, query, key)
    else:
        lowered = _call(xp, score, query, key, sizes)
    if edges is not None:
        _check_terms(xp, edges, lowered)
        biases = biases_of_terms(xp, edges, lowered, biases)
    softcap, normalizer = float(call.softcap), as_normalizer(call.normalizer)
    return Task(
        lowered, value, mask, finite, per_query, sizes, dtype, softcap, packed, call.sink, biases,
        normalizer,
    )  # fmt: skip


def shard_biases(
    xp: Ops, call: Call, sizes: Sizes, sharded: Sharded
) -> list[tuple[LoweredBias, ...]]:
    """Return the biases of each chunk of this rank's queries, for the keys of the whole sequence.

    A chunk of `n` queries has biases (..., n, tokens), or one number for each diagonal.

    Raises:
        ValueError: a bias has neither one row nor those of this rank's queries.
    """
    query, keys = call.query, sharded.keys.tokens
    chunks = sharded.query_chunks(xp, sizes.queries)
    if call.bias is call.bias_after is None:
        return [()] * len(chunks)
    for name, bias in (("bias", call.bias), ("bias_after", call.bias_after)):
        _check_rows(xp, name, bias, sizes.queries)
    all_queries = sizes.queries if sharded.queries is None else sharded.queries.tokens
    found = []
    for chunk in chunks:
        rows = slice(chunk.at, chunk.at + chunk.length)

        def of_chunk(bias: Any, rows: slice = rows, start: Any = chunk.start) -> Any:
            if isinstance(bias, Bias):
                return bias.from_query(start, all_queries, keys)
            has_rows = framework(bias) and xp.shape(bias)[-2:-1] not in ((), (1,))
            return bias[..., rows, :] if has_rows else bias

        of_sizes = replace(sizes, queries=chunk.length, keys=keys)
        bias, after = of_chunk(call.bias), of_chunk(call.bias_after)
        found.append(lower_biases(xp, bias, after, query[..., rows, :], of_sizes))
    return found


def _check_rows(xp: Ops, name: str, bias: Any, queries: int) -> None:
    """Check the rows of a bias across ranks, if it is a tensor.

    Raises:
        ValueError: a bias has neither one row nor `queries` rows.
    """
    shape = xp.shape(bias) if framework(bias) else ()
    if shape[-2:-1] not in ((), (1,), (queries,)):
        raise ValueError(
            f"{name} has shape {shape}, expected 1 or {queries} rows, those of this rank's "
            "queries: layout.shard(bias) takes them from the bias of the whole sequence."
        )


def _check_terms(xp: Ops, edges: LoweredEdges, factors: Factors | Array) -> None:
    """Check terms of edges, if any, against the factors of a score.

    Raises:
        ValueError, TypeError: terms have another width, or the score is a callable.
    """
    if edges.terms is None:
        return
    if not isinstance(factors, Factors):
        raise TypeError("terms of edges are for score objects, and score is a callable.")
    shape, width = xp.shape(edges.terms), xp.shape(factors.b)[-1]
    if shape[-1] != width:
        raise ValueError(
            f"terms has shape {shape}, expected (..., {edges.count}, {width}): the score "
            f"compares {width} features."
        )


def _gathers(xp: Ops, query: Array, key: Array, score: Any) -> bool:
    """Return whether lowering leaves q and k unchanged: tokens without an edge are never read."""
    if not isinstance(score, Score):
        return True
    query, key = query[..., :1, :], key[..., :1, :]
    f = factors_of(xp, score, query, key)
    return f.a is query and f.b is key and f.query_bias is None and f.key_bias is None


@dataclass(frozen=True, eq=False)
class Lowered(Mask):
    """A mask lowered earlier for a call of the same sizes."""

    mask: AnyLowered

    def lower(self, call: MaskContext) -> AnyLowered:
        return self.mask


def combine(mask: Any, valid_lens: Any) -> Mask | None:
    """Return the intersection of `mask` and `valid_lens`; None if both are None."""
    one = None if mask is None else as_mask(mask)
    if valid_lens is None:
        return one
    lengths = Lengths(valid_lens)
    return lengths if one is None else one & lengths


def lower_mask(
    xp: Ops,
    sizes: Sizes,
    query: Array,
    mask: Any,
    valid_lens: Any,
    sharded: Sharded | None = None,
) -> AnyLowered | None:
    """Return the lowered mask of a call; None if no key is masked. sharded: see `prepare`."""
    empty = 0 in sizes.scores_shape
    if sharded is not None:  # a rank without tokens is no empty call
        sizes = replace(sizes, keys=sharded.keys.tokens)
        queries = sizes.queries if sharded.queries is None else sharded.queries.tokens
        empty = 0 in (*sizes.lead, queries, sizes.keys)
    if mask is None and valid_lens is None and not empty:
        return None
    shard = None if sharded is None else sharded.query_positions(xp, query)
    context = MaskContext(xp, query, sizes.lead, sizes.queries, sizes.keys, shard=shard)
    both = combine(mask, valid_lens)
    is_dtensor = valid_lens is None and hasattr(mask, "placements")
    if both is not None and hasattr(query, "placements") and not is_dtensor:
        raise TypeError(
            "query is a DTensor, and its mask is not: pass x.to_local(), or a boolean DTensor "
            "as mask=."
        )
    lowered: AnyLowered = context.lowered() if both is None else both.lower(context)
    if isinstance(lowered, LoweredEdges):
        return lowered
    if empty:  # without queries or keys every mask is empty
        return Lengths(0).lower(context)
    return lowered if lowered.masks_any else None


def _call(
    xp: Ops, score: Callable[[Array, Array], Array], query: Array, key: Array, sizes: Sizes
) -> Array:
    """Return the scores (*lead, T_q, T_k) of a callable, which gets grouped heads as an axis."""
    if sizes.groups == 1:
        scores = score(query, key)
    else:
        scores = score(
            split_heads(xp, query, sizes.groups, True), split_heads(xp, key, sizes.groups, False)
        )
        shape = xp.shape(scores) if framework(scores) else ()
        if len(shape) > 4:
            scores = xp.reshape(scores, (*shape[:-4], shape[-4] * shape[-3], *shape[-2:]))
    check_scores(xp, scores, query, sizes)
    return scores


def _call_along(
    xp: Ops, edges: LoweredEdges, score: Callable[[Array, Array], Array], query: Array, key: Array
) -> Array:
    """Return the scores (..., E) of a callable, called with one query and one key per edge."""
    scores = score(
        xp.take_rows(query, edges.query_of_edge)[..., None, :],
        xp.take_rows(key, edges.col)[..., None, :],
    )
    is_tensor = framework(scores) is not None
    if not is_tensor or xp.shape(scores)[-3:] != (edges.count, 1, 1):
        got = f"shape {xp.shape(scores)}" if is_tensor else brief(scores)
        raise ValueError(
            f"score gave {got} for one query and one key of each edge, expected "
            f"(..., {edges.count}, 1, 1)."
        )
    return scores[..., 0, 0]


def split_heads(xp: Ops, x: Array, groups: int, of_query: bool, axis: int = -3) -> Array:
    """Return x with its heads axis split: (kv heads, groups) of a query, (kv heads, 1) of a key.

    A heads axis of size 1, or a missing one, broadcasts and stays.
    """
    shape = xp.shape(x)
    if groups == 1 or len(shape) < -axis:
        return x
    axis += len(shape)
    heads = shape[axis]
    split = (1, 1) if heads == 1 else (heads // groups, groups) if of_query else (heads, 1)
    return xp.reshape(x, (*shape[:axis], *split, *shape[axis + 1 :]))
