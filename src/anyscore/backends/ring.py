"""Attention to keys on several ranks.

    ring    each rank has its own queries; keys and values pass from rank to rank
    stay    each rank has all queries and its own keys; sums over the ranks join the results

Partial results of the softmax are joined by their row statistics (m, l), see
`normalizers.softmax`:

    M = max(m, m')    w = e^(m − M + l)    w' = e^(m' − M + l')
    output = (w · output + w' · output') / (w + w')    L = log(w + w')

A query without keys so far has w = 0. The backward of a block takes output and statistics of the
whole. P = e^(s − M − L) is then the block's share, and no forward runs again.

Source of the ring: Liu et al. 2023, Ring Attention with Blockwise Transformers for Near-Infinite
Context. Arrays here have no derivatives: `sharded.py` of a framework's backend makes the functions
differentiable.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

from anyscore.call.operands import Operands, Results, Settings
from anyscore.call.shards import Chunk, Exchange, Integer, Part, Scheme, Sharded, of_tokens
from anyscore.modifiers.normalizers import stats_of
from anyscore.ops import Array, Ops


class Kernels(Protocol):
    """The kernels of one framework, and the operations on arrays that `Ops` lacks."""

    def forward(self, x: Operands, s: Settings) -> Results:
        """Return the results of a block, in the dtype of sums."""

    def backward(self, x: Operands, s: Settings, results: Results, upstream: Results) -> Operands:
        """Return the gradients of a block's factors, from results of the whole."""

    def add(self, to: Array, x: Array) -> Array:
        """Return to + x, in place where a framework can."""

    def scale(self, x: Array, by: Array) -> Array:
        """Return x · by, in place where a framework can."""

    def zeros(self, shape: tuple[int, ...], x: Operands) -> Array:
        """Return zeros of the dtype of sums over x, on its device."""

    def add_columns(self, to: Array, start: Integer, x: Array) -> Array:
        """Return `to` with x added to to[..., start : start + n]."""

    def origin(self, query: Integer, key: Integer, x: Operands) -> Array:
        """Return the operand `origin` of a block that begins at these positions."""


class Gradients(NamedTuple):
    """Gradients of a part, in the dtype of sums.

    x: of its operands. Gradients of keys are complete, others are this rank's share. biases: of
    `Part.biases`.
    """

    x: Operands
    biases: tuple[Array | None, ...]


_TOKENS = {"b": -2, "key_bias": -1, "value": -2}
"""The operands of keys, and their axes of tokens."""


def forward_ring(xp: Ops, kernels: Kernels, part: Part, sharded: Sharded) -> Results:
    """Return output and statistics of this rank's queries; keys pass from rank to rank."""
    block = _of_keys(part.x)
    found: list[Results | None] = [None] * len(part.chunks)
    for step in range(sharded.exchange.ranks):
        coming = _pass_block(block, sharded, step)
        _forward_block(xp, kernels, part, block, _chunks_in(xp, sharded, step), found)
        block = coming()
    return _all_queries(xp, kernels, part, found)


def forward_stay(xp: Ops, kernels: Kernels, part: Part, sharded: Sharded) -> Results:
    """Return output and statistics of all queries; keys stay with their rank."""
    found: list[Results | None] = [None] * len(part.chunks)
    block = _of_keys(part.x)
    _forward_block(xp, kernels, part, block, _chunks_in(xp, sharded, 0), found)
    output, stats, _ = _all_queries(xp, kernels, part, found)
    if part.s.normalizer:
        output = None if output is None else sharded.exchange.sum([output])[0]
        return Results(output, sharded.exchange.max(stats))
    most = sharded.exchange.max(stats[..., 0, :])
    share = _weight(xp, stats, most)
    if output is None:
        (total,) = sharded.exchange.sum([share])
    else:
        total, output = sharded.exchange.sum([share, share[..., None] * output])
    total = xp.where(total == 0, 1.0, total)
    if output is not None:
        output = output / total[..., None]
    return Results(output, stats_of(xp, most, xp.log(total)))


