"""The parts of the benchmark: which comparisons each makes, one group after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from anyscore.lab.bench.comparison import Comparison, Contestant
from anyscore.lab.bench.formulas import DOT, FORMULAS
from anyscore.lab.bench.timing import Pace
from anyscore.lab.bench.work import FORWARD, TRAINING, Shape
from benchmarks.hosts import LIMIT
from benchmarks.rivals import IN_FRAMEWORKS, ON_GPU, OURS, RIVALS, Rival, contestant
from benchmarks.tasks import TASKS
from benchmarks.work import RANGES, Work

PASSES = FORWARD, TRAINING
_TOO_SLOW = 30.0  # seconds; a rival that would take longer for one call is left out of the growth

Result = dict[str, Any]
Plan = Iterator[list[Comparison] | str]


@dataclass(frozen=True)
class Settings:
    """The choices of a user: parts, shapes, rivals, time.

    rivals: names; None is all installed rivals that are quick to set up.
    threads: of PyTorch and of every other library.
    lengths: T_q = T_k of the growth part.
    framework: compare calls of this framework only.
    minutes: for everything; None is no limit. limit: see `comparison.prepare`.
    """

    shapes: tuple[Shape, ...]
    score: str = "additive"
    rivals: tuple[str, ...] | None = None
    threads: int = 1
    dtype: str = "float32"
    parts: tuple[str, ...] = ("speed",)
    lengths: tuple[int, ...] = (256, 512, 1024, 2048, 4096, 8192, 16384)
    width: int = 64
    pace: Pace = field(default_factory=Pace)
    device: str = "cpu"
    framework: str | None = None
    minutes: float | None = None
    limit: float = LIMIT
    quick: bool = False

    def quicker(self) -> Settings:
        """Return settings of few rounds and short lengths, without rivals that compile slowly.
        Their figures are an impression, not a result."""
        pace = Pace(rounds=7, seconds=0.5)
        if self.device == "cuda":
            pace = replace(self.pace, rounds=5)
        return replace(self, quick=True, lengths=(256, 1024), pace=pace)

    def work(self, shape: Shape | None = None, passes: str = FORWARD, **others: Any) -> Work:
        """Make work with the settings' score, dtype and device; by default at the first shape."""
        common = {"score": self.score, "dtype": self.dtype, "device": self.device}
        return Work(shape or self.shapes[0], passes=passes, **common | others)


class Part(NamedTuple):
    """One part of a benchmark: its title, and the comparisons that it makes.

    plan: (settings, results until now) → an iterator of groups of comparisons, each prepared
        together, or a text with the reason for no measurement. A group is measured before the next
        one is asked for.
    share: seconds of the eight minutes on a GPU; other limits are shared in the same proportions.
        None: all the time that is left.
    """

    shows: str
    plan: Callable[[Settings, list[Result]], Plan]
    share: float | None = None


def known_rivals(device: str, framework: str | None) -> dict[str, Rival]:
    """Return the rivals that --rivals can name."""
    if framework is not None:
        return {name: x for name, x in IN_FRAMEWORKS[framework].items() if name != OURS.name}
    known = RIVALS if device == "cpu" else ON_GPU
    return {name: rival for name, rival in known.items() if name != OURS.name}


def chosen(settings: Settings, score: str, task: str = "attention") -> list[Rival]:
    """Return the rivals that take part: the named ones, or else the installed ones."""
    rivals = known_rivals(settings.device, settings.framework).values()
    able = [rival for rival in rivals if score in rival.scores and task in rival.tasks]
    if settings.rivals is not None:
        return [rival for rival in able if rival.name in settings.rivals]
    return [rival for rival in able if rival.installed and (rival.quick or not settings.quick)]


def contestants(work: Work, settings: Settings) -> list[Contestant]:
    """List who takes part: ours first, then the rivals that were chosen."""
    taking_part = [contestant(OURS.name, work)]
    for rival in chosen(settings, work.score, work.task):
        taking_part.append(contestant(rival.name, work))
        if settings.rivals is None and work.shape.width > (rival.widest or work.shape.width):
            taking_part[-1].problem = "compiles for minutes at this width: ask for it with --rivals"
    return taking_part


def _speed(settings: Settings, results: list[Result]) -> Plan:
    for shape in settings.shapes:
        for passes in PASSES:
            work = settings.work(shape, passes)
            yield [Comparison("speed", work, contestants(work, settings))]


def _memory(settings: Settings, results: list[Result]) -> Plan:
    """Compare memory at the largest shape."""
    shape = max(settings.shapes, key=lambda s: s.triples)
    for passes in PASSES:
        work = settings.work(shape, passes)
        weighed = Comparison("memory", work, contestants(work, settings), weighed=True)
        weighed.timed = False
        yield [weighed]


def _growth(settings: Settings, results: list[Result]) -> Plan:
    """Compare time and memory of T queries and T keys; rivals that become too slow drop out."""
    for passes in PASSES:
        last: dict[str, float] = {}  # seconds for each query and key, when last measured
        for length in settings.lengths:
            shape = Shape(1, length, length, settings.width, settings.width)
            work = settings.work(shape, passes)
            # FlexAttention compiles for half a minute at each length.
            some = [c for c in contestants(work, settings) if c.rival.name != "flex"]
            for one in some:
                expected = last.get(one.label, 0) * length**2
                if expected > _TOO_SLOW:
                    one.problem = f"would take about {expected:.0f} s a call"
            yield [Comparison("growth", work, some, weighed=True)]
            for entry in results[-1]["entrants"]:
                if entry["ms"]:
                    last[entry["name"]] = entry["ms"] / 1000 / length**2


