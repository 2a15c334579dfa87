"""The parts of the benchmark on what models build on a score."""

from __future__ import annotations

from anyscore.lab.bench.comparison import Comparison
from anyscore.lab.bench.formulas import DOT
from anyscore.lab.bench.work import FORWARD, Shape
from benchmarks.graphs import DEGREES, GraphWork
from benchmarks.packed import PackedWork
from benchmarks.speech import LocationWork
from benchmarks.stages import PASSES, Part, Plan, Result, Settings, contestants

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


PACKED = Shape(64, 512, 512, 64, 64)


def _packed(settings: Settings, results: list[Result]) -> Plan:
    """Sequences of a quarter of the longest, on average: packed, and padded."""
    shape = PACKED._replace(batch=8) if settings.quick else PACKED
    for score in (settings.score,) if settings.quick else ("additive", "gaussian", DOT):
        for passes in PASSES:
            work = PackedWork(shape, score, passes, dtype=settings.dtype)
            said = "lengths of a quarter"
            yield [Comparison("packed", work, contestants(work, settings), said)]


LOCATIONS = (  # batch, 1, keys, width of energies, width of keys; filters, kernel
    (Shape(16, 1, 200, 128, 512), 32, 31),  # Tacotron 2
    (Shape(16, 1, 400, 320, 320), 10, 201),  # ESPnet
    (Shape(16, 1, 1000, 512, 512), 10, 201),
)


def _location(settings: Settings, results: list[Result]) -> Plan:
    """A step of a speech model."""
    for shape, filters, kernel in LOCATIONS[:1] if settings.quick else LOCATIONS:
        work = LocationWork(shape, passes=FORWARD, filters=filters, kernel=kernel)
        said = f"{filters} filters of {kernel}"
        yield [Comparison("location", work, contestants(work, settings), said)]


MODEL_PARTS = {
    "graphs": Part("a layer over the edges of a graph", _graphs),
    "packed": Part("sequences of different lengths, and the same padded", _packed),
    "location": Part("a step of location-sensitive attention, and ESPnet's", _location),
    "cache": Part("a decoder's step over a cache that grows, and that of a dot product", _cache),
}
