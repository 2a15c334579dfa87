"""Weights and gradients of scores far from 0 are as exact as of scores around 0."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from anyscore import (
    Additive,
    Dot,
    Edges,
    Sequences,
    attention,
    log_sum_exp,
    log_weights,
    make_cache,
    scores,
)
from anyscore.torch import MultiHeadAttention, chunkwise, forward_alignment
from helpers import far_rows
from helpers.by_pair import by_pair
from helpers.cases import SCORES, case
from helpers.samples import OUTER

pytestmark = pytest.mark.sample

T_Q, T_K = len(far_rows.OFFSETS), 11
FLOATS = {"float32": torch.float32, "float64": torch.float64}


def drawn(*shape: int, dtype: str, seed: int = 0) -> torch.Tensor:
    made = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=made, dtype=torch.float64).to(FLOATS[dtype])


def checked(
    score: Any, tensors: list[torch.Tensor], given: dict[str, Any], named: str = "bias"
) -> None:
    """Check all results of a call with query, key, value and a bias (…, T_q, T_k) of that name."""
    query, key, value = tensors
    options = {"score": score, **given}
    s = scores(query, key, **options)
    lead = s.shape[:-2]
    bias, value = given[named].expand(s.shape), value.expand(*lead, *value.shape[-2:])
    bias, value = (x.detach().clone().requires_grad_() for x in (bias, value))
    options[named] = bias
    upstream = drawn(*lead, s.shape[-2], value.shape[-1], dtype=str(s.dtype)[6:], seed=9)
    plain = attention(query, key, value, **options)
    d_value, d_bias = torch.autograd.grad(plain, [value, bias], upstream)
    whole = attention(query, key, value, **options, return_weights=True, return_lse=True)
    logs = log_weights(query, key, **options)
    (of_logs,) = torch.autograd.grad(logs[..., 0].sum(), bias)  # −p for all keys but the first
    of_logs = torch.cat([whole.weights[..., :1], -of_logs[..., 1:]], -1)
    lse = log_sum_exp(query, key, **options)
    (weights,) = torch.autograd.grad(lse.sum(), bias)
    arrays = [x.detach().numpy() for x in (s, value, upstream)]
    found = {
        "output": plain, "d_value": d_value, "d_bias": d_bias, "log_weights": logs, "lse": lse,
    }  # fmt: skip
    for more in ({"output": whole.output, "weights": whole.weights, "lse": whole.lse}, found):
        far_rows.check(*arrays, **{name: x.detach().numpy() for name, x in more.items()})
    for of in (of_logs, weights):
        far_rows.check(*arrays, weights=of.detach().numpy())


@pytest.mark.parametrize("impl", ["auto", "reference"])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("width", [1, 19])  # the backward keeps scores, or computes them again
@by_pair("score", SCORES)
def test_every_score(score: str, width: int, dtype: str, impl: str) -> None:
    c = case(score, "more_queries", "none")
    to = lambda x: torch.tensor(x, dtype=FLOATS[dtype])  # noqa: E731
    query, key, value = map(to, (c.query, c.key, c.value[..., :width]))
    rows = torch.tensor(far_rows.bias(query.shape[-2], key.shape[-2], dtype))
    built = c.score.build(c.parameters, to)
    # A root or a logarithm rounds a bias that comes before it.
    named = "bias_after" if c.score.kind in OUTER else "bias"
    checked(built, [query, key, value], {named: rows, "impl": impl}, named)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("queries", [1, T_Q])  # a decoder's step has its own code path
def test_more_keys_than_a_tile_holds(queries: int, dtype: str) -> None:
    query, key, value = (drawn(2, n, 8, dtype=dtype, seed=n) for n in (queries, 300, 301))
    for at in range(0, T_Q, queries):
        rows = torch.tensor(far_rows.bias(T_Q, 300, dtype)[at : at + queries])
        score = Additive(None, None, drawn(8, dtype=dtype))
        checked(score, [query, key, value[:, :300]], {"bias": rows})


def test_products_of_keys_that_are_alike() -> None:
    """Equal scores of 4e8, without any bias, give weights of 1/n."""
    query, value = torch.full((1, 2, 4), 1e4), drawn(1, 6, 3, dtype="float32").requires_grad_()
    key = torch.full((1, 6, 4), 1e4).requires_grad_()
    output = attention(query, key, value, score=Dot())
    of_value, of_key = torch.autograd.grad(output.sum(), [value, key])
    torch.testing.assert_close(of_value, torch.full_like(of_value, 2 / 6), rtol=1e-6, atol=0)
    exact = 2e4 * (value - value.mean(1, keepdim=True)).sum(-1, keepdim=True) / 6
    torch.testing.assert_close(of_key, exact.expand(key.shape), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("impl", ["auto", "reference"])
def test_a_sink_as_far_away(impl: str) -> None:
    """A sink at the offset of the scores takes the weight of one key."""
    query, key, value = (drawn(1, n, 8, dtype="float32") for n in (T_Q - 1, T_K, T_K))
    for i, offset in enumerate(far_rows.OFFSETS[:-1]):
        bias = torch.full((1, T_K), offset)
        q = torch.zeros_like(query[:, i : i + 1])
        given = {"bias": bias, "sink": offset, "impl": impl}
        found = attention(q, key, value, return_weights=True, **given)
        exact = torch.full_like(found.weights, 1 / (T_K + 1))
        torch.testing.assert_close(found.weights, exact, rtol=1e-6, atol=0)
        torch.testing.assert_close(found.output, value.sum(1, keepdim=True) / (T_K + 1))
        torch.testing.assert_close(log_weights(q, key, **given), exact.log(), rtol=1e-6, atol=0)


def test_edges_of_a_graph() -> None:
    query, key, value = (drawn(1, n, 4, dtype="float32") for n in (T_Q, T_K, T_K))
    value.requires_grad_()
    col, rowptr = torch.arange(T_K).repeat(T_Q), torch.arange(T_Q + 1) * T_K
    bias = torch.tensor(far_rows.bias(T_Q, T_K, "float32"))
    given = {"score": Additive(None, None, drawn(4, dtype="float32"))}
    whole = {"mask": Edges(rowptr, col), "bias": bias.reshape(1, -1), **given}
    upstream = drawn(1, T_Q, 4, dtype="float32", seed=9)
    output = attention(query, key, value, **whole)
    (d_value,) = torch.autograd.grad(output, value, upstream)
    s = scores(query, key, **whole).reshape(1, T_Q, T_K)
    logs = log_weights(query, key, **whole).reshape(1, T_Q, T_K)
    arrays = (x.detach().numpy() for x in (s, value, upstream))
    found = {"output": output, "d_value": d_value, "log_weights": logs}
    far_rows.check(*arrays, **{name: x.detach().numpy() for name, x in found.items()})


def test_packed_sequences_and_caches() -> None:
    query, key, value = (drawn(n, 4, dtype="float32") for n in (T_Q, T_K, T_K))
    bias = torch.tensor(far_rows.bias(T_Q, T_K, "float32"))
    exact = attention(query, key, value, bias=bias, impl="reference")
    pointers = [0, 0, T_Q], [0, 0, T_K]
    packed = attention(query, key, value, bias=bias, mask=Sequences(*map(torch.tensor, pointers)))
    torch.testing.assert_close(packed, exact)
    cache = make_cache(key[None, :3], value[None, :3], capacity=T_K)
    cache = cache.append(key[None, 3:], value[None, 3:])
    found = cache.attend(query[None], bias=bias, causal=False)
    torch.testing.assert_close(found[0], exact)


def test_a_mask_of_heads_that_is_a_number() -> None:
    """Gradients are those of PyTorch's layer, which computes the matrix of weights."""
    ours, theirs = (
        kind(8, 2, batch_first=True) for kind in (MultiHeadAttention, torch.nn.MultiheadAttention)
    )
    ours.load_state_dict(theirs.state_dict())
    x = drawn(2, 5, 8, dtype="float32")
    mask = torch.zeros(5, 5).index_fill(0, torch.tensor([0, 3]), -1e9)
    for layer in (ours, theirs):
        layer(x, x, x, attn_mask=mask, need_weights=True)[0].square().sum().backward()
    of_theirs = theirs.in_proj_weight.grad.chunk(3)
    for name, expected in zip(("W_q", "W_k", "W_v"), of_theirs, strict=True):
        torch.testing.assert_close(ours.get_parameter(f"{name}.weight").grad, expected)


def test_alignments_of_speech() -> None:
    energies = torch.tensor(far_rows.bias(T_Q, 6, "float32"))
    chunks = chunkwise(torch.full_like(energies, 1 / 6), energies, 3)
    torch.testing.assert_close(chunks, chunks[:1].expand(T_Q, 6))  # as for energies of 0
    torch.testing.assert_close(chunks.sum(-1), torch.ones(T_Q))
    aligned = forward_alignment(energies)
    torch.testing.assert_close(aligned, forward_alignment(0 * energies))
