"""Trials on a Ray cluster: the same numbers as here, also when a machine is lost in the middle."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import SMALL, call, start
from made_trials import Trainer
from ray.cluster_utils import Cluster as Machines
from test_engine import FAULTS, TRIALS, contents, kinds

from anyscore import lab
from anyscore.lab.comparison import Comparison
from anyscore.lab.engine import run_here
from anyscore.lab.engine_ray import Cluster, run_ray
from anyscore.lab.errors import InputError
from anyscore.lab.files import RunFailure
from anyscore.lab.trials import Outcome, Report, Trial

QUICK = {"health_check_period_ms": 500, "health_check_failure_threshold": 2}
"""A lost machine is noticed after a second, in place of many."""


@pytest.fixture(scope="module")
def machines() -> Iterator[Machines]:
    """Two nodes with a core each; the tests are connected to the first."""
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


def test_a_lost_machine_s_trials_begin_anew(
    two: tuple[Cluster, Any], machines: Machines, tmp_path: Path, here: dict[str, bytes]
) -> None:
    cluster, second = two
    events, places = [], dict[str, list[str]]()
    for event in run_ray(TRIALS, Trainer(seconds=2), tmp_path / "run", cluster=cluster):
        events.append(event)
        if event.kind == "began":
            places.setdefault(event.trial.name, []).append(event.told["node"])
        lost = [name for name, nodes in places.items() if nodes == [second.node_id]]
        if event.kind == "progress" and event.trial.name in lost and second in ray_nodes(machines):
            machines.remove_node(second, allow_graceful=False)
    assert second not in ray_nodes(machines)
    moved = [nodes for nodes in places.values() if len(nodes) > 1]
    assert moved  # a trial was at work there
    assert all(nodes[0] == second.node_id != nodes[1] for nodes in moved)
    ends = [x for x in kinds(events) if x[1] != "began"]
    assert sorted(ends) == sorted((trial.name, "finished") for trial in TRIALS)
    assert contents(tmp_path / "run") == here


def ray_nodes(machines: Machines) -> list[Any]:
    return list(machines.worker_nodes)


def test_trials_tell_of_themselves_in_order(
    two: tuple[Cluster, Any], tmp_path: Path, here: dict[str, bytes]
) -> None:
    events = list(run_ray(TRIALS, Trainer(), tmp_path / "run", cluster=two[0]))
    for trial in TRIALS:
        mine = [x for x in events if x.trial == trial]
        assert [x.kind for x in mine] == ["began", *["progress"] * 3, "finished"]
        assert mine[1].told == {"step": 1, "steps": 3}
    assert contents(tmp_path / "run") == here
