"""Calls of the core that come again, of the same shapes: run with no other look than at those.

A call takes 40 µs to check, lower and choose; the core takes one for the smallest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import cache
from typing import Any

from anyscore.backends.common import call_of
from anyscore.factors import Factors
from anyscore.implementations import Backend, Implementation, choose
from anyscore.kernels import cpu
from anyscore.ops import Array
from anyscore.prepared import PreparedKeys
from anyscore.score import Score
from anyscore.task import Options, Task

MOST, MOST_SCORES = 8, 64
"""Calls and appends of one score that are kept, and scores. Of calls the last ones stay; beyond so
many appends, or scores, all of them are forgotten."""

_NUMBERS = frozenset((type(None), bool, int, float, str))


class Calls:
    """Hold what is known of a score: the sizes of the last call, calls to repeat, and appends.

    appends: by the shape of keys, what appends others, and the shape and dtype of the score's
    tensor, None if the score has none.
    """

    def __init__(self) -> None:
        self.last: Any = None
        self.known: tuple[Any, ...] = ()
        self.appends: dict[Any, Any] = {}


@cache
def _fields_of(score: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(score))


def _known_as(score: Score) -> tuple[Any, Any]:
    """Return what two scores have alike that differ in nothing but one tensor, and that tensor.

    The first is None where there are more, or a field that is called.
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


def _is_ours(score: Score) -> bool:
    return type(score).__module__.startswith("anyscore.formulas")


def _of_weight(weight: Any) -> Any:
    return None if weight is None else (weight.shape, weight.dtype)


class CoreAgain:
    """Repeat calls of arrays of one type, see `again.Again`.

    type: of the arrays. core: the implementation that is repeated. must_look: whether anything but
    memory takes part in a call of these arrays, a weight of None among them. threads: how many to
    compute with. empty: (query, shape) → an array of its dtype, with nothing written in it.
    written: (arrays): tells whoever must know that they were written to.
    """

    def __init__(
        self,
        type: type[Any],
        backend: Backend,
        core: Implementation,
        must_look: Callable[..., bool],
        threads: Callable[[], int],
        empty: Callable[[Array, tuple[int, ...]], Array],
        written: Callable[[tuple[Array, ...]], None],
    ) -> None:
        self.type, self.backend, self.core = type, backend, core
        self.must_look, self.threads, self.empty = must_look, threads, empty
        self.written = written
        self.calls: dict[Any, Calls] = {}

    def run(
        self, query: Array, key: Any, value: Array, score: Any, valid_lens: Any = None
    ) -> Array | None:
        """Return the output of a call that came before, None where it must be looked at."""
        if not isinstance(score, Score):
            return None
        if valid_lens is not None and type(valid_lens) is not self.type:
            return None
        known_as, weight = _known_as(score)
        found = self.calls.get(known_as)
        if found is None or not found.known:
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
        if self.must_look(query, key, value, weight):
            return None
        threads = self.threads()
        for known in found.known:
            output = known(query, key, weight, value, packed, valid_lens, threads)
            if output is not None:
                return output
        return None

    def learn(
        self, query: Array, key: Any, value: Array, score: Any, valid_lens: Any, task: Task
    ) -> None:
        """Keep a call that was run in full, if one of the same sizes came right before.

        Only scores of ours are known to be the same when they come again, and of those only what is
        made of no tensor but query, key, value and at most one weight.
        """
        f = task.score
        if not isinstance(f, Factors) or f.query_bias is not None or f.key_bias is not None:
            return
        key = getattr(key, "b", key)
        made_of = zip((f.a, f.b, task.value), (query, key, value), strict=True)
        if any(x is not y or type(x) is not self.type for x, y in made_of):
            return
        known_as, weight = _known_as(score)
        if not _is_ours(score) or known_as is None or f.weight is not weight:
            return
        if query.dtype != value.dtype or self.must_look(query, key, value, weight):
            return
        if valid_lens is not None and (
            type(valid_lens) is not self.type or self.backend.xp.dtype(valid_lens) != "int64"
        ):
            return
        found = self._calls_of(known_as)
        lengths = None if valid_lens is None else valid_lens.shape
        sizes, last = (query.shape, key.shape, value.shape, lengths), found.last
        found.last = sizes
        if sizes == last:
            found.last = None
            made = self._made(task, valid_lens)
            if made is not None:
                found.known = (made, *found.known)[:MOST]

    def _calls_of(self, known_as: Any) -> Calls:
        if known_as not in self.calls and len(self.calls) >= MOST_SCORES:
            self.calls.clear()
        return self.calls.setdefault(known_as, Calls())

    def _made(self, task: Task, valid_lens: Any) -> Any:
        """Return what runs the call of a task again, None if nothing does."""
        options = Options()
        if choose(self.backend, task, options)[1] is not self.core:
            return None
        x, s = call_of(self.backend.xp, task, options, None)
        if valid_lens is not None:  # which the core limits to the keys itself
            if x.stop is None or x.start is not None or x.mask is not None:
                return None
            x = x._replace(stop=valid_lens.reshape(x.stop.shape))
        try:
            return cpu.again(x, s, valid_lens, self.empty)
        except ValueError:  # its arrays have to be copied
            return None

    def append(self, cache: Any, key: Array, value: Array, score: Any) -> bool:
        """Append tokens that are like others before; say whether that was done."""
        known_as, weight = _known_as(score)
        found = self.calls.get(known_as)
        known = None if found is None else found.appends.get(key.shape)
        if known is None or self.must_look(key, value, cache.b, weight):
            return False
        append, of_weight = known
        if of_weight != _of_weight(weight):
            return False
        arrays = cache.b, cache.values, cache.packed, cache.length
        if not append(key, value, *arrays, self.threads()):
            return False
        self.written(arrays)
        return True

    def learn_append(self, cache: Any, key: Array, value: Array, score: Any, f: Factors) -> None:
        """Keep how tokens were appended that are themselves what the score makes of keys."""
        known_as, weight = _known_as(score)
        if f.b is not key or f.key_bias is not None or known_as is None or not _is_ours(score):
            return
        if type(value) is not self.type or self.must_look(key, value, cache.b, weight):
            return
        appends = self._calls_of(known_as).appends
        if len(appends) >= MOST:
            appends.clear()
        arrays = cache.b, cache.values, cache.packed, cache.length
        try:
            append = cpu.append_again(f.pair.name, key, value, arrays)
        except ValueError:  # rows are converted, broadcast or not side by side
            return
        appends[key.shape] = append, _of_weight(weight)
