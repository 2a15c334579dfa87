"""What a call must satisfy: every mistake is named here, before any work, in the same words."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from anyscore.intervals import broadcasts
from anyscore.ops import DTYPES, FRAMEWORKS, Array, Ops, framework, load
from anyscore.score import Projection, Score

OF_KEYS = "W_k", "w_k"
"""Parameters that meet the keys, not the queries."""
POSITIVE = "sigma", "tau"
"""Parameters of which a layer keeps the logarithm."""
IMPLS = ("auto", "reference", "fused", "separable")


@dataclass(frozen=True)
class Sizes:
    """The sizes of a call. lead: the output's leading dimensions, heads last where there are any.

    groups: query heads per key/value head, 1 unless those are fewer.
    """

    lead: tuple[int, ...]
    queries: int
    keys: int
    groups: int

    @property
    def kv_lead(self) -> tuple[int, ...]:
        """The leading dimensions that keys and values broadcast to."""
        return (*self.lead[:-1], self.lead[-1] // self.groups) if self.groups > 1 else self.lead


def find_framework(**tensors: Any) -> str:
    """The one framework that all tensors belong to, as a key of FRAMEWORKS."""
    kinds = {name: framework(x) for name, x in tensors.items()}
    for name, kind in kinds.items():
        if kind is None:
            raise TypeError(
                f"{name} is a {type(tensors[name]).__name__}, expected a tensor of one of: "
                f"{', '.join(FRAMEWORKS.values())}."
            )
    first = next(iter(kinds))
    for name, kind in kinds.items():
        if kind != kinds[first]:
            raise TypeError(
                f"{first} is a {FRAMEWORKS[kinds[first] or '']} tensor but {name} is a "
                f"{FRAMEWORKS[kind or '']} tensor: pass all from one framework."
            )
    return kinds[first] or ""


_passed: dict[Any, Sizes] = {}
"""The sizes of calls that passed, by all that the checks look at: most calls repeat one."""


def check_call(xp: Ops, query: Array, key: Array, value: Array, score: Any) -> Sizes:
    """Query, key, value and the score, together."""
    look = known = None
    try:
        if not xp.is_tracing():
            look = _look(xp, query, key, value, score)
            known = _passed.get(look)  # one access: another thread may clear it meanwhile
    except (TypeError, AttributeError, RuntimeError):  # no plain tensor of this framework
        look = None
    if known is not None:
        return known
    sizes = check_tensors(xp, query, key, value)
    check_score(xp, score, query, key, sizes)
    if look is not None:
        if len(_passed) >= 1000:
            _passed.clear()
        _passed[look] = sizes
    return sizes


def _look(xp: Ops, query: Array, key: Array, value: Array, score: Any) -> Any:
    """What the checks of a call depend on."""
    look: list[Any] = [type(score), callable(score)]
    for x in (query, key, value, *(vars(score).values() if isinstance(score, Score) else ())):
        shape = getattr(x, "shape", None)
        if not shape and (shape is None or isinstance(x, Real)):
            look.append((type(x), x))
        elif isinstance(x, Projection):
            look.append((Projection, shape, x.dtype))
        else:
            look.append((type(x), shape, x.dtype, xp.device(x), xp.layout_problem(x)))
    return tuple(look)


def check_size(**sizes: Any) -> None:
    """Sizes that a layer is made with: integers ≥ 1, or None."""
    for name, size in sizes.items():
        if size is not None and (isinstance(size, bool) or not isinstance(size, Integral)):
            raise TypeError(f"{name} must be an integer ≥ 1, got {size!r}.")
        if size is not None and size < 1:
            raise ValueError(f"{name} must be ≥ 1, got {size}.")


def check_places(xp: Ops, query: Array, /, **tensors: Array) -> None:
    """Tensors must be plain dense arrays, where the query lies."""
    here = xp.device(query)
    for name, x in tensors.items():
        if problem := xp.layout_problem(x):
            raise TypeError(f"{name} is {problem}.")
        there = xp.device(x)
        if there != here and there is not None and here is not None:
            raise ValueError(
                f"query is on {here} but {name} is on {there}: move them to one device."
            )


def check_tensors(xp: Ops, query: Array, key: Array, value: Array) -> Sizes:
    """Dtypes and shapes of query, key and value."""
    tensors = {"query": query, "key": key, "value": value}
    check_places(xp, query, **tensors)
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


def check_score(xp: Ops, score: Any, query: Array, key: Array, sizes: Sizes) -> None:
    """A score object or a callable, with parameters that fit the tensors."""
    if not isinstance(score, Score):
        if isinstance(score, str | type) or not callable(score):
            raise TypeError(
                f"score must be a score object, such as ScaledDot() or Additive(W_q, W_k, w_v), or "
                f"a callable (query, key) → (..., T_q, T_k), got {score!r}."
            )
        return
    name, dtype = type(score).__name__, xp.dtype(query)
    d_q, d_k = xp.shape(query)[-1], xp.shape(key)[-1]
    check_widths(type(score), d_q, d_k)
    tensors = score.tensors()
    for field in score.shapes:
        x = getattr(score, field)
        if field in tensors:
            continue
        if isinstance(x, Real):
            _check_number(f"{name}.{field}", x, dtype, field in POSITIVE)
        elif x is not None and not isinstance(x, Projection):
            raise TypeError(f"{name}.{field} is a {type(x).__name__}, expected a tensor.")
    ours = framework(query)
    if any(framework(x) != ours for x in tensors.values()):
        find_framework(query=query, **{f"{name}.{field}": x for field, x in tensors.items()})
    check_places(xp, query, **{f"{name}.{field}": x for field, x in tensors.items()})
    parameters = parameters_of(xp, score)
    widths = {"d_q": d_q, "d_k": d_k, "d_q + d_k": d_q + d_k}
    if "W_q" in score.shapes and "W_q" not in parameters:  # projected already
        widths["h"] = d_q
    elif "W_k" in score.shapes and "W_k" not in parameters:
        widths["h"] = d_k
    for field, (shape, own) in parameters.items():
        expected = score.shapes.get(field)
        if expected is None:  # a score of the user's own, which does not say
            continue
        if expected and own != dtype:
            raise TypeError(
                f"query is {dtype} but {name}.{field} is {own}: convert them to one dtype."
            )
        trailing = shape[len(shape) - len(expected) :]
        if len(trailing) == len(expected):
            for letter, n in zip(expected, trailing, strict=True):
                widths.setdefault(letter, n)
        if trailing != tuple(widths.get(letter) for letter in expected):
            known = " and ".join(f"{x}={widths[x]}" for x in expected if x in widths)
            raise ValueError(
                f"{name}.{field} has shape {shape}, expected (..., {', '.join(expected)})"
                f"{' with ' + known if known else ''}."
            )
        lead = shape[: len(shape) - len(expected)]
        of_both = "d_q + d_k" in expected
        for who, meets in (("keys", sizes.kv_lead), ("queries", sizes.lead)):
            if (of_both or (field in OF_KEYS) == (who == "keys")) and not broadcasts(lead, meets):
                raise ValueError(
                    f"{name}.{field} has shape {shape}: its leading dimensions {lead} do not "
                    f"broadcast to {meets}, those of the {who}."
                )


def parameters_of(xp: Ops, score: Score) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shape and dtype of the tensors and projections of a score, in the order of its fields."""
    found = {field: (xp.shape(x), xp.dtype(x)) for field, x in score.tensors().items()}
    found |= {field: (x.shape, x.dtype) for field, x in score.projections().items()}
    return {field: found[field] for field in vars(score) if field in found}


