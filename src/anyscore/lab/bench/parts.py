"""The parts of the benchmark: which races are run, and what becomes of them."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

from anyscore.lab.bench.memory import available_bytes, peak_growth
from anyscore.lab.bench.race import Entrant, Pace, race, results
from anyscore.lab.bench.rival import Call, Rival, Way
from anyscore.lab.bench.rivals import OURS, RIVALS
from anyscore.lab.bench.work import FORMULAS, FORWARD, RANGES, TRAINING, Shape, Work

_GROWTH_LIMIT = 30.0  # seconds; a rival that would take longer for one call is left out from there


@dataclass(frozen=True)
class Settings:
    """What to measure.

    rivals: names; None is all that are installed and quick to set up.
    threads: of PyTorch, and of everybody else.
    lengths: T_q = T_k of the growth part.
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

    def quicker(self) -> Settings:
        """The same with few rounds and short lengths, and without who compiles for half a minute:
        an impression, not a result."""
        rivals = self.rivals or tuple(
            r.name for r in chosen(self, self.score) if r.installed and not r.widest
        )
        pace = Pace(rounds=7, seconds=0.5)
        return replace(self, rivals=rivals, lengths=(256, 1024), pace=pace)


class Watcher:
    """Is told how a benchmark goes; this one does nothing with it."""

    def begins(self, record: dict[str, Any]) -> None:
        """The machine and the settings are known."""

    def part_begins(self, name: str) -> None:
        """A part begins."""

    def busy(self, text: str) -> None:
        """What is going on just now."""

    def note(self, text: str) -> None:
        """Something could not be measured, and why."""

    def measured(self, result: dict[str, Any]) -> None:
        """A race or a measurement of memory is done."""

    def interrupted(self) -> None:
        """Ctrl-C was seen; what was measured is being written."""


def _race(
    found: list[dict[str, Any]],
    about: dict[str, Any],
    entrants: Sequence[Entrant],
    pace: Pace,
    watcher: Watcher,
) -> dict[str, Any]:
    """A race, written to `found` even if it is cut short."""
    result = about | {"entrants": []}
    found.append(result)
    try:
        race(entrants, pace, watcher.busy)
    finally:
        result["entrants"] = results(entrants)
    return result


def chosen(settings: Settings, score: str) -> list[Rival]:
    """The rivals that take part: those that are installed, or asked for by name."""
    rivals = [rival for rival in RIVALS.values() if score in rival.scores]
    if settings.rivals is not None:
        return [rival for rival in rivals if rival.name in settings.rivals]
    return [rival for rival in rivals if rival.installed]


def _entrants(work: Work, settings: Settings) -> list[Entrant]:
    entrants = [Entrant(OURS.name, OURS, work)]
    for rival in chosen(settings, work.score):
        entrants.append(Entrant(rival.name, rival, work))
        if settings.rivals is None and work.shape.width > (rival.widest or work.shape.width):
            entrants[-1].problem = "compiles for minutes at this width: ask for it with --rivals"
    return entrants


def _about(part: str, work: Work) -> dict[str, Any]:
    return {"part": part, **asdict(work), "prepared": work.prepared}


def _speed(
    settings: Settings, found: list[dict[str, Any]], watcher: Watcher
) -> Iterator[dict[str, Any]]:
    for shape in settings.shapes:
        for passes in (FORWARD, TRAINING):
            work = Work(shape, settings.score, passes, dtype=settings.dtype)
            entrants = _entrants(work, settings)
            yield _race(found, _about("speed", work), entrants, settings.pace, watcher)


def _memory(
    settings: Settings, found: list[dict[str, Any]], watcher: Watcher
) -> Iterator[dict[str, Any]]:
    """Of the largest shape."""
    shape = max(settings.shapes, key=lambda s: s.triples)
    for passes in (FORWARD, TRAINING):
        work = Work(shape, settings.score, passes, dtype=settings.dtype)
        result = _about("memory", work) | {"entrants": []}
        found.append(result)
        for entrant in _entrants(work, settings):
            result["entrants"].append(_memory_of(entrant, settings, found, watcher))
        yield result


def _memory_of(
    entrant: Entrant, settings: Settings, found: list[dict[str, Any]], watcher: Watcher
) -> dict[str, Any]:
    """The memory of the way that was fastest when this was timed, else of the first."""
    rival, work = entrant.rival, entrant.work
    entry: dict[str, Any] = {"name": rival.name, "how": _how(rival, work, found), "mib": None}
    if entrant.problem is not None:
        return entry | {"problem": entrant.problem}
    if rival.bytes_held(work) > 0.8 * available_bytes():
        gib = rival.bytes_held(work) / 2**30
        return entry | {"problem": f"would need about {gib:.0f} GiB"}
    watcher.busy(f"{rival.name}: memory")
    return entry | peak_growth(rival.name, entry["how"], work, settings.threads)


