"""Checks of options that need the machine or the list of scores; no framework is imported."""

from __future__ import annotations

import os

from anyscore.lab.data.options import STDIN
from anyscore.lab.errors import InputError, check_name
from anyscore.lab.extras import check_engine, check_log
from anyscore.lab.options import CompareOptions
from anyscore.score import SCORES

_OTHER_NAMES = {
    "bahdanau": "additive",
    "mlp": "additive",
    "luong": "bilinear",
    "general": "bilinear",
    "multiplicative": "bilinear",
    "vaswani": "scaled_dot",
    "rbf": "gaussian",
    "gat": "gatv2",
}
"""Anyscore's names of scores, by their names in papers."""


def score_names(text: str) -> tuple[str, ...]:
    """Return the names in `--scores`, in their order.

    Raises:
        InputError: a name is not known or given twice, or there is none.
    """
    if text.strip().lower() == "all":
        return tuple(SCORES)
    names = [name for name in (part.strip() for part in text.split(",")) if name]
    if not names:
        raise InputError(f"--scores: expected names, got none; there are {', '.join(SCORES)}")
    for name in names:
        check_name("--scores", name, SCORES, _OTHER_NAMES.get(name.lower()))
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(f"--scores: {', '.join(twice)} given twice; give each score once")
    return tuple(names)


def check_machines(options: CompareOptions) -> None:
    """Check that the engine and the log of the options are available here.

    Raises:
        InputError: an option is not known, its package is not installed, or options exclude each
            other.
    """
    trials = options.trials
    check_log(options.report.log)
    check_engine(trials.engine, trials.address)
    if under_torchrun():
        if trials.engine != "processes" or trials.jobs > 1:
            raise InputError(
                "--engine, --jobs: under torchrun all processes train one model at a time; "
                "leave them out, or start without torchrun"
            )
        if trials.tune:
            raise InputError(
                "--tune: under torchrun one model is trained at a time; search first without "
                "torchrun, and give the --learning-rate that it finds"
            )
        if options.data.path == STDIN:
            raise InputError("-: under torchrun there is no standard input; give a file")


def under_torchrun() -> bool:
    """Return whether torchrun has started this process as one of several."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1 and "RANK" in os.environ
