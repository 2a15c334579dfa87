"""A user's own function trains a model in the laboratory, with every score and seed."""

from __future__ import annotations

import json
import math
import pickle
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from pathlib import Path
from typing import Any
from urllib.parse import quote

from anyscore.lab.engine_ray import Cluster
from anyscore.lab.errors import InputError, TrialFailure
from anyscore.lab.extras import check_engine
from anyscore.lab.finished import real
from anyscore.lab.logs import with_log
from anyscore.lab.phrases import counted
from anyscore.lab.rounds import Plan
from anyscore.lab.session import Execution, Watcher
from anyscore.lab.session import compare as carry_out
from anyscore.lab.trials import Outcome, Report, Trial
from anyscore.lab.verdict.judge import Measure
from anyscore.ops.checks import brief

_RESULT = "result"
_LONGEST = 200
"""Most bytes of a score's name in the name of a folder, of which file systems allow 255."""

Results = Outcome | float | Sequence[float] | Mapping[str, Sequence[float]]
"""The results that a training function may return: of each test item, by measure or of one; or one
number for all."""


@dataclass(frozen=True)
class _Wrapped:
    """A user's function in the form of `trials.Train`."""

    function: Callable[[str, int, Report], Results]
    measure: str

    def __call__(self, trial: Trial, report: Report) -> Outcome:
        epochs: list[Mapping[str, Any]] = []

        def tell(details: dict[str, Any]) -> None:
            if "epoch" in details:
                epochs.append(details)
            report(details)

        outcome = self._outcome(self.function(trial.score, trial.seed, tell))
        curve = [_plain(record) for record in outcome.epochs or epochs]
        outcome = replace(outcome, epochs=curve)
        if self.measure == _RESULT and outcome.measures and _RESULT not in outcome.measures:
            first = next(iter(outcome.measures.values()))
            outcome = replace(outcome, measures={**outcome.measures, _RESULT: first})
        names = [*outcome.measures, *outcome.statistics]
        if self.measure not in names:
            raise TypeError(
                f"expected results named {self.measure!r}, got {', '.join(names) or 'none'}; let "
                "the function return them, or give another measure"
            )
        return outcome

    def _outcome(self, results: Results) -> Outcome:
        """Return the function's results as an outcome."""
        if isinstance(results, Outcome):
            return results
        if isinstance(results, Mapping):
            return Outcome({str(name): _numbers(values) for name, values in results.items()})
        return Outcome({self.measure: _numbers(results)})


