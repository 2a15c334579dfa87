"""TensorFlow's operations for the edges of a graph."""

from __future__ import annotations

import math

import tensorflow as tf

from anyscore.ops import Array


def take_rows(x: Array, index: Array) -> Array:
    return tf.gather(x, index, axis=-2)


def argsort(x: Array) -> Array:
    return tf.cast(tf.argsort(x, stable=True), x.dtype)


def segment_sum(x: Array, index: Array, n: int) -> Array:
    return _front_to(tf.math.unsorted_segment_sum(_to_front(x, -2), index, n), -2)


def segment_max(x: Array, index: Array, n: int) -> Array:
    most = tf.math.unsorted_segment_max(_to_front(tf.stop_gradient(x), -1), index, n)
    return _front_to(tf.where(most == x.dtype.min, tf.cast(-math.inf, x.dtype), most), -1)


def _to_front(x: Array, axis: int) -> Array:
    axes = list(range(len(x.shape)))
    return tf.transpose(x, [axes.pop(axis), *axes])


def _front_to(x: Array, axis: int) -> Array:
    axes = list(range(1, len(x.shape)))
    axes.insert(len(axes) + 1 + axis, 0)
    return tf.transpose(x, axes)