def _check_number(name: str, x: Real, dtype: str, positive: bool) -> None:
    """A scale whose inverse square is a number of the dtype of sums."""
    least = 1e-154 if dtype == "float64" else 1e-19
    if positive and not float(x) > 0:
        raise ValueError(f"{name} must be > 0, got {x}.")
    if positive and float(x) < least:
        raise ValueError(f"{name} must be ≥ {least} in {dtype}, got {x}.")
    if not positive and not abs(float(x)) <= 1 / least**2:
        raise ValueError(f"{name} must be a finite number in {dtype}, got {x}.")


def check_widths(score: type[Score], d_q: int, d_k: int) -> None:
    """Widths that a score cannot bridge."""
    if score.equal_widths and d_q != d_k:
        raise ValueError(
            f"{score.__name__} needs queries and keys of one width: project them, or use Bilinear "
            f"or Additive; got d_q={d_q} and d_k={d_k}."
        )


def check_scores(xp: Ops, scores: Any, query: Array, sizes: Sizes) -> None:
    """What a callable score gave."""
    if framework(scores) is None:
        raise TypeError(f"the score gave a {type(scores).__name__}, expected a tensor.")
    find_framework(query=query, score=scores)
    if xp.dtype(scores) not in DTYPES:
        raise TypeError(f"the score gave {xp.dtype(scores)}, expected one of {', '.join(DTYPES)}.")
    shape, full = xp.shape(scores), (*sizes.lead, sizes.queries, sizes.keys)
    if shape[-2:] != full[-2:] or not broadcasts(shape, full):
        raise ValueError(f"the score gave shape {shape}, expected {full}.")


def check_options(dropout: Any, dropout_seed: Any, impl: Any) -> None:
    """The options that are not tensors."""
    if isinstance(dropout, bool) or not isinstance(dropout, Real):
        raise TypeError(f"dropout must be a number in [0, 1), got {dropout!r}.")
    if not 0 <= float(dropout) < 1:
        raise ValueError(f"dropout must be in [0, 1), got {dropout}.")
    if not isinstance(dropout_seed, int | None) or isinstance(dropout_seed, bool):
        _check_seed(dropout_seed)
    if impl not in IMPLS:
        raise ValueError(f"impl must be one of {', '.join(map(repr, IMPLS))}, got {impl!r}.")


def _check_seed(seed: Any) -> None:
    kind = framework(seed)
    got = repr(seed)
    if kind is not None:
        xp = load(kind)
        if xp.shape(seed) == () and ("int" in xp.dtype(seed) or "key" in xp.dtype(seed)):
            return
        got = f"{xp.dtype(seed)} of shape {xp.shape(seed)}"
    raise TypeError(f"dropout_seed must be an integer or an integer tensor (), got {got}.")


def _lead(shapes: dict[str, tuple[int, ...]]) -> tuple[tuple[int, ...], int]:
    """The broadcast leading dimensions, and the query heads per key/value head."""
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