def backward_ring(
    xp: Ops, kernels: Kernels, part: Part, sharded: Sharded, results: Results, upstream: Results
) -> Gradients:
    """Return gradients of this rank's part; keys travel once more, and their gradients follow."""
    block, sums = _of_keys(part.x), _zeros_of(xp, kernels, part)
    back: Callable[[], dict[str, Array]] | None = None
    for step in range(sharded.exchange.ranks):
        coming = _pass_block(block, sharded, step)
        chunks = _chunks_in(xp, sharded, step)
        d_block = _backward_block(xp, kernels, part, block, chunks, results, upstream, sums)
        if back is not None:
            so_far = back()
            d_block = {name: kernels.add(so_far[name], d) for name, d in d_block.items()}
            so_far.clear()
        back = _pass_on(d_block, sharded, step)
        d_block.clear()
        block = coming()
    assert back is not None  # every group has a rank
    return _gradients(xp, kernels, part, sums, back())


def backward_stay(
    xp: Ops, kernels: Kernels, part: Part, sharded: Sharded, results: Results, upstream: Results
) -> Gradients:
    """Return gradients of all queries, and of this rank's keys, without an exchange."""
    block, sums = _of_keys(part.x), _zeros_of(xp, kernels, part)
    chunks = _chunks_in(xp, sharded, 0)
    d_block = _backward_block(xp, kernels, part, block, chunks, results, upstream, sums)
    return _gradients(xp, kernels, part, sums, d_block)


def join(xp: Ops, kernels: Kernels, s: Settings, one: Results, other: Results) -> Results:
    """Return the results over the keys of both, whose outputs may be overwritten."""
    if s.normalizer:  # a sum of sigmoids
        output = None if one.output is None else kernels.add(one.output, other.output)
        return Results(output, xp.maximum(one.stats, other.stats))  # −∞ or 0 without keys
    most = xp.maximum(one.stats[..., 0, :], other.stats[..., 0, :])
    w_one, w_other = (_weight(xp, y.stats, most) for y in (one, other))
    total = w_one + w_other
    total = xp.where(total == 0, 1.0, total)
    output = None
    if one.output is not None:
        one_output = kernels.scale(one.output, (w_one / total)[..., None])
        output = kernels.add(one_output, kernels.scale(other.output, (w_other / total)[..., None]))
    return Results(output, stats_of(xp, most, xp.log(total)))


def _weight(xp: Ops, stats: Array, most: Array) -> Array:
    """Return w = e^(m − M + l) of statistics (m, l), 0 without keys; most: M (..., T_q)."""
    safe = xp.where(most == -math.inf, 0.0, most)
    return xp.exp(stats[..., 0, :] - safe + stats[..., 1, :])


def upstream_of_block(
    xp: Ops, s: Settings, block: Results, whole: Results, upstream: Results
) -> Results:
    """Return the gradients of a block's results, from those of the whole.

    The block's output o has the weight w = e^(lse − L) in the whole's O: d o = w dO, and
    d lse = w (dO · (o − O) + dL).
    """
    d_output, d_stats, _ = upstream
    if s.normalizer:
        return Results(d_output, None)
    most, wide = whole.stats[..., 0, :], xp.dtype(whole.stats)
    safe = xp.where(most == -math.inf, 0.0, most)
    log_sums = block.stats[..., 1, :] - whole.stats[..., 1, :]
    w = xp.exp((block.stats[..., 0, :] - safe) + log_sums)
    d_lse = 0 * w
    if d_output is not None:
        d_output = xp.astype(d_output, wide)
        d_lse = xp.sum(d_output * (block.output - whole.output), -1)
        d_output = w[..., None] * d_output
    if d_stats is not None:
        d_lse = d_lse + d_stats[..., 1, :]
    d_lse = (w * d_lse)[..., None, :]
    return Results(d_output, xp.concat([0 * d_lse, d_lse], -2))


