"""Trials in processes of this machine, several side by side, each with a thread of its own.

A trial's process writes its folder; whatever happens to one leaves the others alone.
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
        told: progress, an epoch's record, or {"failure": a line}.
    """

    kind: Literal["began", "progress", "finished", "failed"]
    trial: Trial
    told: dict[str, Any]


def run_here(
    trials: Sequence[Trial],
    train: Train,
    folder: Path,
    on_progress: Callable[[Event], None] | None = None,
) -> Iterator[Event]:
    """One after the other, in this process: for functions that no other process can be given.

    on_progress: is given events of progress as they come; without it, they follow when a trial
        has ended, since nothing can be yielded while it trains.
    """
    comparison = Comparison(folder)
    for trial in trials:
        yield Event("began", trial, {})
        late: list[Event] = []
        failure = attempt(
            trial, train, comparison, partial(_tell, on_progress or late.append, trial)
        )
        yield from late
        yield ended(trial, failure)


def run_processes(
    trials: Sequence[Trial], train: Train, folder: Path, jobs: int, preload: str = ""
) -> Iterator[Event]:
    """At most `jobs` side by side, in that order. Closing the iterator ends those at work.

    preload: a module that all of them need, to be imported once.

    Raises:
        RunFailure: nothing more can be written; those at work are ended.
    """
    with deferred() as asked:
        yield from _run_processes(trials, train, folder, jobs, preload, asked)


def _run_processes(
    trials: Sequence[Trial], train: Train, folder: Path, jobs: int, preload: str, asked: Connection
) -> Iterator[Event]:
    # Not fork: frameworks that have computed have threads, which a fork would leave behind.
    methods = mp.get_all_start_methods()
    context = cast(Any, mp.get_context("forkserver" if "forkserver" in methods else "spawn"))
    if hasattr(context, "set_forkserver_preload"):
        context.set_forkserver_preload([preload] if preload else [])
    waiting, at_work = list(trials), dict[Any, tuple[Trial, Connection, Any]]()
    try:
        while waiting or at_work:
            while waiting and len(at_work) < jobs:
                trial = waiting.pop(0)
                ours, theirs = context.Pipe(duplex=False)
                process = context.Process(
                    target=_work, args=(trial, train, folder, theirs), daemon=True
                )
                process.start()
                theirs.close()
                at_work[ours] = trial, ours, process
                yield Event("began", trial, {})
            some = wait([asked, *at_work])
            if asked in some:
                raise KeyboardInterrupt
            for ready in some:
                trial, pipe, process = at_work[ready]
                try:
                    told = pipe.recv()
                except (EOFError, OSError):  # it ended without a word
                    process.join()
                    told = {"failure": _death(process.exitcode)}
                    Comparison(folder).fail(trial, told["failure"])
                if "ended" not in told and "failure" not in told:
                    yield Event("progress", trial, told)
                    continue
                del at_work[ready]
                pipe.close()
                process.join()
                if told.get("stop"):
                    raise RunFailure(told["failure"])
                yield ended(trial, told.get("failure"))
    finally:
        for _, pipe, process in at_work.values():
            process.terminate()
            pipe.close()
        for _, _, process in at_work.values():
            process.join(5)
            if process.is_alive():
                process.kill()


@contextmanager
def deferred() -> Iterator[Connection]:
    """Inside, what can be read from once a signal has come that ends a comparison.

    An exception raised wherever the signal met this process might be forgotten: finalisers do.
    """
    asked, asks = mp.Pipe(duplex=False)

    def ask(number: int, frame: object) -> None:
        asks.send(number)

    before = {}
    try:
        for number in _SIGNALS:
            with suppress(ValueError):  # not in the main thread
                before[number] = signal.signal(number, ask)
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        asked.close()
        asks.close()


def _work(trial: Trial, train: Train, folder: Path, pipe: Connection) -> None:
    """In a process of its own."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the one that waits for this one

    def tell(told: dict[str, Any]) -> None:
        try:
            pipe.send(told)
        except OSError:  # nobody waits any more
            os._exit(1)

    try:
        failure = attempt(trial, train, Comparison(folder), tell)
        tell({"ended": True} if failure is None else {"failure": failure})
    except RunFailure as problem:
        tell({"failure": str(problem), "stop": True})


def attempt(trial: Trial, train: Train, comparison: Comparison, tell: Any) -> str | None:
    """Train and keep what came of it; or keep, and give, the reason why not.

    Raises:
        RunFailure: nothing can be written.
    """
    try:
        comparison.keep(trial, train(trial, tell))
    except TrialFailure as failure:
        reason, details = str(failure), ""
    except RunFailure:
        raise
    except MemoryError:
        reason, details = "there is not enough memory", traceback.format_exc()
    except Exception as error:
        said = " ".join(str(error).split()) or "no message"
        reason, details = f"{type(error).__name__}: {said[:300]}", traceback.format_exc()
    else:
        return None
    comparison.fail(trial, reason, details)
    return reason


def _tell(on_progress: Callable[[Event], None], trial: Trial, told: dict[str, Any]) -> None:
    on_progress(Event("progress", trial, told))


def ended(trial: Trial, failure: str | None) -> Event:
    if failure is None:
        return Event("finished", trial, {})
    return Event("failed", trial, {"failure": failure})


def _death(code: int | None) -> str:
    if code == -signal.SIGKILL:
        return "its process was killed, as systems do that run out of memory; try fewer --jobs"
    if code is not None and code < 0:
        return f"its process was ended by {signal.Signals(-code).name}"
    return f"its process ended with status {code}"
