"""The parts of the benchmark on what models build on a score."""

from __future__ import annotations

from anyscore.lab.bench.comparison import Comparison
from anyscore.lab.bench.formulas import DOT
from anyscore.lab.bench.graphs import DEGREES, EDGES, random_graph
from anyscore.lab.bench.work import FORWARD, Shape
from benchmarks.graphs import GraphWork
from benchmarks.packed import PackedWork
from benchmarks.speech import LocationWork
from benchmarks.stages import PASSES, Part, Plan, Result, Settings, contestants

GRAPH = random_graph(EDGES)


def graphs(settings: Settings, results: list[Result]) -> Plan:
    """Compare a layer over the edges of a graph; in float32 on a GPU, as such layers are trained.

    On a GPU all are prepared together, and on a CPU each has its memory measured.
    """
    gpu = settings.device == "cuda"
    shape, edges = GRAPH, EDGES
    if settings.quick:
        edges = EDGES // 10
        shape = random_graph(edges)
    dtype = "float32" if gpu else settings.dtype
    some = []
    for degrees in DEGREES:
        for passes in PASSES:
            work = GraphWork(
                shape, "gatv2", passes, dtype, settings.device, edges=edges, degrees=degrees
            )
            taking_part, said = contestants(work, settings), f"degrees {degrees}"
            some.append(Comparison("graphs", work, taking_part, said, weighed=not gpu))
    yield from [some] if gpu else [[one] for one in some]


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
    "graphs": Part("a layer over the edges of a graph", graphs),
    "packed": Part("sequences of different lengths, and the same padded", _packed),
    "location": Part("a step of location-sensitive attention, and ESPnet's", _location),
    "cache": Part("a decoder's step over a cache that grows, and that of a dot product", _cache),
}
