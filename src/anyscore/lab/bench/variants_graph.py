"""Layers over the edges of a graph: anyscore's, and PyTorch Geometric's."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

from anyscore.lab.bench.rivals import Call, Variant
from anyscore.lab.bench.variants_torch import call_of
from anyscore.lab.bench.work import Work
from anyscore.torch import GATv2Conv

_OPTIONS = {"add_self_loops": False, "bias": False}


def anyscore_(work: Work) -> list[Variant]:
    """List our layer, which sorts the edges in its first call."""
    return [Variant("anyscore.torch.GATv2Conv", partial(_build, GATv2Conv, work, _as_given))]


def eager(work: Work) -> list[Variant]:
    """List PyTorch Geometric's layer, with edges in no order and sorted by target."""
    layer = _theirs()
    return [
        Variant("torch_geometric.nn.GATv2Conv", partial(_build, layer, work, _as_given)),
        Variant("the same, edges sorted by target", partial(_build, layer, work, _sorted)),
    ]


def compiled(work: Work) -> list[Variant]:
    """List the same under torch.compile."""
    layer = _theirs()
    compiled = partial(torch.compile, dynamic=False)
    return [
        Variant(f"torch.compile of it{how}", partial(_build, layer, work, edges, compiled), True)
        for how, edges in (("", _as_given), (", edges sorted by target", _sorted))
    ]


def _theirs() -> Any:
    return importlib.import_module("torch_geometric.nn").GATv2Conv


def _as_given(edges: Tensor) -> Tensor:
    return edges


def _sorted(edges: Tensor) -> Tensor:
    return edges[:, edges[1].argsort(stable=True)]


def _build(
    kind: Any,
    work: Any,
    order: Callable[[Tensor], Tensor],
    change: Callable[[Any], Any] = lambda attend: attend,
) -> Call:
    """Make a call of a layer of the sizes of the work, with the work's parameters."""
    inner, shape = work.inner, work.shape
    layer = kind(inner, shape.width, heads=shape.batch, **_OPTIONS).to(work.upstream.dtype)
    edges, targets = order(work.edge_index), shape.queries

    def attend(nodes: Tensor, W_l: Tensor, W_r: Tensor, att: Tensor) -> Tensor:
        parameters = {"lin_l.weight": W_l, "lin_r.weight": W_r, "att": att}
        x = nodes if targets == shape.keys else (nodes, nodes[:targets])
        output: Tensor = functional_call(layer, parameters, (x, edges))
        return output

    return call_of(change(attend), list(work.inputs.values()), work)
