"""The C++ core, on arrays of any framework that shares their memory.

The core takes NumPy arrays and objects with DLPack. bfloat16 may come as int16, as NumPy has no
bfloat16. Outer leading dimensions of size 1 may be absent.
"""

from __future__ import annotations

import ctypes
import importlib
import math
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

from anyscore.call.operands import Operands, Results, Settings
from anyscore.ops import Array
from anyscore.ops.locks import Lock
from anyscore.score.outer import FORMULAS, NAMES, number
from anyscore.score.pairs import ABSOLUTE, LEAKY_RELU, PRODUCT, SQUARED, TANH, Pair, pair_named

PAIRS = PRODUCT, TANH, LEAKY_RELU, ABSOLUTE, SQUARED
"""The pairs with kernels in the core."""
KEYS = frozenset(pair.key for pair in PAIRS)
AT_ONCE = 64
"""The number of keys in a tile of the core: TILE of csrc/runtime/call.h."""


class _Answer(NamedTuple):
    """reason: why a formula is not compiled, None if it is; until: its expiry time."""

    reason: str | None
    until: float = math.inf


_own: dict[tuple[str, bool, str], _Answer] = {}
_loading = Lock()

_core: Any = None
_problem: str | None = None
try:
    _core = importlib.import_module("anyscore._core")
except ImportError as error:
    _problem = (
        f"the C++ core cannot be loaded ({error}): to build it, reinstall anyscore where there is "
        "a C++17 compiler"
    )


def problem() -> str | None:
    """Return why the core cannot be used, None if it can."""
    return _problem


def why_not_formula(key: str, is_double: bool) -> str | None:
    """Return why the core has no pair or outer function, None if it has.

    key: of the pair, or the name of the outer function. is_double: whether sums are in float64.

    The first call for a formula compiles its kernels, or reads them from the cache. After a
    failure, a later call tries again: after a minute, as a disk may have room by then, or after ten
    times the duration of the last try.
    """
    if key in KEYS or key in NAMES:
        return None
    if _problem is not None:
        return _problem
    asked = key, is_double, str(_core.isa())
    if (answer := _known(asked)) is None:
        with _loading:
            if (answer := _known(asked)) is None:
                began = monotonic()
                reason = _load(*asked)
                ended = monotonic()
                again = math.inf if reason is None else ended + max(60, 10 * (ended - began))
                answer = _own[asked] = _Answer(reason, again)
    return answer.reason


def _known(asked: tuple[str, bool, str]) -> _Answer | None:
    answer = _own.get(asked)
    return answer if answer is not None and monotonic() < answer.until else None


# torch.compile takes the result at trace time as constant.
why_not_formula._dynamo_marked_constant = True  # type: ignore[attr-defined]


def has(key: str, is_double: bool) -> bool:
    """Return whether the core has loaded a pair or an outer function."""
    if key in KEYS or key in NAMES:
        return True
    answer = _own.get((key, is_double, str(_core.isa()))) if _core is not None else None
    return answer is not None and answer.reason is None


def _load(key: str, is_double: bool, isa: str) -> str | None:
    """Register the functions of a formula with the core; return why this failed, or None."""
    from anyscore.kernels import own_formulas
    from anyscore.score.formula import Formula

    formula: Any = FORMULAS.get(key) or pair_named(key).value
    name = key.partition("@")[0]
    if not isinstance(formula, Formula):
        return f"it does not know the pair {name!r}"
    core, sums = Path(_core.__file__), "double" if is_double else "float"
    if not formula.is_pair and _OUTERS.setdefault(number(key), key) != key:
        return (
            f"the outer function {name!r} has the number of another formula of this process in the "
            "core: write a step of it otherwise"
        )
    try:
        entry = own_formulas.load(formula, sums, isa, core, _core.headers)
    except own_formulas.CannotCompileError as error:
        kind = "pair" if formula.is_pair else "outer function"
        return f"the {kind} {name!r} is not compiled: {error}"
    if formula.is_pair:
        _core.register_pair(key, is_double, entry)
    else:
        _core.register_outer(number(key), is_double, entry)
    return None


_OUTERS: dict[float, str] = {}
"""The outer functions of formulas by their numbers of 48 bits, which two of them may share."""


def packs(pair: Pair) -> bool:
    """Return whether the core has a format of packed keys for a pair."""
    return pair == TANH and _problem is None


def isa() -> str | None:
    """Return the core's instruction set on this processor: "avx512", …; None without the core."""
    return None if _core is None else str(_core.isa())


def missing_isa() -> str | None:
    """Return this processor's instruction set if the core was not built for it, else None."""
    return None if _core is None else str(_core.missing_isa()) or None


def xla_targets() -> dict[str, Any]:
    """Return the core's targets of XLA's foreign function interface by name; see `kernels.xla`."""
    if _core is None:
        raise RuntimeError(_problem)
    if not hasattr(_core, "xla_targets"):
        raise RuntimeError("it was built where there was no jaxlib to take XLA's headers from")
    targets: dict[str, Any] = _core.xla_targets()
    return targets


def borrow_threads(library: str) -> None:
    """Compute on the OpenMP threads of a framework's library, if it has any.

    Otherwise the core's threads would compete with the framework's, which spin between operations.
    """
    if _core is None:
        return
    try:
        parallel = ctypes.CDLL(library).GOMP_parallel
    except (OSError, AttributeError):
        return
    _core.borrow_threads(ctypes.cast(parallel, ctypes.c_void_p).value)