def _range(settings: Settings, results: list[Result]) -> Plan:
    """anyscore on other inputs against itself on normal ones."""
    for passes in PASSES:
        work = settings.work(passes=passes, score="additive")
        some = [
            contestant(OURS.name, work.to(range=name), RANGES[name][0])
            for name in ("normal", "wide", "few")
        ]
        yield [Comparison("range", work, some)]


def _pairs(settings: Settings, results: list[Result]) -> Plan:
    """Every score against its own rivals, and against what additive costs."""
    additive = settings.work(score="additive")
    for score in FORMULAS:
        if score != settings.score:
            work = settings.work(score=score)
            some = contestants(work, settings)
            if score != "additive":
                some.insert(1, contestant(OURS.name, additive, "anyscore, additive"))
            yield [Comparison("pairs", work, some)]


SMALL, LARGE = Shape(1, 1, 10, 8, 4), Shape(4, 512, 512, 128, 128)


def _dot(settings: Settings, results: list[Result]) -> Plan:
    """Compare a dot product by everybody with what other scores take in its place."""
    for shape in settings.shapes if settings.quick else (*settings.shapes, SMALL):
        for passes in PASSES:
            work = settings.work(shape, passes, score=DOT)
            first, *others = contestants(work, settings)
            ours = [
                contestant(OURS.name, work.to(score=score), f"anyscore, {score}")
                for score in ("gatv2", "laplace", "gaussian", "additive")
            ]
            yield [Comparison("dot", work, [first, *ours, *others])]


ALIGNER = Shape(16, 800, 200, 80, 80)


def _beyond(settings: Settings, results: list[Result]) -> Plan:
    """Compare what is computed of scores besides attention, most of it beside attention itself."""
    aligner, shape = ALIGNER, settings.shapes[0]
    if settings.quick:
        aligner = aligner._replace(batch=1)
    for passes in PASSES:
        work = settings.work(aligner, passes, score="gaussian", task="aligner")
        said = "aligner: log-weights and a prior"
        yield [Comparison("beyond", work, contestants(work, settings), said, weighed=True)]
    for task in TASKS:
        if task in ("attention", "aligner", "cache"):
            continue
        score = "gaussian" if task == "log-sum-exp" else "additive"
        work = settings.work(shape, TRAINING, score=score, task=task)
        some = contestants(work, settings)
        plain = contestant(OURS.name, work.to(task="attention"), "anyscore, attention")
        some.insert(1, plain)
        yield [Comparison("beyond", work, some, task)]


def _isa(settings: Settings, results: list[Result]) -> Plan:
    """The kernel confined to each instruction set that it knows and this machine has."""
    from benchmarks.variants_torch import core

    known: list[str] = core().isas() if core() else []
    if len(known) < 2:
        yield "there is one instruction set" if known else "the C++ core is not there"
    for passes in PASSES if len(known) > 1 else ():
        work = settings.work(passes=passes)
        some = [contestant(f"{OURS.name} ({isa})", work, isa) for isa in known]
        try:
            yield [Comparison("isa", work, some)]
        finally:
            core().use(known[0])


_CALLS: dict[str, list[tuple[Shape, str, str, bool]]] = {
    # shape, passes, how the framework calls, whether queries and keys come projected
    "torch": [(shape, passes, "eager", False) for shape in (SMALL, LARGE) for passes in PASSES],
    "mxnet": [(shape, passes, "eager", False) for shape in (SMALL, LARGE) for passes in PASSES],
    "jax": [
        (SMALL, FORWARD, "eager", False),
        *((shape, p, "compiled", False) for shape in (SMALL, LARGE) for p in PASSES),
    ],
    "tensorflow": [
        (SMALL, FORWARD, "eager", False),
        (SMALL, FORWARD, "compiled", False),
        (LARGE, FORWARD, "compiled", True),  # Keras's layer projects nothing
        (LARGE, TRAINING, "compiled", True),
    ],
}


def _framework(settings: Settings, results: list[Result]) -> Plan:
    """Compare a small call, mostly overhead, and large ones; with projections and lengths."""
    assert settings.framework is not None
    for size, passes, call, projected in _CALLS[settings.framework]:
        for shape in settings.shapes if size == LARGE else (SMALL,):
            work = settings.work(
                shape,
                passes,
                framework=settings.framework,
                call=call,
                projected=projected,
                lengths=True,
            )
            title = f"{settings.framework}, {call}"
            yield [Comparison("framework", work, contestants(work, settings), title)]


PARTS = {
    "speed": Part("each one's time ÷ that of anyscore", _speed),
    "memory": Part("what the process grows by, at the largest size", _memory),
    "growth": Part("time and memory as T grows", _growth),
    "range": Part("what inputs of extreme magnitude cost", _range),
    "dot": Part("a dot product by everybody, and other scores in its place", _dot),
    "pairs": Part("the other scores, and what the additive one takes in their place", _pairs),
    "beyond": Part("what is computed of scores besides attention", _beyond),
    "isa": Part("what older instruction sets cost", _isa),
}
FRAMEWORK_PARTS = {
    "framework": Part("what its user would write today ÷ anyscore", _framework),
}


def parts_of(device: str, framework: str | None) -> dict[str, Part]:
    """The parts that there are, the usual ones, for a device or a framework."""
    if framework is not None:
        return FRAMEWORK_PARTS
    if device == "cpu":
        from benchmarks.stages_models import MODEL_PARTS

        return {**PARTS, **MODEL_PARTS}
    from benchmarks.stages_gpu import GPU_PARTS

    return GPU_PARTS