def forward(
    xp: Ops, kernels: Kernels, part: Part, sharded: Sharded, scheme: Scheme
) -> tuple[Results, Results]:
    """Return the results of this rank's queries, and the results for `backward`."""
    if scheme == "ring":
        found = forward_ring(xp, kernels, part, sharded)
    elif scheme == "stay":
        found = forward_stay(xp, kernels, part, sharded)
    else:
        found = forward_stay(xp, kernels, gathered(xp, part, sharded), sharded)
        output, stats, _ = found
        output = None if output is None else _own_rows(xp, output, sharded, -2)
        return Results(output, _own_rows(xp, stats, sharded, -1)), found
    return found, found


def backward(
    xp: Ops,
    kernels: Kernels,
    part: Part,
    sharded: Sharded,
    scheme: Scheme,
    results: Results,
    upstream: Results,
) -> Gradients:
    """Return the gradients of this rank's part; results: the second of `forward`."""
    if scheme == "ring":
        return backward_ring(xp, kernels, part, sharded, results, upstream)
    if scheme == "stay":
        found = backward_stay(xp, kernels, part, sharded, results, upstream)
        if sharded.exchange.ranks == 1:
            return found
        # Shares are summed later, in half precision too: equal ones round least.
        (a,) = sharded.exchange.sum([found.x.a])
        return found._replace(x=found.x._replace(a=a / sharded.exchange.ranks))
    counts = _query_counts(sharded)
    output, stats, _ = upstream
    upstream = Results(
        None if output is None else sharded.exchange.gather(output, -2, counts),
        None if stats is None else sharded.exchange.gather(stats, -1, counts),
    )
    whole = gathered(xp, part, sharded)
    found = backward_stay(xp, kernels, whole, sharded, results, upstream)
    (a,) = sharded.exchange.sum([found.x.a])
    return Gradients(found.x._replace(a=_own_rows(xp, a, sharded, -2)), part.biases)


def gathered(xp: Ops, part: Part, sharded: Sharded) -> Part:
    """Return a part with the queries of all ranks. It has no biases."""
    counts, x = _query_counts(sharded), part.x

    def gather(y: Array | None, axis: int) -> Array | None:
        if y is None or xp.shape(y)[axis] == 1 != xp.shape(x.a)[-2]:
            return y
        return sharded.exchange.gather(y, axis, counts)

    assert sharded.queries is not None
    chunks, at = [], 0
    for starts, lengths in zip(*sharded.queries, strict=True):
        for start, length in zip(starts, lengths, strict=True):
            chunks.append(Chunk(at, length, start))
            at += length
    x = x._replace(
        a=gather(x.a, -2),
        start=gather(x.start, -1),
        stop=gather(x.stop, -1),
        mask=gather(x.mask, -2),
    )
    return Part(x, part.s, chunks, (None,) * len(chunks))


def _query_counts(sharded: Sharded) -> list[int]:
    assert sharded.queries is not None
    return [sharded.queries.count(rank) for rank in range(sharded.exchange.ranks)]


def _own_rows(xp: Ops, x: Array, sharded: Sharded, axis: int) -> Array:
    """Return the rows of this rank from an array of the queries of all ranks."""
    assert sharded.queries is not None
    counts, rank = _query_counts(sharded), sharded.exchange.rank
    start = sum(counts[:rank]) if isinstance(rank, int) else rank * counts[0]
    return of_tokens(xp, x, start, sharded.queries.count(rank), axis)


# One block: the keys of one rank


def _forward_block(
    xp: Ops,
    kernels: Kernels,
    part: Part,
    block: dict[str, Array],
    chunks: list[Chunk],
    found: list[Results | None],
) -> None:
    """Join the results over the keys of a block into `found`, one for each chunk of queries."""
    for i, _, _, met in _meetings(xp, kernels, part, block, chunks):
        one, so_far = kernels.forward(met, part.s), found[i]
        found[i] = one if so_far is None else join(xp, kernels, part.s, so_far, one)


