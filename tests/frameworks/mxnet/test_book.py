"""Lines of *Dive into Deep Learning* for MXNet run as printed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
import pytest
from mxnet.gluon import nn

import anyscore.mxnet as front
from frameworks.mxnet.arrays import numbers, to
from helpers import book_lines as book


def call(
    line: str, attention: Any, tensors: list[np.ndarray], valid_lens: np.ndarray, kind: str
) -> Any:
    q, k, v, valid_lens = (to(x, kind=kind) for x in (*tensors, valid_lens))
    given = {"queries": q, "keys": k, "values": v, "X": q, "Y": k, "valid_lens": valid_lens}
    return eval(line, {**given, "attention": attention})


@book.each_line
def test_constructors_and_calls(line: book.Line, kind: str) -> None:
    attention = book.make(line, front)
    attention.initialize()
    output = call(book.SINGLE, attention, book.inputs(line), book.lengths(line), kind)
    result = numbers(output), numbers(attention.attention_weights)
    book.check(line, attention.numpy_parameters(), result)
    if line.heads is None:
        output = call(book.SINGLE, attention, book.equal_keys(line), book.lengths(line), kind)
        np.testing.assert_allclose(numbers(output)[:, 0], book.MEANS, rtol=1e-6)
    elif line.widths[1] == line.widths[2]:
        x, y, _ = book.inputs(line)
        output = call(book.HEADS, attention, [x, y, y], book.lengths(line), kind)
        assert output.shape == (2, 4, 100)


@book.each_state
def test_files_of_the_book(line: book.Line, np_mode: None, tmp_path: Path) -> None:
    """A file of the book's block, whose dense layers have the book's names, loads."""
    state, theirs = book.state(line), nn.Block()
    for name, x in state.items():
        dense = nn.Dense(len(x), use_bias=False, flatten=False, in_units=x.shape[1])
        setattr(theirs, name.split(".")[0], dense)
        dense.initialize()
        dense.weight.set_data(mx.np.array(x))
    path = str(tmp_path / "book.params")
    theirs.save_parameters(path)
    attention = book.make(line, front)
    attention.load_parameters(path)
    output = call(book.SINGLE, attention, book.inputs(line), book.lengths(line), "np")
    book.check(line, state, (numbers(output), numbers(attention.attention_weights)))


def test_a_decoder_initialises_its_attention(np_mode: None) -> None:
    decoder = nn.Block()
    decoder.attention = eval("d2l.AdditiveAttention(num_hiddens, dropout)", book.names(front))
    decoder.initialize(mx.init.Xavier())
    x = mx.np.ones((4, 7, 100))
    assert decoder.attention(x[:, :1], x, x, None).shape == (4, 1, 100)


def test_tokens_of_another_width(np_mode: None) -> None:
    attention, x = front.MultiHeadAttention(100, 10, 0.5), np.ones((2, 4, 5), "float32")
    attention.initialize()
    book.check_different(
        "width", lambda line: call(line, attention, [x] * 3, np.array([2, 3]), "np")
    )


def test_arguments_that_contradict() -> None:
    with pytest.raises(TypeError, match="got d_k by position and as d_k=: leave one out"):
        front.MultiHeadAttention(7, 11, 13, 100, 5, 0.5, d_k=3)
    with pytest.raises(TypeError, match="got bias as use_bias= and as bias=: leave one out"):
        front.MultiHeadAttention(100, 5, use_bias=True, bias=False)
