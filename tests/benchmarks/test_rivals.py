"""`python -m benchmarks`: every rival is right; the parts, their targets, and the command."""

from __future__ import annotations

import itertools
import json
import os
import pickle
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from anyscore.lab.bench.formulas import FORMULAS
from anyscore.lab.bench.runner import Runner
from anyscore.lab.bench.timing import Pace
from anyscore.lab.bench.work import FORWARD, TRAINING, Shape
from benchmarks import variants_torch
from benchmarks.graphs import GraphWork
from benchmarks.rivals import IN_FRAMEWORKS, ON_GPU, OURS, RIVALS, Rival
from benchmarks.run import bench
from benchmarks.stages import LARGE, SMALL, Settings
from benchmarks.tasks import TASKS
from benchmarks.work import Work
from benchmarks.worker import Lost, Worker
from helpers.benchmark_command import call, check_refused, plain
from helpers.hang import HANG

pytestmark = pytest.mark.weekly

SHAPE = Shape(2, 5, 7, 11, 3)
QUICK = Pace(rounds=3, seconds=0.01, turn=1e-3)
IN_TORCH = [OURS, *(RIVALS[name] for name in ("eager", "blocks", "cdist", "own pair", "dot"))]


@pytest.fixture(autouse=True)
def _short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.stages.Pace", partial(Pace, turn=1e-3))


def prepared(rival: Rival, work: Work) -> dict[str, Any]:
    """Prepare a contestant; return the answer."""
    return Runner("cpu").prepare(rival, work)