class _Sums:
    """Gradients while they are summed: of each chunk's queries, of the weight, of biases.

    The queries of a chunk have None before the first block.
    """

    def __init__(self, chunks: int, weight: Array | None, biases: list[Array | None]) -> None:
        self.a: list[Array | None] = [None] * chunks
        self.weight, self.biases = weight, biases


def _zeros_of(xp: Ops, kernels: Kernels, part: Part) -> _Sums:
    x = part.x

    def zeros(y: Array | None) -> Array | None:
        return None if y is None else kernels.zeros(xp.shape(y), x)

    return _Sums(len(part.chunks), zeros(x.weight), [zeros(y) for y in part.biases])


def _backward_block(
    xp: Ops,
    kernels: Kernels,
    part: Part,
    block: dict[str, Array],
    chunks: list[Chunk],
    results: Results,
    upstream: Results,
    sums: _Sums,
) -> dict[str, Array]:
    """Add the gradients of queries, weight and biases to `sums`; return those of the keys."""
    pieces: list[dict[str, Array]] = [{} for _ in chunks]
    for i, k, keys, met in _meetings(xp, kernels, part, block, chunks):
        rows = part.chunks[i]
        of_block = _of_queries(results, rows), _of_queries(upstream, rows)
        got = kernels.backward(met, part.s, *of_block)
        wide = {n: xp.astype(d, xp.dtype(results.stats)) for n, d in got.present().items()}
        sums.a[i] = _sum(kernels, sums.a[i], wide["a"])
        if sums.weight is not None:
            sums.weight = sums.weight + wide["weight"]
        if (bias := sums.biases[i]) is not None:
            sums.biases[i] = kernels.add_columns(bias, keys.start, wide["bias"])
        pieces[k] = {name: _sum(kernels, pieces[k].get(name), wide[name]) for name in block}
    for piece, keys in zip(pieces, chunks, strict=True):
        for name, y in _rows(block, keys).items():
            if name not in piece:
                piece[name] = kernels.zeros(xp.shape(y), part.x)
    return {name: _joined(xp, [p[name] for p in pieces], _TOKENS[name]) for name in block}


def _sum(kernels: Kernels, so_far: Array | None, x: Array) -> Array:
    return x if so_far is None else kernels.add(so_far, x)


def _gradients(
    xp: Ops, kernels: Kernels, part: Part, sums: _Sums, of_keys: dict[str, Array]
) -> Gradients:
    lead, width = xp.shape(part.x.a)[:-2], xp.shape(part.x.a)[-1]
    each = [
        kernels.zeros((*lead, chunk.length, width), part.x) if d is None else d
        for chunk, d in zip(part.chunks, sums.a, strict=True)
    ]
    a = _joined(xp, each, -2)
    return Gradients(Operands(a=a, weight=sums.weight, **of_keys), tuple(sums.biases))


def _meetings(
    xp: Ops, kernels: Kernels, part: Part, block: dict[str, Array], chunks: list[Chunk]
) -> Iterator[tuple[int, int, Chunk, Operands]]:
    """Yield (chunk of queries, chunk of keys, the latter, operands) of each pair with tokens."""
    for k, keys in enumerate(chunks):
        for i, queries in enumerate(part.chunks):
            if keys.length and queries.length:
                yield i, k, keys, _meet(xp, kernels, part, i, block, keys)


