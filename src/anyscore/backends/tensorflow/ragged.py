"""Ragged tensors of TensorFlow as packed sequences, and results as ragged tensors."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from anyscore.call.backend import AS_THEY_ARE, Adapter
from anyscore.masks.sequences import Sequences


def _sequences(query: Any, key: Any, value: Any) -> Sequences | None:
    """Return the sequences of ragged tensors; None if a tensor cannot be packed.

    Raises:
        ValueError: the tensors have different sequences.
    """
    tensors = {"query": query, "key": key, "value": value}
    if not all(_is_packed(x) for x in tensors.values()):
        return None
    counts = {name: x.shape[0] for name, x in tensors.items()}
    if len({n for n in counts.values() if n is not None}) > 1:
        raise ValueError(f"ragged tensors hold other numbers of sequences: {counts}.")
    different = (
        "key and value are ragged tensors of other lengths: make one with the splits of the other, "
        "as key.with_values(x)."
    )
    splits = key.row_splits
    if not _is_same(key, value):
        if tf.executing_eagerly():
            raise ValueError(different)
        other = tf.cast(value.row_splits, splits.dtype)
        with tf.control_dependencies([tf.debugging.assert_equal(splits, other, different)]):
            splits = tf.identity(splits)
    return Sequences(query.row_splits, None if _is_same(query, key) else splits)


def _is_packed(x: Any) -> bool:
    """Return whether x is (B, None, d) or (B, None, heads, d), with only tokens ragged."""
    return isinstance(x, tf.RaggedTensor) and x.ragged_rank == 1 and x.values.shape.rank in (2, 3)


def _is_same(one: Any, other: Any) -> bool:
    """Return whether two tensors have equal lengths; in a graph, the same tensor of lengths."""
    one, other = one.row_splits, other.row_splits
    if one is other:
        return True
    if not tf.executing_eagerly():
        return False
    return one.shape == other.shape and bool(tf.reduce_all(one == tf.cast(other, one.dtype)))


def adapter(query: Any, key: Any, value: Any) -> Adapter:
    """Return the adapter of ragged tensors that can be packed; for others the base `Adapter`."""
    sequences = _sequences(query, key, value)
    return AS_THEY_ARE if sequences is None else _RaggedAdapter(sequences, query, key, value)


class _RaggedAdapter(Adapter):
    """Packs tokens of ragged tensors, and returns results as ragged as the queries.

    (B, None, d) becomes (T, d), and (B, None, heads, d) becomes (1, heads, T, d).
    """

    def __init__(self, sequences: Sequences, *tensors: Any) -> None:
        self.sequences, self.tensors = sequences, tensors

    def take(self, tensors: tuple[Any, ...], score: Any) -> tuple[tuple[Any, ...], Any]:
        return tuple(map(self._tokens, tensors)), score

    def _tokens(self, x: Any) -> Any:
        if not any(x is y for y in self.tensors):
            return x
        return x.values if x.values.shape.rank == 2 else _swapped(x.values)[None]

    def give(self, x: Any, own: int = 1) -> Any:
        query = self.tensors[0]
        return query.with_values(_swapped(x[0]) if query.values.shape.rank == 3 else x)

    def give_pairs(self, x: Any, otherwise: float) -> Any:
        query, key, _ = self.tensors
        return _pad_pairs(x[0] if query.values.shape.rank == 3 else x, query, key, otherwise)


def _swapped(x: Any) -> Any:
    """Return x with its first two axes exchanged."""
    return tf.transpose(x, [1, 0, *range(2, x.shape.rank)])


def _pad_pairs(x: Any, query: Any, key: Any, otherwise: float) -> Any:
    """Return x (..., T_q, T_k) of packed tokens as dense (B, ..., longest query, longest key)."""
    most = [tf.maximum(tf.reduce_max(y.row_lengths()), 0) for y in (query, key)]
    rank = x.shape.rank

    def of_sequence(s: Any) -> Any:
        (top, bottom), (left, right) = (
            (y.row_splits[s], y.row_splits[s + 1]) for y in (query, key)
        )
        part = x[..., top:bottom, left:right]
        rest = [[0, most[0] - (bottom - top)], [0, most[1] - (right - left)]]
        pads = tf.cast([[0, 0]] * (rank - 2) + rest, tf.int64)
        return tf.pad(part, pads, constant_values=tf.cast(otherwise, x.dtype))

    count = tf.shape(query.row_splits, out_type=tf.int64)[0] - 1
    shape = tf.TensorSpec([*x.shape[:-2], None, None], x.dtype)
    return tf.map_fn(of_sequence, tf.range(count), fn_output_signature=shape)
