"""The choice of an implementation, as a plain value; the interface of a backend."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn, Protocol

from anyscore.call.task import Options, Task
from anyscore.masks.objects import Mask
from anyscore.modifiers import normalizers
from anyscore.ops import Array, Ops, accumulated, accumulation
from anyscore.score.factors import Factors
from anyscore.score.pairs import PRODUCT

FUSED = "fused, and keeps the contract"
"""Default `Plan.reason` of a fused implementation."""
_MUCH = 2**30
"""Bytes of the reference that a plan speaks of."""


@dataclass(frozen=True)
class Plan:
    """The implementation chosen for a call, and why.

    route: "reference", "separable", or the name of a fused implementation. reason: also says how
    much memory the reference needs, from 1 GiB on.
    """

    route: str
    reason: str


class Result(NamedTuple):
    """The results of an implementation.

    output: (..., T_q, d_v), in the dtype of the task; None if the task has no values. stats:
    (..., 2, T_q), as of `normalizers.softmax`; None if it gives none. scores: (..., T_q, T_k), −∞
    where not attended; None where `Options.return_scores` does not ask for them. Stats and scores
    lack a query bias, which `functional` adds. weights: (..., T_q, T_k), set by `from_scores` only.
    """

    output: Array | None
    stats: Array | None
    scores: Array | None = None
    weights: Array | None = None


@dataclass(frozen=True)
class Implementation:
    """One way to run a task.

    why_not: (task, options) → why it cannot run this task within the contract, None if it can.
    run: (task, options, seed of dropout) → `Result`. how: task → what a plan says of how it runs.
    """

    name: str
    why_not: Callable[[Task, Options], str | None]
    run: Callable[[Task, Options, Any], Result]
    how: Callable[[Task], str] = lambda task: FUSED


class Backend:
    """The part of the path that a framework provides; one file in `backends/` holds one.

    xp: its operations. reference: the definition in these. buffers: what writes to those of growing
    caches, None if nothing does.
    """

    xp: Ops
    reference: Implementation
    buffers: Buffers | None = None

    def fused(self, task: Task) -> tuple[Implementation, ...]:
        """Return the fused implementations for the device of a task, the preferred first."""
        raise NotImplementedError

    def differentiable(self, tensors: Iterable[Array]) -> bool:
        """Return whether derivatives with respect to any of these tensors may be asked for."""
        raise NotImplementedError

    def precision(
        self, query: Array
    ) -> tuple[Callable[[], AbstractContextManager[Any]], str | None]:
        """Return what makes a context to compute in, and the dtype of autocasting or None."""
        return nullcontext, None

    def draw_seed(self, query: Array) -> Array:
        """Draw a dropout seed from the framework's generator: an integer tensor ()."""
        raise NotImplementedError

    def sparse(self, scores: Array, power: int) -> Array:
        """Return `normalizers.sparse` of scores, by what computes it quickest."""
        return normalizers.sparse(self.xp, scores, power)

    def pack_keys(self, f: Factors) -> Array | None:
        """Return the keys of `f` as the core packs them, None where the core cannot read them.

        Called only for pairs that the core packs: see `kernels.cpu.packs`.
        """
        return None

    def adapter(self, query: Array, key: Array, value: Array) -> Adapter:
        """Return what adapts the tensors of a call, if they are of another kind than `xp` takes.

        Raises TypeError, ValueError: ragged tensors of other sequences than each other.
        """
        return AS_THEY_ARE


class Adapter:
    """Tensors of a call in the kind that `xp` takes, and results in the kind that the query is.

    sequences: those of ragged tensors, None for others. The base leaves all tensors as they are.
    """

    sequences: Mask | None = None

    def take(self, tensors: tuple[Any, ...], score: Any) -> tuple[tuple[Any, ...], Any]:
        """Return tensors of the call, and its score, in the kind that `xp` takes."""
        return tensors, score

    def give(self, x: Array, own: int = 1) -> Array:
        """Return a result (..., T_q), with `own` axes after these, in the kind of the query."""
        return x

    def give_pairs(self, x: Array, otherwise: float) -> Array:
        """Return a result (..., T_q, T_k) in the kind of the query.

        otherwise: what stands where there is no query or no key.
        """
        return self.give(x)


AS_THEY_ARE = Adapter()


def choose(backend: Backend, task: Task, options: Options) -> tuple[Plan, Implementation]:
    """Choose the first fused implementation that can run the task, else the reference.

    Raises NotImplementedError: none can, and `impl` is neither "auto" nor "reference".
    """
    if options.impl == "reference":
        return _of_reference(task, "asked for"), backend.reference
    reasons = []
    for implementation in backend.fused(task):
        reason = implementation.why_not(task, options)
        if reason is None:
            return Plan(implementation.name, implementation.how(task)), implementation
        reasons.append(f"{implementation.name}: {reason}")
    if options.impl != "auto":
        refuse(options.impl, "; ".join(reasons))
    return _of_reference(task, "; ".join(reasons)), backend.reference


