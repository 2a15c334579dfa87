"""Calls like an earlier one: lowered, then run by the core without checks.

Checks, the mask and the choice of an implementation take 40 µs per call; the core takes 1 µs for
the smallest. They depend on the kind of a call alone: the class and numbers of its score and mask,
and the types, shapes and strides of its arrays. The second call of a kind keeps them in a
`KnownCall`; later ones take from it everything but their arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from numbers import Real
from operator import attrgetter
from typing import Any, TypeAlias, cast

from anyscore.backends.record import keeps_scores, operands_of
from anyscore.call.backend import Backend, Implementation, choose
from anyscore.call.lowering import lower_mask
from anyscore.call.operands import Operands
from anyscore.call.prepared import PreparedKeys
from anyscore.call.task import Call, Options, Task
from anyscore.kernels import cpu
from anyscore.masks.lowered import LoweredMask
from anyscore.masks.objects import All, Mask
from anyscore.ops import Array
from anyscore.score import SCORES
from anyscore.score.base import Projection, Score
from anyscore.score.factors import Factors

MAX_CALLS, MAX_KINDS = 8, 64
"""The most known calls of one kind, of which the latest stay; and the most kinds, sizes seen, or
appends of an owner: one more drops all of these.
"""

Lowered: TypeAlias = tuple[Array, Array, Array | None, Array | None]
"""Factors of a score, without constants of its kind: (a, b, weight, key_bias)."""
Lowering: TypeAlias = Callable[[Any, Array, Any], Lowered | None]
"""(score, query, key) → the lowered score; None for another pair, or a query bias."""
Bounds: TypeAlias = Callable[[Array, Any, Any], tuple[Any, Any, Any] | None]
"""(query, lengths, mask) → (start, stop, mask) of the core; None for another mask."""

NAMED = frozenset(SCORES.values())
"""The scores whose calls are repeated: nothing is known of users' own."""
_ARRAY = "an array"
_NUMBERS = frozenset((type(None), bool, int, float, str))


def kind_of_score(score: Any) -> Any:
    """Return the class of a score, its numbers, and the shapes of its tensors; hashable.

    None for a score that is not repeated: of a user, or with a number of another type.
    """
    kind = type(score)
    if kind not in NAMED:
        return None
    found: list[Any] = [kind]
    for x in vars(score).values():
        if x is None or type(x) is float:
            found.append(x)
        elif type(x) is int:
            found.append((int, x))
        else:
            # NumPy's numbers, booleans and fractions have no shape, or ().
            shape = getattr(x, "shape", None)
            if not isinstance(shape, tuple) or (not shape and isinstance(x, Real)):
                return None
            found.append(shape)
    return tuple(found)


def kind_of_scores(score: Any, softcap: float, mask: Any) -> Any:
    """Return the kind of a call without values; hashable; None if it is not repeated."""
    kind = kind_of_score(score)
    if kind is None or type(softcap) is not float:
        return None
    return "scores", kind, softcap, kind_of_mask(mask)


def kind_of_mask(mask: Any) -> Any:
    """Return the class of a mask and its numbers, with `_ARRAY` for each array; hashable."""
    if type(mask) is All:
        return tuple(map(kind_of_mask, mask.masks))
    if not isinstance(mask, Mask):
        return None if mask is None else _ARRAY
    if type(mask).__module__ != Mask.__module__:  # may depend on more than its fields
        return type(mask), _ARRAY
    fields = ((type(x), x) if type(x) in _NUMBERS else _ARRAY for x in vars(mask).values())
    return type(mask), *fields


@dataclass(frozen=True, eq=False)
class CoreArrays:
    """A framework whose arrays lend their memory to the core.

    types: of the arrays. core: the implementation to repeat. layout: x → its type, shape,
    dtype and device, hashable. wants_gradients: (a, b, value, weight, key_bias) → whether any needs
    gradients; None if memory alone does not tell. thread_count: () → the number of threads.
    allocate: (query, shape) → an array of the dtype of query, uninitialised. may_write: x → whether
    x may be written to now. mark_written: (arrays): bump autograd version counters. context: () →
    the context to lower in. train: (known call, lowered, value, packed, bounds, lengths, seed)
    → the output with gradients, None if arrays have another layout; None without gradients in the
    framework.
    """

    types: tuple[type[Any], ...]
    backend: Backend
    core: Implementation
    layout: Callable[[Array], Any]
    wants_gradients: Callable[..., bool | None]
    thread_count: Callable[[], int]
    allocate: Callable[[Array, tuple[int, ...]], Array]
    may_write: Callable[[Array], bool]
    mark_written: Callable[[tuple[Array, ...]], None]
    context: Callable[[], AbstractContextManager[Any]] | None = None
    train: Callable[..., Array | None] | None = None

    def layouts(self, query: Array, key: Any, value: Array | None) -> Any:
        """Return the layouts of the tensors of a call."""
        key = key.b if type(key) is PreparedKeys else key
        of_value = None if value is None else self.layout(value)
        return self.layout(query), self.layout(key), of_value

    def layouts_of_score(self, score: Any) -> list[Any]:
        """Return the layouts of the parameters of a score."""
        found: list[Any] = []
        for x in vars(score).values():
            if type(x) is Projection:
                found.extend(map(self.layout, x.tensors))
            elif isinstance(x, self.types):
                found.append(self.layout(x))
        return found


