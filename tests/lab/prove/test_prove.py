"""Small made-up proofs are decided, carried out and shown."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anyscore.lab.comparison import Finished
from anyscore.lab.errors import InputError
from anyscore.lab.phrases import listed, number
from anyscore.lab.prove import names, runner
from anyscore.lab.prove.judge_claims import judge_claims
from anyscore.lab.prove.proof import Check, Part, Proof
from anyscore.lab.report.proofs import markdown, write_markdown
from anyscore.lab.trials import Outcome, Report, Trial
from anyscore.lab.verdict.judge import Measure
from anyscore.score import SCORES
from lab.command_line import call, check_help_does_not_wait_for_pytorch, plain

SHARES = {"good": 0.95, "fair": 0.6, "bad": 0.1}
COMMAND = sys.modules["anyscore.lab.cli.prove"]  # the package has a function of that name
RIGHT = Measure("right", "accuracy", bounded=True)


def train(trial: Trial, report: Report) -> Outcome:
    if trial.score == "broken":
        raise ValueError("it is broken")
    luck = np.random.default_rng([trial.seed, *trial.score.encode()])
    return Outcome({"right": (luck.random(400) < SHARES[trial.score]).astype(float).tolist()})


def made(*checks: Check, scores: tuple[str, ...] = tuple(SHARES), **more: Any) -> Proof:
    told = {x: f"the {x}" for x in ("title", "paper", "source", "words", "task", "differences")}
    part = Part("k = 3", scores, train, (RIGHT,), {"size": 1})
    return Proof("lookup", **told, parts=(part,), checks=checks, **more)


def check(score: str, least: float | None, most: float | None, beside: str | None = None) -> Check:
    return Check(f"on {score}", "k = 3", score, "right", least, most, beside)


def trials(seeds: int = 5) -> list[Finished]:
    return [
        Finished(x, {"right": np.array(train(x, print).measures["right"])}, {}, None, [], {})
        for x in (Trial(score, seed) for score in SHARES for seed in range(seeds))
    ]


@pytest.mark.parametrize(
    ("one", "state"),
    [
        (check("good", 90, None), "holds"),
        (check("good", None, 50), "fails"),
        (check("bad", 50, None), "fails"),
        (check("good", 95, None), "open"),
        (check("bad", None, 20), "holds"),
        (check("fair", 50, 70), "holds"),
        (check("good", 20, None, "fair"), "holds"),
        (check("fair", 0, None, "good"), "fails"),
        (check("fair", -60, 60, "good"), "holds"),
    ],
)
def test_a_check_is_decided_by_its_interval(one: Check, state: str) -> None:
    (found,) = judge_claims(made(one), {"k = 3": trials()})["checks"]
    assert found["state"] == state
    assert found["low"] < found["mean"] < found["high"]


def test_one_that_fails_outweighs_one_that_is_open() -> None:
    holds, is_open, fails = check("good", 90, None), check("good", 95, None), check("bad", 50, None)
    told = {
        n: judge_claims(made(*checks), {"k = 3": trials()})["verdict"]
        for n, checks in enumerate([(holds,), (holds, is_open), (holds, is_open, fails), ()])
    }
    assert list(told.values()) == ["confirmed", "undecided", "contradicted", "undecided"]


def test_more_checks_have_wider_intervals() -> None:
    one = check("fair", 50, None)
    few, many = (judge_claims(made(*[one] * n), {"k = 3": trials()})["checks"][0] for n in (1, 10))
    assert many["low"] < few["low"]
    assert many["high"] > few["high"]


@pytest.mark.parametrize("seeds", [0, 1])
def test_one_seed_decides_nothing(seeds: int) -> None:
    (found,) = judge_claims(made(check("good", 50, None)), {"k = 3": trials(seeds)})["checks"]
    assert found["state"] == "open"
    assert found["low"] is None


def test_carried_out_and_shown(tmp_path: Path) -> None:
    proof = made(
        check("good", 90, None), check("bad", 50, None),
        published={("k = 3", "good"): "99"}, picture=(lambda: b"\x89PNG drawn", "a picture"),
    )  # fmt: skip
    record = runner.run_proofs([proof], seeds=3, out=tmp_path / "run", jobs=1, here=True)
    assert json.loads((tmp_path / "run" / "proofs.json").read_text("utf-8")) == record
    (result,) = record["proofs"]
    assert result["verdict"] == "contradicted"
    assert result["processor_seconds"] > 0
    page = (tmp_path / "run" / "report.html").read_text("utf-8")
    assert "contradicted: 1 of 2 checks hold, 1 fails" in page
    assert "Of 1 finding: 0 confirmed, 0 undecided and 1 contradicted." in page
    assert 'href="lookup/k-3/report.html"' in page
    assert (tmp_path / "run" / "lookup" / "k-3" / "report.html").exists()
    write_markdown(record, tmp_path / "run", tmp_path / "proof.md")
    text = (tmp_path / "proof.md").read_text("utf-8")
    assert "> the words" in text
    assert "**Of 1 finding: 0 confirmed, 0 undecided and 1 contradicted.**" in text
    assert f"at that time:** {listed(list(SCORES))}." in text
    assert "|on bad|at least 50|" in text
    assert "✗ fails" in text
    assert "|good|99|" in text
    assert number(-0.04, 1) == "0.0"
    assert "![a picture](proof_lookup.png)" in text
    assert (tmp_path / "proof_lookup.png").read_bytes().startswith(b"\x89PNG")


def test_it_goes_on_where_it_stopped_and_more_seeds_add_to_it(tmp_path: Path) -> None:
    proof = made(check("good", 90, None))
    runner.run_proofs([proof], seeds=2, out=tmp_path, jobs=1, here=True)
    before = {x: x.stat().st_mtime_ns for x in tmp_path.rglob("trial.json")}
    record = runner.run_proofs([proof], seeds=3, out=tmp_path, jobs=1, here=True)
    assert {x: x.stat().st_mtime_ns for x in before} == before
    assert len(list(tmp_path.rglob("trial.json"))) == 9
    fewer = runner.result(proof, tmp_path, 2)
    assert fewer["checks"][0]["seeds"] == 2
    assert record["proofs"][0]["checks"][0]["seeds"] == 3
    (part,) = proof.parts
    other = replace(proof, parts=(replace(part, settings={"size": 2}),))
    with pytest.raises(InputError, match=r"settings\.size was 1, is 2"):
        runner.run_proofs([other], seeds=2, out=tmp_path, jobs=1, here=True)


def test_a_trial_that_fails_leaves_its_claim_open(tmp_path: Path) -> None:
    proof = made(check("broken", 90, None), scores=("good", "broken"))
    record = runner.run_proofs([proof], seeds=2, out=tmp_path, jobs=1, here=True)
    (result,) = record["proofs"]
    assert result["verdict"] == "undecided"
    assert "broken-seed0 failed: ValueError: it is broken." in markdown(record).decode()
    assert "it is broken" in (tmp_path / "report.html").read_text("utf-8")


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proof = made(check("good", 90, None))
    monkeypatch.setattr(COMMAND, "find", lambda asked: [proof])
    monkeypatch.setattr(runner, "run_proofs", here(runner.run_proofs))
    page = tmp_path / "page.md"
    options = ("--seeds", "3", "--out", tmp_path / "run")
    result = call("prove", "lookup", *options, "--page", page)
    assert result.exit_code == 0, result.output
    said = plain(result.output)
    assert "lookup: confirmed: 1 of 1 checks hold" in said
    assert f"Report: {tmp_path / 'run' / 'report.html'}" in said
    assert page.read_text("utf-8").startswith("# Published findings")
    again = call("prove", "lookup", *options, "--json")
    assert json.loads(again.stdout)["seeds"] == 3
    broken = made(check("broken", 90, None), scores=("good", "broken"))
    monkeypatch.setattr(COMMAND, "find", lambda asked: [broken])
    assert call("prove", *options[:3], tmp_path / "other").exit_code == 1


def here(function: Any) -> Any:
    return lambda *args, **options: function(*args, **{**options, "here": True})


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["lokup"],
            "the proof: expected one of lookup, middle, neighbours, longer, width, got 'lokup'; "
            "did you mean 'lookup'?",
        ),
        (["middle", "middle"], "middle: given twice"),
        (["--seeds", "0"], "--seeds: expected 1 to 10,000, got 0"),
        (["--jobs", "-1"], "--jobs: expected 1 to 10,000, got -1"),
        (["--out", ""], "--out: expected the name of a folder"),
    ],
)
def test_mistakes_are_one_line(arguments: list[str], said: str) -> None:
    result = call("prove", *arguments, width=300)
    assert result.exit_code == 2
    assert said in plain(result.output)
    assert len(result.stderr.strip().splitlines()) == 1


def test_help_names_every_proof_and_does_not_wait_for_pytorch() -> None:
    result = call("prove", "--help")
    assert all(name in result.output for name in names.NAMES)
    check_help_does_not_wait_for_pytorch("prove")


@pytest.mark.weekly
def test_in_processes_of_their_own(tmp_path: Path) -> None:
    """The command gives the package's proofs to other processes."""
    program = (
        "from dataclasses import replace\n"
        "from anyscore.lab.prove import lookup, names\n"
        "from anyscore.__main__ import main\n"
        "if __name__ == '__main__':\n"
        "    small = lookup.LookupTrain(4, width=8, steps=3, looked_up=8)\n"
        "    part = replace(lookup.PROOF.parts[0], scores=('gat', 'gatv2'), train=small)\n"
        "    lookup.PROOF = replace(lookup.PROOF, parts=(part,), checks=lookup.PROOF.checks[:2])\n"
        "    main()\n"
    )
    script = tmp_path / "small.py"
    script.write_text(program)
    out = tmp_path / "run"
    command = [sys.executable, str(script), "prove", "lookup", "--seeds", "1", "--jobs", "2"]
    subprocess.run([*command, "--out", str(out), "--quiet"], check=True, capture_output=True)
    record = json.loads((out / "proofs.json").read_text("utf-8"))
    assert len(list(out.rglob("trial.json"))) == 2
    assert record["proofs"][0]["checks"][0]["mean"] is not None
