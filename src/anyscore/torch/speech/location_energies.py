"""Energies of one step of location-sensitive attention, by the core or in PyTorch operations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from anyscore.backends.torch import energies as torch_energies
from anyscore.backends.torch.modes import apply, check_reverse_mode, must_dispatch
from anyscore.torch.speech.weighted_sum import Spans

COLUMNS = 16
"""Number of keys in one row of the product. The work is 1 + (r − 1) / 16 times that of the filters;
the copies are 1/16 of a plain unfolding."""

_BLOCK = 1 << 17
"""Size of a block of hidden units, in numbers."""


def toeplitz(filters: Tensor) -> Tensor:
    """Lay filters (k, c, r) out as a matrix (c · (COLUMNS + r − 1), COLUMNS · (k + 1)).

    The product with COLUMNS + r − 1 neighbours has k + 1 features for each of COLUMNS keys. The
    last feature is 0; `_features` sets it to 1, so that one product adds the query.
    """
    k, c, r = filters.shape
    matrix = filters.new_zeros(c, COLUMNS + r - 1, COLUMNS, k + 1)
    column = torch.arange(COLUMNS, device=filters.device)[:, None]
    row = column + torch.arange(r, device=filters.device)
    of_columns = filters.permute(1, 2, 0)[:, None].expand(c, COLUMNS, r, k)
    matrix[:, row, column, :k] = of_columns
    return matrix.reshape(c * (COLUMNS + r - 1), COLUMNS * (k + 1))


def location_energies(
    query: Tensor,
    keys: Tensor,
    location: Tensor,
    matrix: Tensor,
    projection: Tensor,
    vector: Tensor,
    spans: Spans | None,
) -> tuple[Tensor, Tensor]:
    """Compute vᵀ tanh(q + k_j + U f_j) for all keys, with f = F * location.

    query: (B, h), projected.
    keys: (B, T_k, h), projected.
    location: (B, c, T_k).
    matrix: `toeplitz` of F.
    projection: U (h, k).
    vector: v (h,).
    spans: ranges of keys; other keys are not read and have energy 0. None: the whole batch in one
        product, which is faster on a GPU.

    Return (energies (B, T_k), keys for the next step alone). Gradients of all steps flow back
    through the returned keys and are added in place, so that T_q steps need one such tensor. No
    tensor of width h or k is kept: the backward computes these again.
    """
    check_reverse_mode("location-sensitive attention")
    x = query, keys, location, matrix, projection, vector, spans
    if torch.compiler.is_exporting():
        return _energies(*x), keys
    if not torch.is_grad_enabled():
        found = apply(_Energies, *x)[0] if must_dispatch(*x) else _energies(*x)
        return found, keys
    if torch.compiler.is_compiling():  # a compiled backward would copy the added gradients
        of_steps: Any = torch.compiler.disable(_Energies.apply)  # type: ignore[no-untyped-call]
        energies, passed_on = of_steps(*x)
    else:
        energies, passed_on = apply(_Energies, *x, tensors=slice(len(x) - 1))
    return energies, passed_on


class _Energies(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor]:
        keys, spans = inputs[1], inputs[-1]
        ctx.save_for_backward(*inputs[:-1])
        ctx.spans = spans
        ctx.set_materialize_grads(False)
        return _energies(*inputs), keys.view_as(keys)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor | None, of_keys: Tensor | None) -> Any:
        if slope is None:
            return None, of_keys, None, None, None, None, None
        query, keys, location, matrix, projection, vector = ctx.saved_tensors
        with torch.enable_grad():
            location, matrix = (x.detach().requires_grad_() for x in (location, matrix))
            features = _features(location, matrix, projection.shape[1], ctx.spans)
        x = keys, features.detach().to(keys.dtype), _stacked(query, projection), vector
        if ctx.needs_input_grad[1]:
            of_keys = torch.zeros_like(keys) if of_keys is None else of_keys
        if ctx.spans is not None and torch_energies.runs(keys):
            made = torch_energies.energies_backward(*x, _tensor(ctx.spans), slope, of_keys)
        else:
            made = _gradients(*x, ctx.spans, slope, of_keys)
        of_rows, of_stacked, of_vector = made
        of_location, of_matrix = torch.autograd.grad(
            features, (location, matrix), of_rows.to(features.dtype)
        )
        of_projection = of_stacked[:, :-1].sum(0).T
        return of_stacked[:, -1], of_keys, of_location, of_matrix, of_projection, of_vector, None


def _energies(
    query: Tensor, keys: Tensor, location: Tensor, matrix: Tensor, projection: Tensor,
    vector: Tensor, spans: Spans | None,
) -> Tensor:  # fmt: skip
    """Return the energies (B, T_k)."""
    features = _features(location, matrix, projection.shape[1], spans).to(keys.dtype)
    stacked = _stacked(query, projection)
    if spans is None:
        return _hidden(keys, features, stacked) @ vector
    if torch_energies.runs(keys):
        by_core: Tensor = torch_energies.energies(keys, features, stacked, vector, _tensor(spans))
        return by_core
    energies = keys.new_zeros(keys.shape[:2])
    for items, among in _blocks(keys, spans):
        hidden = _hidden(keys[items, among], features[items, among], stacked[items])
        energies[items, among] = hidden @ vector
    return energies


def _tensor(spans: Spans) -> Tensor:
    """Return the spans as int64 (B, 2)."""
    return torch.tensor(spans, dtype=torch.int64).reshape(-1, 2)


def _gradients(
    keys: Tensor, rows: Tensor, stacked: Tensor, vector: Tensor, spans: Spans | None,
    slope: Tensor, of_keys: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return gradients of rows, stacked and vector, in blocks; add that of keys to of_keys."""
    of_rows, of_stacked, of_vector = map(torch.zeros_like, (rows, stacked, vector))
    for items, among in _blocks(keys, spans):
        hidden = _hidden(keys[items, among], rows[items, among], stacked[items])
        upstream = slope[items, among]
        of_vector += hidden.flatten(0, 1).T @ upstream.flatten()
        of_hidden = upstream[..., None] * vector
        torch.ops.aten.tanh_backward.grad_input(of_hidden, hidden, grad_input=of_hidden)
        of_rows[items, among] = of_hidden @ stacked[items].mT
        of_stacked[items] += rows[items, among].mT @ of_hidden
        if of_keys is not None:
            of_keys[items, among] += of_hidden
    return of_rows, of_stacked, of_vector


