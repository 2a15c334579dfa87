"""Runner of a drawn call in NumPy, and base of the other frameworks' runners."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np

import anyscore
from anyscore.score import Outer
from fuzz.drawn import Call
from fuzz.exact import Problem
from fuzz.mask_specs import build
from fuzz.outers import FORMULAS

NAMES = "output", "weights", "lse"


@cache
def with_function(kind: Any, name: str) -> Any:
    """Return a class of scores of a kind, each with an outer function of a formula."""
    outer = Outer.from_formula(name, FORMULAS[name])

    def lower(self: Any, xp: Any, query: Any, key: Any) -> Any:
        return kind.lower(self, xp, query, key)._replace(outer=outer)

    return type(f"{kind.__name__}_{name}", (kind,), {"lower": lower})


@dataclass
class Answered:
    """Results by name (output, weights, lse), their dtypes, and gradients by name."""

    results: dict[str, np.ndarray]
    dtypes: dict[str, str]
    gradients: dict[str, np.ndarray]
    unchanged: bool

    def same_bits(self, other: Answered) -> str | None:
        """Return the name of the first array with other bits; None if all are the same."""
        for mine, theirs in ((self.results, other.results), (self.gradients, other.gradients)):
            for name, x in mine.items():
                if not np.array_equal(x, theirs[name], equal_nan=True):
                    return name
        return None


class NumPy:
    name = "numpy"
    differentiates = False

    def tensor(self, x: np.ndarray, dtype: str) -> Any:
        """Return a tensor of numbers that the dtype holds exactly."""
        if dtype == "bfloat16":
            return np.asarray(x).astype(import_module("ml_dtypes").bfloat16)
        return np.asarray(x).astype(dtype)

    def laid_out(self, x: np.ndarray, dtype: str, layout: str) -> tuple[Any, Any]:
        """Return a tensor in a memory layout, and the tensor of all its memory."""
        if layout == "columns":
            base = self.tensor(np.ascontiguousarray(x.swapaxes(-1, -2)), dtype)
            return base.swapaxes(-1, -2), base
        if layout == "every other":
            base = self.tensor(np.repeat(x, 2, axis=-2), dtype)
            return base[..., ::2, :], base
        if layout == "wider":
            base = self.tensor(np.pad(x, [(0, 0)] * (x.ndim - 1) + [(1, 2)]), dtype)
            return base[..., 1:-2], base
        if layout == "backwards" and self.name == "numpy":
            base = self.tensor(np.ascontiguousarray(x[..., ::-1, ::-1]), dtype)
            return base[..., ::-1, ::-1], base
        base = self.tensor(np.ascontiguousarray(x), dtype)
        if layout == "read-only" and self.name == "numpy":
            base.flags.writeable = False
        return base, base

    def mask(self, x: np.ndarray) -> Any:
        return x

    def numbers(self, x: Any) -> np.ndarray:
        return np.asarray(x).astype(np.float64)

    def dtype(self, x: Any) -> str:
        return str(np.asarray(x).dtype.name)

    def run(self, call: Call, problem: Problem, impl: str) -> Answered:
        inputs, memory = self.inputs(call, problem)
        before = [self.copied(x) for x in memory]
        results, gradients = self.differentiated(call, problem, inputs, impl)
        after = [self.copied(x) for x in memory]
        same = all(np.array_equal(x, y) for x, y in zip(before, after, strict=True))
        return Answered(
            {name: self.numbers(x) for name, x in results.items()},
            {name: self.dtype(x) for name, x in results.items()},
            {name: self.numbers(x) for name, x in gradients.items()},
            same,
        )

    def copied(self, x: Any) -> np.ndarray:
        """Return the bytes of a tensor."""
        return np.frombuffer(np.ascontiguousarray(x).tobytes(), np.uint8)

    def inputs(self, call: Call, problem: Problem) -> tuple[dict[str, Any], list[Any]]:
        """Return the tensors by name, and the tensors of their memory."""
        inputs, memory = {}, []
        for name, layout in zip(("query", "key", "value"), call.layout, strict=True):
            inputs[name], base = self.laid_out(getattr(problem, name), call.dtype, layout)
            memory.append(base)
        for name, x in problem.parameters.items():
            if isinstance(x, np.ndarray):
                inputs[name] = self.tensor(x, call.dtype)
                memory.append(inputs[name])
        for name, x in problem.tensors.items():
            inputs[name] = self.tensor(x, call.dtype)
            memory.append(inputs[name])
        return inputs, memory

    def arguments(
        self, call: Call, problem: Problem, inputs: dict[str, Any], impl: str
    ) -> dict[str, Any]:
        """Return the arguments of `attention` and `plan`."""
        fields = {name: inputs.get(name, x) for name, x in problem.parameters.items()}
        kind = getattr(anyscore, call.kind)
        score = (with_function(kind, call.function) if call.function else kind)(**fields)
        key = anyscore.prepare_keys(inputs["key"], score) if call.prepared else inputs["key"]
        return {
            "query": inputs["query"],
            "key": key,
            "value": inputs["value"],
            "score": score,
            "mask": build(call.mask, self.mask if call.lists else np.asarray),
            "valid_lens": call.valid_lens,
            "softcap": call.softcap,
            "dropout": call.dropout,
            "dropout_seed": self.seed(call.seed) if call.dropout else None,
            "return_weights": call.weights,
            "return_lse": call.lse,
            "impl": impl,
            **call.beside.arguments(inputs),
        }

    def rounds_weights(self, call: Call, problem: Problem) -> bool:
        """Return whether the chosen implementation rounds weights to the dtype of values."""
        return False

    def attend(
        self, call: Call, problem: Problem, inputs: dict[str, Any], impl: str
    ) -> dict[str, Any]:
        found = anyscore.attention(**self.arguments(call, problem, inputs, impl))
        if not (call.weights or call.lse):
            return {"output": found}
        return {n: x for n, x in zip(NAMES, found, strict=True) if x is not None}

    def tanh(self, x: Any) -> Any:
        return np.tanh(x)

    def tanh_error(self, dtype: str) -> float:
        """Return the error of the framework's tanh in roundings of tanh, at least 1."""
        dtype, exact = ("float64", np.longdouble) if dtype == "float64" else ("float32", np.float64)
        x = np.linspace(0, 20, 40_001).astype(dtype)[1:]
        right = np.tanh(x.astype(exact))
        off = np.abs(self.numbers(self.tanh(self.tensor(x, dtype))) - right) / right
        return max(1.0, float(off.max() / np.finfo(dtype).eps))

    def seed(self, seed: int) -> Any:
        return seed

    @contextmanager
    def threads(self, count: int) -> Iterator[None]:
        """Compute with `count` threads of the framework."""
        yield

    def differentiated(
        self, call: Call, problem: Problem, inputs: dict[str, Any], impl: str
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        return self.attend(call, problem, inputs, impl), {}

    def upstream(self, call: Call, problem: Problem, results: dict[str, Any]) -> list[Any]:
        given = {"output": problem.d_output, "weights": problem.d_weights, "lse": problem.d_lse}
        wide = "float64" if call.dtype == "float64" else "float32"
        return [self.tensor(given[n], wide if n == "lse" else call.dtype) for n in results]
