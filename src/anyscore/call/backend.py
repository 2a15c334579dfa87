"""The choice of an implementation, as plain data; the interface of a backend."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn, Protocol

from anyscore.call.operands import Results
from anyscore.call.shards import Exchange, Part, Scheme, Sharded
from anyscore.call.task import Options, Task
from anyscore.masks.objects import Mask
from anyscore.modifiers import normalizers
from anyscore.ops import Array, Ops, accumulated, accumulation
from anyscore.score.factors import Factors
from anyscore.score.pairs import PRODUCT

FUSED = "fused, and keeps the contract"
"""Default `Plan.reason` of a fused implementation."""
MUCH = 2**30
"""The bytes of the reference from which on every plan mentions them, and some calls warn."""


@dataclass(frozen=True)
class Plan:
    """Implementation chosen for a call, and why; the result of `plan`.

    Attributes:
        route: "reference", "separable", or the name of a fused implementation.
        reason: why it was chosen. The memory that the reference needs is added on a device without
            kernels, and on every device from 1 GiB on.
        reference_bytes: the bytes that the reference needs beside inputs; None for another route,
            and for unknown sizes. Measured peaks are at most twice as large.
        repeated: True if calls of this kind are known, and run without checks. Equal plans may
            differ in it.

    >>> import numpy as np
    >>> from anyscore import plan
    >>> x = np.ones((1, 2, 3))
    >>> plan(x, x, x, impl="reference").reason
    'asked for'
    """

    route: str
    reason: str
    reference_bytes: int | None = field(default=None, compare=False, repr=False)
    repeated: bool = field(default=False, compare=False, repr=False)


class Result(NamedTuple):
    """The results of an implementation.

    output: (..., T_q, d_v), in the dtype of the task; None if the task has no values. stats: (...,
    2, T_q), see `normalizers.softmax`; None if the implementation computes none. scores: (..., T_q,
    T_k), −∞ where masked; None without `Options.return_scores`. Stats and scores lack a query bias;
    `functional` adds it. weights: (..., T_q, T_k), set by `from_scores` only.
    """

    output: Array | None
    stats: Array | None
    scores: Array | None = None
    weights: Array | None = None


@dataclass(frozen=True)
class Implementation:
    """One way to run a task.

    why_not: (task, options) → the reason that it cannot run this task within the contract, None if
    it can. run: (task, options, seed of dropout) → `Result`. how: task → the sentence of a plan
    about the way it runs.
    """

    name: str
    why_not: Callable[[Task, Options], str | None]
    run: Callable[[Task, Options, Any], Result]
    how: Callable[[Task], str] = lambda task: FUSED


class Backend:
    """The interface of a framework; each framework implements it in `backends/`.

    xp: the framework's operations. reference: the reference in these operations. separable: the
    implementation of impl="separable", None if the framework has none. buffers: the interface to
    buffers of growing caches, None if the framework has no such caches.
    """

    xp: Ops
    reference: Implementation
    separable: Implementation | None = None
    buffers: Buffers | None = None

    def fused(self, task: Task) -> tuple[Implementation, ...]:
        """Return the fused implementations for the device of a task, the preferred first."""
        raise NotImplementedError

    def prefers_separable(self, task: Task, options: Options) -> bool:
        """Return whether impl="auto" takes `separable` for a task, which it can then run."""
        return False

    def lacks_kernels(self, task: Task) -> bool:
        """Return whether a task is on a device without kernels, where a large call warns."""
        return False

    def differentiable(self, tensors: Iterable[Array]) -> bool:
        """Return whether a derivative with respect to any of these tensors may be computed."""
        raise NotImplementedError

    def precision(
        self, query: Array
    ) -> tuple[Callable[[], AbstractContextManager[Any]], str | None]:
        """Return a factory of a context to compute in, and the dtype of autocasting or None."""
        return nullcontext, None

    def draw_seed(self, query: Array) -> Array:
        """Draw a dropout seed from the framework's generator: an integer tensor ()."""
        raise NotImplementedError

    def sparse(self, scores: Array, power: int) -> Array:
        """Return `normalizers.sparse` of scores, by the fastest implementation."""
        return normalizers.sparse(self.xp, scores, power)

    def exchange(self, over: Any) -> Exchange:
        """Return the exchange between the ranks of a group.

        Raises:
            TypeError: the framework has no such groups, or `over` is none.
        """
        raise TypeError("across is for PyTorch and JAX, whose ranks form groups: leave it out.")

    def attend_sharded(self, part: Part, sharded: Sharded, scheme: Scheme, fused: bool) -> Results:
        """Return the results of this rank's part of a call, differentiable once.

        fused: whether kernels compute the blocks, not the definition.
        """
        raise NotImplementedError

    def pack_keys(self, f: Factors) -> Array | None:
        """Return the keys of `f`, packed for the core; None if the core cannot read them.

        Only pairs that the core packs come here: see `kernels.cpu.packs`.
        """
        return None

    def adapter(self, query: Array, key: Array, value: Array) -> Adapter:
        """Return the adapter of the tensors of a call to the type of tensors that `xp` takes.

        Raises:
            TypeError, ValueError: ragged tensors have different sequences.
        """
        return AS_THEY_ARE


class Adapter:
    """Converts tensors of a call to the type that `xp` takes, and results to the query's type.

    sequences: the sequences of ragged tensors, None for other tensors. The base class returns all
    tensors unchanged.
    """

    sequences: Mask | None = None

    def take(self, tensors: tuple[Any, ...], score: Any) -> tuple[tuple[Any, ...], Any]:
        """Return tensors of the call, and its score, in the type that `xp` takes."""
        return tensors, score

    def give(self, x: Array, own: int = 1) -> Array:
        """Return a result in the query's type; `own` axes follow its axes (..., T_q)."""
        return x

    def give_pairs(self, x: Array, otherwise: float) -> Array:
        """Return a result (..., T_q, T_k) in the query's type.

        otherwise: the number for padded queries and keys.
        """
        return self.give(x)