def forward(x: Operands, s: Settings, results: Results, threads: int) -> None:
    """Write the output, statistics and scores of a call into the arrays of `results`.

    x: arrays of the shapes in `Operands`; seed, an integer, is used for dropout only. results:
    C-contiguous arrays, None for those not wanted; the core computes in the dtype of stats, float32
    or float64. Dropout follows `anyscore.modifiers.dropout`.

    Raises:
        ValueError: an array has another shape or dtype.
    """
    _core.forward(x, s.pair, s.numbers, results, threads)


def repeated_call(
    x: Operands,
    s: Settings,
    lengths: Array | None,
    empty: Callable[[Array, tuple[int, ...]], Array],
    keeps_scores: bool,
) -> Any:
    """Return an object that runs this call with other arrays of the same shapes and strides.

        infer(operands, threads)
            → the output
        forward(operands, threads)
            → (output, stats, scores or None)
        backward(operands, kept, stats, d_output, threads)
            → the gradients of the first five operands; None for an operand None

    operands: (a, b, weight, key_bias, value, packed, start, stop, mask, seed), None for missing
    ones. A backward does not read packed. The seed of dropout is an integer. Each function
    returns None if arrays have another layout; the last two also if arrays are not of the
    accumulation dtype. lengths: the caller's array, of which x.stop is a view; calls pass such
    lengths as stop, and the core clamps them. empty: (a, shape) → an array of the type of a, for
    results. keeps_scores: whether `kept`, saved for the backward, is scores; else the output, and
    None without values.

    Raises:
        ValueError: the call has other operands, or the core would have to copy one.
    """
    return _core.RepeatedCall(x, lengths, s.pair, s.numbers, s.lead, empty, keeps_scores)


def repeated_append(
    pair: str, key: Array, value: Array, cache: tuple[Array, Array, Array | None, Array]
) -> Any:
    """Return a function that appends other tokens of the same shapes to a cache of the same shapes.

    key, value: the appended rows. cache: b, which takes the keys unchanged, values, packed and
    length (). (key, value, *cache, threads) → whether rows were appended. The function writes
    nothing if arrays have another layout, or the cache no room.

    Raises:
        ValueError: the core would have to convert or copy an array.
    """
    return _core.RepeatedAppend(pair, key, value, *cache)


def is_finite(x: Array) -> bool:
    """Return whether all numbers of an array are finite; False for an array of another dtype."""
    return bool(_core.is_finite(x))


def backward(
    x: Operands, s: Settings, results: Results, upstream: Results, to: Operands, threads: int
) -> None:
    """Write the gradients of a, b, weight, key_bias and value in x into the arrays of `to`.

    results: of `forward`. If results.scores is given, scores are not recomputed, and output may be
    None for T_k ≤ `AT_ONCE`. upstream: the gradients of results; stats and scores may be None. to:
    arrays of the shapes in x and of the dtype of stats.

    Raises:
        ValueError: an array has another shape or dtype.
    """
    _core.backward(x, s.pair, s.numbers, results, upstream, to, threads)


def sparse(power: int, scores: Array, weights: Array, threads: int) -> None:
    """Write `normalizers.sparse` of scores (..., T_k) into `weights`; both C-contiguous.

    Raises:
        ValueError: an array has another shape or dtype.
    """
    _core.sparse(power, scores, weights, threads)


def sparse_backward(power: int, weights: Array, upstream: Array, to: Array, threads: int) -> None:
    """Write the gradients of scores into `to`, from weights and the gradients of weights.

    Raises:
        ValueError: an array has another shape or dtype.
    """
    _core.sparse_backward(power, weights, upstream, to, threads)


def energies(x: tuple[Array, ...], to: Array, threads: int) -> None:
    """Write e_j = Σ_d v_d tanh(k_jd + Σ_m f_jm S_md) of keys of items into `to` (B, T_k).

    x: k (B, T_k, h), f (B, T_k, m), S (B, m, h) and v (h,), all float32 or all float64; spans (B,
    2), int64. Item i has keys spans[i, 0] … spans[i, 1] − 1; other entries of `to` stay unchanged.
    All arrays are C-contiguous.

    Raises:
        ValueError: an array has another shape or dtype, or spans are not within the keys.
    """
    _core.energies(x, to, threads)


def energies_backward(
    x: tuple[Array, ...], upstream: Array, to: tuple[Array | None, ...], threads: int
) -> None:
    """Write the gradients of a loss; upstream (B, T_k): its gradients of the energies.

    x: as in `energies`. to: gradients of k (or None), f, S, and of v for each item, (B, h). Numbers
    are added to the gradient of k; the gradient of f must be 0 outside the spans.

    Raises:
        ValueError: as `energies`.
    """
    _core.energies_backward(x, upstream, to, threads)


def prepare_keys(pair: str, b: Array, packed: Array, threads: int) -> None:
    """Write b (*lead, T_k, h), packed for `forward`, into packed (*lead, T_k + 1, h).

    Raises:
        ValueError: an array has another shape or dtype.
    """
    _core.prepare_keys(pair, b, packed, threads)


def append_keys(pair: str, b: Array, packed: Array, start: int, count: int, threads: int) -> None:
    """Update packed (*lead, T_k + 1, h) for `count` new rows of b (*lead, T_k, h).

    The new rows follow `start` earlier ones, and begin at row `start` modulo T_k. If new rows
    exceed the packed range, earlier rows are packed again.

    Raises:
        ValueError: an array has another shape or dtype.
    """
    _core.append_keys(pair, b, packed, start, count, threads)
