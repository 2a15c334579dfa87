"""`anyscore info` about the C++ core."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import anyscore
from anyscore import Plan
from anyscore.kernels import cpu
from anyscore.lab import info, plans
from lab.command_line import call, plain


def test_info_names_the_instruction_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "problem", lambda: None)
    monkeypatch.setattr(cpu, "isa", lambda: "avx512")
    said = plain(call("info", "--quiet").output)
    assert "the C++ core computes with the instruction set avx512" in said


def test_info_says_why_there_is_no_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "problem", lambda: "there is none [yet]: build it")
    result = call("info", "--quiet")
    assert result.exit_code == 0
    assert "there is none [yet]: build it" in plain(result.output)
    assert "instruction set" not in plain(result.output)


def test_info_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"numpy": {"dot": Plan("fused", "because")}, "jax": "it is broken"}
    monkeypatch.setattr(plans, "plans", lambda asked: found)
    record = json.loads(call("info", "--json").stdout)
    assert record["frameworks"]["PyTorch"].startswith("2.")
    assert record["plans"]["numpy"]["dot"]["reason"] == "because"
    assert record["plans"]["jax"] == "it is broken"
    assert "cpu" in record["devices"]


def test_quiet_info_asks_no_framework(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "plans", None)
    assert "are computed by" not in plain(call("info", "--quiet").output)
    assert json.loads(call("info", "--quiet", "--json").stdout)["plans"] == {}


def test_info_says_that_the_core_was_built_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "problem", lambda: None)
    monkeypatch.setattr(cpu, "missing_isa", lambda: "avx512")
    said = " ".join(plain(call("info", "--quiet").output).split())
    assert "built on another machine, without avx512, which this processor has" in said


@pytest.mark.parametrize(
    "missing", ["torch", *(pytest.param(x, marks=pytest.mark.weekly) for x in ("typer", "rich"))]
)
def test_without_the_packages_of_the_laboratory(missing: str) -> None:
    """`pip install anyscore` alone has `anyscore info`, as plain lines or JSON."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        program = (
            f"import sys; sys.modules[{missing!r}] = None; sys.argv[1:] = {list(arguments)}\n"
            "from anyscore.__main__ import main; main()"
        )
        return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    done = run("info", "--quiet")
    assert done.returncode == 0, done.stderr
    first, *lines = done.stdout.splitlines()
    assert first.startswith(f"anyscore {anyscore.__version__}, Python 3.")
    assert any(line.startswith("NumPy: ") for line in lines)
    record = json.loads(run("info", "--json").stdout)
    assert set(record["plans"]["numpy"]) == set(record["scores"])
    other = run("compare")
    assert other.returncode == 1
    assert "pip install 'anyscore[lab]'" in other.stderr


def test_info_knows_every_device_of_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a device without kernels info has the reference, and the memory that it needs."""
    for module in (torch.cuda, torch.backends.mps, torch.xpu):
        monkeypatch.setattr(module, "is_available", lambda: True)
    makers = plans._makers("torch")
    assert list(makers) == ["torch cpu", "torch cuda", "torch mps", "torch xpu"]
    with FakeTensorMode():
        for place, why in (("mps", "no kernels for mps"), ("xpu", "ANYSCORE_UNTRIED=1")):
            found = plans._plan("additive", makers[f"torch {place}"])
            assert found.route == "reference"
            assert why in found.reason
            assert found.reason.endswith("; the reference needs 512 MiB or more")


@pytest.mark.parametrize(
    ("texts", "quotas"),
    [
        (("50000 100000\n",), [1]),
        (("250000 100000\n",), [3]),
        (("max 100000\n",), []),
        (("150000\n", "100000\n"), [2]),
        (("-1\n", "100000\n"), []),
        ((), []),
    ],
)
def test_trials_fit_the_processors_of_a_container(
    texts: tuple[str, ...], quotas: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = tuple(str(tmp_path / str(n)) for n in range(max(1, len(texts))))
    for file, text in zip(files, texts, strict=False):
        Path(file).write_text(text, "ascii")
    monkeypatch.setattr(info, "_CGROUPS", (files, (str(tmp_path / "none"),)))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    assert info.room_for_trials("cpu") == min([cores or 1, *quotas])
    assert info.room_for_trials("cuda:0") == 1
