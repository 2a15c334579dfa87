"""Calls of PyTorch's functions and layers leave nothing behind; see `helpers.leaks`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.attention.flex_attention import create_block_mask

import anyscore
from anyscore.torch import Attention, GATv2Conv, flex_attention
from anyscore.torch.varlen import varlen_attention
from helpers.leaks import LEAK, Drawn, Entry, Watched, resident_growth, run, traced_growth


def _tokens(of: Drawn) -> list[Any]:
    return [x[:, None] for x in of.tokens()]


def _score_mods(of: Drawn) -> Watched:
    q, k, v = _tokens(of)
    slopes = of.make([0.1 + of.i])

    def score_mod(score: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return score * 2 + slopes[h] * (i - j)

    def mask_mod(b: Any, h: Any, i: Any, j: Any) -> Any:
        return j <= i + of.i

    flex_attention(q, k, v, score_mod=score_mod, block_mask=mask_mod)
    return [q, k, v, slopes, score_mod, mask_mod]


def _block_masks(of: Drawn) -> Watched:
    q, k, v = _tokens(of)
    held: list[Any] = []

    def mask_mod(b: Any, h: Any, i: Any, j: Any) -> Any:
        return (j <= i) | (len(held) > 2)  # a mask_mod may know its mask

    block_mask = create_block_mask(mask_mod, 1, 1, q.shape[-2], k.shape[-2], device="cpu")
    held.append(block_mask)
    flex_attention(q, k, v, block_mask=block_mask)
    return [q, k, v, mask_mod, block_mask]


def _varlen(of: Drawn) -> Watched:
    x = of.tokens()[1][0][:, None]
    offsets = of.make([0, of.i % (len(x) + 1), len(x)])
    score = anyscore.Gaussian(1.0 + of.i)
    varlen_attention(x, x, x, offsets, window_size=(of.i, 0), score=score)
    return [x, offsets, score]


def _new_layers(of: Drawn) -> Watched:
    q, k, v = of.tokens()
    layer = Attention("additive", hidden=4, dropout=0.1)
    for _ in range(3):
        layer(q, k, v, valid_lens=1 + of.i % 5).sum().backward()
    return [q, k, v, layer, layer.get_submodule("w_v").weight, layer.attention_weights]


_LAYER = Attention("gaussian", d_q=4, d_k=4)
"""A layer of many calls. It holds the last, for its weights."""


def _one_layer(of: Drawn) -> Watched:
    q, k, v = (
        of.array(2, n, 4).requires_grad_() for n in (1 + of.i % 89, 1 + of.i % 97, 1 + of.i % 97)
    )
    mask = anyscore.Window(of.i, 0, "end")
    for _ in range(3):
        _LAYER(q, k, v, mask=mask).sum().backward()
    _LAYER(*[of.array(2, 3, 4)] * 3)
    return [q, k, v, mask]


def _gradients(of: Drawn) -> Watched:
    q, k, v = (x.requires_grad_() for x in of.tokens())
    bias = of.array(q.shape[-2], k.shape[-2]).requires_grad_()
    sink = of.array().requires_grad_()
    anyscore.attention(q, k, v, bias=bias, sink=sink, softcap=1.0 + of.i).sum().backward()
    return [q, k, v, bias, sink]


def _nodes(of: Drawn) -> Watched:
    layer, nodes = _CONVOLUTION, 2 + of.i % 97
    x, index = of.array(nodes, 4), torch.tensor([[0, 1], [1, 0]])
    for more in (0, 1):  # of one edge_index
        layer(of.array(nodes + more, 4), index)
    return [x, index]


_CONVOLUTION = GATv2Conv(4, 3)


def _ranks(of: Drawn) -> Watched:
    x = of.tokens()[1]
    group = dist.group.WORLD
    layout = anyscore.Zigzag(group) if of.i % 2 else anyscore.Uneven(group, [x.shape[-2]])
    one = layout.shard(x)
    anyscore.attention(one, one, one, across=layout, mask=anyscore.Causal())
    return [x, one, layout]


ENTRIES: dict[str, Entry] = {
    "score_mods": _score_mods, "block masks": _block_masks, "varlen": _varlen,
    "new layers": _new_layers, "one layer": _one_layer, "gradients": _gradients, "nodes": _nodes,
    "ranks": _ranks,
}  # fmt: skip


@pytest.fixture(autouse=True)
def group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def calls(count: int) -> list[Drawn]:
    return [Drawn(i, torch.tensor) for i in range(count)]


@pytest.mark.parametrize("entry", ENTRIES)
def test_objects_of_the_caller_die(entry: str) -> None:
    run({entry: ENTRIES[entry]}, calls(20), watch=True)


@pytest.mark.weekly
def test_python_keeps_nothing() -> None:
    assert traced_growth(ENTRIES, calls(200)) < LEAK


@pytest.mark.slow
@pytest.mark.weekly
@pytest.mark.skipif(sys.platform != "linux", reason="the memory of a process is read from /proc")
def test_twenty_thousand_calls() -> None:
    """Other sizes, masks, numbers and functions in each call: a leak of 1 KiB a call would show."""
    assert resident_growth(ENTRIES, calls(2 * 20_000 // len(ENTRIES))) < LEAK
