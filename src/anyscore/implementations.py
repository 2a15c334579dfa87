"""Which implementation runs a task, decided as a plain value."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol, cast

from anyscore.factors import Factors
from anyscore.ops import Array
from anyscore.task import Task


@dataclass(frozen=True)
class Plan:
    """What was chosen for a call, and why.

    route: "reference", "separable", or the name of a fused one.
    """

    route: str
    reason: str


@dataclass(frozen=True)
class Implementation:
    """A fused implementation.

    usable: (task, dropout rate, whether the log-sum-exp is wanted) → why it cannot run this task
    within the contract, or None if it can.
    run: (task, dropout rate, seed) → the output, and the log-sum-exp without the query bias if it
    gives one.
    weights: (task, that log-sum-exp) → the weights, without a graph; None if it gives none.
    """

    name: str
    usable: Callable[[Task, float, bool], str | None]
    run: Callable[[Task, float, Any], tuple[Array, Array | None]]
    weights: Callable[[Task, Array], Array] | None = None


class Backend(Protocol):
    """What a framework adds to the shared path: one file in `backends/`."""

    def routes(self, task: Task) -> tuple[Implementation, ...]:
        """Its fused implementations for where the tensors of a task are, the preferred first."""

    def differentiable(self, tensors: Iterable[Array]) -> bool:
        """Whether derivatives with respect to any of these may be asked for."""

    def precision(
        self, query: Array
    ) -> tuple[Callable[[], AbstractContextManager[Any]], str | None]:
        """What makes a context to compute in, and the dtype that autocasting asks for, if any."""

    def draw_seed(self, query: Array) -> Array:
        """A dropout seed from the framework's generator, an integer tensor ()."""

    def pack_keys(self, f: Factors) -> Array | None:
        """What the fused implementations want to know of the keys of `f`; None if nothing."""


class Kinds(Protocol):
    """The backend of a framework with two kinds of tensors, of which the mathematics takes one."""

    def enter(self, tensors: tuple[Array, ...], score: Any) -> tuple[tuple[Array, ...], Any]:
        """The tensors of a call and its score, in that kind."""

    def leave(self, x: Array, like: Array) -> Array:
        """A result in the kind of `like`."""


def kinds_of(backend: Backend) -> Kinds | None:
    """The backend as `Kinds`, None if its framework has but one."""
    return cast(Kinds, backend) if hasattr(backend, "enter") else None


def choose(
    backend: Backend, task: Task, dropout: float, return_lse: bool, impl: str
) -> tuple[Plan, Implementation | None]:
    """The first fused route that can run the task, else the reference; only "auto" may choose."""
    if impl == "reference":
        return Plan("reference", "asked for"), None
    obstacles = []
    for route in backend.routes(task):
        obstacle = route.usable(task, dropout, return_lse)
        if obstacle is None:
            return Plan(route.name, "fused, and keeps the contract"), route
        obstacles.append(f"{route.name}: {obstacle}")
    reason = "; ".join(obstacles)
    if impl != "auto":
        refuse(impl, reason)
    return Plan("reference", reason), None


def refuse(impl: str, reason: str) -> NoReturn:
    """What was asked for by name does not run: nothing else is taken in silence."""
    raise NotImplementedError(f'impl="{impl}" cannot run: {reason}. Use impl="auto".')
