"""A mod of FlexAttention as a tree of recorded operations, and its numbers for all positions.

A mod is called once, with `Scalar` objects in place of scalars. Operations on them are recorded as
`Traced`, and computed when their numbers are asked for. `torch.vmap` then maps each scalar over its
axis, so that the meaning of an operation is that of PyTorch.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from anyscore.backends.torch.modes import is_forward_mode, is_transformed

POSITIONS = "b", "h", "q_idx", "kv_idx"
"""The names of positions, in the order of axes of the result."""
DISTANCE = "kv_idx - q_idx"
"""The name of a position in place of q_idx and kv_idx; see `by_distance`."""


class Traced:
    """A recorded operation of a mod, or an argument; its value never changes.

    name: of an argument, "" of an operation. function, args, kwargs: the operation. inner: the
    operations in args and kwargs. depends: the names of the arguments that it reads. dtype: of an
    argument, else None.
    """

    def __init__(
        self, name: str = "", function: Any = None, args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None, dtype: torch.dtype | None = None,
        device: torch.device | None = None,
    ) -> None:  # fmt: skip
        self.name, self.function, self.args, self.kwargs = name, function, args, kwargs or {}
        self.dtype, self.device = dtype, device
        self.inner = [*_traced(args), *_traced(tuple(self.kwargs.values()))]
        self.depends: frozenset[str] = frozenset((name,) if name else ()).union(
            *(x.depends for x in self.inner)
        )
        for x in self.inner:
            self.device = self.device or x.device
        _check_devices((args, tuple(self.kwargs.values())), self.device)

    @cached_property
    def linear(self) -> tuple[int, int, int] | None:
        """Return (i, j, n) of i · q_idx + j · kv_idx + n with integers; None for others."""
        return _linear(self)

    @cached_property
    def of_distance(self) -> Any:
        """Return the operation as a function of `DISTANCE`; see `by_distance`."""
        return _by_distance(self)

    def __repr__(self) -> str:
        return self.text(_DEPTH)

    def text(self, depth: int) -> str:
        """Show operations of operations up to a depth; a result may be read many times."""
        if self.name:
            return self.name
        if not depth:
            return "…"
        name = getattr(self.function, "__name__", str(self.function)).strip("_")
        shown = [_shown(x, depth - 1) for x in self.args]
        if name in _SYMBOLS and len(shown) == 2:
            return f"({shown[0]} {_SYMBOLS[name]} {shown[1]})"
        if name == "getitem":
            return f"{shown[0]}[{shown[1].strip('()')}]"
        shown += [f"{key}={_shown(x, depth - 1)}" for key, x in self.kwargs.items()]
        return f"{name}({', '.join(shown)})"


class Scalar:
    """The stand-in for a scalar, which a mod is called with: it records what the mod computes.

    An operation in place gives the scalar another value, and changes no earlier result.
    """

    shape = torch.Size()
    ndim = 0

    def __init__(self, value: Traced) -> None:
        self._value = value

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return _record(func, args, kwargs or {})

    @property
    def dtype(self) -> torch.dtype:
        if self._value.dtype is None:
            raise TypeError(f"{_ONCE} It asks for the dtype of {self}; arguments alone have one.")
        return self._value.dtype

    @property
    def device(self) -> torch.device | None:
        return self._value.device

    def size(self, dim: int | None = None) -> torch.Size:
        if dim is not None:
            raise IndexError(f"{self} is a scalar, and has no axis {dim}.")
        return self.shape

    def dim(self) -> int:
        return 0

    def numel(self) -> int:
        return 1

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(torch.Tensor, name, None)
        if name.startswith("__") or not callable(method):
            raise AttributeError(f"A scalar of a mod has no attribute {name!r}.")
        return lambda *args, **kwargs: _record(method, (self, *args), kwargs)

    def __getitem__(self, index: Any) -> Any:
        return _record(operator.getitem, (self, index), {})

    def _refuse(self, *args: Any) -> Any:
        raise TypeError(
            f"{_ONCE} It asks for the number of {self}, as `if`, `int()` or a loop does: write "
            "torch.where(condition, …, …) instead."
        )

    __bool__ = __int__ = __float__ = __index__ = __iter__ = __len__ = _refuse
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return repr(self._value)


def _values(x: Any) -> Any:
    """Return x with the present values of its scalars."""
    if isinstance(x, Scalar):
        return x._value
    if isinstance(x, (tuple, list)) and any(isinstance(y, (Scalar, tuple, list)) for y in x):
        return type(x)(map(_values, x))
    return x


def _record(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Record an operation with a scalar among its arguments, and return its result.

    Raises:
        TypeError: it writes to a tensor, or in place by a function without a counterpart.
    """
    args, kwargs = _in_order(function, args, dict(kwargs))
    name = _name_of(function)
    if kwargs.get("out") is not None:
        raise TypeError(f"a mod calls {name} with out=: use its result.")
    is_operator = getattr(operator, name, None) is function  # such as and_
    writes = name.endswith("_") and not name.endswith("__") and not is_operator
    if name == "__setitem__" or (writes and not isinstance(args[0], Scalar)):
        raise TypeError(f"a mod changes a captured tensor by {name}: make a new one before.")
    values, options = _values(args), {key: _values(x) for key, x in kwargs.items()}
    if writes or options.pop("inplace", False):
        args[0]._value = _written(function, name, values, options)
        return args[0]
    if function in _FILLED:  # the result does not depend on the numbers of its argument
        found = _FILLED[function](*values, **options)
        return Scalar(found) if isinstance(found, Traced) else found
    return Scalar(Traced("", function, values, options))


