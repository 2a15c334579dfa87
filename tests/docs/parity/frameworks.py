"""One small adapter for each framework: arrays, their numbers, and gradients."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np

Call = Callable[[dict[str, Any]], tuple[Any, ...]]
"""A function from inputs by name to results."""
Slopes = tuple[tuple[Any, ...], dict[str, Any]]
"""Results, and gradients by name."""


class Framework:
    """The adapter of NumPy and the base of others; `module` makes arrays and has the dtypes."""

    name = "numpy"
    versions: tuple[str, ...] = ("numpy",)
    dtypes: tuple[str, ...] = ("float32", "float64", "bfloat16", "float16")
    refusals: tuple[tuple[str, str], ...] = ()
    """(score, dtype) where the framework lacks an operation of the plain callable."""
    lacks: tuple[str, ...] = ()
    """Extras that anyscore refuses in this framework."""

    def __init__(self) -> None:
        self.module = import_module(self.versions[0])

    def array(self, x: np.ndarray, dtype: str | None = None) -> Any:
        """Return an array of x in the dtype; None keeps the dtype of a mask."""
        if dtype == "bfloat16":
            return np.asarray(x).astype(import_module("ml_dtypes").bfloat16)
        return np.asarray(x, dtype)

    def mask(self, x: Any, mask: str) -> Any:
        """Return an array of the mask x, named `mask`."""
        return self.array(np.asarray(x))

    def score(self, built: Any) -> Any:
        """Return the score for this framework: a plain callable uses the framework's operations."""
        return built

    def numbers(self, x: Any) -> Any:
        """Return an array with readable numbers and dtype."""
        return np.asarray(x)

    def settle(self) -> None:
        """Let no failure of a call reach the next call."""

    def gradients(self, call: Call, inputs: dict[str, Any], times: tuple[Any, ...]) -> Slopes:
        """Return the results, and the gradients of Σ times · results."""
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
    """JAX without jit: an operation is compiled once for a shape, not anew for each row."""

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
    """TensorFlow in eager mode, with GradientTape."""

    name, versions = "tensorflow", ("tensorflow",)

    def __init__(self) -> None:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # else it logs the processor
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
    """MXNet with arrays of `mx.np`, as MXNet's guide says since 1.6."""

    name, versions = "mxnet", ("mxnet",)
    dtypes = ("float32", "float64", "float16")
    refusals = (("callable", "float16"),)  # `@` on the CPU
    lacks = ("edges",)

    def __init__(self) -> None:
        with warnings.catch_warnings():  # of names that NumPy has removed
            warnings.simplefilter("ignore")
            super().__init__()
        self.module.npx.set_np()

    def array(self, x: np.ndarray, dtype: str | None = None) -> Any:
        return self.module.np.array(x, dtype=dtype or x.dtype)

    def mask(self, x: Any, mask: str) -> Any:
        """Return a NumPy array for `array & mask`, which MXNet's arrays lack."""
        return np.asarray(x) if mask == "array_and_interval" else super().mask(x, mask)

    def numbers(self, x: Any) -> Any:
        return x.asnumpy()

    def settle(self) -> None:
        for _ in range(1000):  # MXNet raises later failures again, one at a time
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