def _features(location: Tensor, matrix: Tensor, k: int, spans: Spans | None) -> Tensor:
    """Return features (B, T_k, k + 1) of each key; the last is 1. Far from the spans all are 0."""
    batch, channels, keys = location.shape
    width = matrix.shape[0] // channels  # of a piece
    reach = width - COLUMNS  # r − 1
    pieces = max(-(-keys // COLUMNS), 1)
    left = reach // 2
    padded = torch.nn.functional.pad(location, (left, pieces * COLUMNS - keys + reach - left))
    rows = padded.unfold(2, width, COLUMNS).transpose(1, 2)
    ones = matrix.new_zeros(COLUMNS, k + 1)
    ones[:, k] = 1
    wanted = None if spans is None else _wanted(spans, pieces)
    if wanted is None:
        flat = rows.reshape(batch * pieces, matrix.shape[0])
        found = torch.addmm(ones.flatten(), flat, matrix)
    else:
        some = torch.addmm(ones.flatten(), rows[wanted].flatten(1), matrix)
        found = some.new_zeros(batch, pieces, some.shape[1]).index_put(wanted, some)
    return found.view(batch, pieces * COLUMNS, k + 1)[:, :keys]


def _wanted(spans: Spans, pieces: int) -> tuple[Tensor, Tensor] | None:
    """Return (items, pieces) of all pieces that meet the spans; None if most pieces do."""
    bounds = [(start // COLUMNS, -(-stop // COLUMNS)) for start, stop in spans]
    if 2 * sum(stop - start for start, stop in bounds) > len(spans) * pieces:
        return None
    found = [(b, piece) for b, (start, stop) in enumerate(bounds) for piece in range(start, stop)]
    items, of_items = torch.tensor(found, dtype=torch.long).reshape(-1, 2).unbind(1)
    return items, of_items


def _stacked(query: Tensor, projection: Tensor) -> Tensor:
    """Return [U, q] of each item, (B, k + 1, h)."""
    of_all = projection.T.expand(len(query), -1, -1)
    return torch.cat([of_all, query[:, None]], 1)


def _hidden(keys: Tensor, features: Tensor, stacked: Tensor) -> Tensor:
    """Return the hidden units tanh(k + [f, 1] [U, q]) of a block."""
    if len(keys) == 1:  # faster than a batch of one
        return torch.addmm(keys[0], features[0], stacked[0]).tanh_()[None]
    return torch.baddbmm(keys, features, stacked).tanh_()


def _blocks(keys: Tensor, spans: Spans | None) -> Iterator[tuple[slice, slice]]:
    """Yield blocks (items, keys) of the batch whose hidden units stay in the CPU's cache."""
    batch, length, width = keys.shape
    if spans is None:
        yield slice(0, batch), slice(0, length)
        return
    items = max(1, _BLOCK // max(length * width, 1))
    rows = max(64, _BLOCK // width)
    for first in range(0, batch, items):
        of_items = [span for span in spans[first : first + items] if span[0] < span[1]]
        if of_items:
            stop = max(stop for _, stop in of_items)
            for start in range(min(start for start, _ in of_items), stop, rows):
                yield slice(first, first + items), slice(start, min(start + rows, stop))