def _of_reference(task: Task, reason: str) -> Plan:
    """Return the plan to run a task by the reference, which says so where that takes much."""
    if (memory := _memory(task)) >= _MUCH:
        reason += f"; the reference needs {memory / 2**30:.3g} GiB or more"
    return Plan("reference", reason)


def _memory(task: Task) -> int:
    """Return how many bytes the reference holds at a time, at the least; 0 if sizes are unknown.

    It holds two numbers for each query and key, and if the pair is no product for each feature.
    """
    f, of_all, edges = task.score, task.sizes.scores_shape, task.edges
    if edges is not None:
        of_all = *task.sizes.lead, edges.count
    if isinstance(f, Factors) and f.pair != PRODUCT:
        of_all = *of_all, f.a.shape[-1]
    if not all(isinstance(n, int) for n in of_all):
        return 0
    return 2 * math.prod(of_all) * (8 if accumulation(task.dtype) == "float64" else 4)


def refuse(impl: str, reason: str) -> NoReturn:
    """Raise NotImplementedError: an implementation requested by name cannot run."""
    raise NotImplementedError(f'impl="{impl}" cannot run: {reason}. Use impl="auto".')


def with_query_bias(xp: Ops, task: Task, result: Result) -> Result:
    """Add the query bias to the results of an implementation, which leaves it out."""
    bias = task.score.query_bias if isinstance(task.score, Factors) else None
    if bias is None or not task.query_bias_cancels:
        return result
    bias = accumulated(xp, bias)
    if task.mask is not None:
        bias = xp.where(task.mask.attending_attended[0], bias, 0.0)
    output, stats, scores, _ = result
    if output is not None:
        output = output + xp.astype(0 * bias[..., None], task.dtype)
    return Result(
        output,
        None if stats is None else stats + normalizers.stats_of(xp, bias, 0 * bias),
        None if scores is None else scores + task.align_with_scores(bias),
    )


class Buffers(Protocol):
    """Interface to the K/V buffers (..., T, d) of a cache: allocate, write rows, reorder the batch.

    in_place: whether they are written to where they are.
    """

    in_place: bool

    def zeros(self, shape: tuple[int, ...], like: Array, dtype: str | None = None) -> Array:
        """Return zeros on the device of `like`, of its dtype unless another is said."""

    def empty_view(self, shape: tuple[int, ...], like: Array) -> Array:
        """Return zeros that are never written to, and take no memory where they need none."""

    def concrete_int(self, x: Array) -> int | None:
        """Return the integer that x () holds.

        None if x is traced, or on an accelerator: reading would synchronise.
        """

    def concrete_ints(self, x: Array) -> list[int] | None:
        """Return the integers that x (n,) holds, likewise."""

    def why_not(self, *rows: Array) -> str | None:
        """Return why rows cannot be kept, None if they can."""

    def write_rows(self, x: Array, rows: Array, start: Array | int, wraps: bool) -> Array:
        """Return x (..., T, d) with rows (..., n, d) from row `start` () on.

        wraps: whether they go on at its beginning where it ends; else start + n ≤ T.
        """

    def add(self, x: Array, n: int) -> Array:
        """Return the integers x, n more."""

    def reorder_batch(self, x: Array, index: Array, rows: int | None) -> Array:
        """Return x with the entries x[index] of its first axis, in as many as it has.

        rows: how many of x (..., T, d) are of interest, None: all.
        """

    def pack(self, pair: str, b: Array, packed: Array, start: Array | int, count: int) -> Array:
        """Return packed with what `kernels.cpu.append_keys` writes to it."""

    def packed_buffer(self, b: Array) -> Array | None:
        """Return room for that, None where the core cannot read b: then nothing is packed."""


class RepeatedCalls(Protocol):
    """Repeat calls of default options that came before, lengths apart; and appends to a cache."""

    def run(
        self, query: Array, key: Any, value: Array, score: Any, valid_lens: Any = None
    ) -> Array | None:
        """Return the output, None where the call must be looked at."""

    def remember(
        self, query: Array, key: Any, value: Array, score: Any, valid_lens: Any, task: Any
    ) -> None:
        """Remember a completed call, as its task, so that the next alike can skip checks."""

    def append(self, cache: Any, key: Array, value: Array, score: Any) -> bool:
        """Append tokens to a `Cache` of this score; say whether that could be done so."""

    def remember_append(self, cache: Any, key: Array, value: Array, score: Any, f: Any) -> None:
        """Remember how tokens were appended in full, as these factors of the score."""


REPEATED: dict[type, RepeatedCalls] = {}
"""By the type of the query; a backend that can adds its own when it is loaded."""
