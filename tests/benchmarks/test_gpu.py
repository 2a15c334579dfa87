"""`python -m benchmarks --device cuda`: every step that needs no GPU."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from anyscore import Additive, attention
from anyscore.lab.bench.comparison import Comparison, Contestant, result
from anyscore.lab.bench.runner import check
from anyscore.lab.bench.timing import Deadline, Pace
from anyscore.lab.bench.work import TRAINING, Shape
from anyscore.lab.cli.bench import GPU_MINUTES
from benchmarks import gpu_limits, run, tables
from benchmarks.gpu_limits import Chip, Cost
from benchmarks.hosts import Hosts, measure, prepare
from benchmarks.rivals import GRAPH, ON_GPU, Rival, Variant, find
from benchmarks.run import Bench, Watcher, ours_failed, share_ends
from benchmarks.stages import Part, Settings
from benchmarks.stages_gpu import GPU_PARTS
from benchmarks.work import RANGES, Work
from benchmarks.worker import Lost
from helpers import machine
from helpers.benchmark_command import call, check_refused, prepared

pytestmark = pytest.mark.weekly

TINY = Shape(2, 67, 67, 8, 8)
H200 = Chip("H200", (9, 0), 132, 50 * 2**20, 141 * 2**30, mhz=1755.0, max_mhz=1980.0)
PACE = Pace(rounds=15, seconds=3.0, turn=0.05, slow=10.0)
ATTENTION = [
    name
    for name, rival in ON_GPU.items()
    if "attention" in rival.tasks and name not in ("flex, approximate", "keops", "separable")
]
core = machine.needs_core


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Place the tensors of GPU work on the CPU, and compile nothing."""
    monkeypatch.setattr(Work, "_placed", lambda work, x: x.to(getattr(torch, work.dtype)))
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    monkeypatch.setattr("anyscore.lab.bench.rivals._free", lambda device: 2**33)
    for module in ("variants_torch", "stages_gpu"):
        monkeypatch.setattr(f"benchmarks.{module}.gpu_memory", lambda: 2**33)


