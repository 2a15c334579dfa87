"""Trials on a Ray cluster give the numbers of this machine, also if a machine is lost midway."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster as Machines

from anyscore.lab import compare
from anyscore.lab.comparison import Comparison
from anyscore.lab.engine import run_here
from anyscore.lab.engine_ray import Cluster, run_ray
from anyscore.lab.errors import RunFailure
from anyscore.lab.trials import Outcome, Report, Trial
from helpers.hang import HANG
from lab.command_line import SMALL, call, plain
from lab.made_trials import Trainer, made
from lab.test_engine import TRIALS, contents, kinds

QUICK = {"health_check_period_ms": 1000, "health_check_failure_threshold": 10}
"""Ray notices a lost machine after ten seconds: busy machines are silent for several seconds."""


@pytest.fixture(scope="module")
def machines() -> Iterator[Machines]:
    """Yield a cluster of one node with a core; `two` adds a node and connects to the first."""
    cluster = Machines(
        initialize_head=True,
        head_node_args={"num_cpus": 1, "include_dashboard": False, "_system_config": QUICK},
    )
    yield cluster
    cluster.shutdown()


@pytest.fixture
def two(machines: Machines) -> Iterator[tuple[Cluster, Any]]:
    second = machines.add_node(num_cpus=1)
    machines.wait_for_nodes()
    with Cluster(machines.address).connected():
        yield Cluster(machines.address), second
    if second in machines.worker_nodes:
        machines.remove_node(second)


@pytest.fixture
def here(tmp_path: Path) -> dict[str, bytes]:
    list(run_here(TRIALS, Trainer(), tmp_path / "here"))
    return contents(tmp_path / "here")


@pytest.mark.weekly
def test_a_lost_machine_s_trials_begin_anew(
    two: tuple[Cluster, Any], machines: Machines, tmp_path: Path, here: dict[str, bytes]
) -> None:
    cluster, second = two
    events, places = [], dict[str, list[str]]()
    for event in run_ray(TRIALS, Trainer(seconds=2), tmp_path / "run", cluster=cluster):
        events.append(event)
        if event.kind == "began":
            places.setdefault(event.trial.name, []).append(event.details["node"])
        lost = [name for name, nodes in places.items() if nodes == [second.node_id]]
        if (
            event.kind == "progress"
            and event.trial.name in lost
            and second in machines.worker_nodes
        ):
            machines.remove_node(second, allow_graceful=False)
    assert second not in machines.worker_nodes
    moved = [nodes for nodes in places.values() if len(nodes) > 1]
    assert moved  # the lost machine ran a trial
    assert all(nodes[0] == second.node_id != nodes[1] for nodes in moved)
    ends = [x for x in kinds(events) if x[1] != "began"]
    assert sorted(ends) == sorted((trial.name, "finished") for trial in TRIALS)
    assert contents(tmp_path / "run") == here


def test_trials_tell_of_themselves_in_order(
    two: tuple[Cluster, Any], tmp_path: Path, here: dict[str, bytes]
) -> None:
    events = list(run_ray(TRIALS, Trainer(), tmp_path / "run", cluster=two[0]))
    for trial in TRIALS:
        mine = [x for x in events if x.trial == trial]
        assert [x.kind for x in mine] == ["began", *["progress"] * 3, "finished"]
        assert mine[1].details == {"step": 1, "steps": 3}
    assert contents(tmp_path / "run") == here


def test_what_fails_leaves_the_others_alone(two: tuple[Cluster, Any], tmp_path: Path) -> None:
    faults = {"raises": "KeyError: ", "killed": "Ray gave up on it", "nothing": "got NoneType"}
    trials = [Trial(score, 0) for score in (*faults, "better")]
    trainer = Trainer(faults=tuple((x, x) for x in faults))
    events = list(run_ray(trials, trainer, tmp_path, cluster=two[0]))
    ends = {x.trial.score: x for x in events if x.kind in ("failed", "finished")}
    assert {x.kind for x in ends.values()} == {"failed", "finished"}
    assert ends.pop("better").kind == "finished"
    for score, reason in faults.items():
        assert reason in ends[score].details["failure"]
        assert Comparison(tmp_path).failure(Trial(score, 0)) == ends[score].details["failure"]
    began = [x for x in events if x.kind == "began" and x.trial.score == "killed"]
    assert len(began) == 4  # a dead process may mean a lost machine


def test_closing_ends_those_at_work(two: tuple[Cluster, Any], tmp_path: Path) -> None:
    events = run_ray(TRIALS, Trainer(seconds=2 * HANG), tmp_path, jobs=1, cluster=two[0])
    assert next(events).kind == "began"
    events.close()  # type: ignore[attr-defined]
    late = time.monotonic() + HANG
    while ray.available_resources().get("CPU") != 2 and time.monotonic() < late:
        time.sleep(0.1)
    assert ray.available_resources()["CPU"] == 2
    assert Comparison(tmp_path).names() == set()


@pytest.mark.weekly
def test_a_folder_that_machines_do_not_share_is_told(
    two: tuple[Cluster, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "trials").write_text("where a folder should be")
    with pytest.raises(RunFailure, match="cannot be written"):
        list(run_ray(TRIALS[:1], Trainer(), tmp_path, cluster=two[0]))
    monkeypatch.setattr("anyscore.lab.engine_ray._PATIENCE", 0.5)
    monkeypatch.setattr(Comparison, "has", lambda *_: False)  # only in this process, which waits
    with pytest.raises(RunFailure, match="lacks even-seed0 here; give --out on a path that all"):
        list(run_ray([Trial("even", 0)], Trainer(), tmp_path / "other", cluster=two[0]))


def test_one_s_own_function_on_a_cluster(two: tuple[Cluster, Any], tmp_path: Path) -> None:
    """A cluster runs even a function that no process of this machine could get."""
    items = 50

    def train(score: str, seed: int, report: Report) -> Outcome:
        report({"epoch": 1, "valid_loss": 0.5})
        return made(Trial(score, seed), items=items)

    how: dict[str, Any] = {"seeds": 2, "measure": "exact_match"}
    here = compare(train, ["even", "better"], out=tmp_path / "here", **how)
    address = two[0].address
    there = compare(
        train, ["even", "better"], out=tmp_path / "there", engine="ray", address=address,
        log="tensorboard", **how,
    )  # fmt: skip
    assert there["verdict"] == here["verdict"]
    assert contents(tmp_path / "there") == contents(tmp_path / "here")
    assert len(list((tmp_path / "there" / "tensorboard").glob("*/*/events*"))) == 4


@pytest.mark.weekly
def test_the_command_line_takes_a_cluster(
    two: tuple[Cluster, Any], pairs: Path, tmp_path: Path
) -> None:
    def given(name: str) -> tuple[Any, ...]:
        return ("compare", pairs, "--scores", "dot,additive", *SMALL, "--out", tmp_path / name)

    result = call(*given("there"), "--engine", "ray", "--address", two[0].address)
    assert result.exit_code == 0, result.output
    assert "dot, seed 1: done" in plain(result.output)
    assert call(*given("here")).exit_code == 0
    for name in Comparison(tmp_path / "here").names():
        for file in ("items.json", "model.safetensors"):
            place = Path("trials") / name / file
            assert (tmp_path / "there" / place).read_bytes() == (
                tmp_path / "here" / place
            ).read_bytes()
