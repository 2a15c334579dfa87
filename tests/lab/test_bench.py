"""`anyscore bench`: a wrong rival gets no speed; files, mistakes and interrupts."""

from __future__ import annotations

import errno
import importlib
import itertools
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from anyscore.lab.bench import variants
from anyscore.lab.bench.comparison import Comparison, Contestant, measure, prepare, result
from anyscore.lab.bench.formulas import FORMULAS
from anyscore.lab.bench.rivals import Rival, Unavailable, Variant
from anyscore.lab.bench.runner import Runner
from anyscore.lab.bench.timing import Pace, interleave, spread
from anyscore.lab.bench.variants import OURS, RIVALS
from anyscore.lab.bench.weigh import weigh
from anyscore.lab.bench.work import FORWARD, TRAINING, Shape, Work
from anyscore.score import SCORES
from helpers.by_pair import by_pair
from lab.cli.test_cli import check_refused
from lab.command_line import call, check_help_does_not_wait_for_pytorch, plain

SHAPE = Shape(2, 5, 7, 11, 3)
COMMAND = importlib.import_module("anyscore.lab.cli.bench")
QUICK = Pace(rounds=3, seconds=0.01, turn=1e-3)


def fake(change: Callable[[list[Tensor]], Any], name: str = "fake", how: str = "by magic") -> Rival:
    """Return a rival whose answer is the right answer after `change`."""

    def variants(work: Work) -> list[Variant]:
        right = list(work.truth(work.score).values())
        return [Variant(how, lambda: lambda: change([x.clone() for x in right]))]

    return Rival(name, variants)


def raises(found: list[Tensor]) -> list[Tensor]:
    raise RuntimeError("no such kernel\nand a long story")


def interrupted(found: list[Tensor]) -> list[Tensor]:
    raise KeyboardInterrupt


def prepared(rival: Rival, work: Work) -> dict[str, Any]:
    """Prepare a contestant; return the answer."""
    return Runner("cpu").prepare(rival, work)


def compared(rivals: Sequence[Rival], work: Work) -> list[dict[str, Any]]:
    """Compare contestants; return the results."""
    some, runner = [Contestant(rival.name, rival, work) for rival in rivals], Runner("cpu")
    prepare(some, runner, lambda text: None)
    measure(some, runner, QUICK, lambda text: None)
    found: list[dict[str, Any]] = result(Comparison("speed", work, some))["entrants"]
    return found


