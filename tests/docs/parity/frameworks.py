"""One small adapter for each framework: arrays of its own, their numbers, and gradients."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np

Call = Callable[[dict[str, Any]], tuple[Any, ...]]
"""From inputs by name to results."""
Slopes = tuple[tuple[Any, ...], dict[str, Any]]
"""Results, and gradients by name."""


class Framework:
    """NumPy, and what is the same in others: `module` makes arrays, named dtypes are its own."""

    name = "numpy"
    versions: tuple[str, ...] = ("numpy",)
    dtypes: tuple[str, ...] = ("float32", "float64", "bfloat16", "float16")
    refusals: tuple[tuple[str, str], ...] = ()
    """(score, dtype) where the operations that a plain callable uses are not to be had."""
    lacks: tuple[str, ...] = ()
    """Extras that anyscore does not have in this framework, and says so."""

    def __init__(self) -> None:
        self.module = import_module(self.versions[0])

    def array(self, x: np.ndarray, dtype: str | None = None) -> Any:
        """Float64 numbers in the dtype; without one, what a mask holds."""
        if dtype == "bfloat16":
            return np.asarray(x).astype(import_module("ml_dtypes").bfloat16)
        return np.asarray(x, dtype)

    def mask(self, x: Any, mask: str) -> Any:
        """An array of the mask of that name."""
        return self.array(np.asarray(x))

    def score(self, built: Any) -> Any:
        """The score as this framework can take it: a plain callable has to speak its words."""
        return built

    def numbers(self, x: Any) -> Any:
        """An array whose numbers and dtype can be read."""
        return np.asarray(x)

    def settle(self) -> None:
        """Let nothing of a call that failed reach the next."""

    def gradients(self, call: Call, inputs: dict[str, Any], times: tuple[Any, ...]) -> Slopes:
        """The results, and the gradients of Σ times · results."""
        return call(inputs), {}


class Torch(Framework):
    name, versions = "torch", ("torch",)

    def __init__(self) -> None:
        super().__init__()
        self.module.set_num_threads(1)

    def array(self, x: np.ndarray, dtype: str | None = None) -> Any:
        return self.module.tensor(x, dtype=dtype and getattr(self.module, dtype))

    def numbers(self, x: Any) -> Any:
        return x.detach()

    def gradients(self, call: Call, inputs: dict[str, Any], times: tuple[Any, ...]) -> Slopes:
        for x in inputs.values():
            x.requires_grad_()
        results = call(inputs)
        found = self.module.autograd.grad(results, [*inputs.values()], times)
        return results, dict(zip(inputs, found, strict=True))


class Jax(Framework):
    """Without jit: each operation is compiled once for a shape, not each row anew."""

    name, versions = "jax", ("jax", "jaxlib")

    def __init__(self) -> None:
        super().__init__()
        self.module.config.update("jax_enable_x64", True)
        self.module.config.update("jax_platforms", "cpu")

    def array(self, x: np.ndarray, dtype: str | None = None) -> Any:
        return self.module.numpy.asarray(x, dtype)

    def gradients(self, call: Call, inputs: dict[str, Any], times: tuple[Any, ...]) -> Slopes:
        results, back = self.module.vjp(call, inputs)
        return results, back(times)[0]


class TensorFlow(Framework):
    """Eager, with GradientTape."""

    name, versions = "tensorflow", ("tensorflow",)

    def __init__(self) -> None:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # else it reports on the processor
        super().__init__()
        self.module.config.threading.set_intra_op_parallelism_threads(1)
        self.module.config.threading.set_inter_op_parallelism_threads(1)

    def array(self, x: np.ndarray, dtype: str | None = None) -> Any:
        return self.module.constant(x, dtype)

    def score(self, built: Any) -> Any:
        if type(built).__name__ != "SquaredProduct":
            return built
        return lambda query, key: self.module.matmul(query, key, transpose_b=True) ** 2 / 20

    def numbers(self, x: Any) -> Any:
        return x.numpy()

    def gradients(self, call: Call, inputs: dict[str, Any], times: tuple[Any, ...]) -> Slopes:
        with self.module.GradientTape() as tape:
            tape.watch(inputs)
            results = call(inputs)
        zero = self.module.UnconnectedGradients.ZERO
        return results, tape.gradient(list(results), inputs, list(times), zero)


class MXNet(Framework):
    """Arrays of `mx.np`, as its guide says since 1.6."""

    name, versions = "mxnet", ("mxnet",)
    dtypes = ("float32", "float64", "float16")
    refusals = (("callable", "float16"),)  # `@` on the CPU
    lacks = ("edges",)

    def __init__(self) -> None:
        with warnings.catch_warnings():  # of names that NumPy has given up since
            warnings.simplefilter("ignore")
            super().__init__()
        self.module.npx.set_np()

    def array(self, x: np.ndarray, dtype: str | None = None) -> Any:
        return self.module.np.array(x, dtype=dtype or x.dtype)

    def mask(self, x: Any, mask: str) -> Any:
        """`array & mask` is not to be had of its arrays."""
        return np.asarray(x) if mask == "array_and_interval" else super().mask(x, mask)

    def numbers(self, x: Any) -> Any:
        return x.asnumpy()

    def settle(self) -> None:
        for _ in range(1000):  # it raises once more what failed later, one at a time
            try:
                self.module.nd.waitall()
                break
            except self.module.MXNetError:
                continue

    def gradients(self, call: Call, inputs: dict[str, Any], times: tuple[Any, ...]) -> Slopes:
        autograd = self.module.autograd
        for x in inputs.values():
            x.attach_grad()
        with autograd.record():
            results = call(inputs)
        autograd.backward(*([x.as_nd_ndarray() for x in xs] for xs in (results, times)))
        return results, {name: x.grad for name, x in inputs.items()}


FRAMEWORKS: dict[str, type[Framework]] = {
    each.name: each for each in (Framework, Torch, Jax, TensorFlow, MXNet)
}
