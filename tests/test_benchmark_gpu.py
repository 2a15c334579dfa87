"""`benchmarks/gpu.py` without a GPU: whatever in it is no device's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import gpu_bench  # noqa: E402
import gpu_race  # noqa: E402
import gpu_report  # noqa: E402
import gpu_ways  # noqa: E402
import gpu_work  # noqa: E402
import gpu_worker  # noqa: E402
from gpu_race import Contest, Deadline, Entrant, Lost  # noqa: E402
from gpu_report import Chip, Cost  # noqa: E402
from gpu_work import Size, Work  # noqa: E402

from anyscore import Additive, attention  # noqa: E402
from anyscore.kernels import cpu  # noqa: E402

TINY = Size(1, 2, 67, 67, 8)
H200 = Chip("H200", (9, 0), 132, 50 * 2**20, 141 * 2**30, mhz=1755.0, max_mhz=1980.0)
core = pytest.mark.skipif(cpu.problem() is not None, reason="the C++ core is not there")


class Time:
    """A clock that others move."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class Fake:
    """A worker whose calls take as long as it is told; each request moves the clock."""

    def __init__(self, clock: Time, ms: Any = 10.0, prepares: float = 1.0) -> None:
        self.clock, self.ms, self.prepares = clock, ms, prepares
        self.reason: str | None = None
        self.done, self.turns = 0.0, 0
        self.answer: Any = None

    def send(self, name: str, *args: Any) -> None:
        if self.reason is not None:
            raise Lost(self.reason)
        if name == "prepare":
            self.done = self.clock.now + self.prepares
            self.answer = {"problem": None, "ms": self.ms, "errors": {"output": 1e-3}}
        else:
            self.turns += 1
            self.clock.now += self.ms / 1000
            self.answer = [self.ms, self.ms + 1, self.ms + 2]

    def ready(self) -> bool:
        return self.reason is not None or self.clock.now >= self.done

    def receive(self, timeout: float) -> Any:
        if self.reason is not None:
            raise Lost(self.reason)
        return self.answer

    def end(self, reason: str = "") -> None:
        self.reason = reason


def prepared(workers: dict[str, Fake], clock: Time, limit: float, left: float) -> list[Entrant]:
    entrants = [Entrant(name, name, Work(TINY), worker) for name, worker in workers.items()]

    def pause() -> None:
        clock.now += 0.5

    gpu_race.prepare(entrants, limit, Deadline(left, clock), pause=pause)
    return entrants


def test_the_deadline_keeps_time_for_the_report() -> None:
    clock = Time()
    deadline = Deadline(60, clock)
    assert deadline.left() == 60 - gpu_race.RESERVE
    clock.now = 50
    assert deadline.allows(2)
    assert not deadline.allows(2.1)


def test_who_prepares_too_long_is_given_up_and_others_race() -> None:
    clock = Time()
    entrants = prepared({"a": Fake(clock), "b": Fake(clock, prepares=99)}, clock, 20, 1000)
    assert [entrant.runs for entrant in entrants] == [True, False]
    assert entrants[1].problem == "given up after 20 s of preparation"
    assert clock.now < 25


def test_a_race_takes_turns_and_ratios_are_those_of_rounds() -> None:
    clock = Time()
    workers = {"a": Fake(clock, 400.0), "b": Fake(clock, 40.0), "slow": Fake(clock, 12e3)}
    entrants = prepared(workers, clock, 20, 1000)
    gpu_race.race(entrants, 3.0, 15, Deadline(1000, clock))
    assert [worker.turns for worker in workers.values()] == [15, 15, 1]
    rows = gpu_race.results(Contest("key", "title", entrants))
    assert rows[0]["ms"] == {"median": 401.0, "low": 401.0, "high": 401.0, "turns": 15}
    assert rows[1]["ratio"]["median"] == 41 / 401
    assert rows[2]["ratio"]["turns"] == 1