def _plain(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record of an epoch without what JSON lacks; an array of one number is a number."""
    plain = {
        str(name): x.item() if getattr(x, "ndim", None) == 0 else x for name, x in record.items()
    }
    return {name: x for name, x in plain.items() if isinstance(x, (str, int, float, type(None)))}


def _numbers(results: Any) -> list[float]:
    """Return results as a list of numbers; a single number is a list of one."""
    if results is None:
        raise TypeError(
            "expected results of the test items, got None; let the function return them"
        )
    array = real(results)
    return [float(array)] if array.ndim == 0 else array.tolist()


def compare(
    train: Callable[[str, int, Report], Results],
    scores: Sequence[str],
    *,
    seeds: int | None = None,
    out: str | Path,
    settings: Mapping[str, Any] | None = None,
    measure: str | None = None,
    scale: float = 100.0,
    span: float | None = None,
    matters: float | None = None,
    jobs: int | None = None,
    minutes: float | None = None,
    engine: str = "processes",
    address: str | None = None,
    gpus: float = 0,
    log: str | None = None,
    watcher: Watcher | None = None,
) -> dict[str, Any]:
    """Train your own model with every score and seed; say which scores differ.

        difference = mean over seeds and test items of (results of one − results of the other)

    Results are paired by seed and item; docs/verdict.md derives the interval. Trials are kept in
    `out`: the same call again continues it, more seeds or scores add to it.

    Args:
        train: (score, seed, report) → a number for each test item, larger is better. All calls
            must test the same items. A dict has numbers by the names of measures. One number
            stands for the whole test set; an `Outcome` has curves and facts too. `train` may call
            `report({"epoch": 1, "valid_loss": 0.3})` for curves; `watcher` gets every call.
        scores: names, passed to `train`; they need not be anyscore's.
        seeds: number of seeds; 0, 1, … are passed to `train`. By default None: 5, and with
            `minutes` at most 20.
        out: folder of the comparison.
        settings: plain data that identifies this comparison; the folder refuses other settings.
        measure: the name of the measure to judge by, of several; None takes the first.
        scale: points for a result of 1.
        span: points from an item's worst possible result to its best; None: results lie between 0
            and 1.
        matters: points within which scores are equal; None takes a hundredth of `span`. Where
            results contradict `span`, no scores are called equal.
        jobs: number of trials that run side by side, in processes; a module must then define
            `train`. With 1 or None all trials run in this process. With Ray, the largest number;
            None takes as many as fit.
        minutes: time limit. Seeds are added until every pair is decided, or until time is up.
        engine: "processes" of this machine, or "ray": the machines of a Ray cluster, which all
            have `out` at the same path; see docs/machines.md.
        address: of the Ray cluster; None takes $RAY_ADDRESS, or this machine alone.
        gpus: number of GPUs of each trial, with Ray.
        log: "tensorboard" for learning curves in TensorBoard; see docs/machines.md.
        watcher: gets the events of the comparison.

    Returns:
        The record that `comparison.json` in `out` holds; "verdict" is its conclusion, and
        `report.html` shows it.

    Raises:
        InputError: fewer than one seed, a score named twice, or a missing package. `train` cannot
            be sent to another process, the folder holds something else, or there is no cluster.
        RunFailure: the disk is full or a file cannot be written.
        TrialFailure: every trial failed. If only some fail, a warning names them.
        KeyboardInterrupt: Ctrl-C or a signal to end stopped it, after the report was written.

    Example:
        >>> import random, tempfile
        >>> def train(score, seed, report):
        ...     luck = random.Random(f"{score}{seed}")
        ...     return [luck.random() < (0.9 if score == "good" else 0.5) for _ in range(200)]
        >>> record = compare(train, ["good", "bad"], seeds=5, out=tempfile.mkdtemp())
        >>> record["verdict"]["differences"][0]["verdict"]
        'differs'
    """
    seeds = (5 if minutes is None else 20) if seeds is None else seeds
    if isinstance(scores, str):
        raise InputError(f"scores: expected a list of names, got a text: pass [{scores!r}]")
    names = tuple(scores)
    if len(set(names)) < len(names) or not names:
        raise InputError(f"scores: expected different names, got {list(names)}")
    for name in names:
        if not isinstance(name, str) or not 0 < len(quote(name)) <= _LONGEST:
            raise InputError(f"scores: expected short names, got {name!r:.80}")
    _check_numbers(
        seeds, jobs, {"minutes": minutes, "scale": scale, "span": span, "matters": matters}
    )
    _check_settings(settings)
    check_engine(engine, address)
    if gpus and engine != "ray":
        raise InputError(f'gpus: expected 0, got {gpus!r}: it is for engine="ray"')
    out = Path(out).expanduser()
    cluster = Cluster(address, gpus=gpus) if engine == "ray" else None
    watcher = with_log(watcher or Watcher(), log)
    side_by_side = cluster is None and jobs is not None and jobs > 1
    wrapped = _Wrapped(train, measure or _RESULT)
    if side_by_side:
        try:
            pickle.dumps(wrapped)
        except Exception as error:
            raise InputError(
                f"train: cannot be sent to another process ({error}); define it in a module, or "
                "pass jobs=1"
            ) from None
    points = scale if span is None else span
    judged = Measure(
        measure or _RESULT,
        measure or "the result",
        scale,
        span=points,
        bounded=span is None,
        matters=points / 100 if matters is None else matters,
    )
    record = carry_out(
        wrapped,
        Plan(names, seeds, minutes=minutes),
        out,
        shared={"task": {"name": out.name}, "settings": dict(settings or {})},
        measures=[judged],
        execution=Execution(jobs or 0, here=cluster is None and not side_by_side, cluster=cluster),
        watcher=watcher,
    )
    _tell_of_failures(record, out)
    if record["interrupted"]:  # a scheduler that stops a script must not take it for done
        raise KeyboardInterrupt(
            f"the comparison was stopped; finished trials and a report are in {out}, and the same "
            "call goes on"
        )
    return record


def _check_numbers(seeds: Any, jobs: Any, positive: Mapping[str, Any]) -> None:
    """Raise InputError if a number of the call is none, or out of its range."""
    for name, x in {"seeds": seeds, "jobs": 1 if jobs is None else jobs}.items():
        if not isinstance(x, int) or isinstance(x, bool) or x < 1:
            raise InputError(f"{name}: expected a whole number from 1 on, got {brief(x)}")
    for name, x in positive.items():
        if x is not None and not (isinstance(x, Real) and 0 < float(x) < math.inf):
            raise InputError(f"{name}: expected a finite number above 0, got {brief(x)}")


def _check_settings(settings: Mapping[str, Any] | None) -> None:
    """Raise InputError if settings are no plain data."""
    try:
        json.dumps(dict(settings or {}))
    except (TypeError, ValueError) as error:
        raise InputError(
            f"settings: expected numbers, texts, lists and dicts of these, got another: {error}"
        ) from None


def _tell_of_failures(record: Mapping[str, Any], out: Path) -> None:
    """Warn of trials that failed beside others; raise TrialFailure if all trials failed."""
    failed = [trial for trial in record["trials"] if "failure" in trial]
    if not failed:
        return
    first = f"{failed[0]['score']} with seed {failed[0]['seed']}: {failed[0]['failure']}"
    message = f"{first} (tracebacks are in {out / 'failures'}; the same call tries again)"
    if len(failed) == len(record["trials"]):
        raise TrialFailure(f"every trial failed; {message}")
    warnings.warn(f"{counted(len(failed), 'trial')} failed; {message}", stacklevel=3)
