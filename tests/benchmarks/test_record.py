"""A run of record: a file of measurements from a record of the benchmark, and the option for it."""

from __future__ import annotations

import importlib
import json
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from anyscore.lab.bench.work import FORWARD, TRAINING
from benchmarks import record, small_layers
from benchmarks.gpu_limits import Chip
from benchmarks.record import rows_of, workload, workloads, write
from helpers.benchmark_command import call, check_refused


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder that takes runs in place of measurements/."""
    written = tmp_path / "measurements"
    written.mkdir()
    monkeypatch.setattr(record, "FOLDER", written)
    return written


def result(**others: Any) -> dict[str, Any]:
    found = {"part": "speed", "shape": [4, 512, 512, 128, 128], "passes": FORWARD, "title": ""}
    found |= {"prepared": False, "score": "additive", "dtype": "float32", "entrants": []}
    return found | others


def entry(name: str, **others: Any) -> dict[str, Any]:
    return {"name": name, "ms": None, "ratio": None, "problem": None} | others


def spread(median: float) -> dict[str, float]:
    return {"median": median, "low": median - 1, "high": median + 1, "rounds": 9}


def test_rows_of_a_record() -> None:
    some = [
        entry("anyscore", ms=2.0, ratio=spread(1)),
        entry("eager", ms=5.00049, ratio=spread(2.50024), mib=7.5),
        entry("flex", problem="wrong: it is off"),
    ]
    growing = result(
        part="growth", shape=[1, 4096, 4096, 64, 64], passes=TRAINING,
        entrants=[entry("anyscore", ms=3.0)],
    )  # fmt: skip
    rows = rows_of({"results": [result(entrants=some), growing, result()]})
    assert [tuple(row.values()) for row in rows] == [
        ("encoder", "anyscore", "float32", "speed: ms", 2.0, None),
        ("encoder", "anyscore", "float32", "speed: time ÷ anyscore", 1.0, [0.0, 2.0]),
        ("encoder", "eager", "float32", "speed: ms", 5.0, None),
        ("encoder", "eager", "float32", "speed: MiB", 7.5, None),
        ("encoder", "eager", "float32", "speed: time ÷ anyscore", 2.5, [1.5, 3.5]),
        ("4,096 tokens", "anyscore, with gradients", "float32", "growth: ms", 3.0, None),
    ]


def test_names_of_work() -> None:
    assert all(len(x["sizes"]) == 5 for x in workloads().values())
    step = result(shape=[64, 1, 50, 256, 512], prepared=True)
    assert workload(step) == "decoder step, keys prepared"
    assert workload(result(passes=TRAINING)) == "encoder, with gradients"
    assert workload(result(shape=[2, 5, 7, 11, 3])) == "2, 5, 7, 11, 3"
    special = result(score="gaussian", title="log-sum-exp")
    assert workload(special) == "gaussian, encoder, log-sum-exp"


def test_a_file_of_measurements(tmp_path: Path) -> None:
    row = record.row("encoder", "eager", "float32", "ms", {"median": 3})
    machine = {"processor": "P", "threads": 2, "load": 0.1, "torch": "9", "device": "cpu"}
    path = write("xeon", [row, row], machine, "python -m benchmarks", tmp_path)
    assert path.name == f"xeon-{date.today()}.json"
    found = json.loads(path.read_text(encoding="utf-8"))
    assert found["rows"] == [row, row]
    assert found["versions"].keys() >= {"anyscore", "torch", "numpy"}
    assert found["machine"] == {
        "processor": "P", "instructions": None, "threads": 2, "cores": found["machine"]["cores"],
        "load": 0.1, "device": "cpu",
    }  # fmt: skip
    assert path.read_text(encoding="utf-8").count('\n  {"workload"') == 2


def test_the_command_writes_a_run_of_record(folder: Path, tmp_path: Path) -> None:
    sizes = ("--shape", "2,5,7,11,3", "--parts", "range", "--threads", "1", "--quiet")
    found = call(*sizes, "--record", "here", "--out", tmp_path / "run")
    assert found.exit_code == 0, found.output
    (path,) = folder.iterdir()
    run = json.loads(path.read_text(encoding="utf-8"))
    assert path.name.startswith("here-")
    assert run["command"].startswith("python -m benchmarks ")
    assert run["machine"]["threads"] == 1
    assert {row["quantity"] for row in run["rows"]} == {
        "range: ms", "range: time ÷ standard normal"
    }  # fmt: skip


@pytest.mark.parametrize("given", [("x", "--quick"), ("A name",)])
def test_a_quick_run_is_no_record(given: tuple[str, ...]) -> None:
    check_refused(call("--record", *given), "--record: expected a name")


def test_small_layers_write_a_run_of_record(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_layers, "TURN", 0.0)
    monkeypatch.setattr(small_layers, "ROUNDS", 1)
    monkeypatch.setattr("sys.argv", ["small_layers", "--threads", "1", "--record", "small"])
    small_layers.main()
    (path,) = folder.iterdir()
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    modes = {row["quantity"].partition(":")[0] for row in rows}
    assert modes == {"inference", "training", "training with dropout", "steps"}
    assert len(rows) == 7 * 2 + 4 + 9


def on_gpu(part: str, *entrants: dict[str, Any], **others: Any) -> dict[str, Any]:
    """Return a result on a GPU; its entrants have what `benchmarks.run` adds there."""
    about: dict[str, Any] = {"dtype": "bfloat16", "mib": None, "spread": None, "tiles": {}}
    about |= {"computes": "additive", "triples": 34_359_738_368}
    rows = [about | one for one in entrants]
    return result(part=part, device="cuda", shape=[32, 4096, 4096, 64, 64], entrants=rows, **others)


def test_a_run_on_a_gpu_fills_the_tables_of_its_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The quantities of a made-up run are those that blocks of pages ask for."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "docs"))
    pages = importlib.import_module("measurements")
    chip = Chip("H100", (9, 0), 132, 1, 1, mhz=1755.0, max_mhz=1980.0)
    slow = {"ratio": spread(4), "ms": 80.0, "spread": spread(80)}
    ours = entry("anyscore", ms=20.0, ratio=spread(1), spread=spread(20), mib=192.0)
    kernels = {"backward: sums for the key": 9.5}
    ranged = entry("anyscore, σ = ½", ms=6.0, tiles={"free": 0.8, "clamped": 0.2})
    step = {"shape": [32, 1, 65_536, 64, 64], "prepared": True}
    found = [
        on_gpu("training", ours, entry("anyscore, float32", dtype="float32", ms=22.0),
               entry("compile", **slow), entry("flex", problem="given up"), passes=TRAINING),
        on_gpu("ranges", ranged, title="by the size of the numbers"),
        on_gpu("step", ours, entry("dot", **slow), title="") | step,
        on_gpu("step, CUDA graph", ours, title="CUDA graph") | step,
        on_gpu("graphs", ours, title="degrees even", edges=400_000, score="gatv2"),
        on_gpu("kernels", entry("tanh", ms=50.0, kernels=kernels), entry("product"),
               passes=TRAINING),
    ]  # fmt: skip
    run = {"results": found, "chip": asdict(chip), "interrupted": True}
    run |= {"cut_short": ["training"], "left_out": ["small", "narrow"]}
    rows, note = rows_of(run), record.note_of(run)
    assert note == "Interrupted. Cut short: training. Left out: small, narrow."
    keys = [tuple(row.values())[:4] for row in rows]
    assert len(set(keys)) == len(keys)
    machine = {"processor": chip.described, "device": "cuda"}
    write("gpu", rows, machine, folder=tmp_path, note=note)
    monkeypatch.setattr(pages, "FOLDER", tmp_path)
    caption, _, *training = pages.block("gpu, long batch, with gradients").splitlines()
    assert "H100 (132 multiprocessors, 1.755 GHz under load, at most 1.98 GHz)" in caption
    assert caption.endswith(f"{note}*")
    assert training == [
        "|  | ms | ÷ anyscore | MiB beside inputs | 10¹² elements/s |",
        "| --- | ---: | ---: | ---: | ---: |",
        "| anyscore | 20 (19–21) | 1 | 192 | 1.72 |",
        "| anyscore, float32 | 22 | – | – | 1.56 |",
        "| `torch.compile` | 80 (79–81) | 4 (3–5) | – | 0.429 |",
    ]
    assert pages.block("gpu, step: ms").splitlines()[2:] == [
        "|  | anyscore | PyTorch's dot product |",
        "| --- | ---: | ---: |",
        "| step of 65,536 keys, keys prepared | 20 (19–21) | 80 (79–81) |",
        "| step of 65,536 keys, keys prepared, CUDA graph | 20 (19–21) | – |",
    ]
    assert "| graph of 400,000 edges, degrees even |" in pages.block("gpu, graphs: ms")
    assert pages.block("gpu, kernels: ms").splitlines()[4:] == [
        "| the whole call, forward + backward | 50 |",
        "| backward: sums for the key | 9.5 |",
    ]
    (line,) = pages.block("gpu, forward by the size of the numbers").splitlines()[4:]
    ways = "σ = ½: 80 % of the tiles with one reciprocal for four features, 20 % clamped, one"
    assert line == f"| {ways} reciprocal for two features | 6 | 1 | 5.73 | 69.5 |"
