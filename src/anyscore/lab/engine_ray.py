"""Trials run on the machines of a Ray cluster, which begins the trials of a lost machine anew.

A trial writes its folder itself, on a path that all machines share; the first one written stays.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anyscore.lab.comparison import Comparison
from anyscore.lab.engine import Event, attempt, deferred, ended
from anyscore.lab.errors import InputError, RunFailure
from anyscore.lab.extras import check_installed
from anyscore.lab.trials import Train, Trial

_RETRIES = 3  # of a trial whose machine was lost or whose process died
_SECONDS = 0.2  # between two readings of the events
_KNOCK = 5.0  # seconds for a machine to answer at all
_PATIENCE = 30.0  # seconds until files of another machine must be visible here


@dataclass(frozen=True)
class Cluster:
    """A Ray cluster, and the resources that Ray reserves for each trial.

    Attributes:
        address: of the cluster; "auto" is the one that this machine belongs to. None takes the
            environment variable RAY_ADDRESS, or else a Ray of this machine alone, which ends with
            the comparison.
        cpus, gpus: reserved for each trial.
    """

    address: str | None = None
    cpus: float = 1
    gpus: float = 0

    @contextmanager
    def connected(self) -> Iterator[Any]:
        """Give the module `ray`, connected inside. An existing connection is used as it is.

        Raises:
            InputError: Ray is not installed, or nobody answers at the address.
        """
        check_installed("ray", "--engine ray", extra="ray")
        import ray

        if ray.is_initialized():
            yield ray
            return
        handlers = {x: signal.getsignal(x) for x in (signal.SIGINT, signal.SIGTERM)}
        try:
            self._connect(ray)
            yield ray
        finally:
            ray.shutdown()
            for number, handler in handlers.items():  # Ray replaces them
                with suppress(ValueError):  # not in the main thread
                    signal.signal(number, handler)

    def _connect(self, ray: Any) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no usage statistics are sent
        quiet = {"log_to_driver": False, "logging_level": "ERROR"}
        address = self.address or os.environ.get("RAY_ADDRESS") or "local"
        if address == "local":
            cores = max(os.cpu_count() or 1, self.cpus)
            ray.init("local", num_cpus=cores, include_dashboard=False, **quiet)
            gpus = ray.cluster_resources().get("GPU", 0)
            if gpus < self.gpus:
                raise InputError(
                    f"--engine ray: expected {self.gpus:g} GPU for a trial, Ray finds {gpus:g} "
                    "here; use --device cpu, or give the --address of a cluster"
                )
            return
        try:
            _knock(address)
            ray.init(address, **quiet)
        except (OSError, RuntimeError, ValueError) as error:
            raise InputError(
                f"--address {address}: no Ray cluster can be used there ({_short(error)}); start "
                "one with `ray start --head`, or leave --address out"
            ) from None


def _knock(address: str) -> None:
    """Connect to HOST:PORT once. Ray itself would try for four minutes.

    Raises:
        OSError, ValueError: nobody answers, or the address is none.
    """
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon:
        socket.create_connection((host, int(port)), timeout=_KNOCK).close()


class _Board:
    """An actor on the waiting machine, to which trials send their progress."""

    def __init__(self) -> None:
        self._messages: list[tuple[int, dict[str, Any]]] = []

    def tell(self, number: int, details: dict[str, Any]) -> None:
        self._messages.append((number, details))

    def read(self) -> list[tuple[int, dict[str, Any]]]:
        messages, self._messages = self._messages, []
        return messages


def run_ray(
    trials: Sequence[Trial],
    train: Train,
    folder: Path,
    jobs: int | None = None,
    cluster: Cluster | None = None,
) -> Iterator[Event]:
    """Run as many trials side by side as the cluster has room for; yield their events.

    The events are those of `engine.run_processes`. A trial whose machine was lost begins again on
    another one, with another event "began"; after three times it has failed. Closing the iterator
    ends the trials at work.

    Args:
        folder: on a path that is the same on all machines.
        jobs: the most trials side by side; None for no limit but the cluster's.
        cluster: where to run; None is `Cluster()`.

    Raises:
        InputError: there is no Ray, no cluster, or `train` cannot be sent to it.
        RunFailure: nothing more can be written, or the cluster is gone; trials at work are ended.
    """
    cluster = cluster or Cluster()
    with cluster.connected() as ray, deferred() as stop:
        try:
            yield from _run(ray, trials, train, folder, jobs, cluster, stop)
        except ray.exceptions.RayError as error:
            raise RunFailure(
                f"Ray cannot go on ({_short(error)}); finished trials are kept, and the same "
                "command continues the run"
            ) from None


def _run(
    ray: Any,
    trials: Sequence[Trial],
    train: Train,
    folder: Path,
    jobs: int | None,
    cluster: Cluster,
    stop: Any,
) -> Iterator[Event]:
    folder = folder.resolve()  # on other machines one starts elsewhere
    folder.mkdir(parents=True, exist_ok=True)
    comparison = Comparison(folder)
    board = _new_board(ray)
    work = ray.remote(_work).options(
        num_cpus=cluster.cpus, num_gpus=cluster.gpus, max_retries=_RETRIES, retry_exceptions=False
    )
    try:
        stored = ray.put(train)  # once, however many trials
    except (TypeError, AttributeError, ValueError) as error:
        raise InputError(
            f"train: cannot be sent to another process ({_short(error)}); define it in a module"
        ) from None
    waiting, running = list(enumerate(trials)), dict[Any, Trial]()
    try:
        while waiting or running:
            while waiting and (jobs is None or len(running) < jobs):
                number, trial = waiting.pop(0)
                running[work.remote(trial, stored, folder, board, number)] = trial
            done, _ = ray.wait(list(running), num_returns=1, timeout=_SECONDS)
            if stop.poll():
                raise KeyboardInterrupt
            for number, details in ray.get(board.read.remote()):
                yield Event("began" if "node" in details else "progress", trials[number], details)
            for reference in done:
                trial = running.pop(reference)
                yield ended(trial, _failure(ray, reference, trial, comparison))
    finally:
        for reference in running:
            ray.cancel(reference, force=True)
        if running:
            ray.wait(list(running), num_returns=len(running), timeout=5)
        ray.kill(board)


def _new_board(ray: Any) -> Any:
    """Start the board on this machine, so that no other machine's loss takes it away."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    return ray.remote(_Board).options(num_cpus=0, scheduling_strategy=here).remote()


