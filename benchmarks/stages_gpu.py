"""The parts of the benchmark on a GPU; the workers of a group live at a time."""

from __future__ import annotations

from anyscore.lab.bench.comparison import Comparison, Contestant
from anyscore.lab.bench.formulas import DOT
from anyscore.lab.bench.work import FORWARD, TRAINING
from benchmarks.rivals import GRAPH, OURS, contestant
from benchmarks.stages import PASSES, Part, Plan, Result, Settings, contestants
from benchmarks.stages_models import graphs
from benchmarks.variants_torch import gpu_memory
from benchmarks.work import EXACT, RANGES, Work

_MANY_KEYS = 65_536  # of a decoder's step, beside those of the shape
PAIRS = {
    "tanh": "additive",
    "leaky_relu": "gatv2",
    "|a − b|": "laplace",
    "(a − b)²": "gaussian",
    "product": DOT,
}
"""A pair's name in tables of kernels → a score with this pair."""
_COPIES = 10  # of all triples in float32, that the formula may need in several processes


def _on_gpu(work: Work, settings: Settings) -> list[Contestant]:
    """Return anyscore in two dtypes, and the rivals that hold no more than the scores."""
    taking_part = [
        c for c in contestants(work, settings) if c.rival.name not in ("eager", "separable")
    ]
    if work.training:
        taking_part = [c for c in taking_part if not c.rival.name.startswith("flex, ")]
    if settings.quick and settings.rivals is None:
        taking_part = [c for c in taking_part if c.rival.name != "compile"]
        if not work.training:
            taking_part.insert(1, contestant("flex", work))
    elif work.dtype != "float32":
        label = f"{OURS.name}, float32"
        taking_part.insert(1, contestant(OURS.name, work.to(dtype="float32"), label))
    return taking_part


def _ranges(work: Work) -> list[Contestant]:
    """Exponents that are small, at the border, clamped, and too large for exponentials."""
    return [
        contestant(EXACT, work.to(range=name), f"{OURS.name}, {RANGES[name][0]}")
        for name in ("half", "normal", "four", "eight")
    ]


def _longer(work: Work) -> list[Contestant]:
    shape = work.shape
    long = work.to(shape=shape._replace(queries=2 * shape.queries, keys=2 * shape.keys))
    return [contestant(OURS.name, long)]


def _forward(settings: Settings, results: list[Result]) -> Plan:
    for shape in settings.shapes:
        work = settings.work(shape)
        near, long = work.to(range="near"), _longer(work)
        exact = contestant(EXACT, near)
        group = [
            Comparison("forward", work, _on_gpu(work, settings)),
            Comparison("ranges", work, _ranges(work), "by the size of the numbers"),
            Comparison("forward 2T", long[0].work, long, "memory at 2T", timed=False),
        ]
        if work.score == "additive":
            both = [exact, contestant("separable", near)]
            said = "numbers within ± 2"
            group.insert(2, Comparison("separable", near, both, said))
        yield group


def _training(settings: Settings, results: list[Result]) -> Plan:
    for shape in settings.shapes:
        work = settings.work(shape, TRAINING)
        long = _longer(work)
        yield [
            Comparison("training", work, _on_gpu(work, settings)),
            Comparison("training ranges", work, _ranges(work), "by the size of the numbers"),
            Comparison("training 2T", long[0].work, long, "memory at 2T", timed=False),
        ]


def _step(settings: Settings, results: list[Result]) -> Plan:
    """A decoder's step, as Python launches it, as a CUDA graph, and over a cache that grows."""
    group = []
    for shape in settings.shapes:
        for keys in dict.fromkeys((shape.keys, _MANY_KEYS * (not settings.quick) or shape.keys)):
            work = settings.work(shape._replace(queries=1, keys=keys))
            for graph in ("", GRAPH):
                some = [
                    contestant(name + graph, work, name)
                    for name in (OURS.name, "eager", "compile", "dot")
                ]
                group.append(Comparison(f"step{graph}", work, some, graph.removeprefix(", ")))
            cached = work.to(task="cache")
            some = [contestant(name, cached) for name in (OURS.name, "dot", "bmm")]
            group.append(Comparison("cache", cached, some, "a cache that grows"))
    yield group


def _kernels(settings: Settings, results: list[Result]) -> Plan:
    """Every pair, with the time of each of its kernels."""
    shape = settings.shapes[0]
    group = []
    for passes in PASSES:
        work = settings.work(shape, passes, score="additive")
        some = [contestant(EXACT, work.to(score=x), label) for label, x in PAIRS.items()]
        group.append(Comparison("kernels", work, some, "pairs"))
    yield group


def _narrow(settings: Settings, results: list[Result]) -> Plan:
    """A width at which FlexAttention may manage the gradients, if it did not before."""
    rows = [e for r in results if r["part"] == "training" for e in r["entrants"]]
    if any(e["name"] == "flex" and e["ms"] for e in rows):
        return
    work = settings.work(settings.shapes[0]._replace(width=16, value_width=16), TRAINING)
    both = [contestant(name, work) for name in (OURS.name, "flex")]
    yield [Comparison("narrow", work, both, "width 16")]


def _small(settings: Settings, results: list[Result]) -> Plan:
    """Return a shape with as many tokens as the formula, broadcast, has memory for."""
    shape = settings.shapes[0]
    tokens = min(shape.queries, 2048)
    while tokens > 64 and 4 * _COPIES * shape.batch * shape.width * tokens**2 > 0.8 * gpu_memory():
        tokens //= 2
    group = []
    for passes in (FORWARD, TRAINING):
        work = settings.work(shape._replace(queries=tokens, keys=tokens), passes)
        some = [contestant(name, work) for name in (OURS.name, "eager", "compile")]
        if work.dtype != "float32":
            whole = work.to(dtype="float32")
            some.insert(2, contestant("eager", whole, "eager, float32"))
        group.append(Comparison("small", work, some, "where the formula fits memory"))
    yield group


GPU_PARTS = {
    "forward": Part("elements a second, and memory", _forward, 125),
    "training": Part("the same with gradients", _training, 120),
    "step": Part("one query, with prepared keys and with a cache", _step, 60),
    "graphs": Part("a layer over the edges of a graph", graphs, 55),
    "kernels": Part("every pair, kernel by kernel", _kernels, 50),
    "small": Part("where the formula, broadcast, fits memory", _small, 35),
    "narrow": Part("where FlexAttention may manage the gradients", _narrow, 25),
}
"""The parts by name, the most wanted first; their shares are less than eight minutes."""