def test_a_race_ends_with_the_time_and_keeps_what_there_is() -> None:
    clock = Time()
    entrants = prepared({"a": Fake(clock, 900.0), "b": Fake(clock, 900.0)}, clock, 20, 1000)
    gpu_race.race(entrants, 100.0, 15, Deadline(16, clock))
    assert 1 <= len(entrants[0].times) < 15
    assert all(entrant.problem is None for entrant in entrants)


def test_who_is_lost_or_raises_in_a_race_has_no_times() -> None:
    clock = Time()
    workers = {"a": Fake(clock), "b": Fake(clock), "c": Fake(clock)}
    entrants = prepared(workers, clock, 20, 1000)
    workers["b"].end("its process died")
    workers["c"].receive = lambda timeout: {"problem": "RuntimeError: no"}  # type: ignore[method-assign]
    gpu_race.race(entrants, 3.0, 5, Deadline(1000, clock))
    rows = gpu_race.results(Contest("key", "title", entrants))
    assert [row["problem"] for row in rows] == [None, "its process died", "RuntimeError: no"]
    assert [row["ms"] is None for row in rows] == [False, True, True]


def test_inputs_are_the_same_in_every_dtype_and_only_compared_queries_have_gradients() -> None:
    work = Work(TINY, training=True)
    half, whole = (gpu_work.inputs(work.to(dtype=x), "cpu") for x in ("bfloat16", "float32"))
    assert all(torch.equal(x.float(), y) for x, y in zip(half, whole, strict=True))
    few = Work(Size(64, 32, 256, 256, 64))  # of which not all are compared
    assert 1 <= len(few.rows) < 256
    assert {0, 255} <= set(few.rows.tolist())
    near = gpu_work.inputs(Work(TINY, reach=2.0), "cpu")
    assert 1.9 < near.query.abs().max() <= 2


def test_what_is_right_is_what_the_reference_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_work, "CHECKED", 2**15)
    monkeypatch.setattr(gpu_work, "AT_ONCE", 2**12)
    work = Work(TINY, training=True, dtype="float64")
    assert 1 < len(work.rows) < 67
    x = gpu_work.inputs(work, "cpu")
    leaves = [y.requires_grad_() for y in x[:4]]
    output = attention(*leaves[:3], score=Additive(None, None, leaves[3]), impl="reference")
    found = [output, *torch.autograd.grad(output, leaves, x.d_checked)]
    errors, problem = gpu_work.check(found, gpu_work.truth(work, x), work.rows)
    assert problem is None
    assert list(errors) == list(gpu_work.NAMES)
    assert max(errors.values()) < 1e-12


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda y: [y[0] * 1.03, y[1]], "its output is off by 0.03"),
        (lambda y: [y[0], y[1] * 0.9], "its gradient of query is off by 0.1"),
        (lambda y: [y[0], None], "gives no gradient of query"),
        (lambda y: [y[0]], "gives 1 results"),
        (lambda y: [y[0], y[1] / 0], "its gradient of query is not finite"),
        (lambda y: [y[0][..., :3], y[1]], "its output has shape"),
    ],
)
def test_what_is_wrong_is_found(spoil: Any, said: str) -> None:
    right = [torch.randn(2, 5, 4).double(), torch.rand(2, 5, 4).double() + 0.5]
    rows = torch.arange(5)
    assert gpu_work.check(right, right, rows) == ({"output": 0, "gradient of query": 0}, None)
    problem = gpu_work.check(spoil(right), right, rows)[1]
    assert problem is not None
    assert said in problem


