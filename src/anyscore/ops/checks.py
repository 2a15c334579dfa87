"""Checks of a call: all frameworks raise the same errors, before any computation."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, NoReturn

from anyscore.ops import DTYPES, FRAMEWORKS, Array, Ops, framework, load

IMPLS = ("auto", "reference", "fused", "separable")


@dataclass(frozen=True)
class Sizes:
    """The sizes of a call.

    lead: the output's leading dimensions, heads last if any. queries, keys: T_q, T_k. groups: query
    heads per key/value head, 1 unless key and value heads are fewer.
    """

    lead: tuple[int, ...]
    queries: int
    keys: int
    groups: int

    @property
    def scores_shape(self) -> tuple[int, ...]:
        """The shape of the scores: (*lead, T_q, T_k)."""
        return *self.lead, self.queries, self.keys

    @property
    def kv_lead(self) -> tuple[int, ...]:
        """The leading dimensions to which keys and values broadcast."""
        return (*self.lead[:-1], self.lead[-1] // self.groups) if self.groups > 1 else self.lead


def find_framework(**tensors: Any) -> str:
    """Return the common framework of all tensors, a key of FRAMEWORKS.

    Raises:
        TypeError: a tensor is of no framework, or of another than the first.
    """
    kinds = {framework(x) for x in tensors.values()}
    kind = kinds.pop()
    if kinds or kind is None:
        _refuse_frameworks(tensors)
    return kind


def _refuse_frameworks(tensors: dict[str, Any]) -> NoReturn:
    """Raise TypeError: name the first tensor of no framework, or of another than the first."""
    kinds = {name: framework(x) for name, x in tensors.items()}
    for name, kind in kinds.items():
        if kind is None:
            raise TypeError(
                f"{name} is a {type(tensors[name]).__name__}, expected a tensor of one of: "
                f"{', '.join(FRAMEWORKS.values())}."
            )
    (first, ours), *others = kinds.items()
    name, kind = next((name, kind) for name, kind in others if kind != ours)
    raise TypeError(
        f"{first} is a {FRAMEWORKS[ours or '']} tensor but {name} is a {FRAMEWORKS[kind or '']} "
        "tensor: pass all from one framework."
    )


def check_size(**sizes: Any) -> None:
    """Check sizes of a layer: integers ≥ 1, or None.

    Raises:
        TypeError, ValueError: a size is neither.
    """
    check_integers(1, **{name: size for name, size in sizes.items() if size is not None})


def check_integers(least: int, /, **integers: Any) -> None:
    """Check that arguments are integers ≥ least.

    Raises:
        TypeError, ValueError: an argument is not.
    """
    for name, n in integers.items():
        if isinstance(n, bool) or not isinstance(n, Integral):
            raise TypeError(f"{name} must be an integer ≥ {least}, got {brief(n)}.")
        if n < least:
            raise ValueError(f"{name} must be ≥ {least}, got {brief(n)}.")


def check_numbers(least: float = -math.inf, most: float = math.inf, /, **numbers: Any) -> None:
    """Check that options are finite numbers in [least, most].

    Raises:
        TypeError, ValueError: an option is not.
    """
    wanted = "a finite number" if most == math.inf else f"a number in [{least:g}, {most:g}]"
    if least > -math.inf and most == math.inf:
        wanted += f" ≥ {least:g}"
    for name, x in numbers.items():
        if isinstance(x, bool) or not isinstance(x, Real):
            raise TypeError(f"{name} must be {wanted}, got {brief(x)}.")
        if not (is_finite(x) and least <= float(x) <= most):
            raise ValueError(f"{name} must be {wanted}, got {brief(x)}.")


def is_finite(x: Any) -> bool:
    """Return whether a number is finite as a Python float; False for integers beyond all floats."""
    try:
        return math.isfinite(x)
    except OverflowError:
        return False


def check_names(*names: str, **options: Any) -> None:
    """Check that options are one of some texts.

    Raises:
        ValueError: an option is not.
    """
    for option, x in options.items():
        if not (isinstance(x, str) and x in names):  # arrays compare elementwise
            allowed = " or ".join(f'"{name}"' for name in names)
            raise ValueError(f"{option} must be {allowed}, got {brief(x)}.")


def check_switches(**switches: Any) -> None:
    """Check that options are True or False.

    Raises:
        TypeError: an option is neither.
    """
    for name, x in switches.items():
        if not isinstance(x, bool):
            raise TypeError(f"{name} must be True or False, got {brief(x)}.")


def check_devices(xp: Ops, query: Array, /, **tensors: Array) -> None:
    """Check that tensors are plain dense arrays on the device of the query.

    Raises:
        TypeError, ValueError: a tensor is not.
    """
    here = xp.device(query)
    for name, x in tensors.items():
        if problem := xp.layout_problem(x):
            raise TypeError(f"{name} is {problem}.")
        there = xp.device(x)
        if there != here and there is not None and here is not None:
            raise ValueError(
                f"query is on {here} but {name} is on {there}: move them to one device."
            )


_passed: dict[Any, Sizes] = {}
"""The sizes of tensors that passed `check_tensors`, by their layouts: most repeat earlier ones."""


def layouts(xp: Ops, *tensors: Array) -> Any:
    """Return types, shapes, dtypes and devices of tensors, hashable; None if traced."""
    try:
        if xp.is_tracing():
            return None
        return tuple((type(x), x.shape, x.dtype, xp.placement(x)) for x in tensors)
    except (TypeError, AttributeError, RuntimeError):  # not a plain tensor of this framework
        return None


def remembered(passed: dict[Any, Sizes], signature: Any, check: Callable[[], Sizes]) -> Sizes:
    """Return the sizes of a check that passed before with a signature; else of a new check.

    signature: all that the check depends on, None if unknown.
    """
    try:
        sizes = None if signature is None else passed.get(signature)
    except TypeError:  # sizes without a value are not hashable
        return check()
    if sizes is None:  # one access: another thread may clear them meanwhile
        sizes = check()
        if signature is not None:
            if len(passed) >= 1000:
                passed.clear()
            passed[signature] = sizes
    return sizes


def check_tensors(xp: Ops, query: Array, key: Array, value: Array) -> Sizes:
    """Check dtypes and shapes of query, key and value; return the sizes of the call.

    Raises:
        TypeError, ValueError: a dtype or shape does not fit.
    """
    signature = layouts(xp, query, key, value)
    return remembered(_passed, signature, lambda: _check_tensors(xp, query, key, value))


def _check_tensors(xp: Ops, query: Array, key: Array, value: Array) -> Sizes:
    tensors = {"query": query, "key": key, "value": value}
    check_devices(xp, query, **tensors)
    dtypes = {name: xp.dtype(x) for name, x in tensors.items()}
    for name, dtype in dtypes.items():
        if dtype not in DTYPES:
            raise TypeError(f"{name} is {dtype}, expected one of {', '.join(DTYPES)}.")
        if dtype != dtypes["query"]:
            raise TypeError(
                f"query is {dtypes['query']} but {name} is {dtype}: convert them to one dtype."
            )
    shapes = {name: xp.shape(x) for name, x in tensors.items()}
    for name, shape in shapes.items():
        if len(shape) < 2:
            raise ValueError(f"{name} has shape {shape}, expected (..., tokens, width): rank ≥ 2.")
    if shapes["key"][-2] != shapes["value"][-2]:
        raise ValueError(
            f"key has {shapes['key'][-2]} tokens but value has {shapes['value'][-2]} "
            f"(shapes {shapes['key']} and {shapes['value']}): each key needs one value."
        )
    lead, groups = _lead(shapes)
    return Sizes(lead, shapes["query"][-2], shapes["key"][-2], groups)


def widths(**tokens: Array) -> list[Any]:
    """Return the size of the last axis of each tensor, for a layer that has checked nothing yet.

    Raises:
        ValueError: a tensor has fewer than two axes.
    """
    for name, x in tokens.items():
        if len(x.shape) < 2:
            shape = tuple(x.shape)
            raise ValueError(f"{name} has shape {shape}, expected (..., tokens, width): rank ≥ 2.")
    return [x.shape[-1] for x in tokens.values()]


def check_options(dropout: Any, dropout_seed: Any, impl: Any, softcap: Any = 0.0) -> None:
    """Check the options that are not tensors.

    Raises:
        TypeError, ValueError: an option has another type, or is out of its range.
    """
    # Most are Python floats, and isinstance with `Real` takes longer.
    if type(softcap) is not float and not _is_number(softcap):
        raise TypeError(f"softcap must be a number ≥ 0, 0 for no cap, got {brief(softcap)}.")
    if softcap and not (is_finite(softcap) and 1e-30 <= float(softcap) <= 1e30):  # in float32 too
        raise ValueError(
            f"softcap must be ≥ 0: 0 for no cap, else from 1e-30 to 1e30, got {brief(softcap)}."
        )
    if type(dropout) is not float and not _is_number(dropout):
        raise TypeError(f"dropout must be a number in [0, 1), got {brief(dropout)}.")
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout must be in [0, 1), got {brief(dropout)}.")
    if dropout_seed is not None and type(dropout_seed) is not int:
        _check_seed(dropout_seed)
    if not isinstance(impl, str) or impl not in IMPLS:  # arrays compare elementwise
        raise ValueError(f"impl must be one of {', '.join(map(repr, IMPLS))}, got {brief(impl)}.")


def _is_number(x: Any) -> bool:
    return isinstance(x, Real) and not isinstance(x, bool)


def _check_seed(seed: Any) -> None:
    if isinstance(seed, int) and not isinstance(seed, bool):
        return
    kind = framework(seed)
    got = brief(seed)
    if kind is not None:
        xp = load(kind)
        if xp.shape(seed) == () and ("int" in xp.dtype(seed) or "key" in xp.dtype(seed)):
            return
        got = f"{xp.dtype(seed)} of shape {xp.shape(seed)}"
    raise TypeError(f"dropout_seed must be an integer or an integer tensor (), got {got}.")


def _lead(shapes: dict[str, tuple[int, ...]]) -> tuple[tuple[int, ...], int]:
    """Return the broadcast leading dimensions, and the query heads per key/value head."""
    q, k, v = (shapes[name][:-2] for name in ("query", "key", "value"))
    groups = 1
    if min(len(q), len(k), len(v)) >= 2:
        kv_heads = max(k[-1], v[-1])
        shared = k[-1] in (1, kv_heads) and v[-1] in (1, kv_heads)
        if 1 < kv_heads < q[-1] and shared and q[-1] % kv_heads == 0:
            groups = q[-1] // kv_heads
            k, v = ((*lead[:-1], lead[-1] * (groups if lead[-1] > 1 else 1)) for lead in (k, v))
    rank = max(map(len, (q, k, v)))
    padded = [(1,) * (rank - len(lead)) + lead for lead in (q, k, v)]
    lead = []
    for sizes in zip(*padded, strict=True):
        distinct = [n for n in sizes if n != 1]
        if any(n != distinct[0] for n in distinct):
            hint = ""
            if rank >= 2:
                hint = (
                    " Key and value heads (axis −3) may be fewer than query heads if they divide "
                    "them and all three have that axis."
                )
            raise ValueError(
                "leading dimensions do not broadcast: "
                + ", ".join(f"{name} {shape}" for name, shape in shapes.items())
                + f".{hint}"
            )
        lead.append(distinct[0] if distinct else 1)
    return tuple(lead), groups


def broadcasts(shape: tuple[int, ...], full: tuple[int, ...]) -> bool:
    """Return whether `shape` broadcasts to `full` without changing it."""
    if len(shape) > len(full):
        return False
    tail = full[len(full) - len(shape) :]
    return all(n == 1 or n == m for n, m in zip(shape, tail, strict=True))


_MOST = 60


def brief(x: object) -> str:
    """Return `repr(x)` in one line, shortened if it is long; the class of what has none."""
    try:
        text = " ".join(repr(x).split())
    except Exception:  # of a user's class, of an integer of many digits, of nested lists
        text = f"a {type(x).__name__}"
    return text if len(text) <= _MOST else f"{text[:_MOST]}…"


def suggest(name: str, known: Iterable[str], other: str = "") -> str:
    """Return "did you mean 'dot'? " with the nearest known name; `other` without a near one."""
    names = {x.lower(): x for x in known}
    near = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.5)
    return f"did you mean {names[near[0]]!r}? " if near else other