def _how(rival: Rival, work: Work, found: list[dict[str, Any]]) -> str:
    for result in found:
        about = result["shape"], result["passes"], result["score"]
        if about == (work.shape, work.passes, work.score):
            for entry in result["entrants"]:
                if entry["name"] == rival.name and entry["how"]:
                    return str(entry["how"])
    return ""


def _growth(
    settings: Settings, found: list[dict[str, Any]], watcher: Watcher
) -> Iterator[dict[str, Any]]:
    """Time and memory of T queries and T keys; who becomes too slow drops out."""
    for passes in (FORWARD, TRAINING):
        last: dict[str, float] = {}  # ms for each query and key, when last measured
        for length in settings.lengths:
            shape = Shape(1, length, length, settings.width, settings.width)
            work = Work(shape, settings.score, passes, dtype=settings.dtype)
            # Not who compiles for half a minute at each length.
            entrants = [e for e in _entrants(work, settings) if not e.rival.widest]
            for entrant in entrants:
                expected = last.get(entrant.label, 0) * length**2 / 1000
                if expected > _GROWTH_LIMIT:
                    entrant.fails(f"would take about {expected:.0f} s a call")
            about = _about("growth", work)
            result = _race(found, about, entrants, settings.pace, watcher)
            for entrant, entry in zip(entrants, result["entrants"], strict=True):
                if entry["ms"]:
                    last[entrant.label] = entry["ms"] / length**2
                if entry["problem"] is None:
                    memory = _memory_of(entrant, settings, found, watcher)
                    entry["mib"] = memory["mib"]
            yield result


def _range(
    settings: Settings, found: list[dict[str, Any]], watcher: Watcher
) -> Iterator[dict[str, Any]]:
    """anyscore on other inputs against itself on normal ones."""
    for passes in (FORWARD, TRAINING):
        shape = settings.shapes[0]
        works = [Work(shape, "additive", passes, name, settings.dtype) for name in RANGES]
        entrants = [Entrant(RANGES[work.range], OURS, work) for work in works]
        yield _race(found, _about("range", works[0]), entrants, settings.pace, watcher)


def _pairs(
    settings: Settings, found: list[dict[str, Any]], watcher: Watcher
) -> Iterator[dict[str, Any]]:
    """Every score against its own rivals, and against what additive costs."""
    shape = settings.shapes[0]
    additive = Work(shape, "additive", dtype=settings.dtype)
    for score in FORMULAS:
        if score != settings.score:
            work = Work(shape, score, dtype=settings.dtype)
            entrants = _entrants(work, settings)
            if score != "additive":
                entrants.insert(1, Entrant("anyscore, additive", OURS, additive))
            yield _race(found, _about("pairs", work), entrants, settings.pace, watcher)


def _isa(
    settings: Settings, found: list[dict[str, Any]], watcher: Watcher
) -> Iterator[dict[str, Any]]:
    """The kernel confined to each instruction set that it knows and this machine has."""
    core = _core()
    known: list[str] = core.isas() if core else []
    if len(known) < 2:
        watcher.note("there is one instruction set" if known else "the C++ core is not there")
    for passes in (FORWARD, TRAINING) if len(known) > 1 else ():
        work = Work(settings.shapes[0], settings.score, passes, dtype=settings.dtype)
        entrants = [Entrant(name, _confined(name), work) for name in known]
        try:
            yield _race(found, _about("isa", work), entrants, settings.pace, watcher)
        finally:
            core.use(known[0])


def _core() -> Any:
    try:
        return importlib.import_module("anyscore._core")
    except ImportError:
        return None


def _confined(isa: str) -> Rival:
    """anyscore with one instruction set."""

    def build(way: Way) -> Call:
        core = _core()
        core.use(isa)
        call = way.build()

        def confined() -> Sequence[Any]:
            core.use(isa)
            return call()

        return confined

    def ways(work: Work) -> list[Way]:
        return [Way(f"{way.how}, {isa}", partial(build, way)) for way in OURS.ways(work)]

    return Rival(isa, ways)


# What each part shows, and what measures it.
PARTS = {
    "speed": ("each one's time ÷ that of anyscore", _speed),
    "memory": ("what the process grows by, at the largest size", _memory),
    "growth": ("time and memory as T grows", _growth),
    "range": ("what inputs of extreme magnitude cost", _range),
    "pairs": ("the other scores, and what the additive one takes in their place", _pairs),
    "isa": ("what older instruction sets cost", _isa),
}
