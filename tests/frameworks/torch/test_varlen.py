"""varlen_attention agrees with plain operations, and takes the call of PyTorch's own."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn

from anyscore import Additive, AttentionOutput, Gaussian, Window, attention
from anyscore.torch import varlen_attention

pytestmark = pytest.mark.sample

QUERIES, KEYS, HEADS, WIDTH = [3, 1, 70], [5, 4, 64], 4, 6


def offsets(lengths: list[int]) -> Tensor:
    return torch.tensor([0, *lengths]).cumsum(0).int()


def tokens(lengths: list[int], heads: int, width: int = WIDTH) -> Tensor:
    return torch.randn(sum(lengths), heads, width, dtype=torch.float64, requires_grad=True)


def plain(
    score: str, xs: list[Tensor], window: tuple[int, int], used: list[int] | None = None
) -> tuple[Tensor, Tensor]:
    """Return outputs (T_q, heads, d) and log-sum-exps (heads, T_q) by plain operations."""
    outputs, lses, used = [], [], used or KEYS
    parts = xs[0].split(QUERIES), xs[1].split(KEYS), xs[2].split(KEYS)
    for q, k, v, n in zip(*parts, used, strict=True):
        k, v = (x.repeat_interleave(HEADS // x.shape[1], 1) for x in (k, v))
        q, k, v = (x.transpose(0, 1) for x in (q, k, v))
        s = q @ k.mT / WIDTH**0.5 if score == "dot" else -torch.cdist(q, k).square() / 2
        i, j = torch.arange(s.shape[1])[:, None] + n - s.shape[1], torch.arange(s.shape[2])
        keep = (j < n).expand(s.shape[1:])
        if window[0] >= 0:
            keep = keep & (j >= i - window[0])
        if window[1] >= 0:
            keep = keep & (j <= i + window[1])
        s = s.masked_fill(~keep, -torch.inf)
        outputs.append((s.softmax(-1).nan_to_num() @ v).transpose(0, 1))
        lses.append(s.logsumexp(-1))
    return torch.cat(outputs), torch.cat(lses, 1)


@pytest.mark.parametrize("score", ["dot", "gaussian"])
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("window", [(-1, -1), (-1, 0), (3, 0), (2, 4)])
def test_values_and_gradients(score: str, kv_heads: int, window: tuple[int, int]) -> None:
    torch.manual_seed(0)
    xs = [tokens(QUERIES, HEADS), tokens(KEYS, kv_heads), tokens(KEYS, kv_heads, 3)]
    options: Any = {"window_size": window} | ({"score": Gaussian()} if score == "gaussian" else {})
    found = varlen_attention(*xs, offsets(QUERIES), offsets(KEYS), return_lse=True, **options)
    output, lse = plain(score, xs, window)
    assert isinstance(found, AttentionOutput)
    torch.testing.assert_close(found.output, output)
    torch.testing.assert_close(found.lse, lse)
    wanted = torch.autograd.grad(output.sin().sum(), xs)
    for x, y in zip(torch.autograd.grad(found.output.sin().sum(), xs), wanted, strict=True):
        torch.testing.assert_close(x, y)


@pytest.mark.parametrize("window", [(-1, -1), (-1, 0), (3, 0), (2, 4)])
def test_used_keys_and_weights(window: tuple[int, int]) -> None:
    """A window lines up with the last used key."""
    xs, used = [tokens(QUERIES, HEADS), tokens(KEYS, HEADS), tokens(KEYS, HEADS)], [5, 2, 30]
    options: Any = {"window_size": window, "seqused_k": torch.tensor(used), "return_weights": True}
    found = varlen_attention(*xs, offsets(QUERIES), offsets(KEYS), **options)
    torch.testing.assert_close(found.output, plain("dot", xs, window, used)[0])
    assert found.weights.shape == (HEADS, sum(QUERIES), sum(KEYS))


def test_slots_of_a_cache() -> None:
    """A causal chunk of 2 tokens attends used keys alone: slots of 8 keys hold 3 and 6."""
    q, k, v = torch.randn(4, 2, WIDTH), *torch.randn(2, 16, 2, WIDTH)
    used, at = [3, 6], {"cu_seqlens_q": [0, 2, 4], "cu_seqlens_k": [0, 8, 16]}
    found = varlen_attention(q, k, v, **at, seqused_k=used, window_size=(2, 0))
    for s, n in enumerate(used):
        one = (x[8 * s : 8 * s + n].transpose(0, 1) for x in (k, v))
        query = q[2 * s : 2 * s + 2].transpose(0, 1)
        expected = attention(query, *one, mask=Window(2, 0, "end")).transpose(0, 1)
        torch.testing.assert_close(found[2 * s : 2 * s + 2], expected)


def test_names_are_those_of_torch() -> None:
    ours, theirs = (inspect.signature(f).parameters for f in (varlen_attention, varlen_attn))
    assert {"query", "key", "value", "window_size", "seqused_k"} <= set(ours) & set(theirs)
    assert ours["window_size"].default == theirs["window_size"].default


def test_mistakes() -> None:
    x = torch.ones(5, 2, 3)
    with pytest.raises(TypeError, match="query is a list, expected a PyTorch tensor"):
        varlen_attention(x.tolist(), x, x, [0, 5])
    with pytest.raises(ValueError, match=r"key has shape \(5, 3\), expected \(tokens, heads, wid"):
        varlen_attention(x, x[:, 0], x, [0, 5])
    with pytest.raises(ValueError, match="cu_seqlens_q must never fall"):
        varlen_attention(x, x, x, [0, 3, 2, 5])
    with pytest.raises(TypeError, match="window_size must be two integers"):
        varlen_attention(x, x, x, [0, 5], window_size=3)
    with pytest.raises(ValueError, match="left must be ≥ 0, got -2"):
        varlen_attention(x, x, x, [0, 5], window_size=(-2, 0))
    with pytest.raises(TypeError, match=r"takes no scale: pass score=ScaledDot\(scale="):
        varlen_attention(x, x, x, [0, 5], scale=1.0)
    for longest in ((5, 5), ()):
        with pytest.raises(TypeError, match=r"takes no max_q: leave out max_q and max_k"):
            varlen_attention(x, x, x, [0, 5], [0, 5], *longest, **{} if longest else {"max_q": 5})
    for used, error in (([1, 2], ValueError), ([0.5], TypeError)):
        with pytest.raises(error, match=r"seqused_k (has shape|is float64)"):
            varlen_attention(x, x, x, [0, 5], seqused_k=used, window_size=(-1, 0))
    w = torch.ones(2, 3)
    assert varlen_attention(x, x, x, [0, 5], score=Additive(w, w, w[:, 0])).shape == (5, 2, 3)
