"""The benchmark: who is wrong gets no speed; the command, its files, mistakes and interrupts."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import call, check_help_does_not_wait_for_pytorch, plain
from test_cli import check_refused
from torch import Tensor

from anyscore.lab.bench import work as bench_work
from anyscore.lab.bench.memory import peak_growth
from anyscore.lab.bench.parts import Settings
from anyscore.lab.bench.race import Entrant, Pace, enter, race
from anyscore.lab.bench.rival import Rival, Unavailable, Way
from anyscore.lab.bench.rivals import OURS, RIVALS
from anyscore.lab.bench.run import bench
from anyscore.lab.bench.work import FORMULAS, FORWARD, TRAINING, Shape, Work, truth

SHAPE = Shape(2, 5, 7, 11, 3)
QUICK = Pace(rounds=3, seconds=0.01)
IN_TORCH = [OURS, *(RIVALS[name] for name in ("eager", "blocks", "cdist", "dot"))]


@pytest.fixture(autouse=True)
def _short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anyscore.lab.bench.race._SHORTEST", 1e-3)


def fake(change: Callable[[list[Tensor]], Any], name: str = "fake", how: str = "by magic") -> Rival:
    """A rival whose answer is the right one, changed."""

    def ways(work: Work) -> list[Way]:
        right = truth(work, work.score)
        return [Way(how, lambda: lambda: change([x.clone() for x in right]))]

    return Rival(name, ways)


def raises(found: list[Tensor]) -> list[Tensor]:
    raise RuntimeError("no such kernel\nand a long story")


def interrupted(found: list[Tensor]) -> list[Tensor]:
    raise KeyboardInterrupt


def entered(rival: Rival, work: Work) -> Entrant:
    entrant = Entrant(rival.name, rival, work)
    enter(entrant, {})
    return entrant


@pytest.mark.parametrize("passes", [FORWARD, TRAINING])
@pytest.mark.parametrize(
    ("rival", "score"),
    [(rival, score) for rival in IN_TORCH for score in rival.scores],
    ids=lambda value: getattr(value, "name", value),
)
def test_every_rival_is_right(
    rival: Rival, score: str, passes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("anyscore.lab.bench.torch._BLOCK", 2 * 2 * 7 * 11)
    entrant = entered(rival, Work(SHAPE, score, passes))
    assert entrant.problem is None
    assert entrant.error is not None
    assert entrant.error < 1e-5


def test_prepared_keys_are_right() -> None:
    work = Work(SHAPE._replace(queries=1))
    assert work.prepared
    assert entered(OURS, work).how == "anyscore.attention with prepared keys"


WRONG: list[tuple[Callable[[list[Tensor]], Any], str]] = [
    (lambda found: [found[0] * 1.01, *found[1:]], "wrong: its output is off by 0.01 of"),
    (lambda found: [*found[:2], -found[2], *found[3:]], "wrong: its gradient of the key is off"),
    (lambda found: [*found[:4], found[4] + 1], "wrong: its gradient of the weight is off"),
    (lambda found: [found[0] / 0, *found[1:]], "wrong: its output is not finite"),
    (lambda found: found[:3], "wrong: it gives no gradient of the value"),
    (lambda found: [found[0][..., :2], *found[1:]], "wrong: its output has the shape (2, 5, 2)"),
    (raises, "failed: RuntimeError: no such kernel"),
]


@pytest.mark.parametrize(("change", "problem"), WRONG, ids=[text for _, text in WRONG])
def test_who_is_wrong_gets_no_speed(change: Callable[..., Any], problem: str) -> None:
    work = Work(SHAPE, passes=TRAINING)
    ours, other = race(
        [Entrant(rival.name, rival, work) for rival in (fake(list), fake(change, "wrong"))], QUICK
    )
    assert ours["ratio"] == {"median": 1, "low": 1, "high": 1, "rounds": 3}
    assert other["problem"].startswith(problem)
    assert (other["ms"], other["ratio"]) == (None, None)


def test_a_right_way_is_taken_and_reasons_are_kept() -> None:
    right, wrong = fake(list), fake(lambda found: [found[0] + 1], how="wrongly")
    both = Rival("both", lambda work: [*wrong.ways(work), *right.ways(work)])
    entrant = entered(both, Work(SHAPE))
    assert entrant.problem is None
    assert list(entrant.ways) == ["wrongly", "by magic"]
    assert entrant.ways["wrongly"] is None
    assert entered(Rival("no", unavailable), Work(SHAPE)).problem == "not on Sundays"
    big = Rival("big", RIVALS["eager"].ways, copies=(10**9, 10**9))
    assert str(entered(big, Work(SHAPE)).problem).startswith("would need about")
    backward = Work(SHAPE, passes=TRAINING)
    assert "no backward on the CPU" in str(entered(RIVALS["flex"], backward).problem)
    missing = Rival("missing", right.ways, package="no_such_package")
    assert entered(missing, Work(SHAPE)).problem == "no_such_package is not installed"


def unavailable(work: Work) -> list[Way]:
    raise Unavailable("not on Sundays")


def test_a_part_of_the_rows_is_enough_for_every_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work(Shape(1, 40, 6, 8, 3), passes=TRAINING)
    monkeypatch.setattr(bench_work, "_CHECKED", 5 * 6 * 8)
    assert work.checked_rows.tolist() == [0, 9, 19, 29, 39]
    whole = truth(work, "additive")
    assert [x.shape[1] for x in whole[:2]] == [5, 5]
    assert entered(RIVALS["eager"], work).problem is None
    assert "gradient of the key" in str(entered(fake(WRONG[1][0]), work).problem)


def test_truth_in_pieces_is_truth(monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work(SHAPE, "gatv2", TRAINING)
    whole = truth(work, "gatv2")
    monkeypatch.setattr(bench_work, "_AT_ONCE", 2 * 2 * 7 * 11)
    for x, y in zip(truth(work, "gatv2"), whole, strict=True):
        torch.testing.assert_close(x, y)


def test_ratios_are_of_the_same_round_and_the_order_rotates(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [0.0]
    rounds: list[list[str]] = [[]]

    def takes(name: str, seconds: float) -> Entrant:
        def run(found: list[Tensor]) -> Sequence[Tensor]:
            clock[0] += seconds * len(rounds)  # the machine gets slower and slower
            rounds[-1].append(name)
            return found

        return Entrant(name, fake(run, name), work)

    def busy(text: str) -> None:
        if text.startswith("round"):
            rounds.append([])

    monkeypatch.setattr("anyscore.lab.bench.race.time.perf_counter", lambda: clock[0])
    work = Work(SHAPE)
    entrants = [takes("ours", 0.03), takes("slow", 0.15), takes("slowest", 25.0)]
    _, slow, slowest = race(entrants, Pace(rounds=8, seconds=0.61), busy)
    assert slow["ratio"] == pytest.approx({"median": 5, "low": 5, "high": 5, "rounds": 4})
    assert slowest["ratio"]["rounds"] == 1
    assert [sorted(turns) for turns in rounds[1:3]] == [["ours", "slow", "slowest"], ["ours"]]
    first = [turns[0] for turns in rounds[1:] if len(turns) == 2]
    assert set(first) == {"ours", "slow"}


def test_memory_is_that_of_one_call() -> None:
    work = Work(Shape(1, 256, 512, 64, 8))  # 32 MiB for each element of the formula
    plain_way = RIVALS["eager"].ways(work)[0].how
    assert 60 < peak_growth("eager", plain_way, work, 1)["mib"] < 80
    assert 0 < peak_growth("dot", "bmm, softmax, bmm", work, 1)["mib"] < 8
    assert "status" in peak_growth("nobody", "", work, 1)["problem"]


def run(out: Path, *options: str) -> Any:
    sizes = ("--shape", "2,5,7,11,3", "--shape", "3,1,6,5,4")
    return call("bench", "--quick", "--threads", "1", *sizes, "--out", out, *options, width=100)


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
    assert scores == ["gatv2", "laplace", "gaussian", "scaled_dot"]
    words = (out / "bench.md").read_text(encoding="utf-8")
    assert "| 3, 1, 6, 5, 4, prepared keys |" in words
    assert "- dot: scaled_dot_product_attention, 4-D" in words or "- dot: bmm" in words
    assert (out / "bench.png").read_bytes().startswith(b"\x89PNG")
    assert "time ÷ anyscore" in result.output
    assert "blocks: small enough for one block" in plain(result.output)


def test_json_and_quiet(tmp_path: Path) -> None:
    given = ("--rivals", "eager", "--parts", "speed")
    told = run(tmp_path / "json", *given, "--json")
    assert json.loads(told.stdout) == json.loads((tmp_path / "json" / "bench.json").read_bytes())
    told = run(tmp_path / "quiet", *given, "--quiet")
    assert "Ctrl-C" not in told.stdout
    assert f"bench.json, bench.md, bench.png in {tmp_path / 'quiet'}" in told.stdout


def test_growth_lists_time_and_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "anyscore.lab.bench.parts.peak_growth", lambda *_: {"mib": 2.5, "problem": None}
    )
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


def test_who_gets_too_slow_drops_out_of_the_growth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("anyscore.lab.bench.parts.peak_growth", lambda *_: {"mib": None})
    monkeypatch.setattr("anyscore.lab.bench.parts._GROWTH_LIMIT", 1e-9)
    settings = Settings((SHAPE,), rivals=("dot",), parts=("growth",), lengths=(8, 16), pace=QUICK)
    record = bench(settings, tmp_path)
    first, second = (r["entrants"][1] for r in record["results"][:2])
    assert first["problem"] is None
    assert second["problem"].startswith("would take about")
    assert second["ms"] is None


def test_a_wrong_rival_is_called_wrong_in_every_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(RIVALS, "dot", fake(WRONG[0][0], "dot"))
    result = run(tmp_path / "run", "--rivals", "dot", "--parts", "speed")
    assert result.exit_code == 0
    assert "dot: wrong: its output is off by 0.01 of the largest entry" in plain(result.output)
    words = (tmp_path / "run" / "bench.md").read_text(encoding="utf-8")
    assert "| 2, 5, 7, 11, 3 | wrong |" in words


def test_when_anyscore_is_wrong_there_are_no_ratios_and_the_status_is_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("anyscore.lab.bench.parts.OURS", fake(WRONG[0][0], "anyscore"))
    result = run(tmp_path / "run", "--rivals", "dot", "--parts", "speed")
    assert result.exit_code == 1
    assert "anyscore: wrong" in plain(result.output)
    record = json.loads((tmp_path / "run" / "bench.json").read_text(encoding="utf-8"))
    assert all(e["ratio"] is None for r in record["results"] for e in r["entrants"])


def test_ctrl_c_keeps_what_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def ways(work: Work) -> list[Way]:
        return fake(interrupted if work.training else list).ways(work)

    monkeypatch.setitem(RIVALS, "dot", Rival("dot", ways))
    out = tmp_path / "run"
    result = run(out, "--rivals", "dot", "--parts", "speed")
    assert result.exit_code == 130
    assert "Stopped. Writing what was measured" in plain(result.output)
    assert "Traceback" not in result.output
    record = json.loads((out / "bench.json").read_text(encoding="utf-8"))
    assert record["interrupted"]
    assert [r["passes"] for r in record["results"]] == [FORWARD, TRAINING]
    assert record["results"][0]["entrants"][1]["ratio"] is not None
    assert sorted(path.name for path in out.iterdir()) == ["bench.json", "bench.md", "bench.png"]


BAD_INPUT: list[tuple[tuple[str, ...], str]] = [
    (("--shape", "4,512"), "--shape: expected five whole numbers of 1 or more, B,T_q,T_k,H,D_v"),
    (("--shape", "4,512,0,8,8"), "got '4,512,0,8,8'; for example 4,512,512,128,128"),
    (("--shape", "a,b,c,d,e"), "got 'a,b,c,d,e'"),
    (("--shape", f"{10**6},1,{10**6},64,64"), "needs about"),
    (("--score", "adaptive"), "--score: expected one of additive, gatv2, laplace, gaussian"),
    (("--score", "Additive"), "got 'Additive'; did you mean additive?"),
    (("--rivals", ","), "--rivals: expected names, got none; there are eager, blocks, compile"),
    (("--rivals", "egaer"), "--rivals: expected one of eager"),
    (("--rivals", "cdist"), "--rivals: cdist cannot compute additive; it can laplace, gaussian"),
    (("--parts", "sped"), "did you mean speed?"),
    (("--threads", "0"), "--threads: expected 1 or more, got 0"),
    (("--dtype", "float8"), "--dtype: expected one of float32, bfloat16, got 'float8'"),
]


@pytest.mark.parametrize(("options", "message"), BAD_INPUT, ids=lambda value: str(value)[:30])
def test_bad_input_is_one_clear_line(
    options: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    check_refused(call("bench", *options, "--out", out, width=300), message)
    assert not out.exists()


def test_a_full_disk_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("anyscore.lab.run_folder.os.fsync", full)
    out = tmp_path / "run"
    result = run(out, "--rivals", "dot", "--parts", "speed")
    assert result.exit_code == 1
    assert "the disk is full; free some space" in plain(result.stderr)
    assert not out.exists()


def test_every_score_has_a_formula_of_its_pair() -> None:
    assert set(FORMULAS) == {"additive", "gatv2", "laplace", "gaussian", "scaled_dot"}
    for rival in RIVALS.values():
        assert set(rival.scores) <= set(FORMULAS)


def test_help_teaches_and_does_not_wait_for_pytorch() -> None:
    result = call("bench", "--help")
    for option in ("--shape", "--score", "--rivals", "--parts", "--threads", "--dtype", "--quick",
                   "--out"):  # fmt: skip
        assert option in result.output
    assert "anyscore bench --quick" in result.output
    assert max(map(len, result.output.splitlines())) <= 80
    check_help_does_not_wait_for_pytorch("bench")
