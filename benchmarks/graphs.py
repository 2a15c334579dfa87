"""Layers over the edges of a graph by PyTorch Geometric."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from anyscore.lab.bench import graphs
from anyscore.lab.bench.graphs import as_given, by_target, layer_call
from anyscore.lab.bench.rivals import Variant
from benchmarks.work import Work


@dataclass(frozen=True)
class GraphWork(graphs.GraphWork, Work):
    """The work of a layer over edges, as a task of the benchmark."""

    task: str = "graph"


def eager(work: GraphWork) -> list[Variant]:
    """List PyTorch Geometric's layer, with edges in no order and sorted by target."""
    layer = _theirs()
    return [
        Variant("torch_geometric.nn.GATv2Conv", partial(layer_call, layer, work, as_given)),
        Variant("the same, edges sorted by target", partial(layer_call, layer, work, by_target)),
    ]


def compiled(work: GraphWork) -> list[Variant]:
    """List the same under torch.compile."""
    layer = _theirs()
    compiled = partial(torch.compile, dynamic=False)
    return [
        Variant(
            f"torch.compile of it{how}", partial(layer_call, layer, work, edges, compiled), True
        )
        for how, edges in (("", as_given), (", edges sorted by target", by_target))
    ]


def _theirs() -> Any:
    return importlib.import_module("torch_geometric.nn").GATv2Conv
