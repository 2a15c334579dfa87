"""Lines of *Dive into Deep Learning* for TensorFlow run with Keras as printed."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

import anyscore.keras as front
from helpers import book_lines as book


def call(line: str, attention: Any, tensors: list[np.ndarray], valid_lens: np.ndarray) -> Any:
    q, k, v, valid_lens = map(keras.ops.convert_to_tensor, (*tensors, valid_lens))
    given = {"queries": q, "keys": k, "values": v, "X": q, "Y": k, "valid_lens": valid_lens}
    return numpy(eval(line, {**given, "attention": attention}))


def numpy(x: Any) -> np.ndarray:
    return keras.ops.convert_to_numpy(x)


def in_evaluation(line: str) -> str:
    """Return a call as the book prints it for TensorFlow."""
    return line.replace("valid_lens)", "valid_lens, training=False)")


@book.each_line
def test_constructors_and_calls(line: book.Line) -> None:
    attention = book.make(line, front)
    single = in_evaluation(book.SINGLE)
    output = call(single, attention, book.inputs(line), book.lengths(line))
    parameters = attention.numpy_parameters()
    book.check(line, parameters, (output, numpy(attention.attention_weights)))
    if line.heads is None:
        output = call(single, attention, book.equal_keys(line), book.lengths(line))
        np.testing.assert_allclose(output[:, 0], book.MEANS, rtol=1e-6)
    elif line.widths[1] == line.widths[2]:
        x, y, _ = book.inputs(line)
        heads = in_evaluation(book.HEADS)
        assert call(heads, attention, [x, y, y], book.lengths(line)).shape == (2, 4, 100)
    copy = type(attention).from_config(attention.get_config())
    call(single, copy, book.inputs(line), book.lengths(line))
    copy.load_numpy_parameters(parameters)
    output = call(single, copy, book.inputs(line), book.lengths(line))
    book.check(line, parameters, (output, numpy(copy.attention_weights)))


@book.each_state
def test_weights_of_the_book(line: book.Line) -> None:
    """Kernels of the book's dense layers load transposed."""
    attention, state = book.make(line, front), book.state(line)
    kernels = {name.split(".")[0]: x.T for name, x in state.items()}
    tensors, single = book.inputs(line), in_evaluation(book.SINGLE)
    call(single, attention, tensors, book.lengths(line))
    attention.load_numpy_parameters({f"{name}.weight": x.T for name, x in kernels.items()})
    output = call(single, attention, tensors, book.lengths(line))
    book.check(line, state, (output, numpy(attention.attention_weights)))


def test_arguments_that_contradict() -> None:
    with pytest.raises(TypeError, match="got d_k by position and as d_k=: leave one out"):
        front.MultiHeadAttention(7, 11, 13, 100, 5, 0.5, d_k=3)
    with pytest.raises(TypeError, match="got query_size by position and as d_q=: leave one out"):
        front.AdditiveAttention(7, 11, 8, 0.5, d_q=3)