class Time:
    """A clock that moves only when other code adds to `now`."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class Fake:
    """A worker whose calls take `seconds`; each request moves the clock."""

    def __init__(self, clock: Time, seconds: float = 0.01, prepares: float = 1.0) -> None:
        self.clock, self.seconds, self.prepares = clock, seconds, prepares
        self.reason: str | None = None
        self.done, self.turns = 0.0, 0
        self.answer: Any = None

    def send(self, name: str, *args: Any) -> None:
        if self.reason is not None:
            raise Lost(self.reason)
        if name == "prepare":
            self.done = self.clock.now + self.prepares
            self.answer = {"problem": None, "seconds": self.seconds, "error": 1e-3}
        else:
            self.turns += 1
            self.clock.now += self.seconds
            self.answer = self.seconds

    def ready(self) -> bool:
        return self.reason is not None or self.clock.now >= self.done

    def receive(self, timeout: float) -> Any:
        if self.reason is not None:
            raise Lost(self.reason)
        return self.answer

    def end(self, reason: str = "") -> None:
        self.reason = reason


def contestants(
    workers: dict[str, Fake], clock: Time, limit: float, left: float
) -> tuple[list[Contestant], Hosts]:
    """Return prepared contestants, one in each worker, and their hosts."""
    some = [Contestant(name, Rival(name, list), Work(TINY)) for name in workers]
    hosts = Hosts(lambda: Fake(clock))
    hosts.known.update({(name, "additive", TINY): worker for name, worker in workers.items()})

    def pause() -> None:
        clock.now += 0.5

    prepare(some, hosts, Deadline(left, clock=clock), limit, pause=pause)
    return some, hosts


def raced(some: list[Contestant], hosts: Hosts, pace: Pace, deadline: Deadline) -> Any:
    measure(some, hosts, pace, deadline)
    return result(Comparison("forward", Work(TINY), some))["entrants"]


def test_the_deadline_keeps_time_for_the_report() -> None:
    clock = Time()
    deadline = Deadline(60, 8, clock)
    assert deadline.left() == 52
    clock.now = 50
    assert deadline.allows(2)
    assert not deadline.allows(2.1)
    assert deadline.after(0.5).left() == -24
    assert Deadline(None).allows(1e9)
    assert Deadline(None).after(0.5).allows(1e9)


def test_the_parts_take_less_than_eight_minutes() -> None:
    """The parts end one after the other, the last before the report is due."""
    clock = Time()
    whole = Deadline(60 * GPU_MINUTES, run._RESERVE, clock)
    shares = [part.share for part in GPU_PARTS.values()]
    assert None not in shares
    assert sum(share or 0 for share in shares) <= whole.left() < 480
    ends = [whole.after(end).left() for end in share_ends(shares)]
    assert ends == sorted(ends)
    assert ends[0] == pytest.approx(shares[0], abs=2)
    assert ends[-1] == pytest.approx(whole.left())
    assert share_ends([None, 3.0]) == [1, 1]


def test_who_prepares_too_long_is_given_up_and_others_run() -> None:
    clock = Time()
    workers = {"a": Fake(clock), "b": Fake(clock, prepares=99)}
    some, _ = contestants(workers, clock, 20, 1000)
    assert [one.runs for one in some] == [True, False]
    assert some[1].problem == "given up after 20 s of preparation"
    assert clock.now < 25


def test_the_end_of_the_preparation_leaves_time_for_those_who_are_ready() -> None:
    """A process that holds something prepared may finish; no further preparation begins."""
    clock = Time()
    workers = {"quick": Fake(clock), "slow": Fake(clock, prepares=6), "stuck": Fake(clock)}
    workers["stuck"].prepares = 99
    some = [Contestant(name, Rival(name, list), Work(TINY)) for name in workers]
    later = [Contestant("slow", some[1].rival, Work(TINY, range=x)) for x in ("half", "four")]
    hosts = Hosts(lambda: Fake(clock))
    hosts.known.update({(name, "additive", TINY): worker for name, worker in workers.items()})

    def pause() -> None:
        clock.now += 0.5

    prepare([*some, *later], hosts, Deadline(10, clock=clock), 1000, pause=pause)
    assert [one.runs for one in (*some, *later)] == [True, True, False, True, False]
    assert some[2].problem == "given up as the time was over"
    assert later[1].problem == "given up before it began: the time was over"
    assert workers["slow"].reason is None
    assert clock.now < 13


def test_turns_are_taken_and_ratios_are_those_of_rounds() -> None:
    clock = Time()
    workers = {"a": Fake(clock, 0.2), "b": Fake(clock, 0.04), "slow": Fake(clock, 12)}
    some, hosts = contestants(workers, clock, 20, 1000)
    rows = raced(some, hosts, PACE, Deadline(1000, clock=clock))
    assert [worker.turns for worker in workers.values()] == [15, 15, 1]
    assert rows[0]["ms"] == 200
    assert rows[1]["ratio"]["median"] == pytest.approx(0.2)
    assert rows[2]["ratio"]["rounds"] == 1


def test_timing_ends_with_the_time_and_keeps_what_there_is() -> None:
    clock = Time()
    some, hosts = contestants({"a": Fake(clock, 0.9), "b": Fake(clock, 0.9)}, clock, 20, 1000)
    raced(some, hosts, replace(PACE, seconds=100), Deadline(8, clock=clock))
    assert 1 <= len(some[0].times) < 15
    assert all(one.problem is None for one in some)


def test_who_is_lost_or_raises_in_a_turn_has_no_times() -> None:
    clock = Time()
    workers = {"a": Fake(clock), "b": Fake(clock), "c": Fake(clock)}
    some, hosts = contestants(workers, clock, 20, 1000)
    workers["b"].end("its process died")
    workers["c"].receive = lambda timeout: {"problem": "RuntimeError: no"}  # type: ignore[method-assign]
    rows = raced(some, hosts, PACE, Deadline(1000, clock=clock))
    assert [row["problem"] for row in rows] == [None, "its process died", "RuntimeError: no"]
    assert [row["ms"] is None for row in rows] == [False, True, True]


def test_ranges_are_what_their_names_say() -> None:
    near = Work(Shape(1, 500, 500, 8, 8), range="near").query
    assert 1.9 < near.abs().max() <= 2
    assert near.std() == pytest.approx(2 / 3**0.5, rel=0.05)
    eight = Work(Shape(1, 500, 500, 8, 8), range="eight").query
    assert eight.std() == pytest.approx(8, rel=0.05)
    assert RANGES["eight"][0] == "σ = 8"


def test_what_is_right_is_what_the_reference_gives() -> None:
    work = Work(TINY, passes=TRAINING)
    leaves = [y.double().requires_grad_() for y in work.inputs.values()]
    output = attention(*leaves[:3], score=Additive(None, None, leaves[3]), impl="reference")
    found = [output, *torch.autograd.grad(output, leaves, work.upstream.double())]
    error, problem = check(found, work.truth("additive"), work)
    assert problem is None
    assert error < 1e-12


@core
@pytest.mark.usefixtures("on_cpu")
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", ATTENTION)
def test_every_rival_is_right(name: str, training: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every rival is right in plain PyTorch, without compilation."""
    if training and name in ("flex", "flex, sigmoid"):
        pytest.skip("not in training, or not without a GPU")
    monkeypatch.setattr("benchmarks.variants_torch._SHARE", 1e-5)  # the formula runs in chunks
    work = Work(TINY, range="near", dtype="float32", device="cuda")
    work = work.to(passes=TRAINING) if training else work
    answer = prepared(name, work)
    assert answer["problem"] is None
    assert None not in answer["ways"].values()
    assert json.loads(json.dumps(answer)) == answer
    assert (name == "compile") == ("chunk" in answer["about"])


