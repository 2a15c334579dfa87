"""Plans of each score for the arrays of one framework: how it would be computed.

Each framework is asked in its own process, all at the same time: some frameworks conflict, and a
broken one must not hide the others.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import astuple
from functools import partial
from typing import Any

from anyscore import Plan, plan
from anyscore.lab.own_process import command
from anyscore.score import SCORES

_TOKENS, _WIDTH = 1024, 64
_SECONDS = 120


def plans(frameworks: list[str]) -> dict[str, dict[str, Plan] | str]:
    """Return by place ("numpy", "torch cpu", …) and score which implementation would run, and why.

    A framework that cannot be asked has the last line of its output in place of the plans.
    """
    quiet = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    processes = {
        name: subprocess.Popen(command(__name__, name), env=quiet, **pipes) for name in frameworks
    }
    by_place: dict[str, dict[str, Plan] | str] = {}
    for name, process in processes.items():
        try:
            output, errors = process.communicate(timeout=_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            output, errors = process.communicate()
        try:
            answer = json.loads(output.splitlines()[-1]) if process.returncode == 0 else None
        except (IndexError, ValueError):
            answer = None
        if answer is None:
            by_place[name] = (errors.strip().splitlines() or [f"no answer in {_SECONDS} s"])[-1]
        else:
            for place, by_score in answer.items():
                by_place[place] = {score: Plan(*fields) for score, fields in by_score.items()}
    return by_place


def _makers(framework: str) -> dict[str, Callable[[tuple[int, ...]], Any]]:
    """Return the functions that make arrays of zeros, by the place of the arrays."""
    if framework == "torch":
        import torch

        there = {"cpu": torch.cpu, "cuda": torch.cuda, "mps": torch.backends.mps, "xpu": torch.xpu}
        devices = [name for name, module in there.items() if module.is_available()]
        return {f"torch {name}": partial(torch.zeros, device=name) for name in devices}
    if framework == "jax":
        import jax

        return {f"jax {jax.default_backend()}": lambda shape: jax.numpy.zeros(shape, "float32")}
    if framework == "tensorflow":
        import tensorflow as tf

        return {"tensorflow": lambda shape: tf.zeros(shape)}
    if framework == "mxnet":
        import mxnet as mx

        return {"mxnet": lambda shape: mx.np.zeros(shape)}
    import numpy as np

    return {"numpy": lambda shape: np.zeros(shape, np.float32)}


def _plan(name: str, zeros: Callable[[tuple[int, ...]], Any]) -> Plan:
    """Plan a call of the score of this name on arrays that `zeros` makes."""
    score = SCORES[name]
    parameters = score.parameters(_WIDTH, _WIDTH, _WIDTH)
    fields = {
        field: init if isinstance(init, float) else zeros(init.shape)
        for field, init in parameters.items()
    }
    x = zeros((1, _TOKENS, _WIDTH))
    return plan(x, x, x, score=score(**fields))


def main() -> None:
    """Print the plans of the framework that the first argument names, as JSON."""
    makers = _makers(sys.argv[1])
    by_place = {
        place: {name: astuple(_plan(name, zeros)) for name in SCORES}
        for place, zeros in makers.items()
    }
    print(json.dumps(by_place))