_NAMES = {"where": ("condition", "input", "other"), "pow": ("input", "exponent")}


def _in_order(
    function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments with tensors by position."""
    names = _NAMES.get(_name_of(function), ("input", "other"))
    while len(args) < len(names) and names[len(args)] in kwargs:
        args = *args, kwargs.pop(names[len(args)])
    return args, kwargs


def _name_of(function: Any) -> str:
    return str(getattr(function, "__name__", function)).partition(".")[0]


def _written(function: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Traced:
    """Return the value of a scalar after an operation in place, which keeps its dtype."""
    old, *others = args
    if name in ("copy_", "fill_", "zero_"):
        (new,) = others or (0,)
        if isinstance(new, Traced) and "score" in old.depends & new.depends:
            return new
        return Traced("", _copied, (new, old))
    plain = function
    if name.endswith("_"):
        plain = getattr(torch.Tensor, name[:-1], getattr(functional, name[:-1], None))
    if not callable(plain):
        raise TypeError(f"a mod calls {name} in place, which is not recorded: use a result.")
    return _in_dtype_of(old, Traced("", plain, args, kwargs))


def _in_dtype_of(old: Traced, new: Traced) -> Traced:
    """Return the value that is written in place of another.

    Scores have the dtype of sums, which their steps keep.
    """
    return new if "score" in old.depends else Traced("", _as_before, (new, old))


def _copied(new: Any, old: Tensor) -> Tensor:
    """Return `new` in the dtype of `old`."""
    return torch.as_tensor(new, device=old.device).to(old.dtype)


def _as_before(new: Tensor, old: Tensor) -> Tensor:
    """Return `new` in the dtype of `old`.

    Raises:
        TypeError: numbers of this dtype cannot hold the result.
    """
    if not torch.can_cast(new.dtype, old.dtype):
        raise TypeError(f"a mod writes {new.dtype} in place of {old.dtype}: use the result.")
    return new.to(old.dtype)


_DEPTH = 6
_ONCE = "A mod is called once, for all positions."
_SYMBOLS = {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "and": "&",
    "or": "|", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!=",
}  # fmt: skip


def _filled(like: Traced, fill_value: Any, *, dtype: Any = None, **options: Any) -> Any:
    """Return a tensor () of the dtype of `like`, which depends on no position."""
    dtype = dtype or like.dtype
    if isinstance(fill_value, (int, float)) and (dtype is not None or math.isinf(fill_value)):
        return torch.full((), fill_value, dtype=dtype, device=like.device)
    return Traced("", torch.full_like, (like, fill_value), {"dtype": dtype})


def _new(like: Traced, value: Any, *given: Any, size: Any = None, **options: Any) -> Any:
    """Return a tensor of `size`, or of the size given as integers or at once, in the dtype of
    `like`.
    """
    if size is None:
        size = given[0] if len(given) == 1 and isinstance(given[0], (tuple, list)) else given
    dtype = options.get("dtype") or like.dtype
    if dtype is None:
        return Traced("", torch.Tensor.new_full, (like, tuple(size), value))
    return torch.full(tuple(size), value, dtype=dtype, device=like.device)


_FILLED: dict[Any, Callable[..., Any]] = {
    torch.full_like: _filled,
    torch.zeros_like: lambda like, **options: _filled(like, 0, **options),
    torch.ones_like: lambda like, **options: _filled(like, 1, **options),
    torch.Tensor.new_zeros: lambda like, *size, **options: _new(like, 0, *size, **options),
    torch.Tensor.new_ones: lambda like, *size, **options: _new(like, 1, *size, **options),
}


def _binary(function: Any, swapped: bool) -> Any:
    def record(self: Scalar, other: Any) -> Any:
        args = (_values(other), self._value) if swapped else (self._value, _values(other))
        return Scalar(Traced("", function, args))

    return record


def _in_place(function: Any) -> Any:
    def record(self: Scalar, other: Any) -> Scalar:
        new = Traced("", function, (self._value, _values(other)))
        self._value = _in_dtype_of(self._value, new)
        return self

    return record


def _unary(function: Any) -> Any:
    return lambda self: _record(function, (self,), {})


_COMPARISONS = "lt", "le", "gt", "ge", "eq", "ne"
for _name in (
    "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and_", "or_", "xor", "lshift",
    "rshift", *_COMPARISONS,
):  # fmt: skip
    _function, _plain = getattr(operator, _name), _name.strip("_")
    setattr(Scalar, f"__{_plain}__", _binary(_function, swapped=False))
    if _plain not in _COMPARISONS:
        setattr(Scalar, f"__r{_plain}__", _binary(_function, swapped=True))
        setattr(Scalar, f"__i{_plain}__", _in_place(_function))
for _name in ("neg", "pos", "invert", "abs"):
    setattr(Scalar, f"__{_name}__", _unary(getattr(operator, _name)))


def _shown(x: Any, depth: int = _DEPTH) -> str:
    if isinstance(x, Traced):
        return x.text(depth)
    if isinstance(x, Tensor):
        return f"tensor{tuple(x.shape)}"
    if isinstance(x, tuple):
        return f"({', '.join(_shown(y, depth) for y in x)})"
    return str(x)


def _traced(x: Any) -> Iterator[Traced]:
    if isinstance(x, Traced):
        yield x
    elif isinstance(x, (tuple, list)):
        for y in x:
            yield from _traced(y)


def _check_devices(x: Any, device: torch.device | None) -> None:
    """Check that captured tensors are on a device; numbers () of a CPU go everywhere.

    Raises:
        ValueError: a tensor is on another device.
    """
    if isinstance(x, (tuple, list)):
        for y in x:
            _check_devices(y, device)
    elif isinstance(x, Tensor) and device not in (None, x.device) and (x.dim() or not x.is_cpu):
        raise ValueError(
            f"a mod captures {_shown(x)} on {x.device}, expected {device}, the device of the "
            "query: move the tensor by .to(query.device)."
        )


class _Indexing(TorchFunctionMode):
    """Records a captured tensor that is indexed by a traced scalar."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is torch.Tensor.__getitem__ and [*_traced(_values(args[1:]))]:
            return _record(operator.getitem, args, {})
        return func(*args, **(kwargs or {}))


def accumulation(x: Tensor) -> torch.dtype:
    """Return the dtype of scores of x, at least float32."""
    return torch.promote_types(x.dtype, torch.float32)


def call(mod: Callable[..., Any], names: tuple[str, ...], like: Tensor) -> Any:
    """Call a mod with traced arguments; "score" has the dtype of sums of `like`, others int32.

    Raises:
        TypeError: the mod returns no number.
    """
    wide = accumulation(like)
    arguments = [
        Scalar(Traced(name, dtype=wide if name == "score" else torch.int32, device=like.device))
        for name in names
    ]
    with _Indexing():
        result = _values(mod(*arguments))
    if not isinstance(result, (Traced, Tensor, int, float)):
        raise TypeError(
            f"a mod returns a {type(result).__name__}, expected a scalar: a score, or a condition."
        )
    return result


def numbers(x: Any, positions: Mapping[str, Tensor], score: Tensor | None = None) -> Tensor:
    """Return the numbers of a traced scalar for all positions, (B, H, T_q, T_k).

    positions: the indices along each axis, integers (n,). Axes on which x does not depend have
    length 1; positions of `DISTANCE` are one more axis, the last. score (B, H, T_q, T_k): the
    scores, if x depends on them.
    """
    if not isinstance(x, Traced):
        like = next(iter(positions.values()))
        return _scalar(x, x, like.device).reshape((1,) * len(positions))
    needed = set(positions) if "score" in x.depends else x.depends
    axes = [name for name in positions if name in needed]

    def of_one(*given: Tensor) -> Tensor:
        known = dict(zip(axes, given, strict=False))
        if score is not None:
            known["score"] = given[-1]
        return _scalar(_compute(x, known, {}), x, x.device)

    mapped: Any = of_one
    with_score = score is not None and "score" in x.depends
    for i in reversed(range(len(axes))):
        in_dims = [0 if i == j else None for j in range(len(axes))]
        mapped = torch.vmap(mapped, in_dims=(*in_dims, *((0,) if with_score else ())))
    found = mapped(*(positions[name] for name in axes), *((score,) if with_score else ()))
    shape = [len(positions[name]) if name in axes else 1 for name in positions]
    result: Tensor = torch.as_tensor(found, device=x.device).reshape(shape)
    return result


def _scalar(found: Any, x: Any, device: torch.device | None) -> Tensor:
    """Return the numbers found for x as a tensor ().

    Raises:
        TypeError, ValueError: they are no real numbers, or more than one.
    """
    if not isinstance(found, (Tensor, int, float)) or (
        isinstance(found, Tensor) and found.is_complex()
    ):
        got = found.dtype if isinstance(found, Tensor) else type(found).__name__
        raise TypeError(f"A mod has {_shown(x)} of {got}: expected real numbers or booleans.")
    number: Tensor = torch.as_tensor(found, device=device)
    if number.dim():
        raise ValueError(
            f"A mod has {_shown(x)} of shape {tuple(number.shape)}, expected a scalar for each "
            "query and key: index it by b, h, q_idx or kv_idx."
        )
    return number


def _compute(x: Any, known: Mapping[str, Tensor], seen: dict[int, Any]) -> Any:
    """Return the number of a traced scalar; arguments have the numbers `known`."""
    if isinstance(x, (tuple, list)):
        return type(x)(_compute(y, known, seen) for y in x)
    if not isinstance(x, Traced):
        return x
    if x.name:
        return known[x.name]
    if id(x) not in seen:
        args = _compute(x.args, known, seen)
        kwargs = {name: _compute(y, known, seen) for name, y in x.kwargs.items()}
        function = _index if x.function is operator.getitem else x.function
        seen[id(x)] = function(*args, **kwargs)
    return seen[id(x)]


def _index(x: Tensor, index: Any) -> Tensor:
    """Return x[index] of leading axes; a scalar index under vmap has no number of its own.

    Numbers of 16 bits become float32, so that gradients of one entry add up in float32.

    Raises:
        IndexError: an index is beyond the end, also for a pair that is masked.
    """
    if x.is_floating_point():
        x = x.to(accumulation(x))
    whole = index if isinstance(index, tuple) else (index,)
    try:
        if all(isinstance(i, (int, Tensor)) for i in whole):
            indices = [torch.as_tensor(i, device=x.device).long() for i in whole]
            return cast(Tensor, torch.ops.aten.index(x, indices))
        return x[index]
    except IndexError as error:
        raise IndexError(
            f"a mod reads beyond a captured tensor of shape {tuple(x.shape)}: {error}. Masked "
            "pairs are read too: clamp the index."
        ) from None


def number_of(x: Any) -> float | None:
    """Return a number, or the number of a scalar tensor without derivative; None for others."""
    if isinstance(x, (int, float)):
        return float(x)
    if not isinstance(x, Tensor) or x.dim() or x.requires_grad:
        return None
    return None if is_transformed(x) or is_forward_mode() else float(x)


def by_distance(x: Any) -> Any:
    """Return x as a function of `DISTANCE`, in place of q_idx and kv_idx; None if it is none."""
    return x.of_distance if isinstance(x, Traced) else x


def _by_distance(x: Traced) -> Any:
    if not x.depends & {"q_idx", "kv_idx"}:
        return x
    linear = x.linear
    if linear is not None:
        of_query, of_key, constant = linear
        if of_query != -of_key:
            return None
        distance = Traced(DISTANCE, dtype=torch.int32, device=x.device)
        scaled = Traced("", operator.mul, (distance, of_key))
        return Traced("", operator.add, (scaled, constant))
    if x.name:
        return None
    if x.function in _COMPARED and None not in map(_linear_part, x.args):
        difference = by_distance(Traced("", operator.sub, x.args))  # of i < j: i − j < 0
        return None if difference is None else Traced("", x.function, (difference, 0))
    args = _all_by_distance(x.args)
    kwargs = _all_by_distance(tuple(x.kwargs.values()))
    if args is None or kwargs is None:
        return None
    return Traced("", x.function, args, dict(zip(x.kwargs, kwargs, strict=True)))


def _all_by_distance(xs: Any) -> Any:
    made = []
    for x in xs:
        found = _all_by_distance(x) if isinstance(x, (tuple, list)) else by_distance(x)
        if found is None and x is not None:
            return None
        made.append(found)
    return type(xs)(made)


def _linear(x: Traced) -> tuple[int, int, int] | None:
    if x.name:
        return {"q_idx": (1, 0, 0), "kv_idx": (0, 1, 0)}.get(x.name)
    kind = _LINEAR.get(x.function)
    parts = [_linear_part(y) for y in x.args] if kind and not x.kwargs else [None]
    if None in parts:
        return None
    known = [part for part in parts if part is not None]
    if kind == "neg":
        ((i, j, n),) = known
        return -i, -j, -n
    (i, j, n), (k, m, o) = known
    if kind == "mul":
        if (i, j) != (0, 0) and (k, m) != (0, 0):
            return None
        return i * o + k * n, j * o + m * n, n * o
    sign = 1 if kind == "add" else -1
    return i + sign * k, j + sign * m, n + sign * o


def functions_named(*names: str) -> frozenset[Any]:
    """Return the functions of these names of Python's operators, of PyTorch and of its tensors."""
    modules = operator, torch, torch.Tensor
    found = (getattr(module, name, None) for module in modules for name in names)
    return frozenset(filter(callable, found))  # torch.float is a dtype


_COMPARED = functions_named("lt", "le", "gt", "ge", "eq", "ne")


def _linear_part(x: Any) -> tuple[int, int, int] | None:
    if isinstance(x, int) and not isinstance(x, bool):
        return 0, 0, x
    return x.linear if isinstance(x, Traced) else None


_LINEAR: dict[Any, str] = {
    function: name for name in ("add", "sub", "mul", "neg") for function in functions_named(name)
}
