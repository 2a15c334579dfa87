"""Keys and values may have fewer heads than queries, and each head may have its own parameters."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from anyscore import (
    Additive,
    Concat,
    attention,
    plan,
)
from helpers.samples import NAMES, gradients, leaves, make_score, normal

pytestmark = pytest.mark.sample

B, T_Q, T_K, D, D_V = 2, 3, 7, 5, 11


def test_query_head_h_uses_key_head_h_over_groups() -> None:
    q, k, v = normal(B, 6, T_Q, D), normal(B, 2, T_K, D), normal(B, 2, T_K, D_V)
    heads = [h // 3 for h in range(6)]
    for name in NAMES:
        score = make_score(name)
        found = attention(q, k, v, score=score, valid_lens=[4, 7])
        expected = attention(q, k[:, heads], v[:, heads], score=score, valid_lens=[4, 7])
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-14)


class Largest(TorchDispatchMode):
    """Mode that counts the elements of the largest storage of any operation's result."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for x in out if isinstance(out, tuple | list) else (out,):
            if isinstance(x, torch.Tensor):
                size = x.untyped_storage().nbytes() // x.element_size()
                self.elements = max(self.elements, size)
        return out


@pytest.mark.parametrize("kv_heads", [1, 3])
@pytest.mark.parametrize("masked", ["no", "lengths", "per head"])
@pytest.mark.parametrize("name", ["ScaledDot", "Trilinear", "Additive"])
def test_shared_heads_are_never_expanded(name: str, masked: str, kv_heads: int) -> None:
    heads, keys, wide = 12, 101, 61
    narrow = 2 if name == "Additive" else wide  # the pairs have T_q · T_k · h entries
    score, inputs = leaves(
        make_score(name, d=narrow, h=2),
        normal(B, heads, 2, narrow),
        normal(B, kv_heads, keys, narrow),
        normal(B, kv_heads, keys, wide),
    )
    mask = {
        "no": None,
        "lengths": np.arange(keys) < 53,
        "per head": normal(B, heads, 2, keys) > 0,
    }[masked]
    mask = mask[None] if masked == "lengths" else mask
    with Largest() as largest:
        out = attention(*inputs[:3], score=score, mask=mask)
        gradients((out,), inputs)
    pairs = B * heads * 2 * keys * (2 if name == "Additive" else 1)
    assert largest.elements <= max(B * kv_heads * keys * wide, pairs)
    assert pairs < B * heads * keys * wide


def test_largest_sees_an_expansion() -> None:
    k = torch.zeros(B, 3, 101, 61)
    with Largest() as largest:
        k.repeat_interleave(4, dim=1)
    assert largest.elements == 4 * k.numel()


@pytest.mark.parametrize("kv_heads", [1, 3])
def test_sdpa_does_not_expand_them_either(kv_heads: int, no_core: None) -> None:
    q = torch.tensor(normal(B, 12, 2, 61))
    k, v = (torch.tensor(normal(B, kv_heads, 1009, 61, seed=s)) for s in (0, 1))
    assert plan(q, k, v).route == "sdpa"
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profiler:
        attention(q, k, v)
    taken = sum(max(e.self_cpu_memory_usage, 0) for e in profiler.events())
    assert taken < 12 / kv_heads * k.numel() * k.element_size()


def test_parameters_of_each_head() -> None:
    q, k, v = normal(B, 3, T_Q, D), normal(B, 3, T_K, D), normal(B, 3, T_K, D_V)
    one = [make_score("Additive", seed=s) for s in range(3)]
    assert all(isinstance(s, Additive) for s in one)
    together = Additive(
        **{
            field: np.stack([s.tensors()[field] for s in one])
            for field in ("W_q", "W_k", "w_v", "bias")
        }
    )
    found = attention(q, k, v, score=together)
    for h in range(3):
        expected = attention(q[:, h], k[:, h], v[:, h], score=one[h])
        np.testing.assert_allclose(found[:, h], expected, rtol=1e-12, atol=1e-14)


def test_grouped_heads_with_a_larger_batch_of_values() -> None:
    q, k, v = torch.randn(1, 4, 3, 8), torch.randn(1, 2, 7, 8), torch.randn(2, 2, 7, 5)
    out = attention(q, k, v, return_weights=True, return_lse=True)
    assert out.output.shape == (2, 4, 3, 5)
    assert out.weights.shape == (2, 4, 3, 7)
    assert out.lse.shape == (2, 4, 3)
    for b in range(2):
        one = attention(q, k, v[b : b + 1], return_weights=True, return_lse=True)
        torch.testing.assert_close(out.output[b], one.output[0])
        torch.testing.assert_close(out.weights[b], one.weights[0])
        torch.testing.assert_close(out.lse[b], one.lse[0])


def test_concat_for_fewer_key_heads_is_refused() -> None:
    q, k = torch.randn(1, 4, 3, 5), torch.randn(1, 2, 7, 5)
    score = Concat(torch.randn(4, 8, 10), torch.randn(4, 8))
    with pytest.raises(ValueError, match=r"Concat.W has shape \(4, 8, 10\): its leading"):
        attention(q, k, k, score=score)