@pytest.mark.parametrize("passes", [FORWARD, TRAINING])
@by_pair("score", FORMULAS)
@pytest.mark.parametrize("rival", [OURS, RIVALS["eager"], RIVALS["dot"]], ids=lambda r: r.name)
def test_everybody_is_right(rival: Rival, score: str, passes: str) -> None:
    answer = prepared(rival, Work(SHAPE, score, passes))
    assert answer["problem"] is None
    assert None not in answer["ways"].values()
    assert answer["error"] < 1e-5


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("passes", [FORWARD, TRAINING])
@pytest.mark.parametrize("score", ["additive", "gaussian"])
def test_what_is_compiled_is_right(
    score: str, passes: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rival "compile" is right in plain PyTorch, without compilation."""
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    answer = prepared(RIVALS["compile"], Work(SHAPE, score, passes, dtype))
    assert answer["problem"] is None
    assert answer["error"] < (1e-5 if dtype == "float32" else 5e-2)


def test_prepared_keys_are_right() -> None:
    work = Work(SHAPE._replace(queries=1))
    assert work.prepared
    assert prepared(OURS, work)["how"] == "anyscore.attention with prepared keys"


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
    ours, other = compared([fake(list), fake(change, "wrong")], work)
    assert ours["ratio"] == {"median": 1, "low": 1, "high": 1, "rounds": 3}
    assert other["problem"].startswith(problem)
    assert (other["ms"], other["ratio"]) == (None, None)


def test_a_right_variant_is_taken_and_reasons_are_kept() -> None:
    right, wrong = fake(list), fake(lambda found: [found[0] + 1], how="wrongly")
    both = Rival("both", lambda work: [*wrong.variants(work), *right.variants(work)])
    answer = prepared(both, Work(SHAPE))
    assert answer["problem"] is None
    assert list(answer["ways"]) == ["wrongly", "by magic"]
    assert answer["ways"]["wrongly"] is None
    assert prepared(Rival("no", unavailable), Work(SHAPE))["problem"] == "not on Sundays"
    big = Rival("big", RIVALS["eager"].variants, copies=(10**9, 10**9))
    assert prepared(big, Work(SHAPE))["problem"].startswith("would need about")


def unavailable(work: Work) -> list[Variant]:
    raise Unavailable("not on Sundays")


def test_a_part_of_the_rows_is_enough_for_every_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work(Shape(1, 40, 6, 8, 3), passes=TRAINING)
    monkeypatch.setattr("anyscore.lab.bench.work._CHECKED", {"cpu": 5 * 6 * 8})
    assert work.checked_rows.tolist() == [0, 9, 19, 29, 39]
    whole = list(work.truth("additive").values())
    assert [x.shape[1] for x in whole[:2]] == [5, 5]
    assert prepared(RIVALS["eager"], work)["problem"] is None
    assert "gradient of the key" in prepared(fake(WRONG[1][0]), work)["problem"]


def test_what_is_timed_has_a_gradient_in_every_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anyscore.lab.bench.work._CHECKED", {"cpu": 5 * 6 * 8})
    work = Work(Shape(1, 40, 6, 8, 3), passes=TRAINING)
    assert int((work.upstream != 0).any(-1).sum()) == 5
    work.checking(False)
    assert int((work.upstream != 0).any(-1).sum()) == 40


def test_truth_in_pieces_is_truth(monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work(SHAPE, passes=TRAINING)
    whole = work.truth("additive")
    assert list(whole)[1:] == [f"gradient of the {x}" for x in work.inputs]
    monkeypatch.setattr("anyscore.lab.bench.work._AT_ONCE", {"cpu": 2 * 2 * 7 * 11})
    torch.testing.assert_close(work.truth("additive"), whole)


def test_ratios_are_of_the_same_round() -> None:
    rounds: list[list[str]] = []

    def takes(name: str, seconds: float) -> Callable[[], float]:
        def turn() -> float:
            rounds[-1].append(name)
            return seconds * len(rounds)  # the machine gets slower and slower

        return turn

    calls = {"ours": 0.03, "slow": 0.15, "slowest": 25.0}
    pace = Pace(rounds=8, seconds=0.61)
    counts = [pace.turns(seconds) for seconds in calls.values()]
    assert counts == [8, 4, 1]
    times: list[dict[int, float]] = [{}, {}, {}]
    turns = [takes(*item) for item in calls.items()]
    interleave(turns, counts, times, lambda text: rounds.append([]))
    ratios = [spread([t / times[0][n] for n, t in some.items()]) for some in times]
    assert ratios[1] == pytest.approx({"median": 5, "low": 5, "high": 5, "rounds": 4})
    assert ratios[2]["rounds"] == 1
    assert [sorted(names) for names in rounds[:2]] == [["ours", "slow", "slowest"], ["ours"]]


def test_everyone_follows_everyone_else() -> None:
    order: list[int] = []

    def turn_of(i: int) -> Callable[[], None]:
        return lambda: order.append(i)

    interleave([turn_of(i) for i in range(4)], [24] * 4, [{} for _ in range(4)])
    rounds = [order[k : k + 4] for k in range(0, len(order), 4)]
    assert len(rounds) == 24
    assert all(sorted(names) == [0, 1, 2, 3] for names in rounds)
    assert {names[0] for names in rounds} == {0, 1, 2, 3}
    follows = {pair for names in rounds for pair in itertools.pairwise(names)}
    assert follows == set(itertools.permutations(range(4), 2))


def test_memory_is_that_of_one_call_in_a_process_that_may_end() -> None:
    work = Work(Shape(1, 256, 512, 64, 8))  # 32 MiB for each element of the formula
    for name, how, low, high in (
        ("dot", "bmm, softmax, bmm", 0, 8),
        ("eager", "the formula, broadcast", 60, 80),
    ):
        mib, problem = weigh(RIVALS[name], how, work, 1)
        assert problem is None
        assert mib is not None
        assert low < mib < high
    mib, problem = weigh(Rival("ends", sys.exit), "", work, 1)
    assert mib is None
    assert problem is not None
    assert problem.startswith("failed: the process ended with status 1: Work(")
    assert weigh(Rival("raises", os.fspath), "", work, 1)[1] == (
        "failed: TypeError: expected str, bytes or os.PathLike object, not Work"
    )
    big = Rival("big", variants.eager, copies=(10**9, 10**9))
    assert weigh(big, "", work, 1)[1] == "would need about 31250000 GiB"


def run(out: Path, *options: str) -> Any:
    sizes = ("--shape", "2,5,7,11,3", "--shape", "3,1,6,5,4")
    return call("bench", "--quick", "--threads", "1", *sizes, "--out", out, *options, width=100)


def read(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "bench.json").read_text(encoding="utf-8"))
    return found


@pytest.fixture
def _short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anyscore.lab.bench.timing.Pace", lambda **options: QUICK)


@pytest.mark.usefixtures("_short_turns")
def test_the_command_ends_with_a_table_and_two_files(tmp_path: Path) -> None:
    out = tmp_path / "run"
    result = run(out)
    assert result.exit_code == 0, result.output
    record = read(out)
    assert record["settings"]["shapes"] == [[2, 5, 7, 11, 3], [3, 1, 6, 5, 4]]
    assert record["settings"]["rivals"] == ["eager", "dot"]
    assert not record["interrupted"]
    assert record["machine"]["threads"] == 1
    assert list(dict.fromkeys(r["score"] for r in record["results"])) == list(FORMULAS)
    assert [(r["passes"], r["prepared"]) for r in record["results"][:4]] == [
        (FORWARD, False), (TRAINING, False), (FORWARD, True), (TRAINING, False)
    ]  # fmt: skip
    for r in record["results"]:
        for entrant in r["entrants"]:
            assert set(entrant) == {"name", "how", "ways", "ms", "ratio", "error", "problem"}
            assert entrant["problem"] is None
            assert entrant["ratio"] is not None
    words = (out / "bench.md").read_text(encoding="utf-8")
    assert "| additive | 3, 1, 6, 5, 4, prepared keys |" in words
    assert "- dot: scaled_dot_product_attention, 4-D" in words or "- dot: bmm" in words
    said = result.output.splitlines()
    head = said.index(next(line for line in said if line.startswith("laplace, time ÷ anyscore's")))
    assert said[head].split()[-3:] == ["anyscore", "eager", "dot"]
    assert said[head + 2].startswith("2, 5, 7, 11, 3 + backward ")
    ratio = record["results"][8]["entrants"][1]["ratio"]["median"]
    assert f"{ratio:.3g}" in said[head + 1]
    assert sorted(path.name for path in out.iterdir()) == ["bench.json", "bench.md"]


@pytest.mark.usefixtures("_short_turns")
def test_memory_has_a_line_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = iter([0.5, 1234.5] * 2)
    monkeypatch.setattr("anyscore.lab.bench.run.weigh", lambda *_: (next(sizes), None))
    out = tmp_path / "run"
    result = call("bench", "--score", ["dot", "gatv2"][1], "--shape", "2,5,7,11,3",
                  "--rivals", "eager", "--threads", "1", "--out", out, width=100)  # fmt: skip
    assert result.exit_code == 0, result.output
    assert [line.split() for line in result.output.splitlines() if "MiB" in line] == [
        ["MiB", "0.5", "1,234"]
    ] * 2
    assert [e["mib"] for r in read(out)["results"] for e in r["entrants"]] == [0.5, 1234.5] * 2
    words = (out / "bench.md").read_text(encoding="utf-8")
    assert "| gatv2 | 2, 5, 7, 11, 3 + backward | 0.5 | 1,234 |" in words


@pytest.mark.usefixtures("_short_turns")
def test_edges_of_a_graph_are_measured_without_a_shape(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("anyscore.lab.bench.graphs.EDGES", 600)
    monkeypatch.setattr(COMMAND, "QUICK_SHAPES", ("2,5,7,11,3",))
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    out = tmp_path / "run"
    result = call("bench", "--quick", "--score", "gatv2", "--rivals", "eager,compile,dot",
                  "--threads", "1", "--out", out, width=100)  # fmt: skip
    assert result.exit_code == 0, result.output
    found = [r for r in read(out)["results"] if "edges" in r]
    assert [(r["edges"], r["shape"], r["passes"]) for r in found] == [
        (60, [4, 3, 3, 32, 32], FORWARD), (60, [4, 3, 3, 32, 32], TRAINING)
    ]  # fmt: skip
    for r in found:
        *others, dot = r["entrants"]
        assert [e["problem"] for e in others] == [None] * 3
        assert all(e["error"] < 1e-5 for e in others)
        assert dot["problem"] == "PyTorch's dot product takes no edges"
    words = (out / "bench.md").read_text(encoding="utf-8")
    assert "| gatv2 | 3 nodes, 60 edges + backward |" in words


@pytest.mark.usefixtures("_short_turns")
def test_work_is_left_out_when_the_time_is_over(tmp_path: Path) -> None:
    out = tmp_path / "run"
    result = run(out, "--score", "laplace", "--minutes", "0.7")  # less than 45 seconds
    assert result.exit_code == 0, result.output
    record = read(out)
    assert record["results"] == []
    assert record["left_out"][1] == "laplace, 2, 5, 7, 11, 3 + backward"
    assert "Left out, as the time was over: laplace, 2, 5, 7" in plain(result.output)
    assert "Left out, as the time was over:" in (out / "bench.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("options", "scores", "edges"),
    [
        ((), ("additive",), 400_000),
        (("--quick",), ("additive",), 40_000),
        (("--score", "laplace"), ("laplace",), 0),
        (("--shape", "1,2,3,4,5"), ("additive",), 0),
    ],
)
def test_a_gpu_has_sizes_of_its_own(
    options: tuple[str, ...], scores: tuple[str, ...], edges: int, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    found = []
    monkeypatch.setattr(COMMAND, "check_gpu", lambda device: None)
    monkeypatch.setattr(COMMAND, "carry_out", lambda run, given, *_, **__: found.append(given))
    result = call("bench", "--device", "cuda", "--out", tmp_path / "run", *options)
    assert result.exit_code == 0, result.output
    (settings,) = found
    assert (settings.scores, settings.edges, settings.minutes) == (scores, edges, 8)
    assert settings.dtype == "bfloat16"
    if not options:
        queries = [(shape.queries, shape.keys) for shape in settings.shapes]
        assert queries[:3] == [(4096, 4096), (1, 4096), (1, 65536)]


@pytest.mark.usefixtures("_short_turns")
def test_quiet(tmp_path: Path) -> None:
    out = tmp_path / "quiet"
    told = run(out, "--score", "laplace", "--rivals", "eager", "--quiet")
    assert told.stdout.splitlines() == [f"bench.json, bench.md in {out}"]


def replaced(monkeypatch: pytest.MonkeyPatch, rival: Rival) -> tuple[str, ...]:
    """Register a rival as "dot"; return the options of a short run."""
    monkeypatch.setitem(RIVALS, "dot", rival)
    return "--score", "additive", "--rivals", "dot"


@pytest.mark.usefixtures("_short_turns")
def test_a_wrong_rival_is_called_wrong_in_every_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = run(tmp_path / "run", *replaced(monkeypatch, fake(WRONG[0][0], "dot")))
    assert result.exit_code == 0
    assert "dot: wrong: its output is off by 0.01 of the largest entry" in plain(result.output)
    words = (tmp_path / "run" / "bench.md").read_text(encoding="utf-8")
    (row,) = (
        line for line in words.splitlines() if line.startswith("| additive | 2, 5, 7, 11, 3 |")
    )
    assert row.endswith("ms | wrong |")


@pytest.mark.usefixtures("_short_turns")
def test_when_anyscore_is_wrong_there_are_no_ratios_and_the_status_is_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("anyscore.lab.bench.run.OURS", fake(WRONG[0][0], "anyscore"))
    result = run(tmp_path / "run", "--score", "additive", "--rivals", "dot")
    assert result.exit_code == 1
    assert "anyscore: wrong" in plain(result.output)
    entrants = [e for r in read(tmp_path / "run")["results"] for e in r["entrants"]]
    assert all(e["ratio"] is None for e in entrants)


@pytest.mark.usefixtures("_short_turns")
def test_ctrl_c_keeps_what_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def some(work: Work) -> list[Variant]:
        return fake(interrupted if work.training else list).variants(work)

    out = tmp_path / "run"
    result = run(out, *replaced(monkeypatch, Rival("dot", some)))
    assert result.exit_code == 130
    assert "Stopped. Writing the results so far" in plain(result.output)
    assert "Traceback" not in result.output
    record = read(out)
    assert record["interrupted"]
    assert [r["passes"] for r in record["results"]] == [FORWARD, TRAINING]
    assert record["results"][0]["entrants"][1]["ratio"] is not None
    words = (out / "bench.md").read_text(encoding="utf-8")
    assert "Interrupted: the page has the results so far." in words


BAD_INPUT: list[tuple[tuple[str, ...], str]] = [
    (("--shape", "4,512"), "--shape: expected five whole numbers of 1 or more, B,T_q,T_k,H,D_v"),
    (("--shape", "4,512,0,8,8"), "got '4,512,0,8,8'; for example 4,512,512,128,128"),
    (("--shape", "a,b,c,d,e"), "got 'a,b,c,d,e'"),
    (("--shape", f"{10**6},1,{10**6},64,64"), "needs about"),
    (("--score", "adaptive"), "--score: expected one of additive, gatv2, laplace, gaussian"),
    (("--score", "laplace,Additive"), "got 'Additive'; did you mean 'additive'?"),
    (("--score", ","), "--score: expected names, got none; there are additive, gatv2"),
    (("--rivals", ","), "--rivals: expected names, got none; there are eager, compile, dot"),
    (("--rivals", "egaer"), "--rivals: expected one of eager, compile, dot, got 'egaer'"),
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
    check_refused(call("bench", *options, "--out", out, width=300), message)
    assert not out.exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
def test_without_a_gpu_one_line_says_what_is_needed(tmp_path: Path) -> None:
    told = call("bench", "--device", "cuda", "--out", tmp_path / "run", width=300)
    check_refused(told, "--device cuda: needs an NVIDIA GPU of compute capability 8.0 (Ampere)")
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("_short_turns")
def test_json_is_the_file_and_not_spoiled_by_what_libraries_print(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def talks(found: list[Tensor]) -> list[Tensor]:
        print("compiling")
        return found

    told = run(tmp_path / "run", *replaced(monkeypatch, fake(talks, "dot")), "--json")
    record = json.loads(told.stdout)
    assert record == read(tmp_path / "run")
    assert record["results"]


@pytest.mark.usefixtures("_short_turns")
def test_a_full_disk_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("os.fsync", full)
    out = tmp_path / "run"
    result = run(out, "--score", "additive", "--rivals", "dot")
    assert result.exit_code == 1
    assert "the disk is full; free some space" in plain(result.stderr)
    assert not out.exists()


def test_every_score_has_a_formula_of_its_pair() -> None:
    built_in = {"additive", "gatv2", "laplace", "gaussian", "scaled_dot"}
    with_outer = {"euclidean", "student_t", "lorentz"}
    assert set(FORMULAS) == built_in | with_outer | {"softplus"}
    assert set(FORMULAS) - {"softplus"} <= set(SCORES)


def test_help_teaches_and_does_not_wait_for_pytorch() -> None:
    result = call("bench", "--help")
    for option in ("--shape", "--score", "--rivals", "--threads", "--dtype", "--quick", "--minutes",
                   "--out", "--device", "--json", "--quiet"):  # fmt: skip
        assert option in result.output
    assert "anyscore bench --quick" in result.output
    for name in (*FORMULAS, *RIVALS):
        assert name in result.output
    assert max(map(len, result.output.splitlines())) <= 80
    check_help_does_not_wait_for_pytorch("bench")