class KnownCall:
    """A call of the core, checked once, for other arrays of the same types, shapes and strides.

    core: see `kernels.cpu.repeated_call`. lower, bounds: see `Lowering` and `Bounds`. is_trivial:
    whether lowering computes nothing. layouts, layouts_of_score: compared before it computes
    anything. settings, keeps_scores, stop_shape: of the core's call.

    Raises:
        ValueError: the core cannot repeat the call of a task.
    """

    def __init__(self, arrays: CoreArrays, call: Call, task: Task, options: Options) -> None:
        query, key, value, score, mask, lengths, *_ = call
        self._xp = xp = arrays.backend.xp
        x, self.settings = operands_of(xp, task, options, 0 if options.dropout else None)
        self.stop_shape = None if x.stop is None else x.stop.shape
        is_direct = mask is None and type(lengths) in arrays.types and xp.dtype(lengths) == "int64"
        if is_direct:  # the core clamps lengths
            x = x._replace(stop=lengths.reshape(self.stop_shape))
        self.bounds = _bounds(arrays, x, task, is_direct, lengths, mask)
        self.keeps_scores = keeps_scores(x, self.settings)
        self.core = cpu.repeated_call(
            x, self.settings, lengths if is_direct else None, arrays.allocate, self.keeps_scores
        )
        f = cast(Factors, task.score)
        trivial = _trivial_lowering(score, f, query, key)
        self.is_trivial = trivial is not None
        self.lower = trivial or _lowering(arrays, f)
        self.constants = f.pair.key, f.outer, f.scale
        self.layouts = arrays.layouts(query, key, value)
        self.layouts_of_score = arrays.layouts_of_score(score)
        empty = Factors(None, None, f.pair, scale=f.scale, outer=f.outer)
        self._task = task._replace(score=empty, value=None, mask=None, packed=None)

    def clamped(self, stop: Array | None) -> Array | None:
        """Return the ends of intervals from 0 to T_k; the core takes lengths as they come."""
        if stop is None:
            return None
        shape = cast(Any, self.stop_shape)
        return self._xp.clip(self._xp.reshape(stop, shape), 0, self._task.sizes.keys)

    def task(self, lowered: Lowered, bounds: tuple[Any, Any, Any]) -> Task:
        """Return the task of the weights of such a call."""
        a, b, weight, key_bias = lowered
        f = cast(Factors, self._task.score)
        f = f._replace(a=a, b=b, weight=weight, key_bias=key_bias)
        start, stop, mask = bounds
        of_call = LoweredMask(self._xp, self._task.sizes.keys, start, self.clamped(stop), mask)
        return self._task._replace(score=f, mask=of_call if of_call.masks_any else None)


def _bounds(
    arrays: CoreArrays, x: Operands, task: Task, is_direct: bool, lengths: Any, mask: Any
) -> Bounds:
    """Return the bounds of calls with such lengths and masks.

    Lengths are passed directly if `is_direct`, and booleans if they have all axes of the scores.
    """
    xp, sizes = arrays.backend.xp, task.sizes
    if is_direct:
        return lambda query, lengths, mask: (None, lengths, None)
    if lengths is None and type(mask) in arrays.types and mask.shape == x.mask.shape:
        return lambda query, lengths, mask: None if lengths is not None else (None, None, mask)
    if lengths is None and _ARRAY not in _flat(kind_of_mask(mask)):
        constant = x.start, x.stop, x.mask
        return lambda query, lengths, mask: None if lengths is not None else constant

    def bounds(query: Array, lengths: Any, mask: Any) -> tuple[Any, Any, Any] | None:
        lowered = lower_mask(xp, sizes, query, mask, lengths)
        if not isinstance(lowered, LoweredMask):
            return None
        return lowered.start, lowered.stop, lowered.mask

    return bounds


def _flat(kind: Any) -> list[Any]:
    return [x for y in kind for x in _flat(y)] if isinstance(kind, tuple) else [kind]