@pytest.mark.filterwarnings("ignore")
def test_flex_gives_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flex attention gives gradients when traced; the test lifts PyTorch's refusal on the CPU."""
    module = pytest.importorskip("torch.nn.attention.flex_attention")
    if not hasattr(module, "_validate_device"):
        pytest.skip("PyTorch has changed inside")
    monkeypatch.setattr(module, "_validate_device", lambda *tensors: None)
    monkeypatch.setattr(Work, "_placed", lambda work, x: x)
    traced = partial(torch.compile, backend="aot_eager")
    monkeypatch.setattr(torch, "compile", lambda f, **options: traced(f, **options))
    work = Work(Shape(1, 128, 128, 3, 3), passes=TRAINING, device="cuda")
    call = find("flex", work).variants(work)[0].build()
    assert check(call(), work.truth("additive"), work)[1] is None


def test_limits_are_those_of_the_narrowest_unit() -> None:
    rate = 132 * 1755e6
    assert H200.limit(Cost(4, 3, 0.25)) == rate * 128 / 4
    assert H200.limit(Cost(4, 3, 1)) == H200.limits["one tanh each"] == rate * 16
    a100 = Chip("A100", (8, 0), 108, 40 * 2**20, 80 * 2**30, max_mhz=1410.0)
    assert a100.limit(Cost(4, 3, 0.25)) == 108 * 1410e6 * 64 / 3
    half = H200.limit_of("forward", {"free": 0.5, "clamped": 0.5})
    apart = [H200.limit_of("forward", {way: 1.0}) for way in ("free", "clamped")]
    assert half == pytest.approx(2 / (1 / apart[0] + 1 / apart[1]))
    assert Chip("?", (9, 0), 132, 1, 1).limit_of("forward", None) is None


def made(part: str, **ms: float) -> dict[str, Any]:
    base = next(iter(ms.values()))
    rows = [
        {
            "name": name.replace("_", " "), "triples": 10**10, "error": None, "ms": x,
            "ratio": {"median": x / base, "low": x / base, "high": x / base, "rounds": 15},
            "problem": None, "mib": 1.0, "how": "somehow", "computes": "additive",
        }
        for name, x in ms.items()
    ]  # fmt: skip
    work = asdict(Work(TINY, dtype="bfloat16", device="cuda"))
    return {"part": part, "title": "", "prepared": False, **work, "entrants": rows}


def test_targets_are_compared() -> None:
    found = [
        made("forward", anyscore=2.0, flex=9.0, flex_sigmoid=5.0),
        made("training", anyscore=12.0, flex=50.0),
        made("separable", exact=2.0, separable=0.5),
        made("forward 2T", anyscore=1.0),
    ]
    told = {x["name"]: (x["value"], x["met"]) for x in gpu_limits.targets(found)}
    assert told == {
        "forward, 10¹² triples/s": (5.0, True),
        "backward alone, 10¹² triples/s": (1.0, False),
        "FlexAttention ÷ ours, forward": (2.5, False),
        "FlexAttention ÷ ours, with backward": (50 / 12, False),
        "exact ÷ separable": (4.0, True),
        "memory at 2T ÷ T, forward": (1.0, True),
        "memory at 2T ÷ T, with backward": (None, None),
    }
    assert all(x["met"] is None for x in gpu_limits.targets([]))