def _meet(
    xp: Ops, kernels: Kernels, part: Part, i: int, block: dict[str, Array], keys: Chunk
) -> Operands:
    """Return the operands of chunk i of the queries and a chunk of keys."""
    x, bias, queries = part.x, part.biases[i], part.chunks[i]
    rows = slice(queries.at, queries.at + queries.length)

    def bound(y: Array | None) -> Array | None:
        if y is None:
            return None
        y = y if xp.shape(y)[-1] == 1 else y[..., rows]
        return xp.minimum(xp.maximum(y - keys.start, 0), keys.length)

    mask = x.mask
    if mask is not None:
        mask = mask if xp.shape(mask)[-2] == 1 else mask[..., rows, :]
        mask = mask if xp.shape(mask)[-1] == 1 else of_tokens(xp, mask, keys.start, keys.length)
    if bias is not None:
        more = queries.length - 1 if part.s.bias_is_diagonal else 0
        bias = of_tokens(xp, bias, keys.start, keys.length + more)
    start, stop, of_keys = bound(x.start), bound(x.stop), _rows(block, keys)
    x = x._replace(a=x.a[..., rows, :], bias=bias, start=start, stop=stop, mask=mask, **of_keys)
    if not part.s.dropout:
        return x
    return x._replace(origin=kernels.origin(queries.start, keys.start, x))


def _of_keys(x: Operands) -> dict[str, Array]:
    """Return the operands of keys that are not None, by name."""
    return {name: y for name in _TOKENS if (y := getattr(x, name)) is not None}


def _rows(block: dict[str, Array], keys: Chunk) -> dict[str, Array]:
    """Return a chunk of a block of keys."""
    rows = slice(keys.at, keys.at + keys.length)
    return {
        name: y[..., rows] if _TOKENS[name] == -1 else y[..., rows, :] for name, y in block.items()
    }


def _of_queries(results: Results, queries: Chunk) -> Results:
    """Return results, or their gradients, of a chunk of queries."""
    rows = slice(queries.at, queries.at + queries.length)
    output, stats, _ = results
    output = None if output is None else output[..., rows, :]
    return Results(output, None if stats is None else stats[..., rows])


def _all_queries(xp: Ops, kernels: Kernels, part: Part, found: list[Results | None]) -> Results:
    """Return the results of all chunks of queries as one."""
    each = [
        _without_keys(xp, kernels, part, chunk) if one is None else one
        for one, chunk in zip(found, part.chunks, strict=True)
    ]
    output = None if part.x.value is None else _joined(xp, [y.output for y in each], -2)
    return Results(output, _joined(xp, [y.stats for y in each], -1))


def _without_keys(xp: Ops, kernels: Kernels, part: Part, queries: Chunk) -> Results:
    """Return the results of queries without keys: the output is zero, the log-sum-exp −∞."""
    x, rows = part.x, (*part.s.lead, queries.length)
    zeros = kernels.zeros(rows, x)
    output = None if x.value is None else kernels.zeros((*rows, xp.shape(x.value)[-1]), x)
    return Results(output, stats_of(xp, zeros - math.inf, zeros))


def _joined(xp: Ops, xs: list[Array], axis: int) -> Array:
    return xs[0] if len(xs) == 1 else xp.concat(xs, axis)


# The ring


def _source(exchange: Exchange, step: int) -> Integer:
    """Return the rank whose keys this rank has in a step."""
    return (exchange.rank - step) % exchange.ranks


def _chunks_in(xp: Ops, sharded: Sharded, step: int) -> list[Chunk]:
    """Return the chunks of the keys that this rank has in a step."""
    return sharded.keys.chunks(xp, _source(sharded.exchange, step))


def _pass_block(
    block: dict[str, Array], sharded: Sharded, step: int
) -> Callable[[], dict[str, Array]]:
    """Begin to pass keys on; the last step passes none."""
    if step + 1 == sharded.exchange.ranks:
        return lambda: block
    return _pass_on(block, sharded, step)


def _pass_on(
    block: dict[str, Array], sharded: Sharded, step: int
) -> Callable[[], dict[str, Array]]:
    """Begin to pass arrays of a step's keys on; return a function that gives the next ones."""
    exchange, names = sharded.exchange, list(block)
    tokens = [_TOKENS[name] for name in names]
    count = sharded.keys.count(_source(exchange, step + 1))
    coming = exchange.pass_on(list(block.values()), tokens, count)
    return lambda: dict(zip(names, coming(), strict=True))