def _trivial_lowering(score: Any, f: Factors, query: Array, key: Any) -> Lowering | None:
    """Return the lowering of scores of this kind if it computes nothing; None if it does.

    f: the factors of `score`, query and key.
    """
    b = key.b if type(key) is PreparedKeys else key
    if f.a is not query or f.b is not b:
        return None
    tensors = score.tensors()
    if any(x is not f.weight for x in tensors.values()):
        return None
    if f.key_bias is not None or (f.weight is not None and not tensors):
        return None
    weight = attrgetter(*tensors) if tensors else None

    def lower(score: Any, query: Array, key: Any) -> Lowered | None:
        if type(key) is PreparedKeys:
            if key.score is not type(score) or key.key_bias is not None:
                return None
            key = key.b
        return query, key, weight and weight(score), None

    return lower


def _lowering(arrays: CoreArrays, like: Factors) -> Lowering:
    """Return the lowering of any score to factors with the constants of `like`."""
    xp, context = arrays.backend.xp, arrays.context
    pair, outer, scale = like.pair.key, like.outer, like.scale

    def lower(score: Any, query: Array, key: Any) -> Lowered | None:
        with nullcontext() if context is None else context():
            if type(key) is PreparedKeys:
                f = key.bind(xp, score, query)
            else:
                f = score.lower(xp, query, key)
        if f.pair.key != pair or f.outer != outer or f.scale != scale or f.query_bias is not None:
            return None
        return f.a, f.b, f.weight, f.key_bias

    return lower