AS_THEY_ARE = Adapter()


def choose(backend: Backend, task: Task, options: Options) -> tuple[Plan, Implementation]:
    """Choose the implementation of a task: by default the first fused one that can run it.

    Raises:
        NotImplementedError: `impl` names an implementation that cannot run the task.
    """
    if options.impl == "reference":
        return _of_reference(backend, task, "asked for"), backend.reference
    if options.impl == "separable" or (
        options.impl == "auto" and backend.prefers_separable(task, options)
    ):
        return _separable(backend, task, options)
    reasons = []
    for implementation in backend.fused(task):
        reason = implementation.why_not(task, options)
        if reason is None:
            return Plan(implementation.name, implementation.how(task)), implementation
        reasons.append(f"{implementation.name}: {reason}")
    if options.impl != "auto":
        refuse(options.impl, "; ".join(reasons))
    return _of_reference(backend, task, "; ".join(reasons)), backend.reference


def _separable(backend: Backend, task: Task, options: Options) -> tuple[Plan, Implementation]:
    implementation = backend.separable
    if implementation is None:
        refuse("separable", "it is for PyTorch on NVIDIA GPUs")
    reason = implementation.why_not(task, options)
    if reason is not None:
        refuse("separable", reason)
    return Plan(implementation.name, implementation.how(task)), implementation


def _of_reference(backend: Backend, task: Task, reason: str) -> Plan:
    """Return the plan of the reference for a task."""
    memory = _memory(backend, task)
    if memory and (memory >= MUCH or backend.lacks_kernels(task)):
        reason += f"; the reference needs {_amount(memory)} or more"
    return Plan("reference", reason, memory)


def _amount(memory: int) -> str:
    """Return a number of bytes in the largest unit of which there is one."""
    power = max(memory.bit_length() - 1, 0) // 10
    return f"{memory / 1024**power:.3g} {('bytes', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB')[power]}"


def _memory(backend: Backend, task: Task) -> int | None:
    """Return the bytes that the reference holds at a time; None for unknown sizes.

    An array has a number for each query and key, and for each feature unless the pair is a product.
    Measured peaks gave the number of arrays at a time. Dropout, the sigmoid and sparse weights are
    left out: with them, peaks are up to twice as large.
    """
    f, of_all, edges = task.score, task.sizes.scores_shape, task.edges
    factors = f if isinstance(f, Factors) else None
    masked = task.mask is not None and (
        task.mask_per_query if task.unread_is_finite else task.mask.per_query
    )
    tensors = (f,) if factors is None else (factors.a, factors.b, factors.weight, task.value)
    trained = backend.differentiable(x for x in tensors if x is not None)
    if edges is not None:
        of_all, arrays = (*task.sizes.lead, edges.count), 4 + trained
    elif factors is None or factors.pair == PRODUCT:
        arrays = 3 + 3 * masked + 2 * trained
    else:
        arrays = 4 if masked else 2 + trained
    if factors is not None and (edges is not None or factors.pair != PRODUCT):
        of_all = *of_all, factors.a.shape[-1]
    if not all(isinstance(n, int) for n in of_all):
        return None
    return arrays * math.prod(of_all) * (8 if accumulation(task.dtype) == "float64" else 4)


def refuse(impl: str, reason: str) -> NoReturn:
    """Raise NotImplementedError: the implementation requested by name cannot run."""
    raise NotImplementedError(f'impl="{impl}" cannot run: {reason}. Use impl="auto".')


def with_query_bias(xp: Ops, task: Task, result: Result) -> Result:
    """Return a result with the query bias, which implementations leave out."""
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

    in_place: whether buffers are written in place.
    """

    in_place: bool

    def zeros(self, shape: tuple[int, ...], like: Array, dtype: str | None = None) -> Array:
        """Return zeros on the device of `like`; dtype: None for the dtype of `like`."""

    def empty_view(self, shape: tuple[int, ...], like: Array) -> Array:
        """Return read-only zeros, without memory if the framework can broadcast a view."""

    def concrete_int(self, x: Array) -> int | None:
        """Return the integer in x (); None if x is traced, or on an accelerator.

        Reading from an accelerator would synchronise.
        """

    def concrete_ints(self, x: Array) -> list[int] | None:
        """Return the integers in x (n,); None if x is traced, or on an accelerator."""

    def why_not(self, *rows: Array) -> str | None:
        """Return why a cache cannot hold these rows, None if it can."""

    def write_rows(self, x: Array, rows: Array, start: Array | int, wraps: bool) -> Array:
        """Return x (..., T, d) with rows (..., n, d) written from row `start` () on.

        wraps: whether rows after the last go to the first rows of x; else start + n ≤ T.
        """

    def add(self, x: Array, n: int) -> Array:
        """Return x + n for integers x."""

    def reorder_batch(self, x: Array, index: Array, rows: int | None) -> Array:
        """Return x with its first axis reordered to x[index], of the same length.

        rows: the number of rows of x (..., T, d) in use, None for all.
        """

    def pack(self, pair: str, b: Array, packed: Array, start: Array | int, count: int) -> Array:
        """Return `packed` after `kernels.cpu.append_keys`."""

    def packed_buffer(self, b: Array) -> Array | None:
        """Return a buffer for packed keys; None, for no packing, if the core cannot read b."""
