"""Lines of *Dive into Deep Learning* run in PyTorch as printed; arguments that contradict raise."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
import torch

import anyscore.torch as front
from helpers import book_lines as book

pytestmark = pytest.mark.sample


def call(line: str, attention: Any, tensors: list[np.ndarray], valid_lens: np.ndarray) -> Any:
    q, k, v = map(torch.tensor, tensors)
    given = {"queries": q, "keys": k, "values": v, "X": q, "Y": k}
    return eval(line, {**given, "valid_lens": torch.tensor(valid_lens), "attention": attention})


@book.each_line
def test_constructors_and_calls(line: book.Line) -> None:
    attention = book.make(line, front)
    attention.eval()
    output = call(book.SINGLE, attention, book.inputs(line), book.lengths(line))
    weights = attention.attention_weights
    if line.heads:
        torch.testing.assert_close(attention.attention.attention_weights, weights)
    book.check(line, attention.numpy_parameters(), (output.detach(), weights.detach()))
    if line.heads and line.widths[1] == line.widths[2]:
        x, y, _ = book.inputs(line)
        assert call(book.HEADS, attention, [x, y, y], book.lengths(line)).shape == (2, 4, 100)
    if line.heads is None:
        output = call(book.SINGLE, attention, book.equal_keys(line), book.lengths(line))
        np.testing.assert_allclose(output.detach()[:, 0], book.MEANS, rtol=1e-6)


@book.each_state
def test_state_dicts(line: book.Line) -> None:
    attention, state = book.make(line, front), book.state(line)
    attention.load_state_dict({name: torch.tensor(x) for name, x in state.items()})
    attention.eval()
    output = call(book.SINGLE, attention, book.inputs(line), book.lengths(line))
    book.check(line, state, (output.detach(), attention.attention_weights))


def test_tokens_of_another_width() -> None:
    attention, x = front.MultiHeadAttention(100, 10, 0.5), np.ones((2, 4, 5), "float32")
    book.check_different("width", lambda line: call(line, attention, [x] * 3, np.array([2, 3])))


@pytest.mark.parametrize(
    ("constructor", "error", "text"),
    [
        (
            "MultiHeadAttention(100, 5, num_hiddens=100)",
            TypeError,
            "MultiHeadAttention got embedding_size by position and as num_hiddens=: leave one out.",
        ),
        (
            "MultiHeadAttention(embedding_size=100, num_hiddens=100, num_heads=5)",
            TypeError,
            "MultiHeadAttention got embedding_size as embedding_size= and as num_hiddens=: leave "
            "one out.",
        ),
        (
            "MultiHeadAttention(100, 5, 0.5, use_bias=True, bias=True)",
            TypeError,
            "MultiHeadAttention got bias as use_bias= and as bias=: leave one out.",
        ),
        (
            "MultiHeadAttention(7, 11, 13, 100, 5, 0.5, d_k=3)",
            TypeError,
            "MultiHeadAttention got d_k by position and as d_k=: leave one out.",
        ),
        (
            "MultiHeadAttention(7, 11, 13, 100, 5, 0.5, True, 1)",
            TypeError,
            "MultiHeadAttention got 8 positional arguments, expected (embedding_size, n_heads, "
            "dropout, bias) or (key_size, query_size, value_size, num_hiddens, num_heads, dropout, "
            "bias): pass the others by name.",
        ),
        (
            "MultiHeadAttention(100, 100, 100, 100)",
            ValueError,
            "dropout must be in [0, 1), got 100.",
        ),
        (
            "MultiHeadAttention(num_hiddens=100, num_heads=3, dropout=0.5)",
            ValueError,
            "n_heads=3 must divide embedding_size=100, and kv_heads=3 must divide n_heads.",
        ),
        (
            "AdditiveAttention(8, query_size=2, d_q=3)",
            TypeError,
            "AdditiveAttention got query_size as query_size= and as d_q=: leave one out.",
        ),
        (
            "AdditiveAttention(2, 20, 8, 0.1, num_hiddens=8)",
            TypeError,
            "AdditiveAttention got num_hiddens by position and as num_hiddens=: leave one out.",
        ),
        (
            "MLPAttention(8, num_hiddens=8)",
            TypeError,
            "MLPAttention got units by position and as num_hiddens=: leave one out.",
        ),
    ],
)
def test_arguments_that_contradict(constructor: str, error: type, text: str) -> None:
    with pytest.raises(error) as raised:
        eval(constructor, book.names(front))
    assert str(raised.value) == text


@pytest.mark.parametrize(
    ("constructor", "sizes"),
    [
        ("AdditiveAttention(2, 20, 8, 0.1)", {"W_k": (8, 2), "W_q": (8, 20)}),
        ("AdditiveAttention(2, 20, 8)", {"W_k": (8, 2), "W_q": (8, 20)}),
        ("AdditiveAttention(8, 0.1, d_q=20, d_k=2)", {"W_k": (8, 2), "W_q": (8, 20)}),
        ("MLPAttention(2, 20, 8, 0.1)", {"W_k": (8, 2), "W_q": (8, 20)}),
        ("MultiHeadAttention(7, 11, 13, 100, 5)", {"W_k": (100, 7), "W_v": (100, 13)}),
    ],
)
def test_sizes_by_position(constructor: str, sizes: dict[str, tuple[int, int]]) -> None:
    shapes = {
        name: x.shape for name, x in eval(constructor, book.names(front)).numpy_parameters().items()
    }
    assert {name: shapes[f"{name}.weight"] for name in sizes} == sizes


def test_the_signature_has_what_types_and_help_say() -> None:
    names = [*inspect.signature(front.MultiHeadAttention).parameters]
    assert names[:4] == ["embedding_size", "n_heads", "dropout", "bias"]
    assert [*inspect.signature(front.AdditiveAttention).parameters][:2] == [
        "num_hiddens",
        "dropout",
    ]