class RepeatedCalls:
    """The known calls of an owner: a layer, or all calls of functions with arrays of one type.

    known: the known calls of each kind, the latest first. seen: how often a call of each kind and
    layouts was checked. appends: the known appends to caches.
    """

    def __init__(self, arrays: CoreArrays) -> None:
        self.arrays = arrays
        self.known: dict[Any, tuple[KnownCall, ...]] = {}
        self.seen: dict[Any, int] = {}
        self.appends: dict[Any, Any] = {}

    def forget(self) -> None:
        """Forget all calls and appends."""
        for known in (self.known, self.seen, self.appends):
            known.clear()

    def run(
        self,
        kind: Any,
        query: Array,
        key: Any,
        value: Array | None,
        lengths: Any,
        mask: Any,
        score: Any,
        seed: Any = None,
    ) -> tuple[Array, Lowered, KnownCall, tuple[Any, Any, Any]] | None:
        """Return (output, lowered score, known call, bounds); None if no earlier call is repeated.

        kind: of the score, mask and options; hashable; None for a call that is never repeated.
        value: None for scores as the output. score: a score; or () → a score. seed: of dropout, an
        integer or an array (); None without dropout.
        """
        known = self.known.get(kind)
        if known is None:
            return None
        arrays, computed, constants = self.arrays, None, None
        packed = key.packed if type(key) is PreparedKeys else None
        try:
            seed = None if seed is None else int(seed)
            for call in known:
                if not call.is_trivial and call.layouts != arrays.layouts(query, key, value):
                    continue
                score = score if isinstance(score, Score) else score()
                if call.is_trivial:
                    lowered = call.lower(score, query, key)
                elif call.layouts_of_score != arrays.layouts_of_score(score):
                    continue
                elif call.constants != constants:
                    lowered = computed = call.lower(score, query, key)
                    constants = call.constants
                else:
                    lowered = computed
                bounds = call.bounds(query, lengths, mask)
                if lowered is None or bounds is None:
                    continue
                a, b, weight, key_bias = lowered
                if not (wants := arrays.wants_gradients(a, b, value, weight, key_bias)):
                    if wants is None:
                        return None
                    start, stop, allowed = bounds
                    operands = a, b, weight, key_bias, value, packed, start, stop, allowed, seed
                    output = call.core.infer(operands, arrays.thread_count())
                elif arrays.train is None or (
                    not (lengths is mask is None) and not _is_padded(score, query, key, lowered)
                ):
                    return None
                else:
                    output = arrays.train(call, lowered, value, packed, bounds, lengths, seed)
                if output is not None:
                    return output, lowered, call, bounds
        except Exception:  # the checks of an unknown call say it better
            return None
        return None

    def remember(self, kind: Any, call: Call, task: Task, dropout: float = 0.0) -> None:
        """Know a completed call and its task, from its second time on; see `run`."""
        if kind is None:
            return
        of_tensors = self.arrays.layouts(*call[:3])
        seen = kind, of_tensors, getattr(call.valid_lens, "shape", None)
        times = self.seen.get(seen, 0)
        if not times and len(self.seen) >= MAX_KINDS:
            self.seen.clear()
        self.seen[seen] = times + 1
        if not 0 < times <= MAX_CALLS:  # ever other strides
            return
        try:
            made = self._known_call(call, task, dropout)
        except ValueError as error:
            self.seen[seen] = MAX_CALLS + 1
            _log("not repeated: %s; the call was %s", error, kind)
            return
        _log("repeated from now on: calls %s", kind)
        if kind not in self.known and len(self.known) >= MAX_KINDS:
            self.known.clear()
        self.known[kind] = (made, *self.known.get(kind, ()))[:MAX_CALLS]

    def knows(self, kind: Any, query: Array, key: Any, value: Array | None) -> bool:
        """Return whether calls of this kind with tensors of these shapes are repeated."""
        layouts = self.arrays.layouts(query, key, value)
        return any(call.layouts == layouts for call in self.known.get(kind, ()))

    def _known_call(self, call: Call, task: Task, dropout: float) -> KnownCall:
        """Return the known call of a task.

        Raises:
            ValueError: it cannot be repeated; the message says why.
        """
        f, arrays = task.score, self.arrays
        xp = arrays.backend.xp
        if not isinstance(f, Factors) or f.query_bias is not None:
            raise ValueError("the score is a callable or has a query bias")
        if 0 in task.sizes.scores_shape:
            raise ValueError("there are no scores")
        if task.edges is not None or task.sink is not None or task.biases:
            raise ValueError("the call has edges, a sink or a bias")
        some_value = f.a if task.value is None else task.value
        of_call = f.a, f.b, f.weight, f.key_bias, some_value
        if any(x is not None and type(x) not in arrays.types for x in of_call):
            raise ValueError("a tensor is of a subclass")
        if not xp.dtype(call.query) == xp.dtype(f.a) == xp.dtype(some_value):
            raise ValueError("the tensors have several dtypes")
        options = Options(dropout, return_scores=task.value is None)
        plan, implementation = choose(arrays.backend, task, options)
        if implementation is not arrays.core:
            raise ValueError(f"{plan.route} runs the call, not the C++ core")
        return KnownCall(arrays, call, task, options)

    def append(self, cache: Any, key: Array, value: Array, score: Score) -> bool:
        """Append tokens to a `Cache` like an earlier append; return False if there is none."""
        arrays = self.arrays
        append = self.appends.get(self._kind_of_append(key, value, score))
        if append is None or not arrays.may_write(cache.b):
            return False
        if arrays.wants_gradients(key, cache.b, value, None, None) is not False:
            return False
        memory = cache.b, cache.values, cache.packed, cache.length
        if not append(key, value, *memory, arrays.thread_count()):
            return False
        arrays.mark_written(memory)
        return True

    def _kind_of_append(self, key: Array, value: Array, score: Score) -> Any:
        of_score = kind_of_score(score), *self.arrays.layouts_of_score(score)
        return key.shape, value.shape, of_score

    def remember_append(
        self, cache: Any, key: Array, value: Array, score: Score, f: Factors
    ) -> None:
        """Know a completed append of keys that the score uses unchanged; f: its factors."""
        arrays = self.arrays
        if f.b is not key or f.key_bias is not None or type(value) not in arrays.types:
            return
        if kind_of_score(score) is None:
            return
        if arrays.wants_gradients(key, cache.b, value, None, None) is not False:
            return
        if len(self.appends) >= MAX_KINDS:
            self.appends.clear()
        memory = cache.b, cache.values, cache.packed, cache.length
        with suppress(ValueError):  # rows need a conversion, a broadcast or a copy
            append = cpu.repeated_append(f.pair.name, key, value, memory)
            self.appends[self._kind_of_append(key, value, score)] = append


def _log(message: str, *args: Any) -> None:
    """Log which calls are repeated, at the level DEBUG of the logger "anyscore.repeated"."""
    import logging

    logging.getLogger("anyscore.repeated").debug(message, *args)


REPEATED: dict[type, RepeatedCalls] = {}
"""The repeated calls of functions by the type of the query; a backend adds its own when loaded."""


def _is_padded(score: Any, query: Array, key: Any, lowered: Lowered) -> bool:
    """Return whether padding reaches no gradient of the parameters of a score.

    The gradients of factors of padding are 0. They stay 0 in sums over tokens if there are none, or
    if these sum products of finite numbers. Layouts that are not contiguous would sum in another
    order than the zeroed copies of a first call.
    """
    a, b, _, key_bias = lowered
    is_prepared = type(key) is PreparedKeys
    if a is query and (b is key or is_prepared) and key_bias is None:
        return True
    tokens = (query,) if is_prepared else (query, key)
    return bool(score.linears) and all(x.is_contiguous() and cpu.is_finite(x) for x in tokens)