def test_the_table_gives_no_speed_of_what_is_wrong() -> None:
    result = made("forward", anyscore=2.0, rival=1234.5)
    result["entrants"][1] |= {"ms": None, "ratio": None, "problem": "wrong: it is not finite"}
    result["entrants"][0]["tiles"] = {"free": 1.0}
    grid = tables.one(result, H200)
    assert grid.rows == [["anyscore", "1", "", "15", "2", "", "1", "5", "57%"]]  # 5e12 of 8.72e12
    assert grid.notes == ("rival: wrong: it is not finite", "anyscore: somehow; tiles: free 100%")


@core
@pytest.mark.usefixtures("on_cpu")
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of PyTorch Geometric
def test_the_whole_on_the_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = [Variant("wrongly", lambda: lambda: [torch.zeros(TINY.batch, 67, 8)])]
    for name in ("dot", "flex, approximate"):
        monkeypatch.setitem(ON_GPU, name, Rival(name, lambda work: wrong))
    monkeypatch.setitem(ON_GPU, "separable", replace(ON_GPU["anyscore"], name="separable"))
    pace = Pace(rounds=3, seconds=0.01, turn=1e-3)
    monkeypatch.setattr("benchmarks.stages_models.GRAPH", Shape(2, 9, 13, 4, 4))
    monkeypatch.setattr("benchmarks.stages_models.EDGES", 70)
    monkeypatch.setattr("benchmarks.stages_gpu._MANY_KEYS", 131)
    parts = tuple(GPU_PARTS)
    settings = Settings((TINY,), dtype="bfloat16", parts=parts, pace=pace, device="cuda")
    record: dict[str, Any] = {"chip": asdict(H200), "results": [], "left_out": []}
    record |= {"cut_short": [], "interrupted": False}
    monkeypatch.setattr(Bench, "look", lambda *_: None)
    monkeypatch.setattr(
        "benchmarks.variants_torch.graphed", lambda x: replace(x, how=f"{x.how}{GRAPH}")
    )
    Bench(settings, record, tmp_path, Watcher()).run()
    report = json.loads((tmp_path / "bench.json").read_text(encoding="utf-8"))
    assert [x["part"] for x in report["results"]] == [
        "forward", "ranges", "separable", "forward 2T",
        "training", "training ranges", "training 2T", *["step", f"step{GRAPH}", "cache"] * 2,
        *["graphs"] * 4, *["kernels"] * 2, *["small"] * 2, "narrow",
    ]  # fmt: skip
    for found in report["results"]:
        for entry in found["entrants"]:
            expected = "wrong: " if entry["name"] in ("dot", "flex, approximate") else ""
            if entry["name"] == "flex" and found["passes"] == TRAINING:
                expected = "failed: "  # flex has no backward on the CPU
            assert (entry["problem"] or "").startswith(expected)
            assert (entry["problem"] is None) == (expected == "")
            assert (entry["ms"] is None) == (expected != "" or found["part"].endswith("2T"))
    names = [x["name"] for x in report["results"][0]["entrants"]]
    assert names[:2] == ["anyscore", "anyscore, float32"]
    assert report["chip"]["name"] == "H200"
    assert "forward, free" in report["limits"]
    assert not ours_failed(report)
    words = tables.markdown(report | {
        "machine": {"processor": "H200", "threads": 1, "torch": "2", "python": "3"},
        "settings": asdict(settings), "anyscore": "0", "made": "2026", "interrupted": False,
        "plan": {"route": "triton"},
    })  # fmt: skip
    assert "## Targets (H200)" in words
    report["results"][0]["entrants"][1]["problem"] = "wrong: its output is not finite"
    assert ours_failed(report)


