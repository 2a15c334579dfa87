"""Jagged nested tensors agree with each sequence by itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from anyscore import (
    ALiBi,
    Causal,
    Lengths,
    Relative,
    ScaledDot,
    attention,
    log_sum_exp,
    log_weights,
    plan,
    record,
    scores,
)
from anyscore.torch import Attention, MultiHeadAttention, SelfAttention
from helpers.by_pair import by_pair
from helpers.samples import NAMES, WIDTH, make_score

pytestmark = pytest.mark.sample

QUERIES, KEYS, HEADS, WIDTH_VALUE = [3, 0, 70, 1], [5, 2, 64, 3], 2, 6
LEFT_OUT = {
    "softcap": {"softcap": 2.0},
    "sink": {"sink": torch.tensor([0.5, -0.5], dtype=torch.float64)},
}


def offsets(lengths: list[int]) -> Tensor:
    return torch.tensor([0, *lengths]).cumsum(0)


def tokens(lengths: list[int], width: int, heads: int | None) -> Tensor:
    """Return packed tokens (T, width) or (T, heads, width), a leaf."""
    lead = (sum(lengths),) if heads is None else (sum(lengths), heads)
    return torch.randn(*lead, width, dtype=torch.float64, requires_grad=True)


def nested(packed: Tensor, cu_seqlens: Tensor) -> Tensor:
    x = torch.nested.nested_tensor_from_jagged(packed, cu_seqlens)
    return x if packed.dim() == 2 else x.transpose(1, 2)


def alone(packed: Tensor, lengths: list[int]) -> list[Tensor]:
    """Return each sequence (1, n, d) or (1, heads, n, d)."""
    parts = packed.split(lengths)
    return [x[None] if x.dim() == 2 else x.transpose(0, 1)[None] for x in parts]


def leaves(heads: int | None, kv_heads: int | None, own: bool = True) -> list[Tensor]:
    torch.manual_seed(7)
    keys = KEYS if own else QUERIES
    return [
        tokens(QUERIES, WIDTH, heads),
        tokens(keys, WIDTH, kv_heads),
        tokens(keys, WIDTH_VALUE, kv_heads),
    ]


def in_nested(xs: list[Tensor], own: bool = True) -> list[Tensor]:
    of_queries = offsets(QUERIES)
    of_keys = offsets(KEYS) if own else of_queries
    return [nested(x, y) for x, y in zip(xs, (of_queries, of_keys, of_keys), strict=True)]


def flat(outputs: list[Tensor]) -> Tensor:
    """Return the outputs of single sequences as the values of one nested tensor."""
    return torch.cat([x[0] for x in outputs], -2)


def as_torch(name: str) -> Any:
    return make_score(name).map(torch.as_tensor)


@by_pair("name", NAMES)
@pytest.mark.parametrize(("heads", "kv_heads"), [(None, None), (HEADS, HEADS), (HEADS, 1)])
def test_every_score_is_that_of_each_sequence(
    name: str, heads: int | None, kv_heads: int | None
) -> None:
    xs, score = leaves(heads, kv_heads), as_torch(name)
    query, key, value = in_nested(xs)
    output = attention(query, key, value, score=score)
    assert output.is_nested
    assert output.shape[:-1] == query.shape[:-1]
    each = zip(*(alone(x, n) for x, n in zip(xs, (QUERIES, KEYS, KEYS), strict=True)), strict=True)
    expected = flat([attention(*one, score=score) for one in each])
    torch.testing.assert_close(output.values(), expected, rtol=1e-10, atol=1e-10)
    found = torch.autograd.grad(output.values().sin().sum(), xs)
    wanted = torch.autograd.grad(expected.sin().sum(), xs)
    for x, y in zip(found, wanted, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("impl", ["auto", "reference"])
@pytest.mark.parametrize("align", ["start", "end"])
def test_masks_count_within_sequences(impl: str, align: str) -> None:
    xs, valid_lens = leaves(None, None), torch.tensor([4, 1, 30, 0])
    query, key, value = in_nested(xs)
    mask = Causal(align)
    output = attention(query, key, value, mask=mask, valid_lens=valid_lens, impl=impl)
    parts = [alone(x, n) for x, n in zip(xs, (QUERIES, KEYS, KEYS), strict=True)]
    expected = flat(
        [
            attention(q, k, v, mask=mask & Lengths(int(n)))
            for q, k, v, n in zip(*parts, valid_lens, strict=True)
        ]
    )
    torch.testing.assert_close(output.values(), expected)


@pytest.mark.parametrize("options", LEFT_OUT.values(), ids=LEFT_OUT)
def test_options(options: dict[str, Any]) -> None:
    xs = leaves(HEADS, HEADS)
    output = attention(*in_nested(xs), **options)
    parts = [alone(x, n) for x, n in zip(xs, (QUERIES, KEYS, KEYS), strict=True)]
    expected = flat([attention(*one, **options) for one in zip(*parts, strict=True)])
    torch.testing.assert_close(output.values(), expected)


def test_biases_of_positions() -> None:
    xs = leaves(HEADS, HEADS, own=False)
    table = torch.randn(HEADS, 9, dtype=torch.float64, requires_grad=True)
    for bias in (ALiBi(), Relative(table)):
        output = attention(*in_nested(xs, own=False), bias=bias)
        parts = [alone(x, QUERIES) for x in xs]
        expected = flat([attention(*one, bias=bias) for one in zip(*parts, strict=True)])
        torch.testing.assert_close(output.values(), expected)
    (found,) = torch.autograd.grad(output.values().sin().sum(), table)
    (wanted,) = torch.autograd.grad(expected.sin().sum(), table)
    torch.testing.assert_close(found, wanted)
    with pytest.raises(ValueError, match=r"bias is ALiBi\(...\), one number for each distance"):
        attention(*in_nested(leaves(HEADS, HEADS)), bias=ALiBi(align="end"))


@pytest.mark.parametrize("heads", [None, HEADS])
def test_what_is_returned_beside(heads: int | None) -> None:
    xs = leaves(heads, heads)
    query, key, value = in_nested(xs)
    result = attention(query, key, value, return_weights=True, return_lse=True)
    parts = [alone(x, n) for x, n in zip(xs, (QUERIES, KEYS, KEYS), strict=True)]
    options: Any = {"return_weights": True, "return_lse": True}
    each = [attention(*one, **options) for one in zip(*parts, strict=True)]
    lead = () if heads is None else (heads,)
    assert result.weights.shape == (4, *lead, 70, 64)
    assert result.lse.shape == query.shape[:-1]
    lse = torch.cat([one.lse[0] for one in each], -1)
    torch.testing.assert_close(result.lse.values(), lse)
    torch.testing.assert_close(log_sum_exp(query, key).values(), lse)
    matrix, logs = scores(query, key), log_weights(query, key)
    for s, one in enumerate(each):
        n, m = QUERIES[s], KEYS[s]
        torch.testing.assert_close(result.weights[s][..., :n, :m], one.weights[0])
        torch.testing.assert_close(logs[s][..., :n, :m].exp(), one.weights[0])
        torch.testing.assert_close(matrix[s][..., :n, :m], scores(parts[0][s], parts[1][s])[0])
        for padded, nothing in ((result.weights, 0.0), (matrix, -torch.inf), (logs, -torch.inf)):
            assert (padded[s][..., n:, :] == nothing).all()
            assert (padded[s][..., :, m:] == nothing).all()


def test_it_is_fused_and_copies_no_tokens() -> None:
    query, key, value = in_nested(leaves(HEADS, HEADS))
    assert plan(query, key, value).route == "cpu"
    with torch.no_grad():
        for x in (query, key, value):
            packed = x.values()
            assert not packed.is_contiguous()  # a view: heads of tokens
            assert packed.data_ptr() == x.transpose(1, 2).values().data_ptr()


def test_nan_of_another_sequence_reaches_nothing() -> None:
    xs = leaves(None, None)
    with torch.no_grad():
        for x, n in zip(xs, (QUERIES, KEYS, KEYS), strict=True):
            x[-n[-1] :] = torch.nan
    output = attention(*in_nested(xs)).values()
    assert output[:-1].isfinite().all()
    assert output[-1:].isnan().all()
    for gradient in torch.autograd.grad(output[:-1].sum(), xs):
        assert gradient[:3].isfinite().all()


@pytest.mark.parametrize("lazy", [False, True])
def test_layer(lazy: bool) -> None:
    xs = leaves(None, None)
    sizes = {} if lazy else {"d_q": WIDTH, "d_k": WIDTH}
    layer = Attention("additive", hidden=4, dtype=torch.float64, **sizes)
    output = layer(*in_nested(xs))
    parts = [alone(x, n) for x, n in zip(xs, (QUERIES, KEYS, KEYS), strict=True)]
    expected = flat([layer(*one) for one in zip(*parts, strict=True)])
    torch.testing.assert_close(output.values(), expected)
    output.values().sum().backward()
    assert all(x.grad is not None for x in layer.parameters())


@pytest.mark.parametrize("make", [SelfAttention, MultiHeadAttention])
def test_layers_of_one_sequence(make: type[nn.Module]) -> None:
    torch.manual_seed(0)
    layer = make(8, 2, score="gaussian").double()
    x = tokens(QUERIES, 8, None)
    output = layer(nested(x, offsets(QUERIES)))
    expected = flat([layer(one) for one in alone(x, QUERIES) if one.shape[1]])
    torch.testing.assert_close(output.values(), expected)
    found = torch.autograd.grad(output.values().sin().sum(), [x, *layer.parameters()])
    wanted = torch.autograd.grad(expected.sin().sum(), [x, *layer.parameters()])
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_compiled() -> None:
    packed = torch.randn(9, 4)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def run(x: Tensor) -> Tensor:
        return attention(x, x, x)

    x = torch.nested.nested_tensor_from_jagged(packed, torch.tensor([0, 4, 9]))
    expected = attention(x, x, x).values()
    torch.testing.assert_close(run(x).values(), expected)


def test_weights_of_a_layer_are_dense() -> None:
    """After a call, a layer has dense weights, also chosen and recorded ones."""
    torch.manual_seed(0)
    layer, x = MultiHeadAttention(8, 2, score="gaussian").double(), tokens(QUERIES, 8, None)
    with record(layer) as recording:
        layer(nested(x, offsets(QUERIES)))
    weights = layer.attention_weights
    assert weights is not None
    assert weights.shape == (4, 2, 70, 70)
    np.testing.assert_allclose(recording["MultiHeadAttention"][0], weights, rtol=1e-6)
    for rows, heads, examples in (
        (None, None, 1), (0, [1, 0], slice(1, 3)), ([1, -1], 1, [2, 0]), (slice(2), 0, slice(0)),
    ):  # fmt: skip
        wanted = weights if heads is None else weights[..., heads, :, :]
        wanted = wanted if rows is None else wanted[..., rows, :]
        wanted = wanted[examples]
        torch.testing.assert_close(layer.last_weights(rows, heads, examples), wanted)
    with pytest.raises(IndexError, match="examples has 4"):
        layer.last_weights(examples=4)
    for s, one in enumerate(alone(x, QUERIES)):
        n = one.shape[1]
        assert (weights[s, :, n:] == 0).all()
        if n:
            layer(one)
            torch.testing.assert_close(weights[s, :, :n, :n], layer.attention_weights[0])


def test_what_is_no_batch_is_refused() -> None:
    query, key, value = in_nested(leaves(None, None))
    dense = torch.ones(4, 5, WIDTH, dtype=torch.float64)
    with pytest.raises(TypeError, match=r"key is a nested tensor: pass torch.nested.to_padded"):
        attention(dense, key, value)
    with pytest.raises(TypeError, match="query is a nested tensor"):
        attention(query, dense, dense)
    other = nested(tokens([1, 2, 3], WIDTH, None), offsets([1, 2, 3]))
    with pytest.raises(ValueError, match="hold other numbers of sequences"):
        attention(other, key, value)
    with pytest.raises(ValueError, match="key and value are nested tensors of other lengths"):
        attention(query, key, query)
    heads = nested(tokens(QUERIES, WIDTH, HEADS), offsets(QUERIES)).transpose(1, 2)
    with pytest.raises(ValueError, match=r"shape \(4, j, 2, \d\), expected .* x.transpose\(1, 2\)"):
        attention(heads, heads, heads)
    holes = torch.nested.narrow(
        torch.randn(2, 6, 3), 1, torch.tensor([0, 1]), torch.tensor([3, 4]), layout=torch.jagged
    )
    with pytest.raises(TypeError, match="query is a nested tensor with holes"):
        attention(holes, holes, holes)
    with pytest.raises(ValueError, match=r"one width: .* d_q=5 and d_k=3"):
        attention(query, nested(tokens(KEYS, 3, None), offsets(KEYS)), value, score=ScaledDot())
