"""Calls with the shapes of an earlier one go to the core unchecked.

Checking, lowering and choosing take 40 µs per call; the core takes 1 µs for the smallest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import cache
from typing import Any, cast

from anyscore.backends.record import operands_of
from anyscore.call.backend import Backend, Implementation, choose
from anyscore.call.prepared import PreparedKeys
from anyscore.call.task import Options, Task
from anyscore.kernels import cpu
from anyscore.ops import Array
from anyscore.score import SCORES
from anyscore.score.base import Score
from anyscore.score.factors import Factors

MAX_CALLS, MAX_SCORES = 8, 64
"""The most kept calls, or appends, of one score; and the most scores. The latest calls stay; with
too many appends, or scores, all of them are dropped.
"""

_NUMBERS = frozenset((type(None), bool, int, float, str))


class _ScoreCalls:
    """The known calls of a score: sizes of the last call, calls to repeat, and appends.

    last: the sizes of the last call and their number in a row. known: calls to repeat. Both have
    one entry without gradients and one with gradients. appends: by the shape of keys, the repeated
    append and the shape and dtype of the score's tensor, None without a tensor.
    """

    def __init__(self) -> None:
        self.last: dict[bool, tuple[Any, int]] = {False: (None, 0), True: (None, 0)}
        self.known: dict[bool, tuple[Any, ...]] = {False: (), True: ()}
        self.appends: dict[Any, Any] = {}


@cache
def _fields_of(score: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(score))


def _cache_key(score: Score) -> tuple[Any, Any]:
    """Return the cache key of a score, its class and numbers; and its one tensor, or None.

    The key is None if the score has several tensors or a `Projection`.
    """
    kind: Any = type(score)
    alike, tensor = [kind], None
    for name in _fields_of(kind):
        x: Any = getattr(score, name)
        if type(x) not in _NUMBERS:
            if tensor is not None:
                return None, None
            tensor, x = x, Score
        alike.append(x)
    return tuple(alike), tensor


_OURS = frozenset(SCORES.values())


def _is_ours(score: Score) -> bool:
    return type(score) in _OURS


def _weight_of(task: Task) -> Any:
    """Return the weight of a task's factors; `Score` for factors with biases, or none."""
    f = task.score
    if not isinstance(f, Factors) or f.query_bias is not None or f.key_bias is not None:
        return Score
    return f.weight


def _of_weight(weight: Any) -> Any:
    return None if weight is None else (weight.shape, weight.dtype)