def test_a_part_beyond_its_share_is_cut_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Time()

    def part(seconds: float) -> Part:
        return Part("", lambda *_: iter([[seconds], [seconds]]), 25)

    def measure(bench: Bench, group: Any) -> None:
        measured.append(group[0])
        clock.now += group[0]

    measured: list[float] = []
    parts = {"first": part(30), "second": part(5), "third": part(31), "last": part(1)}
    monkeypatch.setattr("benchmarks.run.parts_of", lambda *_: parts)
    monkeypatch.setattr(Bench, "measure", measure)
    record: dict[str, Any] = {"results": [], "left_out": [], "cut_short": []}
    bench = Bench(Settings((TINY,), parts=tuple(parts)), record, tmp_path, Watcher())
    bench.deadline = Deadline(100, clock=clock)
    bench.run()
    assert measured == [30, 5, 5, 31, 31]
    assert (record["cut_short"], record["left_out"]) == (["first", "third"], ["last"])


def raises(error: BaseException) -> Rival:
    """Return a rival whose call raises."""

    def call() -> Any:
        raise error

    return Rival("fake", lambda work: [Variant("somehow", lambda: call)], tasks=("cache",))


@core
@pytest.mark.usefixtures("on_cpu")
def test_an_interruption_and_a_rival_that_raises_lose_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command writes the results until Ctrl-C, also as a run of record."""
    monkeypatch.setitem(ON_GPU, "dot", raises(RuntimeError("no such kernel\nand more")))
    monkeypatch.setitem(ON_GPU, "bmm", raises(KeyboardInterrupt()))
    monkeypatch.setattr("benchmarks.stages_gpu._MANY_KEYS", 131)
    monkeypatch.setattr("benchmarks.command.check_gpu", lambda device: None)
    monkeypatch.setattr(Chip, "first", lambda: H200)
    monkeypatch.setattr(Bench, "look", lambda *_: None)
    monkeypatch.setattr("benchmarks.run.Hosts", lambda start: None)
    machine = {"processor": "H200", "threads": 1, "torch": "2", "python": "3", "device": "cuda"}
    monkeypatch.setattr("anyscore.lab.bench.run.describe_machine", lambda device: machine)
    monkeypatch.setattr("anyscore.lab.bench.timing.Pace", lambda **_: Pace(2, 0.01, 1e-3))
    monkeypatch.setattr("benchmarks.record.FOLDER", tmp_path)
    out = tmp_path / "run"
    told = call("--device", "cuda", "--shape", "2,67,67,8,8", "--parts", "kernels,step",
                "--record", "tiny", "--out", out, width=200)  # fmt: skip
    assert told.exit_code == 130, told.output
    report = json.loads((out / "bench.json").read_text(encoding="utf-8"))
    assert report["interrupted"]
    parts = [found["part"] for found in report["results"]]
    assert parts == [*["kernels"] * 2, *["step", f"step{GRAPH}", "cache"] * 2]
    assert all(e["ms"] for e in report["results"][0]["entrants"])
    problems = {e["name"]: e["problem"] for e in report["results"][2]["entrants"]}
    assert problems["dot"] == "failed: RuntimeError: no such kernel"
    assert {"bench.md", "bench.png"} < {path.name for path in out.iterdir()}
    (path,) = tmp_path.glob("tiny-*.json")
    run = json.loads(path.read_text(encoding="utf-8"))
    assert run["note"] == "Interrupted."
    assert run["machine"]["processor"] == H200.described
    assert "the whole call, forward" in {row["workload"] for row in run["rows"]}


def test_the_narrow_part_is_for_a_flex_without_gradients() -> None:
    settings = Settings((TINY,), device="cuda")
    with_gradients = [made("training", anyscore=1.0, flex=2.0)]
    assert list(GPU_PARTS["narrow"].plan(settings, with_gradients)) == []
    (group,) = GPU_PARTS["narrow"].plan(settings, [])
    assert group[0].work.shape == (2, 67, 67, 16, 16)


@pytest.mark.usefixtures("on_cpu")
def test_small_is_as_large_as_memory_allows() -> None:
    settings = Settings((Shape(32, 4096, 4096, 64, 64),), device="cuda")
    (group,) = GPU_PARTS["small"].plan(settings, [])
    assert [x.work.shape.keys for x in group] == [256, 256]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
def test_without_a_gpu_one_line_says_what_is_needed(tmp_path: Path) -> None:
    told = call("--device", "cuda", "--out", tmp_path / "run", width=300)
    check_refused(told, "--device cuda: needs an NVIDIA GPU of compute capability 8.0 (Ampere)")
    assert not (tmp_path / "run").exists()
