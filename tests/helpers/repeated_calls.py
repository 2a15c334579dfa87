"""The property of repeated calls: a later call does exactly what a first call does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from anyscore import attention
from anyscore.backends.repeated import REPEATED, RepeatedCalls

REPEATS = {
    "at once": [True, True, True],
    "soon": [False, True, True],
    "later": [False, False, True],
    "never": [False, False, False],
}
"""Which of three calls the core repeats, after two calls of a known kind."""


class Draw:
    """Draws arrays of a framework; draw(*shape) is an array of numbers.

    order: of the derivatives to compute, in PyTorch. leaves: the numbers drawn so far, which then
    need gradients.
    """

    def __init__(self, framework: str, seed: int, order: int = 0) -> None:
        self.framework, self.order = framework, order
        self.leaves: list[Any] = []
        self._rng = np.random.default_rng(seed)

    def __call__(self, *shape: int, dtype: str = "float32") -> Any:
        x = self.array(self._rng.standard_normal(shape).astype(dtype))
        if self.order:
            self.leaves.append(x.requires_grad_())
        return x

    def array(self, x: Any) -> Any:
        return x if self.framework == "numpy" else torch.from_numpy(np.asarray(x))

    def lengths(self, *shape: int, dtype: str = "int64") -> Any:
        """Draw lengths from below 0 to beyond the keys; of 64 bits, far beyond."""
        n = np.asarray(self._rng.integers(-2, 9, shape), dtype)
        if dtype == "int64":
            n = np.where(n == 8, 2**40, np.where(n == -2, -(2**63), n))
        return self.array(n)

    def booleans(self, *shape: int) -> Any:
        return self.array(self._rng.random(shape) < 0.6)


Arguments: TypeAlias = dict[str, Any] | Callable[[Draw], dict[str, Any]]
"""Arguments of a call beside default ones, or a function that draws these.

function: the function or layer, by default `attention`. attributes: of the layer.
"""
Call: TypeAlias = Callable[[], list[Any]]


def call_of(given: Arguments, framework: str, seed: int, order: int = 0) -> Call:
    """Return a call: () → results, derivatives up to an order, and the weights of a layer.

    Arguments and parameters are drawn anew, with the same values; results are written to before
    the derivatives, and lengths and parameters before the weights.
    """

    def call() -> list[Any]:
        draw = Draw(framework, seed, order)
        x = {"query": draw(2, 3, 4), "key": draw(2, 5, 4), "value": draw(2, 5, 6)}
        x |= given(draw) if callable(given) else given
        function, lengths = x.pop("function", attention), x.get("valid_lens")
        parameters = list(function.parameters()) if isinstance(function, nn.Module) else []
        for name, option in x.pop("attributes", {}).items():
            setattr(function, name, option)
        for parameter in parameters:
            parameter.data.copy_(torch.as_tensor(draw(*parameter.shape)).detach())
        tokens = [x.pop("query"), x.pop("key"), x.pop("value")]
        with torch.set_grad_enabled(order > 0):
            made = function(*(y for y in tokens if y is not None), **x)
        outputs = [y for y in (made if isinstance(made, tuple) else [made]) if y is not None]
        if isinstance(lengths, list) or np.ndim(lengths):
            lengths[0] = 1
        found = _with_derivatives(outputs, [*draw.leaves, *parameters], order)
        for parameter in parameters:
            parameter.data.add_(1)
        last = getattr(function, "last_weights", lambda: None)()
        return found if last is None else [*found, last]

    return call


def _with_derivatives(outputs: list[Any], leaves: list[Tensor], order: int) -> list[Any]:
    """Return copies of outputs, and derivatives of weighted sums of outputs."""
    if not order:
        return outputs
    found: list[Any] = [y.detach().clone() for y in outputs]
    for y in outputs:
        y.detach().zero_()
    for n in range(order):
        above = [torch.linspace(-1, 2, y.numel(), dtype=y.dtype).view_as(y) for y in outputs]
        slopes = torch.autograd.grad(
            outputs, leaves, above, create_graph=n + 1 < order, allow_unused=True
        )
        outputs = [y for y in slopes if y is not None and y.requires_grad]
        found.extend(None if y is None else y.detach() for y in slopes)
        if not outputs:
            break
    return found


def outcome(call: Call) -> list[Any]:
    """Return the results of a call, or its error as text; then random numbers drawn after it."""
    np.random.seed(0)
    torch.manual_seed(0)
    try:
        found = call()
    except Exception as error:
        found = [f"{type(error).__name__}: {error}"]
    return [*found, np.random.rand(), torch.rand(())]


def assert_same(found: list[Any], wanted: list[Any]) -> None:
    """Assert that two outcomes are the same, bit by bit."""
    for x, y in zip(found, wanted, strict=True):
        if isinstance(y, Tensor):
            assert type(x) is type(y)
            assert x.requires_grad is y.requires_grad
            torch.testing.assert_close(x, y, rtol=0, atol=0, equal_nan=True)
        elif isinstance(y, np.ndarray):
            assert type(x) is type(y)
            assert x.dtype == y.dtype
            np.testing.assert_array_equal(x, y)
        else:
            assert x == y


def forget(*layers: nn.Module) -> None:
    """Forget all known calls of functions, and of layers."""
    owners = [module for layer in layers for module in layer.modules()]
    for known in (*REPEATED.values(), *(vars(x)["_calls"] for x in owners if "_calls" in vars(x))):
        known.forget()


SEEN: list[bool] = []
"""For each call and append of a `watched` block: whether the core repeated an earlier one."""


@contextmanager
def watched() -> Iterator[None]:
    """Note calls and appends in `SEEN`."""

    def watch(method: Any) -> Any:
        def watched(*args: Any) -> Any:
            found = method(*args)
            SEEN.append(bool(found))
            return found

        return watched

    with pytest.MonkeyPatch.context() as patch:
        for name in ("run", "append"):
            patch.setattr(RepeatedCalls, name, watch(getattr(RepeatedCalls, name)))
        SEEN.clear()
        yield


def check(known: Call, other: Call, repeats: str | None = None, *layers: nn.Module) -> None:
    """Assert that each of two calls does, after the other, what it does as a first call.

    repeats: which of three calls `other` are repeated after two calls `known`; see `REPEATS`. By
    default None: unknown. layers: whose calls these are.
    """
    firsts = []
    for call in (known, other):
        forget(*layers)
        firsts.append(outcome(call))
    forget(*layers)
    found, are_repeated = [outcome(known) for _ in range(2)], []
    for _ in range(3):
        with watched():
            found.append(outcome(other))
        are_repeated.append(bool(SEEN) and all(SEEN))
    found.append(outcome(known))
    for x, first in zip(found, [firsts[0]] * 2 + [firsts[1]] * 3 + firsts[:1], strict=True):
        assert_same(x, first)  # at last, so that no result has the memory of an earlier one
    assert not isinstance(firsts[0][0], str), firsts[0][0]
    if repeats is not None:
        assert are_repeated == REPEATS[repeats], are_repeated