class RepeatedCoreCalls:
    """Repeats calls of arrays of one type, see `call.backend.RepeatedCalls`.

    type: of the arrays. core: the implementation to repeat. wants_gradients: (query, key, value,
    weight) → whether the call needs gradients; None if the call depends on more than memory.
    thread_count: () → the number of threads. allocate: (query, shape) → an array of the dtype of
    query, uninitialised. mark_written: (arrays): bump autograd version counters. with_gradients:
    (x, s) → a repeated call with gradients; None if the framework has none.
    """

    def __init__(
        self,
        type: type[Any],
        backend: Backend,
        core: Implementation,
        wants_gradients: Callable[..., bool | None],
        thread_count: Callable[[], int],
        allocate: Callable[[Array, tuple[int, ...]], Array],
        mark_written: Callable[[tuple[Array, ...]], None],
        with_gradients: Callable[..., Any] | None = None,
    ) -> None:
        self.type, self.backend, self.core = type, backend, core
        self.wants_gradients, self.thread_count, self.allocate = (
            wants_gradients,
            thread_count,
            allocate,
        )
        self.mark_written, self.with_gradients = mark_written, with_gradients
        self.calls: dict[Any, _ScoreCalls] = {}

    def run(
        self, query: Array, key: Any, value: Array, score: Any, valid_lens: Any = None
    ) -> Array | None:
        """Return the output; None if the call repeats no earlier one."""
        if not isinstance(score, Score):
            return None
        if valid_lens is not None and type(valid_lens) is not self.type:
            return None
        cache_key, weight = _cache_key(score)
        found = self.calls.get(cache_key)
        if found is None:
            return None
        packed = None
        if type(key) is PreparedKeys:
            if key.score is not type(score) or key.key_bias is not None:
                return None
            key, packed = key.b, key.packed
        if type(key) is not self.type or type(value) is not self.type:
            return None
        if weight is not None and not isinstance(weight, self.type):
            return None
        wants = self.wants_gradients(query, key, value, weight)
        if wants is None:
            return None
        threads = self.thread_count()
        for known in found.known[wants]:
            output = known(query, key, weight, value, packed, valid_lens, threads)
            if output is not None:
                return output
        return None

    def remember(
        self, query: Array, key: Any, value: Array, score: Any, valid_lens: Any, task: Task
    ) -> None:
        """Remember a completed call, if the previous one had the same sizes.

        A repeated call computes the same function only for scores of this library. The score may
        use no tensor but query, key, value and at most one weight.
        """
        if not _is_ours(score):
            return
        cache_key, weight = _cache_key(score)
        if cache_key is None or _weight_of(task) is not weight:
            return
        f, tokens = cast(Factors, task.score), (query, getattr(key, "b", key), value)
        made_of = zip((f.a, f.b, task.value), tokens, strict=True)
        if any(x is not y or type(y) is not self.type for x, y in made_of):
            return
        wants = self.wants_gradients(*tokens, weight)
        if wants is None or query.dtype != value.dtype:
            return
        if valid_lens is not None and (
            wants  # the backward keeps arrays that share the caller's memory
            or type(valid_lens) is not self.type
            or self.backend.xp.dtype(valid_lens) != "int64"
        ):
            return
        found = self._calls_of(cache_key)
        lengths = None if valid_lens is None else valid_lens.shape
        sizes = *(x.shape for x in tokens), lengths, query.dtype
        last, times = found.last[wants]
        found.last[wants] = sizes, times + 1 if sizes == last else 1
        if found.last[wants][1] != 2:
            return
        made = self._made(task, valid_lens, wants)
        if made is not None:
            found.last[wants] = None, 0
            found.known[wants] = (made, *found.known[wants])[:MAX_CALLS]

    def _calls_of(self, cache_key: Any) -> _ScoreCalls:
        if cache_key not in self.calls and len(self.calls) >= MAX_SCORES:
            self.calls.clear()
        return self.calls.setdefault(cache_key, _ScoreCalls())

    def _made(self, task: Task, valid_lens: Any, wants: bool) -> Any:
        """Return a function that repeats the call of a task, None if there is none."""
        options = Options()
        if choose(self.backend, task, options)[1] is not self.core:
            return None
        x, s = operands_of(self.backend.xp, task, options, None)
        if valid_lens is not None:  # the core clamps them
            if x.stop is None or x.start is not None or x.mask is not None:
                return None
            x = x._replace(stop=valid_lens.reshape(x.stop.shape))
        try:
            if wants and self.with_gradients is not None:
                return self.with_gradients(x, s)
            return cpu.again(x, s, valid_lens, self.allocate)
        except ValueError:  # the core would have to copy arrays
            return None

    def append(self, cache: Any, key: Array, value: Array, score: Any) -> bool:
        """Append tokens like an earlier append; return False if there is none."""
        cache_key, weight = _cache_key(score)
        found = self.calls.get(cache_key)
        known = None if found is None else found.appends.get(key.shape)
        if known is None or self.wants_gradients(key, value, cache.b, weight) is not False:
            return False
        append, of_weight = known
        if of_weight != _of_weight(weight):
            return False
        arrays = cache.b, cache.values, cache.packed, cache.length
        if not append(key, value, *arrays, self.thread_count()):
            return False
        self.mark_written(arrays)
        return True

    def remember_append(self, cache: Any, key: Array, value: Array, score: Any, f: Factors) -> None:
        """Remember a completed append of keys that the score uses unchanged."""
        cache_key, weight = _cache_key(score)
        if f.b is not key or f.key_bias is not None or cache_key is None or not _is_ours(score):
            return
        if type(value) is not self.type:
            return
        if self.wants_gradients(key, value, cache.b, weight) is not False:
            return
        appends = self._calls_of(cache_key).appends
        if len(appends) >= MAX_CALLS:
            appends.clear()
        arrays = cache.b, cache.values, cache.packed, cache.length
        try:
            append = cpu.append_again(f.pair.name, key, value, arrays)
        except ValueError:  # rows need a conversion, a broadcast or a copy
            return
        appends[key.shape] = append, _of_weight(weight)
