"""The parts of the benchmark on what models build on a score."""

from __future__ import annotations

from anyscore.lab.bench.comparison import Comparison
from anyscore.lab.bench.graphs import DEGREES, GraphWork
from anyscore.lab.bench.stages import PASSES, Part, Plan, Result, Settings, contestants
from anyscore.lab.bench.work import Shape

GRAPH, EDGES = Shape(4, 20_000, 20_000, 32, 32), 400_000


def _graphs(settings: Settings, results: list[Result]) -> Plan:
    """Compare a layer over the edges of a graph."""
    shape, edges = GRAPH, EDGES
    if settings.quick:
        shape, edges = shape._replace(queries=2_000, keys=2_000), 40_000
    for degrees in DEGREES:
        for passes in PASSES:
            work = GraphWork(
                shape, "gatv2", passes, dtype=settings.dtype, edges=edges, degrees=degrees
            )
            said = f"{edges:,} edges, degrees {degrees}"
            yield [Comparison("graphs", work, contestants(work, settings), said, weighed=True)]


_STEPS = (8, 64), (64, 64), (8, 256)  # problems and width


def _cache(settings: Settings, results: list[Result]) -> Plan:
    """A step of a cache that grows, with the row that comes: at 2,000 tokens, others sliced."""
    for batch, width in _STEPS[:1] if settings.quick else _STEPS:
        shape = Shape(batch, 1, 2000, width, width)
        work = settings.work(shape, task="cache")
        yield [Comparison("cache", work, contestants(work, settings), "a step of a cache")]


MODEL_PARTS = {
    "graphs": Part("a layer over the edges of a graph", _graphs),
    "cache": Part("a decoder's step over a cache that grows, and that of a dot product", _cache),
}
