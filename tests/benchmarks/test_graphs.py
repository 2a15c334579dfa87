"""The benchmark of layers over the edges of a graph."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from anyscore.lab.bench import graphs
from anyscore.lab.bench.graphs import DEGREES, EDGES
from anyscore.lab.bench.timing import Pace
from anyscore.lab.bench.work import FORWARD, TRAINING, Shape
from benchmarks.graphs import GraphWork
from benchmarks.rivals import OURS, find
from benchmarks.run import bench
from benchmarks.stages import Settings
from benchmarks.stages_models import GRAPH
from helpers import machine
from helpers.benchmark_command import prepared

pytestmark = pytest.mark.weekly

SHAPE = Shape(2, 9, 13, 4, 4)
NAMES = OURS.name, "eager", "pyg", "pyg-compile"


def work(passes: str = FORWARD, **fields: Any) -> GraphWork:
    return GraphWork(SHAPE, "gatv2", passes, **{"edges": 70} | fields)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # PyTorch's own
@pytest.mark.parametrize("degrees", DEGREES)
@pytest.mark.parametrize("passes", [FORWARD, TRAINING])
@pytest.mark.parametrize("name", NAMES)
def test_every_layer_is_right(
    name: str, passes: str, degrees: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every layer is right, both if all targets are checked and if some are."""
    if name.startswith("pyg"):
        machine.package("torch_geometric.nn")
    for checked in (3, 64):
        monkeypatch.setattr(graphs, "_CHECKED", checked)
        answer = prepared(name, work(passes, degrees=degrees))
        assert answer["problem"] is None, answer
        assert None not in answer["ways"].values()
        assert answer["error"] < 1e-5


def test_a_layer_of_other_weights_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    right = graphs.GraphWork.truth

    def wrong(self: GraphWork, score: str) -> dict[str, torch.Tensor]:
        return {n: 1.01 * x for n, x in right(self, score).items()}

    monkeypatch.setattr(graphs.GraphWork, "truth", wrong)
    answer = prepared(OURS.name, work(TRAINING))
    assert answer["problem"].startswith("wrong: its output is off by 0.0099")


def test_edges_fall_as_said_and_are_the_same_again() -> None:
    even, steep = (work(edges=4000, degrees=name).edge_index for name in DEGREES)
    assert torch.equal(even, work(edges=4000).edge_index)
    for index, first in ((even, 1 / 9), (steep, (1 / 9) ** (1 / 2.5))):
        assert index.min() == 0
        assert index.amax(1).tolist() == [12, 8]
        assert abs((index[1] == 0).float().mean() - first) < 0.03


def test_layers_over_edges_hold_no_matrix() -> None:
    """A layer over edges is expected to hold tensors of edges, not the scores of all pairs."""
    large = GraphWork(GRAPH, "gatv2", TRAINING, edges=EDGES)
    for name in (OURS.name, "pyg"):
        assert find(name, large).bytes_held(large) < 2 * 2**30


def test_the_part_and_its_bars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.stages_models.GRAPH", SHAPE)
    monkeypatch.setattr("benchmarks.bars.GRAPH", SHAPE)
    monkeypatch.setattr("benchmarks.stages_models.EDGES", 70)
    weights = iter([1.0, 8.0, 2.0, 8.0] * 2)
    monkeypatch.setattr("benchmarks.run.weigh", lambda *_: (next(weights), None))
    pace = Pace(rounds=3, seconds=0.01, turn=1e-3)
    machine.package("torch_geometric.nn")
    settings = Settings((Shape(1, 2, 2, 2, 2),), rivals=("pyg",), parts=("graphs",), pace=pace)
    record = bench(settings, tmp_path)
    assert [(r["degrees"], r["passes"]) for r in record["results"]] == [
        (degrees, passes) for degrees in DEGREES for passes in (FORWARD, TRAINING)
    ]
    ratio = record["results"][0]["entrants"][1]["ratio"]["median"]
    found = {x["name"]: x for x in record["targets"]}
    bar = found["GATv2Conv, even, forward: PyTorch Geometric ÷ ours"]
    assert (bar["value"], bar["met"]) == (ratio, ratio >= 8)
    said = "GATv2Conv, even, {}: PyTorch Geometric ÷ ours, memory"
    assert [found[said.format(p)]["value"] for p in (FORWARD, TRAINING)] == [8, 4]
    assert [found[said.format(p)]["met"] for p in (FORWARD, TRAINING)] == [True, False]
    text = (tmp_path / "bench.md").read_text(encoding="utf-8")
    assert "| 13 nodes, 70 edges, degrees even |" in text