def _work(trial: Trial, train: Train, folder: Path, board: Any, number: int) -> dict[str, Any]:
    """Train one trial on a machine of the cluster; return its end as `Event.details` has it."""
    import ray

    last = board.tell.remote(number, {"node": ray.get_runtime_context().get_node_id()})
    ray.get(last)  # known, even if this process dies at once

    def report(details: dict[str, Any]) -> None:
        nonlocal last
        last = board.tell.remote(number, details)

    comparison = Comparison(folder)
    try:
        if not folder.is_dir():
            raise RunFailure(_unshared(folder, "is not there"))
        if comparison.has(trial):  # kept before its machine was lost
            return {}
        failure = attempt(trial, train, comparison, report)
        return {} if failure is None else {"failure": failure}
    except RunFailure as problem:
        return {"failure": str(problem), "stop": True}
    finally:
        with suppress(ray.exceptions.RayError):
            ray.get(last)  # no event may follow the end of its trial


def _failure(ray: Any, reference: Any, trial: Trial, comparison: Comparison) -> str | None:
    """Return why the trial of an ended task failed; None if it finished.

    Raises:
        RunFailure: nothing can be written, or the written files are not visible here.
    """
    try:
        details = ray.get(reference)
    except ray.exceptions.RayError as error:
        reason = f"Ray gave up on it: {_short(error)}"
        comparison.fail(trial, reason, str(error))
        return reason
    if details.get("stop"):
        raise RunFailure(details["failure"])
    if "failure" not in details:
        deadline = time.monotonic() + _PATIENCE
        while not comparison.has(trial):  # network file systems take their time
            if time.monotonic() > deadline:
                raise RunFailure(_unshared(comparison.folder, f"lacks {trial.name} here"))
            time.sleep(0.1)
    failure: str | None = details.get("failure")
    return failure


def _unshared(folder: Path, what: str) -> str:
    return f"{folder}: {what}; give --out on a path that all machines of the cluster share"


def _short(error: BaseException) -> str:
    """Return the important line of Ray's message: the last of a traceback, else the first."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    traceback = any("Traceback" in line or line.startswith("File ") for line in lines)
    return lines[-1 if traceback else 0][:300] if lines else type(error).__name__
