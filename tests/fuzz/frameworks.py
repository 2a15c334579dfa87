"""Runners of a drawn call in frameworks with gradients."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import numpy as np

import anyscore
from fuzz.drawn import STORE, Call
from fuzz.exact import Problem
from fuzz.runners import NumPy


class Torch(NumPy):
    name = "torch"
    differentiates = True

    def __init__(self) -> None:
        self.torch = import_module("torch")

    def tensor(self, x: np.ndarray, dtype: str) -> Any:
        x = np.asarray(x)
        x = x.astype(np.float64) if x.dtype == np.longdouble else x
        return self.torch.tensor(x, dtype=getattr(self.torch, dtype))

    @contextmanager
    def threads(self, count: int) -> Iterator[None]:
        before = self.torch.get_num_threads()
        self.torch.set_num_threads(count)
        try:
            yield
        finally:
            self.torch.set_num_threads(before)

    def mask(self, x: np.ndarray) -> Any:
        return self.torch.tensor(x)

    def tanh(self, x: Any) -> Any:
        return self.torch.tanh(x)

    def numbers(self, x: Any) -> np.ndarray:
        return x.detach().double().numpy()

    def dtype(self, x: Any) -> str:
        return str(x.dtype).removeprefix("torch.")

    def copied(self, x: Any) -> np.ndarray:
        return super().copied(x.detach().double().numpy())

    def rounds_weights(self, call: Call, problem: Problem) -> bool:
        """Return whether PyTorch's attention runs the call, in half precision without gradients."""
        if call.derivatives or not STORE[call.dtype]:
            return False
        inputs, _ = self.inputs(call, problem)
        plan = anyscore.plan(**self.arguments(call, problem, inputs, "auto"))
        return bool(plan.route == "sdpa")

    def differentiated(
        self, call: Call, problem: Problem, inputs: dict[str, Any], impl: str
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        if not call.derivatives:
            return self.attend(call, problem, inputs, impl), {}
        inputs = {name: x.requires_grad_() for name, x in inputs.items()}
        results = self.attend(call, problem, inputs, impl)
        found = self.torch.autograd.grad(
            list(results.values()), list(inputs.values()), self.upstream(call, problem, results),
            materialize_grads=True,
        )  # fmt: skip
        return results, dict(zip(inputs, found, strict=True))


def _wide(x: np.ndarray) -> np.ndarray:
    """Return x in the widest dtype of its kind, which every framework reads."""
    return x.astype(np.complex128 if np.iscomplexobj(x) else np.float64)


class Jax(NumPy):
    name = "jax"
    differentiates = True

    def __init__(self) -> None:
        self.jax = import_module("jax")
        self.jax.config.update("jax_enable_x64", True)
        self.jax.config.update("jax_platforms", "cpu")

    def tensor(self, x: np.ndarray, dtype: str) -> Any:
        return self.jax.numpy.asarray(_wide(x)).astype(dtype)

    def mask(self, x: np.ndarray) -> Any:
        return self.jax.numpy.asarray(x)

    def tanh(self, x: Any) -> Any:
        return self.jax.numpy.tanh(x)

    def differentiated(
        self, call: Call, problem: Problem, inputs: dict[str, Any], impl: str
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        if not call.derivatives:
            return self.attend(call, problem, inputs, impl), {}
        results, back = self.jax.vjp(lambda xs: self.attend(call, problem, xs, impl), inputs)
        given = self.upstream(call, problem, results)
        return results, back(dict(zip(results, given, strict=True)))[0]


class TensorFlow(NumPy):
    name = "tensorflow"
    differentiates = True

    def __init__(self) -> None:
        self.tf = import_module("tensorflow")

    def tensor(self, x: np.ndarray, dtype: str) -> Any:
        return self.tf.cast(self.tf.constant(_wide(x)), dtype)

    def laid_out(self, x: np.ndarray, dtype: str, layout: str) -> tuple[Any, Any]:
        """Return a dense tensor and its memory, as the framework's tensors have no strides."""
        return super().laid_out(x, dtype, "dense")

    def mask(self, x: np.ndarray) -> Any:
        return self.tf.constant(x)

    def tanh(self, x: Any) -> Any:
        return self.tf.tanh(x)

    def numbers(self, x: Any) -> np.ndarray:
        return np.asarray(self.tf.cast(x, "float64"))  # a single bfloat16 is no array

    def copied(self, x: Any) -> np.ndarray:
        return super().copied(x.numpy())

    def differentiated(
        self, call: Call, problem: Problem, inputs: dict[str, Any], impl: str
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        if not call.derivatives:
            return self.attend(call, problem, inputs, impl), {}
        with self.tf.GradientTape() as tape:
            tape.watch(inputs)
            results = self.attend(call, problem, inputs, impl)
        zero = self.tf.UnconnectedGradients.ZERO
        given = self.upstream(call, problem, results)
        return results, tape.gradient(list(results.values()), inputs, given, zero)


RUNNERS: dict[str, type[NumPy]] = {
    "numpy": NumPy, "torch": Torch, "jax": Jax, "tensorflow": TensorFlow,
}  # fmt: skip
