"""Masks keep their meaning in every model class of transformers that can be made small.

    python tests/frameworks/hf/sweep.py [names of classes]

Outputs equal those of `eager`, except in padding. If a change of late tokens or of padding leaves
an output of `eager` the same, "anyscore" and another score leave the output the same too. In some
minutes the script prints each class with its problems. The last line has the numbers of classes.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))

import anyscore.hf
from helpers.hf_small import changed, inputs_of, make, names_of_classes, run, small_config

SAME, WITHIN = 1e-6, 1e-4  # float32: in float64, `eager` gives NaN for rows of padding


class CannotBeMadeError(Exception):
    """A class needs more than small sizes, or inputs of another kind."""


def small_model(name: str) -> tuple[Any, dict[str, Any]]:
    """Return a small model of a class, and inputs for the model."""
    problem: Exception | None = None
    for kv_heads in (2, 4):
        try:
            cls = getattr(transformers, name)
            model = make(cls, small_config(cls.config_class, kv_heads))
        except Exception as error:
            problem = error
            continue
        model.set_attn_implementation("eager")
        for inputs in inputs_of(model):
            try:
                run(model, inputs)
            except Exception as error:
                problem = error
            else:
                return model, inputs
    raise CannotBeMadeError(
        f"{type(problem).__name__}: {problem or 'no inputs'}".splitlines()[0][:90]
    )


def problems(model: Any, inputs: dict[str, Any]) -> Iterator[str]:
    """Yield the problems of a model that attends by anyscore."""
    model.set_attn_implementation("eager")
    theirs, moved = run(model, inputs), {x: run(model, y) for x, y in changed(inputs)}
    model.set_attn_implementation("anyscore")
    for how in ("register", "use"):
        if how == "use":
            anyscore.hf.use(model, "dot")
        ours = run(model, inputs)
        if how == "register":
            for name, x in theirs.items():
                error = _error(_kept(x, inputs), _kept(ours[name], inputs))
                if not error <= WITHIN:
                    yield f"{name} differs by {error:.1e}"
        for change, of_change in changed(inputs):
            found = run(model, of_change)
            for name, x in theirs.items():
                same = (moved[change][name] - x).abs().amax(-1) <= SAME * x.abs().max()
                leak = _error(ours[name][same], found[name][same])
                if not leak <= WITHIN:
                    yield f"{how}: {change} change {name} by {leak:.1e}"


def _kept(x: Tensor, inputs: dict[str, Any]) -> Tensor:
    """Return x without padding: rows without keys are 0 in anyscore, a mean in `eager`."""
    for name in ("decoder_attention_mask", "attention_mask"):
        keep = inputs.get(name)
        if keep is not None and x.shape[: keep.dim()] == keep.shape:
            return x[keep.bool()]
    return x


def _error(expected: Tensor, found: Tensor) -> float:
    expected, found = (x[~expected.isnan()] for x in (expected, found))
    if not expected.numel():
        return 0.0
    return float((found - expected).abs().max() / expected.abs().max().clamp_min(1e-9))


def main(names: list[str]) -> int:
    """Sweep over the named classes, or over all; return the number of classes with problems."""
    warnings.filterwarnings("ignore")
    anyscore.hf.register()
    made = wrong = 0
    for name in names or names_of_classes():
        try:
            model, inputs = small_model(name)
            anyscore.hf.attention_layers(model)
        except (CannotBeMadeError, ValueError) as problem:
            print(f"{name}: {problem}", flush=True)
            continue
        made += 1
        try:
            found = list(problems(model, inputs))
        except NotImplementedError as refusal:
            print(f"{name}: refused, {refusal}", flush=True)
            continue
        wrong += bool(found)
        print(f"{name}: {'; '.join(found) or 'ok'} ({', '.join(inputs)})", flush=True)
    print(f"{made} classes were made and attend by anyscore, {wrong} of them have problems.")
    return wrong


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(bool(main(sys.argv[1:])))
