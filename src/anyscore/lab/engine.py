"""Trials run in processes of this machine, several side by side.

The process of a trial writes the trial's folder. A trial that fails leaves the others alone.
"""

from __future__ import annotations

import multiprocessing as mp
import os
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Literal, cast

from anyscore.lab.comparison import Comparison
from anyscore.lab.errors import RunFailure, TrialFailure
from anyscore.lab.trials import Train, Trial

_SIGNALS = {
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
}


@dataclass(frozen=True)
class Event:
    """Something that happened to a trial.

    Attributes:
        details: progress, the record of an epoch, or {"failure": a line}.
    """

    kind: Literal["began", "progress", "finished", "failed"]
    trial: Trial
    details: dict[str, Any]


def run_here(
    trials: Sequence[Trial],
    train: Train,
    folder: Path,
    on_progress: Callable[[Event], None] = lambda event: None,
) -> Iterator[Event]:
    """Run trials one after the other in this process; yield their events.

    This is for functions that cannot be sent to another process.

    Args:
        on_progress: takes events of progress, since nothing can be yielded while a trial trains.

    Raises:
        RunFailure: nothing can be written.
    """
    comparison = Comparison(folder)
    for trial in trials:
        yield Event("began", trial, {})
        report = partial(_tell, on_progress, trial)
        yield ended(trial, attempt(trial, train, comparison, report))


def run_processes(
    trials: Sequence[Trial],
    train: Train,
    folder: Path,
    jobs: int,
    preload: Sequence[str] = (),
) -> Iterator[Event]:
    """Run trials in processes, at most `jobs` side by side and in order; yield their events.

    Closing the iterator ends the trials at work.

    Args:
        preload: modules that all trials need, to be imported once.

    Raises:
        RunFailure: nothing more can be written; the trials at work are ended.
    """
    with deferred() as stop:
        yield from _run_processes(trials, train, folder, jobs, preload, stop)


def _run_processes(
    trials: Sequence[Trial],
    train: Train,
    folder: Path,
    jobs: int,
    preload: Sequence[str],
    stop: Connection,
) -> Iterator[Event]:
    # Not fork: frameworks that have computed have threads, which a fork would leave behind.
    methods = mp.get_all_start_methods()
    context = cast(Any, mp.get_context("forkserver" if "forkserver" in methods else "spawn"))
    if hasattr(context, "set_forkserver_preload"):
        context.set_forkserver_preload(list(preload))
    waiting, running = list(trials), dict[Any, tuple[Trial, Connection, Any]]()
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                trial = waiting.pop(0)
                ours, theirs = context.Pipe(duplex=False)
                process = context.Process(
                    target=_work, args=(trial, train, folder, theirs), daemon=True
                )
                process.start()
                theirs.close()
                running[ours] = trial, ours, process
                yield Event("began", trial, {})
            ready = wait([stop, *running])
            if stop in ready:
                raise KeyboardInterrupt
            for pipe in ready:
                trial, connection, process = running[pipe]
                try:
                    details = connection.recv()
                except (EOFError, OSError):  # the process ended without a report
                    process.join()
                    details = {"failure": _death(process.exitcode)}
                    Comparison(folder).fail(trial, details["failure"])
                if "ended" not in details and "failure" not in details:
                    yield Event("progress", trial, details)
                    continue
                del running[pipe]
                connection.close()
                process.join()
                if details.get("stop"):
                    raise RunFailure(details["failure"])
                yield ended(trial, details.get("failure"))
    finally:
        for _, connection, process in running.values():
            process.terminate()
            connection.close()
        for _, _, process in running.values():
            process.join(5)
            if process.is_alive():
                process.kill()


@contextmanager
def deferred() -> Iterator[Connection]:
    """Catch the signals that end a comparison; give a connection that has something to read then.

    An exception raised wherever the signal met this process might be forgotten: finalisers do that.
    """
    received, sent = mp.Pipe(duplex=False)

    def send(number: int, frame: object) -> None:
        sent.send(number)

    handlers = {}
    try:
        for number in _SIGNALS:
            with suppress(ValueError):  # not in the main thread
                handlers[number] = signal.signal(number, send)
        yield received
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        received.close()
        sent.close()


def _work(trial: Trial, train: Train, folder: Path, pipe: Connection) -> None:
    """Train one trial, in a process of its own."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the waiting process

    def report(details: dict[str, Any]) -> None:
        try:
            pipe.send(details)
        except OSError:  # the waiting process is gone
            os._exit(1)

    try:
        failure = attempt(trial, train, Comparison(folder), report)
        report({"ended": True} if failure is None else {"failure": failure})
    except RunFailure as problem:
        report({"failure": str(problem), "stop": True})


def attempt(trial: Trial, train: Train, comparison: Comparison, report: Any) -> str | None:
    """Train a trial and keep its outcome; or keep, and return, the reason why it failed.

    Args:
        report: takes progress, as `Train` reports it.

    Raises:
        RunFailure: nothing can be written.
    """
    try:
        comparison.keep(trial, train(trial, report))
    except TrialFailure as failure:
        reason, details = str(failure), ""
    except RunFailure:
        raise
    except MemoryError:
        reason, details = "there is not enough memory", traceback.format_exc()
    except Exception as error:
        message = " ".join(str(error).split()) or "no message"
        reason, details = f"{type(error).__name__}: {message[:300]}", traceback.format_exc()
    else:
        return None
    comparison.fail(trial, reason, details)
    return reason


def _tell(on_progress: Callable[[Event], None], trial: Trial, details: dict[str, Any]) -> None:
    on_progress(Event("progress", trial, details))


def ended(trial: Trial, failure: str | None) -> Event:
    """Return the event of a trial that has finished, or failed for a reason."""
    if failure is None:
        return Event("finished", trial, {})
    return Event("failed", trial, {"failure": failure})


def _death(code: int | None) -> str:
    """Describe the end of a process that did not report an outcome."""
    if code == -signal.SIGKILL:
        return "its process was killed, perhaps for lack of memory; try fewer --jobs"
    if code is not None and code < 0:
        return f"its process was ended by {signal.Signals(-code).name}"
    return f"its process ended with status {code}"