@pytest.mark.parametrize("passes", [FORWARD, TRAINING])
@pytest.mark.parametrize(
    ("rival", "score"),
    [(rival, score) for rival in IN_TORCH for score in rival.scores],
    ids=lambda value: getattr(value, "name", value),
)
def test_every_rival_is_right(
    rival: Rival, score: str, passes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.variants_torch._BLOCK", 2 * 2 * 7 * 11)
    answer = prepared(rival, Work(SHAPE, score, passes))
    assert answer["problem"] is None
    assert answer["error"] < 1e-5


@pytest.mark.parametrize("passes", [FORWARD, TRAINING])
@pytest.mark.parametrize("score", ["additive", "gaussian"])
@pytest.mark.parametrize("task", [x for x in TASKS if x not in ("attention", "cache")])
def test_every_rival_is_right_beyond_attention(
    task: str, score: str, passes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.variants_torch._BLOCK", 2 * 2 * 7 * 11)
    monkeypatch.setattr("anyscore.lab.bench.work._CHECKED", {"cpu": 2 * 3 * 7 * 11})
    monkeypatch.setattr("anyscore.lab.bench.work._AT_ONCE", {"cpu": 2 * 2 * 7 * 11})
    work = Work(SHAPE, score, passes, task=task)
    assert len(work.checked_rows) == 3
    some = [rival for rival in IN_TORCH if task in rival.tasks and score in rival.scores]
    assert len(some) == 4 - (score == "additive")
    for rival in some:
        answer = prepared(rival, work)
        assert answer["problem"] is None, rival.name
        assert answer["error"] < 1e-5


@pytest.mark.parametrize("task", ["sparsemax", "entmax15"])
def test_the_truth_of_sparse_weights_is_their_definition(task: str) -> None:
    """Sparse weights maximise p · scores − Σ p^α / (α (α − 1)) over the simplex."""
    scores = 2 * torch.randn(3, 4, 6, dtype=torch.float64, generator=torch.manual_seed(0))
    weights = TASKS[task].plain(scores, torch.eye(6, dtype=torch.float64))
    assert torch.allclose(weights.sum(-1), torch.ones(3, 4, dtype=torch.float64))
    assert ((weights == 0).any() and (weights >= 0).all()).item()
    alpha = {"sparsemax": 2.0, "entmax15": 1.5}[task]

    def value(p: Tensor) -> Tensor:
        return (p * scores).sum(-1) - (p**alpha).sum(-1) / (alpha * (alpha - 1))

    best = value(weights)
    for seed in range(200):
        other = torch.randn(3, 4, 6, dtype=torch.float64, generator=torch.manual_seed(seed))
        mixed = 0.98 * weights + 0.02 * other.softmax(-1)
        assert (value(mixed) <= best).all()


def test_truth_in_pieces_is_truth(monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work(SHAPE, passes=TRAINING, projected=False, lengths=True)
    whole = work.truth("additive")
    assert list(whole)[1:] == [f"gradient of the {x}" for x in work.inputs]
    monkeypatch.setattr("anyscore.lab.bench.work._AT_ONCE", {"cpu": 2 * 2 * 7 * 11})
    torch.testing.assert_close(work.truth("additive"), whole)


@pytest.mark.parametrize("known", [RIVALS, ON_GPU, *IN_FRAMEWORKS.values()])
def test_rivals_and_work_reach_other_processes(known: dict[str, Rival]) -> None:
    """A rival and its work survive pickling; the inputs that the work has made stay behind."""
    work = GraphWork(SHAPE, "gatv2", degrees="power law")
    assert work.query is work.query
    for rival in known.values():
        found = pickle.loads(pickle.dumps((rival, work.to())))
        assert found == (rival, work)
        assert "query" not in vars(found[1])


def test_who_cannot_take_part_says_why() -> None:
    backward = Work(SHAPE, passes=TRAINING)
    assert "no backward on the CPU" in prepared(RIVALS["flex"], backward)["problem"]
    missing = Rival("missing", variants_torch.blocks, package="no_such_package")
    assert prepared(missing, Work(SHAPE))["problem"] == (
        "no_such_package is not installed: pip install -r benchmarks/requirements.txt"
    )


@pytest.mark.parametrize("passes", [FORWARD, TRAINING])
@pytest.mark.parametrize("name", ["anyscore", "formula"])
def test_projections_and_lengths_in_torch(name: str, passes: str) -> None:
    work = Work(SHAPE, passes=passes, framework="torch", projected=False, lengths=True)
    answer = prepared(IN_FRAMEWORKS["torch"][name], work)
    assert answer["problem"] is None
    assert answer["error"] < 1e-5


def test_keops_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """KeOps is right with dense tensors for its symbolic matrices; no C++ is compiled."""
    module = ModuleType("pykeops.torch")
    module.LazyTensor = Dense  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pykeops.torch", module)
    monkeypatch.setattr(Rival, "installed", True)
    for score, task in itertools.product(RIVALS["keops"].scores, RIVALS["keops"].tasks):
        for passes in (FORWARD, TRAINING):
            answer = prepared(RIVALS["keops"], Work(SHAPE, score, passes, task=task))
            assert answer["problem"] is None, (score, task)
            assert answer["error"] < 1e-5
            assert None not in answer["ways"].values()


class Dense:
    """The operations of a KeOps LazyTensor that the benchmark uses, on dense tensors."""

    def __init__(self, x: Any) -> None:
        self.x = x

    def __getattr__(self, name: str) -> Any:
        return lambda *args: Dense(getattr(self.x, name)(*args))

    def __add__(self, other: Any) -> Dense:
        return Dense(self.x + getattr(other, "x", other))

    def __sub__(self, other: Any) -> Dense:
        return Dense(self.x - getattr(other, "x", other))

    def __mul__(self, other: Any) -> Dense:
        return Dense(self.x * getattr(other, "x", other))

    def __truediv__(self, other: Any) -> Dense:
        return Dense(self.x / getattr(other, "x", other))

    __radd__, __rmul__ = __add__, __mul__

    def __neg__(self) -> Dense:
        return Dense(-self.x)

    def __or__(self, other: Dense) -> Dense:
        return (self * other).sum(-1)

    def sqdist(self, other: Dense) -> Dense:
        return Dense((self.x - other.x).square().sum(-1))

    def logsumexp(self, axis: int) -> Tensor:
        return self.x.logsumexp(axis).unsqueeze(-1)  # type: ignore[no-any-return]

    def sumsoftmaxweight(self, value: Dense, axis: int) -> Tensor:
        return (self.x.softmax(axis).unsqueeze(-1) * value.x).sum(axis)  # type: ignore[no-any-return]


def test_a_process_that_dies_is_lost() -> None:
    work, eager = Work(Shape(1, 9, 5, 6, 8)), RIVALS["eager"]
    worker = Worker("cpu", 1)
    try:
        worker.send("prepare", eager, work)
        assert worker.receive(HANG)["problem"] is None
        worker.send("turn", eager, work.to(), 0.001)
        assert worker.receive(HANG) > 0
        worker.send("turn", OURS, work, 0.001)
        assert worker.receive(HANG)["problem"].startswith("failed: KeyError")
        worker.process.kill()
        worker.process.wait()
        with pytest.raises(Lost, match="the process ended with status -9"):
            worker.receive(HANG)
        with pytest.raises(Lost):
            worker.send("turn", eager, work, 0.001)
    finally:
        worker.end()
    assert not os.path.exists(worker.log)


def run(out: Path, *options: str) -> Any:
    sizes = ("--shape", "2,5,7,11,3", "--shape", "3,1,6,5,4")
    return call("--quick", "--threads", "1", *sizes, "--out", out, *options, width=100)


def test_the_command_ends_with_a_table_and_three_files(tmp_path: Path) -> None:
    out = tmp_path / "run"
    result = run(out, "--rivals", "eager,blocks,dot", "--parts", "speed,range,pairs,isa")
    assert result.exit_code == 0, result.output
    record = json.loads((out / "bench.json").read_text(encoding="utf-8"))
    assert record["settings"]["shapes"] == [[2, 5, 7, 11, 3], [3, 1, 6, 5, 4]]
    assert not record["interrupted"]
    assert record["machine"]["threads"] == 1
    speed = [r for r in record["results"] if r["part"] == "speed"]
    assert [(r["passes"], r["prepared"]) for r in speed] == [
        (FORWARD, False), (TRAINING, False), (FORWARD, True), (TRAINING, False)
    ]  # fmt: skip
    for r in record["results"]:
        for entrant in r["entrants"]:
            assert set(entrant) == {"name", "how", "ways", "ms", "ratio", "error", "problem"}
            assert (entrant["ratio"] is None) == (entrant["problem"] is not None)
    assert speed[2]["entrants"][2]["problem"] == "small enough for one block"
    scores = [r["score"] for r in record["results"] if r["part"] == "pairs"]
    assert scores == [name for name in FORMULAS if name != "additive"]
    words = (out / "bench.md").read_text(encoding="utf-8")
    assert "| 3, 1, 6, 5, 4, prepared keys |" in words
    assert "- dot: scaled_dot_product_attention, 4-D" in words or "- dot: bmm" in words
    assert (out / "bench.png").read_bytes().startswith(b"\x89PNG")
    assert "time ÷ anyscore" in result.output
    assert "blocks: small enough for one block" in plain(result.output)


def weighs(mib: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the measured memory of every contestant to `mib`."""

    monkeypatch.setattr("benchmarks.run.weigh", lambda *_: (mib, None))


def test_growth_lists_time_and_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weighs(2.5, monkeypatch)
    parts, lengths = ("growth", "memory"), (8, 16)
    record = bench(
        Settings((SHAPE,), rivals=("dot",), parts=parts, lengths=lengths, pace=QUICK), tmp_path
    )
    growth = [r for r in record["results"] if r["part"] == "growth"]
    assert [(r["shape"][1], r["passes"]) for r in growth] == [
        (8, FORWARD), (16, FORWARD), (8, TRAINING), (16, TRAINING)
    ]  # fmt: skip
    assert all(e["mib"] == 2.5 and e["ms"] for r in growth for e in r["entrants"])
    words = (tmp_path / "bench.md").read_text(encoding="utf-8")
    assert "| 16 | 2.5 | 2.5 |" in words
    assert "| 2, 5, 7, 11, 3 + backward | 2.5 | 2.5 |" in words


def test_what_lies_beyond_attention_is_held_against_its_bars(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weighs(2.0**-11, monkeypatch)  # the bytes of two matrices
    shape = Shape(1, 16, 16, 8, 4)
    monkeypatch.setattr("benchmarks.stages.ALIGNER", shape)
    monkeypatch.setattr("benchmarks.bars.ALIGNER", shape)
    monkeypatch.setattr("benchmarks.bars.LARGE", SHAPE)
    settings = Settings((SHAPE,), rivals=("eager", "own pair"), parts=("beyond",), pace=QUICK)
    record = bench(settings, tmp_path)
    tasks = [(r["task"], r["passes"]) for r in record["results"]]
    assert tasks[:2] == [("aligner", FORWARD), ("aligner", TRAINING)]
    assert [task for task, _ in tasks[2:]] == [x for x in list(TASKS)[2:] if x != "cache"]
    assert all(e["ratio"] for r in record["results"] for e in r["entrants"])
    found = {x["name"]: x for x in record["targets"]}
    ratio = record["results"][1]["entrants"][1]["ratio"]["median"]
    assert found["aligner: broadcast formula ÷ ours"]["value"] == ratio
    assert found["aligner: broadcast formula ÷ ours"]["met"] == (ratio >= 10)
    assert found["aligner: torch.cdist ÷ ours"]["met"] is None
    memory = found["aligner: our memory, in matrices"]
    assert (memory["value"], memory["target"], memory["met"]) == (0.5, "≤ 3", True)
    assert found["own pair, softplus: KeOps ÷ ours"]["met"] is None
    words = (tmp_path / "bench.md").read_text(encoding="utf-8")
    assert "## Bars" in words
    assert "| aligner: our memory, in matrices | ≤ 3 | 0.5 | met |" in words
    assert bench(replace(settings, parts=("speed",)), tmp_path)["targets"] == []


def test_a_step_of_a_cache(tmp_path: Path) -> None:
    """anyscore's step equals the formula; a dot product over its own cache equals a dot product."""
    settings = Settings((SHAPE,), rivals=("dot",), parts=("cache",), pace=QUICK, quick=True)
    (result,) = bench(settings, tmp_path)["results"]
    assert result["task"] == "cache"
    assert [(e["name"], e["problem"]) for e in result["entrants"]] == [
        ("anyscore", None),
        ("dot", None),
    ]
    assert all("cache" in e["how"].lower() for e in result["entrants"])


@pytest.mark.parametrize("passes", [FORWARD, TRAINING])
@pytest.mark.parametrize("name", ["dot", "dot-jax", "dot-onnxruntime"])
def test_a_dot_product_by_others_is_right(name: str, passes: str) -> None:
    if not RIVALS[name].installed:
        pytest.skip(f"{RIVALS[name].package} is not installed")
    answer = prepared(RIVALS[name], Work(Shape(2, 5, 7, 8, 8), "scaled_dot", passes))
    if (name, passes) == ("dot-onnxruntime", TRAINING):
        assert answer["problem"] == "computes no gradients"
        return
    assert answer["problem"] is None, answer
    assert answer["ways"]
    assert None not in answer["ways"].values(), answer["ways"]


def test_other_scores_are_held_against_the_best_dot_product(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    goals = {("float32", SHAPE, FORWARD): (1e-9, 1e9, 1.0)}
    monkeypatch.setattr("benchmarks.bars._DOT_BARS", goals)
    settings = Settings((SHAPE,), rivals=("dot", "dot-jax"), parts=("dot",), pace=QUICK)
    record = bench(settings, tmp_path)
    assert [tuple(r["shape"]) for r in record["results"]] == [SHAPE] * 2 + [SMALL] * 2
    ratios = {e["name"]: e["ratio"]["median"] for e in record["results"][0]["entrants"][1:]}
    assert list(ratios)[:4] == [
        f"anyscore, {s}" for s in ("gatv2", "laplace", "gaussian", "additive")
    ]
    best = min(ratio for name, ratio in ratios.items() if name.startswith("dot"))
    cheap = max(ratios[f"anyscore, {s}"] for s in ("gatv2", "laplace", "gaussian"))
    dot, others, additive = record["targets"]
    assert dot["name"] == f"dot product ÷ scaled_dot: {SHAPE}, forward"
    assert (dot["value"], dot["met"]) == (best, True)
    assert others["name"].startswith("dot product ÷ gatv2, laplace, gaussian")
    assert (others["value"], others["met"]) == (best / cheap, False)
    assert additive["value"] == best / ratios["anyscore, additive"]
    assert "| 2, 5, 7, 11, 3 + backward |" in (tmp_path / "bench.md").read_text(encoding="utf-8")


def test_who_gets_too_slow_drops_out_of_the_growth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weighs(None, monkeypatch)
    monkeypatch.setattr("benchmarks.stages._TOO_SLOW", 1e-9)
    settings = Settings((SHAPE,), rivals=("dot",), parts=("growth",), lengths=(8, 16), pace=QUICK)
    record = bench(settings, tmp_path)
    first, second = (r["entrants"][1] for r in record["results"][:2])
    assert first["problem"] is None
    assert second["problem"].startswith("would take about")
    assert second["ms"] is None


def test_ctrl_c_keeps_what_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def some(work: Work) -> Any:
        if work.training:
            raise KeyboardInterrupt
        return RIVALS["eager"].variants(work)

    monkeypatch.setitem(RIVALS, "dot", Rival("dot", some))
    out = tmp_path / "run"
    result = run(out, "--rivals", "dot", "--parts", "speed")
    assert result.exit_code == 130
    assert "Stopped. Writing the results so far" in plain(result.output)
    record = json.loads((out / "bench.json").read_text(encoding="utf-8"))
    assert record["interrupted"]
    assert [r["passes"] for r in record["results"]] == [FORWARD, TRAINING]
    assert record["results"][0]["entrants"][1]["ratio"] is not None
    assert sorted(path.name for path in out.iterdir()) == ["bench.json", "bench.md", "bench.png"]


def test_a_wrong_rival_is_called_wrong_and_quiet_shows_the_summary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(RIVALS, "dot", Rival("dot", RIVALS["dot"].variants))  # a right dot product
    result = run(tmp_path / "run", "--rivals", "dot", "--parts", "speed", "--quiet")
    assert result.exit_code == 0
    assert "Ctrl-C" not in result.output
    assert result.output.startswith("Time ÷ time of anyscore, medians")
    words = (tmp_path / "run" / "bench.md").read_text(encoding="utf-8")
    assert "| 2, 5, 7, 11, 3 | wrong |" in words
    assert "- dot: wrong: its output is off" in words


def test_when_anyscore_is_wrong_the_status_is_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = Rival("anyscore", RIVALS["dot"].variants)
    monkeypatch.setattr("benchmarks.rivals.OURS", wrong)
    result = run(tmp_path / "run", "--rivals", "eager", "--parts", "speed")
    assert result.exit_code == 1
    assert "anyscore: wrong: its output is off" in plain(result.output)
    words = (tmp_path / "run" / "bench.md").read_text(encoding="utf-8")
    assert "- anyscore: wrong: its output is off" in words


BAD_INPUT: list[tuple[tuple[str, ...], str]] = [
    (("--shape", f"{10**6},1,{10**6},64,64"), "needs about"),
    (("--score", "Additive"), "got 'Additive'; did you mean 'additive'?"),
    (("--rivals", ","), "--rivals: expected names, got none; there are eager, blocks, compile"),
    (("--rivals", "cdist"), "--rivals: cdist cannot compute additive; it can laplace, gaussian"),
    (("--parts", "sped"), "did you mean 'speed'?"),
    (("--framework", "theano"), "--framework: expected one of torch, jax, tensorflow, mxnet"),
    (("--framework", "torch", "--rivals", "dot"), "--rivals: expected one of formula, got 'dot'"),
    (("--framework", "torch", "--score", "laplace"), "is measured with --score additive"),
    (("--framework", "torch", "--device", "cuda"), "--framework is measured on the CPU"),
    (("--framework", "torch", "--dtype", "bfloat16"), "--framework is measured in float32"),
    (("--device", "cuda", "--parts", "speed"), "--parts: expected one of forward, training"),
    (("--device", "tpu"), "--device: expected one of cpu, cuda, got 'tpu'"),
    (("--minutes", "0"), "--minutes: expected more than 0, got 0"),
    (("--threads", "0"), "--threads: expected 1 or more, got 0"),
    (("--dtype", "float8"), "--dtype: expected one of float32, bfloat16, got 'float8'"),
]


@pytest.mark.parametrize(("options", "message"), BAD_INPUT, ids=lambda value: str(value)[:30])
def test_bad_input_is_one_clear_line(
    options: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    check_refused(call(*options, "--out", out, width=300), message)
    assert not out.exists()


def test_a_framework_against_what_its_user_would_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    result = call("--framework", "torch", "--quick", "--shape", "2,5,7,11,3", "--out", out)
    assert result.exit_code == 0, result.output
    record = json.loads((out / "bench.json").read_text(encoding="utf-8"))
    assert [(r["shape"], r["passes"]) for r in record["results"]] == [
        (list(SMALL), FORWARD), (list(SMALL), TRAINING),
        ([2, 5, 7, 11, 3], FORWARD), ([2, 5, 7, 11, 3], TRAINING),
    ]  # fmt: skip
    assert all(e["ratio"] for r in record["results"] for e in r["entrants"])
    assert LARGE == (4, 512, 512, 128, 128)
    assert "torch, eager" in plain(result.output)


def test_what_is_left_out_as_the_time_is_over_is_said(tmp_path: Path) -> None:
    result = run(tmp_path / "run", "--rivals", "dot", "--minutes", "0.1")
    assert result.exit_code == 0
    assert "Left out, as the time was over: speed; growth" in plain(result.output)
    assert "Nothing was measured." in plain(result.output)


def test_json_is_the_file(tmp_path: Path) -> None:
    told = run(tmp_path / "run", "--rivals", "dot", "--parts", "speed", "--json")
    record = json.loads(told.stdout)
    assert record == json.loads((tmp_path / "run" / "bench.json").read_bytes())
    assert record["command"].startswith("python -m benchmarks")


def test_rivals_compute_what_there_is() -> None:
    for rival in RIVALS.values():
        assert set(rival.scores) <= set(FORMULAS)
        assert set(rival.tasks) <= {*TASKS, "graph", "packed", "location"}


def test_help_teaches_and_does_not_wait_for_pytorch() -> None:
    result = call("--help")
    for option in ("--shape", "--score", "--rivals", "--parts", "--threads", "--dtype", "--quick",
                   "--out", "--device", "--framework", "--minutes", "--limit"):  # fmt: skip
        assert option in result.output
    assert "python -m benchmarks --quick" in result.output
    assert max(map(len, result.output.splitlines())) <= 80
    program = "import sys, benchmarks.__main__; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)
