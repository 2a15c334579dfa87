"""The parts of the benchmark on a GPU; the workers of a group live at a time."""

from __future__ import annotations

from anyscore.lab.bench.comparison import Comparison, Contestant
from anyscore.lab.bench.rivals import GRAPH, OURS
from anyscore.lab.bench.stages import Part, Plan, Result, Settings, contestants
from anyscore.lab.bench.variants_torch import gpu_memory
from anyscore.lab.bench.work import FORWARD, RANGES, TRAINING, Work

_COPIES = 10  # of all triples in float32, that the formula may need in several processes


def _on_gpu(work: Work, settings: Settings) -> list[Contestant]:
    """Ours, in two dtypes, and those that hold no more than the scores."""
    found = [c for c in contestants(work, settings) if c.rival not in ("eager", "separable")]
    if work.training:
        found = [c for c in found if not c.rival.startswith("flex, ")]
    if settings.quick and settings.rivals is None:
        found = [c for c in found if c.rival != "compile"]
        if not work.training:
            found.insert(1, Contestant("flex", "flex", work))
    elif work.dtype != "float32":
        label = f"{OURS.name}, float32"
        found.insert(1, Contestant(label, OURS.name, work.to(dtype="float32"), label))
    return found


def _ranges(work: Work) -> list[Contestant]:
    """Exponents that are small, at the border, clamped, and too large for exponentials."""
    return [
        Contestant(f"{OURS.name}, {RANGES[name][0]}", OURS.name, work.to(range=name), OURS.name)
        for name in ("half", "normal", "four", "eight")
    ]


def _longer(work: Work) -> list[Contestant]:
    shape = work.shape
    long = work.to(shape=shape._replace(queries=2 * shape.queries, keys=2 * shape.keys))
    return [Contestant(OURS.name, OURS.name, long)]


def _forward(settings: Settings, results: list[Result]) -> Plan:
    for shape in settings.shapes:
        work = settings.work(shape)
        near, long = work.to(range="near"), _longer(work)
        exact = Contestant("anyscore, exact", OURS.name, near, OURS.name)
        group = [
            Comparison("forward", work, _on_gpu(work, settings)),
            Comparison("ranges", work, _ranges(work), "small and large numbers"),
            Comparison("forward 2T", long[0].work, long, "memory at 2T", timed=False),
        ]
        if work.score == "additive":
            both = [exact, Contestant("separable", "separable", near)]
            said = "within ± 2: exact, and as a product of rank 8"
            group.insert(2, Comparison("separable", near, both, said))
        yield group


def _training(settings: Settings, results: list[Result]) -> Plan:
    for shape in settings.shapes:
        work = settings.work(shape, TRAINING)
        long = _longer(work)
        yield [
            Comparison("training", work, _on_gpu(work, settings)),
            Comparison("training ranges", work, _ranges(work), "small and large numbers"),
            Comparison("training 2T", long[0].work, long, "memory at 2T", timed=False),
        ]


def _step(settings: Settings, results: list[Result]) -> Plan:
    """A decoder's step, as Python launches it and as a CUDA graph."""
    for shape in settings.shapes:
        work = settings.work(shape._replace(queries=1))
        yield [
            Comparison(
                f"step{graph}",
                work,
                [
                    Contestant(name, name + graph, work, name)
                    for name in (OURS.name, "eager", "compile", "dot")
                ],
                f"a decoder's step{graph}",
            )
            for graph in ("", GRAPH)
        ]


def _narrow(settings: Settings, results: list[Result]) -> Plan:
    """A width at which FlexAttention may manage the gradients, if it did not before."""
    rows = [e for r in results if r["part"] == "training" for e in r["entrants"]]
    if any(e["name"] == "flex" and e["ms"] for e in rows):
        return
    work = settings.work(settings.shapes[0]._replace(width=16, value_width=16), TRAINING)
    both = [Contestant(name, name, work) for name in (OURS.name, "flex")]
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
        some = [Contestant(name, name, work) for name in (OURS.name, "eager", "compile")]
        if work.dtype != "float32":
            whole = work.to(dtype="float32")
            some.insert(2, Contestant("eager, float32", "eager", whole, "eager"))
        group.append(Comparison("small", work, some, "where the formula fits memory"))
    yield group


GPU_PARTS = {
    "forward": Part("elements a second, and memory", _forward),
    "training": Part("the same with gradients", _training),
    "step": Part("one query, with prepared keys", _step),
    "narrow": Part("where FlexAttention may manage the gradients", _narrow),
    "small": Part("where the formula, broadcast, fits memory", _small),
}