@core
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("way", [x for x in gpu_ways.WAYS if x != "flex, approximate"])
def test_every_way_is_right(way: str, training: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In plain PyTorch: nothing is compiled."""
    if training and way in ("separable", "step", "flex", "flex, sigmoid"):
        pytest.skip("not in training, or not without a GPU")
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    monkeypatch.setattr(gpu_ways, "HELD", 1e-5)  # chunks of the compiled formula
    size = TINY._replace(queries=1) if way == "step" else TINY
    work = Work(size, reach=2.0, training=training)
    x = gpu_work.inputs(work, "cpu")
    call, about = gpu_ways.build(way, work, x)
    right = gpu_work.truth(work, x, about.get("computes", "additive"))
    assert gpu_work.check(call(x.d_checked), right, work.rows)[1] is None
    assert json.loads(json.dumps(about)) == about
    assert (way == "compile") == ("chunk" in about)


@pytest.mark.filterwarnings("ignore")
def test_flex_gives_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced with derivatives, which PyTorch refuses on the CPU, and computed plainly."""
    module = pytest.importorskip("torch.nn.attention.flex_attention")
    if not hasattr(module, "_validate_device"):
        pytest.skip("PyTorch has changed inside")
    monkeypatch.setattr(module, "_validate_device", lambda *tensors: None)
    traced = partial(torch.compile, backend="aot_eager")
    monkeypatch.setattr(torch, "compile", lambda f, **options: traced(f, **options))
    work = Work(Size(1, 1, 128, 128, 3), training=True)
    x = gpu_work.inputs(work, "cpu")
    call, _ = gpu_ways.build("flex", work, x)
    errors, problem = gpu_work.check(call(x.d_checked), gpu_work.truth(work, x), work.rows)
    assert problem is None
    assert list(errors) == list(gpu_work.NAMES)


def test_limits_are_those_of_the_narrowest_unit() -> None:
    rate = 132 * 1755e6
    assert H200.limit(Cost(4, 3, 0.25)) == rate * 128 / 4
    assert H200.limit(Cost(4, 3, 1)) == H200.tanh == rate * 16
    a100 = Chip("A100", (8, 0), 108, 40 * 2**20, 80 * 2**30, max_mhz=1410.0)
    assert a100.limit(Cost(4, 3, 0.25)) == 108 * 1410e6 * 64 / 3
    half = H200.limit_of("forward", {"free": 0.5, "clamped": 0.5})
    apart = [H200.limit_of("forward", {way: 1.0}) for way in ("free", "clamped")]
    assert half == pytest.approx(2 / (1 / apart[0] + 1 / apart[1]))
    assert Chip("?", (9, 0), 132, 1, 1).limit_of("forward", None) is None


def contest(key: str, **ms: float) -> dict[str, Any]:
    base = next(iter(ms.values()))
    rows = [
        {
            "name": name.replace("_", " "), "elements": 10**10, "training": False, "errors": {},
            "ms": {"median": x, "low": x, "high": x}, "ratio": {"median": x / base},
            "problem": None, "peak_bytes": 2**20, "how": "somehow",
        }
        for name, x in ms.items()
    ]  # fmt: skip
    return {"key": key, "title": key, "rows": rows}


def test_targets_are_compared() -> None:
    found = [
        contest("forward", anyscore=2.0, flex=9.0, flex_sigmoid=5.0),
        contest("training", anyscore=12.0, flex=50.0),
        contest("separable", exact=2.0, separable=0.5),
        contest("forward 2T", anyscore=1.0),
    ]
    told = {x["name"]: (x["value"], x["met"]) for x in gpu_report.targets(found)}
    assert told == {
        "forward, 10¹² elements/s": (5.0, True),
        "backward alone, 10¹² elements/s": (1.0, False),
        "FlexAttention ÷ ours, forward": (2.5, False),
        "FlexAttention ÷ ours, with backward": (50 / 12, False),
        "exact ÷ separable, rank 8": (4.0, True),
        "memory at 2T ÷ T, forward": (1.0, True),
        "memory at 2T ÷ T, with backward": (None, None),
    }
    assert all(x["met"] is None for x in gpu_report.targets([]))
    assert "not measured" in gpu_report.summary([], H200)


def test_the_table_gives_no_speed_of_what_is_wrong() -> None:
    made = contest("forward", anyscore=2.0, rival=1234.5)
    made["rows"][1] |= {"ms": None, "ratio": None, "problem": "wrong: its output is not finite"}
    made["rows"][0]["tiles"] = {"free": 1.0}
    text = gpu_report.table(made, H200).splitlines()
    assert text[2].split()[:4] == ["anyscore", "2", "2", "–"]
    assert "62%" in text[2]  # 5e12 of 8.12e12
    assert text[3].split() == ["rival", "–", "–", "–", "–", "–", "1", "–"]
    assert text[-1].strip() == "rival: wrong: its output is not finite"


@core
def test_the_whole_on_the_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(gpu_ways.WAYS, "flex", gpu_ways.eager)
    wrong = lambda work, x: gpu_ways.Built(lambda d: [0 * x.value], {"how": "wrongly"})  # noqa: E731
    monkeypatch.setitem(gpu_ways.WAYS, "dot", wrong)
    monkeypatch.setattr(gpu_bench, "SECONDS", 0.05)
    monkeypatch.setattr(gpu_bench.Bench, "look", lambda self, entrant: None)
    lines: list[str] = []
    file = tmp_path / "gpu.json"
    bench = gpu_bench.Bench(
        TINY, lambda: gpu_worker.Here("cpu"), Deadline(1000), True, str(file), say=lines.append
    )
    bench.run()
    report = json.loads(file.read_text())
    assert os.listdir(tmp_path) == ["gpu.json"]
    assert report["finished"]
    keys = "forward", "ranges", "separable", "forward 2T"
    training = "training", "training ranges", "training 2T"
    assert [x["key"] for x in report["contests"]] == [*keys, *training]
    rows = [row for x in report["contests"] for row in x["rows"]]
    for row in rows:
        is_wrong = row["name"].startswith("dot")
        assert (row["problem"] or "").startswith("wrong: " if is_wrong else "")
        assert row["ms"] is None or not is_wrong
    assert sum(row["ms"] is not None for row in rows) == 13
    assert "targets (H200)" in lines[-1]
    assert not bench.ours_failed()
    rows[0]["problem"] = "wrong: its output is not finite"
    bench.report["contests"] = report["contests"]
    assert bench.ours_failed()


@core
def test_no_time_is_left_out_in_silence(tmp_path: Path) -> None:
    lines: list[str] = []
    bench = gpu_bench.Bench(TINY, lambda: None, Deadline(1), say=lines.append)
    bench.run()
    assert lines == ["left out, as the time was over: forward, training, step, narrow, small"]


def test_a_process_answers_and_its_end_is_told() -> None:
    worker = gpu_worker.Worker("cpu")
    try:
        work = Work(TINY)
        worker.send("prepare", "formula", work)
        assert worker.receive(120)["problem"] is None
        worker.send("turn", "formula", work, 0.001)
        assert worker.receive(60)[0] > 0
        worker.send("turn", "nothing", work, 0.001)
        assert worker.receive(60)["problem"].startswith("KeyError")
        worker.process.kill()
        worker.process.join()
        with pytest.raises(Lost, match="died with exit code -9"):
            worker.receive(60)
        with pytest.raises(Lost):
            worker.send("turn", "formula", work, 0.001)
    finally:
        worker.end()
    assert not os.path.exists(worker.log)


def test_without_a_gpu_one_line_says_what_is_needed() -> None:
    run = subprocess.run(
        [sys.executable, str(BENCHMARKS / "gpu.py"), "--quick"],
        capture_output=True, text=True, env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
    )  # fmt: skip
    assert run.returncode == 2
    assert run.stdout == ""
    assert run.stderr.startswith("benchmarks/gpu.py needs an NVIDIA GPU")
    assert run.stderr.count("\n") == 1


@pytest.mark.parametrize("text", ["1,2,3", "1,2,0,4", "a,b,c,d", "1,2,3,4,5"])
def test_sizes_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="B,H,T,width"):
        Size.parse(text)
